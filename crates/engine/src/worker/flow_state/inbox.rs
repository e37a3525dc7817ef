//! Datagrams that one worker receives for a flow of another one: the kernel chooses a socket by the
//! client's address, so that a client that moves may come to another worker.

use std::sync::{Arc, OnceLock};

use eyelet_flows::peer::Peer;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Datagrams that wait for a worker: what a client sends at once after it has moved, 16 times. More
/// are dropped, as by a full queue of a router.
const INBOX_MAX: usize = 256;

/// Longest datagram that is handed on: what a network takes whole. So an inbox has 384 KB at most.
const HANDED_BYTES_MAX: usize = 1_500;

/// A datagram, and who sent it to whom.
#[derive(Debug)]
pub struct HandedDatagram {
    pub(crate) peer: Peer,
    /// The listener that it came to.
    pub(crate) listener: u16,
    pub(crate) bytes: Box<[u8]>,
    pub(crate) ecn: u8,
}

/// Where a worker's datagrams from others arrive. All of them share the bytes, and a channel holds
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
    pub(crate) fn hand_on(
        &self,
        from: u16,
        (peer, listener): (Peer, u16),
        bytes: &[u8],
        ecn: u8,
    ) -> bool {
        let senders = self.0.get().filter(|_| bytes.len() <= HANDED_BYTES_MAX);
        let Some(senders) = senders else { return false };
        let datagram = Arc::new(HandedDatagram { peer, listener, bytes: bytes.into(), ecn });
        let others = senders.iter().enumerate().filter(|(index, _)| *index != usize::from(from));
        others.fold(false, |had, (_, sender)| had | sender.try_send(datagram.clone()).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbox_is_bounded_in_datagrams_and_bytes() {
        let inboxes = Inboxes::default();
        let mut receivers = inboxes.open(2);
        let peer = Peer::new(([192, 0, 2, 1], 1).into(), ([192, 0, 2, 2], 443).into());
        let hand_on = |len| inboxes.hand_on(0, (peer, 0), &vec![0x40; len], 0);
        assert!(!hand_on(HANDED_BYTES_MAX + 1));
        let taken = (0..2 * INBOX_MAX).filter(|_| hand_on(HANDED_BYTES_MAX)).count();
        assert_eq!(taken, INBOX_MAX);
        let mut bytes = 0;
        while let Ok(handed) = receivers[1].try_recv() {
            bytes += handed.bytes.len();
        }
        assert_eq!(bytes, INBOX_MAX * HANDED_BYTES_MAX);
        assert!(receivers[0].try_recv().is_err(), "who has received it keeps it");
    }
}
