//! The scripted upstreams: a Unix listener for each version of HTTP, and their connections.

use std::os::unix::net::UnixListener;
use std::path::Path;

use fastrand::Rng;

use super::events::Events;
use super::http1_backend::Http1Backend;
use super::http2_backend::Http2Backend;
use super::peer::{Leave, Peer};
use super::request::Request;
use super::scenario::UpstreamAct;

/// The field of responses that the edge may code.
const TEXT: &str = "Content-Type: text/plain\r\n";

pub struct Backend {
    listeners: [UnixListener; 3],
    ones: Vec<Http1Backend>,
    twos: Vec<Http2Backend>,
}

impl Backend {
    /// Upstreams that listen at these paths: the second speaks HTTP/2.
    pub fn new(paths: [&Path; 3]) -> Self {
        let listeners = paths.map(|path| {
            let _ = std::fs::remove_file(path);
            let listener = UnixListener::bind(path).unwrap();
            listener.set_nonblocking(true).unwrap();
            listener
        });
        Self { listeners, ones: Vec::new(), twos: Vec::new() }
    }

    fn accept(&mut self, rng: &mut Rng) {
        let [one, two, coded] = self.listeners.each_ref().map(|listener| {
            let accepted = std::iter::from_fn(|| listener.accept().ok());
            let peers = accepted.map(|(socket, _)| {
                socket.set_nonblocking(true).unwrap();
                Peer::new(socket.into(), None)
            });
            peers.collect::<Vec<_>>()
        });
        self.ones.extend(one.into_iter().map(|peer| Http1Backend::new(peer, "")));
        let texts = coded.into_iter().map(|peer| Http1Backend::new(peer, TEXT));
        self.ones.extend(texts);
        self.twos.extend(two.into_iter().map(|peer| Http2Backend::new(peer, rng)));
    }

    /// A connection does one thing: it counts among those that there are.
    pub fn act(
        &mut self,
        (connection, act, bytes): (u8, UpstreamAct, usize),
        requests: &mut [Request],
        events: &mut Events,
        rng: &mut Rng,
    ) {
        self.accept(rng);
        let index = usize::from(connection) % (self.ones.len() + self.twos.len()).max(1);
        if let Some(one) = self.ones.get_mut(index) {
            match act {
                UpstreamAct::Close if one.is_idle() => {
                    events.note("an upstream closes an idle connection");
                    one.close(Leave::Gone);
                }
                UpstreamAct::Close => {}
                UpstreamAct::Read => {
                    one.read(bytes, true, requests);
                    // What is unread keeps exchanges from resting.
                    if !one.is_to_reset(requests) {
                        one.read(1, false, requests);
                    }
                }
                UpstreamAct::Answer => _ = one.answer(bytes, requests, events, rng),
                UpstreamAct::Write => one.peer.write(bytes),
            }
        } else if let Some(two) = self.twos.get_mut(index - self.ones.len()) {
            match act {
                UpstreamAct::Close if two.is_idle() => {
                    events.note("an upstream sends GOAWAY");
                    two.close(rng);
                }
                UpstreamAct::Close => {}
                UpstreamAct::Read => two.read(bytes, requests, rng),
                UpstreamAct::Answer => _ = two.answer(bytes, requests, events, rng),
                UpstreamAct::Write => two.peer.write(bytes),
            }
        }
        self.forget_gone();
    }

    /// All connections read and say all that they can.
    pub fn finish(&mut self, requests: &mut [Request], events: &mut Events, rng: &mut Rng) {
        self.accept(rng);
        for one in &mut self.ones {
            one.read(usize::MAX, true, requests);
            if !one.is_to_reset(requests) {
                one.read(usize::MAX, false, requests);
            }
            while one.answer(usize::MAX, requests, events, rng) {}
            one.peer.write(usize::MAX);
            if one.peer.is_over() {
                one.close(Leave::Gone);
            }
        }
        for two in &mut self.twos {
            two.read(usize::MAX, requests, rng);
            // A stream whose window is closed has nothing to say, and others may.
            for _ in 0..8 {
                while two.answer(usize::MAX, requests, events, rng) {}
            }
            two.peer.write(usize::MAX);
            if two.peer.is_over() {
                two.peer.leave(Leave::Gone);
            }
        }
        self.forget_gone();
    }

    fn forget_gone(&mut self) {
        self.ones.retain(|one| !one.peer.is_gone());
        self.twos.retain(|two| !two.peer.is_gone());
    }
}
