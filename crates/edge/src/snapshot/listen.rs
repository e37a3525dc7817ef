//! Binds listeners: one socket a worker. A reload and an upgrade keep the sockets of listeners that
//! stay.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use eyelet_config::{Config, Limits, ListenAddress, Listener, ListenerKind};
use eyelet_engine::iteration::accept::BACKLOG;
use eyelet_engine::park::KEEPALIVE_IDLE;
use eyelet_sys::service;
use eyelet_sys::socket::{self, Listen, datagram};
use eyelet_sys::socket_file::{self, SocketFile};
use serde::{Deserialize, Serialize};

/// Ports that are tried where the kernel chooses one for TCP, and another program may have it for
/// UDP.
const PORTS_TRIED: usize = 16;

/// The port of https.
pub const HTTPS_PORT: u16 = 443;

/// Returns the port to which clients are sent: that of https if a listener has it, else that of the
/// first listener that clients connect to themselves.
pub fn https_port(listeners: &[Listener], addresses: &[SocketAddr]) -> u16 {
    let direct = listeners.iter().zip(addresses);
    let mut direct = direct.filter(|(listener, _)| listener.kind == ListenerKind::Direct);
    let first = direct.clone().next().map(|(_, address)| address.port());
    match direct.any(|(_, address)| address.port() == HTTPS_PORT) {
        true => HTTPS_PORT,
        false => first.unwrap_or(HTTPS_PORT),
    }
}

/// A listener's address cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}{}", hint(address, error))]
pub struct ListenError {
    pub address: ListenAddress,
    /// The reason.
    pub error: io::Error,
}

/// The first port that every user may have, unless the system says otherwise.
const PRIVILEGED: u16 = 1024;

fn hint(address: &ListenAddress, error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied if address.is_unix() => {
            " (the process must have the right to write to the folder)"
        }
        io::ErrorKind::AddrInUse if address.is_unix() => {
            " (another process listens there; `ss -lxp` shows which)"
        }
        io::ErrorKind::PermissionDenied if address.inet().port() < PRIVILEGED => {
            " (a port below 1024 needs root, CAP_NET_BIND_SERVICE, or a lower \
             net.ipv4.ip_unprivileged_port_start)"
        }
        io::ErrorKind::PermissionDenied => " (kind \"tproxy\" needs root or CAP_NET_ADMIN)",
        io::ErrorKind::AddrInUse => " (another process holds it; `ss -ltnp` shows which)",
        io::ErrorKind::AddrNotAvailable => " (no interface of this host has it; `ip addr`)",
        _ => "",
    }
}

/// A bound listener. Its sockets close once no configuration and no worker holds it.
#[derive(Clone)]
pub struct Bound {
    /// Its address; port 0 is resolved.
    pub address: ListenAddress,
    /// One for each worker, or more: worker `n` of `m` has each `m`-th from `n` on.
    pub sockets: Arc<[Arc<OwnedFd>]>,
    /// Their purpose.
    pub asked: Asked,
    /// The file of a Unix socket.
    pub file: Option<Arc<SocketFile>>,
}

/// Equal means the same sockets.
impl PartialEq for Bound {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.sockets, &other.sockets)
    }
}

/// The purpose of a socket. A listener with the same purpose keeps its sockets after a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    #[serde(with = "text")]
    address: ListenAddress,
    transparent: bool,
    reuse_port: bool,
    defer_accept: bool,
    /// True if datagrams are read from them. Earlier programs have none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    datagrams: bool,
}

impl Asked {
    fn of(listener: &Listener) -> Self {
        Self {
            address: listener.address.clone(),
            transparent: listener.kind == ListenerKind::Tproxy,
            reuse_port: listener.reuse_port,
            defer_accept: listener.defer_accept,
            datagrams: false,
        }
    }

    fn of_datagrams(listener: &Listener) -> Self {
        Self { reuse_port: true, defer_accept: false, datagrams: true, ..Self::of(listener) }
    }
}

/// Binds the addresses that are not bound yet, in the order of the configuration. Nobody can
/// connect to them before [`listen_all`]. Behind them are the sockets of listeners that also read
/// datagrams.
pub fn bind_all(
    config: &Config,
    workers: usize,
    earlier: &[Bound],
) -> Result<Arc<[Bound]>, ListenError> {
    let mut left: Vec<&Bound> = earlier.iter().collect();
    let mut bound = Vec::new();
    for listener in &config.listeners {
        let asked = Asked::of(listener);
        // A file that somebody has removed leads no client to its socket.
        let leads = |known: &Bound| known.file.as_ref().is_none_or(|file| file.is_there());
        let known = left.iter().position(|known| known.asked == asked && leads(known));
        bound.push(
            match known {
                Some(known) => left.remove(known).for_workers(listener, &config.limits, workers),
                None if listener.quic => bind_both(listener, &asked, &config.limits, workers),
                None => bind(listener, asked, &config.limits, workers),
            }
            .map_err(|error| ListenError { address: listener.address.clone(), error })?,
        );
    }
    for (listener, at) in config.listeners.iter().zip(bound.clone()) {
        if !listener.quic {
            continue;
        }
        let asked = Asked::of_datagrams(listener);
        let known = left.iter().position(|known| known.asked == asked);
        bound.push(match known {
            // As many as there were, whatever the number of workers is now: the kernel chooses a
            // socket by their number, and a client would come to another one.
            Some(known) => left.remove(known).clone(),
            None => bind_datagrams(at.address.inet(), asked, workers)
                .map_err(|error| ListenError { address: at.address.clone(), error })?,
        });
    }
    Ok(bound.into())
}

/// Binds a listener at a port that is free for datagrams, too, if the kernel chooses it.
fn bind_both(
    listener: &Listener,
    asked: &Asked,
    limits: &Limits,
    workers: usize,
) -> io::Result<Bound> {
    let mut bound = bind(listener, asked.clone(), limits, workers)?;
    for _ in 0..PORTS_TRIED {
        let probe = datagram::bind_shared(bound.address.inet(), asked.transparent);
        if listener.address.inet().port() != 0 || probe.is_ok() {
            break;
        }
        bound = bind(listener, asked.clone(), limits, workers)?;
    }
    Ok(bound)
}

fn bind_datagrams(address: SocketAddr, asked: Asked, workers: usize) -> io::Result<Bound> {
    let bind = |_| datagram::bind_shared(address, asked.transparent).map(Arc::new);
    let sockets = (0..workers).map(bind).collect::<io::Result<Vec<_>>>()?.into();
    Ok(Bound { address: address.into(), sockets, asked, file: None })
}

/// Applies new limits to the sockets of listeners that stay.
pub fn follow_limits(listeners: &[Bound], limits: &Limits) {
    for bound in listeners.iter().filter(|bound| bound.asked.defer_accept) {
        for socket in &*bound.sockets {
            // If it cannot be set, clients keep the earlier time.
            let _ = socket::defer_accept(socket, limits.hello_timeout);
        }
    }
}

/// Lets clients connect at all sockets. Those that listen already go on. A process that takes over
/// does this last: a socket without a worker would take connections away from those that have one.
pub fn listen_all(listeners: &[Bound]) -> Result<(), ListenError> {
    for bound in listeners.iter().filter(|bound| !bound.reads_datagrams()) {
        let listened = bound.sockets.iter().try_for_each(|fd| socket::listen(fd, BACKLOG));
        listened.map_err(|error| ListenError { address: bound.address.clone(), error })?;
        // Another process that started meanwhile took the file for one that was left over: nobody
        // listened there yet.
        if bound.file.as_ref().is_some_and(|file| !file.is_there()) {
            let error = io::ErrorKind::AddrInUse.into();
            return Err(ListenError { address: bound.address.clone(), error });
        }
    }
    Ok(())
}

/// Sets the permissions of Unix sockets that stay. The listeners are those of `config`, in its
/// order.
pub fn follow_modes(listeners: &[Bound], config: &Config) -> Result<(), ListenError> {
    for (bound, listener) in listeners.iter().zip(&config.listeners) {
        if let Some(file) = &bound.file {
            let error = |error| ListenError { address: bound.address.clone(), error };
            file.set_mode(listener.mode).map_err(error)?;
        }
    }
    Ok(())
}

/// Takes the files of Unix sockets over from a process that has ended, or soon will.
pub fn own_files(listeners: &[Bound]) {
    listeners.iter().filter_map(|bound| bound.file.as_ref()).for_each(|file| file.set_own(true));
}

impl Bound {
    /// Returns it with sockets for so many workers. Each has a socket, and no socket is without a
    /// worker.
    fn for_workers(
        &self,
        listener: &Listener,
        limits: &Limits,
        workers: usize,
    ) -> io::Result<Self> {
        let known = self.sockets.len();
        if known >= workers {
            return Ok(self.clone());
        }
        let mut sockets = self.sockets.to_vec();
        for n in known..workers {
            // A socket that was bound without SO_REUSEPORT stays alone at its port, and workers
            // share it. The service manager may have bound it so.
            let may_join = !self.address.is_unix() && (known > 1 || self.asked.reuse_port);
            let address = self.address.inet();
            let bound = may_join.then(|| socket::bind(address, how(listener, limits, true)));
            sockets.push(match bound {
                Some(Ok(socket)) => Arc::new(socket),
                Some(Err(_)) | None => sockets[n % known].clone(),
            });
        }
        Ok(Self { sockets: sockets.into(), ..self.clone() })
    }

    /// True if datagrams are read from its sockets.
    pub fn reads_datagrams(&self) -> bool {
        self.asked.datagrams
    }

    /// The text in the log beside its address.
    pub fn protocol(&self) -> &'static str {
        if self.reads_datagrams() { " for QUIC" } else { "" }
    }

    /// Leaves the file of a Unix socket to the process that accepts from it now.
    pub fn leave_file(&self) {
        if let Some(file) = &self.file {
            file.set_own(false);
        }
    }

    /// Has nobody connect at the file of a Unix socket that is about to end.
    pub fn put_file_aside(&self) {
        let moved = self.file.as_ref().map_or(Ok(()), |file| file.put_aside());
        if let Err(error) = moved {
            tracing::error!("clients of {} wait until this process ends: {error}", self.address);
        }
    }

    /// Removes the file that was put aside: the process may end without its destructors.
    pub fn remove_file(&self) {
        if let Some(file) = &self.file {
            file.remove_aside();
        }
    }

    /// Has clients connect again after [`Bound::put_file_aside`].
    pub fn put_file_back(&self) {
        let moved = self.file.as_ref().map_or(Ok(()), |file| file.put_back());
        if let Err(error) = moved {
            tracing::error!("nobody can connect at {} before a reload: {error}", self.address);
        }
    }

    /// True if it has all sockets of `other`.
    pub fn holds(&self, other: &Self) -> bool {
        let has = |socket: &Arc<OwnedFd>| self.sockets.iter().any(|own| Arc::ptr_eq(own, socket));
        other.sockets.iter().all(has)
    }

    /// The sockets, each once.
    pub fn distinct(&self) -> impl Iterator<Item = &Arc<OwnedFd>> {
        let is_first = |(n, socket): &(usize, &Arc<OwnedFd>)| {
            !self.sockets[..*n].iter().any(|known| Arc::ptr_eq(known, socket))
        };
        self.sockets.iter().enumerate().filter(is_first).map(|(_, socket)| socket)
    }
}

/// The sockets that the service manager has passed, as those of the listeners at their addresses.
/// All workers share each of them, except that one worker reads one of datagrams. Their names mean
/// nothing. A socket that no listener has is closed.
pub fn activated(config: &Config, passed: Vec<(String, OwnedFd)>) -> Vec<Bound> {
    let mut bound = Vec::new();
    for (name, socket) in passed {
        let has_datagrams = service::has_datagrams(&socket);
        let prepared = match has_datagrams {
            true => service::prepare_datagrams(&socket),
            false => service::prepare(&socket, KEEPALIVE_IDLE),
        };
        let address = match prepared.and_then(|()| socket::local_address(&socket)) {
            Ok(address) => ListenAddress::Inet(address),
            Err(error) => {
                tracing::warn!("the service manager's descriptor {name:?} is closed: {error}");
                continue;
            }
        };
        let has =
            |listener: &&Listener| listener.address == address && (listener.quic || !has_datagrams);
        match config.listeners.iter().find(has) {
            Some(listener) => {
                let sockets = [Arc::new(socket)].into();
                let asked = match has_datagrams {
                    true => Asked::of_datagrams(listener),
                    false => Asked::of(listener),
                };
                bound.push(Bound { address, sockets, asked, file: None });
            }
            None => tracing::warn!(
                "the service manager's socket {name:?} at {address} has no listener and is closed"
            ),
        }
    }
    bound
}

/// The listeners of an earlier process that a new one may go on with, beside those that the service
/// manager has passed: these come again with each start. A restart may change what a reload cannot.
pub fn restarted(config: &Config, activated: Vec<Bound>, earlier: Vec<Bound>) -> Vec<Bound> {
    // Datagrams have ports of their own.
    let of = |bound: &Bound| (bound.address.clone(), bound.reads_datagrams());
    let is_new = |known: &Bound| activated.iter().all(|bound| of(bound) != of(known));
    let mut earlier: Vec<Bound> = earlier.into_iter().filter(is_new).collect();
    while let Some(address) = rebound(config, &earlier) {
        earlier.retain(|known| known.asked.address.inet() != address);
    }
    activated.into_iter().chain(earlier).collect()
}

/// A listener that keeps its address but needs other sockets. They could be bound only after the
/// first ones close.
pub fn rebound(config: &Config, earlier: &[Bound]) -> Option<SocketAddr> {
    // One that a listener keeps is in nobody's way: there may be one for each version of IP.
    let asked: Vec<Asked> = config.listeners.iter().map(Asked::of).collect();
    // Datagrams have ports of their own, and their sockets share them.
    let earlier: Vec<_> = earlier
        .iter()
        .filter(|known| !known.reads_datagrams() && !asked.contains(&known.asked))
        .collect();
    let address = |listener: &Listener| {
        let asked = Asked::of(listener);
        let address = asked.address.inet();
        let is_other =
            |known: &&&Bound| overlaps(known.asked.address.inet(), address) && known.asked != asked;
        earlier.iter().find(is_other).map(|known| known.asked.address.inet())
    };
    config.listeners.iter().find_map(address)
}

/// True if sockets at both addresses would be in each other's way.
fn overlaps(one: SocketAddr, other: SocketAddr) -> bool {
    let covers = |one: SocketAddr, other: SocketAddr| {
        one.ip() == other.ip() || (one.ip().is_unspecified() && one.is_ipv6() >= other.is_ipv6())
    };
    one.port() == other.port() && one.port() != 0 && (covers(one, other) || covers(other, one))
}

fn how(listener: &Listener, limits: &Limits, reuse_port: bool) -> Listen {
    let transparent = listener.kind == ListenerKind::Tproxy;
    let defer = listener.defer_accept.then_some(limits.hello_timeout);
    Listen { reuse_port, keepalive_idle: KEEPALIVE_IDLE, transparent, defer }
}

fn bind(listener: &Listener, asked: Asked, limits: &Limits, workers: usize) -> io::Result<Bound> {
    if let ListenAddress::Unix(path) = &listener.address {
        // All workers share it: a Unix socket has no SO_REUSEPORT.
        let (socket, file) = socket_file::bind(path, listener.mode)?;
        let socket = Arc::new(socket);
        let sockets = vec![socket; workers].into();
        let (address, file) = (listener.address.clone(), Some(Arc::new(file)));
        return Ok(Bound { address, sockets, asked, file });
    }
    let how = |reuse_port| how(listener, limits, reuse_port);
    let mut address = listener.address.inet();
    if workers > 1 && !listener.reuse_port {
        // SO_REUSEPORT would share the port with any process of this user that sets it too. A first
        // socket without it detects that the port is taken.
        let probe = socket::bind(address, how(false))?;
        socket::listen(&probe, 1)?;
        address = socket::local_address(&probe)?;
    }
    let mut sockets = Vec::new();
    for _ in 0..workers {
        let bound = socket::bind(address, how(workers > 1 || listener.reuse_port))?;
        address = socket::local_address(&bound)?;
        sockets.push(Arc::new(bound));
    }
    Ok(Bound { address: address.into(), sockets: sockets.into(), asked, file: None })
}

/// An address as its text, which is how earlier programs write it.
pub mod text {
    use eyelet_config::ListenAddress;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(address: &ListenAddress, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(address)
    }

    /// Reads it.
    ///
    /// # Errors
    /// If it is no address.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ListenAddress, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;
    use std::time::SystemTime;

    use super::*;

    fn config(folder: &std::path::Path, mode: &str) -> Config {
        let text = format!(
            "[[listener]]\nkind = \"plain\"\naddress = \"unix:a.sock\"\nmode = \"{mode}\"\n\
             [[rule]]\naction = \"originate\"\nupstream = \"https://a.example:443\"\n"
        );
        let (file, depth) = (folder.join("edge.toml"), eyelet_config::Depth::Files);
        eyelet_config::parse(&file, &text, depth, SystemTime::now()).unwrap().config
    }

    /// Nobody listens there yet, so the second one takes the first one's file for one left over.
    #[test]
    fn of_two_that_start_together_one_fails() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), "0600");
        let [first, second] = [(); 2].map(|()| bind_all(&config, 1, &[]).unwrap());
        listen_all(&second).unwrap();
        assert_eq!(listen_all(&first).unwrap_err().error.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(second[0].file.as_ref().unwrap().is_there(), "it is the second one's");
    }

    #[test]
    fn listeners_of_both_versions_of_ip_at_a_port_stay() {
        let config = |kind: &str| {
            let listener =
                |ip| format!("[[listener]]\naddress = \"{ip}:4433\"\nkind = \"{kind}\"\n");
            let text = format!(
                "{}{}[[rule]]\naction = \"refuse\"\n",
                listener("0.0.0.0"),
                listener("[::]")
            );
            let depth = eyelet_config::Depth::Files;
            eyelet_config::parse("edge.toml".as_ref(), &text, depth, SystemTime::now())
                .unwrap()
                .config
        };
        let config_of = config("direct");
        let earlier: Vec<Bound> = (config_of.listeners.iter())
            .map(|listener| Bound {
                address: listener.address.clone(),
                sockets: [].into(),
                asked: Asked::of(listener),
                file: None,
            })
            .collect();
        assert_eq!(rebound(&config_of, &earlier), None);
        let datagrams = || Bound {
            address: earlier[0].address.clone(),
            sockets: [].into(),
            asked: Asked::of_datagrams(&config_of.listeners[0]),
            file: None,
        };
        let kept = |activated, earlier: &[Bound]| {
            restarted(&config_of, vec![activated], earlier.to_vec()).len()
        };
        assert_eq!(kept(datagrams(), &earlier), 3, "the TCP socket there is another one");
        assert_eq!(kept(earlier[0].clone(), &earlier), 2);
        assert!(rebound(&config("tproxy"), &earlier).is_some());
    }

    /// The step after the binds of a reload may fail, and then nothing has changed.
    #[test]
    fn a_mode_changes_last() {
        let folder = tempfile::tempdir().unwrap();
        let mode = || {
            let file = std::fs::metadata(folder.path().join("a.sock")).unwrap();
            file.permissions().mode() & 0o777
        };
        let earlier = bind_all(&config(folder.path(), "0600"), 1, &[]).unwrap();
        let next = config(folder.path(), "0660");
        let bound = bind_all(&next, 1, &earlier).unwrap();
        listen_all(&bound).unwrap();
        assert!(bound[0] == earlier[0] && mode() == 0o600);
        follow_modes(&bound, &next).unwrap();
        assert_eq!(mode(), 0o660);
    }
}
