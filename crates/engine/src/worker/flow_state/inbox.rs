//! Datagrams that one worker receives for a flow of another one: the kernel chooses a socket by the
//! client's address, so that a client that moves may come to another worker.

use std::sync::{Arc, OnceLock};

use eyelet_flows::peer::Peer;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Datagrams that wait for a worker: what a client sends at once after it has moved, 16 times. More
/// are dropped, as by a full queue of a router.
const INBOX_MAX: usize = 256;

/// Longest datagram that is handed on: what a network takes whole. So an inbox has 384 KB at most.
pub(crate) const HANDED_BYTES_MAX: usize = 1_500;

/// A datagram, and who sent it to whom.
#[derive(Debug)]
pub struct HandedDatagram {
    pub(crate) peer: Peer,
    /// The listener that it came to.
    pub(crate) listener: u16,
    pub(crate) bytes: Box<[u8]>,
    pub(crate) ecn: u8,
}

/// The queue of a worker's datagrams from others. All of them share the bytes, and a channel holds
/// room for 32 of its values from the start: they are small.
pub type Inbox = Receiver<Arc<HandedDatagram>>;

/// The ways to all workers of a process.
#[derive(Debug, Default)]
pub struct Inboxes(OnceLock<Vec<Sender<Arc<HandedDatagram>>>>);

impl Inboxes {
    /// Makes the inboxes of so many workers, once.
    pub fn open(&self, workers: usize) -> Vec<Inbox> {
        let (senders, inboxes) = (0..workers).map(|_| channel(INBOX_MAX)).unzip();
        // A second call would be a mistake of the caller; the first workers keep theirs.
        let _ = self.0.set(senders);
        inboxes
    }

    /// Gives a datagram to the other workers. Returns whether one has room for it.
    pub(crate) fn hand_on(&self, from: u16, datagram: HandedDatagram) -> bool {
        let Some(senders) = self.0.get() else { return false };
        let datagram = Arc::new(datagram);
        let others = senders.iter().enumerate().filter(|(index, _)| *index != usize::from(from));
        others.fold(false, |had, (_, sender)| had | sender.try_send(datagram.clone()).is_ok())
    }
}
