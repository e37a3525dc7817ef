//! Reads the matchers of one [[rule]].
//! Knows nothing of actions, or of the other rules.

use eyelet_policy::{AddressPattern, Conditions, NamePattern, NetSet};
use ipnet::IpNet;

use super::ListenerKind;
use super::listeners::Listeners;
use super::reader::{Report, Section, Text, repeated};
use super::values;

/// The matchers of a rule.
pub(super) struct Matchers<'t> {
    /// With their places, for what is later found about them.
    pub(super) sni: Vec<(Text<'t>, NamePattern)>,
    pub(super) sni_malformed: bool,
    /// What `alpn` lists, in its order, which `Conditions` does not keep.
    pub(super) alpn: Vec<Vec<u8>>,
    /// The listeners that it is for; none: all.
    pub(super) listeners: Vec<u16>,
    pub(super) conditions: Conditions,
}

pub(super) fn read<'t>(
    report: &mut Report<'_>,
    section: &Section<'t, '_>,
    listeners: &Listeners,
) -> Matchers<'t> {
    let sni = sni(report, section);
    let alpn = each(report, section, "alpn", values::protocol);
    let mut conditions = Conditions::default()
        .client(each(report, section, "client", values::net).into_iter().collect::<NetSet>())
        .connect(each(report, section, "connect", values::connect_pattern))
        .destination(&destination(report, section))
        .ja4(each(report, section, "ja4", values::ja4))
        .alpn(alpn.iter().map(|protocol| protocol.as_slice().into()));
    let references = section.texts(report, "listener").unwrap_or_default();
    let known = references.iter().filter_map(|text| listeners.find(report, *text));
    let known: Vec<u16> = known.collect();
    conditions = conditions.listeners(known.iter().copied());
    check_connect(report, section, listeners, &known);
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
        if !sni.is_empty() {
            let at = section.key_at("sni").unwrap_or(section.at);
            let message = "a hello whose name is malformed has none of these names: with \
                `sni_malformed = true` leave `sni` out";
            report.error(at, message);
        }
    }
    Matchers { sni, sni_malformed, alpn, listeners: known, conditions }
}

/// Networks, as in `client`.
pub(super) fn nets(report: &mut Report<'_>, section: &Section<'_, '_>, key: &str) -> Vec<IpNet> {
    each(report, section, key, values::net)
}

/// What `read` makes of each text of `key`, without those that it makes nothing of.
pub(super) fn each<T, E: std::fmt::Display>(
    report: &mut Report<'_>,
    section: &Section<'_, '_>,
    key: &str,
    read: impl Fn(&str) -> Result<T, E>,
) -> Vec<T> {
    let texts = section.texts(report, key).unwrap_or_default();
    if let Some(twice) = repeated(&texts) {
        report.warning(twice.at, format!("\"{}\" is listed twice", twice.text));
    }
    texts.iter().filter_map(|text| report.keep(text.at, read(text.text))).collect()
}

fn destination(report: &mut Report<'_>, section: &Section<'_, '_>) -> Vec<AddressPattern> {
    let read = each(report, section, "destination", values::address_patterns);
    read.into_iter().flatten().collect()
}

/// Notes a rule for CONNECT targets that no listener of its own could give it.
fn check_connect(
    report: &mut Report<'_>,
    section: &Section<'_, '_>,
    listeners: &Listeners,
    listed: &[u16],
) {
    let Some(at) = section.key_at("connect") else { return };
    if !listeners.of_rule(listed).any(|listener| listener.kind == ListenerKind::Connect) {
        let message = "no listener of this rule is of kind \"connect\", so it never matches";
        report.error(at, message);
    }
}

fn sni<'t>(report: &mut Report<'_>, section: &Section<'t, '_>) -> Vec<(Text<'t>, NamePattern)> {
    let texts = section.texts(report, "sni").unwrap_or_default();
    if let Some(twice) = repeated(&texts) {
        report.warning(twice.at, format!("\"{}\" is listed twice", twice.text));
    }
    let mut patterns = Vec::with_capacity(texts.len());
    for text in texts {
        let read = text.text.parse::<NamePattern>();
        let read = read.map_err(|fault| format!("\"{}\": {fault}", text.text));
        let Some(pattern) = report.keep(text.at, read) else { continue };
        if let NamePattern::Suffix(suffix) = &pattern
            && !suffix.contains('.')
        {
            let message = format!("\"*.{suffix}\" takes a whole top-level domain");
            report.warning(text.at, message);
        }
        patterns.push((text, pattern));
    }
    patterns
}
