//! The verifiers of the certificates of clients and upstreams: authorities with their revocation
//! lists, or the bundles of trust domains.

pub mod authorities;
pub mod client_chain;
pub mod client_trust;
pub mod pinned;
pub mod revoked;
pub mod spiffe_verifier;
