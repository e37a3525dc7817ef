//! The new process of an upgrade: it takes over the listening sockets of the process that started
//! it. The connections follow: see `predecessors.rs`.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use eyelet_config::ListenAddress;
use eyelet_engine::moving::batch::Arrivals;
use eyelet_engine::moving::handover::VERSIONS_READ;
use eyelet_handover::flows::VERSION_FLOWS;
use eyelet_sys::channel::{Channel, DESCRIPTORS_MAX};
use eyelet_sys::socket_file::SocketFile;
use eyelet_tls::tickets::Now;
use zeroize::Zeroizing;

use crate::handover::{
    Failed, HandoverError, HandoverHello, HandoverReady, LingeringProcess, MESSAGE_TIMEOUT,
    Message, Serve, expect, kind, read, receive, signal, tell,
};
use crate::predecessors::{PredecessorLink, Predecessors};
use crate::reload::{SERVED_STEP, SERVED_TIMEOUT};
use crate::serve::Running;
use eyelet_edge::snapshot;
use eyelet_edge::snapshot::listen::Bound;

/// Most listeners that are taken over, and most sockets of each. They bound what a hello may ask
/// for.
const LISTENERS_MAX: usize = 4096;
const SOCKETS_MAX: usize = 4096;

/// The process that started this one.
pub struct Predecessor {
    channel: Channel,
    pub listeners: Vec<Bound>,
    tickets: Zeroizing<Vec<u8>>,
    /// Its process id, if it lingers.
    lingers: Option<u32>,
    hands_flows: bool,
    upstreams: BTreeMap<String, Vec<SocketAddr>>,
}

impl Predecessor {
    /// Meets it at the other end of the standard input. Receives its listening sockets.
    ///
    /// # Errors
    /// [`HandoverError`], such as another user at the other end.
    pub fn meet() -> Result<Self, HandoverError> {
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        // The end of this process must close the channel, and nothing else may read from it.
        eyelet_sys::process::close_stdin()?;
        let mut channel = Channel::over(socket)?;
        let earlier = state(|| receive(&mut channel, Some(MESSAGE_TIMEOUT)))?;
        let EarlierState { listeners, tickets, lingers, hands_flows, upstreams } = earlier;
        expect(&mut channel, kind::BEGIN, MESSAGE_TIMEOUT)?;
        Ok(Self { channel, listeners, tickets, lingers, hands_flows, upstreams })
    }

    /// Says why this process ends.
    pub fn fail(mut self, code: u8, text: String) {
        // Without an answer the other process sees only the end of this one.
        let _ = tell(&mut self.channel, kind::FAILED, &Failed { code, text });
    }

    /// Serves in place of the other process from now on. The other one stops accepting after this
    /// one has begun.
    ///
    /// # Errors
    /// [`HandoverError`]. The other process then serves on, and this one must end.
    pub fn replace(
        mut self,
        running: &Running,
        warnings: String,
    ) -> Result<Handover, HandoverError> {
        if let Err(error) = running.ticket_keys().import(&self.tickets, Now::read()) {
            tracing::warn!("clients cannot resume their sessions: {error}");
        }
        running.published.snapshot().names.upstreams.learn(&self.upstreams);
        let listeners = running.listeners();
        let is_kept = |known: &Bound| listeners.iter().any(|bound| bound.holds(known));
        let known = self.listeners.iter().enumerate();
        let kept = known.filter(|(_, known)| is_kept(known)).map(|(index, _)| index).collect();
        let formats = VERSIONS_READ.into_iter().chain([VERSION_FLOWS]).collect();
        let batch_descriptors = snapshot::batch_descriptors();
        let pid = Some(std::process::id());
        let ready = HandoverReady {
            kept,
            formats,
            batch_descriptors,
            pid,
            knows_predecessors: true,
            reads_verdicts: true,
            warnings,
        };
        tell(&mut self.channel, kind::READY, &ready)?;
        // The sockets of listeners that are gone are the other process's to close.
        self.listeners.clear();
        let (received, body) = receive(&mut self.channel, Some(MESSAGE_TIMEOUT))?;
        let serve: Serve = read(&received, kind::SERVE, &body)?;
        let workers = running.arrivals();
        if self.hands_flows {
            // One process reads datagrams at a time.
            workers.process.inboxes.await_flows();
        }
        running.serve(serve.first_id).map_err(io::Error::other)?;
        for _ in 0..SERVED_TIMEOUT.as_millis() / SERVED_STEP.as_millis() {
            if running.is_served(1) {
                break;
            }
            thread::park_timeout(SERVED_STEP);
        }
        let predecessor = LingeringProcess { pid: self.lingers, is_told: false };
        let link = PredecessorLink { predecessor, channel: self.channel };
        let predecessors = running.predecessors.clone();
        Ok(Handover { link, workers, listeners, predecessors })
    }
}

/// The state of an earlier process besides connections.
pub struct EarlierState {
    pub listeners: Vec<Bound>,
    /// The keys of its tickets, which are secret.
    pub tickets: Zeroizing<Vec<u8>>,
    /// Its process id, if it lingers after an upgrade.
    lingers: Option<u32>,
    /// It sends its flows of QUIC.
    hands_flows: bool,
    /// The addresses of its upstreams' names.
    pub upstreams: BTreeMap<String, Vec<SocketAddr>>,
}

/// Reads what an earlier process has besides connections.
///
/// # Errors
/// [`HandoverError`].
pub fn state(
    mut next: impl FnMut() -> Result<Message, HandoverError>,
) -> Result<EarlierState, HandoverError> {
    let (received, body) = next()?;
    let mut hello: HandoverHello = read(&received, kind::HELLO, &body)?;
    tracing::info!("taking over from version {}", hello.program);
    let (lingers, hands_flows) = (hello.lingers, hello.hands_flows);
    let upstreams = std::mem::take(&mut hello.upstreams);
    let listeners = listeners(&mut next, hello)?;
    let (received, tickets) = next()?;
    if received.kind != kind::TICKETS {
        return Err(HandoverError::Kind(received.kind));
    }
    Ok(EarlierState { listeners, tickets, lingers, hands_flows, upstreams })
}

/// The listeners of a hello with their sockets.
fn listeners(
    next: &mut impl FnMut() -> Result<Message, HandoverError>,
    hello: HandoverHello,
) -> Result<Vec<Bound>, HandoverError> {
    let is_too_much = hello.listeners.iter().any(|handed| handed.sockets > SOCKETS_MAX);
    if is_too_much || hello.listeners.len() > LISTENERS_MAX {
        let why = String::from("it has too many listeners");
        return Err(HandoverError::Content { kind: kind::HELLO, why });
    }
    let mut sockets: Vec<Arc<OwnedFd>> = Vec::new();
    let mut bound = Vec::new();
    for handed in hello.listeners {
        for _ in 0..handed.sockets.div_ceil(DESCRIPTORS_MAX) {
            let (received, _) = next()?;
            if received.kind != kind::SOCKETS {
                return Err(HandoverError::Kind(received.kind));
            }
            sockets.extend(received.descriptors.into_iter().map(Arc::new));
        }
        let own: Arc<[Arc<OwnedFd>]> = sockets.drain(..).collect();
        if own.len() == handed.sockets && !own.is_empty() {
            let file = match (&handed.address, handed.file) {
                (ListenAddress::Unix(path), Some(file)) => Some(SocketFile::of_other(path, file)),
                _ => None,
            };
            let file = file.map(Arc::new);
            bound.push(Bound { address: handed.address, sockets: own, asked: handed.asked, file });
        } else {
            tracing::warn!("the sockets at {} are lost and bound anew", handed.address);
        }
    }
    Ok(bound)
}

/// The connections that are still to come.
pub struct Handover {
    link: PredecessorLink,
    workers: Arrivals,
    /// The listeners of this process.
    listeners: Arc<[Bound]>,
    predecessors: Arc<Predecessors>,
}

impl Handover {
    /// Says that this process serves, and takes over the connections on a thread of its own.
    ///
    /// # Errors
    /// If the other process is gone, or no thread can be started. This process serves in any case.
    pub fn begin(mut self) -> Result<(), HandoverError> {
        let process = self.workers.process.clone();
        let said = signal(&mut self.link.channel, kind::SERVING);
        let begun = said.and_then(|()| {
            Ok(self.predecessors.follow(self.link, self.workers, self.listeners)?)
        });
        begun.inspect_err(|_| process.inboxes.end_flows(MESSAGE_TIMEOUT))
    }
}
