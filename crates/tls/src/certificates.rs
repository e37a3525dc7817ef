//! The certificates of terminate rules. All are in memory, so that no handshake reads a file. A key
//! is stored as it is in its file. The form that signs is larger: it is made at first use, and may
//! be dropped.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use parking_lot::Mutex;

use eyelet_config::{CertificateFiles, Config, RuleList};
use eyelet_local_ca::{LocalCaError, MintAuthority};
use eyelet_pki::certificate::{self, CertificateError, Description, Pair};
use eyelet_sys::file::Stamp;
use rustls::SignatureAlgorithm;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use crate::compression::{ChainCoding, CompressedChain};
use crate::threads::in_threads;
use crate::tickets::SourceId;

/// Up to so many sets of certificates, one that cannot be used is an error at the start. Of more,
/// a broken set harms its own names only: thousands of others must not stay down for it.
const STRICT_MAX: usize = 64;

/// Bytes of a key in the form that signs, in Rust and in C. Measured at 860 bytes for P-256.
const KEY_BYTES: usize = 1 << 10;
/// The memory of an RSA key, per byte of its public half. Measured at 6.4 KiB for 2048 bits; most
/// of it the library keeps after the first signature, to make later ones fast.
const RSA_KEY_FACTOR: usize = 24;
/// The part of `memory_max` that such keys may take. Beyond it, those that were not used lately are
/// dropped. Making one again takes less time than the signature of an RSA key.
const KEYS_PART: usize = 32;

/// [`Certificate::expiry`] before somebody asks: no time of X.509 is so early.
const NOT_ASKED: i64 = i64::MIN;

/// The certificates of all rules.
pub struct CertificateStore {
    /// By the number of the set.
    slots: Box<[Mutex<Slot>]>,
    shared: Arc<Shared>,
    /// The position of the search for an unused key (the clock algorithm).
    hand: AtomicUsize,
}

/// The state that all configurations of the process share.
struct Shared {
    /// The certificates above the leaves. Thousands of leaves share one, larger than they are.
    issuers: Mutex<HashSet<Issuers>>,
    /// Bytes of keys in the form that signs and of compressed chains, and their limit. The key that
    /// was made last does not count against it.
    key_bytes: AtomicUsize,
    key_bytes_max: usize,
}

/// Makes certificates that come from no file of the configuration.
pub struct CertificateMaker(Arc<Shared>);

struct Slot {
    /// The set, or why none could be read so far.
    set: Result<Arc<Certificates>, Arc<str>>,
    /// The last reading failed, so the next look reads again.
    is_broken: bool,
}

/// The certificates of one rule. The first that the client can verify is used.
pub type Certificates = [Certificate];

/// The files of a certificate, and what it says, or why it cannot be used.
pub type Described = (CertificateFiles, Result<Description, Arc<str>>);

/// A certificate and its key, in a small form: rustls' own form holds a copy of the issuers for
/// each leaf.
pub struct Certificate {
    leaf: Box<[u8]>,
    issuers: Issuers,
    /// The key as in the file, in DER.
    key: Zeroizing<Box<[u8]>>,
    signing: Mutex<Option<Arc<dyn SigningKey>>>,
    /// Its chain for clients that take it compressed. Dropped with the key.
    compressed: Mutex<Option<Box<CompressedChain>>>,
    /// The certificate as an authority, where a rule mints by it.
    authority: OnceLock<Box<MintAuthority>>,
    /// Used since the hand last passed it.
    used: AtomicBool,
    /// The time at which it expires, in seconds since 1970, or [`NOT_ASKED`].
    not_after: AtomicI64,
    /// The versions of its two files.
    stamps: [Stamp; 2],
    /// The path of the certificate, for the group of tickets.
    source: SourceId,
    shared: Arc<Shared>,
}

/// The certificates from the leaf's issuer upwards. Empty if the file has only the leaf.
type Issuers = Arc<[CertificateDer<'static>]>;

impl CertificateStore {
    /// Reads the certificates of all rules. Those of `earlier` whose files have not changed are
    /// used on.
    pub fn new(
        config: &Config,
        earlier: Option<(&Self, &RuleList)>,
    ) -> Result<Self, CertificateError> {
        let rules = &config.rules;
        let shared = earlier.map_or_else(|| Arc::new(Shared::new(config)), |e| e.0.shared.clone());
        let known = Known::new(earlier);
        let sets = rules.certificates_len();
        let read = |number: usize| {
            let files: Vec<_> = rules.certificates(number as u32).collect();
            let known = known.set(&files);
            let is_first = earlier.is_none();
            match shared.read(rules, &files, known.as_ref(), is_first) {
                Ok(set) => {
                    if sets <= STRICT_MAX {
                        // Made here, these few leave no holes in the workers' heaps.
                        set.iter().for_each(|certificate| drop(certificate.signing_key()));
                    }
                    Ok(Slot { set: Ok(set), is_broken: false })
                }
                Err(error) if sets <= STRICT_MAX => Err(error),
                Err(error) => {
                    tracing::error!("{error}");
                    // Where the files were good once, that stays.
                    Ok(Slot { set: known.ok_or_else(|| error.to_string().into()), is_broken: true })
                }
            }
        };
        let slots = in_threads(sets, &read)?.into_iter().map(Mutex::new).collect();
        let store = Self { slots, shared, hand: AtomicUsize::new(0) };
        if let Some((earlier, _)) = earlier {
            earlier.drop_keys_without(&store);
        }
        Ok(store)
    }

    /// The certificates of a set, with their keys ready to sign, or why there are none.
    pub fn of(&self, set: u32) -> Result<Arc<Certificates>, Arc<str>> {
        let held = self.slots[set as usize].lock().set.clone()?;
        for certificate in &*held {
            certificate.used.store(true, Relaxed);
            certificate.signing_key();
        }
        while self.shared.is_full() && self.drop_one(set as usize) {}
        Ok(held)
    }

    /// Reads again what has changed, or could not be read. `note` gets the files of each set that
    /// was read: whether it was replaced, or why it was not. A set replaces another one only if it
    /// passes `check`, with its number and the files of its first pair.
    pub fn refresh(
        &self,
        rules: &RuleList,
        check: impl Fn(u32, &Certificates, &CertificateFiles) -> Result<(), CertificateError>,
        mut note: impl FnMut(&CertificateFiles, Result<bool, CertificateError>),
    ) {
        for (number, slot) in (0..).zip(&self.slots) {
            let (known, is_broken) = {
                let slot = slot.lock();
                (slot.set.as_ref().ok().cloned(), slot.is_broken)
            };
            let files: Vec<_> = rules.certificates(number).collect();
            let Some(first) = files.first() else { continue };
            if !is_broken && known.as_ref().is_some_and(|known| is_current(known, &files)) {
                continue;
            }
            // Read without the lock, which handshakes take.
            let read = self.shared.read(rules, &files, known.as_ref(), true);
            let read = read.and_then(|set| check(number, &set, first).map(|()| set));
            let mut slot = slot.lock();
            slot.is_broken = read.is_err();
            let result = read.map(|set| {
                let is_same = known.is_some_and(|known| holds_same(&known, &set));
                slot.set = Ok(set);
                !is_same
            });
            drop(slot);
            note(first, result);
        }
    }

    /// Describes what is served now of a set, with the files of each, or why there is nothing.
    pub fn describe_set(&self, rules: &RuleList, number: u32) -> Vec<Described> {
        let Some(slot) = self.slots.get(number as usize) else { return Vec::new() };
        let held = slot.lock().set.clone();
        let described = |(index, files)| {
            let found = held.as_ref().map_err(Arc::clone).and_then(|set| {
                let found = set.get(index).and_then(Certificate::describe);
                found.ok_or_else(|| "it cannot be read".into())
            });
            (files, found)
        };
        rules.certificates(number).enumerate().map(described).collect()
    }

    /// Returns the time at which each certificate of a set expires, as [`Certificate::expiry`]
    /// says.
    pub fn expiries(&self, rules: &RuleList, number: u32) -> Vec<Option<i64>> {
        let Some(slot) = self.slots.get(number as usize) else { return Vec::new() };
        match slot.lock().set.clone() {
            Ok(set) => set.iter().map(Certificate::expiry).collect(),
            Err(_) => rules.certificates(number).map(|_| None).collect(),
        }
    }

    /// Describes a certificate if its files have not changed since they were read.
    pub fn describe(&self, place: PairPlace, files: &CertificateFiles) -> Option<Description> {
        let set = self.slots.get(place.set as usize)?.lock().set.clone().ok()?;
        let certificate = set.get(place.index)?;
        let is_current = certificate.is_current(files);
        if is_current { certificate.describe() } else { None }
    }

    /// Drops the signing form of the keys that a newer store does not have. Only this store could
    /// drop them for others, and it shows hardly any certificate from now on.
    fn drop_keys_without(&self, newer: &Self) {
        let sets = |store: &Self| -> Vec<Arc<Certificates>> {
            store.slots.iter().filter_map(|slot| slot.lock().set.as_ref().ok().cloned()).collect()
        };
        let kept: HashSet<_> = sets(newer).iter().map(Arc::as_ptr).collect();
        for set in sets(self).iter().filter(|set| !kept.contains(&Arc::as_ptr(set))) {
            set.iter().for_each(|certificate| _ = certificate.drop_key());
        }
    }

    /// Drops the signing form of the next set's keys, from the hand on, that was not used since the
    /// hand last passed it. `false` if there is none.
    fn drop_one(&self, keep: usize) -> bool {
        for _ in 0..2 * self.slots.len() {
            let at = self.hand.fetch_add(1, Relaxed) % self.slots.len();
            let Ok(set) = self.slots[at].lock().set.clone() else { continue };
            let dropped = set.iter().filter(|certificate| {
                at != keep && !certificate.used.swap(false, Relaxed) && certificate.drop_key()
            });
            if dropped.count() > 0 {
                return true;
            }
        }
        false
    }
}

impl CertificateMaker {
    /// Its certificates share the copies of their issuers.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        // The caller bounds how many there are, so no key is dropped for another.
        let (key_bytes, key_bytes_max) = (AtomicUsize::new(0), usize::MAX);
        Self(Arc::new(Shared { issuers: Mutex::default(), key_bytes, key_bytes_max }))
    }

    /// The only certificate of a set. Tickets are good for certificates with the same `source`.
    pub fn make(&self, pair: Pair, source: SourceId) -> Arc<Certificates> {
        [self.0.certificate(pair, source)].into()
    }

    /// Makes them with a key in the form that signs, which many certificates share.
    pub(crate) fn make_shared(&self, pair: Pair, source: SourceId) -> Arc<Certificates> {
        let signing = pair.certified.key.clone();
        let certificate = self.0.certificate(pair, source);
        self.0.key_bytes.fetch_add(bytes(&*signing), Relaxed);
        *certificate.signing.lock() = Some(signing);
        [certificate].into()
    }
}

impl Shared {
    fn new(config: &Config) -> Self {
        let key_bytes_max = config.limits.memory_max / KEYS_PART;
        Self { issuers: Mutex::default(), key_bytes: AtomicUsize::new(0), key_bytes_max }
    }

    fn is_full(&self) -> bool {
        self.key_bytes.load(Relaxed) > self.key_bytes_max
    }

    /// Reads a set. One that is `known` and has not changed is the same. With `warns`, dates that
    /// are wrong or soon will be are logged.
    fn read(
        self: &Arc<Self>,
        rules: &RuleList,
        files: &[CertificateFiles],
        known: Option<&Arc<Certificates>>,
        warns: bool,
    ) -> Result<Arc<Certificates>, CertificateError> {
        if let Some(known) = known.filter(|known| is_current(known, files)) {
            return Ok(known.clone());
        }
        let read = files.iter().map(|files| {
            let pair = certificate::load(files)?;
            let certificate = self.certificate(pair, SourceId::of(rules, &files.certificate));
            let is_known = known.is_some_and(|known| known.iter().any(|k| k.is_same(&certificate)));
            if warns && !is_known {
                warn_of_dates(files, &certificate.leaf);
            }
            Ok(certificate)
        });
        Ok(read.collect::<Result<Vec<_>, CertificateError>>()?.into())
    }

    fn certificate(self: &Arc<Self>, pair: Pair, source: SourceId) -> Certificate {
        let mut chain = pair.certified.cert.into_iter();
        // A chain has at least its leaf.
        let leaf = chain.next().map_or_else(Vec::new, |leaf| leaf.to_vec());
        Certificate {
            leaf: leaf.into(),
            issuers: self.issuers(chain.collect()),
            key: Zeroizing::new(pair.key.secret_der().into()),
            signing: Mutex::new(None),
            compressed: Mutex::new(None),
            authority: OnceLock::new(),
            used: AtomicBool::new(false),
            not_after: AtomicI64::new(NOT_ASKED),
            stamps: pair.stamps,
            source,
            shared: self.clone(),
        }
    }

    /// The shared copy of these issuers.
    fn issuers(&self, read: Issuers) -> Issuers {
        let mut known = self.issuers.lock();
        if let Some(known) = known.get(&read) {
            return known.clone();
        }
        if known.len() == known.capacity() {
            // Before the set grows, issuers without leaves are removed.
            known.retain(|issuers| Arc::strong_count(issuers) > 1);
        }
        known.insert(read.clone());
        read
    }
}

impl Certificate {
    /// Its names and dates. `None`: they cannot be read.
    pub fn describe(&self) -> Option<Description> {
        certificate::describe(&CertificateDer::from(&*self.leaf))
    }

    /// Returns the time at which it expires, in seconds since 1970. It is parsed for the first who
    /// asks: of thousands this takes seconds. `None`: it cannot be read.
    pub fn expiry(&self) -> Option<i64> {
        let known = self.not_after.load(Relaxed);
        if known != NOT_ASKED {
            return Some(known);
        }
        let found = self.describe()?.not_after;
        self.not_after.store(found, Relaxed);
        Some(found)
    }

    /// The key in the form that signs. It was read once, so it can be made again.
    pub fn signing_key(&self) -> Option<Arc<dyn SigningKey>> {
        let mut signing = self.signing.lock();
        if let Some(known) = &*signing {
            return Some(known.clone());
        }
        let key = PrivateKeyDer::try_from(&**self.key).ok()?;
        let made = certificate::signing_key(&key)?;
        self.shared.key_bytes.fetch_add(bytes(&*made), Relaxed);
        *signing = Some(made.clone());
        Some(made)
    }

    /// In rustls' form, for one handshake: a copy of some kilobytes.
    pub fn certified(&self) -> Option<Arc<CertifiedKey>> {
        let mut chain = Vec::with_capacity(1 + self.issuers.len());
        chain.push(CertificateDer::from(self.leaf.to_vec()));
        chain.extend(self.issuers.iter().cloned());
        Some(Arc::new(CertifiedKey::new(chain, self.signing_key()?)))
    }

    /// The handshake's message with its chain, compressed once. `None`: that saves too little.
    pub(crate) fn compressed(&self, coding: ChainCoding, message: &[u8]) -> Option<Vec<u8>> {
        let length = message.len();
        if let Some(known) = &*self.compressed.lock()
            && let Some(known) = known.get(coding, length)
        {
            return known.map(<[u8]>::to_vec);
        }
        // Without the lock: it takes as long as several handshakes.
        let made = coding.code(message);
        let coded = made.as_deref().map(<[u8]>::to_vec);
        let mut compressed = self.compressed.lock();
        let more = compressed.get_or_insert_default().put(coding, length, made);
        // With the lock: who drops them subtracts these bytes.
        self.shared.key_bytes.fetch_add(more, Relaxed);
        coded
    }

    /// Its chain in DER, the leaf first.
    pub(crate) fn chain(&self) -> impl Iterator<Item = CertificateDer<'_>> {
        let leaf = CertificateDer::from(&*self.leaf);
        [leaf].into_iter().chain(self.issuers.iter().map(|issuer| CertificateDer::from(&**issuer)))
    }

    pub(crate) fn key(&self) -> Option<PrivateKeyDer<'_>> {
        PrivateKeyDer::try_from(&**self.key).ok()
    }

    /// The authority that it is, parsed at first use.
    pub(crate) fn authority(&self) -> Result<&MintAuthority, LocalCaError> {
        if let Some(known) = self.authority.get() {
            return Ok(known);
        }
        let no_key = || LocalCaError::Library("the authority has no key".into());
        let key = self.key().ok_or_else(no_key)?;
        let made = MintAuthority::new(&CertificateDer::from(&*self.leaf), &key)?;
        Ok(self.authority.get_or_init(|| Box::new(made)))
    }

    /// Stands for its path in tickets.
    pub(crate) fn source(&self) -> SourceId {
        self.source
    }

    /// Drops the forms that are made at first use.
    fn drop_key(&self) -> bool {
        let compressed = self.compressed.lock().take().map_or(0, |compressed| compressed.bytes());
        self.shared.key_bytes.fetch_sub(compressed, Relaxed);
        let dropped = self.signing.lock().take();
        dropped.as_deref().map(|key| self.shared.key_bytes.fetch_sub(bytes(key), Relaxed)).is_some()
    }

    fn is_current(&self, files: &CertificateFiles) -> bool {
        let [of_certificate, of_key] = self.stamps;
        Stamp::at(&files.certificate).is_same(of_certificate)
            && Stamp::at(&files.key).is_same(of_key)
    }

    fn is_same(&self, other: &Self) -> bool {
        self.leaf == other.leaf && self.issuers == other.issuers && *self.key == *other.key
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        self.drop_key();
    }
}

/// A certificate of a configuration: its set, and its index there.
#[derive(Clone, Copy)]
pub struct PairPlace {
    set: u32,
    index: usize,
}

/// The certificates of a configuration by a digest of their files' names.
pub struct PairPlaces {
    hasher: RandomState,
    places: HashMap<u64, PairPlace>,
}

impl PairPlaces {
    /// Those of `rules`.
    pub fn new(rules: &RuleList) -> Self {
        let (hasher, mut places) = (RandomState::new(), HashMap::new());
        for set in 0..rules.certificates_len() as u32 {
            for (index, files) in rules.certificates(set).enumerate() {
                places.insert(hasher.hash_one(&files), PairPlace { set, index });
            }
        }
        Self { hasher, places }
    }

    /// The place of these files, if the same rules have them.
    pub fn of(&self, rules: &RuleList, files: &CertificateFiles) -> Option<PairPlace> {
        let place = *self.places.get(&self.hasher.hash_one(files))?;
        (rules.certificates(place.set).nth(place.index)? == *files).then_some(place)
    }
}

/// Sets of an earlier configuration, by a digest of their files' names.
struct Known<'a> {
    earlier: Option<(&'a CertificateStore, &'a RuleList)>,
    hasher: RandomState,
    sets: HashMap<u64, u32>,
}

impl<'a> Known<'a> {
    fn new(earlier: Option<(&'a CertificateStore, &'a RuleList)>) -> Self {
        let (hasher, mut sets) = (RandomState::new(), HashMap::new());
        for number in 0..earlier.map_or(0, |(_, rules)| rules.certificates_len() as u32) {
            let Some((_, rules)) = earlier else { break };
            let files: Vec<_> = rules.certificates(number).collect();
            if let Entry::Vacant(vacant) = sets.entry(hasher.hash_one(&files)) {
                vacant.insert(number);
            }
        }
        Self { earlier, hasher, sets }
    }

    fn set(&self, files: &[CertificateFiles]) -> Option<Arc<Certificates>> {
        let (store, rules) = self.earlier?;
        let number = *self.sets.get(&self.hasher.hash_one(files))?;
        if !rules.certificates(number).eq(files.iter().cloned()) {
            return None;
        }
        store.slots.get(number as usize)?.lock().set.clone().ok()
    }
}

fn is_current(set: &Certificates, files: &[CertificateFiles]) -> bool {
    set.iter().zip(files).all(|(certificate, files)| certificate.is_current(files))
}

fn holds_same(one: &Certificates, other: &Certificates) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.is_same(other))
}

fn warn_of_dates(files: &CertificateFiles, leaf: &[u8]) {
    let description = certificate::describe(&CertificateDer::from(leaf));
    let fault = description.and_then(|description| description.dates_fault(SystemTime::now()));
    if let Some(fault) = fault {
        tracing::warn!("the certificate in {} {fault}", files.certificate.display());
    }
}

/// Returns the bytes that a key in the form that signs counts.
fn bytes(key: &dyn SigningKey) -> usize {
    match (key.algorithm(), key.public_key()) {
        (SignatureAlgorithm::RSA, Some(public)) => public.len() * RSA_KEY_FACTOR,
        _ => KEY_BYTES,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use eyelet_config::{Depth, load};

    /// A configuration of as many rules, n0.test and so on, with certificates of their own.
    fn config(name: &str, rules: usize) -> (PathBuf, Config) {
        let folder = std::env::temp_dir().join(format!("eyelet-tls-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let mut text = String::from("[[listener]]\naddress = \"127.0.0.1:0\"\n");
        for n in 0..rules {
            issue(&folder, n);
            text += &format!(
                "[[rule]]\nsni = \"n{n}.test\"\naction = \"terminate\"\nupstream = \"tcp://a:1\"\n\
                 certificate = \"{n}.pem\"\nkey = \"{n}.key\"\n"
            );
        }
        fs::write(folder.join("edge.toml"), text).unwrap();
        let config = load(&folder.join("edge.toml"), Depth::Files).unwrap().config;
        (folder, config)
    }

    fn issue(folder: &std::path::Path, n: usize) {
        let made = rcgen::generate_simple_self_signed([format!("n{n}.test")]).unwrap();
        fs::write(folder.join(format!("{n}.pem")), made.cert.pem()).unwrap();
        fs::write(folder.join(format!("{n}.key")), made.signing_key.serialize_pem()).unwrap();
    }

    fn refreshed(store: &CertificateStore, config: &Config) -> Vec<String> {
        let mut notes = Vec::new();
        let sound = |_: u32, _: &Certificates, _: &CertificateFiles| Ok(());
        store.refresh(&config.rules, sound, |files, result| {
            let file = files.certificate.file_name().unwrap().to_str().unwrap();
            notes.push(match result {
                Ok(is_replaced) => format!("{file} {is_replaced}"),
                Err(error) => error.to_string(),
            });
        });
        notes
    }

    #[test]
    fn keys_that_were_not_used_lately_go_first_and_come_again() {
        let (folder, mut config) = config("keys", 4);
        // Room for three.
        config.limits.memory_max = KEYS_PART * 3 * KEY_BYTES;
        let store = CertificateStore::new(&config, None).unwrap();
        let ready = || -> Vec<bool> {
            let sets = store.slots.iter().map(|slot| slot.lock().set.clone().unwrap());
            sets.map(|set| set[0].signing.lock().is_some()).collect()
        };
        let show = |set| drop(store.of(set).unwrap());
        (0..3).for_each(show);
        assert_eq!(ready(), [true, true, true, false]);
        // All were used since the hand passed them: the first goes, and all marks are cleared.
        show(3);
        assert_eq!(ready(), [false, true, true, true]);
        // The second was used since then, the third was not.
        show(1);
        show(0);
        assert_eq!(ready(), [true, true, false, true]);
        assert_eq!(store.shared.key_bytes.load(Relaxed), 3 * KEY_BYTES);
        // The files are gone, and each certificate is still shown.
        fs::remove_dir_all(&folder).unwrap();
        (0..4).for_each(show);
        let next = store.shared.clone();
        drop(store);
        assert_eq!(next.key_bytes.load(Relaxed), 0);
    }

    /// A connection may hold an old configuration for hours.
    #[test]
    fn keys_of_an_earlier_store_leave_their_room_to_the_newer_one() {
        let (folder, mut config) = config("earlier", 4);
        // Room for three.
        config.limits.memory_max = KEYS_PART * 3 * KEY_BYTES;
        let old = CertificateStore::new(&config, None).unwrap();
        let ready = |store: &CertificateStore| {
            let sets = store.slots.iter().map(|slot| slot.lock().set.clone().unwrap());
            sets.filter(|set| set[0].signing.lock().is_some()).count()
        };
        let show = |store: &CertificateStore| (0..4).for_each(|set| drop(store.of(set).unwrap()));
        show(&old);
        assert_eq!(ready(&old), 3);
        (0..4).for_each(|n| issue(&folder, n));
        let new = CertificateStore::new(&config, Some((&old, &config.rules))).unwrap();
        assert_eq!(ready(&old), 0);
        show(&new);
        assert_eq!(ready(&new), 3);
        assert_eq!(new.shared.key_bytes.load(Relaxed), 3 * KEY_BYTES);
        // A handshake that began before the reload.
        old.of(1).unwrap();
        drop(old);
        show(&new);
        assert_eq!((ready(&new), new.shared.key_bytes.load(Relaxed)), (3, 3 * KEY_BYTES));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_pair_is_replaced_whole_or_not_at_all() {
        let (folder, config) = config("pair", 2);
        let store = CertificateStore::new(&config, None).unwrap();
        let leaf = |set| store.of(set).unwrap()[0].leaf.clone();
        let before = (leaf(0), leaf(1));
        // Parsed, and then remembered.
        let end = store.of(0).unwrap()[0].describe().map(|one| one.not_after);
        assert_eq!([0, 0].map(|set| store.expiries(&config.rules, set)), [[end], [end]]);
        // The files are new, so they are read again.
        assert_eq!(refreshed(&store, &config), ["0.pem false", "1.pem false"]);
        let keys = [0, 1].map(|n| fs::read(folder.join(format!("{n}.key"))).unwrap());
        issue(&folder, 0);
        let new_key = fs::read(folder.join("0.key")).unwrap();
        fs::write(folder.join("0.key"), &keys[0]).unwrap();
        let notes = refreshed(&store, &config);
        assert!(notes[0].contains("does not fit the certificate"), "{notes:?}");
        fs::remove_file(folder.join("1.pem")).unwrap();
        let notes = refreshed(&store, &config);
        assert!(notes[1].contains("1.pem: No such file"), "{notes:?}");
        assert_eq!((leaf(0), leaf(1)), before);
        fs::write(folder.join("0.key"), new_key).unwrap();
        assert_eq!(refreshed(&store, &config)[0], "0.pem true");
        assert_ne!(leaf(0), before.0);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn of_many_sets_a_broken_one_harms_no_other_and_is_mended() {
        let (folder, config) = config("many", STRICT_MAX + 1);
        let whole = fs::read(folder.join("7.pem")).unwrap();
        fs::write(folder.join("7.pem"), "cut").unwrap();
        let store = CertificateStore::new(&config, None).unwrap();
        let Err(error) = store.of(7) else { panic!("it has no certificate") };
        assert!(error.to_string().contains("7.pem has no certificate"), "{error}");
        assert_eq!(store.expiries(&config.rules, 7), [None]);
        assert!((0..=STRICT_MAX as u32).all(|set| set == 7 || store.of(set).is_ok()));
        fs::write(folder.join("7.pem"), whole).unwrap();
        assert!(refreshed(&store, &config).contains(&"7.pem true".to_owned()));
        store.of(7).unwrap();
        // The next configuration uses what was read, as long as its files are the same.
        let next = CertificateStore::new(&config, Some((&store, &config.rules))).unwrap();
        assert!(Arc::ptr_eq(&next.shared, &store.shared));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_few_sets_must_all_be_good() {
        let (folder, config) = config("few", 2);
        fs::write(folder.join("1.key"), "").unwrap();
        assert!(CertificateStore::new(&config, None).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
