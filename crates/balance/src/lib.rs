//! Chooses one of several upstreams for a connection or a request: what is open at each, which of
//! them are down, and the choice. Time is an argument, and nothing is dialled here.
//!
//! All workers share the counts and the health, so that what one worker finds out helps the others.
//! The costs are a few relaxed atomics for each choice among several. An upstream that is alone and
//! written as an address has no group and costs nothing.

#![forbid(unsafe_code)]

mod choice;
pub mod group;
pub mod health;
pub mod shortages;
pub mod sources;
pub mod table;
