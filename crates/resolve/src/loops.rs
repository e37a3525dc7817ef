//! What notices a loop: where this process listens, and whom it dialled.
//! It must not know what a rule makes of a destination.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use eyelet_config::{Listener, ListenerKind};
use eyelet_sys::{interfaces, socket};

/// What this process knows of itself, to notice loops: where it listens, and whom it dialled.
pub struct Loops {
    listeners: Box<[SocketAddr]>,
    dials: Arc<Dials>,
}

/// Whom this process dialled. It is the same for all its configurations.
#[derive(Default)]
struct Dials {
    /// Everybody, where a listener takes what was sent to others.
    all: OnceLock<Dialled>,
    /// Those dials that may come back to a listener of any kind, made at the first of them.
    suspects: OnceLock<Dialled>,
}

/// What a dial that may come back to us is then known by.
#[derive(Clone, Copy, Debug, Default)]
pub enum Trace<'a> {
    /// It goes where the administrator said, and that is no listener of ours.
    #[default]
    None,
    /// It goes from one listener of ours to another: both its ends.
    Ends,
    /// It goes where a client wanted to go, and may come back from there by a path that we cannot
    /// see, such as a router's NAT: its source and the hello. A client may say the same hello
    /// twice, and use a port again that was ours; both at once is hardly anybody but us. With how
    /// often it has come back already.
    Hello(&'a [u8], u8),
}

/// Whom this process dialled last from each local port: half a megabyte, and no lock.
struct Dialled {
    /// From the top: 30 bits of what is noted, by `hash`; 2 of its [`Kind`]; and 32 that depend on
    /// the kind. `Ends`: the descriptor. `Hello`: 8 that count turns; 24 of seconds since `began`,
    /// half a year.
    ports: Box<[AtomicU64]>,
    hash: RandomState,
    began: Instant,
}

/// Seconds for which a hello is remembered. It comes back at once, and its port may soon be
/// another's.
const HELLO_REMEMBERED_SECS: u32 = 5;

/// How many bytes of a hello are hashed. The first 43 are the headers and the client's random.
const HELLO_HASHED_BYTES: usize = 128;

/// Turns of a hello by a router that puts its own address in the place of ours, and lets us keep
/// the port. One turn may be chance, where clients say one and the same hello; not so many.
pub const TURNS_MAX: u8 = 32;

/// What is noted of a dial. Never 0: a slot that nobody wrote is nobody's.
#[derive(Clone, Copy)]
enum Kind {
    Ends = 1,
    Hello = 2,
}

impl Loops {
    /// `addresses` are those of `listeners`, as they were bound. What `earlier` knows is kept.
    pub fn new(listeners: &[Listener], addresses: &[SocketAddr], earlier: Option<&Self>) -> Self {
        let takes_others = |listener: &Listener| {
            matches!(listener.kind, ListenerKind::Redirect | ListenerKind::Tproxy)
        };
        let dials = earlier.map_or_else(Arc::default, |earlier| earlier.dials.clone());
        if listeners.iter().any(takes_others) {
            dials.all.get_or_init(Dialled::new);
        }
        Self { listeners: addresses.into(), dials }
    }

    /// The index of the listener that a connection to `address` would come to.
    pub fn listener_at(&self, address: SocketAddr) -> Option<usize> {
        let ip = address.ip().to_canonical();
        self.listeners.iter().position(|listener| {
            // Whether an address is ours costs system calls: only where the port is.
            listener.port() == address.port()
                && listener.is_ipv4() == ip.is_ipv4()
                && (listener.ip() == ip
                    || listener.ip().is_unspecified()
                        && (ip.is_unspecified() || interfaces::is_local(ip)))
        })
    }

    /// Remembers a socket of ours that was told to connect.
    pub fn dialled(&self, upstream: impl AsFd, to: SocketAddr, trace: Trace<'_>) {
        let all = self.dials.all.get();
        if all.is_none() && matches!(trace, Trace::None) {
            return;
        }
        let upstream = upstream.as_fd();
        let Ok(from) = socket::local_address(upstream) else { return };
        if let Some(dialled) = all {
            dialled.note_ends(from, to, upstream.as_raw_fd());
        }
        let suspects = || self.dials.suspects.get_or_init(Dialled::new);
        match trace {
            Trace::None => {}
            Trace::Ends => suspects().note_ends(from, to, upstream.as_raw_fd()),
            // What comes from loopback is a client's as often as ours: its ports are few.
            Trace::Hello(..) if from.ip().to_canonical().is_loopback() => {}
            Trace::Hello(hello, turns) => {
                suspects().note_hello(from, hello, turns);
            }
        }
    }

    /// Whether `client`, who wants to go to `destination`, is a socket of ours. `is_connected` is
    /// asked of the accepted connection.
    pub fn is_ours(
        &self,
        client: SocketAddr,
        destination: SocketAddr,
        is_connected: impl FnOnce() -> bool,
    ) -> bool {
        let to = || Some(destination);
        self.dials.all.get().is_some_and(|dialled| dialled.is_ours(client, to, is_connected))
    }

    /// Whether a connection that was accepted from `client` comes from a listener of ours. Costs
    /// others a load: `local` and `is_connected` are asked where the client's port was used so.
    pub fn is_handed(
        &self,
        client: SocketAddr,
        local: impl FnOnce() -> Option<SocketAddr>,
        is_connected: impl FnOnce() -> bool,
    ) -> bool {
        self.dials
            .suspects
            .get()
            .is_some_and(|suspects| suspects.is_ours(client, local, is_connected))
    }

    /// Whether this hello was sent from a port like `client`'s to where a client wanted to go: how
    /// often it had come back before.
    pub fn turns(&self, client: SocketAddr, hello: &[u8]) -> Option<u8> {
        self.dials.suspects.get()?.turns(client, hello)
    }
}

impl Dialled {
    fn new() -> Self {
        let ports = (0..=u16::MAX).map(|_| AtomicU64::new(0)).collect();
        Self { ports, hash: RandomState::new(), began: Instant::now() }
    }

    fn note(&self, from: SocketAddr, kind: Kind, hash: u64, more: u32) {
        if let Some(slot) = self.ports.get(usize::from(from.port())) {
            slot.store(key(kind, hash) | u64::from(more), Relaxed);
        }
    }

    fn note_ends(&self, from: SocketAddr, to: SocketAddr, descriptor: RawFd) {
        self.note(from, Kind::Ends, self.ends(from, to), descriptor.cast_unsigned());
    }

    fn note_hello(&self, from: SocketAddr, hello: &[u8], turns: u8) {
        self.note(from, Kind::Hello, self.hello(hello), u32::from(turns) << 24 | self.now_secs());
    }

    /// What was noted last of this port, if it is of that kind.
    fn noted(&self, from: SocketAddr, kind: Kind) -> Option<u64> {
        let slot = self.ports.get(usize::from(from.port()))?.load(Relaxed);
        ((slot >> 32) & KIND_BITS == kind as u64).then_some(slot)
    }

    /// Whether an accepted connection from `from` is the other end of a dial of ours to `to`. The
    /// slot says which socket may be that dial, and the kernel whether it is. Two open sockets of
    /// one host never have the same two ends, so a client that uses the port later is not taken
    /// for us. A client of another host may have the same two ends as a dial that was made from its
    /// address (`source = "client"`). So the dial must have received nothing: its other end would
    /// be the connection that was just accepted.
    ///
    /// A dial that was reset is gone when its other end is accepted, and would go round for ever.
    /// So whoever was reset, and has the same ends, counts as ours: no client waits there.
    fn is_ours(
        &self,
        from: SocketAddr,
        to: impl FnOnce() -> Option<SocketAddr>,
        is_connected: impl FnOnce() -> bool,
    ) -> bool {
        let Some(slot) = self.noted(from, Kind::Ends) else { return false };
        let Some(to) = to() else { return false };
        slot >> 32 == key(Kind::Ends, self.ends(from, to)) >> 32
            && (socket::is_fresh_dial((slot as u32).cast_signed(), from, to) || !is_connected())
    }

    /// The turns that were noted with the same hello, lately.
    fn turns(&self, from: SocketAddr, hello: &[u8]) -> Option<u8> {
        let slot = self.noted(from, Kind::Hello)?;
        let age_secs = self.now_secs().checked_sub(slot as u32 & SECS_BITS)?;
        let is_same = age_secs <= HELLO_REMEMBERED_SECS
            && slot >> 32 == key(Kind::Hello, self.hello(hello)) >> 32;
        is_same.then_some((slot >> 24) as u8)
    }

    fn ends(&self, from: SocketAddr, to: SocketAddr) -> u64 {
        let [from_ip, to_ip] = [from, to].map(|address| match address.ip().to_canonical() {
            // Whoever dials this is connected to loopback.
            ip if ip.is_unspecified() && ip.is_ipv4() => Ipv4Addr::LOCALHOST.into(),
            ip if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        });
        self.hash.hash_one((from_ip, to_ip, to.port()))
    }

    fn hello(&self, hello: &[u8]) -> u64 {
        self.hash.hash_one(&hello[..hello.len().min(HELLO_HASHED_BYTES)])
    }

    fn now_secs(&self) -> u32 {
        self.began.elapsed().as_secs() as u32 & SECS_BITS
    }
}

/// The bits of a slot's upper half that hold its kind.
const KIND_BITS: u64 = 3;
/// The bits of a slot that are seconds.
const SECS_BITS: u32 = (1 << 24) - 1;

fn key(kind: Kind, hash: u64) -> u64 {
    ((hash & !KIND_BITS) | kind as u64) << 32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn loops(addresses: &[&str]) -> Loops {
        let listeners = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Loops {
            listeners,
            dials: Arc::new(Dials { all: Dialled::new().into(), ..Dials::default() }),
        }
    }

    #[test]
    fn an_address_that_leads_to_a_listener_is_known() {
        let own = loops(&["0.0.0.0:443", "192.0.2.9:8443", "[::]:444"]);
        let at = |address: &str| own.listener_at(address.parse().unwrap());
        assert_eq!(at("127.0.0.1:443"), Some(0));
        assert_eq!(at("0.0.0.0:443"), Some(0));
        assert_eq!(at("[::ffff:127.0.0.1]:443"), Some(0));
        assert_eq!(at("192.0.2.9:8443"), Some(1));
        assert_eq!(at("[::1]:444"), Some(2));
        for other in ["192.0.2.1:443", "127.0.0.1:8443", "127.0.0.1:444", "[::1]:443"] {
            assert_eq!(at(other), None, "{other}");
        }
    }

    /// A listener, a socket that was told to connect to it, and both of its ends.
    fn dial() -> (TcpListener, TcpStream, [SocketAddr; 2]) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dial = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ends = [dial.local_addr().unwrap(), dial.peer_addr().unwrap()];
        (listener, dial, ends)
    }

    #[test]
    fn a_dial_is_known_by_both_its_ends_while_it_is_open() {
        let own = loops(&[]);
        let (_listener, dial, [from, to]) = dial();
        let [other_ip, other_port]: [SocketAddr; 2] =
            [([127, 0, 0, 2], from.port()).into(), ([127, 0, 0, 1], from.port() ^ 1).into()];
        assert!(!own.is_ours(from, to, || true));
        own.dialled(&dial, to, Trace::None);
        assert!(own.is_ours(from, to, || true));
        assert!(!own.is_ours(other_ip, to, || true));
        assert!(!own.is_ours(other_port, to, || true));
        assert!(!own.is_ours(from, from, || true));
        drop(dial);
        assert!(!own.is_ours(from, to, || true), "a client that uses the port later is not us");
        assert!(own.is_ours(from, to, || false), "our dial was reset, or nobody waits");
        assert!(!own.is_ours(other_ip, to, || false));
    }

    #[test]
    fn a_dial_that_was_answered_is_not_what_was_just_accepted() {
        let own = loops(&[]);
        let (listener, dial, [from, to]) = dial();
        own.dialled(&dial, to, Trace::None);
        listener.accept().unwrap().0.write_all(b"x").unwrap();
        dial.peek(&mut [0]).unwrap();
        assert!(!own.is_ours(from, to, || true));
    }

    #[test]
    fn a_hello_that_comes_back_has_its_port() {
        let own = loops(&[]);
        let [client, other]: [SocketAddr; 2] =
            ["192.0.2.1:50000", "192.0.2.1:50001"].map(|a| a.parse().unwrap());
        assert_eq!(own.turns(client, b"hello"), None);
        let suspects = own.dials.suspects.get_or_init(Dialled::new);
        for turns in [0, 7, u8::MAX] {
            suspects.note_hello(client, b"hello", turns);
            assert_eq!(own.turns(client, b"hello"), Some(turns));
            assert_eq!(own.turns(client, b"hellp"), None, "the same port, used again");
            assert_eq!(own.turns(other, b"hello"), None, "a hello that many say");
            assert!(!own.is_handed(client, || panic!("nobody has to ask"), || true));
        }
    }

    #[test]
    fn from_one_listener_to_another_both_ends_are_ours() {
        let own = loops(&[]);
        let (_listener, dial, [from, to]) = dial();
        let any = SocketAddr::from(([0, 0, 0, 0], to.port()));
        assert!(!own.is_handed(from, || panic!("nobody has to ask"), || true));
        // Whoever dials the unspecified address is connected to loopback.
        own.dialled(&dial, any, Trace::Ends);
        assert!(own.is_handed(from, || Some(to), || true));
        assert!(!own.is_handed(from, || Some(from), || true));
        assert!(!own.is_handed(to, || panic!("nobody has to ask"), || true));
        drop(dial);
        assert!(!own.is_handed(from, || Some(to), || true), "its port is another's now");
    }
}
