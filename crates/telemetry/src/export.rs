//! A connection's info in a form for another process: plain values and texts, which a change of the
//! types in memory does not change. crates/handover/README.md describes it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use eyelet_memory::interner::Name;
use eyelet_wire::ja4::Ja4;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::evidence::{AddressEvidence, CertificateEvidence, Evidence};
use crate::info::{
    Alpn, ConnectionInfo, Decided, DestinationSource, KnownClient, NS_PER_MS, Outcome,
    TlsCompression, UpstreamName,
};
use crate::labels::Labels;
use crate::upstream_tls::UpstreamTlsInfo;

/// Most bytes of a text: a listener's or a rule's name, a host name, an issuer. The longest that a
/// peer chooses is an issuer, which has the length of a certificate at most.
pub const TEXT_BYTES_MAX: usize = 64 << 10;
/// Most items of a list: shadow rules of one connection, or texts of its evidence.
pub const ITEMS_MAX: usize = 4096;

/// Most bytes of a name of a cipher suite or a group: the longest registered one has 45.
const REGISTERED_BYTES_MAX: usize = 64;

/// Most bytes that a connection can have moved one way, so that no sum overflows: 4 EiB.
const MOVED_MAX: u64 = 1 << 62;

/// The reason why the form is not a connection's info.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InfoFault {
    /// A text is longer than [`TEXT_BYTES_MAX`], or a list than [`ITEMS_MAX`].
    #[error("a text or a list is too long")]
    TooLong,
    /// The list of protocols is not one.
    #[error("the list of protocols is malformed")]
    Alpn,
    /// The fingerprint is not one.
    #[error("the fingerprint is malformed")]
    Ja4,
    /// A name of a cipher suite or a group is none of the IANA registry.
    #[error("the name of a cipher suite or a group is malformed")]
    Registered,
    /// The age is greater than any clock's time.
    #[error("an age is greater than the time since 1970")]
    Age,
    /// A sum of bytes would overflow.
    #[error("a count of bytes is too great")]
    Count,
}

/// Version 1 of the form.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct InfoV1<'a> {
    /// Unique in the process that accepted it.
    pub id: u64,
    /// Milliseconds since it was accepted.
    pub age_ms: u64,
    /// The client's address.
    pub client: SocketAddr,
    /// Bytes written to the upstream.
    pub bytes_to_upstream: u64,
    /// Bytes written to the client.
    pub bytes_to_client: u64,
    /// The decision.
    #[serde(borrow)]
    pub decided: DecidedV1<'a>,
}

/// The decision, and the facts for it.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct DecidedV1<'a> {
    /// The listener: its index in its configuration, and its name.
    #[serde(borrow)]
    pub listener: (u16, &'a str),
    /// The rule: its index and its name.
    #[serde(borrow)]
    pub rule: Option<(u32, &'a str)>,
    /// The shadow rules that would have decided, with their outcomes.
    #[serde(borrow)]
    pub shadow: Vec<(u32, &'a str, OutcomeV1)>,
    /// The target of its CONNECT request.
    pub connect: Option<&'a str>,
    /// True if it came from the process itself.
    pub is_handed: bool,
    /// The number of times that it may have come back to the process.
    pub hop_count: u8,
    /// The client's destination.
    pub destination: Option<SocketAddr>,
    /// The name in the hello.
    pub sni: Option<&'a str>,
    /// True if the hello has a `server_name` extension without a usable name.
    pub sni_malformed: bool,
    /// The protocols in the hello, each after its length.
    pub alpn: Option<&'a [u8]>,
    /// True if these are all of them.
    pub alpn_whole: bool,
    /// The fingerprint of the hello.
    pub ja4: Option<&'a str>,
    /// True if the hello has the ECH extension.
    pub ech: bool,
    /// The code of the version.
    pub tls_version: Option<u16>,
    /// The digest that names the authorities that have vouched for the client's certificate; 0:
    /// none was asked for.
    pub client_roots: u64,
    /// True if HTTP/2 was negotiated for an HTTP upstream.
    pub http2: bool,
    /// The upstream that was dialled.
    #[serde(borrow)]
    pub upstream: Option<UpstreamV1<'a>>,
    /// The agreement of the peers about TLS compression.
    pub tls_compression: Option<TlsCompressionV1>,
    /// The evidence that rules have asked for.
    #[serde(borrow)]
    pub evidence: Option<EvidenceV1<'a>>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub enum OutcomeV1 {
    /// See [`Outcome::Failed`].
    Failed,
    /// See [`Outcome::Redirected`].
    Redirected,
    /// See [`Outcome::Refused`].
    Refused,
    /// See [`Outcome::Spliced`].
    Spliced,
    /// See [`Outcome::Terminated`].
    Terminated,
}

/// [`UpstreamName`].
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub enum UpstreamV1<'a> {
    Address(SocketAddr),
    /// A name, or a Unix socket.
    Name(&'a str),
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub enum TlsCompressionV1 {
    /// See [`TlsCompression::None`].
    None,
    /// See [`TlsCompression::Offered`].
    Offered,
    /// See [`TlsCompression::Chosen`].
    Chosen,
}

/// [`Evidence`]. Ages are those at the connection's start, in milliseconds.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct EvidenceV1<'a> {
    /// The addresses of the name, and their age.
    pub dns: Option<(Vec<IpAddr>, u64)>,
    /// True if the address is the name's.
    pub dns_agrees: Option<bool>,
    /// The certificate that the destination has shown.
    #[serde(borrow)]
    pub certificate: Option<CertificateV1<'a>>,
    /// The facts that are unknown, with the reasons.
    #[serde(borrow)]
    pub unknown: Vec<&'a str>,
}

/// [`CertificateEvidence`].
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct CertificateV1<'a> {
    #[serde(borrow)]
    pub names: Vec<&'a str>,
    /// The issuer's whole name.
    pub issuer: &'a str,
    /// The fault of it.
    pub fault: Option<&'a str>,
    /// Its age at the connection's start, in milliseconds.
    pub age_ms: u64,
}

/// [`UpstreamTlsInfo`]. Only connections to `tls://` upstreams have it, so it is no part of
/// [`DecidedV1`].
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct UpstreamTlsV5<'a> {
    version: u16,
    cipher_suite: &'a str,
    group: Option<&'a str>,
    alpn: Option<&'a str>,
    resumed: bool,
}

/// [`KnownClient`]. Only clients of a proxy have it, so it is no part of [`DecidedV1`].
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct KnownClientV12<'a> {
    user: Option<&'a str>,
    certificate: Option<&'a str>,
    cgroup: Option<&'a str>,
}

impl<'a> KnownClientV12<'a> {
    /// The form of what is known of a client.
    pub fn new(client: &'a KnownClient) -> Self {
        let KnownClient { user, certificate, cgroup } = client;
        Self {
            user: user.as_deref(),
            certificate: certificate.as_deref(),
            cgroup: cgroup.as_deref(),
        }
    }

    /// Returns the client. `None`: nothing is known of it.
    ///
    /// # Errors
    /// A text that is too long.
    pub fn client(&self) -> Result<Option<KnownClient>, InfoFault> {
        let client = KnownClient {
            user: self.user.map(text).transpose()?,
            certificate: self.certificate.map(text).transpose()?,
            cgroup: self.cgroup.map(text).transpose()?,
        };
        Ok((client != KnownClient::default()).then_some(client))
    }
}

impl<'a> UpstreamTlsV5<'a> {
    /// The form of what was agreed on.
    pub fn new(tls: &'a UpstreamTlsInfo) -> Self {
        Self {
            version: tls.version,
            cipher_suite: &tls.cipher_suite,
            group: tls.group.as_deref(),
            alpn: tls.alpn.as_deref(),
            resumed: tls.resumed,
        }
    }

    /// Returns the agreement.
    ///
    /// # Errors
    /// A text that is too long, or a name that the access line could not show as it is.
    pub fn info(&self) -> Result<UpstreamTlsInfo, InfoFault> {
        Ok(UpstreamTlsInfo {
            version: self.version,
            cipher_suite: registered(self.cipher_suite)?.into(),
            group: self.group.map(registered).transpose()?.map(Into::into),
            alpn: self.alpn.map(text).transpose()?,
            resumed: self.resumed,
        })
    }
}

impl<'a> InfoV1<'a> {
    /// The form of a connection's info at this time of the clock that the info counts by.
    pub fn new(info: &'a ConnectionInfo, now_unix_ms: u64) -> Self {
        Self {
            id: info.id,
            age_ms: now_unix_ms.saturating_sub(info.started_unix_ms()),
            client: info.client,
            bytes_to_upstream: info.bytes_to_upstream,
            bytes_to_client: info.bytes_to_client,
            decided: DecidedV1::new(&info.decided, info.started_unix_ms()),
        }
    }

    /// The info, by a clock that shows this time.
    ///
    /// # Errors
    /// A text or list that is too long, a list of protocols or a fingerprint that is none, an age
    /// or a count that is not possible.
    pub fn info(&self, now_unix_ms: u64) -> Result<ConnectionInfo, InfoFault> {
        let started_unix_ms = now_unix_ms.checked_sub(self.age_ms).ok_or(InfoFault::Age)?;
        if self.bytes_to_upstream > MOVED_MAX || self.bytes_to_client > MOVED_MAX {
            return Err(InfoFault::Count);
        }
        let started_unix_ns = started_unix_ms.saturating_mul(NS_PER_MS);
        Ok(ConnectionInfo {
            is_decided: true,
            decided: self.decided.decided(started_unix_ms)?,
            bytes_to_upstream: self.bytes_to_upstream,
            bytes_to_client: self.bytes_to_client,
            ..ConnectionInfo::new(self.id, started_unix_ns, self.client)
        })
    }
}

impl<'a> DecidedV1<'a> {
    fn new(decided: &'a Decided, started_unix_ms: u64) -> Self {
        let labels = &decided.labels;
        let shadow = decided.shadow.iter();
        Self {
            listener: (decided.listener, labels.listener(decided.listener)),
            rule: decided.rule.map(|rule| (rule, labels.rule(rule))),
            shadow: shadow.map(|(rule, end)| (*rule, labels.rule(*rule), (*end).into())).collect(),
            connect: decided.connect.as_deref(),
            is_handed: decided.is_handed,
            hop_count: decided.hop_count,
            destination: decided.destination,
            sni: decided.sni.as_deref(),
            sni_malformed: decided.sni_malformed,
            alpn: decided.alpn.as_ref().map(Alpn::as_bytes),
            alpn_whole: decided.alpn_whole,
            ja4: decided.ja4.as_ref().map(Ja4::as_str),
            ech: decided.ech,
            tls_version: decided.tls_version,
            client_roots: decided.client_roots,
            http2: decided.http2,
            upstream: decided.upstream.as_ref().map(|upstream| match upstream {
                UpstreamName::Address(address) => UpstreamV1::Address(*address),
                UpstreamName::Name(name) => UpstreamV1::Name(name),
            }),
            tls_compression: decided.tls_compression.map(Into::into),
            evidence: decided
                .evidence
                .as_ref()
                .map(|evidence| EvidenceV1::new(evidence, started_unix_ms)),
        }
    }

    fn decided(&self, started_unix_ms: u64) -> Result<Decided, InfoFault> {
        check_count(self.shadow.len())?;
        let shadow = self.shadow.iter().map(|(rule, _, outcome)| (*rule, (*outcome).into()));
        let rules = self.rule.iter().map(|(rule, name)| (*rule, *name));
        let shadow_rules = self.shadow.iter().map(|(rule, name, _)| (*rule, *name));
        let rules = rules.chain(shadow_rules).map(|(rule, name)| Ok((rule, text(name)?)));
        let rules = rules.collect::<Result<Vec<_>, InfoFault>>()?;
        let labels = Labels::imported((self.listener.0, text(self.listener.1)?), rules);
        Ok(Decided {
            labels,
            listener: self.listener.0,
            connect: self.connect.map(text).transpose()?.map(Name::from),
            requester: None,
            is_handed: self.is_handed,
            hop_count: self.hop_count,
            destination: self.destination,
            destination_source: DestinationSource::Imported,
            sni: self.sni.map(text).transpose()?,
            sni_malformed: self.sni_malformed,
            alpn: self
                .alpn
                .map(|list| Alpn::from_bytes(list).ok_or(InfoFault::Alpn))
                .transpose()?,
            alpn_whole: self.alpn_whole,
            ja4: self.ja4.map(|text| Ja4::parse(text).ok_or(InfoFault::Ja4)).transpose()?,
            ech: self.ech,
            tls_version: self.tls_version,
            client_roots: self.client_roots,
            client_certificate: None,
            http2: self.http2,
            rule: self.rule.map(|(rule, _)| rule),
            upstream_tls: None,
            counted_at: None,
            held: None,
            upstream: match self.upstream {
                Some(UpstreamV1::Address(address)) => Some(UpstreamName::Address(address)),
                Some(UpstreamV1::Name(name)) => Some(UpstreamName::Name(text(name)?)),
                None => None,
            },
            tls_compression: self.tls_compression.map(Into::into),
            shadow: shadow.collect(),
            evidence: match &self.evidence {
                Some(evidence) => Some(evidence.evidence(started_unix_ms)?),
                None => None,
            },
        })
    }
}

impl<'a> EvidenceV1<'a> {
    fn new(evidence: &'a Evidence, started_unix_ms: u64) -> Self {
        let age = |at_unix_ms| started_unix_ms.saturating_sub(at_unix_ms);
        Self {
            dns: evidence.dns().map(|dns| (dns.addresses.to_vec(), age(dns.at_unix_ms))),
            dns_agrees: evidence.dns_agrees(),
            certificate: evidence.certificate().map(|shown| CertificateV1 {
                names: shown.names.iter().map(|name| &**name).collect(),
                issuer: &shown.issuer,
                fault: shown.fault.as_deref(),
                age_ms: age(shown.at_unix_ms),
            }),
            unknown: evidence.unknown().iter().map(|why| &**why).collect(),
        }
    }

    fn evidence(&self, started_unix_ms: u64) -> Result<Evidence, InfoFault> {
        let at = |age_ms| started_unix_ms.checked_sub(age_ms).ok_or(InfoFault::Age);
        let dns = self.dns.as_ref().map(|(addresses, age_ms)| {
            check_count(addresses.len())?;
            let addresses = addresses.as_slice().into();
            Ok(Arc::new(AddressEvidence { addresses, at_unix_ms: at(*age_ms)? }))
        });
        let certificate = self.certificate.as_ref().map(|shown| {
            Ok(Arc::new(CertificateEvidence {
                names: texts(&shown.names)?.into(),
                issuer: text(shown.issuer)?,
                fault: shown.fault.map(text).transpose()?,
                at_unix_ms: at(shown.age_ms)?,
            }))
        });
        let unknown = texts(&self.unknown)?;
        Ok(Evidence::of(dns.transpose()?, self.dns_agrees, certificate.transpose()?, unknown))
    }
}

/// A text of the form, for a connection's info.
fn text(text: &str) -> Result<Box<str>, InfoFault> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(InfoFault::TooLong);
    }
    Ok(text.into())
}

/// A name of an IANA registry: the access line has it without escapes.
fn registered(name: &str) -> Result<String, InfoFault> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if name.len() > REGISTERED_BYTES_MAX || !name.bytes().all(is_part) {
        return Err(InfoFault::Registered);
    }
    Ok(name.into())
}

fn texts(texts: &[&str]) -> Result<Vec<Box<str>>, InfoFault> {
    check_count(texts.len())?;
    texts.iter().map(|one| text(one)).collect()
}

fn check_count(items: usize) -> Result<(), InfoFault> {
    if items > ITEMS_MAX { Err(InfoFault::TooLong) } else { Ok(()) }
}

impl From<Outcome> for OutcomeV1 {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            // No rule in shadow has this outcome.
            Outcome::Failed | Outcome::Left => Self::Failed,
            Outcome::Redirected => Self::Redirected,
            Outcome::Refused => Self::Refused,
            Outcome::Spliced => Self::Spliced,
            // No connection with such a rule in shadow moves to another process.
            Outcome::Originated | Outcome::Terminated => Self::Terminated,
        }
    }
}

impl From<OutcomeV1> for Outcome {
    fn from(outcome: OutcomeV1) -> Self {
        match outcome {
            OutcomeV1::Failed => Self::Failed,
            OutcomeV1::Redirected => Self::Redirected,
            OutcomeV1::Refused => Self::Refused,
            OutcomeV1::Spliced => Self::Spliced,
            OutcomeV1::Terminated => Self::Terminated,
        }
    }
}

impl From<TlsCompression> for TlsCompressionV1 {
    fn from(compression: TlsCompression) -> Self {
        match compression {
            TlsCompression::None => Self::None,
            TlsCompression::Offered => Self::Offered,
            TlsCompression::Chosen => Self::Chosen,
        }
    }
}

impl From<TlsCompressionV1> for TlsCompression {
    fn from(compression: TlsCompressionV1) -> Self {
        match compression {
            TlsCompressionV1::None => Self::None,
            TlsCompressionV1::Offered => Self::Offered,
            TlsCompressionV1::Chosen => Self::Chosen,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use eyelet_memory::budget::Budget;

    use super::*;
    use crate::info::SharedInfo;

    /// Two connections with the same evidence, which come one after the other.
    #[test]
    fn imported_connections_share_what_is_equal() {
        let addresses: Box<[IpAddr]> = ["192.0.2.1".parse().unwrap()].into();
        let names: Box<[Box<str>]> = ["a.example".into()].into();
        let mut evidence = Evidence::default();
        let at_unix_ms = 5_000;
        evidence.note_dns(
            Some(Arc::new(AddressEvidence { addresses, at_unix_ms })),
            Some(true),
            None,
        );
        let issuer = "CN=An Authority".into();
        let shown = CertificateEvidence { names, issuer, fault: None, at_unix_ms };
        evidence.note_certificate(Ok(Arc::new(shown)));
        let info = |started_unix_ms| ConnectionInfo {
            id: 7,
            started_unix_ns: started_unix_ms * NS_PER_MS,
            client: SocketAddr::from(([192, 0, 2, 7], 1)),
            connect: None,
            owes_answer: None,
            is_decided: true,
            decided: Decided { evidence: Some(evidence.clone()), ..Decided::default() },
            bytes_to_upstream: 0,
            bytes_to_client: 0,
            is_quic: false,
            datagrams: [0; 2],
        };
        let mut shared = SharedInfo::new(&Arc::new(Budget::new(64 << 20, 0)));
        let (mut first, mut parked) = (None, Vec::new());
        for (started_unix_ms, left_unix_ms, came_unix_ms) in
            [(5_010, 90_000, 770_050), (8_765, 90_020, 770_071), (9_000, 90_030, 770_079)]
        {
            let info = info(started_unix_ms);
            let form = InfoV1::new(&info, left_unix_ms);
            let mut imported = form.info(1 << 43).unwrap();
            imported.follow_clock(1 << 43, came_unix_ms);
            let age = came_unix_ms - imported.started_unix_ms();
            assert_eq!(age, left_unix_ms - started_unix_ms);
            let evidence = imported.decided.evidence.as_ref().unwrap();
            let shown = evidence.dns().unwrap().at_unix_ms;
            let before = imported.started_unix_ms() - shown;
            assert!((0..100).contains(&(before - (started_unix_ms - at_unix_ms))), "{before}");
            let first = first.get_or_insert_with(|| imported.decided.clone());
            assert_eq!(imported.decided, *first);
            parked.push(imported.park(&mut shared));
        }
        parked.iter().for_each(|info| shared.forget(info));
        assert!(shared.is_empty());
    }

    #[test]
    fn a_fingerprint_comes_back_and_another_text_is_refused() {
        let decided = Decided::default();
        let mut form = DecidedV1::new(&decided, 0);
        let good = "t13d1516h2_8daaf6152771_b186095e22b6";
        form.ja4 = Some(good);
        let read = form.decided(0).unwrap().ja4;
        assert_eq!(read.as_ref().map(Ja4::as_str), Some(good));
        form.ja4 = Some("no fingerprint");
        assert_eq!(form.decided(0).err(), Some(InfoFault::Ja4));
    }
}
