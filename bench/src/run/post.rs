//! The measuring process's end of a crowd: orders go out, results come in, one a line.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout};

use crate::board::Sample;
use crate::child::Child;

/// A crowd and the two pipes to it.
pub struct Post {
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Connections that it has opened.
    pub opened: usize,
    // The last field: dropping it kills the crowd.
    child: Child,
}

impl Post {
    /// Takes the pipes of a started crowd.
    pub fn new(mut child: Child) -> io::Result<Self> {
        let (orders, answers) = child.pipes().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { orders, answers: BufReader::new(answers), opened: 0, child })
    }

    /// Writes one order.
    pub fn order(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.orders, "{line}")?;
        self.orders.flush()
    }

    /// Reads one result, as words.
    pub fn answer(&mut self) -> io::Result<Vec<String>> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            let words = self.child.close_with();
            return Err(io::Error::other(format!("a crowd ended: {words}")));
        }
        Ok(line.split_whitespace().map(str::to_owned).collect())
    }

    /// Waits until all its connections are open.
    pub fn await_ready(&mut self, sample: &mut Sample) -> io::Result<()> {
        loop {
            let words = self.answer()?;
            self.opened = number(&words, 1);
            match words.first().map(String::as_str) {
                Some("ready") => {
                    let failed: usize = number(&words, 2);
                    sample.errors += failed as u64;
                    if failed > 0 && sample.first_error.is_none() {
                        sample.first_error = words.get(3).cloned();
                    }
                    return Ok(());
                }
                _ => eprintln!("crowd {}: {} opened", self.child.pid(), self.opened),
            }
        }
    }
}

/// The number at a position; 0 if there is none.
pub fn number(words: &[String], at: usize) -> usize {
    words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Counts the connections of all crowds that are alive.
pub fn alive(crowds: &mut [Post]) -> io::Result<usize> {
    for crowd in &mut *crowds {
        crowd.order("alive")?;
    }
    let mut all = 0;
    for crowd in crowds {
        all += number(&crowd.answer()?, 1);
    }
    Ok(all)
}

/// Counts the connections of all crowds that answer a request. Each changes its keys first.
pub fn answered(crowds: &mut [Post]) -> io::Result<usize> {
    for crowd in &mut *crowds {
        crowd.order("ask")?;
    }
    let mut all = 0;
    for crowd in crowds {
        all += number(&crowd.answer()?, 2);
    }
    Ok(all)
}
