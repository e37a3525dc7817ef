//! Certificates, keys, revocation lists and SPIFFE ids: how they are read, and what is in them.

#![allow(missing_docs)] // only the workspace uses it

pub mod certificate;
pub mod crl;
pub mod pem;
pub mod spiffe;
