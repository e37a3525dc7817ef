//! The script of one exchange: what the client asks, and what the upstream does with it.

use fastrand::Rng;

/// Bytes of most bodies, and of large ones: several windows of a stream, and more than a socket
/// takes at once.
const SMALL_BYTES: usize = 3_000;
const LARGE_BYTES: usize = 300_000;

/// What may happen in a run. A run with few such events tests more: all that is asked must then be
/// answered in full.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
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
    pub bulk: bool,
}

impl Weather {
    pub fn new(rng: &mut Rng) -> Self {
        let reloads = rng.u8(..4) == 0;
        Self {
            aborts: rng.u8(..3) == 0,
            faults: rng.u8(..3) == 0,
            idle_closes: rng.u8(..3) == 0,
            short_memory: rng.u8(..6) == 0,
            reloads,
            removes: reloads && rng.u8(..4) == 0,
            drains: rng.u8(..8) == 0,
            bulk: rng.u8(..4) == 0,
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
    pub fn len(self) -> usize {
        match self {
            Self::None => 0,
            Self::Sized(len) | Self::Chunked(len) | Self::UntilClose(len) => len,
        }
    }
}

/// When an upstream answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Once it has the whole request.
    AfterRequest,
    /// Once it has the head. The body may be on its way.
    Early,
}

/// What an upstream does instead of answering in full.
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

#[derive(Clone, Debug)]
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

#[derive(Clone, Debug)]
pub struct Plan {
    pub method: &'static str,
    pub upload: Body,
    pub expects: bool,
    /// The client says `Connection: close`.
    pub closes: bool,
    pub answer: Answer,
}

impl Plan {
    pub fn new(rng: &mut Rng, weather: &Weather) -> Self {
        let method = *rng.choice(&["GET", "GET", "GET", "HEAD", "POST", "POST", "PUT"]).unwrap();
        let upload = match (method, rng.bool()) {
            ("GET" | "HEAD", _) => Body::None,
            (_, true) => Body::Sized(len(rng, weather)),
            (_, false) => Body::Chunked(len(rng, weather)),
        };
        let answer = Answer::new(rng, weather, (method, upload));
        let expects = upload != Body::None && rng.u8(..4) == 0;
        Self { method, upload, expects, closes: rng.u8(..20) == 0, answer }
    }

    /// Bytes of the response's body.
    pub fn answer_len(&self) -> usize {
        if self.method == "HEAD" { 0 } else { self.answer.body.len() }
    }

    /// Says if asking twice does no harm (RFC 9110 section 9.2.2).
    pub fn is_harmless_twice(&self) -> bool {
        matches!(self.method, "GET" | "HEAD" | "PUT")
    }
}

impl Answer {
    fn new(rng: &mut Rng, weather: &Weather, (method, upload): (&str, Body)) -> Self {
        let status = *rng.choice(&[200, 200, 200, 200, 204, 304, 404]).unwrap();
        let len = len(rng, weather);
        let body = match (status, rng.u8(..5)) {
            (204 | 304, _) => Body::None,
            (_, 0..=1) => Body::Sized(len),
            (_, 2..=3) => Body::Chunked(len),
            _ => Body::UntilClose(len),
        };
        let is_early = upload != Body::None && rng.u8(..5) == 0;
        let at = if len == 0 { 0 } else { rng.usize(..len) };
        let fault = match rng.u8(..16) {
            _ if !weather.faults => Fault::None,
            0 => Fault::Malformed(rng.u8(..4)),
            1 => Fault::CutHead(rng.bool()),
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
            interim: if rng.u8(..6) == 0 { rng.u8(1..3) } else { 0 },
            has_trailers: rng.u8(..4) == 0,
            when: if is_early { When::Early } else { When::AfterRequest },
            fault,
            closes: matches!(body, Body::UntilClose(_)) || rng.u8(..10) == 0,
        }
    }
}

fn len(rng: &mut Rng, weather: &Weather) -> usize {
    match rng.u8(..6) {
        0 => 0,
        1 => 1,
        2 if weather.bulk => rng.usize(..LARGE_BYTES),
        _ => rng.usize(..SMALL_BYTES),
    }
}
