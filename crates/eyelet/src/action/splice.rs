//! Splice: dial the upstream, give it what was peeked, and leave the pair to the table.
//! It must not know TLS.

use crate::action::refuse::{self, Answer};
use crate::active::Active;
use crate::connect;
use crate::proxy_protocol;
use crate::upstream;
use eyelet_config::{Host, HostPort, Source, Splice, SpliceUpstream};
use eyelet_engine::park;
use eyelet_engine::ready::{CLIENT, UPSTREAM};
use eyelet_engine::relay::splice::Spliced;
use eyelet_engine::relay::{Flow, Relay};
use eyelet_memory::budget::CountedBuffer;
use eyelet_resolve::connect::Options;
use eyelet_resolve::dial::{Guard, Target};
use eyelet_resolve::loops::Trace;
use eyelet_telemetry::info::{ConnectionInfo, End, Outcome, TlsCompression};
use eyelet_telemetry::reason::Reason;
use eyelet_wire::version::TLS13;

/// Splices the connection. Of `peeked` the first `hello_bytes` are the hello, if it was read.
pub async fn splice(
    active: &Active,
    info: &mut ConnectionInfo,
    rule: &Splice,
    peeked: &mut CountedBuffer,
    hello_bytes: usize,
) -> Result<(), End> {
    let Some(target) = target(info, rule) else {
        let end = End::failed(Reason::NoDestination);
        return failed(active, info, hello_bytes, end);
    };
    let source = match rule.source {
        Source::Host => None,
        Source::Client => Some(info.client.ip()),
    };
    info.bytes_to_upstream += peeked.len() as u64;
    let behind = peeked.split_off(if hello_bytes > 0 { hello_bytes } else { peeked.len() });
    if rule.proxy_protocol.is_some() {
        let header = proxy_protocol::header(active, info, None);
        peeked.edit(|bytes| drop(bytes.splice(0..0, header)));
    }
    // Without bytes of ours no SYN would be sent, and a server that speaks first would wait.
    let fast_open = rule.fast_open && !peeked.is_empty();
    let trace = match target {
        Target::Configured(_) | Target::Unix(_) => Trace::None,
        _ if hello_bytes == 0 => Trace::None,
        Target::Address(_) | Target::Chosen(..) | Target::Named(..) => {
            let hello = &peeked[peeked.len() - hello_bytes.min(peeked.len())..];
            Trace::Hello(hello, info.decided.turns)
        }
    };
    let options = Options { source, first: peeked, fast_open, trace };
    let sent = match upstream::dial(active, info, &target, &options).await {
        Ok(sent) => sent,
        Err(end) => {
            info.bytes_to_upstream = 0;
            return failed(active, info, hello_bytes, end);
        }
    };
    connect::establish(active, info).await?;
    let mut flow = Flow::default();
    if !peeked.is_empty() {
        flow.begin(&peeked[sent..]);
    }
    if is_watched(info, rule) {
        flow.watch(rule.forbid_tls_compression);
    }
    if !behind.is_empty() {
        pass_behind(active, info, &mut flow, &behind)?;
    }
    let spliced = Spliced::new(flow, &mut info.decided);
    park::park(active, info, Relay::Splice(spliced));
    Ok(())
}

/// A server may choose compression that was offered, and in TLS 1.3 ask for a second hello. A list
/// of rules that is blind has no name to compare, and no hello that was read.
fn is_watched(info: &ConnectionInfo, rule: &Splice) -> bool {
    let asks_again = info.decided.tls_version == Some(TLS13);
    match info.decided.tls_compression {
        None => false,
        Some(TlsCompression::None) => asks_again || rule.forbid_tls_compression,
        Some(_) => true,
    }
}

/// What came behind the hello goes the way of what is still to come.
fn pass_behind(
    active: &Active,
    info: &ConnectionInfo,
    flow: &mut Flow,
    behind: &[u8],
) -> Result<(), End> {
    let mut passed = behind.len();
    if flow.is_watched(CLIENT) {
        match flow.pass(CLIENT, behind, info.decided.sni.as_deref(), &mut false) {
            Ok(at_once) => passed = at_once,
            Err(_) => {
                let reason = flow.never_reason();
                let answer = Answer::of(&reason);
                let end = End { outcome: Outcome::Refused, reason };
                return refuse::refuse(active, &answer, end);
            }
        }
    }
    flow.hold(UPSTREAM, &behind[..passed]);
    Ok(())
}

fn target<'a>(info: &ConnectionInfo, rule: &'a Splice) -> Option<Target<'a>> {
    match &rule.upstream {
        SpliceUpstream::HostPort(host_port) => Some(Target::Configured(host_port)),
        SpliceUpstream::Sni { port } => {
            let name = Host::Name(info.decided.sni.as_deref()?.to_owned());
            let host_port = HostPort { host: name, port: *port };
            Some(Target::Named(host_port, Guard { allow: &rule.upstream_allow }))
        }
        SpliceUpstream::Destination => destination(info, rule),
    }
}

/// Where the client meant to go. What it could choose freely, by asking a proxy for it, is guarded
/// as a name is.
fn destination<'a>(info: &ConnectionInfo, rule: &'a Splice) -> Option<Target<'a>> {
    let guard = Guard { allow: &rule.upstream_allow };
    match (info.decided.destination, &info.connect) {
        (Some(destination), None) => Some(Target::Address(destination)),
        (Some(destination), Some(_)) => Some(Target::Chosen(destination, guard)),
        (None, _) => Some(Target::Named(connect::host_port(info)?, guard)),
    }
}

/// A client that sent a hello understands an alert; one whose bytes were never looked at is
/// closed without a word of ours in a protocol that we don't know.
fn failed(active: &Active, info: &ConnectionInfo, hello_bytes: usize, end: End) -> Result<(), End> {
    let answer = match hello_bytes {
        0 => Answer::Nothing,
        _ => Answer::of(&end.reason),
    };
    connect::end(active, info, &answer, end)
}
