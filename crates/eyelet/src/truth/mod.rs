//! Whether a name in a hello is true: evidence gathered when a rule asks, shared by all workers,
//! bounded, one flight a key. It must not know what a rule makes of it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use eyelet_sys::socket;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use crate::intercept::Trace;
use crate::resolver::{Dialled, Found};
use crate::worker::Worker;
use eyelet_config::Config;
use eyelet_memory::budget::Counted;
use eyelet_telemetry::evidence::AddressEvidence;

use cache::{Cache, Flight, Landing};
use certificate::{Asker, RootsError, Shown};
use resolved::Resolved;
use turns::{Turn, Turns};

pub mod cache;
pub mod certificate;
pub mod dns;
#[cfg(test)]
mod properties;
pub mod resolved;
pub mod turns;

/// The part of `memory_max` that evidence of each kind may take, and the names that are dialled:
/// 8 MiB by default, which is more than 16,384 names with a few addresses.
const MEMORY_PARTS: usize = 64;
/// Questions to DNS at once, each with a descriptor a resolver.
const QUESTIONS_MAX: usize = 128;
/// Side handshakes at once, each with a descriptor.
const HANDSHAKES_MAX: usize = 64;
/// Names at once that are looked up to dial them.
const LOOKUPS_MAX: usize = 256;
/// What one of them may come to hold.
const HANDSHAKE_BYTES: usize = 150 << 10;
/// How soon a destination with which no handshake could be made is tried again.
const FAULT_FRESH_MS: u64 = 5_000;
/// How soon one whose certificate is not valid is looked at again.
const INVALID_FRESH_MS: u64 = 60_000;

/// A name, and whether its IPv6 or its IPv4 addresses are asked for.
type Question = (Box<str>, bool);
/// A destination, and the name that it is asked for.
type Visit = (SocketAddr, Option<Box<str>>);

/// The evidence of a process, and what it has looked up to dial it.
pub struct Truth {
    dns: Arc<Cache<Question, Arc<Resolved>>>,
    certificates: Arc<Cache<Visit, Arc<Attempt>>>,
    /// Addresses of names that are dialled.
    pub dialled: Arc<Cache<Dialled, Arc<Found>>>,
    asker: Option<Asker>,
    questions: Arc<Turns>,
    handshakes: Arc<Turns>,
    /// For the names that clients want dialled.
    pub lookups: Arc<Turns>,
}

/// What came of a side handshake.
#[derive(Debug)]
pub struct Attempt {
    /// What was shown, or why nothing was.
    pub shown: Result<Shown, Box<str>>,
    fresh_until_ms: u64,
}

/// What DNS says of a name and an address.
#[derive(Debug)]
pub struct ByDns {
    /// Whether the address is one of the name's; `None`: that cannot be known.
    pub agrees: Option<bool>,
    /// What was answered, if anything was.
    pub told: Option<Arc<AddressEvidence>>,
    /// Why it cannot be known.
    pub fault: Option<Box<str>>,
}

impl Truth {
    /// No evidence yet. The roots are read, if a rule asks for a certificate.
    ///
    /// # Errors
    /// If they cannot be.
    pub fn new(config: &Config) -> Result<Self, RootsError> {
        let asks = config.policy.asks_certificate();
        let asker = asks.then(|| Asker::new(config)).transpose()?;
        let bytes_max = config.limits.memory_max / MEMORY_PARTS;
        Ok(Self {
            dns: Arc::new(Cache::new(bytes_max)),
            certificates: Arc::new(Cache::new(bytes_max)),
            dialled: Arc::new(Cache::new(bytes_max)),
            asker,
            questions: Turns::new(QUESTIONS_MAX),
            handshakes: Turns::new(HANDSHAKES_MAX),
            lookups: Turns::new(LOOKUPS_MAX),
        })
    }

    /// Descriptors that gathering may take at most.
    pub fn descriptors_max(config: &Config) -> usize {
        let resolvers = config.dns.servers.len().max(2);
        let questions = if config.policy.asks_dns() { QUESTIONS_MAX * resolvers } else { 0 };
        questions + if config.policy.asks_certificate() { HANDSHAKES_MAX } else { 0 }
    }

    /// Entries and bytes, of addresses and of certificates.
    pub fn size(&self) -> [(usize, usize); 2] {
        [self.dns.size(), self.certificates.size()]
    }
}

/// Whether `address` is one of `name`'s, where that is known without asking.
pub fn known_by_dns(worker: &Worker, name: &str, address: IpAddr) -> Option<ByDns> {
    let edge = &worker.edge;
    let (truth, history) = (&edge.truth, edge.config.truth.history);
    let (address, now) = (address.to_canonical(), worker.now_unix_ms());
    let v6 = address.is_ipv6();
    let known = truth.dns.read(
        truth.dns.hash((name, v6)),
        |(known, six)| **known == *name && *six == v6,
        |known| {
            (known.has(address, now, history).is_some() || known.is_fresh(now))
                .then(|| ByDns::of(known, address, now, history))
        },
    );
    known.flatten()
}

/// Whether `address` is one of `name`'s, for a client. Asks only where what is known does not say.
pub async fn by_dns(worker: &Rc<Worker>, client: IpAddr, name: &str, address: IpAddr) -> ByDns {
    if let Some(known) = known_by_dns(worker, name, address) {
        return known;
    }
    let edge = &worker.edge;
    let (truth, history) = (&edge.truth, edge.config.truth.history);
    let v6 = address.to_canonical().is_ipv6();
    let hash = truth.dns.hash((name, v6));
    let key = (Box::from(name), v6);
    let flight = match truth.dns.flight(hash, &key) {
        Some(flight) => flight,
        None => {
            // First the turn and then the flight, which others join: who floods us with names
            // makes nobody wait for his turns.
            let turn = timeout(edge.config.truth.timeout, truth.questions.of(client));
            let Ok(turn) = turn.await else {
                let share = truth.questions.share();
                return ByDns::unknown(&format!("{share} questions of this client are under way"));
            };
            if let Some(known) = known_by_dns(worker, name, address) {
                return known;
            }
            match truth.dns.join(hash, &key) {
                Flight::Busy => return ByDns::unknown("too many questions are under way"),
                Flight::Shared(flight) => flight,
                Flight::Mine(landing, flight) => {
                    let worker = worker.clone();
                    cache::fly(async move { question(&worker, key, hash, landing, turn).await });
                    flight
                }
            }
        }
    };
    let address = address.to_canonical();
    let has = |resolved: &Arc<Resolved>| {
        resolved.is_complete() || resolved.has(address, worker.now_unix_ms(), history) == Some(true)
    };
    match cache::outcome(flight, has).await {
        Some(resolved) => ByDns::of(&resolved, address, worker.now_unix_ms(), history),
        None => ByDns::unknown("no answer in time"),
    }
}

async fn question(
    worker: &Rc<Worker>,
    key: Question,
    hash: u64,
    landing: Landing<Question, Arc<Resolved>>,
    turn: Turn,
) {
    let config = &worker.edge.config.truth;
    let deadline = Instant::now() + config.timeout;
    let truth = &worker.edge.truth;
    let mut resolved = truth.dns.read(hash, |known| *known == key, Arc::clone);
    if let Some(resolved) = resolved.clone().filter(|known| known.is_fresh(worker.now_unix_ms())) {
        // Another flight landed between this one's look-up and its start.
        let bytes = resolved.bytes() + key.0.len();
        return landing.land(resolved, bytes);
    }
    let Ok(_begun) = timeout_at(deadline, turn.begin()).await else { return };
    let (name, v6) = &key;
    let mut question = match worker.resolvers.ask(name, *v6, deadline) {
        Ok(question) => question,
        Err(why) => {
            let now = worker.now_unix_ms();
            let failed = Resolved::failed(resolved.as_deref(), why, now, config.history);
            let bytes = failed.bytes() + name.len();
            return landing.land(Arc::new(failed), bytes);
        }
    };
    loop {
        let now = || worker.now_unix_ms();
        let next = question.next(resolved.as_deref(), now, config.history).await;
        let next = Arc::new(next);
        if next.is_complete() {
            let bytes = next.bytes() + name.len();
            return landing.land(next, bytes);
        }
        landing.tell(next.clone());
        resolved = Some(next);
    }
}

impl ByDns {
    fn of(resolved: &Resolved, address: IpAddr, now_ms: u64, history: Duration) -> Self {
        // An answer that is stale by now was fresh when it was waited for.
        let agrees = resolved
            .has(address, now_ms, history)
            .or_else(|| (resolved.is_complete() && resolved.fault().is_none()).then_some(false));
        let fault = match agrees {
            Some(_) => None,
            None => Some(resolved.fault().unwrap_or("no answer").into()),
        };
        Self { agrees, told: Some(resolved.told.clone()), fault }
    }

    fn unknown(why: &str) -> Self {
        Self { agrees: None, told: None, fault: Some(why.into()) }
    }
}

/// What `destination` has shown to who asked for `name`, where that is known. One that the client
/// chose (`is_chosen`) may be none to ask.
pub fn known_by_certificate(
    worker: &Worker,
    destination: SocketAddr,
    name: Option<&str>,
    is_chosen: bool,
) -> Option<Arc<Attempt>> {
    let asker = worker.edge.truth.asker.as_ref().filter(|_| is_chosen);
    if let Some(why) = asker.and_then(|asker| asker.declines(destination.ip())) {
        return Some(Attempt::failed(&why, worker.now_unix_ms()));
    }
    let certificates = &worker.edge.truth.certificates;
    let now = worker.now_unix_ms();
    let known = certificates.read(
        certificates.hash((destination, name)),
        |(known, asked)| *known == destination && asked.as_deref() == name,
        |attempt| attempt.is_fresh(now, worker.clock.wall_ms(now)).then(|| attempt.clone()),
    );
    known.flatten()
}

/// What `destination` shows to who asks for `name`, for a client; from memory, or by a side
/// handshake.
pub async fn by_certificate(
    worker: &Rc<Worker>,
    client: IpAddr,
    destination: SocketAddr,
    name: Option<&str>,
    is_chosen: bool,
) -> Arc<Attempt> {
    if let Some(known) = known_by_certificate(worker, destination, name, is_chosen) {
        return known;
    }
    let truth = &worker.edge.truth;
    let now = worker.now_unix_ms();
    let hash = truth.certificates.hash((destination, name));
    // A handshake with one of our own listeners would ask for another.
    if worker.edge.intercept.listener_at(destination).is_some() {
        return Attempt::failed("the destination is this edge", now);
    }
    let key = (destination, name.map(Box::from));
    let flight = match truth.certificates.flight(hash, &key) {
        Some(flight) => flight,
        None => {
            let turn = timeout(worker.edge.config.truth.timeout, truth.handshakes.of(client));
            let Ok(turn) = turn.await else {
                let share = truth.handshakes.share();
                let why = format!("{share} side handshakes for this client are under way");
                return Attempt::failed(&why, now);
            };
            if let Some(known) = known_by_certificate(worker, destination, name, is_chosen) {
                return known;
            }
            match truth.certificates.join(hash, &key) {
                Flight::Busy => {
                    return Attempt::failed("too many side handshakes are under way", now);
                }
                Flight::Shared(flight) => flight,
                Flight::Mine(landing, flight) => {
                    let worker = worker.clone();
                    cache::fly(async move {
                        let attempt = side_handshake(&worker, &key, hash, &turn).await;
                        let bytes = attempt.bytes() + key.1.as_ref().map_or(0, |name| name.len());
                        landing.land(attempt, bytes);
                    });
                    flight
                }
            }
        }
    };
    let landed = cache::outcome(flight, |_| true).await;
    landed.unwrap_or_else(|| Attempt::failed("the side handshake was dropped", now))
}

async fn side_handshake(worker: &Worker, key: &Visit, hash: u64, turn: &Turn) -> Arc<Attempt> {
    let (truth, config) = (&worker.edge.truth, &worker.edge.config.truth);
    let known = truth.certificates.read(hash, |known| known == key, Arc::clone);
    let now = worker.now_unix_ms();
    if let Some(known) = known.filter(|known| known.is_fresh(now, worker.clock.wall_ms(now))) {
        // Another flight landed between this one's look-up and its start.
        return known;
    }
    let Some(asker) = &truth.asker else {
        return Attempt::failed("no roots were read", worker.now_unix_ms());
    };
    let ask = async {
        let _begun = turn.begin().await;
        let _counted = Counted::new(&worker.edge.budget, HANDSHAKE_BYTES);
        let stream = dial(worker, key.0).await.map_err(|why| why.to_string())?;
        asker.ask(stream, key.0.ip(), key.1.as_deref(), worker.now_unix_ms()).await
    };
    let shown = timeout(config.timeout, ask).await;
    let now = worker.now_unix_ms();
    let shown = match shown {
        Err(_) => return Attempt::failed("no handshake in time", now),
        Ok(Err(why)) => return Attempt::failed(&why, now),
        Ok(Ok(shown)) => shown,
    };
    let fresh_until_ms = match shown.certificate.valid {
        true => now + config.history.as_millis() as u64,
        false => now + INVALID_FRESH_MS.min(config.history.as_millis() as u64),
    };
    Arc::new(Attempt { shown: Ok(shown), fresh_until_ms })
}

/// Connects, and has it remembered: where our own connections are redirected to us, this one is to
/// be known for ours.
async fn dial(worker: &Worker, destination: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket::tcp(destination)?;
    socket::connect(&socket, destination)?;
    worker.edge.intercept.dialled(&socket, destination, Trace::None);
    let stream = TcpStream::from_std(socket.into())?;
    stream.writable().await?;
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(stream),
    }
}

impl Attempt {
    fn failed(why: &str, now_ms: u64) -> Arc<Self> {
        Arc::new(Self { shown: Err(why.into()), fresh_until_ms: now_ms + FAULT_FRESH_MS })
    }

    /// Whether it still counts, by the steady clock, and by the wall clock for a certificate.
    fn is_fresh(&self, steady_ms: u64, wall_ms: u64) -> bool {
        let is_over = |shown: &Shown| shown.certificate.valid && wall_ms >= shown.expires_unix_ms;
        steady_ms < self.fresh_until_ms && !self.shown.as_ref().is_ok_and(is_over)
    }

    /// For rules.
    pub fn certificate(&self) -> Option<&eyelet_policy::Certificate> {
        self.shown.as_ref().ok().map(|shown| &shown.certificate)
    }

    fn bytes(&self) -> usize {
        let shown = self.shown.as_ref();
        size_of::<Self>() + shown.map_or_else(|why| why.len(), Shown::bytes)
    }
}

#[cfg(test)]
mod tests {
    use eyelet_telemetry::evidence::CertificateEvidence;

    use super::*;

    #[test]
    fn a_certificate_does_not_outlive_its_end_by_the_wall_clock() {
        let shown = |valid| Shown {
            certificate: eyelet_policy::Certificate {
                names: [].into(),
                issuer: [].into(),
                trusted: valid,
                valid,
            },
            told: Arc::new(CertificateEvidence {
                names: [].into(),
                issuer: "".into(),
                fault: None,
                at_unix_ms: 0,
            }),
            expires_unix_ms: 1_000,
        };
        let attempt = |shown| Attempt { shown, fresh_until_ms: 500 };
        let sound = attempt(Ok(shown(true)));
        assert!(sound.is_fresh(499, 999) && sound.is_fresh(499, 0));
        assert!(!sound.is_fresh(500, 0), "by the steady clock");
        assert!(!sound.is_fresh(0, 1_000), "the wall clock was set");
        // What is not valid anyway, or is no certificate, is asked for again by age alone.
        assert!(attempt(Ok(shown(false))).is_fresh(0, 2_000));
        assert!(attempt(Err("none".into())).is_fresh(0, 2_000));
    }
}
