//! The matchers on a request, `method` and `path`, and the form of a path that globs are compared
//! with.

mod glob;
mod matchers;
mod path;
mod request;

pub use glob::{GlobFault, PathGlob};
pub(crate) use matchers::RequestOutcome;
pub use matchers::{MethodFault, RequestMatchers, RequestPattern};
pub use path::{PathFault, normalize_path};
pub use request::RequestFacts;
pub(crate) use request::{NormalPath, RequestFault};
