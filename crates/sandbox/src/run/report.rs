//! The record of a run: the places that the command has reached, and those that were refused, from
//! the access lines of its connections and from its questions to DNS.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::io::{self, BufRead};

use serde_json::{Value, json};

use super::serving::{HTTP, HTTPS, UNLISTED};
use crate::names::ResolvedNames;

/// Places and reasons that are told apart. A command that dials more has made them up.
const PLACES_MAX: usize = 16_384;
/// Lines of the summary for each kind.
const LINES_MAX: usize = 20;
/// The reason of a name that DNS does not have inside.
const NOT_LISTED: &str = "not on the list";

/// A name and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// The name that the client said, or the address that it dialled.
    name: String,
    /// 0 if it is not known.
    port: u16,
    /// True if a `tcp` entry let it pass.
    is_tcp: bool,
}

/// The connections to a place.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    connections: u64,
    bytes_sent: u64,
    bytes_received: u64,
    /// True if no list has it.
    is_unlisted: bool,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { name, port, .. } if name.contains(':') => write!(f, "[{name}]:{port}"),
            Self { name, port, .. } => write!(f, "{name}:{port}"),
        }
    }
}

/// A record of the connections and look-ups of a run.
#[derive(Debug, Default)]
pub struct RunRecord {
    reached: BTreeMap<Place, Traffic>,
    refused: BTreeMap<(Place, String), u64>,
    /// Addresses and names that were dialled.
    dialled: BTreeSet<String>,
    /// The program that asked for a name first, if it was found.
    programs: BTreeMap<String, Option<String>>,
    /// Connections to places beyond [`PLACES_MAX`].
    more: u64,
}

/// The end of a run.
pub struct RunEnd {
    /// The exit status.
    pub status: u8,
    /// Milliseconds from the command's start to its end.
    pub duration_ms: u64,
    /// True if nothing was refused that a list would have refused.
    pub is_dry: bool,
}

impl RunRecord {
    /// Reads access lines until their writer has ended, and tells of each.
    ///
    /// # Errors
    /// The lines cannot be read.
    pub fn read(lines: impl BufRead, tell: impl Fn(&Value)) -> io::Result<Self> {
        let mut record = Self::default();
        record.follow(lines, tell)?;
        Ok(record)
    }

    /// Reads more access lines, in the same way.
    ///
    /// # Errors
    /// As [`RunRecord::read`].
    pub fn follow(&mut self, lines: impl BufRead, tell: impl Fn(&Value)) -> io::Result<()> {
        for line in lines.lines() {
            if let Ok(line) = serde_json::from_str::<Value>(&line?)
                && let Some(event) = self.note(&line)
            {
                tell(&event);
            }
        }
        Ok(())
    }

    /// Notes an access line. Returns it as an event, if a connection or a request has ended.
    fn note(&mut self, line: &Value) -> Option<Value> {
        let text = |field: &str| line.get(field).and_then(Value::as_str);
        let number = |field: &str| line.get(field).and_then(Value::as_u64).unwrap_or(0);
        let outcome = text("outcome")?;
        match (text("event"), text("connect")) {
            // The end follows, or the requests have told of it.
            (Some("decided"), _) | (Some("end"), Some(_)) => return None,
            // The end of its connection has its bytes.
            (Some("request"), None) if !matches!(outcome, "refused" | "failed") => return None,
            _ => {}
        }
        // A request says its host and port, a client of TLS only its name.
        let target = text("connect").or(text("destination")).unwrap_or_default();
        let (host, port) = target.rsplit_once(':').unwrap_or((target, ""));
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let rule = text("rule").unwrap_or_default();
        let tcp = rule.strip_prefix("tcp ").and_then(|entry| entry.rsplit_once(':'));
        let name = text("sni").or(tcp.map(|(host, _)| host)).unwrap_or(host).to_owned();
        let port = port.parse().unwrap_or(0);
        let event = json!({
            "event": "connection", "name": name, "port": port, "outcome": outcome,
            "reason": text("reason"), "bytes_sent": number("bytes_to_upstream"),
            "bytes_received": number("bytes_to_client"),
        });
        let place = Place { name, port, is_tcp: tcp.is_some() };
        let has_room = |places: usize| places < PLACES_MAX;
        if has_room(self.dialled.len()) {
            self.dialled.extend([host.to_owned(), place.name.clone()]);
        }
        if matches!(outcome, "refused" | "failed") {
            let key = (place, text("reason").unwrap_or("unknown").to_owned());
            let may_add = has_room(self.refused.len());
            match self.refused.get_mut(&key) {
                Some(times) => *times += 1,
                None if may_add => drop(self.refused.insert(key, 1)),
                None => self.more += 1,
            }
            return Some(event);
        }
        // A place that was reached is allowed, and they are few: refusals take no room of theirs.
        if !has_room(self.reached.len()) && !self.reached.contains_key(&place) {
            self.more += 1;
            return Some(event);
        }
        let traffic = self.reached.entry(place).or_default();
        traffic.connections += 1;
        traffic.bytes_sent += number("bytes_to_upstream");
        traffic.bytes_received += number("bytes_to_client");
        traffic.is_unlisted = rule.starts_with(UNLISTED);
        Some(event)
    }

    /// Tells names that were only looked up from those that were dialled, gives stand-ins their
    /// names, and takes the programs that asked for them.
    pub fn resolve(&mut self, names: &mut ResolvedNames) {
        for dialled in &self.dialled {
            match dialled.parse() {
                Ok(ip) => drop(names.stand_ins.dialled(ip)),
                Err(_) => names.stand_ins.note_dialled(dialled),
            }
        }
        self.programs = std::mem::take(&mut names.programs);
        let refused = std::mem::take(&mut self.refused);
        for ((mut place, reason), times) in refused {
            let ip = place.name.parse().ok();
            if let Some(name) = ip.and_then(|ip| names.stand_ins.dialled(ip)) {
                place.name = name.to_owned();
            }
            *self.refused.entry((place, reason)).or_default() += times;
        }
    }

    /// The program that asked for a name first.
    fn program(&self, name: &str) -> Option<&str> {
        self.programs.get(name)?.as_deref()
    }

    /// The places that were reached, as a list for `--allow`.
    pub fn list(&self) -> String {
        let mut entries = BTreeMap::<String, (Traffic, Option<&str>)>::new();
        for (place, traffic) in &self.reached {
            let entry = match (place.is_tcp, place.port) {
                (true, _) => format!("tcp {place}"),
                (false, 0 | HTTP | HTTPS) => place.name.clone(),
                (false, _) => place.to_string(),
            };
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
        list
    }

    /// The lines of the summary.
    pub fn summary(&self, names: &ResolvedNames, is_dry: bool) -> Vec<String> {
        let Traffic { connections, bytes_sent, bytes_received, .. } = self.sum();
        let count = self.reached.keys().map(|place| &place.name).collect::<BTreeSet<_>>().len();
        let mut lines = vec![format!(
            "connections: {connections}, names: {count}; bytes received: {bytes_received}, \
             sent: {bytes_sent}"
        )];
        if is_dry {
            let unlisted = self.reached.iter().filter(|(_, traffic)| traffic.is_unlisted);
            let unlisted = unlisted.map(|(place, traffic)| {
                format!("would be refused: {place}, {}", times(traffic.connections))
            });
            cut(&mut lines, unlisted.collect());
        }
        let refused = self.refused.iter().map(|((place, reason), count)| {
            format!("refused: {place}: {reason}, {}", times(*count))
        });
        cut(&mut lines, refused.collect());
        let unknown = names.refused.iter();
        let unknown = unknown
            .map(|(name, count)| format!("refused: {name}: {NOT_LISTED}, {}", times(*count)));
        cut(&mut lines, unknown.collect());
        let undialled = names.stand_ins.undialled().count();
        if undialled > 0 {
            lines.push(format!("names that were looked up and never dialled: {undialled}"));
        }
        let left_out = self.more + names.more;
        if left_out > 0 {
            lines.push(format!(
                "connections and look-ups that are not listed, too many: {left_out}"
            ));
        }
        lines
    }

    fn sum(&self) -> Traffic {
        let mut sum = Traffic::default();
        for traffic in self.reached.values() {
            sum.connections += traffic.connections;
            sum.bytes_sent += traffic.bytes_sent;
            sum.bytes_received += traffic.bytes_received;
        }
        sum
    }

    /// The report as JSON.
    pub fn json(&self, names: &ResolvedNames, end: &RunEnd) -> Value {
        let reached = self.reached.iter().map(|(Place { name, port, is_tcp }, traffic)| {
            json!({
                "name": name, "program": self.program(name), "port": port, "tcp": is_tcp,
                "listed": !traffic.is_unlisted,
                "connections": traffic.connections, "bytes_sent": traffic.bytes_sent,
                "bytes_received": traffic.bytes_received,
            })
        });
        let refused = self.refused.iter().map(|((Place { name, port, .. }, reason), count)| {
            json!({
                "name": name, "program": self.program(name), "port": port, "reason": reason,
                "count": count,
            })
        });
        let unknown = names.refused.iter().map(|(name, count)| {
            json!({
                "name": name, "program": self.program(name), "port": null, "reason": NOT_LISTED,
                "count": count,
            })
        });
        let Traffic { connections, bytes_sent, bytes_received, .. } = self.sum();
        json!({
            "status": end.status,
            "duration_ms": end.duration_ms,
            "dry_run": end.is_dry,
            "connections": connections,
            "bytes_sent": bytes_sent,
            "bytes_received": bytes_received,
            "names": reached.collect::<Vec<_>>(),
            "refused": refused.chain(unknown).collect::<Vec<_>>(),
            "undialled": names.stand_ins.undialled().collect::<Vec<_>>(),
            "left_out": self.more + names.more,
        })
    }
}

fn times(count: u64) -> String {
    if count == 1 { "once".into() } else { format!("{count} times") }
}

/// Adds lines, and how many are left out.
fn cut(lines: &mut Vec<String>, new: Vec<String>) {
    let left = new.len().saturating_sub(LINES_MAX);
    lines.extend(new.into_iter().take(LINES_MAX));
    if left > 0 {
        lines.push(format!("and {left} more: --report FILE has all"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_from_its_access_lines() {
        let line = |outcome: &str, rule: &str, sni: &str, to: &str, bytes: u64| {
            let text = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
            json!({
                "event": "end", "outcome": outcome, "rule": text(rule), "sni": text(sni),
                "destination": to, "bytes_to_client": bytes, "bytes_to_upstream": bytes,
                "reason": "its reason",
            })
        };
        let mut of_request = line("spliced", "allowed at 80", "a.example", "198.18.0.0:80", 2);
        (of_request["event"], of_request["connect"]) = ("request".into(), "a.example:80".into());
        let mut of_requests = of_request.clone();
        of_requests["event"] = "end".into();
        let mut of_minted = line("terminated", "opened", "a.example", "192.0.2.1:443", 8);
        of_minted["event"] = "request".into();
        let lines = [
            of_minted,
            line("spliced", "allowed at 443", "a.example", "198.18.0.0:443", 1),
            of_request,
            of_requests,
            line("spliced", "tcp db.example:5432", "", "198.18.0.1:5432", 4),
            line("refused", "", "b.example", "198.18.0.0:443", 0),
            line("refused", "", "", "198.18.0.1:443", 0),
        ];
        let lines = lines.map(|line| format!("{line}\n")).concat() + "no line\n";
        let mut record = RunRecord::read(lines.as_bytes(), |_| ()).expect("lines");
        let mut names = ResolvedNames::default();
        for name in ["a.example", "db.example", "c.example"] {
            names.stand_ins.ask(name).expect("room");
        }
        names.programs.insert("a.example".into(), Some("curl".into()));
        names.programs.insert("db.example".into(), None);
        record.resolve(&mut names);
        assert_eq!(names.stand_ins.undialled().collect::<Vec<_>>(), ["c.example"]);
        let list = record.list();
        let entries = list.lines().filter_map(|line| line.split(" #").next());
        let entries: Vec<&str> = entries.map(str::trim).collect();
        assert_eq!(entries, ["a.example", "tcp db.example:5432"]);
        assert_eq!(list.matches(", by curl\n").count(), 1, "{list}");
        let said = record.summary(&names, false).join("\n");
        for part in [
            "connections: 3, names: 2; bytes received: 7, sent: 7",
            "refused: b.example:443: its reason, once",
            "refused: db.example:443: its reason, once",
            "names that were looked up and never dialled: 1",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        let end = RunEnd { status: 3, duration_ms: 9, is_dry: false };
        let json = record.json(&names, &end);
        assert_eq!(json["status"], 3);
        assert_eq!(json["names"][0]["bytes_received"], 2);
        assert_eq!(json["names"][0]["program"], "curl");
        assert_eq!(json["refused"][1]["name"], "db.example");
    }
}
