//! The thread that calls the Workload API, takes each message in, and calls again when a call ends.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use eyelet_config::{Config, SpiffeSettings};
use eyelet_pki::certificate::date;
use eyelet_tls::certificates::CertificateMaker;
use eyelet_tls::workload::{SvidLack, Workload, WorkloadIdentity};
use parking_lot::Mutex;

use crate::call::Call;
use crate::fault::{CallFault, MessageFault};
use crate::message;

/// The time for which the start waits for the first message, so that the first clients have a
/// certificate.
const START_WAIT: Duration = Duration::from_secs(2);
/// Before the second call; each further wait is twice as long.
const RETRY_MIN: Duration = Duration::from_millis(250);
/// The longest wait. One process of a machine that asks so often is no load for an agent.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The thread, while a rule needs the Workload API. It ends when this is dropped.
#[derive(Default)]
pub struct SpiffeKeeper {
    running: Option<Running>,
}

struct Running {
    settings: SpiffeSettings,
    ending: Arc<Ending>,
    thread: JoinHandle<()>,
}

/// Ends the thread, wherever it waits.
#[derive(Default)]
struct Ending {
    ends: AtomicBool,
    /// The socket of the call. Shutting it down ends the call.
    socket: Mutex<Option<UnixStream>>,
}

impl SpiffeKeeper {
    /// Fills `workload` by this configuration from now on. The call that starts the thread waits
    /// for the first message, or for the first failure. Where the system has no thread, the log
    /// says so, and handshakes are refused.
    pub fn configure(&mut self, config: &Config, workload: &Arc<Workload>) {
        let known = self.running.as_ref().map(|running| &running.settings);
        if known == config.spiffe.as_ref() {
            return;
        }
        self.running = None;
        workload.clear();
        let Some(settings) = config.spiffe.clone() else { return };
        let (has_begun, begun) = sync_channel(1);
        let ending = Arc::<Ending>::default();
        let caller = Caller {
            settings: settings.clone(),
            ending: ending.clone(),
            workload: workload.clone(),
            maker: CertificateMaker::new(),
            has_begun,
        };
        let thread = match thread::Builder::new().name("spiffe".into()).spawn(|| caller.run()) {
            Ok(thread) => thread,
            Err(error) => return tracing::error!("[spiffe] no thread calls the agent: {error}"),
        };
        self.running = Some(Running { settings, ending, thread });
        // A certificate that comes later serves once it is there.
        let _ = begun.recv_timeout(START_WAIT);
    }

    /// True if the thread has ended, which only a failure causes.
    pub fn has_died(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.thread.is_finished())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let socket = self.ending.socket.lock();
        self.ending.ends.store(true, SeqCst);
        if let Some(socket) = &*socket {
            // It may have been closed by the agent.
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        self.thread.thread().unpark();
    }
}

impl Ending {
    fn has_come(&self) -> bool {
        self.ends.load(SeqCst)
    }

    /// Notes the socket of a call. Returns `false` if the thread is to end.
    fn note(&self, socket: &UnixStream) -> io::Result<bool> {
        let mut noted = self.socket.lock();
        *noted = Some(socket.try_clone()?);
        Ok(!self.has_come())
    }

    /// Waits for this time, or until the thread is to end.
    fn wait(&self, wait: Duration) {
        let end = Instant::now() + wait;
        while !self.has_come() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::park_timeout(left);
        }
    }
}

/// The state of the thread.
struct Caller {
    settings: SpiffeSettings,
    ending: Arc<Ending>,
    workload: Arc<Workload>,
    maker: CertificateMaker,
    has_begun: SyncSender<()>,
}

impl Caller {
    fn run(self) {
        let (mut wait, mut logged) = (RETRY_MIN, String::new());
        while !self.ending.has_come() {
            let mut has_message = false;
            let fault = self.call(&mut has_message);
            if self.ending.has_come() {
                return;
            }
            if fault.is_denied() {
                self.workload.clear();
            }
            if has_message {
                (wait, logged) = (RETRY_MIN, String::new());
            }
            let text = fault.to_string();
            if text != logged {
                self.log(&fault);
                logged = text;
            }
            // Only the start waits for this.
            let _ = self.has_begun.try_send(());
            self.ending.wait(wait);
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    /// Calls once. Returns why the call has ended.
    fn call(&self, has_message: &mut bool) -> CallFault {
        let socket = match UnixStream::connect(&self.settings.socket) {
            Ok(socket) => socket,
            Err(error) => return CallFault::Connect(error),
        };
        match self.ending.note(&socket) {
            Ok(true) => {}
            Ok(false) => return CallFault::Closed,
            Err(error) => return CallFault::Io(error),
        }
        let call = match Call::begin(socket) {
            Ok(call) => call,
            Err(fault) => return fault,
        };
        call.run(|message| {
            self.take(message)?;
            *has_message = true;
            Ok(())
        })
    }

    fn take(&self, message: &[u8]) -> Result<(), MessageFault> {
        let identity = WorkloadIdentity::new(message::read(message)?, &self.maker)?;
        let (id, until) = (identity.id().clone(), date(identity.not_after()));
        let bundles = identity.bundles_len();
        if self.workload.replace(identity) {
            tracing::info!(
                "[spiffe] the certificate of {id} is good until {until}; bundles of {bundles} \
                 trust {}",
                if bundles == 1 { "domain" } else { "domains" }
            );
        }
        if self.workload.certificates().is_err() {
            tracing::error!("[spiffe] the certificate of {id} had expired when it came");
        }
        let _ = self.has_begun.try_send(());
        Ok(())
    }

    fn log(&self, fault: &CallFault) {
        let (socket, advice) = (self.settings.socket.display(), fault.advice());
        let then = match self.workload.certificates() {
            Ok(_) => "what came before serves until it expires",
            Err(SvidLack::Expired) => "the certificate has expired: handshakes are refused",
            Err(SvidLack::NotSent) => "there is no certificate: handshakes are refused",
        };
        tracing::warn!("[spiffe] {socket}: {fault}{advice}. It is asked again; until then {then}");
    }
}
