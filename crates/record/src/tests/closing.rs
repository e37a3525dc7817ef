//! Alerts, close_notify both ways, and renegotiation, which is refused with a warning.

use super::*;

#[test]
fn close_notify_from_the_peer() {
    each(|version, suite| {
        let (mut ours, mut peer) = pair(version, suite);
        assert!(!ours.session.read_closed());
        let close = peer.alert(alert::CLOSE_NOTIFY);
        assert_eq!(ours.read(close), Ok(Incoming::CloseNotify));
        assert!(ours.session.read_closed() && !ours.session.write_closed());
        // RFC 8446 section 6.1: what follows is ignored, even if it is no record.
        for junk in [vec![23], b"GET / HTTP/1.1".to_vec(), vec![0; 100]] {
            assert_eq!(ours.read(junk), Ok(Incoming::Nothing));
        }
        assert_eq!(ours.open(vec![]), Ok(Opened::NeedMore { at_least: HEADER_BYTES }));
        let data = ours.send(b"our half stays open").unwrap();
        assert!(matches!(peer.read(data), Ok(Incoming::Data(_))));
        let close = ours.alert(alert::CLOSE_NOTIFY);
        assert_eq!(peer.read(close), Ok(Incoming::CloseNotify));
    });
}

#[test]
fn close_notify_from_us() {
    each(|version, suite| {
        let (mut ours, mut peer) = pair(version, suite);
        let close = ours.alert(alert::CLOSE_NOTIFY);
        assert_eq!(peer.read(close), Ok(Incoming::CloseNotify));
        assert!(ours.session.write_closed() && !ours.session.read_closed());
        assert_eq!(ours.send(b"x"), Err(RecordFault::Closed));
        assert_eq!(ours.alert(alert::CLOSE_NOTIFY), []);
        assert_eq!(ours.alert(alert::INTERNAL_ERROR), []);
        let data = peer.send(b"the peer's half stays open").unwrap();
        assert!(matches!(ours.read(data), Ok(Incoming::Data(_))));
    });
}

#[test]
fn alerts_from_the_peer() {
    let table: &[(Version, [u8; 2], Incoming)] = &[
        (Version::Tls12, [1, 0], Incoming::CloseNotify),
        (Version::Tls12, [2, 0], Incoming::CloseNotify),
        (Version::Tls12, [1, 90], Incoming::Nothing),
        (Version::Tls12, [1, 100], Incoming::Nothing),
        (Version::Tls12, [2, 40], Incoming::PeerAlert(40)),
        (Version::Tls12, [2, 255], Incoming::PeerAlert(255)),
        (Version::Tls13, [1, 0], Incoming::CloseNotify),
        (Version::Tls13, [2, 0], Incoming::CloseNotify),
        (Version::Tls13, [1, 90], Incoming::Nothing),
        (Version::Tls13, [2, 90], Incoming::Nothing),
        (Version::Tls13, [1, 100], Incoming::PeerAlert(100)),
        (Version::Tls13, [1, 20], Incoming::PeerAlert(20)),
        (Version::Tls13, [2, 80], Incoming::PeerAlert(80)),
    ];
    for (version, message, expected) in table {
        let (mut ours, mut peer) = pair(*version, Suite::Aes128Gcm);
        let record = peer.send_as(content::ALERT, message);
        assert_eq!(ours.read(record).as_ref(), Ok(expected), "{version:?} {message:?}");
        let over = matches!(expected, Incoming::PeerAlert(_));
        assert_eq!(ours.session.write_closed(), over);
        // Neither an alert nor a record answers a fatal alert.
        assert_eq!(ours.alert(alert::CLOSE_NOTIFY).is_empty(), over);
    }
}

/// TLS 1.2 renegotiation: one warning, then the end. The same for a server with its client and for
/// a client with its server.
#[test]
fn renegotiation_is_refused_once() {
    let mut hello = vec![1, 0, 0, 200];
    hello.resize(204, 7);
    for (role, message) in [(Role::Server, &hello[..]), (Role::Client, &HELLO_REQUEST[..])] {
        let (server, client) = pair(Version::Tls12, Suite::Aes128Gcm);
        let (mut ours, mut peer) =
            if role == Role::Server { (server, client) } else { (client, server) };
        let (head, tail) = message.split_at(3);
        let record = peer.send_as(content::HANDSHAKE, head);
        assert_eq!(ours.read(record), Ok(Incoming::Nothing));
        let record = peer.send_as(content::HANDSHAKE, tail);
        assert_eq!(ours.read(record), Ok(Incoming::Reply));
        assert!(ours.session.control_due());
        let warning = ours.control();
        assert_eq!(warning.len(), ours.session.record_len(2));
        assert_eq!(peer.read(warning), Ok(Incoming::Nothing));
        assert_eq!(ours.control(), []);
        let data = peer.send(b"then as before").unwrap();
        assert!(matches!(ours.read(data), Ok(Incoming::Data(_))));
        let record = peer.send_as(content::HANDSHAKE, message);
        assert_eq!(ours.read(record), Err(RecordFault::TooManyRenegotiations));
    }
}
