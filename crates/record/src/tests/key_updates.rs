//! KeyUpdates in both directions: whole and in fragments, requested, answered, and on our own.

use super::*;

/// The position of the data in the buffer does not matter here, only that it is data.
fn talk(from: &mut End, to: &mut End) {
    let record = from.send(b"x").unwrap();
    assert!(matches!(to.read(record), Ok(Incoming::Data(_))));
}

#[test]
fn a_key_update_changes_the_receive_key_alone() {
    for suite in SUITES {
        let (mut ours, mut peer) = pair(Version::Tls13, suite);
        talk(&mut peer, &mut ours);
        let record = peer.send_as(content::HANDSHAKE, &KEY_UPDATE);
        assert_eq!(ours.read(record), Ok(Incoming::Nothing));
        assert_eq!(ours.session.rx.seq, 0);
        talk(&mut ours, &mut peer);
        let stale = peer.send(b"under the old key").unwrap();
        assert_eq!(ours.read(stale), Err(RecordFault::BadRecordMac));
    }
}

#[test]
fn requests_are_answered_once_under_the_old_key() {
    for suite in SUITES {
        let (mut ours, mut peer) = pair(Version::Tls13, suite);
        talk(&mut ours, &mut peer);
        for _ in 0..3 {
            let request = peer.send_as(content::HANDSHAKE, &KEY_UPDATE_REQUESTED);
            next_generation(suite, &mut peer.session.tx, &mut peer.keys.seal);
            assert_eq!(ours.read(request), Ok(Incoming::Reply));
            talk(&mut peer, &mut ours);
        }
        // The answer may be sealed later. Until then we use the old key.
        talk(&mut ours, &mut peer);
        let reply = ours.control();
        assert_eq!(peer.read(reply), Ok(Incoming::Nothing));
        assert_eq!((ours.session.tx.seq, peer.session.rx.seq), (0, 0));
        assert_eq!(ours.control(), []);
        talk(&mut ours, &mut peer);
        talk(&mut peer, &mut ours);
    }
}

#[test]
fn a_key_update_in_any_fragments() {
    for cuts in 0..16_u8 {
        let (mut ours, mut peer) = pair(Version::Tls13, Suite::Aes128Gcm);
        let mut start = 0;
        for end in 1..=KEY_UPDATE_REQUESTED.len() {
            let cut_here = end == KEY_UPDATE_REQUESTED.len() || cuts & (1 << (end - 1)) != 0;
            if !cut_here {
                continue;
            }
            let record = peer.send_as(content::HANDSHAKE, &KEY_UPDATE_REQUESTED[start..end]);
            // Parking between two fragments makes no difference.
            ours.keys.clear();
            let last = end == KEY_UPDATE_REQUESTED.len();
            let expected = if last { Incoming::Reply } else { Incoming::Nothing };
            assert_eq!(ours.read(record), Ok(expected));
            start = end;
        }
        next_generation(Suite::Aes128Gcm, &mut peer.session.tx, &mut peer.keys.seal);
        talk(&mut peer, &mut ours);
    }
}

#[test]
fn a_key_update_must_end_its_last_fragment_too() {
    let (mut ours, mut peer) = pair(Version::Tls13, Suite::Aes128Gcm);
    let record = peer.send_as(content::HANDSHAKE, &KEY_UPDATE[..2]);
    assert_eq!(ours.read(record), Ok(Incoming::Nothing));
    let tail = [&KEY_UPDATE[2..], &KEY_UPDATE].concat();
    let record = peer.send_as(content::HANDSHAKE, &tail);
    assert_eq!(ours.read(record), Err(RecordFault::KeyUpdateNotLast));
}

#[test]
fn no_answer_after_our_close_notify() {
    let (mut ours, mut peer) = pair(Version::Tls13, Suite::Aes256Gcm);
    ours.alert(alert::CLOSE_NOTIFY);
    let request = peer.send_as(content::HANDSHAKE, &KEY_UPDATE_REQUESTED);
    next_generation(Suite::Aes256Gcm, &mut peer.session.tx, &mut peer.keys.seal);
    assert_eq!(ours.read(request), Ok(Incoming::Nothing));
    assert_eq!(ours.control(), []);
    talk(&mut peer, &mut ours);
}

/// RFC 8446 section 5.5: our key is replaced before its limit without a request.
#[test]
fn our_key_is_replaced_before_its_limit() {
    for suite in SUITES {
        let due = records_max(suite) - 1024;
        let (mut ours, mut peer) = pair_at(Version::Tls13, suite, due - 1);
        peer.session.tx.seq = 0;
        ours.session.rx.seq = 0;
        assert!(!ours.session.control_due());
        talk(&mut ours, &mut peer);
        assert!(ours.session.control_due());
        for _ in 0..1000 {
            talk(&mut ours, &mut peer);
        }
        let update = ours.control();
        assert_eq!(peer.read(update), Ok(Incoming::Nothing), "no update is requested");
        assert_eq!((ours.session.tx.seq, peer.session.rx.seq), (0, 0));
        assert!(!ours.session.control_due());
        talk(&mut ours, &mut peer);
    }
}

#[test]
fn a_caller_that_never_rekeys_cannot_pass_the_limit() {
    let (mut ours, _) = pair_at(Version::Tls13, Suite::Aes128Gcm, (1 << 24) - 1);
    assert!(ours.send(b"the last").is_ok());
    assert_eq!(ours.send(b"one too many"), Err(RecordFault::SequenceExhausted));
    assert!(!ours.control().is_empty());
    assert!(ours.send(b"under the next key").is_ok());
}

/// A peer that uses its key beyond the limit is asked once for another; its records are still
/// accepted.
#[test]
fn the_peers_key_is_asked_for_at_its_limit() {
    let (mut ours, mut peer) = pair_at(Version::Tls13, Suite::Aes128Gcm, (1 << 24) - 2);
    ours.session.tx.seq = 0;
    peer.session.rx.seq = 0;
    talk(&mut peer, &mut ours);
    assert!(!ours.session.control_due());
    let record = peer.send_as(content::APPLICATION_DATA, b"x");
    assert!(matches!(ours.read(record), Ok(Incoming::Data(_))));
    let request = ours.control();
    assert_eq!(peer.read(request), Ok(Incoming::Reply));
    let record = peer.send_as(content::APPLICATION_DATA, b"x");
    assert!(matches!(ours.read(record), Ok(Incoming::Data(_))), "crossed our request");
    assert!(!ours.session.control_due(), "asked once");
    let update = peer.control();
    assert_eq!(ours.read(update), Ok(Incoming::Nothing));
    talk(&mut peer, &mut ours);
    talk(&mut ours, &mut peer);
}

#[test]
fn a_peer_that_updates_by_itself_is_not_asked() {
    let (mut ours, mut peer) = pair_at(Version::Tls13, Suite::Aes128Gcm, (1 << 24) - 1);
    ours.session.tx.seq = 0;
    peer.session.rx.seq = 0;
    let record = peer.send_as(content::APPLICATION_DATA, b"x");
    assert!(matches!(ours.read(record), Ok(Incoming::Data(_))));
    assert!(ours.session.control_due());
    let update = peer.control();
    assert_eq!(ours.read(update), Ok(Incoming::Nothing));
    assert!(!ours.session.control_due());
    talk(&mut peer, &mut ours);
}

/// The answer to the peer's request stays due when our own request is no longer needed.
#[test]
fn an_answer_outlives_our_request() {
    for ask_first in [true, false] {
        let (mut ours, mut peer) = pair(Version::Tls13, Suite::Aes128Gcm);
        let mut update = |ours: &mut End, message: &[u8]| {
            let record = peer.send_as(content::HANDSHAKE, message);
            next_generation(Suite::Aes128Gcm, &mut peer.session.tx, &mut peer.keys.seal);
            ours.read(record)
        };
        if ask_first {
            ours.session.request_key_update();
        }
        assert_eq!(update(&mut ours, &KEY_UPDATE_REQUESTED), Ok(Incoming::Reply));
        ours.session.request_key_update();
        assert_eq!(update(&mut ours, &KEY_UPDATE), Ok(Incoming::Reply));
        let answer = ours.control();
        assert_eq!(peer.read(answer), Ok(Incoming::Nothing), "it requests none");
        assert_eq!(ours.control(), []);
    }
}

/// A client skips tickets, whole and in fragments, and reads the KeyUpdate after them.
#[test]
fn a_client_skips_tickets() {
    let (mut server, mut client) = pair(Version::Tls13, Suite::Aes128Gcm);
    let mut ticket = vec![4, 0, 1, 0];
    ticket.resize(4 + 256, 9);
    let flight = [&ticket[..], &ticket, &KEY_UPDATE].concat();
    for part in flight.chunks(100) {
        let record = server.send_as(content::HANDSHAKE, part);
        assert_eq!(client.read(record), Ok(Incoming::Nothing));
    }
    next_generation(Suite::Aes128Gcm, &mut server.session.tx, &mut server.keys.seal);
    talk(&mut server, &mut client);
    let record = server.send_as(content::HANDSHAKE, &[4, 1, 0, 0]);
    assert_eq!(client.read(record), Err(RecordFault::HandshakeLength));
}
