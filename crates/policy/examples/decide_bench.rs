//! Nanoseconds per decision with 10, 1,000 and 100,000 names, exact and wildcard, one rule each,
//! and with as many names in one list from a file.
//! `cargo run --release -p eyelet-policy --example decide_bench`.

use std::hint::black_box;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use eyelet_policy::{Facts, FileList, List, Lists, NameList, NamePattern, Rule, Rules};
use eyelet_wire::hello::HelloFacts;

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{:>8} {:>9} {:>12} {:>12}", "names", "kind", "ns hit", "ns miss")?;
    for names in [10, 1_000, 100_000] {
        for kind in ["exact", "wildcard", "file"] {
            let wildcard = kind == "wildcard";
            let rules = match kind {
                "file" => listed(names),
                _ => Rules::new(&(0..names).map(|n| rule(n, wildcard)).collect::<Vec<Rule>>()),
            };
            let asked: Vec<String> = (0..HELLOS)
                .map(|n| {
                    // 7919 is prime: the names are spread over the whole table, so that it is cold.
                    let host = format!("host{}.customers.example", n * 7919 % names);
                    if wildcard { format!("www.eu.{host}") } else { host }
                })
                .collect();
            let missed: Vec<String> =
                (0..HELLOS).map(|n| format!("www.eu.nobody{n}.elsewhere.example")).collect();
            let (hit, miss) = (decide_ns(&rules, &asked), decide_ns(&rules, &missed));
            writeln!(out, "{names:>8} {kind:>9} {hit:>12.1} {miss:>12.1}")?;
        }
    }
    Ok(())
}

fn rule(n: usize, wildcard: bool) -> Rule {
    let name = format!("host{n}.customers.example").into();
    let pattern = if wildcard { NamePattern::Suffix(name) } else { NamePattern::Exact(name) };
    Rule { sni: vec![pattern], ..Rule::default() }
}

/// One rule, for names in a list.
fn listed(names: usize) -> Rules {
    let mut list = NameList::default();
    for n in 0..names {
        // No such name is malformed.
        let _ = list.add(&format!(".host{n}.customers.example"));
    }
    list.shrink();
    let list = List::Names(Arc::new(list));
    let mut lists = Lists::default();
    let id = lists.add(FileList { file: Some("allow.txt".into()), fingerprint: 0, list });
    Rules::with_lists(&[Rule { sni_lists: id.into_iter().collect(), ..Rule::default() }], lists)
}

/// The best of several rounds: the time of a decision when nothing else runs.
fn decide_ns(rules: &Rules, names: &[String]) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for name in names {
            let mut facts = Facts::new(0, IpAddr::V4(Ipv4Addr::LOCALHOST));
            facts.hello = Some(HelloFacts::named(Some(name)));
            black_box(rules.decide(black_box(&facts)));
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / names.len() as f64);
    }
    best
}

/// Different names in a round: more than the first-level cache holds.
const HELLOS: usize = 4_096;

/// Rounds; the best one counts.
const ROUNDS: usize = 50;
