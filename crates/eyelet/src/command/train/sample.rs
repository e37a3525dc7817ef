//! Requests one response from an upstream, without credentials.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use eyelet_compress::dictionary::offer;
use eyelet_compress::eligible::{self, LENGTH_MIN_TRAINED};
use http::StatusCode;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use rustls_pki_types::ServerName;

use super::log::Visit;
use eyelet_config::{Config, Host, HttpAddress, HttpUpstream, UpstreamHttp2};
use eyelet_tls::client::{ClientConfigs, Spoken};

/// Where samples come from.
pub(super) struct Source<'a> {
    address: &'a HttpAddress,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl<'a> Source<'a> {
    /// The upstream of a rule, verified as for the rule's requests.
    pub(super) fn new(config: &Config, upstream: &'a HttpUpstream) -> Result<Self, String> {
        if upstream.http2 == UpstreamHttp2::On {
            return Err(HTTP2_ONLY.into());
        }
        let address = &upstream.address;
        let Some(tls) = &upstream.tls else { return Ok(Self { address, tls: None }) };
        let configs = ClientConfigs::new(config, None).map_err(|error| error.to_string())?;
        let client = configs.of(tls, Spoken::Http1).ok_or("no TLS configuration")?;
        let name = ServerName::try_from(tls.name.clone()).map_err(|error| error.to_string())?;
        Ok(Self { address, tls: Some((client, name)) })
    }

    /// The body, if any client may see it and it is worth compressing.
    pub(super) fn fetch(&self, visit: &Visit) -> Option<Vec<u8>> {
        let (answer, is_closed) = self.ask(visit).ok()?;
        let (status, headers, body) = split(&answer)?;
        let length = Some(body.len() as u64);
        let declared =
            headers.get(CONTENT_LENGTH).map(|declared| declared.to_str().ok()?.parse().ok());
        // A truncated body would train on half a response. If the length is unknown, only a proper
        // end of TLS shows that the body is whole. One that cannot be read is not unknown.
        let whole = declared.map_or(is_closed, |declared: Option<u64>| declared == length)
            && body.len() <= BODY_BYTES_MAX
            && !headers.contains_key(TRANSFER_ENCODING);
        let public = offer::may_be_sample(status, &headers);
        let worth = eligible::by_head(status, &headers, length, LENGTH_MIN_TRAINED, false).is_ok();
        (whole && public && worth).then(|| body.to_vec())
    }

    fn ask(&self, visit: &Visit) -> io::Result<(Vec<u8>, bool)> {
        let address = match self.address {
            HttpAddress::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                return converse(stream, visit);
            }
            HttpAddress::Tcp(address) => address,
            // Strangers' responses are no dictionaries of ours.
            HttpAddress::Destination => return Err(io::ErrorKind::Unsupported.into()),
        };
        let name = match &address.host {
            Host::Ip(ip) => ip.to_string(),
            Host::Name(name) => name.clone(),
        };
        let first = (name.as_str(), address.port).to_socket_addrs()?.next();
        let first = first.ok_or(io::ErrorKind::NotFound)?;
        let stream = TcpStream::connect_timeout(&first, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let Some((config, name)) = &self.tls else { return converse(stream, visit) };
        let client = ClientConnection::new(config.clone(), name.clone());
        converse(StreamOwned::new(client.map_err(io::Error::other)?, stream), visit)
    }
}

/// The response, and whether it ended properly.
fn converse(mut stream: impl Read + Write, visit: &Visit) -> io::Result<(Vec<u8>, bool)> {
    // HTTP/1.0: the end of the connection ends the body, and nothing is chunked.
    let request = format!(
        "GET {} HTTP/1.0\r\nHost: {}\r\nAccept-Encoding: identity\r\nX-Forwarded-Proto: https\r\n\
         Connection: close\r\n\r\n",
        visit.path, visit.host
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let bytes_max = (BODY_BYTES_MAX + HEAD_BYTES_MAX) as u64;
    match stream.take(bytes_max).read_to_end(&mut answer) {
        Ok(_) => Ok((answer, true)),
        // The end came without close_notify.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok((answer, false)),
        Err(error) => Err(error),
    }
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

const HTTP2_ONLY: &str = "samples are asked by HTTP/1 only; with `upstream_http2 = \"on\"` this \
    upstream may not understand that. Train with a configuration that names it without";

/// A longer response is not small.
const BODY_BYTES_MAX: usize = 256 << 10;
const HEAD_BYTES_MAX: usize = 64 << 10;
const FIELDS_MAX: usize = 128;
/// Tests share a busy machine with their upstreams.
const TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 10 });
