//! Looks up names that are dialled, as this host would: by its hosts file, its search list and its
//! resolvers.

use std::cell::OnceCell;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::Hosts;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use tokio::time::timeout;

use crate::dns::answer::{Answer, FAULT_FRESH_MS, TTL_SECS_MAX};
use crate::dns::found::{ADDRESSES_MAX, Found};
use crate::dns::secure::SecureDns;
use crate::dns::server::ServerMemory;
use crate::dns::servers::{Configured, Servers, configured, name};
use eyelet_config::Dns;

/// Resolution Delay (RFC 8305 section 3): how long the addresses of one family wait for the other
/// family, whichever comes first, so that balancing mostly sees all of them.
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);

/// The time for which a family may be late once the other one is in use. It is enough for a second
/// server after a silent one. Then the look-up ends, so that the name can be asked for again.
const LATE_FAMILY: Duration = Duration::from_secs(3);

/// Looks up names that a worker dials. Set up at the first name.
pub struct Resolver {
    dns: Dns,
    secure: Option<Arc<SecureDns>>,
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

impl Resolver {
    /// A resolver for `dns`; nothing is read yet.
    pub fn new(dns: &Dns, secure: Option<Arc<SecureDns>>, memory: Arc<ServerMemory>) -> Self {
        Self { dns: dns.clone(), secure, memory, made: OnceCell::new() }
    }

    fn made(&self) -> Result<&Made, String> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let Configured { endpoints, search, options } =
            configured(&self.dns, self.secure.as_deref())?;
        let made = Made {
            servers: Servers::new(endpoints, &options, &self.memory)?,
            hosts: Hosts::from_system().unwrap_or_default(),
            search,
            ndots: options.ndots,
        };
        Ok(self.made.get_or_init(|| made))
    }

    /// Looks a name up. `now` is called when an answer has arrived. `partly` is given the addresses
    /// of one family if the other family's do not come soon.
    pub async fn find(
        &self,
        (name, absolute): &DialledName,
        now: impl Fn() -> u64,
        partly: impl Fn(Found),
    ) -> Found {
        let partly = |answer| partly(Found::new(Ok(answer), now()).partial());
        let found = self.first_of(name, *absolute, partly).await;
        Found::new(found, now())
    }

    /// The addresses of the first of the candidate names that has any. That there are none is known
    /// only if no look-up of a candidate has failed.
    async fn first_of(
        &self,
        text: &str,
        absolute: bool,
        partly: impl Fn(Answer),
    ) -> Result<Answer, String> {
        let made = self.made()?;
        let name = name(text)?;
        let (mut nothing, mut fault) = (None, None);
        for name in made.candidates(name, absolute) {
            match made.both(&name, &partly).await {
                Ok(answer) if !answer.addresses.is_empty() => return Ok(answer),
                Ok(answer) => nothing = Some(answer),
                Err(why) => fault = fault.or(Some(why)),
            }
        }
        match (fault, nothing) {
            (None, Some(nothing)) => Ok(nothing),
            (fault, _) => Err(fault.unwrap_or_else(|| "no name".to_owned())),
        }
    }
}

impl Made {
    /// The names to try. A client's name is complete: the search list of this host must not extend
    /// it. A configured name is looked up as resolv.conf(5) says: with a dot at its end it is
    /// complete, too.
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

    /// The addresses of both families, alternating. If one family fails, the other is enough. If
    /// one is late, `partly` gets the other.
    async fn both(&self, name: &Name, partly: impl Fn(Answer)) -> Result<Answer, String> {
        let six = self.hosts.lookup_static_host(&Query::query(name.clone(), RecordType::AAAA));
        let four = self.hosts.lookup_static_host(&Query::query(name.clone(), RecordType::A));
        if six.is_some() || four.is_some() {
            let records = [&six, &four].map(|found| found.iter().flat_map(|found| found.answers()));
            let [six, four] = records.map(|records| records.filter_map(|r| r.data.ip_addr()));
            return Ok(Answer::new(in_order(six, four), TTL_SECS_MAX));
        }
        let mut six = pin!(self.servers.look_up(name, true));
        let mut four = pin!(self.servers.look_up(name, false));
        let (one, mut rest) = tokio::select! {
            one = &mut six => (one, four),
            one = &mut four => (one, six),
        };
        let other = match &one {
            Ok(answer) if !answer.addresses.is_empty() => {
                match timeout(RESOLUTION_DELAY, &mut rest).await {
                    Ok(other) => other,
                    Err(_) => {
                        partly(answer.clone());
                        let late = timeout(LATE_FAMILY, rest).await;
                        late.unwrap_or_else(|_| Err("no answer in time".to_owned()))
                    }
                }
            }
            _ => rest.await,
        };
        merged(one, other)
    }
}

/// The addresses of two families.
fn merged(one: Result<Answer, String>, other: Result<Answer, String>) -> Result<Answer, String> {
    let (one, other) = match (one, other) {
        (Ok(one), Ok(other)) => (one, other),
        (Err(why), Err(_)) => return Err(why),
        (Ok(had), Err(why)) | (Err(why), Ok(had)) if had.addresses.is_empty() => return Err(why),
        // The family that failed is asked again soon.
        (Ok(had), Err(_)) | (Err(_), Ok(had)) => {
            return Ok(Answer { is_whole: false, fresh_ms: FAULT_FRESH_MS, ..had });
        }
    };
    let fresh_ms = match (one.addresses.is_empty(), other.addresses.is_empty()) {
        (true, false) => other.fresh_ms,
        (false, true) => one.fresh_ms,
        _ => one.fresh_ms.min(other.fresh_ms),
    };
    let all = [one.addresses, other.addresses].concat();
    let (six, four): (Vec<IpAddr>, Vec<IpAddr>) = all.into_iter().partition(IpAddr::is_ipv6);
    let addresses = in_order(six.into_iter(), four.into_iter());
    Ok(Answer { addresses, fresh_ms, is_whole: true })
}

fn in_order(
    mut one: impl Iterator<Item = IpAddr>,
    mut other: impl Iterator<Item = IpAddr>,
) -> Vec<IpAddr> {
    let mut alternating = Vec::new();
    while alternating.len() < ADDRESSES_MAX {
        match (one.next(), other.next()) {
            (None, None) => break,
            (one, other) => alternating.extend(one.into_iter().chain(other)),
        }
    }
    alternating
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hickory_resolver::config::{NameServerConfig, ResolverOpts};

    use super::*;
    use crate::dns::scripted;
    use crate::dns::server::AskedServer;

    #[test]
    fn the_search_list_is_for_relative_names_of_the_configuration() {
        let options = ResolverOpts::default();
        let made = Made {
            servers: Servers::new(vec![], &options, &Arc::default()).unwrap(),
            hosts: Hosts::default(),
            search: vec![name("corp.example.").unwrap()],
            ndots: options.ndots,
        };
        for (text, is_chosen, expected) in [
            ("app", false, &["app.corp.example.", "app."][..]),
            ("app.", false, &["app."]),
            ("a.b.c", false, &["a.b.c.", "a.b.c.corp.example."]),
            ("a.b.c.", false, &["a.b.c."]),
            ("app", true, &["app."]),
        ] {
            let candidates = made.candidates(name(text).unwrap(), is_chosen);
            let candidates: Vec<String> = candidates.iter().map(Name::to_ascii).collect();
            assert_eq!(candidates, *expected, "{text}");
        }
    }

    /// A failed candidate may have addresses: that a later one has none says nothing about it.
    #[tokio::test]
    async fn no_candidate_has_an_address_only_if_none_has_failed() {
        const NO_ERROR: u8 = 0;
        const SERVFAIL: u8 = 2;
        const NXDOMAIN: u8 = 3;
        let address = scripted::serve(|query| {
            let (code, addresses) = match &*query.name() {
                "failed.corp.example" | "found.corp.example" => (SERVFAIL, &[][..]),
                "found" => (NO_ERROR, &[[192, 0, 2, 1]][..]),
                _ => (NXDOMAIN, &[][..]),
            };
            vec![query.response(code, addresses)]
        });
        let address = address.await;
        let mut config = NameServerConfig::udp(address.ip());
        config.connections.iter_mut().for_each(|udp| udp.port = address.port());
        let options = ResolverOpts::default();
        let made = Made {
            servers: Servers::new(vec![AskedServer::Clear(config)], &options, &Arc::default())
                .unwrap(),
            hosts: Hosts::default(),
            search: vec![name("corp.example.").unwrap()],
            ndots: options.ndots,
        };
        let resolver = Resolver {
            made: OnceCell::from(made),
            ..Resolver::new(&Dns::default(), None, Arc::default())
        };
        let find = async |text| resolver.first_of(text, false, |_| ()).await;
        assert_eq!(find("failed").await, Err("error response: Server Failure".to_owned()));
        let nothing = find("absent").await.map(|answer| answer.addresses);
        assert_eq!(nothing, Ok(vec![]));
        let found = find("found").await.map(|answer| answer.addresses);
        assert_eq!(found, Ok(vec![IpAddr::from([192, 0, 2, 1])]), "it is enough, as for glibc");
    }

    #[test]
    fn a_family_that_failed_is_asked_for_again_soon() {
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let had = |ttl_secs| Ok(Answer::new(vec![address(1)], ttl_secs));
        let none = |ttl_secs| Ok(Answer::new(vec![], ttl_secs));
        let failed = || Err("why".to_owned());
        let fresh_ms = |one, other| merged(one, other).map(|both| (both.fresh_ms, both.is_whole));
        assert_eq!(fresh_ms(had(60), none(5)), Ok((60_000, true)));
        assert_eq!(fresh_ms(none(5), had(60)), Ok((60_000, true)));
        assert_eq!(fresh_ms(none(5), none(3)), Ok((3_000, true)));
        assert_eq!(fresh_ms(had(60), failed()), Ok((FAULT_FRESH_MS, false)));
        assert_eq!(fresh_ms(none(5), failed()), Err("why".into()), "it may have an address");
        assert_eq!(fresh_ms(failed(), failed()), Err("why".into()));
    }
}
