//! The backend: an echo server, or HTTP/1.1 if the first bytes are "GET " or "POST", with or
//! without TLS. A WebSocket echoes, too. `/events` is an event stream that pauses after its first
//! event, and `/poll` is not answered.

use std::io;
use std::net::SocketAddr;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use super::listen;
use crate::client::SMALL_BODY;
use crate::client::held::EVENT;

/// Serves plain TCP.
pub async fn plain(address: SocketAddr) -> io::Result<()> {
    let listener = listen::listen(address)?;
    loop {
        tokio::spawn(converse(listen::accept(&listener).await?));
    }
}

/// Serves TLS.
pub async fn tls(address: SocketAddr, acceptor: TlsAcceptor) -> io::Result<()> {
    let listener = listen::listen(address)?;
    loop {
        let (stream, acceptor) = (listen::accept(&listener).await?, acceptor.clone());
        tokio::spawn(async move { converse(acceptor.accept(stream).await?).await });
    }
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let length = stream.read(&mut buffer).await?;
    if [&b"GET "[..], b"POST"].iter().any(|method| buffer[..length].starts_with(method)) {
        answer(&mut stream, &mut buffer, length).await?;
    } else {
        echo(&mut stream, &mut buffer, length).await?;
    }
    stream.shutdown().await
}

async fn echo<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    buffer: &mut [u8],
    mut length: usize,
) -> io::Result<()> {
    while length > 0 {
        stream.write_all(&buffer[..length]).await?;
        stream.flush().await?;
        length = stream.read(buffer).await?;
    }
    Ok(())
}

/// Answers one request after another, without pipelining or chunks, as the load tools send them.
async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    buffer: &mut [u8],
    mut length: usize,
) -> io::Result<()> {
    while length > 0 {
        let end = loop {
            if let Some(at) = buffer[..length].windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            let more = stream.read(&mut buffer[length..]).await?;
            if more == 0 {
                return Ok(());
            }
            length += more;
        };
        let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
        if let Some(body) = field(&head, "content-length").and_then(|bytes| bytes.parse().ok()) {
            drop_body(stream, length - end, body).await?;
        }
        if let Some(key) = field(&head, "sec-websocket-key") {
            return switch(stream, buffer, key).await;
        }
        let head = head.to_ascii_lowercase();
        let path = head.split(' ').nth(1).unwrap_or("/");
        if path == "/events" {
            begin_events(stream).await?;
        }
        if matches!(path, "/events" | "/poll") {
            // Until the other side ends it.
            return stream.read(buffer).await.map(drop);
        }
        let asked = path.strip_prefix("/bytes/").and_then(|count| count.parse().ok());
        let close = head.contains("\r\nconnection: close\r\n");
        respond(stream, asked.unwrap_or(SMALL_BODY.len()), close).await?;
        if close {
            break;
        }
        length = stream.read(buffer).await?;
    }
    Ok(())
}

/// Reads the rest of a body of `bytes`, of which `read` are read.
async fn drop_body<S: AsyncRead + Unpin>(
    stream: &mut S,
    mut read: usize,
    bytes: usize,
) -> io::Result<()> {
    let mut buffer = vec![0; BODY.len()];
    while read < bytes {
        match stream.read(&mut buffer).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => read += more,
        }
    }
    Ok(())
}

/// The value of a field; the first one where there are several.
fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let fields = head.lines().filter_map(|line| line.split_once(':'));
    let mut named = fields.filter(|(known, _)| known.eq_ignore_ascii_case(name));
    named.next().map(|(_, value)| value.trim())
}

/// Becomes a WebSocket (RFC 6455 section 4.2.2) that sends each message back. A message fits one
/// frame of at most 125 bytes, as the load tools send them.
async fn switch<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    buffer: &mut [u8],
    key: &str,
) -> io::Result<()> {
    let accept = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{WEBSOCKET_GUID}").as_bytes());
    let accept = STANDARD.encode(accept);
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    loop {
        let mut start = [0; 2];
        stream.read_exact(&mut start).await?;
        let length = usize::from(start[1] & 0x7f);
        let frame = &mut buffer[..4 + length];
        stream.read_exact(frame).await?;
        let (mask, body) = frame.split_at_mut(4);
        body.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        stream.write_all(&[start[0], start[1] & 0x7f]).await?;
        stream.write_all(body).await?;
    }
}

/// nginx buffers an answer unless a field says that it must not.
async fn begin_events<S: AsyncWrite + Unpin>(stream: &mut S) -> io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n\
                X-Accel-Buffering: no\r\n\
                Transfer-Encoding: chunked\r\n\r\n";
    let mut begin = format!("{head}{:x}\r\n", EVENT.len()).into_bytes();
    begin.extend([EVENT, b"\r\n"].concat());
    stream.write_all(&begin).await?;
    stream.flush().await
}

async fn respond<S: AsyncWrite + Unpin>(
    stream: &mut S,
    mut body: usize,
    close: bool,
) -> io::Result<()> {
    let connection = if close { "Connection: close\r\n" } else { "" };
    let mut head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{connection}Content-Length: {body}\r\n\r\n"
    )
    .into_bytes();
    if let Some(small) = SMALL_BODY.get(..body) {
        // One write, as a server with a small answer does.
        head.extend_from_slice(small);
        body = 0;
    }
    stream.write_all(&head).await?;
    while body > 0 {
        let part = body.min(BODY.len());
        stream.write_all(&BODY[..part]).await?;
        body -= part;
    }
    stream.flush().await
}

const BUFFER_BYTES: usize = 4096;
/// RFC 6455 section 1.3.
const WEBSOCKET_GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The bytes of a larger body, repeated. 64 KiB keeps system calls out of the figures of a
/// bulk download.
static BODY: [u8; 1 << 16] = [b'x'; 1 << 16];
