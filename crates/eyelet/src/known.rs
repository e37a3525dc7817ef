//! The facts of one connection, fetched as the rules ask for them; the verdict, and what is told of
//! both. It must not know how evidence is gathered, or what an action does.

use std::sync::Arc;

use eyelet_policy::{Fact, FactSet, Facts, Refusal, Verdict};
use eyelet_wire::hello::Hello;

use crate::act;
use crate::act::refuse::Answer;
use crate::active::Active;
use crate::connect;
use crate::fingerprint;
use crate::upstream;
use eyelet_resolve::evidence::{Attempt, ByDns};
use eyelet_resolve::gather;
use eyelet_telemetry::evidence::Evidence;
use eyelet_telemetry::info::{End, Story};
use eyelet_telemetry::reason::{LacksFacts, Reason};

/// Facts that were fetched, beside those that the story keeps.
#[derive(Default)]
pub struct Known {
    unknown: FactSet,
    /// Why there is no destination, where one was asked for.
    no_destination: Option<Reason>,
    dns_truth: Option<bool>,
    shown: Option<Arc<Attempt>>,
}

impl Known {
    /// What the rules are asked with.
    pub fn facts<'a>(&'a self, story: &'a Story, hello: Option<&'a Hello<'a>>) -> Facts<'a> {
        Facts {
            connect: story.connect.as_deref(),
            destination: story.decided.destination,
            hello,
            ja4: story.decided.ja4.as_deref(),
            dns_truth: self.dns_truth,
            certificate: self.shown.as_deref().and_then(Attempt::certificate),
            unknown: self.unknown,
            ..Facts::new(story.decided.listener, story.client.ip())
        }
    }

    /// Computes the fingerprint.
    pub fn fetch_ja4(&mut self, story: &mut Story, hello: &Hello<'_>) {
        story.decided.ja4 = Some(fingerprint::ja4(hello).as_str().into());
    }

    /// Fetches what is not in the hello. What cannot be had is unknown, and fails closed.
    pub async fn fetch(&mut self, active: &Active, story: &mut Story, fact: Fact) {
        if fact == Fact::Destination {
            let found = match connect::host_port(story) {
                Some(host_port) => upstream::destination(active, story, &host_port).await,
                None => active.local_address().ok_or(Reason::ClientReset(None)),
            };
            match found {
                Ok(destination) => story.decided.destination = Some(destination),
                Err(why) => self.no_destination = Some(why),
            }
        }
        if fact != Fact::Destination || story.decided.destination.is_none() {
            self.unknown = self.unknown.with(fact);
        }
    }

    /// What becomes of the verdict, and what is told of it.
    pub fn settle(
        &mut self,
        active: &Active,
        story: &mut Story,
        verdict: Verdict,
        hello: Option<&Hello<'_>>,
    ) -> Result<u32, (Answer, End)> {
        let act = rule_on(active, story, verdict, hello);
        self.blame(story, act)
    }

    /// A refusal that may come of facts that could not be had says so.
    fn blame<T>(
        &mut self,
        story: &Story,
        act: Result<T, (Answer, End)>,
    ) -> Result<T, (Answer, End)> {
        let unknown = story.decided.evidence.as_deref().map_or(&[][..], Evidence::unknown);
        act.map_err(|(answer, mut end)| {
            let no_destination = self.no_destination.take();
            if no_destination.is_some() || !unknown.is_empty() {
                let (refusal, unknown) = (end.reason, unknown.into());
                let lacks = LacksFacts { refusal, no_destination, unknown };
                end.reason = Reason::LacksFacts(Box::new(lacks));
            }
            (answer, end)
        })
    }

    /// Takes what speaks for the name in the hello, or against it, from memory. Whether it was
    /// there: most connections are for a name and an address that others were for before.
    pub fn recall(&mut self, active: &Active, story: &mut Story, fact: Fact) -> bool {
        let Some(to) = story.decided.destination else { return false };
        let (names, name) = (&active.worker.names, story.decided.sni.as_deref());
        let had = match (fact, name) {
            (Fact::DnsTruth, Some(name)) => {
                gather::known_by_dns(names, name, to.ip()).map(|found| self.take_dns(story, &found))
            }
            (Fact::Certificate, name) => {
                gather::known_by_certificate(names, to, name, story.connect.is_some())
                    .map(|attempt| self.take_certificate(story, attempt))
            }
            _ => None,
        };
        // That it cannot be had is remembered too.
        if had == Some(false) {
            self.unknown = self.unknown.with(fact);
        }
        had.is_some()
    }

    /// Fetches what speaks for the name in the hello, or against it.
    pub async fn fetch_evidence(&mut self, active: &Active, story: &mut Story, fact: Fact) {
        let had = match fact {
            Fact::DnsTruth => self.fetch_dns(active, story).await,
            Fact::Certificate => self.fetch_certificate(active, story).await,
            _ => return self.fetch(active, story, fact).await,
        };
        if !had {
            self.unknown = self.unknown.with(fact);
        }
    }

    async fn fetch_dns(&mut self, active: &Active, story: &mut Story) -> bool {
        self.fetch_destination(active, story).await;
        let (Some(to), Some(name)) = (story.decided.destination, story.decided.sni.as_deref())
        else {
            evidence(story).note_unknown("dns: there is no destination");
            return false;
        };
        // Boxed: few connections wait here, and every connection's task would have the room.
        let found =
            Box::pin(gather::by_dns(&active.worker.names, story.client.ip(), name, to.ip())).await;
        self.take_dns(story, &found)
    }

    fn take_dns(&mut self, story: &mut Story, found: &ByDns) -> bool {
        self.dns_truth = found.agrees;
        let (answer, fault) = (found.told.clone(), found.fault.as_deref());
        evidence(story).note_dns(answer, found.agrees, fault);
        found.agrees.is_some()
    }

    async fn fetch_certificate(&mut self, active: &Active, story: &mut Story) -> bool {
        self.fetch_destination(active, story).await;
        let Some(to) = story.decided.destination else {
            evidence(story).note_unknown("certificate: there is no destination");
            return false;
        };
        let name = story.decided.sni.as_deref();
        let is_chosen = story.connect.is_some();
        let client = story.client.ip();
        let attempt = gather::by_certificate(&active.worker.names, client, to, name, is_chosen);
        let attempt = Box::pin(attempt).await;
        self.take_certificate(story, attempt)
    }

    fn take_certificate(&mut self, story: &mut Story, attempt: Arc<Attempt>) -> bool {
        let shown = attempt.shown.as_ref().map(|shown| shown.told.clone());
        evidence(story).note_certificate(shown.map_err(|why| &**why));
        let had = attempt.certificate().is_some();
        self.shown = Some(attempt);
        had
    }

    /// Evidence is about where the client wanted to go; and it takes its own time, which the
    /// client is not to be held to.
    async fn fetch_destination(&mut self, active: &Active, story: &mut Story) {
        if story.decided.destination.is_none() {
            self.fetch(active, story, Fact::Destination).await;
        }
        active.due_in(EVIDENCE_TIMEOUTS * active.worker.edge.config.truth.timeout);
    }
}

fn evidence(story: &mut Story) -> &mut Evidence {
    story.decided.evidence.get_or_insert_default()
}

/// How many times its own timeout one piece of evidence may take: it is waited for behind others,
/// and the clock of the connection must not be the one that ends it.
const EVIDENCE_TIMEOUTS: u32 = 3;

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
            let action = rule.map(|rule| rules.at(rule.0).action);
            Err(act::refuse::by_rule(action, refusal, hello))
        }
    }
}
