//! Every response with every client: coded at most once, decodable, and with the fields that caches
//! and conditions need.

use super::*;

const ACCEPTS: &[Option<&str>] = &[
    None,
    Some(""),
    Some("identity"),
    Some("gzip"),
    Some("br"),
    Some("zstd"),
    Some("gzip, deflate, br, zstd"),
    Some("gzip, deflate, br, zstd, dcb, dcz"),
    Some("gzip;q=1.0, zstd;q=0.5, br;q=0"),
    Some("*"),
    Some("*;q=0"),
    Some("identity;q=0, *;q=0.1"),
    Some("br;q=0.5, identity"),
    Some("deflate"),
    Some("dcz"),
    Some("GZIP ;q=0.3"),
    Some("gzip;q=banana"),
];

const HTML: (&str, &str) = ("content-type", "text/html; charset=utf-8");

/// Name, status, fields, body, whether it may be coded.
type Kind = (&'static str, u16, Vec<(&'static str, &'static str)>, Vec<u8>, bool);

fn kinds() -> Vec<Kind> {
    let gzipped = {
        let mut encoder =
            flate2::read::GzEncoder::new(&b"zipped before"[..], flate2::Compression::fast());
        let mut out = Vec::new();
        encoder.read_to_end(&mut out).unwrap();
        out
    };
    let no_type = Vec::new;
    vec![
        ("html", 200, vec![HTML], text(20_000, 1), true),
        ("page not found", 404, vec![HTML], text(3_000, 2), true),
        ("large", 200, vec![("content-type", "application/json")], text(1_500_000, 3), true),
        ("strong tag", 200, vec![HTML, ("etag", "\"a\"")], text(5_000, 4), true),
        ("weak tag", 200, vec![HTML, ("etag", "W/\"a\"")], text(5_000, 4), true),
        ("varies", 200, vec![HTML, ("vary", "Accept, Origin")], text(5_000, 5), true),
        ("ranges", 200, vec![HTML, ("accept-ranges", "bytes")], text(5_000, 5), true),
        ("short", 200, vec![HTML], text(511, 6), false),
        ("empty", 200, vec![HTML], Vec::new(), false),
        ("png", 200, vec![("content-type", "image/png")], text(5_000, 7), false),
        ("unknown text", 200, no_type(), text(9_000, 8), true),
        (
            "octets text",
            200,
            vec![("content-type", "application/octet-stream")],
            text(9_000, 9),
            true,
        ),
        (
            "octets noise",
            200,
            vec![("content-type", "application/octet-stream")],
            noise(9_000),
            false,
        ),
        ("coded", 200, vec![HTML, ("content-encoding", "gzip")], gzipped, false),
        ("part", 206, vec![HTML, ("content-range", "bytes 0-999/5000")], text(1_000, 1), false),
        ("no-transform", 200, vec![HTML, ("cache-control", "no-transform")], text(5_000, 1), false),
        ("events", 200, vec![("content-type", "text/event-stream")], text(5_000, 1), false),
        ("digest", 200, vec![HTML, ("content-digest", "sha-256=:x:")], text(5_000, 1), false),
        ("no content", 204, vec![], Vec::new(), false),
        ("not modified", 304, vec![("etag", "\"a\"")], Vec::new(), false),
    ]
}

#[test]
fn every_client_with_every_response() {
    let scratch = tempfile::tempdir().unwrap();
    let mut coded = 0;
    for effort in ["auto", "fast", "even", "small"] {
        let edge = Edge::new(&format!("compress_effort = \"{effort}\""), scratch.path());
        for (name, status, fields, body, may) in &kinds() {
            if effort != "auto" && body.len() > 1_000_000 {
                continue;
            }
            for accept in ACCEPTS {
                for (known, piece) in [(true, body.len().max(1)), (false, 4_096), (true, 4_096)] {
                    let request: Vec<_> =
                        accept.iter().map(|accept| ("accept-encoding", *accept)).collect();
                    let pieces: Vec<&[u8]> = body.chunks(piece).collect();
                    let answer = Answer { status: *status, fields, pieces: &pieces, known };
                    let got = edge.exchange(&request, &answer);
                    let case = format!("{name} to {accept:?}, {known} {piece} {effort}");
                    check(&case, &got, &answer, body, *may, accept.unwrap_or_default());
                    coded += usize::from(got.coding_info.coding.is_some());
                }
            }
        }
    }
    assert!(coded > 500, "{coded}");
}

fn check(case: &str, got: &Got, answer: &Answer<'_>, body: &[u8], may: bool, accept: &str) {
    let field = |name: &str| got.headers.get(name).map(|value| value.to_str().unwrap());
    let sent = answer.head().headers;
    if let Some(coding) = got.coding_info.coding {
        assert!(may, "{case}: coded");
        assert_eq!(field("content-encoding"), Some(coding), "{case}");
        let named = accept.to_ascii_lowercase();
        assert!(named.contains(coding) || named.contains('*'), "{case}: {coding}");
        assert_eq!(field("content-length"), None, "{case}");
        assert_eq!(field("accept-ranges"), None, "{case}");
        assert!(!field("etag").is_some_and(|tag| tag.starts_with('"')), "{case}: strong");
        assert_eq!(got.coding_info.why_not, None, "{case}");
        assert_eq!(got.coding_info.bytes_identity, body.len() as u64, "{case}");
        assert!(got.body.len() < body.len(), "{case}: {} of {}", got.body.len(), body.len());
        assert!(decode(&got.headers, &got.body, &[]) == body, "{case}: body");
    } else {
        assert_eq!(got.headers.get("content-encoding"), sent.get("content-encoding"), "{case}");
        assert_eq!(got.headers.get("content-length"), sent.get("content-length"), "{case}");
        assert!(got.body == body, "{case}: body");
        assert!(got.coding_info.why_not.is_some(), "{case}");
        assert_eq!(got.headers.get("etag"), sent.get("etag"), "{case}");
    }
    let varies = field("vary").unwrap_or_default().to_ascii_lowercase();
    // A body with a known length below 512 is never coded; one of unknown length may be. A part has
    // the Vary of its whole (RFC 9110 15.3.7).
    if may || answer.status == 206 {
        assert!(varies.contains("accept-encoding"), "{case}: {varies:?}");
    }
    let theirs = sent.get("vary").map(|value| value.to_str().unwrap().to_ascii_lowercase());
    assert!(varies.starts_with(&theirs.unwrap_or_default()), "{case}: {varies}");
}

/// The table with the usual programs, if they are installed.
#[test]
fn foreign_decoders_agree() {
    let scratch = tempfile::tempdir().unwrap();
    let edge = Edge::new("", scratch.path());
    let body = text(200_000, 11);
    let pieces: Vec<&[u8]> = body.chunks(10_000).collect();
    for (coding, program, arguments) in
        [("gzip", "gzip", ["-dc"]), ("br", "brotli", ["-dc"]), ("zstd", "zstd", ["-dc"])]
    {
        let answer = Answer { status: 200, fields: &[HTML], pieces: &pieces, known: false };
        let got = edge.exchange(&[("accept-encoding", coding)], &answer);
        assert_eq!(got.coding_info.coding, Some(coding));
        let file = scratch.path().join(coding);
        std::fs::write(&file, &got.body).unwrap();
        let input = std::fs::File::open(&file).unwrap();
        let decoded = std::process::Command::new(program).args(arguments).stdin(input).output();
        match decoded {
            Ok(decoded) => assert!(decoded.stdout == body, "{program}"),
            Err(_) => skipped("foreign_decoders_agree", &format!("no {program}")),
        }
    }
}

/// Reports a skipped test, as the end-to-end tests do: `.ci/run` counts these lines.
fn skipped(test: &str, reason: &str) {
    use std::io::Write;
    eprintln!("skipped: {test}: {reason}");
    if let Some(log) = std::env::var_os("EYELET_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(log);
        writeln!(file.unwrap(), "{test}: {reason}").unwrap();
    }
}

#[test]
fn the_breach_rule_asks_for_identity_and_says_why() {
    let scratch = tempfile::tempdir().unwrap();
    let body = text(20_000, 1);
    let answer = Answer { status: 200, fields: &[HTML], pieces: &[&body], known: true };
    let accept = ("accept-encoding", "gzip, br, zstd");
    let (cookie, browser) = (("cookie", "session=1"), ("user-agent", "Mozilla/5.0 (X11)"));
    let sibling = ("sec-fetch-site", "same-site");
    for (terms, request, why) in [
        ("", &[accept, cookie][..], None),
        ("", &[accept, cookie, browser], Some("breach: unknown origin")),
        ("", &[accept, ("cookie", ""), browser], None),
        ("", &[accept, cookie, sibling], Some("breach: other origin")),
        ("breach_allow = [\"same-site\"]", &[accept, cookie, sibling], None),
        ("", &[accept, cookie, ("sec-fetch-site", "cross-site")], Some("breach: other origin")),
        ("", &[accept, cookie, ("sec-fetch-site", "same-origin")], None),
        ("", &[accept, cookie, ("referer", "https://app.example/")], None),
        ("", &[accept, cookie, ("origin", "https://x.example")], Some("breach: foreign referer")),
        ("", &[accept, ("authorization", "Basic eA==")], None),
        ("breach_rule = \"off\"", &[accept, cookie, browser], None),
        ("compress = \"off\"", &[accept, cookie, browser], Some("off by rule")),
    ] {
        let got = Edge::new(terms, scratch.path()).exchange(request, &answer);
        assert_eq!(got.coding_info.why_not, why, "{request:?}");
        let breach = why.is_some_and(|why| why.starts_with("breach"));
        assert_eq!(got.asked["accept-encoding"] == "identity", breach, "{request:?}");
        assert_eq!(got.headers.get("vary").is_some(), why != Some("off by rule"));
    }
}

/// The upstream was asked for identity before it was known that its response is public.
#[test]
fn a_public_response_is_coded_for_every_client() {
    let scratch = tempfile::tempdir().unwrap();
    let body = text(20_000, 1);
    let asset = ("cache-control", "public, max-age=31536000, immutable");
    let request = [
        ("accept-encoding", "gzip, br, zstd"),
        ("cookie", "session=1"),
        ("sec-fetch-site", "same-site"),
    ];
    for (fields, why) in [
        (&[HTML, asset][..], None),
        (&[HTML, asset, ("set-cookie", "s=1")], Some("breach: other origin")),
    ] {
        let answer = Answer { status: 200, fields, pieces: &[&body], known: true };
        let got = Edge::new("", scratch.path()).exchange(&request, &answer);
        assert_eq!(got.coding_info.why_not, why, "{fields:?}");
        assert!(decode(&got.headers, &got.body, &[]) == body);
        assert!(why.is_some() || got.body.len() < body.len() / 2);
    }
}

/// `compress = "none"`: the upstream is asked for identity, and its response passes as it is.
#[test]
fn with_none_the_upstream_is_asked_for_identity() {
    let scratch = tempfile::tempdir().unwrap();
    let edge = Edge::new("compress = \"none\"", scratch.path());
    let body = text(5_000, 1);
    let answer =
        Answer { status: 200, fields: &[HTML, ("etag", "\"a\"")], pieces: &[&body], known: true };
    for more in [&[][..], &[("cookie", "a=b"), ("sec-fetch-site", "cross-site")]] {
        let mut request = vec![
            ("accept-encoding", "gzip, br, zstd, dcz"),
            ("available-dictionary", ":pZGm1Av0IEBKARczz7exkNYsZb8LzaMrV7J32a2fFG4=:"),
            ("range", "bytes=0-9"),
        ];
        request.extend(more);
        let got = edge.exchange(&request, &answer);
        assert_eq!(got.asked["accept-encoding"], "identity");
        assert!(!got.asked.contains_key("available-dictionary"));
        assert_eq!(got.asked["range"], "bytes=0-9", "ranges count the plain bytes");
        assert_eq!(got.body, body);
        assert_eq!(got.headers["etag"], "\"a\"");
        assert!(!got.headers.contains_key("vary"), "no other client gets other bytes");
        assert_eq!(got.coding_info.why_not, Some("off by rule"));
    }
}

/// `compress = "off"` changes nothing at all.
#[test]
fn off_changes_neither_requests_nor_responses() {
    let scratch = tempfile::tempdir().unwrap();
    let fields = [HTML, ("content-encoding", "gzip"), ("etag", "\"1\"")];
    let answer = Answer { status: 200, fields: &fields, pieces: &[b"as it came"], known: true };
    let request = [
        ("accept-encoding", "gzip, dcz"),
        ("available-dictionary", ":x:"),
        ("cookie", "session=1"),
        ("sec-fetch-site", "cross-site"),
        ("user-agent", "Mozilla/5.0 (X11)"),
    ];
    let got = Edge::new("compress = \"off\"", scratch.path()).exchange(&request, &answer);
    assert_eq!(got.asked, request_head("GET", "/page", &request).headers);
    assert_eq!(got.headers, answer.head().headers);
    assert_eq!(got.body, b"as it came");
}

#[test]
fn conditions_reach_the_upstream_in_its_own_words() {
    let scratch = tempfile::tempdir().unwrap();
    let edge = Edge::new("offload = true", scratch.path());
    let body = text(5_000, 1);
    let accept = ("accept-encoding", "gzip");
    let page = |tag| [HTML, ("etag", tag)];
    for (tag, seen) in [("\"a\"", "W/\"a\""), ("W/\"theirs\"", "W/\"theirs\"")] {
        let fields = page(tag);
        let answer = Answer { status: 200, fields: &fields, pieces: &[&body], known: true };
        let got = edge.exchange(&[accept], &answer);
        assert_eq!(got.headers["etag"], seen);
        assert_eq!(got.asked["accept-encoding"], "identity");
        let fields = [("etag", tag)];
        let fresh = Answer { status: 304, fields: &fields, pieces: &[], known: false };
        for name in ["if-none-match", "if-match"] {
            let got = edge.exchange(&[accept, (name, seen)], &fresh);
            assert_eq!(got.asked[name], tag, "{name}");
            assert_eq!(got.headers["etag"], seen, "{name}");
            assert_eq!(got.headers["vary"], "accept-encoding", "{name}");
            assert_eq!(got.coding_info.why_not, Some("no content"));
        }
    }
    // For any condition, if the type may be one that is coded (RFC 9110 15.4.5).
    let date = "Sun, 01 Nov 2026 00:00:00 GMT";
    for (fields, vary) in
        [(&[][..], true), (&[HTML], true), (&[("content-type", "image/png")], false)]
    {
        let fresh = Answer { status: 304, fields, pieces: &[], known: false };
        let got = edge.exchange(&[accept, ("if-modified-since", date)], &fresh);
        let coding_info = got.headers.get("vary").map(|vary| vary.to_str().unwrap());
        assert_eq!(coding_info, vary.then_some("accept-encoding"), "{fields:?}");
    }
}

#[test]
fn head_has_the_fields_of_get() {
    let scratch = tempfile::tempdir().unwrap();
    let edge = Edge::new("", scratch.path());
    let body = text(5_000, 1);
    let fields = [HTML, ("etag", "\"a\"")];
    let answer = Answer { status: 200, fields: &fields, pieces: &[&body], known: true };
    let got = edge.exchange(&[(":method", "HEAD"), ("accept-encoding", "gzip")], &answer);
    assert_eq!(got.headers["content-encoding"], "gzip");
    assert_eq!(got.headers["etag"], "W/\"a\"");
    assert_eq!(got.headers["vary"], "accept-encoding");
    assert!(got.headers.get("content-length").is_none());
    for accept in ["gzip", "gzip, br, zstd"] {
        let [head, get] = ["HEAD", "GET"].map(|method| {
            edge.exchange(&[(":method", method), ("accept-encoding", accept)], &answer)
        });
        assert_eq!(head.headers["content-encoding"], get.headers["content-encoding"]);
    }
    let got = edge.exchange(&[(":method", "HEAD")], &answer);
    assert_eq!(got.headers["content-length"], "5000");
    assert_eq!(got.headers["etag"], "\"a\"");
}

#[test]
fn an_exhausted_pool_leaves_the_response_uncoded() {
    let scratch = tempfile::tempdir().unwrap();
    let edge = Edge::with_budget("", scratch.path(), 3 << 20);
    let request = || {
        let mut head = request_head("GET", "/", &[("accept-encoding", "zstd, br")]);
        let asked = edge.compressors.request(0, &edge.terminate, "app.example", &mut head);
        let answer = Answer { status: 200, fields: &[HTML], pieces: &[], known: false };
        let mut parts = answer.head();
        let body = Some(BodyInfo { length: None, complete: false });
        (edge.compressors.response(&asked, &mut parts, body, b"<p>"), parts.headers)
    };
    let mut busy = Vec::new();
    let (refused, headers) = loop {
        let (coder, headers) = request();
        if coder.is_identity() {
            break (coder, headers);
        }
        busy.push(coder);
        assert!(busy.len() < 10);
    };
    assert!(!busy.is_empty());
    assert_eq!(refused.coding_info().why_not, Some("no compressor free"));
    assert!(headers.get("content-encoding").is_none());
    assert_eq!(headers["vary"], "accept-encoding");
    busy.pop();
    assert!(!request().0.is_identity());
}

#[test]
fn events_are_coded_only_when_asked_and_each_is_flushed() {
    let scratch = tempfile::tempdir().unwrap();
    let edge = Edge::new("compress_event_streams = true", scratch.path());
    for coding in ["gzip", "br", "zstd"] {
        let mut head = request_head("GET", "/", &[("accept-encoding", coding)]);
        let asked = edge.compressors.request(0, &edge.terminate, "app.example", &mut head);
        let fields = [("content-type", "text/event-stream")];
        let answer = Answer { status: 200, fields: &fields, pieces: &[], known: false };
        let mut parts = answer.head();
        let body = Some(BodyInfo { length: None, complete: false });
        let mut coder = edge.compressors.response(&asked, &mut parts, body, b"");
        let (mut sent, mut all) = (0, Vec::new());
        for n in 0..20 {
            let event = format!("data: event {n}\n\n");
            all.extend_from_slice(event.as_bytes());
            let mut out = Vec::new();
            coder.push(event.as_bytes(), &mut out).unwrap();
            coder.flush(&mut out).unwrap();
            assert!(!out.is_empty(), "{coding}: event {n} goes at once");
            sent += out.len();
        }
        assert!(sent < 20 * 60, "{coding}: {sent} bytes for {}", all.len());
    }
}

#[test]
fn length_hiding_covers_every_coding() {
    let scratch = tempfile::tempdir().unwrap();
    let edge = Edge::new("length_hiding = 64", scratch.path());
    let body = text(5_000, 1);
    let answer = Answer { status: 200, fields: &[HTML], pieces: &[&body], known: true };
    for accept in ["gzip", "br", "zstd", "identity"] {
        let lengths: std::collections::BTreeSet<usize> = (0..60)
            .map(|_| edge.exchange(&[("accept-encoding", accept)], &answer))
            .map(|got| got.headers["x-padding"].len())
            .collect();
        assert!(lengths.len() > 20, "{accept}: {lengths:?}");
        assert!(lengths.iter().all(|length| *length <= 64));
    }
}
