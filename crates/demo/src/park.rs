//! The crowd as the page sees it: started, counted, let go.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::gauge::anonymous_bytes;
use eyelet_telemetry::counters;

/// Most connections of the crowd.
pub(crate) const CROWD_MAX: usize = 10_000;
/// Descriptors of the edge that stay free for browsers.
const SPARE: usize = 64;
/// The time for which the edge rests before the gauge is read: it frees its compressors after a
/// second.
const SETTLE: Duration = Duration::from_millis(1500);

/// The crowd of this demo: at most one process.
pub(crate) struct Park {
    /// The address to which its clients connect, the program that they run in, and the authority
    /// they trust.
    target: SocketAddr,
    program: PathBuf,
    authority: PathBuf,
    /// Connections that the edge's descriptors allow.
    room: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    phase: Phase,
    wanted: usize,
    opened: usize,
    /// The first failure.
    failed: Option<String>,
    /// The bytes that the connections hold, once all are there: the gauge after less the gauge
    /// before.
    held: i64,
    /// The crowd lives until this is dropped.
    input: Option<ChildStdin>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// There is no crowd.
    #[default]
    Empty,
    /// The gauge before is about to be read.
    Settling,
    /// Its connections are being opened.
    Filling,
    /// The gauge after is about to be read.
    Weighing,
    /// All are there.
    Full,
    /// They are being closed.
    Leaving,
}

impl Park {
    pub(crate) fn new(
        target: SocketAddr,
        program: PathBuf,
        authority: PathBuf,
        descriptors_max: usize,
    ) -> Self {
        let room = descriptors_max.saturating_sub(SPARE);
        Self { target, program, authority, room, state: Arc::default() }
    }

    /// Starts a crowd of so many connections, or of as many as fit. The error is for people.
    ///
    /// # Errors
    /// There is one already, or its thread cannot be started.
    pub(crate) fn fill(&self, count: usize) -> Result<(), String> {
        let mut state = self.state.lock();
        if state.phase != Phase::Empty {
            return Err("there is a crowd already".into());
        }
        let wanted = count.min(CROWD_MAX).min(self.room);
        let mut command = Command::new(&self.program);
        command.args(["demo", "--crowd", &self.target.to_string(), &wanted.to_string()]);
        command.arg(&self.authority);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let shared = self.state.clone();
        let thread = std::thread::Builder::new().name("demo-crowd".into());
        thread
            .spawn(move || {
                let failed = live(command, &shared).err().map(|error| error.to_string());
                let failed = failed.or_else(|| shared.lock().failed.take());
                *shared.lock() = State { failed, ..State::default() };
            })
            .map_err(|error| error.to_string())?;
        *state = State { phase: Phase::Settling, wanted, ..State::default() };
        Ok(())
    }

    /// Lets the crowd go.
    pub(crate) fn empty(&self) {
        let mut state = self.state.lock();
        if state.phase != Phase::Empty {
            state.phase = Phase::Leaving;
            state.input = None;
        }
    }

    /// The gauge, for the page.
    pub(crate) fn gauge(&self) -> Value {
        let now = counters::snapshot();
        let (room, state) = (self.room, self.state.lock());
        let limit = (room < CROWD_MAX).then(|| {
            format!(
                "{room} fit: each takes a descriptor of the edge, and this process may have no \
                 more (ulimit -Hn)"
            )
        });
        let phase = match state.phase {
            Phase::Empty => "empty",
            Phase::Settling => "settling",
            Phase::Filling => "filling",
            Phase::Weighing => "weighing",
            Phase::Full => "full",
            Phase::Leaving => "leaving",
        };
        json!({
            "parked": now.parked,
            "connections": now.connections,
            "accepted": now.accepted,
            "refused": now.refused,
            "table_bytes": now.parked_bytes.checked_div(now.parked),
            "anonymous": anonymous_bytes(),
            "held": state.held,
            "phase": phase,
            "wanted": state.wanted,
            "opened": state.opened,
            "room": room.min(CROWD_MAX),
            "limit": limit,
            "failed": state.failed,
        })
    }
}

/// The memory of this process when it rests: the edge has freed its compressors, and the allocator
/// has returned what is free.
fn weigh() -> i64 {
    std::thread::sleep(SETTLE);
    eyelet_sys::memory::trim();
    i64::try_from(anonymous_bytes()).unwrap_or(i64::MAX)
}

/// Starts the crowd, and reads what it says until it ends.
fn live(mut command: Command, state: &Mutex<State>) -> io::Result<()> {
    let before = weigh();
    let mut child = {
        let mut state = state.lock();
        // Somebody may have let it go already.
        if state.phase != Phase::Settling {
            return Ok(());
        }
        let mut child = command.spawn()?;
        (state.phase, state.input) = (Phase::Filling, child.stdin.take());
        child
    };
    let lines = child.stdout.take().map(|out| BufReader::new(out).lines());
    for line in lines.into_iter().flatten().map_while(io::Result::ok) {
        match line.split_once(' ') {
            Some(("opened", count)) => state.lock().opened = count.parse().unwrap_or(0),
            Some(("failed", why)) => _ = state.lock().failed.get_or_insert_with(|| why.into()),
            _ if line == "ready" => ready(state, before),
            _ => {}
        }
    }
    // It has closed its output, so it ends, or it has ended.
    let _ = child.kill();
    child.wait()?;
    let mut state = state.lock();
    if state.phase != Phase::Leaving && state.failed.is_none() {
        state.failed = Some("the clients have ended".into());
    }
    Ok(())
}

/// All connections are there: reads the gauge after.
fn ready(state: &Mutex<State>, before: i64) {
    let step = |from, to, held| {
        let mut state = state.lock();
        // Somebody may have let them go.
        if state.phase == from {
            (state.phase, state.held) = (to, held);
        }
    };
    step(Phase::Filling, Phase::Weighing, 0);
    let held = weigh().saturating_sub(before);
    step(Phase::Weighing, Phase::Full, held);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    use super::*;

    /// Clients that say nothing, and end when their input ends.
    #[test]
    fn a_crowd_that_is_let_go_before_it_begins_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("clients");
        std::fs::write(&program, "#!/bin/sh\nexec cat\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let park = Park::new(([127, 0, 0, 1], 1).into(), program, PathBuf::new(), 1000);
        park.fill(10).unwrap();
        park.empty();
        assert_eq!(park.gauge()["phase"], "leaving");
        let began = Instant::now();
        while park.gauge()["phase"] != "empty" {
            assert!(began.elapsed() < Duration::from_mins(1), "{}", park.gauge());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(park.gauge()["failed"], Value::Null);
    }
}
