//! Properties of reading a configuration and its lists, for any bytes. The fuzz targets `config`
//! and `list_file` and the tests below assert them.

// A broken property is a finding of the test or the fuzz target that asked for it.
#![allow(clippy::panic)]

pub mod list;
#[cfg(test)]
mod tests;
pub mod text;
