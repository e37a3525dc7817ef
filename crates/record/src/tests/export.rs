//! A session becomes bytes and goes on as another session. Bytes that no session has are refused.

use super::*;

/// The end goes on in another process.
fn move_on(end: &mut End) {
    let mut bytes = [0; EXPORT_BYTES];
    end.session.export(&mut bytes);
    let session = Session::import(&bytes).unwrap();
    let mut again = [0; EXPORT_BYTES];
    session.export(&mut again);
    assert!(bytes == again, "nothing is lost");
    *end = End { session, keys: Keys::new() };
}

fn talk(from: &mut End, to: &mut End, payload: &[u8]) {
    let mut record = from.send(payload).unwrap();
    let opened = to.session.open(&mut to.keys, &mut record).unwrap();
    let Opened::Record { what: Incoming::Data(data), .. } = opened else {
        panic!("no data: {opened:?}")
    };
    assert_eq!(&record[data], payload);
}

/// Either end may move between any two records, near the limit of its key too.
#[test]
fn records_before_and_after_both_ways() {
    each(|version, suite| {
        for seq in [0, 1, u64::from(u32::MAX), records_max(suite) - 2000] {
            let seq = seq.min(records_max(suite) - 2000);
            let (mut ours, mut peer) = pair_at(version, suite, seq);
            for n in 0..6_u8 {
                talk(&mut ours, &mut peer, &[n; 40]);
                talk(&mut peer, &mut ours, &[n; 3]);
                move_on(if n % 3 == 0 { &mut peer } else { &mut ours });
            }
            assert_eq!((ours.session.rx.seq, ours.session.tx.seq), (seq + 6, seq + 6));
        }
    });
}

#[test]
fn a_key_update_that_is_due_is_sent_after_the_move() {
    for suite in SUITES {
        let (mut ours, mut peer) = pair(Version::Tls13, suite);
        let request = peer.send_as(content::HANDSHAKE, &KEY_UPDATE_REQUESTED);
        next_generation(suite, &mut peer.session.tx, &mut peer.keys.seal);
        assert_eq!(ours.read(request), Ok(Incoming::Reply));
        move_on(&mut ours);
        assert!(ours.session.control_due());
        talk(&mut peer, &mut ours, b"under the new key");
        talk(&mut ours, &mut peer, b"under the old key");
        let reply = ours.control();
        assert_eq!(peer.read(reply), Ok(Incoming::Nothing));
        move_on(&mut ours);
        assert!(!ours.session.control_due());
        talk(&mut ours, &mut peer, b"both keys are new");
        ours.session.request_key_update();
        move_on(&mut ours);
        let request = ours.control();
        assert_eq!(peer.read(request), Ok(Incoming::Reply));
    }
}

/// The move is between two fragments of one message, after each of its bytes.
#[test]
fn a_message_that_has_begun_goes_on_after_the_move() {
    for suite in SUITES {
        let (mut ours, mut peer) = pair(Version::Tls13, suite);
        for (at, byte) in KEY_UPDATE.iter().enumerate() {
            let record = peer.send_as(content::HANDSHAKE, &[*byte]);
            assert_eq!(ours.read(record), Ok(Incoming::Nothing), "byte {at}");
            move_on(&mut ours);
        }
        next_generation(suite, &mut peer.session.tx, &mut peer.keys.seal);
        talk(&mut peer, &mut ours, b"under the new key");

        // A client skips a ticket, and a server of TLS 1.2 a hello.
        let ticket = [&[4, 0, 0, 9][..], &[7; 9]].concat();
        let (mut server, mut client) = pair(Version::Tls13, suite);
        for byte in &ticket {
            let record = server.send_as(content::HANDSHAKE, &[*byte]);
            assert_eq!(client.read(record), Ok(Incoming::Nothing));
            move_on(&mut client);
        }
        talk(&mut server, &mut client, b"behind the ticket");
        let hello = [&[1, 0, 0, 5][..], &[7; 5]].concat();
        let (mut server, mut client) = pair(Version::Tls12, suite);
        let mut last = Ok(Incoming::Nothing);
        for byte in &hello {
            let record = client.send_as(content::HANDSHAKE, &[*byte]);
            last = server.read(record);
            move_on(&mut server);
        }
        assert_eq!(last, Ok(Incoming::Reply), "the warning is due");
        assert!(!server.control().is_empty());
        move_on(&mut server);
        let record = client.send_as(content::HANDSHAKE, &hello);
        assert_eq!(server.read(record), Err(RecordFault::TooManyRenegotiations));
    }
}

#[test]
fn ends_and_counts_go_along() {
    each(|version, suite| {
        let (mut ours, mut peer) = pair(version, suite);
        for _ in 0..32 {
            let empty = peer.send_as(content::APPLICATION_DATA, &[]);
            assert_eq!(ours.read(empty), Ok(Incoming::Nothing));
            move_on(&mut ours);
        }
        let empty = peer.send_as(content::APPLICATION_DATA, &[]);
        assert_eq!(ours.read(empty), Err(RecordFault::TooManyEmptyRecords));
        move_on(&mut ours);
        assert_eq!(ours.send(b"x"), Err(RecordFault::Closed));
        assert!(!ours.alert(alert::CLOSE_NOTIFY).is_empty());

        let (mut ours, mut peer) = pair(version, suite);
        let record = peer.alert(alert::CLOSE_NOTIFY);
        assert_eq!(ours.read(record), Ok(Incoming::CloseNotify));
        move_on(&mut ours);
        assert!(ours.session.read_closed() && !ours.session.write_closed());
        talk(&mut ours, &mut peer, b"the other direction is open");
        assert!(!ours.alert(alert::CLOSE_NOTIFY).is_empty());
        move_on(&mut ours);
        assert!(ours.session.write_closed());
        assert_eq!(ours.send(b"x"), Err(RecordFault::Closed));
    });
}

/// The fault of an exported session with some bytes changed.
fn changed(version: Version, suite: Suite, changes: &[(usize, u8)]) -> Option<SessionFault> {
    let mut bytes = [0; EXPORT_BYTES];
    pair(version, suite).0.session.export(&mut bytes);
    changes.iter().for_each(|(at, byte)| bytes[*at] = *byte);
    Session::import(&bytes).err()
}

fn tls13(changes: &[(usize, u8)]) -> Option<SessionFault> {
    changed(Version::Tls13, Suite::Aes128Gcm, changes)
}

fn tls12(changes: &[(usize, u8)]) -> Option<SessionFault> {
    changed(Version::Tls12, Suite::Aes128Gcm, changes)
}

/// A message that has begun: how many bytes of its head, or what is left of it.
#[test]
fn a_message_that_cannot_have_begun_is_refused() {
    for (partial, of_13, of_12) in [
        ([1, 24, 0, 0, 0], true, false),
        ([1, 1, 0, 0, 0], false, true),
        ([1, 4, 0, 0, 0], false, false),
        ([2, 24, 0, 0, 0], true, false),
        ([1, 24, 0, 0, 1], false, false),
        ([4, 24, 0, 0, 1], true, false),
        ([4, 1, 0, 0, 1], false, false),
        ([5, 0, 0, 0, 1], false, true),
        ([5, 0, 0, 255, 255], false, true),
        ([5, 0, 1, 0, 0], false, false),
        ([5, 0, 0, 0, 0], false, false),
        ([6, 0, 0, 0, 0], false, false),
        ([0, 0, 0, 0, 1], false, false),
    ] {
        let changes: Vec<_> = partial.into_iter().enumerate().map(|(n, b)| (7 + n, b)).collect();
        let fault = |possible: bool| (!possible).then_some(SessionFault::Partial);
        assert_eq!(tls13(&changes), fault(of_13), "{partial:?}");
        assert_eq!(tls12(&changes), fault(of_12), "{partial:?}");
    }
}

/// One changed byte, and what is wrong with it.
#[test]
fn bytes_that_no_session_has_are_refused() {
    assert_eq!((tls13(&[]), tls12(&[])), (None, None));
    assert_eq!(tls13(&[(0, 0)]), Some(SessionFault::Suite(0)));
    assert_eq!(tls13(&[(0, 4)]), Some(SessionFault::Suite(4)));
    assert_eq!(tls13(&[(1, 1)]), Some(SessionFault::Version(1)));
    assert_eq!(tls13(&[(2, 3)]), Some(SessionFault::Role(3)));
    for (at, max_13, max_12) in [(3, 2, 2), (4, 1, 1), (5, 3, 0), (6, 0, 2)] {
        for code in 0..=255 {
            let states = |max| {
                let mut states = [0; 4];
                states[at - 3] = code;
                (code > max).then_some(SessionFault::States(states))
            };
            assert_eq!(tls13(&[(at, code)]), states(max_13));
            assert_eq!(tls12(&[(at, code)]), states(max_12));
        }
    }
    for (at, max) in [(12, 32), (13, 32), (14, 4)] {
        assert_eq!(tls13(&[(at, max)]), None);
        assert_eq!(tls13(&[(at, max + 1)]), Some(SessionFault::Count(max + 1)));
    }
    // Secrets of 32 bytes, or a key of 16 and an iv of 12 from byte 32 on, in 48.
    for direction in [23, 23 + 56] {
        for at in 0..48 {
            let padding = |used: bool| (!used).then_some(SessionFault::Padding);
            assert_eq!(tls13(&[(direction + at, 9)]), padding(at < 32));
            let is_used = at < 16 || (32..44).contains(&at);
            assert_eq!(tls12(&[(direction + at, 9)]), padding(is_used));
            assert_eq!(changed(Version::Tls13, Suite::Aes256Gcm, &[(direction + at, 9)]), None);
        }
    }
    let mut bytes = [0; EXPORT_BYTES];
    pair(Version::Tls13, Suite::Aes128Gcm).0.session.export(&mut bytes);
    for len in 0..EXPORT_BYTES {
        assert_eq!(Session::import(&bytes[..len]).err(), Some(SessionFault::Length(len)));
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(Session::import(&longer).err(), Some(SessionFault::Length(EXPORT_BYTES + 1)));
}
