//! Bytes by coding, through the real program: a Subversion checkout, versions of bundles, and
//! families of small responses. Also the CPU of it, beside nginx.

pub(super) mod apache;
mod bundles;
mod checkout;
mod cost;
pub(super) mod edge;
mod family;
pub(super) mod material;
mod options;
pub(super) mod replay;
pub(super) mod tap;
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
            // A part may need a missing program or network. The other parts still run.
            Err(why) => outcome.notes.push(format!("{part:?} is left out: {why}")),
        }
    }
    Ok(outcome)
}
