//! The shared edge: a process of its own that serves all projects of a user at one port. Each
//! `eyelet run` and `eyelet proxy` joins it, the first one starts it, and it ends with the last.

mod edge;
mod lease;
mod message;
pub(crate) mod place;
mod projects;

use std::io::Write;
use std::process::ExitCode;

use eyelet_process::control::served_here;

use self::lease::ask_all;
use self::message::{Answer, ListedSite, Request};

pub use self::edge::serve;
pub(super) use self::lease::{JoinError, Lease, LeaseEvent, is_loopback, own_folder};
pub(super) use self::message::{Joining, ProjectKind};

/// Prints the sites of all shared edges of this user.
pub(super) fn list(out: &mut dyn Write) -> ExitCode {
    let (mut is_empty, served) = (true, served_here());
    let mut code = ExitCode::SUCCESS;
    for answer in ask(&Request::List) {
        match answer {
            Ok(Answer::Listed(sites)) => {
                is_empty &= sites.is_empty();
                let lines: String = sites.iter().map(ListedSite::line).collect();
                // If the output is closed, nobody reads it.
                let _ = out.write_all(lines.as_bytes());
            }
            Ok(_) => {}
            Err(why) => {
                eprintln!("eyelet: {why}");
                code = ExitCode::FAILURE;
            }
        }
    }
    if is_empty {
        eprintln!("eyelet: no project of this user shares a port now");
    }
    if !served.is_empty() {
        // If the output is closed, nobody reads it.
        let _ = writeln!(out, "edges: {}", served.join("; "));
    }
    code
}

/// Ends the project that has this name.
pub(super) fn stop(name: &str) -> ExitCode {
    let mut why =
        format!("no project has the name {name}; `eyelet list` shows those that share a port");
    for answer in ask(&Request::Stop(name.to_owned())) {
        match answer {
            Ok(Answer::Done) => return ExitCode::SUCCESS,
            Ok(Answer::Failed(_)) => {}
            Ok(_) => why = "the shared edge answers something else".into(),
            Err(error) => why = error,
        }
    }
    eprintln!("eyelet: {why}");
    ExitCode::FAILURE
}

fn ask(request: &Request) -> Vec<Result<Answer, String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(ask_all(request)),
        Err(error) => vec![Err(error.to_string())],
    }
}
