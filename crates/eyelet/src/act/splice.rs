//! Splice: dial the upstream, give it what was peeked, and leave the pair to the lot.
//! It must not know TLS.

use eyelet_policy::Rules;
use eyelet_wire::alert::AlertDescription;

use crate::act::refuse;
use crate::active::Active;
use crate::config::{Host, HostPort, Splice, SpliceUpstream};
use crate::lot::UPSTREAM;
use crate::park;
use crate::proxy_protocol;
use crate::relay::{Flow, Relay};
use crate::story::{End, Outcome, Story};
use crate::upstream::{self, Guard, Target};

/// Splices the connection.
pub async fn splice(
    active: &Active,
    story: &mut Story,
    rule: &Splice,
    peeked: Vec<u8>,
) -> Result<(), End> {
    let target = match target(story, rule) {
        Some(target) => target,
        None => return failed(active, &peeked, End::failed("no destination to splice to")),
    };
    if let Err(end) = upstream::dial(active, story, &target).await {
        return failed(active, &peeked, end);
    }
    let mut flow = Flow::default();
    if rule.proxy_protocol.is_some() {
        flow.hold(UPSTREAM, &proxy_protocol::header(active, story, None));
    }
    story.bytes_to_upstream += peeked.len() as u64;
    flow.hold_all(UPSTREAM, peeked);
    park::park(active, story, Relay::Splice(flow));
    Ok(())
}

fn target<'a>(story: &Story, rule: &'a Splice) -> Option<Target<'a>> {
    match &rule.upstream {
        SpliceUpstream::HostPort(host_port) => Some(Target::Configured(host_port)),
        SpliceUpstream::Sni { port } => {
            let name = Host::Name(story.decided.sni.as_deref()?.to_owned());
            let host_port = HostPort { host: name, port: *port };
            Some(Target::Named(host_port, Guard { allow: &rule.upstream_allow }))
        }
        SpliceUpstream::Destination => Some(Target::Address(story.decided.destination?)),
    }
}

/// A client that sent a hello understands an alert; one whose bytes were never looked at is
/// closed without a word of ours in a protocol that we don't know.
fn failed(active: &Active, peeked: &[u8], end: End) -> Result<(), End> {
    let policy: &Rules = &active.worker.edge.config.policy;
    if policy.asks_hello() && !peeked.is_empty() {
        return match end.outcome {
            Outcome::Refused => {
                let answer = refuse::Answer::Alert(AlertDescription::AccessDenied);
                refuse::refuse(active, &answer, end)
            }
            _ => refuse::fail(active, end),
        };
    }
    park::last_words(active, &[]);
    Err(end)
}
