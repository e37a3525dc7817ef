//! Warns of rules on requests that have no effect behind the rules before them: nobody reads the
//! requests, or is asked about them; the handshake differs; an earlier rule's file has the name.

use std::collections::{HashMap, HashSet};

use eyelet_policy::{NamePattern, Rule, Rules};

use crate::model::{Action, Terminate};
use crate::rules::Reading;
use eyelet_document::reader::Section;

/// Pairs of rules that are looked at: a check of more would take longer than all else.
const PAIRS_MAX: usize = 100_000;

/// Warns of each rule once.
pub(crate) fn check(matchers: &[Rule], rules: &Reading<'_>, sections: &[Section<'_>]) {
    if matchers.iter().all(|rule| rule.requests.is_empty()) {
        return;
    }
    let mut by_name: HashMap<Option<&NamePattern>, Vec<usize>> = HashMap::new();
    for (index, rule) in matchers.iter().enumerate() {
        for name in names(rule) {
            by_name.entry(name).or_default().push(index);
        }
    }
    let (mut pairs, mut warned) = (0, HashSet::new());
    for (index, rule) in matchers.iter().enumerate().filter(|(_, rule)| asks(rule)) {
        let shared = names(rule).chain([None]).filter_map(|name| by_name.get(&name)).flatten();
        let mut later: Vec<usize> = shared.copied().filter(|later| *later > index).collect();
        later.sort_unstable();
        later.dedup();
        for then in later {
            pairs += 1;
            let Some(next) = matchers.get(then).filter(|_| pairs <= PAIRS_MAX) else { return };
            let takes_all = next.conditions == Default::default();
            if next.refuse || next.shadow || !(takes_all || next.conditions == rule.conditions) {
                continue;
            }
            let actions = rules.action(index).zip(rules.action(then));
            let is_meant = !next.sni.is_empty() || rule.sni.is_empty();
            let found = actions.and_then(|(own, next)| warning((rule, own), next, is_meant));
            if let Some((at, why)) = found
                && warned.insert(if at == At::Own { index } else { then })
            {
                let (at, other) = if at == At::Own { (index, then) } else { (then, index) };
                let (Some(section), Some(of)) = (sections.get(at), sections.get(other)) else {
                    continue;
                };
                let (name, line) = (rules.name(other).unwrap_or_default(), of.at.line());
                section.at.warning(why.replace("{}", &format!("\"{name}\" (line {line})")));
            }
            if !next.serves_requests || next.requests.is_empty() {
                break;
            }
        }
    }
}

/// Warns of rules that read requests for a name in the file of an earlier rule. The earlier rule
/// passes these connections on unread.
pub(crate) fn check_files(
    policy: &Rules,
    matchers: &[Rule],
    rules: &Reading<'_>,
    sections: &[Section<'_>],
) {
    for found in policy.unread(matchers) {
        let (rule, by) = (found.rule.0 as usize, found.by.0 as usize);
        let (Some(section), Some(of)) = (sections.get(rule), sections.get(by)) else { continue };
        let file = found.listed_by.file.as_deref().unwrap_or("a regular expression");
        section.at.warning(format!(
            "{} is in {file} of \"{}\" (line {}), which reads no requests and takes its \
             connections first; put this rule above that one",
            found.name,
            rules.name(by).unwrap_or_default(),
            of.at.line()
        ));
    }
}

/// The names that a rule lists; `None` if it takes all.
fn names(rule: &Rule) -> impl Iterator<Item = Option<&NamePattern>> {
    let takes_all = rule.sni.is_empty() && rule.sni_lists.is_empty();
    rule.sni.iter().map(Some).chain(takes_all.then_some(None))
}

/// True for a rule on requests that is tried out by nobody.
fn asks(rule: &Rule) -> bool {
    !rule.requests.is_empty() && !rule.shadow
}

/// The rule that is warned of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// The one on requests.
    Own,
    /// The one behind it.
    Next,
}

/// Returns the fault of a rule on requests and the next one for its connections, which is meant for
/// their names or for all others.
fn warning((rule, own): (&Rule, &Action), next: &Action, is_meant: bool) -> Option<(At, String)> {
    let says = |at, text: &str| Some((at, text.to_owned()));
    match (rule.refuse, own.requests(), next) {
        (true, _, Action::Splice(_)) => says(
            At::Own,
            "connections that come to {} are refused, because this rule asks about requests and \
             that one reads none; end TLS there, or limit this rule by `sni`",
        ),
        (false, _, Action::Splice(splice)) if splice.hold.is_some() && is_meant => says(
            At::Next,
            "nobody is asked: connections for these names come to {}, which refuses requests that \
             no rule takes; to hold them, give this rule a `certificate` and an upstream by HTTP",
        ),
        (false, Some(own), Action::Terminate(next)) => {
            let differs = differing(own, next)?;
            let text = format!(
                "{differs}, which a connection that came to {{}} may not have: its requests then \
                 get 403; give both rules the same setting"
            );
            Some((At::Next, text))
        }
        _ => None,
    }
}

/// The term of a handshake that one rule asks for and an earlier one does not.
fn differing(own: &Terminate, next: &Terminate) -> Option<&'static str> {
    let lacks = |protocol| !next.alpn_select.contains(protocol);
    if next.client_ca.is_some() && next.client_ca != own.client_ca {
        Some("this rule asks for `client_ca`")
    } else if next.client_ca.is_some() && next.client_crl != own.client_crl {
        Some("this rule has another `client_crl`")
    } else if !next.client_crl.is_empty() && next.accepts_expired_crl != own.accepts_expired_crl {
        Some("this rule has another `crl_expired`")
    } else if next.client_cert_header && !own.client_cert_header {
        Some("this rule asks for `client_cert_header`")
    } else if next.tls_version_min > own.tls_version_min {
        Some("this rule asks for another `tls_version_min`")
    } else if next.proxy_protocol.is_some() != own.proxy_protocol.is_some() {
        Some("this rule has another `proxy_protocol`")
    } else if own.alpn_select.iter().any(lacks) {
        Some("this rule lacks a protocol of `alpn_select`")
    } else {
        None
    }
}
