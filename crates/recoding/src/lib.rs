//! Codes bodies as they pass: the changes to a request and its response, the coder of each body,
//! and the dictionaries that are learned from responses and kept on disk. Threads of its own make
//! dictionaries.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

mod coder;
mod compressors;
pub mod disk;
mod freshness;
mod hash;
mod jobs;
mod keeper;
mod learned_files;
mod learning;
mod maker;
mod near;
mod pace;
mod request;
mod response;
mod shared;
mod stored;
#[cfg(any(test, fuzzing))]
pub mod stored_properties;
mod tags;
#[cfg(test)]
mod tests;
pub mod trained;
mod upload;

pub use coder::Coder;
pub use compressors::{BodyInfo, CodingInfo, Compressors};
pub use learning::DecodedCoding;
pub use request::{NearRequest, RequestCodings};
pub use shared::{DictionaryRules, SharedDictionaries};
pub use upload::UploadCoder;
