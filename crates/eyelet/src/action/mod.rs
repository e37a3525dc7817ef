//! What a verdict does: splice, terminate or refuse.
//! It must not know how the verdict was found.

pub mod refuse;
pub mod splice;
pub mod terminate;
