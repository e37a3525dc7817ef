//! Reads HTTP/1.1 messages as they come. It shares no code with the reader that is tested.

use super::websocket;

/// The head of a message.
#[derive(Debug)]
pub struct Head {
    /// The words of its first line.
    pub start: Vec<String>,
    fields: Vec<(String, String)>,
}

impl Head {
    fn read(text: &str) -> Self {
        let mut lines = text.split("\r\n");
        let start = lines.next().unwrap_or_default().split(' ').map(str::to_owned).collect();
        let field = |line: &str| {
            let (name, value) = line.split_once(':').expect("a field has a colon");
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        Self { start, fields: lines.filter(|line| !line.is_empty()).map(field).collect() }
    }

    /// The value of a field. Panics if there are several.
    pub fn value(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(known, _)| known == name);
        let value = values.next().map(|(_, value)| &**value);
        assert!(values.next().is_none(), "several fields {name}");
        value
    }

    /// The framing of the body, unless the message has none for another reason.
    pub fn framing(&self) -> Option<Framing> {
        match (self.value("content-length"), self.value("transfer-encoding")) {
            (Some(len), None) => Some(Framing::Sized(len.parse().expect("a length"))),
            (None, Some(coding)) => {
                assert_eq!(coding, "chunked");
                Some(Framing::Chunked)
            }
            (None, None) => None,
            both => panic!("two framings: {both:?}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Sized(usize),
    Chunked,
    /// The frames of a WebSocket, until its stream ends.
    Frames,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Head,
    Sized(usize),
    ChunkSize,
    Chunk(usize),
    ChunkEnd,
    Trailers,
    FrameHead,
    Frame(usize),
    /// A frame that closes: nothing counts behind its head.
    Closed,
}

/// A part of a message.
#[derive(Debug)]
pub enum Part {
    /// The caller says how its body is framed, by [`Reader::begin_body`], unless it is interim.
    Head(Head),
    Data(Vec<u8>),
    /// The end of a body, and how many trailers there were.
    End(usize),
}

#[derive(Debug)]
pub struct Reader {
    input: Vec<u8>,
    state: State,
    trailers: usize,
}

impl Reader {
    pub fn new() -> Self {
        Self { input: Vec::new(), state: State::Head, trailers: 0 }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    pub fn begin_body(&mut self, framing: Framing) {
        self.state = match framing {
            Framing::Sized(len) => State::Sized(len),
            Framing::Chunked => State::ChunkSize,
            Framing::Frames => State::FrameHead,
        };
    }

    /// A reader of the frames of a WebSocket.
    pub fn of_frames() -> Self {
        Self { state: State::FrameHead, ..Self::new() }
    }

    /// Says if a message has begun and not ended.
    pub fn is_inside(&self) -> bool {
        !matches!(self.state, State::Head) || !self.input.is_empty()
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        self.input.drain(..len.min(self.input.len())).collect()
    }

    fn line(&mut self, end: &str) -> Option<String> {
        let end_bytes = end.as_bytes();
        let at = self.input.windows(end_bytes.len()).position(|window| window == end_bytes)?;
        let line = self.take(at + end_bytes.len());
        Some(String::from_utf8(line).expect("a line is text"))
    }

    pub fn next(&mut self) -> Option<Part> {
        loop {
            match self.state {
                State::Head => return Some(Part::Head(Head::read(&self.line("\r\n\r\n")?))),
                State::Sized(0) => {
                    self.state = State::Head;
                    return Some(Part::End(0));
                }
                State::Sized(left) => {
                    let data = self.data(left)?;
                    self.state = State::Sized(left - data.len());
                    return Some(Part::Data(data));
                }
                State::ChunkSize => {
                    let line = self.line("\r\n")?;
                    let len = usize::from_str_radix(line.trim_end(), 16).expect("a chunk's size");
                    self.trailers = 0;
                    self.state = if len == 0 { State::Trailers } else { State::Chunk(len) };
                }
                State::Chunk(0) => self.state = State::ChunkEnd,
                State::Chunk(left) => {
                    let data = self.data(left)?;
                    self.state = State::Chunk(left - data.len());
                    return Some(Part::Data(data));
                }
                State::ChunkEnd => {
                    assert_eq!(self.line("\r\n")?, "\r\n", "a chunk is longer than its size");
                    self.state = State::ChunkSize;
                }
                State::FrameHead => {
                    let (head, len, is_last) = websocket::read_head(&self.input)?;
                    self.take(head);
                    self.state = if is_last { State::Closed } else { State::Frame(len) };
                }
                State::Frame(0) => self.state = State::FrameHead,
                State::Frame(left) => {
                    let data = self.data(left)?;
                    self.state = State::Frame(left - data.len());
                    return Some(Part::Data(data));
                }
                State::Closed => return None,
                State::Trailers => match &*self.line("\r\n")? {
                    "\r\n" => {
                        self.state = State::Head;
                        return Some(Part::End(self.trailers));
                    }
                    _ => self.trailers += 1,
                },
            }
        }
    }

    fn data(&mut self, max: usize) -> Option<Vec<u8>> {
        let data = self.take(max);
        (!data.is_empty()).then_some(data)
    }
}
