//! Servers behind the edge, on threads: by hand, an echo, a TLS echo, a small HTTP server. Each
//! counts the connections that it accepted.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::ALL_VERSIONS;
use socket2::{Domain, Socket, Type};

use super::client::{TLS12, Versions};
use super::pki::Leaf;
use super::{SOON, edge};

/// A TLS server's stream.
pub type ServerTls = rustls::StreamOwned<rustls::ServerConnection, TcpStream>;

pub struct Upstream {
    pub address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    stopped: Arc<AtomicBool>,
    taken: Option<Mutex<Receiver<TcpStream>>>,
}

impl Upstream {
    /// Hands each connection to whoever takes it.
    pub fn by_hand() -> Self {
        let (give, take) = mpsc::channel();
        let mut upstream = Self::accepting(move |stream| {
            let _ = give.send(stream);
        });
        upstream.taken = Some(Mutex::new(take));
        upstream
    }

    /// Answers each connection on a thread of its own.
    pub fn serve(answer: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let answer = Arc::new(answer);
        Self::accepting(move |stream| {
            let answer = answer.clone();
            thread::spawn(move || answer(stream));
        })
    }

    /// Does this with each connection, one after the other, in the order in which they came.
    fn accepting(take: impl Fn(TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::<AtomicUsize>::default();
        let stopped = Arc::<AtomicBool>::default();
        let (count, stop) = (accepted.clone(), stopped.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                count.fetch_add(1, Ordering::SeqCst);
                let _ = stream.set_nodelay(true);
                let _ = stream.set_read_timeout(Some(SOON));
                let _ = stream.set_write_timeout(Some(SOON));
                take(stream);
            }
        });
        Self { address, accepted, stopped, taken: None }
    }

    /// Sends back what comes, and ends when the other side does.
    pub fn echo() -> Self {
        Self::serve(|mut stream| {
            let Ok(mut reader) = stream.try_clone() else { return };
            let _ = io::copy(&mut reader, &mut stream);
            let _ = stream.shutdown(Shutdown::Write);
        })
    }

    /// An echo behind TLS.
    pub fn tls_echo(leaf: Leaf) -> Self {
        Self::tls_echo_of(server_config(leaf, ALL_VERSIONS))
    }

    /// An echo by TLS 1.2 only.
    pub fn tls12_echo(leaf: Leaf) -> Self {
        Self::tls_echo_of(server_config(leaf, TLS12))
    }

    fn tls_echo_of(config: Arc<rustls::ServerConfig>) -> Self {
        Self::serve(move |stream| {
            let session = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut tls = rustls::StreamOwned::new(session, stream);
            let mut piece = vec![0; 16 * 1024];
            while let Ok(length @ 1..) = tls.read(&mut piece) {
                if tls.write_all(&piece[..length]).and_then(|()| tls.flush()).is_err() {
                    return;
                }
            }
            tls.conn.send_close_notify();
            let _ = tls.flush();
        })
    }

    /// HTTP/1.1 with keep-alive: each request is answered with its own head and body as text.
    pub fn http() -> Self {
        Self::serve(|mut stream| {
            let _ = http(&mut stream);
        })
    }

    /// That server behind TLS.
    pub fn https(leaf: Leaf) -> Self {
        Self::tls(leaf, |tls| _ = http(tls))
    }

    /// Answers each connection on a thread of its own, behind TLS.
    pub fn tls(leaf: Leaf, answer: impl Fn(&mut ServerTls) + Send + Sync + 'static) -> Self {
        Self::tls_of(server_config(leaf, ALL_VERSIONS), answer)
    }

    /// Answers so, choosing HTTP/2 by ALPN.
    pub fn tls_h2(leaf: Leaf, answer: impl Fn(&mut ServerTls) + Send + Sync + 'static) -> Self {
        let mut config = server_config(leaf, ALL_VERSIONS);
        Arc::get_mut(&mut config).unwrap().alpn_protocols = vec![b"h2".to_vec()];
        Self::tls_of(config, answer)
    }

    /// Answers so, with so many tickets a connection.
    pub fn tls_with_tickets(
        leaf: Leaf,
        tickets: usize,
        answer: impl Fn(&mut ServerTls) + Send + Sync + 'static,
    ) -> Self {
        let mut config = server_config(leaf, ALL_VERSIONS);
        Arc::get_mut(&mut config).unwrap().send_tls13_tickets = tickets;
        Self::tls_of(config, answer)
    }

    fn tls_of(
        config: Arc<rustls::ServerConfig>,
        answer: impl Fn(&mut ServerTls) + Send + Sync + 'static,
    ) -> Self {
        Self::serve(move |stream| {
            let session = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut tls = ServerTls::new(session, stream);
            answer(&mut tls);
            tls.conn.send_close_notify();
            let _ = tls.flush();
        })
    }

    /// Behind TLS. Tells its connections apart, as an upstream with NTLM does: each answer is
    /// `connection N`, with the number of the connection from 0.
    pub fn counting(leaf: Leaf) -> Self {
        let number = AtomicUsize::default();
        Self::tls(leaf, move |tls| {
            let own = number.fetch_add(1, Ordering::SeqCst);
            let (mut byte, mut seen) = ([0], Vec::new());
            while let Ok(1) = tls.read(&mut byte) {
                seen.push(byte[0]);
                if seen.ends_with(b"\r\n\r\n") {
                    seen.clear();
                    let body = format!("connection {own}");
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                    if tls.write_all((head + &body).as_bytes()).and_then(|()| tls.flush()).is_err()
                    {
                        return;
                    }
                }
            }
        })
    }

    /// Connections accepted until now.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// The next connection; panics when none comes.
    pub fn take(&self) -> TcpStream {
        let taken = self.taken.as_ref().unwrap().lock().unwrap();
        taken.recv_timeout(SOON).expect("the edge dials the upstream")
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Wakes the accept, which then sees that it is over.
        let _ = TcpStream::connect(self.address);
    }
}

/// A port where nobody listens: bound, so that nobody else gets it, and never listening.
pub fn nobody() -> (rustix::fd::OwnedFd, SocketAddr) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = getsockname(&socket).unwrap().try_into().unwrap();
    (socket, address)
}

/// Addresses where nobody listens yet, for listeners that must be known before they are made.
///
/// The kernel gives such ports to nobody by itself: they are below its range for that
/// (`net.ipv4.ip_local_port_range`, 32768 and more). A port that was bound and given back, on the
/// other hand, may be another test's by the time it is wanted.
pub fn vacant<const COUNT: usize>() -> [SocketAddr; COUNT] {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // Programs that run at the same time begin at different places.
    let first = std::process::id() as usize * 64;
    std::array::from_fn(|_| {
        loop {
            let number = first + NEXT.fetch_add(1, Ordering::Relaxed);
            let port = VACANT.start + u16::try_from(number % VACANT.len()).unwrap();
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            // Without listening: a child of another test may have a copy of it for a moment.
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_reuse_address(true).unwrap();
            if socket.bind(&address.into()).is_ok() {
                return address;
            }
        }
    })
}
const VACANT: Range<u16> = 20_000..32_000;

pub fn server_config(leaf: Leaf, versions: Versions) -> Arc<rustls::ServerConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.certificate], leaf.key)
        .unwrap();
    Arc::new(config)
}

fn http(stream: &mut (impl Read + Write)) -> io::Result<()> {
    let mut seen = Vec::new();
    loop {
        let head = loop {
            if let Some(at) = seen.windows(4).position(|four| four == b"\r\n\r\n") {
                break seen.drain(..at + 4).collect::<Vec<u8>>();
            }
            if !more(stream, &mut seen)? {
                return Ok(());
            }
        };
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lines = head.lines().map(str::to_ascii_lowercase);
        let length =
            lines.find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let length = length.unwrap_or(0);
        while seen.len() < length {
            if !more(stream, &mut seen)? {
                return Ok(());
            }
        }
        let body: Vec<u8> = seen.drain(..length).collect();
        let length = head.len() + body.len();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n"
        )?;
        stream.write_all(head.as_bytes())?;
        stream.write_all(&body)?;
        stream.flush()?;
    }
}

fn more(stream: &mut impl Read, seen: &mut Vec<u8>) -> io::Result<bool> {
    let mut piece = [0; 4096];
    let length = stream.read(&mut piece)?;
    seen.extend_from_slice(&piece[..length]);
    Ok(length > 0)
}

/// A DNS server that knows these names and no other.
pub struct Dns {
    pub address: SocketAddr,
    stopped: Arc<AtomicBool>,
}

/// Answers questions for A (RFC 1035); all else about a known name is empty, an unknown one does
/// not exist.
pub fn dns(names: &[(&str, &[[u8; 4]])]) -> Dns {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    let stopped = Arc::<AtomicBool>::default();
    let stop = stopped.clone();
    let names: Vec<(String, Vec<[u8; 4]>)> =
        names.iter().map(|(name, ips)| ((*name).to_owned(), ips.to_vec())).collect();
    thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut question) {
            if stop.load(Ordering::SeqCst) {
                return;
            }
            if let Some(answer) = answer(&question[..length], &names) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    Dns { address, stopped }
}

fn answer(question: &[u8], names: &[(String, Vec<[u8; 4]>)]) -> Option<Vec<u8>> {
    let mut at = 12;
    let mut labels = Vec::new();
    while let length @ 1.. = usize::from(*question.get(at)?) {
        labels.push(String::from_utf8_lossy(question.get(at + 1..at + 1 + length)?).to_lowercase());
        at += 1 + length;
    }
    let asked = question.get(12..at + 5)?;
    let wants_a = question.get(at + 1..at + 3)? == [0, 1];
    let known = names.iter().find(|(name, _)| *name == labels.join("."));
    let ips = known.filter(|_| wants_a).map_or(&[][..], |(_, ips)| ips);
    let code = if known.is_some() { 0x80 } else { 0x83 };
    let mut out = question[..2].to_vec();
    out.extend([0x81, code, 0, 1, 0, u8::try_from(ips.len()).ok()?, 0, 0, 0, 0]);
    out.extend(asked);
    for ip in ips {
        // The name by pointer, A, IN, one minute, four bytes.
        out.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        out.extend(ip);
    }
    Some(out)
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        if let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)) {
            let _ = socket.send_to(b"", self.address);
        }
    }
}
