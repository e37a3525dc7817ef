//! The TLS record layer of a connection after its handshake: the state that is parked, and how it
//! wakes. Sans-IO: bytes in, bytes out, in place. No socket, no clock, no handshake.
//!
//! A [`Session`] is all that a connection keeps between two records. [`Keys`] hold the expanded
//! AEAD keys while records are moved: they are derived on first use and dropped at park.
//!
//! ```
//! use eyelet_record::{Incoming, Keys, Opened, Role, Session, Suite};
//! # fn main() -> Result<(), eyelet_record::RecordFault> {
//! let (client, server) = ([1; 32], [2; 32]);
//! let mut ours = Session::tls13(Role::Server, Suite::Aes128Gcm, &client, &server, 0, 0)?;
//! let mut theirs = Session::tls13(Role::Client, Suite::Aes128Gcm, &client, &server, 0, 0)?;
//!
//! let mut slot = [0; 64];
//! slot[ours.prefix_len()..][..5].copy_from_slice(b"hello");
//! let len = ours.seal(&mut Keys::new(), &mut slot, 5)?;
//!
//! let opened = theirs.open(&mut Keys::new(), &mut slot[..len])?;
//! assert_eq!(opened, Opened::Record { consumed: len, what: Incoming::Data(5..10) });
//! assert_eq!(&slot[5..10], b"hello");
//! # Ok(())
//! # }
//! ```

mod aead;
mod export;
mod fault;
mod handshake;
mod keys;
mod open;
mod partial;
#[cfg(any(test, fuzzing))]
pub mod properties;
mod seal;
mod session;
mod stream;
mod suite;

use eyelet_wire::record;

pub use export::{EXPORT_BYTES, SessionFault};
pub use fault::{RecordFault, Whose, alert};
pub use keys::Keys;
pub use open::{Incoming, Opened};
pub use session::Session;
pub use stream::{ControlRecord, OpenFailure};
pub use suite::{Role, Suite, Version};

/// Bytes of a record header: type, version, length (RFC 8446 section 5.1).
pub const HEADER_BYTES: usize = record::HEADER_LEN;

/// Most bytes of content in one record, either way: 2^14 (RFC 8446 section 5.1, RFC 5246 6.2.1).
pub const PAYLOAD_BYTES_MAX: usize = record::PLAINTEXT_BYTES_MAX;

/// Most bytes before the payload in any suite: header and the explicit nonce of TLS 1.2's GCM.
pub const PREFIX_BYTES_MAX: usize = HEADER_BYTES + 8;

/// Most bytes after the payload in any suite: TLS 1.3's inner content type and the tag.
pub const SUFFIX_BYTES_MAX: usize = 1 + 16;

/// A slot of this size holds any record that we seal.
pub const SLOT_BYTES: usize = PREFIX_BYTES_MAX + PAYLOAD_BYTES_MAX + SUFFIX_BYTES_MAX;

/// Room for any record of [`Session::seal_control`] and [`Session::seal_alert`]. The longest is
/// a TLS 1.2 GCM alert: 5 header + 8 explicit nonce + 2 alert + 16 tag = 31 bytes; TLS 1.3's
/// KeyUpdate has 5 header + 5 message + 1 inner type + 16 tag = 27.
pub const CONTROL_BYTES_MAX: usize = 31;

/// Longest record that a peer may send, header included: 2^14 + 2048 bytes in TLS 1.2 (RFC 5246
/// section 6.2.3; TLS 1.3 allows 2^14 + 256). A buffer of this size always makes progress.
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + record::CIPHERTEXT_TLS12_BYTES_MAX;

#[cfg(test)]
mod tests;
