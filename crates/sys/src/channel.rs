//! Messages with descriptors between two processes of one user, over a Unix stream socket. Each
//! wait has a time limit.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};

use crate::process;

/// Descriptors of one message: the kernel's limit (`SCM_MAX_FD` in net/scm.h).
pub const DESCRIPTORS_MAX: usize = 253;
/// Bytes of one message's body. A batch of connections ends at a few MiB, and each connection has
/// a limit of its own.
pub const BODY_BYTES_MAX: usize = 32 << 20;
/// The time that the rest of a message may take after its first byte. The sender has the whole
/// message in its memory.
const REST_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval between two looks if the other process has received some of the descriptors. The
/// kernel allows a user as many on their way as one process may have open (ETOOMANYREFS, unix(7)).
pub(crate) const FLIGHT_STEP: Duration = Duration::from_millis(1);

/// The first bytes of each message.
const MAGIC: [u8; 4] = *b"EYHO";
/// The version of the header below. Another version is refused.
const VERSION: u8 = 1;
/// Magic, version, kind, number of descriptors and length of the body, in big-endian order.
const HEADER_BYTES: usize = 4 + 1 + 1 + 2 + 4;

/// One end of a connection to the other process.
#[derive(Debug)]
pub struct Channel(UnixStream);

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A message without its body.
#[derive(Debug)]
pub struct Received {
    /// The kind of the message. The caller gives it its meaning.
    pub kind: u8,
    /// The descriptors that came with it. They close when a program is executed.
    pub descriptors: Vec<OwnedFd>,
}

/// The fields of a header that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    kind: u8,
    descriptors: u16,
    body_bytes: u32,
}

impl Header {
    fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = self.kind;
        bytes[6..8].copy_from_slice(&self.descriptors.to_be_bytes());
        bytes[8..].copy_from_slice(&self.body_bytes.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> io::Result<Self> {
        let [m0, m1, m2, m3, version, kind, d0, d1, b0, b1, b2, b3] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(invalid("the other process speaks another protocol"));
        }
        if version != VERSION {
            let why = format!("the other process uses message version {version}, not {VERSION}");
            return Err(io::Error::new(ErrorKind::InvalidData, why));
        }
        let descriptors = u16::from_be_bytes([d0, d1]);
        let body_bytes = u32::from_be_bytes([b0, b1, b2, b3]);
        if usize::from(descriptors) > DESCRIPTORS_MAX || body_bytes as usize > BODY_BYTES_MAX {
            return Err(invalid("a message is too large"));
        }
        Ok(Self { kind, descriptors, body_bytes })
    }
}

impl Channel {
    /// A channel over a connected socket. Its other end must belong to this user or to root: the
    /// kernel says who opened it (SO_PEERCRED).
    ///
    /// # Errors
    /// `PermissionDenied` for another user, or the kernel's error if this is no Unix socket.
    pub fn over(socket: OwnedFd) -> io::Result<Self> {
        let peer = sockopt::socket_peercred(&socket)?.uid.as_raw();
        if !is_trusted(peer, process::user()) {
            let why = format!("user {peer} opened the channel");
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(false)?;
        Ok(Self(socket))
    }

    /// A channel over a socket that this process was started with, by its number. It closes when a
    /// program is executed.
    ///
    /// # Errors
    /// As [`Channel::over`], and where there is no such descriptor.
    pub fn inherited(number: u32) -> io::Result<Self> {
        let number = i32::try_from(number).map_err(|_| ErrorKind::InvalidInput)?;
        // SAFETY: the number is borrowed for the call alone, which fails where it is no descriptor.
        let inherited = unsafe { BorrowedFd::borrow_raw(number) };
        let own = fcntl_dupfd_cloexec(inherited, 0)?;
        fcntl_setfd(inherited, FdFlags::CLOEXEC)?;
        Self::over(own)
    }

    /// A channel, and a socket for the process at its other end.
    ///
    /// # Errors
    /// The kernel's.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Self::over(ours.into())?, theirs.into()))
    }

    /// Waits until the other process has sent something or has ended, or until `other` can be read.
    /// Returns whether it was not `other`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait_beside(&self, other: impl AsFd) -> io::Result<bool> {
        loop {
            let fds =
                &mut [PollFd::new(&other, PollFlags::IN), PollFd::new(&self.0, PollFlags::IN)];
            match poll(fds, None) {
                Ok(_) => return Ok(fds.first().is_none_or(|other| other.revents().is_empty())),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends both directions. The other process still receives what was sent.
    pub fn end(&self) {
        // It fails only if the other end is gone.
        let _ = self.0.shutdown(Shutdown::Both);
    }

    /// Sends a message. All of it must be accepted by the kernel within this time.
    ///
    /// # Errors
    /// `TimedOut`, `InvalidInput` for a message above the limits, or the kernel's error. The
    /// channel is of no use after an error.
    pub fn send(
        &mut self,
        kind: u8,
        body: &[u8],
        descriptors: &[BorrowedFd<'_>],
        within: Duration,
    ) -> io::Result<()> {
        self.send_by(kind, body, descriptors, (Instant::now() + within, true))
    }

    /// Sends descriptors that nobody receives before this returns. So it does not wait until fewer
    /// are on their way.
    ///
    /// # Errors
    /// The same, and `StorageFull` if too many are on their way: nothing was sent then.
    pub(crate) fn send_unheard(
        &mut self,
        kind: u8,
        descriptors: &[BorrowedFd<'_>],
        within: Duration,
    ) -> io::Result<()> {
        self.send_by(kind, &[], descriptors, (Instant::now() + within, false))
    }

    fn send_by(
        &mut self,
        kind: u8,
        body: &[u8],
        descriptors: &[BorrowedFd<'_>],
        (end, is_heard): (Instant, bool),
    ) -> io::Result<()> {
        if descriptors.len() > DESCRIPTORS_MAX || body.len() > BODY_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::InvalidInput, "the message is too large"));
        }
        let (descriptor_count, body_bytes) = (descriptors.len() as u16, body.len() as u32);
        let header = Header { kind, descriptors: descriptor_count, body_bytes }.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let sent = loop {
            self.0.set_write_timeout(Some(left(end)?))?;
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(descriptors));
            }
            let header = [IoSlice::new(&header)];
            match sendmsg(&self.0, &header, &mut control, SendFlags::NOSIGNAL) {
                Ok(sent) => break sent,
                Err(Errno::INTR) => {}
                Err(Errno::TOOMANYREFS) if is_heard => std::thread::park_timeout(FLIGHT_STEP),
                Err(Errno::TOOMANYREFS) => {
                    let why = "this user has too many descriptors on their way: LimitNOFILE=";
                    return Err(io::Error::new(ErrorKind::StorageFull, why));
                }
                Err(error) => return Err(timed(error.into())),
            }
        };
        // The descriptors went with the first byte.
        self.write(header.get(sent..).unwrap_or_default(), end)?;
        self.write(body, end)
    }

    fn write(&mut self, mut bytes: &[u8], end: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            self.0.set_write_timeout(Some(left(end)?))?;
            match self.0.write(bytes) {
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(timed(error)),
            }
        }
        Ok(())
    }

    /// Receives a message. Its first byte must arrive within this time; `None` waits until the
    /// other process sends something or ends. The body, which may be secret, goes into `body`,
    /// which must be empty: it is then allocated once and leaves no copies.
    ///
    /// # Errors
    /// `UnexpectedEof` if the other process has closed its end, `TimedOut`, `InvalidData` for
    /// anything but one whole message, or the kernel's error.
    pub fn receive(
        &mut self,
        body: &mut Vec<u8>,
        within: Option<Duration>,
    ) -> io::Result<Received> {
        let mut bytes = [0; HEADER_BYTES];
        let end = within.map(|within| Instant::now() + within);
        let (read, descriptors) = self.begin(&mut bytes, end)?;
        let end = Instant::now() + REST_TIMEOUT;
        self.read(bytes.get_mut(read..).unwrap_or_default(), end)?;
        let header = Header::decode(&bytes)?;
        if descriptors.len() != usize::from(header.descriptors) {
            return Err(invalid("a message lacks descriptors"));
        }
        body.clear();
        body.reserve_exact(header.body_bytes as usize);
        body.resize(header.body_bytes as usize, 0);
        self.read(body, end)?;
        Ok(Received { kind: header.kind, descriptors })
    }

    /// Reads the first bytes of a message and its descriptors.
    fn begin(
        &mut self,
        bytes: &mut [u8],
        end: Option<Instant>,
    ) -> io::Result<(usize, Vec<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            self.0.set_read_timeout(end.map(left).transpose()?)?;
            let mut bytes = [IoSliceMut::new(bytes)];
            match recvmsg(&self.0, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(error) => return Err(timed(error.into())),
            }
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(invalid("descriptors were lost: this process may have no more of them"));
        }
        if received.bytes == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok((received.bytes, descriptors))
    }

    fn read(&mut self, mut room: &mut [u8], end: Instant) -> io::Result<()> {
        while !room.is_empty() {
            self.0.set_read_timeout(Some(left(end)?))?;
            match self.0.read(room) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => room = room.get_mut(read..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(timed(error)),
            }
        }
        Ok(())
    }
}

/// True if a process of this user may be at the other end.
pub(crate) fn is_trusted(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

/// The time until `end`. A socket's time limit must not be 0, which means none.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// The kernel reports a time limit that has passed as EAGAIN (socket(7), SO_RCVTIMEO).
pub(crate) fn timed(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::mpsc::sync_channel;

    use rustix::process::{Resource, getrlimit};
    use rustix::thread::{Uid, set_thread_res_uid};

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    fn channels() -> (Channel, Channel) {
        let (one, other) = Channel::pair().unwrap();
        (one, Channel::over(other).unwrap())
    }

    fn error_of(bytes: &[u8]) -> ErrorKind {
        let (mut one, mut other) = channels();
        one.0.write_all(bytes).unwrap();
        drop(one);
        other.receive(&mut Vec::new(), Some(SOON)).unwrap_err().kind()
    }

    /// A socket of the channel can itself be sent to a third process.
    #[test]
    fn a_channel_goes_on_at_another_end_with_what_waits_in_it() {
        let ((mut one, other), (mut near, mut far)) = (channels(), channels());
        let (orders, order) = std::io::pipe().unwrap();
        one.send(1, b"waits", &[], SOON).unwrap();
        assert!(other.wait_beside(&orders).unwrap());
        drop(order);
        assert!(!other.wait_beside(&orders).unwrap(), "orders come first");
        near.send(2, &[], &[other.as_fd()], SOON).unwrap();
        drop(other);
        let mut sent = far.receive(&mut Vec::new(), Some(SOON)).unwrap();
        let mut other = Channel::over(sent.descriptors.pop().unwrap()).unwrap();
        one.send(3, &[], &[], SOON).unwrap();
        one.end();
        let mut body = Vec::new();
        assert_eq!(other.receive(&mut body, Some(SOON)).unwrap().kind, 1);
        assert_eq!(body, b"waits");
        assert_eq!(other.receive(&mut Vec::new(), Some(SOON)).unwrap().kind, 3);
        let ended = other.receive(&mut Vec::new(), Some(SOON)).unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_message_arrives_whole_with_its_descriptors() {
        let (mut one, mut other) = channels();
        let (near, far) = UnixStream::pair().unwrap();
        let body = vec![7; 3 << 20];
        let sender = std::thread::spawn(move || {
            let all = [far.as_fd(); DESCRIPTORS_MAX];
            one.send(1, &[], &all, SOON).unwrap();
            one.send(2, &body, &all[..1], SOON).unwrap();
            one.send(3, b"last", &[], SOON).unwrap();
            let too_many = [far.as_fd(); DESCRIPTORS_MAX + 1];
            let error = one.send(4, &[], &too_many, SOON).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        });
        let mut last = None;
        for (kind, bytes, descriptors) in [(1, 0, DESCRIPTORS_MAX), (2, 3 << 20, 1), (3, 4, 0)] {
            let mut body = Vec::new();
            let received = other.receive(&mut body, Some(SOON)).unwrap();
            assert_eq!((received.kind, body.len()), (kind, bytes));
            assert_eq!(received.descriptors.len(), descriptors);
            last = received.descriptors.into_iter().next().or(last);
        }
        sender.join().unwrap();
        let last = last.unwrap();
        let flags = rustix::io::fcntl_getfd(&last).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "a child must not inherit it");
        // The descriptor is the same socket.
        UnixStream::from(last).write_all(b"x").unwrap();
        (&near).read_exact(&mut [0]).unwrap();
        let end = other.receive(&mut Vec::new(), Some(SOON)).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn nothing_but_a_whole_message_is_accepted() {
        let header = Header { kind: 1, descriptors: 0, body_bytes: 4 }.encode();
        let changed = |at: usize, byte: u8| {
            let mut header = header.to_vec();
            header[at] = byte;
            header.extend(b"body");
            header
        };
        assert_eq!(error_of(&[]), ErrorKind::UnexpectedEof);
        assert_eq!(error_of(&header[..5]), ErrorKind::UnexpectedEof);
        assert_eq!(error_of(&[&header[..], b"bod"].concat()), ErrorKind::UnexpectedEof);
        assert_eq!(error_of(&changed(0, b'X')), ErrorKind::InvalidData);
        assert_eq!(error_of(&changed(4, 2)), ErrorKind::InvalidData);
        // Descriptors that are announced and not sent.
        assert_eq!(error_of(&changed(7, 1)), ErrorKind::InvalidData);
        // More than the limits.
        assert_eq!(error_of(&changed(6, 1)), ErrorKind::InvalidData);
        assert_eq!(error_of(&changed(8, 3)), ErrorKind::InvalidData);
    }

    /// Whatever a header says, receiving ends with an error or with what it says.
    #[test]
    fn no_header_is_too_strange() {
        let good = Header { kind: 1, descriptors: 0, body_bytes: 4 }.encode();
        for at in 0..HEADER_BYTES {
            for byte in [0, 1, 2, 3, 4, b'X', 0x7f, 0x80, 0xff] {
                let mut header = good;
                header[at] = byte;
                let (mut one, mut other) = channels();
                one.0.write_all(&[&header[..], b"body"].concat()).unwrap();
                drop(one);
                let mut body = Vec::new();
                if other.receive(&mut body, Some(SOON)).is_ok() {
                    let is_same = header == good || at == 5;
                    assert!(is_same || body.len() < 4, "{at} {byte}");
                }
            }
        }
    }

    #[test]
    fn waits_end() {
        let (mut one, mut other) = channels();
        let short = Duration::from_millis(20);
        let error = other.receive(&mut Vec::new(), Some(short)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let error = one.send(1, &vec![0; 8 << 20], &[], short).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    /// The kernel counts what is on its way for each user, and lets only root exceed the limit.
    #[test]
    fn more_descriptors_than_may_be_on_their_way_are_sent_one_after_the_other() {
        const MESSAGES_MAX: usize = 100;
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) as usize;
        let allowed = (limit / DESCRIPTORS_MAX).min(MESSAGES_MAX);
        let (mut one, mut other) = channels();
        let (near, far) = UnixStream::pair().unwrap();
        let (sent, is_sent) = sync_channel(MESSAGES_MAX + 3);
        let sender = std::thread::spawn(move || {
            if process::user() == 0 {
                let nobody = Uid::from_raw(65_534);
                set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            for _ in 0..allowed + 3 {
                one.send(1, &[], &[far.as_fd(); DESCRIPTORS_MAX], SOON).unwrap();
                sent.send(()).unwrap();
            }
        });
        assert_eq!(is_sent.iter().take(allowed).count(), allowed);
        for _ in 0..allowed + 3 {
            let received = other.receive(&mut Vec::new(), Some(SOON)).unwrap();
            assert_eq!(received.descriptors.len(), DESCRIPTORS_MAX);
        }
        sender.join().unwrap();
        drop(near);
    }

    #[test]
    fn only_this_user_and_root_are_trusted() {
        for (peer, own, expected) in [(0, 0, true), (7, 7, true), (0, 7, true), (7, 0, false)] {
            assert_eq!(is_trusted(peer, own), expected, "{peer} {own}");
        }
        assert!(Channel::over(std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into()).is_err());
    }
}
