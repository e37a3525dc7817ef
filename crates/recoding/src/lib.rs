//! Codes bodies as they pass: the changes to a request and its response, the coder of each body,
//! and the dictionaries that are learned from responses and kept on disk. Threads of its own make
//! dictionaries.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

mod coder;
mod compressors;
mod dictionaries;
mod learning;
mod near;
mod pace;
mod request;
mod response;
mod resting;
mod tags;
#[cfg(test)]
mod tests;
mod upload;

pub use coder::Coder;
pub use compressors::{BodyInfo, CodingInfo, Compressors};
#[cfg(any(test, fuzzing))]
pub use dictionaries::stored_properties;
pub use dictionaries::{DictionaryRules, SharedDictionaries, disk, trained};
pub use learning::DecodedCoding;
pub use request::{NearRequest, RequestCodings};
pub use response::PassingHead;
pub use resting::{RestingCodings, RestingCodingsForm};
pub use upload::UploadCoder;
