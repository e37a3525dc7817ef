//! The format of a file of the dictionary store: its name and its bytes.

use std::io;

use bytes::Bytes;
use eyelet_compress::Coding;
use eyelet_compress::dictionary::learned::{Learned, LearnedOrigin, NewDictionary};
use eyelet_compress::dictionary::pattern::Pattern;
use eyelet_compress::dictionary::store::{
    Delta, Family, SIGHTINGS_MAX, Sighting, Step, StoredVersion,
};
use eyelet_compress::dictionary::use_as::UseAs;
use eyelet_compress::dictionary::{DICTIONARY_BYTES_MAX, Hash, header};
use serde::{Deserialize, Serialize};

use super::hash::hash;

/// Most bytes of a file: the largest dictionary and the rest of the file.
pub(crate) const FILE_BYTES_MAX: u64 =
    (DICTIONARY_BYTES_MAX + HEAD_BYTES_MAX + MAGIC.len() + LENGTH_BYTES + SUM_BYTES) as u64;
/// Most bytes of a head: a path as long as a request may have, with each byte escaped. Parsing JSON
/// takes up to 16 times its length for a moment.
const HEAD_BYTES_MAX: usize = 64 << 10;
const MAGIC: &[u8] = b"EYELETD1";
/// Bytes of the head's length, a little-endian `u32`.
const LENGTH_BYTES: usize = 4;
/// Bytes of SHA-256.
const SUM_BYTES: usize = 32;
/// Versions are numbered as they are seen. No store comes this far, and a store that begins here
/// can still count: `seen + 1` does not overflow.
pub(crate) const SEEN_MAX: u64 = 1 << 48;

/// The head of a file, before its content.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Head {
    Version {
        /// The newest sighting.
        #[serde(flatten)]
        sighting: SightingHead,
        /// The others. Earlier versions of Eyelet wrote none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        more: Vec<SightingHead>,
    },
    Delta {
        level: u8,
        to: Box<str>,
    },
    Trained {
        rule: Box<str>,
        pattern: Box<str>,
    },
    Learned {
        rule: Box<str>,
        origin: Box<str>,
        pattern: Box<str>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        destinations: Vec<Box<str>>,
        #[serde(default, skip_serializing_if = "str::is_empty")]
        id: Box<str>,
        /// Seconds since 1970.
        fresh_until: u64,
        /// The hash of the content, by which requests name it.
        hash: Box<str>,
    },
}

/// A sighting of a version.
#[derive(Debug, Serialize, Deserialize)]
struct SightingHead {
    rule: Box<str>,
    origin: Box<str>,
    pattern: Box<str>,
    #[serde(default, skip_serializing_if = "is_false")]
    file: bool,
    path: Box<str>,
    seen: u64,
}

impl SightingHead {
    fn new(sighting: &Sighting) -> Self {
        let Sighting { family, path, seen } = sighting;
        Self {
            rule: family.rule.clone(),
            origin: family.origin.clone(),
            pattern: family.pattern.as_str().into(),
            file: family.is_file,
            path: path.clone(),
            seen: *seen,
        }
    }

    fn read(self) -> Option<Sighting> {
        let Self { rule, origin, pattern, file: is_file, path, seen } = self;
        let family = Family { rule, origin, pattern: Pattern::new(&pattern).ok()?, is_file };
        (seen <= SEEN_MAX).then_some(Sighting { family, path, seen })
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// A file that the store has written, read again at the start.
#[derive(Debug)]
pub(crate) enum Found {
    Version(StoredVersion),
    Delta(Step, Delta),
    Learned(NewDictionary),
}

/// A trained dictionary.
#[derive(Debug)]
pub(crate) struct TrainedFile {
    pub(crate) rule: Box<str>,
    pub(crate) pattern: Pattern,
    pub(crate) content: Bytes,
}

pub(crate) fn version_name(hash: Hash) -> String {
    format!("{hash}.version")
}

pub(crate) fn delta_name(step: Step) -> String {
    format!("{}-{}.{}", step.from, step.to, step.coding.name())
}

/// A dictionary that this edge has learned as a client.
pub(crate) fn learned_name(file: Hash) -> String {
    format!("{file}.learned")
}

/// Returns the name of such a file: the next response with the same pattern takes its place.
pub(crate) fn learned_file(origin: &LearnedOrigin, use_as: &UseAs) -> Hash {
    let (rule, host) = origin;
    let texts = [&**rule, &**host, use_as.pattern.as_str()].into_iter();
    let mut all = Vec::new();
    for text in texts.chain(use_as.destinations.iter().map(|one| &**one)) {
        // With its length, so that no two lists of texts are the same bytes.
        all.extend_from_slice(&(text.len() as u64).to_le_bytes());
        all.extend_from_slice(text.as_bytes());
    }
    hash(&all)
}

pub(crate) fn trained_name(content: &[u8]) -> String {
    format!("{}.trained", hash(content))
}

pub(crate) fn encode_version(version: &StoredVersion) -> io::Result<Vec<u8>> {
    let mut sightings = version.sightings.iter().rev().map(SightingHead::new);
    let sighting =
        sightings.next().ok_or_else(|| io::Error::other("a version without a sighting"))?;
    let head = Head::Version { sighting, more: sightings.collect() };
    encode(&head, &version.body)
}

pub(crate) fn encode_delta(step: Step, delta: &Delta) -> io::Result<Vec<u8>> {
    encode(&Head::Delta { level: delta.level, to: step.to.to_string().into() }, &delta.coded)
}

pub(crate) fn encode_trained(rule: &str, pattern: &Pattern, content: &[u8]) -> io::Result<Vec<u8>> {
    encode(&Head::Trained { rule: rule.into(), pattern: pattern.as_str().into() }, content)
}

pub(crate) fn encode_learned(origin: &LearnedOrigin, learned: &Learned) -> io::Result<Vec<u8>> {
    let UseAs { pattern, destinations, id } = &learned.use_as;
    let head = Head::Learned {
        rule: origin.0.clone(),
        origin: origin.1.clone(),
        pattern: pattern.as_str().into(),
        destinations: destinations.clone(),
        id: id.clone(),
        fresh_until: learned.fresh_until,
        hash: learned.hash.to_string().into(),
    };
    encode(&head, &learned.body)
}

/// Reads a version, a delta or what was learned. `None`: the file is damaged, or it has another
/// file's name.
pub(crate) fn decode(name: &str, file: Bytes) -> Option<Found> {
    let (head, content) = split(&file)?;
    match head {
        Head::Version { sighting, more } => {
            let hash = hash(&content);
            if name != version_name(hash) || more.len() >= SIGHTINGS_MAX {
                return None;
            }
            let newest_last = more.into_iter().rev().chain([sighting]);
            let sightings = newest_last.map(SightingHead::read).collect::<Option<_>>()?;
            Some(Found::Version(StoredVersion { hash, sightings, body: content }))
        }
        Head::Delta { level, to } => {
            let (ends, coding) = name.split_once('.')?;
            let coding = [Coding::Dcz, Coding::Dcb].into_iter().find(|c| c.name() == coding)?;
            let (from, target) = ends.split_once('-')?;
            let step = Step { from: Hash::from_hex(from)?, to: Hash::from_hex(target)?, coding };
            // A client decodes it with the dictionary that the first bytes name (RFC 9842 4, 5).
            let mut first = Vec::new();
            header(coding, step.from, &mut first);
            let is_its = *to == *target && step.from != step.to && content.starts_with(&first);
            is_its.then_some(Found::Delta(step, Delta { coded: content, level }))
        }
        Head::Learned { rule, origin, pattern, destinations, id, fresh_until, hash: named } => {
            let (origin, use_as) = ((rule, origin), UseAs::of(&pattern, destinations, id)?);
            let (file, hash) = (learned_file(&origin, &use_as), hash(&content));
            let is_its = name == learned_name(file) && Hash::from_hex(&named) == Some(hash);
            let lesson = NewDictionary { origin, use_as, file, hash, body: content, fresh_until };
            is_its.then_some(Found::Learned(lesson))
        }
        Head::Trained { .. } => None,
    }
}

/// Reads a trained dictionary. Its name is not checked, because people put the file there.
pub(crate) fn decode_trained(file: Bytes) -> Option<TrainedFile> {
    match split(&file)? {
        (Head::Trained { rule, pattern }, content) => {
            Some(TrainedFile { rule, pattern: Pattern::new(&pattern).ok()?, content })
        }
        (Head::Version { .. } | Head::Delta { .. } | Head::Learned { .. }, _) => None,
    }
}

/// Magic, length of the head, head as JSON, content, SHA-256 of all that.
fn encode(head: &Head, content: &[u8]) -> io::Result<Vec<u8>> {
    let head = serde_json::to_vec(head)?;
    if head.len() > HEAD_BYTES_MAX || content.len() > DICTIONARY_BYTES_MAX {
        return Err(io::Error::other("too large for a file of the dictionary store"));
    }
    let length = u32::try_from(head.len()).map_err(io::Error::other)?;
    let rest = MAGIC.len() + LENGTH_BYTES + SUM_BYTES;
    let mut encoded = Vec::with_capacity(rest + head.len() + content.len());
    encoded.extend_from_slice(MAGIC);
    encoded.extend_from_slice(&length.to_le_bytes());
    encoded.extend_from_slice(&head);
    encoded.extend_from_slice(content);
    let sum = hash(&encoded);
    encoded.extend_from_slice(&sum.0);
    Ok(encoded)
}

fn split(file: &Bytes) -> Option<(Head, Bytes)> {
    let (summed, sum) = file.split_last_chunk::<SUM_BYTES>()?;
    let after = summed.strip_prefix(MAGIC)?;
    let (length, after) = after.split_first_chunk::<LENGTH_BYTES>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let content_bytes = after.len().checked_sub(length)?;
    if length > HEAD_BYTES_MAX || content_bytes > DICTIONARY_BYTES_MAX || hash(summed).0 != *sum {
        return None;
    }
    let head = serde_json::from_slice(after.get(..length)?).ok()?;
    Some((head, file.slice(summed.len() - content_bytes..summed.len())))
}
