//! Random runs of two connections with one peer: one rests and comes back from its bytes at every
//! step at which it can, the other never does. Nobody can tell them apart.

use super::*;
use crate::frame::setting;
use crate::{NotAtRest, ParkedAnswer, ParkedConnection, RequestKind};

const SEEDS: u64 = 150;
/// Steps of a run.
const STEPS: usize = 250;
/// Windows are small, so that they are often used up.
const WINDOW: usize = 120;

/// A small generator of random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }
}

/// The connection that rests.
enum Rester {
    Awake(Box<H2Connection>),
    Asleep(ParkedConnection),
}

impl Rester {
    fn wake(&mut self, now_ms: u64) -> &mut H2Connection {
        if let Self::Asleep(parked) = self {
            let parked = ParkedConnection::from_bytes(parked.as_bytes()).unwrap();
            *self = Self::Awake(Box::new(H2Connection::import(&parked, now_ms).unwrap()));
        }
        match self {
            Self::Awake(connection) => connection,
            Self::Asleep(_) => unreachable!(),
        }
    }
}

/// Events of connections, as texts, and the data that came.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    events: Vec<String>,
    data: Vec<(u32, u32)>,
    fault: Option<ConnectionFault>,
}

/// Counts how often a run had a case.
#[derive(Debug, Default)]
struct Seen {
    /// Rests with so many streams at least: 1, 2, 4.
    rests: [usize; 3],
    /// Bytes that were answered while streams rested, and those that woke them.
    answered: usize,
    woken: usize,
    faults: usize,
}

struct Run {
    stays: H2Connection,
    rester: Rester,
    peer: H2Connection,
    /// The bytes on their way, and those that arrived but were not read.
    to_us: Vec<u8>,
    to_peer: Vec<u8>,
    held: [Vec<u8>; 2],
    unreleased: Vec<(u32, u32)>,
    now_ms: u64,
    random: Random,
    seen: Seen,
}

/// Reads all that is there.
fn receive(connection: &mut H2Connection, held: &mut Vec<u8>, now_ms: u64) -> (Heard, Vec<u8>) {
    let (mut heard, mut out) = (Heard::default(), Vec::new());
    loop {
        match connection.receive(held, now_ms, &mut out) {
            Ok(H2Received::Event { consumed, event }) => {
                if let H2Event::Data { stream, data, .. } = &event {
                    heard.data.push((*stream, data.len() as u32));
                }
                // What is answered in place is no event.
                let is_quiet = matches!(
                    event,
                    H2Event::Writable | H2Event::Settings | H2Event::SettingsAcknowledged
                );
                heard.events.extend((!is_quiet).then(|| say(&event)));
                held.drain(..consumed);
            }
            Ok(H2Received::NeedMore { consumed, .. }) => {
                held.drain(..consumed);
                return (heard, out);
            }
            Ok(H2Received::OutputFull { .. }) => panic!("answers are few"),
            Err(fault) => {
                heard.fault = Some(fault);
                return (heard, out);
            }
        }
    }
}

impl Run {
    fn begin(seed: u64, is_server: bool) -> Self {
        let (mut to_us, mut to_peer) = (Vec::new(), Vec::new());
        let limits =
            H2Limits { stream_window: WINDOW as u32, streams_max: 6, ..Default::default() };
        let new = |is_server, out: &mut Vec<u8>| match is_server {
            true => H2Connection::server(limits, 0, out),
            false => H2Connection::client(limits, 0, out),
        };
        let stays = new(is_server, &mut Vec::new());
        let rester = Rester::Awake(Box::new(new(is_server, &mut to_peer)));
        let peer = new(!is_server, &mut to_us);
        Self {
            stays,
            rester,
            peer,
            to_us,
            to_peer,
            held: Default::default(),
            unreleased: Vec::new(),
            now_ms: 0,
            random: Random(seed * 2 + u64::from(is_server) + 1),
            seen: Seen::default(),
        }
    }

    /// Does something with both connections of ours.
    fn ours<R: PartialEq + std::fmt::Debug>(
        &mut self,
        act: impl Fn(&mut H2Connection, &mut Vec<u8>) -> R,
    ) -> R {
        let (mut out, mut wanted) = (Vec::new(), Vec::new());
        let result = act(&mut self.stays, &mut wanted);
        assert_eq!(act(self.rester.wake(self.now_ms), &mut out), result);
        assert_eq!(out, wanted);
        self.to_peer.extend(out);
        result
    }

    /// Does it at random by us or by the peer.
    fn anybody(&mut self, act: impl Fn(&mut H2Connection, &mut Vec<u8>) -> bool) {
        if self.random.below(2) == 0 {
            self.ours(act);
        } else {
            act(&mut self.peer, &mut self.to_us);
        }
    }

    /// Returns the bytes that our connections could send before something arrived.
    fn rooms(&mut self) -> Vec<(u32, usize)> {
        let streams: Vec<u32> = self.stays.streams.iter().map(|stream| stream.id).collect();
        streams.into_iter().map(|stream| (stream, self.stays.room(stream))).collect()
    }

    /// Some of the bytes of the peer arrive. Returns whether the connections go on.
    fn arrive(&mut self) -> bool {
        let count = (1 + self.random.below(60)).min(self.to_us.len());
        let bytes: Vec<u8> = self.to_us.drain(..count).collect();
        self.held.iter_mut().for_each(|held| held.extend_from_slice(&bytes));
        let before = self.rooms();
        let [stays, rests] = &mut self.held;
        let (wanted, wanted_out) = receive(&mut self.stays, stays, self.now_ms);
        let mut out = Vec::new();
        if let Rester::Asleep(parked) = &mut self.rester {
            let (has_streams, answer) =
                (parked.streams() > 0, parked.answer(rests, self.now_ms, &mut out));
            match answer {
                ParkedAnswer::NeedMore { consumed, .. } => {
                    self.seen.answered += usize::from(has_streams && consumed > 0);
                    rests.drain(..consumed);
                }
                ParkedAnswer::Wake { consumed } => {
                    self.seen.woken += usize::from(has_streams);
                    rests.drain(..consumed);
                    self.rester.wake(self.now_ms);
                }
                ParkedAnswer::OutputFull { .. } => panic!("answers are few"),
            }
        }
        match &mut self.rester {
            Rester::Awake(connection) => {
                let (heard, more) = receive(connection, rests, self.now_ms);
                out.extend(more);
                assert_eq!((heard, &out), (wanted_of(&wanted), &wanted_out));
            }
            Rester::Asleep(parked) => {
                let parked = parked.clone();
                assert_eq!((&out, &wanted), (&wanted_out, &Heard::default()));
                self.check_rest(Ok(parked));
                for (stream, room) in before {
                    assert!(room > 0 || self.stays.room(stream) == 0, "{stream} is not told");
                }
            }
        }
        self.unreleased.extend(&wanted.data);
        self.to_peer.extend(out);
        self.seen.faults += usize::from(wanted.fault.is_some());
        wanted.fault.is_none()
    }

    /// The peer reads what we have sent.
    fn peer_reads(&mut self) -> bool {
        let (heard, out) = receive(&mut self.peer, &mut self.to_peer, self.now_ms);
        self.to_us.extend(out);
        let releases = self.random.below(3) > 0;
        for (stream, bytes) in heard.data.into_iter().filter(|_| releases) {
            self.peer.release(stream, bytes, &mut self.to_us);
        }
        heard.fault.is_none()
    }

    /// Both would rest with the same bytes, unless the one that never rests has read the beginning
    /// of a frame.
    fn check_rest(&self, parked: Result<ParkedConnection, NotAtRest>) {
        let (parked, wanted) = (parked.map(uncounted), self.stays.export().map(uncounted));
        let is_ahead = wanted == Err(NotAtRest::Frame);
        assert!(is_ahead || parked == wanted, "{parked:?} {wanted:?}");
    }

    /// Our connection rests where it can.
    fn rest(&mut self) {
        let Rester::Awake(connection) = &self.rester else { return };
        let parked = connection.export();
        self.check_rest(parked.clone());
        if let Ok(parked) = parked {
            for (seen, least) in self.seen.rests.iter_mut().zip([1, 2, 4]) {
                *seen += usize::from(parked.streams() >= least);
            }
            self.rester = Rester::Asleep(parked);
        }
    }

    /// One step. Returns whether the connections go on.
    fn step(&mut self) -> bool {
        let below = self.random.below(self.stays.last_stream as usize / 2 + 2);
        let (stream, some) = (2 * below as u32 + 1, self.random.below(WINDOW));
        match self.random.below(20) {
            0 | 1 => self.anybody(|connection, out| {
                let kinds = [RequestKind::Head, RequestKind::Connect, RequestKind::Other];
                let length = some.to_string();
                let fields = [POST, &[("content-length", &*length)][..usize::from(some < 60)]];
                let fields: Vec<_> = fields.concat();
                let fields = fields.iter().map(field);
                connection.request(fields, kinds[some % 3], some.is_multiple_of(4), out).is_ok()
            }),
            2 | 3 => self.anybody(|connection, out| {
                let fields = [HeaderField::new(b":status", b"200")];
                connection.respond(stream, fields, some.is_multiple_of(4), out).is_ok()
            }),
            4..7 => self.anybody(|connection, out| {
                let len = some.min(connection.room(stream));
                let head = connection.data(stream, len, some.is_multiple_of(16));
                let is_sent = head.is_ok();
                head.iter().for_each(|head| out.extend_from_slice(head));
                out.extend(std::iter::repeat_n(b'd', if is_sent { len } else { 0 }));
                is_sent
            }),
            7 => self.anybody(|connection, out| {
                let sum = HeaderField::new(b"sum", b"1");
                some.is_multiple_of(3) && connection.trailers(stream, [sum], out).is_ok()
            }),
            8 if some.is_multiple_of(3) => self.anybody(|connection, out| {
                connection.reset(stream, ErrorCode::CANCEL, out);
                true
            }),
            9 if some.is_multiple_of(4) => self.anybody(|connection, out| {
                connection.set_stream_window(2 * some as u32, 0, out).is_ok()
            }),
            10 => self.to_us.extend(frame(kind::PING, 0, 0, b"12345678")),
            11 => self.raw_window(stream, some),
            12 => self.to_us.extend(frame(kind::PRIORITY, 0, stream, &[0, 0, 0, 0, 5])),
            13 if some == 0 => {
                let id = [setting::HEADER_TABLE_SIZE, setting::MAX_CONCURRENT_STREAMS];
                self.to_us.extend(settings(&[(id[below % 2], 100)]));
            }
            14 => {
                for (stream, bytes) in std::mem::take(&mut self.unreleased) {
                    self.ours(|connection, out| connection.release(stream, bytes, out));
                }
            }
            15 => return self.peer_reads(),
            16 => self.now_ms += some as u64,
            _ => return self.arrive(),
        }
        true
    }

    /// The peer opens a window, mostly by little.
    fn raw_window(&mut self, stream: u32, some: usize) {
        let stream = if some.is_multiple_of(3) { 0 } else { stream };
        let bytes = if some == 1 { 0x7fff_ffff } else { 1 + some as u32 };
        // A frame in the middle of one that is on its way would be another's payload: all of what
        // is on its way is whole frames.
        if stream <= self.stays.last_stream {
            self.to_us.extend(window(stream, bytes));
        }
    }

    fn run(mut self) -> Seen {
        for _ in 0..8 {
            self.peer_reads();
            while !self.to_us.is_empty() {
                self.arrive();
            }
        }
        for _ in 0..STEPS {
            if !self.step() {
                break;
            }
            self.rest();
        }
        self.seen
    }
}

/// The bytes without the bucket of control frames: the head of SETTINGS may count earlier than its
/// payload, which is when a parked connection counts it.
fn uncounted(parked: ParkedConnection) -> Vec<u8> {
    let mut bytes = parked.as_bytes().to_vec();
    [58..66, 74..76].into_iter().for_each(|place| bytes[place].fill(0));
    bytes
}

/// A copy of what was heard, to be compared.
fn wanted_of(heard: &Heard) -> Heard {
    Heard { events: heard.events.clone(), data: heard.data.clone(), fault: heard.fault }
}

#[test]
fn nobody_can_tell_a_connection_that_rests() {
    for is_server in [true, false] {
        let mut all = Seen::default();
        for seed in 0..SEEDS {
            println!("seed {seed}, a server: {is_server}");
            let seen = Run::begin(seed, is_server).run();
            all.rests.iter_mut().zip(seen.rests).for_each(|(all, seen)| *all += seen);
            all.answered += seen.answered;
            all.woken += seen.woken;
            all.faults += seen.faults;
        }
        println!("{all:?}");
        let Seen { rests, answered, woken, .. } = all;
        assert!(![rests[0], rests[1], rests[2], answered, woken].contains(&0), "{all:?}");
        assert!(all.faults < SEEDS as usize / 2, "runs end too early: {all:?}");
    }
}
