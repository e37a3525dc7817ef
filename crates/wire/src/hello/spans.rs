//! Where the parts of a ClientHello lie in it, and the numbers that framing and reading share.
//! It must not know what a part says.

use crate::cursor::Span;

/// Bytes of `random` (RFC 8446 4.1.2).
pub(super) const RANDOM_LEN: usize = 32;

/// Types of the extensions that are read again after they were checked.
pub(crate) const ALPN: u16 = 16;
pub(super) const KEY_SHARE: u16 = 51;

/// Where the parts of a hello lie in it.
#[derive(Clone, Copy, Default)]
pub(super) struct Parts {
    pub(super) legacy_version: u16,
    pub(super) session_id_len: u8,
    pub(super) random: Span,
    pub(super) cipher_suites: Span,
    pub(super) compression_methods: Span,
    pub(super) extensions: Span,
    /// The extension's body, of which nothing is checked.
    pub(super) server_name: Option<Span>,
    /// The list of this extension without its length, as of those below; empty where there is none.
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
