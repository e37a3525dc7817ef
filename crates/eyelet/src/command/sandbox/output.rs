//! Writes the messages of a sandbox to standard error.

use std::io::{self, Write};

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

/// Writes an event as one line.
pub(super) fn event(event: &Value) {
    // If standard error cannot be written to, the failure cannot be reported anywhere.
    let _ = io::stderr().lock().write_all(format!("{event}\n").as_bytes());
}
