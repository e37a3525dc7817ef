//! Frames the whole ClientHello (RFC 8446 4.1.2) to its last byte, and notes where its parts lie.

use super::extensions;
use super::spans::{Parts, RANDOM_LEN};
use crate::cursor::Cursor;
use crate::fault::{Fault, Field, Malformed};
use crate::handshake::MESSAGE_HEADER_LEN;

/// Longest `legacy_session_id` (RFC 8446 4.1.2).
const SESSION_ID_BYTES_MAX: u8 = 32;

/// Reads a ClientHello, its header included.
#[inline(always)]
pub(super) fn client_hello(message: &[u8], parts: &mut Parts) -> Result<(), Malformed> {
    let mut body = Cursor::new(message, MESSAGE_HEADER_LEN);
    parts.legacy_version = body.u16(Field::LegacyVersion)?;
    parts.random = body.take(RANDOM_LEN, Field::Random)?.span();
    parts.session_id_len = session_id(&mut body)?;
    let cipher_suites = body.vec16_filled(Field::CipherSuites)?.whole_u16s(Field::CipherSuites)?;
    parts.cipher_suites = cipher_suites.span();
    parts.compression_methods = body.vec8_filled(Field::CompressionMethods)?.span();
    let extensions = extension_list(body)?;
    parts.extensions = extensions.span();
    extensions::read(extensions, parts)
}

/// Skips a session id, or its echo. Returns its length.
#[inline(always)]
pub(crate) fn session_id(body: &mut Cursor<'_>) -> Result<u8, Malformed> {
    let mut ahead = *body;
    let len = ahead.u8(Field::SessionId)?;
    if len > SESSION_ID_BYTES_MAX {
        return Err(body.fault(Fault::SessionIdTooLong(len)));
    }
    body.vec8(Field::SessionId)?;
    Ok(len)
}

/// The list of extensions that ends a hello. TLS 1.2 may leave it out (RFC 5246 7.4.1.2), which is
/// the same as an empty list. Nothing may follow it.
#[inline(always)]
pub(crate) fn extension_list(mut body: Cursor<'_>) -> Result<Cursor<'_>, Malformed> {
    if body.is_empty() {
        return Ok(body);
    }
    let list = body.vec16(Field::Extensions)?;
    body.finish(Field::Extensions)?;
    Ok(list)
}
