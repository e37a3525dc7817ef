//! Reads the hello of one connection from the datagrams that its client sends first.

use eyelet_wire::hello::{Hello, Peek};
use eyelet_wire::quic::{
    CryptoStream, INITIAL_DATAGRAM_BYTES_MIN, InitialFrame, InitialFrames, LongHeader, LongKind,
    QuicFault, QuicHeader, QuicId, QuicVersion, packets,
};
use rustls::quic::Keys;

use crate::keys::initial_keys;
use crate::open::open;

/// Most datagrams in which a hello may come. A hello of 16 KiB takes 14 or more, and a client
/// repeats what is not acknowledged.
pub const DATAGRAMS_MAX: u16 = 64;

/// Bytes of memory of a version's keys, about. rustls boxes them, and does not tell their size.
const KEYS_BYTES: usize = 2 << 10;

/// Reads one connection's hello. Feed it every datagram of the client that begins with a long
/// header, until the client has the handshake's keys. That includes datagrams after the hello: a
/// server may have lost one that was read here, and must not get another hello.
pub struct InitialReader {
    pub(crate) version: QuicVersion,
    pub(crate) client_dcid: QuicId,
    /// The server's id, to which the client writes as soon as it knows it, with the same keys.
    pub(crate) server_id: Option<QuicId>,
    pub(crate) keys: Keys,
    /// Those of the other version that is read here, once the client uses it: its server may have
    /// chosen it for the rest of the handshake (RFC 9368 section 2.3, RFC 9369 section 4.1).
    pub(crate) other_keys: Option<Keys>,
    pub(crate) stream: CryptoStream,
    /// The stream behind the hello once the server has answered: a second one, for which it may
    /// have asked (RFC 8446 4.1.4).
    pub(crate) second: CryptoStream,
    pub(crate) hello_bytes: usize,
    /// The largest packet number that was opened.
    pub(crate) largest: Option<u64>,
    pub(crate) datagrams: u16,
    pub(crate) hello_is_read: bool,
}

/// The answer of [`InitialReader::feed`].
#[derive(Debug)]
// As large as the hello: it lives on the stack while the connection is decided.
#[allow(clippy::large_enum_variant)]
pub enum InitialRead {
    /// The hello is not complete.
    NeedMore,
    /// The hello. This answer comes once.
    Hello(Hello<'static>),
    /// The hello is known, and the datagram says nothing else.
    Known,
    /// The datagram must not be passed on. [`QuicFault::answer`] says if the connection ends.
    Fault(QuicFault),
}

impl InitialReader {
    /// A reader for the connection whose first datagram this is. It reads nothing yet: feed it the
    /// same datagram.
    ///
    /// The first packet may be 0-RTT that came before its Initial packet. `hello_bytes_max` counts
    /// the message with its four-byte header.
    pub fn new(datagram: &[u8], hello_bytes_max: usize) -> Result<Self, QuicFault> {
        let first = packets(datagram).next().ok_or(QuicFault::TruncatedPacket)??;
        let QuicHeader::Long(header) = first.header else { return Err(QuicFault::NotInitial) };
        match header.kind {
            LongKind::Initial { .. } | LongKind::ZeroRtt => {}
            LongKind::OtherVersion => return Err(QuicFault::OtherVersion(header.version)),
            _ => return Err(QuicFault::NotInitial),
        }
        let version = QuicVersion::from_number(header.version)
            .ok_or(QuicFault::OtherVersion(header.version))?;
        let client_dcid = QuicId::new(header.dcid).ok_or(QuicFault::TruncatedPacket)?;
        Self::of(version, client_dcid, hello_bytes_max).ok_or(QuicFault::NotAuthentic)
    }

    /// A reader of this connection that has read nothing.
    pub(crate) fn of(
        version: QuicVersion,
        client_dcid: QuicId,
        hello_bytes_max: usize,
    ) -> Option<Self> {
        let keys = initial_keys(version, &client_dcid)?;
        Some(Self {
            version,
            client_dcid,
            server_id: None,
            keys,
            other_keys: None,
            stream: CryptoStream::new(hello_bytes_max),
            second: CryptoStream::new(hello_bytes_max),
            hello_bytes: 0,
            largest: None,
            datagrams: 0,
            hello_is_read: false,
        })
    }

    /// Reads a datagram. Its bytes stay as they are, to be passed on.
    pub fn feed(&mut self, datagram: &[u8]) -> InitialRead {
        match self.read(datagram) {
            Ok(answer) => answer,
            Err(fault) => InitialRead::Fault(fault),
        }
    }

    /// Notes the source id of the server's packets. The client addresses its packets to it from now
    /// on, and may send a second hello.
    pub fn note_server_id(&mut self, id: &[u8]) {
        self.server_id = QuicId::new(id).or(self.server_id);
    }

    /// The version of the connection's packets.
    pub const fn version(&self) -> QuicVersion {
        self.version
    }

    /// The destination id of the client's first packet. All keys come from it.
    pub const fn client_dcid(&self) -> &QuicId {
        &self.client_dcid
    }

    /// Bytes of memory that it holds beside itself.
    pub const fn held_bytes(&self) -> usize {
        let keys = if self.other_keys.is_some() { 2 * KEYS_BYTES } else { KEYS_BYTES };
        keys + self.stream.held_bytes() + self.second.held_bytes()
    }

    fn read(&mut self, datagram: &[u8]) -> Result<InitialRead, QuicFault> {
        if !self.hello_is_read {
            if self.datagrams == DATAGRAMS_MAX {
                return Err(QuicFault::TooManyDatagrams);
            }
            self.datagrams += 1;
        }
        let mut scratch = Vec::new();
        let mut closed = None;
        for packet in packets(datagram) {
            let packet = packet?;
            let QuicHeader::Long(header) = packet.header else { continue };
            let version = match header.kind {
                LongKind::Initial { .. } => self.check_initial(&header, datagram)?,
                LongKind::ZeroRtt | LongKind::Handshake => continue,
                LongKind::OtherVersion => return Err(QuicFault::VersionChanged),
                LongKind::Retry | LongKind::VersionNegotiation => {
                    return Err(QuicFault::NotInitial);
                }
            };
            // The version that comes second has the numbers and the stream of the first.
            let largest = self.largest;
            let keys = self.keys_of(version).ok_or(QuicFault::NotAuthentic)?;
            let opened = open(&packet, &keys.remote, largest, &mut scratch)?;
            self.largest = self.largest.max(Some(opened.number));
            for frame in InitialFrames::new(opened.payload)? {
                match frame? {
                    InitialFrame::Crypto { at, bytes } => self.insert(at, bytes)?,
                    InitialFrame::Close { code } => closed = Some(code),
                    InitialFrame::Padding | InitialFrame::Ping | InitialFrame::Ack => {}
                }
            }
        }
        // Later its server is to know it, too.
        if let Some(code) = closed.filter(|_| !self.hello_is_read) {
            return Err(QuicFault::Closed { code });
        }
        match self.stream.peek() {
            Peek::Malformed(malformed) => Err(QuicFault::Hello(malformed)),
            Peek::Hello(first) if self.hello_is_read => match self.second.peek() {
                Peek::Malformed(malformed) => Err(QuicFault::Hello(malformed)),
                Peek::Hello(second) if second.sni() != first.sni() => Err(QuicFault::OtherName),
                Peek::Hello(_) | Peek::NeedMore { .. } | Peek::NotTls(_) => Ok(InitialRead::Known),
            },
            Peek::Hello(hello) => {
                self.hello_is_read = true;
                self.hello_bytes = hello.message().len();
                Ok(InitialRead::Hello(hello.into_owned()))
            }
            Peek::NeedMore { .. } | Peek::NotTls(_) => Ok(InitialRead::NeedMore),
        }
    }

    /// Takes the bytes of a CRYPTO frame: those behind the hello are a second one's.
    fn insert(&mut self, at: u64, bytes: &[u8]) -> Result<(), QuicFault> {
        if !self.hello_is_read || self.server_id.is_none() {
            return self.stream.insert(at, bytes);
        }
        let first_bytes = (self.hello_bytes as u64).saturating_sub(at).min(bytes.len() as u64);
        let (first, second) = bytes.split_at(first_bytes as usize);
        self.stream.insert(at, first)?;
        self.second.insert(at.saturating_sub(self.hello_bytes as u64), second)
    }

    /// The keys of this version, all from the same id. `None` never happens: the suite has them.
    fn keys_of(&mut self, version: QuicVersion) -> Option<&Keys> {
        if version == self.version {
            return Some(&self.keys);
        }
        if self.other_keys.is_none() {
            self.other_keys = initial_keys(version, &self.client_dcid);
        }
        self.other_keys.as_ref()
    }

    fn check_initial(
        &self,
        header: &LongHeader<'_>,
        datagram: &[u8],
    ) -> Result<QuicVersion, QuicFault> {
        let version = QuicVersion::from_number(header.version);
        // Before its server has answered a client knows of no other version.
        let is_known = |it: &QuicVersion| *it == self.version || self.server_id.is_some();
        let version = version.filter(is_known).ok_or(QuicFault::VersionChanged)?;
        let is_to_server = self.server_id.is_some_and(|id| header.dcid == id.as_bytes());
        if !is_to_server && header.dcid != self.client_dcid.as_bytes() {
            return Err(QuicFault::IdChanged);
        }
        if datagram.len() < INITIAL_DATAGRAM_BYTES_MIN {
            return Err(QuicFault::ShortDatagram { len: datagram.len() as u16 });
        }
        Ok(version)
    }
}
