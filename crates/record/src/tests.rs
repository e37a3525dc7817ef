//! Transcripts between two sessions, and between a session and a forger who knows the peer's keys.
//! Every fault is compared exactly. tests/rustls_peer.rs has rustls as the peer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::fault::alert;
use crate::keys::{DirectionKey, Material, next_generation, records_max};
use crate::open::{content, tls12_aad};
use crate::session::Writing;
use crate::suite::{SECRET_BYTES, hash_len, key_len};
use crate::*;

mod any_records;
mod closing;
mod export;
mod floods;
mod key_updates;

const SUITES: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
const VERSIONS: [Version; 2] = [Version::Tls12, Version::Tls13];

const HELLO_REQUEST: [u8; 4] = [0, 0, 0, 0];
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
const KEY_UPDATE_REQUESTED: [u8; 5] = [24, 0, 0, 1, 1];

/// One end of a connection with its keys.
struct End {
    session: Session,
    keys: Keys,
}

impl End {
    fn new(role: Role, version: Version, suite: Suite, seq: u64) -> End {
        let (client, server) = ([0xc1; SECRET_BYTES], [0x5e; SECRET_BYTES]);
        let session = match version {
            Version::Tls13 => {
                let len = hash_len(suite);
                Session::tls13(role, suite, &client[..len], &server[..len], seq, seq)
            }
            Version::Tls12 => {
                let len = key_len(suite);
                let (rx, tx) =
                    if role == Role::Server { (client, server) } else { (server, client) };
                let (rx_iv, tx_iv) = (&rx[..12], &tx[..12]);
                Session::tls12(role, suite, &rx[..len], rx_iv, &tx[..len], tx_iv, seq, seq)
            }
        };
        End { session: session.unwrap(), keys: Keys::new() }
    }

    fn open(&mut self, mut record: Vec<u8>) -> Result<Opened, RecordFault> {
        self.session.open(&mut self.keys, &mut record)
    }

    /// The content of one whole record.
    fn read(&mut self, record: Vec<u8>) -> Result<Incoming, RecordFault> {
        let len = record.len();
        match self.open(record)? {
            Opened::Record { consumed, what } => {
                assert_eq!(consumed, len);
                Ok(what)
            }
            Opened::NeedMore { at_least } => panic!("needs {at_least} bytes, has {len}"),
        }
    }

    fn send(&mut self, payload: &[u8]) -> Result<Vec<u8>, RecordFault> {
        let mut slot = vec![0; SLOT_BYTES];
        let at = self.session.prefix_len();
        slot[at..at + payload.len()].copy_from_slice(payload);
        let len = self.session.seal(&mut self.keys, &mut slot, payload.len())?;
        slot.truncate(len);
        Ok(slot)
    }

    /// A record of any content type, which an honest peer would not send.
    fn send_as(&mut self, content_type: u8, message: &[u8]) -> Vec<u8> {
        if self.session.version == Version::Tls13 {
            return self.forge([message, &[content_type]].concat());
        }
        let mut record = vec![0; self.session.prefix_len()];
        record.extend_from_slice(message);
        record.resize(self.session.record_len(message.len()), 0);
        let fragment_len = u16::try_from(record.len() - HEADER_BYTES).unwrap();
        let [hi, lo] = fragment_len.to_be_bytes();
        record[..HEADER_BYTES].copy_from_slice(&[content_type, 3, 3, hi, lo]);
        let seq = self.session.tx.seq;
        let key = self.wake();
        let nonce = key.nonce(seq);
        let start = record.len() - message.len() - 16;
        record[HEADER_BYTES..start].copy_from_slice(&nonce[4..][..start - HEADER_BYTES]);
        let (plain, tag) = record[start..].split_at_mut(message.len());
        key.aead.seal(nonce, &tls12_aad(seq, content_type, message.len()), plain, tag).unwrap();
        self.session.tx.seq += 1;
        record
    }

    /// A TLS 1.3 record with exactly this TLSInnerPlaintext and a valid tag.
    fn forge(&mut self, inner: Vec<u8>) -> Vec<u8> {
        let [hi, lo] = u16::try_from(inner.len() + 16).unwrap().to_be_bytes();
        self.forge_under([content::APPLICATION_DATA, 3, 3, hi, lo], inner)
    }

    fn forge_under(&mut self, header: [u8; HEADER_BYTES], mut inner: Vec<u8>) -> Vec<u8> {
        let seq = self.session.tx.seq;
        let key = self.wake();
        let mut tag = [0; 16];
        key.aead.seal(key.nonce(seq), &header, &mut inner, &mut tag).unwrap();
        self.session.tx.seq += 1;
        [&header[..], &inner, &tag].concat()
    }

    fn wake(&mut self) -> &DirectionKey {
        let End { session, keys } = self;
        DirectionKey::wake(&mut keys.seal, session.suite, session.version, &session.tx).unwrap()
    }

    fn control(&mut self) -> Vec<u8> {
        let mut out = [0; CONTROL_BYTES_MAX];
        let len = self.session.seal_control(&mut self.keys, &mut out).unwrap();
        out[..len].to_vec()
    }

    fn alert(&mut self, description: u8) -> Vec<u8> {
        let mut out = [0; CONTROL_BYTES_MAX];
        let len = self.session.seal_alert(&mut self.keys, description, &mut out).unwrap();
        out[..len].to_vec()
    }
}

/// Our server session and its client.
fn pair(version: Version, suite: Suite) -> (End, End) {
    pair_at(version, suite, 0)
}

fn pair_at(version: Version, suite: Suite, seq: u64) -> (End, End) {
    (End::new(Role::Server, version, suite, seq), End::new(Role::Client, version, suite, seq))
}

fn each(mut test: impl FnMut(Version, Suite)) {
    VERSIONS.into_iter().for_each(|version| SUITES.into_iter().for_each(|s| test(version, s)));
}

/// A parked session: two directions of 48 secret + 8 sequence number = 112; 6 for a partial
/// handshake message (kind, length, four bytes); one byte each for suite, version, role, four
/// states and three flood counters = 10; together 128. The budget of a parked connection, 320
/// bytes, leaves the record layer 136.
#[test]
fn size_parked() {
    assert_eq!(size_of::<Session>(), 128);
    assert_eq!(size_of::<Option<Session>>(), 128);
}

/// The bytes of a connection that is awake on the stack: two directions of ring's key (544), the
/// tag that names the library (16 with alignment) and an iv (12).
#[test]
fn size_awake() {
    assert!(size_of::<Keys>() <= 2 * 592, "{}", size_of::<Keys>());
}

#[test]
fn debug_output_shows_no_secret() {
    let end = End::new(Role::Server, Version::Tls13, Suite::Aes128Gcm, 77);
    let text = format!("{:?} {:?}", end.session, end.keys);
    assert_eq!(
        text,
        "Session { role: Server, version: Tls13, suite: Aes128Gcm, read_closed: false, \
         write_closed: false, .. } Keys(..)"
    );
}

#[test]
fn a_drop_wipes_secrets() {
    let mut end = End::new(Role::Server, Version::Tls13, Suite::Aes256Gcm, 77);
    for direction in [&mut end.session.rx, &mut end.session.tx] {
        direction.wipe();
        assert_eq!((direction.secret, direction.seq), ([0; SECRET_BYTES], 0));
    }
}

#[test]
fn secrets_have_exactly_the_length_of_their_suite() {
    for suite in SUITES {
        for len in [0, 31, 32, 33, 47, 48, 49, 64] {
            let secret = vec![0; len];
            let made = Session::tls13(Role::Server, suite, &secret, &secret, 0, 0);
            assert_eq!(made.err(), (len != hash_len(suite)).then_some(RecordFault::KeyLength));
            for iv_len in [11, 12, 13] {
                let iv = vec![0; iv_len];
                let made = Session::tls12(Role::Server, suite, &secret, &iv, &secret, &iv, 0, 0);
                let fits = len == key_len(suite) && iv_len == 12;
                assert_eq!(made.err(), (!fits).then_some(RecordFault::KeyLength));
            }
        }
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// RFC 8448 section 3: secrets, keys, ivs and records of the simple 1-RTT handshake.
#[test]
fn rfc_8448_transcript() {
    let client = hex("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5");
    let server = hex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643");
    let session = Session::tls13(Role::Server, Suite::Aes128Gcm, &client, &server, 0, 1).unwrap();
    assert!(session.has_keys(
        (&hex("17422dda596ed5d9acd890e3c63f5051"), &hex("5b78923dee08579033e523d9")),
        (&hex("9f02283b6c9c07efc26bb9f2ac92e356"), &hex("cf782b88dd83549aadf1e984")),
    ));
    let mut end = End { session, keys: Keys::new() };
    let mut data =
        hex("17 03 03 00 43 a2 3f 70 54 b6 2c 94 d0 af fa fe 82 28 ba 55 cb ef ac ea 42 f9 14 aa
         66 bc ab 3f 2b 98 19 a8 a5 b4 6b 39 5b d5 4a 9a 20 44 1e 2b 62 97 4e 1f 5a 62 92 a2 97
         70 14 bd 1e 3d ea e6 3a ee bb 21 69 49 15 e4");
    let opened = end.session.open(&mut end.keys, &mut data).unwrap();
    assert_eq!(opened, Opened::Record { consumed: 72, what: Incoming::Data(5..55) });
    assert_eq!(data[5..55], (0..50).collect::<Vec<u8>>());
    let close = hex("17 03 03 00 13 c9 87 27 60 65 56 66 b7 4d 7f f1 15 3e fd 6d b6 d0 b0 e3");
    assert_eq!(end.read(close), Ok(Incoming::CloseNotify));
}

#[test]
fn data_of_every_size_both_ways() {
    each(|version, suite| {
        let (mut ours, mut peer) = pair(version, suite);
        for len in [1, 2, 15, 16, 17, 100, 1000, 16_383, 16_384] {
            let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
            for backwards in [false, true] {
                let (from, to) =
                    if backwards { (&mut ours, &mut peer) } else { (&mut peer, &mut ours) };
                let mut record = from.send(&payload).unwrap();
                assert_eq!(record.len(), from.session.record_len(len));
                let opened = to.session.open(&mut to.keys, &mut record).unwrap();
                let at = to.session.prefix_len();
                let what = Incoming::Data(at..at + len);
                assert_eq!(opened, Opened::Record { consumed: record.len(), what });
                assert_eq!(record[at..at + len], payload);
                to.keys.clear();
            }
        }
    });
}

#[test]
fn need_more_until_the_record_is_whole() {
    each(|version, suite| {
        let (mut ours, mut peer) = pair(version, suite);
        let record = peer.send(b"hello").unwrap();
        for len in 0..record.len() {
            let at_least = if len < HEADER_BYTES { HEADER_BYTES } else { record.len() };
            assert_eq!(ours.open(record[..len].to_vec()), Ok(Opened::NeedMore { at_least }));
        }
        let next = peer.send(b"again").unwrap();
        let consumed = record.len();
        match ours.open([record, next].concat()) {
            Ok(Opened::Record { consumed: read, what: Incoming::Data(_) }) => {
                assert_eq!(read, consumed);
            }
            other => panic!("{other:?}"),
        }
    });
}

/// Full slots side by side are contiguous on the wire, as a bulk sender needs them.
#[test]
fn full_slots_are_contiguous() {
    each(|version, suite| {
        let (mut ours, mut peer) = pair(version, suite);
        let slot_len = ours.session.record_len(PAYLOAD_BYTES_MAX);
        let mut slots = vec![6; 4 * slot_len];
        let mut keys = Keys::new();
        for slot in slots.chunks_mut(slot_len) {
            assert_eq!(ours.session.seal(&mut keys, slot, PAYLOAD_BYTES_MAX), Ok(slot_len));
        }
        for record in slots.chunks(slot_len) {
            let at = peer.session.prefix_len();
            let data = Incoming::Data(at..at + PAYLOAD_BYTES_MAX);
            assert_eq!(peer.read(record.to_vec()), Ok(data));
        }
    });
}

#[test]
fn a_slot_that_is_too_small_changes_nothing() {
    each(|version, suite| {
        let (mut ours, mut peer) = pair(version, suite);
        let mut keys = Keys::new();
        for len in 0..ours.session.record_len(5) {
            let sealed = ours.session.seal(&mut keys, &mut vec![0; len], 5);
            assert_eq!(sealed, Err(RecordFault::OutputTooSmall));
            if len < ours.session.record_len(2) {
                let sealed = ours.session.seal_alert(&mut keys, 0, &mut vec![0; len]);
                assert_eq!(sealed, Err(RecordFault::OutputTooSmall));
            }
        }
        let mut long = vec![0; SLOT_BYTES + 1];
        let sealed = ours.session.seal(&mut keys, &mut long, PAYLOAD_BYTES_MAX + 1);
        assert_eq!(sealed, Err(RecordFault::OutputTooSmall));
        assert_eq!(ours.session.seal(&mut keys, &mut [], 0), Ok(0));
        let record = ours.send(b"still").unwrap();
        assert!(matches!(peer.read(record), Ok(Incoming::Data(_))));
    });
}

/// Handshake, alert and record faults: content type, content, and the fault.
#[test]
fn messages_that_are_not_allowed() {
    use RecordFault::*;
    let both: &[(u8, &[u8], RecordFault)] = &[
        (content::HANDSHAKE, &HELLO_REQUEST, HandshakeType(0)),
        (content::HANDSHAKE, &[2, 0, 0, 0], HandshakeType(2)),
        (content::HANDSHAKE, &[4, 0, 0, 0], HandshakeType(4)),
        (content::HANDSHAKE, &[20], HandshakeType(20)),
        (content::HANDSHAKE, &[255, 1], HandshakeType(255)),
        (content::HANDSHAKE, &[], EmptyMessage),
        (content::ALERT, &[], EmptyMessage),
        (content::ALERT, &[1], AlertLength(1)),
        (content::ALERT, &[1, 0, 1], AlertLength(3)),
        (content::ALERT, &[1, 0, 1, 0], AlertLength(4)),
        (content::ALERT, &[0, 0], AlertLevel(0)),
        (content::ALERT, &[3, 10], AlertLevel(3)),
    ];
    let tls13: &[(u8, &[u8], RecordFault)] = &[
        (20, &[1], InnerType(20)),
        (24, &[1, 0, 0], InnerType(24)),
        (255, &[], InnerType(255)),
        (content::HANDSHAKE, &[1, 0, 0, 0], HandshakeType(1)),
        (content::HANDSHAKE, &[24, 0, 0, 0], KeyUpdateLength),
        (content::HANDSHAKE, &[24, 0, 0, 2, 0, 0], KeyUpdateLength),
        (content::HANDSHAKE, &[24, 1, 0, 1, 0], KeyUpdateLength),
        (content::HANDSHAKE, &[24, 0, 0, 1, 2], KeyUpdateRequest(2)),
        (content::HANDSHAKE, &[24, 0, 0, 1, 255], KeyUpdateRequest(255)),
        (content::HANDSHAKE, &[24, 0, 0, 1, 0, 24], KeyUpdateNotLast),
        (content::HANDSHAKE, &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0], KeyUpdateNotLast),
    ];
    let tls12: &[(u8, &[u8], RecordFault)] = &[
        (content::HANDSHAKE, &KEY_UPDATE, HandshakeType(24)),
        (content::HANDSHAKE, &[1, 1, 0, 0], HandshakeLength),
    ];
    each(|version, suite| {
        let own = if version == Version::Tls13 { tls13 } else { tls12 };
        for &(content_type, message, fault) in both.iter().chain(own) {
            let (mut ours, mut peer) = pair(version, suite);
            let record = peer.send_as(content_type, message);
            assert_eq!(ours.read(record), Err(fault), "{version:?} {content_type} {message:?}");
            assert_eq!(fault.whose(), Whose::Peer);
            after_the_fault(&mut ours, &mut peer, fault);
        }
    });
}

/// One alert that says what was wrong may be sealed, and nothing else.
fn after_the_fault(ours: &mut End, peer: &mut End, fault: RecordFault) {
    assert_eq!(ours.send(b"x"), Err(RecordFault::Closed));
    assert_eq!(ours.control(), []);
    let alert = ours.alert(fault.alert());
    assert_eq!(peer.read(alert), Ok(Incoming::PeerAlert(fault.alert())));
    assert_eq!(ours.alert(fault.alert()), []);
    let record = peer.send_as(content::APPLICATION_DATA, b"x");
    assert_eq!(ours.read(record), Err(RecordFault::Closed));
    assert!(ours.session.write_closed() && peer.session.write_closed());
    assert_eq!(peer.send(b"x"), Err(RecordFault::Closed));
}

/// Outer types and versions, which the header alone decides, before any decryption.
#[test]
fn headers_that_are_not_allowed() {
    let overflow = |len: usize| (len as u16).to_be_bytes();
    let [hi13, lo13] = overflow(PAYLOAD_BYTES_MAX + 257);
    let [hi12, lo12] = overflow(PAYLOAD_BYTES_MAX + 2049);
    let tls13: &[([u8; 5], RecordFault)] = &[
        ([20, 3, 3, 0, 1], RecordFault::RecordType(20)),
        ([21, 3, 3, 0, 2], RecordFault::RecordType(21)),
        ([22, 3, 3, 0, 30], RecordFault::RecordType(22)),
        ([24, 3, 3, 0, 30], RecordFault::RecordType(24)),
        ([b'G', b'E', b'T', b' ', b'/'], RecordFault::RecordType(b'G')),
        ([23, 3, 3, hi13, lo13], RecordFault::RecordOverflow),
        ([23, 3, 3, 255, 255], RecordFault::RecordOverflow),
    ];
    let tls12: &[([u8; 5], RecordFault)] = &[
        ([20, 3, 3, 0, 1], RecordFault::RecordType(20)),
        ([24, 3, 3, 0, 30], RecordFault::RecordType(24)),
        ([0, 3, 3, 0, 30], RecordFault::RecordType(0)),
        ([23, 3, 1, 0, 30], RecordFault::RecordVersion(0x0301)),
        ([23, 3, 4, 0, 30], RecordFault::RecordVersion(0x0304)),
        ([22, 3, 3, hi12, lo12], RecordFault::RecordOverflow),
    ];
    each(|version, suite| {
        let table = if version == Version::Tls13 { tls13 } else { tls12 };
        for &(header, fault) in table {
            let (mut ours, mut peer) = pair(version, suite);
            assert_eq!(ours.open(header.to_vec()), Err(fault));
            after_the_fault(&mut ours, &mut peer, fault);
        }
        let longest = if version == Version::Tls13 { 256 } else { 2048 } + PAYLOAD_BYTES_MAX;
        let [hi, lo] = overflow(longest);
        let at_least = HEADER_BYTES + longest;
        assert!(at_least <= RECORD_BYTES_MAX);
        let opened = pair(version, suite).0.open(vec![23, 3, 3, hi, lo]);
        assert_eq!(opened, Ok(Opened::NeedMore { at_least }));
    });
}

/// A record too short for nonce and tag cannot be authentic.
#[test]
fn records_too_short() {
    each(|version, suite| {
        let overhead = pair(version, suite).0.session.record_len(0) - HEADER_BYTES;
        let shortest = if version == Version::Tls13 { overhead - 1 } else { overhead };
        for len in 0..=shortest {
            let (mut ours, _) = pair(version, suite);
            let record = [&[23, 3, 3, 0, len as u8][..], &vec![0; len]].concat();
            assert_eq!(ours.read(record), Err(RecordFault::BadRecordMac), "{version:?} {len}");
        }
    });
}

#[test]
fn a_tls13_record_covers_whatever_version_it_says() {
    let (mut ours, mut peer) = pair(Version::Tls13, Suite::Aes128Gcm);
    let record = peer.forge_under([23, 3, 1, 0, 18], vec![b'x', content::APPLICATION_DATA]);
    assert_eq!(ours.read(record), Ok(Incoming::Data(5..6)));
    let mut record = peer.send(b"x").unwrap();
    record[2] = 1;
    assert_eq!(ours.read(record), Err(RecordFault::BadRecordMac));
}

/// RFC 8446 section 5.4: inner plaintexts at the edges of padding and length.
#[test]
fn inner_plaintexts() {
    let full = |len: usize, padding: usize| {
        let mut inner = vec![b'x'; len];
        inner.push(content::APPLICATION_DATA);
        inner.resize(len + 1 + padding, 0);
        inner
    };
    let table: &[(Vec<u8>, Result<Incoming, RecordFault>)] = &[
        (vec![], Err(RecordFault::NoContentType)),
        (vec![0], Err(RecordFault::NoContentType)),
        (vec![0; 200], Err(RecordFault::NoContentType)),
        (vec![0; PAYLOAD_BYTES_MAX + 1], Err(RecordFault::NoContentType)),
        (vec![0; PAYLOAD_BYTES_MAX + 2], Err(RecordFault::RecordOverflow)),
        (full(0, 0), Ok(Incoming::Nothing)),
        (full(0, 100), Ok(Incoming::Nothing)),
        (full(0, PAYLOAD_BYTES_MAX), Ok(Incoming::Nothing)),
        (full(1, 0), Ok(Incoming::Data(5..6))),
        (full(1, PAYLOAD_BYTES_MAX - 1), Ok(Incoming::Data(5..6))),
        (full(1, PAYLOAD_BYTES_MAX), Err(RecordFault::RecordOverflow)),
        (full(PAYLOAD_BYTES_MAX, 0), Ok(Incoming::Data(5..5 + PAYLOAD_BYTES_MAX))),
        (full(PAYLOAD_BYTES_MAX, 1), Err(RecordFault::RecordOverflow)),
        (full(PAYLOAD_BYTES_MAX + 1, 0), Err(RecordFault::RecordOverflow)),
        (full(PAYLOAD_BYTES_MAX + 239, 0), Err(RecordFault::RecordOverflow)),
        (vec![content::ALERT, 0, 0], Err(RecordFault::EmptyMessage)),
        (vec![content::HANDSHAKE, 0, 0], Err(RecordFault::EmptyMessage)),
        (vec![1, 0, content::ALERT, 0, 0, 0], Ok(Incoming::CloseNotify)),
    ];
    for suite in SUITES {
        for (inner, expected) in table {
            let (mut ours, mut peer) = pair(Version::Tls13, suite);
            let record = peer.forge(inner.clone());
            assert_eq!(&ours.read(record), expected, "{} bytes", inner.len());
        }
    }
}

#[test]
fn a_tls12_plaintext_above_its_limit() {
    for suite in SUITES {
        let (mut ours, mut peer) = pair(Version::Tls12, suite);
        let record = peer.send_as(content::APPLICATION_DATA, &[b'x'; PAYLOAD_BYTES_MAX + 1]);
        assert_eq!(ours.read(record), Err(RecordFault::RecordOverflow));
    }
}

/// TLS 1.2 AES-GCM: the peer may choose any explicit nonce (RFC 5288 section 3).
#[test]
fn the_explicit_nonce_comes_from_the_wire() {
    let (mut ours, mut peer) = pair(Version::Tls12, Suite::Aes256Gcm);
    let mut record = vec![23, 3, 3, 0, 25, 9, 8, 7, 6, 5, 4, 3, 2, b'x'];
    let (mut plain, mut tag) = ([b'x'], [0; 16]);
    let nonce = peer.wake().explicit_nonce([9, 8, 7, 6, 5, 4, 3, 2]);
    peer.wake().aead.seal(nonce, &tls12_aad(0, 23, 1), &mut plain, &mut tag).unwrap();
    record.truncate(13);
    record.extend_from_slice(&plain);
    record.extend_from_slice(&tag);
    assert_eq!(ours.read(record), Ok(Incoming::Data(13..14)));
    // Ours is the base xor the sequence number, so that it never repeats.
    let material = Material::derive(Suite::Aes256Gcm, Version::Tls12, &ours.session.tx.secret);
    for seq in 0..3_u8 {
        let record = ours.send(b"x").unwrap();
        let mut sent = material.iv;
        sent[11] ^= seq;
        assert_eq!(record[5..13], sent[4..]);
    }
}

/// RFC 8446 section 5.1: nothing between the fragments of a handshake message.
#[test]
fn fragments_are_not_interleaved() {
    for (version, head) in
        [(Version::Tls13, &KEY_UPDATE[..4]), (Version::Tls12, &[1, 0, 0, 9, 1][..])]
    {
        for len in 1..=head.len() {
            for (content_type, message) in [
                (content::APPLICATION_DATA, &b"x"[..]),
                (content::APPLICATION_DATA, b""),
                (content::ALERT, &[1, 0]),
            ] {
                let (mut ours, mut peer) = pair(version, Suite::ChaCha20Poly1305);
                let record = peer.send_as(content::HANDSHAKE, &head[..len]);
                assert!(ours.read(record).is_ok());
                let record = peer.send_as(content_type, message);
                assert_eq!(ours.read(record), Err(RecordFault::Interleaved));
            }
        }
    }
}

#[test]
fn the_last_sequence_number_is_never_used() {
    each(|version, suite| {
        let (mut ours, mut peer) = pair_at(version, suite, u64::MAX - 1);
        let record = peer.send_as(content::APPLICATION_DATA, b"x");
        peer.session.tx.seq = 0;
        assert!(matches!(ours.read(record), Ok(Incoming::Data(_))));
        let record = peer.send_as(content::APPLICATION_DATA, b"x");
        assert_eq!(ours.read(record), Err(RecordFault::SequenceExhausted));
        assert_eq!(ours.alert(alert::CLOSE_NOTIFY).len(), ours.session.record_len(2));
        ours.session.writing = Writing::Failed;
        let mut out = [0; CONTROL_BYTES_MAX];
        let sealed = ours.session.seal_alert(&mut ours.keys, 0, &mut out);
        assert_eq!(sealed, Err(RecordFault::SequenceExhausted));
    });
}

#[test]
fn a_tls12_key_ends_at_its_limit_with_close_notify() {
    for suite in SUITES {
        let last = records_max(suite) - 1;
        let (mut ours, mut peer) = pair_at(Version::Tls12, suite, last);
        let data = ours.send(b"the last").unwrap();
        assert!(matches!(peer.read(data), Ok(Incoming::Data(_))));
        assert!(!ours.session.control_due());
        assert_eq!(ours.send(b"one too many"), Err(RecordFault::SequenceExhausted));
        let close = ours.alert(RecordFault::SequenceExhausted.alert());
        assert_eq!(peer.read(close), Ok(Incoming::CloseNotify));
    }
}
