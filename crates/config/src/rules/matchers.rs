//! Reads the matchers of one [[rule]], and reports those that can never match.

use eyelet_policy::{
    Conditions, EvidenceKind, EvidenceMatchers, ListId, Matcher, NamePattern, NamePatternFault,
};
use ipnet::IpNet;

use crate::model::ListenerKind;
use crate::model::values;
use crate::rules::lists::{ListKind, ListReader};
use crate::rules::{quic, requester};
use crate::settings::listeners::Listeners;
use crate::settings::local::is_loopback_name;
use eyelet_document::reader::{Section, Text, repeated};

/// The matchers of a rule.
pub(crate) struct Matchers<'t> {
    /// The names with their offsets, for later messages.
    pub(crate) sni: Vec<(Text<'t>, NamePattern)>,
    /// Lists of further names.
    pub(crate) sni_lists: Vec<ListId>,
    pub(crate) sni_malformed: bool,
    /// The protocols of `alpn` in their order, which `Conditions` does not keep.
    pub(crate) alpn: Vec<Vec<u8>>,
    /// The listeners that it is for. Empty: all.
    pub(crate) listeners: Vec<u16>,
    pub(crate) conditions: Conditions,
}

pub(crate) fn read<'t>(
    section: &Section<'t>,
    listeners: &Listeners,
    lists: &mut ListReader<'_>,
) -> Matchers<'t> {
    let (texts, sni_lists) = names(section, lists);
    let sni = sni(texts);
    let alpn = each(section, "alpn", values::protocol);
    let references = section.texts("listener").unwrap_or_default();
    let known = references.iter().filter_map(|text| listeners.find(*text));
    let known: Vec<u16> = known.collect();
    check_connect(section, "connect", listeners, &known);
    let sni_malformed = section.flag("sni_malformed").unwrap_or(false);
    if sni_malformed && !(sni.is_empty() && sni_lists.is_empty()) {
        let at = section.key_at("sni").unwrap_or(section.at);
        let message = "a malformed name is none of these, so this rule never matches: with \
                       `sni_malformed = true` leave `sni` out";
        at.error(message);
    }
    let conditions = Conditions {
        listeners: known.iter().copied().collect(),
        sni_malformed,
        transport: quic::transport(section),
        tls_version_max: section.parsed("tls_version_max", values::tls_version_code),
        ech: section.flag("ech"),
        alpn: alpn.iter().map(|protocol| protocol.as_slice().into()).collect(),
        ja4: each(section, "ja4", values::ja4).into_iter().collect(),
        tls_compression: offers_compression(section),
        evidence: evidence(section),
        requester: requester::matchers(section, listeners, &known),
        ..addresses(section, lists)
    };
    if conditions.asks_connect() {
        check_connect(section, "evidence", listeners, &known);
    }
    if conditions.asks_of_destination() {
        check_destination(section, listeners, &known);
    }
    Matchers { sni, sni_lists, sni_malformed, alpn, listeners: known, conditions }
}

/// The texts of `sni`, and the lists of names that it takes from files.
fn names<'t>(section: &Section<'t>, lists: &mut ListReader<'_>) -> (Vec<Text<'t>>, Vec<ListId>) {
    let (texts, files) = section.texts_and_tables("sni", "`sni`");
    let files = files.iter().filter_map(|file| name_list(file, &[], lists));
    let mut files: Vec<ListId> = files.collect();
    files.sort_unstable();
    files.dedup();
    (texts, files)
}

/// The matchers `client`, `connect` and `destination`, which may take lists from files.
fn addresses(section: &Section<'_>, lists: &mut ListReader<'_>) -> Conditions {
    let (client, files) = section.texts_and_tables("client", "`client`");
    let client = read_each(&client, values::net);
    let nets = files.iter().filter_map(|item| {
        item.check_keys(&["file"]);
        file(item, ListKind::Nets, lists)
    });
    let nets = nets.map(|list| (Matcher::Client, list, None));
    let mut from_files: Vec<_> = nets.collect();
    let (targets, files) = section.texts_and_tables("connect", "`connect`");
    for file in files.iter().filter(|file| file.value("port").is_none()) {
        let message = "names for `connect` need a `port`, such as 443, or \"*\" for any";
        file.at.missing(message);
    }
    let targets = read_each(&targets, values::connect_pattern);
    from_files.extend(files.iter().filter_map(|file| {
        Some((Matcher::Connect, name_list(file, &["port"], lists)?, port(file)))
    }));
    let (patterns, files) = section.texts_and_tables("destination", "`destination`");
    let patterns = read_each(&patterns, values::address_patterns);
    from_files.extend(files.iter().filter_map(|item| {
        item.check_keys(&["file", "port"]);
        Some((Matcher::Destination, file(item, ListKind::Nets, lists)?, port(item)))
    }));
    Conditions {
        client: client.into_iter().collect(),
        connect: targets.into_iter().collect(),
        destination: patterns.into_iter().flatten().collect(),
        from_files: from_files.into_iter().collect(),
        ..Conditions::default()
    }
}

/// A list of names: `{ file = "allow.txt" }`, `{ regex = '^ads\.' }`, or
/// `{ regex_file = "ads.txt" }`. `more` are further keys.
fn name_list(item: &Section<'_>, more: &[&str], lists: &mut ListReader<'_>) -> Option<ListId> {
    item.check_keys(&[&["file", "regex", "regex_file"], more].concat());
    let kinds = ["file", "regex", "regex_file"];
    let given: Vec<&str> = kinds.into_iter().filter(|key| item.value(key).is_some()).collect();
    match given[..] {
        ["regex"] => {
            let texts = item.texts("regex")?;
            lists.expressions(&texts)
        }
        ["regex_file"] => {
            let path = item.text("regex_file")?;
            lists.list(path, ListKind::Expressions)
        }
        [] | ["file"] => file(item, ListKind::Names, lists),
        _ => {
            item.at.error("expected one of `file`, `regex` and `regex_file`");
            None
        }
    }
}

/// The `port` of a list. `None`: any.
fn port(item: &Section<'_>) -> Option<u16> {
    let is_any = item.value("port").is_none_or(|port| port.get_ref().as_str() == Some("*"));
    let port = match is_any {
        true => None,
        false => item.number("port", 1..=u16::MAX.into()),
    };
    port.and_then(|port| u16::try_from(port).ok())
}

fn file(item: &Section<'_>, kind: ListKind, lists: &mut ListReader<'_>) -> Option<ListId> {
    let without = "a table here is a list from a file: { file = \"allow.txt\" }";
    lists.list(item.required("file", without)?, kind)
}

fn offers_compression(section: &Section<'_>) -> bool {
    let offered = section.parsed("tls_compression", |text| match text {
        "offered" => Ok(()),
        other => Err(format!(
            "\"{other}\" is not in a hello; expected \"offered\" (what the server chooses is for \
             `forbid_tls_compression`)"
        )),
    });
    offered.is_some()
}

/// The matchers on evidence for the name, and on the certificate.
fn evidence(section: &Section<'_>) -> EvidenceMatchers {
    let evidence = each(section, "evidence", |text| {
        let known = [EvidenceKind::Connect, EvidenceKind::Dns, EvidenceKind::Certificate];
        known.into_iter().find(|evidence| evidence.name() == text).ok_or_else(|| {
            format!("\"{text}\" is no evidence; expected \"dns\", \"certificate\" or \"connect\"")
        })
    });
    let mut sni_verified = None;
    match (section.flag("sni_verified"), section.key_at("evidence")) {
        (Some(wanted), Some(_)) => sni_verified = Some((wanted, evidence.into_iter().collect())),
        (Some(_), None) => {
            let at = section.key_at("sni_verified").unwrap_or(section.at);
            let message = "`sni_verified` needs `evidence`: \"dns\", \"certificate\" or \
                \"connect\", or a list of them; one is enough";
            at.missing(message);
        }
        (None, Some(at)) if section.value("sni_verified").is_none() => {
            at.missing("`evidence` has no effect without `sni_verified`: add it");
        }
        (None, _) => {}
    }
    let names = each(section, "certificate_names", str::parse::<NamePattern>);
    if names.contains(&NamePattern::Absent) {
        let at = section.key_at("certificate_names").unwrap_or(section.at);
        at.error("a certificate has no empty name; leave \"\" out");
    }
    EvidenceMatchers {
        sni_verified,
        certificate_names: names.into_iter().collect(),
        certificate_issuer: each(section, "certificate_issuer", issuer).into_iter().collect(),
        certificate_valid: section.flag("certificate_valid"),
    }
}

fn issuer(text: &str) -> Result<Box<str>, &'static str> {
    match text.is_empty() {
        true => Err("an issuer has a name, as in \"Let's Encrypt\""),
        false => Ok(text.into()),
    }
}

/// Evidence needs the client's destination, which a direct listener does not know.
fn check_destination(section: &Section<'_>, listeners: &Listeners, known: &[u16]) {
    if listeners.of_rule(known).any(|listener| listener.has_destination()) {
        return;
    }
    let keys = ["sni_verified", "certificate_valid", "certificate_names", "certificate_issuer"];
    let at = keys.iter().find_map(|key| Some((section.key_at(key)?, key)));
    let (at, key) = at.unwrap_or((section.at, &"evidence"));
    let message = format!(
        "`{key}` asks about the destination, and clients of this rule's listeners have none; give \
         the rule a listener of another kind than \"direct\", or with `proxy_protocol_from`"
    );
    at.error(message);
}

/// Networks, as in `client`.
pub(crate) fn nets(section: &Section<'_>, key: &str) -> Vec<IpNet> {
    each(section, key, values::net)
}

/// Calls `read` on each text of `key`. Reports those that fail, and returns the others' values.
pub(crate) fn each<T, E: std::fmt::Display>(
    section: &Section<'_>,
    key: &str,
    read: impl Fn(&str) -> Result<T, E>,
) -> Vec<T> {
    let texts = section.texts(key).unwrap_or_default();
    read_each(&texts, read)
}

fn read_each<T, E: std::fmt::Display>(
    texts: &[Text<'_>],
    read: impl Fn(&str) -> Result<T, E>,
) -> Vec<T> {
    if let Some(twice) = repeated(texts) {
        twice.at.warning(format!("\"{}\" is listed twice", twice.text));
    }
    texts.iter().filter_map(|text| text.parse(&read)).collect()
}

/// Reports a rule for CONNECT targets that is for no CONNECT listener.
fn check_connect(section: &Section<'_>, key: &str, listeners: &Listeners, listed: &[u16]) {
    let Some(at) = section.key_at(key) else { return };
    if !listeners.of_rule(listed).any(|listener| listener.kind == ListenerKind::Connect) {
        let message = "no listener of this rule is of kind \"connect\", so it never matches";
        at.error(message);
    }
}

fn sni<'t>(texts: Vec<Text<'t>>) -> Vec<(Text<'t>, NamePattern)> {
    if let Some(twice) = repeated(&texts) {
        twice.at.warning(format!("\"{}\" is listed twice", twice.text));
    }
    let mut patterns = Vec::with_capacity(texts.len());
    for text in texts {
        let read = text.text.parse::<NamePattern>();
        let read = read.map_err(|fault| match (fault, text.text.strip_prefix('.')) {
            (NamePatternFault::LeadingDot, Some(name)) => format!(
                "\".{name}\" is how a file of names says it; here write [\"{name}\", \"*.{name}\"]"
            ),
            _ if text.text.contains([',', ' ']) => {
                let names = text.text.split([',', ' ']).filter(|name| !name.is_empty());
                format!("these are several names: write {:?}", names.collect::<Vec<_>>())
            }
            _ => format!("\"{}\": {fault}", text.text),
        });
        let Some(pattern) = text.at.keep(read) else { continue };
        if let NamePattern::Suffix(suffix) = &pattern
            && !suffix.contains('.')
            // These all lead to this machine (RFC 6761 section 6.3).
            && !is_loopback_name(suffix)
        {
            let message = format!("\"*.{suffix}\" takes a whole top-level domain");
            text.at.warning(message);
        }
        patterns.push((text, pattern));
    }
    patterns
}
