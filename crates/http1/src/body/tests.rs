//! Tables of bodies: every cut, every malformed chunk, and back again through the encoder.
#![allow(clippy::unwrap_used)]

use super::*;

/// All output if the input arrives `step` bytes at a time, and the number of bytes left over.
fn decode(length: Length, input: &[u8], step: usize) -> Result<(Vec<u8>, bool, usize), BadFraming> {
    let (mut decoder, mut buffer, mut out) = (Decoder::new(length), BytesMut::new(), Vec::new());
    for piece in input.chunks(step) {
        buffer.extend_from_slice(piece);
        while !decoder.is_done()
            && let Some(piece) = decoder.next(&mut buffer)?
        {
            match piece {
                Piece::Data(data) => out.extend_from_slice(&data),
                Piece::End(_) => {}
            }
        }
    }
    Ok((out, decoder.is_done(), buffer.len()))
}

#[test]
fn bodies_end_where_they_say() {
    for (length, input, body, left) in [
        (Length::Empty, &b"x"[..], &b""[..], 1),
        (Length::Known(3), b"abcd", b"abc", 1),
        (Length::Chunked, b"0\r\n\r\nGET", b"", 3),
        (Length::Chunked, b"3\r\nabc\r\n0\r\n\r\nx", b"abc", 1),
        (
            Length::Chunked,
            b"00a;x=\"y\"\r\n0123456789\r\n000\r\nA: b\r\nC: d\r\n\r\nx",
            b"0123456789",
            1,
        ),
        (Length::Chunked, b"1\r\na\r\n1;x\r\nb\r\n0;end\r\n\r\n", b"ab", 0),
        (Length::Chunked, b"1;a=b;c; d\t=\t\"e\\\"; \" ;f\r\na\r\n0;g=\"\"\r\n\r\n", b"a", 0),
    ] {
        for step in 1..=input.len() {
            let expected = Ok((body.to_vec(), true, left));
            let shown = input.escape_ascii();
            assert_eq!(decode(length, input, step), expected, "{shown} by {step}");
        }
    }
    assert_eq!(decode(Length::UntilClose, b"abc", 2), Ok((b"abc".to_vec(), false, 0)));
}

#[test]
fn malformed_chunks() {
    for input in [
        &b"\r\n"[..],
        b"g\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"0x1\r\na\r\n",
        b" 1\r\na\r\n",
        b"1 \r\na\r\n",
        b"1\t;x\r\na\r\n",
        b"1\na\r\n",
        b"1;x\ny\r\na\r\n",
        b"1;\x01\r\na\r\n",
        b"1;\r\na\r\n",
        b"1; \r\na\r\n",
        b"1;;x\r\na\r\n",
        b"1;x \r\na\r\n",
        b"1;x y\r\na\r\n",
        b"1;x=\r\na\r\n",
        b"1;=y\r\na\r\n",
        b"1;x=[y\r\na\r\n",
        b"1;x=\"y\r\na\r\n",
        b"1;x=\"y\\\"\r\na\r\n",
        b"1;x=\"y\"z\r\na\r\n",
        b"1;x\ry\r\na\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n",
        b"1\r\na\rb",
        b"1\r\na0\r\n\r\n",
        b"11111111111111111\r\n",
        b"0\r\nX : y\r\n\r\n",
        b"0\r\nX: y\n\r\n",
        b"0\r\n X: y\r\n\r\n",
        b"0\r\nGET / HTTP/1.1\r\n\r\n",
    ] {
        for step in [1, 2, input.len()] {
            let decoded = decode(Length::Chunked, input, step);
            assert_eq!(decoded, Err(BadFraming), "{} by {step}", input.escape_ascii());
        }
    }
    let extended = [b"1;", "x".repeat(300).as_bytes(), b"\r\n"].concat();
    assert_eq!(decode(Length::Chunked, &extended, 64), Err(BadFraming));
    let many = [b"1;", "x".repeat(200).as_bytes(), b"\r\na\r\n"].concat().repeat(100);
    assert_eq!(decode(Length::Chunked, &many, 4096), Err(BadFraming));
}

#[test]
fn a_cut_body_is_no_end() {
    for (length, whole) in
        [(Length::Known(3), false), (Length::Chunked, false), (Length::UntilClose, true)]
    {
        let mut decoder = Decoder::new(length);
        decoder.next(&mut BytesMut::from(&b"1\r"[..])).unwrap();
        assert_eq!(decoder.ended().is_ok(), whole, "{length:?}");
    }
}

/// Trailers that frame, route, condition or name somebody are nobody's (RFC 9110 6.5.1).
const FORBIDDEN: &[&str] = &[
    "Age",
    "Authorization",
    "Cache-Control",
    "Connection",
    "Content-Encoding",
    "Content-Length",
    "Content-Range",
    "Content-Type",
    "Cookie",
    "Date",
    "Expect",
    "Expires",
    "Forwarded",
    "Host",
    "HTTP2-Settings",
    "If-Match",
    "If-None-Match",
    "If-Modified-Since",
    "If-Unmodified-Since",
    "If-Range",
    "Keep-Alive",
    "Location",
    "Max-Forwards",
    "Pragma",
    "Proxy-Authenticate",
    "Proxy-Authorization",
    "Proxy-Connection",
    "Range",
    "Retry-After",
    "Set-Cookie",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
    "Vary",
    "Via",
    "WWW-Authenticate",
    "X-Forwarded-For",
    "X_Forwarded_For",
    "X-Real-IP",
    "X_Real_IP",
];

#[test]
fn trailers_come_through_but_not_those_that_frame() {
    for forbidden in FORBIDDEN {
        let mut buffer = BytesMut::from(&format!("0\r\n{forbidden}: 1\r\n\r\n")[..]);
        let piece = Decoder::new(Length::Chunked).next(&mut buffer);
        assert!(matches!(piece, Ok(Some(Piece::End(None)))), "{forbidden}");
    }
    let mut buffer = BytesMut::from(
        &b"0\r\nX-Sum: 1\r\nContent-Length: 5\r\nHost: b\r\nX-Forwarded-For: 1\r\n\r\n"[..],
    );
    let Ok(Some(Piece::End(Some(trailers)))) = Decoder::new(Length::Chunked).next(&mut buffer)
    else {
        unreachable!()
    };
    let names: Vec<_> = trailers.keys().map(HeaderName::as_str).collect();
    assert_eq!(names, ["x-sum"]);
    let mut queue = WriteQueue::default();
    Encoder::Chunked.push(Bytes::from_static(b"0123456789abcdef"), &mut queue);
    Encoder::Chunked.finish(Some(&trailers), &mut queue);
    let expected = b"10\r\n0123456789abcdef\r\n0\r\nx-sum: 1\r\n\r\n";
    assert_eq!(queue.len(), expected.len());
    let mut slices = [std::io::IoSlice::new(&[]); 8];
    let count = queue.slices(&mut slices);
    assert_eq!(slices[..count].iter().map(|s| &**s).collect::<Vec<_>>().concat(), expected);
}

proptest::proptest! {
    /// Every encoded body decodes to itself, however it is cut, and the bytes after it are left
    /// alone.
    #[test]
    fn what_was_encoded_is_decoded(
        pieces in proptest::collection::vec(proptest::collection::vec(0_u8.., 1..50), 0..10),
        step in 1..40_usize,
    ) {
        let mut queue = WriteQueue::default();
        for piece in &pieces {
            Encoder::Chunked.push(piece.clone().into(), &mut queue);
        }
        Encoder::Chunked.finish(None, &mut queue);
        queue.push(&b"GET"[..]);
        let mut wire = Vec::new();
        while !queue.is_empty() {
            let mut slices = [std::io::IoSlice::new(&[])];
            queue.slices(&mut slices);
            wire.extend_from_slice(&slices[0]);
            let written = slices[0].len();
            queue.advance(written);
        }
        let decoded = decode(Length::Chunked, &wire, step);
        proptest::prop_assert_eq!(decoded, Ok((pieces.concat(), true, 3)));
    }

    /// The result does not depend on how the bytes arrived.
    #[test]
    fn cuts_change_nothing(input in "[0-9a-f;:x \r\n]{0,60}", step in 1..20_usize) {
        crate::properties::body_is_stable(input.as_bytes());
        let whole = decode(Length::Chunked, input.as_bytes(), input.len().max(1));
        let cut = decode(Length::Chunked, input.as_bytes(), step);
        match (whole, cut) {
            (Ok(whole), Ok(cut)) => proptest::prop_assert_eq!(whole, cut),
            (whole, cut) => proptest::prop_assert_eq!(whole.is_err(), cut.is_err()),
        }
    }
}

/// The longest line may come with its CR before its LF. A longer one is refused.
#[test]
fn the_longest_chunk_line_is_read_in_pieces() {
    for (more, is_read) in [(0, true), (1, false)] {
        let filling = "x".repeat(CHUNK_LINE_BYTES_MAX - "1;a=".len() + more);
        let body = format!("1;a={filling}\r\n!\r\n0\r\n\r\n");
        for step in [1, 7, usize::MAX] {
            let read = decode(Length::Chunked, body.as_bytes(), step);
            assert_eq!(read.is_ok(), is_read, "{more} {step}");
        }
    }
}

#[test]
fn only_a_body_with_a_length_can_be_skipped() {
    for length in [Length::Empty, Length::Known(0), Length::Chunked, Length::UntilClose] {
        assert_eq!(Decoder::new(length).left(), None, "{length:?}");
    }
    let mut decoder = Decoder::new(Length::Known(7));
    decoder.skip(4);
    assert_eq!(decoder.left(), NonZeroU64::new(3));
    let mut buffer = BytesMut::from("abcd");
    assert_eq!(decoder.next(&mut buffer), Ok(Some(Piece::Data(Bytes::from_static(b"abc")))));
    assert_eq!((decoder.left(), decoder.is_done()), (None, false));
    assert!(decoder.is_at_end());
    assert_eq!(decoder.next(&mut buffer), Ok(Some(Piece::End(None))));
    assert!(!decoder.is_at_end());
    assert_eq!(&buffer[..], b"d", "the next message's");
}

/// A decoder is put away and made again after each byte, with what it has not taken.
#[test]
fn a_decoder_rests_at_every_byte() {
    for (length, input) in [
        (Length::Known(5), &b"abcde"[..]),
        (Length::Chunked, b"2\r\nab\r\n3;x=\"y\"\r\ncde\r\n0\r\nA: b\r\nC: d\r\n\r\n"),
        (Length::Chunked, b"5\r\nabcde\r\n0\r\n\r\n"),
        (Length::UntilClose, b"abcde"),
    ] {
        let (mut decoder, mut buffer, mut out) = (Decoder::new(length), BytesMut::new(), vec![]);
        for byte in input {
            buffer.extend_from_slice(&[*byte]);
            while !decoder.is_done()
                && let Some(piece) = decoder.next(&mut buffer).unwrap()
            {
                match piece {
                    Piece::Data(data) => out.extend_from_slice(&data),
                    Piece::End(_) => {}
                }
            }
            if let Some((place, extension_bytes)) = decoder.place() {
                decoder = Decoder::at(place, extension_bytes).unwrap();
            }
        }
        assert_eq!(out, b"abcde", "{}", input.escape_ascii());
        assert!(decoder.is_done() || length == Length::UntilClose && decoder.ended().is_ok());
    }
    for (place, extension_bytes) in [
        (DecoderPlace::Left(1 << 63), 0),
        (DecoderPlace::Chunk(u64::MAX), 0),
        (DecoderPlace::Size, EXTENSION_BYTES_MAX + 1),
    ] {
        assert!(Decoder::at(place, extension_bytes).is_none(), "{place:?}");
    }
}
