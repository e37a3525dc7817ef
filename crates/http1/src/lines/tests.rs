//! Field lines read as another reader reads them, whatever their bytes.

use proptest::prelude::*;

use super::*;

/// Fields of a head, in bytes.
type Lines = Vec<(Vec<u8>, Vec<u8>)>;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n";

/// The fields as this reader finds them, if it accepts all lines and their values.
fn read(fields: &[u8], spaces: bool) -> Option<Lines> {
    let lines = FieldLines::new(fields, 0, spaces).map(|line| {
        let FieldLine { name, role, value, .. } = line.ok()?;
        // The type checks what the reader leaves.
        let value = http::HeaderValue::from_bytes(&fields[value]).ok()?;
        assert_eq!(role, role_of(name.as_str()), "{name}");
        assert_eq!(HeaderName::from_bytes(name.as_str().as_bytes()).ok()?, name);
        Some((name.as_str().as_bytes().to_vec(), value.as_bytes().to_vec()))
    });
    lines.collect()
}

fn role_of(name: &str) -> FieldRole {
    match name {
        "host" => FieldRole::Host,
        "connection" => FieldRole::Connection,
        "content-length" => FieldRole::ContentLength,
        "cookie" => FieldRole::Cookie,
        "date" => FieldRole::Date,
        "content-type" => FieldRole::ContentType,
        "content-encoding" => FieldRole::ContentEncoding,
        "cache-control" => FieldRole::CacheControl,
        "etag" => FieldRole::Etag,
        _ if is_hop_by_hop(name.as_bytes()) => FieldRole::HopByHop,
        _ if KNOWN.iter().any(|known| known.name == name) => FieldRole::Common,
        _ => FieldRole::Other,
    }
}

/// Reads the fields by `httparse`, if all of the bytes are fields and the empty line behind them.
fn read_by_httparse(fields: &[u8], spaces: bool) -> Option<Lines> {
    let mut room = [httparse::EMPTY_HEADER; 64];
    let head = [if spaces { RESPONSE } else { REQUEST }, fields].concat();
    let mut config = httparse::ParserConfig::default();
    config.allow_spaces_after_header_name_in_responses(true);
    let (end, found) = if spaces {
        let mut parsed = httparse::Response::new(&mut room);
        (config.parse_response(&mut parsed, &head), parsed.headers)
    } else {
        let mut parsed = httparse::Request::new(&mut room);
        (parsed.parse(&head), parsed.headers)
    };
    let lower = |name: &str| name.to_ascii_lowercase().into_bytes();
    let found = found.iter().map(|field| (lower(field.name), field.value.to_vec()));
    (end == Ok(httparse::Status::Complete(head.len()))).then(|| found.collect())
}

fn agree(fields: &[u8]) {
    for spaces in [false, true] {
        let by_others = read_by_httparse(fields, spaces);
        assert_eq!(read(fields, spaces), by_others, "{spaces} {}", fields.escape_ascii());
    }
}

#[test]
fn lines_of_each_kind() {
    for fields in [
        &b"\r\n"[..],
        b"\n",
        b"",
        b"\r",
        b"Host: a\r\n\r\n",
        b"HOST:a\n\n",
        b"host :a\r\n\r\n",
        b"Accept\t : a\r\n\r\n",
        b"Accept :\t a \t\r\n\r\n",
        b"X:\r\n\r\n",
        b"X: \t \r\n\r\n",
        b"X: a\r\r\n\r\n",
        b"X: a\r \r\n\r\n",
        b"X: \ra\r\n\r\n",
        b"X: a\r\n b\r\n\r\n",
        b": a\r\n\r\n",
        b" : a\r\n\r\n",
        b"X\r\n\r\n",
        b"X\0: a\r\n\r\n",
        b"X: a\0\r\n\r\n",
        b"X: a\x7f\r\n\r\n",
        b"X: \xe9\x80\xff\r\n\r\n",
        b"X\xe9: a\r\n\r\n",
        b"Connection\r: close\r\n\r\n",
        b"content\rlength: 1\r\n\r\n",
        b"content_length: 1\r\n\r\n",
        b"sec-websocket-extensions-and-so-on-and-on: a:b\r\n\r\n",
        b"access-control-allow-credentials: true\r\n\r\n",
        b"access-control-allow-credentialsX: true\r\n\r\n",
        b"access-control-allow-credentials\x01: true\r\n\r\n",
        b"Host: a\r\n\r\nX: b\r\n\r\n",
        b"Host: a\r\n",
        b"Host: a",
    ] {
        agree(fields);
    }
}

/// A known name is a token that means the same to the `http` crate, in any case of its letters.
#[test]
fn any_byte_in_a_name() {
    for name in [&b"host"[..], b"x-frame-options", b"content-length", b"te", b"x_y"] {
        for at in 0..name.len() {
            for byte in 0..=255 {
                let mut line = name.to_vec();
                line[at] = byte;
                agree(&[&line[..], b": a\r\n\r\n"].concat());
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(fields in proptest::collection::vec(any::<u8>(), 0..40)) {
        agree(&fields);
    }

    #[test]
    fn bytes_that_matter(
        fields in proptest::collection::vec(
            "(Host|ETAG|vary|connection|X-Y|x){0,1}[ \t:\r\n]{0,2}[a\\x00:\u{e9}]{0,2}\r?\n",
            0..4,
        ),
        end in "\r?\n?",
    ) {
        agree([fields.concat(), end].concat().as_bytes());
    }
}

/// The place of the first LF, however far it is.
#[test]
fn lines_of_each_length() {
    for len in 0..200 {
        for byte in [b'a', b'\x0b', b'\x8a', b'\0'] {
            let mut line = vec![byte; len];
            assert_eq!(find_lf(&line), None);
            line.extend_from_slice(b"\n\n");
            assert_eq!(find_lf(&line), Some(len));
        }
    }
}

/// A common name is read as such in any case, and the `http` crate reads the same.
#[test]
fn common_names() {
    for name in &KNOWN {
        let text = name.name.as_str();
        for text in [text.to_owned(), text.to_ascii_uppercase()] {
            agree(format!("{text}: a\r\n\r\n").as_bytes());
            let begun = begins_known(format!("{text}:").as_bytes()).map(|known| &known.name);
            assert_eq!(begun, Some(&name.name), "{text}");
            assert!(known(text.as_bytes()).is_some(), "{text}");
        }
    }
}
