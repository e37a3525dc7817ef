//! The library `h2` as the peer, in both roles, over in-memory pipes: random exchanges with random
//! windows and cuts, whose bodies and trailers must arrive as they were sent.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use eyelet_h2::hpack::HeaderField;
use eyelet_h2::{
    ErrorCode, FRAME_HEAD_BYTES, H2Connection, H2Event, H2Limits, H2Received, RequestKind,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

const SEEDS: u64 = 40;
/// More than all exchanges of a seed, so that neither side waits for the other to read.
const PIPE_BYTES: usize = 64 << 20;
/// Windows that one body takes.
const WINDOWS_MAX: usize = 100;
const WAIT: Duration = Duration::from_secs(30);

/// A small generator of random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }

    /// A body whose length is at or beside an edge, or anywhere, but not far above the window: each
    /// window costs a turn.
    fn body(&mut self, limits: &H2Limits) -> Vec<u8> {
        let edges = [0, 1, 100, 16_383, 16_384, 16_385, 65_535, 65_536];
        let len = match self.below(3) {
            0 => edges[self.below(edges.len())],
            1 => self.below(1_000),
            _ => self.below(200_000),
        };
        let len = len.min(limits.stream_window as usize * WINDOWS_MAX);
        let first = self.below(256) as u8;
        (0..len).map(|at| first.wrapping_add((at % 251) as u8)).collect()
    }

    fn limits(&mut self) -> H2Limits {
        H2Limits {
            streams_max: 1 + self.below(50) as u32,
            stream_window: [1, 100, 16_384, 65_535, 1 << 20][self.below(5)],
            connection_window: [65_535, 100_000, 1 << 20][self.below(3)],
            table_bytes: [0, 100, 2048, 4096][self.below(4)],
            ..H2Limits::default()
        }
    }
}

/// Our end of a pipe: a message that comes in, and one that goes out, for each stream.
struct End {
    connection: H2Connection,
    out: Vec<u8>,
    input: Vec<u8>,
    streams: BTreeMap<u32, Exchange>,
    /// Whether it answers each message with the same body and trailers.
    echoes: bool,
    random: Random,
}

#[derive(Default)]
struct Exchange {
    /// What is still to be sent.
    queue: Vec<u8>,
    is_queued: bool,
    has_trailers: bool,
    received: Vec<u8>,
    is_received: bool,
}

impl End {
    /// Reads what has arrived. Returns whether the output must be written before the rest is read.
    fn step(&mut self) -> bool {
        let mut input = std::mem::take(&mut self.input);
        let (mut at, mut is_full) = (0, false);
        loop {
            let received = self.connection.receive(&input[at..], 0, &mut self.out).unwrap();
            let (consumed, released) = match received {
                H2Received::Event { consumed, event } => {
                    (consumed, Some(take(&mut self.streams, self.echoes, &event)))
                }
                H2Received::NeedMore { consumed, .. } => (consumed, None),
                // Bodies wait there, too. The next call is made when they are written.
                H2Received::OutputFull { consumed } => {
                    is_full = true;
                    (consumed, None)
                }
            };
            at += consumed;
            let Some((stream, bytes, is_begun)) = released else { break };
            if is_begun && self.echoes {
                let status = HeaderField::new(b":status", b"200");
                let early = HeaderField::new(b":status", b"103");
                let field = HeaderField::new(b"content-type", b"text/plain");
                self.connection.inform(stream, [early], &mut self.out).unwrap();
                self.connection.respond(stream, [status, field], false, &mut self.out).unwrap();
            }
            self.connection.release(stream, bytes, &mut self.out);
        }
        input.drain(..at);
        self.input = input;
        self.send();
        is_full
    }

    /// Sends what the windows allow.
    fn send(&mut self) {
        for (stream, exchange) in &self.streams {
            self.connection.set_wants_to_send(*stream, !exchange.queue.is_empty());
        }
        while let Some((stream, room)) = self.connection.next_to_send() {
            let exchange = self.streams.get_mut(&stream).unwrap();
            let len = room.min(exchange.queue.len()).min(1 + self.random.below(20_000));
            let is_last = exchange.is_queued && len == exchange.queue.len();
            let ends = is_last && !exchange.has_trailers;
            let head: [u8; FRAME_HEAD_BYTES] = self.connection.data(stream, len, ends).unwrap();
            self.out.extend_from_slice(&head);
            self.out.extend(exchange.queue.drain(..len));
            exchange.is_queued &= !ends;
            self.connection.set_wants_to_send(stream, !exchange.queue.is_empty());
        }
        for (stream, exchange) in &mut self.streams {
            if !exchange.is_queued || !exchange.queue.is_empty() {
                continue;
            }
            exchange.is_queued = false;
            if exchange.has_trailers {
                let field = HeaderField::new(b"sum", b"1");
                self.connection.trailers(*stream, [field], &mut self.out).unwrap();
            } else {
                let head = self.connection.data(*stream, 0, true).unwrap();
                self.out.extend_from_slice(&head);
            }
        }
    }

    async fn pump(&mut self, io: &mut DuplexStream) -> bool {
        while self.step() {
            io.write_all(&std::mem::take(&mut self.out)).await.unwrap();
        }
        io.write_all(&std::mem::take(&mut self.out)).await.unwrap();
        let mut piece = vec![0; 1 + self.random.below(30_000)];
        let count = io.read(&mut piece).await.unwrap_or(0);
        self.input.extend_from_slice(&piece[..count]);
        count > 0
    }
}

/// Takes an event. Returns its stream, the bytes to release, and whether the message has begun.
fn take(
    streams: &mut BTreeMap<u32, Exchange>,
    echoes: bool,
    event: &H2Event<'_>,
) -> (u32, u32, bool) {
    let (stream, bytes, begins, ends) = match event {
        H2Event::Request { stream, is_last, .. } => (*stream, &[][..], true, *is_last),
        H2Event::Response { stream, is_last, head } => {
            (*stream, &[][..], head.status >= 200, *is_last)
        }
        H2Event::Data { stream, data, is_last } => (*stream, *data, false, *is_last),
        H2Event::Trailers { stream, fields } => {
            assert_eq!(fields.value(b"sum"), Some(&b"1"[..]));
            streams.get_mut(stream).unwrap().has_trailers |= echoes;
            (*stream, &[][..], false, true)
        }
        H2Event::Reset { stream, code } => {
            assert_eq!(*code, ErrorCode::NO_ERROR);
            (*stream, &[][..], false, true)
        }
        H2Event::Failed { stream, fault } => panic!("{stream}: {fault:?}"),
        _ => return (0, 0, false),
    };
    let exchange = streams.entry(stream).or_default();
    if echoes {
        exchange.queue.extend_from_slice(bytes);
        exchange.is_queued |= ends;
    } else {
        exchange.received.extend_from_slice(bytes);
        exchange.is_received |= ends;
    }
    (stream, bytes.len() as u32, begins)
}

/// Runs a test of one seed, and says which one hangs.
fn run(seed: u64, test: impl Future<Output = ()> + Send + 'static) {
    let (done, wait) = mpsc::sync_channel(1);
    let thread = thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
        done.send(()).unwrap();
    });
    match wait.recv_timeout(WAIT) {
        Ok(()) => thread.join().unwrap(),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("seed {seed} hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("seed {seed} failed"),
    }
}

/// Sends a message by the library.
async fn send_all(mut send: h2::SendStream<Bytes>, mut body: Bytes, has_trailers: bool) {
    while !body.is_empty() {
        send.reserve_capacity(body.len());
        let room = std::future::poll_fn(|task| send.poll_capacity(task)).await.unwrap().unwrap();
        send.send_data(body.split_to(room.min(body.len())), false).unwrap();
    }
    if has_trailers {
        let fields = [("sum".parse().unwrap(), "1".parse().unwrap())];
        send.send_trailers(fields.into_iter().collect()).unwrap();
    } else {
        send.send_data(Bytes::new(), true).unwrap();
    }
}

/// Receives a message by the library, with its trailers.
async fn receive_all(mut body: h2::RecvStream) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece.unwrap();
        body.flow_control().release_capacity(piece.len()).unwrap();
        all.extend_from_slice(&piece);
    }
    (all, body.trailers().await.unwrap().is_some())
}

async fn our_server(seed: u64) {
    let mut random = Random(seed * 2 + 1);
    let (theirs, mut ours) = tokio::io::duplex(PIPE_BYTES);
    let mut out = Vec::new();
    let limits = random.limits();
    let connection = H2Connection::server(limits, 0, &mut out);
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size([1_000, 65_535, 1 << 20][random.below(3)])
        .initial_connection_window_size([65_535, 1 << 20][random.below(2)])
        .header_table_size([0, 100, 4096, 65_536][random.below(4)]);
    let asked: Vec<_> =
        (0..1 + random.below(60)).map(|_| (random.body(&limits), random.below(4) == 0)).collect();
    let mut end =
        End { connection, out, input: Vec::new(), streams: BTreeMap::new(), echoes: true, random };
    let client = tokio::spawn(async move {
        let (send, connection) = builder.handshake::<_, Bytes>(theirs).await.unwrap();
        let driven = tokio::spawn(connection);
        let mut tasks = Vec::new();
        for (nth, (body, has_trailers)) in asked.into_iter().enumerate() {
            let mut send = send.clone().ready().await.unwrap();
            let request = http::Request::post(format!("https://a.example/{nth}"))
                .header("x-nth", nth)
                .header("content-length", body.len())
                .body(())
                .unwrap();
            let (response, stream) = send.send_request(request, false).unwrap();
            let sent = body.clone();
            tokio::spawn(send_all(stream, body.into(), has_trailers));
            tasks.push(tokio::spawn(async move {
                let response = response.await.unwrap();
                assert_eq!(response.headers()["content-type"], "text/plain");
                assert!(receive_all(response.into_body()).await == (sent, has_trailers), "{nth}");
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        drop(send);
        driven.await.unwrap().unwrap();
    });
    while end.pump(&mut ours).await {}
    client.await.unwrap();
    assert_eq!((end.connection.streams(), end.connection.held()), (0, 0));
}

async fn their_server(io: DuplexStream, builder: h2::server::Builder) {
    let mut connection = builder.handshake::<_, Bytes>(io).await.unwrap();
    while let Some(request) = connection.accept().await {
        let (request, mut respond) = request.unwrap();
        tokio::spawn(async move {
            let (body, has_trailers) = receive_all(request.into_body()).await;
            respond
                .send_informational(http::Response::builder().status(103).body(()).unwrap())
                .unwrap();
            let head = http::Response::builder().header("x-len", body.len()).body(()).unwrap();
            let stream = respond.send_response(head, false).unwrap();
            send_all(stream, body.into(), has_trailers).await;
        });
    }
}

async fn our_client(seed: u64) {
    let mut random = Random(seed * 2 + 1);
    let (theirs, mut ours) = tokio::io::duplex(PIPE_BYTES);
    let mut out = Vec::new();
    let limits = random.limits();
    let connection = H2Connection::client(limits, 0, &mut out);
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size([1_000, 65_535, 1 << 20][random.below(3)])
        .header_table_size([0, 100, 4096, 65_536][random.below(4)])
        .max_concurrent_streams(1 + random.below(20) as u32);
    let mut asked: Vec<_> =
        (0..1 + random.below(60)).map(|_| (random.body(&limits), random.below(4) == 0)).collect();
    let all = asked.len();
    let mut end =
        End { connection, out, input: Vec::new(), streams: BTreeMap::new(), echoes: false, random };
    tokio::spawn(their_server(theirs, builder));
    let mut wanted = BTreeMap::new();
    while end.pump(&mut ours).await {
        while end.step() {
            ours.write_all(&std::mem::take(&mut end.out)).await.unwrap();
        }
        while end.connection.peer_settings().is_some()
            && end.connection.can_open()
            && let Some((body, has_trailers)) = asked.pop()
        {
            let fields = [(":method", "POST"), (":scheme", "https"), (":authority", "a.example")]
                .into_iter()
                .chain([(":path", "/"), ("user-agent", "eyelet")])
                .map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
            let stream =
                end.connection.request(fields, RequestKind::Other, false, &mut end.out).unwrap();
            wanted.insert(stream, body.clone());
            let exchange =
                Exchange { queue: body, is_queued: true, has_trailers, ..Exchange::default() };
            end.streams.insert(stream, exchange);
        }
        end.send();
        let whole = end.streams.values().filter(|exchange| exchange.is_received).count();
        if whole == all {
            break;
        }
    }
    assert_eq!(end.streams.len(), all);
    for (stream, exchange) in &end.streams {
        assert!(exchange.received == wanted[stream], "{stream}: another body");
    }
    assert_eq!(end.connection.held(), 0);
}

#[test]
fn the_librarys_client_is_served() {
    for seed in 0..SEEDS {
        run(seed, our_server(seed));
    }
}

#[test]
fn the_librarys_server_serves_us() {
    for seed in 0..SEEDS {
        run(seed, our_client(seed));
    }
}
