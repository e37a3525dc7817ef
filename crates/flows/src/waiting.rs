//! Datagrams that wait until their flow is decided.

/// Most datagrams of a flow that wait: a hello of 16 KiB in datagrams of 1,200 bytes, each with
/// half as much padding.
pub const WAITING_MAX: usize = 32;
/// Most bytes of them. Beside a hello of 16 KiB there is room for a window of early data.
pub const WAITING_BYTES_MAX: usize = 48 << 10;

/// A datagram that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    pub bytes: Box<[u8]>,
    /// The two ECN bits of its IP header.
    pub ecn: u8,
}

/// The datagrams of one flow, in the order in which they came.
#[derive(Debug, Default)]
pub struct WaitingDatagrams {
    datagrams: Vec<Datagram>,
    bytes: u32,
}

impl WaitingDatagrams {
    /// Adds a datagram. Returns false if there is no room: it is dropped, as a full queue of a
    /// router would.
    pub fn add(&mut self, bytes: &[u8], ecn: u8) -> bool {
        let sum = self.bytes() + bytes.len();
        if self.datagrams.len() >= WAITING_MAX || sum > WAITING_BYTES_MAX {
            return false;
        }
        self.bytes = sum as u32;
        self.datagrams.push(Datagram { bytes: bytes.into(), ecn });
        true
    }

    /// Drops a datagram.
    pub fn remove(&mut self, nth: usize) {
        if nth < self.datagrams.len() {
            self.bytes -= self.datagrams.remove(nth).bytes.len() as u32;
        }
    }

    /// The datagrams.
    pub fn datagrams(&self) -> &[Datagram] {
        &self.datagrams
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Memory that they hold.
    pub fn held_bytes(&self) -> usize {
        self.bytes() + self.datagrams.capacity() * size_of::<Datagram>()
    }

    /// The datagrams, to be sent.
    pub fn into_datagrams(self) -> Vec<Datagram> {
        self.datagrams
    }
}
