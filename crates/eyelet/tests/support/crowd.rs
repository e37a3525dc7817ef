//! Thousands of peers in one process, on one thread: light clients from chosen addresses, and
//! upstreams that answer, never read or never stop.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

use super::SOON;
use super::client::{TLS13, Tls, Versions, handshake};
use super::frames::{END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame, literal};

/// Threads that connect: as many as keep two cores busy while some wait.
const THREADS: usize = 4;
/// Socket buffers of peers that do not read, so that a flood does not fill the kernel's memory
/// instead of the edge's.
const SMALL_BUFFER: usize = 4096;
/// The least segment that IPv4 hosts need not negotiate (RFC 9293 section 3.7.1). With loopback's
/// 64 KiB the kernel gives each connection a send buffer of over a megabyte: it would hold what
/// the edge holds where segments are small.
const SEGMENT: u32 = 536;
/// The bytes that an upstream that sends without end has on its way at once: several TLS records.
const ENDLESS_BUFFER: usize = 32 << 10;

/// Returns the size of a flood. `EYELET_FLOOD=10` makes each ten times as large. At these sizes an
/// edge without bounds failed. A debug build is through in a minute on a busy machine. Each is a
/// multiple of what the budget has room for, and more come to the same bound.
pub fn sized(count: usize) -> usize {
    let times = std::env::var("EYELET_FLOOD").ok().and_then(|text| text.parse().ok());
    count * times.unwrap_or(1)
}

/// Room for crowds that come at the same time. A flood takes [`FLOOD`] of it, so that four run:
/// their edges still serve who behaves in time, and shed in time, on two busy processors.
const ROOM_MAX: usize = 8;
const FLOOD: usize = 2;
/// A crowd that comes and then stands still, until memory does, takes this much: its test waits
/// most of its time, and no edge of it has to be in time.
const STANDING: usize = 1;
/// Descriptors that tests without a crowd may have open meanwhile.
const SPARE_DESCRIPTORS: usize = 4_000;

/// The permission to hold thousands of connections, which is given back when dropped.
pub struct Permit(Room);

/// The room for permits: for crowds, and descriptors, which belong to the process.
struct Room {
    crowds: usize,
    descriptors: usize,
}

static ROOM: LazyLock<Mutex<Room>> = LazyLock::new(|| {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let descriptors = maximum.map_or(usize::MAX, |maximum| usize::try_from(maximum).unwrap());
    Mutex::new(Room {
        crowds: ROOM_MAX,
        descriptors: descriptors.saturating_sub(SPARE_DESCRIPTORS),
    })
});
static GIVEN_BACK: Condvar = Condvar::new();

/// Waits for the permission to have so many descriptors open: those of the clients, and of their
/// upstreams' ends, one for a connection or a stream of HTTP/2. Who asks for more than it needs
/// keeps others waiting. Who wants more than there are has the only crowd.
pub fn permit(descriptors: usize) -> Permit {
    permit_for(FLOOD, descriptors)
}

/// Waits for the permission to have a crowd that stands still.
pub fn permit_standing(descriptors: usize) -> Permit {
    permit_for(STANDING, descriptors)
}

fn permit_for(crowds: usize, descriptors: usize) -> Permit {
    let mut room = ROOM.lock();
    loop {
        let is_alone = room.crowds == ROOM_MAX;
        if is_alone || (room.crowds >= crowds && room.descriptors >= descriptors) {
            let descriptors = descriptors.min(room.descriptors);
            room.crowds -= crowds;
            room.descriptors -= descriptors;
            return Permit(Room { crowds, descriptors });
        }
        GIVEN_BACK.wait(&mut room);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut room = ROOM.lock();
        room.crowds += self.0.crowds;
        room.descriptors += self.0.descriptors;
        GIVEN_BACK.notify_all();
    }
}

/// The address that a client connects from, and its buffers.
#[derive(Clone, Copy)]
pub struct From {
    pub source: Ipv4Addr,
    pub small: bool,
}

impl From {
    /// 127.0.0.n, with buffers as the kernel has them.
    pub fn loopback(n: u8) -> Self {
        Self { source: Ipv4Addr::new(127, 0, 0, n), small: false }
    }

    /// With small buffers.
    pub fn small(self) -> Self {
        Self { small: true, ..self }
    }

    /// A plain socket with deadlines.
    pub fn connect(self, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        if self.small {
            socket.set_tcp_mss(SEGMENT)?;
            socket.set_recv_buffer_size(SMALL_BUFFER)?;
            socket.set_send_buffer_size(SMALL_BUFFER)?;
        }
        // Binding takes a port from all destinations at once, also from those of other tests that
        // are in TIME_WAIT: thousands of connections have none left. Connecting takes a pair.
        if self.source != Ipv4Addr::LOCALHOST {
            socket.bind(&SocketAddr::from((self.source, 0)).into())?;
        }
        socket.connect(&to.into())?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SOON))?;
        stream.set_write_timeout(Some(SOON))?;
        Ok(stream)
    }

    /// A socket with TLS.
    pub fn tls(self, to: SocketAddr, config: &Arc<ClientConfig>, name: &str) -> io::Result<Tls> {
        handshake(config.clone(), self.connect(to)?, name)
    }
}

/// Does a thing `count` times on a few threads, and keeps what came of it. The first [`THREADS`]
/// are in their order. The threads have the test's name, which a skipped test says.
pub fn many<T: Send>(count: usize, make: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let make = &make;
    let named = || thread::Builder::new().name(thread::current().name().unwrap_or("?").to_owned());
    thread::scope(|scope| {
        let each = |first| (first..count).step_by(THREADS).map(make).collect::<Vec<T>>();
        let begin = |first| named().spawn_scoped(scope, move || each(first)).unwrap();
        let threads: Vec<_> = (0..THREADS).map(begin).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Does a thing with each of them on a few threads.
pub fn each<T: Send>(all: &mut [T], act: impl Fn(&mut T) + Sync) {
    let (act, part) = (&act, all.len().div_ceil(THREADS).max(1));
    thread::scope(|scope| {
        for part in all.chunks_mut(part) {
            scope.spawn(move || part.iter_mut().for_each(act));
        }
    });
}

/// Writes to all of them, round after round, until none takes any more. They must not block.
pub fn stuff<W: Write + Send>(clients: &mut [W], piece: &[u8]) {
    let mut quiet = 0;
    // What waits for an acknowledgement, or for a window to be probed, is taken a little later.
    while quiet < 3 {
        let taken = AtomicUsize::new(0);
        each(clients, |client| {
            // So many in a turn, for the others of the crowd have theirs.
            for _ in 0..16 {
                let Ok(length) = client.write(piece) else { return };
                taken.fetch_add(length, Ordering::Relaxed);
            }
        });
        quiet = if taken.into_inner() < piece.len() { quiet + 1 } else { 0 };
        thread::sleep(Duration::from_millis(20));
    }
}

/// A client that believes any certificate, which others test, and does so at once: the edge is
/// what is to be busy. Without resumption unless it is asked for.
pub fn light(versions: Versions, resumption: Resumption) -> Arc<ClientConfig> {
    gullible(aws_lc_rs::default_provider(), versions, resumption)
}

/// Makes a light client by TLS 1.3 with the cipher suite and the group that cost least: for crowds
/// whose handshakes are not what is looked at.
pub fn quick(resumption: Resumption) -> Arc<ClientConfig> {
    let provider = CryptoProvider {
        cipher_suites: vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![aws_lc_rs::kx_group::X25519],
        ..aws_lc_rs::default_provider()
    };
    gullible(provider, TLS13, resumption)
}

fn gullible(
    provider: CryptoProvider,
    versions: Versions,
    resumption: Resumption,
) -> Arc<ClientConfig> {
    let provider = Arc::new(provider);
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Gullible(provider)))
        .with_no_client_auth();
    config.resumption = resumption;
    Arc::new(config)
}

#[derive(Debug)]
struct Gullible(Arc<CryptoProvider>);

impl ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The manner of an upstream with each of its connections.
#[derive(Clone, Copy)]
pub enum Manner {
    /// Sends back what comes.
    Echo,
    /// Answers what ends in an empty line, and closes.
    Answer,
    /// Sends without end and never reads.
    Endless,
    /// Never reads and never sends.
    Stalled,
    /// Takes no connection: whoever dials waits.
    Deaf,
    /// Answers each request with a short page.
    Page,
    /// Answers each request with these bytes.
    Say(&'static [u8]),
    /// Answers a request with this head, and then sends this without end.
    Download { head: &'static str, piece: &'static [u8] },
    /// Speaks HTTP/2. Answers each request with a head of 58 kB, nearly all of it out of the table.
    Heads,
}

/// An upstream for thousands, on one thread. Dropping it closes all of its connections.
pub struct Multitude {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Multitude {
    pub fn start(manner: Manner) -> Self {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        // Accepted sockets inherit these.
        match manner {
            Manner::Stalled => listener.set_recv_buffer_size(SMALL_BUFFER).unwrap(),
            Manner::Endless => listener.set_send_buffer_size(ENDLESS_BUFFER).unwrap(),
            Manner::Download { .. } => listener.set_send_buffer_size(ENDLESS_BUFFER).unwrap(),
            Manner::Echo | Manner::Answer | Manner::Page | Manner::Say(_) => {}
            Manner::Deaf | Manner::Heads => {}
        }
        listener.set_tcp_mss(SEGMENT).unwrap();
        listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        listener.listen(if matches!(manner, Manner::Deaf) { 0 } else { 4096 }).unwrap();
        let listener = std::net::TcpListener::from(listener);
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        // A queue that is full drops who comes.
        let full = matches!(manner, Manner::Deaf).then(|| TcpStream::connect(address).unwrap());
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    () = accept(listener, manner), if full.is_none() => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Multitude {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().unwrap().join();
    }
}

static ENDLESS: [u8; ENDLESS_BUFFER] = [0x45; ENDLESS_BUFFER];

async fn accept(listener: tokio::net::TcpListener, manner: Manner) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(serve(stream, manner))),
            // Out of descriptors for the moment.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve(mut stream: tokio::net::TcpStream, manner: Manner) {
    let _ = stream.set_nodelay(true);
    match manner {
        Manner::Stalled | Manner::Deaf => std::future::pending().await,
        Manner::Endless => while stream.write_all(&ENDLESS).await.is_ok() {},
        Manner::Echo => {
            let mut piece = [0; 512];
            while let Ok(length @ 1..) = stream.read(&mut piece).await
                && stream.write_all(&piece[..length]).await.is_ok()
            {}
        }
        Manner::Answer => {
            if head(&mut stream).await {
                let answer = b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nyes";
                let _ = stream.write_all(answer).await;
            }
        }
        Manner::Page => say(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes").await,
        Manner::Say(answer) => say(stream, answer).await,
        Manner::Download { head: answer, piece } => {
            if head(&mut stream).await && stream.write_all(answer.as_bytes()).await.is_ok() {
                while stream.write_all(piece).await.is_ok() {}
            }
        }
        Manner::Heads => _ = heads(stream).await,
    }
}

/// The first head puts a field into the table, and each names it fifteen times, with a byte each
/// time (RFC 7541 6.1).
async fn heads(mut stream: tokio::net::TcpStream) -> io::Result<()> {
    const OK: u8 = 0x88;
    let value = "y".repeat(3_800);
    // The table's newest entry is 62.
    let mut block = [&[OK][..], &literal("x", &value), &[0xbe; 15]].concat();
    stream.read_exact(&mut [0; PREFACE.len()]).await?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [high, middle, low, kind, _, id @ ..] = head;
        let length = u32::from_be_bytes([0, high, middle, low]);
        stream.read_exact(&mut vec![0; length as usize]).await?;
        if kind == HEADERS {
            let flags = END_HEADERS | END_STREAM;
            stream.write_all(&frame(HEADERS, flags, u32::from_be_bytes(id), &block)).await?;
            block = [&[OK][..], &[0xbe; 15]].concat();
        }
    }
}

async fn say(mut stream: tokio::net::TcpStream, answer: &[u8]) {
    while head(&mut stream).await && stream.write_all(answer).await.is_ok() {}
}

/// Reads a head to its empty line.
async fn head(stream: &mut tokio::net::TcpStream) -> bool {
    let mut asked = Vec::new();
    while !asked.ends_with(b"\r\n\r\n") {
        let Ok(1..) = stream.read_buf(&mut asked).await else { return false };
    }
    true
}
