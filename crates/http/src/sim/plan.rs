//! The script of one exchange: what the client asks, and what the upstream does with it.

/// Bytes of most bodies, and of large ones: several windows of a stream, and more than a socket
/// takes at once.
const SMALL_BYTES: usize = 3_000;
const LARGE_BYTES: usize = 300_000;

/// Most clients of a run.
const CONNECTIONS_MAX: usize = 4;

/// The choices that a number stands for: its digits, each in a base of its own.
pub struct Choices(pub u128);

impl Choices {
    /// The next choice: a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        let end = end as u128;
        let choice = self.0 % end;
        self.0 /= end;
        choice as usize
    }

    fn one_in(&mut self, end: usize) -> bool {
        self.below(end) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// The events that may happen in a run. A run with few such events tests more: all that is asked
/// must then be answered in full.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Most clients that connect.
    pub connections: usize,
    /// Clients break off.
    pub aborts: bool,
    /// Upstreams break off, stall, or send what is no response.
    pub faults: bool,
    /// Upstreams close connections that rest.
    pub idle_closes: bool,
    pub short_memory: bool,
    pub reloads: bool,
    /// A reload removes the rule.
    pub removes: bool,
    pub drains: bool,
    pub upgrades: bool,
    pub bulk: bool,
}

impl Weather {
    pub fn new(choices: &mut Choices) -> Self {
        let reloads = choices.one_in(4);
        Self {
            connections: 1 + choices.below(CONNECTIONS_MAX),
            aborts: choices.one_in(3),
            faults: choices.one_in(3),
            idle_closes: choices.one_in(3),
            short_memory: choices.one_in(6),
            reloads,
            removes: reloads && choices.one_in(4),
            drains: choices.one_in(8),
            upgrades: choices.one_in(2),
            bulk: choices.one_in(4),
        }
    }

    /// Says if nothing keeps a request from its whole response.
    pub fn is_fair(&self) -> bool {
        let Self { aborts, faults, idle_closes, short_memory, removes, drains, .. } = *self;
        !(aborts || faults || idle_closes || short_memory || removes || drains)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    None,
    /// Its length is announced.
    Sized(usize),
    Chunked(usize),
    /// It ends with its connection.
    UntilClose(usize),
}

impl Body {
    pub(super) fn len(self) -> usize {
        match self {
            Self::None => 0,
            Self::Sized(len) | Self::Chunked(len) | Self::UntilClose(len) => len,
        }
    }
}

/// The moment at which an upstream answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Once it has the whole request.
    AfterRequest,
    /// Once it has the head. The body may be on its way.
    Early,
}

/// A fault of an upstream instead of a full answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Its head is none of HTTP/1.1's.
    Malformed(u8),
    /// It ends its stream before the head or in it.
    CutHead(bool),
    /// It ends its stream after so many bytes of the body.
    Cut(usize),
    /// It resets the connection then.
    Reset(usize),
    /// It says nothing more after so many bytes of the body.
    Stall(usize),
    /// It never answers.
    Silent,
}

#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Body,
    pub interim: u8,
    pub has_trailers: bool,
    pub when: When,
    pub fault: Fault,
    /// It says `Connection: close`, and closes.
    pub closes: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// It switches to a WebSocket: both bodies are the payloads of frames.
    pub switches: bool,
    pub method: &'static str,
    pub upload: Body,
    pub expects: bool,
    /// The client says `Connection: close`.
    pub closes: bool,
    pub answer: Answer,
}

impl Plan {
    pub fn new(choices: &mut Choices, weather: &Weather) -> Self {
        let method = choices.of(&["GET", "GET", "GET", "HEAD", "POST", "POST", "PUT"]);
        let upload = match (method, choices.one_in(2)) {
            ("GET" | "HEAD", _) => Body::None,
            (_, true) => Body::Sized(len(choices, weather)),
            (_, false) => Body::Chunked(len(choices, weather)),
        };
        let answer = Answer::new(choices, weather, (method, upload));
        let expects = upload != Body::None && choices.one_in(4);
        let closes = choices.one_in(20);
        let plan = Self { switches: false, method, upload, expects, closes, answer };
        if choices.one_in(6) { plan.switching(len(choices, weather)) } else { plan }
    }

    /// A WebSocket with so many bytes upwards, and the faults of this plan that it can have.
    fn switching(self, upload: usize) -> Self {
        let down = Body::UntilClose(self.answer.body.len());
        let fault = match self.answer.fault {
            Fault::Cut(at) => Fault::Stall(at),
            fault => fault,
        };
        let answer =
            Answer { status: 101, body: down, when: When::AfterRequest, fault, ..self.answer };
        let upload = Body::UntilClose(upload);
        let (method, expects) = ("GET", false);
        Self { switches: true, method, upload, expects, closes: false, answer }
    }

    /// Bytes of the response's body.
    pub fn answer_len(&self) -> usize {
        if self.method == "HEAD" { 0 } else { self.answer.body.len() }
    }

    /// Says if a response by this status is the upstream's. A WebSocket by HTTP/2 has another.
    pub fn is_status(&self, status: u16) -> bool {
        status == self.answer.status || self.switches && status == 200
    }

    /// Says if asking twice does no harm (RFC 9110 section 9.2.2).
    pub fn is_harmless_twice(&self) -> bool {
        matches!(self.method, "GET" | "HEAD" | "PUT")
    }
}

impl Answer {
    fn new(choices: &mut Choices, weather: &Weather, (method, upload): (&str, Body)) -> Self {
        let status = choices.of(&[200, 200, 200, 200, 204, 304, 404]);
        let len = len(choices, weather);
        let body = match (status, choices.below(5)) {
            (204 | 304, _) => Body::None,
            (_, 0..=1) => Body::Sized(len),
            (_, 2..=3) => Body::Chunked(len),
            _ => Body::UntilClose(len),
        };
        let is_early = upload != Body::None && choices.one_in(5);
        let at = if len == 0 { 0 } else { choices.below(len) };
        let fault = match choices.below(16) {
            _ if !weather.faults => Fault::None,
            0 => Fault::Malformed(choices.below(4) as u8),
            1 => Fault::CutHead(choices.one_in(2)),
            2 => Fault::Silent,
            // They have no body to break off.
            _ if method == "HEAD" || body.len() == 0 => Fault::None,
            3 | 4 if !matches!(body, Body::UntilClose(_)) => Fault::Cut(at),
            5 | 6 => Fault::Reset(at),
            7 => Fault::Stall(at),
            _ => Fault::None,
        };
        Self {
            status,
            body,
            interim: if choices.one_in(6) { 1 + choices.below(2) as u8 } else { 0 },
            has_trailers: choices.one_in(4),
            when: if is_early { When::Early } else { When::AfterRequest },
            fault,
            closes: matches!(body, Body::UntilClose(_)) || choices.one_in(10),
        }
    }
}

fn len(choices: &mut Choices, weather: &Weather) -> usize {
    match choices.below(6) {
        0 => 0,
        1 => 1,
        2 if weather.bulk => choices.below(LARGE_BYTES),
        _ => choices.below(SMALL_BYTES),
    }
}
