//! Compares the indexed decision with a walker that looks at every rule in turn, for random lists.
//! The walker is written from the manual and shares no code with the index.

use std::sync::Arc;

use eyelet_policy::{
    EvidenceKind, Fact, Facts, FileList, List, ListId, Lists, Matcher, NameList, NamePattern,
    Needs, NetSet, Rule, RuleId, Rules,
};
use eyelet_wire::hello::{HelloName, Transport};
use proptest::prelude::*;

use crate::words::{Given, Words, refuse, rule};

/// A rule as the walker reads it, with its compiled form.
#[derive(Clone, Debug)]
struct Written {
    rule: Rule,
    sni: Vec<NamePattern>,
    client: Option<&'static str>,
    client_list: bool,
    destination: Option<&'static str>,
    destination_list: bool,
    listener: Option<u16>,
    transport: Option<Transport>,
    malformed: bool,
    version_max: Option<u16>,
    ech: Option<bool>,
    alpn: Vec<&'static str>,
    ja4: Option<&'static str>,
    sni_verified: Option<bool>,
}

const NAMES: [&str; 6] = ["a.x", "b.x", "a.b.x", "c.a.b.x", "x", "a.y"];
const PATTERNS: [&str; 8] = ["a.x", "b.x", "a.b.x", "*.x", "*.b.x", "*.a.b.x", "", "a.y"];
/// The entries of two files with names, which are the lists 0 and 1. List 2 has networks.
const FILES: [&[&str]; 2] = [&["a.x", ".b.x"], &["*.x", "a.y", "A.B.x"]];
const FILE_NETS: [&str; 2] = ["10.1.0.0/16", "::/64"];
const NETS_LIST: ListId = ListId(2);
const CLIENTS: [&str; 3] = ["10.0.0.1", "10.1.0.1", "::1"];
const NETS: [&str; 6] =
    ["10.0.0.0/8", "10.1.0.0/16", "::/0", "10.0.0.1/32", "0.0.0.0/0", "10.0.0.0/16"];
const ALPN: [&str; 2] = ["h2", "x"];
const JA4: [&str; 2] = ["one", "two"];

fn transport() -> impl Strategy<Value = Transport> {
    prop::sample::select(&[Transport::Tcp, Transport::Quic][..])
}

prop_compose! {
    fn written()(
        sni in prop::collection::vec(prop::sample::select(&PATTERNS[..]), 0..4),
        files in prop::collection::btree_set(0..2_u16, 0..2),
        (client_list, destination_list) in
            (prop::bool::weighted(0.15), prop::bool::weighted(0.1)),
        by_address in (
            prop::option::weighted(0.3, prop::sample::select(&NETS[..])),
            prop::option::weighted(0.15, prop::sample::select(&NETS[..])),
            prop::option::weighted(0.2, 0..2_u16),
            prop::option::weighted(0.15, transport()),
        ),
        malformed in prop::bool::weighted(0.15),
        version_max in prop::option::weighted(0.15, 0x0302..=0x0304_u16),
        ech in prop::option::weighted(0.15, any::<bool>()),
        alpn in prop::collection::vec(prop::sample::select(&ALPN[..]), 0..2),
        ja4 in prop::option::weighted(0.15, prop::sample::select(&JA4[..])),
        sni_verified in prop::option::weighted(0.15, any::<bool>()),
        shadow in prop::bool::weighted(0.15),
        action in prop::sample::select(&[0, 1, 2, 3][..]),
    ) -> Written {
        let (client, destination, listener, transport) = by_address;
        let mut rule = if action == 0 { refuse() } else { rule() }.sni(&sni).alpn(&alpn);
        rule.needs = if action == 1 { Needs::Hello } else { Needs::Nothing };
        if let Some(net) = client { rule = rule.client(&[net]); }
        if let Some(net) = destination { rule = rule.destination(&[(net, None)]); }
        rule = rule.with(|all| all.listeners = listener.into_iter().collect());
        rule = rule.with(|all| all.transport = transport);
        rule = rule.with(|all| {
            (all.sni_malformed, all.tls_version_max, all.ech) = (malformed, version_max, ech);
        });
        if let Some(ja4) = ja4 { rule = rule.ja4(ja4); }
        if let Some(wanted) = sni_verified {
            let by = [EvidenceKind::Dns].into_iter().collect();
            rule = rule.with(|all| all.evidence.sni_verified = Some((wanted, by)));
        }
        let of_client = client_list.then_some((Matcher::Client, NETS_LIST, None));
        let to = destination_list.then_some((Matcher::Destination, NETS_LIST, Some(443)));
        rule = rule.with(|all| all.from_files = of_client.into_iter().chain(to).collect());
        rule.sni_lists = files.into_iter().map(ListId).collect();
        rule.shadow = shadow;
        let sni = rule.sni.clone();
        Written {
            rule, sni, client, client_list, destination, destination_list, listener, transport,
            malformed, version_max, ech, alpn, ja4, sni_verified,
        }
    }
}

prop_compose! {
    fn connection()(
        sni in prop::option::weighted(0.9, prop::sample::select(&NAMES[..])),
        broken in prop::bool::weighted(0.1),
        client in prop::sample::select(&CLIENTS[..]),
        destination in prop::option::weighted(0.8, prop::sample::select(&CLIENTS[..])),
        (listener, transport) in (0..2_u16, transport()),
        version_max in 0x0302..=0x0304_u16,
        ech in any::<bool>(),
        alpn in prop::option::of(prop::sample::select(&ALPN[..])),
        ja4 in prop::option::weighted(0.9, prop::sample::select(&JA4[..])),
        dns in prop::option::weighted(0.8, any::<bool>()),
    ) -> (Option<&'static [u8]>, Given<'static>, Option<&'static str>, Option<&'static str>) {
        let sni = if broken { Some(&b"a..x"[..]) } else { sni.map(str::as_bytes) };
        let given = Given { listener, client, sni, version_max, ech, ja4, dns, ..Given::default() };
        let given = Given { transport, ..given };
        (sni, given, destination, alpn)
    }
}

fn lists(patterns: &[NamePattern], sni: Option<&[u8]>) -> bool {
    let name = sni.map(|name| std::str::from_utf8(name).unwrap());
    patterns.iter().any(|pattern| match (pattern, name) {
        (NamePattern::Absent, name) => name.is_none(),
        (NamePattern::Exact(listed), Some(name)) => **listed == *name,
        (NamePattern::Suffix(suffix), Some(name)) => name.ends_with(&format!(".{suffix}")),
        (_, None) => false,
    })
}

/// True if a file lists the name: each entry is compared as the manual says.
fn is_in_file(file: ListId, sni: Option<&[u8]>) -> bool {
    let Some(name) = sni.map(|name| std::str::from_utf8(name).unwrap()) else { return false };
    FILES[usize::from(file.0)].iter().map(|entry| entry.to_lowercase()).any(|entry| {
        match (entry.strip_prefix('*'), entry.strip_prefix('.')) {
            (Some(below), _) => name.ends_with(below),
            (None, Some(itself)) => name == itself || name.ends_with(&entry),
            (None, None) => name == entry,
        }
    })
}

fn lists_of_files() -> Lists {
    let mut lists = Lists::default();
    let named = FILES.iter().map(|entries| {
        let mut names = NameList::default();
        entries.iter().for_each(|entry| names.add(entry).unwrap());
        List::Names(Arc::new(names))
    });
    let nets = FILE_NETS.iter().map(|net| net.parse().unwrap()).collect::<NetSet>();
    for list in named.chain([List::Nets(Arc::new(nets))]) {
        lists.add(FileList { file: Some("file".into()), fingerprint: 0, list }).unwrap();
    }
    lists
}

/// True if any of `nets` has the address. `None`: unknown.
fn within_any(nets: impl Iterator<Item = &'static str>, address: Option<&str>) -> Option<bool> {
    let found: Vec<Option<bool>> = nets.map(|net| within(net, address)).collect();
    if found.contains(&None) { None } else { Some(found.contains(&Some(true))) }
}

/// `None`: unknown.
fn within(net: &str, address: Option<&str>) -> Option<bool> {
    let net: ipnet::IpNet = net.parse().unwrap();
    address.map(|address| net.contains(&address.parse::<std::net::IpAddr>().unwrap()))
}

/// The verdict by walking, and the shadow rules before it. The first rule that matches decides. The
/// hello counts only from the first rule on that needs it. Shadow rules need it for themselves
/// only.
fn walk(rules: &[Written], given: &Given<'_>, broken: bool) -> (Option<u32>, Vec<u32>) {
    let (mut peeked, mut shadowed) = (false, Vec::new());
    for (id, written) in (0..).zip(rules) {
        let nets = |net: Option<&'static str>, list: bool| {
            net.into_iter().chain(FILE_NETS.into_iter().filter(move |_| list))
        };
        let closed = |known: Option<bool>| known.unwrap_or(written.rule.refuse);
        let destination = given.destination.map(|d| d.rsplit_once(':').unwrap().0);
        let destination = destination.map(|d| d.trim_matches(['[', ']']));
        let before = written.listener.is_none_or(|listener| listener == given.listener)
            && written.transport.is_none_or(|transport| transport == given.transport)
            && (written.client.is_none() && !written.client_list
                || within_any(nets(written.client, written.client_list), Some(given.client))
                    == Some(true))
            && (written.destination.is_none() && !written.destination_list
                || closed(within_any(
                    nets(written.destination, written.destination_list),
                    destination,
                )));
        if !before {
            continue;
        }
        let asks = written.rule.is_named()
            || written.malformed
            || written.version_max.is_some()
            || written.ech.is_some()
            || !written.alpn.is_empty()
            || written.ja4.is_some()
            || written.sni_verified.is_some()
            || written.rule.needs != Needs::Nothing;
        peeked |= asks && !written.rule.shadow;
        let readable = if peeked || asks { written.malformed == broken } else { true };
        let in_file = |file: &ListId| is_in_file(*file, given.sni);
        let listed = lists(&written.sni, given.sni) || written.rule.sni_lists.iter().any(in_file);
        let sni = !written.rule.is_named() || (!broken && listed);
        let dns = if broken || given.sni.is_none() { Some(false) } else { given.dns };
        let offered = |name: &&str| given.alpn.contains(&name.as_bytes());
        if readable
            && sni
            && written.version_max.is_none_or(|max| given.version_max <= max)
            && written.ech.is_none_or(|ech| ech == given.ech)
            && (written.alpn.is_empty() || written.alpn.iter().any(offered))
            && written.ja4.is_none_or(|ja4| closed(given.ja4.map(|known| known == ja4)))
            && written.sni_verified.is_none_or(|wanted| closed(dns.map(|known| known == wanted)))
        {
            match written.rule.shadow {
                true => shadowed.push(id),
                false => return (Some(id), shadowed),
            }
        }
    }
    (None, shadowed)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn the_index_decides_as_the_walker_does(
        rules in prop::collection::vec(written(), 0..12),
        (sni, given, destination, alpn) in connection(),
    ) {
        let destination = destination.map(|ip| match ip.contains(':') {
            true => format!("[{ip}]:443"),
            false => format!("{ip}:443"),
        });
        let offered: Vec<&[u8]> = alpn.iter().map(|name| name.as_bytes()).collect();
        let given = Given { destination: destination.as_deref(), alpn: &offered, ..given };
        let list: Vec<Rule> = rules.iter().map(|written| written.rule.clone()).collect();
        let index = Rules::with_lists(&list, lists_of_files());
        let (walked, shadowed) = walk(&rules, &given, sni == Some(b"a..x"));
        let (verdict, asked) = given.ask_with(&index, |facts| {
            let misses: Vec<RuleId> = index.misses(facts).map(|miss| miss.rule).collect();
            let end = walked.unwrap_or(u32::try_from(list.len()).unwrap());
            let missed = (0..end).filter(|id| !shadowed.contains(id));
            assert_eq!(misses, missed.map(RuleId).collect::<Vec<_>>());
            let told: Vec<u32> = index.shadowed(facts).map(|(rule, _)| rule.0).collect();
            assert_eq!(told, shadowed);
        });
        prop_assert_eq!(verdict.rule, walked.map(RuleId));
        let acting: Vec<Rule> = list.iter().filter(|rule| !rule.shadow).cloned().collect();
        let (alone, alone_asked) = given.ask(&Rules::with_lists(&acting, lists_of_files()));
        prop_assert_eq!((alone.refuse, &alone_asked), (verdict.refuse, &asked), "shadows act");
        prop_assert_eq!(verdict.refuse.is_some(), walked.is_none_or(|id| list[id as usize].refuse));
        prop_assert!(index.asks_hello() || !asked.contains(&Fact::Hello));
        let coverage = index.coverage(&list);
        for covered in coverage.covered {
            prop_assert_ne!(verdict.rule, Some(covered.rule));
        }
        for lost in coverage.lost.into_iter().filter(|lost| verdict.rule == Some(lost.rule)) {
            prop_assert!(!lists(&[lost.name], given.sni));
        }
    }

    #[test]
    fn a_fact_given_early_changes_nothing(
        rules in prop::collection::vec(written(), 0..8),
        (_, given, _, _) in connection(),
    ) {
        let list: Vec<Rule> = rules.iter().map(|written| written.rule.clone()).collect();
        let index = Rules::with_lists(&list, lists_of_files());
        let spelled = given.spelled();
        let hello = given.hello(&spelled);
        let mut facts = Facts::new(given.listener, given.client.parse().unwrap());
        facts.transport = given.transport;
        facts.hello = Some(hello);
        facts.ja4 = given.ja4;
        facts.dns_agrees = given.dns;
        for fact in [Fact::Destination, Fact::Ja4, Fact::DnsEvidence] {
            facts.unknown = facts.unknown.with(fact);
        }
        let eyelet_policy::Decision::Verdict(all_known) = index.decide(&facts) else {
            panic!("nothing is left to ask for")
        };
        let (verdict, _) = given.ask(&index);
        prop_assert_eq!(verdict, all_known);
        prop_assert!(!matches!(hello.name, HelloName::Malformed(_)) || given.sni == Some(b"a..x"));
    }
}

proptest! {
    /// Every look-up in a list gives what comparing each entry gives, and names an entry that
    /// matches.
    #[test]
    fn a_list_matches_as_its_entries_do(
        entries in prop::collection::vec("(\\*?\\.)?[abC](\\.[abC]){0,3}", 0..30),
        name in "[abc](\\.[abc]){0,4}",
    ) {
        let matches = |entry: &str| match (entry.strip_prefix('*'), entry.strip_prefix('.')) {
            (Some(below), _) => name.ends_with(below),
            (None, Some(itself)) => name == itself || name.ends_with(entry),
            (None, None) => name == entry,
        };
        let mut list = NameList::default();
        entries.iter().for_each(|entry| list.add(entry).unwrap());
        list.shrink();
        let entries: Vec<String> = entries.iter().map(|entry| entry.to_lowercase()).collect();
        prop_assert_eq!(list.contains(&name), entries.iter().any(|entry| matches(entry)));
        if let Some(found) = list.find(&name).map(|found| found.to_string()) {
            prop_assert!(entries.contains(&found) && matches(&found), "{}", found);
        }
    }
}
