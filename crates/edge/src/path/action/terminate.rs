//! Terminate: shakes hands, dials the application, and parks the connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use eyelet_policy::Refusal;
use eyelet_wire::alert::AlertDescription;
use eyelet_wire::hello::Hello;
use eyelet_wire::version::{SSL30, TLS13};
use tokio::time::sleep;

use crate::path::action::mint;
use crate::path::active::Active;
use crate::path::handshake::{HandshakeFailure, handshake};
use crate::path::peek;
use crate::path::proxy_protocol;
use crate::path::refuse::{self, RefusalMessage};
use crate::path::requester;
use crate::path::upstream;
use eyelet_config::{CertificateSource, Terminate, TerminateUpstream};
use eyelet_engine::park;
use eyelet_memory::budget::CountedBuffer;
use eyelet_relay::terminate::{Terminated, final_alert};
use eyelet_relay::{Flow, Relay};
use eyelet_resolve::connect::DialOptions;
use eyelet_resolve::dial::DialTarget;
use eyelet_telemetry::info::End;
use eyelet_telemetry::listing::State;
use eyelet_telemetry::reason::{CertificateLack, Class, Detail, Peer, Reason, Stage};
use eyelet_tls::certificates::Certificates;
use eyelet_tls::server::TlsError;
use eyelet_tls::workload::SvidLack;

/// Time between the first two dials to an upstream that is down.
const WAIT_STEP_MIN: Duration = Duration::from_millis(100);
/// The longest time between two: each connection that is held dials for itself.
const WAIT_STEP_MAX: Duration = Duration::from_secs(1);

/// Facts of a hello that a terminator needs beside its bytes and its versions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offer {
    /// It announces early data.
    early_data: bool,
    /// Its `legacy_version` is SSL 3.0, whatever `supported_versions` says.
    is_ssl30: bool,
}

impl Offer {
    /// The facts of this hello.
    pub fn of(hello: &Hello<'_>) -> Self {
        let is_ssl30 = hello.legacy_version() == SSL30;
        Self { early_data: hello.has_early_data(), is_ssl30 }
    }
}

/// Terminates the connection. `peeked` is the hello.
pub async fn terminate(
    connection: &mut Active<'_>,
    rule: u32,
    terminate: &Terminate,
    (peeked, offer): (CountedBuffer, Offer),
) -> Result<(), End> {
    let snapshot = &connection.edge.snapshot;
    let name = connection.info.decided.sni.as_deref();
    let mut with = match snapshot.tls.of(&snapshot.config.rules, rule, name) {
        Ok(with) => with,
        Err(TlsError::Unlisted) => {
            let (answer, end) = refuse::by_rule(None, Refusal::NoRule, None);
            return refuse::refuse(connection, &answer, end);
        }
        // It was logged when the certificate was read. The fault is ours.
        Err(error) => {
            let alert = AlertDescription::InternalError.fatal_record();
            park::close_with(connection.handle, &alert);
            return Err(End::failed(Reason::Configuration(Detail::of(error))));
        }
    };
    // RFC 8446 appendix D.5: an endpoint that receives SSL 3.0 "MUST abort the handshake with a
    // protocol_version alert". rustls would answer an old client by handshake_failure: it checks
    // first which extensions it has.
    if offer.is_ssl30
        || connection.info.decided.tls_version < Some(terminate.tls_version_min.code())
    {
        let (answer, end) = refuse::by_rule(None, Refusal::ByVersion, None);
        return refuse::refuse(connection, &answer, end);
    }
    connection.handle.due_in(snapshot.config.limits.handshake_timeout);
    match made(connection, rule, terminate).await {
        Ok(None) => {}
        Ok(Some(certificates)) => with.certificates = certificates,
        Err(end) => return refuse::refuse(connection, &RefusalMessage::of(&end.reason), end),
    }
    let asks_client = terminate.asks_client();
    let client_roots = with.client_roots;
    let began = connection.edge.engine.begins();
    let done = match handshake(connection, with, peeked, offer.early_data, asks_client).await {
        Ok(done) => done,
        Err(failure) => return Err(mint::explain(terminate, give_up(connection, failure))),
    };
    let kind = (done.version == TLS13, done.resumed);
    connection.edge.engine.count_handshake(kind, began);
    connection.info.decided.client_roots = client_roots;
    if terminate.client_cert_header {
        connection.info.decided.client_certificate =
            done.certificate.as_deref().map(|leaf| Arc::new(leaf.into()));
    }
    requester::note_svid(connection, terminate, done.certificate.as_ref());
    connection.info.decided.tls_version = Some(done.version);
    connection.edge.engine.counters.groups.up(done.group);
    let header = match terminate.proxy_protocol {
        Some(_) => proxy_protocol::header(connection, Some(&done)),
        None => Vec::new(),
    };
    let http = matches!(terminate.upstream, TerminateUpstream::Http(_));
    connection.info.decided.http2 = http && done.alpn.as_deref() == Some(b"h2");
    let mut flow = Flow::default();
    flow.hold_partial(&done.leftover);
    flow.hold_preface(header);
    let mut terminated = Terminated { session: done.session, flow };
    if !http {
        dial(connection, terminate, &mut terminated).await?;
    }
    park::park(connection.handle, connection.info, Relay::Terminate(terminated));
    Ok(())
}

/// Ends the connection of a handshake that is not done.
fn give_up(connection: &Active<'_>, failure: HandshakeFailure) -> End {
    if is_failure(&failure.end.reason) {
        connection.edge.engine.counters.handshakes_failed.up();
    }
    park::close_with(connection.handle, &failure.alert);
    failure.end
}

/// True if a handshake that ended so has failed. The edge itself cuts one where it drains, where an
/// operator says so, and where memory is short.
fn is_failure(reason: &Reason) -> bool {
    !matches!(reason.class(), Class::Drained | Class::Ended | Class::Shed)
}

/// The certificates that are there for one name or one origin only. `None`: the rule has its own.
async fn made(
    connection: &mut Active<'_>,
    rule: u32,
    terminate: &Terminate,
) -> Result<Option<Arc<Certificates>>, End> {
    // Boxed: few connections wait here, and the room would be in every handshake's future.
    match terminate.certificates {
        CertificateSource::Files | CertificateSource::Local(_) => Ok(None),
        CertificateSource::Spiffe => svid(connection).map(Some),
        CertificateSource::Acme { on_demand } => {
            Box::pin(issued(connection, on_demand)).await.map(Some)
        }
        CertificateSource::Mint => {
            Box::pin(mint::certificates(connection, rule, terminate)).await.map(Some)
        }
    }
}

/// The certificate that the SPIFFE Workload API has sent.
fn svid(connection: &Active<'_>) -> Result<Arc<Certificates>, End> {
    let sent = connection.edge.snapshot.tls.workload().certificates();
    sent.map_err(|lack| {
        End::failed(Reason::NoCertificate(match lack {
            SvidLack::NotSent => CertificateLack::NotSent,
            SvidLack::Expired => CertificateLack::Expired,
        }))
    })
}

/// The certificate that an ACME server issued for the name. With `on_demand` it is ordered now.
async fn issued(connection: &Active<'_>, on_demand: bool) -> Result<Arc<Certificates>, End> {
    let snapshot = &connection.edge.snapshot;
    let lacks = |lack| End::failed(Reason::NoCertificate(lack));
    let name =
        connection.info.decided.sni.as_ref().ok_or_else(|| lacks(CertificateLack::NoName))?;
    let acme = &snapshot.acme;
    if !on_demand {
        return acme.certificates(name).map_err(lacks);
    }
    let mut issued = acme.certificates_on_demand(name);
    if matches!(issued, Err(CertificateLack::Ordered)) {
        // The rest is for the handshake.
        let wait = snapshot.config.limits.handshake_timeout * 3 / 4;
        let order = async { issued = acme.order(name, wait).await };
        peek::while_there(connection.edge, connection.handle, order, Stage::Handshake).await?;
    }
    issued.map_err(lacks)
}

async fn dial(
    connection: &mut Active<'_>,
    terminate: &Terminate,
    terminated: &mut Terminated,
) -> Result<(), End> {
    let target = match &terminate.upstream {
        TerminateUpstream::Tcp(host_port) => DialTarget::Configured(host_port),
        TerminateUpstream::Unix(path) => DialTarget::Unix(path),
        TerminateUpstream::Http(_) | TerminateUpstream::Tls(_) => {
            return Err(End::failed(Reason::Internal("dialled HTTP without a request")));
        }
    };
    let mut dialled = upstream::dial(connection, &target, &DialOptions::default()).await;
    if is_down(&dialled) && !terminate.upstream_wait.is_zero() {
        dialled = Box::pin(hold(connection, &target, terminate.upstream_wait)).await;
    }
    if let Err(end) = dialled {
        let alert = AlertDescription::InternalError.code();
        park::close_with(connection.handle, &final_alert(terminated, alert));
        return Err(end);
    }
    terminated.flow.preface_first();
    Ok(())
}

/// Dials again and again, for at most so long.
async fn hold(
    connection: &mut Active<'_>,
    target: &DialTarget<'_>,
    wait: Duration,
) -> Result<usize, End> {
    connection.note_state(State::Dialling);
    let end = Instant::now() + wait;
    let mut step = WAIT_STEP_MIN;
    loop {
        sleep(step).await;
        // The time of the next dial begins here.
        connection.edge.engine.clock.now_ns();
        step = (step * 2).min(WAIT_STEP_MAX);
        let dialled = upstream::dial(connection, target, &DialOptions::default()).await;
        let is_over = Instant::now() >= end || connection.handle.is_to_end();
        if is_over || !is_down(&dialled) {
            return dialled;
        }
    }
}

/// True if the upstream accepts no connection, which may change.
fn is_down(dialled: &Result<usize, End>) -> bool {
    let reason = dialled.as_ref().err().map(|end| &end.reason);
    matches!(reason, Some(Reason::Io(Peer::Upstream, _) | Reason::NoLocalPort(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyelet_telemetry::reason::{Limit, Shed, When};

    #[test]
    fn a_handshake_that_the_edge_cuts_has_not_failed() {
        let during = When::During(Stage::Handshake);
        for (reason, failed) in [
            (Reason::ClientClosed(Some(during)), true),
            (Reason::Timeout(Limit::Handshake, None), true),
            (Reason::Drained(Some(during)), false),
            (Reason::Ended, false),
            (Reason::Shed(Shed::Excess), false),
        ] {
            assert_eq!(is_failure(&reason), failed, "{reason}");
        }
    }
}
