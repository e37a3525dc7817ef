//! Lists of upstreams, how one is chosen, checks, and fixed fields of responses: what is read, and
//! each mistake with its place.

use super::certificates::{Folder, terminate};
use super::*;
use crate::model::values;

/// The messages for a splice rule with these keys, which begin in the fifth line.
pub(super) fn said_of_splice(keys: &str) -> Vec<String> {
    said_below_listener(&format!("[[rule]]\naction = \"splice\"\n{keys}\n"))
}

#[test]
fn a_list_is_of_one_kind_and_a_check_fits_it() {
    let table: &[(&str, &[&str])] = &[
        ("upstream = [\"a.example:1\", \"192.0.2.1:1\"]\nupstream_hash = \"client\"", &[]),
        (
            "upstream = \"a.example:1\"\nupstream_hash = \"client\"\nupstream_check = \"connect\"",
            &[],
        ),
        (
            "upstream = []",
            &["5:12: `upstream` is an empty list; list something, or leave \
          `upstream` out"],
        ),
        (
            "upstream = [\"a.example:1\", \"{sni}:443\"]",
            &["5:28: \"{sni}:443\" stands alone, without a list"],
        ),
        (
            "upstream = [\"a.example:1\", \"a.example:1\"]",
            &["5:28: \"a.example:1\" is in the list twice; that gives it no larger share"],
        ),
        (
            "upstream = \"192.0.2.1:1\"\nupstream_hash = \"client\"",
            &["6:17: there is one upstream, and `upstream_hash` chooses among several; leave it \
               out"],
        ),
        (
            "upstream = [\"a.example:1\", \"b.example:1\"]\nupstream_hash = \"cookie\"",
            &["6:17: \"cookie\" cannot be hashed; expected \"client\""],
        ),
        (
            "upstream = \"a.example:1\"\nupstream_check = \"/healthz\"",
            &["6:18: \"/healthz\" is a path, and only upstreams with HTTP have paths; expected \
              \"connect\""],
        ),
        (
            "upstream = \"unix:/run/a.sock\"",
            &["5:12: a spliced connection goes to a host and a port, not to the Unix socket \
              /run/a.sock; for terminate rules there is unix:/path"],
        ),
        (
            "upstream = \"{sni}:443\"\nupstream_check = \"connect\"",
            &["6:18: clients choose this upstream by name or destination, so there is none to \
               check; leave `upstream_check` out"],
        ),
        (
            "upstream = \"a.example:1\"\npath = \"/api\"",
            &["6:1: `path` asks for a request, and a splice rule passes bytes on unread; \
              expected `action = \"terminate\"` with an upstream by HTTP: docs/requests.md"],
        ),
    ];
    for (keys, expected) in table {
        assert_eq!(said_of_splice(keys), *expected, "{keys}");
    }
}

/// The mistake is said, and not that what was meant is missing.
#[test]
fn a_slip_is_not_something_missing() {
    let terminate = "[[rule]]\naction = \"terminate\"\nupstream = \"http://192.0.2.1:1\"\n";
    let secret = "[[secret]]\nplaceholder = \"EYELET-PLACEHOLDER-0123456789abcdef\"\n";
    for (text, slip) in [
        ("[[rule]]\naction = \"splice\"\nupsteam = \"192.0.2.1:1\"\n".to_owned(), "upstream"),
        (format!("{terminate}certficate = \"a.pem\"\nkey = \"a.key\"\n"), "certificate"),
        ("[acme]\ndirectory = \"letsencrypt\"\nterms_agred = true\n".to_owned(), "terms_agreed"),
        (format!("{secret}name = \"a.example\"\nfile = \"a\"\n"), "names"),
    ] {
        let said = said_below_listener(&text);
        let (slips, others): (Vec<_>, Vec<_>) =
            said.iter().partition(|line| line.contains(&format!("did you mean `{slip}`?")));
        assert_eq!(slips.len(), 1, "{said:?}");
        assert!(others.iter().all(|line| !line.contains(slip)), "{said:?}");
    }
    let said = match read("[[listner]]\naddress = \"127.0.0.1:1\"\n") {
        Ok(loaded) => said(&loaded.warnings),
        Err(diagnostics) => said(&diagnostics),
    };
    assert_eq!(said[1], "1:3: unknown key `listner` in the file; did you mean `listener`?");
    assert_eq!(said.len(), 2, "{said:?}");
}

/// The mistake is said, and not what would follow from it: that there is no rule.
#[test]
fn a_slip_is_not_a_file_without_rules() {
    let said = said_below_listener("[[rules]]\naction = \"refuse\"\n");
    assert_eq!(said, ["3:3: unknown key `rules` in the file; did you mean `rule`?"]);
    let cut = said_below_listener("[[rule\naction = \"refuse\"\n");
    assert!(cut.iter().all(|said| !said.contains("no rule")), "{cut:?}");
    let none = said_below_listener("");
    assert_eq!(none, ["1:1: warning: no rule; every connection will be refused"]);
}

#[test]
fn http_upstreams_and_fields() {
    let folder = Folder::new();
    folder.issue("app", &["app.example"]);
    let said_of = |upstream: &str, more: &str| {
        let text = terminate("\"app.example\"", "\"app.pem\"", "\"app.key\"", more);
        folder.said(&text.replace("\"http://127.0.0.1:3000\"", upstream))
    };
    let two = "[\"http://127.0.0.1:1\", \"http://a.example:2\"]";
    assert_eq!(said_of(two, "upstream_check = \"/healthz\"\nhsts = true"), [""; 0]);
    for (upstream, more, expected) in [
        ("[\"http://127.0.0.1:1\", \"https://a.example:2\"]", "", "is of another kind than"),
        (two, "upstream_check = \"healthz\"", "expected a path as in \"/healthz\", or \"connect\""),
        (two, "upstream_check = \"/a b\"", "all of them visible ASCII"),
        (two, "upstream_check = \"/a#b\"", "\"/a#b\" is no path of a request"),
        (two, "headers = { X-A = \"1\", x-a = \"2\" }", "\"x-a\" is in `headers` twice"),
        (two, "headers = { Content-Length = \"1\" }", "belongs to the message; Eyelet writes it"),
        (two, "headers = { \"a b\" = \"1\" }", "is not the name of a field"),
        (two, "headers = { a = \"\\n\" }", "a field's value has 1 to 4096 bytes"),
        (two, "headers = { a = 1 }", "expected a string"),
        (two, "hsts = \"yes\"", "`hsts` is true for \"max-age=31536000\", or a value"),
        (
            two,
            "hsts = true\nheaders = { Strict-Transport-Security = \"max-age=1\" }",
            "`headers` has strict-transport-security already",
        ),
        ("\"tcp://127.0.0.1:1\"", "hsts = true", "gets bytes, and only responses"),
        (two, "client_cert_header = true", "add `client_ca` or `client_spiffe`"),
        (
            "\"tcp://127.0.0.1:1\"",
            "client_ca = \"app.pem\"\nclient_cert_header = true",
            "this has no effect: the upstream of this rule gets bytes, and only requests by HTTP \
             have fields; leave it out, or write an http:// upstream",
        ),
        (two, "root = \"/srv\"", "Eyelet does not serve files"),
        (two, "auth = \"basic\"", "Eyelet does not authenticate users"),
    ] {
        let said = said_of(upstream, more);
        assert!(said.iter().any(|said| said.contains(expected)), "{upstream} {more}: {said:#?}");
    }
    let text = terminate("\"app.example\"", "\"app.pem\"", "\"app.key\"", "hsts = true");
    let https = "[\"https://127.0.0.1:1\", \"https://a.example:2\"]";
    let text = text.replace("\"http://127.0.0.1:3000\"", https);
    let loaded = folder.read(Depth::Files, &text).unwrap();
    let Action::Terminate(terminate) = loaded.config.rules.at(0).action else { panic!() };
    let names: Vec<&str> = [&terminate.upstream]
        .into_iter()
        .chain(&terminate.others)
        .map(|upstream| upstream.as_http().unwrap().tls.as_ref().unwrap().name.as_str())
        .collect();
    assert_eq!(names, ["127.0.0.1", "a.example"], "each is verified by its own name");
}

#[test]
fn any_upstream_of_a_list_may_be_the_listener_itself() {
    let folder = Folder::new();
    let said = folder.said(
        "[[listener]]\naddress = \"127.0.0.1:8443\"\n[[rule]]\naction = \"splice\"\n\
         sni = \"a.example\"\nupstream = [\"192.0.2.1:443\", \"127.0.0.1:8443\"]",
    );
    assert!(said.iter().any(|said| said.contains("would loop and are refused")), "{said:#?}");
}

#[test]
fn a_rule_may_do_without_hsts() {
    let folder = Folder::new();
    folder.issue("app", &["app.example"]);
    for (more, expected) in [("", false), ("hsts = true", false), ("hsts = false", true)] {
        let text = terminate("\"app.example\"", "\"app.pem\"", "\"app.key\"", more);
        let loaded = folder.read(Depth::Files, &text).unwrap();
        let Action::Terminate(terminate) = loaded.config.rules.at(0).action else { panic!() };
        assert_eq!(terminate.no_hsts, expected, "{more}");
    }
}

#[test]
fn a_dot_at_the_end_of_a_name_makes_it_absolute() {
    let no_name: &[&str] = &["5:12: \"a.example.\" is not a host: host name ends in a dot"];
    let no_address: &[&str] =
        &["5:12: \"192.0.2.1.:1\": the address 192.0.2.1 has a dot at its end"];
    for (upstream, expected) in [
        ("a.example.:1", &[][..]),
        ("app.:1", &[]),
        ("a.example..:1", no_name),
        ("192.0.2.1.:1", no_address),
    ] {
        assert_eq!(said_of_splice(&format!("upstream = \"{upstream}\"")), *expected, "{upstream}");
    }
    let upstream = values::terminate_upstream("https://App.example.:443").unwrap();
    let Some(HttpUpstream { address: HttpAddress::Tcp(to), tls: Some(tls), .. }) =
        upstream.as_http()
    else {
        panic!("{upstream:?}")
    };
    assert_eq!(
        (to.to_string(), to.authority()),
        ("app.example.:443".into(), "app.example:443".into())
    );
    assert_eq!(tls.name, "app.example");
}

#[test]
fn source_addresses_are_of_this_host_and_for_configured_upstreams() {
    let one = "upstream = \"192.0.2.1:1\"";
    for (keys, expected) in [
        (format!("{one}\nsource_addresses = \"10.0.0.8\""), None),
        (format!("{one}\nsource_addresses = [\"10.0.0.8/30\", \"10.0.0.12/32\"]"), None),
        (
            format!("{one}\nsource_addresses = [\"10.0.0.9\", \"10.0.0.8/30\"]"),
            Some("6:33: 10.0.0.9 is in the list twice; that gives it no more ports"),
        ),
        (
            format!("{one}\nsource_addresses = \"10.0.0.0/16\""),
            Some("6:20: \"10.0.0.0/16\" has more than 256 addresses"),
        ),
        (
            format!("{one}\nsource_addresses = [\"10.0.0.0/24\", \"10.0.1.0/24\"]"),
            Some("6:1: 508 addresses; at most 256"),
        ),
        (
            format!("{one}\nsource_addresses = \"0.0.0.0\""),
            Some(
                "6:20: \"0.0.0.0\" is not an address to dial from; expected an address of this \
                  host, such as \"10.0.0.8\", or a network of them",
            ),
        ),
        (
            format!("{one}\nsource_addresses = \"2001:db8::8\""),
            Some("6:1: no source address has the family (IPv4 or IPv6) of the upstream 192.0.2.1"),
        ),
        (
            "upstream = \"{sni}:1\"\nsource_addresses = \"10.0.0.8\"".to_owned(),
            Some(
                "6:1: an upstream that clients choose is dialled from the kernel's choice of \
                 address; leave `source_addresses` out, or write the upstream's host and port",
            ),
        ),
        (
            format!("{one}\nupstream_allow = \"10.0.0.0/8\"\nsource_addresses = \"10.0.0.8\""),
            Some(
                "7:1: with `upstream_allow` the kernel chooses the address; leave out one \
                 of the two",
            ),
        ),
    ] {
        assert_eq!(said_of_splice(&keys), expected.as_slice(), "{keys}");
    }
    let many = read(&format!(
        "{LISTENER}[[rule]]\naction = \"splice\"\nupstream = \"app.example:1\"\n\
         source_addresses = [\"10.0.0.8/30\", \"2001:db8::/126\"]\n"
    ));
    let many = many.unwrap().config;
    let Some(Action::Splice(splice)) = many.rules.iter().next().map(|rule| rule.action) else {
        panic!("a splice rule");
    };
    let sources = splice.balance.sources.iter().map(ToString::to_string);
    assert_eq!(
        sources.collect::<Vec<_>>(),
        ["10.0.0.9", "10.0.0.10", "2001:db8::", "2001:db8::1", "2001:db8::2", "2001:db8::3"]
    );
}
