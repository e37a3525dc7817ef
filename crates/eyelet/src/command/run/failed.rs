//! Requests that failed, as lines in the terminal of their project: one a second for each name.

use eyelet_telemetry::log::failed::{self, FailedRequests};
use eyelet_tls::client::UNTRUSTED;

/// The failures of a name since the last call.
pub(super) struct Failures {
    /// The name, which is its rule's.
    pub(super) name: String,
    /// The line to print.
    pub(super) line: String,
}

/// Returns the failures since the last call, one for each name that has some.
pub(super) fn take() -> Vec<Failures> {
    let failed = failed::take();
    failed.into_iter().map(|(name, failed)| Failures::of(name.into(), &failed)).collect()
}

impl Failures {
    fn of(name: String, FailedRequests { first, more }: &FailedRequests) -> Self {
        let more = match more {
            0 => String::new(),
            1 => " (and one more)".to_owned(),
            more => format!(" (and {more} more)"),
        };
        let advice = advice(first);
        let line = format!("eyelet: {name}: {first}{advice}{more}");
        Self { name, line }
    }
}

/// The advice about the certificate of an application, with what goes before it.
fn advice(failed: &str) -> &'static str {
    if UNTRUSTED.iter().any(|fault| failed.ends_with(fault)) {
        "; --upstream-ca FILE names its authority, or its own certificate"
    } else if failed.contains(": not valid for name \"") {
        "; write that name in place of the address, as https://NAME:PORT"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_beside_the_first_is_counted() {
        for (more, expected) in [
            (0, "eyelet: a.localhost: GET /: 502: upstream reset"),
            (1, "eyelet: a.localhost: GET /: 502: upstream reset (and one more)"),
            (12, "eyelet: a.localhost: GET /: 502: upstream reset (and 12 more)"),
        ] {
            let first = "GET /: 502: upstream reset".to_owned();
            let failures = Failures::of("a.localhost".to_owned(), &FailedRequests { first, more });
            assert_eq!(failures.line, expected);
        }
    }
}
