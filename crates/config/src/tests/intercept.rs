//! Listeners that intercept, and rules for some of them: destinations, CONNECT, QUIC. Messages
//! are compared exactly.

use super::{LISTENER, read, said, said_below_listener};

#[test]
fn intercepting_listeners_and_their_rules() {
    let listeners = "[[listener]]\naddress = \"0.0.0.0:443\"\n\
        [[listener]]\nname = \"lb\"\naddress = \"0.0.0.0:444\"\n\
        proxy_protocol_from = \"10.0.0.0/8\"\n\
        [[listener]]\nname = \"nat\"\naddress = \"0.0.0.0:8443\"\nkind = \"redirect\"\n\
        [[listener]]\nname = \"tp\"\naddress = \"0.0.0.0:8444\"\nkind = \"tproxy\"\n\
        [[listener]]\nname = \"http\"\naddress = \"0.0.0.0:3128\"\nkind = \"connect\"\n";
    let rule = |keys: &str| format!("{listeners}[[rule]]\naction = \"splice\"\n{keys}\n");
    for keys in [
        "listener = [\"lb\", \"nat\", \"tp\", \"http\"]\nupstream = \"destination\"",
        "listener = \"tp\"\nupstream = \"destination\"\nsource = \"client\"",
        "listener = \"http\"\nupstream = \"destination\"\nconnect = [\"*.a.b:443\", \"*:22\"]",
        "upstream = \"a:1\"\nconnect = \"[::1]:*\"\ndestination = \"*:443\"",
    ] {
        let loaded = read(&rule(keys)).unwrap_or_else(|found| panic!("{keys}: {:?}", said(&found)));
        assert_eq!(said(&loaded.warnings), [""; 0], "{keys}");
    }
    for (keys, expected) in [
        (
            "listener = [\"nat\", \"0.0.0.0:443\"]\nupstream = \"destination\"",
            "22:12: on the direct listener \"0.0.0.0:443\" the destination is the listener itself, \
             so this would loop; expected host:port or \"{sni}:443\", or a `listener` that \
             intercepts",
        ),
        (
            "listener = [\"tp\", \"nat\"]\nupstream = \"destination\"\nsource = \"client\"",
            "23:10: `source` needs the routing of a \"tproxy\" listener for answers to the \
             client's address, and \"nat\" is not one; give this rule a `listener`",
        ),
        (
            "listener = \"nat\"\nupstream = \"destination\"\nconnect = \"a.b:443\"",
            "23:1: no listener of this rule is of kind \"connect\", so it never matches",
        ),
        (
            "upstream = \"a:1\"\nconnect = \"a.b\"",
            "22:11: \"a.b\": there is no port; expected it as in \"*.example.com:443\", or \":*\" \
             for any",
        ),
    ] {
        let found = read(&rule(keys)).unwrap_err();
        assert_eq!(said(&found), [expected], "{keys}");
    }
}

#[test]
fn upstreams_that_are_listeners() {
    let listeners = "[[listener]]\naddress = \"0.0.0.0:8443\"\n\
        [[listener]]\naddress = \"0.0.0.0:80\"\nkind = \"http_redirect\"\n";
    let rule = |listener: &str, upstream: &str| {
        format!("[[rule]]\n{listener}action = \"splice\"\nupstream = \"{upstream}\"\n")
    };
    let to = |upstream: &str| format!("{listeners}{}", rule("", upstream));
    for upstream in ["127.0.0.1:8443", "[::ffff:127.0.0.9]:8443"] {
        let found = read(&to(upstream)).unwrap_err();
        let expected = "8:12: this is the listener \"0.0.0.0:8443\" itself, the only one of this \
                        rule: it would loop";
        assert_eq!(said(&found), [expected], "{upstream}");
    }
    // Another port, another family, or possibly another host.
    for upstream in ["127.0.0.1:8444", "[::1]:8443", "192.0.2.1:8443", "127.0.0.1:80"] {
        assert_eq!(said(&read(&to(upstream)).unwrap().warnings), [""; 0], "{upstream}");
    }
    let two = "[[listener]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\n\
               [[listener]]\nname = \"b\"\naddress = \"127.0.0.1:2\"\n";
    let (a, b) = ("listener = \"a\"\n", "listener = \"b\"\n");
    let warned =
        |rules: &[String]| said(&read(&(two.to_owned() + &rules.concat())).unwrap().warnings);
    assert_eq!(warned(&[rule(a, "127.0.0.1:2"), rule(b, "127.0.0.1:3")]), [""; 0]);
    assert_eq!(
        warned(&[rule(a, "127.0.0.1:2"), rule(b, "127.0.0.1:1")]),
        [
            "10:12: warning: the listener \"a\" is itself an upstream, at line 14: connections \
             that come back that way are refused as a loop",
            "14:12: warning: the listener \"b\" is itself an upstream, at line 10: connections \
             that come back that way are refused as a loop",
        ]
    );
    assert_eq!(
        warned(&[rule("", "127.0.0.1:2")]),
        ["9:12: warning: this is the listener \"b\": connections that came in there would loop \
          and are refused; give the rule a `listener`"]
    );
}

#[test]
fn a_message_is_one_short_line() {
    let rule = |message: &str| format!("[[rule]]\naction = \"refuse\"\nmessage = \"{message}\"\n");
    assert!(read(&format!("{LISTENER}{}", rule("Fragen Sie B\u{fc}cher & Co."))).is_ok());
    let expected = "5:11: a message is one line of 1 to 320 bytes without control characters";
    for message in ["", "two\\nlines", "\\u001b[31mred", &"a".repeat(321)] {
        assert_eq!(said_below_listener(&rule(message)), [expected], "{message}");
    }
}

/// A name is only said: with it alone a client reaches any address.
#[test]
fn a_claimed_name_that_leads_anywhere_is_warned_of() {
    let gate = "[[listener]]\naddress = \"0.0.0.0:443\"\nkind = \"connect\"\n";
    let rule = "[[rule]]\naction = \"splice\"\n";
    let warned = |keys: &str| {
        let warnings = read(&format!("{gate}{rule}{keys}\n")).unwrap().warnings;
        said(&warnings)
    };
    for (keys, is_warned) in [
        ("upstream = \"destination\"\nsni = \"a.example\"", true),
        ("upstream = \"destination\"\nsni = \"a.example\"\nconnect = \"*:443\"", true),
        (
            "upstream = \"destination\"\nsni = \"a.example\"\nsni_verified = true\n\
             evidence = \"dns\"",
            false,
        ),
        ("upstream = \"destination\"\nsni = \"a.example\"\ncertificate_valid = true", false),
        ("upstream = \"destination\"\nsni = \"a.example\"\ndestination = \"192.0.2.7\"", false),
        ("upstream = \"destination\"\nsni = \"a.example\"\nconnect = \"a.example:443\"", false),
        ("upstream = \"destination\"\nsni = \"\"", false),
        ("upstream = \"destination\"", false),
        ("upstream = \"{sni}:443\"\nsni = \"a.example\"", false),
    ] {
        let found = warned(keys);
        assert_eq!(found.len(), usize::from(is_warned), "{keys}: {found:?}");
        assert!(found.iter().all(|text| text.starts_with("6:12: warning: ")), "{found:?}");
    }
}

#[test]
fn listeners_of_quic() {
    let listener = |keys: &str| {
        let text = format!("[[listener]]\n{keys}\n[[rule]]\naction = \"refuse\"\n");
        match read(&text) {
            Ok(loaded) => Ok(loaded.config.listeners[0].quic),
            Err(found) => Err(said(&found)),
        }
    };
    for (keys, quic) in [
        ("address = \"0.0.0.0:443\"", false),
        ("address = \"0.0.0.0:443\"\nquic = false", false),
        ("address = \"0.0.0.0:443\"\nquic = true", true),
        ("address = \"[::]:443\"\nquic = true\nkind = \"tproxy\"", true),
    ] {
        assert_eq!(listener(keys), Ok(quic), "{keys}");
    }
    let other = "`quic` is for listeners of kind \"direct\" and \"tproxy\"";
    for (keys, expected) in [
        (
            "address = \"0.0.0.0:443\"\nquic = true\nkind = \"redirect\"",
            "3:1: netfilter does not say where a redirected datagram was sent; QUIC needs `kind = \
             \"tproxy\"`, or a listener of kind \"direct\" of its own",
        ),
        ("address = \"0.0.0.0:443\"\nquic = true\nkind = \"connect\"", &format!("3:1: {other}")),
        ("address = \"127.0.0.1:80\"\nquic = true\nkind = \"plain\"", &format!("3:1: {other}")),
        (
            "address = \"0.0.0.0:443\"\nquic = true\nproxy_protocol_from = \"::1\"",
            "3:1: a datagram has no PROXY header; give QUIC a listener without \
             `proxy_protocol_from`",
        ),
        (
            "address = \"unix:/run/a\"\nkind = \"connect\"\nquic = false",
            "4:1: `quic` is about TCP and UDP, and this is a Unix socket",
        ),
    ] {
        assert_eq!(listener(keys), Err(vec![expected.to_owned()]), "{keys}");
    }
}

#[test]
fn rules_that_quic_meets() {
    let listeners = "[[listener]]\nname = \"both\"\naddress = \"0.0.0.0:443\"\nquic = true\n\
        [[listener]]\nname = \"tcp\"\naddress = \"0.0.0.0:444\"\n";
    let rule = |keys: &str| match read(&format!("{listeners}[[rule]]\n{keys}\n")) {
        Ok(loaded) => said(&loaded.warnings),
        Err(found) => said(&found),
    };
    let http =
        "upstream = \"http://127.0.0.1:8080\"\ncertificate = \"local\"\nsni = \"a.localhost\"";
    for keys in [
        "action = \"splice\"\nupstream = \"{sni}:443\"",
        "action = \"splice\"\nupstream = \"{sni}:443\"\ntransport = \"quic\"",
        "action = \"refuse\"\ntransport = \"quic\"\nalert = \"access_denied\"",
        "action = \"splice\"\nupstream = \"a:1\"\nproxy_protocol = \"v2\"\ntransport = \"tcp\"",
        "action = \"splice\"\nupstream = \"a:1\"\nproxy_protocol = \"v2\"\nlistener = \"tcp\"",
        &format!("action = \"terminate\"\n{http}\ntransport = \"tcp\""),
        &format!("action = \"terminate\"\n{http}\nlistener = \"tcp\""),
    ] {
        assert_eq!(rule(keys), [""; 0], "{keys}");
    }
    let instead = "expected `transport = \"tcp\"` here, and a splice or a refuse rule for QUIC";
    for (keys, expected) in [
        (
            format!("action = \"terminate\"\n{http}"),
            format!(
                "9:10: QUIC comes to the listener \"both\", and is not terminated here; {instead}"
            ),
        ),
        (
            format!("action = \"terminate\"\n{http}\ntransport = \"quic\""),
            "9:10: QUIC comes to the listener \"both\", and is not terminated here; expected a \
             splice or a refuse rule"
                .to_owned(),
        ),
        (
            "action = \"hold\"\nupstream = \"{sni}:443\"".to_owned(),
            format!("9:10: QUIC comes to the listener \"both\", and is not held here; {instead}"),
        ),
        (
            "action = \"splice\"\nupstream = \"a:1\"\nproxy_protocol = \"v2\"".to_owned(),
            format!(
                "11:1: QUIC comes to the listener \"both\", and a datagram has no PROXY header; \
                 {instead}"
            ),
        ),
        (
            "action = \"splice\"\nupstream = \"192.0.2.1:1\"\nsource_addresses = \"10.0.0.8\""
                .to_owned(),
            format!(
                "11:1: QUIC comes to the listener \"both\", and is sent from the address that the \
                 kernel chooses; {instead} without `source_addresses`"
            ),
        ),
        (
            "action = \"refuse\"\ntransport = \"quic\"\nlistener = \"tcp\"".to_owned(),
            "10:1: no listener of this rule has `quic = true`, so it never matches".to_owned(),
        ),
        (
            "action = \"refuse\"\ntransport = \"udp\"".to_owned(),
            "10:13: \"udp\" is not a transport; expected \"quic\" or \"tcp\"".to_owned(),
        ),
    ] {
        assert_eq!(rule(&keys), [expected], "{keys}");
    }
}

/// A shadow rule that refuses needs a rule below that would let its connections pass.
#[test]
fn a_shadow_rule_above_nothing_but_refusal_tries_nothing() {
    let list = "[[rule]]\nsni = \"a.example\"\naction = \"splice\"\nupstream = \"{sni}:443\"\n";
    let trial = "[[rule]]\nshadow = true\naction = \"refuse\"\n";
    let pass = "[[rule]]\naction = \"splice\"\nupstream = \"a:1\"\n";
    let in_shadow = list.replace("[[rule]]\n", "[[rule]]\nshadow = true\n");
    let rest = "[[rule]]\naction = \"refuse\"\n";
    let other = list.replace("a.example", "b.example");
    let warns = |line: usize| {
        vec![format!(
            "{line}:10: warning: no rule below lets a connection pass, so those that this rule \
             takes are refused anyway; to log them first, end with a rule that splices to \
             \"destination\""
        )]
    };
    for (rules, expected) in [
        (vec![list, trial, pass], vec![]),
        (vec![list, trial, &other, rest], vec![]),
        // A rule that would let some pass tells of those that are refused.
        (vec![&in_shadow, rest], vec![]),
        (vec![list, trial], warns(8)),
        (vec![list, trial, rest], warns(8)),
        (vec![trial, trial], warns(4)),
        (vec![trial, &in_shadow], warns(4)),
    ] {
        assert_eq!(said_below_listener(&rules.concat()), expected, "{rules:?}");
    }
}
