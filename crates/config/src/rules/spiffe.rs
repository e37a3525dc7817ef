//! Reads the keys of a rule that need the SPIFFE Workload API: its certificate, and the SPIFFE ids
//! of its clients and upstreams.

use crate::model::{Action, CertificateSource};
use crate::rules::matchers;
use eyelet_document::reader::{Place, Section};
use eyelet_pki::spiffe::id::SpiffePattern;

/// The value of a rule's `certificate` that takes it from the Workload API.
pub(crate) const SPIFFE: &str = "spiffe";

/// The patterns of a key.
pub(crate) fn patterns(section: &Section<'_>, key: &str) -> Vec<SpiffePattern> {
    let read =
        |text: &str| text.parse::<SpiffePattern>().map_err(|fault| format!("\"{text}\": {fault}"));
    matchers::each(section, key, read)
}

/// True if the upstream of a rule is shown the certificate of the Workload API.
pub(crate) fn is_shown(section: &Section<'_>) -> bool {
    let shown = section.value("upstream_certificate").and_then(|value| value.get_ref().as_str());
    let is_shown = shown == Some(SPIFFE);
    if let (true, Some(at)) = (is_shown, section.key_at("upstream_key")) {
        let message = "with `upstream_certificate = \"spiffe\"` the key comes with the \
            certificate: leave `upstream_key` out";
        at.error(message);
    }
    is_shown
}

/// The first key of a rule that needs the Workload API.
fn needs<'t>(section: &Section<'t>) -> Option<Place<'t>> {
    let keys = ["certificate", "client_spiffe", "upstream_certificate", "upstream_spiffe"];
    let named = |key: &&str| {
        let value = section.value(key).and_then(|value| value.get_ref().as_str());
        key.ends_with("_spiffe") || value == Some(SPIFFE)
    };
    let mut present = section.present(&keys).filter(|(key, _)| named(key));
    present.next().map(|(_, at)| at)
}

/// Checks a rule. Returns its first key that needs the Workload API.
pub(crate) fn check_rule<'t>(section: &Section<'t>, action: &Action) -> Option<Place<'t>> {
    if let Action::Terminate(terminate) = action {
        if let (CertificateSource::Spiffe, Some(at)) =
            (terminate.certificates, section.key_at("key"))
        {
            let message = "with `certificate = \"spiffe\"` the key comes with the certificate: \
                leave `key` out";
            at.error(message);
        }
        if let (Some(at), Some(_)) = (section.key_at("client_spiffe"), &terminate.client_ca) {
            let message = "`client_spiffe` verifies clients by the bundles of their trust \
                domains, and `client_ca` by a file: leave one of them out";
            at.error(message);
        }
    }
    needs(section)
}
