//! Connections that the kernel refuses inside, because no entry of the list has their port: they
//! are noted for the report, and told as events.

use std::io;
use std::iter;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::SystemTime;

use eyelet_sys::confine::refused;
use eyelet_sys::socket::drops;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};

use crate::names::{Repeated, ResolvedNames};

/// Places that are told apart. A command that dials more looks for a way out.
const PLACES_MAX: usize = 1024;
/// Refusals that are taken from a socket before others may note.
const AT_ONCE_MAX: usize = 256;
/// The begin of the reason.
pub(crate) const NO_ENTRY: &str = "no entry has port";

/// The sockets that are told of refused connections, and where these are noted.
pub struct RefusedDials {
    sockets: Vec<OwnedFd>,
    names: Arc<Mutex<ResolvedNames>>,
    tell: fn(&Value),
    /// Refusals that were lost so far, because they came faster than they were read. Held by who
    /// notes.
    turn: Mutex<u64>,
}

impl RefusedDials {
    /// Those of these sockets, which a thread notes from now on, until the process ends.
    ///
    /// # Errors
    /// There is no thread.
    pub fn follow(
        sockets: Vec<OwnedFd>,
        names: Arc<Mutex<ResolvedNames>>,
        tell: fn(&Value),
    ) -> io::Result<Arc<Self>> {
        let dials = Arc::new(Self { sockets, names, tell, turn: Mutex::new(0) });
        let noting = dials.clone();
        let body = move || loop {
            let mut waits: Vec<PollFd<'_>> =
                noting.sockets.iter().map(|at| PollFd::new(at, PollFlags::IN)).collect();
            // It fails only where the kernel has no memory, and is asked again.
            let _ = poll(&mut waits, None);
            noting.note();
        };
        if !dials.sockets.is_empty() {
            thread::Builder::new().name("sandbox-refused".into()).spawn(body)?;
        }
        Ok(dials)
    }

    /// Notes those that have come. After the command's end there are no others.
    pub fn note(&self) {
        for socket in &self.sockets {
            while self.note_some(socket) {}
        }
        let mut turn = self.turn.lock();
        let lost: u64 =
            self.sockets.iter().filter_map(|socket| drops(socket).ok()).map(u64::from).sum();
        self.names.lock().more += lost.saturating_sub(*turn);
        *turn = lost;
    }

    /// Notes some of a socket. Returns true if there may be more.
    fn note_some(&self, socket: &OwnedFd) -> bool {
        // Whoever is the next to note has heard of those before, the report as well.
        let _turn = self.turn.lock();
        let dialled: Vec<SocketAddr> =
            iter::from_fn(|| refused::next(socket)).take(AT_ONCE_MAX).collect();
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        for to in &dialled {
            // Whoever reads the events may be slow, and names are looked up meanwhile.
            let event = Self::note_one(*to, &time, &mut self.names.lock());
            (self.tell)(&event);
        }
        dialled.len() == AT_ONCE_MAX
    }

    /// Notes one, and returns it as an event.
    fn note_one(to: SocketAddr, time: &str, names: &mut ResolvedNames) -> Value {
        let name = names.stand_ins.dialled(to.ip()).map(str::to_owned);
        let once = Repeated { count: 1, first: time.to_owned() };
        let is_full = names.dialled.len() >= PLACES_MAX;
        match names.dialled.get_mut(&to) {
            Some(sum) => sum.join(&once),
            None if !is_full => drop(names.dialled.insert(to, once)),
            None => names.more += 1,
        }
        json!({
            "event": "connection", "name": name.unwrap_or_else(|| to.ip().to_string()),
            "port": to.port(), "outcome": "refused",
            "reason": format!("{NO_ENTRY} {}", to.port()), "bytes_sent": 0, "bytes_received": 0,
            "method": null, "path": null, "rule": null, "time": time, "held": null,
        })
    }
}
