//! Rules on requests: what may be asked of them, and each mistake.

use super::*;

const HEAD: &str = "[[listener]]\naddress = \"127.0.0.1:443\"\n[[rule]]\n";
const TERMINATE: &str =
    "action = \"terminate\"\ncertificate = \"local\"\nsni = \"a.localhost\"\nupstream = ";

fn all(rule: &str) -> Vec<String> {
    match read(&format!("{HEAD}{rule}\n")) {
        Ok(loaded) => said(&loaded.warnings),
        Err(diagnostics) => said(&diagnostics),
    }
}

fn http(more: &str) -> Vec<String> {
    all(&format!("{TERMINATE}\"http://127.0.0.1:3000\"\n{more}"))
}

#[test]
fn a_rule_asks_for_requests() {
    for rule in [
        "method = \"GET\"",
        "method = [\"GET\", \"PROPFIND\"]\npath = [\"/a/*\", \"*.css\", \"/caf\u{e9}\"]",
        "http_only_reads = true\npath = \"/**\"",
        "http_only_reads = false",
    ] {
        assert_eq!(http(rule), [""; 0], "{rule}");
    }
    assert_eq!(all("action = \"refuse\"\nmethod = \"POST\""), [""; 0]);
}

#[test]
fn mistakes_on_requests_are_found() {
    for (rule, expected) in [
        ("method = []", "`method` is an empty list"),
        ("path = []", "`path` is an empty list"),
        ("method = \"get\"", "methods are case-sensitive; write it in upper case"),
        ("method = \"GET POST\"", "a method is one word"),
        ("method = \"FETCH\"", "\"FETCH\" is no registered method"),
        ("method = \"TRACE\"", "no TRACE passes, so this never matches"),
        ("path = \"public/*\"", "a path begins with \"/\""),
        ("path = \"/a/../b\"", "no request with a segment \".\" or \"..\" passes"),
        ("path = \"/a//b\"", "no such request passes (ambiguous path: two slashes in a row)"),
        ("path = \"/a?b=c\"", "a path has no query and no fragment"),
        ("http_only_reads = true\nmethod = \"GET\"", "give one of them"),
        ("http_only_reads = \"yes\"", "`http_only_reads`"),
    ] {
        let found = http(rule);
        assert!(found.len() == 1 && found[0].contains(expected), "{rule}: {found:?}");
    }
    let splice = "action = \"splice\"\nupstream = \"192.0.2.1:443\"\npath = \"/a\"";
    let tcp = format!("{TERMINATE}\"tcp://127.0.0.1:3000\"\nmethod = \"GET\"");
    let hold = "action = \"hold\"\nupstream = \"192.0.2.1:443\"\npath = \"/a\"";
    let reads = "action = \"refuse\"\nhttp_only_reads = true";
    for (rule, expected) in [
        (hold, "`path` asks for a request, and a hold rule without a `certificate`"),
        (splice, "`path` asks for a request, and a splice rule passes bytes on unread"),
        (&tcp, "bytes for tcp://127.0.0.1:3000 are not read as HTTP"),
        (reads, "a refuse rule with `http_only_reads` refuses requests that read"),
    ] {
        let found = all(rule);
        assert!(found.len() == 1 && found[0].contains(expected), "{rule}: {found:?}");
    }
}

#[test]
fn a_rule_on_requests_may_be_covered() {
    let rule = |more: &str| format!("[[rule]]\n{TERMINATE}\"http://127.0.0.1:3000\"\n{more}\n");
    let both = |first: &str, second: &str| {
        let text = rule(first) + &rule(second);
        http_of(&text)
    };
    for (first, second, is_covered) in [
        ("", "method = \"GET\"", true),
        ("path = \"/a/*\"", "path = \"/a/b/*\"", true),
        ("method = [\"GET\", \"HEAD\"]", "method = \"GET\"\npath = \"/a\"", true),
        ("http_only_reads = true", "method = \"GET\"", true),
        ("method = \"GET\"", "", false),
        ("path = \"/a/b\"", "path = \"/a/*\"", false),
        ("method = \"GET\"", "method = \"POST\"", false),
    ] {
        let found = both(first, second);
        let can_never = |line: &String| line.contains("this rule can never match");
        assert_eq!(found.iter().any(can_never), is_covered, "{first:?} {second:?}: {found:?}");
    }
}

#[test]
fn rules_on_requests_that_do_not_do_together_what_they_seem_to() {
    const HTTP: &str = "\"http://127.0.0.1:3000\"";
    const NAMED: &str = "sni = \"a.localhost\"";
    let refuse = |name: &str| format!("[[rule]]\naction = \"refuse\"\n{name}\npath = \"/x\"\n");
    let splice = |action: &str, name: &str| {
        format!("[[rule]]\naction = \"{action}\"\nupstream = \"192.0.2.1:443\"\n{name}\n")
    };
    let serve = |more: &str| format!("[[rule]]\n{TERMINATE}{HTTP}\n{more}\n");
    let hold = serve("").replace("terminate", "hold");
    let other = "sni = \"b.localhost\"";
    let ca = "client_ca = \"/etc/eyelet/clients.pem\"\n";
    let (crl, old) = ("client_crl = [\"/etc/eyelet/a.crl\"]\n", "crl_expired = \"accept\"\n");
    for (rules, expected) in [
        ([refuse(NAMED), splice("splice", NAMED)], "come to \"rule 2\" (line 7) are refused"),
        ([refuse(NAMED), splice("splice", "")], "come to \"rule 2\" (line 7) are refused"),
        ([refuse(""), splice("hold", "")], "come to \"rule 2\" (line 7) are refused"),
        ([refuse(NAMED), splice("splice", other)], ""),
        ([refuse(NAMED) + &serve(""), splice("splice", "")], ""),
        ([serve("method = \"GET\""), splice("hold", NAMED)], "nobody is asked: connections"),
        ([serve("method = \"GET\""), splice("hold", "")], ""),
        ([serve("method = \"GET\""), hold], ""),
        ([serve("method = \"GET\""), serve("tls_version_min = \"1.3\"")], "`tls_version_min`"),
        ([serve(&format!("method = \"GET\"\n{ca}")), serve(&format!("{ca}{crl}"))], "`client_crl`"),
        (
            [serve(&format!("method = \"GET\"\n{ca}{crl}")), serve(&format!("{ca}{crl}{old}"))],
            "`crl_expired`",
        ),
        ([serve("method = \"GET\""), serve("alpn_select = [\"http/1.1\"]")], "`alpn_select`"),
        ([serve("method = \"GET\"\ntls_version_min = \"1.3\""), serve("")], ""),
    ] {
        let mut found = http_of(&rules.concat());
        // The files of authorities are not there.
        found.retain(|line| !line.contains("cannot read /etc/eyelet/"));
        match expected {
            "" => assert_eq!(found, [""; 0], "{rules:?}"),
            _ => assert!(found.len() == 1 && found[0].contains(expected), "{rules:?}: {found:?}"),
        }
    }
}

fn http_of(rules: &str) -> Vec<String> {
    match read(&format!("[[listener]]\naddress = \"127.0.0.1:443\"\n{rules}")) {
        Ok(loaded) => said(&loaded.warnings),
        Err(diagnostics) => said(&diagnostics),
    }
}
