//! Clients, upstreams, the clock and the operator do anything in any order: no byte of an exchange
//! is lost or invented, each request has one access line, and nothing is left over.
#![no_main]

use std::sync::LazyLock;

use eyelet_http::sim::edge::Setup;
use eyelet_http::sim::plan::{Choices, Plan, Weather};
use eyelet_http::sim::run::run_alone;
use eyelet_http::sim::scenario::{Scenario, Step};
use libfuzzer_sys::arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;

/// Most steps of a run: more take longer and show little else.
const STEPS_MAX: usize = 300;

static SETUP: LazyLock<Setup> = LazyLock::new(Setup::new);

/// The scenario that bytes stand for.
#[derive(Debug)]
struct Run(Scenario);

impl<'a> Arbitrary<'a> for Run {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Result<Self> {
        let (seed, weather): (_, u64) = bytes.arbitrary()?;
        let weather = Weather::new(&mut Choices(weather.into()));
        let mut steps = Vec::new();
        while !bytes.is_empty() && steps.len() < STEPS_MAX {
            let numbers = bytes.arbitrary()?;
            let plan = |choices| Plan::new(&mut Choices(choices), &weather);
            steps.push(Step::of(numbers, || plan(bytes.arbitrary().unwrap_or_default())));
        }
        Ok(Self(Scenario { seed, weather, steps }))
    }
}

fuzz_target!(|run: Run| drop(run_alone(&run.0, &SETUP)));
