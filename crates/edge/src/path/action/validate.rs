//! Answers an ACME server that validates a name by TLS-ALPN-01 (RFC 8737): a handshake with a
//! certificate for this purpose alone, and then the end.

use eyelet_engine::park;
use eyelet_memory::budget::CountedBuffer;
use eyelet_telemetry::info::{End, Outcome};
use eyelet_telemetry::reason::{Reason, Stage};
use eyelet_tls::server::{ACME_TLS, Handshake};
use eyelet_wire::hello::Hello;

use crate::path::active::Active;
use crate::path::handshake::handshake;
use crate::path::peek;

/// True if the hello is such a request, on a listener that leads to a rule with ACME. A name that
/// nobody here has ordered is left to the rules: it may be validated by what it is spliced to.
pub fn is_asked(connection: &Active<'_>, hello: &Hello<'_>) -> bool {
    let Some(acme) = &connection.edge.snapshot.config.acme else { return false };
    let listeners = &acme.wanted.listeners;
    let mut protocols = hello.alpn();
    // RFC 8737 section 3: the list has this protocol alone.
    protocols.next().is_some_and(|first| first.as_ref() == ACME_TLS)
        && protocols.next().is_none()
        && (listeners.is_empty() || listeners.contains(&connection.info.decided.listener))
}

/// The handshake for the name of the hello. `None`: nobody here has ordered it.
pub async fn find(connection: &Active<'_>) -> Result<Option<Handshake>, End> {
    let Some(name) = &connection.info.decided.sni else { return Ok(None) };
    let mut found = None;
    let find = async { found = connection.edge.snapshot.acme.validation(name).await };
    peek::while_there(connection.edge, connection.handle, find, Stage::Handshake).await?;
    Ok(found)
}

/// Shakes hands and ends the connection, as the server needs no more.
pub async fn validate(
    connection: &Active<'_>,
    with: Handshake,
    peeked: CountedBuffer,
) -> Result<(), End> {
    connection.handle.due_in(connection.edge.snapshot.config.limits.handshake_timeout);
    match handshake(connection, with, peeked, false, false).await {
        Ok(_) => {
            park::close_with(connection.handle, &[]);
            Err(End { outcome: Outcome::Terminated, reason: Reason::Validated })
        }
        Err(failure) => {
            park::close_with(connection.handle, &failure.alert);
            Err(failure.end)
        }
    }
}
