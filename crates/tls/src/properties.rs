//! Properties of ticket keys and tickets, for any bytes. A fuzz target and a test assert them.

use std::time::{Duration, Instant};

use crate::tickets::{Now, TicketKeys, client_certificates};

/// Exported keys are taken in whole or not at all. What was taken in is exported and sealed with.
/// Bytes of a stranger are no ticket.
///
/// # Panics
/// If that does not hold.
pub fn bytes_are_keys_or_nothing(data: &[u8]) {
    let now = Now { unix_secs: 1_800_000_000, steady: Instant::now() };
    let [keys, again] = [(); 2].map(|()| TicketKeys::new(Duration::from_secs(3600)));
    let is_read = keys.import(data, now).is_ok();
    assert!(is_read || keys.export().len() == 1, "half of it was taken in");
    assert_eq!(again.import(&keys.export(), now), Ok(()));
    if let Some(ticket) = keys.seal(b"group", data) {
        assert_eq!(again.open(b"group", &ticket).as_deref(), Some(data));
        assert_eq!(again.open(b"other", &ticket), None);
    }
    assert_eq!(keys.open(b"group", data), None);
    if let Some(chain) = client_certificates(data) {
        let bytes: usize = chain.iter().map(|certificate| certificate.len()).sum();
        assert!(!chain.is_empty() && bytes < data.len());
    }
}
