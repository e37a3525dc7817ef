//! The TOML document: sections and values with their places, and what is said of mistakes.

pub(crate) mod diagnostic;
mod elsewhere;
pub(crate) mod reader;
