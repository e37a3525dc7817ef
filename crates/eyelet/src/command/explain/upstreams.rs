//! The upstreams of a rule, and how one of them is chosen.

use std::fmt::Display;
use std::io::{self, Write};

use eyelet_config::{Action, Balance, Originate, UpstreamCheck};

/// The only upstream, or how many there are.
pub(super) fn one_of(others: usize, first: &impl Display) -> String {
    match others {
        0 => first.to_string(),
        _ => format!("one of {} upstreams", others + 1),
    }
}

/// Prints the list, if it is one, and the choice.
pub(super) fn print(action: &Action, out: &mut impl Write) -> io::Result<()> {
    match action {
        Action::Splice(splice) => {
            let all: Vec<_> = [&splice.upstream].into_iter().chain(&splice.others).collect();
            print_list(&all, &splice.balance, out)
        }
        Action::Originate(Originate { requests: terminate, .. }) | Action::Terminate(terminate) => {
            let all: Vec<_> = [&terminate.upstream].into_iter().chain(&terminate.others).collect();
            print_list(&all, &terminate.balance, out)
        }
        Action::Refuse(_) => Ok(()),
    }
}

fn print_list(all: &[&impl Display], balance: &Balance, out: &mut impl Write) -> io::Result<()> {
    if all.len() > 1 {
        for upstream in all {
            writeln!(out, "one of:  {upstream}")?;
        }
        let how = match balance.by_client {
            true => "by a hash of the client's address: a client stays with one while it is up",
            false => "two at random, and the one with less open of these",
        };
        writeln!(out, "chosen:  {how}")?;
    }
    match &balance.check {
        Some(UpstreamCheck::Connect) => writeln!(out, "checked: by a connection"),
        Some(UpstreamCheck::Get(path)) => writeln!(out, "checked: by GET {path}"),
        None => Ok(()),
    }
}
