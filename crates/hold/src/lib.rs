//! Connections and requests that are held until somebody decides: the questions that they wait on,
//! and the verdicts. Values behind one lock; the time is an argument.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod filter;
mod holds;
mod question;
mod verdict;

pub use filter::{QuestionFilter, Which};
pub use holds::{
    HELD_MAX, HOST_HELD_MAX, HOST_QUESTIONS_MAX, HandedVerdict, HeldStreams, HoldPlace, Holds,
    QUESTIONS_MAX, Sink,
};
pub use question::{DecidedQuestions, HoldKey, HoldQuestion, REQUEST_BYTES_MAX, RequestKey, Who};
pub use verdict::{HoldDecision, KEPT_MAX, Keep, NobodyWaits};
