//! The reasons why a certificate could not be had from the ACME server, and the operator's
//! remedies.

use eyelet_client::with_sources;
use instant_acme::Problem;

use crate::challenge::Challenge;
use crate::persist::PersistentRecordFault;

/// The reason why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub enum AcmeError {
    /// The server cannot be reached, or does not speak ACME.
    #[error("the ACME server cannot be used: {0}")]
    Server(String),
    /// The server refuses, for this reason.
    #[error("the ACME server refuses: {}", described(.0))]
    Refused(Problem),
    /// The server could not validate the name.
    #[error("the ACME server could not validate the name by {challenge}: {why}")]
    Invalid {
        /// The challenge that it tried.
        challenge: Challenge,
        /// The server's explanation.
        why: String,
    },
    /// The server offers no challenge that this edge can answer.
    #[error("the ACME server offers no challenge that this edge answers")]
    NoChallenge,
    /// The DNS has no record with which the server could validate the name.
    #[error("the DNS record for DNS-PERSIST-01 does not let it order: {fault}")]
    NoRecord {
        /// The record that is needed.
        record: String,
        /// The fault of what is there.
        fault: PersistentRecordFault,
    },
    /// The hook for DNS-01 has failed, for this reason.
    #[error("{0}")]
    Hook(String),
    /// The server has no request for another key of the account.
    #[error("the ACME server cannot change the key of an account")]
    NoKeyChange,
    /// It is not known whether the server has taken the account's next key.
    #[error("a change of the account's key is not finished: {0}")]
    Unfinished(String),
    /// The server did not finish in time.
    #[error("the ACME server did not finish in time")]
    Slow,
    /// The account or the certificates cannot be stored.
    #[error("{0}")]
    Store(String),
    /// A key or a request could not be made.
    #[error("{0}")]
    Library(String),
    /// Too many orders for names that clients asked for.
    #[error("too many names were ordered for clients lately")]
    Rate,
}

impl AcmeError {
    /// True if the server decided against it, so that asking again soon is of no use. A nonce that
    /// it does not take (RFC 8555 section 6.5) and an error of its own say nothing about the order.
    pub fn is_verdict(&self) -> bool {
        match self {
            Self::Refused(_) => !matches!(self.problem(), "badNonce" | "serverInternal"),
            Self::Invalid { .. } | Self::NoChallenge => true,
            _ => false,
        }
    }

    /// The type of the server's problem, without its namespace (RFC 8555 section 6.7).
    pub fn problem(&self) -> &str {
        match self {
            Self::Refused(problem) => {
                let kind = problem.r#type.as_deref().unwrap_or_default();
                kind.strip_prefix("urn:ietf:params:acme:error:").unwrap_or(kind)
            }
            _ => "",
        }
    }

    /// Returns advice for the operator.
    pub fn advice(&self, name: &str) -> String {
        match (self, self.problem()) {
            (Self::Invalid { challenge, .. }, _) => match challenge {
                Challenge::TlsAlpn => {
                    format!("port 443 of {name} must lead to a listener of this rule")
                }
                Challenge::Http => {
                    format!("port 80 of {name} must lead to a listener of kind \"http_redirect\"")
                }
                Challenge::Dns => {
                    "`dns_hook` must end only when all DNS servers of the zone have the record"
                        .into()
                }
                Challenge::DnsPersist => {
                    "`eyelet acme record` prints the record that all DNS servers of the zone must \
                     have"
                        .into()
                }
            },
            (Self::NoRecord { record, .. }, _) => format!("make the DNS record `{record}`"),
            (Self::Hook(_), _) => "mend the command `dns_hook` in [acme]".into(),
            (_, "rateLimited") => "the next attempt keeps to the server's limit".into(),
            (_, "rejectedIdentifier" | "unsupportedIdentifier") => {
                format!("this server issues nothing for {name}: remove it from the rule")
            }
            (_, "caa") => format!("a CAA record of {name} must allow this server"),
            (_, "externalAccountRequired") => {
                "set `external_account_id` and `external_account_key_file` in [acme]".into()
            }
            (_, "userActionRequired") => "the server wants its new terms agreed to".into(),
            (_, "invalidContact" | "unsupportedContact") => "mend `contact` in [acme]".into(),
            (Self::Server(why), _) if why.contains("certificate") => {
                "set `ca` in [acme] for a server with a private CA, and see that the clock of this \
                 machine is right"
                    .into()
            }
            (Self::Server(_), _) => {
                "see that `directory` in [acme] is right and can be reached from here".into()
            }
            (Self::NoChallenge, _) if name.starts_with("*.") => {
                "the server may not know DNS-PERSIST-01: set `dns_hook` in [acme] for DNS-01".into()
            }
            (Self::NoChallenge, _) => "add a listener of kind \"http_redirect\"".into(),
            (Self::Store(_), _) => "see that it can be written to".into(),
            _ => "it is tried again".into(),
        }
    }
}

impl From<instant_acme::Error> for AcmeError {
    fn from(error: instant_acme::Error) -> Self {
        match error {
            instant_acme::Error::Api(problem) => Self::Refused(problem),
            instant_acme::Error::Timeout(_) => Self::Slow,
            other => Self::Server(with_sources(&other)),
        }
    }
}

/// Describes a problem, with its part for each name.
pub fn described(problem: &Problem) -> String {
    let kind = problem.r#type.as_deref().unwrap_or("no type");
    let detail = problem.detail.as_deref().unwrap_or("no detail");
    let parts = problem.subproblems.iter().map(|part| format!("; {part}"));
    format!("{detail} ({kind}){}", parts.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_decision_about_the_order_is_a_verdict() {
        let refused = |kind: &str| {
            let kind = Some(format!("urn:ietf:params:acme:error:{kind}"));
            AcmeError::Refused(Problem {
                r#type: kind,
                detail: None,
                status: None,
                subproblems: Vec::new(),
            })
        };
        for kind in ["rejectedIdentifier", "caa", "rateLimited", "unauthorized", "malformed"] {
            assert!(refused(kind).is_verdict(), "{kind}");
        }
        for kind in ["badNonce", "serverInternal"] {
            assert!(!refused(kind).is_verdict(), "{kind}");
        }
        assert!(AcmeError::NoChallenge.is_verdict());
        assert!(!AcmeError::Slow.is_verdict());
    }
}
