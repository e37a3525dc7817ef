//! The server that is probed: its address, and connections to it, each with deadlines.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustls_pki_types::ServerName;

/// The reason why there is no target.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// Not `HOST:PORT`.
    #[error("{0}: expected HOST:PORT, such as www.example:443 or [::1]:8443")]
    Syntax(String),
    /// The name has no address.
    #[error("{0}: {1}")]
    Resolve(String, io::Error),
}

/// A server.
#[derive(Clone, Debug)]
pub struct ProbeTarget {
    /// The address of the target.
    pub address: SocketAddr,
    /// The name that hellos and requests have.
    pub name: String,
    /// The time that one wait may take.
    pub wait: Duration,
}

impl ProbeTarget {
    /// Resolves `HOST:PORT`. `name` replaces the host in hellos and requests.
    pub fn resolve(text: &str, name: Option<&str>, wait: Duration) -> Result<Self, TargetError> {
        let syntax = || TargetError::Syntax(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(syntax)?;
        port.parse::<u16>().ok().filter(|port| *port != 0).ok_or_else(syntax)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let resolve = |error| TargetError::Resolve(text.to_owned(), error);
        let addresses: Vec<SocketAddr> = text.to_socket_addrs().map_err(resolve)?.collect();
        let address = reachable(&addresses, wait);
        let address = address.ok_or_else(|| resolve(ErrorKind::NotFound.into()))?;
        Ok(Self { address, name: name.unwrap_or(host).to_owned(), wait })
    }

    /// True if the server is on this machine, by its address.
    pub fn is_local(&self) -> bool {
        self.address.ip().to_canonical().is_loopback()
    }

    /// The name and the port as the Host field of `https` has them (RFC 9110 7.2).
    pub fn authority(&self) -> String {
        let name = match self.name.parse::<std::net::Ipv6Addr>() {
            Ok(six) => format!("[{six}]"),
            Err(_) => self.name.clone(),
        };
        match self.address.port() {
            HTTPS_PORT => name,
            port => format!("{name}:{port}"),
        }
    }

    /// The name as `server_name` has it; `None` for an address (RFC 6066 section 3).
    pub fn sni(&self) -> Option<&str> {
        self.name.parse::<std::net::IpAddr>().is_err().then_some(&*self.name)
    }

    /// The name as rustls has it.
    ///
    /// # Errors
    /// `InvalidInput`, if it is none.
    pub fn server_name(&self) -> io::Result<ServerName<'static>> {
        let name = ServerName::try_from(self.name.clone());
        name.map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))
    }

    /// Connects. Reads and writes of the result end at one deadline.
    ///
    /// # Errors
    /// The socket's.
    pub fn connect(&self) -> io::Result<Bounded> {
        let stream = TcpStream::connect_timeout(&self.address, self.wait)?;
        stream.set_nodelay(true)?;
        Ok(Bounded { stream, deadline: Instant::now() + self.wait })
    }
}

/// The port that a Host field leaves out.
const HTTPS_PORT: u16 = 443;

/// The first of several addresses that takes a connection, or the first one if none does.
fn reachable(addresses: &[SocketAddr], wait: Duration) -> Option<SocketAddr> {
    let takes = |address: &&SocketAddr| TcpStream::connect_timeout(address, wait).is_ok();
    let found = if addresses.len() > 1 { addresses.iter().find(takes) } else { None };
    found.or_else(|| addresses.first()).copied()
}

/// A connection whose waits end at a deadline, however slowly its peer sends.
#[derive(Debug)]
pub struct Bounded {
    /// The socket.
    pub stream: TcpStream,
    deadline: Instant,
}

impl Bounded {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Ok(Some(left)),
            _ => Err(ErrorKind::TimedOut.into()),
        }
    }

    /// Moves the deadline.
    pub fn wait(&mut self, wait: Duration) {
        self.deadline = Instant::now() + wait;
    }
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer).map_err(timed_out)
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// A socket's timeout is reported as `WouldBlock`.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_host_field_has_brackets_and_an_unusual_port() {
        let wait = Duration::from_secs(1);
        for (text, name, host) in [
            ("127.0.0.1:443", Some("a.test"), "a.test"),
            ("127.0.0.1:8443", Some("a.test"), "a.test:8443"),
            ("[::1]:443", None, "[::1]"),
            ("[::1]:8443", None, "[::1]:8443"),
            ("127.0.0.1:8443", None, "127.0.0.1:8443"),
        ] {
            let target = ProbeTarget::resolve(text, name, wait).unwrap();
            assert_eq!(target.authority(), host, "{text}");
        }
    }

    #[test]
    fn a_deadline_ends_all_waits_until_it_is_moved() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut peer = listener.accept().unwrap().0;
        peer.write_all(b"ab").unwrap();
        let mut bounded = Bounded { stream, deadline: Instant::now() };
        let late = |result: io::Result<usize>| result.unwrap_err().kind() == ErrorKind::TimedOut;
        assert!(late(bounded.read(&mut [0; 1])) && late(bounded.write(b"a")));
        bounded.wait(Duration::from_secs(60));
        assert_eq!(bounded.read(&mut [0; 1]).unwrap(), 1);
        assert_eq!(bounded.write(b"a").unwrap(), 1);
    }

    #[test]
    fn the_first_address_that_takes_a_connection_is_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap();
        // No test listens at this address.
        let closed = SocketAddr::from(([127, 0, 0, 2], open.port()));
        let wait = Duration::from_secs(60);
        assert_eq!(reachable(&[closed, open], wait), Some(open));
        assert_eq!(reachable(&[closed, closed], wait), Some(closed));
        assert_eq!(reachable(&[], wait), None);
    }
}
