//! The first line of a request (RFC 9112 section 3), as most are.

use std::ops::Range;

use http::Method;

use crate::lines::alphanumerics_and;

/// Bytes of a request target: browsers stop at 32 KiB at most, most servers at 8.
pub const TARGET_BYTES_MAX: usize = 16 << 10;

/// A request line of HTTP/1.1 with a path.
pub(super) struct RequestLine {
    pub(super) method: Method,
    /// The place of its path, with its query.
    pub(super) path: Range<usize>,
    /// The place at which the fields begin.
    pub(super) end: usize,
}

/// Reads the line of the common methods. `None`: another reader must see it.
pub(super) fn read_common(head: &[u8]) -> Option<RequestLine> {
    let (method, begin) = match head {
        [b'G', b'E', b'T', b' ', b'/', ..] => (Method::GET, 4),
        [b'H', b'E', b'A', b'D', b' ', b'/', ..] => (Method::HEAD, 5),
        [b'P', b'O', b'S', b'T', b' ', b'/', ..] => (Method::POST, 5),
        _ => return None,
    };
    let rest = head.get(begin..)?;
    let len = rest.iter().position(|byte| !PATH_BYTES[usize::from(*byte)])?;
    let (path, end) = (begin..begin + len, begin + len + BEHIND_PATH.len());
    let fits = len <= TARGET_BYTES_MAX && rest.get(len..)?.starts_with(BEHIND_PATH);
    fits.then_some(RequestLine { method, path, end })
}

const BEHIND_PATH: &[u8] = b" HTTP/1.1\r\n";

/// The bytes of paths and queries (RFC 3986 sections 3.3 and 3.4). Other readers judge others.
static PATH_BYTES: [bool; 256] = alphanumerics_and(b"/?%-._~!$&'()*+,;=:@");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_common_lines_are_read() {
        for (line, path) in [
            ("GET / HTTP/1.1\r\n", Some("/")),
            ("HEAD /a?b=%20&c HTTP/1.1\r\nHost: a", Some("/a?b=%20&c")),
            ("POST /x HTTP/1.1\r\n", Some("/x")),
            ("PUT /x HTTP/1.1\r\n", None),
            ("get / HTTP/1.1\r\n", None),
            ("GET  / HTTP/1.1\r\n", None),
            ("GET * HTTP/1.1\r\n", None),
            ("GET /#a HTTP/1.1\r\n", None),
            ("GET /\u{e9} HTTP/1.1\r\n", None),
            ("GET /\" HTTP/1.1\r\n", None),
            ("GET / HTTP/1.0\r\n", None),
            ("GET / HTTP/1.1\n", None),
            ("GET / HTTP/1.1 \r\n", None),
            ("GET /  HTTP/1.1\r\n", None),
            ("GET /\tHTTP/1.1\r\n", None),
            ("GET /", None),
            ("\r\nGET / HTTP/1.1\r\n", None),
        ] {
            let read = read_common(line.as_bytes());
            assert_eq!(read.map(|read| &line[read.path]), path, "{line:?}");
        }
        let long = |len| format!("GET /{} HTTP/1.1\r\n", "a".repeat(len));
        assert!(read_common(long(TARGET_BYTES_MAX - 1).as_bytes()).is_some());
        assert!(read_common(long(TARGET_BYTES_MAX).as_bytes()).is_none());
    }
}
