//! Asks an upstream for one response, with nobody's credentials. It must not know what for.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use eyelet_compress::dictionary::offer;
use eyelet_compress::eligible::{self, LENGTH_MIN_TRAINED};
use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};

use super::log::Visit;
use crate::config::{Host, HttpAddress, HttpUpstream};

/// The body, if it may be shown to everybody and is worth compressing.
pub(super) fn fetch(upstream: &HttpUpstream, visit: &Visit) -> Option<Vec<u8>> {
    let answer = ask(&upstream.address, visit).ok()?;
    let (status, headers, body) = split(&answer)?;
    let length = Some(body.len() as u64);
    let whole = body.len() <= BODY_BYTES_MAX && !headers.contains_key(TRANSFER_ENCODING);
    let public = offer::may_be_sample(status, &headers);
    let worth = eligible::by_head(status, &headers, length, LENGTH_MIN_TRAINED, false).is_ok();
    (whole && public && worth).then(|| body.to_vec())
}

fn ask(address: &HttpAddress, visit: &Visit) -> io::Result<Vec<u8>> {
    // HTTP/1.0: the connection's end is the body's, and nothing is chunked.
    let request = format!(
        "GET {} HTTP/1.0\r\nHost: {}\r\nAccept-Encoding: identity\r\nX-Forwarded-Proto: https\r\n\
         Connection: close\r\n\r\n",
        visit.path, visit.host
    );
    let mut answer = Vec::new();
    let bytes_max = (BODY_BYTES_MAX + HEAD_BYTES_MAX) as u64;
    match address {
        HttpAddress::Unix(path) => {
            let mut stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.write_all(request.as_bytes())?;
            stream.take(bytes_max).read_to_end(&mut answer)?;
        }
        HttpAddress::Tcp(address) => {
            let name = match &address.host {
                Host::Ip(ip) => ip.to_string(),
                Host::Name(name) => name.clone(),
            };
            let first = (name.as_str(), address.port).to_socket_addrs()?.next();
            let first = first.ok_or(io::ErrorKind::NotFound)?;
            let mut stream = TcpStream::connect_timeout(&first, TIMEOUT)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.write_all(request.as_bytes())?;
            stream.take(bytes_max).read_to_end(&mut answer)?;
        }
    }
    Ok(answer)
}

fn split(answer: &[u8]) -> Option<(StatusCode, HeaderMap, &[u8])> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(end) = response.parse(answer).ok()? else { return None };
    let status = StatusCode::from_u16(response.code?).ok()?;
    let mut headers = HeaderMap::new();
    for field in response.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        headers.append(name, HeaderValue::from_bytes(field.value).ok()?);
    }
    Some((status, headers, answer.get(end..)?))
}

/// What is longer is no small response.
const BODY_BYTES_MAX: usize = 256 << 10;
const HEAD_BYTES_MAX: usize = 64 << 10;
const FIELDS_MAX: usize = 128;
const TIMEOUT: Duration = Duration::from_secs(10);
