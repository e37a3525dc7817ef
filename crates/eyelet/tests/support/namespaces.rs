//! Three hosts as network namespaces: a client, the gateway, and a server behind it, joined by veth
//! pairs. The network that the tests were started in stays untouched.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::edge::{self, Edge};
use super::program::{need, skip};
use super::{Folder, SOON};

/// The client's addresses.
pub const CLIENT: [&str; 2] = ["10.77.0.2", "fd77::2"];
/// The gateway's towards the client.
pub const GATEWAY: [&str; 2] = ["10.77.0.1", "fd77::1"];
/// The gateway's towards the server.
pub const GATEWAY_OUT: [&str; 2] = ["10.78.0.1", "fd78::1"];
/// The server's, of the ranges for documentation (RFC 5737, RFC 3849), which nobody guards.
pub const SERVER: [&str; 2] = ["198.51.100.10", "2001:db8::10"];

/// One of the three hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Client,
    Gateway,
    Server,
}

/// The namespaces of one test, gone when dropped.
pub struct Net {
    name: String,
}

impl Net {
    /// `None`, and says so, where it cannot be had.
    pub fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            skip("network namespaces need root");
            return None;
        }
        if !need("ip") || !need("nft") {
            return None;
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let net = Self { name: format!("eyelet-{}-{number}", std::process::id()) };
        let [c, g, s] =
            [Place::Client, Place::Gateway, Place::Server].map(|place| net.namespace(place));
        shell(&format!(
            "for n in {c} {g} {s}; do
                ip netns add $n
                ip netns exec $n sysctl -qw net.ipv6.conf.all.accept_dad=0 \
                    net.ipv6.conf.default.accept_dad=0 net.ipv4.ip_local_port_range='20000 60000'
                ip -n $n link set lo up
            done
            ip link add eth0 netns {c} type veth peer name lan0 netns {g}
            ip link add wan0 netns {g} type veth peer name eth0 netns {s}
            ip netns exec {g} sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
                net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 \
                net.ipv4.conf.lan0.rp_filter=0 net.ipv4.conf.wan0.rp_filter=0
            ip -n {c} addr add 10.77.0.2/24 dev eth0
            ip -n {c} addr add fd77::2/64 dev eth0 nodad
            ip -n {g} addr add 10.77.0.1/24 dev lan0
            ip -n {g} addr add fd77::1/64 dev lan0 nodad
            ip -n {g} addr add 10.78.0.1/24 dev wan0
            ip -n {g} addr add fd78::1/64 dev wan0 nodad
            ip -n {s} addr add 10.78.0.2/24 dev eth0
            ip -n {s} addr add fd78::2/64 dev eth0 nodad
            ip -n {s} addr add 198.51.100.10/32 dev lo
            ip -n {s} addr add 2001:db8::10/128 dev lo
            ip -n {c} link set eth0 up; ip -n {g} link set lan0 up
            ip -n {g} link set wan0 up; ip -n {s} link set eth0 up
            ip -n {c} route add default via 10.77.0.1
            ip -n {c} -6 route add default via fd77::1
            ip -n {g} route add 198.51.100.0/24 via 10.78.0.2
            ip -n {g} -6 route add 2001:db8::/32 via fd78::2
            ip -n {s} route add default via 10.78.0.1
            ip -n {s} -6 route add default via fd78::1",
        ));
        Some(net)
    }

    /// Returns the name that `ip netns` uses.
    fn namespace(&self, place: Place) -> String {
        format!("{}-{place:?}", self.name).to_lowercase()
    }

    /// Runs a shell script at a place.
    pub fn script(&self, place: Place, script: &str) {
        shell(&format!("ip netns exec {} sh -ec '{script}'", self.namespace(place)));
    }

    /// A program at a place.
    pub fn command(&self, place: Place, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(place), program]);
        command
    }

    /// Loads nft rules at the gateway.
    pub fn nft(&self, rules: &str) {
        let mut command = self.command(Place::Gateway, "nft");
        let mut child = command.args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "nft refuses:\n{rules}");
    }

    /// Routes what TPROXY has marked to the gateway itself.
    pub fn route_marked(&self) {
        self.script(
            Place::Gateway,
            "ip rule add fwmark 1 lookup 100
             ip route add local 0.0.0.0/0 dev lo table 100
             ip -6 rule add fwmark 1 lookup 100
             ip -6 route add local ::/0 dev lo table 100",
        );
    }

    /// Runs `work` at a place: the sockets that it makes stay there, wherever they are then used.
    pub fn at<T: Send>(&self, place: Place, work: impl FnOnce() -> T + Send) -> T {
        let file = std::fs::File::open(format!("/run/netns/{}", self.namespace(place))).unwrap();
        // A thread of its own: its namespace goes with it.
        let moved = || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(moved).join().unwrap())
    }

    /// A client's socket to an address, with deadlines.
    pub fn connect(&self, place: Place, to: SocketAddr) -> TcpStream {
        self.at(place, || {
            let stream = TcpStream::connect_timeout(&to, SOON).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(SOON)).unwrap();
            stream.set_write_timeout(Some(SOON)).unwrap();
            stream
        })
    }

    /// A listening socket. Where another one has just been dropped, another test's child has that
    /// until it becomes its program.
    pub fn listen(&self, place: Place, address: SocketAddr) -> Origin {
        let bind = || match TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => None,
            listener => Some(listener.unwrap()),
        };
        Origin(self.at(place, || super::until("the address to be free", bind)))
    }

    /// An edge at the gateway.
    pub fn edge(&self, folder: &Folder, config: &str) -> Edge {
        let file = edge::write(folder, config);
        let mut command = self.command(Place::Gateway, env!("CARGO_BIN_EXE_eyelet"));
        command.arg("serve").arg(file);
        Edge::spawn(command, config.matches("[[listener]]").count())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for place in [Place::Client, Place::Gateway, Place::Server] {
            let mut command = Command::new("ip");
            let _ = command.args(["netns", "del", &self.namespace(place)]).output();
        }
    }
}

/// A server that the test plays.
pub struct Origin(TcpListener);

impl Origin {
    pub fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// The next connection; panics when none comes.
    pub fn take(&self) -> (TcpStream, SocketAddr) {
        self.0.set_nonblocking(true).unwrap();
        let (stream, from) = super::until("a connection at the server", || self.0.accept().ok());
        stream.set_nonblocking(false).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        (stream, from)
    }

    /// The next connection, however late it comes.
    pub fn accept(&self) -> (TcpStream, SocketAddr) {
        self.0.accept().unwrap()
    }

    /// True if nobody connects for a while.
    pub fn is_left_alone(&self, wait: Duration) -> bool {
        self.0.set_nonblocking(true).unwrap();
        thread::sleep(wait);
        self.0.accept().is_err()
    }
}

/// `address:port` of either family.
pub fn socket_address(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse::<IpAddr>().unwrap(), port)
}

fn shell(script: &str) {
    let said = Command::new("sh").arg("-ec").arg(script).output().unwrap();
    let mut text = String::new();
    write!(text, "{}", String::from_utf8_lossy(&said.stderr)).unwrap();
    assert!(said.status.success(), "{script}\n{text}");
}
