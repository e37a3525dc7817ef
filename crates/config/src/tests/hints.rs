//! The messages of `check` to people who write what other programs understand: keys, values, ports,
//! and names that stand in two rules.

use std::io::{Error, ErrorKind};
use std::path::Path;

use eyelet_pki::certificate::access_hint;
use eyelet_sys::process;

use super::certificates::Folder;
use super::upstreams::said_of_splice;
use super::{read, said, said_below_listener};

/// A key that people know from other programs has a sentence wherever they write it.
#[test]
fn keys_of_other_programs() {
    let folder = Folder::new();
    for (key, said) in [
        ("auth_basic = \"users\"", "Eyelet does not authenticate users"),
        ("weight = 3", "HAProxy as the upstream has weights"),
        ("redirect = \"https://a.example\"", "`kind = \"http_redirect\"`"),
        ("http3 = true", "does not speak HTTP/3"),
        ("ciphers = \"HIGH\"", "the cipher suites and groups are fixed"),
        ("websocket = true", "WebSockets need no key"),
        ("strip_prefix = \"/api\"", "Eyelet does not rewrite paths"),
        ("root = \"/srv\"", "Eyelet does not serve files"),
        ("directory = \"/srv\"", "Eyelet does not serve files"),
        ("directory = \"https://a.example\"", "an ACME server's directory stands in [acme]"),
        ("forward_auth = \"http://a.example\"", "Eyelet does not authenticate users"),
        ("error_page = \"50x.html\"", "Eyelet shows no pages of yours"),
        ("proxy_pass = \"http://a.example\"", "`upstream` says where a rule sends"),
        ("gzip = true", "responses are compressed without a key"),
        ("timeout = \"1m\"", "[limits] and [http] have the timeouts"),
        ("allow = \"10.0.0.0/8\"", "gives a rule these addresses"),
        ("deny = \"10.0.0.0/8\"", "`action = \"refuse\"` refuses them"),
        ("stick_table = \"ip\"", "`upstream_hash = \"client\"` keeps a client"),
        ("handle = \"/api/*\"", "and the rule below it with the same `sni` the others"),
        ("handle_path = \"/api/*\"", "Eyelet does not rewrite paths"),
        ("host = \"app.example\"", "`sni` has the names of a rule"),
        ("server_name = \"app.example\"", "`sni` has the names of a rule"),
        ("sin = \"app.example\"", "did you mean `sni`?"),
        ("header_up = { a = \"b\" }", "fields of requests cannot be set; `headers` is for resp"),
        ("email = \"ops@app.example\"", "`contact = \"mailto:ops@app.example\"` in [acme]"),
        ("on_demand_tls = true", "`acme_on_demand = true` in a rule"),
        ("tls = \"internal\"", "`certificate = \"acme\"` (ordered), \"local\" (signed here)"),
        ("http2 = true", "clients get HTTP/2 or HTTP/1.1 without a key"),
        ("redir = \"https://a.example\"", "`kind = \"http_redirect\"`"),
        ("remote_ip = \"10.0.0.0/8\"", "`client = \"10.0.0.0/8\"` gives a rule these addresses"),
        ("respond = \"ok\"", "Eyelet shows no pages of yours"),
        // Any other key does not show sixty.
        ("cookbook = 1", "unknown key `cookbook` in [[rule]]; docs/configuration.md lists the"),
    ] {
        let found = said_of_splice(&format!("upstream = \"a.example:1\"\n{key}"));
        assert!(found.len() == 1 && found[0].contains(said), "{key}: {found:#?}");
    }
    for (table, said) in [
        ("[[route]]\npath = \"/api\"", "`path = \"/api/*\"` in a [[rule]] takes these"),
        ("[auth]\nfile = \"users\"", "Eyelet does not authenticate users"),
    ] {
        let rule = "[[rule]]\naction = \"refuse\"\n";
        let text = format!("[[listener]]\naddress = \"127.0.0.1:0\"\n{rule}{table}\n");
        let found = folder.said(&text);
        assert!(found.len() == 1 && found[0].contains(said), "{table}: {found:#?}");
    }
}

/// A rule whose names are not read takes all names: no mistake of the rules below.
#[test]
fn a_rule_with_an_unknown_key_covers_nothing() {
    let rule = |key: &str, name: &str| {
        format!("[[rule]]\n{key} = \"{name}\"\naction = \"splice\"\nupstream = \"192.0.2.1:443\"\n")
    };
    let said_of = |first: &str, second: &str| {
        said_below_listener(&(rule(first, "*.b.example") + &rule(second, "a.b.example")))
    };
    let known = said_of("sni", "sni");
    assert!(known.len() == 1 && known[0].contains("can never match"), "{known:?}");
    for (first, second) in [("host", "sni"), ("sni", "host"), ("sin", "sni"), ("host", "host")] {
        let found = said_of(first, second);
        assert!(found.iter().all(|said| said.contains(": unknown key `")), "{found:?}");
    }
}

/// A table where people do not write what they know keeps its list of keys, but for those of ACME.
#[test]
fn keys_of_acme() {
    let said_of = |key: &str| {
        let acme = "[acme]\ndirectory = \"https://ca.test/dir\"\nterms_agreed = true\n";
        let found = said_below_listener(&format!("{acme}{key}\n"));
        found.into_iter().find(|said| said.contains("unknown key")).unwrap()
    };
    let email = said_of("email = \"ops@app.example\"");
    assert!(email.contains("`contact = \"mailto:ops@app.example\"` in [acme]"), "{email}");
    let path = said_of("path = \"/var/lib\"");
    assert!(path.contains("(known keys: ca, contact, "), "{path}");
}

#[test]
fn values_of_another_kind() {
    let rule = "[[rule]]\nsni = \"app.example\"\naction = \"terminate\"\n\
        upstream = \"http://127.0.0.1:3000\"\ncertificate = \"local\"\n";
    for (value, kind) in [("true", "a boolean"), ("[\"zstd\"]", "an array")] {
        assert_eq!(
            said_below_listener(&format!("{rule}compress = {value}\n")),
            [format!("8:12: `compress` is {kind}; expected \"on\", \"none\" or \"off\""),]
        );
    }
    for (value, kind) in [("443", "an integer"), ("[\"0.0.0.0:443\", \"[::]:443\"]", "an array")] {
        let found = read(&format!("[[listener]]\naddress = {value}\n{rule}")).unwrap_err();
        assert_eq!(
            said(&found),
            [format!(
                "2:11: `address` is {kind}; expected one address, such as \"0.0.0.0:443\"; each \
                 further one has a [[listener]] of its own"
            )]
        );
    }
}

/// An administrator who is told who could not read the key knows what to do.
#[test]
fn a_file_of_another_user() {
    let said = |kind| access_hint(Path::new("/etc/eyelet/app.key"), &Error::from(kind));
    let denied = said(ErrorKind::PermissionDenied);
    assert!(denied.starts_with(&format!(" for user {}: `install", process::user())), "{denied}");
    let copies = format!("-m 640 -g {} /etc/eyelet/app.key DIR`", process::group());
    assert!(denied.contains(&copies), "{denied}");
    assert_eq!(said(ErrorKind::NotFound), "");
}

/// A word for "order one" of another program is the name of a file here.
#[test]
fn certificates_that_are_no_files() {
    let rule = "[[rule]]\nsni = \"app.example\"\naction = \"terminate\"\n\
        upstream = \"http://127.0.0.1:3000\"\n";
    for word in ["auto", "letsencrypt", "internal"] {
        assert_eq!(
            said_below_listener(&format!("{rule}certificate = \"{word}\"\n")),
            [format!(
                "7:15: \"{word}\": no such file, and a file needs its `key`: \"acme\" orders a \
                 certificate, \"local\" signs one here"
            )]
        );
    }
}

#[test]
fn port_80_without_redirects_to_https() {
    let tls = "1:1: warning: clients must speak TLS at this port, which is that of http://; did \
        you mean `kind = \"http_redirect\"`, which sends them to https://?";
    let netfilter = "1:1: warning: netfilter must redirect connections to a \"redirect\" listener; \
        to send clients from http:// to https:// write `kind = \"http_redirect\"`";
    let rule = "[[rule]]\naction = \"refuse\"\n";
    for (address, more, expected) in [
        ("0.0.0.0:80", "", Some(tls)),
        ("[::]:80", "", Some(tls)),
        ("0.0.0.0:80", "kind = \"redirect\"", Some(netfilter)),
        // Somebody who says it means it.
        ("0.0.0.0:80", "kind = \"direct\"", None),
        ("0.0.0.0:80", "kind = \"redirect\"\nplain_http = true", None),
        ("0.0.0.0:80", "kind = \"http_redirect\"", None),
        ("0.0.0.0:8080", "", None),
        ("0.0.0.0:8080", "kind = \"redirect\"", None),
    ] {
        let text = format!("[[listener]]\naddress = \"{address}\"\n{more}\n{rule}");
        let loaded = read(&text).unwrap_or_else(|found| panic!("{text}: {:?}", said(&found)));
        assert_eq!(said(&loaded.warnings), Vec::from_iter(expected), "{text}");
    }
}

/// The rules share a name, and each has others: both match, so `check` says nothing else.
#[test]
fn names_that_an_earlier_rule_takes() {
    let rule = |name: &str, sni: &str, more: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\nsni = {sni}\n{more}action = \"splice\"\n\
             upstream = \"192.0.2.1:443\"\n"
        )
    };
    let said_of = |first: &str, more: &str, second: &str| {
        said_below_listener(&(rule("a", first, more) + &rule("b", second, "")))
    };
    let lost = |place: &str, names: &str| {
        vec![format!(
            "{place}: warning: this rule never gets {names}: \"a\" (line 3) comes first and takes \
             it; leave it out, or put this rule above"
        )]
    };
    let both = "[\"x.example\", \"both.example\"]";
    assert_eq!(
        said_of("[\"both.example\", \"y.example\"]", "", both),
        lost("10:21", "\"both.example\"")
    );
    assert_eq!(said_of("\"*.example\"", "", "[\"a.b\", \"*.c.example\", \"d.example\"]")[1..], {
        lost("10:15", "\"*.c.example\" (and 1 more)")
    });
    // The rule above takes some of the connections only, or other names.
    for more in ["client = \"10.0.0.0/8\"\n", "alpn = \"h2\"\n", "shadow = true\n"] {
        assert_eq!(said_of("\"both.example\"", more, both), [""; 0], "{more}");
    }
    assert_eq!(said_of("\"z.both.example\"", "", both), [""; 0]);
    assert_eq!(said_of("\"www.both.example\"", "", "[\"*.both.example\"]"), [""; 0]);
}

/// The other keys of a rule are read, too, where its action or its header has a mistake; and what
/// such a mistake explains is not said of lines that are right.
#[test]
fn every_mistake_is_said_and_no_other() {
    let acme = "[acme]\ndirectory = \"letsencrypt\"\nterms_agreed = true\n";
    let of = |header: &str, rule: &str, acme: &str| {
        said_below_listener(&format!("{header}\n{rule}\n{acme}"))
    };
    let slips = "sni = \"https://app.mysite.com\"\naction = \"terminat\"\ncertificate = \"acme\"\n\
        upstream = \"htp://127.0.0.1:3000\"";
    let one = "sni = \"app.mysite.com\"\naction = \"terminate\"\ncertificate = \"acme\"\n\
        upstream = \"http://127.0.0.1:3000\"";
    let with = |from: &str, to: &str| one.replace(from, to);
    let name = "sni = \"app.mysite.com\"";
    let cases: [(&str, &str, &[&str]); 9] = [
        ("[[rule]]", slips, &["4:7", "5:10", "7:12"]),
        ("[rule]", slips, &["3:1", "4:7", "5:10", "7:12"]),
        ("[[rules]]", slips, &["3:3", "4:7", "5:10", "7:12"]),
        (
            "[[rule]]",
            "action = \"proxy\"\ncertificate = \"app2.pem\"\nupstream = \"localhost\"",
            &["4:10", "5:15: \"app2.pem\": no such file", "6:12"],
        ),
        ("[[rule]]", &with(name, "sni = 7"), &["4:7"]),
        ("[[rule]]", &with("sni", "host"), &["4:1"]),
        ("[[rule]]", &with("\"terminate\"", "\"proxyy\""), &["5:10"]),
        ("[rule]", one, &["3:1"]),
        (
            "[[rule]]",
            &with("app.mysite.com", "app.mysite.com, www.mysite.com"),
            &["4:7: these are several names: write [\"app.mysite.com\", \"www.mysite.com\"]"],
        ),
    ];
    for (header, rule, expected) in cases {
        // Without a rule that asks for it [acme] gets a warning of its own.
        let acme = if rule.contains("acme") { acme } else { "" };
        let found: Vec<String> = of(header, rule, acme)
            .into_iter()
            .filter(|said| !said.contains("port 443 or"))
            .collect();
        assert_eq!(found.len(), expected.len(), "{header} {rule}: {found:#?}");
        for (said, start) in found.iter().zip(expected) {
            assert!(said.starts_with(start), "{said}\n{start}");
        }
    }
    let yes = of("[[rule]]", one, &acme.replace("true", "yes"));
    let errors = yes.iter().filter(|said| !said.contains("port 443 or"));
    assert_eq!(errors.count(), 1, "{yes:#?}");
}
