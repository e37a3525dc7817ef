//! One ticket key: its period, and what is derived from its secret.

use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use rustls_pki_types::UnixTime;
use zeroize::Zeroizing;

/// Bytes of a key's secret, from which all else is derived.
pub const SECRET_BYTES: usize = 32;
/// Bytes of a key's name, as in RFC 5077 section 4.
pub(super) const NAME_BYTES: usize = 16;
/// Bytes of an AES-GCM-SIV tag (RFC 8452).
const TAG_BYTES: usize = 16;
/// Bytes before the sealed session.
const HEAD_BYTES: usize = NAME_BYTES + NONCE_LEN;
/// Bytes of an exported key: start, period, origin, secret.
pub(super) const EXPORTED_BYTES: usize = 8 + 4 + 1 + SECRET_BYTES;
/// The form of what is sealed: rustls' own encoding of a session. A ticket of another form does not
/// open. `session.rs` notices when rustls changes its encoding; then this gets another number.
const SESSION_FORM: u8 = 1;

/// The origin of a key. Of two keys for one period, the one from the current source seals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This process made it.
    Own,
    /// It is in the store of the fleet.
    Fleet,
}

/// The time by both clocks: the wall clock says which key seals, and may jump.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Seconds since 1970.
    pub unix_secs: u64,
    /// The clock that only moves ahead.
    pub steady: Instant,
}

impl Now {
    /// The time now.
    pub fn read() -> Self {
        Self { unix_secs: UnixTime::now().as_secs(), steady: Instant::now() }
    }
}

/// A key. It seals from `start` for `period_secs`, and opens for one period more.
pub(super) struct Key {
    pub(super) name: [u8; NAME_BYTES],
    /// Seconds since 1970.
    pub(super) start: u64,
    pub(super) period_secs: u32,
    pub(super) origin: Origin,
    secret: Zeroizing<[u8; SECRET_BYTES]>,
    /// AES-GCM-SIV, because the nonces are random: a repeated one reveals only whether two sessions
    /// are equal. The library wipes it.
    aead: RandomizedNonceKey,
    /// The time at which it is out of date by the steady clock.
    steady_end: Instant,
}

impl Key {
    pub(super) fn new(
        start: u64,
        period_secs: u32,
        origin: Origin,
        secret: &[u8; SECRET_BYTES],
        now: Now,
    ) -> Result<Self, Unspecified> {
        let mut name = [0; NAME_BYTES];
        derive(secret, b"eyelet ticket key name", &mut name)?;
        let mut sealing = Zeroizing::new([0; SECRET_BYTES]);
        derive(secret, b"eyelet ticket AES-256-GCM-SIV", &mut *sealing)?;
        let aead = RandomizedNonceKey::new(&AES_256_GCM_SIV, &*sealing)?;
        let secret = Zeroizing::new(*secret);
        let left = end(start, period_secs).saturating_sub(now.unix_secs);
        let left = Duration::from_secs(left.min(3 * u64::from(period_secs)));
        let steady_end = now.steady.checked_add(left).unwrap_or(now.steady);
        Ok(Self { name, start, period_secs, origin, secret, aead, steady_end })
    }

    /// True if it is the key of this source for the period that begins at `start`.
    pub(super) fn is_for(&self, start: u64, period_secs: u32, origin: Origin) -> bool {
        (self.start, self.period_secs, self.origin) == (start, period_secs, origin)
    }

    pub(super) fn secret(&self) -> Zeroizing<[u8; SECRET_BYTES]> {
        self.secret.clone()
    }

    /// It has sealed until now: it opens for one period more.
    pub(super) fn note_sealed(&mut self, now: Now) {
        let end = now.steady.checked_add(Duration::from_secs(self.period_secs.into()));
        self.steady_end = end.map_or(self.steady_end, |end| end.max(self.steady_end));
    }

    /// True if no ticket that it sealed is good any more. Both clocks must agree: a wall clock that
    /// jumps ahead and back again costs no ticket. A key of a period that is not even the next one
    /// was made during such a jump.
    pub(super) fn is_out_of_date(&self, now: Now) -> bool {
        let is_past = end(self.start, self.period_secs) <= now.unix_secs;
        let is_far = self.start > now.unix_secs.saturating_add(self.period_secs.into());
        self.steady_end <= now.steady && (is_past || is_far)
    }

    /// Name, nonce, sealed session, tag.
    pub(super) fn seal(&self, group: &[u8], session: &[u8]) -> Option<Vec<u8>> {
        let mut ticket = Vec::with_capacity(HEAD_BYTES + session.len() + TAG_BYTES);
        ticket.extend_from_slice(&self.name);
        ticket.extend_from_slice(&[0; NONCE_LEN]);
        ticket.extend_from_slice(session);
        let sealed = ticket.get_mut(HEAD_BYTES..)?;
        let (nonce, tag) = self.aead.seal_in_place_separate_tag(aad(group), sealed).ok()?;
        ticket.get_mut(NAME_BYTES..HEAD_BYTES)?.copy_from_slice(nonce.as_ref());
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    /// The session in a ticket that begins with this key's name.
    pub(super) fn open(&self, group: &[u8], ticket: &[u8]) -> Option<Vec<u8>> {
        let nonce = ticket.get(NAME_BYTES..HEAD_BYTES)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = ticket.get(HEAD_BYTES..)?.to_vec();
        let len = self.aead.open_in_place(nonce, aad(group), &mut sealed).ok()?.len();
        sealed.truncate(len);
        Some(sealed)
    }

    pub(super) fn export(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.start.to_be_bytes());
        bytes.extend_from_slice(&self.period_secs.to_be_bytes());
        bytes.push(match self.origin {
            Origin::Own => 0,
            Origin::Fleet => 1,
        });
        bytes.extend_from_slice(&*self.secret);
    }

    /// `None` if no exporter writes this.
    pub(super) fn import(bytes: &[u8; EXPORTED_BYTES], now: Now) -> Option<Self> {
        let (start, rest) = bytes.split_first_chunk()?;
        let (period_secs, rest) = rest.split_first_chunk()?;
        let (origin, secret) = rest.split_first()?;
        let origin = match origin {
            0 => Origin::Own,
            1 => Origin::Fleet,
            _ => return None,
        };
        let period_secs = Some(u32::from_be_bytes(*period_secs)).filter(|secs| *secs > 0)?;
        let start = u64::from_be_bytes(*start);
        Self::new(start, period_secs, origin, secret.try_into().ok()?, now).ok()
    }
}

/// Returns the time at which the last ticket of a key is out of date.
fn end(start: u64, period_secs: u32) -> u64 {
    start.saturating_add(2 * u64::from(period_secs))
}

fn aad(group: &[u8]) -> Aad<Vec<u8>> {
    let mut bytes = Vec::with_capacity(1 + group.len());
    bytes.push(SESSION_FORM);
    bytes.extend_from_slice(group);
    Aad::from(bytes)
}

/// HKDF-SHA-256 (RFC 5869) of a secret for one purpose.
fn derive(
    secret: &[u8; SECRET_BYTES],
    purpose: &[u8],
    derived: &mut [u8],
) -> Result<(), Unspecified> {
    struct Len(usize);
    impl KeyType for Len {
        fn len(&self) -> usize {
            self.0
        }
    }
    let prk = Salt::new(HKDF_SHA256, &[]).extract(secret);
    prk.expand(&[purpose], Len(derived.len()))?.fill(derived)
}
