//! The groups of a configuration, by rule. A reload keeps the health and the load of upstreams that
//! stay as they are.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use eyelet_config::{
    Action, Balance, Config, DialSource, Originate, RuleList, SpliceUpstream, TerminateUpstream,
    UpstreamCheck,
};

use crate::group::{Group, Member};
use crate::sources::SourceAddresses;

/// The facts that make two upstreams one: whom to dial, how it is checked, whether it expects a
/// PROXY header, and from where it is dialled.
type Key = (TerminateUpstream, Option<UpstreamCheck>, bool, Vec<IpAddr>, DialSource);

/// Names whose addresses another process is told at most: a message with 64 for each has 2 MB.
const NAMES_MAX: usize = 1_000;

/// The groups of a configuration.
#[derive(Debug, Default)]
pub struct Table {
    /// By the index of their rule.
    groups: HashMap<u32, Arc<Group>>,
    /// Rules that have one, in the order of their names.
    by_name: OnceLock<Box<[u32]>>,
    members: HashMap<Key, Arc<Member>>,
    /// Local ports of the host for one source and one destination.
    ports: usize,
}

impl Table {
    /// The groups of these rules, on a host with so many local ports. Upstreams that `earlier` has
    /// keep their state.
    pub fn new(config: &Config, ports: usize, earlier: Option<&Self>) -> Self {
        let mut table = Self { ports, ..Self::default() };
        let mut by_action: HashMap<u32, Arc<Group>> = HashMap::new();
        for (rule, number) in config.rules.iter().zip(0..) {
            let known = by_action.get(&rule.action_number).cloned();
            let group = known.or_else(|| table.read(rule.action, earlier));
            let Some(group) = group else { continue };
            by_action.insert(rule.action_number, group.clone());
            table.groups.insert(number, group);
        }
        table
    }

    /// The group of a rule. `None`: its upstream is a single address that nobody checks, or is not
    /// known before the connection.
    pub fn of(&self, rule: u32) -> Option<&Arc<Group>> {
        // Most configurations have no group at all.
        if self.groups.is_empty() { None } else { self.groups.get(&rule) }
    }

    /// Returns the group of a rule of another process, by its name and number. `rules` are those
    /// that the table was made of.
    pub fn called(&self, rules: &RuleList, (rule, name): (u32, &str)) -> Option<&Arc<Group>> {
        let name_of = |rule: u32| rules.get(rule as usize).map_or("", |rule| rule.name);
        if self.groups.is_empty() {
            return None;
        }
        // Mostly the file has not changed.
        if name_of(rule) == name {
            return self.groups.get(&rule);
        }
        let by_name = self.by_name.get_or_init(|| {
            let mut rules: Box<[u32]> = self.groups.keys().copied().collect();
            rules.sort_by_key(|rule| name_of(*rule));
            rules
        });
        let found = by_name.binary_search_by(|known| name_of(*known).cmp(name)).ok()?;
        self.groups.get(&by_name[found])
    }

    /// The upstreams that are checked.
    pub fn checked(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.values().filter(|member| member.check.is_some())
    }

    /// Local ports of the host, as they were when this was made.
    pub fn ports(&self) -> usize {
        self.ports
    }

    /// All upstreams that are one of several, are checked, or are dialled from given addresses.
    pub fn members(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.values()
    }

    /// The addresses of upstreams' names that are known.
    pub fn known_addresses(&self) -> BTreeMap<String, Vec<SocketAddr>> {
        let named = self.members.values().filter(|member| member.upstream.is_named());
        let known = named.map(|member| (member.health.name.to_string(), member.known_addresses()));
        known.filter(|(_, addresses)| !addresses.is_empty()).take(NAMES_MAX).collect()
    }

    /// Takes over a name's addresses from another process, if none is known here: connections that
    /// it dialled count at the name that has theirs.
    pub fn learn(&self, known: &BTreeMap<String, Vec<SocketAddr>>) {
        for member in self.members.values() {
            if let Some(found) = known.get(&*member.health.name) {
                member.learn(found);
            }
        }
    }

    fn read(&mut self, action: &Action, earlier: Option<&Self>) -> Option<Arc<Group>> {
        let (all, balance, is_told, source) = match action {
            Action::Splice(splice) => {
                let all = [&splice.upstream].into_iter().chain(&splice.others);
                let all = all.filter_map(|upstream| match upstream {
                    SpliceUpstream::HostPort(to) => Some(TerminateUpstream::Tcp(to.clone())),
                    _ => None,
                });
                (all.collect(), &splice.balance, splice.proxy_protocol.is_some(), splice.source)
            }
            Action::Originate(Originate { requests: terminate, .. })
            | Action::Terminate(terminate) => {
                let all = [&terminate.upstream].into_iter().chain(&terminate.others).cloned();
                let is_told = terminate.proxy_protocol.is_some();
                (all.collect(), &terminate.balance, is_told, DialSource::Host)
            }
            Action::Refuse(_) => return None,
        };
        let all: Vec<TerminateUpstream> = all;
        is_group(&all, balance).then(|| {
            let members = all.into_iter().map(|upstream| {
                let (check, sources) = (balance.check.clone(), balance.sources.clone());
                self.member((upstream, check, is_told, sources, source), earlier)
            });
            Arc::new(Group::new(members.collect(), balance.by_client))
        })
    }

    fn member(&mut self, key: Key, earlier: Option<&Self>) -> Arc<Member> {
        if let Some(known) = self.members.get(&key) {
            return known.clone();
        }
        let before = earlier.and_then(|earlier| earlier.members.get(&key)).cloned();
        let member = before.unwrap_or_else(|| {
            let (upstream, check, is_told, sources, source) = key.clone();
            let sources = SourceAddresses::new(&sources, self.ports);
            let mut member = Member::new(upstream, check, is_told, sources);
            member.source = source;
            Arc::new(member)
        });
        member.sources.set_ports(self.ports);
        self.members.insert(key, member.clone());
        member
    }
}

/// True if there is something to choose from, or to check.
fn is_group(all: &[TerminateUpstream], balance: &Balance) -> bool {
    match all {
        [] => false,
        [one] => balance.check.is_some() || one.is_named() || !balance.sources.is_empty(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::SystemTime;

    use eyelet_config::Depth;

    use super::*;

    fn config(rules: &[&str]) -> Config {
        let rules = rules.iter().map(|rule| format!("[[rule]]\naction = \"splice\"\n{rule}\n"));
        let text =
            format!("[[listener]]\naddress = \"127.0.0.1:0\"\n{}", rules.collect::<String>());
        let path = Path::new("test.toml");
        match eyelet_config::parse(path, &text, Depth::Files, SystemTime::UNIX_EPOCH) {
            Ok(loaded) => loaded.config,
            Err(mistakes) => unreachable!("{mistakes:?}"),
        }
    }

    #[test]
    fn a_reload_keeps_what_stays_and_one_address_has_no_group() {
        let two = "sni = \"a.example\"\nupstream = [\"192.0.2.1:1\", \"192.0.2.2:1\"]";
        let one = "sni = \"b.example\"\nupstream = \"192.0.2.1:1\"";
        let named = "sni = \"c.example\"\nupstream = \"app.example:1\"";
        let asked = "sni = \"d.example\"\nupstream = \"{sni}:1\"";
        let checked =
            "sni = \"e.example\"\nupstream = \"192.0.2.1:1\"\nupstream_check = \"connect\"";
        let first = Table::new(&config(&[two, one, named, asked, checked]), 10, None);
        let sizes = (0..5).map(|rule| first.of(rule).map(|group| group.members.len()));
        assert_eq!(sizes.collect::<Vec<_>>(), [Some(2), None, Some(1), None, Some(1)]);
        assert_eq!(first.checked().count(), 1);
        let other = "sni = \"a.example\"\nupstream = [\"192.0.2.2:1\", \"192.0.2.3:1\"]";
        let next = Table::new(&config(&[one, other]), 10, Some(&first));
        let [before, after] = [first.of(0), next.of(1)].map(|group| group.cloned());
        let (Some(before), Some(after)) = (before, after) else { unreachable!() };
        assert!(Arc::ptr_eq(&before.members[1], &after.members[0]), "192.0.2.2 stays");
        assert_eq!(next.of(0).is_none(), next.checked().next().is_none());
    }

    #[test]
    fn a_rule_that_has_another_place_now_is_found_by_its_name() {
        let two = |name: &str| {
            let upstream = format!("upstream = [\"192.0.2.1:1\", \"{name}.example:1\"]");
            format!("name = \"{name}\"\nsni = \"{name}\"\n{upstream}")
        };
        let one = "name = \"one\"\nsni = \"one\"\nupstream = \"192.0.2.1:1\"";
        let config = config(&[&two("b"), one, &two("a"), &two("c")]);
        let table = Table::new(&config, 10, None);
        for (rule, name, expected) in [
            (0, "b", Some(0)),
            (0, "a", Some(2)),
            (7, "c", Some(3)),
            (1, "one", None),
            (0, "one", None),
            (0, "d", None),
        ] {
            let found = table.called(&config.rules, (rule, name)).map(Arc::as_ptr);
            let expected = expected.and_then(|rule| table.of(rule)).map(Arc::as_ptr);
            assert_eq!(found, expected, "{rule} {name}");
        }
    }
}
