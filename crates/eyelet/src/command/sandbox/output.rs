//! Writes the messages of a sandbox to standard error.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::thread;

use eyelet_hold::{HoldKey, HoldQuestion, Holds};
use eyelet_sandbox::{ResolvedNames, RunEnd, RunRecord};
use serde_json::{Value, json};

use eyelet_process::diagnostics::Diagnostics;

/// Standard error, which the command has, too.
pub(super) struct Screen<'a> {
    pub(super) diagnostics: &'a Diagnostics,
    /// True if a program reads it.
    pub(super) is_json: bool,
}

impl Screen<'_> {
    /// Says a line.
    pub(super) fn say(&self, text: &str) {
        match self.is_json {
            true => event(&json!({ "event": "note", "text": text })),
            false => self.diagnostics.line(&format!("eyelet: {text}")),
        }
    }

    /// Says why the command was not started.
    pub(super) fn fail(&self, text: &str) {
        match self.is_json {
            true => event(&json!({ "event": "failed", "text": text })),
            false => self.diagnostics.line(&format!("eyelet: {text}")),
        }
    }

    /// Says that the command was started.
    pub(super) fn begun(&self) {
        if self.is_json {
            event(&json!({ "event": "started" }));
        }
    }

    /// Says what the command did.
    pub(super) fn end(&self, (record, names): (&RunRecord, &ResolvedNames), end: &RunEnd) {
        if self.is_json {
            let mut ended = record.json(names, end);
            ended["event"] = "ended".into();
            return event(&ended);
        }
        record.summary(names, end.is_dry).iter().for_each(|line| self.say(line));
    }
}

/// The end of a line that says what waits: there is an event for it.
const WAITS: &str = "`eyelet held` decides";
/// Questions that wait for a slow reader.
const QUESTIONS_MAX: usize = 64;

/// Has an event tell of each question that waits for somebody, or of how many before found no room.
pub(super) fn tell_questions(
    holds: &Holds,
    tell: impl Fn(&Value) + Send + 'static,
) -> io::Result<()> {
    let left_out = Arc::new(AtomicU64::new(0));
    let counted = left_out.clone();
    let (sender, questions) = sync_channel::<Arc<HoldQuestion>>(QUESTIONS_MAX);
    thread::Builder::new().name("sandbox-asked".into()).spawn(move || {
        for question in questions {
            let HoldKey { rule, name, port, request } = &question.key;
            let request = request.as_deref();
            tell(&json!({
                "event": "waiting", "name": name, "port": port, "rule": rule,
                "method": request.map(|request| &request.method),
                "path": request.map(|request| &request.path),
                "left_out": counted.swap(0, Relaxed),
            }));
        }
    })?;
    // A question that finds no room is in `eyelet held` all the same. Others are told after it.
    holds.tell(Box::new(move |question| {
        if sender.try_send(question).is_err() {
            left_out.fetch_add(1, Relaxed);
        }
    }));
    Ok(())
}

/// Standard error for lines of the log, each of which becomes an event.
#[derive(Clone, Copy, Debug)]
pub struct JsonLines;

impl Write for JsonLines {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(lines);
        for line in text.lines().filter(|line| !line.ends_with(WAITS)) {
            event(&json!({ "event": "note", "text": line }));
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes an event as one line.
pub(super) fn event(event: &Value) {
    // If standard error cannot be written to, the failure cannot be reported anywhere.
    let _ = io::stderr().lock().write_all(format!("{event}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::mpsc::channel;

    use eyelet_hold::Who;

    use super::*;

    #[test]
    fn questions_that_find_no_room_are_counted() {
        const ASKED: usize = QUESTIONS_MAX + 9;
        let holds = Arc::new(Holds::default());
        let (go_on, gate) = channel::<()>();
        let (sender, told) = channel();
        let tell = move |event: &Value| {
            // The first waits until all are asked, and no other waits.
            let _ = gate.recv();
            let _ = sender.send(event["left_out"].as_u64());
        };
        tell_questions(&holds, tell).expect("a thread");
        let who = Who { client: Ipv4Addr::LOCALHOST.into(), program: None, file: None };
        let places: Vec<_> = (0..ASKED)
            .filter_map(|number| {
                let name = format!("{number}.example").into();
                let key = HoldKey { rule: "asked".into(), name, port: 443, request: None };
                holds.ask(key, who.clone(), 0, 0)
            })
            .collect();
        assert_eq!(places.len(), ASKED);
        drop((go_on, places, holds));
        let told: Vec<u64> = told.iter().map(|left_out| left_out.expect("a number")).collect();
        let left_out: u64 = told.iter().sum();
        assert!(left_out >= 8, "{told:?}");
        assert_eq!(told.len() as u64 + left_out, ASKED as u64, "{told:?}");
    }
}
