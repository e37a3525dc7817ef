//! An explanation by the edge that serves the file. Where a list has mistakes, the edge decides by
//! the list that it read before, and nobody else has that one.

use std::io::{self, Write};

use clap::Parser;
use eyelet_config::{Config, Diagnostic, Severity};
use eyelet_edge::snapshot::check;

use super::args::ExplainArgs;
use eyelet_process::control;
use eyelet_process::reload::ReloadOutcome;

/// The flags of a question, as the edge reads them.
#[derive(Parser)]
struct Question {
    #[command(flatten)]
    args: ExplainArgs,
}

/// Prints the mistakes, and where only lists have some, the answer of the edge. Returns `false` if
/// there is none. `words` are the flags as they were typed.
pub(super) fn explain(
    args: &ExplainArgs,
    words: &[String],
    mistakes: &[Diagnostic],
    out: &mut impl Write,
) -> io::Result<bool> {
    super::print_mistakes(mistakes, out)?;
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

/// Explains within an edge, by the configuration that it serves now. It waits for nothing.
pub fn explain_served(words: &[String], config: &Config) -> ReloadOutcome {
    let program = ["explain"].into_iter();
    let args = match Question::try_parse_from(program.chain(words.iter().map(String::as_str))) {
        Ok(question) => question.args,
        Err(error) => return ReloadOutcome::failed(error),
    };
    if args.ask || args.quic.is_some() || args.log_line.as_deref() == Some("-") {
        return ReloadOutcome::failed(
            "--ask, --quic and --log-line - are for lists without mistakes",
        );
    }
    let mut text = Vec::new();
    let is_answered = super::answer(&args, config, &mut text).unwrap_or(false);
    let text = String::from_utf8_lossy(&text).into_owned();
    ReloadOutcome { code: if is_answered { 0 } else { check::MISTAKES }, text }
}
