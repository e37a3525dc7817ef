//! Hellos that are cut, shuffled, repeated and padded, as clients do on purpose.

use proptest::prelude::*;

use super::HELLO_BYTES_MAX;
use super::made::{Made, USUAL, crypto, long_hello};
use crate::properties::datagrams_are_read;
use crate::{InitialRead, InitialReader};

/// A CRYPTO frame between other frames.
fn frames(at: usize, bytes: &[u8], around: (u8, u8)) -> Vec<u8> {
    let other = |which: u8| match which % 4 {
        0 => vec![],
        1 => vec![1],
        2 => vec![0; 3],
        _ => vec![2, 0, 0, 0, 0],
    };
    [other(around.0), crypto(at, bytes), other(around.1)].concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn order_cuts_and_other_frames_do_not_matter(
        len in 300usize..3000,
        cuts in proptest::collection::vec(1usize..700, 1..20),
        around in any::<(u8, u8)>(),
        shuffle in proptest::collection::vec(any::<prop::sample::Index>(), 40),
        repeat in any::<bool>(),
    ) {
        let message = long_hello(len);
        let (mut pieces, mut at) = (Vec::new(), 0);
        for size in cuts.into_iter().cycle() {
            let end = (at + size).min(message.len());
            pieces.push((at, end));
            at = end;
            if at == message.len() || pieces.len() == 20 {
                break;
            }
        }
        // What is left comes in pieces of a datagram's size.
        while at < message.len() {
            let end = (at + 1000).min(message.len());
            pieces.push((at, end));
            at = end;
        }
        if repeat {
            pieces.extend(pieces.clone());
        }
        for (at, other) in (0..pieces.len()).zip(&shuffle) {
            let other = other.index(pieces.len());
            pieces.swap(at, other);
        }
        let mut reader: Option<InitialReader> = None;
        let mut seen = vec![false; message.len()];
        let mut is_read = false;
        for (number, (start, end)) in pieces.into_iter().enumerate() {
            let made = Made { number: number as u64, ..USUAL };
            let datagram = made.datagram(&frames(start, &message[start..end], around));
            let reader = reader.get_or_insert_with(|| {
                InitialReader::new(&datagram, HELLO_BYTES_MAX).unwrap()
            });
            seen[start..end].fill(true);
            let is_whole = seen.iter().all(|seen| *seen);
            match reader.feed(&datagram) {
                InitialRead::NeedMore => prop_assert!(!is_whole),
                InitialRead::Hello(hello) => {
                    prop_assert!(is_whole && !is_read);
                    prop_assert_eq!(hello.message(), &*message);
                    is_read = true;
                }
                InitialRead::Known => prop_assert!(is_read),
                InitialRead::Fault(fault) => prop_assert!(false, "{fault}"),
            }
        }
        prop_assert!(is_read);
    }

    #[test]
    fn any_datagram_is_read(
        bytes in proptest::collection::vec(any::<u8>(), 0..100),
        frames in proptest::collection::vec(any::<u8>(), 1..400),
    ) {
        if let Ok(mut reader) = InitialReader::new(&bytes, HELLO_BYTES_MAX) {
            reader.feed(&bytes);
        }
        // Any frames, behind a protection that holds.
        let datagram = USUAL.datagram(&frames);
        InitialReader::new(&datagram, HELLO_BYTES_MAX).unwrap().feed(&datagram);
    }

    #[test]
    fn any_steps_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
        datagrams_are_read(&bytes);
    }

    #[test]
    fn changed_seeds_are_read(
        which in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut seed = which.get(&seeds()).1.clone();
        for (at, byte) in changes {
            let at = at.index(seed.len());
            seed[at] = byte;
        }
        // It begins again behind the cut.
        let rest = seed.split_off(cut.index(seed.len()));
        datagrams_are_read(&[&seed[..], &seed, &rest].concat());
    }
}

/// The seeds of the fuzz target `quic_initial`, with their names.
fn seeds() -> Vec<(String, Vec<u8>)> {
    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/quic_initial");
    let read = |seed: std::fs::DirEntry| {
        (seed.path().display().to_string(), std::fs::read(seed.path()).unwrap())
    };
    std::fs::read_dir(FOLDER).unwrap().map(|seed| read(seed.unwrap())).collect()
}

/// The fuzzer begins with hellos that are read.
#[test]
fn each_seed_has_a_hello() {
    let seeds = seeds();
    assert!(seeds.len() >= 9, "{seeds:?}");
    for (name, seed) in seeds {
        let hello = datagrams_are_read(&seed);
        assert!(hello.is_some_and(|message| message.len() > 200), "{name}");
    }
}
