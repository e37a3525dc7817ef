//! The properties that hold for all messages of the Workload API.

use crate::message::read;

/// A message is read, or refused as a whole. One that is read may stand twice, because repeated
/// fields add up: the first identity is still the workload's own, and no bundle is replaced.
pub fn message_is_read_or_refused(message: &[u8]) {
    let Ok(parts) = read(message) else { return };
    assert!(!parts.pair.certified.cert.is_empty(), "a certificate");
    let own = parts.id.trust_domain();
    assert!(parts.bundles.iter().any(|(domain, _)| *domain == own), "its own bundle");
    assert!(parts.bundles.is_sorted_by(|one, other| one.0 < other.0), "a bundle twice");
    assert!(parts.bundles.iter().all(|(_, bundle)| !bundle.is_empty()), "an empty bundle");
    // Beyond the limits it is refused.
    if let Ok(twice) = read(&[message, message].concat()) {
        assert_eq!((twice.id, twice.bundles), (parts.id, parts.bundles));
    }
}
