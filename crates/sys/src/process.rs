//! The user of this process, its standard input, its limit of open descriptors, raised as far as
//! allowed, the priority of its threads, and random bytes.

use std::fs::File;
use std::io;

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::rand::GetRandomFlags;

/// The priority of a thread for which nobody waits: a tenth of another's time on a busy core. A
/// lower one would keep locks too long that it shares with workers.
const NICE: i32 = 10;
/// The limits of open descriptors before they were raised.
static DESCRIPTORS: OnceLock<Rlimit> = OnceLock::new();

/// The user whose rights the process has.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The group whose rights the process has.
pub fn group() -> u32 {
    rustix::process::getegid().as_raw()
}

/// The cgroup of a process, as a path from the root of cgroups. `None`: it has ended, or the
/// machine has no cgroups of version 2.
pub(crate) fn cgroup_of(pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(line.to_owned())
}

/// The name of this host.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Gives this thread a lower priority: what others wait for comes first. Linux has one for each
/// thread. A failure changes nothing else.
pub fn come_later() {
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// Random bytes of the kernel. `None`: it has none yet, early at boot.
pub fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let filled = rustix::rand::getrandom(&mut bytes, GetRandomFlags::NONBLOCK);
    filled.is_ok_and(|filled| filled == N).then_some(bytes)
}

/// Closes the standard input. /dev/null takes its place, so that no other file gets its number.
pub fn close_stdin() -> io::Result<()> {
    Ok(rustix::stdio::dup2_stdin(File::open("/dev/null")?)?)
}

/// Begins a session without a terminal: no signal of one reaches the process any more.
pub fn leave_terminal() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(())
}

/// Raises the soft limit of open descriptors to the hard limit. Returns the limit in force.
pub fn raise_descriptor_limit() -> u64 {
    let limit = *DESCRIPTORS.get_or_init(|| getrlimit(Resource::Nofile));
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // After a failure the old soft limit is read back.
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The limits of open descriptors that this process was started with, if they were raised.
pub(crate) fn inherited_descriptor_limit() -> Option<Rlimit> {
    DESCRIPTORS.get().copied()
}

/// Has nobody trace this process or read its memory, and no core be written: also no other process
/// of its user.
///
/// # Errors
/// The kernel's.
pub fn forbid_dumps() -> io::Result<()> {
    let never = rustix::process::DumpableBehavior::NotDumpable;
    Ok(rustix::process::set_dumpable_behavior(never)?)
}

/// Has the kernel start no program at a crash of this process and of its children: such a program
/// runs outside, with other rights, and may send their memory away. Nor is a core written: a limit
/// of one byte is the one that forbids both (core(5) has 0 for files alone).
///
/// # Errors
/// The kernel's.
pub fn forbid_crash_reports() -> io::Result<()> {
    Ok(setrlimit(Resource::Core, Rlimit { current: Some(1), maximum: Some(1) })?)
}

/// Has all descriptors but the three standard ones close when a program is executed.
///
/// # Errors
/// The kernel's, before Linux 5.11.
pub fn close_others_at_exec() -> io::Result<()> {
    let (first, last) = (3, libc::c_uint::MAX);
    // SAFETY: with CLOSE_RANGE_CLOEXEC the call closes nothing now, so no descriptor that somebody
    // owns becomes invalid.
    match unsafe { libc::close_range(first, last, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
