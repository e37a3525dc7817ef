//! Requests that failed, by rule, for the command that prints them in a terminal. They are kept
//! only while it does.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::reason::Reason;
use crate::request::RequestInfo;

/// Rules whose failures are kept until they are taken. A shared edge has 1,000 names.
const RULES_MAX: usize = 1024;
/// Characters of a line: a terminal shows it in a few rows.
const LINE_CHARS_MAX: usize = 300;

/// Characters of a path in it: the reason comes after it.
const PATH_CHARS_MAX: usize = 120;

/// The requests of a rule that failed.
#[derive(Debug, PartialEq, Eq)]
pub struct FailedRequests {
    /// The first of them: method, path, status and reason.
    pub first: String,
    /// The number of those after it.
    pub more: u64,
}

/// Failures by the names of the rules.
type FailedByRule = BTreeMap<Box<str>, FailedRequests>;

static IS_WATCHED: AtomicBool = AtomicBool::new(false);
static FAILED: Mutex<FailedByRule> = Mutex::new(BTreeMap::new());

/// The failures since the last call. They are kept from the first call on.
pub fn take() -> FailedByRule {
    IS_WATCHED.store(true, Relaxed);
    std::mem::take(&mut FAILED.lock())
}

/// True if failures are kept, so that a request's path is needed.
pub fn is_watched() -> bool {
    IS_WATCHED.load(Relaxed)
}

/// Keeps a failure. Only failures take the lock.
pub fn note(rule: &str, request: &RequestInfo<'_>, reason: &Reason) {
    if is_watched() {
        add(&mut FAILED.lock(), rule, || line(request, reason));
    }
}

fn add(failed: &mut FailedByRule, rule: &str, line: impl FnOnce() -> String) {
    if let Some(known) = failed.get_mut(rule) {
        known.more += 1;
    } else if failed.len() < RULES_MAX {
        failed.insert(rule.into(), FailedRequests { first: line(), more: 0 });
    }
}

/// The line of a request, without its query. A peer's text moves no cursor.
fn line(request: &RequestInfo<'_>, reason: &Reason) -> String {
    let status = request.status.map_or_else(|| "no response".to_owned(), |s| s.to_string());
    let path = request.path.split('?').next().unwrap_or_default();
    let path: String = path.chars().take(PATH_CHARS_MAX).collect();
    let text = match request.method {
        "" => format!("an unreadable request: {status}: {reason}"),
        method => format!("{method} {path}: {status}: {reason}"),
    };
    let cleaned = text.chars().map(|c| if c.is_control() { '?' } else { c });
    cleaned.take(LINE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::Detail;

    fn request(path: &str) -> RequestInfo<'_> {
        RequestInfo { method: "GET", path, status: Some(502), ..RequestInfo::default() }
    }

    #[test]
    fn the_first_failure_of_a_rule_is_kept_and_the_others_are_counted() {
        let mut failed = BTreeMap::new();
        for (rule, text) in [("a", "one"), ("b", "two"), ("a", "three"), ("a", "four")] {
            add(&mut failed, rule, || text.to_owned());
        }
        let of = |first: &str, more| FailedRequests { first: first.to_owned(), more };
        assert_eq!(failed.get("a"), Some(&of("one", 2)));
        assert_eq!(failed.get("b"), Some(&of("two", 0)));
        for number in 0..2 * RULES_MAX {
            add(&mut failed, &number.to_string(), String::new);
        }
        assert_eq!(failed.len(), RULES_MAX);
        add(&mut failed, "b", String::new);
        assert_eq!(failed.get("b"), Some(&of("two", 1)), "a known one is counted");
    }

    #[test]
    fn a_line_is_short_and_has_no_control_characters() {
        let reason = Reason::Response(Detail::of("two\r\nlines\x1b[2J"));
        let text = line(&request("/a?b"), &reason);
        assert!(text.starts_with("GET /a: 502: "), "{text}");
        assert!(text.contains("two??lines?[2J"), "{text}");
        let long = "/\u{e9}".repeat(LINE_CHARS_MAX);
        let text = line(&request(&long), &reason);
        assert!(text.contains(": 502: ") && text.contains("two??lines"), "{text}");
        let long = Reason::Response(Detail::of("why ".repeat(LINE_CHARS_MAX)));
        assert!(line(&request("/"), &long).chars().count() <= LINE_CHARS_MAX);
    }
}
