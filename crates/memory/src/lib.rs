//! Memory held for peers: the budget that bounds it, buffers that count themselves, a slab whose
//! values never move, an interner for values that many connections share, and bytes whose common
//! pieces it has. No I/O, no clock.

#![forbid(unsafe_code)]

pub mod budget;
pub mod buffer;
pub mod interner;
pub mod packed;
pub mod slab;
pub mod spares;
pub mod wiped;
