//! Reads the upstreams of a rule: one or a list, how one of them is chosen, and how they are
//! checked.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use http::uri::PathAndQuery;

use crate::model::values;
use crate::model::{
    Balance, Host, HostPort, HttpAddress, SpliceUpstream, TerminateUpstream, UpstreamCheck,
};
use crate::rules::matchers;
use crate::rules::sources::{self, Dialled};
use crate::rules::spiffe;
use crate::settings::duration;
use eyelet_document::reader::{Section, Text, repeated};
use eyelet_files::Files;
use eyelet_pki::certificate::CertificateFiles;

/// Most upstreams of a rule: a worker remembers in 64 bits which of them it has tried.
pub const UPSTREAMS_MAX: usize = 64;

/// An upstream of a list.
pub(crate) trait Upstream: Sized {
    /// The kind that all upstreams of a list must have, as it is written.
    fn kind(&self) -> &'static str;

    /// True if it may stand in a list.
    fn may_be_listed(&self) -> bool;

    /// True if it is a name, which may have several addresses.
    fn is_named(&self) -> bool;

    /// True if it speaks HTTP, so that a request can check it.
    fn is_http(&self) -> bool;

    /// The host and port that are configured for it.
    fn to_dial(&self) -> Option<&HostPort>;
}

impl Upstream for SpliceUpstream {
    fn kind(&self) -> &'static str {
        "host:port"
    }

    fn may_be_listed(&self) -> bool {
        matches!(self, Self::HostPort(_))
    }

    fn is_named(&self) -> bool {
        matches!(self, Self::HostPort(to) if matches!(to.host, Host::Name(_)))
    }

    fn is_http(&self) -> bool {
        false
    }

    fn to_dial(&self) -> Option<&HostPort> {
        match self {
            Self::HostPort(to) => Some(to),
            Self::Destination | Self::Sni { .. } => None,
        }
    }
}

impl Upstream for TerminateUpstream {
    fn kind(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "tcp://",
            Self::Tls(_) => "tls://",
            Self::Unix(_) => "unix:",
            Self::Http(http) => match (&http.address, &http.tls) {
                (HttpAddress::Unix(_), _) => "http+unix:",
                (HttpAddress::Destination, _) => "destination",
                (HttpAddress::Tcp(_), None) => "http://",
                (HttpAddress::Tcp(_), Some(_)) => "https://",
            },
        }
    }

    fn may_be_listed(&self) -> bool {
        self.as_http().is_none_or(|http| http.address != HttpAddress::Destination)
    }

    fn is_named(&self) -> bool {
        Self::is_named(self)
    }

    fn is_http(&self) -> bool {
        matches!(self, Self::Http(_))
    }

    fn to_dial(&self) -> Option<&HostPort> {
        self.host_port()
    }
}

/// The upstreams of a rule, at least one, and the text of the first.
pub(crate) fn list<'t, U: Upstream>(
    section: &Section<'t>,
    (what, example): (&str, &str),
    parse: fn(&str) -> Result<U, String>,
) -> Option<(Text<'t>, U, Vec<U>)> {
    if section.value("upstream").is_none() {
        let message = format!("{what} needs an `upstream`, such as {example}");
        section.missing(&["upstream"], message);
    }
    let texts = section.texts("upstream")?;
    if let Some(beyond) = texts.get(UPSTREAMS_MAX) {
        beyond.at.error(format!("more than {UPSTREAMS_MAX} upstreams"));
    }
    if let Some(twice) = repeated(&texts) {
        let message =
            format!("\"{}\" is in the list twice; that gives it no larger share", twice.text);
        twice.at.error(message);
    }
    let mut all = Vec::with_capacity(texts.len());
    for text in &texts {
        let upstream = text.parse(parse)?;
        all.push((*text, upstream));
    }
    let mut all = all.into_iter();
    let (text, first) = all.next()?;
    let mut others = Vec::with_capacity(all.len());
    for (other, upstream) in all {
        if let Some(lone) = [(text, &first), (other, &upstream)]
            .into_iter()
            .find_map(|(text, upstream)| (!upstream.may_be_listed()).then_some(text))
        {
            let message = format!("\"{}\" stands alone, without a list", lone.text);
            lone.at.error(message);
            return None;
        }
        if upstream.kind() != first.kind() {
            let message = format!(
                "\"{}\" is of another kind than \"{}\"; the upstreams of a list are of one kind: \
                 give each kind a rule",
                other.text, text.text
            );
            other.at.error(message);
        }
        others.push(upstream);
    }
    Some((text, first, others))
}

/// Reads how one of the upstreams is chosen, how they are checked, and where they are dialled from.
pub(crate) fn balance<U: Upstream>(section: &Section<'_>, first: &U, others: &[U]) -> Balance {
    let mut balance = Balance::default();
    if let Some(text) = section.text("upstream_hash") {
        balance.by_client = text.text == "client";
        if !balance.by_client {
            let message = format!("\"{}\" cannot be hashed; expected \"client\"", text.text);
            text.at.error(message);
        } else if others.is_empty() && !first.is_named() {
            text.at.error(
                "there is one upstream, and `upstream_hash` chooses among several; leave \
                 it out",
            );
        }
    }
    if let Some(text) = section.text("upstream_check") {
        balance.check = text.at.keep(check(text.text, first));
    }
    let dialled = match first.may_be_listed() {
        false => Dialled::Chosen,
        true => match [first].into_iter().chain(others).map(U::to_dial).collect() {
            Some(hosts) => Dialled::Hosts(hosts),
            None => Dialled::Unix,
        },
    };
    balance.sources = sources::read(section, &dialled);
    balance
}

fn check(text: &str, first: &impl Upstream) -> Result<UpstreamCheck, String> {
    if !first.may_be_listed() {
        return Err(
            "clients choose this upstream by name or destination, so there is none to check; leave \
             `upstream_check` out".to_owned()
        );
    }
    match text {
        "connect" => Ok(UpstreamCheck::Connect),
        path if !path.starts_with('/') => Err(format!(
            "\"{text}\" is not a check; expected a path as in \"/healthz\", or \"connect\""
        )),
        _ if !first.is_http() => Err(format!(
            "\"{text}\" is a path, and only upstreams with HTTP have paths; expected \"connect\""
        )),
        path if path.len() > PATH_BYTES_MAX
            || !path.bytes().all(|byte| byte.is_ascii_graphic()) =>
        {
            Err(format!(
                "a path has at most {PATH_BYTES_MAX} bytes, all of them visible ASCII; write \
                 others as %XX"
            ))
        }
        // The parser would cut it at a fragment, which no request has.
        path if path.parse::<PathAndQuery>().ok().is_none_or(|read| read.as_str() != path) => {
            Err(format!("\"{path}\" is no path of a request; write its \"#\" and the like as %XX"))
        }
        path => Ok(UpstreamCheck::Get(path.into())),
    }
}

/// Bytes. A health check's path is a word.
const PATH_BYTES_MAX: usize = 256;

/// Reads the keys for upstreams with HTTP or TLS only.
pub(crate) fn read_http_keys(
    section: &Section<'_>,
    (first, others): (&mut TerminateUpstream, &mut [TerminateUpstream]),
    files: &mut Files,
) {
    read_http2(section, first, others);
    read_alpn(section, first, others);
    let is_http = matches!(first, TerminateUpstream::Http(_));
    let is_chosen = !first.may_be_listed();
    let shows_svid = spiffe::is_shown(section);
    let certificate = if shows_svid { None } else { certificate(section, files) };
    let ids = spiffe::patterns(section, "upstream_spiffe");
    let spiffe = ["upstream_spiffe", "upstream_certificate"];
    let spiffe = section.present(&spiffe).find(|(key, _)| *key == "upstream_spiffe" || shows_svid);
    let ca = section.text("upstream_ca");
    let name = section.text("upstream_name");
    let Some(tls) = first.tls_mut() else {
        let shown = certificate.as_ref().map(|(text, _)| *text);
        let crl = section.texts("upstream_crl").and_then(|texts| texts.first().copied());
        let message = match is_http {
            true => {
                "this is for https:// upstreams: an upstream without TLS has no certificate, \
                     and asks for none"
            }
            false => "this is for upstreams with HTTP: https://, http:// or http+unix:",
        };
        let texts = [ca, name, shown, crl].into_iter().flatten().map(|text| text.at);
        texts.chain(spiffe.map(|(_, at)| at)).for_each(|at| at.error(message));
        return;
    };
    if let Some(text) = name {
        tls.name = text.parse(values::host_name).unwrap_or_default().into();
    }
    tls.files.ca = ca.map(|text| files.check_authorities(text));
    tls.files.accepts_expired_crl = accepts_expired_crl(section);
    tls.files.crl = crls(section, "upstream_crl", ("upstream_ca", &tls.files.ca), files);
    if let (Some((_, at)), true) = (spiffe, is_chosen) {
        at.error(
            "clients choose this upstream, so its SPIFFE id cannot be known; write the \
                  upstream's host and port, or leave `upstream_spiffe` out",
        );
    }
    if let (Some(text), false) = (ca, ids.is_empty()) {
        let message = "`upstream_spiffe` verifies the upstream by the bundle of its trust domain, \
            and `upstream_ca` by a file: leave one of them out";
        text.at.error(message);
    }
    (tls.files.shows_svid, tls.files.ids) = (shows_svid, ids);
    if let Some((text, _)) = &certificate
        && is_chosen
    {
        let message = "clients choose this upstream, and any server could ask for Eyelet's \
                       certificate; write the upstream's host and port";
        text.at.error(message);
    }
    tls.files.certificate = certificate.map(|(_, pair)| pair);
    let tls = tls.clone();
    for other in others.iter_mut().filter_map(TerminateUpstream::tls_mut) {
        other.files.clone_from(&tls.files);
        // Without `upstream_name` each is verified by the name that it is dialled by.
        if name.is_some() {
            other.name.clone_from(&tls.name);
        }
    }
}

/// The protocols that `tls://` upstreams are offered. HTTP has its own two.
fn read_alpn(
    section: &Section<'_>,
    first: &mut TerminateUpstream,
    others: &mut [TerminateUpstream],
) {
    let Some(at) = section.key_at("upstream_alpn") else { return };
    let protocols = matchers::each(section, "upstream_alpn", values::protocol);
    if !matches!(first, TerminateUpstream::Tls(_)) {
        let message = "this is for tls:// upstreams; for HTTP there is `upstream_http2`";
        at.error(message);
    }
    for upstream in [first].into_iter().chain(others) {
        if let TerminateUpstream::Tls(upstream) = upstream {
            upstream.alpn.clone_from(&protocols);
        }
    }
}

fn read_http2(
    section: &Section<'_>,
    first: &mut TerminateUpstream,
    others: &mut [TerminateUpstream],
) {
    let Some(text) = section.text("upstream_http2") else { return };
    let read = text.parse(values::upstream_http2);
    if !matches!(first, TerminateUpstream::Http(_)) {
        let message = "this is for upstreams with HTTP: https://, http:// or http+unix:";
        text.at.error(message);
    }
    for upstream in [first].into_iter().chain(others) {
        if let (TerminateUpstream::Http(http), Some(read)) = (upstream, read) {
            http.http2 = read;
        }
    }
}

/// The revocation lists of `key` for the authorities of another key.
pub(crate) fn crls(
    section: &Section<'_>,
    key: &str,
    (ca_key, ca): (&str, &Option<PathBuf>),
    files: &mut Files,
) -> Vec<PathBuf> {
    let Some(texts) = section.texts(key) else { return Vec::new() };
    if let (None, Some(at)) = (ca, section.key_at(key)) {
        at.error(format!("the lists are of authorities: `{ca_key}` names their certificates"));
    }
    let accepts_expired = accepts_expired_crl(section);
    let read = |text| files.check_crl(text, ca.as_deref(), accepts_expired);
    texts.into_iter().map(read).collect()
}

/// True if revocation lists count although they have expired.
pub(crate) fn accepts_expired_crl(section: &Section<'_>) -> bool {
    let words = [("accept", true), ("refuse", false)];
    section.word("crl_expired", " is no answer;", &words).unwrap_or(false)
}

/// The certificate that an upstream is shown, and its key.
fn certificate<'t>(
    section: &Section<'t>,
    files: &mut Files,
) -> Option<(Text<'t>, CertificateFiles)> {
    let (certificate, key) = section.both("upstream_certificate", "upstream_key")?;
    let _ = files.check_pair(certificate, key, &[]);
    Some((certificate, files.pair(certificate, key)))
}

/// Reads how long requests or connections are held while the upstream accepts none.
pub(crate) fn wait(section: &Section<'_>) -> Duration {
    duration(section, "upstream_wait", &UPSTREAM_WAIT).unwrap_or_default()
}

/// After a longer wait the client is gone.
const UPSTREAM_WAIT: RangeInclusive<Duration> = Duration::ZERO..=UPSTREAM_WAIT_MAX;
/// The longest `upstream_wait`.
pub const UPSTREAM_WAIT_MAX: Duration = Duration::from_mins(10);
