//! The story of a connection: accept, peek, decide, act. Every step is one file.
//! It must not know how a step is done.

use eyelet_policy::{Decision, Fact, FactSet, Facts, Refusal, Rules, Verdict};
use eyelet_wire::hello::{Hello, HelloReader, Peek};

use crate::act;
use crate::act::refuse::Answer;
use crate::active::Active;
use crate::budget::{Counted, HELLO_BYTES};
use crate::config::Action;
use crate::peek;
use crate::story::{End, Story};

/// accept -> peek -> decide -> act. What comes after is the lot's: the connection is parked, or
/// its end is told here.
// An `async fn` would keep its arguments twice, and every task is that much larger.
#[allow(clippy::manual_async_fn)]
pub fn connection(active: Active, mut story: Story) -> impl Future<Output = ()> {
    async move {
        if let Err(end) = serve(&active, &mut story).await {
            active.worker.tell(&story, &end);
        }
    }
}

async fn serve(active: &Active, story: &mut Story) -> Result<(), End> {
    let edge = &active.worker.edge;
    active.due_in(edge.config.limits.hello_timeout);
    // Everything that the client has sent so far: the upstream gets it byte for byte.
    let mut peeked = Vec::new();
    if peek::must_name_client(active, story) {
        // Boxed, as the handshake below: few connections come this way, and every task would be
        // as large as the largest of its branches.
        Box::pin(peek::proxy_header(active, story, &mut peeked)).await?;
    }
    let rule = match decide(active, story, &mut peeked).await? {
        Ruling::Act(rule) => rule,
        Ruling::Refuse(answer, end) => return act::refuse::refuse(active, &answer, end),
    };
    match &*edge.config.rules[rule as usize].action {
        Action::Splice(splice) => act::splice::splice(active, story, splice, peeked).await,
        Action::Terminate(terminate) => {
            Box::pin(act::terminate::terminate(active, story, rule, terminate, peeked)).await
        }
        // `decide` gives the refusal of a refuse rule, never its action.
        Action::Refuse(_) => Err(End::failed("refused without a reason")),
    }
}

/// What was decided.
enum Ruling {
    /// The action of this rule is taken.
    Act(u32),
    /// It is refused, so and therefore.
    Refuse(Answer, End),
}

/// Asks the rules, reads as much of the hello as they need, and asks again, until there is a
/// verdict.
async fn decide(active: &Active, story: &mut Story, peeked: &mut Vec<u8>) -> Result<Ruling, End> {
    if let Some(ruling) = judge(active, story, None) {
        return Ok(ruling);
    }
    let edge = &active.worker.edge;
    let mut reader = HelloReader::new(edge.config.limits.hello_bytes_max);
    let mut counted = Counted::new(&edge.budget, 0);
    loop {
        // Nothing of what was read is held over the wait: a waiting task stays small.
        match reader.feed(peeked) {
            Peek::NeedMore { .. } => {}
            Peek::Hello(hello) => {
                peek::tell(active, story, &hello);
                if let Some(ruling) = judge(active, story, Some(&hello)) {
                    return Ok(ruling);
                }
            }
            unreadable => {
                let (answer, end) = act::refuse::unreadable(&unreadable);
                return Ok(Ruling::Refuse(answer, end));
            }
        }
        peek::more(active, peeked, "the hello").await?;
        counted.set(peeked.len().saturating_sub(HELLO_BYTES));
    }
}

/// Asks the rules with what is known, and fetches what costs little. `None`: they ask for the
/// hello.
fn judge(active: &Active, story: &mut Story, hello: Option<&Hello<'_>>) -> Option<Ruling> {
    let policy = &active.worker.edge.config.policy;
    let mut known = Known::default();
    loop {
        match policy.decide(&known.facts(story, hello)) {
            Decision::Verdict(verdict) => return Some(rule_on(active, story, verdict, hello)),
            Decision::Need(Fact::Hello) => return None,
            Decision::Need(fact) => known.fetch(active, story, hello, fact),
        }
    }
}

/// Facts that were fetched, beside those that the story keeps.
#[derive(Default)]
struct Known {
    unknown: FactSet,
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

    /// Fetches one fact. What cannot be had is unknown, and fails closed.
    fn fetch(&mut self, active: &Active, story: &mut Story, hello: Option<&Hello<'_>>, fact: Fact) {
        let decided = &mut story.decided;
        let had = match (fact, hello) {
            (Fact::Destination, _) => {
                decided.destination = active.local_address();
                decided.destination.is_some()
            }
            (Fact::Ja4, Some(hello)) => {
                decided.ja4 = Some(peek::ja4(hello).as_str().into());
                true
            }
            _ => false,
        };
        if !had {
            self.unknown = self.unknown.with(fact);
        }
    }
}

fn rule_on(
    active: &Active,
    story: &mut Story,
    verdict: Verdict,
    hello: Option<&Hello<'_>>,
) -> Ruling {
    story.decided.rule = verdict.rule.map(|rule| rule.0);
    let refusal = match (verdict.rule, verdict.refuse) {
        (Some(rule), None) => return Ruling::Act(rule.0),
        (_, refusal) => refusal.unwrap_or(Refusal::Unlisted),
    };
    let rules = &active.worker.edge.config.rules;
    let action = verdict.rule.map(|rule| &*rules[rule.0 as usize].action);
    let (answer, end) = act::refuse::by_rule(action, refusal, hello);
    Ruling::Refuse(answer, end)
}

/// The rules are checked once and shared by all workers.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Rules>();
};

#[cfg(test)]
mod tests {
    use super::*;

    /// glibc's per-thread cache, which costs a tenth of its heap, takes what is below 1032 bytes;
    /// tokio adds about 200 to a future.
    #[test]
    fn a_connections_task_is_small() {
        fn size<A, B, F: Future>(_: impl Fn(A, B) -> F) -> usize {
            size_of::<F>()
        }
        let size = size(connection);
        assert!(size <= 800, "{size}");
    }
}
