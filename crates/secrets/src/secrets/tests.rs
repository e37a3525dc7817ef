//! Places in which secrets stand, and in which placeholders are refused.
#![allow(clippy::unwrap_used, clippy::panic)]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use http::header::{AUTHORIZATION, HeaderName};
use proptest::prelude::*;

use super::*;

const TOKEN: &str = "ghp_0123456789";
const KEY: &str = "key-abcdefgh";
const PLACEHOLDER: &str = "EYELET_SECRET_GITHUB";
const OTHER: &str = "EYELET_SECRET_VENDOR";

fn terms(placeholder: &str, names: &[&str], headers: &[HeaderName]) -> SecretTerms {
    SecretTerms {
        placeholder: placeholder.parse().unwrap(),
        names: names.iter().map(|name| name.parse().unwrap()).collect(),
        methods: vec![Method::GET, Method::POST],
        headers: headers.to_vec(),
    }
}

fn secrets() -> Secrets {
    let vendor = HeaderName::from_static("x-vendor-key");
    let terms = vec![
        terms(PLACEHOLDER, &["api.a.example", "a.example"], &[AUTHORIZATION]),
        terms(OTHER, &["*.a.example"], &[vendor, AUTHORIZATION]),
    ];
    let values = [TOKEN, KEY].map(|value| Arc::new(SecretValue::new(value.as_bytes()).unwrap()));
    Secrets::new(terms, values.into()).unwrap()
}

fn basic(credentials: &str) -> String {
    format!("Basic {}", STANDARD.encode(credentials))
}

fn to_api<'a>() -> Destination<'a> {
    Destination { host: "api.a.example", verified: Some(vec!["api.a.example"]) }
}

fn fill(name: &str, value: &str, to: Destination<'_>) -> Result<String, Misuse> {
    let request = Request::get("https://api.a.example/path").header(name, value);
    let (mut parts, ()) = request.body(()).unwrap().into_parts();
    let filled = secrets().fill(&mut parts, || to).map_err(|refusal| refusal.misuse)?;
    let field = &parts.headers[name];
    assert_eq!(field.is_sensitive(), filled == Filled::Values, "{value}");
    Ok(field.to_str().unwrap().to_owned())
}

#[test]
fn values_take_the_places_of_placeholders() {
    for (name, value, expected) in [
        ("authorization", format!("Bearer {PLACEHOLDER}"), format!("Bearer {TOKEN}")),
        ("authorization", format!("token {PLACEHOLDER}"), format!("token {TOKEN}")),
        ("authorization", PLACEHOLDER.into(), TOKEN.into()),
        ("authorization", basic(&format!("me:{PLACEHOLDER}")), basic(&format!("me:{TOKEN}"))),
        ("authorization", basic(&format!("{PLACEHOLDER}:")), basic(&format!("{TOKEN}:"))),
        (
            "authorization",
            basic(&format!("{PLACEHOLDER}:x-oauth-basic")),
            basic(&format!("{TOKEN}:x-oauth-basic")),
        ),
        (
            "authorization",
            basic(&format!("{OTHER}:{PLACEHOLDER}")),
            basic(&format!("{KEY}:{TOKEN}")),
        ),
        ("x-vendor-key", OTHER.into(), KEY.into()),
        ("x-vendor-key", format!("k={OTHER}; v=1"), format!("k={KEY}; v=1")),
        ("authorization", "Bearer something".into(), "Bearer something".into()),
        ("authorization", basic("me:pass"), basic("me:pass")),
        // It is no placeholder.
        ("x-other", "EYELET_SECRET_GITHU".into(), "EYELET_SECRET_GITHU".into()),
    ] {
        assert_eq!(fill(name, &value, to_api()), Ok(expected), "{name}: {value}");
    }
}

#[test]
fn a_placeholder_is_refused_where_no_value_may_stand() {
    let bearer = format!("Bearer {PLACEHOLDER}");
    let field = |name| Misuse::Field(HeaderName::from_static(name));
    let to =
        |host, verified: &[&'static str]| Destination { host, verified: Some(verified.into()) };
    for (name, value, to, expected) in [
        ("cookie", bearer.clone(), to_api(), field("cookie")),
        ("x-vendor-key", basic(&format!("a:{PLACEHOLDER}")), to_api(), field("x-vendor-key")),
        ("authorization", format!("{PLACEHOLDER} {PLACEHOLDER}"), to_api(), Misuse::Twice),
        ("authorization", basic(&format!("{PLACEHOLDER}:{PLACEHOLDER}")), to_api(), Misuse::Twice),
        (
            "authorization",
            bearer.clone(),
            Destination { host: "api.a.example", verified: None },
            Misuse::NoTls,
        ),
        (
            "authorization",
            bearer.clone(),
            to("evil.example", &["evil.example"]),
            Misuse::Name("evil.example".into()),
        ),
        // The server of a listed name is asked for another tenant's host, or the other way round.
        (
            "authorization",
            bearer.clone(),
            to("evil.example", &["api.a.example"]),
            Misuse::Name("evil.example".into()),
        ),
        (
            "authorization",
            bearer.clone(),
            to("api.a.example", &["evil.example"]),
            Misuse::Name("evil.example".into()),
        ),
        // One of several upstreams is another one.
        (
            "authorization",
            bearer,
            to("api.a.example", &["api.a.example", "other.example"]),
            Misuse::Name("other.example".into()),
        ),
    ] {
        assert_eq!(fill(name, &value, to), Err(expected), "{name}: {value}");
    }
}

#[test]
fn a_placeholder_is_refused_in_the_line_and_by_the_method() {
    let line = |method: &str, uri: &str| {
        let request = Request::builder().method(method).uri(uri);
        let request = request.header(AUTHORIZATION, format!("Bearer {PLACEHOLDER}"));
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        secrets().fill(&mut parts, to_api).map_err(|refusal| refusal.misuse)
    };
    let url = |part: &str| part.replace('@', PLACEHOLDER);
    assert_eq!(line("GET", "https://api.a.example/"), Ok(Filled::Values));
    assert_eq!(line("DELETE", "/"), Err(Misuse::Method(Method::DELETE)));
    for uri in ["/@", "/a?token=@", "https://@.evil.example/"] {
        assert_eq!(line("GET", &url(uri)), Err(Misuse::Url), "{uri}");
    }
    assert_eq!(line(PLACEHOLDER, "/"), Err(Misuse::Url));
}

/// Lines of one name are one field, as crumbs of a cookie are.
#[test]
fn a_placeholder_is_refused_in_two_lines_of_a_field_and_in_names() {
    let fill = |fields: &[(&str, &str)]| {
        let (mut parts, ()) = Request::new(()).into_parts();
        for (name, value) in fields {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            parts.headers.append(name, value.parse().unwrap());
        }
        let found = secrets().find(&parts.headers).map(ToString::to_string);
        (secrets().fill(&mut parts, to_api).map_err(|refusal| refusal.misuse), found)
    };
    let (one, other) = (Some(PLACEHOLDER.to_owned()), Some(OTHER.to_owned()));
    let authorization = "authorization";
    let twice =
        fill(&[(authorization, PLACEHOLDER), ("accept", "*/*"), (authorization, PLACEHOLDER)]);
    assert_eq!(twice, (Err(Misuse::Twice), one.clone()));
    let two =
        fill(&[(authorization, PLACEHOLDER), (authorization, OTHER), ("x-vendor-key", OTHER)]);
    assert_eq!(two, (Ok(Filled::Values), one));
    for name in [OTHER.to_owned(), format!("x-{}-y", OTHER.to_lowercase())] {
        let field = HeaderName::from_bytes(name.as_bytes()).unwrap();
        assert_eq!(fill(&[(&name, "1")]), (Err(Misuse::Field(field)), other.clone()));
    }
    assert_eq!(fill(&[("EYELET_SECRET_VENDO", "1")]), (Ok(Filled::Nothing), None));
}

#[test]
fn many_fields_do_not_become_too_long() {
    let names = ["x-a", "x-b", "x-c", "x-d", "x-e"].map(HeaderName::from_static);
    let value = Arc::new(SecretValue::new(&[b'a'; 16 << 10]).unwrap());
    let of_all = terms(PLACEHOLDER, &["api.a.example"], &names);
    let secrets = Secrets::new(vec![of_all], vec![value]).unwrap();
    let (mut parts, ()) = Request::new(()).into_parts();
    let fields = names.into_iter().map(|name| (name, PLACEHOLDER.parse().unwrap()));
    parts.headers.extend(fields.collect::<HeaderMap>());
    let filled = secrets.fill(&mut parts, to_api).map_err(|refusal| refusal.misuse);
    assert_eq!(filled, Err(Misuse::Length));
}

#[test]
fn a_value_is_replaced_and_never_has_a_placeholder() {
    let secrets = secrets();
    let value = |text: &str| SecretValue::new(text.as_bytes()).unwrap();
    assert!(!secrets.replace(0, value(TOKEN)), "it is the same");
    assert!(secrets.replace(0, value("another-token")));
    let first = secrets.terms()[0].placeholder.clone();
    assert_eq!(secrets.value(&first).unwrap().bytes(), b"another-token");
    let shows = |text: &'static str| {
        let fields = HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static(text))]);
        secrets.reflected(&fields).is_some()
    };
    assert!(shows(TOKEN) && shows("another-token"), "a response may still show the one before");
    assert!(secrets.replace(0, value("third-token")));
    assert!(!shows(TOKEN) && shows("another-token") && shows("third-token"));
    assert_eq!(secrets.check(&value("another-token")), Ok(()));
    let fault = secrets.check(&value(&format!("x{OTHER}")));
    assert_eq!(fault, Err(SecretFault::Placeholder));
}

#[test]
fn a_response_that_shows_a_value_is_found() {
    let secrets = secrets();
    for (value, is_shown) in [
        (TOKEN.to_owned(), true),
        (format!("https://evil.example/?t={TOKEN}&x"), true),
        (basic(&format!("me:{TOKEN}")), true),
        (PLACEHOLDER.into(), false),
        ("nothing of it, and long enough".into(), false),
    ] {
        let fields = HeaderMap::from_iter([(http::header::LOCATION, value.parse().unwrap())]);
        let shown = secrets.reflected(&fields).map(|shown| shown.to_string());
        let expected = format!("the field location shows the value of {PLACEHOLDER}");
        assert_eq!(shown, is_shown.then_some(expected), "{value}");
    }
    // Names have no case, and one that shows a value is not told.
    let token = TOKEN.to_uppercase();
    for (name, is_shown) in [(&*token, true), (&format!("x-{TOKEN}"), true), (&TOKEN[1..], false)] {
        for field in [&b"1"[..], TOKEN.as_bytes()] {
            let shown = secrets.reflected_in([(name, field)].into_iter());
            let by_name = format!("a field's name shows the value of {PLACEHOLDER}");
            let by_field = format!("the field {name} shows the value of {PLACEHOLDER}");
            let by_field = (field.len() > 1).then_some(by_field);
            let expected = if is_shown { Some(by_name) } else { by_field };
            assert_eq!(shown.map(|shown| shown.to_string()), expected, "{name}");
        }
    }
}

proptest! {
    /// No value is in a field that may not have it, and a second pass changes nothing.
    #[test]
    fn any_fields_keep_values_where_they_may_stand(
        fields in prop::collection::vec((
            prop::sample::select(vec!["authorization", "x-vendor-key", "cookie", "host"]),
            prop::collection::vec(prop::sample::select(vec![
                PLACEHOLDER, OTHER, "Bearer ", "Basic ", "a", ":", "=", "RVlF", "EYELET_SECRET_",
            ]), 0..6),
            any::<bool>(),
        ), 0..6),
        is_verified in any::<bool>(),
    ) {
        let secrets = secrets();
        let (mut parts, ()) = Request::new(()).into_parts();
        for (name, pieces, is_basic) in &fields {
            let text = pieces.concat();
            let text = if *is_basic { basic(&text) } else { text };
            parts.headers.append(*name, text.parse().unwrap());
        }
        let to = || Destination {
            host: "api.a.example",
            verified: is_verified.then(|| vec!["api.a.example"]),
        };
        let before = parts.headers.clone();
        match secrets.fill(&mut parts, to) {
            Ok(Filled::Nothing) => prop_assert_eq!(&before, &parts.headers),
            Ok(Filled::Values) => {
                prop_assert!(is_verified);
                let again = parts.headers.clone();
                prop_assert_eq!(secrets.fill(&mut parts, to).unwrap(), Filled::Nothing);
                prop_assert_eq!(&again, &parts.headers);
                for (name, value) in &parts.headers {
                    let has = |nth: usize| secrets.values.load()[nth].is_in(value.as_bytes());
                    prop_assert!(!has(0) || *name == AUTHORIZATION);
                    prop_assert!(!has(1) || secrets.terms[1].headers.contains(name));
                }
            }
            Err(refusal) => {
                let found = secrets.find(&before);
                prop_assert!(found.is_some(), "{}", refusal);
            }
        }
    }
}
