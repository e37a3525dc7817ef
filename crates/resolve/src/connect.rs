//! Connects to the first of several addresses that answers (RFC 8305).

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use eyelet_balance::group::{Group, Member};
use eyelet_balance::shortages;
use eyelet_balance::sources::{SourceAddresses, SourceUse};
use eyelet_engine::ready::{SIDES, Side, UPSTREAM};
use eyelet_engine::worker::{Handle, Registration, WaitError, Worker};
use eyelet_sys::epoll::{FAILED, WRITABLE};
use eyelet_sys::{Errno, interfaces, socket, transparent};
use eyelet_telemetry::reason::{Detail, IoFailure, PortLack};
use eyelet_telemetry::upstream::OpenExchange;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::loops::{DialMark, Loops};
use crate::ports::{PortShortages, is_no_port};

/// Connection Attempt Delay (RFC 8305 section 8).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Addresses of one name that one dial tries: a connection has so many sides for attempts.
pub const ATTEMPTS_MAX: usize = (SIDES - UPSTREAM) as usize;
/// Pause before a connect is repeated that found no descriptor, or a full backlog of a Unix socket:
/// no event reports that either has changed.
const RETRY_DELAY: Duration = Duration::from_millis(20);
/// Source addresses that one dial tries. They are in the order of their use, and the kernel looks
/// at all local ports of each that has none left.
const SOURCES_TRIED_MAX: usize = 4;
/// Source addresses that an access line names.
const SOURCES_NAMED_MAX: usize = 3;

/// The health of the addresses of a name that is dialled.
#[derive(Clone, Copy, Debug)]
pub struct Balanced<'a> {
    /// The upstreams of the rule.
    pub group: &'a Group,
    /// The one that is dialled.
    pub member: &'a Member,
    /// The time.
    pub now_ms: u64,
}

impl Balanced<'_> {
    /// The addresses in the order in which they are tried for this client.
    pub fn order(&self, found: &[SocketAddr], client: IpAddr) -> Vec<SocketAddr> {
        self.group.order(self.member, found, client, self.now_ms)
    }
}

/// The options of a dial.
#[derive(Clone, Copy, Debug, Default)]
pub struct DialOptions<'a> {
    /// From this address, which need not be this host's.
    pub source: Option<IpAddr>,
    /// Written as soon as the socket is connected. The socket then has no TCP_NODELAY: the first
    /// bytes are sent at once anyway, and many connections have no others.
    pub first: &'a [u8],
    /// The first bytes go with the SYN; there are some.
    pub fast_open: bool,
    /// By what the dial is recognised if it comes back.
    pub mark: DialMark<'a>,
    /// For an upstream whose health is known.
    pub balanced: Option<&'a Balanced<'a>>,
    /// The addresses of this host to dial from. `None`: the kernel chooses one.
    pub sources: Option<&'a SourceAddresses>,
    /// True while it waits for a descriptor: that it is late then is not the upstream's fault.
    pub lacks_descriptor: Option<&'a Cell<bool>>,
}

/// Owner of the sockets of one dial: it registers them, and bounds the waits for them.
pub trait Owner {
    /// A registered socket.
    type Registration;

    /// Registers the socket of an attempt; attempts count from 0.
    ///
    /// # Errors
    /// The kernel's: it takes no more descriptors to watch.
    fn register(&self, socket: &OwnedFd, attempt: Side) -> io::Result<Self::Registration>;

    /// Waits until the connect of a socket has ended, well or not.
    fn poll_ended(
        &self,
        task: &mut Context<'_>,
        registration: &Self::Registration,
    ) -> Poll<Result<(), WaitError>>;

    /// True if an ended connect has failed, as far as its event says.
    fn has_failed(&self, registration: &Self::Registration) -> bool;

    /// Waits until the owner must not wait any more: why.
    fn poll_late(&self, task: &mut Context<'_>) -> Poll<WaitError>;

    /// Fails once the owner's deadline has passed.
    ///
    /// # Errors
    /// Why the owner must not wait any more.
    fn in_time(&self) -> Result<(), WaitError>;
}

/// A connection: each attempt is one of its sides, and its deadline bounds them.
impl Owner for Handle {
    type Registration = Side;

    fn register(&self, socket: &OwnedFd, attempt: Side) -> io::Result<Side> {
        let side = UPSTREAM + attempt;
        self.register_attempt(socket, side)?;
        Ok(side)
    }

    fn poll_ended(&self, task: &mut Context<'_>, side: &Side) -> Poll<Result<(), WaitError>> {
        self.poll_ready(task, &[*side], WRITABLE)
    }

    fn has_failed(&self, side: &Side) -> bool {
        self.has(*side, FAILED)
    }

    fn poll_late(&self, task: &mut Context<'_>) -> Poll<WaitError> {
        match self.poll_ready(task, &[], WRITABLE) {
            Poll::Ready(Err(why)) => Poll::Ready(why),
            // No side was asked about.
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    }

    fn in_time(&self) -> Result<(), WaitError> {
        Handle::in_time(self)
    }
}

/// A worker, for upstreams that many connections share. The caller bounds the dial.
impl Owner for Rc<Worker> {
    type Registration = Registration;

    fn register(&self, socket: &OwnedFd, _: Side) -> io::Result<Registration> {
        let registration = Registration::new(self, socket.as_fd())?;
        // It is not connected yet: its event will say when it is.
        registration.socket_state.clear(WRITABLE);
        Ok(registration)
    }

    fn poll_ended(&self, task: &mut Context<'_>, to: &Registration) -> Poll<Result<(), WaitError>> {
        to.socket_state.poll_ready(task, WRITABLE).map(Ok)
    }

    fn has_failed(&self, registration: &Registration) -> bool {
        registration.socket_state.is_ready(FAILED)
    }

    fn poll_late(&self, _: &mut Context<'_>) -> Poll<WaitError> {
        Poll::Pending
    }

    fn in_time(&self) -> Result<(), WaitError> {
        Ok(())
    }
}

/// A connected socket.
pub struct Connected<R> {
    /// The address to which it leads. `None`: a Unix socket.
    pub address: Option<SocketAddr>,
    pub socket: OwnedFd,
    /// Its registration. `None`: it was connected at once, and was not registered.
    pub registration: Option<R>,
    /// The number of bytes of [`DialOptions::first`] that were written.
    pub sent: usize,
    /// Counts it at the address that it was dialled from, if that was one of several.
    pub source: Option<OpenExchange>,
}

impl<R> Connected<R> {
    /// A socket that is not registered, with nothing written.
    pub fn new(address: Option<SocketAddr>, socket: OwnedFd) -> Self {
        Self { address, socket, registration: None, sent: 0, source: None }
    }
}

/// The reason why no source address can be dialled from.
#[derive(Debug, thiserror::Error)]
pub enum NoSource {
    /// Their local ports are in use.
    #[error("all are in use to {upstream} from {sources}; add one to `source_addresses`")]
    NoPort {
        /// The upstream.
        upstream: SocketAddr,
        /// The first of the addresses, and how many more there are.
        sources: String,
    },
    /// Some of them are held by others, or by connections that this host has closed.
    #[error(
        "all are in use to {upstream}{others} in TIME_WAIT, which net.ipv4.tcp_tw_reuse=1 cuts to \
         a second; `source_addresses` gives it more"
    )]
    OfOthers {
        /// The upstream.
        upstream: SocketAddr,
        /// The part that is not Eyelet's own, where that is known.
        others: String,
    },
    /// The last that was tried is not usable.
    #[error("source_addresses: {source_address}: {why}")]
    Faulty {
        /// The address.
        source_address: IpAddr,
        /// The kernel's reason.
        why: io::Error,
    },
}

impl NoSource {
    /// Makes the error of a connect. It is a shortage of this host's.
    fn error(
        sources: &SourceAddresses,
        upstream: SocketAddr,
        last: Option<(IpAddr, io::Error)>,
    ) -> io::Error {
        let why = match last {
            Some((source_address, why)) => Self::Faulty { source_address, why },
            None => {
                let why = Self::no_port(sources, upstream);
                shortages::say(upstream, Instant::now().into_std(), &why);
                why
            }
        };
        why.into()
    }

    /// Says it with the cause. `InUse`: a port may be free later.
    pub(crate) fn lack(&self) -> PortLack {
        match self {
            Self::NoPort { .. } | Self::OfOthers { .. } => PortLack::InUse(Detail::of(self)),
            Self::Faulty { .. } => PortLack::Faulty(Detail::of(self)),
        }
    }

    fn no_port(sources: &SourceAddresses, upstream: SocketAddr) -> Self {
        // The ports of an address that cannot be bound are nobody's.
        let usable = || sources.faulty().filter(|(_, is_faulty)| !is_faulty).map(|(ip, _)| ip);
        let own = || usable().filter(|ip| ip.is_ipv4() == upstream.is_ipv4());
        let is_own = |of: &SourceUse| of.upstream == upstream && own().any(|ip| ip == of.source);
        let in_use = sources.in_use().into_iter().filter(is_own);
        let (used, all) = (in_use.map(|of| of.used).sum(), sources.ports() * own().count());
        match all.saturating_sub(used) {
            0 => Self::NoPort { upstream, sources: listed(own()) },
            others => Self::OfOthers {
                upstream,
                others: format!(", {others} of {all} by other programs or"),
            },
        }
    }

    /// The lack of a port where the kernel chooses the address.
    fn none_left(upstream: SocketAddr) -> Self {
        let why = Self::OfOthers { upstream, others: " or".into() };
        shortages::say(upstream, Instant::now().into_std(), &why);
        why
    }
}

impl From<NoSource> for io::Error {
    fn from(why: NoSource) -> Self {
        Self::new(io::ErrorKind::AddrNotAvailable, why)
    }
}

/// The first addresses of a list.
fn listed(all: impl Iterator<Item = IpAddr>) -> String {
    let all: Vec<String> = all.map(|ip| ip.to_string()).collect();
    match all.get(SOURCES_NAMED_MAX..).filter(|others| !others.is_empty()) {
        _ if all.is_empty() => "no address that can be used".to_owned(),
        None => all.join(", "),
        Some(others) => {
            format!("{} and {} more", all[..SOURCES_NAMED_MAX].join(", "), others.len())
        }
    }
}

/// Connects to a Unix socket.
///
/// # Errors
/// The kernel's, or why the owner waits no more.
pub async fn connect_unix<O: Owner>(
    owner: &O,
    path: &Path,
) -> Result<Connected<O::Registration>, WaitError> {
    loop {
        match socket::connect_unix(path) {
            Ok(socket) => return Ok(Connected::new(None, socket)),
            // The backlog is full; the deadline bounds the retries.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                owner.in_time()?;
                sleep(RETRY_DELAY).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The source of further addresses of a dial that is under way.
pub struct LaterAddresses<'a> {
    /// Told when all addresses so far have failed.
    pub doubts: &'a Notify,
    /// The addresses of one family are on their way.
    pub is_partial: bool,
    /// Resolves to addresses that are not tried yet.
    pub found: Pin<&'a mut dyn Future<Output = Vec<SocketAddr>>>,
}

/// A dial of one or several addresses, which are tried in their order.
pub struct Dial<'a, O> {
    /// The owner of its sockets.
    pub owner: &'a O,
    /// Notes each attempt.
    pub loops: &'a Loops,
    /// Remembers where no local port was left.
    pub shortages: &'a PortShortages,
    /// The options of its attempts.
    pub options: &'a DialOptions<'a>,
    /// It leads to a listener of this edge, which will recognise it by both its ends.
    pub to_listener: bool,
    /// True while it waits for a descriptor.
    pub lacks_descriptor: &'a Cell<bool>,
}

/// The event that a dial of several addresses goes on with.
enum Next {
    /// This attempt has ended.
    Ended(usize),
    /// There may be more addresses.
    Found(Vec<SocketAddr>),
    /// The last attempt has had its time.
    Due,
}

/// A dial of the only address, begun.
enum Begun<R> {
    Connected(Connected<R>),
    Attempt(Attempt<R>),
}

impl<O: Owner> Dial<'_, O> {
    /// Connects to the only address.
    ///
    /// # Errors
    /// Why it failed, or why the owner waits no more.
    pub async fn one(&self, address: &SocketAddr) -> Result<Connected<O::Registration>, WaitError> {
        // Boxed, as all that few dials need: a connection's task is as large as what it awaits.
        let attempt = match self.begin_only(*address, self.options.fast_open) {
            Ok(Begun::Connected(connected)) => return Ok(connected),
            Ok(Begun::Attempt(attempt)) => attempt,
            Err(error) if is_out_of_descriptors(&error) => {
                match Box::pin(self.begin_later(*address, self.options.fast_open)).await? {
                    Begun::Connected(connected) => return Ok(connected),
                    Begun::Attempt(attempt) => attempt,
                }
            }
            Err(error) => return Err(error.into()),
        };
        poll_fn(|task| self.owner.poll_ended(task, &attempt.registration)).await?;
        Ok(self.finish(attempt)?)
    }

    /// Begins once others have closed descriptors. The deadline bounds the retries.
    async fn begin_later(
        &self,
        address: SocketAddr,
        fast_open: bool,
    ) -> Result<Begun<O::Registration>, WaitError> {
        self.lacks_descriptor.set(true);
        let begun = loop {
            self.owner.in_time()?;
            sleep(RETRY_DELAY).await;
            match self.begin_only(address, fast_open) {
                Err(error) if is_out_of_descriptors(&error) => {}
                begun => break begun,
            }
        };
        self.lacks_descriptor.set(false);
        Ok(begun?)
    }

    fn begin_only(
        &self,
        address: SocketAddr,
        fast_open: bool,
    ) -> io::Result<Begun<O::Registration>> {
        let Started { socket, at_once, source } = self.start(address, fast_open)?;
        // Within this host the handshake is over when the connect returns.
        if (at_once || address.ip().is_loopback())
            && let Some(sent) = send_first(&socket, self.options.first)?
        {
            let connected = Connected { sent, source, ..Connected::new(Some(address), socket) };
            return Ok(Begun::Connected(connected));
        }
        let registration = self.owner.register(&socket, 0)?;
        Ok(Begun::Attempt(Attempt { address, socket, registration, source }))
    }

    /// Connects to one of several. Begins an attempt each time the last has failed or
    /// 250 ms has passed; the first that connects wins. Addresses that are found `later` are tried
    /// after the others.
    ///
    /// # Errors
    /// Why the last attempt failed, or why the owner waits no more.
    pub async fn any(
        &self,
        addresses: &[SocketAddr],
        mut later: Option<LaterAddresses<'_>>,
    ) -> Result<Connected<O::Registration>, WaitError> {
        let mut waiting: VecDeque<SocketAddr> = addresses.iter().copied().collect();
        let (mut begun, mut attempts) = (0, Vec::new());
        let mut last = io::Error::from(io::ErrorKind::NotConnected);
        let mut due = Instant::now();
        let fast_open = self.options.fast_open && !later.as_ref().is_some_and(|l| l.is_partial);
        loop {
            if usize::from(begun) >= ATTEMPTS_MAX {
                waiting.clear();
                later = None;
            }
            if (attempts.is_empty() || Instant::now() >= due)
                && let Some(address) = waiting.pop_front()
            {
                due = Instant::now() + ATTEMPT_DELAY;
                let is_only = begun == 0 && waiting.is_empty();
                begun += 1;
                match self.begin(address, (begun - 1, is_only), fast_open).await {
                    Ok(Begun::Connected(connected)) => return Ok(connected),
                    Ok(Begun::Attempt(attempt)) => attempts.push(attempt),
                    Err(WaitError::Io(error)) => {
                        self.note_failed(address, &error);
                        (last, due) = (error, Instant::now());
                    }
                    Err(wait_error) => return Err(wait_error),
                }
            }
            if attempts.is_empty() && waiting.is_empty() {
                let Some(later) = &later else { return Err(last.into()) };
                later.doubts.notify_one();
            }
            if attempts.is_empty() && !waiting.is_empty() {
                continue;
            }
            let at =
                match self.next(&attempts, &mut later, (!waiting.is_empty()).then_some(due)).await?
                {
                    Next::Ended(at) => at,
                    Next::Due => continue,
                    Next::Found(found) => {
                        later = None;
                        waiting.extend(found);
                        continue;
                    }
                };
            let attempt = attempts.remove(at);
            let address = attempt.address;
            match self.finish(attempt) {
                Ok(connected) => {
                    self.note_answered(address, &attempts[..at]);
                    return Ok(connected);
                }
                Err(error) => {
                    self.note_failed(address, &error);
                    (last, due) = (error, Instant::now());
                }
            }
        }
    }

    /// Waits until an attempt has ended, more addresses are known, or the next attempt is `due`.
    async fn next(
        &self,
        attempts: &[Attempt<O::Registration>],
        later: &mut Option<LaterAddresses<'_>>,
        due: Option<Instant>,
    ) -> Result<Next, WaitError> {
        let ended = poll_fn(|task| self.poll_any(task, attempts));
        let found = async {
            match later {
                Some(later) => later.found.as_mut().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            ended = ended => ended.map(Next::Ended),
            found = found => Ok(Next::Found(found)),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => Ok(Next::Due),
        }
    }

    fn note_failed(&self, address: SocketAddr, why: &io::Error) {
        if let Some(&Balanced { member, now_ms, .. }) = self.options.balanced
            && !is_shortage(&why.into())
        {
            member.address_failed(address, now_ms, why);
        }
    }

    /// An address answered before those that were tried `earlier`: they had 250 ms more.
    fn note_answered(&self, address: SocketAddr, earlier: &[Attempt<O::Registration>]) {
        let Some(&Balanced { member, now_ms, .. }) = self.options.balanced else { return };
        member.address_answered(address, now_ms);
        for attempt in earlier {
            member.address_failed(attempt.address, now_ms, &"no answer while another one answered");
        }
    }

    /// Begins to connect, from the first of the source addresses that has a local port left.
    fn start(&self, address: SocketAddr, fast_open: bool) -> io::Result<Started> {
        let Some(sources) = self.options.sources else {
            return self.start_from_any(address, fast_open);
        };
        let mut order = sources.order(address);
        // An address whose ports are all this process's is not among them.
        let own = sources.addresses().filter(|ip| ip.is_ipv4() == address.is_ipv4());
        let (mut last, mut is_short) = (None, order.len() < own.count());
        order.retain(|candidate| {
            let is_known = self.shortages.is_remembered((Some(candidate.ip), address));
            is_short |= is_known;
            !is_known
        });
        for candidate in order.into_iter().take(SOURCES_TRIED_MAX) {
            let socket = self.socket(address, fast_open)?;
            let bound = transparent::bind_to_source(&socket, candidate.ip);
            let why = bound.as_ref().err().map(|error| error as &dyn std::fmt::Display);
            sources.note_bound(&candidate, why.map_or(Ok(()), Err));
            if let Err(why) = bound {
                last = Some((candidate.ip, why));
                continue;
            }
            let source = OpenExchange::new(&candidate.counters);
            match self.connect(&socket, address) {
                Ok(at_once) => return Ok(Started { socket, at_once, source: Some(source) }),
                Err(error) if is_no_port(&error) => {
                    self.shortages.note((Some(candidate.ip), address));
                    is_short = true;
                }
                Err(error) => return Err(error),
            }
        }
        // A port of a usable address may be free later.
        Err(NoSource::error(sources, address, last.filter(|_| !is_short)))
    }

    /// Begins to connect from an address that the kernel chooses, or from the client's.
    fn start_from_any(&self, address: SocketAddr, fast_open: bool) -> io::Result<Started> {
        let is_chosen = self.options.source.is_some();
        if !is_chosen && self.shortages.is_remembered((None, address)) {
            return Err(NoSource::none_left(address).into());
        }
        let socket = self.socket(address, fast_open)?;
        match self.connect(&socket, address) {
            Ok(at_once) => Ok(Started { socket, at_once, source: None }),
            // It has the same number where this host has no address to reach the upstream from.
            Err(error)
                if !is_chosen && is_no_port(&error) && interfaces::has_route(address.ip()) =>
            {
                self.shortages.note((None, address));
                Err(NoSource::none_left(address).into())
            }
            Err(error) => Err(error),
        }
    }

    fn connect(&self, socket: &OwnedFd, address: SocketAddr) -> io::Result<bool> {
        let at_once = socket::connect(socket, address)?;
        let mark = if self.to_listener { DialMark::Ends } else { self.options.mark };
        self.loops.dialled(socket, address, mark);
        Ok(at_once)
    }

    /// A socket for one connect.
    fn socket(&self, address: SocketAddr, fast_open: bool) -> io::Result<OwnedFd> {
        let options = self.options;
        let socket = socket::tcp(address)?;
        if options.first.is_empty() {
            socket::no_delay(&socket)?;
        } else {
            socket::ack_with_first(&socket)?;
        }
        if fast_open {
            socket::fast_open(&socket)?;
        }
        if let Some(client) = options.source {
            if client.is_ipv4() != address.is_ipv4() {
                return Err(io::Error::other("it is not of the client's address family"));
            }
            transparent::bind_to_client(&socket, client)?;
        }
        Ok(socket)
    }

    /// Begins an attempt. One of several has no fast open, nor has the first address while the
    /// other family is on its way: it would seem to answer, whether it does or not.
    async fn begin(
        &self,
        address: SocketAddr,
        (number, is_only): (Side, bool),
        fast_open: bool,
    ) -> Result<Begun<O::Registration>, WaitError> {
        if is_only {
            return match self.begin_only(address, fast_open) {
                Err(error) if is_out_of_descriptors(&error) => {
                    self.begin_later(address, fast_open).await
                }
                begun => Ok(begun?),
            };
        }
        let Started { socket, source, .. } = self.start(address, false)?;
        let registration = self.owner.register(&socket, number)?;
        Ok(Begun::Attempt(Attempt { address, socket, registration, source }))
    }

    /// Waits until one of the attempts has ended: which. The owner's deadline ends this also while
    /// there is none.
    fn poll_any(
        &self,
        task: &mut Context<'_>,
        attempts: &[Attempt<O::Registration>],
    ) -> Poll<Result<usize, WaitError>> {
        for (at, attempt) in attempts.iter().enumerate() {
            if let Poll::Ready(ended) = self.owner.poll_ended(task, &attempt.registration) {
                return Poll::Ready(ended.map(|()| at));
            }
        }
        self.owner.poll_late(task).map(Err)
    }

    /// Takes the result of an attempt that has ended.
    fn finish(&self, attempt: Attempt<O::Registration>) -> io::Result<Connected<O::Registration>> {
        let Attempt { address, socket, registration, source } = attempt;
        if self.owner.has_failed(&registration) {
            socket::pending_error(&socket)?;
        }
        let sent = send_first(&socket, self.options.first)?.unwrap_or(0);
        let registration = Some(registration);
        Ok(Connected { registration, sent, source, ..Connected::new(Some(address), socket) })
    }
}

/// A connect that is under way.
struct Attempt<R> {
    address: SocketAddr,
    socket: OwnedFd,
    registration: R,
    source: Option<OpenExchange>,
}

/// A socket whose connect has begun.
struct Started {
    socket: OwnedFd,
    /// It can be written already.
    at_once: bool,
    source: Option<OpenExchange>,
}

/// Writes the first bytes, as many as the socket takes. `None`: it is not connected yet.
fn send_first(socket: &OwnedFd, first: &[u8]) -> io::Result<Option<usize>> {
    if first.is_empty() {
        return Ok(socket::is_connected(socket).then_some(0));
    }
    match socket::send(socket, first) {
        Ok(sent) => Ok(Some(sent)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            // It was there. That it has gone is for the relay, which passes a reset on.
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Ok(Some(0)),
            _ => Err(error),
        },
    }
}

/// True if this process or host lacks something, so that a failed dial says nothing about the other
/// side: descriptors, local ports or memory.
pub(crate) fn is_shortage(failure: &IoFailure) -> bool {
    let IoFailure::Os(code) = failure else {
        return failure.kind() == io::ErrorKind::AddrNotAvailable;
    };
    let code = Errno::from_raw_os_error(*code);
    // epoll says ENOSPC where it watches no more sockets.
    let lacks_memory = matches!(code, Errno::NOBUFS | Errno::NOMEM | Errno::NOSPC);
    lacks_memory || matches!(code, Errno::MFILE | Errno::NFILE | Errno::ADDRNOTAVAIL)
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}
