//! Where the edge answers, and one question to it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use eyelet_config::{AdminSettings, Depth, admin_token};
use zeroize::Zeroizing;

/// How long a read or a write may take. An edge answers in milliseconds.
const WAIT: Duration = Duration::from_secs(5);
/// Bytes of an answer: rules and certificates of a large configuration.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Fields of an answer's head. The edge sends four or five.
const FIELDS_MAX: usize = 32;
/// Exit status for a configuration that is wrong.
const USAGE: u8 = 2;

/// Where an admin server is.
#[derive(Clone)]
pub enum AdminSource {
    /// A Unix socket.
    Unix(PathBuf),
    /// A loopback address, and the token.
    Tcp(SocketAddr, Zeroizing<String>),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The mistakes of the configuration.
    #[error("{0}")]
    Config(String),
    /// The configuration has no admin server.
    #[error("the configuration has no [admin]: add it, or name a --socket")]
    Nowhere,
    /// The file of the token.
    #[error("{0}")]
    Token(String),
    /// Neither keys nor frames.
    #[error("neither a terminal to draw on nor --once")]
    NoTerminal,
    /// No connection, or it broke.
    #[error("{0}: {1}")]
    Socket(String, io::Error),
    /// The terminal, or the output.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
    /// The server is there and does not answer as an edge does.
    #[error("{0}: {1}")]
    Answer(&'static str, String),
}

impl SourceError {
    /// The exit status for this error.
    pub fn status(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Nowhere | Self::Token(_) | Self::NoTerminal => USAGE,
            Self::Socket(..) | Self::Output(_) | Self::Answer(..) => 1,
        }
    }
}

impl AdminSource {
    /// Where the edge of this configuration answers.
    ///
    /// # Errors
    /// Mistakes in the file, or no `[admin]` in it.
    pub fn of(file: &Path) -> Result<Self, SourceError> {
        let loaded = eyelet_config::load(file, Depth::Files).map_err(|mistakes| {
            let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            SourceError::Config(lines.join("\n"))
        })?;
        match loaded.config.admin.ok_or(SourceError::Nowhere)? {
            AdminSettings::Unix { path, .. } => Ok(Self::Unix(path)),
            AdminSettings::Tcp { address, token_file } => {
                let token = admin_token(&token_file).map_err(SourceError::Token)?;
                let token = String::from_utf8_lossy(&token).into_owned();
                Ok(Self::Tcp(address, Zeroizing::new(token)))
            }
        }
    }

    /// Asks for a document.
    ///
    /// # Errors
    /// [`SourceError`].
    pub fn get(&self, path: &'static str) -> Result<Vec<u8>, SourceError> {
        self.exchange(path, path)
    }

    /// As [`Self::get`], of which `name` is the part that errors show.
    ///
    /// # Errors
    /// [`SourceError`].
    pub fn exchange(&self, name: &'static str, target: &str) -> Result<Vec<u8>, SourceError> {
        let (place, raw) = match self {
            Self::Unix(path) => {
                let place = path.display().to_string();
                let raw = UnixStream::connect(path).and_then(|stream| {
                    stream.set_read_timeout(Some(WAIT))?;
                    stream.set_write_timeout(Some(WAIT))?;
                    ask(stream, target, "localhost", None)
                });
                (place, raw)
            }
            Self::Tcp(address, token) => {
                let raw = TcpStream::connect_timeout(address, WAIT).and_then(|stream| {
                    stream.set_read_timeout(Some(WAIT))?;
                    stream.set_write_timeout(Some(WAIT))?;
                    ask(stream, target, &address.to_string(), Some(token))
                });
                (address.to_string(), raw)
            }
        };
        let raw = raw.map_err(|error| SourceError::Socket(place, error))?;
        body(raw).map_err(|why| SourceError::Answer(name, why))
    }
}

/// Sends a request of HTTP/1.0, whose answer ends with the connection and has no chunks.
fn ask(
    mut stream: impl Read + Write,
    target: &str,
    host: &str,
    token: Option<&str>,
) -> io::Result<Vec<u8>> {
    let mut request = Zeroizing::new(format!("GET {target} HTTP/1.0\r\nHost: {host}\r\n"));
    if let Some(token) = token {
        request.push_str("Authorization: Bearer ");
        request.push_str(token);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes())?;
    let mut raw = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut raw)?;
    Ok(raw)
}

/// The body of a whole answer with status 200.
fn body(mut raw: Vec<u8>) -> Result<Vec<u8>, String> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut head = httparse::Response::new(&mut fields);
    let length = match head.parse(&raw) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Err("the answer is cut".into()),
        Err(error) => return Err(format!("not HTTP: {error}")),
    };
    let announced = head.headers.iter().find(|field| field.name == "content-length");
    let announced: Option<usize> =
        announced.and_then(|field| std::str::from_utf8(field.value).ok()?.parse().ok());
    match head.code {
        Some(200) => {}
        Some(401) => return Err("401: the token is wrong".into()),
        code => return Err(format!("status {}", code.unwrap_or_default())),
    }
    let body = raw.split_off(length);
    match announced {
        Some(announced) if body.len() != announced => Err("the answer is cut".into()),
        _ => Ok(body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_answer_is_taken() {
        let answer = |text: &str| body(text.as_bytes().to_vec());
        assert_eq!(answer("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nab").unwrap(), b"ab");
        assert_eq!(answer("HTTP/1.0 200 OK\r\n\r\nab").unwrap(), b"ab");
        for (text, why) in [
            ("HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nab", "cut"),
            ("HTTP/1.0 200 OK\r\n", "cut"),
            ("", "cut"),
            ("HTTP/1.0 401 No\r\n\r\n", "token"),
            ("HTTP/1.0 503 No\r\n\r\n", "status 503"),
            ("\x16\x03\x03", "not HTTP"),
        ] {
            assert!(answer(text).unwrap_err().contains(why), "{text}");
        }
    }
}
