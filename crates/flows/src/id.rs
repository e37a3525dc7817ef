//! Connection ids, and the parts of a packet's header by which its flow is found.

/// Longest connection id of QUIC version 1 and 2 (RFC 9000 section 17.2).
pub const ID_BYTES_MAX: usize = 20;
/// Shortest id that a client may choose for its first datagram (RFC 9000 section 7.2).
pub const FIRST_ID_BYTES_MIN: usize = 8;
/// Shortest id by which a flow is found whose client has moved. A stranger's packet would too often
/// begin with a shorter one.
pub const FOLLOWED_ID_BYTES_MIN: usize = 4;
/// Fewest bytes of a datagram that begins a flow (RFC 9000 section 14.1).
pub const FIRST_DATAGRAM_BYTES_MIN: usize = 1200;

/// A connection id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId {
    bytes: [u8; ID_BYTES_MAX],
    len: u8,
}

impl FlowId {
    /// The id of these bytes. `None`: no version that we know has so long a one.
    pub fn new(id: &[u8]) -> Option<Self> {
        let mut bytes = [0; ID_BYTES_MAX];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        Some(Self { bytes, len: id.len() as u8 })
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// The header of a client's datagram: that of its first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header<'a> {
    /// A long header with this destination id. `begins`: an Initial or a 0-RTT packet, or one that
    /// may be. `datagram_bytes`: the length of the whole datagram.
    Long { dcid: &'a [u8], begins: bool, datagram_bytes: usize },
    /// A short header: the bytes behind the first one, which begin with the destination id. Its
    /// length is known to the server only.
    Short(&'a [u8]),
}

impl Header<'_> {
    /// True if the datagram is addressed to this id.
    pub fn names(&self, id: &FlowId) -> bool {
        match self {
            Self::Long { dcid, .. } => *dcid == id.as_bytes(),
            Self::Short(rest) => rest.starts_with(id.as_bytes()),
        }
    }
}
