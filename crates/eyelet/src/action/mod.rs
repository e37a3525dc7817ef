//! What a verdict does: splice, terminate, originate or refuse; and the answer to an ACME server.

pub mod mint;
pub mod originate;
pub mod originate_bytes;
pub mod refuse;
pub mod splice;
pub mod terminate;
pub mod validate;
