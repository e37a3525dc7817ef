//! Reads [hold], and what a hold rule adds to its action: connections that wait until somebody
//! decides.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::model::listen_address::is_loopback_host;
use crate::model::values;
use crate::model::{Action, Hold, Host, HostPort, ListenerKind, SpliceUpstream};
use crate::rules::matchers::Matchers;
use crate::rules::requests::REQUEST_KEYS;
use crate::settings;
use crate::settings::listeners::Listeners;
use eyelet_document::reader::Section;
use eyelet_files::Files;

/// `[hold]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldSettings {
    /// The time for which a connection waits for a verdict.
    pub timeout: Duration,
    /// The program that is asked each question.
    pub webhook: Option<HoldWebhook>,
}

impl Default for HoldSettings {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(60), webhook: None }
    }
}

/// The URL of a program that answers questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldWebhook {
    pub address: HostPort,
    /// The authority as it is written, for `Host`.
    pub authority: Box<str>,
    /// The path, with a query if there is one.
    pub path: Box<str>,
}

impl Action {
    /// Returns the part that a hold rule adds: the action waits for a verdict first.
    pub fn hold(&self) -> Option<&Hold> {
        match self {
            Self::Splice(splice) => splice.hold.as_ref(),
            Self::Terminate(terminate) => terminate.hold.as_ref(),
            Self::Originate(_) | Self::Refuse(_) => None,
        }
    }
}

pub(crate) fn read(document: &Section<'_>) -> HoldSettings {
    let mut hold = HoldSettings::default();
    let Some(section) = document.known("hold", "[hold]", &HOLD_KEYS) else { return hold };
    hold.timeout = settings::duration(&section, "timeout", &TIMEOUT).unwrap_or(hold.timeout);
    if let Some(text) = section.text("webhook") {
        hold.webhook = text.parse(webhook);
        let is_far = |webhook: &HoldWebhook| match &webhook.address.host {
            Host::Name(name) => !is_loopback_host(name),
            Host::Ip(ip) => !ip.is_loopback(),
        };
        if hold.webhook.as_ref().is_some_and(is_far) {
            let message = "questions and verdicts pass in the clear: who is on the way decides; \
                use a program on this machine";
            text.at.warning(message);
        }
    }
    hold
}

/// Reads what a hold rule has beside the keys of its action, and checks what it leads to.
pub(crate) fn read_rule(
    section: &Section<'_>,
    files: &Files,
    upstream: Option<&SpliceUpstream>,
    (matchers, listeners): (&Matchers<'_>, &Listeners),
) -> Hold {
    let mut reached = listeners.of_rule(&matchers.listeners);
    if upstream == Some(&SpliceUpstream::Destination)
        && reached.any(|listener| listener.kind != ListenerKind::Connect)
    {
        let message = "the question is about the address that the client dialled, not about its \
            name; expected \"{sni}:443\", which asks about the name and dials its owner";
        section.value_at("upstream").warning(message);
    }
    let file = section.text("hold_file").map(|text| files.path(text.text));
    if let Some(file) = &file
        && !file.is_file()
    {
        let message = "expected a file that exists, with names as a list has them; it may be empty";
        section.value_at("hold_file").error(message);
    }
    if let Some((key, _)) = section.present(&REQUEST_KEYS).next()
        && file.is_some()
    {
        let message = format!(
            "a list has names, and `{key}` asks about requests, which no list of names can allow; \
             leave out `hold_file`, and give verdicts for a time"
        );
        section.value_at("hold_file").error(message);
    }
    Hold { file, of_requests: false }
}

fn webhook(text: &str) -> Result<HoldWebhook, String> {
    let expected = "expected a URL such as \"http://127.0.0.1:9000/ask\"";
    let rest = text
        .strip_prefix("http://")
        .ok_or_else(|| format!("\"{text}\" is not http://, the only scheme here; {expected}"))?;
    let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    if authority.contains('@') || path.contains('#') {
        return Err(format!("a webhook's URL has no login and no fragment; {expected}"));
    }
    if path.parse::<http::uri::PathAndQuery>().is_err() {
        return Err(format!("\"{text}\" has no path that a request may have; {expected}"));
    }
    let address = values::host_with_port(authority, 80)?;
    Ok(HoldWebhook { address, authority: authority.into(), path: path.into() })
}

const HOLD_KEYS: [&str; 2] = ["timeout", "webhook"];

/// A person may be away for a day. Clients give up after minutes.
const TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(24);
