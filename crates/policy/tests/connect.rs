//! Rules on the target of a CONNECT: what they decide before a hello, and which cover which.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod words;

use eyelet_policy::{
    Conditions, Decision, Fact, Facts, Matcher, Needs, Refusal, Rule, RuleId, Rules, Verdict,
};
use eyelet_wire::connect::{ConnectPeek, ConnectReader, Target};
use words::{Words, refuse, rule};

fn target(text: &str) -> Target {
    let head = format!("CONNECT {text} HTTP/1.0\r\n\r\n");
    match ConnectReader::new().feed(head.as_bytes()) {
        ConnectPeek::Connect(connect) => connect.target,
        other => panic!("{text}: {other:?}"),
    }
}

fn to(rule: Rule, patterns: &[&str]) -> Rule {
    let patterns: Vec<_> = patterns.iter().map(|pattern| pattern.parse().unwrap()).collect();
    rule.with(|all: Conditions| all.connect(patterns))
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
