//! Originate: a client without TLS, whose requests go to an upstream by TLS. Nothing is dialled or
//! read here: the connection is parked as soon as its first request begins.

use crate::path::active::Active;
use eyelet_engine::park;
use eyelet_relay::{Flow, Relay};
use eyelet_telemetry::info::End;
use eyelet_telemetry::reason::{Limit, Reason, Stage, When};

/// Parks the connection once its client has sent something. Until then it is half-open, and the
/// deadline of a hello is that of its first byte.
pub async fn originate(connection: &mut Active<'_>) -> Result<(), End> {
    if connection.info.decided.tls_version.is_some() {
        // `check` lets such a rule have plain listeners only.
        return Err(End::failed(Reason::Internal("an originate rule for a client with TLS")));
    }
    if let Err(wait_error) = connection.handle.first_byte().await {
        let when = When::Before(Stage::Request);
        return Err(End::failed(wait_error.reason(Limit::Hello, when)));
    }
    park::park(connection.handle, connection.info, Relay::Cleartext(Flow::default()));
    Ok(())
}
