//! Reads the matchers of one [[rule]], and reports those that can never match.

use eyelet_policy::{
    AddressPattern, Conditions, EvidenceKind, ListId, Matcher, NamePattern, NamePatternFault,
    NetSet,
};
use ipnet::IpNet;

use crate::listeners::Listeners;
use crate::lists::{ListKind, ListReader};
use crate::local::is_loopback_name;
use crate::model::ListenerKind;
use crate::reader::{Report, Section, Text, repeated};
use crate::values;

/// The matchers of a rule.
pub(super) struct Matchers<'t> {
    /// With their offsets, for later messages.
    pub(super) sni: Vec<(Text<'t>, NamePattern)>,
    /// Lists of further names.
    pub(super) sni_lists: Vec<ListId>,
    pub(super) sni_malformed: bool,
    /// The protocols of `alpn` in their order, which `Conditions` does not keep.
    pub(super) alpn: Vec<Vec<u8>>,
    /// The listeners that it is for. Empty: all.
    pub(super) listeners: Vec<u16>,
    pub(super) conditions: Conditions,
}

pub(super) fn read<'t>(
    report: &mut Report<'_>,
    section: &Section<'t, '_>,
    listeners: &Listeners,
    lists: &mut ListReader<'_>,
) -> Matchers<'t> {
    let (texts, sni_lists) = names(report, section, lists);
    let sni = sni(report, texts);
    let alpn = each(report, section, "alpn", values::protocol);
    let mut conditions = addresses(report, section, lists)
        .ja4(each(report, section, "ja4", values::ja4))
        .alpn(alpn.iter().map(|protocol| protocol.as_slice().into()));
    let references = section.texts(report, "listener").unwrap_or_default();
    let known = references.iter().filter_map(|text| listeners.find(report, *text));
    let known: Vec<u16> = known.collect();
    conditions = conditions.listeners(known.iter().copied());
    check_connect(report, section, "connect", listeners, &known);
    if let Some(ech) = section.flag(report, "ech") {
        conditions = conditions.ech(ech);
    }
    if let Some(version) = section.text(report, "tls_version_max") {
        let code = report.keep(version.at, values::tls_version_code(version.text));
        conditions = code.map_or(conditions.clone(), |code| conditions.tls_version_max(code));
    }
    let sni_malformed = section.flag(report, "sni_malformed").unwrap_or(false);
    if sni_malformed {
        conditions = conditions.sni_malformed();
        if !sni.is_empty() || !sni_lists.is_empty() {
            let at = section.key_at("sni").unwrap_or(section.at);
            let message = "a hello whose name is malformed has none of these names: with \
                `sni_malformed = true` leave `sni` out";
            report.error(at, message);
        }
    }
    conditions = with_evidence(report, section, conditions);
    if conditions.asks_connect() {
        check_connect(report, section, "evidence", listeners, &known);
    }
    if conditions.asks_of_destination() {
        check_destination(report, section, listeners, &known);
    }
    Matchers { sni, sni_lists, sni_malformed, alpn, listeners: known, conditions }
}

/// The texts of `sni`, and the lists of names that it takes from files.
fn names<'t>(
    report: &mut Report<'_>,
    section: &Section<'t, '_>,
    lists: &mut ListReader<'_>,
) -> (Vec<Text<'t>>, Vec<ListId>) {
    let (texts, files) = section.texts_and_tables(report, "sni", "`sni`");
    let files = files.iter().filter_map(|file| name_list(report, file, &[], lists));
    let mut files: Vec<ListId> = files.collect();
    files.sort_unstable();
    files.dedup();
    (texts, files)
}

/// The matchers `client`, `connect` and `destination`, which may take lists from files.
fn addresses(
    report: &mut Report<'_>,
    section: &Section<'_, '_>,
    lists: &mut ListReader<'_>,
) -> Conditions {
    let (client, files) = section.texts_and_tables(report, "client", "`client`");
    let client = read_each(report, &client, values::net).into_iter().collect::<NetSet>();
    let nets = files.iter().filter_map(|item| {
        item.check_keys(report, &["file"]);
        file(report, item, ListKind::Nets, lists)
    });
    let nets: Vec<_> = nets.map(|list| (list, None)).collect();
    let (targets, files) = section.texts_and_tables(report, "connect", "`connect`");
    for file in files.iter().filter(|file| file.value("port").is_none()) {
        let message = "names for `connect` need a `port`, such as 443, or \"*\" for any";
        report.missing(file.at, message);
    }
    let targets = read_each(report, &targets, values::connect_pattern);
    let names = files
        .iter()
        .filter_map(|file| Some((name_list(report, file, &["port"], lists)?, port(report, file))));
    let names: Vec<_> = names.collect();
    let (patterns, files) = section.texts_and_tables(report, "destination", "`destination`");
    let patterns = read_each(report, &patterns, values::address_patterns);
    let to = files.iter().filter_map(|item| {
        item.check_keys(report, &["file", "port"]);
        Some((file(report, item, ListKind::Nets, lists)?, port(report, item)))
    });
    let to: Vec<_> = to.collect();
    Conditions::default()
        .client(client)
        .from_files(Matcher::Client, nets)
        .connect(targets)
        .from_files(Matcher::Connect, names)
        .destination(&patterns.into_iter().flatten().collect::<Vec<AddressPattern>>())
        .from_files(Matcher::Destination, to)
}

/// A list of names: `{ file = "allow.txt" }`, `{ regex = '^ads\.' }`, or
/// `{ regex_file = "ads.txt" }`. `more` are further keys.
fn name_list(
    report: &mut Report<'_>,
    item: &Section<'_, '_>,
    more: &[&str],
    lists: &mut ListReader<'_>,
) -> Option<ListId> {
    item.check_keys(report, &[&["file", "regex", "regex_file"], more].concat());
    let kinds = ["file", "regex", "regex_file"];
    let given: Vec<&str> = kinds.into_iter().filter(|key| item.value(key).is_some()).collect();
    match given[..] {
        ["regex"] => {
            let texts = item.texts(report, "regex")?;
            lists.expressions(report, &texts)
        }
        ["regex_file"] => {
            let path = item.text(report, "regex_file")?;
            lists.list(report, path, ListKind::Expressions)
        }
        [] | ["file"] => file(report, item, ListKind::Names, lists),
        _ => {
            report.error(item.at, "expected one of `file`, `regex` and `regex_file`");
            None
        }
    }
}

/// The `port` of a list. `None`: any.
fn port(report: &mut Report<'_>, item: &Section<'_, '_>) -> Option<u16> {
    let is_any = item.value("port").is_none_or(|port| port.get_ref().as_str() == Some("*"));
    let port = match is_any {
        true => None,
        false => item.number(report, "port", 1..=u16::MAX.into()),
    };
    port.and_then(|port| u16::try_from(port).ok())
}

fn file(
    report: &mut Report<'_>,
    item: &Section<'_, '_>,
    kind: ListKind,
    lists: &mut ListReader<'_>,
) -> Option<ListId> {
    if item.value("file").is_none() {
        report.missing(item.at, "a table here is a list from a file: { file = \"allow.txt\" }");
    }
    let path = item.text(report, "file")?;
    lists.list(report, path, kind)
}

/// The matchers on TLS compression, on evidence for the name, and on the certificate.
fn with_evidence(
    report: &mut Report<'_>,
    section: &Section<'_, '_>,
    mut conditions: Conditions,
) -> Conditions {
    if let Some(compression) = section.text(report, "tls_compression") {
        match compression.text {
            "offered" => conditions = conditions.tls_compression_offered(),
            other => {
                let message = format!(
                    "\"{other}\" is not in a hello; expected \"offered\" (what the server \
                     chooses is for `forbid_tls_compression`)"
                );
                report.error(compression.at, message);
            }
        }
    }
    let evidence = each(report, section, "evidence", |text| {
        let known = [EvidenceKind::Connect, EvidenceKind::Dns, EvidenceKind::Certificate];
        known.into_iter().find(|evidence| evidence.name() == text).ok_or_else(|| {
            format!("\"{text}\" is no evidence; expected \"dns\", \"certificate\" or \"connect\"")
        })
    });
    match (section.flag(report, "sni_verified"), section.key_at("evidence")) {
        (Some(wanted), Some(_)) => conditions = conditions.sni_verified(wanted, evidence),
        (Some(_), None) => {
            let at = section.key_at("sni_verified").unwrap_or(section.at);
            let message = "`sni_verified` needs `evidence`: \"dns\", \"certificate\" or \
                \"connect\", or a list of them; one is enough";
            report.missing(at, message);
        }
        (None, Some(at)) if section.value("sni_verified").is_none() => {
            report.missing(at, "`evidence` needs `sni_verified`, which is missing");
        }
        (None, _) => {}
    }
    let patterns = each(report, section, "certificate_names", str::parse::<NamePattern>);
    if patterns.contains(&NamePattern::Absent) {
        let at = section.key_at("certificate_names").unwrap_or(section.at);
        report.error(at, "a certificate has no empty name; leave \"\" out");
    }
    conditions = conditions.certificate_names(patterns);
    conditions = conditions.certificate_issuer(each(report, section, "certificate_issuer", issuer));
    match section.flag(report, "certificate_valid") {
        Some(valid) => conditions.certificate_valid(valid),
        None => conditions,
    }
}

fn issuer(text: &str) -> Result<Box<str>, &'static str> {
    match text.is_empty() {
        true => Err("an issuer has a name, as in \"Let's Encrypt\""),
        false => Ok(text.into()),
    }
}

/// Evidence needs the client's destination, which a direct listener does not know.
fn check_destination(
    report: &mut Report<'_>,
    section: &Section<'_, '_>,
    listeners: &Listeners,
    known: &[u16],
) {
    if listeners.of_rule(known).any(|listener| listener.has_destination()) {
        return;
    }
    let keys = ["sni_verified", "certificate_valid", "certificate_names", "certificate_issuer"];
    let at = keys.iter().find_map(|key| Some((section.key_at(key)?, key)));
    let (at, key) = at.unwrap_or((section.at, &"evidence"));
    let message = format!(
        "`{key}` asks about the destination, and no listener of this rule has one; expected one of \
         another kind than \"direct\", or with `proxy_protocol_from`"
    );
    report.error(at, message);
}

/// Networks, as in `client`.
pub(super) fn nets(report: &mut Report<'_>, section: &Section<'_, '_>, key: &str) -> Vec<IpNet> {
    each(report, section, key, values::net)
}

/// Calls `read` on each text of `key`. Reports those that fail, and returns the others' values.
pub(super) fn each<T, E: std::fmt::Display>(
    report: &mut Report<'_>,
    section: &Section<'_, '_>,
    key: &str,
    read: impl Fn(&str) -> Result<T, E>,
) -> Vec<T> {
    let texts = section.texts(report, key).unwrap_or_default();
    read_each(report, &texts, read)
}

fn read_each<T, E: std::fmt::Display>(
    report: &mut Report<'_>,
    texts: &[Text<'_>],
    read: impl Fn(&str) -> Result<T, E>,
) -> Vec<T> {
    if let Some(twice) = repeated(texts) {
        report.warning(twice.at, format!("\"{}\" is listed twice", twice.text));
    }
    texts.iter().filter_map(|text| report.keep(text.at, read(text.text))).collect()
}

/// Reports a rule for CONNECT targets that is for no CONNECT listener.
fn check_connect(
    report: &mut Report<'_>,
    section: &Section<'_, '_>,
    key: &str,
    listeners: &Listeners,
    listed: &[u16],
) {
    let Some(at) = section.key_at(key) else { return };
    if !listeners.of_rule(listed).any(|listener| listener.kind == ListenerKind::Connect) {
        let message = "no listener of this rule is of kind \"connect\", so it never matches";
        report.error(at, message);
    }
}

fn sni<'t>(report: &mut Report<'_>, texts: Vec<Text<'t>>) -> Vec<(Text<'t>, NamePattern)> {
    if let Some(twice) = repeated(&texts) {
        report.warning(twice.at, format!("\"{}\" is listed twice", twice.text));
    }
    let mut patterns = Vec::with_capacity(texts.len());
    for text in texts {
        let read = text.text.parse::<NamePattern>();
        let read = read.map_err(|fault| match (fault, text.text.strip_prefix('.')) {
            (NamePatternFault::LeadingDot, Some(name)) => format!(
                "\".{name}\" is how a file of names says it; here write [\"{name}\", \"*.{name}\"]"
            ),
            _ => format!("\"{}\": {fault}", text.text),
        });
        let Some(pattern) = report.keep(text.at, read) else { continue };
        if let NamePattern::Suffix(suffix) = &pattern
            && !suffix.contains('.')
            // These all lead to this machine (RFC 6761 section 6.3).
            && !is_loopback_name(suffix)
        {
            let message = format!("\"*.{suffix}\" takes a whole top-level domain");
            report.warning(text.at, message);
        }
        patterns.push((text, pattern));
    }
    patterns
}
