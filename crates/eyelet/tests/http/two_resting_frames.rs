//! Rare frames on a resting HTTP/2 connection: windows that are used up or shrink, tables of fields
//! that shrink, GOAWAY. A stream goes on, here and in another process.

use std::io::Write;
use std::net::TcpStream;

use crate::resting::{ADMIN, listed};
use crate::resting_https::upgrade_whole;
use crate::support::client::Offer;
use crate::support::frames::{
    DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PING, PREFACE, SETTINGS, WINDOW_UPDATE,
    frame, get, next,
};
use crate::support::web::{Web, head};
use crate::support::{Tls, Upstream, until};

const ACK: u8 = 1;
const HEADER_TABLE_SIZE: u16 = 1;
const INITIAL_WINDOW_SIZE: u16 = 4;

fn settings(pairs: &[(u16, u32)]) -> Vec<u8> {
    let pairs = pairs.iter().flat_map(|(id, value)| {
        id.to_be_bytes().into_iter().chain(value.to_be_bytes()).collect::<Vec<_>>()
    });
    frame(SETTINGS, 0, 0, &pairs.collect::<Vec<_>>())
}

fn window(stream: u32, more: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &more.to_be_bytes())
}

/// A client by hand with one event stream, and its upstream.
struct Raw {
    web: Web,
    client: Tls,
    app: TcpStream,
}

impl Raw {
    fn new(window_bytes: u32) -> Self {
        let web = Web::with(Upstream::by_hand(), "", ADMIN);
        let offer = Offer { alpn: &["h2"], ..Offer::new(&web.pki) };
        let mut client = offer.connect(web.edge.address(), "app.test");
        let ask = frame(HEADERS, END_STREAM | END_HEADERS, 1, &get("/events"));
        let greeting = settings(&[(INITIAL_WINDOW_SIZE, window_bytes)]);
        client.write_all(&[PREFACE, &greeting, &ask].concat()).unwrap();
        let mut app = web.app.take();
        head(&mut app);
        app.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        Self { web, client, app }
    }

    fn says(&mut self, bytes: &[u8]) {
        self.client.write_all(bytes).unwrap();
    }

    /// The next frame of a kind, behind others that say nothing. SETTINGS are acknowledged.
    fn hears(&mut self, kind: u8) -> Frame {
        loop {
            let heard = next(&mut self.client).expect("the connection is open");
            if heard.kind == SETTINGS && heard.flags & ACK == 0 {
                self.says(&frame(SETTINGS, ACK, 0, &[]));
            }
            let is_ack = heard.kind == SETTINGS && heard.flags & ACK != 0;
            if heard.kind == kind && (kind != SETTINGS || is_ack) {
                return heard;
            }
            let is_quiet = [HEADERS, SETTINGS, WINDOW_UPDATE].contains(&heard.kind);
            assert!(is_quiet, "{heard:?} in the place of {kind}");
        }
    }

    fn event(&mut self, text: &str) {
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        self.app.write_all(chunk.as_bytes()).unwrap();
    }

    /// The client gets this event, by one frame.
    fn gets(&mut self, text: &str) {
        let data = self.hears(DATA);
        assert_eq!((data.stream, &*data.payload), (1, text.as_bytes()), "{data:?}");
    }

    fn rests(&self) {
        let socket = self.web.pki.folder.path().join("admin.sock");
        until("the connection to rest", || {
            let listed = listed(&socket)?;
            let is_parked = listed.len() == 1 && listed[0]["state"] == "parked";
            (is_parked && listed[0]["resting"]["response"] == 1).then_some(())
        });
    }

    /// An answer shows that all before it has been read.
    fn pings(&mut self) {
        self.says(&frame(PING, 0, 0, b"12345678"));
        let pong = self.hears(PING);
        assert_eq!((pong.flags, &*pong.payload), (ACK, &b"12345678"[..]));
    }
}

/// Its last byte was sent when it came to rest.
#[test]
fn a_stream_whose_window_is_used_up_rests_and_moves() {
    let mut raw = Raw::new(5);
    raw.event("first");
    raw.gets("first");
    raw.rests();
    let later = upgrade_whole(&mut raw.web);
    raw.pings();
    raw.says(&window(1, 5));
    raw.rests();
    raw.event("again");
    raw.gets("again");
    raw.rests();
    // What comes now waits for a window, and nothing else does.
    raw.event("later");
    raw.pings();
    raw.says(&window(1, 5));
    raw.gets("later");
    raw.app.write_all(b"0\r\n\r\n").unwrap();
    assert_eq!(raw.hears(DATA).flags & END_STREAM, END_STREAM);
    assert_eq!(raw.web.request_line("/events")["reason"], "complete");
    drop(later);
}

/// A window that shrinks below zero, a table of fields that is gone, and GOAWAY, each at rest.
#[test]
fn settings_that_shrink_and_goaway_come_at_rest() {
    let mut raw = Raw::new(100);
    raw.event("first");
    raw.gets("first");
    raw.rests();
    raw.says(&settings(&[(INITIAL_WINDOW_SIZE, 0), (HEADER_TABLE_SIZE, 0)]));
    raw.hears(SETTINGS);
    raw.rests();
    let later = upgrade_whole(&mut raw.web);
    raw.event("later");
    raw.pings();
    // Five bytes were sent before, so ten leave room for five.
    raw.says(&window(1, 10));
    raw.gets("later");
    raw.rests();
    raw.says(&frame(GOAWAY, 0, 0, &[0; 8]));
    raw.says(&window(1, 5));
    raw.event("still");
    raw.gets("still");
    raw.app.write_all(b"0\r\n\r\n").unwrap();
    assert_eq!(raw.hears(DATA).flags & END_STREAM, END_STREAM);
    assert_eq!(raw.web.request_line("/events")["reason"], "complete");
    drop(later);
}
