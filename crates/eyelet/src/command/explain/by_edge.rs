//! An explanation by the edge that serves the file. Where a list has mistakes, the edge decides by
//! the list that it read before, and nobody else has that one.

use std::io::{self, Write};

use eyelet_config::{Diagnostic, Severity};
use eyelet_process::control;
use eyelet_process::reload::ReloadOutcome;

use super::args::ExplainArgs;

/// Prints the answer of the edge where only lists have mistakes. Returns `false` if there is none.
/// `words` are the flags as they were typed.
pub(super) fn explain(
    args: &ExplainArgs,
    words: &[String],
    mistakes: &[Diagnostic],
    out: &mut impl Write,
) -> io::Result<bool> {
    let mut errors = mistakes.iter().filter(|mistake| mistake.severity == Severity::Error);
    if errors.any(|error| error.file == args.file) {
        return Ok(false);
    }
    let file = args.file.display();
    match control::explain(&args.file, words) {
        Ok(ReloadOutcome { code: 0, text }) => {
            writeln!(out, "The edge that serves {file} decides by what it read before:")?;
            out.write_all(text.as_bytes())?;
            Ok(true)
        }
        Ok(ReloadOutcome { text: why, .. }) => {
            write!(out, "the edge that serves {file} does not explain it: {why}")?;
            Ok(false)
        }
        Err(why) => {
            writeln!(out, "an edge would decide by what it read before, but {why}")?;
            Ok(false)
        }
    }
}
