//! Who watches the edge: each reader of `/events` gets a document a second. It is made once for all
//! of them, and not at all while there are none.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use eyelet_telemetry::counters;
use eyelet_telemetry::log::recent;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};
use hyper::{Response, StatusCode};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::access::Access;
use crate::history::{History, SAMPLE_STEP};
use crate::routes::{Answers, Content, Document, of_body, text};
use crate::tick;

/// The time between two documents.
const EVENT_STEP: Duration = Duration::from_secs(1);
/// Readers at a time. The other three quarters of the server's connections are for scrapers.
const READERS_MAX: usize = crate::CONNECTIONS_MAX / 4;
/// Documents that wait for a slow reader, which then misses the next ones. One has about 10 KiB,
/// and up to 150 KiB where many lines are logged.
const EVENTS_MAX: usize = 2;

/// The readers, and what they see when they begin.
pub(crate) struct Live {
    pub(crate) history: Arc<History>,
    readers: Mutex<Vec<Sender<Bytes>>>,
    /// There is a reader where there was none.
    began: Notify,
}

impl Live {
    pub(crate) fn new(history: Arc<History>) -> Self {
        Self { history, readers: Mutex::default(), began: Notify::new() }
    }

    /// Samples, and sends documents to readers, until it is dropped. Each reload ends all readers:
    /// the token may be another one.
    pub(crate) async fn run(
        &self,
        answers: &dyn Answers,
        mut access: watch::Receiver<Arc<Access>>,
    ) {
        let mut sample_at = Instant::now();
        let mut number = 0_u64;
        loop {
            if Instant::now() >= sample_at {
                self.sample(answers);
                sample_at = Instant::now() + SAMPLE_STEP;
            }
            if access.has_changed().unwrap_or(false) {
                access.mark_unchanged();
                self.readers().clear();
            }
            if self.has_readers() {
                number += 1;
                match tick::document(answers, unix_seconds(), recent::take()) {
                    Some(document) => self.publish(&event(number, &document)),
                    // The process ends.
                    None => self.readers().clear(),
                }
                sleep(EVENT_STEP).await;
            } else {
                recent::watch(false);
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
    pub(crate) fn events(&self, answers: &dyn Answers) -> Response<Content> {
        let mut readers = self.readers();
        readers.retain(|reader| !reader.is_closed());
        if readers.len() >= READERS_MAX {
            return text(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open\n");
        }
        let (sender, events) = channel(EVENTS_MAX);
        if readers.is_empty() {
            recent::watch(true);
            // Who is there alone gets the first document from `run`.
            self.began.notify_one();
        } else if let Some(document) =
            tick::document(answers, unix_seconds(), recent::RecentLines::default())
        {
            // The queue is empty.
            let _ = sender.try_send(event(0, &document));
        }
        readers.push(sender);
        of_body("text/event-stream", Events(events).boxed_unsync())
    }

    fn has_readers(&self) -> bool {
        let mut readers = self.readers();
        readers.retain(|reader| !reader.is_closed());
        !readers.is_empty()
    }

    fn publish(&self, event: &Bytes) {
        for reader in self.readers().iter() {
            // A slow reader misses this one. One that never reads is ended by its socket.
            let _ = reader.try_send(event.clone());
        }
    }

    fn readers(&self) -> MutexGuard<'_, Vec<Sender<Bytes>>> {
        // A poisoned lock still holds a whole list.
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// No watcher is left when the server ends.
impl Drop for Live {
    fn drop(&mut self) {
        recent::watch(false);
    }
}

/// As the HTML standard writes a server-sent event. JSON in one line needs no escape.
fn event(number: u64, document: &serde_json::Value) -> Bytes {
    Bytes::from(format!("id: {number}\ndata: {document}\n\n"))
}

fn unix_seconds() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0.0, |now| now.as_secs_f64())
}

/// The documents of one reader, as a body without an end.
struct Events(Receiver<Bytes>);

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.get_mut().0.poll_recv(task).map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}
