//! Tables of rules that can never match, and the time that a long list takes.

use eyelet_policy::{Covered, ListId, Matcher, NamePattern, Rule, RuleId, Rules};

use eyelet_wire::hello::Transport;

use crate::words::{Words, from_files, refuse, rule};

/// The rules that cover the last rule of a list.
fn covering(rules: &[Rule]) -> Vec<u32> {
    let coverage = Rules::new(rules).coverage(rules);
    assert_eq!(coverage.stopped_at, None);
    let last = RuleId(u32::try_from(rules.len()).unwrap() - 1);
    match coverage.covered.as_slice() {
        [] => vec![],
        [Covered { rule, by }] if *rule == last => by.iter().map(|rule| rule.0).collect(),
        other => panic!("only the last rule of the table may be covered: {other:?}"),
    }
}

#[test]
fn rules_that_never_match_by_name() {
    for (rules, by) in [
        (vec![rule(), rule().sni(&["a.example"])], vec![0]),
        (vec![rule(), refuse()], vec![0]),
        (vec![rule().sni(&["a.example"]), refuse()], vec![]),
        (vec![rule().sni(&["a.example"]), refuse().sni(&["A.example"])], vec![0]),
        (vec![rule().sni(&["*.example"]), rule().sni(&["a.example"])], vec![0]),
        (vec![rule().sni(&["*.example"]), rule().sni(&["*.a.example"])], vec![0]),
        (vec![rule().sni(&["*.example"]), rule().sni(&["*.example"])], vec![0]),
        (vec![rule().sni(&["*.a.example"]), rule().sni(&["a.example"])], vec![]),
        (vec![rule().sni(&["*.a.example"]), rule().sni(&["*.example"])], vec![]),
        (vec![rule().sni(&["*.example"]), rule().sni(&[""])], vec![]),
        (vec![rule().sni(&[""]), rule().sni(&[""])], vec![0]),
        (
            vec![
                rule().sni(&["a.example"]),
                rule().sni(&["*.b.example"]),
                rule().sni(&["a.example", "x.b.example"]),
            ],
            vec![0, 1],
        ),
        (vec![rule().sni(&["a.example"]), rule().sni(&["a.example", "b.example"])], vec![]),
    ] {
        assert_eq!(covering(&rules), by, "{rules:#?}");
    }
}

/// The rule that has the name matches by others.
#[test]
fn names_that_earlier_rules_take() {
    let last = |rules: &[Rule]| {
        let coverage = Rules::new(rules).coverage(rules);
        let lost = coverage.lost.into_iter().map(|lost| (lost.name.to_string(), lost.by));
        (coverage.covered.len(), lost.collect::<Vec<_>>())
    };
    let both = || rule().sni(&["a.example", "b.example"]);
    let lost = |name: &str, by: &[u32]| {
        (0, vec![(name.to_owned(), by.iter().copied().map(RuleId).collect())])
    };
    for (rules, expected) in [
        (vec![rule().sni(&["a.example"]), both()], lost("a.example", &[0])),
        (vec![rule().sni(&["*.b.example"]), rule().sni(&["*.x.b.example", "c"])], {
            lost("*.x.b.example", &[0])
        }),
        (
            vec![
                rule().sni(&["a.example"]).client(&["0.0.0.0/0"]),
                rule().sni(&["a.example"]).client(&["::/0"]),
                both(),
            ],
            lost("a.example", &[0, 1]),
        ),
        (vec![rule().sni(&["a.example"]).alpn(&["h2"]), both()], (0, vec![])),
        (vec![rule().sni(&["a.example"]).client(&["10.0.0.0/8"]), both()], (0, vec![])),
        (vec![Rule { shadow: true, ..rule().sni(&["a.example"]) }, both()], (0, vec![])),
        // The whole rule is covered, which is said instead.
        (vec![rule().sni(&["*.example"]), both()], (1, vec![])),
    ] {
        assert_eq!(last(&rules), expected, "{rules:#?}");
    }
}

#[test]
fn rules_that_never_match_by_their_other_matchers() {
    let destination = |net, port| rule().destination(&[(net, port)]);
    let over = |transport| rule().with(|all| all.transport = Some(transport));
    for (rules, by) in [
        (
            vec![rule().client(&["10.0.0.0/8"]), rule().client(&["10.1.0.0/16"]).sni(&["a.b"])],
            vec![0],
        ),
        (vec![rule().client(&["10.1.0.0/16"]), rule().client(&["10.0.0.0/8"])], vec![]),
        (
            vec![rule().client(&["10.0.0.0/9", "10.128.0.0/9"]), rule().client(&["10.0.0.0/8"])],
            vec![0],
        ),
        (vec![rule().client(&["10.0.0.0/8"]), rule()], vec![]),
        (vec![over(Transport::Quic), rule()], vec![]),
        (vec![rule(), over(Transport::Quic)], vec![0]),
        (vec![over(Transport::Quic), over(Transport::Quic)], vec![0]),
        (vec![over(Transport::Quic), over(Transport::Tcp)], vec![]),
        (vec![destination("10.0.0.0/8", None), destination("10.0.0.1/32", Some(443))], vec![0]),
        (vec![destination("10.0.0.0/8", Some(80)), destination("10.0.0.1/32", Some(443))], vec![]),
        (vec![destination("10.0.0.0/8", Some(80)), destination("10.0.0.1/32", None)], vec![]),
        // An unknown destination passes the first rule, and the second refuses it.
        (
            vec![destination("10.0.0.0/8", None), refuse().destination(&[("10.0.0.1/32", None)])],
            vec![],
        ),
        (
            vec![
                rule().with(|all| all.listeners = [0, 1].into_iter().collect()),
                rule().with(|all| all.listeners = [1].into_iter().collect()),
            ],
            vec![0],
        ),
        (vec![rule().alpn(&["h2", "x"]), rule().alpn(&["h2"])], vec![0]),
        (vec![rule().alpn(&["h2"]), rule().alpn(&["h2", "x"])], vec![]),
        (
            vec![
                rule().with(|all| all.tls_version_max = Some(0x303)),
                rule().with(|all| all.tls_version_max = Some(0x302)),
            ],
            vec![0],
        ),
        (
            vec![
                rule().with(|all| all.tls_version_max = Some(0x302)),
                rule().with(|all| all.tls_version_max = Some(0x303)),
            ],
            vec![],
        ),
        (
            vec![rule().with(|all| all.ech = Some(true)), rule().with(|all| all.ech = Some(false))],
            vec![],
        ),
        (vec![rule(), rule().with(|all| all.sni_malformed = true)], vec![]),
        (
            vec![
                rule().with(|all| all.sni_malformed = true),
                rule().with(|all| {
                    all.sni_malformed = true;
                    all.ech = Some(true)
                }),
            ],
            vec![0],
        ),
    ] {
        assert_eq!(covering(&rules), by, "{rules:#?}");
    }
}

/// A file may change, so only rules that name the same one cover each other.
#[test]
fn rules_that_never_match_by_a_file() {
    let sni = |ids: &[u16]| Rule { sni_lists: ids.iter().copied().map(ListId).collect(), ..rule() };
    let client = |ids: &[u16]| {
        let lists = ids.iter().map(|id| (ListId(*id), None));
        rule().with(|all| all.from_files = from_files(Matcher::Client, lists))
    };
    let from_file = |matcher, id, port| {
        rule().with(|all| all.from_files = from_files(matcher, [(ListId(id), port)]))
    };
    let connect = |id, port| from_file(Matcher::Connect, id, port);
    let targets =
        |text: &str| rule().with(|all| all.connect = [text.parse().unwrap()].into_iter().collect());
    let to = |id, port| from_file(Matcher::Destination, id, port);
    let nets = |rule: Rule, net| rule.client(&[net]);
    for (rules, by) in [
        (vec![sni(&[0]), sni(&[0])], vec![0]),
        (vec![sni(&[0]), sni(&[1])], vec![]),
        (vec![sni(&[0, 1]), sni(&[1])], vec![0]),
        (vec![sni(&[0]), sni(&[1]), sni(&[0, 1])], vec![0, 1]),
        (vec![sni(&[0]), sni(&[0, 1])], vec![]),
        (vec![rule(), sni(&[0])], vec![0]),
        (vec![sni(&[0]), rule()], vec![]),
        (vec![sni(&[0]), rule().sni(&["a.x"])], vec![]),
        (vec![rule().sni(&["*.x"]), sni(&[0])], vec![]),
        (vec![sni(&[0]), sni(&[0]).sni(&["a.x"])], vec![]),
        (vec![rule().sni(&["*.x"]), sni(&[0]), sni(&[0]).sni(&["a.x"])], vec![0, 1]),
        (vec![nets(sni(&[0]), "10.0.0.0/8"), nets(sni(&[0]), "10.1.0.0/16")], vec![0]),
        (vec![nets(sni(&[0]), "0.0.0.0/0"), nets(sni(&[0]), "::/0"), sni(&[0])], vec![0, 1]),
        (vec![client(&[0]), client(&[0])], vec![0]),
        (vec![client(&[0]), client(&[1])], vec![]),
        (vec![client(&[0, 1]), client(&[0])], vec![0]),
        (vec![client(&[0]), rule()], vec![]),
        (vec![rule(), client(&[0])], vec![0]),
        (vec![nets(client(&[0]), "10.0.0.0/8"), nets(rule(), "10.1.0.0/16")], vec![0]),
        (vec![nets(rule(), "10.0.0.0/8"), nets(client(&[0]), "10.1.0.0/16")], vec![]),
        (vec![nets(client(&[0]), "10.0.0.0/8"), nets(client(&[0]), "10.1.0.0/16")], vec![0]),
        // Together they take every client, whatever is in the file.
        (vec![nets(client(&[0]), "0.0.0.0/0"), nets(rule(), "::/0"), client(&[1])], vec![0, 1]),
        (vec![nets(rule(), "0.0.0.0/1"), nets(rule(), "::/0"), client(&[1])], vec![]),
        (vec![connect(0, None), connect(0, Some(443))], vec![0]),
        (vec![connect(0, Some(443)), connect(0, None)], vec![]),
        (vec![connect(0, Some(443)), connect(1, Some(443))], vec![]),
        (vec![targets("*:443"), connect(0, Some(443))], vec![0]),
        (vec![targets("*:443"), connect(0, None)], vec![]),
        (vec![connect(0, None), targets("a.x:443")], vec![]),
        (vec![to(2, None), to(2, Some(443))], vec![0]),
        (vec![to(2, Some(443)), to(2, None)], vec![]),
        (vec![to(2, None), rule().destination(&[("10.0.0.1/32", None)])], vec![]),
        (
            vec![
                rule().destination(&[("0.0.0.0/0", None)]),
                rule().destination(&[("::/0", None)]),
                to(2, None),
            ],
            vec![],
        ),
        // An unknown destination passes the first rule, and the second refuses it.
        (vec![to(2, None), Rule { refuse: true, ..to(2, None) }], vec![]),
    ] {
        assert_eq!(covering(&rules), by, "{rules:#?}");
    }
}

#[test]
fn rules_that_several_cover_together_by_address() {
    let client = |net| rule().client(&[net]);
    let shadow = |rule: Rule| Rule { shadow: true, ..rule };
    let (low, high, whole) = ("10.0.0.0/9", "10.128.0.0/9", "10.0.0.0/8");
    let destination = |net, port| rule().destination(&[(net, port)]);
    for (rules, by) in [
        (vec![client(low), client(high), client(whole)], vec![0, 1]),
        (vec![client(low), client("10.192.0.0/10"), client(whole)], vec![]),
        (vec![client(low), client("::1/128"), client(high), client(whole)], vec![0, 2]),
        (vec![client(low), shadow(rule().client(&[high])), client(whole)], vec![]),
        (vec![client("0.0.0.0/0"), client("::/0"), rule()], vec![0, 1]),
        (vec![client("0.0.0.0/0"), client("::/1"), rule()], vec![]),
        (vec![client(low), client(high), refuse().client(&[whole])], vec![0, 1]),
        (
            vec![
                client(low).sni(&["*.a"]),
                client(high).sni(&["b.a"]),
                client(whole).sni(&["b.a"]),
            ],
            vec![0, 1],
        ),
        (
            vec![
                client(low).sni(&["*.a"]),
                client(high).sni(&["b.a"]),
                client(whole).sni(&["*.a"]),
            ],
            vec![],
        ),
        (
            vec![
                destination(low, None),
                destination(high, Some(443)),
                destination(whole, Some(443)),
            ],
            vec![0, 1],
        ),
        (
            vec![destination(low, None), destination(high, Some(443)), destination(whole, None)],
            vec![],
        ),
        (vec![destination(low, None), destination(high, None), client(whole)], vec![]),
        // Connections without a destination pass both.
        (vec![destination("0.0.0.0/0", None), destination("::/0", None), rule()], vec![]),
        (
            vec![
                destination(low, None),
                destination(high, None),
                refuse().destination(&[(whole, None)]),
            ],
            vec![],
        ),
        // Halves of two matchers do not make a whole.
        (
            vec![
                client(low).destination(&[(whole, None)]),
                client(whole).destination(&[(low, None)]),
                client(whole).destination(&[(whole, None)]),
            ],
            vec![],
        ),
    ] {
        assert_eq!(covering(&rules), by, "{rules:#?}");
    }
}

#[test]
fn a_hundred_thousand_names_are_analysed_by_look_ups() {
    let mut rules: Vec<Rule> = (0..100_000)
        .map(|n| Rule {
            sni: vec![NamePattern::Exact(format!("host{n}.example").into())],
            ..Rule::default()
        })
        .collect();
    rules.push(rule().sni(&["host77.example"]));
    let coverage = Rules::new(&rules).coverage(&rules);
    let expected = Covered { rule: RuleId(100_000), by: vec![RuleId(77)] };
    assert_eq!((coverage.covered, coverage.stopped_at), (vec![expected], None));
}
