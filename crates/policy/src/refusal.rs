//! Why a connection is refused, and the alert that says so to the client.
//! Knows nothing of how an alert is sent; an `alert` given on the rule is the caller's to prefer.

use eyelet_wire::alert::AlertDescription;
use eyelet_wire::hello::SniFault;
use thiserror::Error;

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// A refuse rule on the client's or the destination's address.
    #[error("refused by address")]
    ByAddress,
    /// A refuse rule on the destination's certificate.
    #[error("refused by certificate")]
    ByCertificate,
    /// A refuse rule on TLS compression.
    #[error("refused by TLS compression")]
    ByCompression,
    /// A refuse rule on the target of a CONNECT.
    #[error("refused by CONNECT target")]
    ByConnect,
    /// A refuse rule on encrypted client hello.
    #[error("refused by ECH")]
    ByEch,
    /// A refuse rule on the fingerprint.
    #[error("refused by fingerprint")]
    ByFingerprint,
    /// A refuse rule on the name.
    #[error("refused by name")]
    ByName,
    /// A refuse rule on the protocols offered.
    #[error("refused by ALPN")]
    ByProtocol,
    /// A refuse rule on the TLS version.
    #[error("TLS version too old")]
    ByVersion,
    /// The name cannot be read, and no rule lets such hellos through.
    #[error("malformed name: {0}")]
    MalformedName(SniFault),
    /// A refuse rule on names that are not true.
    #[error("the name is not true")]
    NameNotTrue,
    /// The hello was needed and cannot be had.
    #[error("no hello")]
    NoHello,
    /// The hello has no name, and no rule takes it without one.
    #[error("no name")]
    NoName,
    /// No rule for the name, or the last refuse rule.
    #[error("no rule for this name")]
    NoRule,
    /// No rule for what is known without a name.
    #[error("no rule for this connection")]
    Unlisted,
}

impl Refusal {
    /// The alert that says why. A client whose highest version is TLS 1.2 (`tls12_client`) does
    /// not know `missing_extension`, which RFC 8446 section 9.2 asks for when the name is missing.
    pub const fn alert(self, tls12_client: bool) -> AlertDescription {
        match self {
            Self::ByAddress
            | Self::ByCertificate
            | Self::ByConnect
            | Self::ByEch
            | Self::ByFingerprint
            | Self::NameNotTrue
            | Self::Unlisted => AlertDescription::AccessDenied,
            // RFC 5246 section 7.2.2: no acceptable set of security parameters.
            Self::ByCompression => AlertDescription::HandshakeFailure,
            Self::ByName | Self::NoRule => AlertDescription::UnrecognizedName,
            Self::ByProtocol => AlertDescription::NoApplicationProtocol,
            Self::ByVersion => AlertDescription::ProtocolVersion,
            Self::MalformedName(_) | Self::NoHello => AlertDescription::DecodeError,
            Self::NoName if tls12_client => AlertDescription::HandshakeFailure,
            Self::NoName => AlertDescription::MissingExtension,
        }
    }
}
