//! The record layer against rustls: both roles, six suites, any cut of the stream into reads.
//! rustls is the reference; both streams are compared byte for byte.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod handover;

use std::io::{Read, Write};

use eyelet_record::{
    CONTROL_BYTES_MAX, Incoming, Keys, Opened, PAYLOAD_BYTES_MAX, RecordFault, Role, SLOT_BYTES,
    Session, Version, alert,
};
use handover::{Connected, SUITES, connect, deliver};
use proptest::prelude::*;

/// One event on an established connection.
#[derive(Clone, Debug)]
enum Act {
    TheySend(usize),
    WeSend(usize),
    /// rustls updates its key and requests ours (TLS 1.3).
    TheyUpdate,
    /// All bytes in transit arrive, cut into reads of these sizes, repeated.
    Arrive(Vec<usize>),
    /// We park: expanded keys are dropped.
    Park,
}

fn act() -> impl Strategy<Value = Act> {
    let size = || prop_oneof![0..200_usize, 0..=PAYLOAD_BYTES_MAX, Just(PAYLOAD_BYTES_MAX)];
    let cuts = prop_oneof![
        Just(vec![usize::MAX]),
        prop::collection::vec(1..40_usize, 1..6),
        prop::collection::vec(1..20_000_usize, 1..6),
    ];
    prop_oneof![
        4 => size().prop_map(Act::TheySend),
        4 => size().prop_map(Act::WeSend),
        1 => Just(Act::TheyUpdate),
        3 => cuts.prop_map(Act::Arrive),
        1 => Just(Act::Park),
    ]
}

/// A connection under test: bytes sent, bytes received, and bytes in transit.
struct Wire {
    session: Session,
    keys: Keys,
    peer: rustls::Connection,
    to_us: Vec<u8>,
    to_peer: Vec<u8>,
    unread: Vec<u8>,
    sent: [Vec<u8>; 2],
    received: [Vec<u8>; 2],
    closed: bool,
}

impl Wire {
    fn new(connected: Connected) -> Wire {
        let Connected { session, mut peer, leftover } = connected;
        peer.set_buffer_limit(None);
        Wire {
            session,
            keys: Keys::new(),
            peer,
            to_us: leftover,
            to_peer: Vec::new(),
            unread: Vec::new(),
            sent: Default::default(),
            received: Default::default(),
            closed: false,
        }
    }

    fn act(&mut self, act: &Act) -> Result<(), RecordFault> {
        match act {
            Act::TheySend(len) => {
                let payload = self.payload(0, *len);
                self.peer.writer().write_all(&payload).unwrap();
                self.sent[0].extend_from_slice(&payload);
                self.take_from_peer();
            }
            Act::WeSend(len) => {
                let payload = self.payload(1, *len);
                self.we_send(&payload)?;
            }
            Act::TheyUpdate if self.session.version() == Version::Tls13 => {
                self.peer.refresh_traffic_keys().unwrap();
                self.take_from_peer();
            }
            Act::TheyUpdate => {}
            Act::Arrive(cuts) => self.arrive(cuts)?,
            Act::Park => self.keys.clear(),
        }
        Ok(())
    }

    /// Bytes that depend on their position in the stream.
    fn payload(&self, direction: usize, len: usize) -> Vec<u8> {
        let start = self.sent[direction].len();
        (start..start + len).map(|at| (at % 251) as u8).collect()
    }

    fn take_from_peer(&mut self) {
        while self.peer.wants_write() {
            self.peer.write_tls(&mut self.to_us).unwrap();
        }
    }

    fn we_send(&mut self, payload: &[u8]) -> Result<(), RecordFault> {
        self.we_send_control()?;
        let mut slot = [0; SLOT_BYTES];
        slot[self.session.prefix_len()..][..payload.len()].copy_from_slice(payload);
        let len = self.session.seal(&mut self.keys, &mut slot, payload.len())?;
        self.to_peer.extend_from_slice(&slot[..len]);
        self.sent[1].extend_from_slice(payload);
        Ok(())
    }

    fn we_send_control(&mut self) -> Result<(), RecordFault> {
        let mut out = [0; CONTROL_BYTES_MAX];
        let len = self.session.seal_control(&mut self.keys, &mut out)?;
        self.to_peer.extend_from_slice(&out[..len]);
        Ok(())
    }

    /// Both directions, until nothing is in transit.
    fn arrive(&mut self, cuts: &[usize]) -> Result<(), RecordFault> {
        let mut cuts = cuts.iter().cycle();
        while !self.to_us.is_empty() || !self.to_peer.is_empty() {
            let cut = cuts.next().map_or(1, |&cut| cut.max(1));
            let read = cut.min(self.to_us.len());
            self.unread.extend(self.to_us.drain(..read));
            self.we_read()?;
            let read = cut.min(self.to_peer.len());
            let ciphertext: Vec<u8> = self.to_peer.drain(..read).collect();
            self.received[1].extend(deliver(&mut self.peer, &ciphertext));
            self.take_from_peer();
        }
        Ok(())
    }

    fn we_read(&mut self) -> Result<(), RecordFault> {
        let mut at = 0;
        loop {
            let input = &mut self.unread[at..];
            match self.session.open(&mut self.keys, input)? {
                Opened::NeedMore { at_least } => {
                    assert!(at_least > input.len());
                    break;
                }
                Opened::Record { consumed, what } => {
                    assert!(consumed > 0);
                    match what {
                        Incoming::Data(data) => self.received[0].extend_from_slice(&input[data]),
                        Incoming::Reply => self.we_send_control()?,
                        Incoming::CloseNotify => self.closed = true,
                        Incoming::Nothing => {}
                        Incoming::PeerAlert(alert) => panic!("rustls sent alert {alert}"),
                    }
                    at += consumed;
                }
            }
        }
        self.unread.drain(..at);
        Ok(())
    }

    fn settle(&mut self) -> Result<(), RecordFault> {
        self.arrive(&[usize::MAX])?;
        assert!(self.unread.is_empty());
        for (sent, received) in self.sent.iter().zip(&self.received) {
            assert_eq!(sent.len(), received.len());
            assert!(sent == received);
        }
        Ok(())
    }

    /// close_notify each way, first by rustls or by us, with data after the first.
    fn close(&mut self, peer_first: bool) -> Result<(), RecordFault> {
        if peer_first {
            self.peer.send_close_notify();
            self.take_from_peer();
            self.settle()?;
            assert!(self.closed && self.session.read_closed());
            self.act(&Act::WeSend(777))?;
            self.settle()?;
            self.we_close()?;
        } else {
            self.we_close()?;
            self.act(&Act::TheySend(777))?;
            self.settle()?;
            assert!(!self.session.read_closed());
            self.peer.send_close_notify();
            self.take_from_peer();
            self.settle()?;
        }
        assert!(self.session.read_closed() && self.session.write_closed());
        Ok(())
    }

    fn we_close(&mut self) -> Result<(), RecordFault> {
        let mut out = [0; CONTROL_BYTES_MAX];
        let len = self.session.seal_alert(&mut self.keys, alert::CLOSE_NOTIFY, &mut out)?;
        self.to_peer.extend_from_slice(&out[..len]);
        self.settle()?;
        // rustls reports a clean end of stream: our close_notify arrived.
        assert_eq!(self.peer.reader().read(&mut [0]).unwrap(), 0);
        Ok(())
    }
}

const ROLES: [Role; 2] = [Role::Server, Role::Client];

/// No file of seeds: the smallest failing input is printed.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn any_conversation(
        suite in 0..SUITES.len(),
        role in 0..ROLES.len(),
        acts in prop::collection::vec(act(), 1..16),
        peer_closes_first: bool,
    ) {
        let mut wire = Wire::new(connect(ROLES[role], SUITES[suite].0));
        for act in &acts {
            wire.act(act).unwrap();
        }
        wire.settle().unwrap();
        wire.close(peer_closes_first).unwrap();
    }
}

/// Every suite and role at least once, whatever proptest draws.
#[test]
fn each_suite_and_role() {
    for role in ROLES {
        for (suite, version, ours) in SUITES {
            let mut wire = Wire::new(connect(role, suite));
            assert_eq!((wire.session.version(), wire.session.suite()), (version, ours));
            assert_eq!(wire.session.role(), role);
            for len in [1, 0, 100, PAYLOAD_BYTES_MAX - 1, PAYLOAD_BYTES_MAX] {
                let byte_by_byte = Act::Arrive(vec![if len < 200 { 1 } else { 4096 }]);
                for act in [Act::TheySend(len), Act::WeSend(len), Act::TheyUpdate, byte_by_byte] {
                    wire.act(&act).unwrap();
                }
            }
            wire.settle().unwrap();
            wire.close(role == Role::Server).unwrap();
        }
    }
}

/// Two KeyUpdate requests before our answer are answered once; rustls reads what follows.
#[test]
fn coalesced_key_updates() {
    for role in ROLES {
        let mut wire = Wire::new(connect(role, SUITES[0].0));
        for _ in 0..3 {
            wire.act(&Act::TheyUpdate).unwrap();
            wire.act(&Act::TheySend(10)).unwrap();
        }
        wire.act(&Act::WeSend(10)).unwrap();
        wire.settle().unwrap();
        wire.act(&Act::WeSend(PAYLOAD_BYTES_MAX)).unwrap();
        wire.close(true).unwrap();
    }
}

/// rustls can read the alert of a fault.
#[test]
fn rustls_reads_our_fatal_alert() {
    for role in ROLES {
        for (suite, _, _) in SUITES {
            let mut wire = Wire::new(connect(role, suite));
            wire.settle().unwrap();
            wire.act(&Act::TheySend(100)).unwrap();
            *wire.to_us.last_mut().unwrap() ^= 1;
            let fault = wire.arrive(&[usize::MAX]).unwrap_err();
            assert_eq!(fault, RecordFault::BadRecordMac);
            let mut out = [0; CONTROL_BYTES_MAX];
            let len = wire.session.seal_alert(&mut wire.keys, fault.alert(), &mut out).unwrap();
            wire.peer.read_tls(&mut &out[..len]).unwrap();
            let told = wire.peer.process_new_packets().unwrap_err();
            assert_eq!(told, rustls::Error::AlertReceived(rustls::AlertDescription::BadRecordMac));
        }
    }
}
