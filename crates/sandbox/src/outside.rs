//! The process outside: it starts the one inside, gets the sockets of its namespace, and waits for
//! the command's end.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, ExitStatus};

use eyelet_sys::channel::Channel;
use eyelet_sys::child;
use eyelet_sys::child::Signal;
use eyelet_sys::confine::namespace;
use rustix::io::{FdFlags, fcntl_setfd};

use crate::message::{ConfinedPlan, Kind, receive, send, send_plan};
use crate::programs::Programs;
use crate::sockets::ConfinedSockets;
use crate::stdio::{self, Copies};
use crate::step::{ConfineStep, SandboxError};

/// A command that is confined.
#[derive(Debug)]
pub struct Confined {
    channel: Channel,
    inside: Child,
    /// The first process of the command's namespace, which passes signals on to it.
    first: Option<u32>,
    copies: Copies,
}

/// The end of a command.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status, or 128 and the number of the signal that ended it.
    pub status: ExitStatus,
}

impl Confined {
    /// Starts the process inside: `program` with these arguments and the number of a descriptor,
    /// which must call [`crate::run_inside`]. The command waits for [`Confined::go`].
    ///
    /// # Errors
    /// The step that failed. Nothing of the command ran.
    pub fn start(
        mut program: Command,
        plan: &ConfinedPlan,
    ) -> Result<(Self, ConfinedSockets), SandboxError> {
        let start = SandboxError::at(ConfineStep::Start);
        let (channel, theirs) = Channel::pair().map_err(&start)?;
        fcntl_setfd(&theirs, FdFlags::empty()).map_err(|error| start(error.into()))?;
        program.arg(theirs.as_raw_fd().to_string());
        let copies = stdio::confine(&mut program)?;
        let inside = program.spawn().map_err(&start)?;
        // The command's ends of pipes are in it.
        drop((program, theirs));
        let mut confined = Self { channel, inside, first: None, copies };
        let channel = &mut confined.channel;
        send_plan(channel, plan).map_err(&start)?;
        let ((), _) = receive(channel, Kind::Entered)?;
        namespace::map_users(confined.inside.id()).map_err(SandboxError::at(ConfineStep::Users))?;
        send(channel, Kind::Mapped, &(), &[]).map_err(&start)?;
        let (layout, descriptors) = receive(channel, Kind::Sockets)?;
        let sockets = ConfinedSockets::put_together(layout, descriptors).map_err(start)?;
        Ok((confined, sockets))
    }

    /// Returns the finder of the command's programs, by the socket of its [`ConfinedSockets`].
    pub fn programs(&self, socket: Option<OwnedFd>) -> Option<Programs> {
        Programs::new(socket?, self.inside.id()).ok()
    }

    /// Starts the command: its sockets are served.
    ///
    /// # Errors
    /// The step that failed. Nothing of the command ran.
    pub fn go(&mut self) -> Result<(), SandboxError> {
        let start = SandboxError::at(ConfineStep::Start);
        let sent = send(&mut self.channel, Kind::Go, &(), &[]);
        // A process that has ended takes nothing, but it has said what failed.
        let (first, _) = receive(&mut self.channel, Kind::Started)?;
        sent.map_err(start)?;
        self.first = Some(first);
        Ok(())
    }

    /// Waits until the command and all that it has left behind have ended.
    ///
    /// # Errors
    /// The kernel's, or that the command could not be executed.
    pub fn wait(&mut self) -> Result<Ended, SandboxError> {
        // Nothing comes but a failure, or the end once the command is executed and over.
        let failed = receive::<()>(&mut self.channel, Kind::Go);
        let status = self.inside.wait().map_err(SandboxError::at(ConfineStep::Command))?;
        self.copies.finish();
        match failed {
            Err(failed) if failed.step == ConfineStep::Command => Err(failed),
            Err(failed) if failed.error.kind() != io::ErrorKind::UnexpectedEof => Err(failed),
            _ => Ok(Ended { status }),
        }
    }

    /// Returns the process that signals to the command are sent to.
    pub fn first(&self) -> First {
        First(self.first)
    }
}

/// The first process of the command's namespace, which passes signals on to the command. `None`:
/// the command has not begun.
#[derive(Clone, Copy, Debug)]
pub struct First(Option<u32>);

impl First {
    /// Sends the command a signal.
    pub fn signal(self, signal: Signal) {
        if let Some(first) = self.0 {
            // It may have ended just now.
            let _ = child::signal(first, signal);
        }
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        // The kernel ends the first process with it, and all others with that.
        let _ = self.inside.kill();
        let _ = self.inside.wait();
    }
}
