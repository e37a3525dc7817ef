//! The addresses of a name that is dialled: remembered for their TTL, looked up once for all
//! workers. It must not know rules, or how one dials.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use tokio::time::timeout;

use crate::cache::{self, Leader, SingleFlight};
use crate::names::Names;
use crate::permits::Permit;
use crate::resolver::{DialledName, Found};

/// A look-up goes on for so many times `connect_timeout`: who joins it late has time of his own.
const LOOKUP_TIMEOUTS: u32 = 2;

/// The addresses of a name that is dialled: from memory, or by a look-up that all workers share.
/// A name that a client chose is a whole one, and is looked up under one of its permits; what the
/// administrator wrote waits for nobody.
///
/// # Errors
/// Why there is none.
pub async fn addresses(
    names: &Rc<Names>,
    certificate_client: Option<IpAddr>,
    name: &str,
) -> Result<Vec<IpAddr>, String> {
    if let Some(found) = known(names, certificate_client, name) {
        return found;
    }
    let (dialled, lookups) = (&names.shared.evidence.dialled, &names.shared.evidence.lookups);
    let wait = names.shared.config.limits.connect_timeout;
    let key = (Box::from(name), certificate_client.is_some());
    let hash = dialled.hash((name, certificate_client.is_some()));
    let flight = match dialled.flight(hash, &key) {
        Some(flight) => flight,
        None => {
            let permit = match certificate_client {
                None => None,
                // So that this is what is told, and not that the time to connect is over.
                Some(client) => match timeout(wait / 2, lookups.of(client)).await {
                    Ok(permit) => Some(permit),
                    Err(_) => {
                        let share = lookups.share();
                        return Err(format!("{share} look-ups for this client are under way"));
                    }
                },
            };
            if let Some(found) = known(names, certificate_client, name) {
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

fn known(
    names: &Names,
    certificate_client: Option<IpAddr>,
    name: &str,
) -> Option<Result<Vec<IpAddr>, String>> {
    let dialled = &names.shared.evidence.dialled;
    let known = dialled.read(
        dialled.hash((name, certificate_client.is_some())),
        |(known, whole)| **known == *name && *whole == certificate_client.is_some(),
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
        // Who waits is told, and what nobody could use takes no place.
        Ok(found) => leader.publish(Arc::new(found)),
        Err(_) => {}
    }
}
