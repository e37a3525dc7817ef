//! The state of HTTP/2 that the worker keeps of a connection without streams. Fields that many
//! connections have are stored once.

use std::rc::Rc;

use eyelet_h2::{H2Role, ParkedAnswer, ParkedConnection};
use eyelet_memory::packed::{PackedBytes, SharedPieces};

use eyelet_downstream::client::clock::now_ms;

/// Answers frames of a parked connection's client that begin no stream, such as PING. `state` has
/// the numbers of the state. Returns how many bytes are answered.
pub fn answer_parked(state: &mut [u8], bytes: &[u8], out: &mut Vec<u8>) -> usize {
    let mut parked = ParkedConnection::new((&*state).into());
    let answer = parked.answer(bytes, now_ms(), out);
    state.copy_from_slice(parked.as_bytes());
    match answer {
        ParkedAnswer::NeedMore { consumed, .. }
        | ParkedAnswer::OutputFull { consumed }
        | ParkedAnswer::Wake { consumed } => consumed,
    }
}

/// Bytes for the client of a parked connection before close_notify: GOAWAY with its last stream.
/// `state` has the numbers of the state.
pub fn last_bytes(state: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    ParkedConnection::go_away(state, &mut frame);
    frame
}

/// Packs a state that another process has written. `None`: it is not that of a connection to a
/// client without open streams. Nothing here serves those after an import.
pub fn pack_state(state: &[u8], pieces: &Rc<SharedPieces>) -> Option<PackedBytes> {
    let parked = ParkedConnection::from_bytes(state).ok()?;
    let is_served = parked.role() == Some(H2Role::Server) && parked.streams() == 0;
    is_served.then(|| pack(&parked, pieces))
}

/// Packs a state: what other connections have too is stored once.
pub(super) fn pack(parked: &ParkedConnection, pieces: &Rc<SharedPieces>) -> PackedBytes {
    PackedBytes::pack(parked.as_bytes(), &parked.common_fields(), pieces)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use eyelet_h2::hpack::{HeaderField, HpackEncoder};
    use eyelet_h2::{H2Connection, H2Limits, H2Received, PARKED_FIXED_BYTES, PREFACE};
    use eyelet_memory::budget::Budget;

    use super::*;

    /// Frames without flags that are not named: SETTINGS and its acknowledgement.
    const GREETING: [u8; 18] = [0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 0, 0, 0, 0];

    /// The header blocks of a client's requests (`make_browser.py`).
    fn requests(client: &str) -> Vec<Vec<u8>> {
        let lines = include_str!("../../../h2/testdata/browser.txt").lines();
        let of_client = lines.filter_map(|line| line.strip_prefix(client)?.strip_prefix(' '));
        let byte = |hex: &[u8]| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap();
        of_client.map(|hex| hex.as_bytes().chunks(2).map(byte).collect()).collect()
    }

    /// The state of a connection after these requests, each of which got the response of an nginx.
    fn served(blocks: &[Vec<u8>]) -> ParkedConnection {
        let mut out = Vec::new();
        let mut h2 = H2Connection::server(H2Limits::default(), 0, &mut out);
        let mut input = [&PREFACE[..], &GREETING].concat();
        for (stream, block) in (1_u32..).step_by(2).zip(blocks) {
            input.extend_from_slice(&(block.len() as u32).to_be_bytes()[1..]);
            input.extend_from_slice(&[1, 5]);
            input.extend_from_slice(&stream.to_be_bytes());
            input.extend_from_slice(block);
            while let Ok(H2Received::Event { consumed, .. }) = h2.receive(&input, 0, &mut out) {
                input.drain(..consumed);
            }
            input.clear();
            let fields = [
                (":status", "200"),
                ("server", "nginx"),
                ("date", "Mon, 02 Nov 2026 10:00:00 GMT"),
                ("content-type", "text/html; charset=utf-8"),
                ("cache-control", "public, max-age=31536000"),
                ("vary", "accept-encoding"),
                ("strict-transport-security", "max-age=63072000; includeSubDomains"),
                ("x-content-type-options", "nosniff"),
            ];
            let fields =
                fields.map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
            h2.respond(stream, fields, true, &mut out).unwrap();
        }
        h2.export().unwrap()
    }

    /// Bytes of a parked connection that is not alone. Before, each had all of them.
    #[test]
    fn connections_of_one_client_share_their_fields() {
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let pieces = Rc::new(SharedPieces::new(&budget));
        let bytes = [("curl", 1), ("httpx", 1), ("go", 1), ("chromium", 1), ("chromium", 20)].map(
            |(client, count)| {
                let state = served(&requests(client)[..count]);
                let packed = [pack(&state, &pieces), pack(&state, &pieces)];
                for packed in &packed {
                    assert_eq!(packed.whole(), state.as_bytes());
                    assert!(packed.first().len() >= PARKED_FIXED_BYTES);
                }
                (client, count, state.as_bytes().len(), packed[1].held_bytes())
            },
        );
        assert_eq!(
            bytes,
            [
                ("curl", 1, 229, 120),
                ("httpx", 1, 255, 113),
                ("go", 1, 234, 112),
                ("chromium", 1, 666, 176),
                ("chromium", 20, 828, 274),
            ]
        );
        assert!(pieces.is_empty());
    }

    /// A secret is not shared, so that no other connection keeps it.
    #[test]
    fn secrets_are_not_shared() {
        let state = served(&requests("chromium"));
        let common: Vec<u8> = (state.common_fields().into_iter())
            .flat_map(|place| state.as_bytes()[place].to_vec())
            .collect();
        // The cookie's value as the table has it, behind the name's index and its length.
        let cookie = HeaderField::new(b"cookie", b"session=7f3b2c1d9e8a4f6b8c0d2e4f6a8b0c1d");
        let mut encoder = HpackEncoder::new();
        encoder.begin(&mut Vec::new());
        let mut block = Vec::new();
        encoder.encode(cookie, &mut block);
        let cookie = &block[2..];
        assert!(state.as_bytes().windows(cookie.len()).any(|bytes| bytes == cookie));
        assert!(!common.windows(cookie.len()).any(|bytes| bytes == cookie));
    }

    /// A state of another process is packed like one's own, and is answered in place.
    #[test]
    fn a_state_of_another_process_is_packed() {
        let pieces = Rc::new(SharedPieces::new(&Arc::new(Budget::new(64 << 20, 0))));
        let state = served(&requests("curl"));
        let mut packed = pack_state(state.as_bytes(), &pieces).unwrap();
        assert_eq!(packed.held_bytes(), pack(&state, &pieces).held_bytes());
        let (ping, mut out) = ([0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8], Vec::new());
        assert_eq!(answer_parked(packed.first_mut(), &ping, &mut out), ping.len());
        assert_eq!(out[..5], [0, 0, 8, 6, 1]);
        assert_eq!(last_bytes(packed.first())[9..13], [0, 0, 0, 1]);
        assert!(packed.whole() != state.as_bytes(), "the PING is counted");
        assert!(pack_state(&packed.whole()[1..], &pieces).is_none());
        let open = include_bytes!("../../../../fuzz/seeds/h2_import/streams");
        let (len, open) = open.split_first_chunk().unwrap();
        let open = &open[..u16::from_be_bytes(*len).into()];
        assert_eq!(ParkedConnection::from_bytes(open).map(|parked| parked.streams()), Ok(3));
        assert!(pack_state(open, &pieces).is_none(), "it has open streams");
    }
}
