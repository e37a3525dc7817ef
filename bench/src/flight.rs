//! The first bytes of a TLS 1.3 connection in each direction, well-formed and without cryptography,
//! as a splicing server sees them.

use std::net::SocketAddrV4;

use eyelet_wire::record::PLAINTEXT_BYTES_MAX;

/// A robot's first bytes, and in how many writes they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// 250 bytes, one write.
    Small,
    /// 1.8 kB, as from a browser with X25519MLKEM768, split at the end of the first segment.
    PostQuantum,
    /// The small one in three writes with pauses.
    ThreeWrites,
}

impl Shape {
    /// All shapes, in the order of measuring.
    pub const ALL: [Self; 3] = [Self::Small, Self::PostQuantum, Self::ThreeWrites];

    /// The name for the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "hello of 250 B",
            Self::PostQuantum => "hello of 1.8 kB in 2 writes",
            Self::ThreeWrites => "hello of 250 B in 3 writes",
        }
    }

    /// The hello for a name, split into its writes.
    pub fn writes(self, name: &str) -> Vec<Vec<u8>> {
        let hello = client_hello(name, self == Self::PostQuantum);
        let size = match self {
            Self::Small => hello.len(),
            Self::PostQuantum => FIRST_SEGMENT,
            Self::ThreeWrites => hello.len().div_ceil(3),
        };
        hello.chunks(size).map(<[u8]>::to_vec).collect()
    }
}

/// A TLS record with a ClientHello for `name`, padded (RFC 7685) to the shape's size.
fn client_hello(name: &str, post_quantum: bool) -> Vec<u8> {
    let x25519 = [word(0x001d), sized(&[0x5a; 32])].concat();
    let mlkem = [word(0x11ec), sized(&[0xa5; MLKEM_SHARE])].concat();
    let (groups, shares, size) = match post_quantum {
        true => (vec![0x11, 0xec, 0, 0x1d], [mlkem, x25519].concat(), POST_QUANTUM_BYTES),
        false => (vec![0, 0x1d, 0, 0x17], x25519, SMALL_BYTES),
    };
    let host = [vec![0], sized(name.as_bytes())].concat();
    let mut extensions = [
        extension(0, &sized(&host)),
        extension(10, &sized(&groups)),
        extension(13, &sized(&[4, 3, 8, 4, 4, 1])),
        extension(16, &sized(b"\x02h2\x08http/1.1")),
        extension(43, &[4, 3, 4, 3, 3]),
        extension(45, &[1, 1]),
        extension(51, &sized(&shares)),
    ]
    .concat();
    // Record and handshake headers 9, version 2, random 32, session id 33, suites 8, compression 2,
    // the extensions' length 2, and the padding's own header 4.
    let padding = size.saturating_sub(9 + 2 + 32 + 33 + 8 + 2 + 2 + 4 + extensions.len());
    extensions.extend(extension(21, &vec![0; padding]));
    let random: Vec<u8> = name.bytes().cycle().take(32).collect();
    let body = [
        word(0x0303),
        random,
        [vec![32], SESSION.to_vec()].concat(),
        sized(&[0x13, 1, 0x13, 2, 0xc0, 0x2b]),
        vec![1, 0],
        sized(&extensions),
    ]
    .concat();
    record(22, 0x0301, &handshake(1, &body))
}

/// True if a connection begins with such a hello; `None` while too few bytes are here. Other
/// clients want a real handshake.
pub fn is_robots(first: &[u8]) -> Option<bool> {
    // Record and handshake headers 9, version 2, random 32, and the session id's length 1.
    first.get(44..44 + SESSION.len()).map(|session| session == SESSION)
}

/// The response of a TLS 1.2 origin: ServerHello, and `opaque_bytes` of handshake records.
pub fn server_flight_tls12(opaque_bytes: usize) -> Vec<u8> {
    let hello =
        [word(0x0303), vec![0x42; 32], vec![32], SESSION.to_vec(), vec![0xc0, 0x2b, 0], sized(&[])]
            .concat();
    let mut flight = record(22, 0x0303, &handshake(2, &hello));
    let filler = vec![0xe7; opaque_bytes];
    for part in filler.chunks(PLAINTEXT_BYTES_MAX) {
        flight.extend(record(22, 0x0303, part));
    }
    flight
}

/// The origin's response: ServerHello, ChangeCipherSpec, and `opaque_bytes` of records that look
/// encrypted.
pub fn server_flight(opaque_bytes: usize) -> Vec<u8> {
    let share = [word(0x001d), sized(&[0x3c; 32])].concat();
    let extensions = [extension(43, &word(0x0304)), extension(51, &share)].concat();
    let hello = [
        word(0x0303),
        vec![0x42; 32],
        [vec![32], SESSION.to_vec()].concat(),
        vec![0x13, 1, 0],
        sized(&extensions),
    ]
    .concat();
    let mut flight = record(22, 0x0303, &handshake(2, &hello));
    flight.extend(record(20, 0x0303, &[1]));
    let filler = vec![0xe7; opaque_bytes];
    for part in filler.chunks(PLAINTEXT_BYTES_MAX) {
        flight.extend(record(23, 0x0303, part));
    }
    flight
}

/// A PROXY v2 header of a client with this destination.
pub fn proxy_header(destination: SocketAddrV4) -> Vec<u8> {
    let from = [192, 0, 2, 7];
    [
        &b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..],
        &from,
        &destination.ip().octets(),
        &word(50_000),
        &word(destination.port()),
    ]
    .concat()
}

fn word(value: u16) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

/// The bytes, after their length in two bytes.
fn sized(bytes: &[u8]) -> Vec<u8> {
    [word(u16::try_from(bytes.len()).expect("below 64 KiB")), bytes.to_vec()].concat()
}

fn extension(code: u16, body: &[u8]) -> Vec<u8> {
    [word(code), sized(body)].concat()
}

fn handshake(kind: u8, body: &[u8]) -> Vec<u8> {
    [vec![kind, 0], sized(body)].concat()
}

fn record(kind: u8, version: u16, body: &[u8]) -> Vec<u8> {
    [vec![kind], word(version), sized(body)].concat()
}

/// The robots' session id. The origin recognizes them by it.
const SESSION: [u8; 32] = [0x77; 32];
const SMALL_BYTES: usize = 250;
const POST_QUANTUM_BYTES: usize = 1800;
/// About the payload of the first segment on Ethernet.
const FIRST_SEGMENT: usize = 1400;
/// X25519MLKEM768: an encapsulation key of 1184 bytes, then 32 of X25519.
const MLKEM_SHARE: usize = 1216;

#[cfg(test)]
mod tests {
    use super::*;
    use eyelet_wire::record::RecordHeader;

    #[test]
    fn hellos_have_their_size_and_rustls_reads_the_name() {
        for shape in Shape::ALL {
            let writes = shape.writes("host-7.bench.test");
            let hello = writes.concat();
            let size = if shape == Shape::PostQuantum { 1800 } else { 250 };
            assert_eq!(hello.len(), size, "{shape:?}");
            let count = [1, 2, 3][Shape::ALL.iter().position(|s| *s == shape).unwrap()];
            assert_eq!(writes.len(), count, "{shape:?}");
            assert_eq!(is_robots(&hello), Some(true));
            let mut acceptor = rustls::server::Acceptor::default();
            acceptor.read_tls(&mut &hello[..]).unwrap();
            let accepted = acceptor.accept().map_err(|(e, _)| e).unwrap().expect("a whole hello");
            assert_eq!(accepted.client_hello().server_name(), Some("host-7.bench.test"));
        }
    }

    #[test]
    fn the_servers_flight_is_whole_records() {
        let flight = server_flight(40_000);
        let (mut at, mut kinds) = (0, Vec::new());
        while at < flight.len() {
            kinds.push(flight[at]);
            at += RecordHeader::read(&flight[at..]).expect("a whole header").record_len();
        }
        assert_eq!((at, &kinds[..]), (flight.len(), &[22, 20, 23, 23, 23][..]));
    }
}
