//! Messages of other processes: the fuzz target's property, on inputs that a fuzzer would need long
//! to find, and on random ones.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use fastrand::Rng;

use super::parts::parts;
use crate::departure::LeavingBatch;
use crate::testing::any_message::{
    FLOWS, FLOWS_SOCKETS, any_message, flows, from_hex, group_in_parts, stored,
};

/// Changes of good messages that the test tries: a second in a debug build.
const TRIES: usize = 2_000;

#[test]
fn any_bytes_are_an_error_or_a_connection() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    for index in 0..9 {
        any_message(&[9 + index]);
        let whole = [&[1][..], &stored(usize::from(index))].concat();
        any_message(&whole);
        any_message(&whole[..whole.len() - 1]);
    }
    assert_eq!(flows(FLOWS_SOCKETS, &from_hex(FLOWS)), 2);
    let parts = small_group();
    assert_eq!(group_in_parts(&parts[1..]), 1);
    for at in 1..parts.len() {
        let mut changed = parts.clone();
        changed[at] ^= 1 << rng.u8(..8);
        any_message(&changed);
    }
    for at in 0..from_hex(FLOWS).len() as u16 {
        let [high, low] = at.to_be_bytes();
        any_message(&[4, high, low, rng.u8(..)]);
    }
    for _ in 0..TRIES {
        let mut input = vec![rng.u8(..)];
        input.extend((0..rng.usize(..12)).map(|_| rng.u8(..)));
        any_message(&input);
        // The session, without the message around it.
        let mut message = stored(2);
        let begin = message.windows(4).position(|codes| codes == [127, 2, 3, 1]).unwrap() + 1;
        let session = &mut message[begin - 1..][..128];
        session[0] = 0;
        any_message(session);
        session[1 + rng.usize(..127)] = rng.u8(..8);
        any_message(session);
    }
}

/// Both parts of the stored group, as the fuzz target reads them.
fn small_group() -> Vec<u8> {
    const SOCKETS: usize = 4;
    let socket = || Arc::new(eyelet_sys::socket::pair().unwrap().0);
    let sockets = std::iter::repeat_with(socket).take(SOCKETS).collect();
    let batch = LeavingBatch { states: stored(8).into(), sockets, group: Some(7) };
    let mut input = vec![2];
    for part in parts(7, &batch) {
        input.extend((part.body.len() as u16).to_be_bytes());
        input.push(part.sockets.len() as u8);
        input.extend_from_slice(&part.body);
    }
    input
}
