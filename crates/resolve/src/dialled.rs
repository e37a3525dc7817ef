//! The addresses of a name that is dialled: cached for their TTL, and looked up once for all
//! workers.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::cache::{self, Leader, SingleFlight};
use crate::dns::found::Found;
use crate::dns::resolver::DialledName;
use crate::names::Names;
use crate::permits::Permit;

/// A look-up may take this many times `connect_timeout`, so that a caller who joins late has his
/// full time.
const LOOKUP_TIMEOUTS: u32 = 2;
/// A name whose answer is younger is not asked again before its TTL ends, however many dials fail.
const ASKED_AGAIN_MS: u64 = 1_000;
/// The time for which a dial waits for its addresses to answer before its name is asked again
/// meanwhile: the first SYN is repeated after a second.
const DOUBTED_AFTER: Duration = Duration::from_secs(1);
/// The time for which a dial whose addresses have all failed waits for others. Its client waits for
/// an error.
const AGAIN_WAIT: Duration = Duration::from_secs(1);

type Flight = watch::Receiver<Option<Arc<Found>>>;

/// A name to dial, and what its look-up has brought.
pub struct Lookup<'a> {
    name: &'a str,
    client: Option<IpAddr>,
    found: Arc<Found>,
    /// The other family is under way.
    flight: Option<Flight>,
}

impl<'a> Lookup<'a> {
    /// Looks a name up: in the cache, or by a look-up that all workers share. A name that a
    /// `client` chose is never completed by a search list, and needs one of that client's permits.
    /// A configured name needs no permit.
    ///
    /// # Errors
    /// Why there is no result.
    pub async fn new(
        names: &Rc<Names>,
        client: Option<IpAddr>,
        name: &'a str,
    ) -> Result<Self, String> {
        let now = || names.engine.now_unix_ms();
        let flight = match ask(names, client, name, |found| now() < found.fresh_until_ms).await? {
            Asked::Known(found) => return Ok(Self { name, client, found, flight: None }),
            Asked::Flight(flight) => flight,
        };
        let found = cache::outcome(flight.clone(), |_| true).await;
        let found = found.ok_or("no answer in time")?;
        let flight = found.is_partial.then_some(flight);
        Ok(Self { name, client, found, flight })
    }

    /// The addresses.
    ///
    /// # Errors
    /// Why there is none.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, String> {
        self.found.addresses()
    }

    /// True if the addresses of one family are under way.
    pub fn is_partial(&self) -> bool {
        self.flight.is_some()
    }

    /// The name's addresses after this look-up: with those of the family that was late, or those of
    /// a new answer if the dial has `doubts`: all addresses have failed, or none answers. There are
    /// none if the answer is too young to be asked for again.
    pub async fn later(&self, names: &Rc<Names>, doubts: &Notify) -> Vec<IpAddr> {
        if let Some(flight) = &self.flight {
            let found = cache::outcome(flight.clone(), |found| !found.is_partial).await;
            return found.and_then(|found| found.addresses().ok()).unwrap_or_default();
        }
        // Whichever comes first.
        let _ = timeout(DOUBTED_AFTER, doubts.notified()).await;
        let is_young = |found: &Found| names.engine.now_unix_ms() < found.asked_ms + ASKED_AGAIN_MS;
        if is_young(&self.found) {
            return Vec::new();
        }
        let again = async {
            match ask(names, self.client, self.name, is_young).await.ok()? {
                Asked::Known(found) => Some(found),
                Asked::Flight(flight) => cache::outcome(flight, |_| true).await,
            }
        };
        let found = timeout(AGAIN_WAIT, again).await.ok().flatten();
        found.and_then(|found| found.addresses().ok()).unwrap_or_default()
    }
}

/// The addresses whose kept connections may be used, if a configured name has any. Asks again in
/// the background when the answer's TTL has ended.
pub fn usable(names: &Rc<Names>, name: &str) -> Option<Vec<IpAddr>> {
    let dialled = &names.shared.evidence.dialled;
    let hash = dialled.hash((name, false));
    let is_key = |(known, whole): &DialledName| **known == *name && !whole;
    let now_ms = names.engine.now_unix_ms();
    let known = dialled.read(hash, is_key, Arc::clone);
    let is_due = |found: &Arc<Found>| {
        now_ms >= found.fresh_until_ms && now_ms >= found.asked_ms + ASKED_AGAIN_MS
    };
    if known.as_ref().is_none_or(is_due) {
        let key = (Box::from(name), false);
        if let SingleFlight::Mine(leader, _) = dialled.join(hash, &key) {
            begin(names, key, leader, None);
        }
    }
    known?.usable(now_ms)
}

enum Asked {
    Known(Arc<Found>),
    Flight(Flight),
}

/// A known result that `is_good`, or the look-up of one.
async fn ask(
    names: &Rc<Names>,
    client: Option<IpAddr>,
    name: &str,
    is_good: impl Fn(&Found) -> bool,
) -> Result<Asked, String> {
    let (dialled, lookups) = (&names.shared.evidence.dialled, &names.shared.evidence.lookups);
    let hash = dialled.hash((name, client.is_some()));
    let known = || {
        let is_key = |(known, whole): &DialledName| **known == *name && *whole == client.is_some();
        let known = dialled.read(hash, is_key, |found| is_good(found).then(|| found.clone()));
        known.flatten().map(Asked::Known)
    };
    if let Some(known) = known() {
        return Ok(known);
    }
    let key = (Box::from(name), client.is_some());
    if let Some(flight) = dialled.flight(hash, &key) {
        return Ok(Asked::Flight(flight));
    }
    let permit = match client {
        None => None,
        // Half the time, so that this is the reported reason and not the connect timeout.
        Some(client) => {
            let wait = names.shared.config.limits.connect_timeout / 2;
            let permit = timeout(wait, lookups.of(client)).await;
            Some(permit.map_err(|_| {
                format!("{} look-ups for this client are under way", lookups.share())
            })?)
        }
    };
    if let Some(known) = known() {
        return Ok(known);
    }
    match dialled.join(hash, &key) {
        SingleFlight::Busy => Err("too many look-ups are under way".into()),
        SingleFlight::Shared(flight) => Ok(Asked::Flight(flight)),
        SingleFlight::Mine(leader, flight) => {
            begin(names, key, leader, permit);
            Ok(Asked::Flight(flight))
        }
    }
}

fn begin(
    names: &Rc<Names>,
    key: DialledName,
    leader: Leader<DialledName, Arc<Found>>,
    permit: Option<Permit>,
) {
    let names = names.clone();
    cache::spawn(async move { look_up(&names, key, leader, permit).await });
}

async fn look_up(
    names: &Names,
    key: DialledName,
    leader: Leader<DialledName, Arc<Found>>,
    permit: Option<Permit>,
) {
    let now = || names.engine.now_unix_ms();
    let find = async {
        let _begun = match &permit {
            Some(permit) => permit.begin().await,
            None => None,
        };
        names.resolver.find(&key, now, |partly| leader.publish(Arc::new(partly))).await
    };
    let wait = LOOKUP_TIMEOUTS * names.shared.config.limits.connect_timeout;
    match timeout(wait, find).await {
        // One that has expired already says for kept connections where they may lead.
        Ok(found) if found.is_answered() => {
            let found = match leader.before() {
                Some(before) => found.after(&before),
                None => found,
            };
            let bytes = found.bytes() + key.0.len();
            leader.land(Arc::new(found), bytes);
        }
        // Those who wait get it. What is remembered stays.
        Ok(found) => leader.publish(Arc::new(found)),
        Err(_) => {}
    }
}
