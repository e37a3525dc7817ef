//! The guard of a destination that somebody may choose freely, asked as an edge asks it.

use std::io::{self, Write};

use eyelet_config::{
    Action, Config, Host, HttpAddress, SpliceUpstream, Terminate, TerminateUpstream,
};
use eyelet_edge::path::connect::guarded;
use eyelet_policy::{Facts, Verdict};
use eyelet_resolve::dial::{self, Guard};
use eyelet_resolve::guard;
use eyelet_telemetry::reason::Reason;
use eyelet_wire::connect::{Target, TargetHost};
use ipnet::IpNet;

use super::args::ExplainArgs;
use super::given::LookedUp;

/// The connection that may be dialled for.
pub(super) struct DialQuestion<'a> {
    pub(super) args: &'a ExplainArgs,
    pub(super) config: &'a Config,
    pub(super) facts: Facts<'a>,
}

/// A dial that an edge would refuse.
pub(super) struct GuardedDial {
    pub(super) reason: Reason,
    /// True if the client of a proxy hears it before its 200.
    pub(super) is_early: bool,
}

/// Returns the refusal of what the rule would dial, if its addresses are known, or `--ask` asks for
/// them.
pub(super) fn check(
    question: &DialQuestion<'_>,
    verdict: Verdict,
    looked_up: &mut LookedUp,
    out: &mut impl Write,
) -> io::Result<Option<GuardedDial>> {
    let DialQuestion { args, config, facts } = question;
    let Verdict { rule: Some(rule), refuse: None } = verdict else { return Ok(None) };
    let action = config.rules.get(rule.0 as usize).map(|rule| rule.action);
    let Some(Action::Splice(splice)) = action else { return Ok(None) };
    let dialled = match &splice.upstream {
        SpliceUpstream::HostPort(to) => splice.is_guarded.then(|| to.host.clone()),
        SpliceUpstream::Sni { .. } => {
            let name = facts.hello.and_then(|hello| hello.host_name());
            name.map(|name| Host::Name(name.to_owned()))
        }
        SpliceUpstream::Destination => destination(question, looked_up),
    };
    let (name, found) = match dialled {
        Some(Host::Ip(ip)) => (ip.to_string(), vec![ip]),
        Some(Host::Name(name)) if args.ask => {
            let found = looked_up.addresses(config, &name, out)?.to_vec();
            (name, found)
        }
        Some(Host::Name(_)) | None => return Ok(None),
    };
    let refused = |guard| dial::check_guard(&name, &found, guard).err();
    let Some(end) = refused(Guard { allow: &splice.upstream_allow }) else { return Ok(None) };
    let is_early = facts.connect.is_some_and(|target| {
        let rules = config.policy.might_take(&Facts { hello: None, ..*facts });
        let is_told = rules.is_some_and(|rules| {
            let mut guards =
                rules.iter().map(|rule| guarded::guard(config.rules.at(rule.0).action));
            guards.all(|guard| guard.is_some_and(|guard| refused(guard).is_some()))
        });
        facts.hello.is_none() || is_of_name(target, &name) && is_told
    });
    Ok(Some(GuardedDial { reason: end.reason, is_early }))
}

fn is_of_name(target: &Target, name: &str) -> bool {
    matches!(&target.host, TargetHost::Name(host) if host.as_str() == name)
}

/// The destination of a proxy's client: the address that the rules have compared, or the host.
fn destination(question: &DialQuestion<'_>, looked_up: &LookedUp) -> Option<Host> {
    let DialQuestion { args, facts, .. } = question;
    let host = match &facts.connect?.host {
        TargetHost::Name(name) => name.as_str(),
        TargetHost::Ip(ip) => return Some(Host::Ip(*ip)),
    };
    let of_flag = args.destination.filter(|_| !looked_up.has(host));
    Some(match facts.destination.or(of_flag) {
        Some(to) => Host::Ip(to.ip()),
        None => Host::Name(host.to_owned()),
    })
}

/// Says if an edge would not dial the destination, because it is an internal address, and a PROXY
/// header or the client of a rule that mints may name it.
pub(super) fn print(
    action: &Action,
    facts: &Facts<'_>,
    config: &Config,
    out: &mut impl Write,
) -> io::Result<()> {
    let (Some(allow), Some(to)) = (allowed(action), facts.destination) else { return Ok(()) };
    if !guard::is_guarded(to.ip(), allow) {
        return Ok(());
    }
    let listener = config.listeners.get(usize::from(facts.listener));
    let fault = guard::fault(to.ip());
    match (facts.connect, action) {
        // Its reason is printed.
        (Some(_), Action::Splice(_)) => Ok(()),
        (Some(_), _) => writeln!(out, "guard:   refused: {fault}"),
        (None, _) if listener.is_some_and(|of| !of.proxy_protocol_from.is_empty()) => {
            writeln!(out, "guard:   refused if a PROXY header names it: {fault}")
        }
        (None, _) => Ok(()),
    }
}

/// The internal networks that the action may dial for a client that names its destination. `None`:
/// its upstream is not the destination.
fn allowed(action: &Action) -> Option<&[IpNet]> {
    match action {
        Action::Splice(splice) if splice.upstream == SpliceUpstream::Destination => {
            Some(&splice.upstream_allow)
        }
        Action::Terminate(Terminate { upstream: TerminateUpstream::Http(upstream), .. })
            if upstream.address == HttpAddress::Destination =>
        {
            Some(upstream.chosen.as_deref().unwrap_or_default())
        }
        Action::Splice(_) | Action::Terminate(_) | Action::Originate(_) | Action::Refuse(_) => None,
    }
}
