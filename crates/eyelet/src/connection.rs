//! The story of a connection: accept, peek, decide, act. Every step is one file.
//! It must not know how a step is done.

use eyelet_policy::{Decision, Fact, Rules};
use eyelet_wire::hello::{HelloReader, Peek};

use crate::act;
use crate::act::refuse::Answer;
use crate::active::Active;
use crate::config::Action;
use crate::connect;
use crate::intercept;
use crate::known::Known;
use crate::peek;
use crate::story::{End, Story};

/// What was decided, and what was read to decide it.
pub struct Ruling {
    /// Index of the rule whose action is taken, or why and how it is refused.
    pub act: Result<u32, (Answer, End)>,
    /// Everything that the client has sent so far: the upstream gets it byte for byte.
    pub peeked: Vec<u8>,
    /// How much of it is the hello; 0: none was read.
    pub hello_bytes: usize,
}

/// accept -> peek -> decide -> act. What comes after is the lot's: the connection is parked, or
/// its end is told here.
pub async fn connection(active: Active, mut story: Story) {
    if let Err(end) = serve(&active, &mut story).await {
        active.worker.tell(&story, &end);
    }
}

async fn serve(active: &Active, story: &mut Story) -> Result<(), End> {
    let edge = &active.worker.edge;
    active.due_in(edge.config.limits.hello_timeout);
    let mut peeked = peek::proxy_header(active, story).await?;
    intercept::arrive(active, story, &mut peeked).await?;
    let Ruling { act, peeked, hello_bytes } = decide(active, story, peeked).await?;
    let rule = match act {
        Ok(rule) => rule,
        Err((answer, end)) => return connect::end(active, story, &answer, end),
    };
    match &*edge.config.rules[rule as usize].action {
        Action::Splice(splice) => {
            act::splice::splice(active, story, splice, peeked, hello_bytes).await
        }
        Action::Terminate(terminate) => {
            // Boxed: a handshake's future is several times a splice's, and every connection's
            // task would be as large as the largest of its branches.
            Box::pin(act::terminate::terminate(active, story, rule, terminate, peeked)).await
        }
        // `decide` gives the refusal of a refuse rule, never its action.
        Action::Refuse(_) => Err(End::failed("refused without a reason")),
    }
}

/// Asks the rules, and fetches what they ask for, until there is a verdict.
async fn decide(active: &Active, story: &mut Story, mut raw: Vec<u8>) -> Result<Ruling, End> {
    let policy = &active.worker.edge.config.policy;
    let mut known = Known::default();
    loop {
        match policy.decide(&known.facts(story, None)) {
            Decision::Verdict(verdict) => {
                let act = known.settle(active, story, verdict, None);
                return Ok(Ruling { act, peeked: raw, hello_bytes: 0 });
            }
            Decision::Need(Fact::Hello) => break,
            Decision::Need(fact) => known.fetch(active, story, fact).await,
        }
    }
    connect::establish(active, story).await?;
    let mut reader = HelloReader::new(active.worker.edge.config.limits.hello_bytes_max);
    peek::hello(active, &mut reader, &mut raw).await?;
    let hello = match reader.feed(&raw) {
        Peek::Hello(hello) => hello,
        other => {
            let act = Err(act::refuse::unreadable(&other));
            return Ok(Ruling { act, peeked: raw, hello_bytes: 0 });
        }
    };
    peek::tell(story, &hello);
    if active.worker.edge.config.log.ja4 && active.worker.logs() {
        known.fetch_ja4(story, &hello);
    }
    let act = loop {
        match policy.decide(&known.facts(story, Some(&hello))) {
            Decision::Verdict(verdict) => break known.settle(active, story, verdict, Some(&hello)),
            Decision::Need(Fact::Ja4) => known.fetch_ja4(story, &hello),
            Decision::Need(fact) => known.fetch_evidence(active, story, fact).await,
        }
    };
    let hello_bytes = hello.raw_len();
    Ok(Ruling { act, peeked: raw, hello_bytes })
}

/// The rules are checked once and shared by all workers.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Rules>();
};
