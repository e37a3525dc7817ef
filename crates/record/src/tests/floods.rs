//! Records that cost us work and carry nothing: how many are accepted, and which fault ends them.

use super::*;

#[test]
fn empty_records() {
    each(|version, suite| {
        let (mut ours, mut peer) = pair(version, suite);
        for _ in 0..3 {
            for _ in 0..32 {
                let record = peer.send_as(content::APPLICATION_DATA, b"");
                assert_eq!(ours.read(record), Ok(Incoming::Nothing));
            }
            let record = peer.send(b"x").unwrap();
            assert!(matches!(ours.read(record), Ok(Incoming::Data(_))));
        }
        for _ in 0..32 {
            let record = peer.send_as(content::APPLICATION_DATA, b"");
            assert_eq!(ours.read(record), Ok(Incoming::Nothing));
        }
        let record = peer.send_as(content::APPLICATION_DATA, b"");
        assert_eq!(ours.read(record), Err(RecordFault::TooManyEmptyRecords));
    });
}

#[test]
fn key_updates() {
    let (mut ours, mut peer) = pair(Version::Tls13, Suite::Aes128Gcm);
    let update = |ours: &mut End, peer: &mut End| {
        let record = peer.send_as(content::HANDSHAKE, &KEY_UPDATE);
        next_generation(Suite::Aes128Gcm, &mut peer.session.tx, &mut peer.keys.seal);
        ours.read(record)
    };
    for _ in 0..3 {
        for _ in 0..32 {
            assert_eq!(update(&mut ours, &mut peer), Ok(Incoming::Nothing));
            // An empty record does not count as data.
            if ours.session.empty_records < 32 {
                let record = peer.send_as(content::APPLICATION_DATA, b"");
                assert_eq!(ours.read(record), Ok(Incoming::Nothing));
            }
        }
        let record = peer.send(b"x").unwrap();
        assert!(matches!(ours.read(record), Ok(Incoming::Data(_))));
    }
    for _ in 0..32 {
        assert_eq!(update(&mut ours, &mut peer), Ok(Incoming::Nothing));
    }
    assert_eq!(update(&mut ours, &mut peer), Err(RecordFault::TooManyKeyUpdates));
}

/// Warnings count over the whole life: data between them does not reset the count.
#[test]
fn warning_alerts() {
    each(|version, suite| {
        let (mut ours, mut peer) = pair(version, suite);
        for _ in 0..4 {
            let record = peer.alert(alert::USER_CANCELED);
            assert_eq!(ours.read(record), Ok(Incoming::Nothing));
            let record = peer.send(b"x").unwrap();
            assert!(matches!(ours.read(record), Ok(Incoming::Data(_))));
        }
        let record = peer.alert(alert::USER_CANCELED);
        assert_eq!(ours.read(record), Err(RecordFault::TooManyWarnings));
    });
}

#[test]
fn tickets() {
    let (mut server, mut client) = pair(Version::Tls13, Suite::Aes128Gcm);
    for _ in 0..32 {
        let record = server.send_as(content::HANDSHAKE, &[4, 0, 0, 1, 0]);
        assert_eq!(client.read(record), Ok(Incoming::Nothing));
    }
    let record = server.send_as(content::HANDSHAKE, &[4, 0, 0, 1, 0]);
    assert_eq!(client.read(record), Err(RecordFault::TooManyEmptyRecords));
}
