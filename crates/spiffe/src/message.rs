//! `X509SVIDResponse` of the Workload API (section 5.1): from its bytes to certificates, a key and
//! bundles.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use eyelet_pki::certificate;
use eyelet_pki::spiffe::id::{SpiffeId, TrustDomain};
use eyelet_tls::workload::WorkloadParts;
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

use crate::fault::MessageFault;
use crate::protobuf::{ProtobufFault, ProtobufFields, ProtobufValue};

/// Identities of a workload. SPIRE's own limit of a message allows about so many.
const SVIDS_MAX: usize = 1000;
/// Trust domains whose bundles are kept. Each takes about 10 KB.
const BUNDLES_MAX: usize = 1000;
/// Certificates of a chain or of a bundle. The web has 150 roots.
const CERTIFICATES_MAX: usize = 200;
/// Lists of revoked certificates.
const CRLS_MAX: usize = 200;

/// `X509SVID`, as it is in the message.
#[derive(Default)]
struct Svid<'a> {
    id: &'a [u8],
    chain: &'a [u8],
    key: &'a [u8],
    bundle: &'a [u8],
}

/// Reads a message. The first identity is this workload's own ("default identity", section 5.3);
/// of the others only the bundles count.
///
/// # Errors
/// The fault of the message: a part of one is used never.
pub fn read(message: &[u8]) -> Result<WorkloadParts, MessageFault> {
    let (mut svids, mut crls, mut federated) = (Vec::new(), Vec::new(), Vec::new());
    let mut fields = ProtobufFields::new(message);
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (1, ProtobufValue::Bytes(svid)) if svids.len() < SVIDS_MAX => {
                svids.push(Svid::read(svid)?)
            }
            (2, ProtobufValue::Bytes(crl)) if crls.len() < CRLS_MAX => {
                crls.push(crl.to_vec().into())
            }
            (3, ProtobufValue::Bytes(entry)) if federated.len() < BUNDLES_MAX => {
                federated.push(map_entry(entry)?);
            }
            (1..=3, ProtobufValue::Bytes(_)) => return Err(MessageFault::TooMany),
            (1..=3, ProtobufValue::Other) => return Err(MessageFault::WrongType(field)),
            // Of a later version.
            _ => {}
        }
    }
    let own = svids.first().ok_or(MessageFault::Missing("svids"))?;
    let id: SpiffeId = parse(own.id)?;
    let bundles = bundles(&svids, &federated)?;
    let chain = certificates(own.chain)?;
    if chain.is_empty() {
        return Err(MessageFault::Missing("x509_svid"));
    }
    if own.key.is_empty() {
        return Err(MessageFault::Missing("x509_svid_key"));
    }
    let key = Zeroizing::new(PrivatePkcs8KeyDer::from(own.key.to_vec()).into());
    let pair = certificate::of_der(Path::new(id.as_str()), chain, key);
    let pair = pair.map_err(|error| MessageFault::Pair(error.to_string()))?;
    Ok(WorkloadParts { id, pair, bundles, crls })
}

/// The bundles of the workload's own trust domains, and then of others. One of a trust domain that
/// is there already adds nothing: nobody else speaks for a workload's own domain.
fn bundles(
    svids: &[Svid<'_>],
    federated: &[(&[u8], &[u8])],
) -> Result<Vec<(TrustDomain, Vec<CertificateDer<'static>>)>, MessageFault> {
    let mut bundles = BTreeMap::new();
    for svid in svids {
        let id: SpiffeId = parse(svid.id)?;
        let bundle = certificates(svid.bundle)?;
        if bundle.is_empty() {
            return Err(MessageFault::Missing("bundle"));
        }
        bundles.entry(id.trust_domain()).or_insert(bundle);
    }
    for (domain, bundle) in federated {
        let bundle = certificates(bundle)?;
        // "interpret the absence of data as a redaction" (section 4.4).
        if !bundle.is_empty() {
            bundles.entry(parse(domain)?).or_insert(bundle);
        }
    }
    Ok(bundles.into_iter().collect())
}

impl<'a> Svid<'a> {
    fn read(message: &'a [u8]) -> Result<Self, MessageFault> {
        let (mut svid, mut fields) = (Self::default(), ProtobufFields::new(message));
        while let Some((field, value)) = fields.next()? {
            let part = match field {
                1 => &mut svid.id,
                2 => &mut svid.chain,
                3 => &mut svid.key,
                4 => &mut svid.bundle,
                // The hint, and fields of later versions.
                _ => continue,
            };
            let ProtobufValue::Bytes(bytes) = value else {
                return Err(MessageFault::WrongType(field));
            };
            // The last one counts (Protocol Buffers, "last one wins").
            *part = bytes;
        }
        Ok(svid)
    }
}

/// An entry of a map: a message with the key and the value.
fn map_entry(message: &[u8]) -> Result<(&[u8], &[u8]), MessageFault> {
    let (mut entry, mut fields) = ((&[][..], &[][..]), ProtobufFields::new(message));
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (1, ProtobufValue::Bytes(key)) => entry.0 = key,
            (2, ProtobufValue::Bytes(value)) => entry.1 = value,
            (1 | 2, ProtobufValue::Other) => return Err(MessageFault::WrongType(field)),
            _ => {}
        }
    }
    Ok(entry)
}

fn parse<T: FromStr<Err = eyelet_pki::spiffe::id::SpiffeIdFault>>(
    text: &[u8],
) -> Result<T, MessageFault> {
    let clipped = || String::from_utf8_lossy(&text[..text.len().min(64)]).into_owned();
    let read = std::str::from_utf8(text).map_err(|_| MessageFault::NotText(clipped()))?;
    read.parse().map_err(|fault| MessageFault::Id(clipped(), fault))
}

/// Cuts concatenated certificates in DER apart.
fn certificates(mut bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, MessageFault> {
    let mut certificates = Vec::new();
    while !bytes.is_empty() {
        let len = der_len(bytes).ok_or(MessageFault::Der)?;
        let (certificate, rest) = bytes.split_at_checked(len).ok_or(MessageFault::Der)?;
        if certificates.len() == CERTIFICATES_MAX {
            return Err(MessageFault::TooMany);
        }
        certificates.push(CertificateDer::from(certificate.to_vec()));
        bytes = rest;
    }
    Ok(certificates)
}

/// The length of a SEQUENCE with its header (X.690 section 8.1.3). Certificates have less than 16
/// MiB.
fn der_len(bytes: &[u8]) -> Option<usize> {
    let (body, head) = match *bytes {
        [0x30, short, ..] if short < 0x80 => (usize::from(short), 2),
        [0x30, 0x81, a, ..] if a >= 0x80 => (usize::from(a), 3),
        [0x30, 0x82, a, b, ..] if a > 0 => (usize::from(a) << 8 | usize::from(b), 4),
        [0x30, 0x83, a, b, c, ..] if a > 0 => {
            (usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c), 5)
        }
        _ => return None,
    };
    Some(head + body)
}

impl From<ProtobufFault> for MessageFault {
    fn from(fault: ProtobufFault) -> Self {
        Self::Protobuf(fault)
    }
}

#[cfg(test)]
mod tests;
