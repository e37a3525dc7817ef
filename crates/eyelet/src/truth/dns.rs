//! Whether an address is one of a name's: every configured resolver asked on its own, because a
//! CDN answers each asker differently, and remembered for a while. It must not know rules.

use std::cell::OnceCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::resolver::{self, Answer, Servers};
use eyelet_config::Dns;
use eyelet_telemetry::evidence::AddressEvidence;

/// Addresses kept of a name, those seen last. The largest CDNs have some dozens.
const ADDRESSES_MAX: usize = 512;
/// Addresses of a name that an access line shows.
const TOLD_MAX: usize = 8;
/// An answer counts for as long at least, whatever its TTL: a name is asked for once a second.
const FRESH_MS_MIN: u64 = 1_000;
/// How soon a resolver that did not answer is asked again.
const FAULT_FRESH_MS: u64 = 2_000;

/// What is known of a name's addresses of one family.
#[derive(Debug)]
pub struct Resolved {
    /// Ascending, each with when it was last an answer.
    addresses: Box<[(IpAddr, u64)]>,
    /// Until when another question would bring nothing new.
    fresh_until_ms: u64,
    /// Whether every resolver has answered or failed.
    complete: bool,
    /// Why one did not answer.
    fault: Option<Box<str>>,
    /// What the access line shows.
    pub told: Arc<AddressEvidence>,
}

/// The resolvers of a worker, made at the first name.
pub struct Resolvers {
    dns: Dns,
    timeout: Duration,
    made: OnceCell<Result<Vec<Rc<Servers>>, String>>,
}

impl Resolved {
    /// What is known where nobody could be asked.
    pub fn failed(before: Option<&Self>, why: String, now_ms: u64, history: Duration) -> Self {
        merge(before, Err(why), true, now_ms, history)
    }

    /// Whether the address is one of the name's. `None`: that must be asked, or, of an answer
    /// that is complete, cannot be known now.
    pub fn has(&self, address: IpAddr, now_ms: u64, history: Duration) -> Option<bool> {
        let at = self.addresses.binary_search_by_key(&address, |(known, _)| *known);
        let seen = at.ok().and_then(|at| self.addresses.get(at)).map(|(_, seen)| *seen);
        let counts = |seen: u64| now_ms.saturating_sub(seen) <= history.as_millis() as u64;
        match seen {
            Some(seen) if counts(seen) => Some(true),
            _ if self.complete && self.fault.is_none() && now_ms < self.fresh_until_ms => {
                Some(false)
            }
            _ => None,
        }
    }

    /// Whether asking again would bring nothing new.
    pub fn is_fresh(&self, now_ms: u64) -> bool {
        self.complete && now_ms < self.fresh_until_ms
    }

    /// Whether every resolver has answered or failed.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Why one did not answer.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + size_of::<AddressEvidence>()
            + self.addresses.len() * size_of::<(IpAddr, u64)>()
            + self.told.addresses.len() * size_of::<IpAddr>()
            + self.fault.as_ref().map_or(0, |fault| fault.len())
    }
}

impl Resolvers {
    /// Resolvers for `dns`; nothing is read yet.
    pub fn new(dns: &Dns, timeout: Duration) -> Self {
        Self { dns: dns.clone(), timeout, made: OnceCell::new() }
    }

    fn servers(&self) -> Result<&[Rc<Servers>], &str> {
        let made = self.made.get_or_init(|| make(&self.dns, self.timeout));
        made.as_deref().map_err(String::as_str)
    }

    /// Asks every resolver for the addresses of `name` of one family, tells each answer as it
    /// comes, and gives what is known when all have answered or the deadline is there.
    pub fn ask(&self, name: &str, v6: bool, deadline: Instant) -> Result<Question, String> {
        let mut whole = resolver::name(name)?;
        // The search list of this host must not complete it.
        whole.set_fqdn(true);
        let mut asked = JoinSet::new();
        for server in self.servers()? {
            let (name, server) = (whole.clone(), server.clone());
            asked.spawn_local(async move { server.look_up(&name, v6).await });
        }
        Ok(Question { asked, deadline })
    }
}

/// A question under way.
pub struct Question {
    asked: JoinSet<Result<Answer, String>>,
    deadline: Instant,
}

impl Question {
    /// What is known once one more resolver has answered, on top of `before`.
    pub async fn next(
        &mut self,
        before: Option<&Resolved>,
        now_ms: impl Fn() -> u64,
        history: Duration,
    ) -> Resolved {
        let next = timeout_at(self.deadline, self.asked.join_next()).await;
        let (answer, complete) = match next {
            Err(_) => (Err("no answer in time".to_owned()), true),
            Ok(None) => (Err("no resolver".to_owned()), true),
            Ok(Some(Err(_))) => (Err("the question was dropped".to_owned()), false),
            Ok(Some(Ok(answer))) => (answer, false),
        };
        let complete = complete || self.asked.is_empty();
        merge(before, answer, complete, now_ms(), history)
    }
}

fn merge(
    before: Option<&Resolved>,
    answer: Result<Answer, String>,
    complete: bool,
    now_ms: u64,
    history: Duration,
) -> Resolved {
    // A question begins with what an earlier one has left, and goes on with its own.
    let same_question = before.filter(|before| !before.complete);
    let mut fault = same_question.and_then(|before| before.fault.clone());
    let fresh_until = same_question.map_or(u64::MAX, |before| before.fresh_until_ms);
    let (new, fresh_ms) = match answer {
        Ok(answer) => {
            let longest = history.as_millis() as u64;
            (answer.addresses, answer.fresh_ms.clamp(FRESH_MS_MIN, longest.max(FRESH_MS_MIN)))
        }
        Err(why) => {
            fault.get_or_insert_with(|| why.into());
            (Vec::new(), FAULT_FRESH_MS)
        }
    };
    let oldest = now_ms.saturating_sub(history.as_millis() as u64);
    let known = before.map_or(&[][..], |before| &before.addresses);
    let mut addresses: Vec<(IpAddr, u64)> =
        known.iter().copied().filter(|(_, seen)| *seen >= oldest).collect();
    addresses.extend(new.iter().map(|address| (*address, now_ms)));
    // Of an address that is there twice the later one stays, and of too many the latest.
    addresses.sort_unstable_by_key(|(address, seen)| (*address, u64::MAX - seen));
    addresses.dedup_by_key(|(address, _)| *address);
    if addresses.len() > ADDRESSES_MAX {
        addresses.sort_unstable_by_key(|(_, seen)| u64::MAX - seen);
        addresses.truncate(ADDRESSES_MAX);
        addresses.sort_unstable();
    }
    let told = tell(same_question, &new, now_ms);
    let fresh_until_ms = fresh_until.min(now_ms + fresh_ms);
    Resolved { addresses: addresses.into(), fresh_until_ms, complete, fault, told }
}

/// What the answers to one question have said so far.
fn tell(before: Option<&Resolved>, new: &[IpAddr], now_ms: u64) -> Arc<AddressEvidence> {
    let known = before.map_or(&[][..], |before| &before.told.addresses);
    let new = new.iter().filter(|address| !known.contains(address));
    let addresses: Box<[IpAddr]> = known.iter().chain(new).copied().take(TOLD_MAX).collect();
    match before {
        Some(before) if addresses.len() == known.len() => before.told.clone(),
        Some(before) => Arc::new(AddressEvidence { addresses, at_unix_ms: before.told.at_unix_ms }),
        None => Arc::new(AddressEvidence { addresses, at_unix_ms: now_ms }),
    }
}

fn make(dns: &Dns, timeout: Duration) -> Result<Vec<Rc<Servers>>, String> {
    let (config, mut options) = resolver::configured(dns)?;
    // An answer counts until all of it is over.
    options.timeout = timeout;
    options.attempts = 1;
    let make = |server| Servers::new(vec![server], options.clone()).map(Rc::new);
    config.into_parts().2.into_iter().map(make).collect()
}
