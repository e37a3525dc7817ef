//! The known addresses of a name, and the merge of the answers of several resolvers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use eyelet_telemetry::evidence::AddressEvidence;

use crate::dns::answer::{Answer, FAULT_FRESH_MS};

/// Most addresses kept of a name: those seen last. The largest CDNs have some dozens.
const ADDRESSES_MAX: usize = 512;
/// Most addresses of a name that a log entry shows.
const LOGGED_MAX: usize = 8;
/// Every answer is valid at least so long, whatever its TTL: a name is queried at most once a
/// second.
const FRESH_MS_MIN: u64 = 1_000;

/// The known addresses of a name, of one family.
#[derive(Debug)]
pub struct Resolved {
    /// Sorted by address, each with the time it was last in an answer.
    addresses: Box<[(IpAddr, u64)]>,
    /// The time until which another query would bring nothing new.
    fresh_until_ms: u64,
    /// True if every resolver has answered or failed.
    complete: bool,
    /// True if no resolver was asked, because too many others were.
    unasked: bool,
    /// The reason why one did not answer.
    fault: Option<Box<str>>,
    /// The addresses that the access log shows.
    pub logged: Arc<AddressEvidence>,
}

impl Resolved {
    /// The result if no resolver could be queried.
    pub fn failed(before: Option<&Self>, why: String, now_ms: u64, history: Duration) -> Self {
        merge(before, Err(why), true, now_ms, history)
    }

    /// The result if too many other questions were under way. Nobody may remember this of the
    /// name.
    pub fn unasked(before: Option<&Self>, why: String, now_ms: u64, history: Duration) -> Self {
        Self { unasked: true, ..Self::failed(before, why, now_ms, history) }
    }

    /// True if no resolver was asked, because too many others were.
    pub fn is_unasked(&self) -> bool {
        self.unasked
    }

    /// True if the address is one of the name's. `None`: it must be queried, or, if this is
    /// complete, it is unknown.
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

    /// True if asking again would bring nothing new.
    pub fn is_fresh(&self, now_ms: u64) -> bool {
        self.complete && now_ms < self.fresh_until_ms
    }

    /// True if every resolver has answered or failed.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Returns the reason why one did not answer.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + size_of::<AddressEvidence>()
            + self.addresses.len() * size_of::<(IpAddr, u64)>()
            + self.logged.addresses.len() * size_of::<IpAddr>()
            + self.fault.as_ref().map_or(0, |fault| fault.len())
    }
}

/// Merges the answer of one more resolver into `before`.
pub fn merge(
    before: Option<&Resolved>,
    answer: Result<Answer, String>,
    complete: bool,
    now_ms: u64,
    history: Duration,
) -> Resolved {
    // `before` is of the same question unless it is complete; then a new question begins.
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
    // Keeps the latest time of each address, and the latest addresses if there are too many.
    addresses.sort_unstable_by_key(|(address, seen)| (*address, u64::MAX - seen));
    addresses.dedup_by_key(|(address, _)| *address);
    if addresses.len() > ADDRESSES_MAX {
        addresses.sort_unstable_by_key(|(_, seen)| u64::MAX - seen);
        addresses.truncate(ADDRESSES_MAX);
        addresses.sort_unstable();
    }
    let logged = shown(same_question, &new, now_ms);
    let fresh_until_ms = fresh_until.min(now_ms + fresh_ms);
    let addresses = addresses.into();
    Resolved { addresses, fresh_until_ms, complete, unasked: false, fault, logged }
}

/// Returns the addresses that the answers to one question have said so far.
fn shown(before: Option<&Resolved>, new: &[IpAddr], now_ms: u64) -> Arc<AddressEvidence> {
    let known = before.map_or(&[][..], |before| &before.logged.addresses);
    let mut addresses = known.to_vec();
    for address in new {
        // An answer may contain the same record twice.
        if addresses.len() < LOGGED_MAX && !addresses.contains(address) {
            addresses.push(*address);
        }
    }
    let addresses = addresses.into_boxed_slice();
    match before {
        Some(before) if addresses.len() == known.len() => before.logged.clone(),
        Some(before) => {
            Arc::new(AddressEvidence { addresses, at_unix_ms: before.logged.at_unix_ms })
        }
        None => Arc::new(AddressEvidence { addresses, at_unix_ms: now_ms }),
    }
}
