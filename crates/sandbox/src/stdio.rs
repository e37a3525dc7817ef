//! The three standard descriptors of a command. A socket leads out, and so does a folder, from
//! which every path of the host can be reached.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};

use rustix::fs::{FileType, fstat};

use crate::step::{ConfineStep, SandboxError};

/// Bytes that are copied at once: the capacity of a pipe.
const COPY_BYTES: usize = 64 << 10;

/// The threads that copy between sockets of this process and pipes of the command.
#[derive(Debug, Default)]
pub(crate) struct Copies(Vec<JoinHandle<()>>);

impl Copies {
    /// Waits until all that the command has written was passed on. It must have ended.
    pub(crate) fn finish(&mut self) {
        for copy in self.0.drain(..) {
            // A copy that has panicked has nothing more to pass on.
            let _ = copy.join();
        }
    }
}

/// Gives `program` pipes in place of sockets.
///
/// # Errors
/// The kernel's, and `InvalidInput` for a descriptor that is no file, pipe, terminal or socket.
pub(crate) fn confine(program: &mut Command) -> Result<Copies, SandboxError> {
    let mut copies = Copies::default();
    for number in 0..3 {
        let at = |error| SandboxError::about(ConfineStep::Descriptors, number)(error);
        match number {
            0 if is_socket(io::stdin().as_fd()).map_err(at)? => {
                let (theirs, ours) = io::pipe().map_err(at)?;
                program.stdin(Stdio::from(theirs));
                // It waits for its socket to end, which the command need not see.
                copy(io::stdin().as_fd(), ours.into(), true).map_err(at)?;
            }
            1 if is_socket(io::stdout().as_fd()).map_err(at)? => {
                let (ours, theirs) = io::pipe().map_err(at)?;
                program.stdout(Stdio::from(theirs));
                copies.0.push(copy(io::stdout().as_fd(), ours.into(), false).map_err(at)?);
            }
            2 if is_socket(io::stderr().as_fd()).map_err(at)? => {
                let (ours, theirs) = io::pipe().map_err(at)?;
                program.stderr(Stdio::from(theirs));
                copies.0.push(copy(io::stderr().as_fd(), ours.into(), false).map_err(at)?);
            }
            _ => {}
        }
    }
    Ok(copies)
}

fn is_socket(standard: BorrowedFd<'_>) -> io::Result<bool> {
    let stat = match fstat(standard) {
        Ok(stat) => stat,
        // It is closed. Programs open something in its place.
        Err(rustix::io::Errno::BADF) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => Ok(true),
        FileType::RegularFile | FileType::Fifo | FileType::CharacterDevice => Ok(false),
        other => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("it is a {other:?}; expected a file, a pipe, a terminal or a socket"),
        )),
    }
}

/// Copies from a socket to a pipe, or from a pipe to a socket, on a thread of its own.
fn copy(socket: BorrowedFd<'_>, pipe: OwnedFd, to_pipe: bool) -> io::Result<JoinHandle<()>> {
    let (socket, pipe) = (File::from(socket.try_clone_to_owned()?), File::from(pipe));
    thread::Builder::new().name("sandbox-stdio".into()).spawn(move || {
        // It ends when either side is gone, as the command would see it.
        let _ = if to_pipe { pass(socket, pipe) } else { pass(pipe, socket) };
    })
}

/// Copies until the end. [`io::copy`] would splice: the kernel then holds the pipe while it waits
/// for the socket, and who reads the pipe, or closes it, cannot even be killed.
fn pass(mut from: File, mut to: File) -> io::Result<()> {
    let mut bytes = vec![0; COPY_BYTES];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(read) => to.write_all(bytes.get(..read).unwrap_or_default())?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
