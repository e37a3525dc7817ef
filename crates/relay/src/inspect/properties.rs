//! Properties of the inspection of first flights, for any bytes and any cuts. The fuzz target
//! `watch` and the tests beside it call the same functions.

// A broken property is a finding of the test or the fuzz target that asked for it.
#![allow(clippy::panic)]

use eyelet_wire::hello::{HelloReader, Peek, Sni};
use eyelet_wire::server_hello::{ServerHelloReader, ServerPeek};

use crate::inspect::{FlightInspection, Pass};

/// Most bytes of a second hello here.
const HELLO_BYTES_MAX: usize = 65_536;

/// The result for a flight: how much passed before the last [`Pass`], and that value.
type Became = (usize, Pass);

/// Feeds a flight in pieces as a connection does: bytes that may not pass are held back.
fn feed(
    flight: &[u8],
    sizes: impl Iterator<Item = usize>,
    mut look: impl FnMut(&[u8]) -> Pass,
) -> Became {
    let (mut passed, mut end) = (0, 0);
    for size in sizes {
        end = (end + size).min(flight.len());
        match look(&flight[passed..end]) {
            Pass::Some(some) => {
                assert!(some <= end - passed, "more passes than is there");
                passed += some;
            }
            other => return (passed, other),
        }
        if end == flight.len() {
            break;
        }
    }
    (passed, Pass::Some(0))
}

fn sizes(cuts: &[u8]) -> impl Iterator<Item = usize> + '_ {
    cuts.iter().cycle().map(|cut| usize::from(*cut).max(1))
}

/// A client's flight after its first hello. Cuts do not change the result. Nothing of the first
/// handshake record passes unless it begins a hello with the first one's name.
pub fn client_is_inspected(flight: &[u8], cuts: &[u8], sni: Option<&str>) {
    let mut whole = FlightInspection::default();
    let mut look = |held: &[u8]| whole.client(held, sni, HELLO_BYTES_MAX);
    let expected = feed(flight, [flight.len()].into_iter(), &mut look);
    let mut in_pieces = FlightInspection::default();
    let cut = if cuts.is_empty() { &[1][..] } else { cuts };
    let became = feed(flight, sizes(cut), |held| in_pieces.client(held, sni, HELLO_BYTES_MAX));
    let hello_at = first_handshake_record(flight);
    match (&became.1, hello_at) {
        (Pass::Some(_), _) => assert_eq!(became, expected, "cuts matter"),
        (last, Some(at)) => {
            assert_eq!(*last, expected.1, "cuts matter");
            assert!(became.0 <= at, "{} passed, the hello begins at {at}", became.0);
            assert_eq!(*last == Pass::All, is_for(&flight[at..], sni));
        }
        (last, None) => panic!("{last:?} without a handshake record"),
    }
}

/// Returns the place of the first handshake record, found by code of its own.
fn first_handshake_record(flight: &[u8]) -> Option<usize> {
    let mut at = 0;
    while *flight.get(at)? != 22 {
        let [high, low] = [*flight.get(at + 3)?, *flight.get(at + 4)?];
        at += 5 + usize::from(u16::from_be_bytes([high, low]));
    }
    Some(at)
}

fn is_for(raw: &[u8], sni: Option<&str>) -> bool {
    match HelloReader::new(HELLO_BYTES_MAX).feed(raw) {
        Peek::Hello(hello) => match hello.sni() {
            Sni::Name(name) => sni == Some(&**name),
            Sni::Absent => sni.is_none(),
            Sni::Malformed(_) => false,
        },
        _ => false,
    }
}

/// A server's first flight. Cuts do not change the result. With `forbid` nothing passes of a hello
/// that chose compression or cannot be read.
pub fn server_is_inspected(flight: &[u8], cuts: &[u8], forbid: bool) {
    let mut chosen = [false; 2];
    let mut whole = FlightInspection::default();
    let look = |held: &[u8]| whole.server(held, forbid, || chosen[0] = true);
    let expected = feed(flight, [flight.len()].into_iter(), look);
    let mut in_pieces = FlightInspection::default();
    let cut = if cuts.is_empty() { &[1][..] } else { cuts };
    let look = |held: &[u8]| in_pieces.server(held, forbid, || chosen[1] = true);
    let became = feed(flight, sizes(cut), look);
    assert_eq!(became.1, expected.1, "cuts matter");
    assert_eq!(chosen[0], chosen[1], "cuts matter");
    let (mut at, mut is_retried) = (0, false);
    let (may_pass, chose) = loop {
        if is_retried && flight[at..].starts_with(&[20, 3, 3, 0, 1, 1]) {
            at += 6;
            continue;
        }
        match ServerHelloReader::new().feed(&flight[at..]) {
            ServerPeek::Alert { raw_len, .. } => at += raw_len,
            ServerPeek::ServerHello(hello) if hello.is_hello_retry_request() => {
                if std::mem::replace(&mut is_retried, true) {
                    break (false, false);
                }
                if at + hello.raw_len > flight.len() {
                    assert_eq!(became, (at, Pass::Some(0)));
                    return;
                }
                at += hello.raw_len;
            }
            ServerPeek::ServerHello(hello) => {
                break (hello.compression_method == 0 || !forbid, hello.compression_method != 0);
            }
            ServerPeek::NotTls(_) | ServerPeek::Malformed(_) => break (!forbid, false),
            ServerPeek::NeedMore { .. } => {
                assert_eq!(became, (at, Pass::Some(0)));
                return;
            }
        }
    };
    assert!(became.0 <= at, "only alerts and one request pass before the hello");
    assert_eq!(matches!(became.1, Pass::All | Pass::Down), may_pass);
    assert_eq!(chosen[0], chose);
}

/// Both properties, from a fuzzer's bytes.
pub fn flights_are_inspected(data: &[u8]) {
    let Some((&[how, cuts @ ..], flight)) = data.split_first_chunk::<8>() else { return };
    let sni = [None, Some("host.test"), Some("a.example")][usize::from(how >> 1) % 3];
    match how & 1 {
        0 => client_is_inspected(flight, &cuts, sni),
        _ => server_is_inspected(flight, &cuts, how & 2 != 0),
    }
}
