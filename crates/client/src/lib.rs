//! HTTP/1.1 as a client, for what the program asks for itself: of an ACME server, a collector of
//! traces, an admin server, an application behind the edge. A connection has one request at a time,
//! and each answer has limits on time and size.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod blocking;
mod error;

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

pub use error::{ClientError, with_sources};

/// For the end of a connection, which takes one write.
const HANG_UP_TIMEOUT: Duration = Duration::from_secs(1);
/// Before a Unix socket is tried again whose queue is full: the kernel says nothing when it has
/// room.
const QUEUE_PAUSE: Duration = Duration::from_millis(10);

/// A server, and how its certificate is verified if it speaks TLS.
pub struct HttpServer {
    /// The address at which it listens.
    pub address: ServerAddress,
    /// For https.
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

/// The address at which a server listens.
pub enum ServerAddress {
    /// A name or an address, without brackets, and a port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

#[derive(Clone, Copy)]
pub struct RequestLimits {
    /// For each address of the server: a silent one leaves time for the others.
    pub connect: Duration,
    /// From the name's resolution to the last byte of the answer.
    pub whole: Duration,
    /// Bytes of the answer's body.
    pub body_bytes_max: usize,
}

/// Asks on a connection of its own.
///
/// # Errors
/// If there is no whole answer within the limits.
pub async fn ask(
    server: &HttpServer,
    request: Request<Bytes>,
    limits: RequestLimits,
) -> Result<Response<Bytes>, ClientError> {
    let (answer, connection) = within(limits.whole, async {
        let mut connection = Connection::open(server, limits.connect).await?;
        let answer = connection.ask(request, limits.body_bytes_max).await?;
        Ok::<_, ClientError>((answer, connection))
    })
    .await??;
    connection.hang_up().await;
    Ok(answer)
}

/// Waits for this time at most.
///
/// # Errors
/// [`ClientError::Late`].
pub async fn within<F: Future>(wait: Duration, future: F) -> Result<F::Output, ClientError> {
    tokio::time::timeout(wait, future).await.map_err(|_| ClientError::Late(wait))
}

/// An open connection, and the task that drives it, which ends with it.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    task: JoinSet<()>,
}

impl Connection {
    /// Connects to the first address of the server that answers, each within this time.
    ///
    /// # Errors
    /// The name's, the last address', or those of TLS.
    pub async fn open(server: &HttpServer, wait: Duration) -> Result<Self, ClientError> {
        let stream = match &server.address {
            ServerAddress::Unix(path) => loop {
                match UnixStream::connect(path).await {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        tokio::time::sleep(QUEUE_PAUSE).await;
                    }
                    connected => return Self::over(connected?).await,
                }
            },
            ServerAddress::Tcp(host, port) => connect(host, *port, wait).await?,
        };
        let Some((config, name)) = &server.tls else { return Self::over(stream).await };
        Self::over(TlsConnector::from(config.clone()).connect(name.clone(), stream).await?).await
    }

    /// Begins HTTP over a stream.
    ///
    /// # Errors
    /// hyper's.
    pub async fn over<T>(stream: T) -> Result<Self, ClientError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut task = JoinSet::new();
        // The request fails with the same error, so this one is dropped.
        task.spawn(async { drop(connection.await) });
        Ok(Self { sender, task })
    }

    /// Asks, and takes the whole answer.
    ///
    /// # Errors
    /// If the connection has ended, the answer breaks HTTP or off, or its body has more bytes.
    pub async fn ask(
        &mut self,
        request: Request<Bytes>,
        body_bytes_max: usize,
    ) -> Result<Response<Bytes>, ClientError> {
        let (head, body) = self.send(request).await?.into_parts();
        let body = Limited::new(body, body_bytes_max).collect().await.map_err(ClientError::Body)?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }

    /// Asks, and takes the head of the answer.
    async fn send(&mut self, request: Request<Bytes>) -> Result<Response<Incoming>, ClientError> {
        self.sender.ready().await?;
        Ok(self.sender.send_request(request.map(Full::new)).await?)
    }

    /// Ends the connection in order.
    pub async fn hang_up(self) {
        let Self { sender, mut task } = self;
        // Then the task closes it.
        drop(sender);
        let _ = tokio::time::timeout(HANG_UP_TIMEOUT, task.join_next()).await;
    }
}

async fn connect(host: &str, port: u16, wait: Duration) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(ErrorKind::NotFound, "the server's name has no address");
    for address in tokio::net::lookup_host((host, port)).await? {
        let connected = tokio::time::timeout(wait, TcpStream::connect(address)).await;
        match connected.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = io::Error::new(error.kind(), format!("{address}: {error}")),
        }
    }
    Err(failure)
}
