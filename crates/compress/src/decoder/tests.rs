//! Decoders against coders: whole bodies, cut ones, wrong ones, bombs and differences.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::io::Write;

use proptest::collection::vec;

use super::*;
use crate::coder::{Br, BrMemory, CodingStep, Effort, Gzip, Zstd};
use crate::properties::steps_are_bounded;

const CODINGS: [Coding; 3] = [Coding::Zstd, Coding::Br, Coding::Gzip];

fn coded(coding: Coding, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match coding {
        Coding::Zstd => {
            let mut coder = Zstd::new().unwrap();
            coder.begin(Effort::Even, None).unwrap();
            coder.step(body, &mut out, CodingStep::Finish).unwrap();
        }
        Coding::Br => {
            let mut coder = Br::new(Effort::Even, None, BrMemory::default());
            coder.step(body, &mut out, CodingStep::Finish).unwrap();
        }
        _ => {
            let mut coder = Gzip::new(Effort::Even);
            coder.step(body, &mut out, CodingStep::Finish).unwrap();
        }
    }
    out
}

/// Decodes in pieces of this length. Also returns the most memory that was held.
fn decoded(
    coding: Coding,
    body: &[u8],
    piece: usize,
) -> Result<(Vec<u8>, usize), (DecodingFault, Vec<u8>)> {
    let mut decoder = ContentDecoder::new(coding).unwrap();
    let (mut all, mut most) = (Vec::new(), 0);
    for mut input in body.chunks(piece) {
        loop {
            let mut out = Vec::new();
            let stepped = decoder.step(&mut input, &mut out);
            assert!(out.len() <= STEP_BYTES_MAX);
            most = most.max(decoder.bytes());
            all.extend_from_slice(&out);
            if let Err(fault) = stepped {
                return Err((fault, all));
            }
            if out.is_empty() {
                assert!(input.is_empty());
                break;
            }
        }
    }
    match decoder.end() {
        Ok(()) => Ok((all, most)),
        Err(fault) => Err((fault, all)),
    }
}

fn text(lines: u32) -> Vec<u8> {
    (0..lines)
        .flat_map(|n| format!("line {} of it\n", n.wrapping_mul(40_503)).into_bytes())
        .collect()
}

#[test]
fn what_was_coded_comes_back_in_any_pieces() {
    let body = text(4000);
    for coding in CODINGS {
        let coded = coded(coding, &body);
        for piece in [1, 7, 4096, usize::MAX] {
            let (got, most) = decoded(coding, &coded, piece).unwrap();
            assert!(got == body, "{coding:?} in pieces of {piece}");
            assert!(most < DECODER_BYTES_MAX, "{coding:?}: {most} bytes");
        }
        assert_eq!(decoded(coding, b"", 1).unwrap().0, b"", "no byte is no body");
    }
}

#[test]
fn a_cut_is_told_from_an_end() {
    let body = text(300);
    for coding in CODINGS {
        let coded = coded(coding, &body);
        for len in [1, 20, coded.len() / 2, coded.len() - 1] {
            let (fault, got) = decoded(coding, &coded[..len], 100).unwrap_err();
            assert_eq!(fault, DecodingFault::Cut, "{coding:?} cut at {len}");
            assert!(body.starts_with(&got));
        }
    }
}

/// A stream is polled as often as it likes while its upstream is silent.
#[test]
fn steps_without_bytes_do_nothing() {
    let body = text(4000);
    for coding in [Coding::Zstd, Coding::Br, Coding::Gzip, Coding::Dcz, Coding::Dcb] {
        let (coded, mut decoder) = match coding.is_of_dictionary() {
            true => (
                with_dictionary(coding, b"any dictionary", &body),
                ContentDecoder::with_dictionary(coding, Hash([3; 32]), b"any dictionary"),
            ),
            false => (coded(coding, &body), ContentDecoder::new(coding)),
        };
        let (decoder, mut all) = (decoder.as_mut().unwrap(), Vec::new());
        for mut input in coded.chunks(coded.len() / 3) {
            loop {
                let before = all.len();
                decoder.step(&mut input, &mut all).unwrap();
                if all.len() == before {
                    break;
                }
            }
            let before = all.len();
            for _ in 0..100 {
                decoder.step(&mut &b""[..], &mut all).unwrap();
            }
            assert_eq!(all.len(), before, "{coding:?}");
        }
        decoder.end().unwrap();
        assert!(all == body, "{coding:?}");
    }
}

#[test]
fn other_bytes_are_malformed() {
    for coding in CODINGS {
        let mut wrong = coded(coding, &text(300));
        for (at, more) in [(0, 0x55_u8), (4, 0xFF), (wrong.len() / 2, 0x24)] {
            wrong[at] ^= more;
        }
        assert!(decoded(coding, &wrong, 64).is_err(), "{coding:?}");
        assert!(decoded(coding, b"<html>plain text</html>", 64).is_err(), "{coding:?}");
        let behind = [coded(coding, b"one"), b"<html>".to_vec()].concat();
        assert!(decoded(coding, &behind, 64).is_err(), "{coding:?}: bytes behind the end");
    }
}

#[test]
fn members_and_frames_follow_each_other() {
    for coding in [Coding::Zstd, Coding::Gzip] {
        let two = [coded(coding, b"one, "), coded(coding, b"two")].concat();
        for piece in [1, 1000] {
            assert_eq!(decoded(coding, &two, piece).unwrap().0, b"one, two");
        }
    }
    let padded = [coded(Coding::Gzip, b"one"), vec![0; 1000]].concat();
    assert_eq!(decoded(Coding::Gzip, &padded, 10).unwrap().0, b"one");
}

/// A kilobyte that becomes twenty megabytes is taken in steps, in little memory.
#[test]
fn a_bomb_is_decoded_in_steps() {
    let zeros = vec![0; 1 << 20];
    for coding in CODINGS {
        let mut out = Vec::new();
        let mut coder = flate2::write::GzEncoder::new(&mut out, flate2::Compression::best());
        let body = match coding {
            Coding::Gzip => {
                (0..20).for_each(|_| coder.write_all(&zeros).unwrap());
                drop(coder);
                out
            }
            _ => {
                drop(coder);
                coded(coding, &zeros.repeat(20))
            }
        };
        let mut decoder = ContentDecoder::new(coding).unwrap();
        let (mut input, mut total, mut most) = (&body[..], 0_usize, 0);
        loop {
            let mut out = Vec::new();
            decoder.step(&mut input, &mut out).unwrap();
            assert!(out.len() <= STEP_BYTES_MAX);
            most = most.max(decoder.bytes());
            total += out.len();
            if out.is_empty() {
                break;
            }
        }
        decoder.end().unwrap();
        assert_eq!(total, 20 << 20);
        assert!(most < DECODER_BYTES_MAX, "{coding:?}: {most} bytes");
    }
}

/// A frame may not ask for more memory than the content coding allows (RFC 9659).
#[test]
fn a_large_window_is_refused() {
    let mut context = zstd_safe::CCtx::create();
    context.set_parameter(zstd_safe::CParameter::WindowLog(24)).unwrap();
    let body = text(1000);
    let mut out = Vec::with_capacity(1 << 20);
    let mut input = zstd_safe::InBuffer::around(&body);
    let mut output = zstd_safe::OutBuffer::around(&mut out);
    let end = zstd_safe::zstd_sys::ZSTD_EndDirective::ZSTD_e_end;
    let cont = zstd_safe::zstd_sys::ZSTD_EndDirective::ZSTD_e_continue;
    context.compress_stream2(&mut output, &mut input, cont).unwrap();
    assert_eq!(context.compress_stream2(&mut output, &mut input, end).unwrap(), 0);
    assert_eq!(decoded(Coding::Zstd, &out, 100).unwrap_err().0, DecodingFault::Malformed);
}

/// Room is asked for before a window is allocated, however the head is cut, and for each frame.
#[test]
fn a_window_without_room_is_not_allocated() {
    let framed = |window_log: u32, length: usize| {
        let mut context = zstd_safe::CCtx::create();
        context.set_parameter(zstd_safe::CParameter::WindowLog(window_log)).unwrap();
        let body = vec![b'a'; length];
        let mut out = Vec::with_capacity(64 << 10);
        let mut output = zstd_safe::OutBuffer::around(&mut out);
        let mut input = zstd_safe::InBuffer::around(&body);
        // In two calls, so that the frame does not say its length.
        context.compress_stream(&mut output, &mut input).unwrap();
        assert_eq!(context.end_stream(&mut output).unwrap(), 0);
        out
    };
    let all = |frames: &[u8], piece: usize, room: usize| {
        let mut decoder = ContentDecoder::new(Coding::Zstd).unwrap();
        decoder.limit_growth(room);
        let (mut total, mut most) = (0, 0);
        for mut input in frames.chunks(piece) {
            loop {
                let mut out = Vec::new();
                if let Err(fault) = decoder.step(&mut input, &mut out) {
                    assert_eq!(fault, DecodingFault::NoRoom);
                    return (None, decoder.bytes());
                }
                most = most.max(decoder.bytes());
                total += out.len();
                if out.is_empty() {
                    break;
                }
            }
        }
        (Some(total), most)
    };
    let skipped = [&[0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    let small = framed(16, 300_000);
    for log in [17, 20, 23] {
        let large = framed(log, 10 << 20);
        let growth = (1 << log) + (3 << 17) + (1 << 10);
        for frames in [
            large.clone(),
            [&small[..], &large].concat(),
            [&skipped[..], &large].concat(),
            [&skipped[..], &skipped, &small, &skipped, &large, &small].concat(),
        ] {
            for piece in [1000, usize::MAX] {
                let (total, most) = all(&frames, piece.min(frames.len()), growth);
                assert!(total.unwrap() >= 10 << 20 && most > 1 << log, "{log}: {most}");
                let (total, most) = all(&frames, piece.min(frames.len()), 1 << log);
                assert!(total.is_none() && most < 1 << log | 600 << 10, "{log}: {most}");
            }
        }
        // A head that comes byte by byte may be that of the largest window.
        assert_eq!(all(&large, 1, (8 << 20) - 1).0, None);
        assert_eq!(all(&large, 1, 9 << 20).0, Some(10 << 20));
    }
}

/// Coded as the far edge does it: a small difference, and a stream of unknown length.
fn with_dictionary(coding: Coding, dictionary: &[u8], body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    header(coding, Hash([3; 32]), &mut out);
    match coding {
        Coding::Dcz => out.extend(crate::coder::zstd::delta(dictionary, body, 11).unwrap()),
        _ => {
            let mut coder = Br::with_dictionary(5, dictionary, None);
            coder.step(body, &mut out, CodingStep::Finish).unwrap();
        }
    }
    out
}

#[test]
fn a_difference_becomes_the_body() {
    let dictionary = text(4000);
    let mut body = dictionary.clone();
    body.splice(5000..5010, *b"something else");
    for coding in [Coding::Dcz, Coding::Dcb] {
        let coded = with_dictionary(coding, &dictionary, &body);
        assert!(coded.len() < 2000, "{coding:?}: {} bytes", coded.len());
        for piece in [1, 50, usize::MAX] {
            let mut decoder =
                ContentDecoder::with_dictionary(coding, Hash([3; 32]), &dictionary).unwrap();
            let mut all = Vec::new();
            for mut input in coded.chunks(piece.min(coded.len())) {
                loop {
                    let before = all.len();
                    decoder.step(&mut input, &mut all).unwrap();
                    if all.len() == before {
                        break;
                    }
                }
            }
            decoder.end().unwrap();
            assert!(all == body, "{coding:?} in pieces of {piece}");
        }
        let mut other =
            ContentDecoder::with_dictionary(coding, Hash([4; 32]), &dictionary).unwrap();
        let stepped = other.step(&mut &coded[..], &mut Vec::new());
        assert_eq!(stepped, Err(DecodingFault::Dictionary));
        assert!(is_of_other(coding, Hash([4; 32]), &coded));
        assert!(!is_of_other(coding, Hash([3; 32]), &coded));
        assert!(!is_of_other(coding, Hash([4; 32]), &coded[..30]), "too few bytes to tell");
        let mut cut = ContentDecoder::with_dictionary(coding, Hash([3; 32]), &dictionary).unwrap();
        cut.step(&mut &coded[..20], &mut Vec::new()).unwrap();
        assert_eq!(cut.end(), Err(DecodingFault::Cut));
        let mut wrong =
            ContentDecoder::with_dictionary(coding, Hash([3; 32]), &dictionary).unwrap();
        let stepped = wrong.step(&mut &b"<html>"[..], &mut Vec::new());
        assert_eq!(stepped, Err(DecodingFault::Malformed));
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_decoded_in_steps(data in vec(proptest::num::u8::ANY, 0..300)) {
        steps_are_bounded(&data);
    }
}
