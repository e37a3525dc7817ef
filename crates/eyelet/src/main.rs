//! The program `eyelet`. Everything is in the library, so that tests reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    eyelet::command::cli::run()
}
