//! Looks up names that are dialled, as this host would: by its hosts file, its search list and its
//! resolvers.

use std::cell::OnceCell;
use std::net::IpAddr;
use std::sync::Arc;

use hickory_resolver::Hosts;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};

use crate::answer::{Answer, FAULT_FRESH_MS, TTL_SECS_MAX};
use crate::server::ServerMemory;
use crate::servers::{Servers, configured, name};
use eyelet_config::Dns;

/// Most addresses kept of a dialled name. An answer of 512 bytes by UDP has about 30, and balancing
/// one name over more than 64 hosts is done by several names.
const ADDRESSES_MAX: usize = 64;

/// Looks up names that a worker dials. Set up at the first name.
pub struct Resolver {
    dns: Dns,
    memory: Arc<ServerMemory>,
    made: OnceCell<Made>,
}

struct Made {
    servers: Servers,
    hosts: Hosts,
    search: Vec<Name>,
    ndots: usize,
}

/// A name that is dialled, and whether a client chose it: then it is complete, and no search list
/// applies.
pub type DialledName = (Box<str>, bool);

/// The result for such a name.
pub struct Found {
    /// At most [`ADDRESSES_MAX`], IPv6 and IPv4 alternating (RFC 8305 section 4); or why there is
    /// none.
    addresses: Result<Box<[IpAddr]>, Box<str>>,
    /// Until when it is valid, by the steady clock.
    pub fresh_until_ms: u64,
}

impl Found {
    /// The addresses, or why there is none.
    ///
    /// # Errors
    /// The reason, as text for the log.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, String> {
        self.addresses.as_deref().map(<[IpAddr]>::to_vec).map_err(ToString::to_string)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let addresses = self.addresses.as_ref();
        size_of::<Self>() + addresses.map_or_else(|why| why.len(), |all| size_of_val(&**all))
    }
}

impl Resolver {
    /// A resolver for `dns`; nothing is read yet.
    pub fn new(dns: &Dns, memory: Arc<ServerMemory>) -> Self {
        Self { dns: dns.clone(), memory, made: OnceCell::new() }
    }

    fn made(&self) -> Result<&Made, String> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let (config, options) = configured(&self.dns)?;
        let (domain, search, servers) = config.into_parts();
        let ndots = options.ndots;
        let made = Made {
            servers: Servers::new(servers, &options, &self.memory)?,
            hosts: Hosts::from_system().unwrap_or_default(),
            search: domain.into_iter().chain(search).collect(),
            ndots,
        };
        Ok(self.made.get_or_init(|| made))
    }

    /// Looks a name up. `now` is called when the answer has arrived.
    pub async fn find(&self, (name, absolute): &DialledName, now: impl Fn() -> u64) -> Found {
        let found = self.first_of(name, *absolute).await;
        let now = now();
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

    /// The answer for the first of the candidate names that has one.
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
    /// The names to try. A client's name is complete: the search list of this host must not extend
    /// it. A configured name is looked up as resolv.conf(5) says.
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

    /// The addresses of both families, alternating. If one family fails, the other is enough.
    async fn both(&self, name: &Name) -> Result<Answer, String> {
        let six = self.hosts.lookup_static_host(&Query::query(name.clone(), RecordType::AAAA));
        let four = self.hosts.lookup_static_host(&Query::query(name.clone(), RecordType::A));
        if six.is_some() || four.is_some() {
            let records = [&six, &four].map(|found| found.iter().flat_map(|found| found.answers()));
            let [six, four] = records.map(|records| records.filter_map(|r| r.data.ip_addr()));
            return Ok(Answer::new(in_order(six, four), TTL_SECS_MAX));
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
        let addresses = in_order(six.into_iter(), four.into_iter());
        Ok(Answer { addresses, fresh_ms })
    }
}

fn in_order(
    mut one: impl Iterator<Item = IpAddr>,
    mut other: impl Iterator<Item = IpAddr>,
) -> Vec<IpAddr> {
    let mut hop_count = Vec::new();
    while hop_count.len() < ADDRESSES_MAX {
        match (one.next(), other.next()) {
            (None, None) => break,
            (one, other) => hop_count.extend(one.into_iter().chain(other)),
        }
    }
    hop_count
}
