//! Tables of rules, connections and verdicts, to be read like a policy manual. All through the
//! public interface, with real hello bytes.

use std::sync::Arc;

use eyelet_policy::{
    Conditions, Fact, Facts, FileList, List, Lists, Matcher, NameExpressions, NameList, Needs,
    Refusal, Rule, RuleId, Rules,
};
use eyelet_wire::alert::AlertDescription as Alert;
use eyelet_wire::hello::{SniFault, Transport};

use crate::words::{Given, Words, refuse, rule};

/// `Ok(rule)`: that rule (from 0) takes it. `Err((rule, why))`: refused, by that rule or by none.
type Expected = Result<u32, (Option<u32>, Refusal)>;

fn check(rules: &[Rule], table: &[(Given<'_>, Expected)]) {
    let index = Rules::new(rules);
    for (given, expected) in table {
        let (verdict, _) = given.ask(&index);
        let rule = verdict.rule.map(|rule| rule.0);
        let actual = match (rule, verdict.refuse) {
            (rule, Some(why)) => Err((rule, why)),
            (Some(rule), None) => Ok(rule),
            (None, None) => panic!("neither rule nor refusal"),
        };
        assert_eq!(&actual, expected, "{given:?}");
    }
}

fn from(client: &str) -> Given<'_> {
    Given { client, ..Given::default() }
}

#[test]
fn names_exact_wildcard_absent() {
    check(
        &[
            rule().sni(&["bank.example", "*.Bank.Example"]),
            rule().sni(&["*.eu.app.example"]),
            rule().sni(&["*.app.example", "deep.x.eu.app.example"]),
            refuse().sni(&["evil.example"]),
            rule().sni(&[""]).client(&["10.0.0.0/8"]),
        ],
        &[
            (Given::named("bank.example"), Ok(0)),
            (Given::named("BANK.example"), Ok(0)),
            (Given::named("a.bank.example"), Ok(0)),
            (Given::named("a.b.c.bank.example"), Ok(0)),
            (Given::named("xbank.example"), Err((None, Refusal::NoRule))),
            (Given::named("app.example"), Err((None, Refusal::NoRule))),
            (Given::named("eu.app.example"), Ok(2)),
            (Given::named("x.eu.app.example"), Ok(1)),
            (Given::named("deep.x.eu.app.example"), Ok(1)),
            (Given::named("evil.example"), Err((Some(3), Refusal::ByName))),
            (Given::named("example"), Err((None, Refusal::NoRule))),
            (from("10.9.9.9"), Ok(4)),
            (from("11.9.9.9"), Err((None, Refusal::NoName))),
        ],
    );
}

#[test]
fn first_match_wins_and_every_matcher_must_hold() {
    let named = |client| Given { client, ..Given::named("a.example") };
    check(
        &[
            rule().sni(&["a.example"]).client(&["10.1.0.0/16"]),
            refuse().client(&["10.0.0.0/8"]),
            rule().sni(&["*.example"]).client(&["2001:db8::/32", "192.0.2.7/32"]),
            rule().sni(&["a.example"]).with(|all| all.listeners = [3].into_iter().collect()),
            refuse(),
        ],
        &[
            (named("10.1.2.3"), Ok(0)),
            (named("::ffff:10.1.2.3"), Ok(0)),
            (named("10.2.2.3"), Err((Some(1), Refusal::ByAddress))),
            (named("2001:db8:1::1"), Ok(2)),
            (named("192.0.2.7"), Ok(2)),
            // Only the last rule is left, so its hello is not read.
            (named("192.0.2.8"), Err((Some(4), Refusal::Unlisted))),
            (Given { listener: 3, ..named("192.0.2.8") }, Ok(3)),
            (Given { listener: 3, ..from("192.0.2.8") }, Err((Some(4), Refusal::NoName))),
            (
                Given { listener: 3, client: "192.0.2.8", ..Given::named("b.example") },
                Err((Some(4), Refusal::NoRule)),
            ),
        ],
    );
}

#[test]
fn transports() {
    let quic = |name| Given { transport: Transport::Quic, ..Given::named(name) };
    let over = |transport| move |all: &mut Conditions| all.transport = Some(transport);
    check(
        &[
            rule().sni(&["a.example"]).with(over(Transport::Tcp)),
            refuse().sni(&["b.example"]).with(over(Transport::Quic)),
            rule().sni(&["b.example"]),
            refuse().with(over(Transport::Quic)),
            rule(),
        ],
        &[
            (Given::named("a.example"), Ok(0)),
            (quic("a.example"), Err((Some(3), Refusal::ByTransport))),
            (Given::named("b.example"), Ok(2)),
            (quic("b.example"), Err((Some(1), Refusal::ByName))),
            (Given::named("c.example"), Ok(4)),
            (quic("c.example"), Err((Some(3), Refusal::ByTransport))),
        ],
    );
    // The hello need not be read for it.
    let rules = Rules::new(&[refuse().with(over(Transport::Quic)), rule()]);
    let (verdict, asked) = quic("a.example").ask(&rules);
    assert_eq!((verdict.rule, asked), (Some(RuleId(0)), vec![]));
}

#[test]
fn matchers_on_the_hello() {
    let h2: &[&[u8]] = &[b"h2", b"http/1.1"];
    let with_alpn = Given { alpn: h2, ..Given::named("a.example") };
    let ja4 = "t13d0302h2_0123456789ab_0123456789ab";
    check(
        &[
            refuse().with(|all| all.tls_version_max = Some(0x0302)),
            rule().alpn(&["h2", "acme-tls/1"]).sni(&["a.example"]),
            refuse().with(|all| all.ech = Some(true)),
            refuse().ja4(ja4),
            refuse().alpn(&["smtp"]),
            rule().with(|all| {
                all.ech = Some(false);
                all.tls_version_max = Some(0x0303)
            }),
            rule().sni(&["b.example"]),
        ],
        &[
            (Given { version_max: 0x0302, ..with_alpn }, Err((Some(0), Refusal::ByVersion))),
            (Given { version_max: 0x0300, ..with_alpn }, Err((Some(0), Refusal::ByVersion))),
            (with_alpn, Ok(1)),
            (Given { alpn: &[b"acme-tls/1"], ..with_alpn }, Ok(1)),
            (Given { ech: true, alpn: &[], ..with_alpn }, Err((Some(2), Refusal::ByEch))),
            (
                Given { ja4: Some(ja4), ..Given::named("b.example") },
                Err((Some(3), Refusal::ByFingerprint)),
            ),
            (
                Given { ja4: Some("t"), alpn: &[b"smtp"], ..Given::default() },
                Err((Some(4), Refusal::ByProtocol)),
            ),
            (Given { ja4: Some("t"), version_max: 0x0303, ..Given::default() }, Ok(5)),
            (Given { ja4: Some("t"), ..Given::named("b.example") }, Ok(6)),
            (Given { ja4: Some("t"), ..Given::named("c.example") }, Err((None, Refusal::NoRule))),
        ],
    );
}

#[test]
fn a_malformed_name_matches_no_name() {
    let nul = Given { sni: Some(b"a\0b.example"), ..Given::default() };
    let dot = Given { sni: Some(b"a.example."), ..Given::default() };
    let strict = [rule().sni(&["a.example", ""]), rule().alpn(&["h2"]), rule()];
    check(
        &strict,
        &[
            (nul, Err((None, Refusal::MalformedName(SniFault::Nul)))),
            (dot, Err((None, Refusal::MalformedName(SniFault::TrailingDot)))),
            (Given::named("a.example"), Ok(0)),
        ],
    );
    let lenient = [
        rule().sni(&["a.example", ""]),
        rule().with(|all| all.sni_malformed = true).client(&["10.0.0.0/8"]),
        refuse().with(|all| {
            all.sni_malformed = true;
            all.ech = Some(false)
        }),
        rule(),
    ];
    check(
        &lenient,
        &[
            (Given { client: "10.0.0.1", ..nul }, Ok(1)),
            (Given { client: "10.0.0.1", ..Given::named("b.example") }, Ok(3)),
            (nul, Err((Some(2), Refusal::MalformedName(SniFault::Nul)))),
            (Given { ech: true, ..nul }, Err((None, Refusal::MalformedName(SniFault::Nul)))),
        ],
    );
}

#[test]
fn an_unknown_fact_fails_closed() {
    let rules = [
        rule().destination(&[("203.0.113.0/24", None)]),
        refuse()
            .destination(&[("198.51.100.0/24", Some(25))])
            .with(|all| all.listeners = [0].into_iter().collect()),
        rule(),
    ];
    let to = |destination| Given { destination: Some(destination), ..Given::default() };
    check(
        &rules,
        &[
            (to("203.0.113.9:443"), Ok(0)),
            (to("198.51.100.1:25"), Err((Some(1), Refusal::ByAddress))),
            (to("198.51.100.1:443"), Ok(2)),
            (Given::default(), Err((Some(1), Refusal::ByAddress))),
            (Given { listener: 1, ..Given::default() }, Ok(2)),
        ],
    );
    let by_ja4 = [rule().ja4("x"), refuse().ja4("y"), rule()];
    check(
        &by_ja4,
        &[
            (Given { ja4: Some("z"), ..Given::default() }, Ok(2)),
            (Given::default(), Err((Some(1), Refusal::ByFingerprint))),
        ],
    );
}

#[test]
fn a_fact_is_asked_for_only_when_a_rule_in_play_needs_it() {
    let rules = Rules::new(&[
        refuse().client(&["10.0.0.0/8"]),
        rule()
            .sni(&["a.example"])
            .destination(&[("203.0.113.0/24", None)])
            .client(&["172.16.0.0/12"]),
        rule().sni(&["b.example"]).ja4("x"),
        rule().sni(&["c.example"]),
    ]);
    assert!(rules.asks_hello());
    let asked = |given: Given<'_>| given.ask(&rules).1;
    assert_eq!(asked(from("10.0.0.1")), []);
    assert_eq!(asked(Given::named("c.example")), [Fact::Hello]);
    assert_eq!(asked(Given::named("b.example")), [Fact::Hello, Fact::Ja4]);
    let tenant = Given { client: "172.16.0.1", ..Given::named("a.example") };
    assert_eq!(asked(tenant), [Fact::Destination, Fact::Hello]);
}

#[test]
fn a_list_without_hello_matchers_reads_no_hello() {
    let blind = Rules::new(&[rule().client(&["10.0.0.0/8"]), refuse().client(&["11.0.0.0/8"])]);
    assert!(!blind.asks_hello());
    let refused = |rule, why| (rule, Some(why), vec![]);
    for (client, expected) in [
        ("10.0.0.1", (Some(RuleId(0)), None, vec![])),
        ("11.0.0.1", refused(Some(RuleId(1)), Refusal::ByAddress)),
        ("12.0.0.1", refused(None, Refusal::Unlisted)),
    ] {
        let (verdict, asked) = from(client).ask(&blind);
        assert_eq!((verdict.rule, verdict.refuse, asked), expected, "{client}");
    }
    assert!(Rules::new(&[rule().needs(Needs::Hello)]).asks_hello());
    let (verdict, asked) = from("10.0.0.1").ask(&Rules::new(&[]));
    assert_eq!((verdict.refuse, asked), (Some(Refusal::Unlisted), vec![]));
}

#[test]
fn an_action_that_dials_the_name_has_one() {
    check(
        &[rule().needs(Needs::Name)],
        &[
            (Given::named("a.example"), Ok(0)),
            (Given::default(), Err((Some(0), Refusal::NoName))),
            (
                Given { sni: Some(b""), ..Given::default() },
                Err((None, Refusal::MalformedName(SniFault::Empty))),
            ),
        ],
    );
}

#[test]
fn refusals_know_their_alert() {
    for (refusal, tls13, tls12) in [
        (Refusal::NoRule, Alert::UnrecognizedName, Alert::UnrecognizedName),
        (Refusal::ByName, Alert::UnrecognizedName, Alert::UnrecognizedName),
        (Refusal::NoName, Alert::MissingExtension, Alert::HandshakeFailure),
        (Refusal::ByAddress, Alert::AccessDenied, Alert::AccessDenied),
        (Refusal::ByFingerprint, Alert::AccessDenied, Alert::AccessDenied),
        (Refusal::ByEch, Alert::AccessDenied, Alert::AccessDenied),
        (Refusal::ByTransport, Alert::AccessDenied, Alert::AccessDenied),
        (Refusal::Unlisted, Alert::AccessDenied, Alert::AccessDenied),
        (Refusal::ByProtocol, Alert::NoApplicationProtocol, Alert::NoApplicationProtocol),
        (Refusal::ByVersion, Alert::ProtocolVersion, Alert::ProtocolVersion),
        (Refusal::MalformedName(SniFault::Nul), Alert::DecodeError, Alert::DecodeError),
        (Refusal::NoHello, Alert::DecodeError, Alert::DecodeError),
    ] {
        assert_eq!(refusal.alert(false), tls13, "{refusal}");
        assert_eq!(refusal.alert(true), tls12, "{refusal}");
    }
}

#[test]
fn misses_name_the_first_matcher_that_failed() {
    let rules = Rules::new(&[
        rule().sni(&["a.example"]).client(&["10.0.0.0/8"]),
        rule().sni(&["*.a.example", "a.example"]),
        rule().with(|all| all.sni_malformed = true),
        rule().with(|all| all.listeners = [7].into_iter().collect()),
        rule().with(|all| all.tls_version_max = Some(0x0303)),
        rule().with(|all| all.ech = Some(true)),
        rule().alpn(&["h2"]),
        rule().ja4("x"),
        rule().destination(&[("10.0.0.0/8", Some(443))]),
        rule().sni(&["b.example"]),
        rule(),
    ]);
    let given = Given { ja4: Some("y"), ..Given::named("b.example") };
    let (verdict, _) = given.ask_with(&rules, |facts| {
        let misses: Vec<Matcher> = rules.misses(facts).map(|miss| miss.matcher).collect();
        let expected = [
            Matcher::Client,
            Matcher::Sni,
            Matcher::SniMalformed,
            Matcher::Listener,
            Matcher::TlsVersionMax,
            Matcher::Ech,
            Matcher::Alpn,
            Matcher::Ja4,
            Matcher::Destination,
        ];
        assert_eq!(misses, expected);
    });
    assert_eq!(verdict.rule, Some(RuleId(9)));
    for (rule, matcher, text) in [
        (1, Matcher::Sni, "\"a.example\", \"*.a.example\""),
        (0, Matcher::Client, "\"10.0.0.0/8\""),
        (4, Matcher::TlsVersionMax, "\"1.2\""),
        (8, Matcher::Destination, "\"10.0.0.0/8:443\""),
        (10, Matcher::Sni, ""),
    ] {
        assert_eq!(rules.matcher_text(RuleId(rule), matcher), text);
    }
}

/// Tests if a request for another name may stay on a connection.
#[test]
fn other_names_of_a_connection() {
    let rules = Rules::new(&[
        refuse().sni(&["evil.app.example"]),
        rule().sni(&["*.app.example", "b.example"]).client(&["10.0.0.0/8"]),
        rule().sni(&["x.app.example"]).alpn(&["acme-tls/1"]),
        rule().sni(&["app.example", "*.app.example", "b.example", ""]),
    ]);
    for (client, rule, name, serves) in [
        ("192.0.2.1", 3, "app.example", true),
        ("192.0.2.1", 3, "a.app.example", true),
        ("192.0.2.1", 3, "b.example", true),
        ("192.0.2.1", 3, "", true),
        ("192.0.2.1", 3, "c.example", false),
        ("192.0.2.1", 3, "evil.app.example", false),
        // What that rule asks of the hello besides its name is not known any more.
        ("192.0.2.1", 3, "x.app.example", false),
        ("10.1.2.3", 3, "b.example", false),
        ("10.1.2.3", 1, "b.example", true),
        ("10.1.2.3", 1, "app.example", false),
    ] {
        let facts = Facts::new(0, client.parse().unwrap());
        assert_eq!(
            rules.would_take(RuleId(rule), name, &facts),
            serves,
            "{client} {rule} {name:?}"
        );
    }
}

fn names(fingerprint: u64, entries: &[&str]) -> FileList {
    let mut names = NameList::default();
    entries.iter().for_each(|entry| names.add(entry).unwrap());
    FileList { file: Some("names.txt".into()), fingerprint, list: List::Names(Arc::new(names)) }
}

/// The contents of a list from a file count in every question that is asked of the rules, and so
/// does the version that replaces it.
#[test]
fn a_list_that_is_replaced_counts_from_the_next_question_on() {
    let mut lists = Lists::default();
    let id = lists.add(names(1, &[".a.example", "b.example"])).unwrap();
    let refuse =
        Rule { refuse: true, sni_lists: vec![id], ..Rule::default() }.client(&["10.0.0.0/8"]);
    let serve = Rule { sni_lists: vec![id], ..Rule::default() };
    let rules = Rules::with_lists(&[refuse, serve], lists);
    let asks = |client, name| Given { client, ..Given::named(name) }.ask(&rules).0.rule;
    let facts = Facts::new(0, "192.0.2.1".parse().unwrap());
    let serves = |name| rules.would_take(RuleId(1), name, &facts);
    assert_eq!(asks("10.1.2.3", "b.example"), Some(RuleId(0)));
    assert_eq!(asks("192.0.2.1", "b.example"), Some(RuleId(1)));
    assert_eq!(["b.example", "x.a.example", "c.example"].map(serves), [true, true, false]);
    let before = rules.fingerprint();
    rules.replace_list(id, &names(2, &["c.example"]));
    assert_eq!(asks("192.0.2.1", "b.example"), None);
    assert_eq!(asks("192.0.2.1", "c.example"), Some(RuleId(1)));
    assert_eq!(["b.example", "x.a.example", "c.example"].map(serves), [false, false, true]);
    assert_ne!(rules.fingerprint(), before);
}

/// The host of a request is any text. An expression sees it only if a hello could have it as its
/// name: otherwise a `..` or a blank would lead around a rule, or to one.
#[test]
fn an_expression_sees_only_names() {
    let expressions = NameExpressions::new([r"^(|.*\.)a\.example$"]).unwrap();
    let list = List::Expressions(Arc::new(expressions));
    let mut lists = Lists::default();
    let id = lists.add(FileList { file: None, fingerprint: 1, list }).unwrap();
    let by_list = || Rule { sni_lists: vec![id], ..Rule::default() };
    let facts = Facts::new(0, "192.0.2.1".parse().unwrap());
    let taken = Rules::with_lists(&[by_list()], lists.clone());
    let refused = Rules::with_lists(&[Rule { refuse: true, ..by_list() }, Rule::default()], lists);
    let long = "x.".repeat(130) + "a.example";
    for (name, by_first, by_second) in [
        ("a.example", true, false),
        ("x.a.example", true, false),
        ("b.example", false, true),
        ("", false, true),
        ("x..a.example", false, false),
        ("x a.example", false, false),
        ("x/.a.example", false, false),
        ("a.example.", false, false),
        (&long, false, false),
    ] {
        assert_eq!(taken.would_take(RuleId(0), name, &facts), by_first, "{name}");
        assert_eq!(refused.would_take(RuleId(1), name, &facts), by_second, "{name}");
    }
}

/// A verdict of one list holds for another one with the same fingerprint.
#[test]
fn lists_that_differ_have_other_fingerprints() {
    let refuse = || Rule { refuse: true, ..Rule::default() };
    let lists = [
        vec![],
        vec![refuse()],
        vec![Rule::default()],
        vec![refuse(), Rule::default()],
        vec![Rule::default(), refuse()],
        vec![Rule { sni: vec!["a.example".parse().unwrap()], ..refuse() }],
        vec![refuse().with(|all| all.tls_version_max = Some(0x0303))],
        vec![Rule { shadow: true, ..refuse() }],
        vec![Rule { needs: Needs::Name, ..Rule::default() }],
    ];
    for (n, list) in lists.iter().enumerate() {
        let same =
            |other: &Vec<Rule>| Rules::new(other).fingerprint() == Rules::new(list).fingerprint();
        assert_eq!(lists.iter().position(same), Some(n));
        assert_eq!(lists.iter().filter(|other| same(other)).count(), 1);
    }
}
