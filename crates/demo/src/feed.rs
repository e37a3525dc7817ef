//! The live part of the page: new lines of the access log, and the gauge, as server-sent events.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::Path;

use hyper::body::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::hellos::Hellos;
use crate::identity::APP_NAME;

/// Lines that a page gets when it opens, and most lines of one event: a screen or two.
const LINES_SHOWN: usize = 40;
/// Bytes of the log that are read at once: a crowd of 10,000 that leaves writes about 7 MB, which
/// takes two reads.
const READ_BYTES_MAX: u64 = 4 << 20;
/// A line that is longer is not of this log: the longest has about 30 KiB.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Pages that are open at a time.
const SUBSCRIBERS_MAX: usize = 32;
/// Events that wait for a slow page, which then misses the next ones.
const EVENTS_MAX: usize = 16;

/// The access log, and the pages that follow it.
pub(crate) struct Feed(Mutex<State>);

struct State {
    log: Follower,
    /// The newest lines.
    recent: VecDeque<Value>,
    /// Lines since the last event.
    new: Vec<Value>,
    /// Lines since the last event that are not shown one by one.
    left_out: u64,
    subscribers: Vec<Sender<Bytes>>,
}

impl Feed {
    /// Follows this log from its beginning.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn open(log: &Path) -> io::Result<Self> {
        let log = Follower { file: File::open(log)?, rest: Vec::new() };
        let (recent, new) = (VecDeque::new(), Vec::new());
        Ok(Self(Mutex::new(State { log, recent, new, left_out: 0, subscribers: Vec::new() })))
    }

    /// Reads the lines that were written since the last call.
    pub(crate) fn refresh(&self, hellos: &Hellos) {
        let State { log, recent, new, left_out, .. } = &mut *self.0.lock();
        log.read(|text| {
            // 10,000 lines of the crowd say the same; they are only counted.
            if text.contains(CROWD_MARK) {
                *left_out += 1;
                return;
            }
            let Ok(line) = serde_json::from_str::<Value>(text) else { return };
            let is_for_page = line["event"] == "decided" && line["sni"] == APP_NAME;
            let client = line["client"].as_str().and_then(|text| text.parse::<SocketAddr>().ok());
            if let Some(client) = client.filter(|_| is_for_page) {
                hellos.note_line(client, text);
            }
            recent.truncate(LINES_SHOWN - 1);
            recent.push_front(line.clone());
            match new.len() < LINES_SHOWN {
                true => new.push(line),
                false => *left_out += 1,
            }
        });
    }

    /// True if a page is open.
    pub(crate) fn has_subscribers(&self) -> bool {
        !self.0.lock().subscribers.is_empty()
    }

    /// A page's events. They begin with the newest lines. `None`: there are too many pages.
    pub(crate) fn subscribe(&self) -> Option<Receiver<Bytes>> {
        let mut state = self.0.lock();
        // What is new to the others is among the newest lines of this page.
        state.publish(&Value::Null);
        if state.subscribers.len() >= SUBSCRIBERS_MAX {
            return None;
        }
        let (sender, events) = channel(EVENTS_MAX);
        let lines: Vec<&Value> = state.recent.iter().rev().collect();
        // The queue is empty.
        let _ = sender.try_send(event(&json!({ "lines": lines })));
        state.subscribers.push(sender);
        Some(events)
    }

    /// Sends new lines and the gauge to each page.
    pub(crate) fn publish(&self, gauge: &Value) {
        self.0.lock().publish(gauge);
    }
}

impl State {
    fn publish(&mut self, gauge: &Value) {
        let (lines, left_out) = (std::mem::take(&mut self.new), std::mem::take(&mut self.left_out));
        let event = event(&json!({ "lines": lines, "left_out": left_out, "gauge": gauge }));
        self.subscribers.retain(|page| {
            // A page that is too slow misses this event.
            let _ = page.try_send(event.clone());
            !page.is_closed()
        });
    }
}

/// In each line of a connection of the crowd.
const CROWD_MARK: &str = "\"sni\":\"crowd.localhost\"";

fn event(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}

/// Reads a growing file by lines.
struct Follower {
    file: File,
    /// The beginning of a line whose end is not written yet.
    rest: Vec<u8>,
}

impl Follower {
    fn read(&mut self, mut each: impl FnMut(&str)) {
        // What cannot be read now is read the next time.
        let _ = (&self.file).take(READ_BYTES_MAX).read_to_end(&mut self.rest);
        let mut begin = 0;
        while let Some(length) = self.rest[begin..].iter().position(|byte| *byte == b'\n') {
            if let Ok(text) = std::str::from_utf8(&self.rest[begin..begin + length]) {
                each(text);
            }
            begin += length + 1;
        }
        self.rest.drain(..begin);
        if self.rest.len() > LINE_BYTES_MAX {
            self.rest.clear();
        }
        self.rest.shrink_to(LINE_BYTES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::identity::CROWD_NAME;

    #[test]
    fn lines_are_read_once_they_are_whole_and_those_of_the_crowd_are_counted() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let feed = Feed::open(file.path()).unwrap();
        let hellos = Hellos::default();
        assert!(CROWD_MARK.contains(CROWD_NAME));
        file.write_all(br#"{"event":"decided","sni":"crowd.localhost"}"#).unwrap();
        file.write_all(b"\n{\"event\":\"end\",\"sni\":\"origin.loc").unwrap();
        feed.refresh(&hellos);
        assert!(feed.0.lock().recent.is_empty());
        file.write_all(b"alhost\"}\nno JSON\n").unwrap();
        feed.refresh(&hellos);
        let mut page = feed.subscribe().unwrap();
        file.write_all(br#"{"event":"decided","sni":"crowd.localhost"}"#).unwrap();
        file.write_all(b"\n").unwrap();
        feed.refresh(&hellos);
        let first = page.try_recv().unwrap();
        assert!(String::from_utf8_lossy(&first).contains("origin.localhost"));
        feed.publish(&json!({ "parked": 3 }));
        let next = page.try_recv().unwrap();
        let next = String::from_utf8_lossy(&next).into_owned();
        assert!(next.contains("\"left_out\":1") && next.contains("\"parked\":3"), "{next}");
        drop(page);
        feed.publish(&Value::Null);
        assert!(!feed.has_subscribers());
    }

    #[test]
    fn pages_are_bounded() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let feed = Feed::open(file.path()).unwrap();
        let pages: Vec<_> = (0..SUBSCRIBERS_MAX).map(|_| feed.subscribe().unwrap()).collect();
        assert!(feed.subscribe().is_none());
        drop(pages);
        assert!(feed.subscribe().is_some());
    }
}
