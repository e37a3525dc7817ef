//! Children of this process: their process groups, their end, and what they leave behind.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::process::{
    Pid, Resource, WaitOptions, kill_process, kill_process_group, set_child_subreaper, setrlimit,
    waitpid,
};

use crate::process;

pub use rustix::process::Signal;

/// Makes a command the leader of its own process group, which the kernel sends SIGTERM when the
/// thread that starts it ends: also if this process is killed. It gets the limit of descriptors
/// that this process was started with: a program that calls select(2), or closes every descriptor
/// up to its limit, does not expect a raised one.
pub fn lead_group(command: &mut Command) {
    command.process_group(0);
    let limit = process::inherited_descriptor_limit();
    let begin = move || {
        if set_parent_death_signal() != 0 {
            return Err(io::Error::last_os_error());
        }
        match limit {
            Some(limit) => Ok(setrlimit(Resource::Nofile, limit)?),
            None => Ok(()),
        }
    };
    // SAFETY: between fork and exec the closure makes two system calls, which are
    // async-signal-safe; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(begin) };
}

/// A command and what it has started. All of it ends with this value, but who has left the group.
pub struct ProcessGroup(Child);

impl ProcessGroup {
    /// Starts a command as the leader of its own group.
    ///
    /// # Errors
    /// The kernel's, or there is no such program.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        lead_group(command);
        command.spawn().map(Self)
    }

    /// The command itself.
    pub fn leader(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // An ended group cannot be signalled.
        let _ = signal_group(self.0.id(), Signal::KILL);
        let _ = self.0.wait();
    }
}

fn set_parent_death_signal() -> libc::c_int {
    // SAFETY: PR_SET_PDEATHSIG takes one number, and no pointer.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) }
}

/// Makes processes whose parents have ended, among all descendants, children of this process.
///
/// # Errors
/// If the kernel cannot (before 3.4).
pub fn adopt_orphans() -> io::Result<()> {
    // Any process id turns it on: the kernel looks only whether there is one.
    Ok(set_child_subreaper(Some(Pid::INIT))?)
}

/// Waits until a child has ended. It stays a zombie, so that its number stays its own. All other
/// children that end meanwhile are reaped: nobody else waits for orphans.
///
/// # Errors
/// If this process has no child.
pub fn wait_for_end(child: u32) -> io::Result<()> {
    loop {
        match ended_child() {
            Ok(ended) if ended == child => return Ok(()),
            Ok(ended) => reap(ended),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until any child has ended. It stays a zombie.
fn ended_child() -> io::Result<u32> {
    let options = libc::WEXITED | libc::WNOWAIT;
    // SAFETY: siginfo_t is plain memory, for which zeros are valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is a siginfo_t that waitid may write.
    if unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, options) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: waitid has succeeded, so it has filled in the fields of SIGCHLD.
    let ended = unsafe { info.si_pid() };
    u32::try_from(ended).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Frees the number of a child that has ended. Does nothing if it has not, or is no child.
pub fn reap(child: u32) {
    if let Ok(pid) = pid(child) {
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

/// Sends a signal to all processes of a group.
///
/// # Errors
/// If there is none, or none that this user may signal.
pub fn signal_group(leader: u32, signal: Signal) -> io::Result<()> {
    Ok(kill_process_group(pid(leader)?, signal)?)
}

/// Sends a signal to a process.
///
/// # Errors
/// If there is none, or this user may not signal it.
pub fn signal(process: u32, signal: Signal) -> io::Result<()> {
    Ok(kill_process(pid(process)?, signal)?)
}

fn pid(number: u32) -> io::Result<Pid> {
    let number = i32::try_from(number).ok().and_then(Pid::from_raw);
    number.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_group_is_signalled_and_its_leader_stays_until_it_is_reaped() {
        // The kernel looks at older children first, so this one is found before the leader.
        let mut other = Command::new("true").spawn().unwrap();
        let mut command = Command::new("sleep");
        command.arg("600");
        lead_group(&mut command);
        let mut child = command.spawn().unwrap();
        let stat = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/stat"));
        while !stat(other.id()).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        signal_group(child.id(), Signal::TERM).unwrap();
        wait_for_end(child.id()).unwrap();
        assert!(other.wait().is_err(), "the other child was reaped");
        let stat = stat(child.id()).unwrap();
        assert!(stat.contains(") Z "), "{stat}");
        assert!(child.wait().unwrap().code().is_none(), "it ended by a signal");
        assert!(wait_for_end(child.id()).is_err());
        assert!(pid(0).is_err() && pid(u32::MAX).is_err());
    }
}
