//! The JSON of batches, member by member. A reader of OpenTelemetry's own reads it in the tests of
//! the program.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use eyelet_telemetry::info::Outcome;
use serde_json::{Value, json};

use super::*;

fn exchange() -> ExchangeSpans {
    ExchangeSpans {
        trace_id: [0xab; 16],
        span_id: [0xcd; 8],
        parent: None,
        began: UNIX_EPOCH + Duration::from_secs(5),
        duration: Duration::from_millis(3),
        method: "GET".into(),
        path: "/a".into(),
        host: Some("app.example:8443".into()),
        is_tls: true,
        version: "1.1",
        client: "[::ffff:192.0.2.7]:50000".parse().unwrap(),
        is_quic: false,
        status: Some(200),
        outcome: Outcome::Terminated,
        reason: "complete",
        failure: None,
        rule: Some("app".into()),
        connection: (1 << 48) + 7,
        upstream: None,
    }
}

fn spans(batch: &[ExchangeSpans]) -> Vec<Value> {
    let whole: Value = serde_json::from_slice(&encode(batch, "edge")).unwrap();
    let resource = &whole["resourceSpans"][0];
    let name = json!({ "key": "service.name", "value": { "stringValue": "edge" } });
    assert_eq!(resource["resource"]["attributes"][0], name);
    resource["scopeSpans"][0]["spans"].as_array().unwrap().clone()
}

fn attribute<'a>(span: &'a Value, key: &str) -> Option<&'a str> {
    let all = span["attributes"].as_array().unwrap();
    let found = all.iter().find(|attribute| attribute["key"] == key)?;
    let value = found["value"].as_object().unwrap().values().next().unwrap();
    Some(value.as_str().unwrap())
}

/// A flow that was refused: nothing is said of a request that nobody has read.
#[test]
fn a_refused_flow_of_quic_is_a_span_without_a_request() {
    let refused = ExchangeSpans {
        is_quic: true,
        method: "".into(),
        path: "".into(),
        host: Some("games.example".into()),
        status: None,
        outcome: Outcome::Refused,
        reason: "refused by name",
        ..exchange()
    };
    let spans = spans(&[refused]);
    assert_eq!((spans.len(), &spans[0]["name"]), (1, &json!("QUIC")));
    for (key, value) in [
        ("network.transport", Some("quic")),
        ("server.address", Some("games.example")),
        ("eyelet.outcome", Some("refused")),
        ("eyelet.reason", Some("refused by name")),
        ("eyelet.rule", Some("app")),
        ("client.address", Some("192.0.2.7")),
        ("http.request.method", None),
        ("url.path", None),
        ("error.type", None),
    ] {
        assert_eq!(attribute(&spans[0], key), value, "{key}");
    }
}

#[test]
fn an_exchange_with_an_upstream_is_two_spans() {
    let upstream = UpstreamSpan {
        span_id: [0xef; 8],
        after: Duration::from_millis(1),
        duration: Duration::from_millis(2),
        name: Some(Arc::from("[2001:db8::1]:8080")),
        status: Some(404),
        resends: 1,
    };
    let whole = ExchangeSpans {
        parent: Some([0x11; 8]),
        status: Some(404),
        upstream: Some(upstream),
        ..exchange()
    };
    let spans = spans(&[whole]);
    let [server, client] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(server["traceId"], "ab".repeat(16));
    assert_eq!(server["spanId"], "cd".repeat(8));
    assert_eq!(server["parentSpanId"], "11".repeat(8));
    assert_eq!(server["flags"], 0x301);
    assert_eq!((&server["kind"], &client["kind"]), (&json!(2), &json!(3)));
    assert_eq!(server["startTimeUnixNano"], "5000000000");
    assert_eq!(server["endTimeUnixNano"], "5003000000");
    assert_eq!(client["startTimeUnixNano"], "5001000000");
    assert_eq!(client["endTimeUnixNano"], "5003000000");
    assert_eq!(client["parentSpanId"], server["spanId"]);
    for (key, expected) in [
        ("http.request.method", "GET"),
        ("url.path", "/a"),
        ("url.scheme", "https"),
        ("client.address", "192.0.2.7"),
        ("server.address", "app.example"),
        ("server.port", "8443"),
        ("http.response.status_code", "404"),
        ("eyelet.rule", "app"),
        ("eyelet.outcome", "terminated"),
        ("eyelet.connection", "1-7"),
    ] {
        assert_eq!(attribute(server, key), Some(expected), "{key}");
    }
    for (key, expected) in [
        ("server.address", "2001:db8::1"),
        ("server.port", "8080"),
        ("http.request.resend_count", "1"),
        ("error.type", "404"),
    ] {
        assert_eq!(attribute(client, key), Some(expected), "{key}");
    }
    // A client of a Unix socket has no port.
    let peer = LocalPeer { uid: 1000, pid: 4242 };
    let local = self::spans(&[ExchangeSpans { client: peer.address(), ..exchange() }]);
    assert_eq!(attribute(&local[0], "client.address"), Some("unix:uid=1000,pid=4242"));
    assert_eq!(attribute(&local[0], "client.port"), None);
    // What is an error for who asks is none for who answers.
    assert_eq!((attribute(server, "error.type"), server.get("status")), (None, None));
    assert_eq!(client["status"]["code"], 2);
}

#[test]
fn errors_have_a_type() {
    let error = |status, failure| {
        let spans = spans(&[ExchangeSpans { status, failure, ..exchange() }]);
        let is_error = spans[0].get("status").is_some();
        (attribute(&spans[0], "error.type").map(str::to_owned), is_error)
    };
    assert_eq!(error(Some(200), None), (None, false));
    assert_eq!(error(Some(500), None), (Some("500".into()), true));
    assert_eq!(error(Some(502), Some("unreachable")), (Some("unreachable".into()), true));
    assert_eq!(error(None, Some("left")), (None, false));
}

#[test]
fn a_method_of_the_clients_own_is_no_name() {
    let spans = spans(&[ExchangeSpans { method: "XGET".into(), ..exchange() }]);
    assert_eq!(spans[0]["name"], "HTTP");
    assert_eq!(attribute(&spans[0], "http.request.method"), Some("_OTHER"));
    assert_eq!(attribute(&spans[0], "http.request.method_original"), Some("XGET"));
}

#[test]
fn addresses_are_split_from_ports() {
    for (name, expected) in [
        ("10.0.0.5:8080", ("10.0.0.5", Some(8080))),
        ("app.example", ("app.example", None)),
        ("[::1]", ("::1", None)),
        ("[::1]:443", ("::1", Some(443))),
        ("unix:/run/app.sock", ("unix:/run/app.sock", None)),
    ] {
        assert_eq!(split(name), expected, "{name}");
    }
}
