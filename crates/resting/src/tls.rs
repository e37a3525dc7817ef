//! TLS to the upstream of an exchange at rest, in the form of the exchange: the record layer's own
//! export, without what most have in common.

use std::borrow::Cow;
use std::sync::Arc;

use eyelet_record::{EXPORT_BYTES, Role, Session};
use eyelet_telemetry::upstream_tls::UpstreamTlsInfo;
use eyelet_upstream::socket::tls::RestingTls;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// An exported session.
pub type Exported = Zeroizing<[u8; EXPORT_BYTES]>;

/// Bytes of an exported session before its sequence numbers, of such a number, and of a secret.
const STATE_BYTES: usize = 15;
const NUMBER_BYTES: usize = 8;
const SECRET_BYTES: usize = (EXPORT_BYTES - STATE_BYTES) / 2 - NUMBER_BYTES;
/// Most bytes of a name: those of IANA's registries and of ALPN are shorter.
const NAME_BYTES_MAX: usize = 64;

/// Names by their places, which never change.
const NAMES: [&str; 16] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "X25519",
    "X25519MLKEM768",
    "secp256r1",
    "secp256r1MLKEM768",
    "secp384r1",
    "h2",
    "http/1.1",
];

/// A session, and what was agreed on.
#[derive(Deserialize, Serialize)]
pub struct TlsV1<'a> {
    /// Its state, and both secrets, each without the zeros at its end.
    state: &'a [u8],
    receives: &'a [u8],
    sends: &'a [u8],
    /// The sequence numbers of the next records.
    received: u64,
    sent: u64,
    #[serde(borrow)]
    agreed: Option<AgreedV1<'a>>,
}

/// [`UpstreamTlsInfo`].
#[derive(Deserialize, Serialize)]
pub struct AgreedV1<'a> {
    version: u16,
    #[serde(borrow)]
    cipher_suite: NameV1<'a>,
    group: Option<NameV1<'a>>,
    alpn: Option<NameV1<'a>>,
    resumed: bool,
}

/// A name.
#[derive(Clone, Copy, Deserialize, Serialize)]
enum NameV1<'a> {
    Known(u8),
    Other(&'a str),
}

/// The place of an exported session. It is filled where it stays: a move would leave a copy that is
/// not wiped.
pub fn no_export() -> Exported {
    Zeroizing::new([0; EXPORT_BYTES])
}

impl<'a> TlsV1<'a> {
    /// The form of a connection, which is exported here.
    pub fn of(tls: &'a RestingTls, exported: &'a mut Exported) -> Self {
        tls.session.export(exported);
        let (state, rest) = exported.split_at(STATE_BYTES);
        let (receives, sends) = rest.split_at(NUMBER_BYTES + SECRET_BYTES);
        let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let (received, receives) = receives.split_at(NUMBER_BYTES);
        let (sent, sends) = sends.split_at(NUMBER_BYTES);
        Self {
            state: without_zeros(state),
            receives: without_zeros(receives),
            sends: without_zeros(sends),
            received: number(received),
            sent: number(sent),
            agreed: tls.info.as_deref().map(AgreedV1::of),
        }
    }

    /// The connection. `None`: no connection rests so.
    pub fn tls(&self) -> Option<RestingTls> {
        let mut exported = no_export();
        let (state, rest) = exported.split_at_mut(STATE_BYTES);
        let (receives, sends) = rest.split_at_mut(NUMBER_BYTES + SECRET_BYTES);
        fill(state, self.state)?;
        for (into, number, secret) in
            [(receives, self.received, self.receives), (sends, self.sent, self.sends)]
        {
            let (first, behind) = into.split_at_mut(NUMBER_BYTES);
            first.copy_from_slice(&number.to_be_bytes());
            fill(behind, secret)?;
        }
        let session = Session::boxed_import(&exported[..]).ok()?;
        if session.role() != Role::Client {
            return None;
        }
        let info = match &self.agreed {
            Some(agreed) => Some(Arc::new(agreed.info()?)),
            None => None,
        };
        Some(RestingTls { session, info })
    }
}

fn without_zeros(bytes: &[u8]) -> &[u8] {
    let len = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &bytes[..len]
}

/// Fills the beginning of zeros. `None`: there is another form of it.
fn fill(zeros: &mut [u8], bytes: &[u8]) -> Option<()> {
    let is_short = without_zeros(bytes).len() == bytes.len();
    zeros.get_mut(..bytes.len()).filter(|_| is_short)?.copy_from_slice(bytes);
    Some(())
}

impl<'a> AgreedV1<'a> {
    /// Its form.
    pub fn of(info: &'a UpstreamTlsInfo) -> Self {
        Self {
            version: info.version,
            cipher_suite: NameV1::of(&info.cipher_suite),
            group: info.group.as_deref().map(NameV1::of),
            alpn: info.alpn.as_deref().map(NameV1::of),
            resumed: info.resumed,
        }
    }

    /// The value. `None`: nobody agrees on that.
    pub fn info(&self) -> Option<UpstreamTlsInfo> {
        let group = self.group.map(NameV1::name);
        let alpn = self.alpn.map(NameV1::name);
        if group == Some(None) || alpn == Some(None) {
            return None;
        }
        Some(UpstreamTlsInfo {
            version: self.version,
            cipher_suite: self.cipher_suite.name()?,
            group: group.flatten(),
            alpn: alpn.flatten().map(|name| name.into()),
            resumed: self.resumed,
        })
    }
}

impl<'a> NameV1<'a> {
    fn of(name: &'a str) -> Self {
        let place = NAMES.iter().position(|known| *known == name);
        let place = place.and_then(|place| u8::try_from(place).ok());
        place.map_or(Self::Other(name), Self::Known)
    }

    fn name(self) -> Option<Cow<'static, str>> {
        match self {
            Self::Known(place) => NAMES.get(usize::from(place)).map(|name| Cow::Borrowed(*name)),
            Self::Other(name) if name.len() <= NAME_BYTES_MAX && !NAMES.contains(&name) => {
                Some(Cow::Owned(name.to_owned()))
            }
            Self::Other(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use eyelet_record::{Suite, alert};

    fn info(cipher_suite: &'static str) -> UpstreamTlsInfo {
        UpstreamTlsInfo {
            version: 0x0304,
            cipher_suite: cipher_suite.into(),
            group: Some("X25519MLKEM768".into()),
            alpn: Some("http/1.1".into()),
            resumed: true,
        }
    }

    fn tls(suite: Suite, secret_len: usize) -> RestingTls {
        let (ours, theirs) = (vec![0x11; secret_len], vec![0x22; secret_len]);
        let session = Session::tls13(Role::Client, suite, &ours, &theirs, 300, 7).unwrap();
        let info = info("TLS_AES_256_GCM_SHA384");
        RestingTls { session: Box::new(session), info: Some(Arc::new(info)) }
    }

    fn bytes(form: &TlsV1<'_>) -> Vec<u8> {
        let mut out = vec![0; postcard::experimental::serialized_size(form).unwrap()];
        postcard::to_slice(form, &mut out).unwrap();
        out
    }

    fn packed(tls: &RestingTls) -> Vec<u8> {
        let mut exported = no_export();
        bytes(&TlsV1::of(tls, &mut exported))
    }

    fn unpacked(form: &[u8]) -> Option<RestingTls> {
        let (form, behind): (TlsV1<'_>, _) = postcard::take_from_bytes(form).ok()?;
        behind.is_empty().then(|| form.tls()).flatten()
    }

    /// Bytes of TLS beside what an exchange at rest takes without it.
    #[test]
    fn the_form_is_small_and_the_same_behind_it() {
        for (suite, secret_len, bytes) in [(Suite::Aes128Gcm, 32, 85), (Suite::Aes256Gcm, 48, 117)]
        {
            let form = packed(&tls(suite, secret_len));
            assert_eq!(form.len(), bytes, "{suite:?}");
            let again = unpacked(&form).unwrap();
            assert_eq!(packed(&again), form);
            assert_eq!(again.info.as_deref(), Some(&info("TLS_AES_256_GCM_SHA384")));
            for len in 0..form.len() {
                assert!(unpacked(&form[..len]).is_none(), "{len}");
            }
        }
        let mut of12 = tls(Suite::Aes128Gcm, 32);
        let (key, iv) = ([3; 16], [4; 12]);
        let session = Session::tls12(Role::Client, Suite::Aes128Gcm, &key, &iv, &key, &iv, 1, 1);
        *of12.session = session.unwrap();
        of12.info = Some(Arc::new(info("TLS_OF_ANOTHER_RELEASE")));
        let again = unpacked(&packed(&of12)).unwrap();
        assert_eq!((again.info, packed(&of12)), (of12.info.clone(), packed(&of12)));
    }

    /// Neither a server's session, nor another form of the same value.
    #[test]
    fn what_no_connection_has_is_not_read() {
        let (ours, theirs) = ([1; 32], [2; 32]);
        let suite = Suite::Aes128Gcm;
        let server = Session::tls13(Role::Server, suite, &ours, &theirs, 0, 0).unwrap();
        let server = RestingTls { session: Box::new(server), info: None };
        assert!(unpacked(&packed(&server)).is_none());
        let mut ended = tls(suite, 32);
        ended.session.alert(&mut eyelet_record::Keys::new(), alert::CLOSE_NOTIFY);
        // Whether that fits is for its exchange to say.
        assert!(unpacked(&packed(&ended)).is_some());
        let one = tls(suite, 32);
        let form = |change: fn(&mut TlsV1<'_>)| {
            let mut exported = no_export();
            let mut form = TlsV1::of(&one, &mut exported);
            change(&mut form);
            unpacked(&bytes(&form))
        };
        assert!(form(|_| ()).is_some());
        assert!(form(|form| form.state = &[1, 3, 2, 0]).is_none(), "a zero at its end");
        assert!(form(|form| form.receives = &[1; SECRET_BYTES + 1]).is_none());
        assert!(form(|form| form.sends = &[1; SECRET_BYTES]).is_none(), "unused bytes");
        let names = [NameV1::Known(NAMES.len() as u8), NameV1::Other("X25519")];
        for name in names {
            assert!(name.name().is_none());
        }
        assert!(NameV1::Other(&"a".repeat(NAME_BYTES_MAX + 1)).name().is_none());
    }

    #[test]
    fn nothing_secret_is_shown() {
        let shown = format!("{:?}", tls(Suite::Aes128Gcm, 32));
        assert!(!shown.contains("17, 17") && !shown.contains("34, 34"), "{shown}");
    }
}
