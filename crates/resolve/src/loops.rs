//! Loop detection: it knows where this process listens and which sockets it has dialled.

use std::hash::BuildHasher;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use foldhash::fast::RandomState;

use eyelet_config::{Listener, ListenerKind};
use eyelet_sys::{interfaces, socket};

/// The facts by which this process detects loops.
#[derive(Clone)]
pub struct Loops {
    listeners: Box<[SocketAddr]>,
    dials: Arc<Dials>,
}

/// The dials of this process. All its configurations share them.
#[derive(Default)]
struct Dials {
    /// All dials, if a listener intercepts connections that were sent to others.
    all: OnceLock<DialTable>,
    /// The dials that may come back to a listener of any kind. Allocated at the first of them.
    suspects: OnceLock<DialTable>,
}

/// The mark of a dial that may come back to us.
#[derive(Clone, Copy, Debug, Default)]
pub enum DialMark<'a> {
    /// It goes to a configured address, which is no listener of ours.
    #[default]
    None,
    /// It goes from one of our listeners to another: by both its ends.
    Ends,
    /// It goes where a client wanted, and may come back by a path that we cannot see, such as a
    /// router's NAT: by its source port and the hello. A client may send the same hello twice, and
    /// may get a port that was ours. Both at once is almost certainly ourselves. The number says
    /// how often the hello has come back already.
    Hello(&'a [u8], u8),
}

/// The last dial from each local port: half a megabyte, and no lock.
struct DialTable {
    /// From the top: 30 bits of a hash; 2 bits of its [`Kind`]; 32 bits that depend on the kind.
    /// `Ends`: the descriptor. `Hello`: 8 bits of the hop count, and 24 bits of seconds since
    /// `began`, half a year.
    ports: Box<[AtomicU64]>,
    hash: RandomState,
    began: Instant,
}

/// Seconds for which a hello is remembered. A loop brings it back at once, and its port may soon be
/// another process's.
const HELLO_REMEMBERED_SECS: u32 = 5;

/// Bytes of a hello that are hashed. The first 43 are the headers and the client's random.
const HELLO_HASHED_BYTES: usize = 128;

/// Most hops of a hello through a router that replaces our address by its own but keeps the port.
/// One hop may be chance, if clients send the same hello. So many are a loop.
pub const HOPS_MAX: u8 = 32;

/// The note of a slot about a dial. Never 0: that is an unused slot.
#[derive(Clone, Copy)]
enum Kind {
    Ends = 1,
    Hello = 2,
}

impl Loops {
    /// `addresses` are those that `listeners` were bound to. The dials of `earlier` are kept.
    pub fn new(listeners: &[Listener], addresses: &[SocketAddr], earlier: Option<&Self>) -> Self {
        let takes_others = |listener: &Listener| {
            matches!(listener.kind, ListenerKind::Redirect | ListenerKind::Tproxy)
        };
        let dials = earlier.map_or_else(Arc::default, |earlier| earlier.dials.clone());
        if listeners.iter().any(takes_others) {
            dials.all.get_or_init(DialTable::new);
        }
        // No address of this network leads to the socket of another one.
        let own = listeners.iter().zip(addresses).filter(|(listener, _)| !listener.is_apart);
        Self { listeners: own.map(|(_, address)| *address).collect(), dials }
    }

    /// The index of the listener that a connection to `address` would reach.
    pub fn listener_at(&self, address: SocketAddr) -> Option<usize> {
        let ip = address.ip().to_canonical();
        self.listeners.iter().position(|listener| {
            // Whether an address is ours costs system calls, so the port is compared first.
            listener.port() == address.port()
                && listener.is_ipv4() == ip.is_ipv4()
                && (listener.ip() == ip
                    || listener.ip().is_unspecified()
                        && (ip.is_unspecified() || interfaces::is_local(ip)))
        })
    }

    /// Remembers a socket of ours that connects to `to`.
    pub fn dialled(&self, upstream: impl AsFd, to: SocketAddr, mark: DialMark<'_>) {
        let all = self.dials.all.get();
        if all.is_none() && matches!(mark, DialMark::None) {
            return;
        }
        let upstream = upstream.as_fd();
        let Ok(from) = socket::local_address(upstream) else { return };
        if let Some(dialled) = all {
            dialled.note_ends(from, to, upstream.as_raw_fd());
        }
        let suspects = || self.dials.suspects.get_or_init(DialTable::new);
        match mark {
            DialMark::None => {}
            DialMark::Ends => suspects().note_ends(from, to, upstream.as_raw_fd()),
            // Over loopback, clients and we share the same few ports, so a port proves nothing.
            DialMark::Hello(..) if from.ip().to_canonical().is_loopback() => {}
            DialMark::Hello(hello, hop_count) => {
                suspects().note_hello(from, hello, hop_count);
            }
        }
    }

    /// True if `client`, who wants to go to `destination`, is a socket of ours. `is_connected`
    /// tells whether the accepted connection is still open.
    pub fn is_ours(
        &self,
        client: SocketAddr,
        destination: SocketAddr,
        is_connected: impl FnOnce() -> bool,
    ) -> bool {
        let to = || Some(destination);
        self.dials.all.get().is_some_and(|dialled| dialled.is_ours(client, to, is_connected))
    }

    /// True if a connection that was accepted from `client` comes from another listener of ours.
    /// All other connections pay one atomic load: `local` and `is_connected` are called only if the
    /// client's port was used for such a dial.
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

    /// Returns how often this hello had come back before, if we sent it from a port like `client`'s
    /// to where a client wanted to go.
    pub fn hop_count(&self, client: SocketAddr, hello: &[u8]) -> Option<u8> {
        self.dials.suspects.get()?.hop_count(client, hello)
    }
}

impl DialTable {
    fn new() -> Self {
        let ports = (0..=u16::MAX).map(|_| AtomicU64::new(0)).collect();
        Self { ports, hash: RandomState::default(), began: Instant::now() }
    }

    fn note(&self, from: SocketAddr, kind: Kind, hash: u64, more: u32) {
        if let Some(slot) = self.ports.get(usize::from(from.port())) {
            slot.store(key(kind, hash) | u64::from(more), Relaxed);
        }
    }

    fn note_ends(&self, from: SocketAddr, to: SocketAddr, descriptor: RawFd) {
        self.note(from, Kind::Ends, self.ends(from, to), descriptor.cast_unsigned());
    }

    fn note_hello(&self, from: SocketAddr, hello: &[u8], hop_count: u8) {
        self.note(
            from,
            Kind::Hello,
            self.hello(hello),
            u32::from(hop_count) << 24 | self.now_secs(),
        );
    }

    /// The last note for this port, if it is of that kind.
    fn noted(&self, from: SocketAddr, kind: Kind) -> Option<u64> {
        let slot = self.ports.get(usize::from(from.port()))?.load(Relaxed);
        ((slot >> 32) & KIND_BITS == kind as u64).then_some(slot)
    }

    /// True if an accepted connection from `from` is the other end of a dial of ours to `to`. The
    /// slot says which socket may be that dial, and the kernel says whether it is. Two open sockets
    /// of one host never have the same two ends, so a client that uses the port later is not taken
    /// for us. A client of another host may have the same ends as a dial from its address (`source
    /// = "client"`). So the dial must have received nothing: its other end would be the connection
    /// that was just accepted.
    ///
    /// A dial that was reset is gone when its other end is accepted; the loop would never be
    /// noticed. So a connection that was reset and has the same ends counts as ours: no client
    /// waits there.
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

    /// The hop count that was noted with the same hello lately.
    fn hop_count(&self, from: SocketAddr, hello: &[u8]) -> Option<u8> {
        let slot = self.noted(from, Kind::Hello)?;
        let age_secs = self.now_secs().checked_sub(slot as u32 & SECS_BITS)?;
        let is_same = age_secs <= HELLO_REMEMBERED_SECS
            && slot >> 32 == key(Kind::Hello, self.hello(hello)) >> 32;
        is_same.then_some((slot >> 24) as u8)
    }

    fn ends(&self, from: SocketAddr, to: SocketAddr) -> u64 {
        let [from_ip, to_ip] = [from, to].map(|address| match address.ip().to_canonical() {
            // A dial to the unspecified address reaches loopback.
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
            dials: Arc::new(Dials { all: DialTable::new().into(), ..Dials::default() }),
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

    /// A listener, a socket that connects to it, and both of its ends.
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
        own.dialled(&dial, to, DialMark::None);
        assert!(own.is_ours(from, to, || true));
        assert!(!own.is_ours(other_ip, to, || true));
        assert!(!own.is_ours(other_port, to, || true));
        assert!(!own.is_ours(from, from, || true));
        drop(dial);
        assert!(!own.is_ours(from, to, || true), "a client that uses the port later is not us");
        assert!(own.is_ours(from, to, || false), "our dial was reset");
        assert!(!own.is_ours(other_ip, to, || false));
    }

    #[test]
    fn a_dial_that_was_answered_is_not_the_accepted_connection() {
        let own = loops(&[]);
        let (listener, dial, [from, to]) = dial();
        own.dialled(&dial, to, DialMark::None);
        listener.accept().unwrap().0.write_all(b"x").unwrap();
        dial.peek(&mut [0]).unwrap();
        assert!(!own.is_ours(from, to, || true));
    }

    #[test]
    fn a_hello_that_comes_back_is_known_by_its_port() {
        let own = loops(&[]);
        let [client, other]: [SocketAddr; 2] =
            ["192.0.2.1:50000", "192.0.2.1:50001"].map(|a| a.parse().unwrap());
        assert_eq!(own.hop_count(client, b"hello"), None);
        let suspects = own.dials.suspects.get_or_init(DialTable::new);
        for hop_count in [0, 7, u8::MAX] {
            suspects.note_hello(client, b"hello", hop_count);
            assert_eq!(own.hop_count(client, b"hello"), Some(hop_count));
            assert_eq!(own.hop_count(client, b"hellp"), None, "the same port, used again");
            assert_eq!(
                own.hop_count(other, b"hello"),
                None,
                "another port: a hello that many clients send"
            );
            assert!(!own.is_handed(client, || panic!("not called"), || true));
        }
    }

    #[test]
    fn from_one_listener_to_another_both_ends_are_ours() {
        let own = loops(&[]);
        let (_listener, dial, [from, to]) = dial();
        let any = SocketAddr::from(([0, 0, 0, 0], to.port()));
        assert!(!own.is_handed(from, || panic!("not called"), || true));
        // A dial to the unspecified address reaches loopback.
        own.dialled(&dial, any, DialMark::Ends);
        assert!(own.is_handed(from, || Some(to), || true));
        assert!(!own.is_handed(from, || Some(from), || true));
        assert!(!own.is_handed(to, || panic!("not called"), || true));
        drop(dial);
        assert!(!own.is_handed(from, || Some(to), || true), "its port was used for another dial");
    }
}
