//! Tables of the top level that mean something by the rules: each section is one file.

pub(crate) mod acme;
pub(crate) mod admin;
pub(crate) mod fleet;
pub(crate) mod hold;
pub(crate) mod sandbox;
pub(crate) mod secret;
pub(crate) mod spiffe;
pub(crate) mod trace;
