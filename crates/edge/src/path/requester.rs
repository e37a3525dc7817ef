//! The client of a proxy: the user that a client names, its certificate, and the cgroup of a
//! process at a Unix socket. It is noted before the rules are asked.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use eyelet_config::Terminate;
use eyelet_downstream::client::secrets::check_credentials;
use eyelet_memory::budget::CountedBuffer;
use eyelet_pki::spiffe::svid;
use eyelet_telemetry::info::{Decided, End, KnownClient, Outcome};
use eyelet_telemetry::reason::{Reason, UserLack};
use eyelet_wire::local_peer::LocalPeer;
use eyelet_wire::proxy::client_name;
use rustls_pki_types::CertificateDer;
use zeroize::{Zeroize, Zeroizing};

use crate::path::active::Active;

/// Notes the cgroup of the process, if rules ask for one. A process that has ended, or that is of
/// another PID namespace, has none.
pub fn note_process(connection: &mut Active<'_>) {
    if !connection.edge.snapshot.config.policy.asks_cgroups() {
        return;
    }
    let peer = LocalPeer::of(connection.info.client.ip()).filter(|peer| peer.pid != 0);
    if let Some(cgroup) = peer.and_then(|peer| connection.handle.client_cgroup(peer.pid)) {
        change(&mut connection.info.decided, |requester| requester.cgroup = Some(cgroup.into()));
    }
}

/// Notes the name in the client's certificate, if rules ask for one, and a listener of this edge
/// has ended the client's TLS and says it. Anybody else could write any name.
pub fn note_certificate(connection: &mut Active<'_>, header: &[u8]) {
    let (snapshot, handle) = (&connection.edge.snapshot, connection.handle);
    let client = connection.info.client;
    // Asked again: the listener's worker may have accepted this before the dial was noted. With the
    // header it is.
    let is_own = || {
        let loops = &snapshot.names.loops;
        loops.is_handed(client, || handle.local_address(), || handle.is_connected())
    };
    if snapshot.config.policy.asks_client_certs
        && (connection.info.decided.is_handed || is_own())
        && let Some(name) = client_name(header)
    {
        change(&mut connection.info.decided, |requester| requester.certificate = Some(name.into()));
    }
}

/// Notes the SPIFFE id in the client's certificate, if its rule has verified it.
pub fn note_svid(
    connection: &mut Active<'_>,
    terminate: &Terminate,
    certificate: Option<&CertificateDer<'_>>,
) {
    let verified = certificate.filter(|_| !terminate.client_spiffe.is_empty());
    if let Some(id) = verified.and_then(|certificate| svid::id(certificate).ok()) {
        let id = id.as_str().into();
        change(&mut connection.info.decided, |requester| requester.certificate = Some(id));
    }
}

/// True if the listener knows users.
pub fn asks_user(connection: &Active<'_>) -> bool {
    connection.listener().users.is_some()
}

/// The user of this name and token.
pub fn verified(connection: &Active<'_>, name: &[u8], token: &[u8]) -> Result<Box<str>, End> {
    check_secrets(connection, name)?;
    check_secrets(connection, token)?;
    let users = connection.listener().users.as_ref();
    let user = users.and_then(|users| users.verify(name, token));
    user.map(Into::into)
        .ok_or(End { outcome: Outcome::Refused, reason: Reason::NoUser(UserLack::Wrong) })
}

/// Checks that a proxy's client sends no placeholder of a secret: a proxy needs none.
fn check_secrets(connection: &Active<'_>, credentials: &[u8]) -> Result<(), End> {
    let refused = check_credentials(&connection.edge.http, credentials);
    refused.map_or(Ok(()), |reason| Err(End { outcome: Outcome::Refused, reason }))
}

/// The user of a `Proxy-Authorization` field: Basic (RFC 7617). `None`: there is no field, or the
/// listener knows no users.
pub fn authorized(connection: &Active<'_>, field: Option<&[u8]>) -> Result<Option<Box<str>>, End> {
    if let Some(field) = field {
        check_secrets(connection, field)?;
    }
    let Some(field) = field.filter(|_| asks_user(connection)) else { return Ok(None) };
    let pair = basic(field).unwrap_or_default();
    let colon = pair.iter().position(|byte| *byte == b':').unwrap_or(pair.len());
    let (name, token) = pair.split_at_checked(colon).unwrap_or_default();
    let token = token.strip_prefix(b":").unwrap_or(token);
    verified(connection, name, token).map(Some)
}

/// Notes the user of a request, in place of an earlier one's.
pub fn note_user(decided: &mut Decided, user: Option<Box<str>>) {
    if user.is_some() || decided.requester.is_some() {
        change(decided, |requester| requester.user = user);
    }
}

/// Takes bytes off the front of a buffer, and wipes them: they may have a token.
pub fn take_secret(raw: &mut CountedBuffer, len: usize) {
    raw.edit(|bytes| bytes.get_mut(..len).map(Zeroize::zeroize));
    raw.consume(len);
}

fn change(decided: &mut Decided, change: impl FnOnce(&mut KnownClient)) {
    let mut requester = decided.requester.as_deref().cloned().unwrap_or_default();
    change(&mut requester);
    decided.requester = (requester != KnownClient::default()).then(|| Arc::new(requester));
}

/// `user:token` of a field. Schemes have no case (RFC 9110 section 11.1).
fn basic(field: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (scheme, encoded) = field.split_at_checked(BASIC.len())?;
    if !scheme.eq_ignore_ascii_case(BASIC) {
        return None;
    }
    BASE64_STANDARD.decode(encoded.trim_ascii()).ok().map(Zeroizing::new)
}

const BASIC: &[u8] = b"Basic ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_basic_is_read() {
        for (field, pair) in [
            (&b"Basic YTpi"[..], Some(&b"a:b"[..])),
            (b"bASIC   YTpi ", Some(b"a:b")),
            (b"Basic YTpi!", None),
            (b"Basic", None),
            (b"Bearer YTpi", None),
            (b"", None),
        ] {
            let read = basic(field);
            assert_eq!(read.as_ref().map(|pair| &pair[..]), pair, "{}", field.escape_ascii());
        }
    }
}
