//! Waits for changes of files, by watching their folders (inotify). Another thread may end a wait.

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// Returns the setting that an error of [`Inotify`] is about, in brackets. The system's own words
/// for these limits are about disks and files.
pub fn hint(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC) => " (raise fs.inotify.max_user_watches)",
        Some(Errno::MFILE) => " (raise fs.inotify.max_user_instances, or ulimit -n)",
        _ => "",
    }
}

/// Everything that makes a name lead to another file or to other contents. A file that is written
/// counts when it is closed. `ATTRIB`: a file that could not be read may be readable now.
/// `MASK_ADD`: a folder that is watched already keeps its other events.
const EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::MASK_ADD);
/// The events that end the writing of a file, or lead the name elsewhere.
const WHOLE: ReadFlags = ReadFlags::CLOSE_WRITE
    .union(ReadFlags::MOVED_FROM)
    .union(ReadFlags::MOVED_TO)
    .union(ReadFlags::DELETE);

/// Bytes of one read: about 100 events. One event has at most 16 bytes and a name of 256.
const READ_BYTES: usize = 4 << 10;
/// Most events of one wait, so that a busy folder cannot keep its caller from its other work.
const EVENTS_MAX: usize = 4096;

/// Watched folders.
#[derive(Debug)]
pub struct Inotify {
    events: OwnedFd,
    stop: Arc<OwnedFd>,
}

/// A watched folder. A folder that is watched twice, by whatever path, has one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatchedFolder(i32);

/// An event.
#[derive(Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// This name in a folder may lead to something else.
    Name(WatchedFolder, &'a OsStr, Contents),
    /// A folder is gone or has moved, or events were lost: anything may have changed.
    Unknown,
}

/// The news of an event about a file's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Somebody writes it, and has not closed it. Only [`Inotify::watch_writes`] has this.
    Partial,
    /// Its writer has closed it, or another file has this name, or none.
    Whole,
    /// A file was made with this name. It may have contents already, from another folder.
    New,
    /// Nothing.
    Unsaid,
}

/// Ends waits, from any thread.
#[derive(Clone, Debug)]
pub struct WaitEnder(Arc<OwnedFd>);

impl WaitEnder {
    /// Ends the wait under way, or else the next one.
    pub fn end(&self) {
        // This fails only if the count is full, and then the wait ends anyway.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

impl Inotify {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// If the user has too many of them (`fs.inotify.max_user_instances`).
    pub fn new() -> io::Result<Self> {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { events, stop: Arc::new(stop) })
    }

    /// Ends waits of this value.
    pub fn ender(&self) -> WaitEnder {
        WaitEnder(self.stop.clone())
    }

    /// Watches the names in a folder.
    ///
    /// # Errors
    /// If there is no such folder, or the user watches too many (`fs.inotify.max_user_watches`).
    pub fn watch(&self, folder: &Path) -> io::Result<WatchedFolder> {
        self.add(folder, EVENTS)
    }

    /// Watches the names in a folder and each write to a file in it, until the folder is forgotten.
    ///
    /// # Errors
    /// As [`Inotify::watch`].
    pub fn watch_writes(&self, folder: &Path) -> io::Result<WatchedFolder> {
        self.add(folder, EVENTS | WatchFlags::MODIFY)
    }

    fn add(&self, folder: &Path, events: WatchFlags) -> io::Result<WatchedFolder> {
        Ok(WatchedFolder(inotify::add_watch(&self.events, folder, events)?))
    }

    /// Ends the watch of a folder.
    pub fn forget(&self, folder: WatchedFolder) {
        // The kernel has ended it already if the folder is gone.
        let _ = inotify::remove_watch(&self.events, folder.0);
    }

    /// Waits for events, at most this long, and passes them on.
    ///
    /// # Errors
    /// If the system cannot wait, which is not expected.
    pub fn wait(&self, timeout: Duration, mut note: impl FnMut(Change<'_>)) -> io::Result<()> {
        let fds =
            &mut [PollFd::new(&self.events, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
        let timeout = Timespec::try_from(timeout).ok();
        match poll(fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // The count is of no use; reading it sets it to 0.
        let _ = rustix::io::read(self.stop.as_fd(), &mut [0; 8]);
        let mut bytes = [MaybeUninit::uninit(); READ_BYTES];
        let mut reader = Reader::new(&self.events, &mut bytes);
        for left in (0..EVENTS_MAX).rev() {
            if left == 0 {
                // What the reader still holds is lost.
                note(Change::Unknown);
                break;
            }
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => return Err(error.into()),
            };
            // The kernel's answer to `forget`, and its last word about a folder that is gone.
            if event.events().contains(ReadFlags::IGNORED) {
                continue;
            }
            note(match event.file_name() {
                Some(name) => {
                    let contents = contents_after(event.events());
                    let name = OsStr::from_bytes(name.to_bytes());
                    Change::Name(WatchedFolder(event.wd()), name, contents)
                }
                None => Change::Unknown,
            });
        }
        Ok(())
    }
}

fn contents_after(event: ReadFlags) -> Contents {
    match () {
        () if event.contains(ReadFlags::MODIFY) => Contents::Partial,
        () if event.intersects(WHOLE) => Contents::Whole,
        () if event.contains(ReadFlags::CREATE) => Contents::New,
        () => Contents::Unsaid,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::*;

    #[test]
    fn limits_are_named_by_their_settings() {
        assert!(hint(&Errno::NOSPC.into()).contains("fs.inotify.max_user_watches"));
        assert!(hint(&Errno::MFILE.into()).contains("fs.inotify.max_user_instances"));
        assert_eq!(hint(&Errno::ACCESS.into()), "");
    }

    #[test]
    fn names_of_a_folder_are_told_and_a_wait_can_be_ended() {
        let name = format!("eyelet-sys-inotify-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let inotify = Inotify::new().unwrap();
        let watched = inotify.watch(&folder).unwrap();
        assert_eq!(inotify.watch(&folder.join(".")).unwrap(), watched);
        let long = Duration::from_secs(60);
        let mut seen = Vec::new();
        fs::write(folder.join("file"), "1").unwrap();
        inotify
            .wait(long, |change| match change {
                Change::Name(folder, name, _) => seen.push((folder, name.to_owned())),
                Change::Unknown => panic!("a name is known"),
            })
            .unwrap();
        assert!(seen.iter().all(|(folder, name)| *folder == watched && name == "file"), "{seen:?}");
        assert!(!seen.is_empty());
        let ender = inotify.ender();
        let thread = std::thread::spawn(move || ender.end());
        inotify.wait(long, |change| panic!("{change:?}")).unwrap();
        thread.join().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let mut is_gone = false;
        inotify.wait(long, |change| is_gone |= change == Change::Unknown).unwrap();
        assert!(is_gone);
        assert!(inotify.watch(&folder).is_err());
    }
}
