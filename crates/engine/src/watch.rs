//! The first flights of a spliced connection, as they pass: whether the server chooses TLS
//! compression, and whether a second hello has the name of the first. Sans-IO: bytes in, how many
//! may pass out. It must not know sockets or rules.

use eyelet_wire::hello::{HelloReader, Peek, Sni};
use eyelet_wire::record::{HANDSHAKE, HEADER_LEN, RecordHeader};
use eyelet_wire::server_hello::{ServerHelloReader, ServerPeek};

use eyelet_telemetry::reason::{Reason, SecondHello, ServerFault};

/// A change_cipher_spec that changes nothing.
const COMPATIBILITY_RECORD: [u8; 6] = [20, 3, 3, 0, 1, 1];

/// What a flight that has begun needs beside the bytes that are held back: where the client's
/// records end, and how far its second hello, or the server's, was read.
#[derive(Debug, Default)]
pub struct Watch {
    borders: Borders,
    hello: Option<HelloReader>,
    server_hello: Option<ServerHelloReader>,
    /// The server has asked for a second hello.
    is_retried: bool,
}

/// Where a stream of TLS records is: within one, or how much of the next header has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Borders {
    left: usize,
    header: [u8; HEADER_LEN],
    header_len: usize,
}

/// What is to be done with the bytes of one side that are held back, new ones included.
#[derive(Debug, PartialEq, Eq)]
pub enum Pass {
    /// So many may pass, the rest is held back until more has come.
    Some(usize),
    /// All may pass, and nothing more of either side need be looked at.
    All,
    /// All may pass, and nothing more of the server need be looked at; but the client may say a
    /// second hello.
    Down,
    /// None may pass: the connection is to be reset.
    Never(Reason),
}

impl Watch {
    /// Whether nothing would be lost without it: no flight is in the middle of anything.
    pub fn is_idle(&self) -> bool {
        let is_between = self.borders == Borders::default();
        is_between && self.hello.is_none() && self.server_hello.is_none() && !self.is_retried
    }

    /// Looks at what the server has sent; `held` is all that has not passed. `forbid`: a server
    /// that chooses compression is not passed on. `note_chosen` is told where it does.
    pub fn server(&mut self, held: &[u8], forbid: bool, note_chosen: impl FnOnce()) -> Pass {
        let mut passed = 0;
        // Some servers warn before their hello, that they do not know the name (RFC 6066 section
        // 3), and go on: an alert is passed on and does not end the watch. Nor does a request for
        // a second hello: what the server then chooses comes behind it.
        let peek = loop {
            // Behind the request it is not held back until the hello comes (RFC 8446 D.4).
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
                    // RFC 8446 section 4.1.4: a second one is for the client to refuse. One that
                    // does not would say its hello a third time.
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
            // What cannot be read cannot be told to be harmless; without a rule that asks it is
            // the client's to refuse, and nothing is held for as long as the connection lives.
            ServerPeek::NotTls(_) if forbid => Pass::Never(Reason::Server(ServerFault::NotTls)),
            ServerPeek::Malformed(why) if forbid => {
                Pass::Never(Reason::Server(ServerFault::Malformed(why)))
            }
            // (An alert has passed above.)
            ServerPeek::NotTls(_) | ServerPeek::Malformed(_) | ServerPeek::Alert { .. } => {
                Pass::All
            }
        }
    }

    /// The server has chosen. Where it has asked for a second hello, that may still be on its way.
    fn chosen(&self) -> Pass {
        if self.is_retried { Pass::Down } else { Pass::All }
    }

    /// Looks at what the client has sent behind its first hello; `held` is all that has not
    /// passed. A second hello passes whole, and only with the name of the first.
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
                // The compatibility record, early data (RFC 8446 D.4, 4.2.10), an alert; and what
                // no client sends, which is the server's to judge.
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

impl Borders {
    /// The type of the record that begins with `unread`; `None` within one or its header.
    fn content_type(&self, unread: &[u8]) -> Option<u8> {
        (self.left == 0 && self.header_len == 0).then(|| unread.first().copied()).flatten()
    }

    /// Goes on to the end of a header, of a record, or of `unread`; by how much.
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

// By path: the fuzz targets' crate has this file as a module of its own.
#[cfg(test)]
#[path = "watch/properties.rs"]
mod properties;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    use eyelet_policy::sketch::HelloSketch;

    const BYTES_MAX: usize = 65_536;

    /// What passes of `flight` when it comes in pieces of `piece` bytes, and the last word.
    fn client(flight: &[u8], piece: usize, sni: Option<&str>) -> (usize, Pass) {
        let mut watch = Watch::default();
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
        let hello = HelloSketch::named("a.example").to_records();
        let nameless = HelloSketch { sni: None, ..HelloSketch::named("") }.to_records();
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
            // An alert that a server may overlook does not end the watch.
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
                let mut watch = Watch::default();
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

    /// What the fuzz target asserts, of flights that it would not soon come upon.
    #[test]
    fn flights_are_watched_however_they_are_cut() {
        let hello = HelloSketch::named("a.example").to_records();
        let early = [&[23, 3, 3, 0, 30][..], &[7; 30]].concat();
        let alert = [21, 3, 3, 0, 2, 1, 112];
        let mut noise = 1_u32;
        for length in 0..2000 {
            let random = (0..length % 97).map(|_| {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Mostly what is in the headers of records.
                [0, 1, 2, 3, 20, 21, 22, (noise >> 16) as u8][(noise >> 24) as usize % 8]
            });
            properties::flights_are_watched(&random.collect::<Vec<u8>>());
        }
        for cuts in [&[1][..], &[2, 5], &[7], &[100, 1], &[255]] {
            for before in [&[][..], &early, &alert, &[20, 3, 3, 0, 1, 1], &[20, 3, 3, 0, 0]] {
                let flight = [before, &hello].concat();
                for sni in [None, Some("a.example"), Some("host.test")] {
                    properties::client_is_watched(&flight, cuts, sni);
                    properties::client_is_watched(&flight[..flight.len() - 1], cuts, sni);
                }
            }
            for (chosen, retry) in [(0, false), (1, false), (0, true)] {
                for before in [&[][..], &alert, &[alert, alert].concat(), &[20, 3, 3, 0, 1, 1]] {
                    let again = server_hello(chosen, false);
                    let behind = if retry { &again[..] } else { &[] };
                    let flight = [before, &server_hello(chosen, retry), behind].concat();
                    for forbid in [false, true] {
                        properties::server_is_watched(&flight, cuts, forbid);
                        properties::server_is_watched(&flight[..flight.len() - 1], cuts, forbid);
                    }
                }
            }
        }
    }
}
