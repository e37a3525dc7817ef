//! Actions of a verdict: splice, terminate or originate; the answer to an ACME server, and the
//! redirect to https.

pub mod hold;
pub mod mint;
pub mod originate;
pub mod originate_bytes;
pub mod redirect;
pub mod splice;
pub mod terminate;
pub mod validate;
