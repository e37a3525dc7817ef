//! Properties of sealed values, for any bytes. A fuzz target and a test assert them.

use crate::sealed::Sealer;

/// Checks that a value of the store opens only if it was sealed with this secret, under this name,
/// as it is.
///
/// # Panics
/// If that does not hold.
pub fn only_what_was_sealed_opens(data: &[u8]) {
    let Ok(sealer) = Sealer::new(b"secret") else { return };
    assert!(sealer.open("name", data).is_err(), "bytes of a stranger open");
    let Ok(mut sealed) = sealer.seal("name", data) else { return };
    assert!(sealer.open("name", &sealed).is_ok_and(|value| **value == *data));
    assert!(sealer.open("another", &sealed).is_err());
    let at = data.first().map_or(0, |first| usize::from(*first)) % sealed.len();
    sealed[at] ^= 1;
    assert!(sealer.open("name", &sealed).is_err(), "byte {at} may be changed");
}
