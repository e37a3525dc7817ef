//! The keys that seal session tickets (RFC 5077, RFC 8446 section 4.6.1). A ticket holds the whole
//! session, so the server stores none. A key seals for one period and opens for one more. Time is
//! an argument: a thread of the program calls [`TicketKeys::advance`]. Handshakes only read.
//!
//! All rules, processes and edges can share the keys. A ticket is bound to its group (the
//! certificates and the `client_ca` of its rule) as additional data: under another group it does
//! not open. This costs no key derivation, and no memory for each of 50,000 groups.

mod key;
mod session;

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use aws_lc_rs::error::Unspecified;
use eyelet_config::RuleList;
use parking_lot::RwLock;
use zeroize::Zeroizing;

use key::{EXPORTED_BYTES, Key, NAME_BYTES};
pub use key::{Now, Origin, SECRET_BYTES};
pub use session::client_certificates;

/// Upper bound of the keys: the previous, the current and the next one; those of another lifetime
/// before a reload; those from before this process joined a fleet; and those that a jump of the
/// clock set aside.
const KEYS_MAX: usize = 12;
/// First byte of exported keys. A reader refuses other versions.
const EXPORT_VERSION: u8 = 1;

/// The ring of ticket keys: one for the whole process, over all reloads.
pub struct TicketKeys {
    ring: RwLock<Ring>,
    lifetime_secs: AtomicU32,
    /// True if the keys come from the store of a fleet.
    is_shared: AtomicBool,
}

#[derive(Default)]
struct Ring {
    keys: Vec<Key>,
    /// The key that seals: an index into `keys`, unless that is empty.
    sealing: usize,
}

/// The reason why exported keys cannot be taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TicketKeysError {
    /// Another version of Eyelet wrote them.
    #[error("ticket keys of version {0}, expected {EXPORT_VERSION}")]
    Version(u8),
    /// They are cut, too long, or hold a value that no exporter writes.
    #[error("malformed ticket keys")]
    Malformed,
}

impl TicketKeys {
    /// An empty ring. Until [`TicketKeys::advance`] and [`TicketKeys::insert`] no ticket is sealed.
    pub fn new(lifetime: Duration) -> Self {
        let keys = Self {
            ring: RwLock::default(),
            lifetime_secs: AtomicU32::new(0),
            is_shared: AtomicBool::new(false),
        };
        keys.configure(lifetime, Origin::Own);
        keys
    }

    /// Sets how long a key seals, which is also how long a ticket is good for, and where keys come
    /// from. Keys of other lifetimes and sources still open.
    pub fn configure(&self, lifetime: Duration, origin: Origin) {
        let secs = u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX).max(1);
        self.lifetime_secs.store(secs, Relaxed);
        self.is_shared.store(origin == Origin::Fleet, Relaxed);
    }

    /// Seconds for which a ticket is good at least.
    pub fn lifetime_secs(&self) -> u32 {
        self.lifetime_secs.load(Relaxed)
    }

    /// Returns the origin of the keys.
    pub fn origin(&self) -> Origin {
        if self.is_shared.load(Relaxed) { Origin::Fleet } else { Origin::Own }
    }

    /// True if there is a key of this source for the period that begins at `start`.
    pub fn has(&self, start: u64, origin: Origin) -> bool {
        let period = self.lifetime_secs();
        self.ring.read().keys.iter().any(|key| key.is_for(start, period, origin))
    }

    /// The secret of the key that [`TicketKeys::has`] asks for.
    pub fn secret(&self, start: u64, origin: Origin) -> Option<Zeroizing<[u8; SECRET_BYTES]>> {
        let period = self.lifetime_secs();
        let ring = self.ring.read();
        ring.keys.iter().find(|key| key.is_for(start, period, origin)).map(|key| key.secret())
    }

    /// True if any key of this source is held, whatever its period.
    pub fn has_any(&self, origin: Origin) -> bool {
        self.ring.read().keys.iter().any(|key| key.origin == origin)
    }

    /// Returns the time at which the current period began. Periods are counted from 1970, so that
    /// all edges of a fleet change their key at the same time.
    pub fn period_start(&self, now: Now) -> u64 {
        now.unix_secs - now.unix_secs % u64::from(self.lifetime_secs())
    }

    /// A new secret for [`TicketKeys::insert`].
    ///
    /// # Errors
    /// If there is no randomness.
    pub fn random_secret() -> Result<Zeroizing<[u8; SECRET_BYTES]>, Unspecified> {
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        aws_lc_rs::rand::fill(&mut *secret)?;
        Ok(secret)
    }

    /// Takes in the key of the period that begins at `start`.
    ///
    /// # Errors
    /// If the library fails.
    pub fn insert(
        &self,
        start: u64,
        origin: Origin,
        secret: &[u8; SECRET_BYTES],
        now: Now,
    ) -> Result<(), Unspecified> {
        let key = Key::new(start, self.lifetime_secs(), origin, secret, now)?;
        let mut ring = self.ring.write();
        ring.insert(key);
        ring.advance(self.lifetime_secs(), self.origin(), now);
        Ok(())
    }

    /// Chooses the key that seals now, and wipes those that are out of date.
    pub fn advance(&self, now: Now) {
        self.ring.write().advance(self.lifetime_secs(), self.origin(), now);
    }

    /// The keys of the fleet count as own ones, until they come from the store again: this is
    /// another fleet.
    pub fn leave_fleet(&self) {
        self.ring.write().keys.iter_mut().for_each(|key| key.origin = Origin::Own);
    }

    /// Wipes all keys: no ticket is sealed or opened any more.
    pub fn clear(&self) {
        *self.ring.write() = Ring::default();
    }

    /// Seals a session for the clients of a group. `None`: no key, or the library fails.
    pub fn seal(&self, group: &[u8], session: &[u8]) -> Option<Vec<u8>> {
        let ring = self.ring.read();
        ring.keys.get(ring.sealing)?.seal(group, session)
    }

    /// Opens a ticket. `None`: it is tampered with, of another group, or its key is gone.
    pub fn open(&self, group: &[u8], ticket: &[u8]) -> Option<Vec<u8>> {
        let name = ticket.get(..NAME_BYTES)?;
        let ring = self.ring.read();
        // A name is no secret: it is in the clear in each ticket.
        ring.keys.iter().find(|key| key.name == name)?.open(group, ticket)
    }

    /// All keys, for the next process on this machine: they are secret.
    pub fn export(&self) -> Zeroizing<Vec<u8>> {
        let ring = self.ring.read();
        // Allocated once, so that no copy is left behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(1 + ring.keys.len() * EXPORTED_BYTES));
        bytes.push(EXPORT_VERSION);
        ring.keys.iter().for_each(|key| key.export(&mut bytes));
        bytes
    }

    /// Takes in the keys that another process exported, beside those that are here: as keys of this
    /// process, until the store of a fleet has them too.
    ///
    /// # Errors
    /// [`TicketKeysError`]. Nothing has changed then.
    pub fn import(&self, bytes: &[u8], now: Now) -> Result<(), TicketKeysError> {
        let keys = parse(bytes, now)?;
        let mut ring = self.ring.write();
        for mut key in keys {
            // The other process may have been in another fleet. The store of this one says which
            // keys are the fleet's.
            key.origin = Origin::Own;
            if ring.keys.iter().all(|known| known.name != key.name) {
                ring.keys.push(key);
            }
        }
        ring.advance(self.lifetime_secs(), self.origin(), now);
        Ok(())
    }
}

impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKeys")
    }
}

impl Ring {
    fn insert(&mut self, key: Key) {
        // A fleet has one key a period. A store that lost its data may hold another one now: that
        // one seals, and the key of before only opens.
        for known in self.keys.iter_mut().filter(|_| key.origin == Origin::Fleet) {
            if known.is_for(key.start, key.period_secs, Origin::Fleet) {
                known.origin = Origin::Own;
            }
        }
        match self.keys.iter_mut().find(|known| known.name == key.name) {
            Some(known) => known.origin = key.origin,
            None => self.keys.push(key),
        }
    }

    fn advance(&mut self, period_secs: u32, origin: Origin, now: Now) {
        let best = |key: &&Key| {
            let has_begun = key.start <= now.unix_secs;
            // If no key has begun, the clock went back: the one that begins first.
            let start = if has_begun { key.start } else { u64::MAX - key.start };
            (has_begun, key.period_secs == period_secs, key.origin == origin, start)
        };
        let Some(name) = self.keys.iter().max_by_key(best).map(|key| key.name) else { return };
        // It may have sealed beyond its period, while the store of a fleet was down.
        if let Some(sealed) = self.keys.get_mut(self.sealing) {
            sealed.note_sealed(now);
        }
        self.keys.retain(|key| key.name == name || !key.is_out_of_date(now));
        while self.keys.len() > KEYS_MAX {
            let others = self.keys.iter().enumerate().filter(|(_, key)| key.name != name);
            let furthest = others.max_by_key(|(_, key)| key.start.abs_diff(now.unix_secs));
            let Some((at, _)) = furthest else { break };
            self.keys.swap_remove(at);
        }
        self.sealing = self.keys.iter().position(|key| key.name == name).unwrap_or(0);
    }
}

fn parse(bytes: &[u8], now: Now) -> Result<Vec<Key>, TicketKeysError> {
    let (version, rest) = bytes.split_first().ok_or(TicketKeysError::Malformed)?;
    if *version != EXPORT_VERSION {
        return Err(TicketKeysError::Version(*version));
    }
    let (keys, []) = rest.as_chunks::<EXPORTED_BYTES>() else {
        return Err(TicketKeysError::Malformed);
    };
    if keys.len() > KEYS_MAX {
        return Err(TicketKeysError::Malformed);
    }
    keys.iter().map(|key| Key::import(key, now).ok_or(TicketKeysError::Malformed)).collect()
}

/// Names a configured source of certificates, by its path as it is written in the configuration:
/// not by its contents, so that a renewal keeps tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceId([u8; 16]);

impl SourceId {
    /// Stands for "no client certificate".
    pub const NONE: Self = Self([0; 16]);

    /// The source with this name. 16 bytes of the digest suffice: the operator writes the names.
    pub fn new(name: &[u8]) -> Self {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, name);
        let mut id = Self::NONE;
        id.0.iter_mut().zip(digest.as_ref()).for_each(|(to, from)| *to = *from);
        id
    }

    /// A file of a configuration: its path as it is written there.
    pub fn of(rules: &RuleList, path: &Path) -> Self {
        Self::new(rules.as_written(path).as_os_str().as_encoded_bytes())
    }

    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

#[cfg(test)]
mod tests;
