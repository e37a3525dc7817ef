//! Bytes by coding, through the real program: a Subversion checkout, versions of bundles, families
//! of small responses, and what the CPU of it is beside nginx. Must not code anything itself.

mod apache;
mod bundles;
mod checkout;
mod cost;
mod edge;
mod family;
mod material;
mod options;
mod replay;
mod tap;
mod web;

use std::io;

use clap::ValueEnum;

use super::Findings;
use crate::lab::Lab;
pub use options::{Options, Part};

pub async fn run(lab: &Lab, options: &Options) -> io::Result<Findings> {
    let mut outcome = Findings::default();
    for part in Part::value_variants() {
        if !options.only.is_empty() && !options.only.contains(part) {
            continue;
        }
        eprintln!("{part:?}");
        let done = match part {
            Part::Checkout => checkout::run(lab, options).await,
            Part::Bundles => bundles::run(lab).await,
            Part::Answers => family::answers(lab, options.answers).await,
            Part::Pages => family::pages(lab, &options.pages).await,
            Part::Cost => cost::run(lab, options).await,
        };
        match done {
            Ok((board, notes)) => {
                outcome.boards.push(board);
                outcome.notes.extend(notes);
            }
            // A registry that cannot be reached, a program that is not installed: the rest goes on.
            Err(why) => outcome.notes.push(format!("{part:?} is left out: {why}")),
        }
    }
    Ok(outcome)
}
