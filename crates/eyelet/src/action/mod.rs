//! What a verdict does: splice, terminate or refuse.

pub mod refuse;
pub mod splice;
pub mod terminate;
