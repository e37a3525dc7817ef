//! Policy: facts about a connection in; a verdict, or the one fact that is still needed, out. Pure:
//! no clock, no socket, no file.
//!
//! An ordered list of [`Rule`]s is indexed once into [`Rules`]. [`Rules::decide`] then finds the
//! first rule whose matchers all hold, by an index of names and not by walking the list. It
//! allocates nothing and cannot fail. The rules determine what is peeked: a list without a matcher
//! on the hello is decided before a byte is read.

#![forbid(unsafe_code)]

mod by_request;
mod conditions;
mod connect;
mod covers;
mod early;
mod evidence;
mod explain;
mod expressions;
mod facts;
mod from_files;
mod lists;
mod matcher;
mod name_table;
mod names;
mod nets;
#[cfg(any(test, fuzzing))]
pub mod properties;
mod refusal;
mod requester;
mod requests;
mod rules;
mod source;

pub use by_request::RequestRules;
pub use conditions::Conditions;
pub use connect::{ConnectPattern, ConnectPatternFault, ConnectSet};
pub use covers::{Coverage, Covered, LostName, Unread};
pub use evidence::{EvidenceKind, EvidenceMatchers};
pub use explain::Miss;
pub use expressions::{EXPRESSION_LISTS_MAX, EXPRESSIONS_MAX, ExpressionFault, NameExpressions};
pub use facts::{CertificateFacts, Fact, FactSet, Facts, RequesterFacts};
pub use from_files::FromFiles;
pub use lists::{FileList, LISTS_MAX, List, ListId, ListedBy, Lists, NameEntry, NameList};
pub use matcher::{Matcher, SortedList};
pub use names::{NamePattern, NamePatternFault};
pub use nets::{AddressPattern, AddressSet, NetSet};
pub use refusal::Refusal;
pub use requester::{RequesterMatchers, RequesterPattern};
pub use requests::{
    GlobFault, MethodFault, PathFault, PathGlob, RequestFacts, RequestMatchers, RequestPattern,
    normalize_path,
};
pub use rules::{Decision, Needs, RULES_MAX, Rule, RuleId, RuleSearch, Rules, Verdict};
pub use source::FactSource;
