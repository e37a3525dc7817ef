//! Dials an upstream. Looks a name up, checks that the client may be led to its addresses and that
//! they do not lead back to this process, and connects to one of them.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;

use eyelet_config::{Host, HostPort};
use eyelet_engine::worker::WaitError;
use eyelet_sys::{Errno, interfaces};
use eyelet_telemetry::info::{ConnectionInfo, End, Outcome, UpstreamName};
use eyelet_telemetry::reason::{Detail, Guarded, Limit, Loop, Peer, Reason, Shed, Stage, When};
use ipnet::IpNet;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::connect::{
    ATTEMPTS_MAX, Connected, Dial, DialOptions, LaterAddresses, NoSource, Owner, connect_unix,
    is_shortage,
};
use crate::dialled::Lookup;
use crate::guard::is_guarded;
use crate::names::Names;

/// A name was not resolved in time.
const SLOW_DNS: Reason = Reason::Timeout(Limit::Connect, Some(When::During(Stage::Dns)));

/// The target of a dial.
#[derive(Debug)]
pub enum DialTarget<'a> {
    /// The destination of an intercepted connection, as the kernel knows it.
    Address(SocketAddr),
    /// An address that the client, or who names it in a PROXY header, chose freely.
    Chosen(SocketAddr, Guard<'a>),
    /// The name or address that the administrator wrote.
    Configured(&'a HostPort),
    /// A name that the client chose.
    Named(HostPort, Guard<'a>),
    /// A Unix socket.
    Unix(&'a Path),
}

/// The guard of addresses that a client's name may not resolve to.
#[derive(Clone, Copy, Debug)]
pub struct Guard<'a> {
    /// Networks that are allowed although they are guarded.
    pub allow: &'a [IpNet],
}

/// The reason why an upstream could not be dialled.
#[derive(Debug)]
pub struct Undialled {
    /// The end of the connection that asked.
    pub end: End,
    /// The first address that was tried.
    pub address: Option<SocketAddr>,
}

impl From<End> for Undialled {
    fn from(end: End) -> Self {
        Self { end, address: None }
    }
}

impl<'a> DialTarget<'a> {
    /// A host and a port that the client chose.
    pub fn chosen(host_port: &HostPort, guard: Guard<'a>) -> Self {
        match host_port.host {
            Host::Ip(ip) => Self::Chosen(SocketAddr::new(ip, host_port.port), guard),
            Host::Name(_) => Self::Named(host_port.clone(), guard),
        }
    }

    /// Returns the name that the access log shows until there is a connection. `None`: nothing
    /// before a dial.
    pub fn upstream(&self) -> Option<UpstreamName> {
        let host_port = match self {
            Self::Unix(path) => {
                return Some(UpstreamName::Name(format!("unix:{}", path.display()).into()));
            }
            Self::Chosen(address, _) => return Some(UpstreamName::Address(*address)),
            Self::Address(_) => return None,
            Self::Configured(host_port) => host_port,
            Self::Named(host_port, _) => host_port,
        };
        let HostPort { host: Host::Name(name), port } = host_port else { return None };
        Some(UpstreamName::Name(format!("{name}:{port}").into()))
    }
}

/// Dials for a connection. The caller bounds it by `connect_timeout`.
///
/// # Errors
/// Why there is no connection.
pub async fn dial<O: Owner>(
    names: &Rc<Names>,
    owner: &O,
    info: &ConnectionInfo,
    target: &DialTarget<'_>,
    options: &DialOptions<'_>,
) -> Result<Connected<O::Registration>, Undialled> {
    // What most connections do not need is boxed, so that their tasks stay small.
    let address = match target {
        DialTarget::Unix(path) => {
            let connected = Box::pin(connect_unix(owner, path)).await;
            return connected.map_err(|wait_error| failed(wait_error).into());
        }
        DialTarget::Address(address) => *address,
        DialTarget::Chosen(address, guard) => {
            check_guard(&address.ip().to_string(), &[address.ip()], *guard)?;
            *address
        }
        DialTarget::Named(HostPort { host: Host::Ip(ip), port }, guard) => {
            check_guard(&ip.to_string(), &[*ip], *guard)?;
            SocketAddr::new(*ip, *port)
        }
        DialTarget::Configured(HostPort { host: Host::Ip(ip), port }) => {
            SocketAddr::new(*ip, *port)
        }
        DialTarget::Configured(HostPort { host: Host::Name(name), port }) => {
            let name = NamedTarget { name, port: *port, guard: None };
            return Box::pin(name.dial(names, (owner, info), options)).await;
        }
        DialTarget::Named(HostPort { host: Host::Name(name), port }, guard) => {
            let name = NamedTarget { name, port: *port, guard: Some(*guard) };
            return Box::pin(name.dial(names, (owner, info), options)).await;
        }
    };
    let configured = matches!(target, DialTarget::Configured(_));
    let to_listener = check_loop(names, info, address, configured)?;
    let lacks = Cell::new(false);
    let dial = Dial { to_listener, ..dial_for(owner, names, options, &lacks) };
    let connected = match is_of_other_family(&[address], options) {
        true => Err(End::failed(Reason::MixedFamilies)),
        false => dial.one(&address).await.map_err(|why| late_dial(dial.lacks_descriptor, why)),
    };
    connected.map_err(|end| Undialled { end, address: Some(address) })
}

fn dial_for<'a, O>(
    owner: &'a O,
    names: &'a Names,
    options: &'a DialOptions<'a>,
    lacks: &'a Cell<bool>,
) -> Dial<'a, O> {
    Dial {
        owner,
        loops: &names.shared.loops,
        shortages: &names.shortages,
        options,
        to_listener: false,
        lacks_descriptor: options.lacks_descriptor.unwrap_or(lacks),
    }
}

/// The address that the datagrams of a flow are sent to, by the checks of a dial: of a name the
/// first address to which there is a route.
///
/// # Errors
/// Why there is none.
pub async fn for_datagrams<O: Owner>(
    names: &Rc<Names>,
    owner: &O,
    info: &ConnectionInfo,
    target: &DialTarget<'_>,
) -> Result<SocketAddr, Undialled> {
    let (host_port, guard) = match target {
        DialTarget::Unix(_) => return Err(End::failed(Reason::NoAddress).into()),
        DialTarget::Address(address) => {
            check_loop(names, info, *address, false)?;
            return Ok(*address);
        }
        DialTarget::Chosen(address, guard) => {
            let host_port = HostPort { host: Host::Ip(address.ip()), port: address.port() };
            (host_port, Some(*guard))
        }
        DialTarget::Named(host_port, guard) => (host_port.clone(), Some(*guard)),
        DialTarget::Configured(host_port) => ((*host_port).clone(), None),
    };
    let is_routed = |ip: &&IpAddr| interfaces::has_route(**ip);
    let (name, found) = match host_port.host {
        Host::Ip(ip) => (ip.to_string(), vec![ip]),
        Host::Name(name) => {
            let client = guard.map(|_| info.client.ip());
            let look_up = async {
                let (lookup, mut found) = look_up(names, client, &name).await?;
                // As for `destination`.
                if lookup.is_partial() && !found.iter().any(|ip| is_routed(&ip)) {
                    let wait = names.shared.config.limits.connect_timeout;
                    let later = timeout(wait, lookup.later(names, &Notify::new())).await;
                    found.extend(later.unwrap_or_default());
                }
                Ok(found)
            };
            let found = tokio::select! {
                biased;
                found = look_up => found,
                why = poll_fn(|task| owner.poll_late(task)) => {
                    return Err(late(why, Stage::Dns).into());
                }
            };
            let found = found.map_err(End::failed)?;
            (name, found)
        }
    };
    if let Some(guard) = guard {
        check_guard(&name, &found, guard)?;
    }
    for ip in &found {
        check_loop(names, info, SocketAddr::new(*ip, host_port.port), guard.is_none())?;
    }
    let ip = match &*found {
        // The connect of its socket says what this would.
        [only] => only,
        several => {
            let routed = several.iter().find(is_routed).or(several.first());
            routed.ok_or(End::failed(Reason::NoAddress))?
        }
    };
    Ok(SocketAddr::new(*ip, host_port.port))
}

/// A name to dial.
struct NamedTarget<'a> {
    name: &'a str,
    port: u16,
    /// A client chose it.
    guard: Option<Guard<'a>>,
}

impl NamedTarget<'_> {
    async fn dial<O: Owner>(
        &self,
        names: &Rc<Names>,
        (owner, info): (&O, &ConnectionInfo),
        options: &DialOptions<'_>,
    ) -> Result<Connected<O::Registration>, Undialled> {
        let client = self.guard.map(|_| info.client.ip());
        let (lookup, found) = tokio::select! {
            biased;
            found = look_up(names, client, self.name) => found.map_err(End::failed)?,
            why = poll_fn(|task| owner.poll_late(task)) => return Err(late(why, Stage::Dns).into()),
        };
        if let Some(guard) = self.guard {
            check_guard(self.name, &found, guard)?;
        }
        let addresses = self.in_order(&found, options, info);
        let mut to_listener = false;
        for address in &addresses {
            to_listener |= check_loop(names, info, *address, self.guard.is_none())?;
        }
        let lacks = Cell::new(false);
        let dial = Dial { to_listener, ..dial_for(owner, names, options, &lacks) };
        let doubts = Notify::new();
        let mut later = pin!(async {
            let found = lookup.later(names, &doubts).await;
            self.others(names, info, (&addresses, self.in_order(&found, options, info)))
        });
        let is_partial = lookup.is_partial();
        let later = LaterAddresses { doubts: &doubts, is_partial, found: later.as_mut() };
        let is_other_family = is_of_other_family(&addresses, options);
        let failed = |why| late_dial(dial.lacks_descriptor, why);
        let connected = match &*addresses {
            [] => Err(End::failed(Reason::NoAddress)),
            _ if is_other_family && !is_partial => Err(End::failed(Reason::MixedFamilies)),
            _ if is_other_family => dial.any(&[], Some(later)).await.map_err(failed),
            _ => dial.any(&addresses, Some(later)).await.map_err(failed),
        };
        // Of several addresses the last reason is logged, and the first address for them all.
        connected.map_err(|end| Undialled { end, address: addresses.first().copied() })
    }

    /// Addresses of the name in the order in which they are tried.
    fn in_order(
        &self,
        found: &[IpAddr],
        options: &DialOptions<'_>,
        info: &ConnectionInfo,
    ) -> Vec<SocketAddr> {
        let all: Vec<_> = found.iter().map(|ip| SocketAddr::new(*ip, self.port)).collect();
        match options.balanced.filter(|_| self.guard.is_none() && all.len() > 1) {
            Some(balanced) => balanced.order(&all, info.client.ip()),
            None => all,
        }
    }

    /// Those of the addresses that were found later that are not `tried`. There is none if the
    /// client may not be led to one of them, and none that leads back to this process.
    fn others(
        &self,
        names: &Names,
        info: &ConnectionInfo,
        (tried, mut found): (&[SocketAddr], Vec<SocketAddr>),
    ) -> Vec<SocketAddr> {
        let is_guarded_one =
            |guard: Guard<'_>| found.iter().any(|address| is_guarded(address.ip(), guard.allow));
        if self.guard.is_some_and(is_guarded_one) {
            return Vec::new();
        }
        let is_configured = self.guard.is_none();
        found.retain(|address| {
            let is_loop = || check_loop(names, info, *address, is_configured).unwrap_or(true);
            !tried.contains(address) && !is_loop()
        });
        found
    }
}

/// True if this end of a dial shows that the upstream is down.
pub fn is_upstream_down(reason: &Reason) -> bool {
    let is_source_faulty = matches!(reason, Reason::NoLocalPort(_));
    !is_source_faulty && !is_own_shortage(reason) && may_dial_another(reason)
}

/// True if this process or host lacked something for a dial. It says nothing about the upstream.
pub fn is_own_shortage(reason: &Reason) -> bool {
    match reason {
        Reason::Io(Peer::Upstream, failure) => is_shortage(failure),
        Reason::NoLocalPort(lack) => lack.is_in_use(),
        Reason::Unregistered(_) => true,
        _ => false,
    }
}

/// The reason of a dial that was late while it waited for a descriptor.
pub fn no_descriptor() -> Reason {
    Reason::Io(Peer::Upstream, (&std::io::Error::from(Errno::MFILE)).into())
}

/// True if another upstream may be dialled after a dial that ended so. Otherwise the client, the
/// configuration or this process ended it.
pub fn may_dial_another(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::Io(Peer::Upstream, _)
            | Reason::Timeout(Limit::Connect, _)
            | Reason::Dns(_)
            | Reason::NoAddress
            | Reason::NoLocalPort(_)
            | Reason::UpstreamAlert(_)
            | Reason::UpstreamTls(_)
            | Reason::UpstreamUnread
            | Reason::UpstreamUntrusted(_)
    )
}

/// The address of a CONNECT's host that rules compare, and the only one that is then dialled: the
/// first with a route.
///
/// # Errors
/// Why there is none.
pub async fn destination(
    names: &Rc<Names>,
    info: &ConnectionInfo,
    host_port: &HostPort,
) -> Result<SocketAddr, Reason> {
    let name = match &host_port.host {
        Host::Ip(ip) => return Ok(SocketAddr::new(*ip, host_port.port)),
        Host::Name(name) => name,
    };
    let (lookup, mut found) = look_up(names, Some(info.client.ip()), name).await?;
    let is_routed = |ip: &&IpAddr| interfaces::has_route(**ip);
    // The family that has not answered yet may be the one that this host has.
    if lookup.is_partial() && !found.iter().any(|ip| is_routed(&ip)) {
        let wait = names.shared.config.limits.connect_timeout;
        found.extend(timeout(wait, lookup.later(names, &Notify::new())).await.unwrap_or_default());
    }
    let routed = found.iter().find(is_routed);
    let ip = routed.or(found.first()).ok_or(Reason::NoAddress)?;
    Ok(SocketAddr::new(*ip, host_port.port))
}

/// The refusal of a dial of this name, which a client chose, by the first of these guards, if all
/// of them refuse it. Other faults are the dial's to find.
pub async fn guarded(
    names: &Rc<Names>,
    client: IpAddr,
    name: &str,
    guards: &[Guard<'_>],
) -> Option<End> {
    let (_, found) = look_up(names, Some(client), name).await.ok()?;
    let mut refusals = guards.iter().map(|guard| check_guard(name, &found, *guard).err());
    let first = refusals.next()??;
    refusals.all(|refusal| refusal.is_some()).then_some(first)
}

/// True if no address can be dialled from the client's.
fn is_of_other_family(addresses: &[SocketAddr], options: &DialOptions<'_>) -> bool {
    options
        .source
        .is_some_and(|client| addresses.iter().all(|address| address.is_ipv4() != client.is_ipv4()))
}

fn failed(wait_error: WaitError) -> End {
    late(wait_error, Stage::Dial)
}

/// The end of a dial of addresses. One that was late while it waited for a descriptor says so.
fn late_dial(lacks_descriptor: &Cell<bool>, wait_error: WaitError) -> End {
    match wait_error {
        WaitError::Late if lacks_descriptor.get() => End::failed(no_descriptor()),
        other => failed(other),
    }
}

/// The end of a wait during this stage.
fn late(wait_error: WaitError, stage: Stage) -> End {
    let when = When::During(stage);
    End::failed(match wait_error {
        WaitError::Drained => Reason::Drained(Some(when)),
        WaitError::Ended => Reason::Ended,
        WaitError::Shed => Reason::Shed(Shed::Unfinished(when)),
        WaitError::Late if stage == Stage::Dns => SLOW_DNS,
        WaitError::Late => Reason::Timeout(Limit::Connect, None),
        WaitError::Io(error) => match error.get_ref().and_then(|why| why.downcast_ref()) {
            Some::<&NoSource>(why) => Reason::NoLocalPort(Box::new(why.lack())),
            None => Reason::Io(Peer::Upstream, (&error).into()),
        },
        WaitError::Unregistered(error) => Reason::Unregistered((&error).into()),
    })
}

/// All addresses of a configured name, or the few that are tried of a name that `client` chose.
async fn look_up<'a>(
    names: &Rc<Names>,
    client: Option<IpAddr>,
    name: &'a str,
) -> Result<(Lookup<'a>, Vec<IpAddr>), Reason> {
    let wait = names.shared.config.limits.connect_timeout;
    let lookup = timeout(wait, Lookup::new(names, client, name)).await.map_err(|_| SLOW_DNS)?;
    let unknown = |error| Reason::Dns(Detail::of(error));
    let lookup = lookup.map_err(unknown)?;
    let mut found = lookup.addresses().map_err(unknown)?;
    // What is not tried need not be looked at. Of a configured name, others are tried next time.
    if client.is_some() {
        found.truncate(ATTEMPTS_MAX);
    }
    Ok((lookup, found))
}

/// Checks the addresses that were found of a name that somebody chose. One guarded address is
/// enough: a name that mixes them is the rebinding attack.
///
/// # Errors
/// The refusal.
pub fn check_guard(name: &str, found: &[IpAddr], guard: Guard<'_>) -> Result<(), End> {
    let Some(ip) = found.iter().find(|ip| is_guarded(**ip, guard.allow)) else { return Ok(()) };
    let name = (name != ip.to_string()).then(|| name.into());
    Err(refused(Reason::Guarded(Box::new(Guarded { ip: *ip, name }))))
}

/// Fails where dialling `address` would come to a listener of this edge. What the administrator
/// wrote may lead from one listener to another, once; what a client says may not. Whether it does.
fn check_loop(
    names: &Names,
    info: &ConnectionInfo,
    address: SocketAddr,
    configured: bool,
) -> Result<bool, End> {
    let Some(listener) = names.shared.loops.listener_at(address) else { return Ok(false) };
    let is_itself = !configured || listener == usize::from(info.decided.listener);
    if !is_itself && !info.decided.is_handed {
        return Ok(true);
    }
    let how = if is_itself { Loop::Listener } else { Loop::Handed };
    Err(refused(Reason::Loop(how(Box::new(address)))))
}

fn refused(reason: Reason) -> End {
    End { outcome: Outcome::Refused, reason }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use eyelet_engine::ready::Side;
    use eyelet_sys::socket;

    use super::*;
    use crate::loops::Loops;
    use crate::ports::PortShortages;

    /// Far longer than two attempts need.
    const WAIT: Duration = Duration::from_millis(300);

    /// An owner that lacks descriptors for so many attempts.
    struct Short(Cell<usize>);

    impl Owner for Short {
        type Registration = ();

        fn register(&self, _: &OwnedFd, _: Side) -> io::Result<()> {
            let left = self.0.get().checked_sub(1);
            left.map_or(Ok(()), |left| {
                self.0.set(left);
                Err(Errno::MFILE.into())
            })
        }

        fn poll_ended(&self, _: &mut Context<'_>, (): &()) -> Poll<Result<(), WaitError>> {
            Poll::Pending
        }

        fn has_failed(&self, (): &()) -> bool {
            false
        }

        fn poll_late(&self, _: &mut Context<'_>) -> Poll<WaitError> {
            Poll::Pending
        }

        fn in_time(&self) -> Result<(), WaitError> {
            Ok(())
        }
    }

    /// The upstream has a full queue and so drops each SYN.
    #[test]
    fn a_late_dial_blames_descriptors_only_while_it_waits_for_one() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket::listen(&listener, 0).unwrap();
        let at = listener.local_addr().unwrap();
        let _queued = TcpStream::connect(at).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (loops, shortages) = (Loops::new(&[], &[], None), PortShortages::default());
        for (attempts, lacks_at_last) in [(0, false), (2, false), (usize::MAX, true)] {
            for is_only in [true, false] {
                let (lacks, short) = (Cell::new(false), Short(Cell::new(attempts)));
                let options = DialOptions::default();
                let dial = Dial {
                    owner: &short,
                    loops: &loops,
                    shortages: &shortages,
                    options: &options,
                    to_listener: false,
                    lacks_descriptor: &lacks,
                };
                let dialled = async {
                    match is_only {
                        true => dial.one(&at).await,
                        false => dial.any(&[at], None).await,
                    }
                };
                let late = runtime.block_on(async { timeout(WAIT, dialled).await });
                assert!(late.is_err(), "{attempts} {is_only}");
                assert!(attempts == usize::MAX || short.0.get() == 0, "{attempts} {is_only}");
                assert_eq!(lacks.get(), lacks_at_last, "{attempts} {is_only}");
            }
        }
    }

    #[test]
    fn an_own_shortage_takes_no_upstream_down() {
        for (error, is_down) in [
            (Errno::CONNREFUSED, true),
            (Errno::HOSTUNREACH, true),
            (Errno::TIMEDOUT, true),
            (Errno::MFILE, false),
            (Errno::NFILE, false),
            (Errno::ADDRNOTAVAIL, false),
            (Errno::NOBUFS, false),
            (Errno::NOMEM, false),
            (Errno::NOSPC, false),
        ] {
            let reason = Reason::Io(Peer::Upstream, (&io::Error::from(error)).into());
            assert_eq!(is_upstream_down(&reason), is_down, "{error:?}");
            assert_eq!(is_own_shortage(&reason), !is_down, "{error:?}");
            assert!(may_dial_another(&reason), "{error:?}");
        }
        assert!(!is_upstream_down(&Reason::Drained(None)));
        assert!(is_own_shortage(&no_descriptor()) && !is_upstream_down(&no_descriptor()));
    }
}
