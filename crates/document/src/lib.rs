//! The TOML document: sections and values with their places, and what is said of mistakes.

#![allow(missing_docs)] // only the workspace uses it

pub mod diagnostic;
mod elsewhere;
pub mod reader;
