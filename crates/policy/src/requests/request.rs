//! A request, as rules see it, and what of it they cannot read.

use std::borrow::Cow;
use std::fmt;

use super::path::{PathFault, normalize_path};

/// A part of a request that could be read in different ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestFault {
    /// A field names another method.
    Override,
    /// The method has a lower-case letter: some frameworks read it in upper case.
    LowerCase,
    /// A field names another path.
    OtherPath,
    Path(PathFault),
}

/// A request, as rules see it.
#[derive(Clone, Copy)]
pub struct RequestFacts<'a> {
    /// Its method. The extended CONNECT of a WebSocket is a GET.
    pub method: &'a str,
    /// Its path as it came, without the query.
    pub path: &'a str,
    /// Its fields that name others. `None`: none does.
    pub others: Option<OtherFields<'a>>,
}

/// Asked only where a rule asks for it: true if a field names another method, and if one names
/// another path. Some frameworks take those instead.
pub type OtherFields<'a> = (&'a dyn Fn() -> bool, &'a dyn Fn() -> bool);

/// The normal form of a request's path, once a rule has asked for it.
pub(crate) type NormalPath<'a> = Option<Result<Cow<'a, str>, RequestFault>>;

impl<'a> RequestFacts<'a> {
    /// True if a field names another method.
    pub(crate) fn has_override(&self) -> bool {
        self.others.is_some_and(|(has_override, _)| has_override())
    }

    /// True if a field names another path.
    pub(crate) fn has_other_path(&self) -> bool {
        self.others.is_some_and(|(_, has_other_path)| has_other_path())
    }

    /// Returns the normal form of its path, which `known` keeps.
    ///
    /// # Errors
    /// It may be read in different ways, or a field names another one.
    pub(crate) fn normal_path<'n>(
        &self,
        known: &'n mut NormalPath<'a>,
    ) -> Result<&'n str, RequestFault> {
        let normal = known.get_or_insert_with(|| {
            if self.has_other_path() {
                return Err(RequestFault::OtherPath);
            }
            normalize_path(self.path).map_err(RequestFault::Path)
        });
        normal.as_deref().map_err(|fault| *fault)
    }
}

impl fmt::Debug for RequestFacts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}
