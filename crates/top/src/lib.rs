//! `eyelet top`: what an edge does now, in a terminal. It asks the edge's admin server for its
//! documents once a second, and draws them.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod figures;
mod frame;
mod log;
mod metrics;
mod screen;
mod source;
mod text;
mod totals;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Args;

use figures::{Figures, SortOrder};
use frame::Size;
use log::LogTail;
use screen::{KeyPress, Screen};
use source::{AdminSource, SourceError};

/// Between two questions to the edge.
const PERIOD: Duration = Duration::from_secs(1);
/// Connections that are asked for: as many as the tallest terminal shows.
const CONNECTIONS_MAX: usize = 100;
/// The size of a frame for scripts, where the output is no terminal: the classic terminal's.
const PLAIN: Size = Size { columns: 80, rows: 24 };

/// Arguments of `eyelet top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// The configuration of the edge; its `[admin]` says where to ask
    #[arg(required_unless_present = "socket")]
    pub file: Option<PathBuf>,
    /// Ask at this Unix socket instead
    #[arg(long, value_name = "PATH", conflicts_with = "file")]
    pub socket: Option<PathBuf>,
    /// Print one frame as text, after a second, and end
    #[arg(long)]
    pub once: bool,
}

/// Shows an edge until the user or a signal ends it. Status: 0, 1 if the edge does not answer at
/// the start, 2 if the configuration says nowhere to ask.
pub fn run(args: &TopArgs, out: &mut impl Write) -> ExitCode {
    let shown = find(args).and_then(|source| match args.once {
        true => once(&source, out),
        false => live(&source, out),
    });
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        // Its reader has seen enough.
        Err(SourceError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("eyelet: {error}");
            ExitCode::from(error.status())
        }
    }
}

fn find(args: &TopArgs) -> Result<AdminSource, SourceError> {
    match (&args.socket, &args.file) {
        (Some(path), _) => Ok(AdminSource::Unix(path.clone())),
        (None, Some(file)) => AdminSource::of(file),
        (None, None) => Err(SourceError::Nowhere),
    }
}

/// Two looks a second apart, so that there are rates.
fn once(source: &AdminSource, out: &mut impl Write) -> Result<(), SourceError> {
    let earlier = Figures::ask(source, SortOrder::Age, CONNECTIONS_MAX, None)?;
    let log = LogTail::follow(source);
    thread::sleep(PERIOD);
    let mut figures = Figures::ask(source, SortOrder::Age, CONNECTIONS_MAX, Some(&earlier))?;
    figures.log = log.lines();
    let size = if io::stdout().is_terminal() { screen::size().unwrap_or(PLAIN) } else { PLAIN };
    for line in frame::draw(&figures, size, SortOrder::Age, None) {
        writeln!(out, "{}", line.text.trim_end())?;
    }
    Ok(())
}

fn live(source: &AdminSource, out: &mut impl Write) -> Result<(), SourceError> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(SourceError::NoTerminal);
    }
    let mut order = SortOrder::Age;
    // An edge that does not answer now is a mistake; one that stops to do so may come back.
    let mut figures = Figures::ask(source, order, CONNECTIONS_MAX, None)?;
    let mut error = None;
    let log = LogTail::follow(source);
    let mut screen = Screen::open(out)?;
    loop {
        let size = screen::size().unwrap_or(PLAIN);
        figures.log = log.lines();
        screen.draw(&frame::draw(&figures, size, order, error.as_deref()), size)?;
        match screen.wait(PERIOD)? {
            Some(KeyPress::Quit) => return Ok(()),
            Some(KeyPress::Sort) => order = order.next(),
            Some(KeyPress::Redraw) => continue,
            None => {}
        }
        match Figures::ask(source, order, CONNECTIONS_MAX, Some(&figures)) {
            Ok(newer) => (figures, error) = (newer, None),
            Err(no_answer) => error = Some(no_answer.to_string()),
        }
    }
}
