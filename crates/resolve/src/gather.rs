//! Gathers evidence for or against a name: from the cache, or by one flight that all who ask share.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use eyelet_sys::socket;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::cache::{self, Leader, SingleFlight};
use crate::connect::is_shortage;
use crate::dns::resolved::Resolved;
use crate::evidence::{Attempt, ByDns, DnsKey, Lack, Purpose, Visit};
use crate::loops::DialMark;
use crate::names::Names;
use crate::permits::Permit;
use eyelet_memory::budget::Counted;

/// Bytes that a side handshake may come to hold.
const HANDSHAKE_BYTES: usize = 150 << 10;
/// The time until a destination with an invalid certificate is asked again.
const INVALID_FRESH_MS: u64 = 60_000;

/// The end of a wait for evidence.
enum Waited<T> {
    /// The wait ended with evidence, or with the reason why this client gets none.
    Final(T),
    /// Another client's wait for a permit, which this client shared, was too long, and nobody was
    /// asked. This client's own wait began later, and has not had its whole time.
    ForAnother(T),
}

impl<T> Waited<T> {
    /// Returns the part that a client has after its last wait.
    fn into_inner(self) -> T {
        match self {
            Self::Final(found) | Self::ForAnother(found) => found,
        }
    }
}

/// Says if `address` is one of `name`'s, if the cache knows.
pub fn known_by_dns(names: &Names, name: &str, address: IpAddr) -> Option<ByDns> {
    let shared = &*names.shared;
    let (evidence, history) = (&shared.evidence, shared.config.evidence.history);
    let (address, now) = (address.to_canonical(), names.engine.now_unix_ms());
    let v6 = address.is_ipv6();
    let known = evidence.dns.read(
        evidence.dns.hash((name, v6)),
        |(known, six)| **known == *name && *six == v6,
        |known| {
            (known.has(address, now, history).is_some() || known.is_fresh(now))
                .then(|| ByDns::of(known, address, now, history))
        },
    );
    known.flatten()
}

/// Says if `address` is one of `name`'s, for a client. Queries DNS only if the cache does not know.
pub async fn by_dns(names: &Rc<Names>, client: IpAddr, name: &str, address: IpAddr) -> ByDns {
    if let Some(known) = known_by_dns(names, name, address) {
        return known;
    }
    match take_part_in_question(names, client, name, address).await {
        // Earlier answers may be enough.
        Waited::ForAnother(by_dns) if by_dns.agrees.is_none() => {
            take_part_in_question(names, client, name, address).await.into_inner()
        }
        waited => waited.into_inner(),
    }
}

/// Joins the question for a name or begins it, and waits for its end.
async fn take_part_in_question(
    names: &Rc<Names>,
    client: IpAddr,
    name: &str,
    address: IpAddr,
) -> Waited<ByDns> {
    let shared = &*names.shared;
    let (evidence, history) = (&shared.evidence, shared.config.evidence.history);
    let v6 = address.to_canonical().is_ipv6();
    let hash = evidence.dns.hash((name, v6));
    let key = (Box::from(name), v6);
    let (flight, is_shared) = match evidence.dns.flight(hash, &key) {
        Some(flight) => (flight, true),
        None => {
            // The permit comes before the flight, which others may join: a client that floods us
            // with names then makes only itself wait.
            let permit = timeout(shared.config.evidence.timeout, evidence.questions.of(client));
            let Ok(permit) = permit.await else {
                let share = evidence.questions.share();
                let why = format!("{share} queries for this client are under way");
                return Waited::Final(ByDns::unknown(&why));
            };
            if let Some(known) = known_by_dns(names, name, address) {
                return Waited::Final(known);
            }
            match evidence.dns.join(hash, &key) {
                SingleFlight::Busy => {
                    return Waited::Final(ByDns::unknown("too many queries are under way"));
                }
                SingleFlight::Shared(flight) => (flight, true),
                SingleFlight::Mine(leader, flight) => {
                    let names = names.clone();
                    cache::spawn(async move { question(&names, key, hash, leader, permit).await });
                    (flight, false)
                }
            }
        }
    };
    let address = address.to_canonical();
    let has = |resolved: &Arc<Resolved>| {
        resolved.is_complete()
            || resolved.has(address, names.engine.now_unix_ms(), history) == Some(true)
    };
    let Some(resolved) = cache::outcome(flight, has).await else {
        return Waited::Final(ByDns::unknown("no answer in time"));
    };
    let by_dns = ByDns::of(&resolved, address, names.engine.now_unix_ms(), history);
    match is_shared && resolved.is_unasked() {
        true => Waited::ForAnother(by_dns),
        false => Waited::Final(by_dns),
    }
}

async fn question(
    names: &Rc<Names>,
    key: DnsKey,
    hash: u64,
    leader: Leader<DnsKey, Arc<Resolved>>,
    permit: Permit,
) {
    let config = &names.shared.config.evidence;
    let evidence = &names.shared.evidence;
    let mut resolved = evidence.dns.read(hash, |known| *known == key, Arc::clone);
    if let Some(resolved) =
        resolved.clone().filter(|known| known.is_fresh(names.engine.now_unix_ms()))
    {
        // Another flight ended between this one's look-up and its start.
        let bytes = resolved.bytes() + key.0.len();
        return leader.land(resolved, bytes);
    }
    let Ok(_begun) = timeout(config.timeout, permit.begin()).await else {
        // No resolver was asked, so nothing is remembered.
        let why = format!("{} queries are under way", evidence.questions.count());
        let now = names.engine.now_unix_ms();
        let unasked = Resolved::unasked(resolved.as_deref(), why, now, config.history);
        return leader.give_up(Arc::new(unasked));
    };
    // The wait for the permit takes no time from the resolvers.
    let deadline = Instant::now() + config.timeout;
    let (name, v6) = &key;
    let mut question = match names.resolvers.ask(name, *v6, deadline) {
        Ok(question) => question,
        Err(why) => {
            let now = names.engine.now_unix_ms();
            let failed = Resolved::failed(resolved.as_deref(), why, now, config.history);
            let bytes = failed.bytes() + name.len();
            return leader.land(Arc::new(failed), bytes);
        }
    };
    loop {
        let now = || names.engine.now_unix_ms();
        let next = question.next(resolved.as_deref(), now, config.history).await;
        let next = Arc::new(next);
        if next.is_complete() {
            let bytes = next.bytes() + name.len();
            return leader.land(next, bytes);
        }
        leader.publish(next.clone());
        resolved = Some(next);
    }
}

/// The certificate that `destination` shows for `name`, if the cache knows. If the client chose the
/// destination (`is_chosen`), it may be one that must not be asked.
pub fn known_by_certificate(
    names: &Names,
    destination: SocketAddr,
    name: Option<&str>,
    is_chosen: bool,
) -> Option<Arc<Attempt>> {
    known_for(names, (destination, name), is_chosen, Purpose::Rules)
}

fn known_for(
    names: &Names,
    (destination, name): (SocketAddr, Option<&str>),
    is_chosen: bool,
    purpose: Purpose,
) -> Option<Arc<Attempt>> {
    let prober = names.shared.evidence.prober.as_ref().filter(|_| is_chosen);
    if let Some(why) = prober.and_then(|prober| prober.declines(destination.ip())) {
        return Some(Attempt::failed(&why, names.engine.now_unix_ms()));
    }
    let certificates = &names.shared.evidence.certificates;
    let now = names.engine.now_unix_ms();
    let known = certificates.read(
        certificates.hash((destination, name)),
        |(known, asked)| *known == destination && asked.as_deref() == name,
        |attempt| {
            let wall_ms = names.engine.clock.wall_ms(now);
            attempt.is_fresh_for(purpose, now, wall_ms).then(|| attempt.clone())
        },
    );
    known.flatten()
}

/// The certificate that `destination` shows for `name`, for a client: from the cache, or by a side
/// handshake.
pub async fn by_certificate(
    names: &Rc<Names>,
    client: IpAddr,
    (destination, name): (SocketAddr, Option<&str>),
    is_chosen: bool,
    purpose: Purpose,
) -> Arc<Attempt> {
    if let Some(known) = known_for(names, (destination, name), is_chosen, purpose) {
        return known;
    }
    // A side handshake with one of our own listeners would cause another one.
    if names.shared.loops.listener_at(destination).is_some() {
        return Attempt::failed("the destination is this edge", names.engine.now_unix_ms());
    }
    let key = (destination, name.map(Box::from));
    match take_part(names, client, &key, is_chosen, purpose).await {
        Waited::ForAnother(_) => {
            take_part(names, client, &key, is_chosen, purpose).await.into_inner()
        }
        Waited::Final(attempt) => attempt,
    }
}

/// Joins the flight for a certificate or leads it, and waits for its end.
async fn take_part(
    names: &Rc<Names>,
    client: IpAddr,
    key: &Visit,
    is_chosen: bool,
    purpose: Purpose,
) -> Waited<Arc<Attempt>> {
    let evidence = &names.shared.evidence;
    let asked = (key.0, key.1.as_deref());
    let hash = evidence.certificates.hash(asked);
    let (flight, is_shared) = match evidence.certificates.flight(hash, key) {
        Some(flight) => (flight, true),
        None => {
            let permit =
                timeout(names.shared.config.evidence.timeout, evidence.handshakes.of(client));
            let Ok(permit) = permit.await else {
                let share = evidence.handshakes.share();
                let why = format!("{share} side handshakes for this client are under way");
                return Waited::Final(Attempt::unasked(&why));
            };
            if let Some(known) = known_for(names, asked, is_chosen, purpose) {
                return Waited::Final(known);
            }
            match evidence.certificates.join(hash, key) {
                SingleFlight::Busy => {
                    let why = "too many side handshakes are under way";
                    return Waited::Final(Attempt::unasked(why));
                }
                SingleFlight::Shared(flight) => (flight, true),
                SingleFlight::Mine(leader, flight) => {
                    let (names, key) = (names.clone(), key.clone());
                    cache::spawn(async move {
                        visit(&names, &key, hash, leader, (&permit, purpose)).await;
                    });
                    (flight, false)
                }
            }
        }
    };
    let landed = cache::outcome(flight, |_| true).await;
    let dropped = || Attempt::failed("the side handshake was dropped", names.engine.now_unix_ms());
    let attempt = landed.unwrap_or_else(dropped);
    match is_shared && attempt.is_unasked() {
        true => Waited::ForAnother(attempt),
        false => Waited::Final(attempt),
    }
}

/// Leads a flight to its end: by a side handshake, as soon as one may begin.
async fn visit(
    names: &Names,
    key: &Visit,
    hash: u64,
    leader: Leader<Visit, Arc<Attempt>>,
    (permit, purpose): (&Permit, Purpose),
) {
    let (evidence, config) = (&names.shared.evidence, &names.shared.config.evidence);
    let known = evidence.certificates.read(hash, |known| known == key, Arc::clone);
    let now = names.engine.now_unix_ms();
    let wall_ms = names.engine.clock.wall_ms(now);
    let attempt = match known.filter(|known| known.is_fresh_for(purpose, now, wall_ms)) {
        // Another flight ended between this one's look-up and its start.
        Some(known) => known,
        None => {
            let Ok(_begun) = timeout(config.timeout, permit.begin()).await else {
                // The destination was not asked, so nothing is remembered of it.
                let why = format!("{} side handshakes are under way", evidence.handshakes.count());
                return leader.give_up(Attempt::unasked(&why));
            };
            side_handshake(names, key).await
        }
    };
    if attempt.is_unasked() {
        return leader.give_up(attempt);
    }
    let bytes = attempt.bytes() + key.1.as_ref().map_or(0, |name| name.len());
    leader.land(attempt, bytes);
}

/// A side handshake that may begin. The wait for that took none of its time.
async fn side_handshake(names: &Names, key: &Visit) -> Arc<Attempt> {
    let (evidence, config) = (&names.shared.evidence, &names.shared.config.evidence);
    let Some(prober) = &evidence.prober else {
        return Attempt::failed("no CA certificates were read", names.engine.now_unix_ms());
    };
    let failed = |why: String| Lack::Failed(why.into());
    let ask = async {
        let _counted = Counted::new(&names.shared.budget, HANDSHAKE_BYTES);
        let stream = dial(names, key.0).await.map_err(|why| {
            let text = why.to_string();
            if is_shortage(&(&why).into()) { Lack::Unasked(text.into()) } else { failed(text) }
        })?;
        let now = names.engine.now_unix_ms();
        prober.ask(stream, key.0.ip(), key.1.as_deref(), now).await.map_err(failed)
    };
    let shown = timeout(config.timeout, ask).await;
    let now = names.engine.now_unix_ms();
    let shown = match shown {
        Err(_) => return Attempt::failed("no handshake in time", now),
        // This process or host lacks something, so nothing is remembered of the destination.
        Ok(Err(Lack::Unasked(why))) => return Attempt::unasked(&why),
        Ok(Err(Lack::Failed(why))) => return Attempt::failed(&why, now),
        Ok(Ok(shown)) => shown,
    };
    let fresh_until_ms = match shown.certificate.valid {
        true => now + config.history.as_millis() as u64,
        false => now + INVALID_FRESH_MS.min(config.history.as_millis() as u64),
    };
    Arc::new(Attempt { shown: Ok(shown), fresh_until_ms })
}

/// Connects, and remembers the socket for loop detection: if our own connections are redirected to
/// us, this one must be recognized.
async fn dial(names: &Names, destination: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket::tcp(destination)?;
    socket::connect(&socket, destination)?;
    names.shared.loops.dialled(&socket, destination, DialMark::None);
    let stream = TcpStream::from_std(socket.into())?;
    stream.writable().await?;
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(stream),
    }
}
