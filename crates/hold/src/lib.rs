//! Connections that are held until somebody decides: the questions that they wait on, and the
//! verdicts. Values behind one lock; the time is an argument.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod holds;
mod question;
mod verdict;

pub use holds::{HELD_MAX, HOST_QUESTIONS_MAX, HoldPlace, Holds, QUESTIONS_MAX, Sink};
pub use question::{DecidedQuestions, HoldKey, HoldQuestion, Who};
pub use verdict::{DecideFault, HoldDecision, KEPT_MAX, Keep, Which};
