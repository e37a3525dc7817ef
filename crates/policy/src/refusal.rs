//! The reasons why a connection is refused, and the alerts that tell the client. A rule's `alert`
//! overrides it; the caller sees to that.

use std::fmt;

use eyelet_wire::alert::AlertDescription;
use eyelet_wire::hello::SniFault;

use crate::requests::{PathFault, RequestFault};

/// The reason why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// Origins could read the path of the request in different ways, and a rule asks for it.
    AmbiguousPath(PathFault),
    /// A refuse rule on the client's or the destination's address.
    ByAddress,
    /// A refuse rule on who asks.
    ByRequester,
    /// A refuse rule on the destination's certificate.
    ByCertificate,
    /// A refuse rule on TLS compression.
    ByCompression,
    /// A refuse rule on the target of a CONNECT.
    ByConnect,
    /// A refuse rule on Encrypted ClientHello.
    ByEch,
    /// A refuse rule on the fingerprint.
    ByFingerprint,
    /// A refuse rule on the name.
    ByName,
    /// A refuse rule on the protocols offered.
    ByProtocol,
    /// A refuse rule on requests.
    ByRequest,
    /// A refuse rule on the protocol that carries the connection.
    ByTransport,
    /// A refuse rule on the TLS version.
    ByVersion,
    /// The name is malformed, and no rule takes such hellos.
    MalformedName(SniFault),
    /// A field of the request names another method, and a rule asks for it.
    MethodOverride,
    /// The method has a lower-case letter, and a rule asks for it.
    MethodCase,
    /// A refuse rule on names that are not verified.
    NameNotVerified,
    /// The hello was needed and cannot be obtained.
    NoHello,
    /// The hello has no name, and no rule takes it without one.
    NoName,
    /// No rule for the request, or the last refuse rule.
    NoRequestRule,
    /// No rule for the name, or the last refuse rule.
    NoRule,
    /// A rule might take the client if it named its user.
    NoUser,
    /// A field of the request names another path, and a rule asks for it.
    PathOverride,
    /// A refuse rule asks for requests, and the rule that takes the connection reads none.
    RequestUnread,
    /// No rule for what is known without a name.
    Unlisted,
}

impl Refusal {
    /// The reason, without the fault of a malformed name.
    pub const fn text(self) -> &'static str {
        match self {
            Self::AmbiguousPath(fault) => fault.text(),
            Self::ByAddress => "refused by address",
            Self::ByRequester => "refused by identity",
            Self::ByCertificate => "refused by certificate",
            Self::ByCompression => "refused by TLS compression",
            Self::ByConnect => "refused by CONNECT target",
            Self::ByEch => "refused by ECH",
            Self::ByFingerprint => "refused by fingerprint",
            Self::ByName => "refused by name",
            Self::ByProtocol => "refused by ALPN",
            Self::ByRequest => "refused by request",
            Self::ByTransport => "refused by transport",
            Self::ByVersion => "TLS version too old",
            Self::MalformedName(_) => "malformed name",
            Self::MethodCase => "a method with lower-case letters",
            Self::MethodOverride => "a field overrides the method",
            Self::PathOverride => "a field overrides the path",
            Self::NameNotVerified => "the name is not verified",
            Self::NoHello => "no hello",
            Self::NoName => "no name",
            Self::NoRequestRule => "no rule for this request",
            Self::NoRule => "no rule for this name",
            Self::NoUser => "the rules ask for a user",
            Self::RequestUnread => "the requests of this connection are not read",
            Self::Unlisted => "no rule for this connection",
        }
    }

    /// True if `reason`, as the access log has it, says that a rule refused, or that none matched.
    pub fn is_said_by(reason: &str) -> bool {
        let is_by_rule = reason.starts_with("refused by ") || reason.starts_with("no rule ");
        let others = [
            Self::ByVersion,
            Self::MethodCase,
            Self::MethodOverride,
            Self::NameNotVerified,
            Self::NoHello,
            Self::NoName,
            Self::NoUser,
            Self::PathOverride,
            Self::RequestUnread,
        ];
        let is_other = |other: &Self| reason.starts_with(other.text());
        let is_lacking = reason.starts_with("not in ");
        is_by_rule
            || is_lacking
            || reason.starts_with("malformed name")
            || others.iter().any(is_other)
    }

    /// The alert for this reason. A client whose highest version is TLS 1.2 (`tls12_client`) does
    /// not know `missing_extension`, which RFC 8446 section 9.2 requires when the name is missing.
    pub const fn alert(self, tls12_client: bool) -> AlertDescription {
        match self {
            Self::AmbiguousPath(_)
            | Self::ByAddress
            | Self::ByRequest
            | Self::ByRequester
            | Self::ByCertificate
            | Self::ByConnect
            | Self::ByEch
            | Self::ByFingerprint
            | Self::ByTransport
            | Self::MethodCase
            | Self::MethodOverride
            | Self::PathOverride
            | Self::NameNotVerified
            | Self::NoRequestRule
            | Self::NoUser
            | Self::RequestUnread
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

impl From<RequestFault> for Refusal {
    fn from(fault: RequestFault) -> Self {
        match fault {
            RequestFault::Override => Self::MethodOverride,
            RequestFault::LowerCase => Self::MethodCase,
            RequestFault::OtherPath => Self::PathOverride,
            RequestFault::Path(fault) => Self::AmbiguousPath(fault),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())?;
        match self {
            Self::MalformedName(fault) => write!(f, ": {fault}"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Refusal {}
