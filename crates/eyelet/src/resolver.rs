//! Names to addresses by DNS: the question, aliases followed to their end, and what is dialled by
//! name remembered for its TTL. It must not know rules, what speaks for a name, or how one dials.

use std::cell::OnceCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::config::{NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::xfer::{DnsHandle, FirstAnswer, RetryDnsHandle};
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::{DnsRequestOptions, DnsResponse, Query};
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, NameServerPool, PoolContext, TlsConfig};
use tokio::time::timeout;

use crate::truth::cache::{self, Flight, Landing};
use crate::truth::turns::Turn;
use crate::worker::Worker;
use eyelet_config::Dns;

use answer::{Question, TTL_SECS_MAX};

pub mod answer;

pub use answer::Answer;

/// Questions under way on one connection to a resolver.
const QUESTIONS_A_CONNECTION: usize = 256;
/// Addresses kept of a name that is dialled: more than are ever tried.
const ADDRESSES_MAX: usize = 16;
/// How soon a name of which one family could not be had is asked for again.
const FAULT_FRESH_MS: u64 = 2_000;
/// A look-up goes on for so many times `connect_timeout`: who joins it late has time of his own.
const LOOKUP_TIMEOUTS: u32 = 2;

/// One resolver, or several of which whoever answers first will do.
pub struct Servers {
    first: Handle,
    /// Of its own, as one would not ask twice what it is asking.
    again: Handle,
    again_after: Duration,
    options: DnsRequestOptions,
}

type Handle = RetryDnsHandle<NameServerPool<TokioRuntimeProvider>>;

/// A response, or the TTL of that there is nothing.
type Said = Result<DnsResponse, u32>;

impl Servers {
    /// Whom `servers` are; nobody is asked yet.
    ///
    /// # Errors
    /// Never, as long as resolvers are asked without TLS.
    pub fn new(servers: Vec<NameServerConfig>, mut options: ResolverOpts) -> Result<Self, String> {
        options.max_active_requests = QUESTIONS_A_CONNECTION;
        let mut asked = DnsRequestOptions::default();
        asked.use_edns = options.edns0;
        let handle = || {
            let tls = TlsConfig::new().map_err(|error| error.to_string())?;
            let context = Arc::new(PoolContext::new(options.clone(), tls));
            let provider = TokioRuntimeProvider::default();
            let pool = NameServerPool::from_config(servers.clone(), context, provider);
            Ok::<_, String>(RetryDnsHandle::new(pool, options.attempts))
        };
        let (first, again, again_after) = (handle()?, handle()?, options.timeout / 2);
        Ok(Self { first, again, again_after, options: asked })
    }

    /// What is said to a question. A datagram may be lost, and the library waits the longer to
    /// send another the more names there were of which it heard nothing: so half of the time is
    /// for asking once more, and what comes first of either counts.
    async fn ask(&self, query: &Query) -> Result<Said, String> {
        let first = said(&self.first, query, self.options);
        let again = async {
            tokio::time::sleep(self.again_after).await;
            said(&self.again, query, self.options).await
        };
        tokio::pin!(first);
        tokio::select! {
            said = &mut first => said,
            Ok(said) = again => Ok(said),
        }
    }

    /// The addresses of a name, of one family.
    ///
    /// # Errors
    /// Why that cannot be known.
    pub async fn look_up(&self, name: &Name, v6: bool) -> Result<Answer, String> {
        let mut question = Question::new(name.clone(), v6);
        loop {
            let query = match question.query() {
                Ok(query) => query,
                Err(answer) => return Ok(answer),
            };
            let answer = match self.ask(&query).await? {
                Ok(response) => question.read(&response)?,
                Err(negative_ttl_secs) => Some(question.nothing(negative_ttl_secs)),
            };
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
    }
}

async fn said(handle: &Handle, query: &Query, options: DnsRequestOptions) -> Result<Said, String> {
    match handle.lookup(query.clone(), options).first_answer().await {
        Ok(response) => Ok(Ok(response)),
        // That there is no such name, or no address of it, is an answer.
        Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
            Ok(Err(none.negative_ttl.unwrap_or(0)))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// A name as it stands (RFC 2181 section 11): underscores and bad punycode are in names too.
///
/// # Errors
/// What is wrong with it.
pub fn name(text: &str) -> Result<Name, String> {
    Name::from_ascii(text).map_err(|error| error.to_string())
}

/// The resolvers to ask, and how.
///
/// # Errors
/// If the system's are wanted and cannot be had.
pub fn configured(dns: &Dns) -> Result<(ResolverConfig, ResolverOpts), String> {
    if dns.servers.is_empty() {
        let read = hickory_resolver::system_conf::read_system_conf();
        return read.map_err(|error| error.to_string());
    }
    let servers = dns.servers.iter().copied().map(server).collect();
    Ok((ResolverConfig::from_name_servers(servers), ResolverOpts::default()))
}

/// A resolver at an address.
fn server(address: SocketAddr) -> NameServerConfig {
    let mut config = NameServerConfig::udp_and_tcp(address.ip());
    for connection in &mut config.connections {
        connection.port = address.port();
    }
    config
}

/// A worker's way from names to addresses that it dials, made at the first name.
pub struct Resolver {
    dns: Dns,
    made: OnceCell<Made>,
}

struct Made {
    servers: Servers,
    hosts: Hosts,
    search: Vec<Name>,
    ndots: usize,
}

/// A name that is dialled, and whether a client chose it, and it is a whole one.
pub type Dialled = (Box<str>, bool);

/// What was found for it.
pub struct Found {
    /// At most sixteen, IPv6 and IPv4 in turn (RFC 8305 section 4); or why there is none.
    addresses: Result<Box<[IpAddr]>, Box<str>>,
    fresh_until_ms: u64,
}

impl Found {
    fn addresses(&self) -> Result<Vec<IpAddr>, String> {
        self.addresses.as_deref().map(<[IpAddr]>::to_vec).map_err(ToString::to_string)
    }

    fn bytes(&self) -> usize {
        let addresses = self.addresses.as_ref();
        size_of::<Self>() + addresses.map_or_else(|why| why.len(), |all| size_of_val(&**all))
    }
}

/// The addresses of a name that is dialled: from memory, or by a look-up that all workers share.
/// A name that a client chose is a whole one, and is looked up in one of its turns; what the
/// administrator wrote waits for nobody.
///
/// # Errors
/// Why there is none.
pub async fn addresses(
    worker: &Rc<Worker>,
    asker: Option<IpAddr>,
    name: &str,
) -> Result<Vec<IpAddr>, String> {
    if let Some(found) = known(worker, asker, name) {
        return found;
    }
    let (dialled, lookups) = (&worker.edge.truth.dialled, &worker.edge.truth.lookups);
    let wait = worker.edge.config.limits.connect_timeout;
    let key = (Box::from(name), asker.is_some());
    let hash = dialled.hash((name, asker.is_some()));
    let flight = match dialled.flight(hash, &key) {
        Some(flight) => flight,
        None => {
            let turn = match asker {
                None => None,
                // So that this is what is told, and not that the time to connect is over.
                Some(client) => match timeout(wait / 2, lookups.of(client)).await {
                    Ok(turn) => Some(turn),
                    Err(_) => {
                        let share = lookups.share();
                        return Err(format!("{share} look-ups for this client are under way"));
                    }
                },
            };
            if let Some(found) = known(worker, asker, name) {
                return found;
            }
            match dialled.join(hash, &key) {
                Flight::Busy => return Err("too many look-ups are under way".into()),
                Flight::Shared(flight) => flight,
                Flight::Mine(landing, flight) => {
                    let worker = worker.clone();
                    cache::fly(async move { look_up(&worker, key, landing, turn).await });
                    flight
                }
            }
        }
    };
    let found = cache::outcome(flight, |_| true).await;
    found.map_or_else(|| Err("no answer in time".into()), |found| found.addresses())
}

fn known(
    worker: &Worker,
    asker: Option<IpAddr>,
    name: &str,
) -> Option<Result<Vec<IpAddr>, String>> {
    let dialled = &worker.edge.truth.dialled;
    let known = dialled.read(
        dialled.hash((name, asker.is_some())),
        |(known, whole)| **known == *name && *whole == asker.is_some(),
        |found| (worker.now_unix_ms() < found.fresh_until_ms).then(|| found.addresses()),
    );
    known.flatten()
}

async fn look_up(
    worker: &Worker,
    key: Dialled,
    landing: Landing<Dialled, Arc<Found>>,
    turn: Option<Turn>,
) {
    let find = async {
        let _begun = match &turn {
            Some(turn) => turn.begin().await,
            None => None,
        };
        worker.resolver.find(worker, &key).await
    };
    let wait = LOOKUP_TIMEOUTS * worker.edge.config.limits.connect_timeout;
    match timeout(wait, find).await {
        Ok(found) if worker.now_unix_ms() < found.fresh_until_ms => {
            let bytes = found.bytes() + key.0.len();
            landing.land(Arc::new(found), bytes);
        }
        // Who waits is told, and what nobody could use takes no place.
        Ok(found) => landing.tell(Arc::new(found)),
        Err(_) => {}
    }
}

impl Resolver {
    /// A resolver for `dns`; nothing is read yet.
    pub fn new(dns: &Dns) -> Self {
        Self { dns: dns.clone(), made: OnceCell::new() }
    }

    fn made(&self) -> Result<&Made, String> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let (config, options) = configured(&self.dns)?;
        let (domain, search, servers) = config.into_parts();
        let ndots = options.ndots;
        let made = Made {
            servers: Servers::new(servers, options)?,
            hosts: Hosts::from_system().unwrap_or_default(),
            search: domain.into_iter().chain(search).collect(),
            ndots,
        };
        Ok(self.made.get_or_init(|| made))
    }

    async fn find(&self, worker: &Worker, (name, absolute): &Dialled) -> Found {
        let found = self.first_of(name, *absolute).await;
        let now = worker.now_unix_ms();
        match found {
            Ok(answer) => Found {
                addresses: match answer.addresses.is_empty() {
                    true => Err("the name has no address".into()),
                    false => Ok(answer.addresses.into()),
                },
                fresh_until_ms: now + answer.fresh_ms,
            },
            Err(why) => Found { addresses: Err(why.into()), fresh_until_ms: now },
        }
    }

    /// What is found for the first of the names that this one may stand for.
    async fn first_of(&self, text: &str, absolute: bool) -> Result<Answer, String> {
        let made = self.made()?;
        let name = name(text)?;
        let mut last = Err("no name".to_owned());
        for name in made.candidates(name, absolute) {
            last = made.both(&name).await;
            if last.as_ref().is_ok_and(|answer| !answer.addresses.is_empty()) {
                break;
            }
        }
        last
    }
}

impl Made {
    /// A client's name is a whole one: the search list of this host must not complete it. What
    /// the administrator wrote is looked for as resolv.conf(5) says.
    fn candidates(&self, mut name: Name, absolute: bool) -> Vec<Name> {
        let is_whole = absolute || name.is_fqdn();
        let searched =
            self.search.iter().filter_map(|domain| name.clone().append_domain(domain).ok());
        let mut candidates: Vec<Name> = if is_whole { vec![] } else { searched.collect() };
        let goes_first = usize::from(name.num_labels()) > self.ndots || name.is_localhost();
        name.set_fqdn(true);
        let at = if goes_first { 0 } else { candidates.len() };
        candidates.insert(at, name);
        candidates
    }

    /// Of both families, in turn; the one that cannot be had is done without.
    async fn both(&self, name: &Name) -> Result<Answer, String> {
        let six = self.hosts.lookup_static_host(&Query::query(name.clone(), RecordType::AAAA));
        let four = self.hosts.lookup_static_host(&Query::query(name.clone(), RecordType::A));
        if six.is_some() || four.is_some() {
            let records = [&six, &four].map(|found| found.iter().flat_map(|found| found.answers()));
            let [six, four] = records.map(|records| records.filter_map(|r| r.data.ip_addr()));
            return Ok(Answer::new(in_turn(six, four), TTL_SECS_MAX));
        }
        let (six, four) =
            tokio::join!(self.servers.look_up(name, true), self.servers.look_up(name, false));
        let fresh_ms = match (&six, &four) {
            (Err(_), _) | (_, Err(_)) => FAULT_FRESH_MS,
            (Ok(six), Ok(four)) if six.addresses.is_empty() => four.fresh_ms,
            (Ok(six), Ok(four)) if four.addresses.is_empty() => six.fresh_ms,
            (Ok(six), Ok(four)) => six.fresh_ms.min(four.fresh_ms),
        };
        let [six, four] = match (six, four) {
            (Err(why), Err(_)) => return Err(why),
            (Ok(had), Err(why)) | (Err(why), Ok(had)) if had.addresses.is_empty() => {
                return Err(why);
            }
            (six, four) => [six, four].map(|found| found.map_or(vec![], |found| found.addresses)),
        };
        let addresses = in_turn(six.into_iter(), four.into_iter());
        Ok(Answer { addresses, fresh_ms })
    }
}

fn in_turn(
    mut one: impl Iterator<Item = IpAddr>,
    mut other: impl Iterator<Item = IpAddr>,
) -> Vec<IpAddr> {
    let mut turns = Vec::new();
    while turns.len() < ADDRESSES_MAX {
        match (one.next(), other.next()) {
            (None, None) => break,
            (one, other) => turns.extend(one.into_iter().chain(other)),
        }
    }
    turns
}
