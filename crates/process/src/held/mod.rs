//! Verdicts on held connections and requests: what waits, for people and as JSON, and how a verdict
//! is given.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use eyelet_admin::metrics::{MetricKind, Metrics};
use eyelet_admin::{KeepAsked, VerdictAsked};
use eyelet_hold::{HoldDecision, HoldQuestion, Holds, Keep, Which};
use eyelet_telemetry::held::HeldBy;
use parking_lot::Mutex;
use serde_json::{Value, json};

pub mod webhook;

/// The list where nothing waits.
pub const NOTHING_HELD: &str = "nothing is held\n";
/// Questions that a document or the terminal shows at most, the oldest first.
const LISTED_MAX: usize = 100;
/// For so long a verdict "always" also holds for those who come before the list is read again.
const REREAD: Duration = Duration::from_secs(60);
/// Most bytes of a list to which a name is added.
const LIST_BYTES_MAX: u64 = 64 << 20;

/// Held by who adds to a list.
static APPENDS: Mutex<()> = Mutex::new(());

/// Gives a verdict. Returns a line that says what it was about.
///
/// # Errors
/// The reason why there is no verdict, or why a list does not have it.
pub fn decide(
    holds: &Holds,
    which: Which<'_>,
    VerdictAsked { verdict, keep }: VerdictAsked,
    by: HeldBy,
) -> Result<String, String> {
    let is_always = matches!(keep, KeepAsked::Always);
    let keep = match keep {
        KeepAsked::Once => Keep::Once,
        KeepAsked::For(time) => Keep::For(milliseconds(time)),
        KeepAsked::Always => {
            let found = holds.found(which);
            let check = |question: &Arc<HoldQuestion>| list_of(question).map(drop);
            found.iter().try_for_each(check).map_err(|why| format!("no verdict: {why}"))?;
            Keep::For(milliseconds(REREAD))
        }
    };
    let decided = holds.decide(which, HoldDecision { verdict, by }, keep, now_unix_ms());
    let decided = decided.map_err(|fault| format!("no verdict: {fault}"))?;
    if is_always {
        let mut written = decided.questions.iter().map(|question| add_to_list(question));
        written
            .try_for_each(|written| written)
            .map_err(|why| format!("{verdict} for those who waited, but not always: {why}"))?;
    }
    let questions = &decided.questions;
    let names: Vec<String> = questions.iter().map(|question| question.key.to_string()).collect();
    let of_requests = questions.iter().all(|question| question.key.request.is_some());
    let what = if of_requests { "request" } else { "connection" };
    let (names, done) = (names.join(", "), if decided.connections == 1 { "" } else { "s" });
    let line = format!("{verdict} {names}: {} {what}{done} waited", decided.connections);
    tracing::info!("held: {line}; decided by {by}");
    Ok(line)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970, by the clock of the machine.
pub fn now_unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// The list of a question's rule, if it may have the name.
fn list_of(question: &HoldQuestion) -> Result<&Path, String> {
    let key = &question.key;
    let no_list = || format!("the rule \"{}\" has no `hold_file` to write names to", key.rule);
    if key.request.is_some() {
        return Err(format!("a list has names, and {key} is a request: allow it for a time"));
    }
    let file = question.who.file.as_deref().ok_or_else(no_list)?;
    if key.name.is_empty() || key.name.parse::<IpAddr>().is_ok() {
        return Err(format!("\"{}\" is no name, and a list has names", key.name));
    }
    fs::metadata(file).map_err(|why| format!("{}: {why}", file.display()))?;
    Ok(file)
}

/// Adds the name of a question to the list of its rule, unless the list has it. Whoever reads the
/// list meanwhile reads the one before or the one after.
fn add_to_list(question: &HoldQuestion) -> Result<(), String> {
    let file = list_of(question)?;
    // Two verdicts at once would each write a list without the other's name.
    let _one = APPENDS.lock();
    append(file, &question.key.name).map_err(|why| format!("{}: {why}", file.display()))
}

fn append(file: &Path, name: &str) -> io::Result<()> {
    let metadata = fs::metadata(file)?;
    if metadata.len() > LIST_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut text = fs::read_to_string(file)?;
    if text.lines().any(|line| line.trim().eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(name);
    text.push('\n');
    // A link stays one.
    let file = file.canonicalize()?;
    let mut beside = file.clone().into_os_string();
    beside.push(format!(".{}", std::process::id()));
    let write = || -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(metadata.mode() & 0o7777);
        let mut new = options.open(&beside)?;
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        fs::rename(&beside, &file)
    };
    write().inspect_err(|_| {
        // The first error says more than an error of the clean-up.
        let _ = fs::remove_file(&beside);
    })
}

/// Lists the open questions for a terminal.
pub fn listed(holds: &Holds) -> String {
    let (open, mut text) = (holds.open(), String::new());
    if open.is_empty() {
        return String::from(NOTHING_HELD);
    }
    let now_unix_ms = now_unix_ms();
    // Writing into a string cannot fail.
    for (question, waiting) in open.iter().take(LISTED_MAX) {
        let seconds = now_unix_ms.saturating_sub(question.since_unix_ms) / 1000;
        let program = question.who.program.as_deref().map(|program| format!(" ({program})"));
        let _ = writeln!(
            text,
            "{}  {waiting} waiting for {seconds} s, first {}{}, rule \"{}\"",
            question.key,
            question.who.client,
            program.unwrap_or_default(),
            question.key.rule,
        );
    }
    if let Some(more) = open.len().checked_sub(LISTED_MAX).filter(|more| *more > 0) {
        let _ = writeln!(text, "and {more} more");
    }
    text
}

/// Lists the open questions as JSON.
pub fn document(holds: &Holds) -> Value {
    let (open, (held, bytes)) = (holds.open(), holds.held());
    let questions: Vec<Value> = open
        .iter()
        .take(LISTED_MAX)
        .map(|(question, waiting)| {
            let mut value = asked(question);
            value["waiting"] = json!(waiting);
            let is_request = question.key.request.is_some();
            value["list"] = json!(question.who.file.is_some() && !is_request);
            value
        })
        .collect();
    json!({ "connections": held, "bytes": bytes, "questions": open.len(), "listed": questions })
}

/// Writes the metrics of what is held, and was.
pub fn write(metrics: &mut Metrics, holds: &Holds) {
    let (connections, bytes) = holds.held();
    let help = "Connections and requests that wait for a verdict.";
    metrics.gauge("held_connections", help, connections);
    metrics.gauge("held_bytes", "Bytes that they have sent, which are kept.", bytes);
    let help = "Questions that they wait on.";
    metrics.gauge("held_questions", help, holds.open().len());
    let help = "Held connections and requests that are decided, by verdict and by who gave it.";
    let mut decided = metrics.family(MetricKind::Counter, "held_decided", help);
    for (verdict, by, count) in holds.counted() {
        decided.sample(&[("verdict", verdict.name()), ("by", by.name())], count);
    }
    let help = "Connections and requests that were refused because too many were held.";
    let mut full = metrics.family(MetricKind::Counter, "held_refused", help);
    full.sample(&[], holds.refused_full());
}

/// A question, as a webhook and the page get it.
fn asked(question: &Arc<HoldQuestion>) -> Value {
    let request = question.key.request.as_deref();
    json!({
        "id": question.id,
        "rule": question.key.rule,
        "name": question.key.name,
        "port": question.key.port,
        "method": request.map(|request| &request.method),
        "path": request.map(|request| &request.path),
        "client": question.who.client,
        "program": question.who.program,
        "since_unix_ms": question.since_unix_ms,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use eyelet_hold::{HoldKey, HoldPlace, QuestionFilter, Who};
    use eyelet_telemetry::held::HeldVerdict;

    use super::*;

    const ALWAYS: VerdictAsked =
        VerdictAsked { verdict: HeldVerdict::Allow, keep: KeepAsked::Always };

    fn named(name: &str) -> Which<'_> {
        Which::Like(QuestionFilter::named(name, None))
    }

    fn ask(holds: &Arc<Holds>, name: &str, file: Option<&Path>) -> HoldPlace {
        let key = HoldKey { rule: "ask".into(), name: name.into(), port: 443, request: None };
        let (client, file) = ([127, 0, 0, 1].into(), file.map(Arc::from));
        holds.ask(key, Who { client, program: None, file }, 0, 0).unwrap()
    }

    #[test]
    fn always_adds_a_name_to_the_list_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("names.txt");
        fs::write(&file, "# names\na.example").unwrap();
        let holds = Arc::new(Holds::default());
        for name in ["b.example", "A.example", "b.example"] {
            let waiting = ask(&holds, name, Some(&file));
            if waiting.decision().is_none() {
                decide(&holds, named(name), ALWAYS, HeldBy::Terminal).unwrap();
            }
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "# names\na.example\nb.example\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside");
    }

    #[test]
    fn a_verdict_that_cannot_be_written_is_none() {
        let holds = Arc::new(Holds::default());
        let (nameless, listless) = (ask(&holds, "192.0.2.1", Some(Path::new("/"))), "a.example");
        let waiting = ask(&holds, listless, None);
        let no = |name| decide(&holds, named(name), ALWAYS, HeldBy::Page).unwrap_err();
        assert!(no(listless).contains("has no `hold_file`"));
        assert!(no("192.0.2.1").contains("is no name"));
        assert!(no("gone.example").contains("nobody waits"));
        assert_eq!((waiting.decision(), nameless.decision()), (None, None));
        assert!(listed(&holds).contains("192.0.2.1:443  1 waiting"));
    }
}
