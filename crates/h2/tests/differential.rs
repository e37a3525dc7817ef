//! The library `h2` as the peer, in both roles, over in-memory pipes: random exchanges with random
//! windows and cuts, whose bodies and trailers must arrive as they were sent.
#![allow(clippy::unwrap_used, clippy::panic)]

mod exchange;

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use eyelet_h2::hpack::HeaderField;
use eyelet_h2::{H2Connection, RequestKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use exchange::{End, Exchange, Random};

const SEEDS: u64 = 20;
/// More than all exchanges of a seed, so that neither side waits for the other to read.
const PIPE_BYTES: usize = 64 << 20;
const WAIT: Duration = Duration::from_secs(30);

/// Writes what there is, and reads. Returns whether the peer is there.
async fn pump(end: &mut End, io: &mut DuplexStream) -> bool {
    while end.step() {
        io.write_all(&std::mem::take(&mut end.out)).await.unwrap();
    }
    io.write_all(&std::mem::take(&mut end.out)).await.unwrap();
    let mut piece = vec![0; 1 + end.random.below(30_000)];
    let count = io.read(&mut piece).await.unwrap_or(0);
    end.input.extend_from_slice(&piece[..count]);
    count > 0
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
    let mut end = End::echo(connection, out, random);
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
    while pump(&mut end, &mut ours).await {}
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
    let mut end = End { echoes: false, ..End::echo(connection, out, random) };
    tokio::spawn(their_server(theirs, builder));
    let mut wanted = BTreeMap::new();
    while pump(&mut end, &mut ours).await {
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
