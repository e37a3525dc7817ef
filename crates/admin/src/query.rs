//! What is wrong with a query, as a text for whoever asked.

use std::borrow::Cow;

/// A line of text.
pub(crate) type QueryFault = Cow<'static, str>;

/// Nothing is left out silently: a mistyped key would list, or end, more than was meant.
pub(crate) fn unknown_key(key: &str, known: &str) -> QueryFault {
    format!("{key:?} is not a key; expected {known}\n").into()
}

/// One of two values would be left out.
pub(crate) fn repeated_key(key: &str) -> QueryFault {
    format!("{key:?} occurs twice\n").into()
}
