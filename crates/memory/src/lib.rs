//! What is held in memory for peers: how much of it there may be, buffers that count themselves,
//! a slab whose entries never move, and values that many connections share. No I/O, no clock.

#![forbid(unsafe_code)]

pub mod budget;
pub mod interner;
pub mod slab;
