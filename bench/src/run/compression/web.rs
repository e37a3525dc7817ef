//! A small HTTP/1.1 origin with files, and a TLS client that counts the bytes it receives. It must
//! not decode them: the figure is the bytes sent.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;

use super::material::ServedFiles;
use crate::client::tls::{self, HandshakeOptions};
use crate::lab::host_name;

/// Serves files until the program ends. Returns its address.
pub async fn serve(files: Arc<ServedFiles>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let files = files.clone();
            tokio::spawn(async move { converse(stream, &files).await });
        }
    });
    Ok(address)
}

async fn converse(stream: TcpStream, files: &ServedFiles) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let head = head(&mut stream).await?;
        let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or("/");
        let (status, body) = match files.get(path) {
            Some(body) => ("200 OK", &body[..]),
            None => ("404 Not Found", &b"no"[..]),
        };
        let kind = match path.split('/').nth(1) {
            Some("api") => "application/json",
            Some("pages") => "text/html",
            _ => "text/javascript",
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
             Cache-Control: public, max-age=3600\r\n\r\n",
            body.len()
        );
        stream.write_all(&[answer.as_bytes(), body].concat()).await?;
        if head.iter().any(|line| line.eq_ignore_ascii_case("connection: close"))
            || head.first().is_some_and(|line| line.ends_with("HTTP/1.0"))
        {
            return stream.shutdown().await;
        }
    }
}

/// The lines of a head, without the empty line.
async fn head(stream: &mut (impl AsyncBufReadExt + Unpin)) -> io::Result<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match line.trim_end() {
            "" => return Ok(lines),
            line => lines.push(line.to_owned()),
        }
    }
}

/// One kept connection to a server.
pub struct WebClient {
    stream: BufReader<TlsStream<TcpStream>>,
}

/// A response.
pub struct WebResponse {
    /// Bytes of the body as sent.
    pub bytes: usize,
    pub body: Vec<u8>,
    pub coding: Option<String>,
    /// The path of the offered dictionary.
    pub link: Option<String>,
}

impl WebClient {
    pub async fn open(target: SocketAddr) -> io::Result<Self> {
        let stream = tls::open(&tls::config(HandshakeOptions::default()), target, 0, 1).await?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    pub async fn get(
        &mut self,
        path: &str,
        accept: &str,
        has: Option<&str>,
    ) -> io::Result<WebResponse> {
        let has = has.map_or(String::new(), |has| format!("Available-Dictionary: {has}\r\n"));
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nAccept-Encoding: {accept}\r\n{has}\r\n",
            host_name(0)
        );
        self.stream.write_all(request.as_bytes()).await?;
        self.stream.flush().await?;
        let head = head(&mut self.stream).await?;
        if !head.first().is_some_and(|line| line.starts_with("HTTP/1.1 200")) {
            return Err(io::Error::other(format!("{path}: {:?}", head.first())));
        }
        let field = |name: &str| {
            head.iter().find_map(|line| {
                let (found, value) = line.split_once(':')?;
                found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            })
        };
        let body = match field("content-length") {
            Some(length) => {
                let mut body = vec![0; length.parse().map_err(io::Error::other)?];
                self.stream.read_exact(&mut body).await?;
                body
            }
            None => self.chunks().await?,
        };
        let link = field("link").and_then(|link| Some(link.split(['<', '>']).nth(1)?.to_owned()));
        Ok(WebResponse { bytes: body.len(), body, coding: field("content-encoding"), link })
    }

    async fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).await?;
            let length = usize::from_str_radix(line.trim_end(), 16).map_err(io::Error::other)?;
            let from = body.len();
            body.resize(from + length, 0);
            self.stream.read_exact(&mut body[from..]).await?;
            let mut end = [0; 2];
            self.stream.read_exact(&mut end).await?;
            if length == 0 {
                return Ok(body);
            }
        }
    }
}
