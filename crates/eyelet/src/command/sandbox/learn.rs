//! `eyelet learn`: a list for a sandbox from access logs of any edge.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use eyelet_sandbox::{AllowList, LeftOutLines, RunRecord};

/// Arguments of `eyelet learn`.
#[derive(Clone, Debug, clap::Args)]
pub struct LearnArgs {
    /// Access logs; `-` is standard input
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
}

/// Prints the names and ports that these logs say were reached, as a list for `--allow`.
pub fn learn(args: &LearnArgs, out: &mut impl Write) -> ExitCode {
    match print(args, out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn print(args: &LearnArgs, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let mut record = RunRecord::default();
    for log in &args.logs {
        let failed = |error: io::Error| format!("cannot read {}: {error}", log.display());
        let lines: Box<dyn BufRead> = match log.as_path() == Path::new("-") {
            true => Box::new(io::stdin().lock()),
            false => Box::new(BufReader::new(File::open(log).map_err(failed)?)),
        };
        let left_out = record.learn(lines).map_err(failed)?;
        print_left_out(log, left_out);
    }
    Ok(out.write_all(record.list(&AllowList::default()).as_bytes())?)
}

/// Says on standard error which lines of a log are not in the list.
fn print_left_out(log: &Path, LeftOutLines { foreign, unreached, nameless }: LeftOutLines) {
    for (count, why) in [
        (foreign, "no lines of an access log in JSON"),
        (unreached, "refused, failed, redirected, or left by the client"),
        (nameless, "without a name and an address"),
    ] {
        if count > 0 {
            eprintln!("eyelet: {}: lines left out: {count}, {why}", log.display());
        }
    }
}
