//! Lists of names and networks from files: what is read, each mistake with its place, and the lists
//! that rules and configurations share.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use eyelet_policy::{Decision, Facts, List, Lists, Matcher, NameList, RuleId};
use eyelet_wire::hello::HelloFacts;

use super::certificates::Folder;
use super::*;
use crate::rules::lists::{MISTAKES_MAX, parse_list};

/// Checks these rules, with the lists of the folder.
fn check(folder: &Folder, rules: &str) -> Result<Loaded, Vec<Diagnostic>> {
    folder.write("edge.toml", &format!("{LISTENER}{rules}"));
    load(&folder.0.join("edge.toml"), Depth::Full)
}

/// `file:line:column: message` of each, without the folder.
fn said_of(folder: &Folder, diagnostics: &[Diagnostic]) -> Vec<String> {
    let folder = format!("{}/", folder.0.display());
    let texts = diagnostics.iter().zip(said(diagnostics));
    let texts = texts.map(|(found, said)| format!("{}:{said}", found.file.display()));
    texts.map(|text| text.replace(&folder, "")).collect()
}

/// A file that is one long line is one short message.
#[test]
fn a_line_of_a_megabyte_is_one_mistake() {
    let folder = Folder::new();
    folder.write("allow.txt", &"a".repeat(1 << 20));
    let rule = "[[rule]]\nsni = { file = \"allow.txt\" }\naction = \"refuse\"\n";
    let found = check(&folder, rule).unwrap_err();
    assert_eq!(found.len(), 1);
    assert!(found[0].to_string().len() < 2_000, "{}", found[0].to_string().len());
}

/// The rule that takes a hello with `name`.
fn rule_for(config: &Config, name: &str) -> Option<u32> {
    let mut facts = Facts::new(0, IpAddr::V4(Ipv4Addr::LOCALHOST));
    facts.hello = Some(HelloFacts::named(Some(name)));
    match config.policy.decide(&facts) {
        Decision::Verdict(verdict) => verdict.rule.map(|rule| rule.0),
        Decision::Need(fact) => panic!("{fact:?}"),
    }
}

fn names(lists: &Lists) -> Vec<&Arc<NameList>> {
    let names = lists.iter().filter_map(|(_, list)| match &list.list {
        List::Names(names) => Some(names),
        List::Nets(_) | List::Expressions(_) => None,
    });
    names.collect()
}

const BY_NAME: &str = "[[rule]]\nsni = { file = \"allow.txt\" }\naction = \"splice\"\n\
                       upstream = \"{sni}:443\"\n";

#[test]
fn a_rule_takes_the_names_of_a_file() {
    let folder = Folder::new();
    let text = "\u{feff}# our names\r\n\r\n  A.example  # one\r\n*.b.example\n.c.example\n\n";
    folder.write("allow.txt", text);
    let config = check(&folder, BY_NAME).unwrap().config;
    for (name, rule) in [
        ("a.example", Some(0)),
        ("x.a.example", None),
        ("b.example", None),
        ("x.y.b.example", Some(0)),
        ("c.example", Some(0)),
        ("x.c.example", Some(0)),
        ("xc.example", None),
        ("example", None),
    ] {
        assert_eq!(rule_for(&config, name), rule, "{name}");
    }
    let text = config.policy.matcher_text(RuleId(0), Matcher::Sni);
    assert_eq!(text, "file \"allow.txt\"");
}

#[test]
fn each_mistake_of_a_list_has_its_place() {
    let folder = Folder::new();
    folder.write("allow.txt", "ok.example\n  a..b # no\n10.0.0.1\na.example b.example\n*\n.zip\n");
    folder.write("nets.txt", "10.0.0.0/8\n\n10.0.0.1/8\nlocal\n");
    let rules = "[[rule]]\nsni = { file = \"allow.txt\" }\nclient = { file = \"nets.txt\" }\n\
                 action = \"refuse\"\n[[rule]]\nsni = [{ file = \"none.txt\" }, \"a.example\"]\n\
                 action = \"refuse\"\n[[rule]]\naction = \"refuse\"\n";
    let found = check(&folder, rules).unwrap_err();
    assert_eq!(
        said_of(&folder, &found),
        [
            "edge.toml:8:17: cannot read none.txt: No such file or directory (os error 2)",
            "allow.txt:2:3: \"a..b\": a hello with such a name is malformed: empty label in the \
             host name",
            "allow.txt:3:1: \"10.0.0.1\": a hello never asks for an IP address; use \
             `destination` for addresses",
            "allow.txt:4:10: a line has one entry, and nothing but a comment after it",
            "allow.txt:5:1: \"*\": \"*\" alone is not a pattern; leave `sni` out to match every \
             name",
            "allow.txt:6:1: warning: \".zip\" takes a whole top-level domain",
            "nets.txt:3:1: \"10.0.0.1/8\" has bits set beyond its prefix; did you mean \
             \"10.0.0.0/8\" or \"10.0.0.1\"?",
            "nets.txt:4:1: \"local\" is not a network; expected CIDR as in \"10.0.0.0/8\" or \
             \"2001:db8::/32\"",
        ]
    );
}

#[test]
fn a_list_of_nothing_but_mistakes_shows_the_first_ones() {
    let folder = Folder::new();
    folder.write("allow.txt", &"a b\n".repeat(1_000));
    let found = check(&folder, BY_NAME).unwrap_err();
    assert_eq!(found.len(), MISTAKES_MAX + 1);
    assert_eq!(found[MISTAKES_MAX].message, "and 980 more");
    let found = parse_list(Path::new("x"), b"a.example\nb\xff\n", ListKind::Names).unwrap_err();
    assert_eq!(said(&found), ["2:2: this is not UTF-8"]);
}

#[test]
fn the_keys_of_a_list() {
    let folder = Folder::new();
    folder.write("allow.txt", "");
    for (matcher, message) in [
        (
            "sni = { path = \"x\" }",
            "unknown key `path` in `sni` (known keys: file, regex, regex_file)",
        ),
        ("sni = {}", "a table here is a list from a file: { file = \"allow.txt\" }"),
        (
            "sni = [7, { file = \"allow.txt\" }]",
            "`sni` is an integer; expected strings in the list",
        ),
        ("alpn = { file = \"x\" }", "`alpn` is a table; expected a string or a list of strings"),
        (
            "connect = { file = \"allow.txt\" }",
            "names for `connect` need a `port`, such as 443, or \"*\" for any",
        ),
        ("connect = { file = \"allow.txt\", port = 0 }", "`port` is 0; expected 1 to 65535"),
    ] {
        let found = check(&folder, &format!("[[rule]]\n{matcher}\naction = \"refuse\"\n"));
        let found = said(&found.unwrap_err());
        assert!(found.iter().any(|found| found.ends_with(message)), "{matcher}: {found:?}");
    }
    let warnings = check(&folder, BY_NAME).unwrap().warnings;
    let message = "allow.txt:1:1: warning: nothing is listed here, so no connection matches";
    assert_eq!(said_of(&folder, &warnings), [message]);
}

#[test]
fn rules_and_configurations_share_a_list() {
    let folder = Folder::new();
    folder.write("allow.txt", "a.example\n");
    folder.write("more.txt", "b.example\n");
    let rules = "[[rule]]\nname = \"1\"\nsni = { file = \"allow.txt\" }\nclient = \"10.0.0.0/8\"\n\
                 action = \"refuse\"\n[[rule]]\nname = \"2\"\naction = \"refuse\"\n\
                 sni = [{ file = \"allow.txt\" }, { file = \"more.txt\" }]\n";
    let served = check(&folder, rules).unwrap().config;
    let lists = served.policy.lists();
    assert_eq!(names(&lists).len(), 2);
    folder.write("more.txt", "b.example\nc.example\n");
    let next = load_next(&folder.0.join("edge.toml"), Depth::Full, &served, Box::new(|_| None))
        .unwrap()
        .config;
    let next_lists = next.policy.lists();
    let same: Vec<bool> =
        names(&lists).iter().zip(names(&next_lists)).map(|(a, b)| Arc::ptr_eq(a, b)).collect();
    assert_eq!(same, [true, false]);
    assert_ne!(served.policy.fingerprint(), next.policy.fingerprint());
}

#[test]
fn a_list_is_replaced_by_the_newer_version_of_its_file() {
    let folder = Folder::new();
    folder.write("allow.txt", "a.example\n");
    let config = check(&folder, BY_NAME).unwrap().config;
    let (id, file) = config.lists.iter().next().unwrap();
    assert_eq!(file.path, folder.0.join("allow.txt"));
    let renew = || config.lists.renew(id, &config.policy);
    let fingerprint = config.policy.fingerprint();
    assert!(!renew().unwrap().is_new);
    folder.write("allow.txt", "b.example\n");
    assert!(renew().unwrap().is_new);
    assert_eq!(["a.example", "b.example"].map(|name| rule_for(&config, name)), [None, Some(0)]);
    assert_ne!(config.policy.fingerprint(), fingerprint);
    folder.write("allow.txt", "c.example\n*\n");
    assert_eq!(renew().unwrap_err().len(), 1);
    fs::remove_file(folder.0.join("allow.txt")).unwrap();
    assert_eq!(renew().unwrap_err()[0].line, 0);
    assert_eq!(rule_for(&config, "b.example"), Some(0), "a broken file keeps the last good list");
}

/// Regular expressions stand in the configuration or in a file, and take names only.
#[test]
fn a_rule_takes_names_by_regular_expressions() {
    let folder = Folder::new();
    folder.write("ads.txt", "# one a line\n^ads[0-9]+\\.\n(^|\\.)Tracker\\.example$\n");
    let rules = "[[rule]]\n\
                 sni = [\"a.example\", { regex = '^b[0-9]\\.' }, { regex_file = \"ads.txt\" }]\n\
                 action = \"refuse\"\n\
                 [[rule]]\nsni = { regex = ['.*', '^$'] }\naction = \"refuse\"\n";
    let config = check(&folder, rules).unwrap().config;
    for (name, rule) in [
        ("a.example", 0),
        ("b7.example", 0),
        ("ads12.example", 0),
        ("www.tracker.example", 0),
        ("xtracker.example", 1),
        ("tracker.example.net", 1),
    ] {
        assert_eq!(rule_for(&config, name), Some(rule), "{name}");
    }
    let text = config.policy.matcher_text(RuleId(0), Matcher::Sni);
    assert_eq!(text, r#""a.example", regex "^b[0-9]\.", regex_file "ads.txt""#);
    let mut facts = Facts::new(0, IpAddr::V4(Ipv4Addr::LOCALHOST));
    facts.hello = Some(HelloFacts::named(None));
    let Decision::Verdict(verdict) = config.policy.decide(&facts) else { panic!() };
    assert_eq!(verdict.rule, None, "a hello without a name has none that could match");
    assert_eq!(config.lists.iter().count(), 1, "one of the lists is from a file");
}

#[test]
fn each_mistake_of_a_regular_expression_has_its_place() {
    let folder = Folder::new();
    folder.write("ads.txt", "^ok$\n(a\n a{2,1} # no\n");
    let rules = "[[rule]]\nsni = [{ regex = ['^a$', '(b'] }, { regex_file = \"ads.txt\" }]\n\
                 action = \"refuse\"\n[[rule]]\n\
                 sni = { regex = 'a', file = \"x\" }\naction = \"refuse\"\n";
    let found = check(&folder, rules).unwrap_err();
    assert_eq!(
        said_of(&folder, &found),
        [
            "edge.toml:4:26: unclosed group",
            "edge.toml:7:7: expected one of `file`, `regex` and `regex_file`",
            "ads.txt:2:1: unclosed group",
            "ads.txt:3:2: invalid repetition count range, the start must be <= the end",
        ]
    );
}

#[test]
fn regular_expressions_are_bounded() {
    let folder = Folder::new();
    folder.write("ads.txt", &(0..10_000).map(|n| format!("^ads{n}\\.\n")).collect::<String>());
    let found =
        check(&folder, "[[rule]]\nsni = { regex_file = \"ads.txt\" }\naction = \"refuse\"\n");
    assert_eq!(said_of(&folder, &found.unwrap_err()), ["ads.txt:513:1: more than 512 entries"]);
    let many: String = (0..10_000).map(|n| format!("'^ads{n}-',")).collect();
    let large: String =
        (0..500).map(|n| format!("'(^|\\.)advertisement{n}\\.example$',")).collect();
    for (texts, message) in [
        (many, "a list has at most 512 regular expressions; list names instead"),
        (large, "the compiled list has more than 256 KiB; list names instead"),
    ] {
        let rule = format!("[[rule]]\nsni = {{ regex = [{texts}] }}\naction = \"refuse\"\n");
        let found = check(&folder, &rule).unwrap_err();
        assert_eq!(said_of(&folder, &found), [format!("edge.toml:4:18: {message}")]);
    }
    let rules = |number: usize| {
        let rule = |n| format!("[[rule]]\nsni = {{ regex = '^{n}-' }}\naction = \"refuse\"\n");
        (0..number).map(rule).collect::<String>()
    };
    assert!(check(&folder, &rules(32)).is_ok());
    let found = said(&check(&folder, &rules(33)).unwrap_err());
    let message = "more than 32 lists of regular expressions; join some of them";
    assert!(found[0].ends_with(message), "{found:?}");
}

/// Rules share a list of the configuration, and a file that changes is compiled again.
#[test]
fn a_changed_file_has_its_expressions_compiled_again() {
    let folder = Folder::new();
    folder.write("ads.txt", "^ads\n");
    let rules = "[[rule]]\nname = \"1\"\nsni = [{ regex = '^x' }, { regex_file = \"ads.txt\" }]\n\
                 client = \"10.0.0.0/8\"\naction = \"refuse\"\n\
                 [[rule]]\nname = \"2\"\nsni = [{ regex = '^x' }, { regex_file = \"ads.txt\" }]\n\
                 action = \"refuse\"\n";
    let config = check(&folder, rules).unwrap().config;
    assert_eq!(config.policy.lists().iter().count(), 2);
    let (id, file) = config.lists.iter().next().unwrap();
    assert_eq!((id.0, &file.path), (1, &folder.0.join("ads.txt")));
    let renew = || config.lists.renew(id, &config.policy);
    folder.write("ads.txt", "^track\n");
    assert!(renew().unwrap().is_new);
    assert_eq!(["ads.x", "track.x"].map(|name| rule_for(&config, name)), [None, Some(1)]);
    folder.write("ads.txt", "^other\n(a\n");
    let found = renew().unwrap_err();
    assert_eq!(said_of(&folder, &found), ["ads.txt:2:1: unclosed group"]);
    assert_eq!(["other.x", "track.x"].map(|name| rule_for(&config, name)), [None, Some(1)]);
}

#[test]
fn a_name_of_an_earlier_rule_s_file_is_not_read() {
    let folder = Folder::new();
    folder.write("allow.txt", "forge.example\n.mirror.example\n");
    const LIST: &str = "[[rule]]\nsni = { file = \"allow.txt\" }\naction = \"splice\"\n\
                        upstream = \"{sni}:443\"\n";
    let refuse = LIST.replace("splice", "refuse").replace("upstream = \"{sni}:443\"\n", "");
    let serves = |more: &str| {
        format!(
            "[[rule]]\naction = \"terminate\"\ncertificate = \"local\"\n\
             upstream = \"http://127.0.0.1:3000\"\n{more}\n"
        )
    };
    let of = |name: &str| serves(&format!("sni = \"{name}\"\nmethod = \"GET\""));
    let client =
        |net: &str, rule: &str| rule.replace("sni =", &format!("client = \"{net}\"\nsni ="));
    for (first, second, name) in [
        (LIST.to_owned(), of("forge.example"), "forge.example"),
        (LIST.to_owned(), serves("sni = \"forge.example\""), "forge.example"),
        (LIST.to_owned(), of("*.mirror.example"), "*.mirror.example"),
        (LIST.to_owned(), of("*.forge.example"), ""),
        (LIST.to_owned(), serves("method = \"GET\""), ""),
        (of("forge.example"), LIST.to_owned(), ""),
        (refuse, of("forge.example"), ""),
        (client("192.0.2.0/24", LIST), of("forge.example"), ""),
        (client("192.0.2.0/24", LIST), client("192.0.2.7", &of("forge.example")), "forge.example"),
        (LIST.to_owned() + "shadow = true\n", of("forge.example"), ""),
    ] {
        let found = check(&folder, &(first.clone() + &second)).unwrap().warnings;
        let found: Vec<_> =
            said(&found).into_iter().filter(|line| line.contains("reads no requests")).collect();
        match name {
            "" => assert_eq!(found, [""; 0], "{first}{second}"),
            _ => {
                let expected = format!("warning: {name} is in allow.txt of \"rule 1\" (line 3), ");
                assert!(found.len() == 1 && found[0].contains(&expected), "{found:?}");
            }
        }
    }
    // By CONNECT, at the port of TLS.
    let connect = "connect = { file = \"allow.txt\", port = 443 }\nsni";
    let rules = LIST.replace("sni =", &format!("{connect} ="));
    for (own, warnings) in
        [("", 1), ("connect = \"forge.example:443\"\n", 1), ("connect = \"*:8443\"\n", 0)]
    {
        let mint = "action = \"terminate\"\ncertificate = \"mint\"\nmint_ca = \"a.pem\"\n\
                    mint_key = \"a.key\"\nupstream = \"destination\"\nmethod = \"GET\"\n";
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:1\"\nkind = \"connect\"\n{rules}[[rule]]\n\
             sni = \"forge.example\"\n{own}{mint}"
        );
        folder.write("proxy.toml", &text);
        // The authority is not there.
        let found = load(&folder.0.join("proxy.toml"), Depth::Full).unwrap_err();
        let found = said(&found).into_iter().filter(|line| line.contains("reads no requests"));
        assert_eq!(found.count(), warnings, "{text}");
    }
}
