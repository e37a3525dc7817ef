//! Relays on loopback. One counts bytes. The other also ends TLS on both sides and computes what
//! TLS compression would have made of each record.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use flate2::{Compress, Compression, FlushCompress};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::client::tls::{self, HandshakeOptions};
use crate::lab::{CERTIFICATE, KEY, LOCALHOST, Lab};

/// Bytes that clients read and wrote on the wire, over all connections.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    read: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
}

impl Traffic {
    /// Bytes that clients read.
    pub fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Bytes that clients wrote.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Counts at the client's end of a connection.
    pub fn at_client(&self, stream: TcpStream) -> CountedConnection {
        CountedConnection {
            stream,
            read: Arc::clone(&self.read),
            written: Arc::clone(&self.written),
        }
    }

    /// Counts at the server's end of a client's connection: bytes read there are bytes that the
    /// client wrote.
    fn of_client(&self, stream: TcpStream) -> CountedConnection {
        CountedConnection {
            stream,
            read: Arc::clone(&self.written),
            written: Arc::clone(&self.read),
        }
    }
}

/// A connection whose bytes are counted.
pub struct CountedConnection {
    stream: TcpStream,
    read: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
}

impl AsyncRead for CountedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.read.fetch_add((buf.filled().len() - before) as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CountedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.written.fetch_add(done as u64, Ordering::Relaxed);
        Poll::Ready(Ok(done))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Relays to a server until the program ends.
pub async fn count(target: SocketAddr) -> io::Result<(SocketAddr, Traffic)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let (address, traffic) = (listener.local_addr()?, Traffic::default());
    let counts = traffic.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut client = counts.of_client(stream);
            tokio::spawn(async move {
                let mut server = TcpStream::connect(target).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    Ok((address, traffic))
}

/// A relay that ends TLS on both sides.
pub struct Tap {
    pub address: SocketAddr,
    traffic: Traffic,
    connections: Arc<Mutex<Vec<Connection>>>,
}

/// The result of a connection.
struct Connection {
    number: usize,
    to_server: Way,
    to_client: Way,
}

/// The sizes of a checkout with TLS compression.
#[derive(Clone, Copy, Debug)]
pub struct Squeezed {
    pub read: u64,
    pub written: u64,
}

impl Tap {
    pub async fn open(lab: &Lab, target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (address, traffic) = (listener.local_addr()?, Traffic::default());
        let connections = Arc::new(Mutex::new(Vec::new()));
        let (counts, taken) = (traffic.clone(), Arc::clone(&connections));
        let acceptor = TlsAcceptor::from(Arc::new(server_config(lab)?));
        tokio::spawn(async move {
            let mut number = 0;
            while let Ok((stream, _)) = listener.accept().await {
                let (client, acceptor) = (counts.of_client(stream), acceptor.clone());
                let taken = Arc::clone(&taken);
                tokio::spawn(async move {
                    if let Ok(connection) = relay(acceptor, client, target, number).await {
                        taken.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
                    }
                });
                number += 1;
            }
        });
        Ok(Self { address, traffic, connections })
    }

    /// The sizes if each record's bytes were compressed by one DEFLATE stream a connection and
    /// direction (RFC 3749), and all else on the wire stayed the same. Also what the clients sent,
    /// by connection.
    pub fn end(self) -> (Squeezed, Vec<Vec<u8>>) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.sort_by_key(|connection| connection.number);
        let (mut read, mut written) = (self.traffic.read(), self.traffic.written());
        for Connection { to_server, to_client, .. } in &*connections {
            read = read - to_client.plain + to_client.squeezed;
            written = written - to_server.plain + to_server.squeezed;
        }
        let sent = connections.iter_mut().map(|one| std::mem::take(&mut one.to_server.kept));
        (Squeezed { read, written }, sent.collect())
    }
}

fn server_config(lab: &Lab) -> io::Result<ServerConfig> {
    let read = |name: &str| fs::read(lab.folder().join(name));
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&read(CERTIFICATE)?)
        .collect::<Result<_, _>>()
        .map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_slice(&read(KEY)?).map_err(io::Error::other)?;
    ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(io::Error::other)
}

async fn relay(
    acceptor: TlsAcceptor,
    client: CountedConnection,
    target: SocketAddr,
    number: usize,
) -> io::Result<Connection> {
    let mut client = acceptor.accept(client).await?;
    let server = TcpStream::connect(target).await?;
    let mut server =
        tls::over(&tls::config(HandshakeOptions::default()), LOCALHOST, server).await?;
    let mut to_server = Way { keeps: true, ..Way::default() };
    let mut to_client = Way::default();
    std::future::poll_fn(|cx| {
        let sent = to_server.poll(cx, &mut client, &mut server);
        let answered = to_client.poll(cx, &mut server, &mut client);
        // The end of either side ends the connection, once all of the server's bytes were sent.
        if answered.is_ready() || (sent.is_ready() && to_client.left.is_empty()) {
            return Poll::Ready(());
        }
        Poll::Pending
    })
    .await;
    let _ = tokio::io::AsyncWriteExt::shutdown(&mut client).await;
    Ok(Connection { number, to_server, to_client })
}

/// One direction of a connection.
struct Way {
    deflate: Compress,
    plain: u64,
    squeezed: u64,
    /// The unwritten rest of a record.
    left: Vec<u8>,
    unflushed: bool,
    keeps: bool,
    kept: Vec<u8>,
}

impl Default for Way {
    fn default() -> Self {
        // Level 6 and 32 KiB, as in OpenSSL.
        let deflate = Compress::new(Compression::new(6), true);
        let (left, kept) = (Vec::new(), Vec::new());
        Self { deflate, plain: 0, squeezed: 0, left, unflushed: false, keeps: false, kept }
    }
}

impl Way {
    /// Moves one record at a time, so that it leaves as it came. Ready at any kind of end.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut (impl AsyncBufRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<()> {
        loop {
            if self.left.is_empty() {
                if self.unflushed {
                    match ready!(Pin::new(&mut *to).poll_flush(cx)) {
                        Ok(()) => self.unflushed = false,
                        Err(_) => return Poll::Ready(()),
                    }
                }
                // rustls returns at most one decrypted record.
                let length = match ready!(Pin::new(&mut *from).poll_fill_buf(cx)) {
                    Ok([]) | Err(_) => return Poll::Ready(()),
                    Ok(record) => {
                        self.left.extend_from_slice(record);
                        record.len()
                    }
                };
                Pin::new(&mut *from).consume(length);
                self.look();
            }
            match ready!(Pin::new(&mut *to).poll_write(cx, &self.left)) {
                Ok(done) => _ = self.left.drain(..done),
                Err(_) => return Poll::Ready(()),
            }
            self.unflushed = true;
        }
    }

    fn look(&mut self) {
        let record = &self.left[..];
        self.plain += record.len() as u64;
        if self.keeps {
            self.kept.extend_from_slice(record);
        }
        let before = self.deflate.total_out();
        // Twice a record's bytes, as DEFLATE adds five to each stored block.
        let mut out = Vec::with_capacity(2 * record.len() + 64);
        let done = self.deflate.compress_vec(record, &mut out, FlushCompress::Sync);
        assert!(done.is_ok(), "deflate takes any bytes");
        self.squeezed += self.deflate.total_out() - before;
    }
}
