//! The scenario of a run, as a value: the weather, and what happens in which order.

use fastrand::Rng;

use super::plan::{Choices, Plan, Weather};

/// Most steps of a scenario that a seed makes.
const STEPS_MAX: usize = 180;

/// A scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Chooses what no step says, such as the sizes of records.
    pub seed: u64,
    pub weather: Weather,
    pub steps: Vec<Step>,
}

/// One step. `client` and `connection` count among those that there are.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A client connects.
    Open {
        http2: bool,
        host: u8,
    },
    /// Time passes.
    Tick(u64),
    /// Memory gets short, a little or much, or is free again.
    Press {
        eighths: usize,
        but: usize,
    },
    Reload {
        removes: bool,
    },
    /// The process is replaced by another one.
    Upgrade(UpgradeAct),
    /// One iteration of each event loop, and so many polls of each task.
    Iterate {
        polls: usize,
    },
    /// A client asks.
    Begin {
        client: u8,
        plan: Plan,
    },
    /// A client goes on with a body, and with `insists` it does so without 100.
    Say {
        client: u8,
        bytes: usize,
        insists: bool,
    },
    Write {
        client: u8,
        bytes: usize,
    },
    Read {
        client: u8,
        bytes: usize,
    },
    Abort {
        client: u8,
        how: u8,
    },
    Ping {
        client: u8,
    },
    /// A connection to an upstream does one thing.
    Upstream {
        connection: u8,
        act: UpstreamAct,
        bytes: usize,
    },
}

/// The steps of an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpgradeAct {
    /// Another process begins, and gets what is parked.
    Begin,
    /// It serves for good.
    Settle,
    /// Has connections that have not moved begin nothing new.
    Retire,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamAct {
    /// It closes if it rests.
    Close,
    Read,
    Answer,
    Write,
}

impl Scenario {
    /// The scenario that a seed makes.
    pub fn seeded(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let weather = Weather::new(&mut Choices(rng.u128(..)));
        let steps = rng.usize(STEPS_MAX / 8..STEPS_MAX);
        let steps = (0..steps).map(|index| {
            // A client comes first.
            let kind = if index == 0 { 0 } else { rng.u8(..) };
            let numbers = (kind, rng.u8(..), rng.u16(..));
            Step::of(numbers, || Plan::new(&mut Choices(rng.u128(..)), &weather))
        });
        Self { steps: steps.collect(), seed, weather }
    }
}

impl Step {
    /// The step that any numbers stand for, with a plan if it begins an exchange.
    pub fn of((kind, who, amount): (u8, u8, u16), plan: impl FnOnce() -> Plan) -> Self {
        let (client, connection) = (who, who);
        let upstream = |act| {
            let bytes = match act {
                UpstreamAct::Write => 2 + 2 * (usize::from(amount) % 20_000),
                _ => 1 + usize::from(amount) % 20_000,
            };
            Self::Upstream { connection, act, bytes }
        };
        match kind {
            0..=12 => Self::Open { http2: amount % 2 == 0, host: who },
            13..=22 => Self::Tick(1 + u64::from(who % 7)),
            23..=27 => Self::Press {
                eighths: [0, 6, 7, 8][usize::from(who % 4)],
                but: if who % 4 == 2 { usize::from(amount) << 5 } else { 0 },
            },
            28..=30 => Self::Reload { removes: who % 2 == 0 },
            31..=36 => Self::Upgrade(match who % 4 {
                0 | 1 => UpgradeAct::Begin,
                2 => UpgradeAct::Settle,
                _ => UpgradeAct::Retire,
            }),
            37..=91 => Self::Iterate { polls: 1 + usize::from(who % 8) },
            92..=117 => Self::Begin { client, plan: plan() },
            118..=135 => {
                let bytes = 1 + usize::from(amount / 2) % 20_000;
                Self::Say { client, bytes, insists: amount % 2 == 0 }
            }
            136..=153 => Self::Write { client, bytes: some(amount) },
            154..=171 => Self::Read { client, bytes: some(amount) },
            172..=176 => Self::Abort { client, how: amount as u8 },
            177..=180 => Self::Ping { client },
            181..=184 => upstream(UpstreamAct::Close),
            185..=207 => upstream(UpstreamAct::Read),
            208..=234 => upstream(UpstreamAct::Answer),
            235..=255 => upstream(UpstreamAct::Write),
        }
    }
}

/// Returns how much is read or written at once: often a few bytes.
fn some(amount: u16) -> usize {
    let (kind, amount) = (amount % 6, usize::from(amount / 6));
    match kind {
        0 => 1,
        1..=2 => 1 + amount % 200,
        _ => 1 + 4 * amount,
    }
}
