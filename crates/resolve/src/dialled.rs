//! The addresses of a name that is dialled: cached for their TTL, and looked up once for all
//! workers.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use tokio::time::timeout;

use crate::cache::{self, Leader, SingleFlight};
use crate::names::Names;
use crate::permits::Permit;
use crate::resolver::{DialledName, Found};

/// A look-up may take this many times `connect_timeout`, so that a caller who joins late has his
/// full time.
const LOOKUP_TIMEOUTS: u32 = 2;

/// The addresses of a name that is dialled, from the cache or by a look-up that all workers share.
/// A name that a `client` chose is never completed by a search list, and needs one of that
/// client's permits. A configured name needs no permit.
///
/// # Errors
/// Why there is none.
pub async fn addresses(
    names: &Rc<Names>,
    client: Option<IpAddr>,
    name: &str,
) -> Result<Vec<IpAddr>, String> {
    if let Some(found) = known(names, client, name) {
        return found;
    }
    let (dialled, lookups) = (&names.shared.evidence.dialled, &names.shared.evidence.lookups);
    let wait = names.shared.config.limits.connect_timeout;
    let key = (Box::from(name), client.is_some());
    let hash = dialled.hash((name, client.is_some()));
    let flight = match dialled.flight(hash, &key) {
        Some(flight) => flight,
        None => {
            let permit = match client {
                None => None,
                // Half the time, so that this is the reported reason and not the connect timeout.
                Some(client) => match timeout(wait / 2, lookups.of(client)).await {
                    Ok(permit) => Some(permit),
                    Err(_) => {
                        let share = lookups.share();
                        return Err(format!("{share} look-ups for this client are under way"));
                    }
                },
            };
            if let Some(found) = known(names, client, name) {
                return found;
            }
            match dialled.join(hash, &key) {
                SingleFlight::Busy => return Err("too many look-ups are under way".into()),
                SingleFlight::Shared(flight) => flight,
                SingleFlight::Mine(leader, flight) => {
                    let names = names.clone();
                    cache::spawn(async move { look_up(&names, key, leader, permit).await });
                    flight
                }
            }
        }
    };
    let found = cache::outcome(flight, |_| true).await;
    found.map_or_else(|| Err("no answer in time".into()), |found| found.addresses())
}

fn known(names: &Names, client: Option<IpAddr>, name: &str) -> Option<Result<Vec<IpAddr>, String>> {
    let dialled = &names.shared.evidence.dialled;
    let known = dialled.read(
        dialled.hash((name, client.is_some())),
        |(known, whole)| **known == *name && *whole == client.is_some(),
        |found| (names.engine.now_unix_ms() < found.fresh_until_ms).then(|| found.addresses()),
    );
    known.flatten()
}

async fn look_up(
    names: &Names,
    key: DialledName,
    leader: Leader<DialledName, Arc<Found>>,
    permit: Option<Permit>,
) {
    let find = async {
        let _begun = match &permit {
            Some(permit) => permit.begin().await,
            None => None,
        };
        names.resolver.find(&key, || names.engine.now_unix_ms()).await
    };
    let wait = LOOKUP_TIMEOUTS * names.shared.config.limits.connect_timeout;
    match timeout(wait, find).await {
        Ok(found) if names.engine.now_unix_ms() < found.fresh_until_ms => {
            let bytes = found.bytes() + key.0.len();
            leader.land(Arc::new(found), bytes);
        }
        // Those who wait get it, but it has expired already and is not stored.
        Ok(found) => leader.publish(Arc::new(found)),
        Err(_) => {}
    }
}
