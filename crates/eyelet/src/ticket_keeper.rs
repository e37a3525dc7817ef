//! The thread that makes ticket keys, so that a handshake never waits for one.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use eyelet_config::{Config, Tickets};
use eyelet_tls::tickets::{Now, Origin, TicketKeys};

/// The longest time between two looks at the wall clock, which may jump.
const STEP_MAX: Duration = Duration::from_secs(30);

/// The ticket keys of this process, and the thread that makes them. It ends when this is dropped.
pub struct TicketKeeper {
    keys: Arc<TicketKeys>,
    orders: Arc<Orders>,
}

/// What the thread is told.
struct Orders {
    newest: Mutex<Order>,
    is_new: Condvar,
}

enum Order {
    Run(Tickets),
    Stop,
}

impl TicketKeeper {
    /// Makes the first key and starts the thread.
    ///
    /// # Errors
    /// If there is no randomness or no thread.
    pub fn start(config: &Config) -> io::Result<Self> {
        let keys = Arc::new(TicketKeys::new(config.tickets.lifetime));
        step(&keys, &config.tickets)?;
        let newest = Mutex::new(Order::Run(config.tickets.clone()));
        let orders = Arc::new(Orders { newest, is_new: Condvar::new() });
        let thread = std::thread::Builder::new().name("tickets".into());
        let of_thread = (keys.clone(), orders.clone());
        thread.spawn(move || run(&of_thread.0, &of_thread.1))?;
        Ok(Self { keys, orders })
    }

    /// The keys, which are the same over all reloads.
    pub fn keys(&self) -> &Arc<TicketKeys> {
        &self.keys
    }

    /// Goes on by another configuration.
    pub fn configure(&self, config: &Config) {
        self.keys.configure(config.tickets.lifetime, Origin::Own);
        self.order(Order::Run(config.tickets.clone()));
    }

    fn order(&self, order: Order) {
        *self.orders.lock() = order;
        self.orders.is_new.notify_one();
    }
}

impl Drop for TicketKeeper {
    fn drop(&mut self) {
        self.order(Order::Stop);
    }
}

impl Orders {
    fn lock(&self) -> MutexGuard<'_, Order> {
        // A poisoned lock still holds a whole value: each is replaced in one step.
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn run(keys: &TicketKeys, orders: &Orders) {
    let mut newest = orders.lock();
    while let Order::Run(tickets) = &*newest {
        let tickets = tickets.clone();
        drop(newest);
        if let Err(error) = step(keys, &tickets) {
            tracing::error!("cannot make a ticket key: {error}; the last one is used on");
        }
        newest = orders.lock();
        let wait = until_next_period(tickets.lifetime).min(STEP_MAX);
        newest = orders.is_new.wait_timeout(newest, wait).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Makes the key of this period if it is missing, and wipes old ones.
fn step(keys: &TicketKeys, tickets: &Tickets) -> io::Result<()> {
    let now = Now::read();
    let start = keys.period_start(now);
    if tickets.enabled && !keys.has(start, Origin::Own) {
        let secret = TicketKeys::random_secret().map_err(io::Error::other)?;
        keys.insert(start, Origin::Own, &secret, now).map_err(io::Error::other)?;
    }
    keys.advance(now);
    Ok(())
}

fn until_next_period(lifetime: Duration) -> Duration {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let into = since.as_millis() % lifetime.as_millis().max(1);
    lifetime.saturating_sub(Duration::from_millis(into as u64))
}
