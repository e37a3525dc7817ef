//! The client's side of a proxy: reads a CONNECT, or a request of SOCKS, and answers it. Refusals
//! before the 200 are HTTP responses, or replies of SOCKS. After it the client speaks TLS.

pub mod guarded;
mod socks;

use std::net::SocketAddr;

use eyelet_wire::alert::AlertDescription;
use eyelet_wire::connect::{ConnectPeek, ConnectReader, Target, TargetHost};
use eyelet_wire::hello::HelloFacts;
use eyelet_wire::record::HANDSHAKE;
use eyelet_wire::socks::Reply;

use crate::path::active::Active;
use crate::path::peek;
use crate::path::refuse::{self, RefusalMessage};
use crate::path::requester;
use eyelet_config::{Action, HostPort};
use eyelet_downstream::connection::refusal::{ProxyRefusal, whole_response};
use eyelet_downstream::connection::route::requester_facts;
use eyelet_engine::park;
use eyelet_engine::ready::CLIENT;
use eyelet_memory::budget::CountedBuffer;
use eyelet_memory::interner::Name;
use eyelet_policy::{Facts, Refusal};
use eyelet_telemetry::info::{AskedBy, ConnectionInfo, DestinationSource, End, Outcome};
use eyelet_telemetry::reason::{Limit, NotConnect, Reason, Stage, When};

/// RFC 9110 section 9.3.6: any 2xx, and no Content-Length.
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// A client's request to a proxy.
pub enum ProxyRequest {
    /// A target, by a CONNECT or by SOCKS. The request was read.
    Target,
    /// An `http://` URL. Nothing was taken off the received bytes.
    PlainHttp,
}

/// Reads the request. Bytes behind it stay in `raw` and are peeked at first.
pub async fn read_request(
    connection: &mut Active<'_>,
    raw: &mut CountedBuffer,
) -> Result<ProxyRequest, End> {
    // The destination that a PROXY header names is this proxy itself.
    connection.info.decided.destination = None;
    connection.info.decided.destination_source = DestinationSource::Kernel;
    requester::note_process(connection);
    let mut reader = ConnectReader::new();
    let connect = loop {
        if socks::is_begun(raw) {
            let target = Box::pin(socks::read_target(connection, raw)).await?;
            note_target(connection, target, AskedBy::Socks);
            return Ok(ProxyRequest::Target);
        }
        match reader.feed(raw) {
            ConnectPeek::NeedMore => peek::more(connection, raw, Stage::ConnectRequest).await?,
            ConnectPeek::Connect(connect) => break connect,
            ConnectPeek::PlainHttp => return Ok(ProxyRequest::PlainHttp),
            other => return Err(unreadable(connection, raw, &other)),
        }
    };
    let field = connect.authorization.and_then(|(start, end)| raw.get(start..end));
    let user = requester::authorized(connection, field);
    requester::take_secret(raw, connect.len);
    note_target(connection, connect.target, AskedBy::Connect);
    match user {
        Ok(user) => requester::note_user(&mut connection.info.decided, user),
        Err(wrong) => end(connection, &RefusalMessage::Nothing, wrong)?,
    }
    Ok(ProxyRequest::Target)
}

fn note_target(connection: &mut Active<'_>, target: Target, asked_by: AskedBy) {
    let info = &mut *connection.info;
    if let TargetHost::Ip(ip) = target.host {
        info.decided.destination = Some(SocketAddr::new(ip, target.port));
    }
    info.decided.connect = Some(Name::from(&*target.to_string()));
    info.connect = Some(Box::new(target));
    info.owes_answer = Some(asked_by);
}

/// Answers bytes that are no CONNECT request, in the protocol that they seem to be.
fn unreadable(connection: &Active<'_>, raw: &[u8], peek: &ConnectPeek) -> End {
    let (answer, reason) = match peek {
        ConnectPeek::Malformed(fault) => {
            let said = format!("This CONNECT request is malformed: {fault}.\n");
            (whole_response("400 Bad Request", "", &said), Reason::MalformedConnect(*fault))
        }
        ConnectPeek::OtherMethod => {
            let said = "This proxy takes CONNECT requests and http:// URLs only.\n";
            let answer = whole_response("405 Method Not Allowed", "Allow: CONNECT\r\n", said);
            (answer, Reason::NotConnect(NotConnect::Method))
        }
        _ if raw.first() == Some(&HANDSHAKE) => {
            let alert = AlertDescription::UnexpectedMessage.fatal_record();
            (alert.into(), Reason::NotConnect(NotConnect::Tls))
        }
        _ => (Vec::new(), Reason::NotConnect(NotConnect::NotHttp)),
    };
    park::close_with(connection.handle, &answer);
    End { outcome: Outcome::Refused, reason }
}

/// Sends the 200, or the reply of SOCKS, if the client waits for it.
pub async fn establish(connection: &mut Active<'_>) -> Result<(), End> {
    let answer = match connection.info.owes_answer.take() {
        None => return Ok(()),
        Some(AskedBy::Connect) => ESTABLISHED,
        Some(AskedBy::Socks) => &Reply::Succeeded.answer(),
    };
    // The client could not send its hello before the 200, so the hello gets its own timeout.
    connection.handle.due_in(connection.edge.snapshot.config.limits.hello_timeout);
    let sent = connection.handle.send_all(CLIENT, answer).await;
    let when = When::During(Stage::ConnectAnswer);
    sent.map_err(|wait_error| End::failed(wait_error.reason(Limit::Hello, when)))
}

/// Ends a connection. A client that waits for the answer to its CONNECT or to its request of SOCKS
/// gets that, and a client without TLS gets HTTP. To others it is `answer`.
pub fn end(connection: &Active<'_>, answer: &RefusalMessage, mut end: End) -> Result<(), End> {
    if connection.takes_alert() {
        return refuse::refuse(connection, answer, end);
    }
    if end.reason == Reason::Refused(Refusal::Unlisted.text()) {
        end.reason = unlisted(connection, None).unwrap_or(end.reason);
    }
    let message = message(connection);
    let refusal = ProxyRefusal::new(connection.info, end.outcome, &end.reason, message);
    match connection.info.owes_answer {
        Some(AskedBy::Socks) => {
            park::close_with(connection.handle, &refusal.socks_reply().answer());
        }
        Some(AskedBy::Connect) | None => park::close_with(connection.handle, &refusal.response()),
    }
    Err(end)
}

/// Names the lists that lack the target of a client that no rule takes.
pub fn unlisted(connection: &Active<'_>, hello: Option<HelloFacts<'_>>) -> Option<Reason> {
    let info = &*connection.info;
    let facts = Facts {
        connect: Some(info.connect.as_deref()?),
        requester: requester_facts(&info.decided),
        destination: info.decided.destination,
        hello,
        ..Facts::new(info.decided.listener, info.client.ip())
    };
    let lists = connection.edge.snapshot.config.policy.lacks_target(&facts)?;
    Some(Reason::Unlisted(lists.into()))
}

/// The line of the rule for a client that it refuses.
pub fn message<'a>(connection: &Active<'a>) -> Option<&'a str> {
    let rules = &connection.edge.snapshot.config.rules;
    match connection.info.decided.rule.map(|rule| rules.at(rule).action) {
        Some(Action::Refuse(refuse)) => refuse.message.as_deref(),
        _ => None,
    }
}

/// The target of the CONNECT, as something to dial.
pub fn host_port(info: &ConnectionInfo) -> Option<HostPort> {
    let target = info.connect.as_deref()?;
    let host = match target.host {
        TargetHost::Name(name) => eyelet_config::Host::Name(name.as_str().to_owned()),
        TargetHost::Ip(ip) => eyelet_config::Host::Ip(ip),
    };
    Some(HostPort { host, port: target.port })
}
