//! Tables of hosts that are served, and of URLs that are translated on their way.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::SystemTime;

use eyelet_config::{Action, Depth};

use super::*;

/// The action of a rule with these keys.
fn originate(keys: &str) -> Originate {
    let text = format!(
        "[[listener]]\nkind = \"plain\"\naddress = \"127.0.0.1:0\"\n\
         [[rule]]\naction = \"originate\"\n{keys}\n"
    );
    let path = Path::new("test.toml");
    let loaded = eyelet_config::parse(path, &text, Depth::Files, SystemTime::UNIX_EPOCH).unwrap();
    let Action::Originate(originate) = loaded.config.rules.at(0).action else { unreachable!() };
    originate.clone()
}

fn svn() -> Originate {
    originate("upstream = \"https://svn.example:8443\"\nhosts = [\"box.example\"]")
}

fn request(fields: &[(&'static str, &str)]) -> request::Parts {
    let (mut parts, ()) = http::Request::new(()).into_parts();
    for (name, value) in fields {
        parts.headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    parts
}

#[test]
fn only_hosts_that_no_attacker_has_are_served() {
    let rule = svn();
    for (host, is_served) in [
        ("localhost", true),
        ("LOCALHOST:3690", true),
        ("localhost.", true),
        ("svn.localhost:3690", true),
        ("127.0.0.1:3690", true),
        ("127.8.9.1", true),
        ("[::1]:3690", true),
        ("svn.example", true),
        ("SVN.example:3690", true),
        ("box.example:1", true),
        ("evil.example", false),
        ("localhost.evil.example", false),
        ("evillocalhost", false),
        ("192.0.2.1", false),
        ("[2001:db8::1]", false),
        ("0.0.0.0:3690", false),
        ("a.box.example", false),
    ] {
        assert_eq!(is_own(&rule, &host.parse().unwrap()), is_served, "{host}");
    }
}

#[test]
fn urls_are_translated_both_ways() {
    let rule = svn();
    let asked = "127.0.0.1:3690".parse().unwrap();
    for (name, said, heard) in [
        ("destination", "http://127.0.0.1:3690/svn/a", "https://svn.example:8443/svn/a"),
        ("destination", "http://127.0.0.1:3690", "https://svn.example:8443"),
        ("destination", "HTTP://127.0.0.1:3690?q", "https://svn.example:8443?q"),
        // Another origin, whose name only begins alike.
        ("destination", "http://127.0.0.1:36901/a", "http://127.0.0.1:36901/a"),
        ("destination", "/svn/a", "/svn/a"),
        ("referer", "http://127.0.0.1:3690/p?q", "https://svn.example:8443/p?q"),
        ("referer", "https://other.example/", "https://other.example/"),
        ("origin", "http://127.0.0.1:3690", "https://svn.example:8443"),
        (
            "if",
            "<http://127.0.0.1:3690/a> (<urn:x>) <http://127.0.0.1:3690/b> ([\"t\"])",
            "<https://svn.example:8443/a> (<urn:x>) <https://svn.example:8443/b> ([\"t\"])",
        ),
        ("if", "<http://127.0.0.1:3690> (<urn:x>)", "<https://svn.example:8443> (<urn:x>)"),
        ("if", "(<opaquelocktoken:x>)", "(<opaquelocktoken:x>)"),
        // Angle brackets that enclose nothing.
        ("if", "([\"a<b\"]) <http://127.0.0.1:3690/", "([\"a<b\"]) <http://127.0.0.1:3690/"),
        ("if", "<http://127.0.0.1:3690/a> ([\"<\"])", "<https://svn.example:8443/a> ([\"<\"])"),
    ] {
        let mut parts = request(&[(name, said)]);
        let translation = begin(&rule, &asked, &mut parts).unwrap();
        assert_eq!(parts.headers[name], heard);
        assert_eq!(translation.authority(), "svn.example:8443");
    }
    let translation = begin(&rule, &asked, &mut request(&[])).unwrap();
    for (name, said, heard) in [
        ("location", "https://svn.example:8443/svn/", "http://127.0.0.1:3690/svn/"),
        ("location", "https://SVN.example:8443/svn/", "http://127.0.0.1:3690/svn/"),
        ("location", "https://svn.example/svn/", "https://svn.example/svn/"),
        ("location", "/svn/", "/svn/"),
        (
            "location",
            "https://svn.example:8443.evil.example/",
            "https://svn.example:8443.evil.example/",
        ),
        ("content-location", "https://svn.example:8443/x", "http://127.0.0.1:3690/x"),
    ] {
        let mut headers = request(&[(name, said)]).headers;
        to_client(Some(&translation), &mut headers);
        assert_eq!(headers[name], heard);
    }
}

/// The port that a scheme implies may be said or not.
#[test]
fn a_port_that_is_implied_names_the_same_origin() {
    for upstream in ["https://svn.example:443", "https://192.0.2.1:443"] {
        let rule = originate(&format!("upstream = \"{upstream}\""));
        for asked in ["localhost", "localhost:80"] {
            let asked = asked.parse().unwrap();
            for said in ["http://localhost/a", "http://localhost:80/a"] {
                let mut parts = request(&[("destination", said)]);
                begin(&rule, &asked, &mut parts).unwrap();
                assert_eq!(parts.headers["destination"], format!("https://{}/a", rule.authority));
            }
            let translation = begin(&rule, &asked, &mut request(&[])).unwrap();
            for (said, is_its) in [
                (format!("https://{}/a", rule.authority), true),
                (format!("https://{}:443/a", rule.authority), true),
                (format!("https://{}:80/a", rule.authority), false),
                (format!("https://{}:1443/a", rule.authority), false),
                (format!("http://{}/a", rule.authority), false),
            ] {
                let mut headers = request(&[("location", &said)]).headers;
                to_client(Some(&translation), &mut headers);
                let here = format!("http://{asked}/a");
                assert_eq!(headers["location"], if is_its { here } else { said });
            }
        }
    }
}

#[test]
fn each_line_of_a_field_is_translated() {
    let (rule, asked) = (svn(), "localhost:1".parse().unwrap());
    let lines = ["<http://localhost:1/a> (<urn:x>)", "<http://localhost:1/b> (<urn:y>)"];
    let mut parts = request(&lines.map(|line| ("if", line)));
    begin(&rule, &asked, &mut parts).unwrap();
    let seen: Vec<_> = parts.headers.get_all("if").iter().collect();
    let expected = lines.map(|line| line.replace("http://localhost:1", "https://svn.example:8443"));
    assert_eq!(seen, expected.each_ref().map(String::as_str));
}

#[test]
fn a_page_of_another_site_is_refused() {
    let rule = svn();
    let asked = "localhost:3690".parse().unwrap();
    for (fields, is_served) in [
        (&[][..], true),
        (&[("sec-fetch-site", "none")], true),
        (&[("sec-fetch-site", "same-origin"), ("origin", "http://localhost:3690")], true),
        (&[("sec-fetch-site", "cross-site")], false),
        (&[("origin", "https://evil.example")], false),
        (&[("origin", "http://evil.example")], false),
        (&[("origin", "null")], false),
        (&[("origin", "")], false),
    ] {
        let begun = begin(&rule, &asked, &mut request(fields));
        assert_eq!(begun.is_ok(), is_served, "{fields:?}");
    }
}

#[test]
fn the_upstream_is_named_as_its_certificate_is() {
    for (keys, authority) in [
        ("upstream = \"https://svn.example:443\"", "svn.example"),
        ("upstream = \"https://192.0.2.1:443\"\nupstream_name = \"svn.example\"", "svn.example"),
        ("upstream = \"https://[2001:db8::1]:444\"", "[2001:db8::1]:444"),
    ] {
        assert_eq!(&*originate(keys).authority, authority);
    }
}
