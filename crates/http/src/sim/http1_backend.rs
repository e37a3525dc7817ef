//! The scripted upstream that speaks HTTP/1.1, as the plan of each request says.

use fastrand::Rng;

use super::events::Events;
use super::peer::{Leave, Peer};
use super::plan::{Answer, Body, Fault, When};
use super::reader::{Framing, Head, Part, Reader};
use super::request::{Attempt, Request, index_of};
use super::websocket;

/// Heads that are none of HTTP/1.1's.
const MALFORMED: [&str; 4] = [
    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    "HTTP/1.1 2000 OK\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
];

pub struct Http1Backend {
    pub peer: Peer,
    /// Fields of each response.
    fields: &'static str,
    reader: Reader,
    current: Option<Current>,
    /// The key of a WebSocket.
    key: Option<String>,
    /// It has closed, or says nothing more.
    is_over: bool,
}

/// A request that is not answered, or not read, in full.
struct Current {
    request: usize,
    is_read: bool,
    step: Step,
}

/// The next words of the upstream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Interim(u8),
    Head,
    Body,
    Done,
}

impl Http1Backend {
    pub fn new(peer: Peer, fields: &'static str) -> Self {
        Self { peer, fields, reader: Reader::new(), current: None, key: None, is_over: false }
    }

    pub fn is_idle(&self) -> bool {
        self.current.is_none() && !self.reader.is_inside() && self.peer.has_written_all()
    }

    pub fn close(&mut self, how: Leave) {
        self.peer.leave(how);
        self.is_over = true;
    }

    /// Says if it must keep a byte unread, so that its close is a reset.
    pub fn is_to_reset(&self, requests: &[Request]) -> bool {
        let fault = |current: &Current| requests[current.request].plan.answer.fault;
        self.current.as_ref().is_some_and(|current| matches!(fault(current), Fault::Reset(_)))
    }

    pub fn read(&mut self, max: usize, holds: bool, requests: &mut [Request]) {
        let bytes = self.peer.read(max, holds);
        self.reader.push(&bytes);
        while !self.is_over
            && let Some(part) = self.reader.next()
        {
            match (part, &mut self.current) {
                (Part::Head(head), None) => self.begin(&head, requests),
                (Part::Head(head), Some(_)) => panic!("a request before the answer: {head:?}"),
                (Part::Data(data), Some(current)) => requests[current.request].arrive(&data),
                (Part::End(_), Some(current)) => {
                    current.is_read = true;
                    requests[current.request].arrive_end();
                    self.rest();
                }
                (part, None) => panic!("a part of no request: {part:?}"),
            }
        }
    }

    fn begin(&mut self, head: &Head, requests: &mut [Request]) {
        let request = &mut requests[index_of(&head.start[1])];
        assert!(request.is_begun, "a request that nobody has made: {head:?}");
        assert_eq!(head.start[0], request.plan.method);
        assert_eq!(head.start[2], "HTTP/1.1");
        let is_again = request.attempts.iter().any(|attempt| !attempt.is_refused);
        assert!(!is_again || request.plan.is_harmless_twice(), "twice: {request:?}");
        request.attempts.push(Attempt::default());
        self.key = head.value("sec-websocket-key").map(str::to_owned);
        assert_eq!(self.key.is_some(), request.plan.switches, "{head:?}");
        self.reader.begin_body(match request.plan.switches {
            true => Framing::Frames,
            false => head.framing().unwrap_or(Framing::Sized(0)),
        });
        let step = Step::Interim(request.plan.answer.interim);
        // A WebSocket is answered at once, and ends once both sides have said all.
        let is_read = request.plan.switches;
        self.current = Some(Current { request: request.index, is_read, step });
    }

    /// Awaits the next request once this one is read and answered.
    fn rest(&mut self) {
        self.current.take_if(|current| current.is_read && current.step == Step::Done);
    }

    /// Says the next part of an answer, with at most `max` bytes of its body. Returns whether there
    /// was one.
    pub fn answer(
        &mut self,
        max: usize,
        requests: &mut [Request],
        events: &mut Events,
        rng: &mut Rng,
    ) -> bool {
        let Some(current) = self.current.as_mut().filter(|_| !self.is_over) else { return false };
        let request = &mut requests[current.request];
        let answer = request.plan.answer;
        if answer.when == When::AfterRequest && !current.is_read || current.step == Step::Done {
            return false;
        }
        if !current.is_read {
            events.note("an early answer");
        }
        match current.step {
            Step::Interim(0) => current.step = Step::Head,
            Step::Interim(left) => {
                events.note("an interim response");
                request.attempt().interim += 1;
                let interim =
                    format!("HTTP/1.1 103 Early Hints\r\nX-Id: {}\r\n\r\n", request.index);
                self.peer.say(interim.as_bytes(), rng);
                current.step = Step::Interim(left - 1);
            }
            Step::Head => return self.say_head(&answer, requests, events, rng),
            Step::Body => {
                let bytes = request.answer(max.min(websocket::PAYLOAD_BYTES_MAX));
                let (said, len) = (request.attempt().said, request.plan.answer_len());
                let is_chunked = matches!(answer.body, Body::Chunked(_));
                if request.plan.switches {
                    return self.say_frame(&bytes, requests, events, rng);
                }
                if !bytes.is_empty() {
                    let size = format!("{:x}\r\n", bytes.len());
                    self.peer.say(if is_chunked { size.as_bytes() } else { b"" }, rng);
                    self.peer.say(&bytes, rng);
                    self.peer.say(if is_chunked { b"\r\n" } else { b"" }, rng);
                }
                // A length says the end: the next request may come.
                let is_sized = matches!(answer.body, Body::Sized(_)) && said == len;
                if bytes.is_empty() || is_sized {
                    self.end_answer(&answer, requests, events, rng);
                }
            }
            Step::Done => {}
        }
        true
    }

    /// Says a frame of a WebSocket, or ends it once both sides have said all.
    fn say_frame(
        &mut self,
        bytes: &[u8],
        requests: &mut [Request],
        events: &mut Events,
        rng: &mut Rng,
    ) -> bool {
        let Some(current) = &self.current else { return false };
        let request = &mut requests[current.request];
        if !bytes.is_empty() {
            self.peer.say(&websocket::frame(bytes, false), rng);
            return true;
        }
        let is_whole = request.attempt().heard == request.plan.upload.len();
        if is_whole || request.plan.answer.fault != Fault::None {
            let answer = request.plan.answer;
            self.end_answer(&answer, requests, events, rng);
        }
        false
    }

    /// Says the head of an answer, or what a faulty upstream says instead.
    fn say_head(
        &mut self,
        answer: &Answer,
        requests: &mut [Request],
        events: &mut Events,
        rng: &mut Rng,
    ) -> bool {
        let Some(current) = &mut self.current else { return false };
        let request = &mut requests[current.request];
        let framing = match answer.body {
            Body::Sized(len) => format!("Content-Length: {len}\r\n"),
            Body::Chunked(_) => "Transfer-Encoding: chunked\r\n".to_owned(),
            Body::UntilClose(_) => self.key.as_deref().map(websocket::answers).unwrap_or_default(),
            Body::None => String::new(),
        };
        let close = if answer.closes && self.key.is_none() { "Connection: close\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {} Status\r\nX-Id: {}\r\n{}{framing}{close}\r\n",
            answer.status, request.index, self.fields
        );
        match answer.fault {
            Fault::Silent => {
                events.note("an upstream never answers");
                self.is_over = true;
                return false;
            }
            Fault::Malformed(kind) => {
                events.note("a malformed head");
                self.peer.say(MALFORMED[usize::from(kind)].as_bytes(), rng);
                self.close(Leave::Orderly);
                return false;
            }
            Fault::CutHead(in_the_middle) => {
                events.note("an end before the head's");
                let len = if in_the_middle { head.len() / 2 } else { 0 };
                self.peer.say(&head.as_bytes()[..len], rng);
                self.close(Leave::Orderly);
                return false;
            }
            _ => {}
        }
        self.peer.say(head.as_bytes(), rng);
        request.attempt().has_head = true;
        current.step = Step::Body;
        if request.plan.method == "HEAD" || matches!(answer.body, Body::None | Body::Sized(0)) {
            self.end_answer(answer, requests, events, rng);
        }
        true
    }

    /// Ends an answer, or breaks it off where its plan says.
    fn end_answer(
        &mut self,
        answer: &Answer,
        requests: &mut [Request],
        events: &mut Events,
        rng: &mut Rng,
    ) {
        let Some(current) = &mut self.current else { return };
        let request = &mut requests[current.request];
        match answer.fault {
            Fault::Cut(_) => {
                events.note("an upstream ends in the middle of a body");
                return self.close(Leave::Orderly);
            }
            Fault::Reset(_) => {
                // What it has said before a reset arrives.
                self.peer.write(usize::MAX);
                if self.peer.has_written_all() {
                    events.note("an upstream resets in the middle of a body");
                    self.close(Leave::Gone);
                }
                return;
            }
            Fault::Stall(_) => {
                events.note("an upstream stalls in the middle of a body");
                self.is_over = true;
                return;
            }
            _ => {}
        }
        if matches!(answer.body, Body::Chunked(_)) && request.plan.method != "HEAD" {
            let trailer = if answer.has_trailers { "X-Sum: 1\r\n" } else { "" };
            self.peer.say(format!("0\r\n{trailer}\r\n").as_bytes(), rng);
        }
        request.attempt().is_answered = true;
        current.step = Step::Done;
        if request.plan.switches {
            events.note("a WebSocket");
            request.attempt().is_whole = true;
        }
        if answer.closes || request.plan.switches {
            events.note("an upstream closes after its answer");
            self.close(Leave::Orderly);
        }
        self.rest();
    }
}
