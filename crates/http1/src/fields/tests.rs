//! Tables of fields before and after they are passed on.
#![allow(clippy::unwrap_used)]

use super::*;

mod gateway;

fn request(fields: &[(&str, &str)]) -> request::Parts {
    let mut request = http::Request::get("https://a.test/p?q").version(Version::HTTP_11);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn sent(fields: &[(&str, &str)], client: &str, trusted: bool) -> String {
    sent_by(fields, client, trusted, None)
}

fn sent_by(
    fields: &[(&str, &str)],
    client: &str,
    trusted: bool,
    certificate: Option<&[u8]>,
) -> String {
    let mut request = request(fields);
    let client = client.parse().unwrap();
    let requester = Requester::new(client, "a.test", request.version, certificate);
    to_upstream(&mut request, Length::Empty, None, FieldRoles::UNKNOWN);
    let forwarded = requester.identify(&mut request.headers, trusted);
    String::from_utf8(write_request(&request, "a.test", &forwarded, false).to_vec()).unwrap()
}

#[test]
fn strangers_are_not_believed() {
    let lies = [
        ("Forwarded", "for=1.1.1.1"),
        ("X-Forwarded-For", "1.1.1.1"),
        ("X-Forwarded-Proto", "http"),
        ("X-Forwarded-Port", "80"),
        ("X-Real-IP", "1.1.1.1"),
        ("Client-Cert", ":MIIB:"),
        ("Client_Cert_Chain", ":MIIB:"),
        ("X_Forwarded_For", "1.1.1.1"),
        ("X-Real_IP", "1.1.1.1"),
    ];
    assert_eq!(
        sent(&lies, "2001:db8::1", false),
        "GET /p?q HTTP/1.1\r\nhost: a.test\r\nvia: 1.1 eyelet\r\n\
         forwarded: for=\"[2001:db8::1]\";host=\"a.test\";proto=https\r\n\
         x-forwarded-for: 2001:db8::1\r\nx-forwarded-host: a.test\r\n\
         x-forwarded-proto: https\r\n\r\n"
    );
    let believed = sent(&lies, "192.0.2.1", true);
    for line in [
        "forwarded: for=1.1.1.1, for=192.0.2.1;host=\"a.test\";proto=https\r\n",
        "x-forwarded-for: 1.1.1.1, 192.0.2.1\r\n",
        "x-forwarded-proto: http\r\n",
        "x-forwarded-port: 80\r\n",
    ] {
        assert!(believed.contains(line), "{line:?} in {believed}");
    }
    assert!(!believed.contains('_'), "{believed}");
}

/// The client of this connection has shown a certificate, so nobody's word about one passes.
#[test]
fn a_certificate_replaces_what_is_said_of_one() {
    let lies = [("Client-Cert", ":MIIB:"), ("Client-Cert-Chain", ":MIIB:"), ("Accept", "*/*")];
    for trusted in [false, true] {
        let sent = sent_by(&lies, "192.0.2.1", trusted, Some(&[0, 0xff, 0xfe, 1]));
        assert!(sent.contains("\r\nclient-cert: :AP/+AQ==:\r\n"), "{sent}");
        assert_eq!(sent.matches("client-cert").count(), 1, "{sent}");
    }
    assert!(sent(&lies, "192.0.2.1", true).contains("\r\nclient-cert: :MIIB:\r\n"));
    assert!(!sent(&lies, "192.0.2.1", false).contains("client-cert"));
}

#[test]
fn hop_by_hop_fields_go() {
    let sent = sent(
        &[
            ("Connection", "keep-alive, X-Mine, close"),
            ("X-Mine", "1"),
            ("Keep-Alive", "timeout=5"),
            ("Proxy-Connection", "close"),
            ("TE", "trailers"),
            ("Upgrade", "websocket"),
            ("X-Theirs", "2"),
            ("Cookie", "a=1"),
            ("Cookie", "b=2"),
        ],
        "192.0.2.1",
        false,
    );
    for client_lost in ["connection", "x-mine", "keep-alive", "te:", "upgrade"] {
        assert!(!sent.contains(client_lost), "{client_lost} in {sent}");
    }
    assert!(sent.contains("x-theirs: 2\r\n") && sent.contains("cookie: a=1; b=2\r\n"), "{sent}");
}

#[test]
fn a_joined_cookie_is_as_secret_as_its_parts() {
    for is_secret in [false, true] {
        let mut request = request(&[("Cookie", "a=1"), ("Cookie", "b=2")]);
        let second = request.headers.iter_mut().nth(1).unwrap().1;
        second.set_sensitive(is_secret);
        to_upstream(&mut request, Length::Empty, None, FieldRoles::UNKNOWN);
        let joined = &request.headers[header::COOKIE];
        assert_eq!((joined.as_bytes(), joined.is_sensitive()), (&b"a=1; b=2"[..], is_secret));
    }
}

/// A head that grows asserts in `write_request`.
#[test]
fn a_head_with_a_secret_never_grows() {
    let request = request(&[("Authorization", "Bearer token-123")]);
    let (client, host) = ("2001:db8::1".parse().unwrap(), "h".repeat(2_000));
    let certificate = [7; 9_000];
    let requester = Requester::new(client, &host, request.version, Some(&certificate));
    let forwarded = requester.identify(&mut request.headers.clone(), false);
    let head = write_request(&request, &host, &forwarded, true);
    assert!(head.len() > 12_000 + 2 * host.len(), "{}", head.len());
}

#[test]
fn who_may_switch_protocols() {
    let asks = |upgrade_to: &str, connection: &str, length| {
        let fields = [("Connection", connection), ("Upgrade", upgrade_to)];
        upgrade(&request(&fields), length).is_some()
    };
    assert!(asks("websocket", "keep-alive, Upgrade", Length::Empty));
    assert!(!asks("websocket", "keep-alive", Length::Empty));
    assert!(!asks("websocket", "Upgrade", Length::Known(1)));
    assert!(!asks("websocket", "Upgrade", Length::Chunked));
    assert!(!asks("h2c", "Upgrade", Length::Empty));
}

#[test]
fn an_upstream_may_want_one_of_several_protocols() {
    for (status, wanted) in [(426, vec!["a/1", "b/2"]), (200, vec![])] {
        let said = http::Response::builder().status(status);
        let said = said.header("upgrade", "a/1").header("upgrade", "b/2").body(()).unwrap();
        let mut head = said.into_parts().0;
        to_client(&mut head, FieldRoles::UNKNOWN);
        let left: Vec<_> = head.headers.get_all("upgrade").iter().collect();
        assert_eq!(left, wanted, "{status}");
    }
}

/// A hop names one protocol, of those that were asked for.
#[test]
fn a_101_names_the_protocol_that_was_asked_for() {
    for (asked, said, expected) in [
        ("websocket", &["websocket"][..], Some("websocket")),
        ("websocket", &["WebSocket"], Some("WebSocket")),
        ("a, b", &["b"], Some("b")),
        ("websocket", &[], None),
        ("websocket", &["h2c"], None),
        ("websocket", &["websocket, h2c"], None),
        ("websocket", &["websocket", "h2c"], None),
        ("websocket", &["websocket", "websocket"], None),
    ] {
        let mut head = http::Response::builder().status(101);
        for said in said {
            head = head.header(header::UPGRADE, *said);
        }
        let (head, ()) = head.body(()).unwrap().into_parts();
        let chosen = chosen(&HeaderValue::from_static(asked), &head);
        assert_eq!(chosen.as_ref().map(|chosen| chosen.to_str().unwrap()), expected, "{said:?}");
    }
}
