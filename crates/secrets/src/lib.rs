//! Secrets that a client never has: it sends a placeholder, and the value takes its place in a
//! request to a verified name. Values are wiped when they are dropped, and never printed.

#![forbid(unsafe_code)]

mod basic;
mod marked;
mod refusal;
mod secrets;
mod terms;
mod value;

pub use refusal::{Misuse, Reflection, SecretRefusal};
pub use secrets::{Destination, FILLED_BYTES_MAX, Filled, SECRETS_MAX, Secrets};
pub use terms::{Placeholder, PlaceholderFault, SecretTerms};
pub use value::{SECRET_BYTES_MAX, SECRET_BYTES_MIN, SecretFault, SecretValue};
