//! The backend: an echo server, or HTTP/1.1 if the first bytes are "GET ", with or without TLS.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use super::listen;

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
    if buffer[..length].starts_with(b"GET ") {
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

/// Answers one GET after another, without request bodies or pipelining, as the load tools send
/// them.
async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    buffer: &mut [u8],
    mut length: usize,
) -> io::Result<()> {
    while length > 0 {
        while !buffer[..length].ends_with(b"\r\n\r\n") {
            let more = stream.read(&mut buffer[length..]).await?;
            if more == 0 {
                return Ok(());
            }
            length += more;
        }
        let head = String::from_utf8_lossy(&buffer[..length]).to_ascii_lowercase();
        let path = head.split(' ').nth(1).unwrap_or("/");
        let asked = path.strip_prefix("/bytes/").and_then(|count| count.parse().ok());
        let close = head.contains("\r\nconnection: close\r\n");
        respond(stream, asked.unwrap_or(SMALL_BODY_BYTES), close).await?;
        if close {
            break;
        }
        length = stream.read(buffer).await?;
    }
    Ok(())
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
    if body <= SMALL_BODY_BYTES {
        head.extend_from_slice(&BODY[..body]); // one write, as a server with a small answer does
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
const SMALL_BODY_BYTES: usize = 128;
/// The body's bytes, written repeatedly. 64 KiB keeps system calls out of the figures of a bulk
/// download.
static BODY: [u8; 1 << 16] = [b'x'; 1 << 16];
