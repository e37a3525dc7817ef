//! The talk of both ends about one request. Each byte and each head is checked when it is heard.

use std::io::Write;

use eyelet_engine::testing::stream::Stream;
use flate2::write::GzDecoder;

use super::plan::{Body, Fault, Plan};

/// Bytes by which the bodies of two requests are shifted: coprime to the stream's period.
const SHIFT: usize = 7_919;

/// The path of the request with this index.
pub fn path(index: usize) -> String {
    format!("/{index}")
}

/// The index in a path.
pub fn index_of(path: &str) -> usize {
    path.strip_prefix('/').and_then(|digits| digits.parse().ok()).expect("a path of the simulator")
}

#[derive(Debug)]
pub struct Request {
    pub index: usize,
    pub plan: Plan,
    pub connection: usize,
    /// Its head is in the client's outbox or beyond.
    pub is_begun: bool,
    /// Its client has broken it off, or has left.
    pub is_left: bool,
    /// The edge has said before its turn that the connection ends.
    pub is_unserved: bool,
    /// Bytes of the body that the client has said, and whether that was all.
    pub said: usize,
    pub is_whole: bool,
    pub response: Heard,
    /// The edge codes the response.
    pub is_coded: bool,
    /// Coded bytes that the client has heard, and what decodes them.
    pub coded: usize,
    decoder: Option<GzDecoder<Vec<u8>>>,
    pub attempts: Vec<Attempt>,
}

/// The part that the client has heard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    pub interim: usize,
    pub status: Option<u16>,
    /// The head is the upstream's. Otherwise it is a page of the edge.
    pub by_upstream: bool,
    pub body: usize,
    pub is_whole: bool,
    pub trailers: usize,
}

/// One arrival at an upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    pub heard: usize,
    pub is_whole: bool,
    /// The part that the upstream has said: interim heads, the head, the body.
    pub interim: usize,
    pub has_head: bool,
    pub said: usize,
    pub is_answered: bool,
    /// The upstream has said that it did not process it.
    pub is_refused: bool,
}

impl Request {
    pub fn new(index: usize, connection: usize, plan: Plan) -> Self {
        Self {
            index,
            plan,
            connection,
            is_begun: false,
            is_left: false,
            is_unserved: false,
            said: 0,
            is_whole: false,
            response: Heard::default(),
            is_coded: false,
            coded: 0,
            decoder: None,
            attempts: Vec::new(),
        }
    }

    /// Says if its upstream leaves it without an end.
    pub fn stalls(&self) -> bool {
        let is_left = matches!(self.plan.answer.fault, Fault::Silent | Fault::Stall(_));
        is_left && !self.response.is_whole
    }

    /// The bytes of the body.
    pub fn upload(&self) -> Stream {
        Stream { flights: Vec::new(), offset: self.index * SHIFT }
    }

    /// The bytes of the response's body.
    pub fn download(&self) -> Stream {
        Stream { flights: Vec::new(), offset: self.index * SHIFT + 1 }
    }

    /// The next bytes of the body, at most `max`.
    pub fn say(&mut self, max: usize) -> Vec<u8> {
        let (mut bytes, left) = (Vec::new(), self.plan.upload.len() - self.said);
        let len = left.min(max);
        self.upload().bytes(self.said, len, |part| bytes.extend_from_slice(part));
        self.said += len;
        bytes
    }

    /// The client hears a head. `of` is the request that its sender names. Returns whether it is
    /// final.
    pub fn hear_head(&mut self, status: u16, of: Option<&str>) -> bool {
        assert!(self.response.status.is_none(), "two heads: {self:?}");
        assert!(of.is_none_or(|of| of == self.index.to_string()), "head of {of:?}: {self:?}");
        if status < 200 && !self.plan.is_status(status) {
            self.response.interim += 1;
            let sent = self.attempts.iter().map(|attempt| attempt.interim).sum::<usize>();
            // The edge itself may say 100.
            assert!(self.response.interim <= sent + usize::from(self.plan.expects), "{self:?}");
            return false;
        }
        self.response.status = Some(status);
        self.response.by_upstream = of.is_some();
        if of.is_some() {
            assert!(self.plan.is_status(status), "{self:?}");
            assert!(self.attempts.iter().any(|attempt| attempt.has_head), "{self:?}");
        } else {
            assert!(status >= 400, "a page of the edge: {self:?}");
        }
        true
    }

    pub fn hear_data(&mut self, bytes: &[u8]) {
        assert!(!self.response.is_whole, "bytes after the end: {self:?}");
        if !self.is_coded {
            return self.hear_plain(bytes);
        }
        self.coded += bytes.len();
        let decoder = self.decoder.get_or_insert_with(|| GzDecoder::new(Vec::new()));
        decoder.write_all(bytes).expect("a coding that its field names");
        let plain = std::mem::take(decoder.get_mut());
        self.hear_plain(&plain);
    }

    fn hear_plain(&mut self, bytes: &[u8]) {
        if self.response.by_upstream {
            self.download().check(self.response.body, bytes, "the client");
        }
        self.response.body += bytes.len();
        let said = self.attempts.iter().map(|attempt| attempt.said).max().unwrap_or(0);
        let is_said = self.response.body <= said;
        assert!(!self.response.by_upstream || is_said, "invented: {self:?}");
    }

    pub fn hear_end(&mut self, trailers: usize) {
        assert!(!self.response.is_whole, "two ends: {self:?}");
        if let Some(decoder) = self.decoder.take() {
            let plain = decoder.finish().expect("a coding that ends");
            self.hear_plain(&plain);
        }
        (self.response.is_whole, self.response.trailers) = (true, trailers);
        if !self.response.by_upstream {
            return;
        }
        let fault = self.plan.answer.fault;
        assert!(
            !matches!(fault, Fault::Cut(_) | Fault::Reset(_) | Fault::Stall(_)),
            "cut unseen: {self:?}"
        );
        // A length says the end before its sender does.
        let is_sized = matches!(self.plan.answer.body, Body::Sized(_));
        let is_said = is_sized || self.attempts.iter().any(|attempt| attempt.is_answered);
        assert!(is_said, "an end that nobody has said: {self:?}");
        assert_eq!(self.response.body, self.plan.answer_len(), "lost: {self:?}");
    }

    /// The stream of a WebSocket's upstream ends, which says nothing of what it has lost.
    pub fn hear_end_of_websocket(&mut self) {
        self.response.is_whole |= self.response.body == self.plan.answer_len();
    }

    /// An upstream hears a part of the body.
    pub fn arrive(&mut self, bytes: &[u8]) {
        let upload = self.upload();
        let said = self.said;
        let attempt = self.attempts.last_mut().expect("its head has arrived");
        upload.check(attempt.heard, bytes, "the upstream");
        attempt.heard += bytes.len();
        assert!(attempt.heard <= said, "invented: request {}", self.index);
    }

    /// An upstream hears the end of the request.
    pub fn arrive_end(&mut self) {
        let len = self.plan.upload.len();
        let is_whole = self.is_whole || matches!(self.plan.upload, Body::Sized(_));
        let attempt = self.attempts.last_mut().expect("its head has arrived");
        attempt.is_whole = true;
        assert_eq!(attempt.heard, len, "lost: request {}", self.index);
        assert!(is_whole, "an end that nobody has said: request {}", self.index);
    }

    /// The last arrival at an upstream.
    pub fn attempt(&mut self) -> &mut Attempt {
        self.attempts.last_mut().expect("it has arrived")
    }

    /// The next bytes of the response's body, at most `max`.
    pub fn answer(&mut self, max: usize) -> Vec<u8> {
        let download = self.download();
        let end = match self.plan.answer.fault {
            Fault::Cut(at) | Fault::Reset(at) | Fault::Stall(at) => at,
            _ => self.plan.answer_len(),
        };
        let (mut bytes, attempt) = (Vec::new(), self.attempt());
        let len = (end - attempt.said).min(max);
        download.bytes(attempt.said, len, |part| bytes.extend_from_slice(part));
        attempt.said += len;
        bytes
    }
}
