//! Scenarios of one exchange: between two upgrades, each side sends one byte.

use super::plan::{Answer, Body, Fault, Plan, Weather, When};
use super::scenario::{Scenario, Step, UpgradeAct, UpstreamAct};

/// Bytes of each body.
pub const BODY_BYTES: usize = 5;
/// Rounds until the client knows the edge's SETTINGS.
const GREETINGS: usize = 6;
/// Upgrades while the client says its head, which may not take long: more than that has bytes.
const HEAD_UPGRADES: usize = 150;
/// Upgrades while the upstream answers: more than that has bytes.
const ANSWER_UPGRADES: usize = 150;
/// Bytes of the records with a byte of a body: in a frame of HTTP/2, sealed by TLS 1.2. A chunk is
/// three records.
const RECORD_BYTES: usize = 40;
const CHUNK_BYTES: usize = 96;
/// More than the second after which an upload that has moved rests.
const REST_TICKS: u64 = 11;

const NO_WEATHER: Weather = Weather {
    connections: 1,
    aborts: false,
    faults: false,
    idle_closes: false,
    short_memory: false,
    reloads: false,
    removes: false,
    drains: false,
    upgrades: true,
    bulk: false,
};
const ANSWER: Answer = Answer {
    status: 200,
    body: Body::Sized(BODY_BYTES),
    interim: 0,
    has_trailers: false,
    when: When::AfterRequest,
    fault: Fault::None,
    closes: false,
};
const GET: Plan = Plan {
    switches: false,
    method: "GET",
    upload: Body::None,
    expects: false,
    closes: false,
    answer: ANSWER,
};

/// Each kind of exchange that rests.
pub const KINDS: [(&str, Plan); 8] = [
    ("a body with a length", GET),
    ("chunks", Plan { answer: Answer { body: Body::Chunked(BODY_BYTES), ..ANSWER }, ..GET }),
    (
        "chunks with trailers behind an interim response",
        Plan {
            answer: Answer {
                interim: 1,
                body: Body::Chunked(BODY_BYTES),
                has_trailers: true,
                ..ANSWER
            },
            ..GET
        },
    ),
    (
        "a body that its connection ends",
        Plan {
            answer: Answer { body: Body::UntilClose(BODY_BYTES), closes: true, ..ANSWER },
            ..GET
        },
    ),
    ("an upload with a length", Plan { method: "PUT", upload: Body::Sized(BODY_BYTES), ..GET }),
    ("chunks upwards", Plan { method: "POST", upload: Body::Chunked(BODY_BYTES), ..GET }),
    (
        "chunks both ways",
        Plan {
            method: "POST",
            upload: Body::Chunked(BODY_BYTES),
            answer: Answer { when: When::Early, body: Body::Chunked(BODY_BYTES), ..ANSWER },
            ..GET
        },
    ),
    (
        "a WebSocket",
        Plan {
            switches: true,
            upload: Body::UntilClose(BODY_BYTES),
            answer: Answer { status: 101, body: Body::UntilClose(BODY_BYTES), ..ANSWER },
            ..GET
        },
    ),
];

/// An upstream resets while a body rests that its connection ends.
pub fn reset(http2: bool) -> Scenario {
    let fault = Fault::Reset(BODY_BYTES / 2);
    let answer = Answer { body: Body::UntilClose(BODY_BYTES), fault, closes: true, ..ANSWER };
    let upstream = |act| Step::Upstream { connection: 0, act, bytes: usize::MAX };
    let iterate = Step::Iterate { polls: 8 };
    let heard = [iterate, Step::Read { client: 0, bytes: usize::MAX }];
    let said = [Step::Write { client: 0, bytes: usize::MAX }, heard[0], heard[1]];
    let answers = std::iter::repeat_n(upstream(UpstreamAct::Answer), 3);
    let steps = std::iter::once(Step::Open { http2, host: 0 })
        .chain(std::iter::repeat_n(said, GREETINGS).flatten())
        .chain([Step::Begin { client: 0, plan: Plan { answer, ..GET } }])
        .chain(said)
        .chain([upstream(UpstreamAct::Read)])
        .chain(answers)
        .chain([upstream(UpstreamAct::Write)])
        .chain(heard)
        .chain([Step::Tick(REST_TICKS), iterate, Step::Tick(REST_TICKS), iterate])
        .chain([upstream(UpstreamAct::Answer)])
        .chain(heard);
    let weather = Weather { faults: true, ..NO_WEATHER };
    Scenario { seed: 0, weather, steps: steps.collect() }
}

/// A byte of each side and an upgrade, again and again.
/// The client speaks HTTP/2, and `host` is that of the upstream.
pub fn scenario(http2: bool, host: u8, plan: Plan) -> Scenario {
    let upstream = |act, bytes| Step::Upstream { connection: 0, act, bytes };
    // An HTTP/2 client may ask for a WebSocket once it has heard the edge's SETTINGS.
    let greeted = [
        Step::Write { client: 0, bytes: usize::MAX },
        Step::Iterate { polls: 8 },
        Step::Read { client: 0, bytes: usize::MAX },
    ];
    let greeting = std::iter::once(Step::Open { http2, host })
        .chain(std::iter::repeat_n(greeted, GREETINGS).flatten())
        .chain([Step::Begin { client: 0, plan }]);
    let say = Step::Say { client: 0, bytes: 1, insists: true };
    let round = |first, ticks| {
        [
            first,
            Step::Write { client: 0, bytes: 1 },
            Step::Iterate { polls: 4 },
            upstream(UpstreamAct::Read, usize::MAX),
            Step::Tick(ticks),
            upstream(UpstreamAct::Answer, 1),
            upstream(UpstreamAct::Write, 1),
            Step::Iterate { polls: 4 },
            Step::Read { client: 0, bytes: usize::MAX },
            // The first has the oldest process end, if it is over.
            Step::Upgrade(UpgradeAct::Begin),
            Step::Upgrade(UpgradeAct::Begin),
            Step::Iterate { polls: 4 },
        ]
    };
    let silent = Step::Iterate { polls: 1 };
    let said_bytes = match plan.upload {
        Body::Chunked(_) if !http2 => CHUNK_BYTES,
        _ => RECORD_BYTES,
    };
    let uploads = (0..plan.upload.len() * said_bytes).flat_map(|nth| match nth % said_bytes {
        0 => round(say, 0),
        last => round(silent, if last == said_bytes - 1 { REST_TICKS } else { 0 }),
    });
    let head = (0..HEAD_UPGRADES).flat_map(|_| round(silent, 0));
    let answer = (0..ANSWER_UPGRADES).flat_map(|_| round(silent, 0));
    let steps = greeting.chain(head).chain(uploads).chain(answer).collect();
    Scenario { seed: 0, weather: NO_WEATHER, steps }
}
