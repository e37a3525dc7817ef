//! An application, its events, and the messages for its thread.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use eyelet_sys::child::Signal;

use crate::sockets::Endpoint;

/// The time that an application has to end after a signal. Then it is killed.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// After this time without a listening socket an application is reported.
pub const LISTEN_TIMEOUT: Duration = Duration::from_secs(30);
/// An application to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Application {
    /// The program and its arguments; at least the program.
    pub command: Vec<OsString>,
    /// The port at which the application is told to listen: the value of `PORT` in its environment.
    pub port: u16,
    /// Folders whose changes start it again.
    pub watch: Vec<PathBuf>,
    /// More variables for its environment.
    pub variables: Vec<(OsString, OsString)>,
    /// Orphans with this command serve others, too: they outlive the application that began them.
    pub spared: &'static str,
}

/// An event of the application.
#[derive(Debug)]
pub enum ChildEvent {
    /// It was started.
    Started {
        /// Its process.
        pid: u32,
    },
    /// It accepts connections.
    Listening {
        /// The endpoint at which it listens, possibly on all addresses.
        bound: Endpoint,
        /// The endpoint to dial.
        dialled: Endpoint,
    },
    /// It has listened nowhere for [`LISTEN_TIMEOUT`].
    ListensNowhere,
    /// It listens at several endpoints, and none has its port. It is ended.
    ListensAtSeveral(Vec<Endpoint>),
    /// It was killed, or what it had left was: it did not end in time, or was to end at once.
    Killed,
    /// A file has changed: it is ended and started again.
    Changed,
    /// It has ended by itself.
    Ended {
        /// The status of its end.
        status: ExitStatus,
        /// The pause until it is started again.
        pause: Duration,
    },
    /// It could not be started again.
    NotStarted {
        /// The reason.
        error: io::Error,
        /// The pause until the next try.
        pause: Duration,
    },
    Over(Over),
}

/// The reason why an application is not started again.
#[derive(Debug)]
pub enum Over {
    /// It has ended after `Supervisor::end`, or had ended just before.
    Asked(ExitStatus),
    /// It listens at several endpoints.
    Undecided,
    /// It has ended with success and never listened.
    NeverListened,
    /// It has ended with success, and left these processes in the background. They were ended.
    Background(Vec<u32>),
    /// It could not be started the first time.
    Unstartable(io::Error),
}

/// A message to the thread.
pub(crate) enum Message {
    /// Ends the application with this signal.
    End(Signal),
    Pass(Signal),
    /// Kills the application.
    Kill,
    /// A watched file has changed, if the flag `changed` is still set.
    Changed,
    /// The process has ended. It is a zombie.
    Ended(u32),
}

/// The two ends of the thread's queue.
pub(crate) type Messages = (SyncSender<Message>, Receiver<Message>);
