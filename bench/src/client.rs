//! The client's end of a connection: source addresses, TLS, HTTP.

pub mod held;
pub mod http2;
pub mod tls;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Connects from the i-th source address. With several addresses none runs out of ports while
/// closed connections are in TIME_WAIT.
pub async fn connect(target: SocketAddr, i: usize) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((source(i), 0).into())?;
    let stream = socket.connect(target).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Begins to connect from the i-th source address. What is written waits for the connection.
pub fn begin(target: SocketAddr, i: usize) -> io::Result<TcpStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    net::bind(&socket, &SocketAddr::from((source(i), 0)))?;
    match net::connect(&socket, &target) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(why) => return Err(why.into()),
    }
    let stream = TcpStream::from_std(socket.into())?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// 127.0.16.1 to 127.0.19.250. The network changes with each step.
fn source(i: usize) -> Ipv4Addr {
    let host = (i / SOURCE_NETWORKS) % HOSTS + 1;
    let network = SOURCE_FIRST + i % SOURCE_NETWORKS;
    Ipv4Addr::new(127, 0, network as u8, host as u8)
}

/// The k-th network of clients. The i-th client is in network i mod 4.
pub fn source_network(k: usize) -> String {
    format!("127.0.{}.0/24", SOURCE_FIRST + k % SOURCE_NETWORKS)
}

/// A byte stream in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

/// Writes these bytes and reads them back.
pub async fn echo<S: Duplex>(stream: &mut S, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await?;
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).await?;
    match back == bytes {
        true => Ok(()),
        false => Err(io::Error::other("the echo differs")),
    }
}

/// A GET request.
pub fn request(path: &str, close: bool) -> Vec<u8> {
    let connection = if close { "Connection: close\r\n" } else { "" };
    format!("GET {path} HTTP/1.1\r\nHost: host-0.bench.test\r\n{connection}\r\n").into_bytes()
}

/// Sends a POST with so many bytes, and reads the whole response.
///
/// # Errors
/// See [`exchange`].
pub async fn upload<S: Duplex>(stream: &mut S, bytes: usize, buffer: &mut [u8]) -> io::Result<()> {
    let head =
        format!("POST / HTTP/1.1\r\nHost: host-0.bench.test\r\nContent-Length: {bytes}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut left = bytes;
    while left > 0 {
        let piece = left.min(buffer.len());
        stream.write_all(&buffer[..piece]).await?;
        left -= piece;
    }
    exchange(stream, b"", buffer).await.map(drop)
}

/// Sends a request and reads the whole response. Returns the bytes of its body.
///
/// # Errors
/// A socket error, or a response that is not 200 or has no Content-Length.
pub async fn exchange<S: Duplex>(
    stream: &mut S,
    request: &[u8],
    buffer: &mut [u8],
) -> io::Result<usize> {
    exchange_seen(stream, request, buffer, |_| ()).await
}

/// Exchanges a small body so, and fails if it is not the backend's whole body and nothing more.
pub async fn exchange_checked<S: Duplex>(
    stream: &mut S,
    request: &[u8],
    buffer: &mut [u8],
) -> io::Result<()> {
    let (mut is_same, mut at) = (true, 0);
    let see = |part: &[u8]| {
        let end = at + part.len();
        is_same &= SMALL_BODY.get(at..end) == Some(part);
        at = end;
    };
    let length = exchange_seen(stream, request, buffer, see).await?;
    match is_same && (length, at) == (SMALL_BODY.len(), SMALL_BODY.len()) {
        true => Ok(()),
        false => Err(io::Error::other("the body differs")),
    }
}

/// An [`exchange`] that shows each part of the body as it comes.
///
/// # Errors
/// See [`exchange`].
pub async fn exchange_seen<S: Duplex>(
    stream: &mut S,
    request: &[u8],
    buffer: &mut [u8],
    mut see: impl FnMut(&[u8]),
) -> io::Result<usize> {
    stream.write_all(request).await?;
    stream.flush().await?;
    let mut got = 0;
    let head = loop {
        match stream.read(&mut buffer[got..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => got += more,
        }
        if let Some(at) = buffer[..got].windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let length = content_length(&buffer[..head])?;
    see(&buffer[head..got]);
    let mut left = length.saturating_sub(got - head);
    while left > 0 {
        match stream.read(buffer).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => {
                see(&buffer[..more]);
                left = left.saturating_sub(more);
            }
        }
    }
    Ok(length)
}

fn content_length(head: &[u8]) -> io::Result<usize> {
    let text = String::from_utf8_lossy(head).to_ascii_lowercase();
    if !text.starts_with("http/1.1 200 ") {
        let line = text.lines().next().unwrap_or_default().to_owned();
        return Err(io::Error::other(format!("answered {line}")));
    }
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
    length
        .and_then(|length| length.trim().parse().ok())
        .ok_or_else(|| io::Error::other("an answer without Content-Length"))
}

/// Ends TLS or TCP and waits for the other side to end in any way: nginx sends no close_notify to a
/// client without a request.
pub async fn close<S: Duplex>(mut stream: S) {
    let mut rest = [0; 512];
    let _ = stream.shutdown().await;
    while matches!(stream.read(&mut rest).await, Ok(more) if more > 0) {}
}

/// The body of the backend's answer to `GET /`. No two of its parts are the same, so that one that
/// is missing, repeated or in another place shows.
pub const SMALL_BODY: &[u8; SMALL_BODY_BYTES] = &small_body();

const fn small_body() -> [u8; SMALL_BODY_BYTES] {
    let (mut body, mut at) = ([0; SMALL_BODY_BYTES], 0);
    while at < SMALL_BODY_BYTES {
        body[at] = at as u8;
        at += 1;
    }
    body
}

const SMALL_BODY_BYTES: usize = 128;
const SOURCE_FIRST: usize = 16;
const SOURCE_NETWORKS: usize = 4;
const HOSTS: usize = 250;
