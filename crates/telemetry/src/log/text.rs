//! Formats one line of the access log for people. Programs read the JSON form.

use std::io::Write;

use super::line::{Line, Opening, shadows};
use crate::info::{Outcome, UpstreamName};
use eyelet_wire::local_peer::LocalPeer;

/// The choice of colours for outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// The output is a terminal.
    On,
    /// In a file or a pipe, or with `NO_COLOR`.
    Off,
}

/// SGR codes (ECMA-48 8.3.117): red, yellow, green, cyan, dim; and none.
const RED: &str = "\x1b[31m";
const YELLOW: &str = "\x1b[33m";
const GREEN: &str = "\x1b[32m";
const CYAN: &str = "\x1b[36m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Columns of the longest outcome.
const OUTCOME_COLUMNS: usize = 10;

pub fn write(line: &Line<'_>, out: &mut Vec<u8>, opening: &mut Opening, colour: Colour) {
    let Line { decided, measured, outcome, reason, http } = *line;
    opening.write_time(out, measured.started_unix_ms);
    let begin = out.len();
    let (on, off) = match colour {
        Colour::On => (colour_of(outcome), PLAIN),
        Colour::Off => ("", ""),
    };
    let name = match reason {
        Some(_) => outcome.name(),
        None => "decided",
    };
    let mut text = String::new();
    let asked = decided.connect.as_deref().filter(|_| decided.sni.is_none());
    let target = decided.sni.as_deref().or(asked).unwrap_or("no name");
    match LocalPeer::of(measured.client.ip()) {
        Some(peer) => text.push_str(&format!(" {peer} {target}")),
        None => text.push_str(&format!(" {} {target}", measured.client)),
    }
    if let Some(request) = http {
        let status = request.status.map_or_else(|| "no response".to_owned(), |s| s.to_string());
        text.push_str(&format!(" {} {} {status}", request.method, request.path));
    }
    if let Some(rule) = decided.rule {
        text.push_str(&format!(" by \"{}\"", decided.labels.rule(rule)));
    }
    match &decided.upstream {
        Some(UpstreamName::Address(to)) if http.is_none() => text.push_str(&format!(" to {to}")),
        Some(UpstreamName::Name(to)) if http.is_none() => text.push_str(&format!(" to {to}")),
        _ => {}
    }
    match reason {
        Some(reason) => text.push_str(&format!(": {reason}")),
        None => text.push_str(&format!(": {}", outcome.name())),
    }
    for (rule, would) in shadows(decided, http) {
        text.push_str(&format!(", in shadow {} by \"{rule}\"", would.name()));
    }
    // Names, paths and errors come from peers: none of them may move the cursor.
    let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let (up, down) = (measured.bytes_to_upstream, measured.bytes_to_client);
    let seconds = std::time::Duration::from_millis(measured.duration_ms).as_secs_f64();
    let id = (measured.id >> 48, measured.id & ((1 << 48) - 1));
    // Writing into a Vec cannot fail.
    let _ = writeln!(
        out,
        " {on}{name:OUTCOME_COLUMNS$}{off}{text} ({up} B up, {down} B down, {seconds:.3} s, {}-{})",
        id.0, id.1
    );
    debug_assert!(out[begin..].iter().filter(|byte| **byte == b'\n').count() == 1);
}

fn colour_of(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Failed => RED,
        Outcome::Left => DIM,
        Outcome::Redirected => CYAN,
        Outcome::Refused => YELLOW,
        Outcome::Originated | Outcome::Spliced | Outcome::Terminated => GREEN,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::info::{Decided, Measured};
    use crate::reason::{Detail, Reason};
    use crate::request::RequestInfo;

    fn text(line: &Line<'_>, colour: Colour) -> String {
        let mut out = Vec::new();
        write(line, &mut out, &mut Opening::default(), colour);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_line_reads_as_a_sentence() {
        let decided = Decided { sni: Some("a.example".into()), ..Decided::default() };
        let measured = Measured {
            id: (1 << 48) + 17,
            started_unix_ms: 60_123,
            duration_ms: 5_120,
            client: "192.0.2.7:50314".parse().unwrap(),
            bytes_to_upstream: 2_210,
            bytes_to_client: 48_211,
            datagrams: None,
        };
        let reason = Reason::UpstreamClosed;
        let line = Line {
            decided: &decided,
            measured: &measured,
            outcome: Outcome::Spliced,
            reason: Some(&reason),
            http: None,
        };
        let rest = "192.0.2.7:50314 a.example: upstream closed \
                    (2210 B up, 48211 B down, 5.120 s, 1-17)\n";
        let time = "1970-01-01T00:01:00.123Z";
        assert_eq!(text(&line, Colour::Off), format!("{time} spliced    {rest}"));
        let coloured = format!("{time} \x1b[32mspliced   \x1b[0m {rest}");
        assert_eq!(text(&line, Colour::On), coloured);
        let decided_line = Line { reason: None, ..line };
        assert!(
            text(&decided_line, Colour::Off).contains(" decided    192.0.2.7:50314 a.example: ")
        );
    }

    /// A peer's text cannot move the cursor, nor begin a line.
    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        let decided = Decided { sni: Some("a\x1b[2J\u{9b}31m".into()), ..Decided::default() };
        let measured = Measured {
            id: 1,
            started_unix_ms: 0,
            duration_ms: 0,
            client: "[2001:db8::1]:1".parse().unwrap(),
            bytes_to_upstream: 0,
            bytes_to_client: 0,
            datagrams: None,
        };
        let reason = Reason::Response(Detail::of("two\r\nlines\0"));
        let http = RequestInfo { method: "GET", path: "/\x07", ..RequestInfo::default() };
        let line = Line {
            decided: &decided,
            measured: &measured,
            outcome: Outcome::Failed,
            reason: Some(&reason),
            http: Some(&http),
        };
        let text = text(&line, Colour::Off);
        let line = text.strip_suffix('\n').unwrap();
        assert!(!line.contains(char::is_control), "{line:?}");
        assert!(line.contains("a?[2J?31m GET /? no response"), "{line:?}");
    }
}
