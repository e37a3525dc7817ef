//! A scripted client that speaks HTTP/2: several streams, windows that it opens when it likes, and
//! resets.

use std::collections::BTreeMap;

use eyelet_h2::hpack::HeaderField;
use eyelet_h2::{
    ErrorCode, H2Connection, H2Event, H2Limits, H2Received, PeerSettings, RequestKind,
};
use fastrand::Rng;

use super::edge::HOSTS;
use super::peer::Peer;
use super::plan::{Body, Plan};
use super::reader::{Part, Reader};
use super::request::{Request, path};
use super::websocket;

pub struct Http2Client {
    pub peer: Peer,
    pub host: &'static str,
    connection: H2Connection,
    input: Vec<u8>,
    /// Frames that are not sealed yet.
    frames: Vec<u8>,
    /// Streams that have not ended, and their requests.
    streams: BTreeMap<u32, usize>,
    /// Readers of those that are WebSockets.
    readers: BTreeMap<u32, Reader>,
    /// Bytes of bodies that are not released.
    held: Vec<(u32, u32)>,
    has_failed: bool,
    pub pongs: usize,
}

/// The contents of an event, without its loan.
enum Heard {
    Head { stream: u32, status: u16, of: Option<String>, is_coded: bool, is_last: bool },
    Data { stream: u32, data: Vec<u8>, is_last: bool },
    End { stream: u32, trailers: usize },
    Reset { stream: u32, code: ErrorCode },
    Leaves { last: u32 },
    Pong,
    Other,
}

impl Heard {
    fn of(event: &H2Event<'_>) -> Self {
        match event {
            H2Event::Response { stream, head, is_last } => {
                let of = head.fields.value(b"x-id").map(|of| String::from_utf8_lossy(of).into());
                let is_coded = head.fields.value(b"content-encoding") == Some(b"gzip");
                let status = head.status;
                Self::Head { stream: *stream, status, of, is_coded, is_last: *is_last }
            }
            H2Event::Data { stream, data, is_last } => {
                Self::Data { stream: *stream, data: data.to_vec(), is_last: *is_last }
            }
            H2Event::Trailers { stream, fields } => {
                Self::End { stream: *stream, trailers: fields.iter().count() }
            }
            H2Event::Reset { stream, code } => Self::Reset { stream: *stream, code: *code },
            H2Event::GoAway { last, .. } => Self::Leaves { last: *last },
            H2Event::Pong(_) => Self::Pong,
            H2Event::Failed { stream, fault } => panic!("stream {stream}: {fault:?}"),
            _ => Self::Other,
        }
    }
}

impl Http2Client {
    /// A client. With `bulk` no window is so small that a large body takes all day.
    pub fn new(peer: Peer, host: &'static str, bulk: bool, rng: &mut Rng) -> Self {
        let mut frames = Vec::new();
        let limits = H2Limits {
            stream_window: match rng.bool() {
                true if !bulk => rng.u32(30..3_000),
                _ => *rng.choice(&[16_384, 65_535, 1 << 20]).unwrap(),
            },
            connection_window: *rng.choice(&[65_535, 1 << 20]).unwrap(),
            ..H2Limits::default()
        };
        let connection = H2Connection::client(limits, 0, &mut frames);
        Self {
            peer,
            host,
            connection,
            input: Vec::new(),
            frames,
            streams: BTreeMap::new(),
            readers: BTreeMap::new(),
            held: Vec::new(),
            has_failed: false,
            pongs: 0,
        }
    }

    fn flush(&mut self, rng: &mut Rng) {
        let frames = std::mem::take(&mut self.frames);
        if !frames.is_empty() {
            self.peer.say(&frames, rng);
        }
    }

    pub fn can_begin(&self, plan: &Plan) -> bool {
        let takes = |settings: &PeerSettings| settings.connect_protocol;
        let may_switch = || self.connection.peer_settings().is_some_and(takes);
        let may_speak = !self.peer.is_finished() && !self.peer.is_over();
        may_speak && self.connection.can_open() && (!plan.switches || may_switch())
    }

    pub fn begin(&mut self, request: &mut Request, rng: &mut Rng) {
        let plan = &request.plan;
        let (path, len) = (path(request.index), plan.upload.len().to_string());
        let method = if plan.switches { "CONNECT" } else { plan.method };
        let mut fields = vec![
            (":method", method),
            (":scheme", "https"),
            (":authority", self.host),
            (":path", &path),
        ];
        if plan.switches {
            fields.push((":protocol", "websocket"));
            fields.push(("sec-websocket-version", "13"));
        }
        if self.host == HOSTS[2] {
            fields.push(("accept-encoding", "gzip"));
        }
        if let Body::Sized(_) = plan.upload {
            fields.push(("content-length", &len));
        }
        if plan.expects {
            fields.push(("expect", "100-continue"));
        }
        let fields =
            fields.iter().map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
        let kind = match plan.method {
            _ if plan.switches => RequestKind::Connect,
            "HEAD" => RequestKind::Head,
            _ => RequestKind::Other,
        };
        let is_last = plan.upload == Body::None;
        let stream = self.connection.request(fields, kind, is_last, &mut self.frames).unwrap();
        self.streams.insert(stream, request.index);
        (request.is_begun, request.is_whole) = (true, is_last);
        self.flush(rng);
    }

    /// Says at most `max` bytes of one body, as the windows allow.
    pub fn say(&mut self, max: usize, requests: &mut [Request], rng: &mut Rng) {
        if self.peer.is_finished() || self.peer.is_over() || self.has_failed {
            return;
        }
        let may_say = |request: &Request| {
            // The upstream has to switch first.
            !request.is_whole && (!request.plan.switches || request.response.status == Some(200))
        };
        let saying = self.streams.iter().filter(|(_, index)| may_say(&requests[**index]));
        let saying: Vec<(u32, usize)> = saying.map(|(stream, index)| (*stream, *index)).collect();
        let Some((stream, index)) = rng.choice(saying) else { return };
        let request = &mut requests[index];
        if request.plan.switches {
            return self.say_frame(stream, max, request, rng);
        }
        let room = self.connection.room(stream).min(max);
        let bytes = request.say(room);
        let is_last = request.said == request.plan.upload.len();
        if bytes.is_empty() && !is_last {
            return;
        }
        let head = self.connection.data(stream, bytes.len(), is_last).unwrap();
        self.frames.extend_from_slice(&head);
        self.frames.extend_from_slice(&bytes);
        request.is_whole = is_last;
        if is_last && request.response.is_whole {
            self.streams.remove(&stream);
        }
        self.flush(rng);
    }

    /// Says a frame of a WebSocket, whose stream it keeps open.
    fn say_frame(&mut self, stream: u32, max: usize, request: &mut Request, rng: &mut Rng) {
        let room = self.connection.room(stream).saturating_sub(websocket::HEAD_BYTES_MAX);
        let bytes = request.say(room.min(max).min(websocket::PAYLOAD_BYTES_MAX));
        if !bytes.is_empty() {
            let frame = websocket::frame(&bytes, true);
            let head = self.connection.data(stream, frame.len(), false).unwrap();
            self.frames.extend_from_slice(&head);
            self.frames.extend_from_slice(&frame);
        }
        request.is_whole = request.said == request.plan.upload.len();
        self.flush(rng);
    }

    /// Gives windows back: all, or one part.
    pub fn release(&mut self, all: bool, rng: &mut Rng) {
        while let Some((stream, bytes)) = self.held.pop() {
            self.connection.release(stream, bytes, &mut self.frames);
            if !all {
                break;
            }
        }
        self.flush(rng);
    }

    pub fn ping(&mut self, rng: &mut Rng) {
        self.connection.ping(*b"simulate", &mut self.frames);
        self.flush(rng);
    }

    /// Breaks a request off. Returns its index.
    pub fn reset(&mut self, requests: &mut [Request], rng: &mut Rng) -> bool {
        let open: Vec<u32> = self.streams.keys().copied().collect();
        let Some(stream) = rng.choice(open) else { return false };
        self.connection.reset(stream, ErrorCode::CANCEL, &mut self.frames);
        if let Some(index) = self.streams.remove(&stream) {
            requests[index].is_left = true;
        }
        self.flush(rng);
        true
    }

    /// Says that it begins no more streams, where it ends in order.
    pub fn shut_down(&mut self, rng: &mut Rng) {
        self.connection.shutdown(0, &mut self.frames);
        self.flush(rng);
    }

    /// Reads at most `max` bytes.
    pub fn read(&mut self, max: usize, holds: bool, requests: &mut [Request], rng: &mut Rng) {
        let bytes = self.peer.read(max, holds);
        self.input.extend_from_slice(&bytes);
        while !self.has_failed {
            let mut frames = std::mem::take(&mut self.frames);
            let received = self.connection.receive(&self.input, 0, &mut frames);
            let (consumed, heard) = match received {
                Ok(H2Received::Event { consumed, event }) => (consumed, Some(Heard::of(&event))),
                Ok(H2Received::OutputFull { consumed }) => (consumed, Some(Heard::Other)),
                Ok(H2Received::NeedMore { consumed, .. }) => (consumed, None),
                Err(fault) => panic!("the edge breaks the protocol: {fault:?}"),
            };
            self.frames = frames;
            self.input.drain(..consumed);
            self.flush(rng);
            let Some(heard) = heard else { break };
            self.take(heard, requests);
            self.flush(rng);
        }
        if self.peer.is_over() {
            self.streams.values().for_each(|index| requests[*index].is_unserved = true);
            self.streams.clear();
        }
    }

    fn take(&mut self, heard: Heard, requests: &mut [Request]) {
        match heard {
            Heard::Head { stream, status, of, is_coded, is_last } => {
                let Some(index) = self.streams.get(&stream) else { return };
                let request = &mut requests[*index];
                request.is_coded = is_coded;
                let is_final = request.hear_head(status, of.as_deref());
                if request.plan.switches && status == 200 {
                    self.readers.insert(stream, Reader::of_frames());
                }
                assert!(is_final || !is_last);
                self.end(stream, is_last.then_some(0), requests);
            }
            Heard::Data { stream, data, is_last } => {
                self.held.push((stream, data.len() as u32));
                let Some(index) = self.streams.get(&stream) else { return };
                match self.readers.get_mut(&stream) {
                    None => requests[*index].hear_data(&data),
                    Some(reader) => {
                        reader.push(&data);
                        while let Some(Part::Data(data)) = reader.next() {
                            requests[*index].hear_data(&data);
                        }
                    }
                }
                self.end(stream, is_last.then_some(0), requests);
            }
            Heard::End { stream, trailers } => self.end(stream, Some(trailers), requests),
            Heard::Reset { stream, code } => {
                let Some(index) = self.streams.remove(&stream) else { return };
                // After a whole response the rest of the request is not wanted.
                let request = &mut requests[index];
                assert!(!request.response.is_whole || code == ErrorCode::NO_ERROR, "{request:?}");
                request.is_unserved |= !request.response.is_whole;
            }
            Heard::Leaves { last } => {
                self.streams.range(last + 1..).for_each(|(_, i)| requests[*i].is_unserved = true);
                self.streams.split_off(&(last + 1));
            }
            Heard::Pong => self.pongs += 1,
            Heard::Other => {}
        }
    }

    /// A response ends. Its stream does not if the request is still to be said.
    fn end(&mut self, stream: u32, trailers: Option<usize>, requests: &mut [Request]) {
        let (Some(trailers), Some(index)) = (trailers, self.streams.get(&stream)) else { return };
        if self.readers.remove(&stream).is_some() {
            requests[*index].hear_end_of_websocket();
            // What it has not said yet, nobody would hear.
            let head = self.connection.data(stream, 0, true).unwrap();
            self.frames.extend_from_slice(&head);
            self.streams.remove(&stream);
            return;
        }
        requests[*index].hear_end(trailers);
        if requests[*index].is_whole {
            self.streams.remove(&stream);
        }
    }

    /// Says if it waits for nothing, and has said all.
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    /// The requests that are not answered in full.
    pub fn waiting(&self) -> impl Iterator<Item = usize> {
        self.streams.values().copied()
    }
}
