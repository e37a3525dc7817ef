//! The place where the edge answers, and one question to it.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use eyelet_client::blocking::{self, Followed};
use eyelet_client::{ClientError, HttpServer, RequestLimits, ServerAddress, with_sources};
use eyelet_config::{AdminSettings, Depth, admin_token};
use http::header::{AUTHORIZATION, HOST};
use http::{Request, StatusCode};
use zeroize::Zeroizing;

/// The time that a question may take, from connecting to the last byte of the answer. An edge
/// answers in milliseconds.
const WAIT: Duration = Duration::from_secs(5);
/// Bytes of an answer. The longest is `/metrics`, with a line for each upstream.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Exit status for a configuration that is wrong.
const USAGE: u8 = 2;

/// The place of an admin server.
#[derive(Clone)]
pub enum AdminSource {
    /// A Unix socket.
    Unix(PathBuf),
    /// A loopback address, and the token.
    Tcp(SocketAddr, Zeroizing<String>),
}

/// The reason why there is no answer.
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
    #[error("the output is no terminal to draw on; --once prints one page")]
    NoTerminal,
    /// No connection, or it broke.
    #[error("{0}: {text}", text = with_sources(.1))]
    Socket(String, ClientError),
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
    /// Finds the admin server of this configuration.
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
    pub fn get(&self, path: &'static str) -> Result<Bytes, SourceError> {
        self.exchange(path, path)
    }

    /// Asks as [`Self::get`] does; errors show `name`, a part of `target`.
    pub fn exchange(&self, name: &'static str, target: &str) -> Result<Bytes, SourceError> {
        self.exchange_within(name, target, WAIT)
    }

    fn exchange_within(
        &self,
        name: &'static str,
        target: &str,
        wait: Duration,
    ) -> Result<Bytes, SourceError> {
        let limits = RequestLimits { connect: wait, whole: wait, body_bytes_max: ANSWER_BYTES_MAX };
        let (server, place) = self.server();
        let asked = self.request(target);
        let why = match asked.and_then(|request| blocking::ask(&server, request, limits)) {
            Ok(answer) => match answer.status() {
                StatusCode::OK => return Ok(answer.into_body()),
                StatusCode::UNAUTHORIZED => "401: the token is wrong".into(),
                status => format!("status {}", status.as_u16()),
            },
            Err(ClientError::Body(error)) => with_sources(&*error),
            Err(ClientError::Http(error)) if error.is_parse() => format!("not HTTP: {error}"),
            Err(ClientError::Http(error)) => with_sources(&error),
            Err(error) => return Err(SourceError::Socket(place, error)),
        };
        Err(SourceError::Answer(name, why))
    }

    /// Asks for an answer without an end. Each of its pieces may take [`WAIT`].
    ///
    /// # Errors
    /// No connection, or it broke.
    pub fn follow(&self, target: &str) -> Result<impl Read + use<>, ClientError> {
        Followed::ask(&self.server().0, self.request(target)?, WAIT)
    }

    /// The server, and its place in messages.
    fn server(&self) -> (HttpServer, String) {
        let (address, place) = match self {
            Self::Unix(path) => (ServerAddress::Unix(path.clone()), path.display().to_string()),
            Self::Tcp(at, _) => {
                (ServerAddress::Tcp(at.ip().to_string(), at.port()), at.to_string())
            }
        };
        (HttpServer { address, tls: None }, place)
    }

    fn request(&self, target: &str) -> Result<Request<Bytes>, ClientError> {
        let request = Request::get(target);
        let request = match self {
            Self::Unix(_) => request.header(HOST, "localhost"),
            Self::Tcp(address, token) => {
                let bearer = Zeroizing::new(format!("Bearer {}", **token));
                request.header(HOST, address.to_string()).header(AUTHORIZATION, &*bearer)
            }
        };
        // The configuration has checked the token.
        Ok(request.body(Bytes::new()).map_err(io::Error::other)?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::thread;

    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
    };

    use super::*;

    /// Short, and of no meaning: what is asked never answers.
    const BRIEF: Duration = Duration::from_millis(50);

    fn is_late(path: &Path) -> bool {
        let asked = AdminSource::Unix(path.into()).exchange_within("/status", "/status", BRIEF);
        asked.is_err_and(|error| error.to_string().ends_with(".sock: no answer within 0.05 s"))
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
            // An answer before its question is an error of its own, as is what is not HTTP.
            assert_ne!(stream.read(&mut [0; 4096]).unwrap(), 0);
            // Each byte comes within the limit, and the last one never.
            stream.write_all(b"HTTP/1.1 200 OK\r\nx: ").unwrap();
            while stream.write_all(b"y").is_ok() {
                thread::sleep(BRIEF / 10);
            }
        });
        assert!(is_late(&path), "a slow answer");
        server.join().unwrap();
    }

    #[test]
    fn only_a_whole_answer_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n";
        let rows = [
            (&b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nab"[..], Ok("ab")),
            (b"HTTP/1.0 200 OK\r\n\r\nab", Ok("ab")),
            (chunked, Ok("ab")),
            (b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nab", Err("before message length")),
            (b"HTTP/1.0 200 OK\r\n", Err("before message completed")),
            (b"", Err("before message completed")),
            (b"HTTP/1.0 401 No\r\n\r\n", Err("the token is wrong")),
            (b"HTTP/1.0 503 No\r\n\r\n", Err("status 503")),
            (b"\x16\x03\x03", Err("not HTTP: ")),
        ];
        let answers = rows.map(|(answer, _)| answer);
        let server = thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                assert_ne!(stream.read(&mut [0; 4096]).unwrap(), 0);
                stream.write_all(answer).unwrap();
            }
        });
        for (answer, expected) in rows {
            let asked = AdminSource::Unix(path.clone()).get("/status");
            let asked = asked.map_err(|error| error.to_string());
            match (&asked, expected) {
                (Ok(body), Ok(expected)) => assert_eq!(body, expected),
                (Err(why), Err(expected)) if why.contains(expected) => {}
                _ => panic!("{:?}: {asked:?}", String::from_utf8_lossy(answer)),
            }
        }
        server.join().unwrap();
    }
}
