//! The guard of a destination that somebody may choose freely.

use std::io::{self, Write};

use eyelet_config::{Action, Config, HttpAddress, SpliceUpstream, Terminate, TerminateUpstream};
use eyelet_policy::Facts;
use eyelet_resolve::guard;
use ipnet::IpNet;

/// Says if an edge would not dial the destination, because it is an internal address and a CONNECT
/// or a PROXY header may name it.
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
    match facts.connect {
        Some(_) => writeln!(out, "guard:   refused: {fault}"),
        None if listener.is_some_and(|of| !of.proxy_protocol_from.is_empty()) => {
            writeln!(out, "guard:   refused if a PROXY header names it: {fault}")
        }
        None => Ok(()),
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
