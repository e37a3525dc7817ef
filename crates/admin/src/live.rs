//! The watchers of the edge: each reader of `/events` gets a document a second. It is made once for
//! all of them, and not at all while there are none.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use eyelet_telemetry::counters;
use eyelet_telemetry::log::recent::{self, RecentLines};
use futures_util::stream;
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::access::Access;
use crate::history::{History, SAMPLE_STEP};
use crate::routes::{Answers, Content, Document, of_parts, refuse_method, text};
use crate::{page, tick};

/// The time between two documents.
const EVENT_STEP: Duration = Duration::from_secs(1);
/// Readers at a time. The other three quarters of the server's connections are for scrapers.
pub(crate) const READERS_MAX: usize = 8;
/// Documents that wait for a slow reader, which then misses the next ones. One has about 10 KiB,
/// and up to 150 KiB where many lines are logged.
const EVENTS_MAX: usize = 2;

/// The readers, and what they see when they begin.
pub(crate) struct Live {
    history: Arc<History>,
    readers: Mutex<Readers>,
    /// There is a reader where there was none.
    began: Notify,
}

#[derive(Default)]
struct Readers {
    queues: Vec<Sender<Bytes>>,
    /// The number of the last document.
    number: u64,
}

impl Live {
    pub(crate) fn new(history: Arc<History>) -> Self {
        Self { history, readers: Mutex::default(), began: Notify::new() }
    }

    /// Answers a permitted request for the page and for what it lives on. `None`: another path.
    pub(crate) fn answer(&self, answers: &dyn Answers, asked: &Parts) -> Option<Response<Content>> {
        let shown: &dyn Fn() -> Response<Content> = match asked.uri.path() {
            page::PATH => &|| page::answer(&asked.headers),
            "/events" => &|| self.events(answers),
            "/history" => {
                &|| page::coded("application/json", self.history.document(), &asked.headers)
            }
            _ => return None,
        };
        Some(refuse_method(&asked.method).unwrap_or_else(shown))
    }

    /// Samples, and sends documents to readers, until it is dropped. Each reload ends all readers:
    /// the token may be another one.
    pub(crate) async fn run(
        &self,
        answers: &dyn Answers,
        mut access: watch::Receiver<Arc<Access>>,
    ) {
        let mut sample_at = Instant::now();
        loop {
            if Instant::now() >= sample_at {
                self.sample(answers);
                sample_at = Instant::now() + SAMPLE_STEP;
            }
            if access.has_changed().unwrap_or(false) {
                access.mark_unchanged();
                self.readers.lock().queues.clear();
            }
            if self.has_readers() {
                match tick::document(answers, unix_seconds(), recent::take()) {
                    Some(document) => self.readers.lock().publish(&document),
                    // The process ends.
                    None => self.readers.lock().queues.clear(),
                }
                sleep(EVENT_STEP).await;
            } else {
                recent::forget();
                tokio::select! {
                    () = sleep_until(sample_at) => {}
                    () = self.began.notified() => {}
                }
            }
        }
    }

    fn sample(&self, answers: &dyn Answers) {
        let Some(memory) = answers.document(Document::Memory) else { return };
        let bytes = ["accounted_bytes", "kernel_bytes"].map(|key| memory[key].as_u64());
        let bytes = bytes.map(Option::unwrap_or_default);
        self.history.add(unix_seconds() as u64, &counters::snapshot(), bytes);
    }

    /// Begins to send documents. The first is sent at once.
    fn events(&self, answers: &dyn Answers) -> Response<Content> {
        let mut readers = self.readers.lock();
        readers.queues.retain(|reader| !reader.is_closed());
        if readers.queues.len() >= READERS_MAX {
            return text(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open\n");
        }
        let Some(document) = tick::document(answers, unix_seconds(), RecentLines::default()) else {
            return text(StatusCode::SERVICE_UNAVAILABLE, "the process ends\n");
        };
        if readers.queues.is_empty() {
            // Older lines are nobody's.
            recent::take();
            self.began.notify_one();
        }
        let (sender, mut events) = channel(EVENTS_MAX);
        // The queue is empty.
        let _ = sender.try_send(event(readers.number, &document));
        readers.queues.push(sender);
        of_parts("text/event-stream", stream::poll_fn(move |task| events.poll_recv(task)))
    }

    fn has_readers(&self) -> bool {
        let readers = &mut self.readers.lock().queues;
        readers.retain(|reader| !reader.is_closed());
        !readers.is_empty()
    }
}

impl Readers {
    fn publish(&mut self, document: &Value) {
        self.number += 1;
        let event = event(self.number, document);
        for queue in &self.queues {
            // A slow reader misses this one. One that never reads is ended by its socket.
            let _ = queue.try_send(event.clone());
        }
    }
}

/// Nobody watches when the server ends. A server that follows it may have readers already: it takes
/// lines again within a second.
impl Drop for Live {
    fn drop(&mut self) {
        recent::forget();
    }
}

/// Writes a server-sent event as the HTML standard has it. JSON in one line needs no escape.
fn event(number: u64, document: &Value) -> Bytes {
    Bytes::from(format!("id: {number}\ndata: {document}\n\n"))
}

/// Seconds since 1970, by the clock of the machine.
pub fn unix_seconds() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0.0, |now| now.as_secs_f64())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures_util::FutureExt;
    use http_body_util::BodyExt;
    use serde_json::json;

    use super::*;
    use crate::routes::stand_in::Edge;

    fn next(content: &mut Content) -> Option<String> {
        let frame = content.frame().now_or_never()??.unwrap();
        Some(String::from_utf8_lossy(&frame.into_data().unwrap()).into_owned())
    }

    #[test]
    fn a_reader_that_does_not_read_holds_few_documents_and_misses_the_others() {
        let live = Live::new(Arc::default());
        let mut readers: Vec<Content> =
            (0..READERS_MAX).map(|_| live.events(&Edge(|| ())).into_body()).collect();
        assert_eq!(live.events(&Edge(|| ())).status(), StatusCode::SERVICE_UNAVAILABLE);
        let mut reads = readers.pop().unwrap();
        assert!(next(&mut reads).unwrap().starts_with("id: 0\ndata: {"));
        for number in 1..=10 {
            live.readers.lock().publish(&json!({}));
            assert_eq!(next(&mut reads), Some(format!("id: {number}\ndata: {{}}\n\n")));
        }
        let late = readers.last_mut().unwrap();
        assert_eq!((0..10).filter(|_| next(late).is_some()).count(), EVENTS_MAX);
        drop(readers);
        assert!(live.has_readers() && live.readers.lock().queues.len() == 1);
        assert_eq!(live.events(&Edge(|| ())).status(), StatusCode::OK);
    }
}
