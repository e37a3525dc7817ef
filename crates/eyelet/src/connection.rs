//! The story of a connection: accept, peek, decide, act. Every step is one file.
//! It must not know how a step is done.

use eyelet_policy::{Decision, Fact, Facts, Refusal, Rules, Verdict};
use eyelet_wire::hello::{Hello, HelloReader, Peek};

use crate::act;
use crate::act::refuse::Answer;
use crate::active::Active;
use crate::config::{Action, ListenerKind};
use crate::http;
use crate::peek;
use crate::story::{End, Story};

/// What was decided, and what was read to decide it.
pub struct Ruling {
    /// Index of the rule whose action is taken, or why and how it is refused.
    pub act: Result<u32, (Answer, End)>,
    /// Everything that the client has sent so far: the upstream gets it byte for byte.
    pub peeked: Vec<u8>,
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
    let peeked = peek::proxy_header(active, story).await?;
    let listener = &edge.config.listeners[usize::from(story.decided.listener)];
    if listener.kind == ListenerKind::HttpRedirect {
        return http::redirect::redirect(active, story, peeked).await;
    }
    let Ruling { act, peeked } = decide(active, story, peeked).await?;
    let rule = match act {
        Ok(rule) => rule,
        Err((answer, end)) => return act::refuse::refuse(active, &answer, end),
    };
    match &*edge.config.rules[rule as usize].action {
        Action::Splice(splice) => act::splice::splice(active, story, splice, peeked).await,
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
    let ruling = |story: &mut Story, verdict, hello: Option<&Hello<'_>>| {
        rule_on(active, story, verdict, hello)
    };
    loop {
        match policy.decide(&known.facts(story, None)) {
            Decision::Verdict(verdict) => {
                return Ok(Ruling { act: ruling(story, verdict, None), peeked: raw });
            }
            Decision::Need(Fact::Hello) => break,
            Decision::Need(fact) => known.fetch(active, story, fact),
        }
    }
    let mut reader = HelloReader::new(active.worker.edge.config.limits.hello_bytes_max);
    peek::hello(active, &mut reader, &mut raw).await?;
    let hello = match reader.feed(&raw) {
        Peek::Hello(hello) => hello,
        other => return Ok(Ruling { act: Err(act::refuse::unreadable(&other)), peeked: raw }),
    };
    peek::tell(story, &hello);
    known.wants_ja4 = active.worker.edge.config.log.ja4 && active.worker.logs();
    if known.wants_ja4 {
        known.fetch_ja4(story, &hello);
    }
    let act = loop {
        match policy.decide(&known.facts(story, Some(&hello))) {
            Decision::Verdict(verdict) => break ruling(story, verdict, Some(&hello)),
            Decision::Need(Fact::Ja4) => known.fetch_ja4(story, &hello),
            Decision::Need(fact) => known.fetch(active, story, fact),
        }
    };
    Ok(Ruling { act, peeked: raw })
}

/// Facts that were fetched, beside those that the story keeps.
#[derive(Default)]
struct Known {
    unknown: eyelet_policy::FactSet,
    wants_ja4: bool,
}

impl Known {
    fn facts<'a>(&self, story: &'a Story, hello: Option<&'a Hello<'a>>) -> Facts<'a> {
        Facts {
            destination: story.decided.destination,
            hello,
            ja4: story.decided.ja4.as_deref(),
            unknown: self.unknown,
            ..Facts::new(story.decided.listener, story.client.ip())
        }
    }

    fn fetch_ja4(&mut self, story: &mut Story, hello: &Hello<'_>) {
        story.decided.ja4 = Some(peek::ja4(hello).as_str().into());
    }

    /// Fetches what is not in the hello. What cannot be had is unknown, and fails closed.
    fn fetch(&mut self, active: &Active, story: &mut Story, fact: Fact) {
        if fact == Fact::Destination {
            story.decided.destination = active.local_address();
        }
        if fact != Fact::Destination || story.decided.destination.is_none() {
            self.unknown = self.unknown.with(fact);
        }
    }
}

fn rule_on(
    active: &Active,
    story: &mut Story,
    verdict: Verdict,
    hello: Option<&Hello<'_>>,
) -> Result<u32, (Answer, End)> {
    story.decided.rule = verdict.rule.map(|rule| rule.0);
    match (verdict.rule, verdict.refuse) {
        (Some(rule), None) => Ok(rule.0),
        (None, None) => Err(act::refuse::by_rule(None, Refusal::Unlisted, hello)),
        (rule, Some(refusal)) => {
            let rules = &active.worker.edge.config.rules;
            let action = rule.map(|rule| &*rules[rule.0 as usize].action);
            Err(act::refuse::by_rule(action, refusal, hello))
        }
    }
}

/// The rules are checked once and shared by all workers.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Rules>();
};
