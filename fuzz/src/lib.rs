//! The properties that the targets assert. They live beside the tests of the crate that they are
//! about, which call the same functions; nothing is asserted here.
// Their own tests are those of their crates.
#![cfg(not(test))]

/// Texts of configurations.
#[path = "../../crates/config/tests/any_text/property.rs"]
pub mod config;

/// Files of certificates and keys.
#[path = "../../crates/pki/tests/any_text/certificate.rs"]
pub mod certificate;

/// Revocation lists.
#[path = "../../crates/pki/tests/any_text/crl.rs"]
pub mod crl;

/// Files that list names or networks.
#[path = "../../crates/config/tests/any_text/list.rs"]
pub mod list;

/// Sealed values of a fleet. The crate has a client of Redis, too.
#[path = "../../crates/fleet/src"]
pub mod fleet {
    pub mod properties;
    pub mod sealed;
}

/// Messages of the SPIFFE Workload API.
#[path = "../../crates/spiffe/tests/any_message/property.rs"]
pub mod spiffe;

/// Ticket keys. The crate has rustls' configurations, too.
#[path = "../../crates/tls/src"]
pub mod tls {
    pub mod properties;
    pub mod tickets;
}

/// Hellos and the PROXY header.
#[path = "../../crates/wire/src/testing/mod.rs"]
pub mod wire;

/// The contents of DNS responses, and what is kept of them. The crate has a resolver, too.
#[path = "../../crates/resolve/src/dns"]
pub mod dns {
    pub mod answer;
    pub mod properties;
    pub mod resolved;
}
