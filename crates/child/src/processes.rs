//! The processes of an application, and the sockets that they hold, from /proc.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Most processes of the machine that one look reads: `pid_max` of a common 32-bit number space.
const PROCESSES_MAX: usize = 32_768;
/// Most sockets that one look reads of a process. A server listens before it has many clients.
const DESCRIPTORS_MAX: usize = 4096;

/// The process that the kernel starts first, in a container too.
const FIRST_PROCESS: u32 = 1;

/// A process of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    parent: u32,
    group: u32,
    pub(crate) is_zombie: bool,
}

/// The processes of this machine.
pub(crate) fn all() -> Vec<Process> {
    pids().take(PROCESSES_MAX).filter_map(read).collect()
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn read(pid: u32) -> Option<Process> {
    parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses a line of /proc/PID/stat (proc(5)). The name may contain blanks and parentheses.
fn parse(pid: u32, stat: &str) -> Option<Process> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let is_zombie = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    Some(Process { pid, parent, group, is_zombie })
}

/// The processes of the group that `leader` leads, and the descendants of those.
pub(crate) fn members(leader: u32, all: &[Process]) -> HashSet<u32> {
    let is_root = |process: &&Process| process.pid == leader || process.group == leader;
    with_descendants(all.iter().filter(is_root).map(|found| found.pid).collect(), all)
}

/// `root` and all its descendants.
pub fn family(root: u32) -> Vec<u32> {
    with_descendants(HashSet::from([root]), &all()).into_iter().collect()
}

/// Returns true if this word follows the program's name in the command line of a process.
pub fn has_command(pid: u32, word: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(word.as_bytes())
}

/// The process that started this one.
pub fn parent(pid: u32) -> Option<u32> {
    Some(read(pid)?.parent)
}

fn with_descendants(mut members: HashSet<u32>, all: &[Process]) -> HashSet<u32> {
    // Each pass finds one more generation. /proc lists parents mostly before their children.
    loop {
        let before = members.len();
        for process in all {
            if members.contains(&process.parent) {
                members.insert(process.pid);
            }
        }
        if members.len() == before {
            return members;
        }
    }
}

pub(crate) fn children(parent: u32, all: &[Process]) -> HashSet<u32> {
    all.iter().filter(|process| process.parent == parent).map(|child| child.pid).collect()
}

/// Returns the processes that an application leaves when its leader has ended: its group, and the
/// orphans that `own`, this process, has adopted. `earlier` are children that `own` had before it
/// started the application: a script may have begun them and then become this process. The first
/// process of a container gets the orphans of all others, so only the group is the application's
/// there.
pub(crate) fn left_behind(
    leader: u32,
    (own, earlier): (u32, &HashSet<u32>),
    all: &[Process],
) -> Vec<Process> {
    let is_orphan = |process: &Process| {
        let is_its_own = own != FIRST_PROCESS && !earlier.contains(&process.pid);
        process.parent == own && (process.is_zombie || is_its_own)
    };
    let is_left = |process: &&Process| process.group == leader || is_orphan(process);
    all.iter().filter(is_left).cloned().collect()
}

/// The numbers of the sockets that these processes hold.
pub(crate) fn sockets(members: &HashSet<u32>) -> HashSet<u64> {
    members.iter().flat_map(|pid| sockets_of(*pid)).collect()
}

/// Those processes that hold this socket and their working folders, the oldest process first, and
/// this process and its own, in which the application was started.
pub(crate) fn folders(members: &HashSet<u32>, socket: u64) -> impl Iterator<Item = (u32, PathBuf)> {
    let mut holders: Vec<u32> =
        members.iter().copied().filter(|pid| sockets_of(*pid).contains(&socket)).collect();
    holders.sort_unstable();
    let folder = |pid| Some((pid, fs::read_link(format!("/proc/{pid}/cwd")).ok()?));
    holders.into_iter().chain([std::process::id()]).filter_map(folder)
}

/// The processes that hold one of these sockets, as far as this user may look.
pub fn holders(sockets: &HashSet<u64>) -> BTreeSet<u32> {
    let holds = |pid: &u32| links(*pid).any(|socket| sockets.contains(&socket));
    pids().filter(holds).collect()
}

fn sockets_of(pid: u32) -> Vec<u64> {
    links(pid).take(DESCRIPTORS_MAX).collect()
}

/// The sockets among the descriptors of a process.
fn links(pid: u32) -> impl Iterator<Item = u64> {
    let folder = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    folder.filter_map(|entry| socket(&fs::read_link(entry.path()).ok()?))
}

/// The number in `socket:[NUMBER]`.
fn socket(link: &Path) -> Option<u64> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, parent: u32, group: u32) -> Process {
        Process { pid, parent, group, is_zombie: false }
    }

    #[test]
    fn a_name_may_hold_anything() {
        let stat = "7 (a) Z 9 (b)) S 3 5 5 0 -1 4194560";
        assert_eq!(parse(7, stat), Some(process(7, 3, 5)));
        assert!(parse(7, "7 (gone) Z 3 5 5").is_some_and(|gone| gone.is_zombie));
        for bad in ["", "7 (a", "7 (a) S", "7 (a) S x 5"] {
            assert_eq!(parse(7, bad), None, "{bad:?}");
        }
    }

    #[test]
    fn an_application_is_a_group_and_all_that_descends_from_it() {
        let all = [
            process(1, 0, 1),
            process(40, 30, 40), // a session of its own
            process(10, 1, 10),
            process(20, 10, 10),
            process(30, 20, 30),
            process(11, 1, 11),
        ];
        assert_eq!(members(10, &all), HashSet::from([10, 20, 30, 40]));
        assert_eq!(members(99, &all), HashSet::new());
    }

    #[test]
    fn what_is_left_behind_is_the_applications() {
        let all = [
            process(20, 5, 20),  // an orphan of the application
            process(30, 5, 5),   // a job of the script that became this process
            process(40, 1, 10),  // of the group
            process(50, 40, 50), // has a parent yet
            Process { pid: 60, parent: 5, group: 5, is_zombie: true },
        ];
        let left = |own: u32, earlier: &[u32]| {
            let earlier = earlier.iter().copied().collect();
            let left = left_behind(10, (own, &earlier), &all);
            left.into_iter().map(|left| left.pid).collect::<Vec<u32>>()
        };
        assert_eq!(left(5, &[]), [20, 30, 40, 60]);
        assert_eq!(left(5, &[30, 60]), [20, 40, 60], "a zombie is reaped");
        assert_eq!(left(1, &[]), [40], "the first process of a container");
        assert_eq!(children(5, &all), HashSet::from([20, 30, 60]));
    }

    #[test]
    fn a_command_is_the_word_behind_the_program() -> std::io::Result<()> {
        let mut cat = std::process::Command::new("cat");
        let mut cat = cat.arg("-").stdin(std::process::Stdio::piped()).spawn()?;
        // Until it has executed the program it has the words of this one.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !has_command(cat.id(), "-") && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let found = [has_command(cat.id(), "-"), has_command(cat.id(), "cat")];
        cat.kill()?;
        cat.wait()?;
        assert_eq!(found, [true, false]);
        Ok(())
    }

    #[test]
    fn own_sockets_are_found() -> std::io::Result<()> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let own = HashSet::from([std::process::id()]);
        let held = sockets(&own);
        let found = crate::sockets::listening();
        let address = crate::sockets::Endpoint::Tcp(listener.local_addr()?);
        assert!(found.iter().any(|(number, at)| held.contains(number) && *at == address));
        Ok(())
    }
}
