//! Rules on the target of a CONNECT: what they decide before a hello, and which cover which.

use eyelet_policy::{
    Conditions, Decision, Fact, Facts, Matcher, Needs, Refusal, Rule, RuleId, Rules, Verdict,
};
use eyelet_wire::connect::{ConnectPeek, ConnectReader, Target};

use crate::words::{Words, refuse, rule};

fn target(text: &str) -> Target {
    let head = format!("CONNECT {text} HTTP/1.0\r\n\r\n");
    match ConnectReader::new().feed(head.as_bytes()) {
        ConnectPeek::Connect(connect) => connect.target,
        other => panic!("{text}: {other:?}"),
    }
}

fn to(rule: Rule, patterns: &[&str]) -> Rule {
    let patterns: Vec<_> = patterns.iter().map(|pattern| pattern.parse().unwrap()).collect();
    rule.with(|all: &mut Conditions| all.connect = patterns.into_iter().collect())
}

fn decide(rules: &Rules, text: Option<&str>) -> Decision {
    let target = text.map(target);
    let client = "192.0.2.1".parse().unwrap();
    rules.decide(&Facts { connect: target.as_ref(), ..Facts::new(0, client) })
}

#[test]
fn targets_are_decided_before_a_hello_in_the_order_of_the_rules() {
    let rules = Rules::new(&[
        to(refuse(), &["*.inside.test:*"]),
        to(rule(), &["git.test:22"]),
        to(rule().sni(&["a.test"]), &["*:443"]).needs(Needs::Name),
        to(rule(), &["*:8080"]).destination(&[("10.0.0.0/8", None)]),
        refuse(),
    ]);
    let verdict = |rule, refuse| Decision::Verdict(Verdict { rule: Some(RuleId(rule)), refuse });
    for (text, decision) in [
        (Some("x.inside.test:443"), verdict(0, Some(Refusal::ByConnect))),
        (Some("git.test:22"), verdict(1, None)),
        (Some("git.test:443"), Decision::Need(Fact::Hello)),
        (Some("10.0.0.1:8080"), Decision::Need(Fact::Destination)),
        (Some("git.test:23"), verdict(4, Some(Refusal::Unlisted))),
        (None, verdict(4, Some(Refusal::Unlisted))),
    ] {
        assert_eq!(decide(&rules, text), decision, "{text:?}");
    }
    let client = "192.0.2.1".parse().unwrap();
    let git = target("git.test:22");
    let facts = Facts { connect: Some(&git), ..Facts::new(0, client) };
    let missed: Vec<_> = rules.misses(&facts).map(|miss| (miss.rule.0, miss.matcher)).collect();
    assert_eq!(missed, [(0, Matcher::Connect)]);
    assert_eq!(rules.matcher_text(RuleId(0), Matcher::Connect), "\"*.inside.test:*\"");
}

/// A refused client is told where its target is missing, if that alone is why.
#[test]
fn a_missing_target_names_its_list() {
    let client = "192.0.2.1".parse().unwrap();
    let cause = |rules: &Rules, text: &str| {
        let target = target(text);
        rules.lacks_target(&Facts { connect: Some(&target), ..Facts::new(0, client) })
    };
    let of_rule = Some("not in `connect` of any rule".to_owned());
    let listed = Rules::new(&[to(rule(), &["a.test:443"]), to(rule(), &["b.test:*"])]);
    assert_eq!(cause(&listed, "c.test:443"), of_rule);
    let by_client = to(rule(), &["a.test:443"]).client(&["10.0.0.0/8"]);
    assert_eq!(cause(&Rules::new(std::slice::from_ref(&by_client)), "a.test:443"), None);
    assert_eq!(cause(&Rules::new(&[by_client, listed_rule()]), "c.test:443"), of_rule);
    assert_eq!(cause(&Rules::new(&vec![listed_rule(); 17]), "c.test:443"), None);
}

fn listed_rule() -> Rule {
    to(rule(), &["a.test:443"])
}

#[test]
fn an_earlier_wider_rule_covers() {
    for (wide, narrow, covered) in [
        (to(rule(), &["*:443"]), to(rule(), &["a.test:443"]), true),
        (to(rule(), &["*:443"]), rule(), false),
        (rule(), to(rule(), &["a.test:443"]), true),
        (to(rule(), &["a.test:443"]), to(rule(), &["*.test:443"]), false),
        (to(rule(), &["a.test:443"]), to(refuse(), &["a.test:443"]), true),
    ] {
        let rules = [wide, narrow];
        assert_eq!(Rules::new(&rules).coverage(&rules).covered.len(), usize::from(covered));
    }
}

/// Returns the decision before the hello: `None` if the hello decides.
fn early(rules: &[Rule], text: &str) -> Option<(Option<u32>, Refusal)> {
    let (index, target) = (Rules::new(rules), target(text));
    let client = "192.0.2.1".parse().unwrap();
    let verdict = index.refuses_target(&Facts { connect: Some(&target), ..Facts::new(0, client) });
    verdict.map(|verdict| (verdict.rule.map(|rule| rule.0), verdict.refuse.unwrap()))
}

#[test]
fn a_target_that_no_rule_can_take_is_refused_before_its_hello() {
    let web = || to(rule().sni(&["a.test", "*.b.test"]), &["*:443"]).needs(Needs::Name);
    let unlisted = Some((None, Refusal::NoRule));
    let listed = [refuse().sni(&["evil.test"]), web()];
    for (text, expected) in [
        ("a.test:443", None),
        ("x.b.test:443", None),
        ("b.test:443", unlisted),
        ("c.test:443", unlisted),
        ("a.test:80", unlisted),
        ("evil.test:443", Some((Some(0), Refusal::ByName))),
        // An address is no name: the hello decides.
        ("192.0.2.1:443", None),
    ] {
        assert_eq!(early(&listed, text), expected, "{text}");
    }
    let refused = Some((Some(1), Refusal::NoRule));
    assert_eq!(early(&[web(), refuse()], "c.test:443"), refused);
    // A rule below may take it by what only the hello says.
    let by_alpn = rule()
        .with(|all: &mut Conditions| all.alpn = [b"h2".as_slice().into()].into_iter().collect());
    assert_eq!(early(&[web(), by_alpn, refuse()], "c.test:443"), None);
    assert_eq!(early(&[web(), rule().sni(&[""])], "c.test:443"), None);
    let malformed = rule().with(|all: &mut Conditions| all.sni_malformed = true);
    assert_eq!(early(&[web(), malformed], "c.test:443"), None);
    // This one names the target, and expects another name inside.
    let fronted = to(rule().sni(&["a.test"]), &["front.test:443"]);
    assert_eq!(early(std::slice::from_ref(&fronted), "front.test:443"), None);
    assert_eq!(early(&[fronted], "other.test:443"), unlisted);
    // A refuse rule that may hold decides nothing yet; one in shadow never does.
    let old = refuse().with(|all: &mut Conditions| all.tls_version_max = Some(0x0303));
    assert_eq!(early(&[old, web()], "c.test:443"), unlisted);
    let mut shadow = refuse().sni(&["a.test"]);
    shadow.shadow = true;
    assert_eq!(early(&[shadow, web()], "a.test:443"), None);
}

#[test]
fn the_rules_that_might_take_a_target_are_known_before_its_hello() {
    let might = |rules: &[Rule], text: &str| {
        let (index, target) = (Rules::new(rules), target(text));
        let client = "192.0.2.1".parse().unwrap();
        let facts = Facts { connect: Some(&target), ..Facts::new(0, client) };
        let found = index.might_take(&facts);
        found.map(|rules| rules.iter().map(|rule| rule.0).collect::<Vec<_>>())
    };
    let web = || to(rule().sni(&["a.test", "*.b.test"]), &["*:443"]);
    let mut shadow = rule().sni(&["a.test"]);
    shadow.shadow = true;
    let all = [shadow, refuse().sni(&["x.b.test"]), web(), rule()];
    assert_eq!(might(&all, "a.test:443"), Some(vec![2, 3]));
    assert_eq!(might(&all, "x.b.test:443"), Some(vec![2, 3]));
    assert_eq!(might(&all, "a.test:80"), Some(vec![3]));
    assert_eq!(might(&all[..3], "a.test:80"), None);
    assert_eq!(might(&all, "192.0.2.1:443"), None);
    // This one names the target, and expects another name inside.
    let fronted = to(rule().sni(&["a.test"]), &["front.test:443"]);
    assert_eq!(might(&[fronted, rule()], "front.test:443"), None);
    let nameless = rule().sni(&[""]);
    assert_eq!(might(&[web(), nameless], "a.test:443"), None);
    assert_eq!(might(&vec![rule(); 16], "a.test:443").map(|rules| rules.len()), Some(16));
    assert_eq!(might(&vec![rule(); 17], "a.test:443"), None);
}

/// An early refusal is never wrong: a hello that has the target's name is refused, too.
#[test]
fn a_hello_with_the_name_is_refused_as_its_target_was() {
    use crate::words::Given;
    let pool = [
        rule().sni(&["a.test"]),
        refuse().sni(&["*.test"]),
        to(rule(), &["*:443"]),
        to(refuse(), &["b.test:443"]),
        refuse().with(|all: &mut Conditions| all.ech = Some(true)),
        rule().sni(&["b.test"]).client(&["10.0.0.0/8"]),
        refuse(),
    ];
    for mask in 0..1_u32 << pool.len() {
        for turn in 0..pool.len() {
            let ordered = (0..pool.len()).map(|at| (at + turn) % pool.len());
            let chosen = ordered.filter(|at| mask >> at & 1 == 1).map(|at| pool[at].clone());
            let rules: Vec<Rule> = chosen.collect();
            for name in ["a.test", "b.test", "c.example"] {
                let text = format!("{name}:443");
                if early(&rules, &text).is_none() {
                    continue;
                }
                let given = Given { connect: Some(name), ..Given::named(name) };
                let (verdict, _) = given.ask(&Rules::new(&rules));
                assert!(verdict.refuse.is_some(), "{name}: {rules:?}");
            }
        }
    }
}
