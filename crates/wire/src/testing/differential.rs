//! Compares our reading of a hello with that of rustls' `Acceptor`, for the same bytes.
//! `docs/conformance.md` lists where the two may differ; [`may_be_stricter`] is that list as code.

use super::properties::LIMIT;
use super::{Spec, ext, message, record, records, sni, vec16};
use crate::hello::{Fault, HelloReader, Peek, Sni, SniFault};
use rustls::server::Acceptor;
use rustls::{Error, PeerIncompatible};
use std::string::String;
use std::vec::Vec;

/// The reading of the bytes by rustls.
#[derive(Debug, PartialEq)]
pub enum Theirs {
    NeedMore,
    /// Its buffer is full before the hello is complete.
    Full,
    Refused(Error),
    Accepted(Option<String>),
}

pub fn theirs(raw: &[u8]) -> Theirs {
    let mut acceptor = Acceptor::default();
    let mut unread = raw;
    loop {
        match acceptor.read_tls(&mut unread) {
            Ok(0) => return Theirs::NeedMore,
            Ok(_) => {}
            Err(_) => return Theirs::Full,
        }
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                return Theirs::Accepted(accepted.client_hello().server_name().map(Into::into));
            }
            Err((error, _)) => return Theirs::Refused(error),
        }
    }
}

/// Extensions that rustls decodes in every hello, but that other servers ignore: `ticket_request`
/// (RFC 9149) and `ech_outer_extensions` (RFC 9849 5.1, for inner hellos only).
const ONLY_DECODED_BY_RUSTLS: [u16; 2] = [58, 0xfd00];

/// Panics unless we see the name that rustls sees, or are stricter where that is documented. We
/// must also refuse what rustls cannot decode, except for [`ONLY_DECODED_BY_RUSTLS`].
pub fn same_name_as_rustls(raw: &[u8]) {
    let mut reader = HelloReader::new(LIMIT);
    let ours = reader.feed(raw);
    let theirs = theirs(raw);
    let agree = match (&ours, &theirs) {
        // Bytes that rustls does not buffer prove nothing.
        (_, Theirs::Full) => true,
        // The one that decides earlier has seen no hello: neither has a name.
        (Peek::NeedMore { .. }, Theirs::NeedMore | Theirs::Refused(_)) => true,
        (Peek::NotTls(_), Theirs::NeedMore | Theirs::Refused(_)) => true,
        (Peek::Malformed(_), Theirs::NeedMore | Theirs::Refused(_)) => true,
        (Peek::Malformed(malformed), Theirs::Accepted(_)) => may_be_stricter(malformed.why),
        (Peek::Hello(hello), Theirs::Refused(Error::InvalidMessage(_)))
            if hello.extensions().any(|kind| ONLY_DECODED_BY_RUSTLS.contains(&kind)) =>
        {
            true
        }
        (Peek::Hello(hello), theirs) => names_agree(hello.sni(), theirs),
        (_, Theirs::Accepted(_)) => false,
    };
    assert!(agree, "we say {ours:?}, rustls says {theirs:?}");
}

fn names_agree(ours: &Sni, theirs: &Theirs) -> bool {
    match (ours, theirs) {
        (Sni::Name(ours), Theirs::Accepted(Some(theirs))) => *ours == *theirs,
        (Sni::Absent, Theirs::Accepted(None)) => true,
        (Sni::Malformed(fault), Theirs::Accepted(name)) => match fault {
            SniFault::TrailingDot => name.as_ref().is_some_and(|name| !name.ends_with('.')),
            SniFault::IpLiteral => name.is_none(),
            SniFault::NameType(_) => true,
            _ => false,
        },
        (Sni::Malformed(_), Theirs::Refused(_)) => true,
        // It decodes the hello but has no parameters in common. Another stack may.
        (_, Theirs::Refused(Error::PeerIncompatible(why))) => matches!(
            why,
            PeerIncompatible::NullCompressionRequired
                | PeerIncompatible::SignatureAlgorithmsExtensionRequired
        ),
        _ => false,
    }
}

/// Faults for which we refuse what rustls accepts; `docs/conformance.md` says why.
const fn may_be_stricter(why: Fault) -> bool {
    matches!(why, Fault::RecordOverflow { .. } | Fault::BinderTooShort)
}

/// A hello from fuzzed bytes. The first byte chooses which part they are, so that a fuzzer need not
/// find out all the lengths around it.
pub fn hello_from(data: &[u8]) -> Vec<u8> {
    let Some((kind, data)) = data.split_first() else { return Vec::new() };
    let data = &data[..data.len().min(1 << 13)];
    let spec = match kind % 6 {
        0 => return data.to_vec(),
        1 => return record(message(1, data)),
        2 => return records(&message(1, data), &[usize::from(*kind)]),
        3 => Spec::with(&[data.to_vec()]),
        4 => Spec::with(&[ext(0, vec16(data))]),
        _ => Spec::with(&[sni(data)]),
    };
    spec.raw()
}
