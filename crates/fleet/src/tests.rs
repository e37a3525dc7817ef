//! Sealed values, and the folder as a store.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::time::SystemTime;

use super::*;
use crate::period_keys::Periods;

const LONG: Duration = Duration::from_secs(3600);

fn fleet(folder: &Path, secret: &str) -> Fleet {
    let secret_file = folder.join(format!("{}.secret", &secret[..1]));
    // Edges that start together share it.
    if !secret_file.exists() {
        fs::write(&secret_file, secret.repeat(40)).unwrap();
    }
    let store = StoreAddress::Folder(folder.join("store"));
    Fleet::open(&FleetSettings { store, secret_file }).unwrap()
}

#[test]
fn a_sealed_value_opens_only_whole_and_under_its_name() {
    let sealer = Sealer::new(b"secret").unwrap();
    let sealed = sealer.seal("name", b"value").unwrap();
    assert_eq!(**sealer.open("name", &sealed).unwrap(), *b"value");
    assert_eq!(sealer.open("other", &sealed), Err(OpenError::Forged));
    assert_eq!(Sealer::new(b"Secret").unwrap().open("name", &sealed), Err(OpenError::Forged));
    for at in 0..sealed.len() {
        assert!(sealer.open("name", &sealed[..at]).is_err(), "cut at {at}");
        let mut changed = sealed.clone();
        changed[at] ^= 1;
        let expected = if at == 0 { OpenError::Version(0) } else { OpenError::Forged };
        assert_eq!(sealer.open("name", &changed), Err(expected), "byte {at}");
    }
    assert_ne!(sealed, sealer.seal("name", b"value").unwrap());
    for length in [0, 1, 12, 13, 29, 200] {
        properties::only_what_was_sealed_opens(&vec![length as u8; length]);
    }
}

#[test]
fn whoever_comes_first_makes_the_value_of_all() {
    const EDGES: usize = 8;
    let folder = tempfile::tempdir().unwrap();
    let together = Barrier::new(EDGES);
    drop(fleet(folder.path(), "a"));
    let made: Vec<_> = std::thread::scope(|scope| {
        let edges = (0..EDGES as u8).map(|edge| {
            let (folder, together) = (folder.path(), &together);
            scope.spawn(move || {
                let mut fleet = fleet(folder, "a");
                together.wait();
                fleet.put_if_absent("key-1", &[edge; 32], LONG).unwrap()
            })
        });
        let edges: Vec<_> = edges.collect();
        edges.into_iter().map(|edge| edge.join().unwrap()).collect()
    });
    assert!(made.iter().all(|value| *value == made[0]), "{made:?}");
    assert_eq!(fleet(folder.path(), "a").get("key-1").unwrap(), Some(made[0].clone()));
    let files = fs::read_dir(folder.path().join("store")).unwrap();
    assert_eq!(files.count(), 1, "nothing is left beside");
}

#[test]
fn another_secret_says_so() {
    let folder = tempfile::tempdir().unwrap();
    fleet(folder.path(), "a").put_if_absent("key-1", b"value", LONG).unwrap();
    let mut other = fleet(folder.path(), "b");
    for result in [other.get("key-1").map(drop), other.put_if_absent("key-1", b"x", LONG).map(drop)]
    {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("sealed with another secret"), "{error}");
        assert!(error.contains("the same `secret_file`"), "{error}");
    }
}

#[test]
fn each_period_has_one_key_that_is_made_ahead() {
    let at = |now_secs| Periods { period_secs: 100, now_secs, pause_max: Duration::from_secs(10) };
    let wanted = |now, is_first| at(now).wanted(is_first);
    // At the start of a fleet: the current, the next, and the previous if there is one.
    assert_eq!(wanted(1000, true), [(1000, true), (1100, true), (1100, true), (900, false)]);
    assert_eq!(wanted(1000, false), [(1000, false), (1100, true), (1100, true), (900, false)]);
    // Too late for the next one: another edge might not hear of it in time.
    assert_eq!(wanted(1079, false), [(1000, false), (1100, false), (1200, true), (900, false)]);
    assert_eq!(wanted(1078, false)[1], (1100, true));
    let folder = tempfile::tempdir().unwrap();
    let (mut one, mut two) = (fleet(folder.path(), "a"), fleet(folder.path(), "a"));
    assert_eq!(one.id(), two.id());
    assert_ne!(one.id(), fleet(folder.path(), "b").id());
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let periods = at(now);
    assert_eq!(two.period_key("kind", &periods, (now, false), None).unwrap(), None);
    let key = one.period_key("kind", &periods, (now, true), None).unwrap().unwrap();
    assert_eq!(two.period_key("kind", &periods, (now, true), None).unwrap(), Some(key.clone()));
    assert_ne!(two.period_key("other", &periods, (now, true), None).unwrap(), Some(key));
    one.put_if_absent("kind-100-7", b"short", LONG).unwrap();
    let error = one.period_key("kind", &periods, (7, false), None).unwrap_err().to_string();
    assert!(error.contains("of another version"), "{error}");
}

#[test]
fn values_end_and_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = fleet(folder.path(), "a");
    assert_eq!(fleet.get("key-1").unwrap(), None);
    let lost = fleet.put_if_absent("key-1", b"value", Duration::ZERO).unwrap_err().to_string();
    assert!(lost.contains("it lost what was just written"), "{lost}");
    assert_eq!(fleet.get("key-1").unwrap(), None);
    fleet.put_if_absent("key-2", b"value", LONG).unwrap();
    let store = folder.path().join("store");
    let names = || fs::read_dir(&store).unwrap().map(|file| file.unwrap().file_name());
    assert_eq!(names().collect::<Vec<_>>(), ["key-2"]);
    // A cut file, and one that is too large.
    fs::write(store.join("key-3"), [0; END_BYTES_LESS_ONE]).unwrap();
    assert!(fleet.get("key-3").is_err());
    fs::write(store.join("key-4"), vec![255; VALUE_BYTES_MAX + 9]).unwrap();
    assert!(fleet.get("key-4").is_err());
    fs::remove_dir_all(&store).unwrap();
    fs::write(&store, "no folder").unwrap();
    let error = fleet.get("key-2").unwrap_err().to_string();
    assert!(error.contains("the store file:"), "{error}");
}

#[test]
fn a_value_that_has_ended_is_replaced_among_thousands() {
    /// A write looks through 1,024 names for those that have ended.
    const OTHERS: usize = 3000;
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = fleet(folder.path(), "a");
    fleet.put_if_absent("lock-0", b"old", Duration::ZERO).unwrap_err();
    let store = folder.path().join("store");
    let ended = fs::read(store.join("lock-0")).unwrap();
    (0..OTHERS).for_each(|number| fs::write(store.join(format!("{number}")), b"").unwrap());
    let names: Vec<String> = (0..12).map(|number| format!("lock-{number}")).collect();
    names.iter().for_each(|name| fs::write(store.join(name), &ended).unwrap());
    for name in &names {
        assert_eq!(**fleet.put_if_absent(name, b"new", LONG).unwrap(), *b"new", "{name}");
    }
}

#[test]
fn only_files_that_a_store_wrote_are_swept() {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = fleet(folder.path(), "a");
    fleet.put_if_absent("key-1", b"value", Duration::from_secs(0)).unwrap_err();
    let store = folder.path().join("store");
    let value = fs::read(store.join("key-1")).unwrap();
    let old = SystemTime::now() - Duration::from_secs(2 * 3600);
    let write = |name: &str, content: &[u8]| {
        fs::write(store.join(name), content).unwrap();
        fs::File::options().write(true).open(store.join(name)).unwrap().set_modified(old).unwrap();
    };
    let stay = ["12345", "key-1-", "Key-2", "key-3.txt", "key-4.0123", "key", "key-5", "key-6"];
    for name in stay {
        write(name, if name == "key-6" { b"tiny" } else { &value });
    }
    // What a number of 8 bytes begins is no value yet.
    write("key-5", &[0; 100]);
    let beside = "key-7.0123456789abcdef";
    let swept = ["key-8", beside, "key-9.fedcba9876543210"];
    for name in swept {
        write(name, if name == beside { b"" } else { &value });
    }
    // Another process may be writing this one.
    let fresh = "key-7.1123456789abcdef";
    fs::write(store.join(fresh), b"").unwrap();
    fleet.put_if_absent("key-10", b"value", LONG).unwrap();
    let left = |name: &&str| store.join(name).exists();
    assert!(
        stay.iter().all(left),
        "{:?}",
        stay.iter().filter(|name| !left(name)).collect::<Vec<_>>()
    );
    assert!(left(&fresh));
    assert_eq!(swept.iter().filter(|name| left(name)).count(), 0);
    assert!(!left(&"key-1"));
}

#[test]
fn a_store_that_lost_its_data_is_filled_again() {
    let folder = tempfile::tempdir().unwrap();
    let (mut one, mut two) = (fleet(folder.path(), "a"), fleet(folder.path(), "a"));
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let periods = Periods { period_secs: 100, now_secs: now, pause_max: LONG };
    let held = one.period_key("kind", &periods, (now, true), None).unwrap().unwrap();
    fs::remove_dir_all(folder.path().join("store")).unwrap();
    // Although it would make none.
    let again = one.period_key("kind", &periods, (now, false), Some(&held)).unwrap();
    assert_eq!(again, Some(held.clone()));
    assert_eq!(two.period_key("kind", &periods, (now, true), None).unwrap(), Some(held.clone()));
    // Another edge was faster: the store decides.
    fs::remove_dir_all(folder.path().join("store")).unwrap();
    let other = two.period_key("kind", &periods, (now, true), None).unwrap();
    assert_eq!(one.period_key("kind", &periods, (now, false), Some(&held)).unwrap(), other);
    assert_ne!(other, Some(held));
}

#[test]
fn a_value_is_replaced_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (mut one, mut two) = (fleet(folder.path(), "a"), fleet(folder.path(), "a"));
    one.remove("acme-lock-1").unwrap();
    for value in [&b"first"[..], b"second"] {
        one.put("acme-pem-1", value, LONG).unwrap();
        assert_eq!(**two.get("acme-pem-1").unwrap().unwrap(), *value);
    }
    // A lock: whoever comes first has it, until it is given back or ends.
    assert_eq!(**one.put_if_absent("acme-lock-1", b"one", LONG).unwrap(), *b"one");
    assert_eq!(**two.put_if_absent("acme-lock-1", b"two", LONG).unwrap(), *b"one");
    one.remove("acme-lock-1").unwrap();
    assert_eq!(**two.put_if_absent("acme-lock-1", b"two", LONG).unwrap(), *b"two");
    assert!(two.put_if_absent("acme-lock-2", b"two", Duration::ZERO).is_err());
    assert_eq!(**one.put_if_absent("acme-lock-2", b"one", LONG).unwrap(), *b"one");
}

/// One byte less than the end of a value takes.
const END_BYTES_LESS_ONE: usize = 7;
