//! Certificates, keys, revocation lists and SPIFFE ids: how they are read, and what is in them.

#![allow(missing_docs)] // only the workspace uses it

pub mod certificate;
pub mod crl;
pub mod pem;
#[cfg(any(test, fuzzing))]
pub mod properties;
pub mod spiffe;
#[cfg(test)]
mod tests;
