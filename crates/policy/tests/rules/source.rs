//! The loop of a decision, against a source that knows some facts at once and waits for others.

use eyelet_policy::{
    Conditions, Decision, Fact, FactSet, FactSource, Facts, Refusal, Rule, RuleId, Rules, Verdict,
};
use eyelet_wire::connect::Target;
use eyelet_wire::hello::HelloFacts;

use crate::words::{Words, refuse, rule};

/// Facts of which some must be waited for. It counts fetches.
struct Source<'a> {
    facts: Facts<'a>,
    waits: &'a [Fact],
    fetched: Vec<Fact>,
}

impl FactSource for Source<'_> {
    fn facts(&self) -> Facts<'_> {
        self.facts
    }

    fn fetch(&mut self, fact: Fact) -> bool {
        if self.waits.contains(&fact) {
            return false;
        }
        self.fetched.push(fact);
        match fact {
            Fact::Hello => self.facts.hello = Some(HelloFacts::named(Some("a.example"))),
            Fact::Ja4 => self.facts.ja4 = Some("t"),
            other => self.facts.unknown = self.facts.unknown.with(other),
        }
        true
    }
}

fn source<'a>(connect: Option<&'a Target>, waits: &'a [Fact]) -> Source<'a> {
    let facts = Facts { connect, ..Facts::new(0, "192.0.2.1".parse().unwrap()) };
    Source { facts, waits, fetched: Vec::new() }
}

fn taken(rule: u32) -> Decision {
    Decision::Verdict(Verdict { rule: Some(RuleId(rule)), refuse: None })
}

#[test]
fn each_fact_is_fetched_once_or_waited_for() {
    let rules = [
        rule().destination(&[("10.0.0.0/8", None)]).sni(&["a.example"]),
        rule().sni(&["a.example"]).ja4("t"),
        refuse(),
    ];
    let rules = Rules::new(&rules);
    let mut knows = source(None, &[]);
    assert_eq!(rules.decide_from(&mut knows), taken(1), "an unknown destination fails closed");
    assert_eq!(knows.fetched, [Fact::Destination, Fact::Hello, Fact::Ja4]);
    for (waits, fetched) in [(Fact::Destination, 0), (Fact::Hello, 1), (Fact::Ja4, 2)] {
        let waits = [waits];
        let mut source = source(None, &waits);
        assert_eq!(rules.decide_from(&mut source), Decision::Need(waits[0]));
        assert_eq!(source.fetched.len(), fetched, "{waits:?}");
        // The wait is over.
        source.waits = &[];
        assert_eq!(rules.decide_from(&mut source), taken(1), "{waits:?}");
    }
}

#[test]
fn a_target_that_every_rule_refuses_is_refused_without_its_hello() {
    let rules = Rules::new(&[rule().sni(&["a.example"])]);
    for (target, fetched, refuse) in
        [("a.example:443", 1, None), ("b.example:443", 0, Some(Refusal::NoRule))]
    {
        let target = Target::new(target.as_bytes()).unwrap();
        let mut source = source(Some(&target), &[]);
        let Decision::Verdict(verdict) = rules.decide_from(&mut source) else { panic!("{target}") };
        assert_eq!((verdict.refuse, source.fetched.len()), (refuse, fetched), "{target}");
    }
}

#[test]
fn shadow_rules_ask_for_each_fact_once_and_wait_for_none() {
    let in_shadow = |rule: Rule| Rule { shadow: true, ..rule };
    let ja4 = |ja4: &str| in_shadow(rule().ja4(ja4));
    let certified = |all: &mut Conditions| all.evidence.certificate_valid = Some(true);
    let rules = [ja4("t"), ja4("u"), in_shadow(rule().with(certified)), rule().sni(&["a.example"])];
    let rules = Rules::new(&rules);
    let mut source = source(None, &[Fact::Certificate]);
    assert_eq!(rules.decide_from(&mut source), taken(3));
    let all = FactSet::EMPTY.with(Fact::Ja4).with(Fact::Certificate);
    assert_eq!(rules.fetch_for_shadows(&mut source), all);
    let comes_to: Vec<_> = rules.shadowed(&source.facts).collect();
    let lacks = Decision::Need(Fact::Certificate);
    assert_eq!(comes_to, [(RuleId(0), taken(0)), (RuleId(2), lacks)]);
}
