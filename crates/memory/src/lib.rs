//! Memory held for peers: the budget that bounds it, buffers that count themselves, a slab of
//! values that never move, an interner of shared values, and bytes that are kept without their
//! common pieces. No I/O, no clock.

#![forbid(unsafe_code)]

pub mod budget;
pub mod buffer;
pub mod interner;
pub mod packed;
pub mod slab;
pub mod spares;
pub mod wiped;
