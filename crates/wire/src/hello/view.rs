//! A checked hello, read in place from the received bytes.

use super::sni::{self, Sni};
use super::spans::{KEY_SHARE, Parts, RANDOM_LEN};
use crate::cursor::Span;
use crate::fault::Field;
use crate::version::{SSL30, TLS12};
use alloc::borrow::Cow;
use core::fmt;

/// DTLS versions count downwards (RFC 9147 5.3). They cannot be spoken over a stream.
const DTLS10: u16 = 0xfeff;
const DTLS12: u16 = 0xfefd;
const DTLS13: u16 = 0xfefc;

/// A well-formed ClientHello: a view of the received bytes, or of a copy if several records carried
/// it.
pub struct Hello<'a> {
    message: Cow<'a, [u8]>,
    transport: Transport,
    raw_len: usize,
    sni: Sni<'a>,
    parts: Parts,
}

/// The protocol that carries a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP, or a Unix socket.
    #[default]
    Tcp,
    /// QUIC.
    Quic,
}

/// An ALPN protocol name: 1 to 255 bytes of any value (RFC 7301 3.1).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ProtocolName<'a>(&'a [u8]);

/// `tcp` or `quic`, the spelling of rules and access lines.
impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Quic => "quic",
        })
    }
}

/// True if this cipher suite, group, extension, version or signature scheme is a GREASE value,
/// which clients add to keep servers tolerant (RFC 8701): `0x?A?A` with equal bytes.
pub const fn is_grease(value: u16) -> bool {
    let [high, low] = value.to_be_bytes();
    high == low && low & 0x0f == 0x0a
}

/// The names of a list in which each follows its length, as in the ALPN extension. It ends before a
/// name that is cut.
pub fn protocol_names(mut list: &[u8]) -> impl Iterator<Item = ProtocolName<'_>> + Clone {
    core::iter::from_fn(move || {
        let (length, behind) = list.split_first()?;
        let (name, behind) = behind.split_at_checked(usize::from(*length))?;
        list = behind;
        Some(ProtocolName(name))
    })
}

impl<'a> Hello<'a> {
    /// `message` includes its header; `raw_len` is the length of the records that carried it.
    #[inline(always)]
    pub(super) fn new(
        message: Cow<'a, [u8]>,
        transport: Transport,
        raw_len: usize,
        parts: Parts,
    ) -> Self {
        let sni = match (parts.server_name, &message) {
            (None, _) => Sni::Absent,
            (Some(span), Cow::Borrowed(message)) => sni::read(span.cursor(message)),
            (Some(span), Cow::Owned(message)) => sni::read(span.cursor(message)).into_owned(),
        };
        Self { message, transport, raw_len, sni, parts }
    }

    /// A copy that lives as long as it is needed.
    pub fn into_owned(self) -> Hello<'static> {
        Hello {
            message: Cow::Owned(self.message.into_owned()),
            transport: self.transport,
            raw_len: self.raw_len,
            sni: self.sni.into_owned(),
            parts: self.parts,
        }
    }

    /// The protocol that carried it.
    pub const fn transport(&self) -> Transport {
        self.transport
    }

    /// The message, its header included.
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// The server's name, or why there is none.
    pub const fn sni(&self) -> &Sni<'a> {
        &self.sni
    }

    /// The application protocols that the client offers, in its order; empty without ALPN.
    pub fn alpn(&self) -> impl Iterator<Item = ProtocolName<'_>> + Clone {
        protocol_names(self.alpn_list())
    }

    /// The ALPN list: each name after its length.
    pub fn alpn_list(&self) -> &[u8] {
        self.parts.alpn.of(&self.message)
    }

    /// `legacy_version`: 0x0303 for every client of TLS 1.2 or 1.3.
    pub const fn legacy_version(&self) -> u16 {
        self.parts.legacy_version
    }

    /// The versions offered, GREASE included: `supported_versions`, or without it `legacy_version`
    /// (RFC 8446 4.2.1).
    pub fn versions(&self) -> impl Iterator<Item = u16> + Clone {
        let listed = self.parts.versions;
        let legacy = listed.is_empty().then_some(self.parts.legacy_version);
        legacy.into_iter().chain(self.u16s(listed))
    }

    /// The highest known version that the client offers; GREASE, drafts and DTLS do not count.
    /// Without `supported_versions` at most TLS 1.2, whatever `legacy_version` says. 0 if it offers
    /// none from 0x0300 on.
    pub fn version_max(&self) -> u16 {
        let listed = self.parts.versions;
        if listed.is_empty() {
            // "If this extension is not present, servers [...] MUST negotiate TLS 1.2 or prior,
            // even if ClientHello.legacy_version is 0x0304 or later." 0x0400 is later, too.
            return match self.parts.legacy_version {
                ..SSL30 | DTLS10 | DTLS12 | DTLS13 => 0,
                version => version.min(TLS12),
            };
        }
        self.u16s(listed).filter(|version| version >> 8 == 3).max().unwrap_or(0)
    }

    /// The cipher suites offered, in order, GREASE and signalling values included.
    pub fn cipher_suites(&self) -> impl Iterator<Item = u16> + Clone {
        self.u16s(self.parts.cipher_suites)
    }

    /// The groups of `supported_groups`, in order, GREASE included.
    pub fn groups(&self) -> impl Iterator<Item = u16> + Clone {
        self.u16s(self.parts.groups)
    }

    /// The groups that the client sends key shares for, in order, GREASE included.
    pub fn key_share_groups(&self) -> impl Iterator<Item = u16> + Clone {
        let mut list = self.parts.key_shares.cursor(&self.message);
        core::iter::from_fn(move || {
            let group = list.u16(Field::Extension(KEY_SHARE)).ok()?;
            list.vec16(Field::Extension(KEY_SHARE)).ok()?;
            Some(group)
        })
    }

    /// The schemes of `signature_algorithms`, in order, GREASE included.
    pub fn signature_algorithms(&self) -> impl Iterator<Item = u16> + Clone {
        self.u16s(self.parts.signature_algorithms)
    }

    /// The TLS compression methods offered; 0 is "null".
    pub fn compression_methods(&self) -> impl Iterator<Item = u8> + Clone {
        self.parts.compression_methods.of(&self.message).iter().copied()
    }

    /// True if the client offers TLS compression, which makes CRIME possible.
    pub fn offers_compression(&self) -> bool {
        self.compression_methods().any(|method| method != 0)
    }

    /// The types of the extensions, in order, GREASE included.
    pub fn extensions(&self) -> impl Iterator<Item = u16> + Clone {
        let mut list = self.parts.extensions.cursor(&self.message);
        core::iter::from_fn(move || {
            let extension_type = list.u16(Field::Extensions).ok()?;
            list.vec16(Field::Extensions).ok()?;
            Some(extension_type)
        })
    }

    /// True if there is an `encrypted_client_hello` extension (RFC 9849). Only the right server can
    /// tell a real one from GREASE.
    pub const fn has_ech(&self) -> bool {
        self.parts.ech
    }

    /// True if the client offers a TLS 1.2 session ticket: a `session_ticket` extension that is not
    /// empty (RFC 5077 3.2).
    pub const fn has_session_ticket(&self) -> bool {
        self.parts.session_ticket
    }

    /// True if the client offers a pre-shared key, as it does to resume in TLS 1.3.
    pub const fn has_psk(&self) -> bool {
        self.parts.psk
    }

    /// True if the client sends early data.
    pub const fn has_early_data(&self) -> bool {
        self.parts.early_data
    }

    /// The client's random bytes.
    pub fn random(&self) -> [u8; RANDOM_LEN] {
        let random = self.parts.random.of(&self.message);
        random.first_chunk().copied().unwrap_or_default()
    }

    /// Bytes of `legacy_session_id`, 0 to 32.
    pub const fn session_id_len(&self) -> u8 {
        self.parts.session_id_len
    }

    /// Bytes of this hello's records in what was fed. What follows (early data, garbage) is not
    /// read. 0 if it came without records, by QUIC.
    pub const fn raw_len(&self) -> usize {
        self.raw_len
    }

    /// The two-byte values of a list, in order.
    fn u16s(&self, list: Span) -> impl Iterator<Item = u16> + Clone {
        let (values, _) = list.of(&self.message).as_chunks();
        values.iter().copied().map(u16::from_be_bytes)
    }
}

impl<'a> ProtocolName<'a> {
    /// The name's bytes.
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl AsRef<[u8]> for ProtocolName<'_> {
    fn as_ref(&self) -> &[u8] {
        self.0
    }
}

impl PartialEq<[u8]> for ProtocolName<'_> {
    fn eq(&self, other: &[u8]) -> bool {
        self.0 == other
    }
}

impl fmt::Debug for ProtocolName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Bytes that are not printable ASCII are escaped.
impl fmt::Display for ProtocolName<'_> {
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
