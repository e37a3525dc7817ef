//! A client like a browser: repeats the requests of a recorded checkout over one HTTP/2 connection
//! with many streams. It counts bytes on the wire, so it must not decode.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderName, HeaderValue, LINK};
use http::{HeaderMap, Method};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::edge::available;
use super::tap::Traffic;
use crate::client::tls::{self, HandshakeOptions};
use crate::lab::LOCALHOST;

/// A recorded request.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

/// The requests of connections that were open at the same time, taken in turn.
pub fn requests(connections: &[Vec<u8>]) -> io::Result<Vec<RecordedRequest>> {
    let each: Vec<Vec<RecordedRequest>> =
        connections.iter().map(|sent| parse(sent)).collect::<io::Result<_>>()?;
    let longest = each.iter().map(Vec::len).max().unwrap_or(0);
    let turns = (0..longest).flat_map(|n| each.iter().filter_map(move |own| own.get(n)));
    Ok(turns.cloned().collect())
}

fn parse(sent: &[u8]) -> io::Result<Vec<RecordedRequest>> {
    let (mut requests, mut left) = (Vec::new(), sent);
    while !left.is_empty() {
        let end = left.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(broken)?;
        let head = std::str::from_utf8(&left[..end]).map_err(io::Error::other)?;
        left = &left[end + 4..];
        let mut lines = head.split("\r\n");
        let mut first = lines.next().unwrap_or_default().split(' ');
        let (method, path) = first.next().zip(first.next()).ok_or_else(broken)?;
        let (mut headers, mut length, mut chunked) = (HeaderMap::new(), 0, false);
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let (name, value) = (name.to_ascii_lowercase(), value.trim());
            match &*name {
                "content-length" => length = value.parse().map_err(io::Error::other)?,
                "transfer-encoding" => chunked = true,
                // The browser sets these itself, or they concern the connection.
                "accept-encoding" | "connection" | "host" | "keep-alive" | "te" => {}
                _ => {
                    let name = HeaderName::try_from(name).map_err(io::Error::other)?;
                    headers.append(name, value.parse().map_err(io::Error::other)?);
                }
            }
        }
        let (body, rest) = match chunked {
            true => chunks(left)?,
            false => {
                let (body, rest) = left.split_at_checked(length).ok_or_else(broken)?;
                (body.to_vec(), rest)
            }
        };
        left = rest;
        let method = method.parse().map_err(io::Error::other)?;
        requests.push(RecordedRequest {
            method,
            path: path.to_owned(),
            headers,
            body: body.into(),
        });
    }
    Ok(requests)
}

fn chunks(mut left: &[u8]) -> io::Result<(Vec<u8>, &[u8])> {
    let mut body = Vec::new();
    loop {
        let end = left.windows(2).position(|two| two == b"\r\n").ok_or_else(broken)?;
        let size = std::str::from_utf8(&left[..end]).map_err(io::Error::other)?;
        let size = usize::from_str_radix(size, 16).map_err(io::Error::other)?;
        let (chunk, rest) = left[end + 2..].split_at_checked(size).ok_or_else(broken)?;
        body.extend_from_slice(chunk);
        left = rest.get(2..).ok_or_else(broken)?;
        if size == 0 {
            return Ok((body, left));
        }
    }
}

/// One connection.
pub struct Browser {
    requests: SendRequest<Bytes>,
    traffic: Traffic,
    began: Instant,
}

/// The response to one request.
pub struct ReplayedResponse {
    pub body: Vec<u8>,
    pub headers: HeaderMap,
}

/// The result of a checkout.
#[derive(Clone, Debug)]
pub struct Checkout {
    pub read: u64,
    pub written: u64,
    pub seconds: f64,
    /// Responses by coding.
    pub codings: BTreeMap<String, usize>,
    /// The uses of responses without a coding: `match` and `Available-Dictionary`.
    pub dictionaries: HashMap<String, String>,
}

impl Browser {
    pub async fn open(target: SocketAddr) -> io::Result<Self> {
        let (traffic, began) = (Traffic::default(), Instant::now());
        let stream = TcpStream::connect(target).await?;
        stream.set_nodelay(true)?;
        let config = tls::config(HandshakeOptions { http2: true, ..HandshakeOptions::default() });
        let stream = tls::over(&config, LOCALHOST, traffic.at_client(stream)).await?;
        let (requests, connection) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(stream)
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(connection);
        Ok(Self { requests, traffic, began })
    }

    /// Gets the page that offers a trained dictionary, or the dictionary itself.
    pub async fn get(&mut self, path: &str) -> io::Result<ReplayedResponse> {
        let (method, path) = (Method::GET, path.to_owned());
        let request =
            RecordedRequest { method, path, headers: HeaderMap::new(), body: Bytes::new() };
        read(self.send(&request, "br", None).await?).await
    }

    /// Repeats all requests, a number of them at a time. GETs announce the client's dictionary.
    pub async fn replay(
        mut self,
        requests: &[RecordedRequest],
        accept: &str,
        has: impl Fn(&str) -> Option<String>,
    ) -> io::Result<Checkout> {
        let (mut codings, mut asked) = (BTreeMap::new(), JoinSet::new());
        let mut dictionaries = HashMap::new();
        let mut left = requests.iter();
        loop {
            while asked.len() < STREAMS
                && let Some(request) = left.next()
            {
                let has = has(&request.path);
                asked.spawn(read(self.send(request, accept, has.as_deref()).await?));
            }
            let Some(got) = asked.join_next().await else { break };
            let got = got.map_err(io::Error::other)??;
            let coding = got.headers.get(CONTENT_ENCODING).and_then(|coding| coding.to_str().ok());
            if let (None, Some(offer)) = (coding, got.headers.get("use-as-dictionary")) {
                let pattern = offer.to_str().ok().and_then(|offer| offer.split('"').nth(1));
                let pattern = pattern.unwrap_or_default().to_owned();
                dictionaries.insert(pattern, available(&got.body));
            }
            *codings.entry(coding.unwrap_or("identity").to_owned()).or_default() += 1;
        }
        let seconds = self.began.elapsed().as_secs_f64();
        Ok(Checkout {
            read: self.traffic.read(),
            written: self.traffic.written(),
            seconds,
            codings,
            dictionaries,
        })
    }

    async fn send(
        &mut self,
        request: &RecordedRequest,
        accept: &str,
        has: Option<&str>,
    ) -> io::Result<ResponseFuture> {
        let mut head = http::Request::builder()
            .method(request.method.clone())
            .uri(format!("https://{LOCALHOST}{}", request.path))
            .body(())
            .map_err(io::Error::other)?;
        *head.headers_mut() = request.headers.clone();
        let value = |text: &str| HeaderValue::from_str(text).map_err(io::Error::other);
        head.headers_mut().insert(ACCEPT_ENCODING, value(accept)?);
        if let Some(has) = has
            && request.method == Method::GET
        {
            head.headers_mut().insert("available-dictionary", value(has)?);
        }
        std::future::poll_fn(|cx| self.requests.poll_ready(cx)).await.map_err(io::Error::other)?;
        let is_all = request.body.is_empty();
        let (response, mut stream) =
            self.requests.send_request(head, is_all).map_err(io::Error::other)?;
        if !is_all {
            stream.send_data(request.body.clone(), true).map_err(io::Error::other)?;
        }
        Ok(response)
    }
}

async fn read(response: ResponseFuture) -> io::Result<ReplayedResponse> {
    let (head, mut stream) = response.await.map_err(io::Error::other)?.into_parts();
    if head.status.is_client_error() || head.status.is_server_error() {
        return Err(io::Error::other(format!("answered {}", head.status)));
    }
    let mut body = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data.map_err(io::Error::other)?;
        stream.flow_control().release_capacity(data.len()).map_err(io::Error::other)?;
        body.extend_from_slice(&data);
    }
    Ok(ReplayedResponse { body, headers: head.headers })
}

/// The path in a response's `Link`.
pub fn offered(headers: &HeaderMap) -> Option<String> {
    let link = headers.get(LINK)?.to_str().ok()?;
    Some(link.split(['<', '>']).nth(1)?.to_owned())
}

impl RecordedRequest {
    /// True if it gets a file's content.
    pub fn is_get(&self) -> bool {
        self.method == Method::GET
    }

    pub fn path(&self) -> &str {
        &self.path
    }
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the recording has no whole request")
}

/// Concurrent streams: a browser has a hundred at most.
const STREAMS: usize = 32;
/// Chromium's window in bytes.
const STREAM_WINDOW: u32 = 6 << 20;
const CONNECTION_WINDOW: u32 = 15 << 20;
