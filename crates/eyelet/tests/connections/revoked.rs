//! Revocation lists: whose certificate is on one is refused, also after a change of the list, and
//! with a ticket from before it.

use std::io::Write;
use std::time::Duration;

use rcgen::{CrlDistributionPoint, CrlIssuingDistributionPoint, CrlScope};

use crate::support::client::{Offer, Tls, alert_in, echo, handshake};
use crate::support::edge::{LISTENER, connect, eyelet};
use crate::support::pki::{Kind, Leaf};
use crate::support::upstream::vacant;
use crate::support::web::{Web, get};
use crate::support::{Edge, Pki, Upstream, output, until};

const GOOD: Result<Duration, Duration> = Ok(Duration::from_hours(10));
const EXPIRED: Result<Duration, Duration> = Err(Duration::from_hours(10));
/// certificate_revoked (RFC 8446 section 6.2).
const REVOKED: u8 = 44;

fn edge(pki: &Pki, upstream: &Upstream, more: &str) -> Edge {
    let keys = format!("client_ca = \"ca.pem\"\nclient_crl = \"clients.crl\"\n{more}");
    let rule = pki.terminate(&format!("tcp://{}", upstream.address), &keys);
    Edge::start_whole(&pki.folder, &format!("workers = 1\n{LISTENER}{rule}"), |_| ())
}

/// A connection that has been answered, or the alert for it.
fn ask(pki: &Pki, edge: &Edge, certificate: &Leaf) -> Result<Tls, Option<u8>> {
    let offer = Offer { certificate: Some(certificate), ..Offer::new(pki) };
    let mut tls = offer.connect(edge.address(), "app.test");
    answered(&mut tls).map(|()| tls)
}

/// In TLS 1.3 a client learns of its certificate by what it reads next.
fn answered(tls: &mut Tls) -> Result<(), Option<u8>> {
    let mut back = [0; 4];
    tls.write_all(b"ping").map_err(|error| alert_in(&error))?;
    std::io::Read::read_exact(tls, &mut back).map_err(|error| alert_in(&error))?;
    assert_eq!(&back, b"ping");
    Ok(())
}

#[test]
fn a_revoked_client_is_refused_also_after_a_change_and_with_its_ticket() {
    let (pki, upstream) = (Pki::new(), Upstream::echo());
    let [good, revoked] = [7, 8].map(|n| pki.client_numbered(&format!("client{n}"), n));
    let file = pki.folder.write("clients.crl", pki.revoke(&[8], GOOD));
    let edge = edge(&pki, &upstream, "");
    edge.wait_log("clients.crl first: 1 certificates, good until ");
    assert_eq!(ask(&pki, &edge, &revoked).err(), Some(Some(REVOKED)));
    let line = edge.line("the refusal", |line| line["outcome"] == "failed");
    assert!(line["reason"].as_str().unwrap().contains("Revoked"), "{line}");
    drop(ask(&pki, &edge, &good).unwrap());

    // A client with a ticket, and then its certificate is on the list.
    let config = Offer { certificate: Some(&good), ..Offer::new(&pki) }.config();
    let shake = || handshake(config.clone(), connect(edge.address()), "app.test").unwrap();
    let mut first = shake();
    echo(&mut first, b"hello");
    let mut again = shake();
    echo(&mut again, b"hello");
    assert_eq!(again.conn.handshake_kind(), Some(rustls::HandshakeKind::Resumed));
    let pem = pki.folder.write("next", pki.revoke(&[7, 8], GOOD));
    std::fs::rename(pem, file).unwrap();
    edge.wait_log("clients.crl first: 2 certificates, good until ");
    until("the list to count", || answered(&mut shake()).err().filter(|why| *why == Some(REVOKED)));
    echo(&mut first, b"it goes on");

    // A file that is broken changes nothing.
    pki.folder.write("clients.crl", "no list");
    edge.wait_log("no revocation list in it");
    assert_eq!(answered(&mut shake()), Err(Some(REVOKED)));
}

#[test]
fn an_expired_list_refuses_its_clients_unless_the_rule_accepts_it() {
    let (pki, upstream) = (Pki::new(), Upstream::echo());
    let [good, revoked] = [7, 8].map(|n| pki.client_numbered(&format!("client{n}"), n));
    pki.folder.write("clients.crl", pki.revoke(&[8], EXPIRED));
    let closed = edge(&pki, &upstream, "");
    closed.wait_log("a revocation list has expired at ");
    assert!(ask(&pki, &closed, &good).is_err());
    let line = closed.line("the refusal", |line| line["outcome"] == "failed");
    assert!(line["reason"].as_str().unwrap().contains("ExpiredRevocationList"), "{line}");
    drop(closed);
    let open = edge(&pki, &upstream, "crl_expired = \"accept\"");
    open.wait_log("it counts by `crl_expired = \"accept\"`");
    drop(ask(&pki, &open, &good).unwrap());
    assert_eq!(ask(&pki, &open, &revoked).err(), Some(Some(REVOKED)));
}

#[test]
fn check_says_what_is_wrong_with_a_list() {
    let (pki, other) = (Pki::new(), Pki::new());
    let list = pki.revoke(&[8], GOOD);
    for (bytes, keys, said) in [
        (list.clone(), "client_ca = \"ca.pem\"", "ok, 1 listener, 1 rule\n"),
        (list.clone(), "", "the lists are of authorities: `client_ca` names their certificates"),
        (other.revoke(&[8], GOOD), "client_ca = \"ca.pem\"", "its signature is not its issuer's"),
        (b"no list".to_vec(), "client_ca = \"ca.pem\"", "expected PEM (\"X509 CRL\") or DER"),
        (list[..list.len() - 1].to_vec(), "client_ca = \"ca.pem\"", "this revocation list cannot"),
        (pki.revoke(&[8], EXPIRED), "client_ca = \"ca.pem\"", "a revocation list has expired at"),
    ] {
        pki.folder.write("clients.crl", bytes);
        let rule =
            pki.terminate("tcp://127.0.0.1:1", &format!("client_crl = \"clients.crl\"\n{keys}"));
        let file = pki.folder.write("edge.toml", format!("{LISTENER}{rule}"));
        let text = output(eyelet(&pki.folder).arg("check").arg(file)).text;
        assert!(text.contains(said), "{said}: {text}");
    }
}

/// The upstream is another edge.
#[test]
fn a_revoked_upstream_is_not_asked() {
    let pki = Pki::new();
    let [nobody] = vacant();
    pki.server_with("edge", &["app.test"], |params| params.serial_number = Some(9.into()));
    let rule = pki.terminate(&format!("http://{nobody}"), "");
    let behind = Edge::start_whole(&pki.folder, &format!("workers = 1\n{LISTENER}{rule}"), |_| ());
    for (revoked, said) in
        [(8, "complete"), (9, "upstream: TLS: invalid peer certificate: Revoked")]
    {
        let front = Pki::new();
        front.folder.write("upstream.pem", std::fs::read(pki.file("ca.pem")).unwrap());
        front.folder.write("upstream.crl", pki.revoke(&[revoked], GOOD));
        let keys = "upstream_ca = \"upstream.pem\"\nupstream_crl = \"upstream.crl\"\n\
                    upstream_name = \"app.test\"";
        let rule = front.terminate(&format!("https://{}", behind.address()), keys);
        let config = format!("workers = 1\n{LISTENER}{rule}");
        let edge = Edge::start_whole(&front.folder, &config, |_| ());
        let mut tls = Offer::new(&front).connect(edge.address(), "app.test");
        tls.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        let line = edge.line("the request", |line| line["event"] == "request");
        assert_eq!(line["reason"], said, "{line}");
    }
}

/// A list of a distribution point is for the certificates that name it.
#[test]
fn a_client_needs_the_list_of_its_distribution_point() {
    let (pki, upstream) = (Pki::new(), Upstream::echo());
    let [named, other, revoked] = [(7, "1"), (8, "2"), (9, "1")].map(|(serial, part)| {
        let point = CrlDistributionPoint { uris: vec![format!("http://crl.test/{part}.crl")] };
        pki.client_with(&format!("client{serial}"), |params| {
            params.serial_number = Some(serial.into());
            params.crl_distribution_points = vec![point];
        })
    });
    let point = CrlDistributionPoint { uris: vec!["http://crl.test/1.crl".into()] };
    let scope = Some(CrlScope::UserCertsOnly);
    let part = CrlIssuingDistributionPoint { distribution_point: point, scope };
    pki.folder.write("clients.crl", pki.revoke_part(&[9], GOOD, Some(part)));
    let edge = edge(&pki, &upstream, "");
    drop(ask(&pki, &edge, &named).unwrap());
    assert_eq!(ask(&pki, &edge, &revoked).err(), Some(Some(REVOKED)));
    assert!(ask(&pki, &edge, &other).is_err());
    edge.line("the other part", |line| {
        line["reason"].as_str().is_some_and(|why| why.contains("UnknownRevocationStatus"))
    });
}

/// Nor does a file that is written again with what it has.
#[test]
fn a_reload_ends_no_kept_connection_to_an_upstream_with_the_same_lists() {
    let pki = Pki::new();
    let app = Upstream::counting(pki.server("app", &["app.test"], Kind::P256));
    let list = pki.revoke(&[9], GOOD);
    pki.folder.write("upstream.crl", &list);
    let keys = "upstream_ca = \"ca.pem\"\nupstream_crl = \"upstream.crl\"\n\
                upstream_name = \"app.test\"";
    let web = Web::at(pki, "https", app, keys, "");
    let mut client = web.connect();
    let mut ask = || String::from_utf8(get(&mut client, "/").body).unwrap();
    assert_eq!(ask(), "connection 0");
    web.reload("workers = 1\n", "workers = 1\n# read again\n");
    assert_eq!(ask(), "connection 0");
    let read = || web.edge.log().matches("upstream.crl first: 1 certificates").count();
    let before = read();
    web.pki.folder.write("upstream.crl", &list);
    until("the list", || (read() > before).then_some(()));
    assert_eq!(ask(), "connection 0");
    web.pki.folder.write("upstream.crl", web.pki.revoke(&[8, 9], GOOD));
    web.edge.wait_log("upstream.crl first: 2 certificates");
    until("the new list to count", || (ask() == "connection 1").then_some(()));
}
