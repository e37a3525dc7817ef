//! Runs of the simulator by seeds, and of exchanges that move to another process at every byte.

use std::panic::resume_unwind;

use super::each_byte;
use super::edge::Setup;
use super::events::Events;
use super::run::{Report, run_alone};
use super::scenario::Scenario;

/// Seeds in the test suite: a few seconds in a debug build.
const SEEDS: u64 = 1_000;
/// Environment variables: how many seeds, and the first of them.
const SEEDS_VARIABLE: &str = "EYELET_SEEDS";
const FIRST_SEED_VARIABLE: &str = "EYELET_FIRST_SEED";

/// The events that must happen in the runs of the test suite.
const EVENTS: &[&str] = &[
    "Expect",
    "HEAD",
    "a PING",
    "a client closes its socket",
    "a client ends its stream before it has read all",
    "a client ends without close_notify",
    "a client resets a stream",
    "a coded response",
    "a connection that moved",
    "a connection that woke",
    "a drain",
    "a malformed head",
    "a page of the edge: 421",
    "a page of the edge: 502",
    "a page of the edge: 503",
    "a page of the edge: 504",
    "a process that is retired",
    "a reload",
    "a reload without the rule",
    "a refused stream",
    "a request that was sent again",
    "a reset before the head",
    "a truncated response",
    "a whole WebSocket by HTTP/1.1",
    "a whole WebSocket by HTTP/2",
    "a whole response by HTTP/1.1",
    "a whole response by HTTP/2",
    "an early answer",
    "an end before the head's",
    "an exchange that moved",
    "an exchange that rested",
    "an exchange that rested on a shared connection",
    "an interim response that arrived",
    "an upgrade",
    "an upstream closes after its answer",
    "an upstream closes an idle connection",
    "an upstream ends in the middle of a body",
    "an upstream never answers",
    "an upstream resets a stream in the middle of a body",
    "an upstream resets in the middle of a body",
    "an upstream sends GOAWAY",
    "an upstream stalls in the middle of a body",
    "fair weather",
    "one that came back",
    "one that moved in parts",
    "one that moved with a shared connection",
    "short memory",
    "trailers",
    // Of a request, and of its connection.
    "line: failed: drained",
    "line: failed: no rule serves this connection since a reload",
    "line: failed: shed: memory_max, a stream",
    "line: failed: upstream: HTTP/2: INTERNAL_ERROR received",
    "line: failed: upstream: closed before it answered",
    "line: failed: upstream: closed before the response's end",
    "line: failed: upstream: the request was not taken",
    "line: failed: upstream: upstream_timeout",
    "line: left: client closed during a request",
    "line: left: client reset during the response",
    "line: left: client: HTTP/2: CANCEL received",
    "line: terminated: client closed",
    "line: terminated: client closed without close_notify",
    "line: terminated: client reset",
    "line: terminated: closed after a response",
    "line: terminated: complete",
    "line: terminated: drained",
    "line: terminated: the last exchange was cut",
];

/// So often an exchange moves with its shared connection at least. It stays while a part of a frame
/// is there.
const SHARED_MOVES_MIN: usize = 2;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number of seeds"))
}

fn run(seed: u64, setup: &Setup) -> Report {
    run_alone(&Scenario::seeded(seed), setup).unwrap_or_else(|panic| {
        eprintln!("seed {seed} failed; again: {FIRST_SEED_VARIABLE}={seed} {SEEDS_VARIABLE}=1");
        resume_unwind(panic)
    })
}

/// No byte is lost or invented, each request that was read has one access line with the status that
/// its client saw, and nothing is left over.
#[test]
fn every_seed_ends_well() {
    let first = variable(FIRST_SEED_VARIABLE).unwrap_or(0);
    let seeds = variable(SEEDS_VARIABLE).unwrap_or(SEEDS);
    let (setup, mut events) = (Setup::new(), Events::default());
    for seed in first..first + seeds {
        events.add(&run(seed, &setup).events);
    }
    println!("{seeds} seeds: {events}");
    if seeds >= SEEDS {
        events.check(EVENTS);
    }
}

/// Each kind of exchange moves to another process at every byte, as in an upgrade.
#[test]
fn exchanges_move_at_every_byte() {
    let setup = Setup::new();
    for (kind, plan) in each_byte::KINDS {
        for http2 in [false, true] {
            let who = format!("{kind}, HTTP/2: {http2}");
            let run = run_alone(&each_byte::scenario(http2, 0, plan), &setup);
            let Report { events, .. } = run.unwrap_or_else(|panic| {
                eprintln!("{who} failed");
                resume_unwind(panic)
            });
            println!("{who}: {events}");
            assert_eq!(events.count("fair weather"), 1, "{who} is not answered: {events}");
            // By HTTP/1.1 a WebSocket is a pair of sockets.
            let is_pair = plan.switches && !http2;
            let what = if is_pair { "a connection that moved" } else { "an exchange that moved" };
            let moved = events.count(what);
            assert!(moved >= each_byte::BODY_BYTES, "{who}: {events}");
        }
    }
}

/// The worker that watches an exchange at rest leaves its upstream's reset to the exchange.
#[test]
fn a_reset_cuts_a_body_that_rests() {
    let setup = Setup::new();
    for http2 in [false, true] {
        let run = run_alone(&each_byte::reset(http2), &setup);
        let Report { events, .. } = run.unwrap_or_else(|panic| resume_unwind(panic));
        for event in ["an upstream resets in the middle of a body", "a truncated response"] {
            assert_eq!(events.count(event), 1, "HTTP/2: {http2}: {event}: {events}");
        }
        // By HTTP/2 its task stays: the connection has not been silent for long enough.
        assert_eq!(events.count("an exchange that rested"), usize::from(!http2), "{events}");
    }
}

/// An exchange on an upstream connection that others may share moves with that between its frames.
#[test]
fn exchanges_on_a_shared_connection_move_with_it() {
    let setup = Setup::new();
    let kinds = each_byte::KINDS.into_iter().filter(|(_, plan)| !plan.switches);
    for (kind, plan) in kinds {
        for http2 in [false, true] {
            let who = format!("{kind}, HTTP/2: {http2}");
            let run = run_alone(&each_byte::scenario(http2, 1, plan), &setup);
            let Report { events, .. } = run.unwrap_or_else(|panic| {
                eprintln!("{who} failed");
                resume_unwind(panic)
            });
            println!("{who}: {events}");
            assert_eq!(events.count("fair weather"), 1, "{who} is not answered: {events}");
            let moved = events.count("one that moved with a shared connection");
            assert!(moved >= SHARED_MOVES_MIN, "{who}: {events}");
        }
    }
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let setup = Setup::new();
    for seed in 0..20 {
        assert_eq!(run(seed, &setup), run(seed, &setup), "seed {seed}");
    }
}
