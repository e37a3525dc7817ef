//! Refuses a proxy's client before it gets its 200 if its target leads to an internal address, in
//! whatever rule takes it. An HTTP response says why; after the hello there is only an alert.

use std::net::IpAddr;

use eyelet_wire::connect::{Target, TargetHost};

use crate::path::active::Active;
use crate::path::connect;
use crate::path::peek;
use crate::path::refuse::RefusalMessage;
use eyelet_config::{Action, SpliceUpstream};
use eyelet_policy::RuleId;
use eyelet_resolve::dial::{self, Guard};
use eyelet_telemetry::info::End;
use eyelet_telemetry::reason::Stage;

/// Looks the target up, if each of the rules that might take it dials the client's name. Everything
/// that is not an internal address is left to the dial.
pub async fn check(connection: &mut Active<'_>, rules: &[RuleId]) -> Result<(), End> {
    let config = connection.edge.snapshot.config.clone();
    let Some(Target { host: TargetHost::Name(name), .. }) = connection.info.connect.as_deref()
    else {
        return Ok(());
    };
    let name = name.as_str().to_owned();
    let guards = rules.iter().map(|rule| guard(config.rules.at(rule.0).action));
    let Some(guards) = guards.collect::<Option<Vec<_>>>() else { return Ok(()) };
    let client: IpAddr = connection.info.client.ip();
    // The look-up itself ends before that.
    connection.handle.due_in(2 * config.limits.connect_timeout);
    let mut refused = None;
    let look =
        async { refused = dial::guarded(&connection.edge.names, client, &name, &guards).await };
    peek::while_there(connection.edge, connection.handle, look, Stage::Destination).await?;
    let Some(end) = refused else { return Ok(()) };
    if let [rule] = rules {
        connection.info.decided.rule = Some(rule.0);
    }
    connect::end(connection, &RefusalMessage::Nothing, end)
}

/// The guard of an action that dials the name of the hello, and nothing else.
pub fn guard(action: &Action) -> Option<Guard<'_>> {
    match action {
        Action::Splice(splice) if matches!(splice.upstream, SpliceUpstream::Sni { .. }) => {
            Some(Guard { allow: &splice.upstream_allow })
        }
        _ => None,
    }
}
