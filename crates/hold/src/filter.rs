//! The questions that a verdict is for: one by its number, or all that are alike.

use crate::question::HoldKey;

/// The questions that a verdict is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which<'a> {
    /// The one with this number.
    Id(u64),
    /// Those that are like this.
    Like(QuestionFilter<'a>),
}

/// Questions about one name. What is `None` may be anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuestionFilter<'a> {
    pub name: &'a str,
    pub port: Option<u16>,
    /// The name of the rule.
    pub rule: Option<&'a str>,
    pub method: Option<&'a str>,
    pub path: Option<&'a str>,
}

impl QuestionFilter<'_> {
    /// Those about this name, at this port or any.
    pub fn named(name: &str, port: Option<u16>) -> QuestionFilter<'_> {
        QuestionFilter { name, port, ..QuestionFilter::default() }
    }

    /// True if a question is one of these.
    pub(crate) fn takes(&self, key: &HoldKey) -> bool {
        let request = key.request.as_deref();
        let is = |wanted: Option<&str>, own: Option<&str>| wanted.is_none() || wanted == own;
        key.name.eq_ignore_ascii_case(self.name)
            && self.port.is_none_or(|port| port == key.port)
            && is(self.rule, Some(&key.rule))
            && is(self.method, request.map(|request| &*request.method))
            && is(self.path, request.map(|request| &*request.path))
    }
}
