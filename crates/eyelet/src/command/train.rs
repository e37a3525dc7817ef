//! `eyelet dictionary train`: trains a dictionary from responses to paths of an access log. It
//! requests them again without cookies, so that no secret gets into a dictionary for all clients.

mod log;
mod sample;

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use eyelet_compress::coder::zstd;
use eyelet_compress::dictionary::pattern::Pattern;
use eyelet_compress::dictionary::train;

use eyelet_config::{
    self, Access, Action, Config, Depth, HttpUpstream, Terminate, TerminateUpstream,
};
use eyelet_recoding::disk::DictionaryFolder;

use log::Visit;

/// Subcommands of `eyelet dictionary`.
#[derive(Clone, Debug, Subcommand)]
pub enum DictionaryCommand {
    /// Train a dictionary for the small responses of a rule
    ///
    /// Asks the rule's upstream again, without cookies, for paths that an access log names. Writes
    /// a dictionary to the folder of `[dictionary]`. A running edge that uses this folder offers it
    /// within seconds. Responses that are private or set cookies are left out.
    Train(TrainArgs),
}

/// Arguments of `eyelet dictionary train`.
#[derive(Args, Clone, Debug)]
pub struct TrainArgs {
    /// The configuration
    pub file: PathBuf,
    /// The rule, by its name
    #[arg(long, value_name = "NAME")]
    pub rule: String,
    /// An access log of this edge
    #[arg(long, value_name = "LOG", required_unless_present = "live")]
    pub from: Option<PathBuf>,
    /// Follow the edge's access log for this long instead
    #[arg(long, value_name = "DURATION", conflicts_with = "from")]
    #[arg(value_parser = humantime::parse_duration)]
    pub live: Option<Duration>,
    /// The paths that the dictionary is for; by default what the sampled paths have in common
    #[arg(long = "match", value_name = "PATTERN")]
    pub pattern: Option<String>,
    /// Use paths with a query too; a query may name something private
    #[arg(long)]
    pub queries: bool,
    /// The largest size of the dictionary in bytes
    #[arg(long, value_name = "BYTES", default_value_t = DICTIONARY_BYTES)]
    pub bytes_max: usize,
}

/// Runs `eyelet dictionary`. Exits with 0, with 1 if no dictionary was made, with 2 if the file or
/// a flag is wrong.
pub fn run(command: &DictionaryCommand, out: &mut impl Write) -> ExitCode {
    let DictionaryCommand::Train(args) = command;
    let loaded = match eyelet_config::load(&args.file, Depth::Files) {
        Ok(loaded) => loaded,
        Err(mistakes) => {
            for mistake in &mistakes {
                eprintln!("{mistake}");
            }
            return ExitCode::from(2);
        }
    };
    match train_rule(args, &loaded.config, out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("eyelet: {why}");
            ExitCode::FAILURE
        }
    }
}

fn train_rule(args: &TrainArgs, config: &Config, out: &mut impl Write) -> Result<(), String> {
    let upstream = upstream(config, &args.rule)?;
    let path = config.dictionaries.path.as_deref();
    let path = path.ok_or("`path = \"off\"` in [dictionary]: there is no folder to write to")?;
    let source = sample::Source::new(config, upstream)?;
    let visits = visits(args, config)?;
    let picked = pick(visits, args);
    if picked.is_empty() {
        let rule = &args.rule;
        return Err(format!("the log has no GET of rule \"{rule}\" that was answered with 200"));
    }
    let mut samples = Vec::new();
    for visit in &picked {
        // A failed request is one sample less.
        samples.extend(source.fetch(visit).map(|body| (visit, body)));
    }
    let paths: Vec<&str> = samples.iter().map(|(visit, _)| &*visit.path).collect();
    let pattern = match &args.pattern {
        Some(text) => text.clone(),
        None => in_common(&paths),
    };
    let pattern = Pattern::new(&pattern).map_err(|why| format!("{pattern}: {why}"))?;
    let bodies: Vec<Vec<u8>> = samples.into_iter().map(|(_, body)| body).collect();
    finish(args, path, &pattern, &bodies, picked.len(), out)
}

fn finish(
    args: &TrainArgs,
    folder: &Path,
    pattern: &Pattern,
    bodies: &[Vec<u8>],
    asked: usize,
    out: &mut impl Write,
) -> Result<(), String> {
    let total: usize = bodies.iter().map(Vec::len).sum();
    let bytes_max = args.bytes_max.min(total / SAMPLES_A_BYTE).max(DICTIONARY_BYTES_MIN);
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let held_out = held_out(bodies, bytes_max).map_err(|error| failed(&error))?;
    let content = train::train(bodies, bytes_max).map_err(|error| failed(&error))?;
    let store =
        DictionaryFolder::open(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let saved = store.save_trained(&args.rule, pattern, &content);
    let saved = saved.map_err(|error| format!("{}: {error}", folder.display()))?;
    let (usable, kept) = (bodies.len(), content.len());
    let lines = [
        format!("{usable} samples of {asked} paths, {total} bytes"),
        format!(
            "half of them, with what the other half taught: {} bytes as they are, {} with zstd, \
             {} with the dictionary",
            held_out.identity, held_out.plain, held_out.with
        ),
        format!("{kept} bytes for {pattern}: {}", saved.display()),
    ];
    writeln!(out, "{}", lines.join("\n")).map_err(|error| failed(&error))
}

struct HeldOut {
    identity: usize,
    plain: usize,
    with: usize,
}

/// The dictionary's gain for responses that it was not trained on.
fn held_out(bodies: &[Vec<u8>], bytes_max: usize) -> Result<HeldOut, String> {
    let (mut learnt, mut tried) = (Vec::new(), Vec::new());
    for pair in bodies.chunks(2) {
        learnt.extend(pair.first().cloned());
        tried.extend(pair.get(1));
    }
    let half = train::train(&learnt, bytes_max).map_err(|error| error.to_string())?;
    let size = |dictionary: &[u8], body: &[u8]| {
        zstd::delta(dictionary, body, LEVEL).map(|coded| coded.len()).map_err(|e| e.to_string())
    };
    let mut held = HeldOut { identity: 0, plain: 0, with: 0 };
    for body in tried {
        held.identity += body.len();
        held.plain += size(b"", body)?;
        held.with += size(&half, body)? + HEADER_BYTES;
    }
    Ok(held)
}

fn upstream<'a>(config: &'a Config, name: &str) -> Result<&'a HttpUpstream, String> {
    let rule = config.rules.iter().find(|rule| rule.name == name);
    let rule = rule.ok_or_else(|| format!("no rule has the name \"{name}\""))?;
    match rule.action {
        Action::Terminate(Terminate { upstream: TerminateUpstream::Http(http), .. }) => Ok(http),
        _ => Err(format!("rule \"{name}\" has no HTTP upstream")),
    }
}

fn visits(args: &TrainArgs, config: &Config) -> Result<Vec<Visit>, String> {
    let failed = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    match (&args.from, args.live, &config.log.access) {
        (Some(path), _, _) => log::read(path, &args.rule).map_err(|error| failed(path, error)),
        (None, Some(time), Access::File(path)) => {
            log::follow(path, &args.rule, time).map_err(|error| failed(path, error))
        }
        (None, _, _) => Err("--live follows the file of `access` in [log]; it names none".into()),
    }
}

/// The most requested paths, each once.
fn pick(visits: Vec<Visit>, args: &TrainArgs) -> Vec<Visit> {
    let mut counts: HashMap<Visit, usize> = HashMap::new();
    for visit in visits {
        if args.queries || !visit.path.contains('?') {
            *counts.entry(visit).or_default() += 1;
        }
    }
    let mut picked: Vec<(Visit, usize)> = counts.into_iter().collect();
    picked.sort_by(|(a, more), (b, less)| less.cmp(more).then_with(|| a.path.cmp(&b.path)));
    picked.into_iter().take(SAMPLES_MAX).map(|(visit, _)| visit).collect()
}

/// The common prefix as a pattern: `/api/*` for `/api/1` and `/api/2`.
fn in_common(paths: &[&str]) -> String {
    let bare = |path: &str| path.split('?').next().unwrap_or_default().to_owned();
    let mut common = paths.first().map(|path| bare(path)).unwrap_or_default();
    for path in paths {
        let path = bare(path);
        let same = common.bytes().zip(path.bytes()).take_while(|(a, b)| a == b).count();
        common.truncate(same);
    }
    let end = common.rfind('/').map_or(0, |at| at + 1);
    format!("/{}*", common.get(..end).unwrap_or_default().trim_start_matches('/'))
}

/// In bytes. The first 32 KiB give three quarters of the gain of 112 KiB. Each client downloads all
/// of it once.
const DICTIONARY_BYTES: usize = 112 << 10;
const DICTIONARY_BYTES_MIN: usize = 1 << 10;
/// Bytes of samples for each byte of the dictionary. With fewer it would memorize them.
const SAMPLES_A_BYTE: usize = 4;
/// Most samples: the trainer reads all of them several times.
const SAMPLES_MAX: usize = 4_000;
/// The zstd level of responses.
const LEVEL: i32 = 9;
/// The bytes of a dcz header.
const HEADER_BYTES: usize = 40;

#[cfg(test)]
mod tests;
