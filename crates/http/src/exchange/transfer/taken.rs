//! Keeps the first part of a request's body while the request may have to be sent again: an
//! upstream may say that it has not processed it (RFC 9113 section 8.7).

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use eyelet_engine::worker::Worker;
use eyelet_memory::budget::{Budget, Counted};
use http::HeaderMap;

use eyelet_downstream::client::exchange_error::ExchangeError;
use eyelet_downstream::client::stream::{SMALL_BYTES, Stream};
use eyelet_http1::body::Piece;
use eyelet_http1::head_bytes::{map_bytes, text_bytes};
use eyelet_http1::write_queue::WriteQueue;

/// Most bytes of a body that are kept. An upstream gets no more before it opens a window (RFC 9113
/// section 6.9.2), and it refuses a request before it reads on.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// A request's body as far as it was taken from the client.
#[derive(Default)]
pub struct TakenBody {
    kept: Kept,
    /// The request may have to be sent again.
    is_wanted: bool,
}

#[derive(Default)]
enum Kept {
    /// Nothing was taken.
    #[default]
    Nothing,
    /// All that was taken is here.
    All(Box<KeptBody>),
    /// Some of what was taken is gone.
    Lost,
}

/// The beginning of a body. Large pieces share the memory of the queue to the upstream.
struct KeptBody {
    /// Bytes that this try has sent, in their order.
    sent: WriteQueue,
    /// Bytes that an earlier try has sent, and this one has not.
    again: WriteQueue,
    trailers: Option<HeaderMap>,
    /// Memory of the trailers.
    trailers_held: usize,
    counted: Counted,
}

impl KeptBody {
    fn new(budget: &Arc<Budget>) -> Self {
        Self {
            sent: WriteQueue::default(),
            again: WriteQueue::default(),
            trailers: None,
            trailers_held: 0,
            counted: Counted::new(budget, 0),
        }
    }

    fn held(&self) -> usize {
        self.sent.held() + self.again.held() + self.trailers_held
    }

    fn push(&mut self, piece: &Piece) {
        match piece {
            Piece::Data(data) => self.sent.push(data.clone()),
            Piece::End(trailers) => {
                self.trailers_held = trailers.as_ref().map_or(0, trailers_bytes);
                self.trailers.clone_from(trailers);
            }
        }
        self.counted.set(self.held());
    }

    /// True if this try has sent all of it.
    fn is_sent(&self, is_read: bool) -> bool {
        self.again.is_empty() && (self.trailers.is_none() || is_read)
    }
}

impl TakenBody {
    /// Begins another try. `is_wanted`: it may not be the last one.
    pub fn begin(&mut self, is_wanted: bool) {
        self.is_wanted = is_wanted;
        if let Kept::All(kept) = &mut self.kept {
            while let Some(rest) = kept.again.take(usize::MAX) {
                kept.sent.push(rest);
            }
            std::mem::swap(&mut kept.sent, &mut kept.again);
        }
    }

    /// Notes that the request is not sent again.
    pub fn end_tries(&mut self) {
        self.is_wanted = false;
    }

    /// True if all that was taken can be sent again.
    pub fn is_whole(&self) -> bool {
        !matches!(self.kept, Kept::Lost)
    }

    /// True if the client's next bytes come behind some that are sent again.
    pub fn has_more(&self) -> bool {
        matches!(&self.kept, Kept::All(kept) if !kept.again.is_empty())
    }

    /// Notes that bytes were passed on without [`TakenBody::poll_piece`].
    pub fn lose(&mut self) {
        self.kept = Kept::Lost;
    }

    /// The next piece of the body: what an earlier try has sent, and then what the client sends.
    /// About `max` bytes may be read for it.
    pub fn poll_piece(
        &mut self,
        task: &mut Context<'_>,
        stream: &mut Stream<'_>,
        max: usize,
        engine: &Worker,
    ) -> Poll<Result<Piece, ExchangeError>> {
        if let Some(piece) = self.next_again() {
            return Poll::Ready(Ok(piece));
        }
        let piece = ready!(stream.poll_piece(task, max))?;
        self.note(&piece, &engine.process.budget);
        Poll::Ready(Ok(piece))
    }

    /// The next piece that an earlier try has sent.
    fn next_again(&mut self) -> Option<Piece> {
        let Kept::All(kept) = &mut self.kept else { return None };
        match kept.again.take(usize::MAX) {
            Some(data) => {
                kept.sent.push(data.clone());
                Some(Piece::Data(data))
            }
            None => kept.trailers.clone().map(|trailers| Piece::End(Some(trailers))),
        }
    }

    /// Notes a piece of the client's.
    fn note(&mut self, piece: &Piece, budget: &Arc<Budget>) {
        let more = match piece {
            // Such an end can be read again.
            Piece::End(None) => return,
            // Their reader bounds them.
            Piece::End(Some(_)) => 0,
            Piece::Data(data) => data.len(),
        };
        let may_keep = self.is_wanted && !budget.is_filling(more);
        let mut kept = match std::mem::replace(&mut self.kept, Kept::Lost) {
            Kept::Nothing if may_keep => Box::new(KeptBody::new(budget)),
            Kept::All(kept) if may_keep => kept,
            Kept::Nothing | Kept::All(_) | Kept::Lost => return,
        };
        if kept.sent.len() + more <= KEPT_BYTES_MAX {
            kept.push(piece);
            self.kept = Kept::All(kept);
        }
    }

    /// Frees what is kept once nothing needs it, or others need the memory. This checks again at
    /// each tick. `is_read`: this try has sent the body's end.
    pub fn give_way(&mut self, task: &Context<'_>, engine: &Worker, is_read: bool) {
        let Kept::All(kept) = &self.kept else { return };
        if !kept.is_sent(is_read) {
            return;
        }
        // Little is counted with the connection.
        let is_large = kept.held() > SMALL_BYTES;
        if !self.is_wanted || is_large && engine.process.budget.is_filling(0) {
            self.kept = Kept::Lost;
        } else if is_large {
            engine.wants_memory(task);
        }
    }
}

fn trailers_bytes(trailers: &HeaderMap) -> usize {
    map_bytes(trailers) + text_bytes(trailers)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]

    use std::task::Waker;

    use http::HeaderValue;

    use super::*;
    use eyelet_upstream::testing::worker;

    fn piece(byte: u8, bytes: usize) -> Piece {
        Piece::Data(vec![byte; bytes].into())
    }

    /// Takes pieces from the client.
    fn take(body: &mut TakenBody, budget: &Arc<Budget>, pieces: &[(u8, usize)]) {
        for (byte, bytes) in pieces {
            body.note(&piece(*byte, *bytes), budget);
        }
    }

    /// Bytes that are sent again before the client's next one.
    fn again(body: &mut TakenBody) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(Piece::Data(data)) = body.next_again() {
            all.extend_from_slice(&data);
        }
        all
    }

    fn begun(is_wanted: bool) -> TakenBody {
        let mut body = TakenBody::default();
        body.begin(is_wanted);
        body
    }

    #[test]
    fn each_try_sends_what_was_taken_in_its_order() {
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let mut body = begun(true);
        take(&mut body, &budget, &[(1, 3), (2, 2_000), (3, 5), (4, 40_000)]);
        let sent = [&[1; 3][..], &[2; 2_000], &[3; 5], &[4; 40_000]].concat();
        assert!(budget.used() >= sent.len());
        body.begin(true);
        assert!(body.has_more());
        assert_eq!(again(&mut body), sent);
        take(&mut body, &budget, &[(5, 7)]);
        let sent = [&sent[..], &[5; 7]].concat();
        body.begin(true);
        // A try that ends in the middle.
        let Some(Piece::Data(first)) = body.next_again() else { panic!("it was kept") };
        assert!(sent.starts_with(&first) && first.len() < sent.len());
        body.begin(true);
        assert_eq!(again(&mut body), sent);
        let trailers = HeaderMap::from_iter([(http::header::TRAILER, HeaderValue::from(1))]);
        body.note(&Piece::End(Some(trailers.clone())), &budget);
        body.begin(false);
        assert_eq!(again(&mut body), sent);
        assert_eq!(body.next_again(), Some(Piece::End(Some(trailers))));
        drop(body);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn no_more_is_kept_than_may_be_needed() {
        let budget = Arc::new(Budget::new(64 << 20, 0));
        for (is_wanted, bytes, is_whole) in [
            (true, KEPT_BYTES_MAX, true),
            (true, KEPT_BYTES_MAX + 1, false),
            (false, 1, false),
            (false, 0, true),
        ] {
            let mut body = begun(is_wanted);
            take(&mut body, &budget, &vec![(1, 1); bytes]);
            assert_eq!(body.is_whole(), is_whole, "{is_wanted} {bytes}");
            // Single bytes take no more memory than others.
            assert!(budget.used() <= 2 * KEPT_BYTES_MAX, "{}", budget.used());
            drop(body);
            assert_eq!(budget.used(), 0);
        }
    }

    #[test]
    fn what_is_kept_goes_first_when_memory_is_short() {
        let (worker, task) = (worker(), Context::from_waker(Waker::noop()));
        let budget = worker.process.budget.clone();
        let mut body = begun(true);
        take(&mut body, &budget, &[(1, 20_000)]);
        body.give_way(&task, &worker, true);
        assert!(body.is_whole(), "there is room");
        let others = Counted::new(&budget, budget.bytes_max() / 10 * 8);
        assert!(!budget.is_tight(0));
        let mut new = begun(true);
        take(&mut new, &budget, &[(1, 1)]);
        assert!(!new.is_whole(), "nothing new is kept");
        body.begin(true);
        body.give_way(&task, &worker, false);
        assert!(body.has_more(), "the next try has to send it first");
        again(&mut body);
        body.give_way(&task, &worker, false);
        assert!(!body.is_whole());
        drop(others);
        assert_eq!(budget.used(), 0);
    }
}
