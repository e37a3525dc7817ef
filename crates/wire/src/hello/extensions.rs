//! Checks, in one walk, the form of every extension that TLS stacks decode in a ClientHello: we
//! must not route a hello that the next stack cannot decode. All other extensions may hold anything
//! (RFC 8446 4.1.2: "Servers MUST ignore unrecognized extensions"). Two of them rustls decodes and
//! other servers ignore, see docs/conformance.md.

use super::sni::SERVER_NAME;
use super::spans::{ALPN, KEY_SHARE, Parts};
use crate::cursor::Cursor;
use crate::fault::{Fault, Field, Malformed};

const STATUS_REQUEST: u16 = 5;
const SUPPORTED_GROUPS: u16 = 10;
const EC_POINT_FORMATS: u16 = 11;
const SIGNATURE_ALGORITHMS: u16 = 13;
const CLIENT_CERTIFICATE_TYPE: u16 = 19;
const SERVER_CERTIFICATE_TYPE: u16 = 20;
const EXTENDED_MASTER_SECRET: u16 = 23;
const COMPRESS_CERTIFICATE: u16 = 27;
const SESSION_TICKET: u16 = 35;
const PRE_SHARED_KEY: u16 = 41;
const EARLY_DATA: u16 = 42;
pub(crate) const SUPPORTED_VERSIONS: u16 = 43;
const COOKIE: u16 = 44;
const PSK_KEY_EXCHANGE_MODES: u16 = 45;
const CERTIFICATE_AUTHORITIES: u16 = 47;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
const RENEGOTIATION_INFO: u16 = 0xff01;

/// `CertificateStatusType.ocsp` (RFC 6066 8).
const STATUS_TYPE_OCSP: u8 = 1;

/// Shortest `PskBinderEntry` (RFC 8446 4.2.11): the output of SHA-256, the shortest hash.
const BINDER_BYTES_MIN: usize = 32;

/// Walks the list once. Checks each extension's form, that no type occurs twice, and that
/// `pre_shared_key` is the last.
pub(super) fn read(list: Cursor<'_>, parts: &mut Parts) -> Result<(), Malformed> {
    let mut few = Few::new();
    match walk(list, parts, |extension_type| few.insert(extension_type))? {
        Walked::All => Ok(()),
        Walked::NoRoom => read_many(list, parts),
    }
}

/// Walks a list with too many types for the short list.
#[cold]
fn read_many(list: Cursor<'_>, parts: &mut Parts) -> Result<(), Malformed> {
    let mut many = Many::new();
    walk(list, parts, |extension_type| Some(many.insert(extension_type)))?;
    Ok(())
}

enum Walked {
    All,
    /// `insert` had no room for another type.
    NoRoom,
}

// Inlined like the cursor's functions, see there.
#[inline(always)]
fn walk(
    mut list: Cursor<'_>,
    parts: &mut Parts,
    mut insert: impl FnMut(u16) -> Option<bool>,
) -> Result<Walked, Malformed> {
    while !list.is_empty() {
        let start = list;
        let extension_type = list.u16(Field::Extensions)?;
        let body = list.vec16(Field::Extension(extension_type))?;
        match insert(extension_type) {
            None => return Ok(Walked::NoRoom),
            Some(false) => return Err(start.fault(Fault::DuplicateExtension(extension_type))),
            Some(true) => {}
        }
        parts.read_extension(extension_type, body)?;
        if extension_type == PRE_SHARED_KEY && !list.is_empty() {
            return Err(start.fault(Fault::PskNotLast));
        }
    }
    Ok(Walked::All)
}

impl Parts {
    #[inline(always)]
    fn read_extension(
        &mut self,
        extension_type: u16,
        mut body: Cursor<'_>,
    ) -> Result<(), Malformed> {
        let field = Field::Extension(extension_type);
        match extension_type {
            SERVER_NAME => {
                self.server_name = Some(body.span());
                return Ok(());
            }
            ALPN => self.alpn = names(&mut body, field)?.span(),
            SUPPORTED_VERSIONS => {
                self.versions = body.vec8_filled(field)?.whole_u16s(field)?.span();
            }
            SUPPORTED_GROUPS => self.groups = u16_list(&mut body, field)?.span(),
            KEY_SHARE => self.key_shares = key_shares(&mut body, field)?.span(),
            SIGNATURE_ALGORITHMS => {
                self.signature_algorithms = u16_list(&mut body, field)?.span();
            }
            ENCRYPTED_CLIENT_HELLO => {
                self.ech = true;
                ech(&mut body, field)?;
            }
            SESSION_TICKET => {
                self.session_ticket = !body.is_empty();
                return Ok(());
            }
            PRE_SHARED_KEY => {
                self.psk = true;
                pre_shared_key(&mut body, field)?;
            }
            EARLY_DATA => self.early_data = true,
            _ => return check_form(extension_type, body),
        }
        body.finish(field)
    }
}

/// Extensions that are checked but not kept.
#[inline(always)]
fn check_form(extension_type: u16, mut body: Cursor<'_>) -> Result<(), Malformed> {
    let field = Field::Extension(extension_type);
    match extension_type {
        EXTENDED_MASTER_SECRET => {}
        EC_POINT_FORMATS
        | PSK_KEY_EXCHANGE_MODES
        | CLIENT_CERTIFICATE_TYPE
        | SERVER_CERTIFICATE_TYPE => {
            body.vec8_filled(field)?;
        }
        COMPRESS_CERTIFICATE => {
            body.vec8_filled(field)?.whole_u16s(field)?;
        }
        COOKIE => {
            body.vec16_filled(field)?;
        }
        RENEGOTIATION_INFO => {
            body.vec8(field)?;
        }
        CERTIFICATE_AUTHORITIES => {
            let mut names = body.vec16_filled(field)?;
            while !names.is_empty() {
                names.vec16_filled(field)?;
            }
        }
        STATUS_REQUEST => return status_request(body, field),
        _ => return Ok(()),
    }
    body.finish(field)
}

/// A list of two-byte values with a two-byte length, not empty.
#[inline(always)]
fn u16_list<'a>(body: &mut Cursor<'a>, field: Field) -> Result<Cursor<'a>, Malformed> {
    body.vec16_filled(field)?.whole_u16s(field)
}

/// RFC 7301 3.1: `ProtocolName protocol_name_list<2..2^16-1>`, names of 1 to 255 bytes.
#[inline(always)]
fn names<'a>(body: &mut Cursor<'a>, field: Field) -> Result<Cursor<'a>, Malformed> {
    let list = body.vec16_filled(field)?;
    let mut rest = list;
    while !rest.is_empty() {
        rest.vec8_filled(field)?;
    }
    Ok(list)
}

/// RFC 8446 4.2.8: `KeyShareEntry client_shares<0..2^16-1>`. An empty list asks for a retry.
#[inline(always)]
fn key_shares<'a>(body: &mut Cursor<'a>, field: Field) -> Result<Cursor<'a>, Malformed> {
    let list = body.vec16(field)?;
    let mut rest = list;
    while !rest.is_empty() {
        rest.u16(field)?;
        rest.vec16_filled(field)?;
    }
    Ok(list)
}

/// RFC 8446 4.2.11: `OfferedPsks`.
#[inline(always)]
fn pre_shared_key(body: &mut Cursor<'_>, field: Field) -> Result<(), Malformed> {
    let mut identities = body.vec16_filled(field)?;
    while !identities.is_empty() {
        identities.vec16_filled(field)?;
        identities.take(4, field)?; // obfuscated_ticket_age
    }
    let mut binders = body.vec16_filled(field)?;
    while !binders.is_empty() {
        let start = binders;
        if binders.vec8(field)?.left().len() < BINDER_BYTES_MIN {
            return Err(start.fault(Fault::BinderTooShort));
        }
    }
    Ok(())
}

/// RFC 9849 5: `ECHClientHello`.
#[inline(always)]
fn ech(body: &mut Cursor<'_>, field: Field) -> Result<(), Malformed> {
    let start = *body;
    match body.u8(field)? {
        0 => {
            body.take(5, field)?; // kdf_id, aead_id, config_id
            body.vec16(field)?; // enc, empty after a retry
            body.vec16_filled(field)?; // payload
            Ok(())
        }
        1 => Ok(()),
        other => Err(start.fault(Fault::EchType(other))),
    }
}

/// RFC 6066 8: `CertificateStatusRequest`. Types other than OCSP may hold anything.
#[inline(always)]
fn status_request(mut body: Cursor<'_>, field: Field) -> Result<(), Malformed> {
    if body.u8(field)? != STATUS_TYPE_OCSP {
        return Ok(());
    }
    let mut responder_ids = body.vec16(field)?;
    while !responder_ids.is_empty() {
        responder_ids.vec16(field)?;
    }
    body.vec16(field)?;
    body.finish(field)
}

/// The extension types seen so far, if they are as few as in any real client's hello.
pub(crate) struct Few {
    /// A bit for each type below 64.
    low: u64,
    others: [u16; OTHERS_MAX],
    others_len: usize,
}

/// Most types from 64 on in the list; clients send three to six.
const OTHERS_MAX: usize = 16;

impl Few {
    pub(crate) const fn new() -> Self {
        Self { low: 0, others: [0; OTHERS_MAX], others_len: 0 }
    }

    /// False if it was there before; `None` when there is no room for it.
    pub(crate) fn insert(&mut self, extension_type: u16) -> Option<bool> {
        if extension_type < 64 {
            let bit = 1 << extension_type;
            let new = self.low & bit == 0;
            self.low |= bit;
            return Some(new);
        }
        if self.others.get(..self.others_len)?.contains(&extension_type) {
            return Some(false);
        }
        *self.others.get_mut(self.others_len)? = extension_type;
        self.others_len += 1;
        Some(true)
    }
}

/// The extension types seen so far: a bit for each of the 2^16, 8 KiB on the stack. Nothing else
/// finds duplicates among as many extensions as a hello can hold in linear time without allocating.
pub(crate) struct Many([u64; 1 << 10]);

impl Many {
    pub(crate) const fn new() -> Self {
        Self([0; 1 << 10])
    }

    /// False if it was there before.
    pub(crate) const fn insert(&mut self, extension_type: u16) -> bool {
        let (word, bit) = (&mut self.0[extension_type as usize >> 6], 1 << (extension_type & 63));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}
