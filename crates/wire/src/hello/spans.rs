//! The places of the parts of a ClientHello, and numbers that framing and reading share.

use crate::cursor::Span;

/// Bytes of `random` (RFC 8446 4.1.2).
pub(super) const RANDOM_LEN: usize = 32;

/// Types of extensions that are read again after their check.
pub(crate) const ALPN: u16 = 16;
pub(super) const KEY_SHARE: u16 = 51;

/// The places of the parts of a hello.
#[derive(Clone, Copy, Default)]
pub(super) struct Parts {
    pub(super) legacy_version: u16,
    pub(super) session_id_len: u8,
    pub(super) random: Span,
    pub(super) cipher_suites: Span,
    pub(super) compression_methods: Span,
    pub(super) extensions: Span,
    /// The extension's body, unchecked.
    pub(super) server_name: Option<Span>,
    /// This extension's list without its length, as in the fields below; empty if absent.
    pub(super) alpn: Span,
    pub(super) versions: Span,
    pub(super) groups: Span,
    pub(super) key_shares: Span,
    pub(super) signature_algorithms: Span,
    pub(super) ech: bool,
    pub(super) session_ticket: bool,
    pub(super) psk: bool,
    pub(super) early_data: bool,
}
