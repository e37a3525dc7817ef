//! Any order of calls on a client and a server that are connected: what one says the other hears,
//! in whatever pieces it arrives.

use std::collections::{BTreeMap, VecDeque};

use crate::hpack::HeaderField;
use crate::{
    ConnectionFault, ErrorCode, FRAME_BYTES_MAX, H2Connection, H2Event, H2Limits, H2Received,
    HeaderFields, ParkedConnection, RequestKind, StreamFault,
};

/// The window of a connection before any other is said, and the largest of a stream here.
const WINDOW_FIRST: u32 = 65_535;
/// Rounds in which all that is on its way arrives, and windows are given back.
const ROUNDS_MAX: usize = 64;
/// Kinds of calls.
const KINDS: u8 = 13;

/// A call. `stream` counts among the open ones; `server` says whose call it is.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// The client begins a stream. Its head has fields that `fields` chooses.
    Request {
        fields: u8,
        is_last: bool,
    },
    Respond {
        stream: u8,
        fields: u16,
        is_last: bool,
    },
    Inform {
        stream: u8,
        fields: u16,
    },
    Data {
        server: bool,
        stream: u8,
        len: u16,
    },
    EndData {
        server: bool,
        stream: u8,
        len: u16,
    },
    Trailers {
        server: bool,
        stream: u8,
        fields: u16,
    },
    Reset {
        server: bool,
        stream: u8,
    },
    /// Gives back the windows of what has arrived.
    Release {
        server: bool,
    },
    SetWindow {
        server: bool,
        bytes: u16,
    },
    Ping {
        server: bool,
    },
    /// Ends in order.
    Shutdown {
        server: bool,
    },
    /// So many bytes arrive.
    Deliver {
        server: bool,
        bytes: u16,
    },
    /// Becomes bytes and a connection again, if no stream is open.
    Park {
        server: bool,
    },
}

impl Call {
    /// The call that any numbers stand for.
    pub fn of((kind, stream, amount, flag): (u8, u8, u16, bool)) -> Self {
        let server = flag;
        match kind % KINDS {
            0 => Self::Request { fields: stream, is_last: flag },
            1 => Self::Respond { stream, fields: amount, is_last: flag },
            2 => Self::Inform { stream, fields: amount },
            3 => Self::Data { server, stream, len: amount },
            4 => Self::EndData { server, stream, len: amount },
            5 => Self::Trailers { server, stream, fields: amount },
            6 => Self::Reset { server, stream },
            7 => Self::Release { server },
            8 => Self::SetWindow { server, bytes: amount },
            9 => Self::Ping { server },
            // Rarely: little happens after it.
            10 if stream < 32 => Self::Shutdown { server },
            11 => Self::Park { server },
            _ => Self::Deliver { server, bytes: amount },
        }
    }
}

type Fields = Vec<(String, String)>;

/// One direction of a stream: what was said, and what of it was heard.
#[derive(Debug, Default)]
struct Message {
    /// Heads and trailers that are on their way.
    heads: VecDeque<Fields>,
    said: usize,
    heard: usize,
    has_head: bool,
    has_ended: bool,
    end_heard: bool,
}

#[derive(Debug, Default)]
struct Stream {
    up: Message,
    down: Message,
    /// One side has ended it before its messages.
    is_dropped: bool,
}

struct End {
    connection: H2Connection,
    /// The bytes that it has said, on their way.
    out: Vec<u8>,
    input: Vec<u8>,
    /// The bytes that have arrived and were not released.
    held: BTreeMap<u32, u32>,
    /// The largest window of a stream so far.
    window_max: u32,
    pings: usize,
}

pub struct Pair {
    ends: [End; 2],
    streams: BTreeMap<u32, Stream>,
}

/// The byte of a body at a position.
fn byte(stream: u32, at: usize) -> u8 {
    (stream as usize * 31 + at % 251) as u8
}

/// Fields that differ by a number: some are in the static table, some repeat, one is long.
fn fields(choice: u16) -> Fields {
    let names = ["accept", "x-a", "x-b", "cookie", "etag"];
    let field = |bit: usize| {
        let value = format!("{}{}", choice >> 5 & 7, "v".repeat(usize::from(choice >> 8)));
        (names[bit].to_owned(), value)
    };
    (0..names.len()).filter(|bit| choice >> bit & 1 == 1).map(field).collect()
}

fn limits(choice: u8) -> H2Limits {
    let pick = |shift: u8| usize::from(choice >> shift & 3);
    H2Limits {
        streams_max: [1, 2, 5, 100][pick(0)],
        stream_window: [1, 100, 16_384, WINDOW_FIRST][pick(2)],
        connection_window: [WINDOW_FIRST, WINDOW_FIRST, 100_000, 1 << 20][pick(4)],
        ..H2Limits::default()
    }
}

/// Makes the calls, has all arrive, and compares what both sides know. A flood of frames may end
/// the connection, and nothing else may.
pub fn any_calls((client, server): (u8, u8), calls: &[Call]) {
    let mut pair = Pair::new(limits(client), limits(server));
    for call in calls {
        if pair.call(*call).is_err() {
            return;
        }
    }
    if pair.settle().is_ok() {
        pair.compare();
    }
}

impl Pair {
    fn new(client: H2Limits, server: H2Limits) -> Self {
        let end = |connection: H2Connection, out: Vec<u8>, limits: H2Limits| End {
            connection,
            out,
            input: Vec::new(),
            held: BTreeMap::new(),
            window_max: limits.stream_window.max(WINDOW_FIRST),
            pings: 0,
        };
        let (mut up, mut down) = (Vec::new(), Vec::new());
        let connection = H2Connection::client(client, 0, &mut up);
        let client = end(connection, up, client);
        let connection = H2Connection::server(server, 0, &mut down);
        Self { ends: [client, end(connection, down, server)], streams: BTreeMap::new() }
    }

    /// One of the streams that both sides may still know.
    fn stream(&self, choice: u8) -> Option<u32> {
        let open = self.streams.iter().filter(|(_, stream)| !stream.is_dropped);
        let open: Vec<u32> = open.map(|(id, _)| *id).collect();
        open.get(usize::from(choice) % open.len().max(1)).copied()
    }

    fn call(&mut self, call: Call) -> Result<(), ConnectionFault> {
        match call {
            Call::Request { fields, is_last } => self.request(fields, is_last),
            Call::Respond { stream, fields, is_last } => {
                self.head(stream, fields, Some(is_last));
            }
            Call::Inform { stream, fields } => self.head(stream, fields, None),
            Call::Data { server, stream, len } => self.data(server, stream, (len, false)),
            Call::EndData { server, stream, len } => self.data(server, stream, (len, true)),
            Call::Trailers { server, stream, fields } => self.trailers(server, stream, fields),
            Call::Reset { server, stream } => {
                let Some(id) = self.stream(stream) else { return Ok(()) };
                let End { connection, out, .. } = &mut self.ends[usize::from(server)];
                let before = out.len();
                connection.reset(id, ErrorCode::CANCEL, out);
                if out.len() > before {
                    self.drop_stream(id);
                }
            }
            Call::Release { server } => self.ends[usize::from(server)].release(),
            Call::SetWindow { server, bytes } => {
                let End { connection, out, window_max, .. } = &mut self.ends[usize::from(server)];
                if connection.set_stream_window(u32::from(bytes), 0, out).is_ok() {
                    *window_max = (*window_max).max(u32::from(bytes));
                }
            }
            Call::Ping { server } => {
                let End { connection, out, pings, .. } = &mut self.ends[usize::from(server)];
                connection.ping(*b"any call", out);
                *pings += 1;
            }
            Call::Shutdown { server } => {
                let End { connection, out, .. } = &mut self.ends[usize::from(server)];
                connection.shutdown(0, out);
            }
            Call::Deliver { server, bytes } => return self.deliver(server, usize::from(bytes)),
            Call::Park { server } => self.ends[usize::from(server)].park(),
        }
        Ok(())
    }

    fn request(&mut self, choice: u8, is_last: bool) {
        let [End { connection, out, .. }, _] = &mut self.ends;
        let mut all = vec![
            (":method".to_owned(), "POST".to_owned()),
            (":scheme".to_owned(), "https".to_owned()),
            (":authority".to_owned(), "a.example".to_owned()),
            (":path".to_owned(), format!("/{choice}")),
        ];
        all.extend(fields(u16::from(choice)));
        let can_open = connection.can_open();
        let made = connection.request(borrowed(&all), RequestKind::Other, is_last, out);
        assert_eq!(made.is_ok(), can_open);
        let Ok(id) = made else { return };
        let mut stream = Stream::default();
        stream.up.heads.push_back(all.split_off(4));
        (stream.up.has_head, stream.up.has_ended) = (true, is_last);
        assert!(self.streams.insert(id, stream).is_none());
    }

    /// A response's head, or with `None` an interim one.
    fn head(&mut self, stream: u8, choice: u16, is_last: Option<bool>) {
        let Some(id) = self.stream(stream) else { return };
        let [_, End { connection, out, .. }] = &mut self.ends;
        let fields = fields(choice);
        let status = if is_last.is_some() { "200" } else { "103" };
        let status = [(":status".to_owned(), status.to_owned())];
        let all = borrowed(&status).chain(borrowed(&fields));
        let said = match is_last {
            Some(is_last) => connection.respond(id, all, is_last, out),
            None => connection.inform(id, all, out),
        };
        let Some(Stream { down, .. }) = self.streams.get_mut(&id) else { return };
        if said.is_ok() {
            assert!(!down.has_head && !down.has_ended);
            down.heads.push_back(fields);
            down.has_head |= is_last.is_some();
            down.has_ended |= is_last == Some(true);
        }
    }

    fn data(&mut self, server: bool, stream: u8, (len, is_last): (u16, bool)) {
        let Some(id) = self.stream(stream) else { return };
        let End { connection, out, .. } = &mut self.ends[usize::from(server)];
        let Some(known) = self.streams.get_mut(&id) else { return };
        let message = if server { &mut known.down } else { &mut known.up };
        let room = connection.room(id);
        assert!(room <= FRAME_BYTES_MAX);
        assert!(connection.data(id, room + 1, false).is_err(), "beyond the window");
        let len = room.min(usize::from(len));
        if len == 0 && !is_last {
            return;
        }
        let Ok(head) = connection.data(id, len, is_last) else { return };
        assert!(message.has_head && !message.has_ended);
        out.extend_from_slice(&head);
        out.extend((message.said..message.said + len).map(|at| byte(id, at)));
        message.said += len;
        message.has_ended |= is_last;
    }

    fn trailers(&mut self, server: bool, stream: u8, choice: u16) {
        let Some(id) = self.stream(stream) else { return };
        let End { connection, out, .. } = &mut self.ends[usize::from(server)];
        let Some(known) = self.streams.get_mut(&id) else { return };
        let message = if server { &mut known.down } else { &mut known.up };
        let fields = fields(choice);
        if connection.trailers(id, borrowed(&fields), out).is_ok() {
            assert!(message.has_head && !message.has_ended);
            message.heads.push_back(fields);
            message.has_ended = true;
        }
    }

    fn drop_stream(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.is_dropped = true;
        }
    }

    /// At most so many bytes of what the other side has said arrive.
    fn deliver(&mut self, server: bool, bytes: usize) -> Result<(), ConnectionFault> {
        let (to, from) = (usize::from(server), usize::from(!server));
        let len = bytes.min(self.ends[from].out.len());
        let arrived: Vec<u8> = self.ends[from].out.drain(..len).collect();
        self.ends[to].input.extend_from_slice(&arrived);
        loop {
            let End { connection, input, held, pings, .. } = &mut self.ends[to];
            // Separate: what is on its way does not count as unwritten.
            let mut out = Vec::new();
            let received = connection.receive(input, 0, &mut out);
            let (consumed, is_more) = match received {
                Ok(H2Received::Event { consumed, event }) => {
                    if let H2Event::Data { stream, data, .. } = &event {
                        *held.entry(*stream).or_default() += data.len() as u32;
                    }
                    *pings -= usize::from(matches!(event, H2Event::Pong(_)));
                    hear(&mut self.streams, server, &event);
                    (consumed, true)
                }
                Ok(H2Received::NeedMore { consumed, .. }) => (consumed, false),
                Ok(H2Received::OutputFull { .. }) => panic!("the output was empty"),
                Err(fault @ (ConnectionFault::Flood(_) | ConnectionFault::Closed)) => {
                    return Err(fault);
                }
                Err(fault) => panic!("{fault:?}"),
            };
            input.drain(..consumed);
            self.ends[to].out.append(&mut out);
            self.ends[to].check_windows();
            if !is_more {
                return Ok(());
            }
        }
    }

    /// All that is on its way arrives, and all windows are given back.
    fn settle(&mut self) -> Result<(), ConnectionFault> {
        for _ in 0..ROUNDS_MAX {
            for server in [true, false] {
                self.deliver(server, usize::MAX)?;
                self.ends[usize::from(server)].release();
            }
            if self.ends.iter().all(|end| end.out.is_empty()) {
                return Ok(());
            }
        }
        panic!("they do not come to rest");
    }

    /// Panics unless both sides know the same.
    fn compare(&mut self) {
        for (id, Stream { up, down, is_dropped }) in &self.streams {
            for message in [up, down].into_iter().filter(|_| !is_dropped) {
                assert_eq!(message.said, message.heard, "bytes of stream {id}");
                assert_eq!(message.has_ended, message.end_heard, "the end of stream {id}");
                assert!(message.heads.is_empty(), "heads of stream {id}");
            }
        }
        let is_open =
            |stream: &&Stream| !(stream.is_dropped || stream.up.end_heard && stream.down.end_heard);
        let open = self.streams.values().filter(is_open).count();
        for end in &mut self.ends {
            assert_eq!(end.connection.streams(), open);
            assert_eq!(end.connection.held(), 0);
            assert_eq!((end.input.len(), end.pings), (0, 0));
            end.park();
        }
    }
}

impl End {
    fn release(&mut self) {
        for (stream, bytes) in std::mem::take(&mut self.held) {
            self.connection.release(stream, bytes, &mut self.out);
        }
    }

    fn check_windows(&self) {
        for (stream, held) in &self.held {
            assert!(*held <= self.window_max, "{held} bytes of stream {stream}");
        }
        // Data that waits for the rest of its frame is held, too.
        assert!(self.held.values().sum::<u32>() <= self.connection.held());
    }

    fn park(&mut self) {
        let Ok(parked) = self.connection.export() else { return };
        let bytes = ParkedConnection::from_bytes(parked.as_bytes()).unwrap();
        self.connection = H2Connection::import(&bytes, 0).unwrap();
        assert_eq!(self.connection.export(), Ok(parked), "nothing is lost between the two forms");
    }
}

fn borrowed(fields: &[(String, String)]) -> impl Iterator<Item = HeaderField<'_>> {
    fields.iter().map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()))
}

fn texts(fields: &HeaderFields) -> Fields {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    fields.iter().map(|field| (text(field.name), text(field.value))).collect()
}

/// One side hears an event. It must be what the other has said next.
fn hear(streams: &mut BTreeMap<u32, Stream>, server: bool, event: &H2Event<'_>) {
    let (id, fields, data, ends) = match event {
        H2Event::Request { stream, head, is_last }
        | H2Event::Response { stream, head, is_last } => {
            (*stream, Some(texts(&head.fields)), &[][..], *is_last)
        }
        H2Event::Data { stream, data, is_last } => (*stream, None, *data, *is_last),
        H2Event::Trailers { stream, fields } => (*stream, Some(texts(fields)), &[][..], true),
        H2Event::Failed { fault, .. } if *fault != StreamFault::TooMany => panic!("{event:?}"),
        H2Event::Reset { stream, .. } | H2Event::Failed { stream, .. } => {
            if let Some(stream) = streams.get_mut(stream) {
                stream.is_dropped = true;
            }
            return;
        }
        H2Event::GoAway { last, .. } => {
            let later = streams.range_mut(last.saturating_add(1)..);
            return later.for_each(|(_, stream)| stream.is_dropped |= !server);
        }
        _ => return,
    };
    let stream = streams.get_mut(&id).expect("a stream that was begun");
    let message = if server { &mut stream.up } else { &mut stream.down };
    assert!(!message.end_heard, "after the end of stream {id}");
    if let Some(fields) = fields {
        assert_eq!(Some(fields), message.heads.pop_front(), "a head of stream {id}");
    }
    let at = message.heard;
    assert!(data.iter().zip(at..).all(|(heard, at)| *heard == byte(id, at)), "stream {id}");
    message.heard += data.len();
    assert!(message.heard <= message.said, "invented on stream {id}");
    assert!(!ends || message.has_ended && message.heard == message.said, "the end of {id}");
    message.end_heard |= ends;
}
