//! The challenges that this edge answers, as ACME servers and messages call them.

use std::fmt;

use instant_acme::ChallengeType;

/// A way in which the server validates a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// By a handshake at port 443 (RFC 8737).
    TlsAlpn,
    /// By a request to port 80 (RFC 8555 section 8.3).
    Http,
    /// By a DNS record that is made for one order (RFC 8555 section 8.4).
    Dns,
    /// By a DNS record that stays, and names the account (draft-ietf-acme-dns-persist).
    DnsPersist,
}

impl Challenge {
    /// The type of the challenge in the server's messages.
    pub fn kind(self) -> ChallengeType {
        match self {
            Self::TlsAlpn => ChallengeType::TlsAlpn01,
            Self::Http => ChallengeType::Http01,
            Self::Dns => ChallengeType::Dns01,
            Self::DnsPersist => ChallengeType::Unknown("dns-persist-01".into()),
        }
    }
}

impl fmt::Display for Challenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TlsAlpn => "TLS-ALPN-01",
            Self::Http => "HTTP-01",
            Self::Dns => "DNS-01",
            Self::DnsPersist => "DNS-PERSIST-01",
        })
    }
}
