//! Plain listeners and originate rules: which addresses and rules they may have, and each mistake.

use super::*;

const BOTH: &str = "[[listener]]\naddress = \"127.0.0.1:443\"\n\
    [[listener]]\nname = \"old\"\nkind = \"plain\"\naddress = \"127.0.0.1:80\"\n";
const OUT: &str = "[[rule]]\naction = \"originate\"\nupstream = \"https://a.example:443\"\n";

const NOTHING: &[&str] = &[];

/// The messages for a whole configuration.
fn all(text: &str) -> Vec<String> {
    match read(text) {
        Ok(loaded) => said(&loaded.warnings),
        Err(diagnostics) => said(&diagnostics),
    }
}

#[test]
fn a_plain_listener_is_for_this_machine() {
    let listener = |address: &str, more: &str| {
        let kind = "kind = \"plain\"";
        all(&format!("[[listener]]\n{kind}\naddress = \"{address}\"\n{more}\n{OUT}"))
    };
    for address in ["127.0.0.1:80", "127.1.2.3:80", "[::1]:80"] {
        assert_eq!(listener(address, ""), NOTHING, "{address}");
    }
    for address in ["0.0.0.0:80", "192.0.2.1:80", "[::]:80", "[2001:db8::1]:80"] {
        let found = listener(address, "");
        assert!(found[0].starts_with("3:11: other machines would send"), "{found:?}");
        assert_eq!(listener(address, "allow_remote = true"), NOTHING, "{address}");
    }
    assert_eq!(
        listener("127.0.0.1:80", "proxy_protocol_from = \"127.0.0.0/8\""),
        ["4:1: `proxy_protocol_from` is not for listeners of kind \"plain\""]
    );
    assert_eq!(
        all("[[listener]]\naddress = \"127.0.0.1:443\"\nallow_remote = true\n\
             [[rule]]\naction = \"refuse\"\n"),
        ["3:1: `allow_remote` is for listeners of kind \"plain\""]
    );
}

/// The path is relative to the configuration, as the listener's is.
#[test]
fn a_rule_names_a_socket_by_its_relative_path() {
    let socket = "[[listener]]\nkind = \"plain\"\naddress = \"unix:svn.sock\"\n";
    let other = socket.replace("svn", "other");
    let text = format!("{other}{socket}{OUT}listener = \"unix:svn.sock\"\n");
    let read = |folder: &str| {
        let file = Path::new(folder).join("edge.toml");
        let loaded = parse(&file, &text, Depth::Files, SystemTime::now()).unwrap();
        loaded.config.policy.listeners_of(eyelet_policy::RuleId(0)).to_vec()
    };
    for folder in ["", "/etc/eyelet"] {
        assert_eq!(read(folder), [1], "{folder:?}");
    }
}

#[test]
fn a_rule_is_for_listeners_that_its_action_fits() {
    let splice = "[[rule]]\naction = \"splice\"\nupstream = \"a.example:443\"\n";
    assert_eq!(all(&format!("{BOTH}{splice}{OUT}")), NOTHING);
    let config = read(&format!("{BOTH}{splice}{OUT}")).unwrap().config;
    let listeners = |rule| config.policy.listeners_of(eyelet_policy::RuleId(rule)).to_vec();
    assert_eq!([listeners(0), listeners(1)], [vec![0], vec![1]]);
    for (rules, expected) in [
        (
            format!("{splice}listener = \"old\"\n"),
            "10:1: \"old\" is of kind \"plain\": its clients send no hello; \
                expected an originate rule",
        ),
        (
            format!("{OUT}listener = \"127.0.0.1:443\"\n"),
            "10:1: \"127.0.0.1:443\" is not of kind \"plain\": its clients speak TLS",
        ),
        (
            format!("{OUT}sni = \"a.example\"\n"),
            "10:1: `sni` asks about a hello, and clients of this rule send none, because they \
             speak no TLS; leave it out",
        ),
    ] {
        assert_eq!(all(&format!("{BOTH}{rules}")), [expected], "{rules}");
    }
    let direct = "[[listener]]\naddress = \"127.0.0.1:443\"\n";
    let none = "no listener is of kind \"plain\": this rule matches nothing";
    assert_eq!(all(&format!("{direct}{OUT}")), [format!("3:1: {none}")]);
    let plain = "[[listener]]\nkind = \"plain\"\naddress = \"127.0.0.1:80\"\n";
    let none_left = "all listeners are of kind \"plain\": this rule matches nothing";
    assert_eq!(all(&format!("{plain}{splice}")), [format!("4:1: {none_left}")]);
}

#[test]
fn an_originate_rule_sends_by_tls() {
    for (keys, expected) in [
        ("upstream = \"https://a.example:8443\"\nhosts = [\"b.example\", \"192.0.2.1\"]", None),
        ("upstream = \"https://a.example:443\"\ncompress = \"none\"", None),
        ("upstream = [\"tls://a.example:1\", \"tls://b:1\"]\nupstream_name = \"c\"", None),
        ("upstream = \"tls://a.example:993\"\nupstream_alpn = [\"imap\", \"x\"]", None),
        (
            "upstream = \"https://a.example:443\"\nupstream_alpn = \"h2\"",
            Some("10:1: this is for tls:// upstreams; for HTTP there is `upstream_http2`"),
        ),
        (
            "upstream = \"tls://a.example:6380\"\nhosts = \"b.example\"",
            Some("10:1: `hosts` is about HTTP; expected an https:// upstream"),
        ),
        (
            "upstream = \"tls://a.example:6380\"\nupstream_http2 = \"on\"",
            Some("10:18: this is for upstreams with HTTP: https://, http:// or http+unix:"),
        ),
        (
            "upstream = \"http://a.example:80\"",
            Some(
                "9:12: \"http://a.example:80\": an originate rule sends by TLS; expected \
                https://host:port or tls://host:port",
            ),
        ),
        (
            "upstream = \"tcp://a.example:80\"",
            Some(
                "9:12: \"tcp://a.example:80\": an originate rule sends by TLS; expected \
                https://host:port or tls://host:port",
            ),
        ),
        (
            "upstream = \"destination\"",
            Some(
                "9:12: \"destination\": an originate rule sends by TLS; expected \
                https://host:port or tls://host:port",
            ),
        ),
        ("upstream = \"https://a.example:443\"\ncompress = \"on\"", None),
        ("upstream = \"https://a.example:443\"\ncompress = \"off\"", None),
        (
            "upstream = [\"https://a.example:443\", \"https://b.example:443\"]",
            Some(
                "9:13: several upstreams of an originate rule need an `upstream_name`: it is the \
                host that their requests name",
            ),
        ),
        (
            "upstream = \"https://a.example:443\"\nhosts = \"*\"",
            Some("10:9: \"*\": byte 0x2a in the host name"),
        ),
        (
            "upstream = \"https://a.example:443\"\ncertificate = \"a.pem\"",
            Some(
                "10:1: `certificate` means nothing in an originate rule; it belongs to \
                terminate rules",
            ),
        ),
    ] {
        let found = all(&format!("{BOTH}[[rule]]\naction = \"originate\"\n{keys}\n"));
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{keys}");
    }
}

#[test]
fn an_originate_rule_codes_requests_by_http_alone() {
    for (keys, expected) in [
        ("upstream = \"https://a.example:443\"\ncode_requests = true", None),
        (
            "upstream = \"https://a.example:443\"\ncompress = \"off\"\ncode_requests = true",
            Some("11:1: `code_requests` means nothing with `compress = \"off\"`"),
        ),
        (
            "upstream = \"tls://a.example:443\"\ncode_requests = true",
            Some("10:1: `code_requests` is about HTTP; expected an https:// upstream"),
        ),
    ] {
        let found = all(&format!("{BOTH}[[rule]]\naction = \"originate\"\n{keys}\n"));
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{keys}");
    }
}

/// The file decides who may connect.
#[test]
fn a_plain_listener_may_be_a_unix_socket() {
    let listener = |keys: &str, rules: &str| {
        all(&format!("[[listener]]\naddress = \"unix:/run/svn.sock\"\n{keys}\n{rules}"))
    };
    let plain = "kind = \"plain\"";
    let loaded = read(&format!("[[listener]]\n{plain}\naddress = \"unix:/a\"\n{OUT}")).unwrap();
    let listener_of =
        |config: &Config| (config.listeners[0].address.to_string(), config.listeners[0].mode);
    assert_eq!(listener_of(&loaded.config), ("unix:/a".to_owned(), 0o600));
    assert_eq!(listener(&format!("{plain}\nmode = \"0660\""), OUT), NOTHING);
    let by_path = format!("{OUT}listener = \"unix:/run/svn.sock\"\n");
    assert_eq!(listener(plain, &by_path), NOTHING);
    assert_eq!(
        listener("", "[[rule]]\naction = \"refuse\"\n"),
        ["2:11: a Unix socket is for listeners of kind \"connect\" or \"plain\""]
    );
    assert_eq!(
        listener(&format!("{plain}\nmode = \"rw\""), OUT),
        ["4:8: \"rw\" is no mode; expected \"0600\" or \"0660\""]
    );
    assert_eq!(
        listener(&format!("{plain}\nreuse_port = true"), OUT),
        ["4:1: `reuse_port` is about TCP, and this is a Unix socket"]
    );
    let bytes = "[[rule]]\naction = \"originate\"\nupstream = \"tls://a.example:6380\"\n";
    let found = listener(plain, bytes);
    assert!(
        found[0].starts_with("6:1: tls:// is not for clients of \"unix:/run/svn.sock\""),
        "{found:?}"
    );
    let by_tcp = format!("[[listener]]\nname = \"tcp\"\n{plain}\naddress = \"127.0.0.1:80\"\n");
    let rules = format!("{by_tcp}{bytes}listener = \"tcp\"\n{OUT}");
    assert_eq!(listener(plain, &rules), NOTHING, "each listener has its rule");
    let refuse = "[[rule]]\naction = \"refuse\"\nclient = \"192.0.2.1\"\n";
    let found = listener(plain, &format!("{refuse}{OUT}"));
    assert!(
        found[0].starts_with("6:1: clients of \"unix:/run/svn.sock\" have no address"),
        "{found:?}"
    );
    assert_eq!(
        all(&format!("[[listener]]\n{plain}\naddress = \"127.0.0.1:80\"\nmode = \"0600\"\n{OUT}")),
        ["4:8: `mode` is for a Unix socket: address = \"unix:PATH\""]
    );
    let twice = format!("[[listener]]\n{plain}\naddress = \"unix:/a\"\n");
    let found = all(&format!("{twice}{twice}{OUT}"));
    assert!(found[0].contains("unix:/a collides with the listener on unix:/a"), "{found:?}");
}
