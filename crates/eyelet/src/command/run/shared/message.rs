//! The messages between the shared edge and its projects, and the connection that they pass over:
//! one JSON document a line.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use eyelet_sys::process;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::command::run::plan::PlannedRule;

/// The version of these messages. The greeting has the same form in all versions.
pub(super) const PROTOCOL: u32 = 1;
/// Bytes of a message: hundreds of sites with long paths.
const BYTES_MAX: usize = 256 << 10;
/// The time that the other side may take to read.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The edge's first message.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Greeting {
    pub(super) protocol: u32,
    /// The version of the program.
    pub(super) version: String,
    pub(super) pid: u32,
}

impl Greeting {
    pub(super) fn own() -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { protocol: PROTOCOL, version, pid: std::process::id() }
    }
}

/// A question to the edge.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Request {
    /// To serve a project.
    Join(Box<Joining>),
    /// To send the requests of its sites there.
    LeadTo(String),
    /// The memory of TLS.
    Memory,
    /// All sites.
    List,
    /// To end the project that has this name.
    Stop(String),
}

/// A project that joins: an `eyelet run` or an `eyelet proxy`.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Joining {
    /// Its folder.
    pub(crate) folder: PathBuf,
    /// The folder of its local authority: the same for all projects of an edge.
    pub(crate) authority: PathBuf,
    pub(crate) rules: Vec<PlannedRule>,
    /// Names of its sites that the local authority may sign beyond what each one may.
    pub(crate) permits: Vec<String>,
    /// Ports that its applications want.
    pub(crate) kept: Vec<u16>,
    pub(crate) kind: ProjectKind,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum ProjectKind {
    /// It starts its application, and says where that listens.
    Run,
    /// Its applications run already.
    Proxy,
    /// A `Proxy` that stays when its connection ends.
    Background,
}

/// A message of the edge after the greeting.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Answer {
    /// It serves the project at these addresses. The notes are about the edge's start.
    Joined {
        addresses: Vec<SocketAddr>,
        notes: Vec<String>,
    },
    Done,
    Failed(String),
    /// The answer to [`Request::Memory`].
    Memory(String),
    /// The answer to [`Request::List`].
    Listed(Vec<ListedSite>),
    /// A line for the user, which answers nothing.
    Said(String),
    /// Somebody ends the project by `eyelet stop`.
    End,
}

/// A site of `eyelet list`.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct ListedSite {
    pub(super) url: String,
    pub(super) upstream: String,
    /// The process of the project. `None`: it is in the background.
    pub(super) pid: Option<u32>,
    pub(super) folder: PathBuf,
}

/// A connection between processes of the same user.
pub(super) struct Link {
    stream: BufReader<UnixStream>,
    /// The beginning of a message.
    partial: Vec<u8>,
    /// The process at the other end.
    pub(super) pid: u32,
}

impl Link {
    /// Takes a connection over, if the other end is a process of this user.
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        let peer = stream.peer_cred()?;
        if peer.uid() != process::user() {
            let message = format!("the other end is user {}'s", peer.uid());
            return Err(io::Error::new(ErrorKind::PermissionDenied, message));
        }
        let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
        Ok(Self { stream: BufReader::new(stream), partial: Vec::new(), pid })
    }

    pub(super) async fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        match timeout(SEND_TIMEOUT, self.stream.get_mut().write_all(&line)).await {
            Ok(sent) => sent,
            Err(_) => Err(ErrorKind::TimedOut.into()),
        }
    }

    /// Receives a message. `None`: the other end is closed. Dropping the future loses nothing.
    pub(super) async fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        loop {
            let read = self.stream.fill_buf().await?;
            if read.is_empty() {
                return match self.partial.is_empty() {
                    true => Ok(None),
                    false => Err(ErrorKind::UnexpectedEof.into()),
                };
            }
            let end = read.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(read.len(), |end| end + 1);
            self.partial.extend(read.iter().take(taken));
            self.stream.consume(taken);
            if self.partial.len() > BYTES_MAX {
                return Err(ErrorKind::FileTooLarge.into());
            }
            if end.is_some() {
                let message = std::mem::take(&mut self.partial);
                return Ok(Some(serde_json::from_slice(&message)?));
            }
        }
    }

    /// Says that nothing more is sent.
    pub(super) async fn finish(&mut self) -> io::Result<()> {
        self.stream.get_mut().shutdown().await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn messages_that_are_no_messages_are_errors() {
        let long = [&[b'"'; 1][..], &vec![b'a'; BYTES_MAX], b"\"\n"].concat();
        for (bytes, expected) in [
            (&b""[..], Ok(None)),
            (b"\"List\"\n", Ok(Some("List"))),
            (b"\"List\"", Err(ErrorKind::UnexpectedEof)),
            (b"List\n", Err(ErrorKind::InvalidData)),
            (b"{\"Join\":{}}\n", Err(ErrorKind::InvalidData)),
            (b"\"Lost\"\n", Err(ErrorKind::InvalidData)),
            (b"\xff\n", Err(ErrorKind::InvalidData)),
            (&long, Err(ErrorKind::FileTooLarge)),
        ] {
            let (near, mut far) = UnixStream::pair().unwrap();
            let mut link = Link::new(near).unwrap();
            let bytes = bytes.to_vec();
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(20)]).into_owned();
            let writer = tokio::spawn(async move {
                // The reader may have given up.
                let _ = far.write_all(&bytes).await;
            });
            let received = link.receive::<Request>().await;
            let received = received.map(|request| request.map(|request| format!("{request:?}")));
            let received = received.map_err(|error| error.kind());
            assert_eq!(received, expected.map(|text| text.map(String::from)), "{shown}");
            drop(link);
            writer.await.unwrap();
        }
    }
}
