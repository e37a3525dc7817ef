//! Tables of header blocks: RFC 7541 appendix C, another implementation's, and broken ones.
#![allow(clippy::unwrap_used, clippy::panic)]

use proptest::prelude::*;

use super::*;

type Fields = Vec<(Vec<u8>, Vec<u8>, bool)>;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.chars().filter(|digit| !digit.is_whitespace()).collect();
    let pair = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

/// Decodes a block that arrives in pieces of `size` bytes.
fn decode_in(decoder: &mut HpackDecoder, block: &[u8], size: usize) -> Result<Fields, HpackFault> {
    let (mut fields, mut left) = (Vec::new(), Vec::new());
    for piece in block.chunks(size) {
        left.extend_from_slice(piece);
        let used = decoder.decode(&left, |field| {
            fields.push((field.name.to_vec(), field.value.to_vec(), field.sensitive));
        })?;
        left.drain(..used);
    }
    decoder.end(&left)?;
    Ok(fields)
}

fn decode(decoder: &mut HpackDecoder, block: &[u8]) -> Result<Fields, HpackFault> {
    decode_in(decoder, block, block.len().max(1))
}

fn fields(texts: &[(&str, &str)]) -> Fields {
    texts
        .iter()
        .map(|(name, value)| (name.as_bytes().into(), value.as_bytes().into(), false))
        .collect()
}

const REQUESTS: [&[(&str, &str)]; 3] = [
    &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
];
const MONDAY: (&str, &str) = ("date", "Mon, 21 Oct 2013 20:13:21 GMT");
const LOCATION: (&str, &str) = ("location", "https://www.example.com");
const RESPONSES: [&[(&str, &str)]; 3] = [
    &[(":status", "302"), ("cache-control", "private"), MONDAY, LOCATION],
    &[(":status", "307"), ("cache-control", "private"), MONDAY, LOCATION],
    &[
        (":status", "200"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
        LOCATION,
        ("content-encoding", "gzip"),
        ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
    ],
];

/// Names and values.
type Texts<'a> = &'a [(&'a str, &'a str)];

/// RFC 7541 appendix C.3 to C.6. Each connection's blocks, and its table size.
const APPENDIX: [(u16, [Texts<'_>; 3], [&str; 3]); 4] = [
    (
        4096,
        REQUESTS,
        [
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "8286 84be 5808 6e6f 2d63 6163 6865",
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        ],
    ),
    (
        4096,
        REQUESTS,
        [
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "8286 84be 5886 a8eb 1064 9cbf",
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        ],
    ),
    (
        256,
        RESPONSES,
        [
            "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 \
             303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 \
             6f6d",
            "4803 3330 37c1 c0bf",
            "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 \
             5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 \
             5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
        ],
    ),
    (
        256,
        RESPONSES,
        [
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b \
             ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
            "4883 640e ffc1 c0bf",
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad \
             94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 \
             65c0 03ed 4ee5 b106 3d50 07",
        ],
    ),
];

#[test]
fn the_examples_of_the_rfc_decode_in_every_cut() {
    for (size, wanted, blocks) in APPENDIX {
        for cut in 1..80 {
            let table = table::DynamicTable::new(size);
            let mut decoder = HpackDecoder::with_table(table, size);
            for (block, wanted) in blocks.iter().zip(wanted) {
                assert_eq!(decode_in(&mut decoder, &bytes(block), cut), Ok(fields(wanted)));
            }
        }
    }
}

/// Python's `hpack` encodes with tables of all sizes that change, with and without Huffman.
#[test]
fn blocks_of_another_implementation_decode() {
    let (mut decoder, mut block, mut wanted) = (HpackDecoder::new(), None::<Vec<u8>>, Vec::new());
    let mut blocks = 0;
    let text = include_str!("../../testdata/hpack.txt");
    for line in text.lines().chain(["end"]) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if !["case", "table", "block", "end"].contains(&word) {
            let (name, value) = line[1..].split_once(": ").unwrap();
            wanted.push((format!("{}{name}", &line[..1]).into(), value.into(), false));
            continue;
        }
        if let Some(block) = block.take() {
            let got = decode(&mut decoder, &block).unwrap();
            let plain: Fields =
                got.into_iter().map(|(name, value, _)| (name, value, false)).collect();
            assert_eq!(plain, std::mem::take(&mut wanted));
            blocks += 1;
        }
        match word {
            "case" => decoder = HpackDecoder::new(),
            // The next block says the size of the table.
            "table" => assert!(rest.parse::<u16>().unwrap() <= TABLE_BYTES_MAX),
            "block" => block = Some(bytes(rest)),
            _ => {}
        }
    }
    assert_eq!(blocks, 72);
}

#[test]
fn broken_blocks_are_refused() {
    for (block, wanted) in [
        ("80", HpackFault::Index),
        ("be", HpackFault::Index),
        ("7f00 0161", HpackFault::Index),
        ("ff ffff ffff ff", HpackFault::Integer),
        ("4182 ffff", HpackFault::Huffman),
        ("82 20", HpackFault::SizeUpdatePlace),
        ("20 20 20 82", HpackFault::SizeUpdatePlace),
        ("3fe2 1f", HpackFault::TableSize),
        ("410f 7777", HpackFault::Truncated),
        ("0a", HpackFault::Truncated),
        ("ff", HpackFault::Truncated),
    ] {
        let got = decode(&mut HpackDecoder::new(), &bytes(block));
        assert_eq!(got, Err(wanted), "{block}");
    }
}

#[test]
fn a_smaller_table_evicts_at_once() {
    let authority = fields(&[(":authority", "www.example.com")]);
    for (block, wanted) in [
        ("be", Ok(authority.clone())),
        // 100, and as many bytes as the entry has, and one less.
        ("3f45 be", Ok(authority.clone())),
        ("3f1a be", Ok(authority)),
        ("3f19 be", Err(HpackFault::Index)),
        ("3f46 be", Err(HpackFault::TableSize)),
        // Zero, and then 100 again: the entry is gone.
        ("20 3f45 be", Err(HpackFault::Index)),
    ] {
        let mut decoder = HpackDecoder::import(100, 100, &[]).unwrap();
        decode(&mut decoder, &bytes(APPENDIX[0].2[0])).unwrap();
        assert_eq!(decode(&mut decoder, &bytes(block)), wanted, "{block}");
    }
}

/// Entries of any size come and go, and the memory of their texts stays within the table's size.
#[test]
fn a_table_holds_no_more_memory_than_its_size() {
    let mut table = table::DynamicTable::new(TABLE_BYTES_MAX);
    for nth in 0..5_000 {
        table.insert(b"name", &vec![b'x'; nth * 7919 % 4_060]);
        assert!(table.held_texts() <= TABLE_BYTES_MAX.into(), "{}", table.held_texts());
    }
    assert!(table.len() > 0);
}

#[test]
fn an_entry_that_takes_its_name_from_the_evicted_one_is_right() {
    let mut decoder = HpackDecoder::with_table(table::DynamicTable::new(48), 48);
    decode(&mut decoder, &bytes("4004 6e61 6d65 0576 616c 7565")).unwrap();
    let block = bytes("7e05 6f74 6865 72 be");
    assert_eq!(decode(&mut decoder, &block), Ok(fields(&[("name", "other"), ("name", "other")])));
    // Larger than the table: it empties it.
    let long = bytes("4001 6110 3031 3233 3435 3637 3839 3031 3233 3435");
    assert_eq!(decode(&mut decoder, &long).unwrap().len(), 1);
    assert_eq!(decode(&mut decoder, &[0xbe]), Err(HpackFault::Index));
}

fn encode(encoder: &mut HpackEncoder, fields: &[HeaderField<'_>]) -> Vec<u8> {
    let mut block = Vec::new();
    encoder.begin(&mut block);
    fields.iter().for_each(|field| encoder.encode(*field, &mut block));
    block
}

#[test]
fn what_repeats_is_inserted_and_what_is_secret_is_not() {
    for (name, value, is_inserted) in [
        ("content-type", "text/html", true),
        ("server", "eyelet", true),
        ("x-frame-options", "deny", true),
        ("content-length", "1234", false),
        ("cookie", "session=12345", false),
        ("cookie", "session=1234567890abcdef", true),
        ("authorization", "Basic YTpi", false),
        ("set-cookie", "session=1234567890abcdef", false),
    ] {
        let mut encoder = HpackEncoder::new();
        let field = HeaderField::new(name.as_bytes(), value.as_bytes());
        encode(&mut encoder, &[]);
        let [first, second] = [(); 2].map(|()| encode(&mut encoder, &[field]).len());
        assert_eq!((first > 1, second == 1), (true, is_inserted), "{name}: {value}");
    }
    assert_eq!(
        encode(&mut HpackEncoder::new(), &[HeaderField::new(b":status", b"200")])[3..],
        [0x88]
    );
    let mut encoder = HpackEncoder::new();
    let secret = HeaderField { sensitive: true, ..HeaderField::new(b"x-token", b"1") };
    for _ in 0..2 {
        let block = encode(&mut encoder, &[secret]);
        let got = decode(&mut HpackDecoder::new(), &block).unwrap();
        assert_eq!(got, [(b"x-token".to_vec(), b"1".to_vec(), true)]);
    }
}

#[test]
fn a_changed_size_begins_the_next_block_once() {
    let mut encoder = HpackEncoder::new();
    assert_eq!(encode(&mut encoder, &[]), [0x3f, 0xe1, 0x07], "1024");
    assert_eq!(encode(&mut encoder, &[]), []);
    encoder.set_limit(0);
    encoder.set_limit(1 << 20);
    assert_eq!(encode(&mut encoder, &[]), [0x20, 0x3f, 0xe1, 0x07], "0, and 1024 again");
    encoder.set_limit(64);
    assert_eq!(encode(&mut encoder, &[]), [0x3f, 33]);
}

/// Fields of dictionaries (RFC 9842) are another one in each message. They refer to the name of the
/// first one, and evict nothing.
#[test]
fn a_field_with_a_new_value_each_time_has_one_entry() {
    for name in [&b"available-dictionary"[..], b"use-as-dictionary"] {
        let mut encoder = HpackEncoder::new();
        let mut decoder = HpackDecoder::new();
        for n in 0..100 {
            let value = format!(":{n:02}GmAv0IEBKARczz7exkNYsZb8LzaMrV7J32a2fFG4=:");
            let agent = HeaderField::new(b"user-agent", b"an agent of many words");
            let sent = [agent, HeaderField::new(name, value.as_bytes())];
            let block = encode(&mut encoder, &sent);
            let got = decode(&mut decoder, &block).unwrap();
            let read: Vec<_> = got.iter().map(|(name, value, _)| (&name[..], &value[..])).collect();
            assert_eq!(read, sent.map(|field| (field.name, field.value)));
            let plain = 1 + 2 + 1 + huffman::encoded_len(value.as_bytes());
            assert!(n == 0 || block.len() == plain, "{n}: {} bytes, not {plain}", block.len());
        }
        assert_eq!(decoder.table().len(), 2);
    }
}

fn any_fields() -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>, bool)>> {
    let name = prop_oneof![
        Just(b"content-type".to_vec()),
        Just(b":path".to_vec()),
        Just(b"x-a".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..12),
    ];
    let value = prop_oneof![Just(b"same".to_vec()), proptest::collection::vec(any::<u8>(), 0..90)];
    proptest::collection::vec((name, value, proptest::bool::weighted(0.1)), 0..8)
}

proptest! {
    /// Both tables stay equal, whatever is sent, whatever the sizes, and after an export.
    #[test]
    fn what_is_encoded_decodes(
        blocks in proptest::collection::vec((any_fields(), 0_u16..1500, 1_usize..40), 1..20),
    ) {
        let (mut encoder, mut decoder) = (HpackEncoder::new(), HpackDecoder::new());
        for (all, limit, cut) in blocks {
            // The limit of the first blocks is larger, so that entries stay.
            let limit = if limit < 1000 { TABLE_BYTES_MAX } else { limit - 1000 };
            encoder.set_limit(limit.into());
            let fields: Vec<_> = all
                .iter()
                .map(|(name, value, sensitive)| HeaderField { name, value, sensitive: *sensitive })
                .collect();
            let block = encode(&mut encoder, &fields);
            let got = decode_in(&mut decoder, &block, cut).unwrap();
            prop_assert_eq!(got.len(), all.len());
            for (got, sent) in got.iter().zip(&all) {
                prop_assert_eq!((&got.0, &got.1), (&sent.0, &sent.1));
                prop_assert!(got.2 || !sent.2);
            }
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            encoder.export(&mut ours);
            decoder.export(&mut theirs);
            prop_assert_eq!(&ours, &theirs);
            encoder = HpackEncoder::import(encoder.table_sizes(), &ours).unwrap();
            decoder =
                HpackDecoder::import(decoder.table_size(), decoder.limit(), &theirs).unwrap();
        }
    }

    /// Bytes decode to the same fields or fault in every cut, and the table keeps to its size.
    #[test]
    fn any_bytes_in_any_cut(block in proptest::collection::vec(any::<u8>(), 0..120)) {
        let whole = decode(&mut HpackDecoder::new(), &block);
        for cut in 1..block.len() {
            prop_assert_eq!(&decode_in(&mut HpackDecoder::new(), &block, cut), &whole);
        }
    }
}

/// The memory of a long field is given back before the block ends.
#[test]
fn a_long_field_keeps_no_memory() {
    let mut block = Vec::new();
    HpackEncoder::new().encode(HeaderField::new(b"a", &[b'e'; 20_000]), &mut block);
    assert!(block.len() < 20_000, "by Huffman's code");
    let mut decoder = HpackDecoder::new();
    let mut bytes = 0;
    assert_eq!(decoder.decode(&block, |field| bytes += field.value.len()), Ok(block.len()));
    assert_eq!(bytes, 20_000);
    assert!(decoder.held() <= 512, "{}", decoder.held());
}

#[test]
fn texts_are_not_shown() {
    let mut decoder = HpackDecoder::new();
    let mut block = Vec::new();
    let field = HeaderField::new(b"x-a", b"secret");
    HpackEncoder::new().encode(field, &mut block);
    decoder.decode(&block, |_| {}).unwrap();
    assert_eq!(decoder.table().len(), 1);
    // "sec", as a text and as bytes.
    for shown in [format!("{field:?}"), format!("{decoder:?}")] {
        assert!(!shown.contains("sec") && !shown.contains("115, 101, 99"), "{shown}");
    }
}
