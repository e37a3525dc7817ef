//! Draws what is known as lines of a size: pure, so that tests see each frame.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::figures::{Expiry, Figures, SortOrder, number, text};
use crate::text::{bytes, count, duration, fit, printable, rate};
use crate::totals;

/// Width of the names on the left.
const LABEL: usize = 13;
/// Least rows of connections, where there is room for any.
const CONNECTION_ROWS_MIN: usize = 3;
/// Lines of a classic terminal.
const CLASSIC_ROWS: usize = 24;
/// Most rows of rules in a classic terminal; and a third of the lines that a taller one has more.
const RULE_ROWS: usize = 4;
/// Most rows of the access log in a classic terminal; and a quarter of the lines beyond that.
const LOG_ROWS: usize = 3;
/// Names in one line of certificates.
const EXPIRIES: usize = 3;
/// The part of a budget from which on it is a warning: reads are small then.
const BUDGET_WARNING: f64 = 0.75;
/// The part of the most connections from which on it is a warning: new ones wait at the limit.
const CONNECTIONS_WARNING: f64 = 0.875;
/// Cells of the bar of memory.
const BAR: usize = 20;

/// Columns and lines of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Characters of a line.
    pub columns: usize,
    /// Lines.
    pub rows: usize,
}

/// The look of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Text.
    Plain,
    /// The head of a table.
    Head,
    /// Something that an operator should see.
    Warning,
}

/// One line of a frame, as wide as the terminal at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameLine {
    pub look: Look,
    pub text: String,
}

/// All lines: never more than the terminal has.
pub fn draw(
    figures: &Figures,
    size: Size,
    order: SortOrder,
    error: Option<&str>,
) -> Vec<FrameLine> {
    let mut frame = Frame { size, lines: Vec::new() };
    frame.title(figures, error);
    frame.connections_line(figures);
    frame.lingering(figures);
    frame.rates(figures);
    frame.memory(figures);
    frame.resting(figures);
    frame.held(figures);
    frame.ends(figures);
    frame.upstreams(figures);
    frame.certificates(figures);
    frame.totals(figures);
    frame.rules(figures);
    frame.connections(figures, order);
    frame.log(figures);
    frame.lines.truncate(size.rows);
    frame.lines
}

struct Frame {
    size: Size,
    lines: Vec<FrameLine>,
}

/// The name of a connection, and the first request that waits or rests on it. An edge of an earlier
/// version lists none.
fn asked(connection: &Value) -> String {
    let first = &connection["requests"][0];
    let words = [text(connection, "sni"), text(first, "method"), text(first, "path")];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

impl Frame {
    fn add(&mut self, look: Look, text: &str) {
        let text = fit(&printable(text), self.size.columns);
        self.lines.push(FrameLine { look, text });
    }

    fn labelled(&mut self, look: Look, label: &str, text: &str) {
        self.add(look, &format!("{label:<LABEL$}{text}"));
    }

    fn title(&mut self, figures: &Figures, error: Option<&str>) {
        if let Some(error) = error {
            return self.add(Look::Warning, &format!("no answer, old figures: {error}"));
        }
        let status = &figures.status;
        let (mut look, mut state) = (Look::Head, "serving");
        if status["draining"] == true {
            (look, state) = (Look::Warning, "draining");
        }
        let version = text(status, "version");
        let up = duration(number(status, "uptime_seconds"));
        let (pid, generation) = (number(status, "pid"), number(status, "generation"));
        let title = format!(
            "eyelet {version}  pid {pid}  up {up}  {state}  configuration {generation}  \
             q quit  p sort"
        );
        self.add(look, &title);
    }

    fn connections_line(&mut self, figures: &Figures) {
        let open = figures.metrics.sum("connections");
        let limits = &figures.status["limits"];
        let most = number(limits, "connections_max");
        // An edge of an earlier version does not say it.
        let with_upstream = limits["connections_with_upstream_max"].as_f64().unwrap_or(most);
        let mut text = format!("{} open", count(open));
        for state in totals::largest_first(figures, "connections") {
            text += &format!("  {} {}", count(state.value), state.label());
        }
        // What does not fit in the line is the least of it.
        text += &match with_upstream < most {
            true => {
                let [fewer, most] = [with_upstream, most].map(count);
                format!("  room for {fewer} with an upstream, {most} without")
            }
            false => format!("  room for {}", count(most)),
        };
        let is_near = most > 0.0 && open >= most * CONNECTIONS_WARNING;
        let look = if is_near { Look::Warning } else { Look::Plain };
        self.labelled(look, "connections", &text);
    }

    /// The earlier processes that have connections left.
    fn lingering(&mut self, figures: &Figures) {
        let pids: Vec<String> = figures.status["lingering"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|pid| pid.to_string())
            .collect();
        if !pids.is_empty() {
            let noun = if pids.len() == 1 { "process" } else { "processes" };
            let text = format!("{} {noun} ({})", pids.len(), pids.join(", "));
            self.labelled(Look::Plain, "lingering", &text);
        }
    }

    fn rates(&mut self, figures: &Figures) {
        let shown = |metric| figures.rate(metric).map_or_else(|| "-".into(), rate);
        let moved = |to| {
            let rate = figures.rate_of("ended_connection_bytes_total", to);
            rate.map_or_else(|| "-".into(), bytes)
        };
        let text = format!(
            "{} accepted  {} handshakes  {} shed  ended: {} in, {} out",
            shown("accepted_connections_total"),
            shown("handshakes_total"),
            shown("shed_connections_total"),
            moved("upstream"),
            moved("client"),
        );
        self.labelled(Look::Plain, "each second", &text);
    }

    fn memory(&mut self, figures: &Figures) {
        let (memory, budget) = (&figures.memory, &figures.memory["budget"]);
        let most = number(budget, "memory_max");
        let used = number(memory, "accounted_bytes");
        let part = if most > 0.0 { (used / most).clamp(0.0, 1.0) } else { 0.0 };
        let cells = (part * BAR as f64).ceil() as usize;
        let mut text = format!(
            "[{:<BAR$}] {} of {}",
            "#".repeat(cells),
            bytes(used),
            if most > 0.0 { bytes(most) } else { "no limit".into() }
        );
        if let Some(kernel) = memory["kernel_bytes"].as_f64() {
            text += &format!("  kernel {}", bytes(kernel));
        }
        let (held, room) =
            (number(budget, "connections_bytes"), number(budget, "connections_bytes_max"));
        let is_full = part > BUDGET_WARNING || (room > 0.0 && held / room > BUDGET_WARNING);
        self.labelled(if is_full { Look::Warning } else { Look::Plain }, "memory", &text);
        let mut kinds: Vec<(&str, f64)> = memory["kinds"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(kind, held)| (&**kind, held.as_f64().unwrap_or_default()))
            .filter(|(_, held)| *held > 0.0)
            .collect();
        kinds.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let kinds: Vec<String> =
            kinds.iter().map(|(kind, held)| format!("{kind} {}", bytes(*held))).collect();
        self.labelled(Look::Plain, "", &kinds.join("  "));
    }

    /// Requests and streams at rest, and their cost.
    fn resting(&mut self, figures: &Figures) {
        let resting = &figures.memory["resting"];
        let counts: Vec<(&str, f64)> = resting["streams"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(kind, of_it)| (&**kind, of_it.as_f64().unwrap_or_default()))
            .collect();
        if counts.is_empty() {
            return;
        }
        let all: f64 = counts.iter().map(|(_, of_it)| of_it).sum();
        let held = number(resting, "bytes");
        let kinds: Vec<String> =
            counts.iter().map(|(kind, of_it)| format!("{kind} {}", count(*of_it))).collect();
        let text = format!(
            "{}  {} on {} connections, {} a stream",
            kinds.join("  "),
            bytes(held),
            count(number(resting, "connections")),
            bytes(held / all.max(1.0)),
        );
        self.labelled(Look::Plain, "at rest", &text);
    }

    /// The connections and requests that wait for a verdict.
    fn held(&mut self, figures: &Figures) {
        let held = &figures.memory["held"];
        let waiting = number(held, "waiting");
        if waiting == 0.0 {
            return;
        }
        let text = format!(
            "{} for {} verdicts, {}: `eyelet held`",
            count(waiting),
            count(number(held, "questions")),
            bytes(number(held, "bytes")),
        );
        self.labelled(Look::Warning, "held", &text);
    }

    /// Lists the reasons of connections' ends, those with most of them first.
    fn ends(&mut self, figures: &Figures) {
        let ends = totals::counted(figures, "connection_ends_total");
        let ends = if ends.is_empty() { "none".into() } else { ends.join("  ") };
        self.labelled(Look::Plain, "ended by", &ends);
    }

    fn upstreams(&mut self, figures: &Figures) {
        let all = figures.metrics.all("upstream_up");
        let down: Vec<&str> =
            all.iter().filter(|one| one.value == 0.0).map(|one| one.label()).collect();
        match (all.len(), down.len()) {
            (0, _) => {}
            (all, 0) => self.labelled(Look::Plain, "upstreams", &format!("{all} up")),
            (all, _) => {
                let text = format!("{} of {all} down: {}", down.len(), down.join(", "));
                self.labelled(Look::Warning, "upstreams", &text);
            }
        }
    }

    fn certificates(&mut self, figures: &Figures) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        if figures.expiries.is_empty() {
            return;
        }
        let soon = figures.expiries.iter().take(EXPIRIES);
        let soon = soon.map(|Expiry { name, after, .. }| match after.map(|after| after - now) {
            None => format!("{name} ERROR"),
            Some(left) if left <= 0.0 => format!("{name} EXPIRED"),
            Some(left) => format!("{name} in {}", duration(left)),
        });
        let text = soon.collect::<Vec<_>>().join("  ");
        // A short-lived one may expire first and be well, and a later one be late.
        let is_late = |one: &Expiry| one.after.is_none_or(|after| after - now < one.warning);
        let is_late = figures.expiries.iter().any(is_late);
        let look = if is_late { Look::Warning } else { Look::Plain };
        self.labelled(look, "expire next", &text);
    }

    /// Lists the totals since the start, where rules, connections and the log leave rows for them.
    fn totals(&mut self, figures: &Figures) {
        let rules = RULE_ROWS.min(figures.rules.len());
        let below = rules + CONNECTION_ROWS_MIN + 2 + self.log_rows(figures);
        let room = self.size.rows.saturating_sub(self.lines.len() + below);
        for (label, text) in totals::lines(figures).into_iter().take(room) {
            self.labelled(Look::Plain, label, &text);
        }
    }

    /// The rules with most hits now, then those with most in all.
    fn rules(&mut self, figures: &Figures) {
        let mut rules: Vec<_> = figures.rules.iter().collect();
        let busy = |rule| figures.hits_rate(rule).unwrap_or_default();
        rules.sort_by(|one, other| {
            busy(other).total_cmp(&busy(one)).then(other.hits.total_cmp(&one.hits))
        });
        let rows = (RULE_ROWS + self.more_rows() / 3).min(rules.len());
        let below = CONNECTION_ROWS_MIN + 2 + self.log_rows(figures);
        let room = self.size.rows.saturating_sub(self.lines.len() + below);
        let name = self.size.columns.saturating_sub(34).clamp(8, 48);
        self.add(Look::Head, &format!("{} {:>12} {:>8}  ACTION", fit("RULE", name), "HITS", "/S"));
        for rule in rules.iter().take(rows.min(room)) {
            let each = figures.hits_rate(rule).map_or_else(|| "-".into(), rate);
            let (hits, action) = (count(rule.hits), &rule.action);
            let shown = fit(&printable(&rule.name), name);
            self.add(Look::Plain, &format!("{shown} {hits:>12} {each:>8}  {action}"));
        }
    }

    fn connections(&mut self, figures: &Figures, order: SortOrder) {
        // What is left of a line is shared by the client, the name and the rule.
        let left = self.size.columns.saturating_sub(42);
        let widths = [left * 2 / 5, left * 2 / 5 + 1, (left / 5).saturating_sub(1)];
        let row = |cells: [&str; 3], fixed: [&str; 5]| {
            let [id, state, age, up, down] = fixed;
            let mut text = format!("{} {} {age:>6} ", fit(id, 8), fit(state, 8));
            text += &format!("{up:>8} {down:>8}");
            for (cell, width) in cells.into_iter().zip(widths) {
                if width > 1 {
                    text += &format!(" {}", fit(&printable(cell), width - 1));
                }
            }
            text
        };
        let (age, sent) = match order {
            SortOrder::Age => ("AGE*", "OUT"),
            SortOrder::Bytes => ("AGE", "OUT*"),
        };
        let head = row(["NAME", "CLIENT", "RULE"], ["ID", "STATE", age, "IN", sent]);
        self.add(Look::Head, &head);
        let room = self.size.rows.saturating_sub(self.lines.len() + self.log_rows(figures));
        for one in figures.connections.iter().take(room) {
            let age = duration(number(one, "age_ms") / 1e3);
            let moved = |member| bytes(number(one, member));
            let (up, down) = (moved("bytes_to_upstream"), moved("bytes_to_client"));
            let fixed = [text(one, "id"), state(one), &age, &up, &down];
            let name = asked(one);
            let cells = [&*name, text(one, "client"), text(one, "rule")];
            self.add(Look::Plain, &row(cells, fixed));
        }
    }

    /// Lines beyond those of a classic terminal.
    fn more_rows(&self) -> usize {
        self.size.rows.saturating_sub(CLASSIC_ROWS)
    }

    /// Rows of the access log and its head. Without lines it has none.
    fn log_rows(&self, figures: &Figures) -> usize {
        let rows = (LOG_ROWS + self.more_rows() / 4).min(figures.log.len());
        if rows > 0 { rows + 1 } else { 0 }
    }

    /// The newest lines, the newest last.
    fn log(&mut self, figures: &Figures) {
        let rows = self.log_rows(figures).saturating_sub(1);
        if rows == 0 {
            return;
        }
        let head = fit("LOG", self.size.columns);
        self.add(Look::Head, &head);
        for line in figures.log.iter().skip(figures.log.len() - rows) {
            self.add(Look::Plain, line);
        }
    }
}

fn state(connection: &Value) -> &str {
    text(connection, "state")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::sample;

    fn texts(columns: usize, rows: usize) -> Vec<String> {
        let lines = draw(&sample(), Size { columns, rows }, SortOrder::Age, None);
        lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn a_frame_says_what_rests_and_its_cost() {
        let mut figures = sample();
        figures.memory["resting"] = serde_json::json!({"bytes": 2_048_000, "connections": 1_500,
            "streams": {"event_stream": 2_000, "websocket": 48_000}});
        let frame = draw(&figures, Size { columns: 100, rows: 24 }, SortOrder::Age, None);
        let part =
            "event_stream 2,000  websocket 48,000  2.0 MiB on 1,500 connections, 41 B a stream";
        assert!(frame.iter().any(|line| line.text.contains(part)), "{frame:?}");
    }

    #[test]
    fn a_frame_says_which_processes_linger() {
        let mut figures = sample();
        let line = |figures: &Figures| {
            let frame = draw(figures, Size { columns: 100, rows: 24 }, SortOrder::Age, None);
            frame.into_iter().map(|line| line.text).find(|text| text.starts_with("lingering"))
        };
        assert_eq!(line(&figures), None);
        figures.status["lingering"] = serde_json::json!([31_075]);
        assert_eq!(
            line(&figures).as_deref().map(str::trim_end),
            Some("lingering    1 process (31075)")
        );
        figures.status["lingering"] = serde_json::json!([31_075, 31_080]);
        let two = line(&figures).unwrap_or_default();
        assert!(two.contains("2 processes (31075, 31080)"), "{two}");
    }

    #[test]
    fn a_frame_says_what_is_held() {
        let mut figures = sample();
        figures.memory["held"] =
            serde_json::json!({"bytes": 2_048, "questions": 2, "waiting": 1_300});
        let frame = draw(&figures, Size { columns: 100, rows: 24 }, SortOrder::Age, None);
        let part = "1,300 for 2 verdicts, 2.0 KiB: `eyelet held`";
        let line = frame.iter().find(|line| line.text.contains(part));
        assert_eq!(line.map(|line| line.look), Some(Look::Warning), "{frame:?}");
    }

    #[test]
    fn a_frame_says_what_is_known() {
        let lines = texts(80, 24);
        let all = lines.join("\n");
        for part in [
            "eyelet 0.2.0  pid 7  up 1d01h  serving",
            "12,345 open  12,000 parked  345 serving  room for 9,680 with an u",
            "100 accepted  0 handshakes  0 shed  ended: 10 KiB in, 100 KiB out",
            "2.2 MiB of 512 MiB",
            "program 1.6 MiB  allocator 594 KiB",
            "closed 9,000  refused 7",
            "1 of 2 down: b.example:443",
            "x.pem ERROR  soon.example in ",
            "handshakes   TLS 1.3: 100, 100 resumed",
            "2.0  splice",
            "LOG",
            "09:30:00 refused    b.example",
            "api.example?",
        ] {
            assert!(all.contains(part), "{part} is not in\n{all}");
        }
    }

    #[test]
    fn rules_and_connections_have_their_rows_before_totals() {
        let has_totals = |rows| texts(80, rows).iter().any(|line| line.starts_with("handshakes "));
        // Eight lines are above them, and eleven below.
        assert_eq!([19, 20].map(has_totals), [false, true]);
        let listed = |rows| texts(80, rows).iter().filter(|line| line.starts_with("0-17")).count();
        assert_eq!([19, 20, 21].map(listed), [3, 3, 4]);
    }

    #[test]
    fn every_size_is_kept() {
        for columns in [0, 1, 20, 49, 80, 120, 400] {
            for rows in [0, 1, 5, 12, 24, 50, 200] {
                let lines = texts(columns, rows);
                assert!(lines.len() <= rows, "{columns}x{rows}");
                let wide = lines.iter().find(|line| line.chars().count() > columns);
                assert_eq!(wide, None, "{columns}x{rows}");
            }
        }
        assert_eq!(texts(80, 24).len(), 24);
        assert_eq!(texts(120, 40).len(), 40);
    }

    #[test]
    fn what_an_operator_should_see_is_a_warning() {
        let mut figures = sample();
        let size = Size { columns: 80, rows: 24 };
        let warned = |figures: &Figures, error, label: &str| {
            let lines = draw(figures, size, SortOrder::Bytes, error);
            let line = lines.into_iter().find(|line| line.text.starts_with(label)).unwrap();
            line.look == Look::Warning
        };
        assert!(warned(&figures, Some("gone"), "no answer, old figures: gone"));
        assert!(warned(&figures, None, "upstreams"));
        assert!(!warned(&figures, None, "memory") && warned(&figures, None, "expire next"));
        // 12,345 are open.
        assert!(!warned(&figures, None, "connections"));
        figures.status["limits"]["connections_max"] = serde_json::json!(14_000);
        assert!(warned(&figures, None, "connections"));
        // Without the one that cannot be read it is well.
        figures.expiries.remove(0);
        assert!(!warned(&figures, None, "expire next"));
        // Of six days four are left, and then one.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let expiry = |days: f64| {
            let after = Some(now + days * 86_400.0);
            Expiry { name: "brief.example".into(), after, warning: 2.0 * 86_400.0 }
        };
        figures.expiries.insert(0, expiry(4.0));
        assert!(!warned(&figures, None, "expire next"));
        figures.expiries[0] = expiry(1.0);
        assert!(warned(&figures, None, "expire next"));
        figures.expiries[0] = expiry(-1.0);
        figures.memory["budget"]["connections_bytes"] = serde_json::json!(9e5);
        assert!(warned(&figures, None, "memory") && warned(&figures, None, "expire next"));
        figures.status["draining"] = serde_json::json!(true);
        assert!(warned(&figures, None, "eyelet"));
    }
}
