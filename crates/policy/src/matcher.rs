//! The matchers by name, the outcomes of a check, and the sorted lists that matchers hold.

use std::fmt;
use std::ops::Deref;

use crate::facts::{Fact, Facts};

/// A matcher. It displays as its key in the configuration. In the order of checks: cheap facts
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Matcher {
    /// `listener`
    Listener,
    /// `client`
    Client,
    /// `transport`
    Transport,
    /// `connect`
    Connect,
    /// `peer_uid`
    PeerUid,
    /// `peer_cgroup`
    PeerCgroup,
    /// `client_cert`
    ClientCert,
    /// `proxy_user`
    ProxyUser,
    /// `destination`
    Destination,
    /// `sni`
    Sni,
    /// `sni_malformed`
    SniMalformed,
    /// `tls_version_max`
    TlsVersionMax,
    /// `ech`
    Ech,
    /// `alpn`
    Alpn,
    /// `tls_compression`
    TlsCompression,
    /// `ja4`
    Ja4,
    /// `sni_verified`
    SniVerified,
    /// `certificate_valid`
    CertificateValid,
    /// `certificate_names`
    CertificateNames,
    /// `certificate_issuer`
    CertificateIssuer,
    /// `method`
    Method,
    /// `path`
    Path,
}

impl Matcher {
    /// Matchers on the certificate.
    pub(crate) const OF_CERTIFICATE: [Self; 3] =
        [Self::CertificateValid, Self::CertificateNames, Self::CertificateIssuer];
}

/// The outcome of checking a rule's matchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Holds,
    Fails(Matcher),
    Needs(Fact),
}

impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Listener => "listener",
            Self::Client => "client",
            Self::Transport => "transport",
            Self::Connect => "connect",
            Self::PeerUid => "peer_uid",
            Self::PeerCgroup => "peer_cgroup",
            Self::ClientCert => "client_cert",
            Self::ProxyUser => "proxy_user",
            Self::Destination => "destination",
            Self::Sni => "sni",
            Self::SniMalformed => "sni_malformed",
            Self::TlsVersionMax => "tls_version_max",
            Self::Ech => "ech",
            Self::Alpn => "alpn",
            Self::TlsCompression => "tls_compression",
            Self::Ja4 => "ja4",
            Self::SniVerified => "sni_verified",
            Self::CertificateValid => "certificate_valid",
            Self::CertificateNames => "certificate_names",
            Self::CertificateIssuer => "certificate_issuer",
            Self::Method => "method",
            Self::Path => "path",
        })
    }
}

/// `"a", "b" and 3 more`: how an explanation prints a list.
pub(crate) fn listed<T: fmt::Display>(mut items: impl Iterator<Item = T>) -> String {
    let shown: Vec<String> =
        items.by_ref().take(LISTED_MAX).map(|item| format!("\"{item}\"")).collect();
    match items.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// A list as [`listed`] prints it, and the files that belong to it.
pub(crate) fn joined(listed: String, files: Vec<String>) -> String {
    let listed = Some(listed).filter(|listed| !listed.is_empty());
    listed.into_iter().chain(files).collect::<Vec<_>>().join(", ")
}

/// The outcome of a matcher whose fact is missing.
pub(crate) fn missing(facts: &Facts<'_>, fact: Fact, matcher: Matcher, refuse: bool) -> Outcome {
    match (facts.unknown.contains(fact), refuse) {
        (false, _) => Outcome::Needs(fact),
        (true, true) => Outcome::Holds,
        (true, false) => Outcome::Fails(matcher),
    }
}

/// A sorted list in which nothing is twice. As a matcher, an empty one stands for everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SortedList<T>(Box<[T]>);

impl<T> Default for SortedList<T> {
    fn default() -> Self {
        Self(Box::default())
    }
}

impl<T: Ord> FromIterator<T> for SortedList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut items: Vec<T> = items.into_iter().collect();
        items.sort_unstable();
        items.dedup();
        Self(items.into())
    }
}

impl<T> Deref for SortedList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Ord> SortedList<T> {
    /// True if everything that `narrow` takes is taken here.
    pub(crate) fn covers(&self, narrow: &Self) -> bool {
        let lists = |item| self.binary_search(item).is_ok();
        self.is_empty() || (!narrow.is_empty() && narrow.iter().all(lists))
    }
}

/// Most items of a list that an explanation shows.
const LISTED_MAX: usize = 5;
