//! Frames the whole ClientHello (RFC 8446 4.1.2), to its last byte. It must not know record
//! borders, which the cursor steps over.

use super::extensions;
use super::view::{Hello, Known};
use crate::cursor::Cursor;
use crate::fault::{Fault, Field, Malformed};

/// Longest `legacy_session_id` (RFC 8446 4.1.2).
const SESSION_ID_BYTES_MAX: u8 = 32;

/// Reads the body of a ClientHello.
pub(super) fn client_hello(mut body: Cursor<'_>, raw_len: usize) -> Result<Hello<'_>, Malformed> {
    let legacy_version = body.u16(Field::LegacyVersion)?;
    let random = body.array(Field::Random)?;
    let session_id_len = session_id(&mut body)?;
    let cipher_suites = body.vec16_filled(Field::CipherSuites)?.whole_u16s(Field::CipherSuites)?;
    let compression_methods = body.vec8_filled(Field::CompressionMethods)?;
    let extensions = extension_list(body)?;
    let mut hello = Hello {
        raw_len,
        legacy_version,
        random,
        session_id_len,
        cipher_suites,
        compression_methods,
        extensions,
        known: Known::none(),
    };
    if let Some(list) = extensions {
        extensions::read(list, &mut hello.known)?;
    }
    Ok(hello)
}

/// Reads over a session id, or its echo; gives its length.
pub(crate) fn session_id(body: &mut Cursor<'_>) -> Result<u8, Malformed> {
    let mut ahead = *body;
    let len = ahead.u8(Field::SessionId)?;
    if len > SESSION_ID_BYTES_MAX {
        return Err(body.fault(Fault::SessionIdTooLong(len)));
    }
    body.vec8(Field::SessionId)?;
    Ok(len)
}

/// The list of extensions that ends a hello. TLS 1.2 may leave it out altogether (RFC 5246
/// 7.4.1.2), and nothing may follow it.
pub(crate) fn extension_list(mut body: Cursor<'_>) -> Result<Option<Cursor<'_>>, Malformed> {
    if body.is_empty() {
        return Ok(None);
    }
    let list = body.vec16(Field::Extensions)?;
    body.finish(Field::Extensions)?;
    Ok(Some(list))
}
