//! The thread that sends spans, a batch at a time. It tries again if the collector asks for it,
//! within bounds that keep the queue moving.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::client::{CollectorClient, Sent};
use crate::otlp;
use crate::queue::SpanQueue;

/// The largest number of times that a batch is sent. The pauses between the tries take 15 seconds.
/// A busy edge fills the queue meanwhile.
const TRIES_MAX: u32 = 5;
/// The first pause before a batch is sent again. Each is twice as long as the one before.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause that a collector may ask for: what comes meanwhile is lost.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Starts the thread. It ends when the queue is closed and empty.
pub fn start(
    client: CollectorClient,
    service_name: Box<str>,
    queue: Arc<SpanQueue>,
) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let ends = EndsQueue(queue);
    let thread = std::thread::Builder::new().name("trace".into());
    let body = move || {
        let queue = &*ends.0;
        let mut exporter = Exporter { client, runtime, queue };
        while let Some(batch) = queue.next() {
            let body = queue.count_body(otlp::encode(&batch.exchanges, &service_name));
            let spans = batch.exchanges.iter().map(|exchange| exchange.count()).sum();
            drop(batch);
            let refused = exporter.send(&body, spans);
            drop(body);
            queue.settle(refused);
            if !queue.has_batch() {
                exporter.hang_up();
            }
        }
    };
    // Nobody joins it: the queue says when it has ended.
    thread.spawn(body).map(drop)
}

/// Says that the thread has ended, also by a panic: the end of the process must not wait for it.
pub struct EndsQueue(pub Arc<SpanQueue>);

impl Drop for EndsQueue {
    fn drop(&mut self) {
        self.0.end();
    }
}

struct Exporter<'a> {
    client: CollectorClient,
    runtime: Runtime,
    queue: &'a SpanQueue,
}

impl Exporter<'_> {
    /// Sends a batch. Returns how many of its spans are lost.
    fn send(&mut self, body: &bytes::Bytes, spans: u64) -> u64 {
        let mut pause = PAUSE;
        let mut tries = 1;
        let why = loop {
            let (why, after) = match self.runtime.block_on(self.client.post(body.clone())) {
                Sent::Taken { refused: 0, .. } => {
                    self.queue.note_taken();
                    return 0;
                }
                // OTLP: what was refused in part must not be sent again.
                Sent::Taken { refused, why } => {
                    self.queue.report(&why);
                    return refused;
                }
                Sent::Refused(why) => break why,
                Sent::Later(why, after) => (why, after),
            };
            let wait = after.unwrap_or(pause).min(PAUSE_MAX);
            self.hang_up();
            if tries == TRIES_MAX || !self.queue.rest(wait) {
                break why;
            }
            tries += 1;
            pause *= 2;
        };
        self.queue.report(&why);
        spans
    }

    /// Nothing looks after a connection while the thread waits.
    fn hang_up(&mut self) {
        self.runtime.block_on(self.client.hang_up());
    }
}
