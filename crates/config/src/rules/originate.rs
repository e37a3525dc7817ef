//! Reads the keys of an originate rule, and which listeners a rule's action fits.

use crate::model::values;
use crate::model::{Host, ListenerKind, Originate, Terminate, TerminateUpstream};
use crate::rules::matchers::{self, Matchers};
use crate::rules::upstreams;
use crate::settings::compression;
use crate::settings::listeners::Listeners;
use eyelet_document::reader::Section;
use eyelet_files::Files;

/// The port that an https:// URL leaves out.
const HTTPS_PORT: u16 = 443;

/// Narrows a rule without `listener` to those that its action fits, and reports a listed one that
/// it does not fit. `asks_of_plain` is whether the action is for clients without TLS.
pub(crate) fn fit_listeners(
    section: &Section<'_>,
    listeners: &Listeners,
    matchers: &mut Matchers<'_>,
    asks_of_plain: Option<bool>,
) {
    let asks_hello = matchers.conditions.ask_hello()
        || !(matchers.sni.is_empty() && matchers.sni_lists.is_empty());
    let asks_of_plain = asks_of_plain.or(asks_hello.then_some(false));
    if asks_of_plain == Some(true)
        && asks_hello
        && let Some((key, at)) = section.present(&OF_HELLO).next()
    {
        at.error(format!(
            "`{key}` asks about a hello, and clients of this rule send none, because \
             they speak no TLS; leave it out"
        ));
    }
    let Some(is_for_plain) = asks_of_plain else { return };
    if section.value("listener").is_none() {
        let Some(fitting) = listeners.fitting(is_for_plain) else { return };
        if fitting.is_empty() && !listeners.list.is_empty() {
            let message = match is_for_plain {
                true => "no listener is of kind \"plain\": this rule matches nothing",
                false => "all listeners are of kind \"plain\": this rule matches nothing",
            };
            section.at.error(message);
        }
        matchers.conditions.listeners = fitting.iter().copied().collect();
        matchers.listeners = fitting;
        return;
    }
    let is_plain = |kind| kind == ListenerKind::Plain;
    let mut listed =
        matchers.listeners.iter().filter_map(|at| listeners.list.get(usize::from(*at)));
    if let Some(other) = listed.find(|listener| is_plain(listener.kind) != is_for_plain)
        && let Some(at) = section.key_at("listener")
    {
        let message = match is_for_plain {
            true => format!("{} is not of kind \"plain\": its clients speak TLS", other.called()),
            false => format!(
                "{} is of kind \"plain\": its clients send no hello; expected an originate rule",
                other.called()
            ),
        };
        at.error(message);
    }
}

/// Clients of a Unix socket have no address. A rule that asks for one would not match them, and a
/// refuse rule would let them pass.
pub(crate) fn check_clients(section: &Section<'_>, listeners: &Listeners, listed: &[u16]) {
    let at = (listed, section.key_at("client"));
    listeners.check(at, |listener| listener.address.is_unix(), |called| {
        format!(
            "clients of {called} have no address: the mode of a Unix socket says who may connect; \
             give this rule a `listener` without it"
        )
    });
}

/// A client of a Unix socket cannot be sent a reset (unix(7)). A stream that was cut off on its way
/// would end for it like a whole one.
fn check_resets(section: &Section<'_>, listeners: &Listeners, listed: &[u16]) {
    let at = (listed, section.key_at("upstream"));
    listeners.check(at, |listener| listener.address.is_unix(), |called| {
        format!(
            "tls:// is not for clients of {called}: a Unix socket has no reset, so a stream that \
             was cut off would look whole; use a listener with an IP address, or give this rule a \
             `listener` without it"
        )
    });
}

/// Reads an originate rule for these listeners.
pub(crate) fn read(
    section: &Section<'_>,
    files: &mut Files,
    (listeners, listed): (&Listeners, &[u16]),
) -> Option<Originate> {
    let what = ("an originate rule", "\"https://svn.example:443\"");
    let (text, mut upstream, mut others) =
        upstreams::list(section, what, values::originate_upstream)?;
    let balance = upstreams::balance(section, &upstream, &others);
    if !others.is_empty() && section.value("upstream_name").is_none() {
        let message = "several upstreams of an originate rule need an `upstream_name`: it is the \
            host that their requests name";
        text.at.error(message);
    }
    upstreams::read_http_keys(section, (&mut upstream, &mut others), files);
    let hosts = matchers::each(section, "hosts", values::host_name);
    let compression = compression::rule(section);
    if let TerminateUpstream::Tls(_) = upstream {
        check_resets(section, listeners, listed);
        for (key, at) in section.present(&OF_HTTP) {
            at.error(format!("`{key}` is about HTTP; expected an https:// upstream"));
        }
    }
    let authority = authority(&upstream)?;
    let requests = Terminate {
        others,
        balance,
        upstream_wait: upstreams::wait(section),
        compression,
        no_hsts: true,
        ..Terminate::to(upstream)
    };
    Some(Originate { requests, authority, hosts })
}

/// The host that the certificate has, and the port that is dialled.
fn authority(upstream: &TerminateUpstream) -> Option<Box<str>> {
    let name = &upstream.tls()?.name;
    let to = upstream.host_port()?;
    let host = match name.parse().map(Host::Ip) {
        Ok(Host::Ip(std::net::IpAddr::V6(ip))) => format!("[{ip}]"),
        _ => name.clone(),
    };
    Some(match to.port {
        HTTPS_PORT => host.into(),
        port => format!("{host}:{port}").into(),
    })
}

/// Keys that bytes of any protocol have no use for.
const OF_HTTP: [&str; 4] = ["code_requests", "compress", "hosts", "upstream_wait"];

/// Matchers on a hello.
const OF_HELLO: [&str; 13] = [
    "sni",
    "sni_malformed",
    "sni_verified",
    "alpn",
    "tls_version_max",
    "tls_compression",
    "ech",
    "ja4",
    "evidence",
    "certificate_issuer",
    "certificate_names",
    "certificate_valid",
    "connect",
];
