//! Where the edge answers, and one question to it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use eyelet_config::{AdminSettings, Depth, admin_token};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use zeroize::Zeroizing;

/// How long a question may take, from connecting to the last byte of the answer. An edge answers in
/// milliseconds.
const WAIT: Duration = Duration::from_secs(5);
/// The least limit of one read or write: less than a microsecond would be none.
const TIMEOUT_STEP: Duration = Duration::from_millis(1);
/// Bytes of an answer. The longest is `/metrics`, with a line for each upstream.
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
        self.exchange_within(name, target, WAIT)
    }

    fn exchange_within(
        &self,
        name: &'static str,
        target: &str,
        wait: Duration,
    ) -> Result<Vec<u8>, SourceError> {
        let place = match self {
            Self::Unix(path) => path.display().to_string(),
            Self::Tcp(address, _) => address.to_string(),
        };
        let raw = self.connect(wait).and_then(|mut link| {
            self.send(&mut link, target)?;
            let mut raw = Vec::new();
            link.take(ANSWER_BYTES_MAX).read_to_end(&mut raw)?;
            Ok(raw)
        });
        let raw = raw.map_err(|error| SourceError::Socket(place, in_words(error, wait)))?;
        body(raw).map_err(|why| SourceError::Answer(name, why))
    }

    /// Asks for an answer without an end. Each of its reads may take [`WAIT`].
    ///
    /// # Errors
    /// No connection, or it broke.
    pub fn follow(&self, target: &str) -> io::Result<impl Read + use<>> {
        let mut link = self.connect(WAIT)?;
        self.send(&mut link, target)?;
        Ok(Followed(link))
    }

    /// Sends a request of HTTP/1.0, whose answer ends with the connection and has no chunks.
    fn send(&self, link: &mut Link, target: &str) -> io::Result<()> {
        let (host, token) = match self {
            Self::Unix(_) => ("localhost".to_owned(), None),
            Self::Tcp(address, token) => (address.to_string(), Some(token)),
        };
        let mut request = Zeroizing::new(format!("GET {target} HTTP/1.0\r\nHost: {host}\r\n"));
        if let Some(token) = token {
            request.push_str("Authorization: Bearer ");
            request.push_str(token);
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        link.write_all(request.as_bytes())
    }

    fn connect(&self, wait: Duration) -> io::Result<Link> {
        let end = Instant::now() + wait;
        let family = match self {
            Self::Unix(_) => AddressFamily::UNIX,
            Self::Tcp(SocketAddr::V4(_), _) => AddressFamily::INET,
            Self::Tcp(SocketAddr::V6(_), _) => AddressFamily::INET6,
        };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // A full queue of a Unix socket makes connect() wait, for as long as a write may (unix(7)).
        loop {
            set_socket_timeout(&socket, Timeout::Send, Some(left(end)?))?;
            let connected = match self {
                Self::Unix(path) => connect(&socket, &SocketAddrUnix::new(path)?),
                Self::Tcp(address, _) => connect(&socket, address),
            };
            match connected {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(()) => return Ok(Link { socket, end }),
            }
        }
    }
}

/// A connection whose reads and writes have one end together.
struct Link {
    socket: OwnedFd,
    end: Instant,
}

impl Read for Link {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        set_socket_timeout(&self.socket, Timeout::Recv, Some(left(self.end)?))?;
        Ok(rustix::io::read(&self.socket, bytes)?)
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        set_socket_timeout(&self.socket, Timeout::Send, Some(left(self.end)?))?;
        Ok(rustix::io::write(&self.socket, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection whose answer has no end.
struct Followed(Link);

impl Read for Followed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.end = Instant::now() + WAIT;
        self.0.read(bytes)
    }
}

/// The time until `end`: the kernel takes 0 for no limit.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left.max(TIMEOUT_STEP)) }
}

/// The kernel says "try again", or "in progress" of connecting by TCP, where a limit is over.
fn in_words(error: io::Error, wait: Duration) -> io::Error {
    let is_late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
        || error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error());
    if !is_late {
        return error;
    }
    io::Error::new(ErrorKind::TimedOut, format!("no answer within {wait:?}"))
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
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::thread;

    use rustix::net::{bind, listen};

    use super::*;

    /// Short, and of no meaning: what is asked never answers.
    const BRIEF: Duration = Duration::from_millis(50);

    fn is_late(path: &Path) -> bool {
        let asked = AdminSource::Unix(path.into()).exchange_within("/status", "/status", BRIEF);
        let Err(SourceError::Socket(_, error)) = asked else { return false };
        error.kind() == ErrorKind::TimedOut && error.to_string() == "no answer within 50ms"
    }

    #[test]
    fn a_full_queue_and_a_slow_answer_have_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("full.sock");
        let flags = SocketFlags::CLOEXEC;
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 0).unwrap();
        let _first = UnixStream::connect(&path).unwrap();
        assert!(is_late(&path), "a full queue");
        let path = folder.path().join("slow.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Each byte comes within the limit, and the last one never.
            while stream.write_all(b"H").is_ok() {
                thread::sleep(BRIEF / 10);
            }
        });
        assert!(is_late(&path), "a slow answer");
        server.join().unwrap();
    }

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
