//! Inspects the first flights of a spliced connection. It finds out whether the server chooses TLS
//! compression, and whether a second hello has the first one's name. Sans-IO: bytes in, how many
//! may pass out.

use eyelet_wire::hello::{HelloReader, Peek, Sni};
use eyelet_wire::record::{HANDSHAKE, HEADER_LEN, RecordHeader};
use eyelet_wire::server_hello::{ServerHelloReader, ServerPeek};

use eyelet_telemetry::reason::{Reason, SecondHello, ServerFault};

pub mod export;
#[cfg(any(test, fuzzing))]
pub mod properties;

use export::InspectionV1;

/// A change_cipher_spec that changes nothing.
const COMPATIBILITY_RECORD: [u8; 6] = [20, 3, 3, 0, 1, 1];

/// The state of the inspection, besides the bytes that are held back: the position in the client's
/// records, and how far its second hello and the server's hello were read.
#[derive(Debug, Default)]
pub struct FlightInspection {
    borders: Borders,
    hello: Option<HelloReader>,
    server_hello: Option<ServerHelloReader>,
    /// The server has sent a HelloRetryRequest.
    is_retried: bool,
}

/// The position in a stream of TLS records: within a record, or how much of the next header has
/// arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Borders {
    left: usize,
    header: [u8; HEADER_LEN],
    header_len: usize,
}

/// The bytes of one side that may pass: of those held back and of the new ones.
#[derive(Debug, PartialEq, Eq)]
pub enum Pass {
    /// So many bytes may pass. The rest is held back until more has arrived.
    Some(usize),
    /// All may pass. The inspection of both sides is over.
    All,
    /// All may pass. The inspection of the server is over; the client may still send a second
    /// hello.
    Down,
    /// None may pass: the connection must be reset.
    Never(Reason),
}

impl FlightInspection {
    /// True if the state may be dropped: neither side is in the middle of anything.
    pub fn is_idle(&self) -> bool {
        let is_between = self.borders == Borders::default();
        is_between && self.hello.is_none() && self.server_hello.is_none() && !self.is_retried
    }

    /// Inspects the server's bytes; `held` is all that has not passed. With `forbid`, a server that
    /// chooses compression is not passed on. `note_chosen` is called if the server chooses it.
    pub fn server(&mut self, held: &[u8], forbid: bool, note_chosen: impl FnOnce()) -> Pass {
        let mut passed = 0;
        // An alert passes and does not end the inspection: some servers warn before their hello
        // that they do not know the name (RFC 6066 section 3). A HelloRetryRequest does not end it
        // either: the server's choice follows.
        let peek = loop {
            // After a HelloRetryRequest this record passes at once; it need not wait for the hello
            // (RFC 8446 D.4).
            if self.is_retried && held[passed..].starts_with(&COMPATIBILITY_RECORD) {
                passed += COMPATIBILITY_RECORD.len();
                self.server_hello = None;
                continue;
            }
            match self.server_hello.get_or_insert_default().feed(&held[passed..]) {
                ServerPeek::Alert { raw_len, .. } => passed += raw_len,
                ServerPeek::ServerHello(hello) if hello.is_hello_retry_request() => {
                    let is_here = passed + hello.raw_len <= held.len();
                    if !self.is_retried && !is_here {
                        return Pass::Some(passed);
                    }
                    // RFC 8446 section 4.1.4: the client must refuse a second request. One that
                    // does not would send a third hello.
                    if std::mem::replace(&mut self.is_retried, true) {
                        return Pass::Never(Reason::Server(ServerFault::ThirdHello));
                    }
                    passed += hello.raw_len;
                }
                peek => break peek,
            }
            self.server_hello = None;
        };
        match peek {
            ServerPeek::NeedMore { .. } => {
                if passed == held.len() {
                    self.server_hello = None;
                }
                Pass::Some(passed)
            }
            ServerPeek::ServerHello(hello) if hello.compression_method != 0 => {
                note_chosen();
                match forbid {
                    true => Pass::Never(Reason::Server(ServerFault::Compression)),
                    false => self.chosen(),
                }
            }
            ServerPeek::ServerHello(_) => self.chosen(),
            // Bytes that cannot be read may hide a compressing server. Without a rule against that,
            // the client judges them, and nothing is held back for the connection's life.
            ServerPeek::NotTls(_) if forbid => Pass::Never(Reason::Server(ServerFault::NotTls)),
            ServerPeek::Malformed(why) if forbid => {
                Pass::Never(Reason::Server(ServerFault::Malformed(why)))
            }
            // (The loop above has passed alerts.)
            ServerPeek::NotTls(_) | ServerPeek::Malformed(_) | ServerPeek::Alert { .. } => {
                Pass::All
            }
        }
    }

    /// The server has chosen. After a HelloRetryRequest the second hello may still be on its way.
    fn chosen(&self) -> Pass {
        if self.is_retried { Pass::Down } else { Pass::All }
    }

    /// Inspects what the client sent after its first hello; `held` is all that has not passed. A
    /// second hello passes whole, and only with the first one's name.
    pub fn client(&mut self, held: &[u8], sni: Option<&str>, hello_bytes_max: usize) -> Pass {
        let mut passed = 0;
        loop {
            let unread = &held[passed..];
            if let Some(reader) = &mut self.hello {
                return match second_hello(reader, unread, sni) {
                    Pass::Some(_) => Pass::Some(passed),
                    other => other,
                };
            }
            match self.borders.content_type(unread) {
                _ if unread.is_empty() => return Pass::Some(passed),
                Some(HANDSHAKE) => self.hello = Some(HelloReader::new(hello_bytes_max)),
                // The compatibility record, early data (RFC 8446 D.4, 4.2.10) or an alert. Anything
                // else no client sends; the server judges it.
                None | Some(_) => passed += self.borders.step(unread),
            }
        }
    }
}

fn second_hello(reader: &mut HelloReader, held: &[u8], sni: Option<&str>) -> Pass {
    match reader.feed(held) {
        Peek::NeedMore { .. } => Pass::Some(0),
        Peek::Hello(hello) => match hello.sni() {
            Sni::Name(name) if Some(&**name) == sni => Pass::All,
            Sni::Absent if sni.is_none() => Pass::All,
            Sni::Name(name) => never(SecondHello::Name((&**name).into())),
            Sni::Absent => never(SecondHello::Nameless),
            Sni::Malformed(why) => never(SecondHello::MalformedName(*why)),
        },
        Peek::Malformed(why) => never(SecondHello::Malformed(why)),
        Peek::NotTls(why) => never(SecondHello::NotTls(why)),
    }
}

fn never(why: SecondHello) -> Pass {
    Pass::Never(Reason::SecondHello(Box::new(why)))
}

/// The state as a form for another process, and back.
impl FlightInspection {
    /// Returns the state in its form for export.
    pub fn export(&self) -> InspectionV1 {
        let Borders { left, header, header_len } = self.borders;
        // A record's length has two bytes, and a header has five.
        let (left, header_len) = (left as u16, header_len as u8);
        InspectionV1 { left, header, header_len, is_retried: self.is_retried }
    }

    /// The state of such a form. `None` if no inspection stops so.
    pub fn import(form: &InspectionV1) -> Option<Self> {
        let InspectionV1 { left, header, header_len, is_retried } = *form;
        let (left, header_len) = (usize::from(left), usize::from(header_len));
        let is_within_one = left == 0 || header_len == 0;
        let begun = header.get(header_len..)?.iter().all(|byte| *byte == 0);
        let borders = Borders { left, header, header_len };
        let is_possible = is_within_one && begun && header_len < HEADER_LEN;
        is_possible.then(|| Self { borders, is_retried, ..Self::default() })
    }
}

impl Borders {
    /// The type of the record that `unread` starts; `None` within a record or its header.
    fn content_type(&self, unread: &[u8]) -> Option<u8> {
        (self.left == 0 && self.header_len == 0).then(|| unread.first().copied()).flatten()
    }

    /// Advances to the end of a header, of a record, or of `unread`. Returns by how much.
    fn step(&mut self, unread: &[u8]) -> usize {
        if self.left > 0 {
            let step = self.left.min(unread.len());
            self.left -= step;
            return step;
        }
        let step = (HEADER_LEN - self.header_len).min(unread.len());
        self.header[self.header_len..self.header_len + step].copy_from_slice(&unread[..step]);
        self.header_len += step;
        if self.header_len == HEADER_LEN {
            self.left = usize::from(RecordHeader::from_bytes(self.header).len);
            (self.header, self.header_len) = ([0; HEADER_LEN], 0);
        }
        step
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    use crate::testing::client_hello;

    const BYTES_MAX: usize = 65_536;

    /// Returns the bytes of `flight` that pass when it arrives in pieces of `piece` bytes, and the
    /// last [`Pass`].
    fn client(flight: &[u8], piece: usize, sni: Option<&str>) -> (usize, Pass) {
        let mut watch = FlightInspection::default();
        let (mut held, mut passed) = (Vec::new(), 0);
        for bytes in flight.chunks(piece) {
            held.extend_from_slice(bytes);
            match watch.client(&held, sni, BYTES_MAX) {
                Pass::Some(some) => {
                    held.drain(..some);
                    passed += some;
                }
                other => return (passed, other),
            }
        }
        (passed, Pass::Some(held.len()))
    }

    #[test]
    fn a_second_hello_passes_only_with_the_name_of_the_first() {
        let ccs = [20, 3, 3, 0, 1, 1];
        let early = [&[23, 3, 3, 0, 30][..], &[7; 30]].concat();
        let hello = client_hello(Some("a.example"));
        let nameless = client_hello(None);
        let other_name = || never(SecondHello::Name("a.example".into()));
        for piece in [1, 2, 3, 5, 7, 64, 4096] {
            for before in [vec![], ccs.to_vec(), [&early[..], &ccs, &early].concat()] {
                let flight = [&before[..], &hello].concat();
                let passed = before.len();
                let whole = piece >= flight.len();
                let expect = |last| (if whole { 0 } else { passed }, last);
                assert_eq!(client(&flight, piece, Some("a.example")), expect(Pass::All));
                assert_eq!(client(&flight, piece, Some("b.example")), expect(other_name()));
                assert_eq!(client(&flight, piece, None), expect(other_name()));
                let flight = [&before[..], &nameless].concat();
                assert_eq!(client(&flight, piece, None), expect_of(&flight, piece, passed));
                assert_eq!(
                    client(&flight, piece, Some("a.example")).1,
                    never(SecondHello::Nameless)
                );
            }
            // An alert that a server may ignore does not end the inspection.
            let alert = [21, 3, 3, 0, 2, 1, 90];
            let (_, last) = client(&[&alert[..], &hello].concat(), piece, Some("b.example"));
            assert_eq!(last, other_name());
        }
    }

    fn expect_of(flight: &[u8], piece: usize, passed: usize) -> (usize, Pass) {
        (if piece >= flight.len() { 0 } else { passed }, Pass::All)
    }

    fn server_hello(compression: u8, retry: bool) -> Vec<u8> {
        let random =
            if retry { eyelet_wire::server_hello::HELLO_RETRY_REQUEST_RANDOM } else { [9; 32] };
        let versions: &[u8] = if retry { &[0, 6, 0, 43, 0, 2, 3, 4] } else { &[] };
        let body = [&[3, 3][..], &random, &[0, 0xc0, 0x2f, compression], versions].concat();
        let message = [&[2, 0, 0, body.len() as u8][..], &body].concat();
        [&[22, 3, 3, 0, message.len() as u8][..], &message].concat()
    }

    #[test]
    fn what_a_server_chooses_is_seen_before_it_passes() {
        for piece in [1, 3, 1000] {
            let server = |flight: &[u8], forbid| {
                let mut watch = FlightInspection::default();
                let (mut chosen, mut passed, mut end) = (false, 0, 0);
                loop {
                    end = (end + piece).min(flight.len());
                    match watch.server(&flight[passed..end], forbid, || chosen = true) {
                        Pass::Some(some) => passed += some,
                        last => return (last, chosen),
                    }
                    if end == flight.len() {
                        return (Pass::Some(passed), chosen);
                    }
                }
            };
            let never = || Pass::Never(Reason::Server(ServerFault::Compression));
            assert_eq!(server(&server_hello(0, false), true), (Pass::All, false));
            assert_eq!(server(&server_hello(1, false), true), (never(), true));
            assert_eq!(server(&server_hello(1, false), false), (Pass::All, true));
            let retry = server_hello(0, true);
            assert_eq!(server(&retry, false), (Pass::Some(retry.len()), false));
            assert_eq!(server(b"HTTP/1.1 400", false), (Pass::All, false));
            assert!(matches!(server(b"HTTP/1.1 400", true), (Pass::Never(_), false)));
            let warning = [21, 3, 3, 0, 2, 1, 112];
            let warned = |chosen| [&warning[..], &warning, &server_hello(chosen, false)].concat();
            assert_eq!(server(&warning, true), (Pass::Some(7), false));
            assert_eq!(server(&warned(0), true), (Pass::All, false));
            assert_eq!(server(&warned(1), true), (never(), true));
            let with = |then: &[u8]| [&warning[..], &retry, &[20, 3, 3, 0, 1, 1], then].concat();
            assert_eq!(server(&with(&[]), true), (Pass::Some(with(&[]).len()), false));
            assert_eq!(server(&with(&server_hello(0, false)), true), (Pass::Down, false));
            assert_eq!(server(&with(&server_hello(1, false)), true), (never(), true));
            let third = Pass::Never(Reason::Server(ServerFault::ThirdHello));
            assert_eq!(server(&with(&retry), false), (third, false));
        }
    }

    /// The fuzz target's properties, on flights that a fuzzer would not soon find.
    #[test]
    fn flights_are_inspected_however_they_are_cut() {
        let hello = client_hello(Some("a.example"));
        let early = [&[23, 3, 3, 0, 30][..], &[7; 30]].concat();
        let alert = [21, 3, 3, 0, 2, 1, 112];
        let mut noise = 1_u32;
        for length in 0..2000 {
            let random = (0..length % 97).map(|_| {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Mostly bytes that record headers have.
                [0, 1, 2, 3, 20, 21, 22, (noise >> 16) as u8][(noise >> 24) as usize % 8]
            });
            properties::flights_are_inspected(&random.collect::<Vec<u8>>());
        }
        for cuts in [&[1][..], &[2, 5], &[7], &[100, 1], &[255]] {
            for before in [&[][..], &early, &alert, &[20, 3, 3, 0, 1, 1], &[20, 3, 3, 0, 0]] {
                let flight = [before, &hello].concat();
                for sni in [None, Some("a.example"), Some("host.test")] {
                    properties::client_is_inspected(&flight, cuts, sni);
                    properties::client_is_inspected(&flight[..flight.len() - 1], cuts, sni);
                }
            }
            for (chosen, retry) in [(0, false), (1, false), (0, true)] {
                for before in [&[][..], &alert, &[alert, alert].concat(), &[20, 3, 3, 0, 1, 1]] {
                    let again = server_hello(chosen, false);
                    let behind = if retry { &again[..] } else { &[] };
                    let flight = [before, &server_hello(chosen, retry), behind].concat();
                    for forbid in [false, true] {
                        properties::server_is_inspected(&flight, cuts, forbid);
                        properties::server_is_inspected(&flight[..flight.len() - 1], cuts, forbid);
                    }
                }
            }
        }
    }
}
