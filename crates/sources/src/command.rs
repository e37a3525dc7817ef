//! Runs a command that prints a secret: for a bounded time, with a bounded output.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use eyelet_config::SECRET_READ_BYTES_MAX;
use eyelet_secrets::SecretFault;
use eyelet_sys::child::ProcessGroup;
use zeroize::Zeroizing;

/// Time for a command. Whoever starts or reloads an edge waits for it, and so do other files.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Time between two looks whether a command that has closed its output has ended.
const STEP: Duration = Duration::from_millis(5);

/// Returns the output of a command. Its errors are shown where those of the edge are.
///
/// # Errors
/// It cannot be run, fails, takes too long, or prints too much.
pub fn output(words: &[String]) -> Result<Zeroizing<Vec<u8>>, String> {
    let (program, arguments) = words.split_first().ok_or("there is no command")?;
    let failed = |what: &str| format!("the command {program} {what}");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let ends = Instant::now() + TIME_MAX;
    let started = ProcessGroup::start(&mut command);
    let mut group = started.map_err(|why| failed(&format!("cannot be run: {why}")))?;
    let pipe = group.leader().stdout.take().ok_or_else(|| failed("has no output"))?;
    // Of one allocation: a buffer that grows leaves copies.
    let (sender, read) = mpsc::sync_channel::<io::Result<Zeroizing<Vec<u8>>>>(1);
    let read_all = move || {
        let mut bytes = Zeroizing::new(Vec::with_capacity(SECRET_READ_BYTES_MAX + 1));
        let mut pipe = pipe.take(SECRET_READ_BYTES_MAX as u64 + 1);
        let read = pipe.read_to_end(&mut bytes).map(|_| bytes);
        // Nobody listens to a command that took too long.
        let _ = sender.send(read);
    };
    let reader = thread::Builder::new().name("secret-command".into());
    reader.spawn(read_all).map_err(|why| failed(&format!("cannot be read: {why}")))?;
    let late = || failed(&format!("takes longer than {} s", TIME_MAX.as_secs()));
    let bytes = read.recv_timeout(ends.saturating_duration_since(Instant::now()));
    let bytes = bytes.map_err(|_| late())?;
    let bytes = bytes.map_err(|why| failed(&format!("cannot be read: {why}")))?;
    if bytes.len() > SECRET_READ_BYTES_MAX {
        return Err(failed(&format!("prints no secret: {}", SecretFault::Long)));
    }
    while Instant::now() < ends {
        match group.leader().try_wait() {
            Ok(Some(status)) if status.success() => return Ok(bytes),
            Ok(Some(status)) => return Err(failed(&format!("has failed: {status}"))),
            Ok(None) => thread::sleep(STEP),
            Err(why) => return Err(failed(&format!("cannot be waited for: {why}"))),
        }
    }
    Err(late())
}

/// Taken by tests that start programs, and by one whose files their children would otherwise keep
/// open.
#[cfg(test)]
pub static STARTS: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn run(words: &[&str]) -> Result<Vec<u8>, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        output(&words).map(|read| read.to_vec())
    }

    #[test]
    fn a_command_prints_a_bounded_text() {
        let _starts = STARTS.lock();
        assert_eq!(run(&["printf", "%s", "a secret"]).unwrap(), b"a secret");
        let much = run(&["head", "-c", "1000000", "/dev/zero"]).unwrap_err();
        assert!(much.contains("more than 16384 bytes"), "{much}");
        let failed = run(&["false"]).unwrap_err();
        assert_eq!(failed, "the command false has failed: exit status: 1");
        let absent = run(&["/nowhere/to/be/found"]).unwrap_err();
        assert!(absent.contains("cannot be run"), "{absent}");
        assert!(run(&[]).is_err());
    }

    #[test]
    fn a_command_that_never_ends_is_ended() {
        let _starts = STARTS.lock();
        let began = Instant::now();
        let late = run(&["sh", "-c", "echo a secret; exec sleep 600"]).unwrap_err();
        assert_eq!(late, "the command sh takes longer than 10 s");
        assert!(began.elapsed() >= TIME_MAX);
    }
}
