//! Every coder against its decoder, pieces of every size, flushes, and a pool that is exhausted.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Read;

use super::*;

fn body(len: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(len + 64);
    let mut n = 0_u32;
    while body.len() < len {
        n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        body.extend_from_slice(
            format!("<li class=\"item\">entry {} of {n}</li>\n", n >> 20).as_bytes(),
        );
    }
    body.truncate(len);
    body
}

/// Decodes what is there, complete or not.
fn decode(coding: Coding, coded: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match coding {
        Coding::Gzip => {
            let mut decoder = flate2::read::GzDecoder::new(coded);
            let mut piece = [0; 4096];
            while let Ok(n @ 1..) = decoder.read(&mut piece) {
                out.extend_from_slice(&piece[..n]);
            }
        }
        Coding::Br => {
            let mut decoder = brotli::Decompressor::new(coded, 4096);
            let mut piece = [0; 4096];
            while let Ok(n @ 1..) = decoder.read(&mut piece) {
                out.extend_from_slice(&piece[..n]);
            }
        }
        Coding::Zstd => {
            let mut decoder = zstd_safe::DCtx::create();
            let mut input = zstd_safe::InBuffer::around(coded);
            out.reserve(1 << 22);
            let mut output = zstd_safe::OutBuffer::around(&mut out);
            while input.pos() < coded.len() {
                decoder.decompress_stream(&mut output, &mut input).unwrap();
            }
        }
        Coding::Dcz | Coding::Dcb => panic!("not here"),
    }
    out
}

const CODINGS: [Coding; 3] = [Coding::Zstd, Coding::Br, Coding::Gzip];
const EFFORTS: [Effort; 3] = [Effort::Fast, Effort::Even, Effort::Small];

#[test]
fn a_pool_that_is_not_used_is_idle() {
    let pool = CompressorPool::new(64 << 20);
    assert!(!pool.is_idle(), "no idle context");
    for coding in CODINGS {
        let lent = pool.lend(coding, Effort::Small, Some(4096));
        assert!(!pool.is_idle() && !pool.is_idle(), "{coding:?} is in use");
        drop(lent);
        assert!(pool.is_idle(), "{coding:?} rests");
        drop(pool.lend(coding, Effort::Small, Some(4096)));
        assert!(!pool.is_idle() && pool.is_idle(), "{coding:?} was used, then not");
        pool.clear();
        assert_eq!((pool.bytes(), pool.is_idle()), (0, false));
    }
}

#[test]
fn every_coder_gives_back_what_it_took() {
    let pool = CompressorPool::new(64 << 20);
    for len in [0, 1, 511, 4096, 70_000, 700_000] {
        let body = body(len);
        for (coding, effort) in CODINGS.iter().flat_map(|c| EFFORTS.map(|e| (*c, e))) {
            for (known, step) in [(true, len.max(1)), (false, 16_384), (true, 1_000)] {
                let length = known.then_some(len as u64);
                let mut coder = pool.lend(coding, effort, length).unwrap();
                let mut out = Vec::new();
                for piece in body.chunks(step) {
                    coder.push(piece, &mut out).unwrap();
                }
                coder.finish(&mut out).unwrap();
                assert!(decode(coding, &out) == body, "{coding:?} {effort:?} {len} {known}");
                assert!(len < 4096 || out.len() * 3 < len, "{coding:?} {effort:?} {}", out.len());
            }
        }
    }
    assert_eq!(pool.lent(), 0);
}

#[test]
fn a_flush_makes_everything_so_far_decodable() {
    let pool = CompressorPool::new(64 << 20);
    let body = body(50_000);
    for (coding, effort) in CODINGS.iter().flat_map(|c| EFFORTS.map(|e| (*c, e))) {
        let mut coder = pool.lend(coding, effort, None).unwrap();
        let (mut out, mut end) = (Vec::new(), 0);
        for len in [1, 10, 1, 4_000, 16_384, 20_000] {
            coder.push(&body[end..end + len], &mut out).unwrap();
            end += len;
            coder.flush(&mut out).unwrap();
            assert!(decode(coding, &out) == body[..end], "{coding:?} {effort:?} {end}");
            let before = out.len();
            coder.flush(&mut out).unwrap();
            assert!(out.len() <= before + 8, "a second flush adds next to nothing");
        }
        coder.finish(&mut out).unwrap();
        assert!(decode(coding, &out) == body[..end]);
    }
}

#[test]
fn an_empty_pool_lends_nothing_and_recovers() {
    let pool = CompressorPool::new(16 << 20);
    for coding in CODINGS {
        let mut out = Vec::new();
        while let Some(coder) = pool.lend(coding, Effort::Even, None) {
            out.push(coder);
            assert!(pool.bytes() <= 16 << 20);
        }
        assert!((2..100).contains(&out.len()), "{coding:?}: {}", out.len());
        out.pop();
        assert!(pool.lend(coding, Effort::Even, None).is_some(), "{coding:?}");
        drop(out);
        assert_eq!(pool.lent(), 0);
        assert!(pool.bytes() <= 16 << 20);
    }
}

#[test]
fn a_context_that_was_dropped_in_the_middle_serves_the_next_body() {
    let pool = CompressorPool::new(32 << 20);
    let body = body(30_000);
    for coding in CODINGS {
        let mut cut = pool.lend(coding, Effort::Even, Some(1 << 20)).unwrap();
        cut.push(&body, &mut Vec::new()).unwrap();
        drop(cut);
        let mut coder = pool.lend(coding, Effort::Even, None).unwrap();
        let mut out = Vec::new();
        coder.push(&body, &mut out).unwrap();
        coder.finish(&mut out).unwrap();
        assert!(decode(coding, &out) == body);
    }
}

#[test]
fn brotli_reuses_its_memory() {
    let pool = CompressorPool::new(16 << 20);
    let code = |effort, length: usize| {
        let mut coder = pool.lend(Coding::Br, effort, Some(length as u64)).unwrap();
        let mut out = Vec::new();
        coder.push(&body(length), &mut out).unwrap();
        coder.finish(&mut out).unwrap();
        out
    };
    let first = code(Effort::Small, 20_000);
    let resting = pool.bytes();
    assert!((1 << 20..4 << 20).contains(&resting), "{resting}");
    for _ in 0..3 {
        assert!(code(Effort::Small, 20_000) == first, "whatever was there before");
        assert_eq!(pool.bytes(), resting);
    }
    // Tables of other sizes replace those that do not fit.
    for (effort, length) in [(Effort::Even, 20_000), (Effort::Small, 900), (Effort::Small, 300_000)]
    {
        assert!(decode(Coding::Br, &code(effort, length)) == body(length));
        assert!(pool.bytes() < 4 << 20, "{}", pool.bytes());
    }
    let room = pool.share(16 << 20);
    assert!(room.is_some(), "idle contexts make room");
}

/// The budget counts estimates: they must not be too low.
#[test]
fn zstd_contexts_hold_no_more_than_is_accounted() {
    let body = body(3 << 20);
    for effort in EFFORTS {
        for len in [600, 5_000, 20_000, 100_000, 200_000, 600_000, 3 << 20] {
            for length in [None, Some(len as u64)] {
                let mut zstd = Zstd::new().unwrap();
                zstd.begin(effort, length).unwrap();
                let mut out = Vec::new();
                for piece in body[..len].chunks(16 << 10) {
                    zstd.step(piece, &mut out, CodingStep::More).unwrap();
                }
                zstd.step(&[], &mut out, CodingStep::Finish).unwrap();
                let (holds, accounted) = (zstd.bytes(), Zstd::bytes_of(effort, length));
                assert!(holds <= accounted, "{effort:?} {length:?}: {holds} of {accounted}");
            }
        }
    }
}

/// The tables of a dictionary count, too, and small budgets have room for some.
#[test]
fn zstd_contexts_with_a_dictionary_hold_what_is_counted() {
    let text = body(8 << 20);
    for effort in EFFORTS {
        for len in [1 << 10, 30_000, 112 << 10, 180 << 10, 1 << 20, 8 << 20] {
            let mut zstd = Zstd::new().unwrap();
            zstd.begin_with(effort, &text[..len]).unwrap();
            let mut out = Vec::new();
            for piece in text[..300_000].chunks(16 << 10) {
                zstd.step(piece, &mut out, CodingStep::More).unwrap();
                let (holds, counted) = (zstd.bytes(), Zstd::bytes_with(effort, len));
                assert!(
                    holds <= counted && counted - holds <= holds / 20,
                    "{effort:?} {len}: {holds} of {counted}"
                );
            }
            zstd.step(&[], &mut out, CodingStep::Finish).unwrap();
        }
    }
    // A worker's share of a budget of 64 MiB with two workers.
    let pool = CompressorPool::new(8 << 20);
    let lend = || pool.lend_with(Coding::Dcz, Effort::Small, &text[..112 << 10]);
    let lent: Vec<Lent> = std::iter::from_fn(lend).collect();
    assert_eq!(lent.len(), 3, "{} bytes", pool.bytes());
}

#[test]
fn a_body_of_another_length_than_declared_is_an_error() {
    let pool = CompressorPool::new(8 << 20);
    let mut coder = pool.lend(Coding::Zstd, Effort::Even, Some(10)).unwrap();
    let mut out = Vec::new();
    let pushed = coder.push(b"short", &mut out).and_then(|()| coder.finish(&mut out));
    assert!(pushed.is_err());
    assert!(coder.push(b"again", &mut out).is_err());
}

/// Zero-length dictionaries, dictionaries that look like zstd's own, and both codings.
#[test]
fn dictionaries_are_raw_content() {
    let pool = CompressorPool::new(64 << 20);
    let dictionary = body(30_000);
    let next = [&dictionary[..20_000], b"something new", &dictionary[20_000..]].concat();
    let mut dcz = pool.lend_with(Coding::Dcz, Effort::Even, &dictionary).unwrap();
    let mut out = Vec::new();
    for piece in next.chunks(7_000) {
        dcz.push(piece, &mut out).unwrap();
        dcz.flush(&mut out).unwrap();
    }
    dcz.finish(&mut out).unwrap();
    assert!(out.len() < 1_000, "{}", out.len());
    let mut decoder = zstd_safe::DCtx::create();
    decoder.ref_prefix(&dictionary).unwrap();
    let mut back = Vec::with_capacity(next.len());
    decoder.decompress(&mut back, &out).unwrap();
    assert!(back == next);

    let prepared = Prepared::new(&dictionary, Effort::Small).unwrap();
    let mut whole = Vec::new();
    pool.whole(&prepared, &next, &mut whole).unwrap();
    assert!(whole.len() < 1_000, "{}", whole.len());
    let mut decoder = zstd_safe::DCtx::create();
    decoder.ref_prefix(&dictionary).unwrap();
    let mut back = Vec::with_capacity(next.len());
    decoder.decompress(&mut back, &whole).unwrap();
    assert!(back == next);

    let tables = [&[0x37, 0xA4, 0x30, 0xEC][..], &dictionary].concat();
    assert!(Prepared::new(&tables, Effort::Small).is_none());
    assert!(pool.lend_with(Coding::Dcz, Effort::Even, &tables).is_none());
    let delta = crate::coder::zstd::delta(&tables, &tables.clone(), 11).unwrap();
    assert!(delta.len() < 100, "a prefix is raw, whatever it looks like: {}", delta.len());
}
