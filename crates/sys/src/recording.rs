//! Messages with descriptors that outlive the process that sends them: the bytes in a sealed memfd,
//! the descriptors in the queues of Unix sockets. A service manager keeps both.
//!
//! A message whose descriptors nobody has received yet keeps them open, as long as somebody holds
//! the socket that it waits in. So a carrier, which is such a socket, stands for thousands of
//! descriptors.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::net::sockopt;

use crate::channel::{BODY_BYTES_MAX, Channel, DESCRIPTORS_MAX, Received, is_trusted};
use crate::process;

/// Messages in one carrier. Each takes about 1 KiB of the socket's send buffer, which has 208 KiB
/// by default (`net.core.wmem_default`), and sending must not wait.
const CARRIER_MESSAGES_MAX: usize = 64;
/// Most bytes of a recording: a million connections, each with as much state as a busy one has.
const RECORDING_BYTES_MAX: u64 = 1 << 30;
/// Room for a message's descriptors and for the short messages after the last large one.
const END_BYTES: usize = 64 << 10;
/// The time that a carrier may take to accept a message. It has room for all of its messages.
const CARRIER_TIMEOUT: Duration = Duration::from_secs(1);

/// The first bytes of a recording: a magic number and the version of the frames.
const MAGIC: [u8; 5] = *b"EYST\x01";
/// Before each body: the kind, the number of descriptors and the length of the body, in big-endian
/// order. The cookies of the descriptors follow.
const FRAME_BYTES: usize = 1 + 2 + 4;
/// Bytes of a socket's cookie.
const COOKIE_BYTES: usize = 8;
/// The kind of a frame that names the carrier of the frames behind it, by its cookie.
const CARRIER: u8 = 0;
/// The seals of a whole recording: nobody can change it any more, and nobody can undo that.
const SEALS: SealFlags =
    SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// A recording that is being written.
pub struct Recorder {
    file: File,
    bytes: u64,
    /// The carrier to which descriptors go now, and the number of messages that still fit there.
    open: Option<(Channel, usize)>,
    carriers: Vec<OwnedFd>,
    carriers_max: usize,
    /// Keeps as many descriptors on their way as a message has at most. The kernel compares the
    /// number on its way before it adds a message (ETOOMANYREFS, unix(7)), so the recording may
    /// exceed the limit by one. Without these it does not: the carriers themselves can be sent.
    reserve: (Channel, OwnedFd),
}

impl Recorder {
    /// An empty recording, which has at most so many descriptors itself: two or more.
    ///
    /// # Errors
    /// `StorageFull` if the user has too many descriptors on their way, or the kernel's.
    pub fn new(descriptors_max: usize) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Linux before 6.3 does not know NOEXEC_SEAL.
        let memfd = memfd_create("eyelet-connections", flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| memfd_create("eyelet-connections", flags))?;
        let (file, carriers_max) = (File::from(memfd), descriptors_max.saturating_sub(1));
        let mut reserve = Channel::pair()?;
        let copies = [file.as_fd(); DESCRIPTORS_MAX];
        reserve.0.send_unheard(CARRIER, &copies, CARRIER_TIMEOUT)?;
        let (open, carriers) = (None, Vec::new());
        let mut recorder = Self { file, bytes: 0, open, carriers, carriers_max, reserve };
        recorder.write(&MAGIC)?;
        Ok(recorder)
    }

    /// Appends a message. Its descriptors, which must be sockets, stay open as long as the
    /// recording.
    ///
    /// # Errors
    /// `StorageFull` if it has no room for the message, or if the user has as many descriptors on
    /// their way as one process may have open; `InvalidInput` for a message above the limits; or
    /// the kernel's. The recording has all messages before this one, and others may follow.
    pub fn send(
        &mut self,
        kind: u8,
        body: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let is_large = descriptors.len() > DESCRIPTORS_MAX || body.len() > BODY_BYTES_MAX;
        if kind == CARRIER || is_large {
            return Err(io::Error::new(ErrorKind::InvalidInput, "no message of a recording"));
        }
        if self.bytes + (body.len() + END_BYTES) as u64 > RECORDING_BYTES_MAX {
            return Err(full(String::from("their states would take more than 1 GiB")));
        }
        if !descriptors.is_empty() {
            let (carrier, messages_left) = self.carrier()?;
            match carrier.send_unheard(kind, descriptors, CARRIER_TIMEOUT) {
                Ok(()) => *messages_left -= 1,
                Err(error) if error.kind() == ErrorKind::StorageFull => return Err(error),
                Err(error) => {
                    self.open = None;
                    return Err(error);
                }
            }
        }
        let framed = self.frame(kind, body, descriptors);
        if framed.is_err() {
            // It has descriptors without a frame.
            self.open = None;
        }
        framed
    }

    /// Has the descriptors of the next messages go into another carrier: one that is read later
    /// than what is there already.
    pub fn end_carrier(&mut self) {
        self.open = None;
    }

    /// The carrier of the next message.
    fn carrier(&mut self) -> io::Result<&mut (Channel, usize)> {
        if self.open.as_ref().is_none_or(|(_, messages_left)| *messages_left == 0) {
            if self.carriers.len() >= self.carriers_max {
                let own = self.carriers_max + 1;
                return Err(full(format!("FileDescriptorStoreMax={own} is too small")));
            }
            let (channel, carrier) = Channel::pair()?;
            self.frame(CARRIER, &[], &[carrier.as_fd()])?;
            self.carriers.push(carrier);
            self.open = None;
            return Ok(self.open.insert((channel, CARRIER_MESSAGES_MAX)));
        }
        self.open.as_mut().ok_or_else(|| ErrorKind::StorageFull.into())
    }

    fn frame(&mut self, kind: u8, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut head = [0; FRAME_BYTES];
        let (descriptor_count, body_bytes) = (descriptors.len() as u16, body.len() as u32);
        head[0] = kind;
        head[1..3].copy_from_slice(&descriptor_count.to_be_bytes());
        head[3..].copy_from_slice(&body_bytes.to_be_bytes());
        let mut cookies = Vec::with_capacity(descriptors.len() * COOKIE_BYTES);
        for descriptor in descriptors {
            cookies.extend(sockopt::socket_cookie(descriptor)?.to_be_bytes());
        }
        let before = self.bytes;
        let written =
            self.write(&head).and_then(|()| self.write(&cookies)).and_then(|()| self.write(body));
        if written.is_err() {
            // The next frame is written over it.
            self.bytes = before;
        }
        written
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Seals the recording. Returns its descriptors for who keeps it: first the one with the bytes,
    /// then the carriers in their order.
    ///
    /// # Errors
    /// The kernel's.
    pub fn finish(self) -> io::Result<Vec<OwnedFd>> {
        drop(self.reserve);
        // A message that failed may have left bytes.
        self.file.set_len(self.bytes)?;
        fcntl_add_seals(&self.file, SEALS)?;
        Ok(std::iter::once(self.file.into()).chain(self.carriers).collect())
    }
}

/// Recordings that are being read, one after the other.
#[derive(Debug)]
pub struct Recording {
    file: File,
    length: u64,
    /// The offset of the next frame. The file's own position is shared with all who hold it.
    at: u64,
    /// The files of the recordings that follow, with their lengths.
    others: Vec<(File, u64)>,
    carriers: Vec<(u64, OwnedFd)>,
    open: Option<Channel>,
    /// The reason why the first carrier that failed did.
    fault: Option<io::Error>,
}

impl Recording {
    /// Finds the recordings among descriptors that the service manager has kept, in any order.
    /// Closes those that are not part of one.
    ///
    /// # Errors
    /// `InvalidData` if there is none, or if one is not sealed, too large or of another version;
    /// `PermissionDenied` if another user has made it; or the kernel's error.
    pub fn open(descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let (mut files, mut carriers) = (Vec::new(), Vec::new());
        for descriptor in descriptors {
            match sockopt::socket_cookie(&descriptor) {
                Ok(cookie) => carriers.push((cookie, descriptor)),
                Err(_) => files.push(checked(File::from(descriptor))?),
            }
        }
        files.reverse();
        let (file, length) = files.pop().ok_or_else(|| invalid("there is no state"))?;
        let at = MAGIC.len() as u64;
        Ok(Self { file, length, at, others: files, carriers, open: None, fault: None })
    }

    /// Goes on with the next recording. Returns whether there is one.
    pub fn next_part(&mut self) -> bool {
        let Some((file, length)) = self.others.pop() else { return false };
        (self.file, self.length, self.at, self.open) = (file, length, MAGIC.len() as u64, None);
        true
    }

    /// Reads the next message. The body, which may be secret, goes into `body`, which must be
    /// empty: it is then allocated once and leaves no copies. The message has none of its
    /// descriptors if their carrier is lost, if an earlier process has read it, or after a
    /// [`Recording::take_fault`] of it.
    ///
    /// # Errors
    /// `UnexpectedEof` behind the last message, `InvalidData`, or the kernel's error. Nothing can
    /// be read after an error.
    pub fn receive(&mut self, body: &mut Vec<u8>) -> io::Result<Received> {
        loop {
            let [kind, d0, d1, b0, b1, b2, b3] = self.read()?;
            let count = usize::from(u16::from_be_bytes([d0, d1]));
            let body_bytes = u32::from_be_bytes([b0, b1, b2, b3]) as usize;
            if count > DESCRIPTORS_MAX || body_bytes > BODY_BYTES_MAX {
                return Err(invalid("a message is too large"));
            }
            let mut cookies = Vec::with_capacity(count);
            for _ in 0..count {
                cookies.push(u64::from_be_bytes(self.read::<COOKIE_BYTES>()?));
            }
            if kind == CARRIER {
                let cookie = cookies.first().copied().unwrap_or_default();
                let found = self.carriers.iter().position(|(known, _)| *known == cookie);
                let found = found.map(|index| self.carriers.swap_remove(index).1);
                let opened = found.map(Channel::over).transpose();
                self.open = opened.unwrap_or_else(|error| self.fails(error));
                continue;
            }
            self.fits(body_bytes)?;
            body.clear();
            body.reserve_exact(body_bytes);
            body.resize(body_bytes, 0);
            self.read_into(body)?;
            let descriptors = self.descriptors(kind, &cookies).unwrap_or_else(|error| {
                self.open = self.fails(error);
                Vec::new()
            });
            return Ok(Received { kind, descriptors });
        }
    }

    /// Takes the reason why a carrier cannot be read, since the last call: another user has made
    /// it, or a socket is not the one that was recorded. None of its further descriptors is
    /// received.
    pub fn take_fault(&mut self) -> Option<io::Error> {
        self.fault.take()
    }

    fn fails(&mut self, error: io::Error) -> Option<Channel> {
        self.fault.get_or_insert(error);
        None
    }

    /// Closes all sockets, also where somebody else still has the carriers: whoever receives them
    /// later gets none.
    pub fn close(self) {
        let others =
            self.carriers.into_iter().filter_map(|(_, carrier)| Channel::over(carrier).ok());
        for mut carrier in self.open.into_iter().chain(others) {
            for _ in 0..CARRIER_MESSAGES_MAX {
                if carrier.receive(&mut Vec::new(), Some(CARRIER_TIMEOUT)).is_err() {
                    break;
                }
            }
        }
    }

    /// The descriptors of the next message in the carrier, which must be those that were recorded.
    fn descriptors(&mut self, kind: u8, cookies: &[u64]) -> io::Result<Vec<OwnedFd>> {
        let Some(channel) = self.open.as_mut().filter(|_| !cookies.is_empty()) else {
            return Ok(Vec::new());
        };
        let received = match channel.receive(&mut Vec::new(), Some(CARRIER_TIMEOUT)) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Vec::new()),
            received => received?,
        };
        let known = received.descriptors.iter().map(sockopt::socket_cookie);
        let known = known.collect::<Result<Vec<u64>, _>>()?;
        if received.kind != kind || known != cookies {
            return Err(invalid("a socket is not the one that was recorded"));
        }
        Ok(received.descriptors)
    }

    fn fits(&self, bytes: usize) -> io::Result<()> {
        let is_there = self.at + bytes as u64 <= self.length;
        if is_there { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }

    fn read<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_into(&mut bytes)?;
        Ok(bytes)
    }

    fn read_into(&mut self, room: &mut [u8]) -> io::Result<()> {
        self.fits(room.len())?;
        self.file.read_exact_at(room, self.at)?;
        self.at += room.len() as u64;
        Ok(())
    }
}

/// The file of a whole recording, and its length.
fn checked(file: File) -> io::Result<(File, u64)> {
    // Only a file in memory that was made for it can have seals.
    if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS)) {
        return Err(invalid("the state is not sealed"));
    }
    let metadata = file.metadata()?;
    if !is_trusted(metadata.uid(), process::user()) {
        let why = format!("user {} has made the state", metadata.uid());
        return Err(io::Error::new(ErrorKind::PermissionDenied, why));
    }
    if metadata.len() > RECORDING_BYTES_MAX {
        return Err(invalid("the state is too large"));
    }
    let mut magic = [0; MAGIC.len()];
    file.read_exact_at(&mut magic, 0)?;
    if magic != MAGIC {
        return Err(invalid("the state has another format"));
    }
    Ok((file, metadata.len()))
}

fn full(why: String) -> io::Error {
    io::Error::new(ErrorKind::StorageFull, why)
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests;
