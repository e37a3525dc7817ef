//! `eyelet held`: shows which connections and requests are held, and decides about them, by the
//! control socket of the process that holds them.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use eyelet_admin::KeepAsked;
use eyelet_telemetry::held::HeldVerdict;

use eyelet_process::control::{self, NarrowedVerdict};

/// Arguments of `eyelet held`.
#[derive(Clone, Debug, clap::Args)]
pub struct HeldArgs {
    /// Ask the edge of this configuration only; by default all edges and sandboxes of this user
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    verdict: Option<HeldCommand>,
}

#[derive(Clone, Debug, Subcommand)]
enum HeldCommand {
    /// Let all who wait for this name pass
    Allow {
        /// The name, with a port if only that is meant
        #[arg(value_name = "NAME[:PORT]")]
        target: String,
        #[command(flatten)]
        narrowed: NarrowedVerdict,
        /// Also those who come within this time, such as 1h
        #[arg(long = "for", value_name = "TIME", value_parser = time, conflicts_with = "always")]
        time: Option<String>,
        /// Also write the name to the list that the rule names by `hold_file`
        #[arg(long)]
        always: bool,
    },
    /// Refuse all who wait for this name
    Refuse {
        /// The name, with a port if only that is meant
        #[arg(value_name = "NAME[:PORT]")]
        target: String,
        #[command(flatten)]
        narrowed: NarrowedVerdict,
        /// Also those who come within this time, such as 1h
        #[arg(long = "for", value_name = "TIME", value_parser = time)]
        time: Option<String>,
    },
}

/// Lists what is held, or gives a verdict.
pub fn held(args: &HeldArgs) -> ExitCode {
    let file = args.config.as_deref();
    let (verdict, about, time, always) = match &args.verdict {
        None => return control::list_held(file),
        Some(HeldCommand::Allow { target, narrowed, time, always }) => {
            (HeldVerdict::Allow, (&**target, narrowed), time, *always)
        }
        Some(HeldCommand::Refuse { target, narrowed, time }) => {
            (HeldVerdict::Refuse, (&**target, narrowed), time, false)
        }
    };
    let keep = if always { "always" } else { time.as_deref().unwrap_or("once") };
    control::decide_held(file, verdict, about, keep)
}

/// A time as the control socket takes it.
fn time(text: &str) -> Result<String, String> {
    let text: String = text.split_whitespace().collect();
    KeepAsked::of(&text).map(|_| text).map_err(String::from)
}
