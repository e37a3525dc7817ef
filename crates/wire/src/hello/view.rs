//! What a checked hello says, read in place from the received bytes. It must not know how the
//! hello was found, and must not be asked for what a rule means.

use super::Sni;
use crate::cursor::{Cursor, U8s, U16s};
use core::fmt;

/// TLS 1.2, the highest version that `legacy_version` alone can offer (RFC 8446 4.2.1).
const TLS12: u16 = 0x0303;
/// The first version with this form of a hello.
const SSL30: u16 = 0x0300;
/// DTLS counts downwards (RFC 9147 5.3); over a stream it is nothing that can be spoken.
const DTLS10: u16 = 0xfeff;
const DTLS12: u16 = 0xfefd;
const DTLS13: u16 = 0xfefc;

/// A well-formed ClientHello: a view over the received bytes, whether they are one record or
/// many. Copying it copies a few hundred bytes and no hello.
#[derive(Clone, Copy)]
pub struct Hello<'a> {
    pub(super) raw_len: usize,
    pub(super) legacy_version: u16,
    pub(super) random: [u8; 32],
    pub(super) session_id_len: u8,
    pub(super) cipher_suites: Cursor<'a>,
    pub(super) compression_methods: Cursor<'a>,
    pub(super) extensions: Option<Cursor<'a>>,
    pub(super) known: Known<'a>,
}

/// The extensions that are looked at, found in the one walk that checks them all.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) sni: Sni,
    /// Each list without its length.
    pub(super) alpn: Option<Cursor<'a>>,
    pub(super) versions: Option<Cursor<'a>>,
    pub(super) groups: Option<Cursor<'a>>,
    pub(super) key_shares: Option<Cursor<'a>>,
    pub(super) signature_algorithms: Option<Cursor<'a>>,
    pub(super) ech: bool,
    pub(super) session_ticket: bool,
    pub(super) psk: bool,
    pub(super) early_data: bool,
}

/// An ALPN protocol name: 1 to 255 bytes of any value (RFC 7301 3.1).
#[derive(Clone, Copy)]
pub struct ProtocolName {
    bytes: [u8; u8::MAX as usize],
    len: u8,
}

/// Whether this cipher suite, group, extension, version or signature scheme is one of the values
/// that clients throw in to keep servers tolerant (RFC 8701): `0x?A?A` with both bytes the same.
pub const fn is_grease(value: u16) -> bool {
    let [high, low] = value.to_be_bytes();
    high == low && low & 0x0f == 0x0a
}

impl<'a> Hello<'a> {
    /// The server's name, or that there is none, or why it is no name.
    pub const fn sni(&self) -> &Sni {
        &self.known.sni
    }

    /// The application protocols that the client offers, in its order; none without ALPN.
    pub fn alpn(&self) -> impl Iterator<Item = ProtocolName> + Clone + use<'a> {
        let mut list = self.known.alpn;
        core::iter::from_fn(move || {
            let name = list.as_mut()?.vec8_filled(super::extensions::FIELD_ALPN).ok()?;
            let mut bytes = [0; u8::MAX as usize];
            name.copy_to(&mut bytes);
            Some(ProtocolName { bytes, len: u8::try_from(name.left()).ok()? })
        })
    }

    /// `legacy_version`: 0x0303 for every client of TLS 1.2 or 1.3.
    pub const fn legacy_version(&self) -> u16 {
        self.legacy_version
    }

    /// The versions offered, GREASE included: those of `supported_versions`, and only without it
    /// `legacy_version` (RFC 8446 4.2.1).
    pub fn versions(&self) -> impl Iterator<Item = u16> + Clone + use<'a> {
        let legacy = self.known.versions.is_none().then_some(self.legacy_version);
        legacy.into_iter().chain(U16s(self.known.versions))
    }

    /// The highest version that the client can speak, as far as anybody knows it: GREASE,
    /// drafts and DTLS do not count. Without `supported_versions` no more than TLS 1.2, whatever
    /// else `legacy_version` says. 0 when there is none from 0x0300 on.
    pub fn version_max(&self) -> u16 {
        if self.known.versions.is_none() {
            // "If this extension is not present, servers [...] MUST negotiate TLS 1.2 or prior,
            // even if ClientHello.legacy_version is 0x0304 or later." Later is 0x0400 too.
            return match self.legacy_version {
                ..SSL30 | DTLS10 | DTLS12 | DTLS13 => 0,
                version => version.min(TLS12),
            };
        }
        self.versions().filter(|version| version >> 8 == 3).max().unwrap_or(0)
    }

    /// The cipher suites offered, in order, GREASE and signalling values included.
    pub fn cipher_suites(&self) -> impl Iterator<Item = u16> + Clone + use<'a> {
        U16s(Some(self.cipher_suites))
    }

    /// The groups of `supported_groups`, in order, GREASE included.
    pub fn groups(&self) -> impl Iterator<Item = u16> + Clone + use<'a> {
        U16s(self.known.groups)
    }

    /// The groups that the client sends key shares for, in order, GREASE included.
    pub fn key_share_groups(&self) -> impl Iterator<Item = u16> + Clone + use<'a> {
        let mut list = self.known.key_shares;
        core::iter::from_fn(move || {
            let list = list.as_mut()?;
            let group = list.u16(super::extensions::FIELD_KEY_SHARE).ok()?;
            list.vec16(super::extensions::FIELD_KEY_SHARE).ok()?;
            Some(group)
        })
    }

    /// The schemes of `signature_algorithms`, in order, GREASE included.
    pub fn signature_algorithms(&self) -> impl Iterator<Item = u16> + Clone + use<'a> {
        U16s(self.known.signature_algorithms)
    }

    /// The TLS compression methods offered; 0 is "null".
    pub fn compression_methods(&self) -> impl Iterator<Item = u8> + Clone + use<'a> {
        U8s(self.compression_methods)
    }

    /// Whether TLS compression is on offer, which CRIME needs.
    pub fn offers_compression(&self) -> bool {
        self.compression_methods().any(|method| method != 0)
    }

    /// The types of the extensions, in order, GREASE included.
    pub fn extensions(&self) -> impl Iterator<Item = u16> + Clone + use<'a> {
        let mut list = self.extensions;
        core::iter::from_fn(move || {
            let list = list.as_mut()?;
            let extension_type = list.u16(super::Field::Extensions).ok()?;
            list.vec16(super::Field::Extensions).ok()?;
            Some(extension_type)
        })
    }

    /// Whether there is an `encrypted_client_hello` extension (RFC 9849): a real one or a GREASE
    /// one, nobody but the right server can tell.
    pub const fn has_ech(&self) -> bool {
        self.known.ech
    }

    /// Whether the client offers a TLS 1.2 session ticket: a `session_ticket` extension that is
    /// not empty (RFC 5077 3.2).
    pub const fn has_session_ticket(&self) -> bool {
        self.known.session_ticket
    }

    /// Whether the client offers a pre-shared key, as it does to resume in TLS 1.3.
    pub const fn has_psk(&self) -> bool {
        self.known.psk
    }

    /// Whether the client sends early data.
    pub const fn has_early_data(&self) -> bool {
        self.known.early_data
    }

    /// The client's random bytes.
    pub const fn random(&self) -> [u8; 32] {
        self.random
    }

    /// Bytes of `legacy_session_id`, 0 to 32.
    pub const fn session_id_len(&self) -> u8 {
        self.session_id_len
    }

    /// How many bytes of what was fed are the records of this hello. What follows (early data,
    /// garbage) is not looked at.
    pub const fn raw_len(&self) -> usize {
        self.raw_len
    }
}

impl ProtocolName {
    /// The name's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl AsRef<[u8]> for ProtocolName {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for ProtocolName {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for ProtocolName {}

impl PartialEq<[u8]> for ProtocolName {
    fn eq(&self, other: &[u8]) -> bool {
        self.as_bytes() == other
    }
}

impl fmt::Debug for ProtocolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// As text, with what is not printable ASCII escaped.
impl fmt::Display for ProtocolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.as_bytes().escape_ascii(), f)
    }
}

impl fmt::Debug for Hello<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello")
            .field("sni", self.sni())
            .field("version_max", &self.version_max())
            .field("raw_len", &self.raw_len)
            .finish_non_exhaustive()
    }
}
