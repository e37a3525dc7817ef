//! The matchers on a request, `method` and `path`, and the form of a path that globs are compared
//! with.

mod glob;
mod matchers;
mod path;

pub use glob::{GlobFault, PathGlob};
pub use matchers::{MethodFault, RequestMatchers, RequestPattern};
pub(crate) use matchers::{RequestFault, RequestOutcome};
pub use path::{PathFault, normalize_path};
