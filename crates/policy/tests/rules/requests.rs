//! The decisions on requests: which rules decide those of a connection, and what they say.

use eyelet_policy::{
    Decision, Fact, FactSource, Facts, Refusal, RequestFacts, RequestMatchers, RequestPattern,
    Rule, RuleId, Rules, Verdict,
};
use eyelet_wire::hello::HelloFacts;

use crate::words::{Words, refuse, rule};

fn asks(methods: &[&str], paths: &[&str]) -> RequestMatchers {
    let methods = methods.iter().map(|method| RequestPattern::method(method).unwrap());
    let paths = paths.iter().map(|path| RequestPattern::Path(path.parse().unwrap()));
    methods.chain(paths).collect()
}

/// A rule whose requests are read.
fn serve(methods: &[&str], paths: &[&str]) -> Rule {
    Rule { requests: asks(methods, paths), serves_requests: true, ..rule() }
}

fn forbid(methods: &[&str], paths: &[&str]) -> Rule {
    Rule { requests: asks(methods, paths), ..refuse() }
}

/// A connection for a name, of which nothing else can be had.
struct Named<'a>(Facts<'a>);

impl<'a> Named<'a> {
    fn new(name: &'a str) -> Self {
        let hello = Some(HelloFacts::named(Some(name)));
        Self(Facts { hello, ..Facts::new(0, "192.0.2.1".parse().unwrap()) })
    }
}

impl FactSource for Named<'_> {
    fn facts(&self) -> Facts<'_> {
        self.0
    }

    fn fetch(&mut self, fact: Fact) -> bool {
        self.0.unknown = self.0.unknown.with(fact);
        true
    }
}

/// The rule that takes a connection, those that decide its requests, and what they say of one.
fn decide(rules: &[Rule], name: &str, request: (&str, &str)) -> (Vec<u32>, Verdict) {
    let rules = Rules::new(rules);
    let mut source = Named::new(name);
    let Decision::Verdict(verdict) = rules.decide_from(&mut source) else { panic!("a fact") };
    let Verdict { rule: Some(rule), refuse: None } = verdict else {
        return (Vec::new(), verdict);
    };
    let found = rules.request_rules(rule, &mut source).deciding;
    let (method, path) = request;
    let (overrides, is_other) = (|| path.contains("override"), || path.contains("other"));
    let request = RequestFacts { method, path, others: Some((&overrides, &is_other)) };
    let verdict = match &*found {
        [] => verdict,
        found => rules.decide_request(found, &request),
    };
    (found.iter().map(|rule| rule.0).collect(), verdict)
}

#[test]
fn rules_in_shadow_see_requests_and_decide_none() {
    let shadow = |rule: Rule| Rule { shadow: true, ..rule };
    let rules = Rules::new(&[
        shadow(forbid(&[], &["/a/*"])),
        shadow(forbid(&[], &["/a/*"]).sni(&["b.example"])),
        shadow(serve(&["GET"], &[])),
        // Whole connections are looked at before there is a request.
        shadow(refuse()),
        serve(&["GET"], &[]),
        shadow(forbid(&[], &["/x"])),
        serve(&[], &[]),
        shadow(forbid(&[], &[])),
    ]);
    let found = rules.request_rules(RuleId(4), &mut Named::new("a.example"));
    assert_eq!(*found.deciding, [RuleId(4), RuleId(6)]);
    assert_eq!(*found.shadows, [RuleId(0), RuleId(2), RuleId(5)]);
    for (method, path, decides, shadows) in [
        ("GET", "/a/b", 4, &[(0, true), (2, false)][..]),
        ("POST", "/a/b", 6, &[(0, true)]),
        ("GET", "/x", 4, &[(2, false)]),
        ("POST", "/x", 6, &[(5, true)]),
        ("POST", "//x", 6, &[(0, true), (5, true)]),
        ("POST", "/y", 6, &[]),
    ] {
        let request = RequestFacts { method, path, others: None };
        let verdict = rules.decide_request(&found.deciding, &request);
        assert_eq!(verdict.rule, Some(RuleId(decides)), "{method} {path}");
        let seen = rules.shadows_by_request(&found.shadows, verdict.rule, &request);
        let seen: Vec<_> = seen.map(|(rule, is_refused)| (rule.0, is_refused)).collect();
        assert_eq!(seen, shadows, "{method} {path}");
    }
}

#[test]
fn the_first_rule_that_takes_the_request_decides_it() {
    let rules = [
        forbid(&["DELETE"], &[]),
        serve(&["GET"], &["/a/*"]).sni(&["a.example"]),
        serve(&["POST"], &[]).client(&["10.0.0.0/8"]),
        serve(&[], &["/b"]),
        refuse(),
        rule(),
    ];
    let by = |rule, refuse| Verdict { rule: Some(RuleId(rule)), refuse };
    for (name, method, path, verdict) in [
        ("a.example", "GET", "/a/x", by(1, None)),
        ("b.example", "GET", "/a/x", by(4, Some(Refusal::NoRequestRule))),
        ("a.example", "GET", "/b", by(3, None)),
        ("a.example", "POST", "/c", by(4, Some(Refusal::NoRequestRule))),
        ("b.example", "DELETE", "/b", by(0, Some(Refusal::ByRequest))),
        ("b.example", "PUT", "/override", by(0, Some(Refusal::MethodOverride))),
        ("b.example", "delete", "/b", by(0, Some(Refusal::MethodCase))),
        ("b.example", "PUT", "/other", by(3, Some(Refusal::PathOverride))),
    ] {
        let (_, found) = decide(&rules, name, (method, path));
        assert_eq!(found, verdict, "{name} {method} {path}");
    }
    assert_eq!(decide(&rules, "a.example", ("GET", "/")).0, [0, 1, 3, 4]);
    assert_eq!(decide(&rules, "b.example", ("GET", "/")).0, [0, 3, 4]);
}

#[test]
fn a_path_that_is_ambiguous_is_refused_where_a_rule_asks_for_it() {
    let rules = [serve(&["GET"], &["/a/*"]), serve(&["POST"], &[])];
    let (_, found) = decide(&rules, "a.example", ("GET", "/a/../b"));
    assert!(matches!(found.refuse, Some(Refusal::AmbiguousPath(_))), "{found:?}");
    let (_, found) = decide(&rules, "a.example", ("POST", "/a/../b"));
    assert_eq!(found, Verdict { rule: Some(RuleId(1)), refuse: None });
}

#[test]
fn a_rule_that_takes_every_request_needs_no_list() {
    for rules in [
        vec![serve(&[], &[]), serve(&["GET"], &[])],
        vec![serve(&["GET"], &[]).sni(&["b.example"]), serve(&[], &[])],
    ] {
        assert_eq!(decide(&rules, "a.example", ("GET", "/")).0, [0_u32; 0]);
    }
}

/// An unknown fact fails closed: a refuse rule holds, any other one does not.
#[test]
fn an_unknown_fact_of_the_connection_fails_closed() {
    let certified = |mut one: Rule| {
        one.conditions.evidence.certificate_valid = Some(true);
        one
    };
    let rules =
        [certified(forbid(&["POST"], &[])), serve(&["GET"], &[]), certified(serve(&["PUT"], &[]))];
    assert_eq!(decide(&rules, "a.example", ("GET", "/")).0, [0, 1]);
}

#[test]
fn a_rule_that_reads_no_requests_does_not_pass_one_that_asks_for_them() {
    let unread = |rule| Verdict { rule: Some(RuleId(rule)), refuse: Some(Refusal::RequestUnread) };
    let splice = || rule();
    for (rules, verdict) in [
        (vec![forbid(&["POST"], &[]), splice()], unread(0)),
        (vec![forbid(&["POST"], &[]).sni(&["a.example"]), splice()], unread(0)),
        (vec![forbid(&["POST"], &[]), splice().sni(&["a.example"])], unread(0)),
    ] {
        assert_eq!(decide(&rules, "a.example", ("GET", "/")).1, verdict, "{rules:?}");
    }
    let rules = [forbid(&["POST"], &[]).sni(&["b.example"]), splice()];
    let taken = Verdict { rule: Some(RuleId(1)), refuse: None };
    assert_eq!(decide(&rules, "a.example", ("GET", "/")).1, taken);
}

#[test]
fn another_name_is_served_only_by_the_very_rules() {
    let rules = Rules::new(&[
        serve(&["GET"], &[]).sni(&["a.example", "b.example"]),
        serve(&["POST"], &[]).sni(&["a.example", "c.example"]),
    ]);
    for (name, last, is_alike) in [
        ("a.example", 1, true),
        ("b.example", 1, false),
        ("b.example", 0, true),
        ("c.example", 1, false),
        ("", 1, false),
    ] {
        assert_eq!(rules.are_alike("a.example", name, RuleId(last)), is_alike, "{name} {last}");
    }
}
