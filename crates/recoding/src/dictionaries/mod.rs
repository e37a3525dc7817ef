//! Dictionaries: those that workers share, their files, and the threads that keep and make them.

pub mod disk;
pub mod freshness;
pub mod hash;
pub mod jobs;
mod keeper;
mod learned_files;
mod maker;
pub mod shared;
pub mod stored;
#[cfg(any(test, fuzzing))]
pub mod stored_properties;
pub mod trained;

pub use shared::{DictionaryRules, SharedDictionaries};
