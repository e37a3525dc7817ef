//! Tests of what an HTTP/2 connection reads while memory is short.
#![allow(clippy::unwrap_used)]

use eyelet_engine::testing::worker;
use eyelet_engine::worker::Handle;
use eyelet_h2::RequestKind;
use eyelet_h2::hpack::HeaderField;
use eyelet_memory::budget::{ACTIVE_BYTES, Account, HTTP2_BYTES};
use eyelet_telemetry::info::{ConnectionInfo, Decided};
use eyelet_telemetry::log::Log;

use super::*;
use crate::sim::edge::{Edge, Setup};
use eyelet_downstream::connection::served_connection::{ByteCounts, ClientInfo};

const STREAMS: usize = 5;

/// A connection on a worker of its own, whose program is `edge`.
fn connection(edge: &Edge) -> ServedStreams {
    let http = edge.http.borrow().clone();
    let engine = http.engine.clone();
    let (socket, _) = eyelet_sys::socket::pair().unwrap();
    let key = engine.table.borrow_mut().insert(socket, false);
    engine.process.open.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    engine.process.descriptors.fetch_add(2, std::sync::atomic::Ordering::Relaxed);
    engine.process.budget.take(Account::Connections, ACTIVE_BYTES);
    let client = ClientStream::cleartext(Handle::new(engine.clone(), key), &[]);
    let info = ConnectionInfo {
        id: 1,
        started_unix_ns: 1,
        client: ([127, 0, 0, 1], 5000).into(),
        connect: None,
        owes_answer: false,
        is_decided: true,
        decided: Decided { http2: true, ..Decided::default() },
        bytes_to_upstream: 0,
        bytes_to_client: 0,
    };
    let counts = ByteCounts::of(&client.bytes_to_client);
    let served = ServedConnection::undecided(http, ClientInfo { info, preface: vec![], counts });
    let mut out = Vec::new();
    let h2 = H2Connection::server(limits(&served), 0, &mut out);
    let counted = Counted::new(&engine.process.budget, HTTP2_BYTES);
    ServedStreams::new(client, served, Streams::new(h2, out, counted))
}

/// Begins streams whose tasks have not run.
fn begin(connection: &ServedStreams, up: &[u8]) {
    let mut at = 0;
    loop {
        let (consumed, step) = connection.streams.receive(&up[at..], 0).unwrap();
        at += consumed;
        match step {
            ReadStep::NeedMore => break,
            ReadStep::Request(arrived) => connection.streams.begin(arrived.id, arrived.is_last),
            _ => {}
        }
    }
}

/// Those of one stream wait before the next ones are decoded, because each may be as long as a
/// head. Once there is memory, all are.
#[test]
fn trailers_are_decoded_one_by_one_while_memory_is_short() {
    let (setup, engine) = (Setup::new(), worker());
    let (log, _lines) = Log::captured(&engine.process.budget);
    let edge = Edge::new(&setup, &engine, log);
    let mut connection = connection(&edge);
    let (mut up, budget) = (Vec::new(), engine.process.budget.clone());
    let mut client = H2Connection::client(H2Limits::default(), 0, &mut up);
    let field = |(name, value): (&'static str, &'static str)| {
        HeaderField::new(name.as_bytes(), value.as_bytes())
    };
    let ids = [(); STREAMS].map(|()| {
        let head =
            [(":method", "POST"), (":scheme", "https"), (":path", "/"), (":authority", "a.test")];
        client.request(head.map(field), RequestKind::Other, false, &mut up).unwrap()
    });
    begin(&connection, &std::mem::take(&mut up));
    for id in ids {
        client.trailers(id, [field(("x-sum", "7"))], &mut up).unwrap();
    }
    connection.client.plain.extend_from_slice(&up);
    let left = budget.left();
    budget.take(Account::Http, left);
    assert!(budget.piece().is_none());
    let task = &mut Context::from_waker(std::task::Waker::noop());
    for id in &ids[..2] {
        assert!(connection.poll_read(task).is_pending());
        let taken = ids.map(|id| connection.streams.take_trailers(id).is_some());
        assert_eq!(taken, ids.map(|other| other == *id), "more than one stream's");
    }
    budget.give(Account::Http, left);
    let _ = connection.poll_read(task);
    let taken = ids.map(|id| connection.streams.take_trailers(id).is_some());
    assert_eq!(taken, [false, false, true, true, true]);
    assert!(connection.client.plain.is_empty());
}
