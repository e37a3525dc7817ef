//! The demo's status line on stderr, until the demo ends.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use eyelet_telemetry::counters::{self, CounterValues};

/// The interval at which the line is rewritten in place on a terminal.
const TERMINAL_EVERY: Duration = Duration::from_secs(1);
/// Elsewhere each status is a new line, perhaps of a log file.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// The signals that end the demo. As soon as this exists they end nothing else: what the demo has
/// made must be removed.
pub(crate) struct EndSignals {
    runtime: Runtime,
    interrupted: Signal,
    terminated: Signal,
    /// The terminal was closed.
    hung_up: Signal,
}

impl EndSignals {
    /// # Errors
    /// If signals cannot be waited for.
    pub(crate) fn catch() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (interrupted, terminated, hung_up) = {
            let _entered = runtime.enter();
            (
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
                signal(SignalKind::hangup())?,
            )
        };
        Ok(Self { runtime, interrupted, terminated, hung_up })
    }

    /// Shows the counters until a signal, also one of before, or for this time. A closed stderr
    /// does not end the demo.
    pub(crate) fn print_status(&mut self, exit_after: Option<Duration>) {
        let Self { runtime, interrupted, terminated, hung_up } = self;
        runtime.block_on(async {
            let mut line = Line::new();
            let mut every = tokio::time::interval(line.every());
            let ended = end(exit_after);
            tokio::pin!(ended);
            loop {
                tokio::select! {
                    _ = every.tick() => line.show(&status(&counters::snapshot())),
                    _ = interrupted.recv() => break,
                    _ = terminated.recv() => break,
                    _ = hung_up.recv() => break,
                    () = &mut ended => break,
                }
            }
            line.finish();
        });
    }
}

async fn end(exit_after: Option<Duration>) {
    match exit_after {
        Some(after) => tokio::time::sleep(after).await,
        None => std::future::pending().await,
    }
}

/// Prints the totals of the edge in one line.
pub(crate) fn summary() {
    let seen = counters::snapshot();
    let text = format!(
        "ended: {} accepted, {} spliced, {} terminated, {} refused, {} failed",
        seen.accepted, seen.spliced, seen.terminated, seen.refused, seen.failed,
    );
    // A closed stderr has no reader.
    let _ = writeln!(io::stderr(), "{text}");
}

fn status(seen: &CounterValues) -> String {
    let each = seen.parked_bytes.checked_div(seen.parked);
    let each = each.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
    format!(
        "connections {}, parked {} (slot and state: {each} bytes each), refused {}",
        seen.connections, seen.parked, seen.refused,
    )
}

/// The output of the status, and the present content of the terminal's line.
struct Line {
    terminal: bool,
    width: usize,
    began: Instant,
}

impl Line {
    fn new() -> Self {
        Self { terminal: io::stderr().is_terminal(), width: 0, began: Instant::now() }
    }

    const fn every(&self) -> Duration {
        if self.terminal { TERMINAL_EVERY } else { LOG_EVERY }
    }

    fn show(&mut self, text: &str) {
        let text = format!("{:>5} s  {text}", self.began.elapsed().as_secs());
        // A closed stderr has no reader; the demo continues.
        let _ = if self.terminal {
            let width = self.width.max(text.len());
            self.width = text.len();
            write!(io::stderr(), "\r{text:width$}").and_then(|()| io::stderr().flush())
        } else {
            writeln!(io::stderr(), "{text}")
        };
    }

    /// Prints the last status and ends the line.
    fn finish(&mut self) {
        self.show(&status(&counters::snapshot()));
        if self.terminal {
            let _ = writeln!(io::stderr());
        }
    }
}
