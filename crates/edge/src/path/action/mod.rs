//! Actions of a verdict: splice, terminate or originate; and the answer to an ACME server.

pub mod hold;
pub mod mint;
pub mod originate;
pub mod originate_bytes;
pub mod splice;
pub mod terminate;
pub mod validate;
