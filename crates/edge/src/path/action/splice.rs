//! Splice: dials the upstream, sends it the peeked bytes, and parks the pair.

use crate::path::active::Active;
use crate::path::connect;
use crate::path::proxy_protocol;
use crate::path::refuse::{self, RefusalMessage};
use crate::path::upstream;
use eyelet_config::{DialSource, Host, HostPort, Splice, SpliceUpstream};
use eyelet_engine::park;
use eyelet_engine::ready::{CLIENT, UPSTREAM};
use eyelet_memory::budget::CountedBuffer;
use eyelet_relay::splice::Spliced;
use eyelet_relay::{Flow, Relay};
use eyelet_resolve::connect::DialOptions;
use eyelet_resolve::dial::{DialTarget, Guard};
use eyelet_resolve::loops::DialMark;
use eyelet_telemetry::info::{ConnectionInfo, End, Outcome, TlsCompression};
use eyelet_telemetry::reason::Reason;
use eyelet_wire::version::TLS13;

/// Splices the connection. The first `hello_bytes` of `peeked` are the hello; 0 if none was read.
// An `async fn` would keep its arguments twice and make every task that much larger.
#[allow(clippy::manual_async_fn)]
pub fn splice(
    connection: &mut Active<'_>,
    rule: &Splice,
    peeked: &mut CountedBuffer,
    hello_bytes: usize,
) -> impl Future<Output = Result<(), End>> {
    async move {
        let Some(target) = target(connection.info, rule) else {
            let end = End::failed(Reason::NoDestination);
            return failed(connection, hello_bytes, end);
        };
        let source = match rule.source {
            DialSource::Host => None,
            DialSource::Client => Some(connection.info.client.ip()),
        };
        connection.info.bytes_to_upstream += peeked.len() as u64;
        let behind = peeked.split_off(if hello_bytes > 0 { hello_bytes } else { peeked.len() });
        if rule.proxy_protocol.is_some() {
            let header = proxy_protocol::header(connection, None);
            peeked.edit(|bytes| drop(bytes.splice(0..0, header)));
        }
        // With TCP Fast Open the SYN waits for our first bytes. Without any, it would never be
        // sent, and a server that speaks first would wait.
        let fast_open = rule.fast_open && !peeked.is_empty();
        let mark = match target {
            DialTarget::Configured(_) | DialTarget::Unix(_) => DialMark::None,
            _ if hello_bytes == 0 => DialMark::None,
            DialTarget::Address(_) | DialTarget::Chosen(..) | DialTarget::Named(..) => {
                let hello = &peeked[peeked.len() - hello_bytes.min(peeked.len())..];
                DialMark::Hello(hello, connection.info.decided.hop_count)
            }
        };
        let options =
            DialOptions { source, first: peeked, fast_open, mark, ..DialOptions::default() };
        let sent = match upstream::dial(connection, &target, &options).await {
            Ok(sent) => sent,
            Err(end) => {
                connection.info.bytes_to_upstream = 0;
                return failed(connection, hello_bytes, end);
            }
        };
        connect::establish(connection).await?;
        let mut flow = Flow::default();
        if !peeked.is_empty() {
            flow.begin(&peeked[sent..]);
        }
        if is_inspected(connection.info, rule) {
            flow.inspect(rule.forbid_tls_compression);
        }
        if !behind.is_empty() {
            pass_behind(connection, &mut flow, &behind)?;
        }
        let spliced = Spliced::new(flow, &mut connection.info.decided);
        park::park(connection.handle, connection.info, Relay::Splice(spliced));
        Ok(())
    }
}

/// A server may choose compression that was offered. In TLS 1.3 it may ask for a second hello.
/// Blind rules need no inspection: they have no name to compare, and no hello was read.
fn is_inspected(info: &ConnectionInfo, rule: &Splice) -> bool {
    let asks_again = info.decided.tls_version == Some(TLS13);
    match info.decided.tls_compression {
        None => false,
        Some(TlsCompression::None) => asks_again || rule.forbid_tls_compression,
        Some(_) => true,
    }
}

/// Bytes behind the hello take the same way as all later bytes.
fn pass_behind(connection: &Active<'_>, flow: &mut Flow, behind: &[u8]) -> Result<(), End> {
    let mut passed = behind.len();
    if flow.is_inspected(CLIENT) {
        match flow.pass(CLIENT, behind, connection.info.decided.sni.as_deref(), &mut false) {
            Ok(at_once) => passed = at_once,
            Err(_) => {
                let reason = flow.never_reason();
                let answer = RefusalMessage::of(&reason);
                let end = End { outcome: Outcome::Refused, reason };
                return refuse::refuse(connection, &answer, end);
            }
        }
    }
    flow.hold(UPSTREAM, &behind[..passed]);
    Ok(())
}

/// Returns the target that the rule dials for a connection. `None`: it has no such destination or
/// name.
pub fn target<'a>(info: &ConnectionInfo, rule: &'a Splice) -> Option<DialTarget<'a>> {
    match &rule.upstream {
        SpliceUpstream::HostPort(host_port) if rule.is_guarded => {
            Some(DialTarget::chosen(host_port, Guard { allow: &rule.upstream_allow }))
        }
        SpliceUpstream::HostPort(host_port) => Some(DialTarget::Configured(host_port)),
        SpliceUpstream::Sni { port } => {
            let name = Host::Name(info.decided.sni.as_deref()?.to_owned());
            let host_port = HostPort { host: name, port: *port };
            Some(DialTarget::Named(host_port, Guard { allow: &rule.upstream_allow }))
        }
        SpliceUpstream::Destination => destination(info, rule),
    }
}

/// Returns the address to which the client meant to go. A destination that somebody chose freely is
/// guarded as a name is. One of the kernel is not: the client's packets were routed there before
/// they were intercepted.
fn destination<'a>(info: &ConnectionInfo, rule: &'a Splice) -> Option<DialTarget<'a>> {
    let guard = Guard { allow: &rule.upstream_allow };
    match (info.decided.destination, info.decided.is_chosen()) {
        (Some(destination), false) => Some(DialTarget::Address(destination)),
        (Some(destination), true) => Some(DialTarget::Chosen(destination, guard)),
        (None, _) => Some(DialTarget::Named(connect::host_port(info)?, guard)),
    }
}

/// A client that sent a hello understands an alert. One whose bytes were never read is closed
/// without an answer: its protocol is unknown.
fn failed(connection: &Active<'_>, hello_bytes: usize, end: End) -> Result<(), End> {
    let answer = match hello_bytes {
        0 => RefusalMessage::Nothing,
        _ => RefusalMessage::of(&end.reason),
    };
    connect::end(connection, &answer, end)
}
