//! The list that a run has learnt: an entry for each place that may be meant, and none that allows
//! more than was tried.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use super::report::{Place, RecordedRefusal, RunRecord, Traffic};
use super::serving::{HTTP, HTTPS};
use crate::list::{AllowList, AllowedEntry};
use crate::names::Repeated;
use crate::refusals::NO_ENTRY;

impl RunRecord {
    /// The places that were reached, and the names whose ports no entry has, as a list for
    /// `--allow`. Those that `known` allows are left out.
    pub fn list(&self, known: &AllowList) -> String {
        let mut entries = BTreeMap::<String, (Traffic, Option<&str>)>::new();
        let is_new =
            |(place, _): &(&Place, &Traffic)| !known.allows(&place.name, place.port, place.is_tcp);
        for (place, traffic) in self.reached.iter().filter(is_new) {
            // Clients say no name for an address.
            let entry = match (place.is_tcp || place.is_address(), place.port) {
                (true, _) => format!("tcp {place}"),
                (false, 0 | HTTP | HTTPS) => place.name.clone(),
                (false, _) => place.to_string(),
            };
            // Who has said no name was not let out by one.
            if !allows_only(&entry, &place.name) {
                continue;
            }
            let (sum, by) = entries.entry(entry).or_default();
            *by = self.program(&place.name);
            sum.connections += traffic.connections;
            sum.bytes_received += traffic.bytes_received;
        }
        let mut list = String::new();
        for (entry, (Traffic { connections, bytes_received, .. }, by)) in entries {
            let by = by.map_or(String::new(), |by| format!(", by {by}"));
            // Writing to a String cannot fail.
            let _ = writeln!(
                list,
                "{entry:<40} # connections: {connections}, bytes received: {bytes_received}{by}"
            );
        }
        let dialled = self.refused.iter().filter(|(refusal, _)| {
            let RecordedRefusal { place: Place { name, .. }, reason, .. } = refusal;
            reason.starts_with(NO_ENTRY) && name.parse::<IpAddr>().is_err()
        });
        for (RecordedRefusal { place, .. }, Repeated { count, .. }) in dialled {
            let by = self.program(&place.name).map_or(String::new(), |by| format!(", by {by}"));
            let (entry, other) =
                (place.to_string(), format!("`tcp {place}` if it is no TLS or HTTP"));
            // Every name that is asked for has an address here.
            if !allows_only(&entry, &place.name) {
                continue;
            }
            let _ = writeln!(list, "{entry:<40} # refused: {count}, {other}{by}");
        }
        list
    }
}

/// True if a line of a list allows this name and no other. A command may make up names that are no
/// entries, or entries for others, such as `*.com`.
fn allows_only(line: &str, name: &str) -> bool {
    let list = AllowList::read(line).unwrap_or_default();
    list.entries().next().is_some_and(|entry| {
        let (AllowedEntry::Name { name: own, .. } | AllowedEntry::Tcp { host: own, .. }) = entry;
        !own.starts_with('.') && own.eq_ignore_ascii_case(name)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::names::ResolvedNames;

    /// A client that dials an address says no name: its entry is one for any protocol.
    #[test]
    fn a_learnt_list_has_what_is_new_and_an_entry() {
        let line = |to: &str, sni: Option<&str>| {
            let outcome =
                json!({"event": "end", "outcome": "spliced", "sni": sni, "destination": to});
            format!("{outcome}\n")
        };
        let lines = [
            line("192.0.2.1:443", None),
            line("[2001:db8::1]:8443", None),
            line("192.0.2.1:443", Some("a.example")),
            line("192.0.2.1:443", Some("b.example")),
        ];
        let record = RunRecord::read(lines.concat().as_bytes(), |_| ()).expect("lines");
        let list = record.list(&AllowList::read(".b.example").expect("a list"));
        let entries = list.lines().filter_map(|line| line.split(" #").next());
        let entries: Vec<&str> = entries.map(str::trim).collect();
        assert_eq!(entries, ["a.example", "tcp 192.0.2.1:443", "tcp [2001:db8::1]:8443"]);
    }

    /// DNS inside has every name while a list is learnt, and no line may allow more than was tried.
    #[test]
    fn names_that_a_command_makes_up_are_no_lines_of_a_learnt_list() {
        let made_up = [
            "*",
            "*.com",
            "*a.example",
            ".com",
            "-x..a",
            "-x.a",
            "a.1",
            "a b",
            "tcp b.example",
            "c.example#",
            "c.example:80",
            "https://d.example",
            "b.example\n.com",
            "",
        ];
        let mut names = ResolvedNames::default();
        let mut reached = String::new();
        for name in made_up.into_iter().chain(["plain.example", "_sip.x-1.example"]) {
            let (ip, _) = names.stand_ins.ask(name).expect("room");
            let once = Repeated { count: 1, first: "2026-11-29T10:00:00.000Z".into() };
            names.dialled.insert((ip, 8443).into(), once);
            for port in [443, 9443] {
                let line = json!({
                    "event": "end", "outcome": "spliced", "sni": name,
                    "destination": format!("{ip}:{port}"),
                });
                reached.push_str(&format!("{line}\n"));
            }
        }
        let mut record = RunRecord::read(reached.as_bytes(), |_| ()).expect("lines");
        record.resolve(&mut names);
        let list = record.list(&AllowList::default());
        let mut entries: Vec<_> = list.lines().filter_map(|line| line.split(" #").next()).collect();
        entries.iter_mut().for_each(|entry| *entry = entry.trim());
        let expected = ["_sip.x-1.example", "plain.example"]
            .map(|name| [name.to_owned(), format!("{name}:8443"), format!("{name}:9443")]);
        let mut expected: Vec<_> = expected.as_flattened().iter().map(String::as_str).collect();
        entries.sort_unstable();
        expected.sort_unstable();
        assert_eq!(entries, expected, "{list}");
        assert!(AllowList::read(&list).is_ok(), "{list}");
    }
}
