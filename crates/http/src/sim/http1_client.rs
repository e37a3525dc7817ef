//! A scripted client that speaks HTTP/1.1: it keeps its connection, sends requests ahead, and reads
//! the responses in their order.

use std::collections::VecDeque;

use fastrand::Rng;

use super::edge::HOSTS;
use super::peer::Peer;
use super::plan::Body;
use super::reader::{Framing, Head, Part, Reader};
use super::request::{Request, path};
use super::websocket;

/// Requests that a client sends before the first is answered.
const AHEAD_MAX: usize = 3;

pub struct Http1Client {
    pub peer: Peer,
    pub host: &'static str,
    reader: Reader,
    /// Requests without a whole response, in their order.
    waiting: VecDeque<usize>,
    /// The request whose body is not said yet, and whether the client waits for 100.
    saying: Option<(usize, bool)>,
    /// It asks nothing more on this connection: one side has said that it is the last.
    is_last: bool,
    /// The response that comes, or came, is the last one.
    is_closing: bool,
    has_switched: bool,
}

impl Http1Client {
    pub fn new(peer: Peer, host: &'static str) -> Self {
        Self {
            peer,
            host,
            reader: Reader::new(),
            waiting: VecDeque::new(),
            saying: None,
            is_last: false,
            is_closing: false,
            has_switched: false,
        }
    }

    pub fn can_begin(&self) -> bool {
        let may_speak = !self.is_last && !self.peer.is_finished() && !self.peer.is_over();
        may_speak && self.saying.is_none() && self.waiting.len() < AHEAD_MAX
    }

    pub fn begin(&mut self, request: &mut Request, rng: &mut Rng) {
        let plan = &request.plan;
        let framing = match plan.upload {
            Body::Sized(len) => format!("Content-Length: {len}\r\n"),
            Body::Chunked(_) => "Transfer-Encoding: chunked\r\n".to_owned(),
            Body::UntilClose(_) => websocket::ASKS.to_owned(),
            Body::None => String::new(),
        };
        let expect = if plan.expects { "Expect: 100-continue\r\n" } else { "" };
        let close = if plan.closes { "Connection: close\r\n" } else { "" };
        let (method, path, host) = (plan.method, path(request.index), self.host);
        let accept = if host == HOSTS[2] { "Accept-Encoding: gzip\r\n" } else { "" };
        let fields = format!("Host: {host}\r\n{accept}{framing}{expect}{close}");
        let head = format!("{method} {path} HTTP/1.1\r\n{fields}\r\n");
        self.peer.say(head.as_bytes(), rng);
        request.is_begun = true;
        self.is_last |= plan.closes || plan.switches;
        self.waiting.push_back(request.index);
        match plan.upload {
            Body::None => request.is_whole = true,
            // It waits for 101, whatever happens.
            Body::UntilClose(_) => {}
            _ => self.saying = Some((request.index, plan.expects)),
        }
    }

    /// Says at most `max` bytes of a body. With `insists` it does not wait for 100.
    pub fn say(&mut self, max: usize, insists: bool, requests: &mut [Request], rng: &mut Rng) {
        let Some((index, waits)) = self.saying else { return };
        if waits && !insists || self.peer.is_finished() || self.peer.is_over() {
            return;
        }
        let request = &mut requests[index];
        let bytes = request.say(max.min(websocket::PAYLOAD_BYTES_MAX));
        let is_chunked = matches!(request.plan.upload, Body::Chunked(_));
        match is_chunked {
            _ if request.plan.switches => self.peer.say(&websocket::frame(&bytes, true), rng),
            true if !bytes.is_empty() => {
                self.peer.say(format!("{:x}\r\n", bytes.len()).as_bytes(), rng);
                self.peer.say(&bytes, rng);
                self.peer.say(b"\r\n", rng);
            }
            true => {}
            false => self.peer.say(&bytes, rng),
        }
        if request.said == request.plan.upload.len() {
            if is_chunked {
                self.peer.say(b"0\r\n\r\n", rng);
            }
            request.is_whole = true;
            self.saying = None;
        }
    }

    /// Reads at most `max` bytes.
    pub fn read(&mut self, max: usize, holds: bool, requests: &mut [Request]) {
        let bytes = self.peer.read(max, holds);
        self.reader.push(&bytes);
        while let Some(part) = self.reader.next() {
            let front = *self.waiting.front().expect("a response that nobody has asked for");
            match part {
                Part::Head(head) => self.take_head(&head, &mut requests[front]),
                Part::Data(data) => requests[front].hear_data(&data),
                Part::End(trailers) => {
                    requests[front].hear_end(trailers);
                    self.waiting.pop_front();
                    if self.is_closing {
                        self.leave_waiting(requests);
                    }
                }
            }
        }
        if self.peer.is_over() {
            if let (true, Some(index)) = (self.has_switched, self.waiting.front()) {
                requests[*index].hear_end_of_websocket();
            }
            self.leave_waiting(requests);
        }
    }

    fn take_head(&mut self, head: &Head, request: &mut Request) {
        assert_eq!(head.start[0], "HTTP/1.1");
        let status = head.start[1].parse().expect("a status");
        if !request.hear_head(status, head.value("x-id")) {
            if let (100, Some((index, waits))) = (status, &mut self.saying) {
                *waits &= *index != request.index;
            }
            return;
        }
        if status == 101 {
            self.reader.begin_body(Framing::Frames);
            (self.has_switched, self.saying) = (true, Some((request.index, false)));
            return;
        }
        request.is_coded = head.value("content-encoding") == Some("gzip");
        let is_empty = request.plan.method == "HEAD" || matches!(status, 204 | 304);
        self.reader.begin_body(match is_empty {
            true => Framing::Sized(0),
            false => head.framing().expect("a response that does not end with its connection"),
        });
        let closes = head.value("connection").is_some_and(|value| value.contains("close"));
        assert!(closes || !request.plan.closes, "the last response does not say so: {request:?}");
        (self.is_closing, self.is_last) = (self.is_closing | closes, self.is_last | closes);
    }

    /// Forgets the requests that wait: they are not answered any more on this connection.
    fn leave_waiting(&mut self, requests: &mut [Request]) {
        self.waiting.drain(..).for_each(|index| requests[index].is_unserved = true);
        (self.saying, self.is_last) = (None, true);
    }

    /// Says if it waits for nothing, and has said all.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.saying.is_none()
    }

    /// The requests that are not answered in full.
    pub fn waiting(&self) -> impl Iterator<Item = usize> {
        self.waiting.iter().copied()
    }
}
