//! A process full of idle clients. Each keeps only a socket and the record layer's state. Orders
//! come on standard input and results go to standard output, one a line.

use std::io::{self, BufRead, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Args;
use eyelet_record::{
    CONTROL_BYTES_MAX, Incoming, Keys, Opened, RECORD_BYTES_MAX, Role, Session, Suite,
};
use rustix::io::Errno;
use rustls::{ClientConfig, ClientConnection, KeyLog};
use rustls_pki_types::ServerName;

use super::frames::{self, ReplyFrames};
use crate::board::quantile;
use crate::client::{self, tls};
use crate::lab::host_name;

/// Arguments of a crowd.
#[derive(Args, Clone, Debug)]
pub struct Crowd {
    /// The server
    target: SocketAddr,
    /// The number of connections to open and hold
    count: usize,
    /// The number of this crowd: its source addresses follow from it
    place: usize,
    /// Speak HTTP/2, and get one answer before the connection is idle
    #[arg(long)]
    http2: bool,
}

/// One idle client.
struct Client {
    stream: TcpStream,
    session: Session,
    /// The next stream, by HTTP/2.
    next_stream: Option<u32>,
}

/// Opens the connections and prints `ready OPENED FAILED WHY`. Then it obeys orders. `alive` prints
/// `alive COUNT`. `ask COUNT SEED` asks a random sample, and `ask` each connection once, after a
/// change of its keys. Both print `asked COUNT ANSWERED P50 P99 MAX`, with times in microseconds.
/// It ends when its input ends.
///
/// # Errors
/// Standard output is closed.
pub fn serve(crowd: &Crowd) -> io::Result<()> {
    let (mut clients, mut failed, mut why) = (Vec::with_capacity(crowd.count), 0, None);
    let secrets = Arc::new(Secrets::default());
    let config = config(&secrets, crowd.http2);
    for i in 0..crowd.count {
        match open(crowd, &config, &secrets, i) {
            Ok(client) => clients.push(client),
            Err(e) => {
                failed += 1;
                why.get_or_insert_with(|| e.to_string().replace(char::is_whitespace, "_"));
            }
        }
        if i % PROGRESS == PROGRESS - 1 {
            drain(&mut clients, PROGRESS)?;
            say(&format!("opened {}", clients.len()))?;
        }
    }
    drain(&mut clients, PROGRESS)?;
    say(&format!("ready {} {failed} {}", clients.len(), why.as_deref().unwrap_or("-")))?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["alive"] => {
                let (mut buffer, mut count) = (vec![0; RECORD_BYTES_MAX], 0);
                for client in &mut clients {
                    count += usize::from(alive(client, &mut buffer)?);
                }
                say(&format!("alive {count}"))?;
            }
            ["ask", count, seed] => {
                let numbers = count.parse().ok().zip(seed.parse().ok());
                let (count, seed) = numbers.ok_or(io::ErrorKind::InvalidInput)?;
                let mut state = seed;
                let last = clients.len() as u64;
                let sample = (0..count).filter_map(|_| random(&mut state).checked_rem(last));
                let sample: Vec<usize> = sample.map(|at| at as usize).collect();
                say(&ask(&mut clients, &sample))?;
            }
            ["ask"] => {
                clients.iter_mut().for_each(|client| client.session.request_key_update());
                let all: Vec<usize> = (0..clients.len()).collect();
                say(&ask(&mut clients, &all))?;
            }
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
    Ok(())
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn config(secrets: &Arc<Secrets>, http2: bool) -> Arc<ClientConfig> {
    let options = tls::HandshakeOptions { http2, ..tls::HandshakeOptions::default() };
    let mut config = ClientConfig::clone(&tls::config(options));
    config.enable_secret_extraction = true;
    config.key_log = Arc::clone(secrets) as Arc<dyn KeyLog>;
    Arc::new(config)
}

/// Shakes hands by rustls, and keeps only the record layer's state. By HTTP/2 it also gets an
/// answer: the state that such a connection has at rest comes from that.
fn open(
    crowd: &Crowd,
    config: &Arc<ClientConfig>,
    secrets: &Secrets,
    i: usize,
) -> io::Result<Client> {
    let mut stream = connect(crowd, i)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(WAIT_MAX))?;
    stream.set_write_timeout(Some(WAIT_MAX))?;
    let name = ServerName::try_from(host_name(i)).map_err(io::Error::other)?;
    let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    while tls.is_handshaking() || tls.wants_write() {
        tls.complete_io(&mut stream)?;
    }
    let counters = tls.dangerous_extract_secrets().map_err(io::Error::other)?;
    let taken = secrets.0.lock().map_err(|_| io::ErrorKind::Other)?;
    let session = Session::tls13(
        Role::Client,
        Suite::Aes128Gcm,
        &taken.client,
        &taken.server,
        counters.rx.0,
        counters.tx.0,
    );
    let session = session.map_err(|fault| io::Error::other(fault.to_string()))?;
    let mut client = Client { stream, session, next_stream: crowd.http2.then_some(1) };
    if crowd.http2 {
        send(&mut client, &mut Keys::new(), &frames::opening())?;
        exchange(&mut client)?;
    }
    Ok(client)
}

/// Connects from one of this crowd's own source addresses. One address has 28,000 ports, which
/// would do, but the kernel is slow at finding the last free ones.
fn connect(crowd: &Crowd, i: usize) -> io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let host = u8::try_from(i % SOURCES + 1).unwrap_or(1);
    let network = u8::try_from(SOURCE_FIRST + crowd.place % SOURCE_NETWORKS).unwrap_or(0);
    let source = SocketAddrV4::new(Ipv4Addr::new(127, 0, network, host), 0);
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &source)?;
    rustix::net::connect(&socket, &crowd.target)?;
    Ok(socket.into())
}

/// Reads the tickets of the newest clients. Unread tickets would take more kernel memory than the
/// connection itself.
fn drain(clients: &mut [Client], newest: usize) -> io::Result<()> {
    let first = clients.len().saturating_sub(newest);
    let mut buffer = vec![0; RECORD_BYTES_MAX];
    for client in &mut clients[first..] {
        alive(client, &mut buffer)?;
    }
    Ok(())
}

/// True if the server still holds the connection. Reads the tickets that have come, because the end
/// stands behind them.
fn alive(client: &mut Client, buffer: &mut [u8]) -> io::Result<bool> {
    let mut keys = Keys::new();
    loop {
        let flags = rustix::net::RecvFlags::DONTWAIT;
        let filled = match rustix::net::recv(&client.stream, &mut *buffer, flags) {
            Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(false),
            Ok((filled, _)) => filled,
            Err(Errno::AGAIN) => return Ok(true),
            Err(e) => return Err(e.into()),
        };
        let mut at = 0;
        while at < filled {
            match client.session.open(&mut keys, &mut buffer[at..filled]) {
                Ok(Opened::Record {
                    what: Incoming::CloseNotify | Incoming::PeerAlert(_), ..
                }) => return Ok(false),
                Ok(Opened::Record { what: Incoming::Data(range), consumed }) => {
                    let frames = &buffer[at + range.start..at + range.end];
                    if ReplyFrames::default().take(frames, 0).is_err() {
                        return Ok(false);
                    }
                    at += consumed;
                }
                Ok(Opened::Record { consumed, .. }) => at += consumed,
                Ok(Opened::NeedMore { .. }) => {
                    return Err(io::Error::other("an incomplete ticket"));
                }
                Err(fault) => return Err(io::Error::other(fault.to_string())),
            }
        }
    }
}

/// Asks those at these positions, one after the other. After [`FAILURES_MAX`] the others count as
/// without an answer.
fn ask(clients: &mut [Client], sample: &[usize]) -> String {
    let (mut micros, mut why, mut failures) = (Vec::new(), None, 0);
    for at in sample {
        let began = Instant::now();
        match exchange(&mut clients[*at]) {
            Ok(()) => micros.push(began.elapsed().as_secs_f64() * 1e6),
            Err(e) => {
                failures += 1;
                why.get_or_insert(e);
            }
        }
        if failures == FAILURES_MAX {
            break;
        }
    }
    micros.sort_by(f64::total_cmp);
    let in_time = micros.iter().filter(|us| **us <= ANSWER_US_MAX).count();
    if let Some(why) = why {
        eprintln!("a client got no answer: {why}");
    }
    let (p50, p99, most) = (quantile(&micros, 0.5), quantile(&micros, 0.99), micros.last());
    let count = sample.len();
    format!("asked {count} {in_time} {p50:.0} {p99:.0} {:.0}", most.copied().unwrap_or(0.0))
}

/// One GET over the parked connection, and its whole response.
fn exchange(client: &mut Client) -> io::Result<()> {
    let mut keys = Keys::new();
    let mut control = [0; CONTROL_BYTES_MAX];
    let length = client.session.seal_control(&mut keys, &mut control).map_err(failed)?;
    client.stream.write_all(&control[..length])?;
    let stream = client.next_stream;
    client.next_stream = stream.map(|stream| stream + 2);
    let Some(stream) = stream else {
        send(client, &mut keys, &client::request("/", false))?;
        let mut text = Vec::new();
        return receive(client, &mut keys, |bytes| {
            text.extend_from_slice(bytes);
            Ok((Vec::new(), complete(&text)))
        });
    };
    send(client, &mut keys, &frames::request(stream))?;
    let mut answer = ReplyFrames::default();
    receive(client, &mut keys, |bytes| {
        let replies = answer.take(bytes, stream)?;
        Ok((replies, answer.is_whole()?))
    })
}

fn failed(fault: eyelet_record::RecordFault) -> io::Error {
    io::Error::other(fault.to_string())
}

/// Seals and writes a few bytes.
fn send(client: &mut Client, keys: &mut Keys, bytes: &[u8]) -> io::Result<()> {
    let mut slot = vec![0; client.session.record_len(bytes.len())];
    let start = client.session.prefix_len();
    slot[start..start + bytes.len()].copy_from_slice(bytes);
    let length = client.session.seal(keys, &mut slot, bytes.len()).map_err(failed)?;
    client.stream.write_all(&slot[..length])
}

/// Reads until `take` says that it has all, and sends its replies.
fn receive(
    client: &mut Client,
    keys: &mut Keys,
    mut take: impl FnMut(&[u8]) -> io::Result<(Vec<u8>, bool)>,
) -> io::Result<()> {
    let (mut buffer, mut filled) = (vec![0; RECORD_BYTES_MAX], 0);
    loop {
        match client.stream.read(&mut buffer[filled..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => filled += more,
        }
        let (mut at, mut is_whole) = (0, false);
        while let Opened::Record { consumed, what } =
            client.session.open(keys, &mut buffer[at..filled]).map_err(failed)?
        {
            match what {
                Incoming::Data(range) => {
                    let (replies, ended) = take(&buffer[at + range.start..at + range.end])?;
                    is_whole |= ended;
                    if !replies.is_empty() {
                        send(client, keys, &replies)?;
                    }
                }
                Incoming::CloseNotify | Incoming::PeerAlert(_) => {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                Incoming::Nothing | Incoming::Reply => {}
            }
            at += consumed;
        }
        buffer.copy_within(at..filled, 0);
        filled -= at;
        if is_whole {
            return Ok(());
        }
    }
}

fn complete(text: &[u8]) -> bool {
    let head = text.windows(4).position(|four| four == b"\r\n\r\n");
    let body = head.and_then(|at| text.get(at + 4..)).unwrap_or_default();
    text.starts_with(b"HTTP/1.1 200 ") && body == client::SMALL_BODY
}

/// xorshift64*: the sample must differ from run to run, and nothing more.
fn random(state: &mut u64) -> u64 {
    *state = (*state).max(1);
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
}

/// The traffic secrets of the current handshake. This process does one at a time.
#[derive(Debug, Default)]
struct Secrets(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    client: Vec<u8>,
    server: Vec<u8>,
}

impl KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let Ok(mut taken) = self.0.lock() else { return };
        match label {
            "CLIENT_TRAFFIC_SECRET_0" => taken.client = secret.to_vec(),
            "SERVER_TRAFFIC_SECRET_0" => taken.server = secret.to_vec(),
            _ => {}
        }
    }
}

const PROGRESS: usize = 1000;
/// The longest wait for a handshake step or a response before it counts as failed.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// A response later than this, in microseconds, is not counted.
const ANSWER_US_MAX: f64 = 1e6;
const SOURCES: usize = 4;
const SOURCE_FIRST: usize = 32;
const SOURCE_NETWORKS: usize = 200;
/// Failures after which nobody else is asked: each may take [`WAIT_MAX`].
const FAILURES_MAX: usize = 100;
