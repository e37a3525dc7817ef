//! An application as a child process with a process group of its own. It finds where the
//! application listens, and starts it again when it ends or when its files change. One thread does
//! this; it reports events.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

mod event;
mod folders;
mod life;
mod pace;
mod port;
mod processes;
mod sockets;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

pub use eyelet_sys::child::Signal;
use eyelet_sys::inotify::WaitEnder;

pub use event::{Application, ChildEvent, LISTEN_TIMEOUT, Over, STOP_TIMEOUT};
pub use folders::SuperviseError;
pub use port::free_port;
pub use processes::{family, has_command, holders, parent};
pub use sockets::{Endpoint, listening, listens, takes};

use event::Message;
use folders::Folders;
use life::Supervision;

/// Orders and reports that wait for the thread. It takes them at once, except while it reads /proc.
const MESSAGES_MAX: usize = 64;

/// The thread that starts and restarts the application.
pub struct Supervisor {
    messages: SyncSender<Message>,
    _watch: Option<Watch>,
}

impl Supervisor {
    /// Starts the application. `report` is called on the thread. The last event is
    /// [`ChildEvent::Over`].
    ///
    /// # Errors
    /// If a folder cannot be watched, or the system has no thread.
    pub fn start(
        application: Application,
        report: impl FnMut(ChildEvent) + Send + 'static,
    ) -> Result<Self, SuperviseError> {
        let (messages, received) = sync_channel(MESSAGES_MAX);
        let changed = Arc::<AtomicBool>::default();
        let watch = match &*application.watch {
            [] => None,
            roots => {
                let told = (messages.clone(), changed.clone());
                Some(Watch::start(Folders::new(roots)?, told)?)
            }
        };
        // Orphans of the application that left its process group are found and ended.
        let adopts = eyelet_sys::child::adopt_orphans().is_ok();
        let own = messages.clone();
        spawn("child", move || {
            let mut supervision = Supervision::new(application, (own, received), Box::new(report));
            (supervision.adopts, supervision.changed) = (adopts, changed);
            supervision.run();
        })?;
        Ok(Self { messages, _watch: watch })
    }

    /// Ends the application with this signal, and does not start it again. After [`STOP_TIMEOUT`]
    /// it is killed.
    pub fn end(&self, signal: Signal) {
        self.tell(Message::End(signal));
    }

    /// Passes a signal on to the application.
    pub fn pass(&self, signal: Signal) {
        self.tell(Message::Pass(signal));
    }

    /// Kills the application, after [`Supervisor::end`].
    pub fn kill(&self) {
        self.tell(Message::Kill);
    }

    fn tell(&self, message: Message) {
        // It fails if the thread has ended, or if so many signals came at once that one more
        // changes nothing.
        let _ = self.messages.try_send(message);
    }
}

/// The thread that watches folders. Dropping it ends the thread.
struct Watch {
    ends: Arc<AtomicBool>,
    ender: WaitEnder,
}

impl Watch {
    fn start(
        folders: Folders,
        (messages, changed): (SyncSender<Message>, Arc<AtomicBool>),
    ) -> Result<Self, SuperviseError> {
        let ends = Arc::<AtomicBool>::default();
        let watch = Self { ends: ends.clone(), ender: folders.ender() };
        spawn("watch", move || {
            while let Ok(true) = folders.wait(|| ends.load(Relaxed)) {
                // One message is enough for all changes until it is read.
                if !changed.swap(true, Relaxed) && messages.try_send(Message::Changed).is_err() {
                    changed.store(false, Relaxed);
                }
            }
        })?;
        Ok(watch)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        self.ender.end();
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), SuperviseError> {
    let spawned = thread::Builder::new().name(name.into()).spawn(body);
    spawned.map(drop).map_err(SuperviseError::Thread)
}
