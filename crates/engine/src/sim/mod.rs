//! The simulator: the real event loop, relay, parking and shedding against scripted peers. One
//! thread, no network, no clock: a seed gives the same run each time.
//!
//! Each socket of the edge is one end of a Unix socket pair. The simulator holds the other end,
//! steps the event loop and moves its clock. `kernel` of `eyelet_relay::testing` makes writes short
//! and peers reset.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod handing_over;
mod peer;
mod program;
mod run;
mod verdict;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Seeds in the test suite: a few seconds in a debug build.
const SEEDS: u64 = 1_000;
/// Environment variables: how many seeds, and the first of them.
const SEEDS_VARIABLE: &str = "EYELET_SEEDS";
const FIRST_SEED_VARIABLE: &str = "EYELET_FIRST_SEED";

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number of seeds"))
}

/// No byte is lost or invented, each connection ends in one log entry, and nothing is left over.
#[test]
fn every_seed_ends_well() {
    let first = variable(FIRST_SEED_VARIABLE).unwrap_or(0);
    let seeds = variable(SEEDS_VARIABLE).unwrap_or(SEEDS);
    let mut seen = run::Seen::default();
    for seed in first..first + seeds {
        match catch_unwind(AssertUnwindSafe(|| run::run(seed))) {
            Ok(report) => seen.add(&report),
            Err(panic) => {
                eprintln!("seed {seed} failed; again: {FIRST_SEED_VARIABLE}={seed} EYELET_SEEDS=1");
                resume_unwind(panic);
            }
        }
    }
    println!("{seeds} seeds: {seen}");
    if seeds >= SEEDS {
        seen.check_coverage();
    }
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in 0..20 {
        assert_eq!(run::run(seed), run::run(seed), "seed {seed}");
    }
}
