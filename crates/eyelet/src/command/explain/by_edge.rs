//! An explanation by the edge that serves the file. Where a list has mistakes, the edge decides by
//! what it read before, and nobody else has that.

use std::io::{self, Write};

use eyelet_config::{Diagnostic, Severity};
use eyelet_process::control;
use eyelet_process::reload::ReloadOutcome;

use super::args::ExplainArgs;

/// Prints the answer of the edge where only lists have mistakes. `words` are the flags as
/// they were typed.
pub(super) fn explain(
    args: &ExplainArgs,
    words: &[String],
    mistakes: &[Diagnostic],
    out: &mut impl Write,
) -> io::Result<()> {
    let mut errors = mistakes.iter().filter(|mistake| mistake.severity == Severity::Error);
    if errors.any(|error| error.file == args.file) {
        return Ok(());
    }
    let file = args.file.display();
    match control::explain(&args.file, words) {
        Ok(ReloadOutcome { code: 0, text }) => {
            writeln!(
                out,
                "The edge that serves {file} decides by the configuration and lists that it read \
                 before:"
            )?;
            out.write_all(text.as_bytes())
        }
        Ok(ReloadOutcome { text: why, .. }) => {
            write!(out, "the edge that serves {file} does not explain it: {why}")
        }
        Err(why) => {
            writeln!(out, "an edge would decide by what it read before, but {why}")
        }
    }
}
