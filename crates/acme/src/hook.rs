//! Runs the operator's command that makes and removes the DNS record of an order. It has a
//! deadline, and is killed at its end with what it has left in its process group.

use std::io::{self, PipeReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use eyelet_sys::child::ProcessGroup;
use eyelet_sys::pipe::never_wait;
use tokio::sync::oneshot;

use crate::error::AcmeError;

/// Time for a run of the hook, until the record is there for everybody.
pub const HOOK_TIMEOUT: Duration = Duration::from_secs(100);
/// Time between two looks whether the hook has ended.
const STEP: Duration = Duration::from_millis(20);
/// Bytes of its output that a failure shows: the last ones.
const OUTPUT_BYTES_MAX: usize = 2 << 10;
/// Pieces of its output that are read at a look. What writes on without an end holds up nothing.
const PIECES_MAX: usize = 256;

/// A record that the hook has made. Dropping it has the hook remove the record.
pub struct HookRecord {
    /// The thread waits for its end.
    _removes: Sender<()>,
}

/// The reason why a run of the hook was in vain.
enum HookFault {
    NotStarted(String),
    Failed(String),
}

impl HookRecord {
    /// Has the hook make a TXT record of this name and value.
    ///
    /// # Errors
    /// The hook's fault, with its output.
    pub async fn make(words: &[String], name: &str, value: &str) -> Result<Self, AcmeError> {
        let (removes, removed) = mpsc::channel();
        let (told, is_made) = oneshot::channel();
        let (words, name, value) = (words.to_vec(), name.to_owned(), value.to_owned());
        let body = move || {
            let record = (&*name, &*value);
            let made = run(&words, "set", record, HOOK_TIMEOUT);
            let is_started = !matches!(made, Err(HookFault::NotStarted(_)));
            // Nobody listens once the order is given up.
            let _ = told.send(made.map_err(HookFault::into_text));
            // Until the order has ended.
            let _ = removed.recv();
            if is_started && let Err(fault) = run(&words, "unset", record, HOOK_TIMEOUT) {
                tracing::warn!("[acme] {}: the record {name} stays", fault.into_text());
            }
        };
        // The kernel ends a hook with the thread that has started it.
        thread::Builder::new()
            .name("acme-hook".into())
            .spawn(body)
            .map_err(|why| AcmeError::Hook(format!("the hook has no thread: {why}")))?;
        let ended = || Err("the thread of the hook has ended".into());
        is_made.await.unwrap_or_else(|_| ended()).map_err(AcmeError::Hook)?;
        Ok(Self { _removes: removes })
    }
}

impl HookFault {
    fn into_text(self) -> String {
        let (Self::NotStarted(text) | Self::Failed(text)) = self;
        text
    }
}

fn run(
    words: &[String],
    action: &str,
    (name, value): (&str, &str),
    time_max: Duration,
) -> Result<(), HookFault> {
    let shown = words.first().map_or("", String::as_str);
    let not_started =
        |why: io::Error| HookFault::NotStarted(format!("the hook {shown} cannot be run: {why}"));
    let (output, into) = io::pipe().map_err(not_started)?;
    never_wait(&output).map_err(not_started)?;
    let mut output = Output { pipe: output, tail: Vec::new() };
    let also_into = into.try_clone().map_err(not_started)?;
    let mut command = Command::new(shown);
    command.args(words.get(1..).unwrap_or_default());
    command.env("EYELET_ACME_ACTION", action);
    command.env("EYELET_ACME_NAME", name).env("EYELET_ACME_VALUE", value);
    command.stdin(Stdio::null()).stdout(into).stderr(also_into);
    let ends = Instant::now() + time_max;
    let mut group = ProcessGroup::start(&mut command).map_err(not_started)?;
    // It has this process's ends of the pipe.
    drop(command);
    let why = loop {
        match group.leader().try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => break format!("has failed: {status}"),
            Ok(None) if Instant::now() >= ends => {
                break format!("takes longer than {} s", time_max.as_secs());
            }
            Ok(None) => {}
            Err(why) => break format!("cannot be waited for: {why}"),
        }
        output.read();
        thread::sleep(STEP);
    };
    drop(group);
    output.read();
    Err(HookFault::Failed(format!(
        "the hook {shown} ({action}) {why}{}",
        output_text(&output.tail)
    )))
}

/// The pipe that the hook writes into, and the end of what it has written.
struct Output {
    pipe: PipeReader,
    tail: Vec<u8>,
}

impl Output {
    /// Reads what is there. A process that has left the group may keep the pipe open, so that
    /// nothing waits for its end.
    fn read(&mut self) {
        let mut piece = [0; 4096];
        for _ in 0..PIECES_MAX {
            let Ok(length @ 1..) = self.pipe.read(&mut piece) else { return };
            self.tail.extend_from_slice(&piece[..length]);
            self.tail.drain(..self.tail.len().saturating_sub(OUTPUT_BYTES_MAX));
        }
    }
}

/// The output as a part of one line.
fn output_text(tail: &[u8]) -> String {
    let text = String::from_utf8_lossy(tail);
    let printed = |c: char| if c.is_control() { ' ' } else { c };
    let lines = text.lines().map(|line| line.chars().map(printed).collect::<String>());
    let lines: Vec<String> = lines.filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() { String::new() } else { format!(": {}", lines.join(" | ")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn sh(script: &str, time_max: Duration) -> Result<(), String> {
        let words = ["sh", "-c", script, "sh", "an argument"].map(str::to_owned);
        let record = ("_acme-challenge.app.test", "a-value");
        run(&words, "set", record, time_max).map_err(HookFault::into_text)
    }

    #[test]
    fn a_hook_has_its_arguments_and_the_record() {
        let script = "test \"$1 $EYELET_ACME_ACTION $EYELET_ACME_NAME $EYELET_ACME_VALUE\" = \
                      'an argument set _acme-challenge.app.test a-value'";
        assert_eq!(sh(script, HOOK_TIMEOUT), Ok(()));
        let much = "head -c 1000000 /dev/zero; true";
        assert_eq!(sh(much, HOOK_TIMEOUT), Ok(()), "its output does not stop it");
    }

    #[test]
    fn a_failure_shows_the_end_of_the_output() {
        let failed = sh("echo one; printf 'two\\033[1m\\n' >&2; exit 3", HOOK_TIMEOUT).unwrap_err();
        assert_eq!(failed, "the hook sh (set) has failed: exit status: 3: one | two [1m");
        let failed = sh("head -c 100000 /dev/zero | tr '\\0' a; echo end; exit 1", HOOK_TIMEOUT);
        let failed = failed.unwrap_err();
        assert!(failed.len() < 2 * OUTPUT_BYTES_MAX && failed.ends_with("aaend"), "{failed}");
        let absent = run(&["/nowhere/hook".into()], "set", ("", ""), HOOK_TIMEOUT);
        let absent = absent.map_err(HookFault::into_text).unwrap_err();
        assert!(absent.starts_with("the hook /nowhere/hook cannot be run: No such file"));
    }

    #[test]
    fn a_late_hook_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("echo began; sleep 600 & echo $! >{}; wait", pid.display());
        let late = sh(&script, Duration::from_secs(1)).unwrap_err();
        assert_eq!(late, "the hook sh (set) takes longer than 1 s: began");
        let pid = std::fs::read_to_string(pid).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        let ends = Instant::now() + Duration::from_secs(10);
        // Its parent is gone: it may be a zombie until the first process reaps it.
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(Instant::now() < ends, "the child lives");
            thread::sleep(STEP);
        }
    }

    /// A process that calls setsid(2) is not killed with the group, and may write for ever.
    #[test]
    fn a_process_that_left_the_group_holds_up_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let leaves = format!(
            "setsid sh -c 'trap \"\" PIPE; echo $$ >{0}; while :; do echo y; done' & \
             while ! test -s {0}; do sleep 0.01; done;",
            pid.display()
        );
        for (end, is_good) in [("exit 0", true), ("exit 1", false), ("sleep 600", false)] {
            let began = Instant::now();
            let ended = sh(&format!("{leaves} {end}"), Duration::from_secs(3));
            let left = std::fs::read_to_string(&pid).unwrap();
            let killed = Command::new("kill").args(["-KILL", left.trim()]).status().unwrap();
            assert!(killed.success(), "{end}: it had left the group");
            assert_eq!(ended.is_ok(), is_good, "{end}: {ended:?}");
            assert!(began.elapsed() < Duration::from_secs(30), "{end}");
            std::fs::remove_file(&pid).unwrap();
        }
    }
}
