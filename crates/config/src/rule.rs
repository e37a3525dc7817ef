//! Reads one [[rule]]: its action, and whether its keys fit that action.

use eyelet_policy::{NamePattern, Needs};
use eyelet_wire::version::Version;

use crate::acme::{ACME, AcmeRules};
use crate::files::Files;
use crate::listeners::{Listeners, called};
use crate::lists::ListReader;
use crate::local::{self, LOCAL, LocalSettings};
use crate::matchers::{self, Matchers};
use crate::mint::{self, MINT};
use crate::model::{
    Action, CertificateSource, DialSource, Host, HostPort, HttpAddress, ListenerKind, Originate,
    ProxyProtocol, Refuse, Splice, SpliceUpstream, Terminate, TerminateUpstream,
};
use crate::reader::{Report, Section, Text};
use crate::{compression, headers, originate, upstreams, values};

/// A rule that was read.
pub(super) struct Written<'t> {
    pub(super) matchers: eyelet_policy::Rule,
    pub(super) action: Action,
    /// Each with its key, as written. Only for terminate rules.
    pub(super) certificates: Vec<[&'t str; 2]>,
    /// One for each of its upstreams that is a listener.
    pub(super) leads: Vec<Lead>,
}

/// A rule that leads from listeners to a listener.
pub(super) struct Lead {
    /// Without `to`.
    pub(super) from: Vec<usize>,
    pub(super) to: usize,
    pub(super) at: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Originate,
    Splice,
    Terminate,
    Refuse,
}

/// What rules are read with: files, lists, the local authority, and what ACME is asked for.
pub(super) type ReadState<'a, 'l> =
    (&'a mut Files, &'a mut ListReader<'l>, &'a LocalSettings, &'a mut AcmeRules);

/// Reads a rule. `None` if a mistake leaves no rule; the mistakes are in `report`.
pub(super) fn read<'t>(
    report: &mut Report<'_>,
    section: &Section<'t, '_>,
    listeners: &Listeners,
    (files, lists, local, ordered): ReadState<'_, '_>,
) -> Option<Written<'t>> {
    section.check_keys(report, &known_keys());
    let mut matchers = matchers::read(report, section, listeners, lists);
    let kind = read_kind(report, section)?;
    check_fit(report, section, kind);
    originate::fit_listeners(report, section, listeners, &mut matchers, kind.asks_of_plain());
    originate::check_clients(report, section, listeners, &matchers.listeners);
    let mut shown = Vec::new();
    let (action, needs) = match kind {
        Kind::Originate => {
            let originate =
                originate::read(report, section, files, (listeners, &matchers.listeners))?;
            (Action::Originate(originate), Needs::Nothing)
        }
        Kind::Splice => {
            let splice = splice(report, section, &matchers, listeners)?;
            let needs = match splice.upstream {
                SpliceUpstream::Sni { .. } => Needs::Name,
                // The hello is needed to know what the server may choose.
                _ if splice.forbid_tls_compression => Needs::Hello,
                _ => Needs::Nothing,
            };
            (Action::Splice(splice), needs)
        }
        Kind::Terminate => {
            let source = certificate_source(report, section, &matchers, (local, ordered));
            if source == CertificateSource::Files {
                shown = certificates(report, section, &matchers, files);
            }
            let mut terminate = terminate(report, section, &matchers, files)?;
            terminate.certificates = source;
            shown.extend(mint::check_rule(report, section, files, &mut terminate));
            mint::check_upstream(
                report,
                section,
                &terminate,
                listeners.of_rule(&matchers.listeners),
            );
            (Action::Terminate(terminate), Needs::Hello)
        }
        Kind::Refuse => {
            let alert = section.text(report, "alert");
            let alert = alert.and_then(|text| report.keep(text.at, values::alert(text.text)));
            let message = section.text(report, "message");
            let message = message.and_then(|text| report.keep(text.at, values::message(text.text)));
            (Action::Refuse(Refuse { alert, message }), Needs::Nothing)
        }
    };
    let leads = leads(report, section, &action, &matchers.listeners, listeners);
    let sni = matchers.sni.into_iter().map(|(_, pattern)| pattern).collect();
    let (sni_lists, conditions) = (matchers.sni_lists, matchers.conditions);
    let refuse = kind == Kind::Refuse;
    let shadow = section.flag(report, "shadow").unwrap_or(false);
    let matchers = eyelet_policy::Rule { refuse, shadow, needs, sni, sni_lists, conditions };
    Some(Written { matchers, action, certificates: shown, leads })
}

/// The upstreams that are certainly listeners of this file.
fn leads<'a>(
    report: &mut Report<'_>,
    section: &Section<'_, '_>,
    action: &'a Action,
    listed: &[u16],
    listeners: &Listeners,
) -> Vec<Lead> {
    let splice_to = |upstream: &'a SpliceUpstream| match upstream {
        SpliceUpstream::HostPort(to) => Some(to),
        SpliceUpstream::Destination | SpliceUpstream::Sni { .. } => None,
    };
    let terminate_to = |upstream: &'a TerminateUpstream| match upstream {
        TerminateUpstream::Tcp(to) => Some(to),
        TerminateUpstream::Http(http) => match &http.address {
            HttpAddress::Tcp(to) => Some(to),
            HttpAddress::Unix(_) | HttpAddress::Destination => None,
        },
        TerminateUpstream::Tls(upstream) => Some(&upstream.address),
        TerminateUpstream::Unix(_) => None,
    };
    let upstreams: Vec<Option<&HostPort>> = match action {
        Action::Splice(Splice { upstream, others, .. }) => {
            [upstream].into_iter().chain(others).map(splice_to).collect()
        }
        Action::Originate(Originate { requests: Terminate { upstream, others, .. }, .. })
        | Action::Terminate(Terminate { upstream, others, .. }) => {
            [upstream].into_iter().chain(others).map(terminate_to).collect()
        }
        Action::Refuse(_) => return Vec::new(),
    };
    let texts = section.texts(report, "upstream").unwrap_or_default();
    let leads = upstreams
        .into_iter()
        .zip(texts)
        .filter_map(|(upstream, text)| lead(report, (upstream?, text.at), listed, listeners));
    leads.collect()
}

/// Whether an upstream is certainly a listener of this file.
fn lead(
    report: &mut Report<'_>,
    (upstream, at): (&HostPort, usize),
    listed: &[u16],
    listeners: &Listeners,
) -> Option<Lead> {
    let Host::Ip(ip) = upstream.host else { return None };
    let to = listeners.reached_at(ip, upstream.port)?;
    let mut from = listeners.asked_for(listed);
    let name = called(listeners.list.get(to)?);
    if from == [to] {
        let message =
            format!("this is the listener {name} itself, the only one of this rule: it would loop");
        report.error(at, message);
    } else if from.contains(&to) {
        let message = format!(
            "this is the listener {name}: connections that came in there would loop and are \
             refused; give the rule a `listener`"
        );
        report.warning(at, message);
    }
    from.retain(|listener| *listener != to);
    Some(Lead { from, to, at })
}

fn read_kind(report: &mut Report<'_>, section: &Section<'_, '_>) -> Option<Kind> {
    if section.value("action").is_none() {
        let message = "a rule needs an `action`: \"splice\", \"terminate\", \"originate\" or \
            \"refuse\"";
        report.missing(section.at, message);
    }
    let action = section.text(report, "action")?;
    match action.text {
        "originate" => Some(Kind::Originate),
        "splice" => Some(Kind::Splice),
        "terminate" => Some(Kind::Terminate),
        "refuse" => Some(Kind::Refuse),
        other => {
            let meant = SYNONYMS.iter().find(|(words, _)| words.contains(&other));
            let guess = meant.map_or("", |(_, guess)| *guess);
            let message = format!(
                "\"{other}\" is not an action; expected \"splice\", \"terminate\", \
                 \"originate\" or \"refuse\"{guess}"
            );
            report.error(action.at, message);
            None
        }
    }
}

/// Reports keys that belong to another action and would have no effect.
fn check_fit(report: &mut Report<'_>, section: &Section<'_, '_>, kind: Kind) {
    for (key, kinds) in ACTION_KEYS {
        if let Some(at) = section.key_at(key)
            && !kinds.contains(&kind)
        {
            let owners: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
            let (name, owners) = (kind.name(), listed(&owners));
            let article = if kind == Kind::Originate { "an" } else { "a" };
            let message = format!(
                "`{key}` means nothing in {article} {name} rule; it belongs to {owners} rules"
            );
            report.error(at, message);
        }
    }
}

fn splice(
    report: &mut Report<'_>,
    section: &Section<'_, '_>,
    matchers: &Matchers<'_>,
    listeners: &Listeners,
) -> Option<Splice> {
    let upstream_allow = matchers::nets(report, section, "upstream_allow");
    let proxy_protocol = proxy_protocol(report, section);
    let what = ("a splice rule", "\"10.0.0.7:443\"");
    let (text, upstream, others) = upstreams::list(report, section, what, values::splice_upstream)?;
    let balance = upstreams::balance(report, section, &upstream, &others);
    match upstream {
        SpliceUpstream::Destination => {
            check_destination(report, text, matchers, listeners);
            check_claimed_name(report, text, matchers);
        }
        SpliceUpstream::Sni { .. } => check_names_the_upstream(report, text, matchers),
        SpliceUpstream::HostPort(_) => {}
    }
    let source = source(report, section, matchers, listeners);
    let forbid = section.flag(report, "forbid_tls_compression");
    let forbid_tls_compression = forbid.unwrap_or(false);
    let fast_open = section.flag(report, "fast_open").unwrap_or(false);
    let plain_http = section.flag(report, "plain_http").unwrap_or(false);
    if plain_http {
        check_plain_http(report, section, (text, &upstream), matchers, listeners);
    }
    Some(Splice {
        upstream,
        others,
        balance,
        upstream_allow,
        proxy_protocol,
        source,
        forbid_tls_compression,
        fast_open,
        plain_http,
    })
}

/// A request goes to the host and port of its URL, and comes to a proxy only.
fn check_plain_http(
    report: &mut Report<'_>,
    section: &Section<'_, '_>,
    (text, upstream): (Text<'_>, &SpliceUpstream),
    matchers: &Matchers<'_>,
    listeners: &Listeners,
) {
    if *upstream != SpliceUpstream::Destination {
        let message = "with `plain_http = true` a request goes to the host and port of its URL; \
            expected \"destination\"";
        report.error(text.at, message);
    }
    let mut reached = listeners.of_rule(&matchers.listeners);
    if let Some(at) = section.key_at("plain_http")
        && !reached.any(|listener| listener.kind == ListenerKind::Connect)
    {
        let message = "requests for http:// URLs come to a \"connect\" listener only, and this \
            rule has none";
        report.error(at, message);
    }
}

fn check_destination(
    report: &mut Report<'_>,
    upstream: Text<'_>,
    matchers: &Matchers<'_>,
    listeners: &Listeners,
) {
    let mut reached = listeners.of_rule(&matchers.listeners);
    if let Some(listener) = reached.find(|listener| !listener.has_destination()) {
        let message = format!(
            "on the direct listener {} the destination is the listener itself, so this would \
             loop; expected host:port or \"{{sni}}:443\", or a `listener` that intercepts",
            called(listener)
        );
        report.error(upstream.at, message);
    }
}

/// Warns of a rule that lets a client out to any address if it says a listed name.
fn check_claimed_name(report: &mut Report<'_>, upstream: Text<'_>, matchers: &Matchers<'_>) {
    let lists_names = matchers.sni.iter().any(|(_, pattern)| *pattern != NamePattern::Absent)
        || !matchers.sni_lists.is_empty();
    if lists_names && !matchers.conditions.bind_destination() {
        let message = "the name in a hello is only the client's word: a client that says one of \
            these names reaches any address; expected \"{sni}:443\", which dials the name's \
            owner, or `sni_verified = true` with `evidence`";
        report.warning(upstream.at, message);
    }
}

fn source(
    report: &mut Report<'_>,
    section: &Section<'_, '_>,
    matchers: &Matchers<'_>,
    listeners: &Listeners,
) -> DialSource {
    let Some(source) = section.text(report, "source") else { return DialSource::Host };
    if source.text != "client" {
        let message = format!("\"{}\" is not a source; expected \"client\"", source.text);
        report.error(source.at, message);
        return DialSource::Host;
    }
    let mut reached = listeners.of_rule(&matchers.listeners);
    if let Some(listener) = reached.find(|listener| listener.kind != ListenerKind::Tproxy) {
        let message = format!(
            "`source` needs the routing of a \"tproxy\" listener for answers to the client's \
             address, and {} is not one; give this rule a `listener`",
            called(listener)
        );
        report.error(source.at, message);
    }
    DialSource::Client
}

fn check_names_the_upstream(report: &mut Report<'_>, upstream: Text<'_>, matchers: &Matchers<'_>) {
    if matchers.sni_malformed {
        let message = "with `sni_malformed = true` there is no name to dial; expected host:port";
        report.error(upstream.at, message);
    }
    let absent = matchers.sni.iter().find(|(_, pattern)| *pattern == NamePattern::Absent);
    if let Some((text, _)) = absent {
        let message = "a hello without a name has nothing to dial by \"{sni}\"; give \"\" a rule \
            of its own";
        report.error(text.at, message);
    }
}

fn terminate(
    report: &mut Report<'_>,
    section: &Section<'_, '_>,
    matchers: &Matchers<'_>,
    files: &mut Files,
) -> Option<Terminate> {
    let client_ca = section.text(report, "client_ca");
    let client_ca = client_ca.map(|text| files.check_authorities(report, text));
    let client_cert_header = section.flag(report, "client_cert_header").unwrap_or(false);
    let proxy_protocol = proxy_protocol(report, section);
    let version = section.text(report, "tls_version_min");
    let version = version.and_then(|text| report.keep(text.at, values::tls_version(text.text)));
    let select = alpn_select(report, section);
    let what = ("a terminate rule", "\"http://127.0.0.1:3000\"");
    let (_, mut upstream, mut others) =
        upstreams::list(report, section, what, values::terminate_upstream)?;
    let balance = upstreams::balance(report, section, &upstream, &others);
    upstreams::read_http_keys(report, section, (&mut upstream, &mut others), files);
    let alpn_select = select.unwrap_or_else(|| match &upstream {
        _ if !matchers.alpn.is_empty() => matchers.alpn.clone(),
        TerminateUpstream::Http(_) => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        TerminateUpstream::Tcp(_) | TerminateUpstream::Tls(_) | TerminateUpstream::Unix(_) => {
            Vec::new()
        }
    });
    let compression = compression::rule(report, section);
    let headers = headers::read(report, section);
    if !matches!(upstream, TerminateUpstream::Http(_)) {
        compression::check_unused(report, section);
        if let Some(at) = section.key_at("headers").or(section.key_at("hsts")) {
            report.error(at, "only responses of an upstream with HTTP have fields");
        }
    }
    if let Some(at) = section.key_at("client_cert_header").filter(|_| client_cert_header) {
        if client_ca.is_none() {
            report.error(at, "only with `client_ca` does Eyelet ask for a certificate");
        } else if !matches!(upstream, TerminateUpstream::Http(_)) {
            report.error(at, "only requests to an upstream with HTTP have fields");
        }
    }
    Some(Terminate {
        upstream,
        others,
        balance,
        certificates: CertificateSource::Files,
        upstream_wait: upstreams::wait(report, section),
        alpn_select,
        client_ca,
        client_cert_header,
        compression,
        headers,
        no_hsts: headers::is_hsts_off(section),
        tls_version_min: version.unwrap_or(Version::Tls12),
        proxy_protocol,
    })
}

/// Whether certificates are read from files. Reports `acme_on_demand` where it has no effect.
fn certificate_source(
    report: &mut Report<'_>,
    section: &Section<'_, '_>,
    matchers: &Matchers<'_>,
    (local, ordered): (&LocalSettings, &mut AcmeRules),
) -> CertificateSource {
    let text = section.value("certificate").and_then(|value| {
        value.get_ref().as_str().map(|text| Text { text, at: value.span().start })
    });
    if let Some(text) = text.filter(|text| text.text == ACME) {
        let on_demand = ordered.add(report, section, matchers, text);
        return CertificateSource::Acme { on_demand };
    }
    if text.is_some_and(|text| text.text == MINT) {
        return CertificateSource::Mint;
    }
    if let Some(at) = section.key_at("acme_on_demand") {
        report.error(at, "`acme_on_demand` is for `certificate = \"acme\"` only");
    }
    let Some(value) = section.value("certificate") else { return CertificateSource::Files };
    if value.get_ref().as_str() == Some(LOCAL) {
        let listed = (matchers.sni.as_slice(), !matchers.sni_lists.is_empty());
        let names = local::check_rule(report, section, listed, &local.permitted);
        return CertificateSource::Local(names);
    }
    let list = value.get_ref().as_array().into_iter().flat_map(|list| list.iter());
    if let Some(local) = list.into_iter().find(|item| item.get_ref().as_str() == Some(LOCAL)) {
        let message = "\"local\" stands alone, without a list; a file of that name is \"./local\"";
        report.error(local.span().start, message);
    }
    CertificateSource::Files
}

fn certificates<'t>(
    report: &mut Report<'_>,
    section: &Section<'t, '_>,
    matchers: &Matchers<'_>,
    files: &mut Files,
) -> Vec<[&'t str; 2]> {
    let needs = match (section.value("certificate"), section.value("key")) {
        (None, None) => Some(
            "certificate: \"local\" (signed here), \"acme\" (ordered), or \"app.pem\" with \
             `key = \"app.key\"`",
        ),
        (None, Some(_)) => Some("`certificate` for its `key`, such as \"app.pem\""),
        (Some(_), None) => Some("`key` for its `certificate`, such as \"app.key\""),
        (Some(_), Some(_)) => None,
    };
    if let Some(needs) = needs {
        report.missing(section.at, format!("a terminate rule needs a {needs}"));
    }
    let certificates = section.texts(report, "certificate").unwrap_or_default();
    let keys = section.texts(report, "key").unwrap_or_default();
    if let Some(first) = keys.first()
        && !certificates.is_empty()
        && keys.len() != certificates.len()
    {
        let message = format!(
            "{} for {}; expected one key a certificate, in the same order",
            counted(keys.len(), "key"),
            counted(certificates.len(), "certificate")
        );
        report.error(first.at, message);
        return Vec::new();
    }
    let names: Vec<&NamePattern> = matchers.sni.iter().map(|(_, pattern)| pattern).collect();
    let pairs = certificates.into_iter().zip(keys).map(|(certificate, key)| {
        if files.check_pair(report, certificate, key, &names)
            && local::signs_by_default(&names, !matchers.sni_lists.is_empty())
        {
            let hint =
                "to try the rule without files, write `certificate = \"local\"` and no `key`";
            report.warning(certificate.at, hint);
        }
        [certificate.text, key.text]
    });
    pairs.collect()
}

/// An empty list is valid here: no ALPN.
fn alpn_select(report: &mut Report<'_>, section: &Section<'_, '_>) -> Option<Vec<Vec<u8>>> {
    let value = section.value("alpn_select")?;
    if value.get_ref().as_array().is_some_and(|list| list.is_empty()) {
        return Some(Vec::new());
    }
    Some(matchers::each(report, section, "alpn_select", values::protocol))
}

fn proxy_protocol(report: &mut Report<'_>, section: &Section<'_, '_>) -> Option<ProxyProtocol> {
    let version = section.text(report, "proxy_protocol")?;
    if version.text == "v2" {
        return Some(ProxyProtocol::V2);
    }
    let message = format!("\"{}\" is not supported; expected \"v2\"", version.text);
    report.error(version.at, message);
    None
}

/// `a`, `a and b`, or `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [before @ .., last] => format!("{} and {last}", before.join(", ")),
    }
}

fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

impl Kind {
    /// Whether the action is for clients without TLS. `None`: for both.
    const fn asks_of_plain(self) -> Option<bool> {
        match self {
            Self::Originate => Some(true),
            Self::Refuse => None,
            Self::Splice | Self::Terminate => Some(false),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Originate => "originate",
            Self::Splice => "splice",
            Self::Terminate => "terminate",
            Self::Refuse => "refuse",
        }
    }
}

fn known_keys() -> Vec<&'static str> {
    let mut keys: Vec<&str> = COMMON_KEYS.to_vec();
    keys.extend(ACTION_KEYS.iter().map(|(key, _)| *key));
    keys.sort_unstable();
    keys
}

/// The keys of every rule.
const COMMON_KEYS: [&str; 19] = [
    "action",
    "alpn",
    "certificate_issuer",
    "certificate_names",
    "certificate_valid",
    "client",
    "connect",
    "destination",
    "ech",
    "evidence",
    "ja4",
    "listener",
    "name",
    "shadow",
    "sni",
    "sni_malformed",
    "sni_verified",
    "tls_compression",
    "tls_version_max",
];

/// The keys of rules with certain actions.
const ACTION_KEYS: [(&str, &[Kind]); 41] = [
    ("acme_on_demand", &[Kind::Terminate]),
    ("breach_allow", &[Kind::Terminate]),
    ("breach_rule", &[Kind::Terminate]),
    ("code_requests", &[Kind::Originate]),
    ("compress", &[Kind::Originate, Kind::Terminate]),
    ("compress_effort", &[Kind::Terminate]),
    ("compress_event_streams", &[Kind::Terminate]),
    ("decode_requests", &[Kind::Terminate]),
    ("dictionary", &[Kind::Terminate]),
    ("dictionary_shared", &[Kind::Terminate]),
    ("length_hiding", &[Kind::Terminate]),
    ("offload", &[Kind::Terminate]),
    ("alert", &[Kind::Refuse]),
    ("alpn_select", &[Kind::Terminate]),
    ("certificate", &[Kind::Terminate]),
    ("client_ca", &[Kind::Terminate]),
    ("client_cert_header", &[Kind::Terminate]),
    ("fast_open", &[Kind::Splice]),
    ("forbid_tls_compression", &[Kind::Splice]),
    ("headers", &[Kind::Terminate]),
    ("hosts", &[Kind::Originate]),
    ("hsts", &[Kind::Terminate]),
    ("key", &[Kind::Terminate]),
    ("message", &[Kind::Refuse]),
    ("mint_ca", &[Kind::Terminate]),
    ("mint_key", &[Kind::Terminate]),
    ("plain_http", &[Kind::Splice]),
    ("proxy_protocol", &[Kind::Splice, Kind::Terminate]),
    ("source", &[Kind::Splice]),
    ("tls_version_min", &[Kind::Terminate]),
    ("upstream", &[Kind::Originate, Kind::Splice, Kind::Terminate]),
    ("upstream_allow", &[Kind::Splice, Kind::Terminate]),
    ("upstream_ca", &[Kind::Originate, Kind::Terminate]),
    ("upstream_certificate", &[Kind::Originate, Kind::Terminate]),
    ("upstream_check", &[Kind::Originate, Kind::Splice, Kind::Terminate]),
    ("upstream_hash", &[Kind::Originate, Kind::Splice, Kind::Terminate]),
    ("upstream_key", &[Kind::Originate, Kind::Terminate]),
    ("upstream_name", &[Kind::Originate, Kind::Terminate]),
    ("upstream_alpn", &[Kind::Originate]),
    ("upstream_http2", &[Kind::Originate, Kind::Terminate]),
    ("upstream_wait", &[Kind::Originate, Kind::Terminate]),
];

/// The names of actions in other programs.
const SYNONYMS: [(&[&str], &str); 5] = [
    (&["passthrough", "tunnel", "forward", "allow", "proxy"], "; \"splice\" passes bytes on"),
    (&["offload"], "; \"terminate\" ends TLS here"),
    (
        &["bump", "intercept"],
        "; \"terminate\" ends TLS here, with `certificate = \"mint\"` for servers that are not \
         yours: docs/bump.md",
    ),
    (
        &["peek", "stare"],
        "; matchers peek: one such as `sni` at the hello, one such as `certificate_issuer` at the \
         server's certificate",
    ),
    (&["reject", "deny", "block", "drop", "close"], "; \"refuse\" sends an alert"),
];
