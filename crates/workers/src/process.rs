//! Shared by all workers: limits, listening sockets, orders, and the process's own state.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use eyelet_flows::unanswered::UnansweredFlows;
use eyelet_memory::budget::Budget;
use eyelet_sys::socket;
use tokio::sync::watch;

use crate::inbox::Inboxes;
use crate::rates::HandshakeBuckets;

/// Limits that the configuration sets for the event loop. A reload may change them.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The time for which a connection may move no byte.
    pub idle_timeout: Duration,
    /// The time that one with a state of the program may: `keep_state` of `eyelet_relay::Flow`.
    pub state_idle_timeout: Duration,
    /// The time that a body may.
    pub body_timeout: Duration,
    /// The time that a request may wait for its response.
    pub upstream_timeout: Duration,
    /// The time for which a flow of QUIC may move no datagram.
    pub quic_idle_timeout: Duration,
    /// True if idle connections are ended for new ones when memory is short.
    pub shed_idle: bool,
    /// The time for which a drain waits for busy connections.
    pub drain_timeout: Duration,
    /// Connections allowed at once: the least of configuration, memory and descriptors.
    pub connections_max: usize,
    /// Descriptors that connections may hold.
    pub descriptors_max: usize,
    /// True if somebody may ask for a list of connections.
    pub may_list: bool,
}

/// An order of the process to its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Serve by the configuration that the process was started with.
    Serve,
    /// Serve by the newest one, which has this generation: the program gives it.
    Reload(u64),
    /// Accept nothing yet: the process that this one replaces still serves.
    Hold,
    /// Leave: the process that replaces this one accepts from now on and gets the connections. The
    /// program has the worker's [`Departure`](crate::departure::Departure).
    HandOver,
    /// The process that replaces this one needs it no more: let the listening sockets go. What is
    /// left goes on until it ends.
    Settled,
    /// End: accept no more, and let the connections end.
    Drain,
}

/// All orders so far. Each part only grows, so no order hides another one from a worker that has
/// not looked in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    may_serve: bool,
    /// The newest configuration's generation, if there was a reload.
    generation: u64,
    /// The number of times that the workers were to leave. They come back where the other process
    /// dies.
    departures: u32,
    /// The departure that has settled: the last of all.
    settled: u32,
    drains: bool,
}

impl Orders {
    /// Adds an order.
    pub fn add(&mut self, order: Order) {
        match order {
            Order::Hold => {}
            Order::Serve => self.may_serve = true,
            Order::Reload(generation) => self.generation = self.generation.max(generation),
            Order::HandOver => self.departures += 1,
            Order::Settled => self.settled = self.departures,
            Order::Drain => self.drains = true,
        }
    }

    /// The first order that a worker has not `obeyed`, and notes that it has. Nothing but a drain
    /// comes before the order to serve.
    fn next(&self, obeyed: &mut Self) -> Option<Order> {
        if self.drains && !obeyed.drains {
            obeyed.drains = true;
            return Some(Order::Drain);
        }
        if !self.may_serve {
            return None;
        }
        if !obeyed.may_serve {
            obeyed.may_serve = true;
            return Some(Order::Serve);
        }
        if obeyed.departures < self.departures {
            obeyed.departures = self.departures;
            return Some(Order::HandOver);
        }
        if obeyed.settled < self.settled {
            obeyed.settled = self.settled;
            return Some(Order::Settled);
        }
        if obeyed.generation < self.generation {
            obeyed.generation = self.generation;
            return Some(Order::Reload(self.generation));
        }
        None
    }
}

/// The orders to one worker, which obeys one after the other.
pub struct WorkerOrders {
    all: watch::Receiver<Orders>,
    obeyed: Orders,
}

impl WorkerOrders {
    /// The orders of a process.
    pub fn new(all: watch::Receiver<Orders>) -> Self {
        Self { all, obeyed: Orders::default() }
    }

    /// Waits for the next order. Without a sender the process is going.
    pub async fn next(&mut self) -> Order {
        loop {
            if let Some(order) = self.all.borrow_and_update().next(&mut self.obeyed) {
                return order;
            }
            if self.all.changed().await.is_err() {
                if std::mem::replace(&mut self.obeyed.drains, true) {
                    // It was told.
                    std::future::pending::<()>().await;
                }
                return Order::Drain;
            }
        }
    }
}

/// A listening socket of one worker.
pub struct ListenerSocket {
    /// Index of the listener in the configuration.
    pub listener: u16,
    /// The socket. The process has it too, for the next reload.
    pub socket: Arc<OwnedFd>,
    /// True if datagrams are read from it, and no connection is accepted.
    pub is_datagrams: bool,
    /// The kernel's count of dropped packets at the last look.
    drops: u32,
}

impl ListenerSocket {
    /// A listening socket. Another process may have had it before: what was dropped then is not
    /// counted again.
    pub fn new(listener: u16, socket: Arc<OwnedFd>) -> Self {
        let drops = socket::drops(&socket).unwrap_or(0);
        Self { listener, socket, is_datagrams: false, drops }
    }

    /// A listening UDP socket.
    pub fn of_datagrams(listener: u16, socket: Arc<OwnedFd>) -> Self {
        Self { is_datagrams: true, ..Self::new(listener, socket) }
    }

    /// Returns how many packets the kernel has dropped since the last look.
    pub fn take_drops(&mut self) -> u32 {
        let now = socket::drops(&self.socket).unwrap_or(self.drops);
        now.wrapping_sub(std::mem::replace(&mut self.drops, now))
    }
}

/// Changes of a reload to the event loop.
pub struct Update {
    /// Its bounds.
    pub settings: Settings,
    /// The sockets at which it listens from now on, those before included that stay.
    pub sockets: Vec<ListenerSocket>,
}

/// State that the workers of a process share.
#[derive(Debug)]
pub struct Process {
    /// Connections open now, in all workers.
    pub open: AtomicUsize,
    /// Memory that connections hold, in all workers.
    pub budget: Arc<Budget>,
    /// Descriptors that connections hold now, in all workers.
    pub descriptors: AtomicUsize,
    /// Most of them, by the newest settings that a worker follows.
    pub descriptors_max: AtomicUsize,
    /// The number of workers.
    pub workers: AtomicUsize,
    /// The tokens of handshakes.
    pub handshakes: HandshakeBuckets,
    /// The queues by which workers give datagrams to each other.
    pub inboxes: Inboxes,
    /// Flows of QUIC that no server has answered.
    pub unanswered: Arc<UnansweredFlows>,
}

impl Process {
    /// No connection yet.
    pub fn new(budget: Arc<Budget>) -> Self {
        let [open, descriptors, descriptors_max, workers] = [const { AtomicUsize::new(0) }; 4];
        let (handshakes, inboxes) = (HandshakeBuckets::default(), Inboxes::default());
        let unanswered = Arc::new(UnansweredFlows::new(&budget));
        Self {
            open,
            budget,
            descriptors,
            descriptors_max,
            workers,
            handshakes,
            inboxes,
            unanswered,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Returns what a worker obeys that looks now.
    fn obeyed(orders: &mut WorkerOrders) -> Vec<Order> {
        let mut obeyed = Vec::new();
        let task = &mut Context::from_waker(Waker::noop());
        while let Poll::Ready(order) = std::pin::pin!(orders.next()).poll(task) {
            obeyed.push(order);
        }
        obeyed
    }

    /// A reload behind the order to leave, or a second one, comes before the worker has looked.
    #[test]
    fn no_order_hides_another() {
        let (orders, all) = watch::channel(Orders::default());
        let mut worker = WorkerOrders::new(all);
        let order = |order| orders.send_modify(|orders: &mut Orders| orders.add(order));
        order(Order::Reload(1));
        assert!(obeyed(&mut worker).is_empty(), "it holds");
        order(Order::Serve);
        assert_eq!(obeyed(&mut worker), [Order::Serve, Order::Reload(1)]);
        [Order::HandOver, Order::Reload(3), Order::Reload(2)].into_iter().for_each(order);
        assert_eq!(obeyed(&mut worker), [Order::HandOver, Order::Reload(3)]);
        // The other process has died, and the next one serves for good.
        [Order::HandOver, Order::Settled, Order::Reload(4)].into_iter().for_each(order);
        assert_eq!(obeyed(&mut worker), [Order::HandOver, Order::Settled, Order::Reload(4)]);
        [Order::Drain, Order::Reload(5)].into_iter().for_each(order);
        assert_eq!(obeyed(&mut worker), [Order::Drain, Order::Reload(5)]);
        drop(orders);
        assert!(obeyed(&mut worker).is_empty(), "a drain is told once");
    }

    #[test]
    fn a_worker_without_a_process_drains() {
        let (orders, all) = watch::channel(Orders::default());
        let mut worker = WorkerOrders::new(all);
        drop(orders);
        assert_eq!(obeyed(&mut worker), [Order::Drain]);
    }
}
