//! Tables of configurations with mistakes and their messages, and valid ones. Messages are compared
//! exactly, because operators depend on place and words.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use eyelet_wire::alert::AlertDescription;

use super::*;

const LISTENER: &str = "[[listener]]\naddress = \"0.0.0.0:443\"\n";

fn read(text: &str) -> Result<Loaded, Vec<Diagnostic>> {
    parse(Path::new("edge.toml"), text, Depth::Full, SystemTime::now())
}

/// `line:column: message` of each; warnings are marked.
fn said(diagnostics: &[Diagnostic]) -> Vec<String> {
    let line = |found: &Diagnostic| {
        let warning = if found.severity == Severity::Warning { "warning: " } else { "" };
        format!("{}:{}: {warning}{}", found.line, found.column, found.message)
    };
    diagnostics.iter().map(line).collect()
}

/// The messages for `text` after a listener of two lines.
fn said_below_listener(text: &str) -> Vec<String> {
    match read(&format!("{LISTENER}{text}")) {
        Ok(loaded) => said(&loaded.warnings),
        Err(diagnostics) => said(&diagnostics),
    }
}

#[track_caller]
fn check_table(table: &[(&str, &[&str])]) {
    for (text, expected) in table {
        assert_eq!(said_below_listener(text), *expected, "{text}");
    }
}

#[test]
fn a_diagnostic_shows_the_line_and_its_place() {
    let text = "[[listener]]\n\taddress = \"0.0.0.0\"\n[[rule]]\naction = \"refuse\"\n";
    let found = read(text).unwrap_err();
    let shown: Vec<String> = found.iter().map(Diagnostic::to_string).collect();
    assert_eq!(
        shown,
        ["edge.toml:2:12: error: \"0.0.0.0\" has no port; expected address:port as in \
          \"0.0.0.0:443\"\n 2 | \taddress = \"0.0.0.0\"\n   | \t          ^"]
    );
}

#[test]
fn files_that_cannot_be_read() {
    for (path, message) in [
        ("/nonexistent/edge.toml", "cannot be read: No such file or directory (os error 2)"),
        ("/", "cannot be read: it is a directory; expected a regular file"),
    ] {
        let found = load(Path::new(path), Depth::Files).unwrap_err();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), format!("{path}: error: {message}"));
    }
}

#[test]
fn every_mistake_is_found_in_one_run() {
    check_table(&[(
        "lisener = 1
[[rule]]
sni = [\"*.\", \"a.*.b\", \"ok.example\", 5]
acton = \"splice\"
[[rule]]
client = \"10.0.0.1/8\"
action = \"refuse\"
alert = \"acess_denied\"
upstream = \"x:1\"
[limits]
idle_timeout = \"soon\"
memory_max = \"12\"
",
        &[
            "3:1: unknown key `lisener` in [[listener]] (known keys: acme_upstream, \
             address, allow_remote, defer_accept, kind, mode, name, plain_http, \
             proxy_protocol_from, quic, reuse_port, users)",
            // That `action` is missing follows from the mistyped key, and is not said.
            "5:8: \"*.\": nothing follows \"*.\"; expected a suffix, as in \"*.example.com\"",
            "5:14: \"a.*.b\": \"*\" stands only as the whole first label, as in \
             \"*.example.com\"",
            "5:37: `sni` is an integer; expected strings in the list",
            "6:1: unknown key `acton` in [[rule]]; did you mean `action`?",
            "8:10: \"10.0.0.1/8\" has bits set beyond its prefix; did you mean \"10.0.0.0/8\" or \
             \"10.0.0.1\"?",
            "10:9: \"acess_denied\" is not an alert; did you mean \"access_denied\"?",
            "11:1: `upstream` means nothing in a refuse rule; it belongs to originate, splice and \
             terminate rules",
            "13:16: \"soon\" is not a duration; expected a number with its unit as in \"500ms\", \
             \"5s\" or \"1h\"",
            "14:14: \"12\" has no unit; expected a whole number with its unit, as in \"64KiB\", \
             \"512MiB\" or \"2GiB\"",
        ],
    )]);
}

#[test]
fn syntax_errors_do_not_hide_other_mistakes() {
    let found = said_below_listener("[[rule]]\nname = \"x\naction = \"refuse\"\necho = true\n");
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].starts_with("4:10: not TOML: invalid basic string"), "{found:#?}");
    assert!(found[1].starts_with("6:1: unknown key `echo`"), "{found:#?}");
    let twice = said_below_listener("[[rule]]\naction = \"refuse\"\naction = \"refuse\"\n");
    assert_eq!(twice, ["5:1: not TOML: duplicate key"]);
}

#[test]
fn names() {
    let rule = |sni: &str| format!("[[rule]]\nsni = {sni}\naction = \"refuse\"\n");
    for (sni, expected) in [
        (
            "\"*.\"",
            "4:7: \"*.\": nothing follows \"*.\"; expected a suffix, as in \
            \"*.example.com\"",
        ),
        (
            "\"a.*.b\"",
            "4:7: \"a.*.b\": \"*\" stands only as the whole first label, as in \
            \"*.example.com\"",
        ),
        ("\"*\"", "4:7: \"*\": \"*\" alone is not a pattern; leave `sni` out to match every name"),
        (
            "\"a.example.\"",
            "4:7: \"a.example.\": a name in a hello has no dot at its end; leave \
            it out",
        ),
        (
            "[\"a\", \"10.0.0.1\"]",
            "4:13: \"10.0.0.1\": a hello never asks for an IP address; use \
            `destination` for addresses",
        ),
        (
            "\"bücher.example\"",
            "4:7: \"bücher.example\": the name is not ASCII; write it as \
            hellos carry it, in its xn-- form",
        ),
        (
            "\".App.example\"",
            "4:7: \".App.example\" is how a file of names says it; here write [\"App.example\", \
            \"*.App.example\"]",
        ),
        (
            "\"https://a.test/\"",
            "4:7: \"https://a.test/\": expected a host name such as \"a.test\", without scheme, \
            port and path",
        ),
        (
            "\"a..b\"",
            "4:7: \"a..b\": a hello with such a name is malformed: empty label in the host \
            name",
        ),
        ("[]", "4:7: `sni` is an empty list; list something, or leave `sni` out"),
        ("true", "4:7: `sni` is a boolean; expected a string or a list of strings"),
        ("\"*.com\"", "4:7: warning: \"*.com\" takes a whole top-level domain"),
        ("[\"a.b\", \"a.b\"]", "4:15: warning: \"a.b\" is listed twice"),
    ] {
        assert_eq!(said_below_listener(&rule(sni)), [expected], "{sni}");
    }
}

#[test]
fn listeners() {
    let listen = |keys: &str| match read(&format!("{keys}\n[[rule]]\naction = \"refuse\"\n")) {
        Ok(loaded) => said(&loaded.warnings),
        Err(diagnostics) => said(&diagnostics),
    };
    let two = |a: &str, b: &str| {
        listen(&format!("[[listener]]\naddress = \"{a}\"\n[[listener]]\naddress = \"{b}\"\n"))
    };
    for (a, b) in [
        ("127.0.0.1:443", "127.0.0.1:443"),
        ("0.0.0.0:443", "127.0.0.1:443"),
        ("[::1]:443", "[::]:443"),
        ("[::]:443", "[::1]:443"),
    ] {
        let message = format!(
            "4:11: {b} collides with the listener on {a} at line 1: one address \
            can be listened on once"
        );
        assert_eq!(two(a, b), [message]);
    }
    for (a, b) in [
        ("127.0.0.1:443", "127.0.0.2:443"),
        ("0.0.0.0:443", "[::1]:443"),
        ("0.0.0.0:443", "[::]:443"),
        ("127.0.0.1:443", "[::]:443"),
        ("0.0.0.0:443", "0.0.0.0:444"),
        ("127.0.0.1:0", "127.0.0.1:0"),
    ] {
        assert_eq!(two(a, b), [""; 0], "{a} {b}");
    }
    assert_eq!(
        listen(""),
        ["1:1: no listener; expected at least one [[listener]] with an `address` such as \
          \"0.0.0.0:443\""]
    );
    for (keys, expected) in [
        ("kind = \"direct\"", "1:1: a listener needs an `address`, such as \"0.0.0.0:443\""),
        (
            "address = \"localhost:443\"",
            "2:11: \"localhost:443\" is not an address to listen on; \
            expected IP:port as in \"0.0.0.0:443\" or \"[::]:443\"",
        ),
        (
            "address = \"::1\"",
            "2:11: \"::1\" has no port; expected address:port as in \
            \"[::1]:443\"",
        ),
        (
            "address = \"[::]:443\"\nkind = \"udp\"",
            "3:8: \"udp\" is not a kind of listener; expected \"direct\", \"redirect\", \
             \"tproxy\", \"connect\", \"http_redirect\" or \"plain\"",
        ),
        (
            "address = \"[::]:443\"\nproxy_protocol_from = [\"ten\"]",
            "3:24: \"ten\" is not a \
            network; expected CIDR as in \"10.0.0.0/8\" or \"2001:db8::/32\"",
        ),
    ] {
        assert_eq!(listen(&format!("[[listener]]\n{keys}\n")), [expected], "{keys}");
    }
    assert_eq!(
        listen("listener = \"0.0.0.0:443\""),
        ["1:12: `listener` is a string here; there may be several: write [[listener]]"]
    );
}

#[test]
fn splice_upstreams() {
    let rule = |keys: &str| format!("[[rule]]\naction = \"splice\"\n{keys}\n");
    for (keys, expected) in [
        ("", "3:1: a splice rule needs an `upstream`, such as \"10.0.0.7:443\""),
        (
            "upstream = \"destination\"",
            "5:12: on the direct listener \"0.0.0.0:443\" the destination is the listener \
             itself, so this would loop; expected host:port or \"{sni}:443\", or a `listener` \
             that intercepts",
        ),
        (
            "upstream = \"a:443\"\nsource = \"client\"",
            "6:10: `source` needs the routing of a \"tproxy\" listener for answers to the client's \
             address, and \"0.0.0.0:443\" is not one; give this rule a `listener`",
        ),
        (
            "upstream = \"a:443\"\nsource = \"10.0.0.1\"",
            "6:10: \"10.0.0.1\" is not a source; expected \"client\"",
        ),
        (
            "upstream = \"10.0.0.7\"",
            "5:12: \"10.0.0.7\" is not host:port; expected it as in \
            \"app.internal:443\"",
        ),
        ("upstream = \"::1\"", "5:12: \"::1\" is not host:port; expected it as in \"[::1]:443\""),
        ("upstream = \"a:0\"", "5:12: \"0\" is not a port; expected 1 to 65535"),
        ("upstream = \"{sni}\"", "5:12: \"{sni}\": a name is filled in only as \"{sni}:port\""),
        (
            "upstream = \"tcp://a:443\"",
            "5:12: a spliced connection has no scheme \"tcp://\": its \
            bytes are passed on as they are; expected \"a:443\"",
        ),
        ("upstream = \"a b:443\"", "5:12: \"a b\" is not a host: byte 0x20 in the host name"),
        (
            "upstream = \"a:443\"\nproxy_protocol = \"v1\"",
            "6:18: \"v1\" is not supported; expected \
            \"v2\"",
        ),
        (
            "upstream = \"a:443\"\ncertificate = \"a.pem\"",
            "6:1: `certificate` means nothing in a \
            splice rule; it belongs to terminate rules",
        ),
        (
            "upstream = \"{sni}:443\"\nsni = [\"a.b\", \"\"]",
            "6:15: a hello without a name has \
            nothing to dial by \"{sni}\"; give \"\" a rule of its own",
        ),
        (
            "upstream = \"{sni}:443\"\nsni_malformed = true",
            "5:12: with `sni_malformed = true` \
            there is no name to dial; expected host:port",
        ),
        (
            "upstream = \"a:443\"\nsni_malformed = true\nsni = \"a.b\"",
            "7:1: a malformed name is none of these, so this rule never matches: with \
             `sni_malformed = true` leave `sni` out",
        ),
    ] {
        assert_eq!(said_below_listener(&rule(keys)), [expected], "{keys}");
    }
}

#[test]
fn plain_http_is_for_the_urls_that_a_proxy_is_asked_for() {
    let rule = |keys: &str| format!("[[rule]]\naction = \"splice\"\n{keys}\n");
    for (keys, expected) in [
        (
            "upstream = \"a:80\"\nlistener = \"proxy\"\nplain_http = true\n[[listener]]\n\
             address = \"0.0.0.0:3128\"\nname = \"proxy\"\nkind = \"connect\"",
            "5:12: with `plain_http = true` a request goes to the host and port of its URL; \
             expected \"destination\"",
        ),
        (
            "sni = \"a\"\nupstream = \"destination\"\nlistener = \"nat\"\nplain_http = true\n\
             sni_verified = true\nevidence = \"dns\"\n[[listener]]\n\
             address = \"0.0.0.0:3128\"\nname = \"nat\"\nkind = \"redirect\"",
            "8:1: requests for http:// URLs come to a \"connect\" listener, and to one with \
             `plain_http = true`, and this rule has neither",
        ),
    ] {
        assert_eq!(said_below_listener(&rule(keys)), [expected], "{keys}");
    }
}

#[test]
fn matchers_of_a_rule() {
    let rule = |keys: &str| format!("[[rule]]\naction = \"splice\"\n{keys}\n");
    for (keys, expected) in [
        (
            "upstream = \"a:443\"\nlistener = \"[::]:1\"",
            "6:12: no listener is called \"[::]:1\"; \
            expected the name or the address of one, such as \"0.0.0.0:443\"",
        ),
        (
            "upstream = \"a:443\"\nconnect = \"a.b:443\"",
            "6:1: no listener of this rule is of kind \"connect\", so it never matches",
        ),
        (
            "upstream = \"a:443\"\ndestination = \"*:0\"",
            "6:15: \"0\" is not a port; expected 1 to 65535",
        ),
        (
            "upstream = \"a:443\"\ndestination = \"a.b:443\"",
            "6:15: \"a.b\" is not a network; \
            expected CIDR as in \"10.0.0.0/8\" or \"2001:db8::/32\"",
        ),
        (
            "upstream = \"a:443\"\ntls_version_max = \"SSLv3\"",
            "6:19: \"SSLv3\" is not a TLS \
            version; expected \"1.0\", \"1.1\", \"1.2\" or \"1.3\"",
        ),
        (
            "upstream = \"a:443\"\nja4 = \"t13d\"",
            "6:7: \"t13d\" is not a JA4 fingerprint; \
            expected 36 characters as in \"t13d1516h2_8daaf6152771_02713d6af862\"",
        ),
        (
            "upstream = \"a:443\"\nalpn = \"\"",
            "6:8: a protocol name has 1 to 255 bytes (RFC \
            7301), as in \"h2\"",
        ),
        (
            "upstream = \"a:443\"\nname = \"\"",
            "6:8: a rule's name is what log lines show; it is \
            empty",
        ),
    ] {
        assert_eq!(said_below_listener(&rule(keys)), [expected], "{keys}");
    }
    assert_eq!(
        said_below_listener("[[rule]]\naction = \"deny\"\n"),
        ["4:10: \"deny\" is not an action; expected \"splice\", \"terminate\", \"originate\", \
          \"hold\" or \"refuse\"; \"refuse\" sends an alert"]
    );
    for (action, advice) in [
        (
            "bump",
            "\"terminate\" ends TLS here, with `certificate = \"mint\"` for servers that are not \
             yours: docs/bump.md",
        ),
        (
            "stare",
            "matchers peek: one such as `sni` at the hello, one such as `certificate_issuer` at \
             the server's certificate",
        ),
    ] {
        let found = said_below_listener(&format!("[[rule]]\naction = \"{action}\"\n"));
        assert!(found[0].ends_with(&format!("or \"refuse\"; {advice}")), "{found:?}");
    }
}

const GATE: &str = "[[listener]]\naddress = \"0.0.0.0:443\"\nkind = \"redirect\"\n";

#[test]
fn evidence() {
    let said_of = |listener: &str, keys: &str| {
        let text = format!("{listener}[[rule]]\naction = \"refuse\"\n{keys}\n");
        match read(&text) {
            Ok(loaded) => said(&loaded.warnings),
            Err(diagnostics) => said(&diagnostics),
        }
    };
    for sound in [
        "sni_verified = false\nevidence = [\"dns\", \"certificate\"]",
        "certificate_valid = false",
        "certificate_names = [\"a.example\", \"*.b.example\"]",
        "certificate_issuer = \"Let's Encrypt\"",
        "tls_compression = \"offered\"",
    ] {
        assert_eq!(said_of(GATE, sound), [""; 0], "{sound}");
    }
    for (keys, expected) in [
        (
            "sni_verified = true",
            "6:1: `sni_verified` needs `evidence`: \"dns\", \"certificate\" or \"connect\", or a \
             list of them; one is enough",
        ),
        ("evidence = \"dns\"", "6:1: `evidence` has no effect without `sni_verified`: add it"),
        (
            "sni_verified = true\nevidence = \"oracle\"",
            "7:12: \"oracle\" is no evidence; expected \"dns\", \"certificate\" or \"connect\"",
        ),
        (
            "sni_verified = true\nevidence = \"connect\"",
            "7:1: no listener of this rule is of kind \"connect\", so it never matches",
        ),
        ("certificate_names = \"\"", "6:1: a certificate has no empty name; leave \"\" out"),
        ("certificate_issuer = \"\"", "6:22: an issuer has a name, as in \"Let's Encrypt\""),
        (
            "tls_compression = \"chosen\"",
            "6:19: \"chosen\" is not in a hello; expected \"offered\" (what the server chooses is \
             for `forbid_tls_compression`)",
        ),
        (
            "forbid_tls_compression = true",
            "6:1: `forbid_tls_compression` means nothing in a refuse rule; it belongs to splice \
             rules",
        ),
    ] {
        assert_eq!(said_of(GATE, keys), [expected], "{keys}");
    }
    let found = said_of(GATE, "[evidence]\nhistory = \"0s\"\ntimeout = \"1h\"\ncache = 1");
    assert_eq!(found.len(), 3, "{found:#?}");
    // A direct listener knows no destination.
    for key in ["certificate_valid = true", "sni_verified = true\nevidence = \"certificate\""] {
        let found = said_of(LISTENER, key);
        assert!(found[0].contains("asks about the destination, and clients of this rule"));
    }
    let trusted = LISTENER.to_owned() + "proxy_protocol_from = \"10.0.0.0/8\"\n";
    assert_eq!(said_of(&trusted, "certificate_valid = true"), [""; 0]);
}

#[test]
fn limits_out_of_bounds() {
    let range = |key: &str| format!("4:{}: ", key.len() + 4);
    for (key, value, expected) in [
        ("idle_timeout", "\"0s\"", "\"0s\" is out of bounds; expected 1ms to 1year"),
        ("hello_timeout", "\"1day\"", "\"1day\" is out of bounds; expected 1ms to 10m"),
        (
            "hello_timeout",
            "5",
            "`hello_timeout` is an integer; expected a duration with its unit, as in \"30s\"",
        ),
        ("connections_max", "0", "`connections_max` is 0; expected 1 to 100000000"),
        ("connections_max", "-1", "`connections_max` is -1; expected 1 to 100000000"),
        ("connections_max", "\"1\"", "`connections_max` is a string; expected a whole number"),
        (
            "memory_max",
            "\"512MB\"",
            "\"512MB\" has the unknown unit \"MB\"; expected a whole \
            number with its unit, as in \"64KiB\", \"512MiB\" or \"2GiB\"",
        ),
        (
            "memory_max",
            "\"1MiB\"",
            "`memory_max` is 1048576 bytes; expected \"16MiB\" to \"16TiB\"",
        ),
        ("memory_max", "64", "`memory_max` is 64 bytes; expected \"16MiB\" to \"16TiB\""),
        ("memory_max", "-1", "`memory_max` is -1 bytes; expected \"16MiB\" to \"16TiB\""),
        (
            "memory_max",
            "\"99999999999TiB\"",
            "\"99999999999TiB\" is too large; expected a whole \
            number with its unit, as in \"64KiB\", \"512MiB\" or \"2GiB\"",
        ),
        (
            "hello_bytes_max",
            "65537",
            "`hello_bytes_max` is 65537 bytes; expected \"512B\" to \"64KiB\"",
        ),
        (
            "hello_bytes_max",
            "true",
            "`hello_bytes_max` is a boolean; expected a size such as \
            \"64KiB\", or a number of bytes",
        ),
    ] {
        let text = format!("[limits]\n{key} = {value}\n[[rule]]\naction = \"refuse\"\n");
        let expected = format!("{}{expected}", range(key));
        assert_eq!(said_below_listener(&text), [expected], "{key} = {value}");
    }
    assert_eq!(
        said_below_listener(
            "[[limits]]\nx = 1\n[log]\naccess = \"stderr\"\n[dns]\n\
            servers = \"dns.example\"\n"
        ),
        [
            "1:1: warning: no rule; every connection will be refused",
            "3:1: there is one [limits] only, in single brackets",
            "6:10: expected \"stdout\", \"off\" or the path of a file; stderr has all other \
             messages",
            "8:11: \"dns.example\" is not a DNS server; expected an address as in \"9.9.9.9\", \
             \"127.0.0.1:5353\" or \"tls://192.0.2.1#dns.example\"",
        ]
    );
}

#[test]
fn covered_rules_and_shared_names() {
    check_table(&[
        (
            "[[rule]]\nname = \"all\"\nsni = \"*.a.example\"\naction = \"refuse\"\n\
             [[rule]]\nsni = [\"b.a.example\", \"*.c.a.example\"]\nclient = \"10.0.0.0/8\"\n\
             action = \"refuse\"\n",
            &["7:1: this rule can never match: earlier rules match all that it matches: \
               \"all\" (line 3)"],
        ),
        (
            "[[rule]]\nname = \"a\"\naction = \"refuse\"\nclient = \"10.0.0.0/8\"\n\
             [[rule]]\nname = \"a\"\naction = \"refuse\"\n",
            &["8:8: warning: the rule at line 4 has the name \"a\" too"],
        ),
    ]);
}

#[test]
fn a_whole_configuration() {
    let loaded = read(WHOLE).unwrap();
    assert_eq!(said(&loaded.warnings), [""; 0]);
    let config = loaded.config;
    let [inner, outer] = config.listeners.as_slice() else { panic!("two listeners") };
    assert_eq!(inner.address.inet(), "127.0.0.1:8443".parse::<SocketAddr>().unwrap());
    assert_eq!((inner.name.as_deref(), inner.reuse_port), (Some("inner"), true));
    assert_eq!(outer.proxy_protocol_from, ["10.0.0.0/8".parse().unwrap()]);
    let names: Vec<&str> = config.rules.iter().map(|rule| rule.name).collect();
    assert_eq!(names, ["bank", "rule 2", "rule 3", "rule 4"]);
    let host_port = |host, port| HostPort { host, port };
    let bank = host_port(Host::Ip("10.0.0.7".parse().unwrap()), 443);
    let splice = |upstream, upstream_allow| {
        Action::Splice(Splice {
            upstream,
            others: Vec::new(),
            balance: Balance::default(),
            upstream_allow,
            is_guarded: false,
            proxy_protocol: None,
            source: DialSource::Host,
            forbid_tls_compression: false,
            fast_open: false,
            plain_http: false,
            hold: None,
        })
    };
    assert_eq!(*config.rules.at(0).action, splice(SpliceUpstream::HostPort(bank), vec![]));
    let by_name = SpliceUpstream::Sni { port: 8443 };
    let allow = vec!["192.168.0.0/16".parse().unwrap(), "::1/128".parse().unwrap()];
    assert_eq!(*config.rules.at(1).action, splice(by_name, allow));
    assert_eq!(config.rules.at(2).action_number, config.rules.at(3).action_number);
    let alert = RefusalAlert::Always(AlertDescription::AccessDenied);
    assert_eq!(*config.rules.at(2).action, Action::Refuse(Refuse { alert, message: None }));
    let limits = Limits {
        hello_bytes_max: 16_384,
        idle_timeout: Duration::from_secs(90),
        drain_timeout: Duration::ZERO,
        shed_idle: true,
        memory_max: 1 << 30,
        ..Limits::default()
    };
    assert_eq!(config.limits, limits);
    assert_eq!(
        config.log,
        LogSettings {
            access: Access::File(PathBuf::from("access.log")),
            ja4: false,
            ..LogSettings::default()
        }
    );
    let servers: Vec<String> = config.dns.servers.iter().map(ToString::to_string).collect();
    assert_eq!((servers.join(" "), config.workers), ("9.9.9.9:53 [::1]:5353".into(), Some(3)));
}

#[test]
fn warnings_in_masses_do_not_hide_an_error() {
    let warned = "[[rule]]\nsni = \"*.com\"\naction = \"refuse\"\n".repeat(300);
    let found = read(&format!("{LISTENER}{warned}[log]\nja4 = 1\n")).unwrap_err();
    let errors = found.iter().filter(|found| found.severity == Severity::Error).count();
    // The first rule covers all others; then come the message about [log] and the count.
    assert_eq!((found.len(), errors), (200 + 299 + 1 + 1, 299 + 1 + 1));
    assert_eq!(found.last().unwrap().to_string(), "edge.toml: error: and 100 more");
}

const WHOLE: &str = r#"
workers = 3
[[listener]]
name = "inner"
address = "127.0.0.1:8443"
reuse_port = true
[[listener]]
address = "127.0.0.2:8443"
proxy_protocol_from = "10.0.0.0/8"
[[rule]]
name = "bank"
sni = ["bank.example", "*.BANK.example", ""]
alpn = "h2"
tls_version_max = "1.3"
ech = false
action = "splice"
upstream = "10.0.0.7:443"
[[rule]]
listener = ["inner", "127.0.0.2:8443"]
destination = ["10.0.0.0/8:443", "[2001:db8::/32]:443", "::1", "10.0.0.1"]
ja4 = "t13d1516h2_8daaf6152771_02713d6af862"
action = "splice"
upstream = "{sni}:8443"
upstream_allow = ["192.168.0.0/16", "::1"]
[[rule]]
client = ["10.0.0.0/8", "::1"]
action = "refuse"
alert = "access_denied"
[[rule]]
sni_malformed = true
action = "refuse"
alert = "access_denied"
[limits]
hello_bytes_max = "16KiB"
idle_timeout = "1m 30s"
drain_timeout = "0s"
shed_idle = true
memory_max = 1073741824
[log]
access = "access.log"
ja4 = false
[dns]
servers = ["9.9.9.9", "[::1]:5353"]
"#;

mod acme;
mod admin;
mod certificates;
mod hints;
mod intercept;
mod lists;
mod mint;
mod originate;
mod requester;
mod requests;
mod secret;
mod trace;
mod upstreams;

#[test]
fn what_needs_an_upgrade_stays_and_is_named() {
    let config = |text: &str| read(&format!("{text}\n{LISTENER}")).unwrap().config;
    let served = config("workers = 2");
    let mut same = config("workers = 2\nreload_ends_removed = true");
    assert!(same.keep_until_upgrade(&served).is_empty());
    assert!(same.reload_ends_removed && !served.reload_ends_removed);
    let limits = "limits = { memory_max = \"64MiB\", idle_timeout = \"1m\" }";
    let mut other = config(&format!("{limits}\ndictionary = {{ bytes_max = \"1MiB\" }}"));
    let kept = other.keep_until_upgrade(&served);
    assert_eq!(kept, ["workers", "limits.memory_max", "dictionary"]);
    for (text, keys) in [
        ("workers = 2", vec!["workers"]),
        ("[limits]\nmemory_max = \"64MiB\"", vec!["limits.memory_max"]),
        ("[dictionary]\n[limits]\nidle_timeout = \"1m\"", vec!["dictionary"]),
    ] {
        assert_eq!(read(&format!("{text}\n{LISTENER}")).unwrap().upgrade_keys, keys);
    }
    assert_eq!(other.workers, served.workers);
    assert_eq!(other.limits.memory_max, served.limits.memory_max);
    assert_eq!(other.limits.idle_timeout, Duration::from_mins(1));
    assert_eq!(other.dictionaries, served.dictionaries);
}

#[test]
fn equal_names_are_shared_by_two_configurations() {
    let config = |name: &str| {
        read(&format!("{LISTENER}[[rule]]\nname = \"{name}\"\naction = \"refuse\"\n"))
            .unwrap()
            .config
    };
    let first = config("a");
    for (name, is_shared) in [("a", true), ("b", false)] {
        let mut next = config(name);
        next.rules.share_names(&first.rules);
        let (one, other) = (first.rules.shared_names(), next.rules.shared_names());
        assert_eq!(std::sync::Arc::ptr_eq(&one, &other), is_shared, "{name}");
        assert_eq!(next.rules.at(0).name, name);
    }
}
