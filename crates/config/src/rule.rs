//! Reads one [[rule]]: its action, and whether its keys fit that action.

use eyelet_policy::{NamePattern, Needs};
use eyelet_wire::version::Version;

use crate::model::headers;
use crate::model::values;
use crate::model::{
    Action, CertificateSource, DialSource, Host, HostPort, Listener, ListenerKind, Originate,
    ProxyProtocol, Refuse, Splice, SpliceUpstream, Terminate, TerminateUpstream,
};
use crate::rules::kind::{Kind, guessed_kind, read_kind};
use crate::rules::lists::ListReader;
use crate::rules::matchers::{self, Matchers};
use crate::rules::mint::{self, MINT};
use crate::rules::originate;
use crate::rules::quic;
use crate::rules::requests;
use crate::rules::spiffe::{self, SPIFFE};
use crate::rules::upstreams;
use crate::sections::acme::{ACME, AcmeRules};
use crate::sections::hold;
use crate::settings::compression;
use crate::settings::listeners::Listeners;
use crate::settings::local::{self, LOCAL, LocalSettings};
use eyelet_document::reader::{Place, Section, Text, listed};
use eyelet_files::Files;

/// A rule that was read.
pub(super) struct Written<'t> {
    pub(super) matchers: eyelet_policy::Rule,
    pub(super) action: Action,
    /// Each with its key, as written. Only for terminate rules.
    pub(super) certificates: Vec<[&'t str; 2]>,
    /// One for each of its upstreams that is a listener.
    pub(super) leads: Vec<Lead<'t>>,
    /// Its listeners, if it asks for `client_cert`.
    pub(super) asks_certificates: Vec<usize>,
}

/// A rule that leads from listeners to a listener.
pub(super) struct Lead<'t> {
    /// Without `to`.
    pub(super) from: Vec<usize>,
    pub(super) to: usize,
    /// True if the rule says by a PROXY header who its client is.
    pub(super) says_client: bool,
    pub(super) at: Place<'t>,
}

/// The state that rules are read with: files, lists, the local authority, and what ACME is asked
/// for.
pub(super) type ReadState<'a, 't> =
    (&'a mut Files, &'a mut ListReader<'t>, &'a LocalSettings, &'a mut AcmeRules<'t>);

/// Reads a rule. `None` if a mistake leaves no rule; the mistakes are reported.
pub(super) fn read<'t>(
    section: &Section<'t>,
    listeners: &Listeners,
    (files, lists, local, ordered): ReadState<'_, 't>,
) -> Option<Written<'t>> {
    section.check_keys(&known_keys());
    let mut matchers = matchers::read(section, listeners, lists);
    let known = read_kind(section);
    let (kind, then) = kinds(section, known)?;
    originate::fit_listeners(section, listeners, &mut matchers, kind.asks_of_plain());
    originate::check_clients(section, listeners, &matchers.listeners);
    quic::check(section, listeners, (&matchers.listeners, matchers.conditions.transport));
    let mut shown = Vec::new();
    let (mut action, mut needs) = match then {
        Kind::Originate => {
            let originate = originate::read(section, files, (listeners, &matchers.listeners))?;
            (Action::Originate(originate), Needs::Nothing)
        }
        Kind::Splice | Kind::Hold => {
            let splice = splice(section, &matchers, listeners)?;
            let needs = match splice.upstream {
                SpliceUpstream::Sni { .. } => Needs::Name,
                // The hello is needed to know what the server may choose.
                _ if splice.forbid_tls_compression => Needs::Hello,
                _ => Needs::Nothing,
            };
            (Action::Splice(splice), needs)
        }
        Kind::Terminate => {
            let source = certificate_source(section, &matchers, (local, ordered));
            if source == CertificateSource::Files {
                shown = certificates(section, &matchers, files);
            }
            let mut terminate = terminate(section, &matchers, files)?;
            terminate.certificates = source;
            shown.extend(mint::check_rule(section, files, &mut terminate));
            mint::check_upstream(section, &terminate, listeners.of_rule(&matchers.listeners));
            (Action::Terminate(terminate), Needs::Hello)
        }
        Kind::Refuse => {
            let alert = section.parsed("alert", values::alert).unwrap_or_default();
            let message = section.parsed("message", values::message);
            (Action::Refuse(Refuse { alert, message }), Needs::Nothing)
        }
    };
    let asked = requests::matchers(section);
    if kind == Kind::Hold {
        let matchers = (&matchers, !asked.is_empty());
        needs = hold(section, (&mut action, needs), files, matchers, listeners);
    }
    let leads = leads(section, &action, &matchers.listeners, listeners);
    let asks_certificates = match section.value("client_cert") {
        Some(_) => listeners.asked_for(&matchers.listeners),
        None => Vec::new(),
    };
    requests::check_action(section, &action);
    let upstream = action.requests().map(|requests| &requests.upstream);
    let matchers = eyelet_policy::Rule {
        refuse: kind == Kind::Refuse,
        shadow: section.flag("shadow").unwrap_or(false),
        needs,
        sni: matchers.sni.into_iter().map(|(_, pattern)| pattern).collect(),
        sni_lists: matchers.sni_lists,
        conditions: matchers.conditions,
        requests: asked,
        serves_requests: matches!(upstream, Some(TerminateUpstream::Http(_))),
    };
    known.map(|_| Written { matchers, action, certificates: shown, leads, asks_certificates })
}

/// Makes the action one that waits for a verdict. The question is about the hello's name, but for a
/// CONNECT request, which names what it asks for itself.
fn hold(
    section: &Section<'_>,
    (action, needs): (&mut Action, Needs),
    files: &Files,
    (matchers, of_requests): (&Matchers<'_>, bool),
    listeners: &Listeners,
) -> Needs {
    let upstream = match &*action {
        Action::Splice(splice) => Some(&splice.upstream),
        _ => None,
    };
    let hold = hold::read_rule(section, files, upstream, (matchers, listeners));
    let hold = crate::model::Hold { of_requests, ..hold };
    let mut reached = listeners.of_rule(&matchers.listeners);
    let is_asked = upstream == Some(&SpliceUpstream::Destination)
        && reached.all(|listener| listener.kind == ListenerKind::Connect);
    match action {
        Action::Splice(splice) => splice.hold = Some(hold),
        Action::Terminate(terminate) => terminate.hold = Some(hold),
        Action::Originate(_) | Action::Refuse(_) => {}
    }
    match needs {
        Needs::Nothing if !is_asked => Needs::Hello,
        needs => needs,
    }
}

/// The upstreams that are certainly listeners of this file.
fn leads<'a, 't>(
    section: &Section<'t>,
    action: &'a Action,
    listed: &[u16],
    listeners: &Listeners,
) -> Vec<Lead<'t>> {
    let splice_to = |upstream: &'a SpliceUpstream| match upstream {
        SpliceUpstream::HostPort(to) => Some(to),
        SpliceUpstream::Destination | SpliceUpstream::Sni { .. } => None,
    };
    let upstreams: Vec<Option<&HostPort>> = match action {
        Action::Splice(Splice { upstream, others, .. }) => {
            [upstream].into_iter().chain(others).map(splice_to).collect()
        }
        Action::Originate(Originate { requests: Terminate { upstream, others, .. }, .. })
        | Action::Terminate(Terminate { upstream, others, .. }) => {
            [upstream].into_iter().chain(others).map(TerminateUpstream::host_port).collect()
        }
        Action::Refuse(_) => return Vec::new(),
    };
    let texts = section.texts("upstream").unwrap_or_default();
    let leads = upstreams
        .into_iter()
        .zip(texts)
        .filter_map(|(upstream, text)| lead((upstream?, text.at), listed, listeners));
    let says_client = section.value("proxy_protocol").is_some();
    leads.map(|lead| Lead { says_client, ..lead }).collect()
}

/// Says if an upstream is certainly a listener of this file.
fn lead<'t>(
    (upstream, at): (&HostPort, Place<'t>),
    listed: &[u16],
    listeners: &Listeners,
) -> Option<Lead<'t>> {
    let Host::Ip(ip) = upstream.host else { return None };
    let to = listeners.reached_at(ip, upstream.port)?;
    let mut from = listeners.asked_for(listed);
    let name = listeners.list.get(to)?.called();
    if from == [to] {
        let message =
            format!("this is the listener {name} itself, the only one of this rule: it would loop");
        at.error(message);
    } else if from.contains(&to) {
        let message = format!(
            "this is the listener {name}: connections that came in there would loop and are \
             refused; give the rule a `listener`"
        );
        at.warning(message);
    }
    from.retain(|listener| *listener != to);
    Some(Lead { from, to, says_client: false, at })
}

/// The kind of the rule, or the one that seems to be meant, and the kind that is taken in the end.
fn kinds(section: &Section<'_>, known: Option<Kind>) -> Option<(Kind, Kind)> {
    let kind = known.or_else(|| guessed_kind(section))?;
    let then = kind.then(section);
    if known.is_some() {
        check_fit(section, kind, then);
    }
    Some((kind, then))
}

/// Reports keys that belong to another action and would have no effect.
fn check_fit(section: &Section<'_>, kind: Kind, then: Kind) {
    for (key, kinds) in ACTION_KEYS {
        if let Some(at) = section.key_at(key)
            && !kinds.contains(&kind)
            && !(kind == Kind::Hold && kinds.contains(&then) && key != "plain_http")
        {
            let owners: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
            let (name, owners) = (kind.name(), listed(&owners, "and"));
            let article = if kind == Kind::Originate { "an" } else { "a" };
            at.error(format!(
                "`{key}` means nothing in {article} {name} rule; it belongs to {owners} rules"
            ));
        }
    }
}

fn splice(section: &Section<'_>, matchers: &Matchers<'_>, listeners: &Listeners) -> Option<Splice> {
    let upstream_allow = matchers::nets(section, "upstream_allow");
    let has_allow = section.value("upstream_allow").is_some();
    let proxy_protocol = proxy_protocol(section);
    let what = ("a splice rule", "\"10.0.0.7:443\"");
    let (text, upstream, others) = upstreams::list(section, what, values::splice_upstream)?;
    let balance = upstreams::balance(section, &upstream, &others);
    match upstream {
        SpliceUpstream::Destination => {
            check_destination(text, matchers, listeners);
            check_claimed_name(text, matchers);
        }
        SpliceUpstream::Sni { .. } => check_names_the_upstream(text, matchers),
        SpliceUpstream::HostPort(_) => {}
    }
    let source = source(section, matchers, listeners);
    let forbid = section.flag("forbid_tls_compression");
    let forbid_tls_compression = forbid.unwrap_or(false);
    let fast_open = section.flag("fast_open").unwrap_or(false);
    let plain_http = section.flag("plain_http").unwrap_or(false);
    if plain_http {
        check_plain_http(section, (text, &upstream), matchers, listeners);
    }
    Some(Splice {
        is_guarded: has_allow && matches!(upstream, SpliceUpstream::HostPort(_)),
        upstream,
        others,
        balance,
        upstream_allow,
        proxy_protocol,
        source,
        forbid_tls_compression,
        fast_open,
        plain_http,
        hold: None,
    })
}

/// A request goes to the host of its URL. It comes to a proxy, or to a `plain_http` listener.
fn check_plain_http(
    section: &Section<'_>,
    (text, upstream): (Text<'_>, &SpliceUpstream),
    matchers: &Matchers<'_>,
    listeners: &Listeners,
) {
    let takes_requests = |it: &&Listener| it.kind == ListenerKind::Connect || it.plain_http;
    let mut reached = listeners.of_rule(&matchers.listeners);
    let is_proxied = reached.any(|it| it.kind == ListenerKind::Connect);
    match upstream {
        SpliceUpstream::Destination => {}
        SpliceUpstream::Sni { .. } if !is_proxied => {}
        _ => {
            let message = "with `plain_http = true` a request goes to the host and port of its \
                URL; expected \"destination\"";
            text.at.error(message);
        }
    }
    let mut reached = listeners.of_rule(&matchers.listeners);
    if let Some(at) = section.key_at("plain_http")
        && !reached.any(|it| takes_requests(&it))
    {
        let message = "requests for http:// URLs come to a \"connect\" listener, and to one with \
            `plain_http = true`, and this rule has neither";
        at.error(message);
    }
}

fn check_destination(upstream: Text<'_>, matchers: &Matchers<'_>, listeners: &Listeners) {
    let at = (&*matchers.listeners, Some(upstream.at));
    listeners.check(at, |listener| !listener.has_destination(), |called| {
        format!(
            "on the direct listener {called} the destination is the listener itself, so this would \
             loop; expected host:port or \"{{sni}}:443\", or a `listener` that intercepts"
        )
    });
}

/// Warns of a rule that lets a client out to any address if it says a listed name.
fn check_claimed_name(upstream: Text<'_>, matchers: &Matchers<'_>) {
    let lists_names = matchers.sni.iter().any(|(_, pattern)| *pattern != NamePattern::Absent)
        || !matchers.sni_lists.is_empty();
    if lists_names && !matchers.conditions.bind_destination() {
        let message = "the name in a hello is only the client's word: a client that says one of \
            these names reaches any address; expected \"{sni}:443\", which dials the name's \
            owner, or `sni_verified = true` with `evidence`";
        upstream.at.warning(message);
    }
}

fn source(section: &Section<'_>, matchers: &Matchers<'_>, listeners: &Listeners) -> DialSource {
    let client = [("client", DialSource::Client)];
    let Some(source) = section.word("source", " is not a source;", &client) else {
        return DialSource::Host;
    };
    let at = (&*matchers.listeners, Some(section.value_at("source")));
    listeners.check(
        at,
        |listener| listener.kind != ListenerKind::Tproxy,
        |called| {
            format!(
                "`source` needs the routing of a \"tproxy\" listener for answers to the client's \
             address, and {called} is not one; give this rule a `listener`"
            )
        },
    );
    source
}

fn check_names_the_upstream(upstream: Text<'_>, matchers: &Matchers<'_>) {
    if matchers.sni_malformed {
        let message = "with `sni_malformed = true` there is no name to dial; expected host:port";
        upstream.at.error(message);
    }
    let absent = matchers.sni.iter().find(|(_, pattern)| *pattern == NamePattern::Absent);
    if let Some((text, _)) = absent {
        let message = "a hello without a name has nothing to dial by \"{sni}\"; give \"\" a rule \
            of its own";
        text.at.error(message);
    }
}

fn terminate(
    section: &Section<'_>,
    matchers: &Matchers<'_>,
    files: &mut Files,
) -> Option<Terminate> {
    let client_ca = section.text("client_ca");
    let client_ca = client_ca.map(|text| files.check_authorities(text));
    let client_spiffe = spiffe::patterns(section, "client_spiffe");
    let client_crl = upstreams::crls(section, "client_crl", ("client_ca", &client_ca), files);
    let client_cert_header = section.flag("client_cert_header").unwrap_or(false);
    let proxy_protocol = proxy_protocol(section);
    let version = section.parsed("tls_version_min", values::tls_version);
    let select = alpn_select(section);
    let what = ("a terminate rule", "\"http://127.0.0.1:3000\"");
    let (_, mut upstream, mut others) = upstreams::list(section, what, values::terminate_upstream)?;
    let balance = upstreams::balance(section, &upstream, &others);
    upstreams::read_http_keys(section, (&mut upstream, &mut others), files);
    let alpn_select = select.unwrap_or_else(|| match &upstream {
        _ if !matchers.alpn.is_empty() => matchers.alpn.clone(),
        TerminateUpstream::Http(_) => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        TerminateUpstream::Tcp(_) | TerminateUpstream::Tls(_) | TerminateUpstream::Unix(_) => {
            Vec::new()
        }
    });
    let compression = compression::rule(section);
    let headers = headers::read(section);
    if !matches!(upstream, TerminateUpstream::Http(_)) {
        compression::check_unused(section);
        if let Some(at) = section.key_at("headers").or(section.key_at("hsts")) {
            at.error(
                "this has no effect: the upstream of this rule gets bytes, and only responses \
                      by HTTP have fields; leave it out, or write an http:// upstream",
            );
        }
    }
    if let Some(at) = section.key_at("client_cert_header").filter(|_| client_cert_header) {
        if client_ca.is_none() && client_spiffe.is_empty() {
            at.error(
                "clients of this rule show no certificate; add `client_ca` or \
                      `client_spiffe`, by which Eyelet asks for one",
            );
        } else if !matches!(upstream, TerminateUpstream::Http(_)) {
            at.error(
                "this has no effect: the upstream of this rule gets bytes, and only requests \
                      by HTTP have fields; leave it out, or write an http:// upstream",
            );
        }
    }
    Some(Terminate {
        upstream,
        others,
        balance,
        certificates: CertificateSource::Files,
        upstream_wait: upstreams::wait(section),
        alpn_select,
        client_ca,
        client_spiffe,
        client_crl,
        accepts_expired_crl: upstreams::accepts_expired_crl(section),
        client_cert_header,
        compression,
        headers,
        no_hsts: headers::is_hsts_off(section),
        tls_version_min: version.unwrap_or(Version::Tls12),
        proxy_protocol,
        hold: None,
    })
}

/// Says if certificates are read from files. Reports `acme_on_demand` where it has no effect.
fn certificate_source<'t>(
    section: &Section<'t>,
    matchers: &Matchers<'t>,
    (local, ordered): (&LocalSettings, &mut AcmeRules<'t>),
) -> CertificateSource {
    let text = section.value("certificate").and_then(|value| {
        value.get_ref().as_str().map(|text| Text { text, at: section.place(value) })
    });
    if let Some(text) = text.filter(|text| text.text == ACME) {
        let on_demand = ordered.add(section, matchers, text);
        return CertificateSource::Acme { on_demand };
    }
    if text.is_some_and(|text| text.text == MINT) {
        return CertificateSource::Mint;
    }
    if text.is_some_and(|text| text.text == SPIFFE) {
        return CertificateSource::Spiffe;
    }
    if let Some(at) = section.key_at("acme_on_demand") {
        at.error("`acme_on_demand` is for `certificate = \"acme\"` only");
    }
    let Some(value) = section.value("certificate") else { return CertificateSource::Files };
    if value.get_ref().as_str() == Some(LOCAL) {
        let listed = (matchers.sni.as_slice(), !matchers.sni_lists.is_empty());
        let names = local::check_rule(section, listed, &local.permitted);
        return CertificateSource::Local(names);
    }
    let list = value.get_ref().as_array().into_iter().flat_map(|list| list.iter());
    if let Some(local) = list.into_iter().find(|item| item.get_ref().as_str() == Some(LOCAL)) {
        let message = "\"local\" stands alone, without a list; a file of that name is \"./local\"";
        section.place(local).error(message);
    }
    CertificateSource::Files
}

fn certificates<'t>(
    section: &Section<'t>,
    matchers: &Matchers<'_>,
    files: &mut Files,
) -> Vec<[&'t str; 2]> {
    let is_absent = |file: &str| !files.path(file).exists();
    let needs = match (section.value("certificate"), section.value("key")) {
        (None, None) => Some(
            "certificate: \"local\" (signed here), \"acme\" (ordered), \"spiffe\", or \"app.pem\" \
             with `key = \"app.key\"`",
        ),
        (None, Some(_)) => Some("`certificate` for its `key`, such as \"app.pem\""),
        (Some(file), None) if file.get_ref().as_str().is_some_and(is_absent) => {
            let message = format!(
                "\"{}\": no such file, and a file needs its `key`: \"acme\" orders a certificate, \
                 \"local\" signs one here",
                file.get_ref().as_str().unwrap_or_default()
            );
            section.place(file).error(message);
            None
        }
        (Some(_), None) => Some("`key` for its `certificate`, such as \"app.key\""),
        (Some(_), Some(_)) => None,
    };
    if let Some(needs) = needs {
        section.missing(&["certificate", "key"], format!("a terminate rule needs a {needs}"));
    }
    let certificates = section.texts("certificate").unwrap_or_default();
    let keys = section.texts("key").unwrap_or_default();
    if let Some(first) = keys.first()
        && !certificates.is_empty()
        && keys.len() != certificates.len()
    {
        let message = format!(
            "{} for {}; expected one key a certificate, in the same order",
            counted(keys.len(), "key"),
            counted(certificates.len(), "certificate")
        );
        first.at.error(message);
        return Vec::new();
    }
    files.check_key_types(&certificates);
    let names: Vec<&NamePattern> = matchers.sni.iter().map(|(_, pattern)| pattern).collect();
    let pairs = certificates.into_iter().zip(keys).map(|(certificate, key)| {
        if files.check_pair(certificate, key, &names)
            && local::signs_by_default(&names, !matchers.sni_lists.is_empty())
        {
            let hint =
                "to try the rule without files, write `certificate = \"local\"` and no `key`";
            certificate.at.warning(hint);
        }
        [certificate.text, key.text]
    });
    pairs.collect()
}

/// An empty list is valid here: no ALPN.
fn alpn_select(section: &Section<'_>) -> Option<Vec<Vec<u8>>> {
    let value = section.value("alpn_select")?;
    if value.get_ref().as_array().is_some_and(|list| list.is_empty()) {
        return Some(Vec::new());
    }
    Some(matchers::each(section, "alpn_select", values::protocol))
}

fn proxy_protocol(section: &Section<'_>) -> Option<ProxyProtocol> {
    section.word("proxy_protocol", " is not supported;", &[("v2", ProxyProtocol::V2)])
}

fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

impl Action {
    /// Its word in the configuration.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Originate(_) => "originate",
            Self::Splice(Splice { hold: Some(_), .. })
            | Self::Terminate(Terminate { hold: Some(_), .. }) => "hold",
            Self::Splice(_) => "splice",
            Self::Terminate(_) => "terminate",
            Self::Refuse(_) => "refuse",
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
const COMMON_KEYS: [&str; 27] = [
    "action",
    "alpn",
    "certificate_issuer",
    "certificate_names",
    "certificate_valid",
    "client",
    "client_cert",
    "connect",
    "destination",
    "ech",
    "evidence",
    "http_only_reads",
    "ja4",
    "listener",
    "method",
    "name",
    "path",
    "peer_cgroup",
    "peer_uid",
    "proxy_user",
    "shadow",
    "sni",
    "sni_malformed",
    "sni_verified",
    "tls_compression",
    "tls_version_max",
    "transport",
];

/// The keys of rules with certain actions.
const ACTION_KEYS: [(&str, &[Kind]); 48] = [
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
    ("client_crl", &[Kind::Terminate]),
    ("client_spiffe", &[Kind::Terminate]),
    ("crl_expired", &[Kind::Originate, Kind::Terminate]),
    ("fast_open", &[Kind::Splice]),
    ("forbid_tls_compression", &[Kind::Splice]),
    ("headers", &[Kind::Terminate]),
    ("hold_file", &[Kind::Hold]),
    ("hosts", &[Kind::Originate]),
    ("hsts", &[Kind::Terminate]),
    ("key", &[Kind::Terminate]),
    ("message", &[Kind::Refuse]),
    ("mint_ca", &[Kind::Terminate]),
    ("mint_key", &[Kind::Terminate]),
    ("plain_http", &[Kind::Splice]),
    ("proxy_protocol", &[Kind::Splice, Kind::Terminate]),
    ("source", &[Kind::Splice]),
    ("source_addresses", &[Kind::Originate, Kind::Splice, Kind::Terminate]),
    ("tls_version_min", &[Kind::Terminate]),
    ("upstream", &[Kind::Originate, Kind::Splice, Kind::Terminate]),
    ("upstream_allow", &[Kind::Splice, Kind::Terminate]),
    ("upstream_ca", &[Kind::Originate, Kind::Terminate]),
    ("upstream_certificate", &[Kind::Originate, Kind::Terminate]),
    ("upstream_check", &[Kind::Originate, Kind::Splice, Kind::Terminate]),
    ("upstream_crl", &[Kind::Originate, Kind::Terminate]),
    ("upstream_hash", &[Kind::Originate, Kind::Splice, Kind::Terminate]),
    ("upstream_key", &[Kind::Originate, Kind::Terminate]),
    ("upstream_name", &[Kind::Originate, Kind::Terminate]),
    ("upstream_spiffe", &[Kind::Originate, Kind::Terminate]),
    ("upstream_alpn", &[Kind::Originate]),
    ("upstream_http2", &[Kind::Originate, Kind::Terminate]),
    ("upstream_wait", &[Kind::Originate, Kind::Terminate]),
];
