//! Requests for `http://` URLs on a `connect` listener, and on one with `plain_http`. Each is
//! decided anew, with the URL's host as the name, and passes by a rule with `plain_http` only:
//! cleartext is never opened silently.

use std::net::SocketAddr;

use eyelet_policy::Refusal;
use eyelet_wire::connect::{Target, TargetHost};
use eyelet_wire::hello::HelloFacts;

use crate::path::active::Active;
use crate::path::connect;
use crate::path::fact_source::KnownFacts;
use crate::path::proxy_protocol;
use crate::path::requester;
use crate::path::shadow;
use eyelet_config::{
    Action, Host, HostPort, HttpAddress, HttpUpstream, Splice, SpliceUpstream, UpstreamHttp2,
};
use eyelet_engine::park;
use eyelet_http::proxied::{self, ProxiedClient, ProxiedRefusal, ProxiedRequest, ProxiedRoute};
use eyelet_memory::budget::CountedBuffer;
use eyelet_memory::interner::Name;
use eyelet_telemetry::info::{ConnectionInfo, End};
use eyelet_telemetry::listing::State;
use eyelet_telemetry::reason::Reason;

const NO_RULE: Reason = Reason::Refused("no rule with plain_http for this name");
const NOT_PLAIN: Reason = Reason::Refused("the rule has no plain_http");

/// Serves a client that has sent the beginning of such a request.
pub async fn serve(connection: &mut Active<'_>, raw: &mut CountedBuffer) -> Result<(), End> {
    let Active { edge, handle, info } = connection.reborrow();
    let mut edge = edge.clone();
    let destination = info.decided.destination;
    let mut client = ProxiedClient::new(handle.lend(), info.client.ip(), destination, raw);
    raw.consume(raw.len());
    client.count_live(info);
    // That of an intercepted client stays. A name in its requests is not looked up for the rules.
    let dialled = info.decided.destination;
    let end = loop {
        let request = match client.next(&edge.http, info).await {
            Ok(request) => request,
            Err(end) => {
                // Nothing is known of a request that cannot be read.
                info.decided.destination = info.decided.destination.or(dialled);
                break end;
            }
        };
        if let Some(newest) = edge.newer() {
            let listener = info.decided.labels.listener(info.decided.listener);
            let Some(listener) = newest.labels().listener_called(listener) else {
                break End::failed(Reason::RuleGone);
            };
            info.decided.listener = listener;
            info.decided.labels = newest.labels().clone();
            edge = newest;
        }
        let connection = &mut Active { edge: &edge, handle, info };
        if let Err(end) = Box::pin(pass(connection, &mut client, (request, dialled))).await {
            break end;
        }
    };
    park::close_with(handle, &client.end(info));
    Err(end)
}

/// Decides a request, and passes it on or refuses it.
async fn pass(
    connection: &mut Active<'_>,
    client: &mut ProxiedClient,
    (request, dialled): (ProxiedRequest, Option<SocketAddr>),
) -> Result<(), End> {
    let http = &connection.edge.http;
    begin(connection.info, request.target, dialled);
    let user = requester::authorized(connection, request.authorization());
    let decided = match user {
        Ok(user) => {
            requester::note_user(&mut connection.info.decided, user);
            decide(connection).await?
        }
        Err(wrong) => {
            requester::note_user(&mut connection.info.decided, None);
            Err(wrong.reason)
        }
    };
    let refused = match decided {
        Ok(rule) => match connection.edge.snapshot.config.rules.at(rule).action {
            Action::Splice(splice) if splice.plain_http => {
                let Some(to) = route(connection, rule, splice) else {
                    return Err(End::failed(Reason::NoDestination));
                };
                connection.note_state(State::Serving);
                return client.pass(http, connection.info, request, to).await;
            }
            _ => NOT_PLAIN,
        },
        Err(Reason::Refused(by)) if is_unlisted(by) => {
            let hello = HelloFacts::named(connection.info.decided.sni.as_deref());
            match (connect::unlisted(connection, Some(hello)), connection.info.decided.rule) {
                (Some(unlisted), _) => unlisted,
                (None, None) => NO_RULE,
                (None, Some(_)) => Reason::Refused(by),
            }
        }
        Err(reason) => reason,
    };
    let message = connect::message(connection);
    let refusal = ProxiedRefusal { reason: refused, message };
    client.refuse(http, connection.info, request, refusal).await
}

/// True if no rule but a last refuse rule takes the request.
fn is_unlisted(by: &str) -> bool {
    [Refusal::NoRule, Refusal::Unlisted].iter().any(|refusal| refusal.text() == by)
}

/// Notes what is known of a request, and forgets the one before.
fn begin(info: &mut ConnectionInfo, target: Target, dialled: Option<SocketAddr>) {
    let (sni, destination) = match target.host {
        TargetHost::Name(name) => (Some(name.as_str().into()), None),
        TargetHost::Ip(ip) => (None, Some(SocketAddr::new(ip, target.port))),
    };
    proxied::forget(info);
    info.decided.connect = Some(Name::from(&*target.to_string()));
    (info.decided.destination, info.decided.sni) = (dialled.or(destination), sni);
    info.connect = Some(Box::new(target));
}

/// The rule's index, or why it refuses. The rules are asked as by a hello with the URL's host.
async fn decide(connection: &mut Active<'_>) -> Result<Result<u32, Reason>, End> {
    let mut known = KnownFacts::of_url(connection);
    let Some(verdict) = known.ask_without_hello().await? else {
        return Err(End::failed(Reason::Internal("a URL without a name or its absence")));
    };
    let settled = known.settle(verdict);
    shadow::note(&mut known, None);
    Ok(settled.map_err(|(_, end)| end.reason))
}

/// Finds the request's target: the address that the rules were asked about, or the URL's host,
/// at the port that the rule says.
fn route(connection: &Active<'_>, rule: u32, splice: &Splice) -> Option<ProxiedRoute> {
    let address = match (&splice.upstream, connection.info.decided.destination) {
        (SpliceUpstream::Sni { port }, _) => {
            let name = connection.info.decided.sni.as_deref()?.to_owned();
            HostPort { host: Host::Name(name), port: *port }
        }
        (_, Some(at)) => HostPort { host: Host::Ip(at.ip()), port: at.port() },
        (_, None) => connect::host_port(connection.info)?,
    };
    let upstream = HttpUpstream {
        address: HttpAddress::Tcp(address),
        tls: None,
        http2: UpstreamHttp2::Off,
        chosen: Some(splice.upstream_allow.clone()),
    };
    let preface = match splice.proxy_protocol {
        Some(_) => proxy_protocol::header(connection, None),
        None => Vec::new(),
    };
    Some(ProxiedRoute { rule, upstream, preface })
}
