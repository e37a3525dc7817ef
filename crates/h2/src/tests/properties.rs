//! The properties that the fuzz targets assert, on bytes that resemble frames, blocks and exports.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::properties::bytes::{any_blocks, any_frames, any_parked};
use crate::properties::calls::{Call, any_calls};

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![0_u8..11, Just(16), any::<u8>()];
    let payload = prop_oneof![
        vec(any::<u8>(), 0..20),
        // A request, and sizes that control frames have.
        Just(vec![0x82, 0x84, 0x87, 0x41, 1, b'a']),
        Just(vec![0; 4]),
        Just(vec![0, 0, 0, 1]),
        Just(vec![0; 8]),
    ];
    (kind, any::<u8>(), 0_u8..6, payload).prop_map(|(kind, flags, stream, payload)| {
        [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream], &payload[..]].concat()
    })
}

proptest! {
    #[test]
    fn calls(
        limits in any::<(u8, u8)>(),
        all in vec(any::<(u8, u8, u16, bool)>().prop_map(Call::of), 0..120),
    ) {
        any_calls(limits, &all);
    }

    #[test]
    fn frames(begin in (any::<u8>(), any::<u8>()), all in vec(frame(), 0..16)) {
        any_frames(&[&[begin.0, begin.1][..], &all.concat()].concat());
    }

    #[test]
    fn blocks(data in vec(any::<u8>(), 0..200)) {
        any_blocks(&data);
    }

    #[test]
    fn parked(
        has_streams in any::<bool>(),
        changes in vec((any::<u16>(), any::<u8>()), 0..3),
        frames in vec(frame(), 0..8),
    ) {
        let seeds = [
            &include_bytes!("../../../../fuzz/seeds/h2_import/served")[..],
            include_bytes!("../../../../fuzz/seeds/h2_import/streams"),
        ];
        let mut bytes = seeds[usize::from(has_streams)].to_vec();
        for (at, byte) in changes {
            let len = bytes.len();
            bytes[usize::from(at) % len] = byte;
        }
        any_parked(&[&bytes[..], &frames.concat()].concat());
    }
}
