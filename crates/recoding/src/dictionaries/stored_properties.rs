//! Properties of reading files of the dictionary store, for any names and bytes. A fuzz target and
//! the property tests assert them.

// A broken property is a finding of the test or the fuzz target that asked for it.
#![allow(clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use eyelet_compress::Coding;
use eyelet_compress::dictionary::learned::{LearnedStore, NewDictionary};
use eyelet_compress::dictionary::pattern::Pattern;
use eyelet_compress::dictionary::store::{
    Delta, FAMILY_VERSIONS_MAX, Family, Sighting, Step, Store, StoredVersion,
};
use eyelet_compress::dictionary::use_as::UseAs;
use eyelet_compress::dictionary::{Hash, header};

use super::hash::hash;
use super::stored::{self, Found, SEEN_MAX};

/// Bytes of bodies and deltas in the stores here: a few, so that the bound is met.
const STORE_BYTES_MAX: usize = 400;

/// A file is read only with its checksum and under its own name, and what was read is written
/// as what is read again. The name is the first line of `data`, and the rest are the file's bytes
/// without their checksum.
///
/// # Panics
///
/// Where that does not hold.
pub fn file_is_one_thing(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (Ok(name), summed) = (std::str::from_utf8(&data[..at]), &data[(at + 1).min(data.len())..])
    else {
        return;
    };
    let file = Bytes::from([summed, &hash(summed).0].concat());
    for cut in [summed.len(), file.len() - 1] {
        let read = stored::decode(name, file.slice(..cut));
        assert!(read.is_none(), "without its checksum it is {read:?}");
    }
    if let Some(read) = stored::decode_trained(file.clone()) {
        let again = stored::encode_trained(&read.rule, &read.pattern, &read.content);
        let again = stored::decode_trained(again.expect("as large as before").into());
        let again = again.expect("a trained dictionary");
        assert_eq!((again.rule, again.pattern), (read.rule, read.pattern));
        assert_eq!(again.content, read.content);
    }
    let Some(found) = stored::decode(name, file.clone()) else {
        return holds_as_content(name, &file);
    };
    assert!(stored::decode(&format!("{name}.new"), file).is_none(), "a half-written file's name");
    let again = match &found {
        Found::Version(version) => {
            assert_eq!(name, stored::version_name(hash(&version.body)));
            assert!(version.seen() <= SEEN_MAX);
            stored::encode_version(version)
        }
        Found::Delta(step, delta) => {
            assert_eq!(name, stored::delta_name(*step));
            assert!(delta.coded.len() >= 36, "the header of dcb");
            stored::encode_delta(*step, delta)
        }
        Found::Learned(lesson) => {
            let Some(again) = learned_again(lesson) else { return };
            assert_eq!(name, stored::learned_name(lesson.file));
            Ok(again)
        }
    };
    // JSON has several spellings of a text, so only the meaning is compared.
    let again = again.expect("a head that was read can be written");
    match (found, stored::decode(name, again.into())) {
        (Found::Version(version), Some(Found::Version(again))) => assert_eq!(version, again),
        (Found::Delta(step, delta), Some(Found::Delta(to, again))) => {
            assert_eq!((step, delta), (to, again));
        }
        (Found::Learned(lesson), Some(Found::Learned(again))) => assert_eq!(lesson, again),
        (found, again) => panic!("{found:?} was written, {again:?} was read"),
    }
}

/// The file of what a store has learned from one. `None`: the store does not take it.
fn learned_again(lesson: &NewDictionary) -> Option<Vec<u8>> {
    let mut store = LearnedStore::new(1 << 20);
    if !store.restore(lesson.clone()) {
        return None;
    }
    let (origin, learned) = store.numbered(1).expect("the first one");
    assert_eq!((origin, learned.hash), (&lesson.origin, hash(&lesson.body)));
    Some(stored::encode_learned(origin, learned).expect("as large as before"))
}

/// Any bytes can be the content of a version and of a delta, with any texts in their heads.
fn holds_as_content(text: &str, content: &Bytes) {
    let pattern = Pattern::new("/*").expect("a pattern");
    let family = Family { rule: text.into(), origin: text.into(), pattern, is_file: true };
    let body = content.clone();
    let sightings = [false, true].map(|is_file| Sighting {
        family: Family { is_file, ..family.clone() },
        path: text.into(),
        seen: SEEN_MAX,
    });
    let version = StoredVersion { hash: hash(&body), sightings: sightings.into(), body };
    // A head may be too long to be written.
    if let Ok(file) = stored::encode_version(&version) {
        let read = stored::decode(&stored::version_name(version.hash), file.into());
        assert!(matches!(read, Some(Found::Version(read)) if read == version));
    }
    let (body, hash) = (content.clone(), version.hash);
    // A field cannot have every text.
    if let Some(use_as) = UseAs::of("/*", vec![text.into()], text.into()) {
        let origin = (text.into(), text.into());
        let file = stored::learned_file(&origin, &use_as);
        let lesson = NewDictionary { origin, use_as, file, hash, body, fresh_until: 1 };
        if let Some(written) = learned_again(&lesson) {
            let name = stored::learned_name(file);
            let read = stored::decode(&name, written.clone().into());
            assert!(matches!(read, Some(Found::Learned(read)) if read == lesson));
            assert!(stored::decode(&stored::learned_name(Hash([7; 32])), written.into()).is_none());
        }
    }
    let (from, to) = (version.hash, Hash([7; 32]));
    let mut coded = Vec::new();
    header(Coding::Dcb, from, &mut coded);
    coded.extend_from_slice(content);
    let step = Step { from, to, coding: Coding::Dcb };
    let delta = Delta { coded: coded.into(), level: 3 };
    let file = Bytes::from(stored::encode_delta(step, &delta).expect("a small file"));
    let read = stored::decode(&stored::delta_name(step), file.clone());
    assert!(matches!(read, Some(Found::Delta(read, again)) if (read, &again) == (step, &delta)));
    for wrong in [
        Step { from: to, to: from, coding: Coding::Dcb },
        Step { coding: Coding::Dcz, ..step },
        Step { to: Hash([8; 32]), ..step },
    ] {
        let read = stored::decode(&stored::delta_name(wrong), file.clone());
        assert!(read.is_none(), "under another delta's name it is {read:?}");
    }
}

/// However many files a folder has, the store that begins with them keeps to its bounds, and goes
/// on. Each eight bytes of `data` are a file; what was gone is not there.
///
/// # Panics
///
/// Where that does not hold.
pub fn store_begins_with_files(data: &[u8]) {
    let mut store = Store::new(STORE_BYTES_MAX);
    let mut families = Vec::new();
    for file in data.chunks_exact(8) {
        let [kind, name, length, place, .., high, low] = *file else { continue };
        let body = Bytes::from(vec![name; usize::from(length)]);
        let seen = SEEN_MAX - u64::from(u16::from_le_bytes([high, low]));
        let pattern = Pattern::new(&format!("/{}/*", place % 2)).expect("a pattern");
        let (rule, origin) = ("rule".into(), "a.example".into());
        let family = Family { rule, origin, pattern, is_file: place % 3 == 0 };
        let (hash, path) = (hash(&body), Box::from("/"));
        families.push(family.clone());
        let gone = if kind % 4 > 0 {
            let sightings = vec![Sighting { family, path, seen }];
            store.restore(StoredVersion { hash, sightings, body }).versions_dropped
        } else {
            let [one, other] = [0, 1].map(|at| store.family(&family).get(at).map(|v| v.hash));
            let (Some(to), Some(from)) = (one, other) else { continue };
            store.keep(Step { from, to, coding: Coding::Dcb }, Delta { coded: body, level: kind });
            Vec::new()
        };
        assert!(store.bytes() <= STORE_BYTES_MAX, "{} bytes", store.bytes());
        assert!(gone.iter().all(|hash| store.any_version(*hash).is_none()), "{gone:?}");
    }
    for (n, family) in families.iter().enumerate() {
        let versions = store.family(family);
        assert!(versions.len() <= FAMILY_VERSIONS_MAX, "{} versions", versions.len());
        let body = Bytes::from(format!("newest body {n}"));
        store.note_seen(family.clone(), "/new", hash(&body), body.clone());
        let newest = store.last_at(family, "/new").expect("the newest is there");
        assert!(newest.seen() > versions.first().map_or(0, |version| version.seen()));
        assert!(store.bytes() <= STORE_BYTES_MAX, "{} bytes", store.bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn files(data in prop::collection::vec(any::<u8>(), 0..200)) {
            file_is_one_thing(&data);
        }

        #[test]
        fn heads(
            kind in "version|delta|trained|learned",
            seen in any::<u64>(),
            rest in "[ -~]{0,40}",
        ) {
            let head = format!(
                r#"{{"kind":"{kind}","rule":"r","pattern":"/{rest}","path":"p",
                "seen":{seen},"level":3,"to":"{}","origin":"o","fresh_until":{seen},"hash":"{}"}}"#,
                Hash([7; 32]),
                hash(b"content"),
            );
            let use_as = UseAs::of(&format!("/{rest}"), Vec::new(), "".into());
            let name = match use_as.filter(|_| kind == "learned") {
                Some(use_as) => {
                    stored::learned_name(stored::learned_file(&("r".into(), "o".into()), &use_as))
                }
                None => stored::version_name(hash(b"content")),
            };
            let mut data = format!("{name}\n").into_bytes();
            data.extend(b"EYELETD1");
            data.extend((head.len() as u32).to_le_bytes());
            data.extend(head.bytes());
            data.extend(b"content");
            file_is_one_thing(&data);
        }

        #[test]
        fn folders(data in prop::collection::vec(any::<u8>(), 0..400)) {
            store_begins_with_files(&data);
        }
    }

    /// A seed that is not read would lead the fuzzer nowhere.
    #[test]
    fn the_seed_of_a_learned_dictionary_is_read() {
        let seed = include_bytes!("../../../../fuzz/seeds/dictionary_file/learned");
        let at = seed.iter().position(|byte| *byte == b'\n').unwrap();
        let (name, summed) = (std::str::from_utf8(&seed[..at]).unwrap(), &seed[at + 1..]);
        let file = [summed, &hash(summed).0].concat();
        assert!(matches!(stored::decode(name, file.into()), Some(Found::Learned(_))));
        file_is_one_thing(seed);
    }

    #[test]
    fn every_byte_of_a_file_counts() {
        let body = Bytes::from_static(b"content");
        let pattern = Pattern::new("/*").unwrap();
        let (rule, origin) = ("r".into(), "a.example".into());
        let family = Family { rule, origin, pattern, is_file: false };
        let version = |seen| {
            let (family, body) = (family.clone(), body.clone());
            let sightings = vec![Sighting { family, path: "/a".into(), seen }];
            StoredVersion { hash: hash(&body), sightings, body }
        };
        let name = stored::version_name(hash(&body));
        let whole = stored::encode_version(&version(SEEN_MAX)).unwrap();
        assert!(stored::decode(&name, whole.clone().into()).is_some());
        for at in 0..whole.len() {
            let mut broken = whole.clone();
            broken[at] ^= 1;
            assert!(stored::decode(&name, broken.into()).is_none(), "byte {at}");
            assert!(stored::decode(&name, whole[..at].to_vec().into()).is_none(), "cut at {at}");
        }
        // The store counts on from the largest number that it reads.
        let late = stored::encode_version(&version(u64::MAX)).unwrap();
        assert!(stored::decode(&name, late.into()).is_none());
    }
}
