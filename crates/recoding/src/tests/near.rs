//! Tests of an originate rule: the codings that it asks its upstream for, and the responses that it
//! decodes.

use std::rc::Rc;

use eyelet_compress::Coding;
use http::header::ACCEPT_ENCODING;
use http::response;

use super::super::compressors::Inner;
use super::super::near::{Near, NearTerms};
use super::*;

fn inner() -> Rc<Inner> {
    let folder = tempfile::tempdir().unwrap();
    Edge::new("", folder.path()).compressors.inner.clone()
}

fn head_of(status: u16, fields: Fields<'_>) -> response::Parts {
    Answer { status, fields, pieces: &[], known: false }.head()
}

/// Asks for a rule's first page, `is_attackable` and `can_repeat` given.
fn ask(inner: &Inner, head: &mut Parts, (is_attackable, can_repeat): (bool, bool)) -> Near {
    let terms = NearTerms { rule: 0, host: "app.example", is_attackable, can_repeat };
    Near::ask(inner, terms, head)
}

fn undone_of(near: &Near, inner: &Inner, head: &mut response::Parts) -> Option<Coding> {
    near.response(inner, 0, head).decoded_coding.map(|decoded_coding| decoded_coding.coding)
}

const ZSTD: (&str, &str) = ("content-encoding", "zstd");

#[test]
fn own_codings_are_asked_for_beside_the_clients_others() {
    let inner = inner();
    for (fields, line) in [
        (&[][..], "zstd, br, gzip"),
        (&[("accept-encoding", "")], "zstd, br, gzip"),
        (&[("accept-encoding", "gzip, deflate")], "zstd, br, gzip, deflate"),
        (
            &[("accept-encoding", "svndiff1;q=0.9,svndiff;q=0.8"), ("accept-encoding", "gzip")],
            "zstd, br, gzip, svndiff1;q=0.9, svndiff;q=0.8",
        ),
        (&[("accept-encoding", "x-gzip, dcz, *;q=0.1")], "zstd, br, gzip, *;q=0.1"),
        // What the client says is left as it is.
        (&[("range", "bytes=0-9")], "none"),
        (&[("range", "bytes=0-9"), ("accept-encoding", "br")], "br"),
        (&[("cache-control", "max-age=0, no-transform")], "none"),
        (&[("want-repr-digest", "sha-256=1")], "none"),
        (&[("accept-encoding", "gzip, identity;q=0")], "gzip, identity;q=0"),
        (&[("accept-encoding", "gzip, *;q=0")], "gzip, *;q=0"),
    ] {
        let mut head = request_head("GET", "/", fields);
        ask(&inner, &mut head, (false, true));
        let lines = head.headers.get_all(ACCEPT_ENCODING).iter().map(|line| line.to_str().unwrap());
        let asked = lines.collect::<Vec<_>>().join("; ");
        assert_eq!(if asked.is_empty() { "none" } else { &asked }, line, "{fields:?}");
    }
    let mut head = request_head("GET", "/", &[("accept-encoding", "gzip")]);
    ask(&inner, &mut head, (true, true));
    assert_eq!(head.headers[ACCEPT_ENCODING], "identity", "the BREACH rule");
}

#[test]
fn only_what_the_client_does_not_accept_is_undone() {
    let inner = inner();
    let kind = |kind| ("content-type", kind);
    for (accept, status, fields, decoded_coding) in [
        ("", 200, &[ZSTD][..], Some(Coding::Zstd)),
        ("gzip", 200, &[ZSTD], Some(Coding::Zstd)),
        ("gzip", 404, &[ZSTD], Some(Coding::Zstd)),
        ("gzip, zstd;q=0.1", 200, &[ZSTD], None),
        ("*", 200, &[ZSTD], None),
        ("zstd;q=0.5, identity", 200, &[ZSTD], Some(Coding::Zstd)),
        ("gzip", 200, &[("content-encoding", "GZip")], None),
        ("br", 200, &[("content-encoding", "GZip")], Some(Coding::Gzip)),
        ("", 200, &[], None),
        ("", 200, &[("content-encoding", "x-gzip")], None),
        ("", 200, &[("content-encoding", "deflate")], None),
        ("", 200, &[("content-encoding", "gzip, zstd")], None),
        ("", 200, &[ZSTD, ("content-encoding", "gzip")], None),
        ("", 206, &[ZSTD], None),
        ("", 200, &[ZSTD, ("content-range", "bytes 0-1/9")], None),
        ("", 200, &[ZSTD, ("cache-control", "public, no-transform")], None),
        ("", 200, &[ZSTD, kind("application/zstd")], None),
        ("", 200, &[ZSTD, kind("application/gzip")], Some(Coding::Zstd)),
        ("", 304, &[ZSTD], None),
    ] {
        let mut head = request_head("GET", "/", &[("accept-encoding", accept)]);
        let near = ask(&inner, &mut head, (false, true));
        let mut response = head_of(status, fields);
        let told = format!("{accept:?} {status} {fields:?}");
        assert_eq!(undone_of(&near, &inner, &mut response), decoded_coding, "{told}");
        assert_eq!(response.headers.contains_key("vary"), decoded_coding.is_some(), "{told}");
    }
    // It was not asked for.
    let mut head = request_head("GET", "/", &[("range", "bytes=0-")]);
    let near = ask(&inner, &mut head, (false, true));
    assert_eq!(undone_of(&near, &inner, &mut head_of(200, &[ZSTD])), None);
}

#[test]
fn what_must_not_be_transformed_is_asked_for_once_more() {
    let inner = inner();
    let fixed = head_of(200, &[ZSTD, ("cache-control", "no-transform")]);
    for (accept, unfit, again) in [
        (&[][..], true, None),
        (&[("accept-encoding", "br;q=0.5")], true, Some("br;q=0.5")),
        (&[("accept-encoding", "zstd")], false, Some("zstd")),
    ] {
        let mut head = request_head("GET", "/", accept);
        let mut near = ask(&inner, &mut head, (false, true));
        assert!(!near.is_unfit(&head_of(200, &[ZSTD])));
        assert_eq!(near.is_unfit(&fixed), unfit, "{accept:?}");
        let head = near.again(&head);
        let line = head.headers.get(ACCEPT_ENCODING).map(|line| line.to_str().unwrap());
        assert_eq!(line, again, "{accept:?}");
        assert!(!near.is_unfit(&fixed), "only once");
        let decoded_coding = undone_of(&near, &inner, &mut head_of(200, &[ZSTD]));
        assert_eq!(decoded_coding, None, "the second response passes as it is");
    }
}

/// A second request would have another effect, or other rights.
#[test]
fn what_cannot_be_asked_for_once_more_is_decoded() {
    let inner = inner();
    let mut head = request_head("REPORT", "/", &[]);
    let near = ask(&inner, &mut head, (false, false));
    let mut fixed = head_of(200, &[ZSTD, ("cache-control", "no-transform")]);
    assert!(!near.is_unfit(&fixed) && !near.can_repeat());
    assert_eq!(undone_of(&near, &inner, &mut fixed), Some(Coding::Zstd));
}

/// Offers and names of dictionaries are between Eyelet and the upstream.
#[test]
fn fields_of_dictionaries_do_not_pass() {
    let inner = inner();
    for own in [("accept", "*/*"), ("range", "bytes=0-9"), ("cache-control", "no-transform")] {
        let named = [own, ("available-dictionary", ":AAAA:"), ("dictionary-id", "\"a\"")];
        let mut head = request_head("GET", "/", &named);
        let near = ask(&inner, &mut head, (false, true));
        assert!(!head.headers.contains_key("available-dictionary"), "{own:?}");
        assert!(!head.headers.contains_key("dictionary-id"), "{own:?}");
        for status in [200, 206, 304] {
            let mut response = head_of(status, &[("use-as-dictionary", "match=\"/*\"")]);
            near.response(&inner, 0, &mut response);
            assert!(!response.headers.contains_key("use-as-dictionary"), "{own:?} {status}");
        }
    }
}

#[test]
fn a_weakened_tag_is_given_back() {
    let inner = inner();
    let mut head = request_head("GET", "/", &[("if-none-match", "W/\"a\"")]);
    let near = ask(&inner, &mut head, (false, true));
    assert_eq!(head.headers["if-none-match"], "\"a\"");
    let mut response = head_of(304, &[("etag", "\"a\"")]);
    assert_eq!(undone_of(&near, &inner, &mut response), None);
    assert_eq!(response.headers["etag"], "W/\"a\"");
}
