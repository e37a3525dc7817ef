//! Tables of responses that are, and are not, compressed.
#![allow(clippy::unwrap_used)]

use http::header::HeaderName;

use super::*;

fn head(fields: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(HeaderName::from_static(name), value.parse().unwrap());
    }
    headers
}

#[test]
fn heads_as_a_table() {
    let html = ("content-type", "text/html; charset=utf-8");
    for (status, fields, length, found) in [
        (200, &[html][..], None, Ok(ContentKind::Compressible)),
        (404, &[html], Some(512), Ok(ContentKind::Compressible)),
        (200, &[html], Some(511), Err(WhyNot::Short)),
        (200, &[html], Some(0), Err(WhyNot::NoContent)),
        (200, &[html, ("content-encoding", "gzip")], None, Err(WhyNot::Coded)),
        (200, &[html, ("content-encoding", "identity")], None, Err(WhyNot::Coded)),
        (206, &[html], None, Err(WhyNot::Range)),
        (416, &[html], None, Err(WhyNot::Range)),
        (200, &[html, ("content-range", "bytes 0-9/10")], None, Err(WhyNot::Range)),
        (
            200,
            &[html, ("cache-control", "max-age=1, No-Transform")],
            None,
            Err(WhyNot::NoTransform),
        ),
        (200, &[html, ("repr-digest", "sha-256=:x:")], None, Err(WhyNot::Digest)),
        (200, &[("content-type", "text/event-stream")], None, Err(WhyNot::EventStream)),
        (200, &[("content-type", "application/grpc+proto")], None, Err(WhyNot::Grpc)),
        (200, &[("content-type", "image/png")], None, Err(WhyNot::TypeCompressed)),
        (200, &[("content-type", "image/svg+xml")], None, Ok(ContentKind::Compressible)),
        (200, &[("content-type", "Application/LD+JSON;x=y")], None, Ok(ContentKind::Compressible)),
        (200, &[("content-type", "application/epub+zip")], None, Err(WhyNot::TypeCompressed)),
        (200, &[("content-type", "application/octet-stream")], None, Ok(ContentKind::Unknown)),
        (200, &[("content-type", "application/vnd.svn-svndiff")], None, Ok(ContentKind::Unknown)),
        (200, &[("content-type", "nonsense")], None, Ok(ContentKind::Unknown)),
        (200, &[], None, Ok(ContentKind::Unknown)),
        (200, &[html, html], None, Ok(ContentKind::Unknown)),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(
            by_head(ResponseHead { status, headers: &head(fields), length }, LENGTH_MIN, false),
            found,
            "{status} {fields:?}"
        );
    }
    let events = head(&[("content-type", "text/event-stream")]);
    assert_eq!(
        by_head(
            ResponseHead { status: StatusCode::OK, headers: &events, length: None },
            LENGTH_MIN,
            true
        ),
        Ok(ContentKind::EventStream)
    );
}

#[test]
fn first_bytes_as_a_table() {
    let text = b"The quick brown fox jumps over the lazy dog, again and again. ".repeat(40);
    let mut noise = Vec::new();
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    while noise.len() < TRIAL_BYTES {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        noise.extend_from_slice(&(state >> 16).to_le_bytes()[..4]);
    }
    let zip = [&b"PK\x03\x04"[..], &text].concat();
    for (first, found) in [
        (&text[..], Ok(())),
        (&noise, Err(WhyNot::LooksCompressed)),
        (&zip, Err(WhyNot::LooksCompressed)),
        (&text[..100], Err(WhyNot::TypeUnknown)),
        (&[], Err(WhyNot::TypeUnknown)),
    ] {
        let body = Beginning { length: None, complete: false, first };
        assert_eq!(by_first_bytes(ContentKind::Unknown, &body), found);
        assert_eq!(by_first_bytes(ContentKind::Compressible, &body), Ok(()));
    }
}

#[test]
fn a_part_has_the_vary_of_its_whole() {
    for (status, fields, expected) in [
        (206, &[("content-type", "text/html"), ("content-range", "bytes 0-9/5000")][..], true),
        (206, &[("content-type", "multipart/byteranges; boundary=x")], true),
        (206, &[("content-type", "image/png")], false),
        (206, &[("content-type", "text/html"), ("content-encoding", "gzip")], false),
        (206, &[("content-type", "text/html"), ("cache-control", "no-transform")], false),
        (416, &[("content-type", "text/html"), ("content-range", "bytes */5000")], false),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        let coded = is_part_of_coded(status, &head(fields), false);
        assert_eq!(coded, expected, "{status} {fields:?}");
    }
}
