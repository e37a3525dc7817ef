//! Clients, upstreams, the clock and the operator do anything in any order: no byte of an exchange
//! is lost or invented, each request has one access line, and nothing is left over.
#![no_main]

#[path = "../../crates/http/tests/sim/mod.rs"]
mod sim;

use std::sync::LazyLock;

use libfuzzer_sys::arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use sim::edge::Setup;
use sim::plan::{Choices, Plan, Weather};
use sim::run::run_alone;
use sim::scenario::{Scenario, Step};

/// Most steps of a run: more take longer and show little else.
const STEPS_MAX: usize = 300;

static SETUP: LazyLock<Setup> = LazyLock::new(Setup::new);

impl<'a> Arbitrary<'a> for Scenario {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Result<Self> {
        let (seed, weather): (_, u64) = bytes.arbitrary()?;
        let weather = Weather::new(&mut Choices(weather.into()));
        let mut steps = Vec::new();
        while !bytes.is_empty() && steps.len() < STEPS_MAX {
            let numbers = bytes.arbitrary()?;
            let plan = |choices| Plan::new(&mut Choices(choices), &weather);
            steps.push(Step::of(numbers, || plan(bytes.arbitrary().unwrap_or_default())));
        }
        Ok(Self { seed, weather, steps })
    }
}

fuzz_target!(|scenario: Scenario| drop(run_alone(&scenario, &SETUP)));
