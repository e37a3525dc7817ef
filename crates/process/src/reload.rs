//! A reload: reads the file, checks it in full, and has all workers serve by it. A mistake changes
//! nothing.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::serve::{Preparation, PreparedReload, Running};
use eyelet_config::{Depth, load_next};
use eyelet_edge::snapshot::check::MISTAKES;

/// The time that all workers may take until they serve by the new configuration: one iteration of
/// their event loops, and half a second for the queue of a removed listener.
pub const SERVED_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which this is checked.
pub const SERVED_STEP: Duration = Duration::from_millis(2);

/// The result of a reload.
#[derive(Debug, PartialEq, Eq)]
pub struct ReloadOutcome {
    /// 0: the new configuration serves. 2: the file has mistakes. 1: anything else is wrong.
    pub code: u8,
    /// The message, in whole lines.
    pub text: String,
}

impl ReloadOutcome {
    /// Nothing has changed, for this reason.
    pub fn failed(why: impl std::fmt::Display) -> Self {
        Self { code: 1, text: format!("{why}\n") }
    }
}

/// Makes an edge serve by the current contents of `file`. Dropping the future leaves the edge as it
/// is, or with the new configuration.
pub async fn reload(running: &mut Running, file: &Path) -> ReloadOutcome {
    let mut text = String::new();
    let prepared = match prepare(running.preparation(), file.to_owned(), &mut text).await {
        Ok(prepared) => prepared,
        Err(outcome) => return outcome,
    };
    let reloaded = match running.reload(prepared) {
        Ok(reloaded) => reloaded,
        Err(error) => return unchanged(&error),
    };
    // Writing into a string cannot fail.
    for key in &reloaded.unchanged {
        let file = file.display();
        let _ = writeln!(
            text,
            "{file}: `{key}` stays as it was: `eyelet upgrade {file}` changes it and keeps \
             connections",
        );
    }
    let end = Instant::now() + SERVED_TIMEOUT;
    while !running.tidy() {
        if Instant::now() >= end {
            let waited = SERVED_TIMEOUT.as_secs();
            let _ = writeln!(
                text,
                "{}: configuration {} is taken over, but a worker has not done so after {waited} s",
                file.display(),
                reloaded.generation,
            );
            return ReloadOutcome { code: 1, text };
        }
        sleep(SERVED_STEP).await;
    }
    let _ = writeln!(text, "{}: configuration {} serves", file.display(), reloaded.generation);
    ReloadOutcome { code: 0, text }
}

/// Reads the file, and those that it names, on a thread of its own: signals are heard meanwhile,
/// however slow the disk is. Warnings are added to `text`.
async fn prepare(
    preparation: Preparation,
    file: PathBuf,
    text: &mut String,
) -> Result<PreparedReload, ReloadOutcome> {
    let (done, prepared) = oneshot::channel();
    let thread = std::thread::Builder::new().name("reload".into());
    let spawned = thread.spawn(move || {
        let unchanged = preparation.unchanged();
        let prepared = load_next(&file, Depth::Full, preparation.served(), unchanged)
            .map(|loaded| (loaded.warnings, preparation.run(loaded.config)));
        // Nobody waits for it any more if the edge drains.
        let _ = done.send(prepared);
    });
    if let Err(error) = spawned {
        return Err(unchanged(&error));
    }
    match prepared.await {
        Ok(Ok((warnings, prepared))) => {
            warnings.iter().for_each(|warning| _ = writeln!(text, "{warning}"));
            prepared.map_err(|error| unchanged(&error))
        }
        Ok(Err(mistakes)) => {
            mistakes.iter().for_each(|mistake| _ = writeln!(text, "{mistake}"));
            Err(ReloadOutcome { code: MISTAKES, text: std::mem::take(text) })
        }
        Err(_) => Err(unchanged(&"internal error")),
    }
}

fn unchanged(why: &dyn std::fmt::Display) -> ReloadOutcome {
    ReloadOutcome::failed(format_args!("{why}: nothing has changed"))
}
