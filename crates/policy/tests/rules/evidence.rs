//! Tables for rules on evidence and shadow rules: what is asked, when, and the verdict. All through
//! the public interface, with real hello bytes.

use std::cell::RefCell;

use eyelet_policy::{
    CertificateFacts, Decision, EvidenceKind, Fact, FactSet, Facts, Needs, Refusal, Rule, RuleId,
    Rules,
};
use eyelet_wire::alert::AlertDescription;

use crate::words::{Given, Words, refuse, rule};

use EvidenceKind::{Certificate as ByCertificate, Connect, Dns};

fn is_true(wanted: bool, evidence: &[EvidenceKind]) -> Rule {
    rule()
        .with(|all| all.evidence.sni_verified = Some((wanted, evidence.iter().copied().collect())))
}

fn refuse_lies(evidence: &[EvidenceKind]) -> Rule {
    refuse()
        .with(|all| all.evidence.sni_verified = Some((false, evidence.iter().copied().collect())))
}

fn shadow(mut rule: Rule) -> Rule {
    rule.shadow = true;
    rule
}

/// The deciding rule, and the facts that were asked for.
#[track_caller]
fn check(rules: &[Rule], table: &[(Given<'_>, Option<u32>, &[Fact])]) {
    let index = Rules::new(rules);
    for (given, expected, asked) in table {
        let (verdict, really_asked) = given.ask(&index);
        assert_eq!(verdict.rule.map(|rule| rule.0), *expected, "{given:?}");
        assert_eq!(really_asked, *asked, "{given:?}");
    }
}

#[test]
fn a_sni_verified_as_soon_as_one_evidence_speaks_for_it() {
    let named = Given::named("a.example");
    let good = CertificateFacts { trusted: true, valid: true, ..CertificateFacts::default() };
    let bad = CertificateFacts::default();
    use Fact::{Certificate as Shown, DnsEvidence, Hello};
    check(
        &[is_true(true, &[ByCertificate, Dns, Connect]), rule()],
        &[
            (Given { connect: Some("a.example"), ..named }, Some(0), &[Hello]),
            (
                Given { connect: Some("b.example"), dns: Some(true), ..named },
                Some(0),
                &[Hello, DnsEvidence],
            ),
            // Unknown evidence does not prevent other evidence.
            (Given { certificate: Some(&good), ..named }, Some(0), &[Hello, DnsEvidence, Shown]),
            (Given { certificate: Some(&bad), ..named }, Some(1), &[Hello, DnsEvidence, Shown]),
            // Without a name there is nothing to verify.
            (Given::default(), Some(1), &[Hello]),
        ],
    );
}

#[test]
fn unknown_evidence_fails_closed() {
    let named = Given::named("a.example");
    let lies = [refuse_lies(&[Dns]), rule()];
    let truths = [is_true(true, &[Dns]), is_true(false, &[Dns]), refuse()];
    use Fact::{DnsEvidence, Hello};
    let asked: &[Fact] = &[Hello, DnsEvidence];
    check(
        &lies,
        &[
            (Given { dns: Some(true), ..named }, Some(1), asked),
            (Given { dns: Some(false), ..named }, Some(0), asked),
            (named, Some(0), asked),
            (Given::default(), Some(0), &[Hello]),
        ],
    );
    check(
        &truths,
        &[
            (Given { dns: Some(true), ..named }, Some(0), asked),
            (Given { dns: Some(false), ..named }, Some(1), asked),
            (named, Some(2), asked),
        ],
    );
}

#[test]
fn evidence_is_asked_for_only_when_everything_cheaper_holds() {
    use Fact::{Certificate as Shown, DnsEvidence, Hello};
    let good = CertificateFacts { trusted: true, valid: true, ..CertificateFacts::default() };
    let rules = [
        refuse().sni(&["*.evil.example"]),
        refuse_lies(&[Dns]).client(&["10.0.0.0/8"]).sni(&["*.example"]),
        is_true(true, &[Dns]).with(|all| all.evidence.certificate_valid = Some(true)).alpn(&["h2"]),
        rule(),
    ];
    let from = |client, name| Given { client, certificate: Some(&good), ..Given::named(name) };
    let h2: &[&[u8]] = &[b"h2"];
    check(
        &rules,
        &[
            (from("10.0.0.1", "a.evil.example"), Some(0), &[Hello]),
            (from("10.0.0.1", "a.test"), Some(3), &[Hello]),
            (from("192.0.2.1", "a.example"), Some(3), &[Hello]),
            (
                Given { dns: Some(false), ..from("10.0.0.1", "a.example") },
                Some(1),
                &[Hello, DnsEvidence],
            ),
            // A name that DNS denies needs no certificate.
            (
                Given { alpn: h2, dns: Some(false), ..from("192.0.2.1", "a.example") },
                Some(3),
                &[Hello, DnsEvidence],
            ),
            (
                Given { alpn: h2, dns: Some(true), ..from("192.0.2.1", "a.example") },
                Some(2),
                &[Hello, DnsEvidence, Shown],
            ),
        ],
    );
}

#[test]
fn a_certificate_counts_only_if_it_is_trusted() {
    let texts = |list: &[&str]| list.iter().map(|text| Box::from(*text)).collect();
    let shown = |trusted, valid| CertificateFacts {
        names: texts(&["*.bank.example", "bank.example"]),
        issuer: texts(&["C=XX, O=Authority, CN=A1", "Authority", "A1"]),
        trusted,
        valid,
    };
    let (good, other, own) = (shown(true, true), shown(true, false), shown(false, false));
    let given = |certificate| Given { certificate: Some(certificate), ..Given::named("x.example") };
    let named = |rule: Rule, name: &str| {
        let pattern = name.parse().unwrap();
        rule.with(|all| all.evidence.certificate_names = [pattern].into_iter().collect())
    };
    let issued = |rule: Rule, name: &str| {
        rule.with(|all| all.evidence.certificate_issuer = [name.into()].into_iter().collect())
    };
    for (tried, certificate, holds) in [
        (named(rule(), "www.bank.example"), &good, true),
        (named(rule(), "*.bank.example"), &other, true),
        (named(rule(), "shop.example"), &good, false),
        (named(rule(), "bank.example"), &own, false),
        (named(refuse(), "bank.example"), &own, true),
        (named(refuse(), "shop.example"), &own, false),
        (
            named(rule(), "bank.example").with(|all| all.evidence.certificate_valid = Some(false)),
            &own,
            true,
        ),
        (
            named(rule(), "bank.example").with(|all| all.evidence.certificate_valid = Some(true)),
            &other,
            false,
        ),
        (issued(rule(), "Authority"), &good, true),
        (issued(rule(), "A1"), &other, true),
        (issued(rule(), "A1"), &own, false),
        (issued(rule(), "A"), &good, false),
        (rule().with(|all| all.evidence.certificate_valid = Some(false)), &other, true),
        (rule().with(|all| all.evidence.certificate_valid = Some(true)), &good, true),
    ] {
        let (verdict, _) = given(certificate).ask(&Rules::new(std::slice::from_ref(&tried)));
        assert_eq!(verdict.rule.is_some(), holds, "{tried:?} {certificate:?}");
    }
    let blind = Given::named("x.example");
    let (verdict, _) = blind.ask(&Rules::new(&[named(refuse(), "shop.example"), rule()]));
    assert_eq!(verdict.refuse, Some(Refusal::ByCertificate), "unknown, and refused");
}

#[test]
fn refusals_say_by_what_evidence() {
    for (rule, why) in [
        (refuse_lies(&[Dns]), Refusal::NameNotVerified),
        (refuse_lies(&[Dns]).client(&["::/0", "0.0.0.0/0"]), Refusal::NameNotVerified),
        (refuse().with(|all| all.evidence.certificate_valid = Some(false)), Refusal::ByCertificate),
        (refuse().with(|all| all.tls_compression = true), Refusal::ByCompression),
    ] {
        let given = Given { compression: true, dns: Some(false), ..Given::named("a.example") };
        let (verdict, _) = given.ask(&Rules::new(&[rule]));
        assert_eq!(verdict.refuse, Some(why));
    }
    assert_eq!(Refusal::NameNotVerified.alert(false), AlertDescription::AccessDenied);
    assert_eq!(Refusal::ByCompression.alert(true), AlertDescription::HandshakeFailure);
}

#[test]
fn compression_is_decided_by_the_hello() {
    let given = Given::named("a.example");
    check(
        &[refuse().with(|all| all.tls_compression = true), rule()],
        &[
            (Given { compression: true, ..given }, Some(0), &[Fact::Hello]),
            (given, Some(1), &[Fact::Hello]),
        ],
    );
}

#[test]
fn a_shadow_rule_is_reported_and_decides_nothing() {
    let rules = [
        shadow(refuse().client(&["10.0.0.0/8"])),
        shadow(refuse_lies(&[Dns])),
        shadow(rule().sni(&["a.example"])),
        rule().sni(&["a.example"]),
        shadow(refuse()),
        rule().sni(&["b.example"]),
    ];
    let index = Rules::new(&rules);
    for (given, decided, told) in [
        (Given { dns: Some(true), ..Given::named("a.example") }, Some(3), &[2][..]),
        (Given { dns: Some(false), ..Given::named("a.example") }, Some(3), &[1, 2]),
        (Given { client: "10.0.0.1", ..Given::named("a.example") }, Some(3), &[0, 1, 2]),
        (Given { dns: Some(true), ..Given::named("b.example") }, Some(5), &[4]),
        (Given { dns: Some(true), ..Given::named("c.example") }, None, &[4]),
    ] {
        let shadowed = RefCell::new(Vec::new());
        let (verdict, asked) = given.ask_with(&index, |facts| {
            shadowed.borrow_mut().extend(index.shadowed(facts));
        });
        assert_eq!((verdict.rule.map(|rule| rule.0), asked), (decided, vec![Fact::Hello]));
        let rules: Vec<u32> = shadowed.borrow().iter().map(|(rule, _)| rule.0).collect();
        assert_eq!(rules, told, "{given:?}");
        for (rule, comes_to) in shadowed.borrow().iter() {
            let Decision::Verdict(verdict) = comes_to else { panic!("{comes_to:?}") };
            assert_eq!((verdict.rule, verdict.refuse.is_some()), (Some(*rule), rule.0 != 2));
        }
    }
}

/// A list that decides without the hello still does so with shadow rules.
#[test]
fn shadow_rules_before_the_hello() {
    let rules = [shadow(refuse().client(&["10.0.0.0/8"])), shadow(refuse()), rule()];
    let index = Rules::new(&rules);
    let told = RefCell::new(0);
    let (verdict, asked) = Given::default().ask_with(&index, |facts| {
        *told.borrow_mut() = index.shadowed(facts).count();
    });
    assert_eq!((verdict.rule, asked, told.take()), (Some(RuleId(2)), vec![], 1));
    // A shadow rule that needs the hello says so; no other rule does.
    let rules = [shadow(refuse()), shadow(refuse().sni(&["a.example"])), rule()];
    let index = Rules::new(&rules);
    assert!(!index.asks_hello());
    let facts = Facts::new(0, "192.0.2.1".parse().unwrap());
    let Decision::Verdict(verdict) = index.decide(&facts) else { panic!("blind") };
    assert_eq!(verdict.rule, Some(RuleId(2)));
    let comes_to: Vec<_> = index.shadowed(&facts).map(|(_, comes_to)| comes_to).collect();
    assert!(matches!(comes_to[0], Decision::Verdict(_)), "{comes_to:?}");
    assert_eq!(comes_to[1..], [Decision::Need(Fact::Hello)]);
    for (name, told) in [("a.example", &[0, 1][..]), ("b.example", &[0])] {
        let (_, asked) = Given::named(name).ask_with(&index, |facts| {
            let rules: Vec<u32> = index.shadowed(facts).map(|(rule, _)| rule.0).collect();
            assert_eq!(rules, told, "{name}");
        });
        assert_eq!(asked, []);
    }
    // An unknown hello does not match it, nor does a malformed name.
    let unknown = Facts { unknown: FactSet::EMPTY.with(Fact::Hello), ..facts };
    assert_eq!(index.shadowed(&unknown).count(), 1);
    let broken = Given { sni: Some(b"a..example"), ..Given::default() };
    broken.ask_with(&index, |facts| assert_eq!(index.shadowed(facts).count(), 1));
}

/// Only deciding rules determine a refusal's reason and which other names a connection may serve.
#[test]
fn shadow_rules_change_no_reason_and_no_other_name() {
    let refused = |rules: &[Rule]| Given::named("a.example").ask(&Rules::new(rules)).0.refuse;
    let ech = rule().with(|all| all.ech = Some(true));
    assert_eq!(refused(std::slice::from_ref(&ech)), Some(Refusal::Unlisted));
    assert_eq!(refused(&[shadow(rule().sni(&["b.example"])), ech]), Some(Refusal::Unlisted));
    let all = rule().needs(Needs::Hello);
    let rules = [shadow(refuse().sni(&["b.example"])), all];
    let facts = Facts::new(0, "192.0.2.1".parse().unwrap());
    assert!(Rules::new(&rules).would_take(RuleId(1), "b.example", &facts));
}

#[test]
fn coverage_of_evidence_and_shadow() {
    let covered = |rules: &[Rule]| !Rules::new(rules).coverage(rules).covered.is_empty();
    let valid = |rule: Rule, valid| rule.with(|all| all.evidence.certificate_valid = Some(valid));
    let bank = |rule: Rule| {
        rule.with(|all| {
            all.evidence.certificate_names = ["b.example".parse().unwrap()].into_iter().collect()
        })
    };
    for (wide, narrow, expected) in [
        (is_true(true, &[Dns, Connect]), is_true(true, &[Dns]), true),
        (is_true(true, &[Dns]), is_true(true, &[Dns, Connect]), false),
        (is_true(false, &[Dns]), is_true(false, &[Dns, Connect]), true),
        (is_true(false, &[Dns, Connect]), is_true(false, &[Dns]), false),
        (is_true(true, &[Dns]), is_true(false, &[Dns]), false),
        (
            is_true(true, &[Dns]),
            refuse()
                .with(|all| all.evidence.sni_verified = Some((true, [Dns].into_iter().collect()))),
            false,
        ),
        (bank(rule()), bank(rule()), true),
        (bank(rule()), valid(bank(rule()), false), false),
        (valid(bank(rule()), false), valid(bank(rule()), false), true),
        (bank(rule()), bank(refuse()), false),
        (rule(), bank(rule()), true),
        (shadow(rule()), rule(), false),
        (rule(), shadow(rule()), true),
    ] {
        assert_eq!(covered(&[wide.clone(), narrow.clone()]), expected, "{wide:?} {narrow:?}");
    }
}
