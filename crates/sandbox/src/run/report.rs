//! The record of a run: the places that the command has reached, and those that were refused, from
//! the access lines of its connections and from its questions to DNS.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, BufRead};
use std::net::IpAddr;

use serde_json::{Value, json};

use super::serving::{ANY_REQUEST, NO_RULE, UNLISTED};
use crate::names::{Repeated, ResolvedNames};
use crate::refusals::NO_ENTRY;

/// Places and reasons that are told apart. A command that dials more has made them up.
const PLACES_MAX: usize = 16_384;
/// Lines of the summary for each kind.
const LINES_MAX: usize = 20;
/// Requests and connections that were held and are told apart: somebody decided about each.
const HELD_MAX: usize = 1024;
/// Bytes of a request's path that are kept. Paths that begin alike then count as one.
const PATH_BYTES_MAX: usize = 256;
/// The reason of a name that DNS does not have inside.
const NOT_LISTED: &str = "not on the list";
/// The reason why a rule on requests would refuse a request that it is asked about.
const AMBIGUOUS: &str = "its path or its method could be read in two ways";

/// A name and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// The name that the client said, or the address that it dialled.
    pub(super) name: String,
    /// 0 if it is not known.
    pub(super) port: u16,
    /// True if a `tcp` entry let it pass.
    pub(super) is_tcp: bool,
}

/// A request that was read, without its query.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordedRequest {
    method: String,
    path: String,
}

/// A refusal of a connection, or of a request that rules on requests have decided.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordedRefusal {
    pub(super) place: Place,
    request: Option<RecordedRequest>,
    rule: Option<String>,
    pub(super) reason: String,
}

/// Refusals, each with how often it came.
pub(super) type RecordedRefusals = BTreeMap<RecordedRefusal, Repeated>;

/// The connections to a place.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    pub(super) connections: u64,
    bytes_sent: u64,
    pub(super) bytes_received: u64,
    /// True if no list has it.
    is_unlisted: bool,
}

impl Place {
    /// The place of an access line, and the host that the client dialled or asked a proxy for.
    fn of(line: &Value) -> (Self, &str) {
        let text = |field: &str| line.get(field).and_then(Value::as_str);
        // A request says its host and port, a client of TLS only its name.
        let target = text("connect").or(text("destination")).unwrap_or_default();
        let (host, port) = target.rsplit_once(':').unwrap_or((target, ""));
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let rule = text("rule").unwrap_or_default();
        let tcp = rule.strip_prefix("tcp ").and_then(|entry| entry.rsplit_once(':'));
        let name = text("sni").or(tcp.map(|(host, _)| host)).unwrap_or(host).to_owned();
        (Self { name, port: port.parse().unwrap_or(0), is_tcp: tcp.is_some() }, host)
    }

    pub(super) fn is_address(&self) -> bool {
        self.name.parse::<IpAddr>().is_ok()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { name, port, .. } if name.contains(':') => write!(f, "[{name}]:{port}"),
            Self { name, port, .. } => write!(f, "{name}:{port}"),
        }
    }
}

impl RecordedRequest {
    /// The request of an access line.
    fn of(line: &Value) -> Option<Self> {
        let http = line.get("http").filter(|http| !http.is_null())?;
        let text = |field: &str| http.get(field).and_then(Value::as_str).unwrap_or_default();
        let path = text("path").split('?').next().unwrap_or_default();
        let path = path.get(..path.floor_char_boundary(PATH_BYTES_MAX)).unwrap_or_default();
        Some(Self { method: text("method").to_owned(), path: path.to_owned() })
    }
}

impl fmt::Display for RecordedRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, request, reason, .. } = self;
        match request {
            Some(RecordedRequest { method, path }) => write!(f, "{method} {place}{path}: {reason}"),
            None => write!(f, "{place}: {reason}"),
        }
    }
}

/// A record of the connections and look-ups of a run.
#[derive(Debug, Default)]
pub struct RunRecord {
    pub(super) reached: BTreeMap<Place, Traffic>,
    pub(super) refused: RecordedRefusals,
    /// Requests that passed, and that rules on requests would have refused.
    would_refuse: RecordedRefusals,
    /// Requests and connections that were held, as the report has them.
    held: Vec<Value>,
    /// Addresses and names that were dialled.
    dialled: BTreeSet<String>,
    /// The program that asked for a name first, if it was found.
    programs: BTreeMap<String, Option<String>>,
    /// Connections to places beyond [`PLACES_MAX`].
    more: u64,
}

/// The number of lines that tell of no place that was reached, by their reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOutLines {
    /// They are not of an access log in JSON.
    pub foreign: u64,
    /// Connections and requests that were refused or failed, or whose client closed early.
    pub unreached: u64,
    /// Neither a name nor an address is known.
    pub nameless: u64,
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
        for line in lines.lines() {
            if let Ok(line) = serde_json::from_str::<Value>(&line?)
                && let Some(event) = record.note(&line)
            {
                tell(&event);
            }
        }
        Ok(record)
    }

    /// Reads lines of the access log of any edge, for its [`RunRecord::list`]. Returns those that
    /// tell of no place that was reached.
    ///
    /// # Errors
    /// The lines cannot be read.
    pub fn learn(&mut self, lines: impl BufRead) -> io::Result<LeftOutLines> {
        let mut left_out = LeftOutLines::default();
        for line in lines.split(b'\n') {
            let line = serde_json::from_slice::<Value>(&line?).unwrap_or_default();
            let text = |field: &str| line.get(field).and_then(Value::as_str);
            match text("outcome") {
                None => left_out.foreign += 1,
                Some("refused" | "failed" | "left" | "redirected") => left_out.unreached += 1,
                Some(_) if ["sni", "connect", "destination"].map(text) == [None; 3] => {
                    left_out.nameless += 1;
                }
                Some(_) => drop(self.note(&line)),
            }
        }
        Ok(left_out)
    }

    /// Notes an access line. Returns it as an event, if a connection or a request has ended.
    fn note(&mut self, line: &Value) -> Option<Value> {
        let text = |field: &str| line.get(field).and_then(Value::as_str);
        let number = |field: &str| line.get(field).and_then(Value::as_u64).unwrap_or(0);
        let outcome = text("outcome")?;
        let is_request = text("event") == Some("request");
        let has_hello = text("tls_version").is_some();
        match (text("event"), text("connect")) {
            // The end follows.
            (Some("decided"), _) => return None,
            // Its requests for `http://` URLs have told. A CONNECT has a hello, or was dialled.
            (Some("end"), Some(_)) if !has_hello && text("upstream").is_none() => return None,
            _ => {}
        }
        let (place, host) = Place::of(line);
        let rule = text("rule").unwrap_or_default();
        let request = RecordedRequest::of(line);
        let (method, path) = match &request {
            Some(RecordedRequest { method, path }) => (Some(method), Some(path)),
            None => (None, None),
        };
        let held = line.get("held").filter(|held| !held.is_null());
        let reason = text("reason").map(|reason| shown_reason(reason, &place.name));
        let mut event = json!({
            "event": "connection", "name": place.name, "port": place.port, "outcome": outcome,
            "reason": reason, "bytes_sent": number("bytes_to_upstream"),
            "bytes_received": number("bytes_to_client"), "method": method, "path": path,
            "rule": shown_rule(rule), "time": text("time"), "held": held,
        });
        self.note_held(&event);
        // The end of its connection has the bytes of a request, and the port is its own.
        let is_of_rules = is_request && (has_hello || text("connect").is_none());
        let is_refused = matches!(outcome, "refused" | "failed");
        let request = request.filter(|_| is_of_rules);
        if is_of_rules && !is_refused {
            self.note_shadow(line, (place, request));
            event["event"] = "held".into();
            return held.is_some().then_some(event);
        }
        if has_room(self.dialled.len()) {
            self.dialled.extend([host.to_owned(), place.name.clone()]);
        }
        if is_refused {
            let rule = shown_rule(rule).map(str::to_owned);
            let reason = reason.unwrap_or_else(|| "unknown".to_owned());
            let refusal = RecordedRefusal { place, request, rule, reason };
            self.more += u64::from(!add(&mut self.refused, refusal, text("time")));
            return Some(event);
        }
        // A list of a proxy needs the name of the CONNECT beside that in the hello.
        let asked = Place { name: host.to_owned(), ..place.clone() };
        let is_another = asked != place && !asked.is_address();
        if text("connect").is_some() && is_another && has_room(self.reached.len()) {
            self.reached.entry(asked).or_default().connections += 1;
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

    /// Notes a connection or a request that somebody has decided about.
    fn note_held(&mut self, event: &Value) {
        let Some(held) = event["held"].as_object() else { return };
        if self.held.len() >= HELD_MAX {
            self.more += 1;
            return;
        }
        let mut noted = serde_json::Map::from_iter(held.clone());
        for field in ["name", "port", "method", "path", "rule", "time"] {
            noted.insert(field.into(), event[field].clone());
        }
        self.held.push(noted.into());
    }

    /// Notes what rules on requests would have done with a request that passed.
    fn note_shadow(&mut self, line: &Value, (place, request): (Place, Option<RecordedRequest>)) {
        // The first rule that takes a request would have decided it.
        let Some(first) = line.get("shadow").and_then(|shadow| shadow.get(0)) else { return };
        let text = |field: &str| first.get(field).and_then(Value::as_str).unwrap_or_default();
        // A rule that takes each request reads no path, unlike the one that stands for it.
        if text("outcome") != "refused" || text("rule").starts_with(ANY_REQUEST) {
            return;
        }
        let (rule, reason) = match text("rule") {
            rule if rule.starts_with(NO_RULE) => (None, NO_RULE),
            rule => (shown_rule(rule).map(str::to_owned), AMBIGUOUS),
        };
        let refusal = RecordedRefusal { place, request, rule, reason: reason.to_owned() };
        let time = line.get("time").and_then(Value::as_str);
        self.more += u64::from(!add(&mut self.would_refuse, refusal, time));
    }

    /// Separates names that were only looked up from dialled ones, gives stand-ins their names, and
    /// adds the programs that asked.
    pub fn resolve(&mut self, names: &mut ResolvedNames) {
        for (to, times) in std::mem::take(&mut names.dialled) {
            let place = Place { name: to.ip().to_string(), port: to.port(), is_tcp: false };
            let reason = format!("{NO_ENTRY} {}", to.port());
            self.refused
                .insert(RecordedRefusal { place, request: None, rule: None, reason }, times);
        }
        for dialled in &self.dialled {
            match dialled.parse() {
                Ok(ip) => drop(names.stand_ins.dialled(ip)),
                Err(_) => names.stand_ins.note_dialled(dialled),
            }
        }
        self.programs = std::mem::take(&mut names.programs);
        let refused = std::mem::take(&mut self.refused);
        for (mut refusal, times) in refused {
            let ip = refusal.place.name.parse().ok();
            if let Some(name) = ip.and_then(|ip| names.stand_ins.dialled(ip)) {
                refusal.place.name = name.to_owned();
            }
            let sum = self.refused.entry(refusal);
            sum.and_modify(|sum| sum.join(&times)).or_insert(times);
        }
    }

    /// The program that asked for a name first.
    pub(super) fn program(&self, name: &str) -> Option<&str> {
        self.programs.get(name)?.as_deref()
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
            let requests = self
                .would_refuse
                .iter()
                .map(|(refusal, sum)| format!("would be refused: {refusal}, {}", times(sum.count)));
            cut(&mut lines, requests.collect());
        }
        let refused = self.refused.iter();
        let refused =
            refused.map(|(refusal, sum)| format!("refused: {refusal}, {}", times(sum.count)));
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
        let told = |(refusal, sum): (&RecordedRefusal, &Repeated)| {
            let RecordedRefusal { place: Place { name, port, .. }, request, rule, reason } =
                refusal;
            json!({
                "name": name, "program": self.program(name), "port": port,
                "method": request.as_ref().map(|request| &request.method),
                "path": request.as_ref().map(|request| &request.path),
                "rule": rule, "reason": reason, "count": sum.count, "time": sum.first,
            })
        };
        let refused = self.refused.iter().map(told);
        let unknown = names.refused.iter().map(|(name, count)| {
            json!({
                "name": name, "program": self.program(name), "port": null, "method": null,
                "path": null, "rule": null, "reason": NOT_LISTED, "count": count, "time": null,
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
            "would_be_refused": self.would_refuse.iter().map(told).collect::<Vec<_>>(),
            "held": self.held,
            "undialled": names.stand_ins.undialled().collect::<Vec<_>>(),
            "left_out": self.more + names.more,
        })
    }
}

/// The name that the profile gives a rule, if the rule is one of its own.
fn shown_rule(rule: &str) -> Option<&str> {
    let own = rule.split_once(": ").map_or(rule, |(_, own)| own);
    (!own.is_empty()).then_some(own)
}

/// The reason of an access line, without keys that are of an edge's configuration alone.
fn shown_reason(reason: &str, name: &str) -> String {
    if let Some(head) = reason.strip_suffix(", which upstream_allow does not list") {
        let ip = head.rsplit(' ').next().unwrap_or_default();
        return format!("{head}, a private address: `--allow-private {ip}` allows it");
    }
    if let Some(host) = reason.strip_suffix(" does not lead to this rule") {
        return format!("the request is for another name ({host}) than its connection ({name})");
    }
    match reason {
        "the rule has no plain_http" => {
            "a rule reads this name's requests, so HTTP without TLS is refused".to_owned()
        }
        "no rule with plain_http for this name" => "no entry has this name and port".to_owned(),
        other => other.to_owned(),
    }
}

/// True if one more may be told apart from so many.
fn has_room(places: usize) -> bool {
    places < PLACES_MAX
}

/// Counts a refusal at this time. False: there is no room for it.
fn add(refusals: &mut RecordedRefusals, refusal: RecordedRefusal, time: Option<&str>) -> bool {
    let may_add = has_room(refusals.len());
    let once = Repeated { count: 1, first: time.unwrap_or_default().to_owned() };
    match refusals.get_mut(&refusal) {
        Some(sum) => sum.join(&once),
        None if may_add => drop(refusals.insert(refusal, once)),
        None => return false,
    }
    true
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
    use crate::list::AllowList;

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
        let list = record.list(&AllowList::default());
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

    #[test]
    fn reasons_name_options_of_a_sandbox() {
        for (reason, expected) in [
            (
                "a.example resolves to 127.0.0.1, which upstream_allow does not list",
                "a.example resolves to 127.0.0.1, a private address: `--allow-private 127.0.0.1` \
                 allows it",
            ),
            (
                "b.example does not lead to this rule",
                "the request is for another name (b.example) than its connection (a.example)",
            ),
            ("no TLS", "no TLS"),
        ] {
            assert_eq!(shown_reason(reason, "a.example"), expected);
        }
    }

    #[test]
    fn requests_are_told_with_their_rules_and_times() {
        let line = |time: u64, request: (&str, &str), more: Value| {
            let (method, path) = request;
            let mut line = json!({
                "time": format!("2026-11-28T10:00:0{time}.000Z"), "event": "request",
                "outcome": "terminated", "rule": "allowed at 443: reads", "sni": "a.example",
                "destination": "198.18.0.0:443", "bytes_to_client": 8, "bytes_to_upstream": 8,
                "http": {"method": method, "path": path},
            });
            let fields = line.as_object_mut().expect("an object");
            fields.extend(more.as_object().expect("an object").clone());
            format!("{line}\n")
        };
        let refused = |reason: &str| json!({"outcome": "refused", "rule": null, "reason": reason});
        let shadow = |rule: &str, outcome: &str| {
            let none = json!({"rule": NO_RULE, "outcome": "refused"});
            json!({"shadow": [{"rule": rule, "outcome": outcome}, none]})
        };
        let held = json!({"held": {"ms": 9, "verdict": "allow", "by": "terminal"}});
        let lines = [
            line(2, ("POST", "/org/x?secret"), refused(NO_RULE)),
            line(1, ("POST", "/org/x"), refused(NO_RULE)),
            line(3, ("GET", "/org/y"), refused(NO_RULE)),
            line(4, ("PUT", "/held"), held),
            line(5, ("GET", "/passes"), shadow("allowed at 443: reads", "terminated")),
            line(6, ("GET", "/a/../b"), shadow("allowed at 443: reads", "refused")),
            line(7, ("PUT", "/z"), shadow("no rule for this request, at 443", "refused")),
            line(8, ("GET", "/@a%2fb"), shadow("any request, allowed at 443: opened", "refused")),
        ];
        let told = std::cell::RefCell::new(Vec::new());
        let tell = |event: &Value| told.borrow_mut().push(event.clone());
        let record = RunRecord::read(lines.concat().as_bytes(), tell).expect("lines");
        let names = ResolvedNames::default();
        let json = record.json(&names, &RunEnd { status: 0, duration_ms: 9, is_dry: true });
        assert_eq!(
            json["refused"][1],
            json!({
                "name": "a.example", "program": null, "port": 443, "method": "POST",
                "path": "/org/x", "rule": null, "reason": NO_RULE, "count": 2,
                "time": "2026-11-28T10:00:01.000Z",
            })
        );
        assert_eq!(
            json["held"],
            json!([{
                "name": "a.example", "port": 443, "method": "PUT", "path": "/held",
                "rule": "reads", "time": "2026-11-28T10:00:04.000Z", "ms": 9, "verdict": "allow",
                "by": "terminal",
            }])
        );
        let would: Vec<_> = json["would_be_refused"].as_array().into_iter().flatten().collect();
        assert_eq!(would.len(), 2, "{json}");
        assert_eq!((&would[0]["path"], &would[0]["rule"]), (&"/a/../b".into(), &"reads".into()));
        assert_eq!((&would[1]["path"], &would[1]["reason"]), (&"/z".into(), &NO_RULE.into()));
        let said = record.summary(&names, true).join("\n");
        for part in [
            "connections: 0, names: 0",
            "refused: POST a.example:443/org/x: no rule for this request, 2 times",
            "would be refused: PUT a.example:443/z: no rule for this request, once",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert!(!said.contains("secret"), "{said}");
        let told = told.into_inner();
        let kinds: Vec<_> = told.iter().map(|event| &event["event"]).collect();
        assert_eq!(kinds, ["connection", "connection", "connection", "held"]);
        let held = &told[3];
        assert_eq!((&held["held"]["by"], &held["path"]), (&"terminal".into(), &"/held".into()));
    }

    #[test]
    fn what_a_command_makes_up_has_a_bound() {
        let line = |number: usize| {
            json!({
                "event": "request", "outcome": "refused", "sni": "a.example", "reason": NO_RULE,
                "destination": "198.18.0.0:443", "held": {"ms": number},
                "http": {"method": "GET", "path": format!("/{number}/{}", "\u{e9}".repeat(500))},
            })
        };
        let lines: String =
            (0..PLACES_MAX + 3).map(|number| format!("{}\n", line(number))).collect();
        let record = RunRecord::read(lines.as_bytes(), |_| ()).expect("lines");
        assert_eq!((record.refused.len(), record.held.len()), (PLACES_MAX, HELD_MAX));
        let left_out = 3 + (PLACES_MAX + 3 - HELD_MAX) as u64;
        assert_eq!(record.more, left_out);
        let longest = record.refused.keys().filter_map(|refusal| refusal.request.as_ref());
        let longest = longest.map(|request| request.path.len()).max();
        assert_eq!(longest, Some(PATH_BYTES_MAX));
    }
}
