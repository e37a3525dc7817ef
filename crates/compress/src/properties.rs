//! Properties that hold of any bytes from a peer. Tests of this crate and fuzz targets assert it.

use http::HeaderMap;
use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue,
    USER_AGENT,
};

use crate::accept::{AcceptedCodings, Coding};
use crate::decoder::{ContentDecoder, DECODER_BYTES_MAX, STEP_BYTES_MAX};
use crate::dictionary::offer::USE_AS_DICTIONARY;
use crate::dictionary::use_as::{DESTINATIONS_MAX, ID_CHARS_MAX, UseAs};
use crate::dictionary::{Hash, header};
use crate::request::{BODY_BYTES_MIN, RequestBody, code, coding, decode, is_accepted, may_code};

/// Any bytes are decoded in bounded steps, to an end or a fault, with a dictionary or without one.
/// The first byte says the coding, the second the pieces.
///
/// # Panics
///
/// Where that does not hold.
pub fn steps_are_bounded(data: &[u8]) {
    let [kind, piece, body @ ..] = data else { return };
    let dictionary = b"a dictionary that both sides have";
    let hash = Hash([7; 32]);
    let (decoder, body) = match kind % 5 {
        0 => (ContentDecoder::new(Coding::Zstd), body.to_vec()),
        1 => (ContentDecoder::new(Coding::Br), body.to_vec()),
        2 => (ContentDecoder::new(Coding::Gzip), body.to_vec()),
        n => {
            let coding = if n == 3 { Coding::Dcz } else { Coding::Dcb };
            let mut whole = Vec::new();
            if kind & 0x80 == 0 {
                header(coding, hash, &mut whole);
            }
            whole.extend_from_slice(body);
            (ContentDecoder::with_dictionary(coding, hash, dictionary), whole)
        }
    };
    let Some(mut decoder) = decoder else { return };
    for mut input in body.chunks(usize::from(*piece).max(1)) {
        for _ in 0..1000 {
            let (before, mut out) = (input.len(), Vec::new());
            if decoder.step(&mut input, &mut out).is_err() {
                return;
            }
            assert!(out.len() <= STEP_BYTES_MAX && input.len() <= before);
            assert!(decoder.bytes() < DECODER_BYTES_MAX, "{} bytes", decoder.bytes());
            if out.is_empty() {
                assert!(input.is_empty(), "it has taken all");
                break;
            }
        }
    }
    let _ = decoder.end();
}

/// A body is coded or decoded once at most, whatever the fields of its request say, and they say
/// then how it is. Each line of `data` is a value: of Content-Encoding, Content-Type,
/// Cache-Control, Accept-Encoding and User-Agent in turn.
///
/// # Panics
///
/// Where that does not hold.
pub fn fields_are_consistent(data: &[u8]) {
    let names = [CONTENT_ENCODING, CONTENT_TYPE, CACHE_CONTROL, ACCEPT_ENCODING, USER_AGENT];
    let mut fields = HeaderMap::new();
    for (name, line) in names.iter().cycle().zip(data.split(|byte| *byte == b'\n').take(32)) {
        if let Ok(value) = HeaderValue::from_bytes(line) {
            fields.append(name, value);
        }
    }
    if is_accepted(&fields) {
        assert!(AcceptedCodings::read(&fields).takes(Coding::Zstd));
    }
    let is_said = fields.contains_key(CONTENT_ENCODING);
    if may_code(&fields, None, "a.example") {
        assert!(!is_said && may_code(&fields, Some(BODY_BYTES_MIN), "a.example"));
        assert!(!may_code(&fields, Some(BODY_BYTES_MIN - 1), "a.example"));
        code(&mut fields);
        assert!(!may_code(&fields, None, "a.example"), "it is coded");
        assert_eq!(coding(&fields), RequestBody::Coded(Coding::Zstd));
    }
    if let RequestBody::Coded(coded) = coding(&fields) {
        assert!(!coded.is_of_dictionary() && fields.get_all(CONTENT_ENCODING).iter().count() == 1);
        fields.insert(CONTENT_LENGTH, HeaderValue::from_static("9"));
        decode(&mut fields);
        assert_eq!(coding(&fields), RequestBody::AsIs, "it is decoded");
        assert!(!fields.contains_key(CONTENT_LENGTH), "its length is not known");
    }
}

/// Any bytes of Use-As-Dictionary are read without a panic, and what was read is within its bounds.
///
/// # Panics
///
/// Where that does not hold.
pub fn field_is_bounded(data: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(data) else { return };
    let headers = HeaderMap::from_iter([(USE_AS_DICTIONARY, value)]);
    if let Some(read) = UseAs::read(&headers) {
        assert!(read.destinations.len() <= DESTINATIONS_MAX && read.id.len() <= ID_CHARS_MAX);
        assert!(read.id.is_empty() || UseAs::id_field(&read.id).is_some());
    }
}
