//! Certificates from an ACME server (RFC 8555): ordered, validated, stored and renewed while the
//! edge serves. One thread does all that. A worker only looks into a table; it waits for the thread
//! where a client asks for a name that is ordered for it. No connections of clients.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

mod account;
mod challenge;
mod client;
mod error;
mod hook;
mod issuer;
mod keeper;
mod key_change;
mod misses;
mod name;
mod persist;
mod rate;
mod schedule;
mod store;
mod table;

pub use account::CHANGE_TIMEOUT;
pub use hook::HOOK_TIMEOUT;
pub use issuer::{TextLookup, stand_in};
pub use keeper::AcmeKeeper;
pub use table::{Acme, CertificatesOrLack, Known};
