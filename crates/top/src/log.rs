//! The newest lines of the access log: a thread reads `/events` while the view is open.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;

use crate::figures::text;
use crate::source::AdminSource;

/// Lines that are kept: as many as the tallest terminal shows.
const LINES_MAX: usize = 50;
/// Bytes of a line of the stream. An event is one line, and has 150 KiB where much is logged.
const EVENT_BYTES_MAX: u64 = 1 << 20;
/// Between two attempts to read the stream. The edge gives it to few at a time.
const AGAIN: Duration = Duration::from_secs(5);

/// The lines that the thread has read.
#[derive(Clone, Debug, Default)]
pub struct LogTail(Arc<Mutex<VecDeque<String>>>);

impl LogTail {
    /// Begins to read. Where there is no stream, there are no lines.
    pub fn follow(source: &AdminSource) -> Self {
        let tail = Self::default();
        let (thread_tail, source) = (tail.clone(), source.clone());
        thread::spawn(move || {
            loop {
                // The view itself says that the edge does not answer.
                if let Ok(stream) = source.follow("/events") {
                    let _ = thread_tail.read(stream);
                }
                thread::sleep(AGAIN);
            }
        });
        tail
    }

    /// The lines, the oldest first.
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().iter().cloned().collect()
    }

    /// Reads events until the stream ends. What is no event is passed over.
    fn read(&self, stream: impl Read) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        loop {
            line.clear();
            stream.by_ref().take(EVENT_BYTES_MAX).read_until(b'\n', &mut line)?;
            if line.last() != Some(&b'\n') {
                return Ok(());
            }
            let event = line.strip_prefix(b"data: ");
            let event = event.and_then(|event| serde_json::from_slice::<Value>(event).ok());
            if let Some(event) = event {
                self.note(&event["log"]["lines"]);
            }
        }
    }

    fn note(&self, lines: &Value) {
        let mut kept = self.0.lock();
        for line in lines.as_array().into_iter().flatten().filter_map(Value::as_str) {
            if kept.len() >= LINES_MAX {
                kept.pop_front();
            }
            kept.push_back(short(line));
        }
    }
}

/// Returns the part of a line of JSON that a person looks for. A line of text has that already.
fn short(line: &str) -> String {
    let Ok(fields) = serde_json::from_str::<Value>(line) else { return line.to_owned() };
    let time = text(&fields, "time");
    // Of a time in RFC 3339 the day is known.
    let clock = time.get(11..19).unwrap_or(time);
    let (outcome, client) = (text(&fields, "outcome"), text(&fields, "client"));
    let name = Some(text(&fields, "sni")).filter(|name| !name.is_empty()).unwrap_or("no name");
    let rule = match text(&fields, "rule") {
        "" => String::new(),
        rule => format!(" by {rule}"),
    };
    let (request, reason) = (request(&fields), text(&fields, "reason"));
    format!("{clock} {outcome:<10} {name}{request} {client}{rule}: {reason}")
}

/// Returns the request, from the fields of its line.
fn request(fields: &Value) -> String {
    let asked = &fields["http"];
    if fields["event"] != "request" || !asked.is_object() {
        return String::new();
    }
    let status = asked["status"].as_u64().map_or_else(|| "-".into(), |status| status.to_string());
    format!(" {} {} {status}", text(asked, "method"), text(asked, "path"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_are_read_from_events_and_bounded() {
        let tail = LogTail::default();
        let line = json!({"time": "2026-11-21T09:30:00.123Z", "outcome": "refused",
            "client": "192.0.2.7:5", "rule": "no", "reason": "refused by name",
            "sni": "b.example"});
        let event = json!({"log": {"lines": ["plain", line.to_string()]}});
        let event = format!("id: 1\ndata: {event}\n\n");
        let stream = format!("{event}data: {{broken\ndata: {{}}\n");
        tail.read(stream.as_bytes()).unwrap();
        let refused = "09:30:00 refused    b.example 192.0.2.7:5 by no: refused by name";
        assert_eq!(tail.lines(), ["plain", refused]);
        // What is not known leaves no gap.
        let line = json!({"time": "2026-11-21T09:30:00.123Z", "outcome": "refused",
            "client": "192.0.2.7:5", "rule": null, "reason": "no TLS", "sni": null});
        assert_eq!(short(&line.to_string()), "09:30:00 refused    no name 192.0.2.7:5: no TLS");
        let line = json!({"time": "2026-11-21T09:30:00.123Z", "event": "request",
            "sni": "a.example", "outcome": "terminated", "client": "192.0.2.7:5", "rule": "app",
            "reason": "complete", "http": {"method": "GET", "path": "/a", "status": 200}});
        let asked = "09:30:00 terminated a.example GET /a 200 192.0.2.7:5 by app: complete";
        assert_eq!(short(&line.to_string()), asked);
        for _ in 0..LINES_MAX {
            tail.read(event.as_bytes()).unwrap();
        }
        assert_eq!(tail.lines().len(), LINES_MAX);
        // A line without an end is not kept.
        let endless = [b"data: ".as_slice(), &vec![b'a'; 2 << 20]].concat();
        tail.read(&endless[..]).unwrap();
        assert_eq!(tail.lines().len(), LINES_MAX);
    }
}
