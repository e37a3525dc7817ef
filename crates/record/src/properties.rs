//! Feeds a session arbitrary records, from its peer and from a stranger without keys. Asserts: no
//! panic, no forgery accepted, no genuine record taken for a forgery, and progress in every call.
//! A fuzz target and a property test call [`arbitrary_records`].

// A broken property is a finding of the test or the fuzz target that asked for it.
#![allow(clippy::panic)]

use ring::{aead, hkdf};

use crate::{
    CONTROL_BYTES_MAX, HEADER_BYTES, Incoming, Keys, Opened, PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX,
    RecordFault, Role, Session, Suite, Version,
};

const SUITES: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
/// A little above the limit, so that it is sometimes exceeded.
const CONTENT_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + 300;
/// Bytes of a KeyUpdate, the only handshake message that a TLS 1.3 server may receive.
const KEY_UPDATE_BYTES: usize = 5;

/// The peer. It seals any content with keys that it shares with the session.
struct Peer {
    suite: Suite,
    version: Version,
    /// TLS 1.3's traffic secret of the current generation.
    secret: Vec<u8>,
    key: aead::LessSafeKey,
    iv: [u8; 12],
    seq: u64,
    /// Bytes of a KeyUpdate that were sent.
    key_update_sent: usize,
}

/// Plays a script. The first byte chooses version and suite. Each step then has a sender (0: the
/// stranger), a content type, a length (2 bytes), and so many bytes.
pub fn arbitrary_records(input: &[u8]) {
    let Some((&choice, mut script)) = input.split_first() else { return };
    let suite = SUITES[usize::from(choice) % 3];
    let version = if choice < 128 { Version::Tls12 } else { Version::Tls13 };
    let Some((mut session, mut peer)) = connect(suite, version) else { return };
    while let Some((&[who, content_type, hi, lo], rest)) = script.split_first_chunk() {
        let len = usize::from(u16::from_be_bytes([hi, lo])).min(rest.len()).min(CONTENT_BYTES_MAX);
        let (content, rest) = rest.split_at(len);
        script = rest;
        let over = match who % 4 {
            0 => stranger(&mut session, content),
            padding => {
                let record = peer.seal(content_type, content, usize::from(padding) - 1);
                record.is_none_or(|record| genuine(&mut session, record, content))
            }
        };
        if over {
            break;
        }
    }
}

fn connect(suite: Suite, version: Version) -> Option<(Session, Peer)> {
    let algorithm = algorithm(suite);
    let (secret_len, hash) = match suite {
        Suite::Aes256Gcm => (48, hkdf::HKDF_SHA384),
        _ => (32, hkdf::HKDF_SHA256),
    };
    let secret = vec![1; secret_len];
    let (ours, iv) = ([3; 48], [2; 12]);
    let (key, iv) = match version {
        Version::Tls12 => (vec![4; algorithm.key_len()], iv),
        Version::Tls13 => traffic_key(hash, &secret, algorithm.key_len())?,
    };
    let session = match version {
        Version::Tls12 => {
            let tx_key = &ours[..key.len()];
            Session::tls12(Role::Server, suite, &key, &iv, tx_key, &iv, 0, 0)
        }
        Version::Tls13 => Session::tls13(Role::Server, suite, &secret, &ours[..secret_len], 0, 0),
    };
    let key = aead::LessSafeKey::new(aead::UnboundKey::new(algorithm, &key).ok()?);
    let peer = Peer { suite, version, secret, key, iv, seq: 0, key_update_sent: 0 };
    Some((session.ok()?, peer))
}

fn algorithm(suite: Suite) -> &'static aead::Algorithm {
    match suite {
        Suite::Aes128Gcm => &aead::AES_128_GCM,
        Suite::Aes256Gcm => &aead::AES_256_GCM,
        Suite::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
    }
}

struct Len(usize);

impl hkdf::KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label of RFC 8446 section 7.1, written separately from the session's.
fn expand(hash: hkdf::Algorithm, secret: &[u8], label: &str, len: usize) -> Option<Vec<u8>> {
    let label = format!("tls13 {label}");
    let mut out = vec![0; len];
    hkdf::Prk::new_less_safe(hash, secret)
        .expand(&[&[0, len as u8, label.len() as u8], label.as_bytes(), &[0]], Len(len))
        .and_then(|okm| okm.fill(&mut out))
        .ok()?;
    Some(out)
}

fn traffic_key(
    hash: hkdf::Algorithm,
    secret: &[u8],
    key_len: usize,
) -> Option<(Vec<u8>, [u8; 12])> {
    let iv = expand(hash, secret, "iv", 12)?;
    Some((expand(hash, secret, "key", key_len)?, iv.try_into().ok()?))
}

/// Bytes without a key must be a fault, or no complete record. Returns whether the session has
/// ended.
fn stranger(session: &mut Session, bytes: &[u8]) -> bool {
    let was_closed = session.read_closed();
    let mut input = bytes.to_vec();
    match session.open(&mut Keys::new(), &mut input) {
        Ok(Opened::NeedMore { at_least }) => {
            assert!(at_least > input.len() && at_least <= RECORD_BYTES_MAX);
            false
        }
        Ok(Opened::Record { consumed, what }) => {
            assert!(was_closed, "a forgery was accepted: {what:?}");
            assert_eq!((consumed, what), (input.len(), Incoming::Nothing));
            false
        }
        Err(_) => {
            the_end(session);
            true
        }
    }
}

/// A record with the peer's key. Returns whether the session has ended.
fn genuine(session: &mut Session, mut record: Vec<u8>, content: &[u8]) -> bool {
    let was_closed = session.read_closed();
    for len in [0, 1, HEADER_BYTES - 1, HEADER_BYTES, record.len() - 1] {
        match session.open(&mut Keys::new(), &mut record[..len].to_vec()) {
            Ok(Opened::NeedMore { at_least }) => assert!(at_least > len),
            Ok(Opened::Record { .. }) => assert!(was_closed),
            Err(_) => {
                the_end(session);
                return true;
            }
        }
    }
    match session.open(&mut Keys::new(), &mut record) {
        Ok(Opened::NeedMore { .. }) => panic!("a whole record needs more"),
        Ok(Opened::Record { consumed, what }) => {
            assert_eq!(consumed, record.len());
            match what {
                Incoming::Data(data) => assert_eq!(&record[data], content),
                Incoming::Reply => {
                    let mut out = [0; CONTROL_BYTES_MAX];
                    let sealed = session.seal_control(&mut Keys::new(), &mut out);
                    assert!(sealed.is_ok_and(|len| len > 0) && !session.control_due());
                }
                Incoming::CloseNotify => assert!(!was_closed && session.read_closed()),
                Incoming::PeerAlert(_) => assert!(session.write_closed()),
                Incoming::Nothing => {}
            }
            session.write_closed()
        }
        Err(fault) => {
            assert_ne!(fault, RecordFault::BadRecordMac, "a genuine record was called a forgery");
            the_end(session);
            true
        }
    }
}

/// After a fault no record is opened, and at most one alert is sealed.
fn the_end(session: &mut Session) {
    let (mut keys, mut out) = (Keys::new(), [0; CONTROL_BYTES_MAX]);
    assert_eq!(session.open(&mut keys, &mut [0; 64]), Err(RecordFault::Closed));
    assert!(!session.control_due());
    assert!(session.seal_alert(&mut keys, 80, &mut out).is_ok());
    assert_eq!(session.seal_alert(&mut keys, 80, &mut out), Ok(0));
}

impl Peer {
    fn seal(&mut self, content_type: u8, content: &[u8], padding: usize) -> Option<Vec<u8>> {
        let mut sealed = content.to_vec();
        let mut nonce = self.iv;
        for (byte, seq) in nonce[4..].iter_mut().zip(self.seq.to_be_bytes()) {
            *byte ^= seq;
        }
        let mut explicit: &[u8] = &[];
        let sent = nonce;
        let (outer_type, aad) = match self.version {
            Version::Tls13 => {
                // Type 0 is padding, so the content must not end with a type of its own.
                if content_type == 0 {
                    sealed.fill(0);
                }
                sealed.push(content_type);
                sealed.resize(sealed.len() + padding, 0);
                let [hi, lo] = (sealed.len() as u16 + 16).to_be_bytes();
                (APPLICATION_DATA, vec![APPLICATION_DATA, 3, 3, hi, lo])
            }
            Version::Tls12 => {
                if self.suite != Suite::ChaCha20Poly1305 {
                    explicit = &sent[4..];
                }
                let [hi, lo] = (sealed.len() as u16).to_be_bytes();
                let aad = [&self.seq.to_be_bytes()[..], &[content_type, 3, 3, hi, lo]].concat();
                (content_type, aad)
            }
        };
        let nonce = aead::Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(nonce, aead::Aad::from(aad), &mut sealed).ok()?;
        self.seq += 1;
        if self.version == Version::Tls13 && content_type == HANDSHAKE {
            self.update_key(content.len())?;
        }
        let [hi, lo] = ((explicit.len() + sealed.len()) as u16).to_be_bytes();
        Some([&[outer_type, 3, 3, hi, lo][..], explicit, &sealed].concat())
    }

    /// Switches to the next key after the last byte of a KeyUpdate. Anything else is a fault in the
    /// session, which ends before the key matters.
    fn update_key(&mut self, sent: usize) -> Option<()> {
        self.key_update_sent += sent;
        if self.key_update_sent < KEY_UPDATE_BYTES {
            return Some(());
        }
        let hash = match self.suite {
            Suite::Aes256Gcm => hkdf::HKDF_SHA384,
            _ => hkdf::HKDF_SHA256,
        };
        let algorithm = algorithm(self.suite);
        self.secret = expand(hash, &self.secret, "traffic upd", self.secret.len())?;
        let (key, iv) = traffic_key(hash, &self.secret, algorithm.key_len())?;
        self.key = aead::LessSafeKey::new(aead::UnboundKey::new(algorithm, &key).ok()?);
        (self.iv, self.seq, self.key_update_sent) = (iv, 0, 0);
        Some(())
    }
}
