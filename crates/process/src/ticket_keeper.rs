//! The thread that makes ticket keys, or has them from the store of a fleet, so that a handshake
//! never waits for one. A store that is down stops nothing: the last keys go on.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};

use eyelet_config::{Config, FleetSettings, Tickets};
use eyelet_fleet::period_keys::Periods;
use eyelet_fleet::{Fleet, FleetError};
use eyelet_telemetry::counters::{self, Counters};
use eyelet_tls::provider;
use eyelet_tls::tickets::{Now, Origin, TicketKeys};

/// The longest time between two looks at the wall clock, which may jump, and at the store, which
/// may have lost its data.
const STEP_MAX: Duration = Duration::from_secs(30);
/// The time for which the start waits for the keys of the fleet, so that the first client can
/// resume. Later they come without it.
const START_WAIT: Duration = Duration::from_secs(2);
/// After the first failure of the store; twice as long after each further one.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The ticket keys of this process, and the thread that makes them. It ends when this is dropped.
pub struct TicketKeeper {
    /// The ticket keys, which stay over all reloads.
    pub keys: Arc<TicketKeys>,
    orders: Arc<Orders>,
    thread: JoinHandle<()>,
}

/// The orders to the thread.
struct Orders {
    latest: Mutex<Order>,
    is_new: Condvar,
}

#[derive(Clone)]
enum Order {
    /// Go on as before.
    None,
    Configure(Tickets, Option<FleetSettings>),
    Stop,
}

impl TicketKeeper {
    /// Starts the thread, and waits for the first keys if there are any.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(config: &Config) -> io::Result<Self> {
        let keys = Arc::new(TicketKeys::new(config.tickets.lifetime));
        let latest = Mutex::new(Order::configure(config));
        let orders = Arc::new(Orders { latest, is_new: Condvar::new() });
        let (has_keys, made) = sync_channel(1);
        let thread = std::thread::Builder::new().name("tickets".into());
        let (known, heard) = (keys.clone(), orders.clone());
        let thread = thread.spawn(move || Thread::new(known).run(&heard, &has_keys))?;
        let keeper = Self { keys, orders, thread };
        // If the store does not answer in time, clients get full handshakes until it does.
        if config.tickets.enabled {
            let _ = made.recv_timeout(START_WAIT);
        }
        Ok(keeper)
    }

    /// True if the thread has ended, which only a failure causes.
    pub fn has_died(&self) -> bool {
        self.thread.is_finished()
    }

    /// Goes on by another configuration.
    pub fn configure(&self, config: &Config) {
        self.order(Order::configure(config));
    }

    /// Makes no more keys.
    pub fn stop(&self) {
        self.order(Order::Stop);
    }

    fn order(&self, order: Order) {
        *self.orders.latest.lock() = order;
        self.orders.is_new.notify_one();
    }
}

impl Order {
    fn configure(config: &Config) -> Self {
        Self::Configure(config.tickets.clone(), config.fleet.clone())
    }
}

impl Drop for TicketKeeper {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Orders {
    /// Waits for an order, but not longer than this.
    fn wait(&self, longest: Duration) -> Order {
        let mut latest = self.latest.lock();
        self.is_new.wait_while_for(&mut latest, |order| matches!(order, Order::None), longest);
        std::mem::replace(&mut *latest, Order::None)
    }
}

/// The state of the thread.
struct Thread {
    keys: Arc<TicketKeys>,
    tickets: Tickets,
    fleet: Option<(FleetSettings, Option<Fleet>)>,
    /// The fleet that the last keys are from.
    fleet_id: Option<[u8; 16]>,
    /// While the store fails: how, and when it is asked again.
    outage: Option<Outage>,
    counters: Arc<Counters>,
}

struct Outage {
    is_sealed: bool,
    pause: Duration,
    retry: Instant,
}

impl Thread {
    fn new(keys: Arc<TicketKeys>) -> Self {
        let (tickets, counters) = (Tickets::default(), counters::register());
        Self { keys, tickets, fleet: None, fleet_id: None, outage: None, counters }
    }

    fn run(mut self, orders: &Orders, has_keys: &SyncSender<()>) {
        let mut wait = Duration::ZERO;
        loop {
            match orders.wait(wait) {
                Order::None => {}
                Order::Stop => return,
                Order::Configure(tickets, fleet) => {
                    let origin = if fleet.is_some() { Origin::Fleet } else { Origin::Own };
                    self.keys.configure(tickets.lifetime, origin);
                    self.tickets = tickets;
                    // Opened anew also if it is the same: the file of the secret may have changed.
                    self.fleet = fleet.map(|fleet| (fleet, None));
                    self.outage = None;
                }
            }
            self.step(Now::read());
            // Only the start waits for this.
            let _ = has_keys.try_send(());
            wait = self.until_next_step();
        }
    }

    /// Makes or fetches the keys that are missing, and wipes old ones.
    fn step(&mut self, now: Now) {
        if !self.tickets.enabled {
            self.keys.clear();
            return;
        }
        let start = self.keys.period_start(now);
        if !self.keys.has_any(Origin::Own) && !self.keys.has_any(Origin::Fleet) {
            // The store may be slow, and the first clients shall have tickets.
            self.make(start, now);
        }
        let is_due = self.outage.as_ref().is_none_or(|outage| outage.retry <= now.steady);
        if self.fleet.is_some() && is_due {
            match self.fetch(now) {
                Ok(()) => self.note_success(),
                Err(error) => self.note_failure(&error),
            }
        }
        let goes_on = self.fleet.is_some() && self.keys.has_any(Origin::Fleet);
        if !goes_on && !self.keys.has(start, Origin::Own) {
            self.make(start, now);
        }
        self.keys.advance(now);
    }

    /// Makes the key of the period that begins at `start`.
    fn make(&self, start: u64, now: Now) {
        let made = TicketKeys::random_secret()
            .and_then(|secret| self.keys.insert(start, Origin::Own, &secret, now));
        if made.is_err() {
            tracing::error!("cannot make a ticket key; the last one goes on");
        }
    }

    /// Has the keys of the fleet that are missing, and looks whether the store still has those
    /// that are held.
    fn fetch(&mut self, now: Now) -> Result<(), FleetError> {
        let (period_secs, pause_max) = (self.keys.lifetime_secs().into(), self.retry_max());
        let periods = Periods { period_secs, now_secs: now.unix_secs, pause_max };
        let Some((settings, fleet)) = &mut self.fleet else { return Ok(()) };
        let fleet = match fleet {
            Some(fleet) => fleet,
            None => {
                // For `rediss://`: the client library asks for the provider of the process.
                provider::install();
                let opened = Fleet::open(settings)?;
                let before = self.fleet_id.replace(opened.id());
                if before.is_some_and(|before| before != opened.id()) {
                    self.keys.leave_fleet();
                }
                fleet.insert(opened)
            }
        };
        for wanted in periods.wanted(!self.keys.has_any(Origin::Fleet)) {
            let held = self.keys.secret(wanted.0, Origin::Fleet);
            let secret = fleet.period_key("tickets", &periods, wanted, held.as_deref())?;
            if let Some(secret) = secret.filter(|secret| held.as_ref() != Some(secret)) {
                let inserted = self.keys.insert(wanted.0, Origin::Fleet, &secret, now);
                inserted.map_err(|_| FleetError::Library)?;
            }
        }
        Ok(())
    }

    /// The longest pause between two attempts. Short periods are for tests.
    fn retry_max(&self) -> Duration {
        (self.tickets.lifetime / 4).clamp(RETRY_MIN, RETRY_MAX)
    }

    fn note_success(&mut self) {
        if self.outage.take().is_some() {
            tracing::info!("[fleet] the store answers again, and ticket keys change again");
        }
    }

    fn note_failure(&mut self, error: &FleetError) {
        self.counters.store_failures.up();
        let is_sealed = matches!(error, FleetError::Sealed { .. });
        let before = self.outage.take().filter(|outage| outage.is_sealed == is_sealed);
        if before.is_none() {
            let goes_on = if self.keys.has_any(Origin::Fleet) {
                "the last ticket keys of the fleet go on"
            } else {
                "clients that come from another edge get full handshakes"
            };
            tracing::warn!("[fleet] {error}. Until that is mended, {goes_on}");
        }
        let pause = before.map_or(RETRY_MIN, |outage| (2 * outage.pause).min(self.retry_max()));
        self.outage = Some(Outage { is_sealed, pause, retry: Instant::now() + pause });
    }

    fn until_next_step(&self) -> Duration {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let period_ms = self.tickets.lifetime.as_millis().max(1);
        let into = Duration::from_millis((since.as_millis() % period_ms) as u64);
        let until = |outage: &Outage| outage.retry.saturating_duration_since(Instant::now());
        let retry = self.outage.as_ref().map(until);
        let step = if self.fleet.is_some() { self.retry_max() } else { STEP_MAX };
        let next = self.tickets.lifetime.saturating_sub(into).min(step);
        retry.map_or(next, |retry| retry.min(next))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use super::*;

    #[test]
    fn a_thread_that_has_ended_is_noticed() {
        let text = "[[listener]]\naddress = \"127.0.0.1:0\"\n";
        let (file, depth) = (Path::new("edge.toml"), eyelet_config::Depth::Files);
        let loaded = eyelet_config::parse(file, text, depth, SystemTime::now()).unwrap();
        let keeper = TicketKeeper::start(&loaded.config).unwrap();
        assert!(!keeper.has_died() && keeper.keys.has_any(Origin::Own));
        keeper.order(Order::Stop);
        while !keeper.has_died() {
            std::thread::yield_now();
        }
    }
}
