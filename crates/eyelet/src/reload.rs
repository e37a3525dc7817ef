//! A reload: reads the file, checks it in full, and has all workers serve by it. A mistake changes
//! nothing.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::check::MISTAKES;
use crate::serve::Running;
use eyelet_config::{Depth, load};

/// How long all workers may take until they serve by the new configuration: one iteration of their
/// event loops, and half a second for the queue of a removed listener.
pub const SERVED_TIMEOUT: Duration = Duration::from_secs(10);
/// How often this is checked.
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

/// Makes an edge serve by the current contents of `file`.
pub async fn reload(running: &mut Running, file: &Path) -> ReloadOutcome {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let loaded = match load(file, Depth::Full) {
        Ok(loaded) => loaded,
        Err(mistakes) => {
            mistakes.iter().for_each(|mistake| _ = writeln!(text, "{mistake}"));
            return ReloadOutcome { code: MISTAKES, text };
        }
    };
    loaded.warnings.iter().for_each(|warning| _ = writeln!(text, "{warning}"));
    let reloaded = match running.reload(loaded.config) {
        Ok(reloaded) => reloaded,
        Err(error) => {
            return ReloadOutcome::failed(format_args!("{error}: nothing has changed"));
        }
    };
    for key in &reloaded.unchanged {
        let _ = writeln!(text, "{}: `{key}` needs a restart; it stays as it was", file.display());
    }
    let end = Instant::now() + SERVED_TIMEOUT;
    while !running.is_served(reloaded.generation) {
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
    running.tidy();
    let _ = writeln!(text, "{}: configuration {} serves", file.display(), reloaded.generation);
    ReloadOutcome { code: 0, text }
}
