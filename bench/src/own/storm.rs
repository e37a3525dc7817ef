//! A process of clients that all connect at once, come again until they are in, and then stay. It
//! begins at a line on standard input, and its results go to standard output.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

use crate::client::{self, tls};
use crate::lab::host_name;

/// Arguments of such a process.
#[derive(Args, Clone, Debug)]
pub struct StormClients {
    /// The server
    target: SocketAddr,
    /// The number of clients
    count: usize,
    /// The number of clients in earlier processes: the source addresses follow from it
    first: usize,
    /// Seconds after which a client gives up
    patience: u64,
}

/// A storm at one server.
struct Storm {
    target: SocketAddr,
    config: Arc<ClientConfig>,
    request: Vec<u8>,
    began: Instant,
    end: Instant,
}

/// A client that is in, or has given up.
struct Visit {
    refusals: u32,
    outcome: io::Result<Admitted>,
}

/// A client that is in.
struct Admitted {
    /// Time from the connect of its last attempt to the answer.
    took: Duration,
    /// Time since the storm began.
    since: Duration,
    _stream: TlsStream<TcpStream>,
}

/// Runs the clients. Prints `in COUNT LAST REFUSALS FAILED WHY`, and `micros` with the time of each
/// that is in: all times are in microseconds. Holds the connections until its input ends.
///
/// # Errors
/// Standard input or output is closed too early.
pub async fn serve(clients: &StormClients) -> io::Result<()> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let began = Instant::now();
    let storm = Arc::new(Storm {
        target: clients.target,
        config: tls::config(tls::HandshakeOptions::default()),
        request: client::request("/", false),
        began,
        end: began + Duration::from_secs(clients.patience),
    });
    let mut tasks = JoinSet::new();
    for i in clients.first..clients.first + clients.count {
        let storm = storm.clone();
        tasks.spawn(async move { storm.visit(i).await });
    }
    let visits = tasks.join_all().await;
    say(&visits)?;
    // Who is in stays.
    io::stdin().read_line(&mut line)?;
    drop(visits);
    Ok(())
}

fn say(visits: &[Visit]) -> io::Result<()> {
    let admitted = || visits.iter().filter_map(|visit| visit.outcome.as_ref().ok());
    let count = admitted().count();
    let last = admitted().map(|client| client.since.as_micros()).max().unwrap_or(0);
    let refusals: u32 = visits.iter().map(|visit| visit.refusals).sum();
    let why = visits.iter().find_map(|visit| visit.outcome.as_ref().err());
    let why = why.map_or("-".to_owned(), |why| why.to_string().replace(char::is_whitespace, "_"));
    let failed = visits.len() - count;
    let micros = admitted().map(|client| format!(" {}", client.took.as_micros()));
    let micros: String = micros.collect();
    let mut out = io::stdout().lock();
    writeln!(out, "in {count} {last} {refusals} {failed} {why}\nmicros{micros}")?;
    out.flush()
}

impl Storm {
    /// Comes again until it is in, or gives up.
    async fn visit(&self, i: usize) -> Visit {
        let mut refusals = 0;
        loop {
            let began = Instant::now();
            let outcome = match tokio::time::timeout(ATTEMPT_MAX, self.enter(i)).await {
                Ok(entered) => entered,
                Err(_) => Err(io::Error::other("no answer in time")),
            };
            match outcome {
                Ok(stream) => {
                    let (took, since) = (began.elapsed(), self.began.elapsed());
                    let outcome = Ok(Admitted { took, since, _stream: stream });
                    return Visit { refusals, outcome };
                }
                Err(why) if Instant::now() > self.end => {
                    return Visit { refusals, outcome: Err(why) };
                }
                Err(_) => {}
            }
            tokio::time::sleep(pause(i, refusals)).await;
            refusals += 1;
        }
    }

    async fn enter(&self, i: usize) -> io::Result<TlsStream<TcpStream>> {
        // Its hello leaves with its connection, as from a machine of its own: all clients share a
        // core, and between two steps of one all others have theirs.
        let stream = client::begin(self.target, i)?;
        let mut stream = tls::over(&self.config, &host_name(0), stream).await?;
        client::exchange(&mut stream, &self.request, &mut [0; 1024]).await?;
        Ok(stream)
    }
}

/// The wait before the next attempt: twice as long each time, and a random part of a half.
fn pause(i: usize, attempt: u32) -> Duration {
    let mixed = (i as u64 ^ u64::from(attempt) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let part = 0.5 + mixed as f64 / f64::from(u32::MAX);
    PAUSE.saturating_mul(1 << attempt.min(PAUSE_DOUBLINGS)).mul_f64(part)
}

const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_DOUBLINGS: u32 = 5;
/// The longest wait for a handshake and its answer. All clients share one core, which takes some
/// ten seconds for the handshakes of 50,000.
const ATTEMPT_MAX: Duration = Duration::from_secs(30);
