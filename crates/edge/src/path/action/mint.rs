//! Mint: asks the origin for its certificate, and has one like it signed for the client. What the
//! origin then gets is encrypted again, by `http`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use eyelet_config::{CertificateSource, Host, HostPort, HttpAddress, HttpUpstream, Terminate};
use eyelet_resolve::evidence::Lack;
use eyelet_resolve::{dial, guard};
use eyelet_telemetry::info::{DestinationSource, End};
use eyelet_telemetry::reason::{Detail, HandshakeFault, Reason, Stage};
use eyelet_tls::certificates::Certificates;
use eyelet_wire::alert::AlertDescription;

use crate::path::active::Active;
use crate::path::fact_source::KnownFacts;
use crate::path::peek;

/// Alerts of clients that do not take a certificate (RFC 8446 section 6.2). A client that trusts
/// one certificate alone, or not the authority of the rule, ends the handshake by one of them.
const REFUSALS: [AlertDescription; 6] = [
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCa,
];

/// The certificate to show to a client.
///
/// # Errors
/// If the origin shows none, none can be signed, or the client is gone.
pub async fn certificates(
    connection: &mut Active<'_>,
    rule: u32,
    terminate: &Terminate,
) -> Result<Arc<Certificates>, End> {
    const NO_HTTP: Reason = Reason::Internal("a rule that mints has no HTTP upstream");
    let upstream = terminate.upstream.as_http().ok_or_else(|| End::failed(NO_HTTP))?;
    let Active { edge, handle, .. } = *connection;
    let mut known = KnownFacts::none(connection);
    let mut fetched = Ok(());
    let fetch = async { fetched = fetch(&mut known, upstream).await };
    peek::while_there(edge, handle, fetch, Stage::Evidence).await?;
    fetched.map_err(End::failed)?;
    let unreachable = |why: &str| End::failed(Reason::UpstreamTls(Detail::of(why)));
    let attempt = known.shown();
    let shown = match attempt.as_deref().map(|attempt| &attempt.shown) {
        Some(Ok(shown)) => shown,
        Some(Err(Lack::Failed(why))) => return Err(unreachable(why)),
        Some(Err(Lack::Unasked(why))) => {
            return Err(End::failed(Reason::EvidenceBusy(Detail::of(why))));
        }
        None => return Err(unreachable("nobody was asked")),
    };
    let leaf = shown.chain.first().ok_or_else(|| unreachable("the chain was not kept"))?;
    let snapshot = &edge.snapshot;
    let is_trusted = match &upstream.tls {
        Some(tls) => {
            let judged = shown.judged_by(&snapshot.http.upstream_tls, tls);
            if let Some(judged) = &judged {
                // The rule's roots may say otherwise than those for evidence.
                let evidence = known.connection.info.decided.evidence.get_or_insert_default();
                evidence.note_certificate(Ok(judged.logged.clone()));
            }
            judged.is_some_and(|judged| judged.is_trusted)
        }
        // An inspector dials the origin.
        None => shown.is_trusted,
    };
    handle.due_in(snapshot.config.limits.handshake_timeout);
    let origin = (leaf, is_trusted);
    let minted = snapshot.tls.mint(&snapshot.config.rules, rule, origin, &snapshot.budget);
    minted.map_err(|error| End::failed(Reason::Configuration(Detail::of(error))))
}

/// Fetches the certificate of the origin, from memory or by a handshake with it.
async fn fetch(known: &mut KnownFacts<'_>, upstream: &HttpUpstream) -> Result<(), Reason> {
    let (to, is_chosen): (SocketAddr, bool) = match &upstream.address {
        HttpAddress::Tcp(origin) if upstream.tls.is_some() => (
            dial::destination(&known.connection.edge.names, known.connection.info, origin).await?,
            false,
        ),
        _ => {
            if known.connection.listener().is_apart {
                lead_by_name(&mut known.connection).await?;
            }
            (known.fetch_origin().await?, known.connection.info.decided.is_chosen())
        }
    };
    let configured = upstream.tls.as_ref().map(|tls| tls.name.as_str());
    let name: Option<Box<str>> = match configured.filter(|name| !name.is_empty()) {
        // Nobody asks for an address by name (RFC 6066 section 3).
        Some(name) if name.parse::<IpAddr>().is_ok() => None,
        Some(name) => Some(name.into()),
        None => known.connection.info.decided.sni.clone(),
    };
    let own = upstream.chosen.as_deref().unwrap_or_default();
    // Side handshakes are allowed what any rule allows, because they come before the decision. Now
    // the rule is known. An inspector is allowed nothing.
    if is_chosen && guard::is_guarded(to.ip(), own) {
        return Err(Reason::UpstreamTls(Detail::of(guard::fault(to.ip()))));
    }
    known.fetch_certificate_to_mint(to, name.as_deref(), is_chosen).await;
    Ok(())
}

/// Makes the name in the hello the destination. In a sandbox a client dials an address that only
/// stands for a name.
async fn lead_by_name(connection: &mut Active<'_>) -> Result<(), Reason> {
    let Active { edge, handle, .. } = *connection;
    handle.due_in(edge.snapshot.config.limits.connect_timeout);
    let port = handle.local_address().map(|dialled| dialled.port());
    let name = connection.info.decided.sni.as_deref().map(str::to_owned);
    let (Some(name), Some(port)) = (name, port) else { return Err(Reason::NoDestination) };
    let origin = HostPort { host: Host::Name(name), port };
    let to = dial::destination(&edge.names, connection.info, &origin).await?;
    let decided = &mut connection.info.decided;
    (decided.destination, decided.destination_source) = (Some(to), DestinationSource::Hello);
    Ok(())
}

/// Says of a handshake that failed whether the client did not take the minted certificate.
pub fn explain(terminate: &Terminate, end: End) -> End {
    match end.reason {
        Reason::Handshake(HandshakeFault::Alert(code), _)
            if terminate.certificates == CertificateSource::Mint =>
        {
            let said = AlertDescription::from_code(code).filter(|said| REFUSALS.contains(said));
            let detail = match said {
                Some(said) => {
                    Detail::of(format_args!("client refused the minted certificate: {said}"))
                }
                None => return end,
            };
            End { reason: Reason::Handshake(HandshakeFault::Alert(code), detail), ..end }
        }
        _ => end,
    }
}
