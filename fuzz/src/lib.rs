//! The properties that the targets assert. They live beside the tests of the crate that they are
//! about, which call the same functions; nothing is asserted here.

/// Texts of configurations.
#[path = "../../crates/config/tests/any_text/property.rs"]
pub mod config;

/// Files of certificates and keys.
#[path = "../../crates/config/tests/any_text/certificate.rs"]
pub mod certificate;

/// Files that list names or networks.
#[path = "../../crates/config/tests/any_text/list.rs"]
pub mod list;

/// Files of the dictionary store.
#[path = "../../crates/recoding/src"]
pub mod dictionaries {
    /// The crate has SHA-256 from another library.
    mod hash {
        use eyelet_compress::dictionary::Hash;
        use ring::digest;

        pub fn hash(content: &[u8]) -> Hash {
            let mut hash = [0; 32];
            hash.copy_from_slice(digest::digest(&digest::SHA256, content).as_ref());
            Hash(hash)
        }
    }
    #[allow(dead_code)] // What only the folder uses.
    mod stored;
    pub mod stored_properties;
}

/// Sealed values of a fleet. The crate has a client of Redis, too.
#[path = "../../crates/fleet/src"]
pub mod fleet {
    pub mod properties;
    pub mod sealed;
}

/// Ticket keys. The crate has rustls' configurations, too.
#[path = "../../crates/tls/src"]
pub mod tls {
    pub mod properties;
    pub mod tickets;
}

/// Heads and bodies of HTTP/1.1. The files alone: the program around them takes minutes to
/// instrument.
#[path = "../../crates/http/src"]
pub mod http1 {
    pub mod body;
    pub mod fault;
    pub mod framing;
    pub mod head;
    mod spares;
    /// Where `body.rs` puts what it frames again, which nothing here looks at.
    mod io {
        pub struct WriteQueue;

        impl WriteQueue {
            pub fn push(&mut self, _: impl Into<bytes::Bytes>) {}
        }
    }
    pub mod properties;
}

/// Hellos and the PROXY header.
#[path = "../../crates/wire/src/testing/mod.rs"]
pub mod wire;

/// The watch over first flights. The crate it is of is a program, and has more to build than a
/// fuzz target needs.
#[path = "../../crates/engine/src/inspect.rs"]
pub mod inspect;

/// What must hold of it.
#[path = "../../crates/engine/src/inspect/properties.rs"]
pub mod watch_properties;

/// What DNS responses say.
#[path = "../../crates/resolve/src/answer.rs"]
pub mod answer;

/// What is kept of them.
#[path = "../../crates/resolve/src/resolved.rs"]
pub mod resolved;

/// What must hold of both.
#[path = "../../crates/resolve/src/properties.rs"]
pub mod answer_properties;
