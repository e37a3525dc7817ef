//! Files and folders that other users may have prepared. Opening never blocks, the kind of file is
//! checked, and reading has a limit.

use std::fs::{File, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{self, AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

/// Flags for every open. Without O_NONBLOCK the open of a FIFO waits for its other end. Without
/// O_NOCTTY a terminal may become this process's controlling terminal.
const OPEN: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Opens a regular file to read it. Anything else is an error that names its kind.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_with_metadata(path).map(|(file, _)| file)
}

fn open_with_metadata(path: &Path) -> io::Result<(File, Metadata)> {
    let file = File::from(fs::open(path, OPEN | OFlags::RDONLY, Mode::empty())?);
    let metadata = file.metadata()?;
    check_regular(&metadata)?;
    Ok((file, metadata))
}

/// The mode of a regular file. Anything else is an error that names its kind. The file is not
/// opened: whoever reads it learns whether it may.
pub fn regular_mode(path: &Path) -> io::Result<u32> {
    let metadata = std::fs::metadata(path)?;
    check_regular(&metadata)?;
    Ok(metadata.mode())
}

/// Reads a regular file of at most `bytes_max` bytes. A larger one is [`ErrorKind::FileTooLarge`].
/// The content is read into one allocation, so that a key leaves no copies behind.
pub fn read_regular(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let (file, metadata) = open_with_metadata(path)?;
    read(&file, metadata.len(), bytes_max)
}

/// Reads a text as [`read_regular`] does. A byte order mark is removed. UTF-16 is an error.
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_stamped_text(path, bytes_max).map(|(text, _)| text)
}

/// Reads a text as [`read_text`] does. The stamp is the one that the file had before.
pub fn read_stamped_text(path: &Path, bytes_max: u64) -> io::Result<(Vec<u8>, Stamp)> {
    let (file, metadata) = open_with_metadata(path)?;
    let stamp = Stamp::of(&metadata, SystemTime::now());
    let mut text = read(&file, metadata.len(), bytes_max)?;
    match text.as_slice() {
        [0xef, 0xbb, 0xbf, ..] => drop(text.drain(..3)),
        // With a byte order mark, or an ASCII character first.
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, 1..=255, ..] | [1..=255, 0, ..] => {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "it is UTF-16; expected UTF-8: iconv -f UTF-16 -t UTF-8",
            ));
        }
        _ => {}
    }
    Ok((text, stamp))
}

/// A version of a file, to notice that a path leads to another file or to other contents. It is a
/// digest of the device, the inode, the length and both times of change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamp(Option<std::num::NonZeroU64>);

impl Stamp {
    /// The stamp of the file that a path leads to, through all links.
    pub fn at(path: &Path) -> Self {
        std::fs::metadata(path).map_or_else(|_| Self(None), |m| Self::of(&m, SystemTime::now()))
    }

    fn of(metadata: &Metadata, now: SystemTime) -> Self {
        let changed = Duration::from_secs(metadata.ctime().try_into().unwrap_or(u64::MAX));
        let since = SystemTime::UNIX_EPOCH.checked_add(changed);
        let since = since.and_then(|changed| now.duration_since(changed).ok());
        if since.is_none_or(|since| since < UNSETTLED) {
            return Self(None);
        }
        let mut hasher = DefaultHasher::new();
        (metadata.dev(), metadata.ino(), metadata.len()).hash(&mut hasher);
        (metadata.mtime(), metadata.mtime_nsec()).hash(&mut hasher);
        (metadata.ctime(), metadata.ctime_nsec()).hash(&mut hasher);
        Self(std::num::NonZeroU64::new(hasher.finish()))
    }

    /// True if both are certainly the same version. A missing file, and one that has just changed,
    /// equals nothing.
    pub fn is_same(self, other: Self) -> bool {
        self.0.is_some() && self.0 == other.0
    }
}

/// A file that changed this recently may change again without a new time: some file systems count
/// two seconds (FAT), others the ticks of the kernel's clock.
const UNSETTLED: Duration = Duration::from_secs(3);

fn read(file: &File, length: u64, bytes_max: u64) -> io::Result<Vec<u8>> {
    let too_large =
        || io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {bytes_max} bytes"));
    if length > bytes_max {
        return Err(too_large());
    }
    // One byte more than its length, so that the end is found without growing.
    let room = usize::try_from(length).map_err(|_| too_large())?.saturating_add(1);
    let mut content = Vec::with_capacity(room);
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut content)?;
    // The file may have grown since its length was read.
    if content.len() as u64 > bytes_max { Err(too_large()) } else { Ok(content) }
}

fn check_regular(metadata: &Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let what = kind_name(metadata);
    let kind = if metadata.is_dir() { ErrorKind::IsADirectory } else { ErrorKind::InvalidInput };
    Err(io::Error::new(kind, format!("it is {what}; expected a regular file")))
}

fn kind_name(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    }
}

/// A log that is open for appending.
#[derive(Debug)]
pub struct LogFile {
    /// Writes block while a FIFO's reader is slow.
    pub file: File,
    /// True if it is a FIFO without a reader so far.
    pub is_unread: bool,
}

/// Opens a file, a FIFO, a terminal or /dev/null for appending. A missing file is created.
///
/// A FIFO is opened for reading, too. So the open does not wait for a reader, and a reader that
/// restarts misses no line that fits the FIFO.
pub fn open_log(path: &Path) -> io::Result<LogFile> {
    let write = OPEN | OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
    let opened = fs::open(path, write, mode).map(File::from);
    let is_unread = matches!(opened, Err(Errno::NXIO));
    let file = match opened {
        // fifo(7): ENXIO means that there is no reader. A socket gives the same error, and fails
        // below.
        Err(Errno::NXIO) => open_fifo(path)?,
        Err(error) => return Err(error.into()),
        Ok(file) => {
            let metadata = file.metadata()?;
            let kind = metadata.file_type();
            let is_null = || metadata.rdev() == fs::makedev(1, 3);
            if kind.is_fifo() {
                // `file` stays open until this open is done: a FIFO without a writer would end its
                // reader.
                open_fifo(path)?
            } else if kind.is_file() || kind.is_char_device() && (is_null() || file.is_terminal()) {
                file
            } else {
                return Err(not_a_log(kind_name(&metadata)));
            }
        }
    };
    let flags = fs::fcntl_getfl(&file)?;
    fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(LogFile { file, is_unread })
}

fn open_fifo(path: &Path) -> io::Result<File> {
    let file = File::from(fs::open(path, OPEN | OFlags::RDWR, Mode::empty())?);
    let metadata = file.metadata()?;
    if metadata.file_type().is_fifo() { Ok(file) } else { Err(not_a_log(kind_name(&metadata))) }
}

fn not_a_log(what: &str) -> io::Error {
    let message = format!("it is {what}; expected a file, a FIFO, a terminal or /dev/null");
    io::Error::new(ErrorKind::InvalidInput, message)
}

/// A folder that this process's user owns and no other user may write to. Names are looked up in
/// the open folder, whatever happens to its path.
#[derive(Debug)]
pub struct OwnFolder(OwnedFd);

impl OwnFolder {
    /// Opens the folder, and creates it for this user alone if it is missing. A link in its place
    /// is not followed: whoever can write to the parent could replace it.
    pub fn open(path: &Path) -> io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let flags = OPEN | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        // Without its trailing slash, which would make the kernel follow a link.
        let name: std::path::PathBuf = path.components().collect();
        let folder = fs::open(&name, flags, Mode::empty()).map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP if name.is_symlink() => {
                io::Error::new(ErrorKind::InvalidInput, "it is a symbolic link; expected a folder")
            }
            error => error.into(),
        });
        let folder = File::from(folder?);
        let metadata = folder.metadata()?;
        let user = rustix::process::geteuid().as_raw();
        let refuse = |message| Err(io::Error::new(ErrorKind::PermissionDenied, message));
        if metadata.uid() != user {
            let owner = metadata.uid();
            return refuse(format!(
                "user {owner} owns the folder; this process runs as user {user}"
            ));
        }
        if metadata.mode() & OTHERS_WRITE != 0 {
            let mode = metadata.mode() & 0o7777;
            return refuse(format!("others may write to the folder (mode {mode:o}); chmod 700 it"));
        }
        Ok(Self(folder.into()))
    }

    /// Opens as [`OwnFolder::open`], and no other user may look into it.
    pub fn open_private(path: &Path) -> io::Result<Self> {
        let folder = Self::open(path)?;
        check_private(fs::fstat(&folder.0)?.st_mode, "look into the folder", 700)?;
        Ok(folder)
    }

    /// Reads a file as [`OwnFolder::read`] that this process's user owns and no other user may
    /// read.
    pub fn read_private(&self, name: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
        let flags = OPEN | OFlags::RDONLY | OFlags::NOFOLLOW;
        let file = File::from(fs::openat(&self.0, name, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        check_regular(&metadata)?;
        let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
        if owner != user {
            let message = format!("user {owner} owns {name}; this process runs as user {user}");
            return Err(io::Error::new(ErrorKind::PermissionDenied, message));
        }
        check_private(metadata.mode(), &format!("read {name}"), 600)?;
        read(&file, metadata.len(), bytes_max)
    }

    /// The names in the folder that are UTF-8.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
        }
        names.retain(|name| name != "." && name != "..");
        Ok(names)
    }

    /// Reads a regular file of at most `bytes_max` bytes. A link is not followed.
    pub fn read(&self, name: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
        let flags = OPEN | OFlags::RDONLY | OFlags::NOFOLLOW;
        let file = File::from(fs::openat(&self.0, name, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        check_regular(&metadata)?;
        read(&file, metadata.len(), bytes_max)
    }

    /// Returns the age of a file since its last change. A time in the future is none.
    pub fn age(&self, name: &str) -> io::Result<Duration> {
        let stat = fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let changed = Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0));
        Ok(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().saturating_sub(changed))
    }

    /// Writes a file completely or not at all: first under the name `beside`, which is then renamed
    /// to `name`. After a failure, such as a full disk, `beside` does not exist.
    pub fn write(&self, name: &str, beside: &str, content: &[u8]) -> io::Result<()> {
        let replace = || Ok(fs::renameat(&self.0, beside, &self.0, name)?);
        self.write_beside(beside, content, Kept::Always, replace)
    }

    /// Writes a file that may be lost with the machine's power, or be damaged then. Nothing
    /// waits for the disk.
    pub fn write_unsynced(&self, name: &str, beside: &str, content: &[u8]) -> io::Result<()> {
        let replace = || Ok(fs::renameat(&self.0, beside, &self.0, name)?);
        self.write_beside(beside, content, Kept::WithPower, replace)
    }

    /// Writes as [`OwnFolder::write`], but only if there is no such file. `false`: there is one,
    /// and it stays. Of several processes one wins (link(2)). Each needs its own `beside`.
    pub fn create(&self, name: &str, beside: &str, content: &[u8]) -> io::Result<bool> {
        let mut is_first = true;
        let link = || match fs::linkat(&self.0, beside, &self.0, name, AtFlags::empty()) {
            Err(Errno::EXIST) => {
                is_first = false;
                Ok(())
            }
            linked => Ok(linked?),
        };
        self.write_beside(beside, content, Kept::Always, link)?;
        self.remove(beside)?;
        Ok(is_first)
    }

    /// Writes the file `beside`, and has it put in its place.
    fn write_beside(
        &self,
        beside: &str,
        content: &[u8],
        kept: Kept,
        place: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        // An old file there is left from a crash, or is a trap: a link is removed, not its target.
        self.remove(beside)?;
        let flags = OPEN | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mut file = File::from(fs::openat(&self.0, beside, flags, Mode::RUSR | Mode::WUSR)?);
        let write = || {
            file.write_all(content)?;
            if kept == Kept::Always {
                file.sync_all()?;
            }
            place()
        };
        let written = write();
        if let Err(error) = written {
            // The first error says more than an error of the clean-up.
            let _ = self.remove(beside);
            return Err(error);
        }
        match kept {
            Kept::Always => Ok(fs::fsync(self.0.as_fd())?),
            Kept::WithPower => Ok(()),
        }
    }

    /// Removes a file. A missing one is no error.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match fs::unlinkat(&self.0, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Durability of a file: whether it outlasts the machine's power.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Always,
    WithPower,
}

fn check_private(mode: u32, what: &str, expected: u32) -> io::Result<()> {
    if mode & OTHERS == 0 {
        return Ok(());
    }
    let mode = mode & 0o7777;
    let message = format!("others may {what} (mode {mode:o}); chmod {expected} it");
    Err(io::Error::new(ErrorKind::PermissionDenied, message))
}

/// Mode bits of the group and of others.
const OTHERS: u32 = 0o077;
/// Mode bits by which the group and others may write.
const OTHERS_WRITE: u32 = 0o022;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use super::*;

    /// A folder for one test.
    fn folder(name: &str) -> PathBuf {
        let name = format!("eyelet-sys-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        path
    }

    fn fifo(path: &Path) {
        let mode = Mode::RUSR | Mode::WUSR;
        fs::mknodat(fs::CWD, path, fs::FileType::Fifo, mode, 0).unwrap();
    }

    #[test]
    fn only_regular_files_are_read_and_only_up_to_the_limit() {
        let folder = folder("read");
        std::fs::write(folder.join("file"), b"12345").unwrap();
        fifo(&folder.join("fifo"));
        assert_eq!(read_regular(&folder.join("file"), 5).unwrap(), b"12345");
        let kind = |path: &Path, max| read_regular(path, max).unwrap_err().kind();
        assert_eq!(kind(&folder.join("file"), 4), ErrorKind::FileTooLarge);
        assert_eq!(kind(&folder.join("fifo"), 9), ErrorKind::InvalidInput);
        assert_eq!(kind(Path::new("/dev/zero"), 9), ErrorKind::InvalidInput);
        assert_eq!(kind(&folder, 9), ErrorKind::IsADirectory);
        // A file whose length is 0 although it has content.
        assert_eq!(kind(Path::new("/proc/self/status"), 9), ErrorKind::FileTooLarge);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_text_has_no_byte_order_mark() {
        let folder = folder("mark");
        let file = folder.join("file");
        let read = |text: &[u8]| {
            std::fs::write(&file, text).unwrap();
            read_text(&file, 100)
        };
        for text in ["", "a", "name", "\u{fe}\u{ff}"] {
            assert_eq!(read(text.as_bytes()).unwrap(), text.as_bytes());
            assert_eq!(read(format!("\u{feff}{text}").as_bytes()).unwrap(), text.as_bytes());
        }
        let units: Vec<u16> = "name".encode_utf16().collect();
        for units in [&units[..], &[&[0xfeff], &units[..]].concat()] {
            for bytes in [u16::to_be_bytes, u16::to_le_bytes] {
                let text: Vec<u8> = units.iter().flat_map(|unit| bytes(*unit)).collect();
                assert_eq!(read(&text).unwrap_err().kind(), ErrorKind::InvalidData, "{text:x?}");
            }
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_stamp_says_whether_a_path_leads_to_the_same_contents() {
        let folder = folder("stamp");
        let (one, two, link) = (folder.join("one"), folder.join("two"), folder.join("link"));
        std::fs::write(&one, b"1").unwrap();
        std::fs::write(&two, b"1").unwrap();
        symlink("one", &link).unwrap();
        let later = || SystemTime::now() + 2 * UNSETTLED;
        let stamp = |path: &Path| Stamp::of(&std::fs::metadata(path).unwrap(), later());
        assert!(stamp(&link).is_same(stamp(&one)));
        assert!(!stamp(&two).is_same(stamp(&one)), "another file with the same contents");
        let before = stamp(&one);
        std::fs::write(&one, b"12").unwrap();
        assert!(!stamp(&one).is_same(before));
        // It has just changed, so it may change again within the same tick of the clock.
        assert!(!Stamp::at(&one).is_same(Stamp::at(&one)));
        assert!(!Stamp::at(&folder.join("none")).is_same(Stamp::at(&folder.join("none"))));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_log_opens_without_a_reader_and_only_where_it_can_be_written() {
        let folder = folder("log");
        fifo(&folder.join("fifo"));
        let opened = open_log(&folder.join("fifo")).unwrap();
        assert!(opened.is_unread);
        // Now it has a reader: the one that `open_log` opened.
        assert!(!open_log(&folder.join("fifo")).unwrap().is_unread);
        assert!(!open_log(&folder.join("new")).unwrap().is_unread);
        assert!(!open_log(Path::new("/dev/null")).unwrap().is_unread);
        assert!(open_log(Path::new("/dev/zero")).is_err());
        assert!(open_log(&folder).is_err());
        let _socket = std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap();
        assert!(open_log(&folder.join("socket")).is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_not_ours() {
        let folder = folder("mode");
        for (mode, is_ours) in [(0o777, false), (0o775, false), (0o755, true), (0o700, true)] {
            std::fs::set_permissions(&folder, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(OwnFolder::open(&folder).is_ok(), is_ours, "{mode:o}");
        }
        let made = folder.join("made/here");
        OwnFolder::open(&made).unwrap();
        assert_eq!(std::fs::metadata(&made).unwrap().mode() & 0o777, 0o700);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let folder = folder("private");
        let own = OwnFolder::open(&folder).unwrap();
        own.write("key", "key.new", b"secret").unwrap();
        assert_eq!(own.read_private("key", 9).unwrap(), b"secret");
        let chmod = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        for (mode, is_private) in [(0o640, false), (0o604, false), (0o400, true)] {
            chmod(&folder.join("key"), mode);
            assert_eq!(own.read_private("key", 9).is_ok(), is_private, "{mode:o}");
        }
        for (mode, is_private) in [(0o755, false), (0o711, false), (0o700, true)] {
            chmod(&folder, mode);
            assert_eq!(OwnFolder::open_private(&folder).is_ok(), is_private, "{mode:o}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_link_that_was_planted_is_not_followed() {
        let folder = folder("links");
        let (outside, inside) = (folder.join("outside"), folder.join("inside"));
        std::fs::write(&outside, b"precious").unwrap();
        let own = OwnFolder::open(&inside).unwrap();
        symlink(&outside, inside.join("one.new")).unwrap();
        symlink(&outside, inside.join("two")).unwrap();
        fifo(&inside.join("three"));
        own.write("one", "one.new", b"content").unwrap();
        assert_eq!(std::fs::read(&outside).unwrap(), b"precious");
        assert_eq!(own.read("one", 100).unwrap(), b"content");
        assert!(own.read("two", 100).is_err());
        assert!(own.read("three", 100).is_err());
        own.remove("two").unwrap();
        own.remove("two").unwrap();
        let mut names = own.names().unwrap();
        names.sort_unstable();
        assert_eq!(names, ["one", "three"]);
        assert!(outside.exists());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_link_in_place_of_the_folder_is_not_followed() {
        let folder = folder("link");
        let (own, link) = (folder.join("own"), folder.join("link"));
        OwnFolder::open(&own).unwrap();
        symlink(&own, &link).unwrap();
        for path in [link.clone(), link.join("")] {
            let error = OwnFolder::open(&path).unwrap_err();
            assert!(error.to_string().contains("it is a symbolic link"), "{error}");
        }
        // A parent folder may be a link.
        OwnFolder::open(&folder.join("own/../own")).unwrap();
        symlink(&folder, own.join("above")).unwrap();
        OwnFolder::open(&own.join("above/own")).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn of_several_that_create_a_file_one_is_first() {
        let folder = folder("create");
        let own = OwnFolder::open(&folder).unwrap();
        assert!(own.create("name", "a.new", b"first").unwrap());
        assert!(!own.create("name", "b.new", b"second").unwrap());
        assert_eq!(own.read("name", 100).unwrap(), b"first");
        assert_eq!(own.names().unwrap(), ["name"]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_write_that_fails_leaves_nothing_beside() {
        let folder = folder("full");
        let own = OwnFolder::open(&folder).unwrap();
        // A name that cannot be replaced: it is a directory.
        std::fs::create_dir(folder.join("taken")).unwrap();
        assert!(own.write("taken", "taken.new", b"content").is_err());
        assert_eq!(own.names().unwrap(), ["taken"]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
