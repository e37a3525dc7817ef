//! Redis or Valkey as the store: one server, or a cluster.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use eyelet_config::RedisAddress;
use eyelet_pki::certificate;
use redis::cluster::{ClusterClient, ClusterConnection};
use redis::{
    Client, Cmd, Connection, ConnectionAddr, ConnectionInfo, FromRedisValue, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, ServerErrorKind, TlsCertificates,
};

use crate::{StoreError, VALUE_BYTES_MAX};

/// For TCP, TLS and the login together, for each address of the name.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Most addresses of a name that are tried: the thread of the keys waits for each.
const ADDRESSES_MAX: usize = 8;
/// From a command to its answer.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(3);
/// Attempts of one command at the nodes of a cluster: the first, and one where it is sent on to.
const CLUSTER_RETRIES: u32 = 2;
/// Before each name, so that the database can serve others too.
const PREFIX: &str = "eyelet:";

/// A client with at most one open connection.
pub struct RedisStore {
    info: ConnectionInfo,
    /// For `rediss://`.
    certificates: Option<TlsCertificates>,
    /// The server says that it is a node of a cluster.
    is_cluster: bool,
    link: Option<Link>,
}

enum Link {
    One(Box<Connection>),
    Cluster(Box<ClusterConnection>),
}

impl RedisStore {
    pub fn new(redis: &RedisAddress) -> Result<Self, StoreError> {
        let (host, port) = (redis.address.host.to_string(), redis.address.port);
        let address = match &redis.tls {
            None => ConnectionAddr::Tcp(host, port),
            Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        };
        let mut login = RedisConnectionInfo::default().set_db(redis.database.into());
        if let Some((user, password)) = &redis.login {
            login = login.set_password(password.as_str());
            if !user.is_empty() {
                login = login.set_username(user);
            }
        }
        let info = address.into_connection_info()?.set_redis_settings(login);
        let certificates = redis.tls.as_ref().map(|tls| {
            let ca = tls.ca.as_deref().map(certificate::chain).transpose();
            let root_cert = ca.map_err(std::io::Error::other)?.map(|chain| as_pem(&chain));
            Ok::<_, StoreError>(TlsCertificates { client_tls: None, root_cert })
        });
        let certificates = certificates.transpose()?;
        Ok(Self { info, certificates, is_cluster: false, link: None })
    }

    pub fn get(&mut self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        // GETRANGE rather than GET: the server sends no more than we would take.
        let key = format!("{PREFIX}{name}");
        let value: Vec<u8> =
            self.ask(redis::cmd("GETRANGE").arg(key).arg(0).arg(VALUE_BYTES_MAX))?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(StoreError::Value("a value in it is too long"));
        }
        // No such value has no bytes.
        Ok(Some(value).filter(|value| !value.is_empty()))
    }

    pub fn put_if_absent(
        &mut self,
        name: &str,
        sealed: &[u8],
        lifetime: Duration,
    ) -> Result<(), StoreError> {
        let (key, lifetime_ms) = (format!("{PREFIX}{name}"), lifetime.as_millis() as u64);
        let mut set = redis::cmd("SET");
        set.arg(key).arg(sealed).arg("NX").arg("PX").arg(lifetime_ms);
        // The answer says whether it was absent. The caller reads the value either way.
        let _is_set: Option<String> = self.ask(&set)?;
        Ok(())
    }

    pub fn put(&mut self, name: &str, sealed: &[u8], lifetime: Duration) -> Result<(), StoreError> {
        let (key, lifetime_ms) = (format!("{PREFIX}{name}"), lifetime.as_millis() as u64);
        let mut set = redis::cmd("SET");
        set.arg(key).arg(sealed).arg("PX").arg(lifetime_ms);
        self.ask(&set)
    }

    pub fn remove(&mut self, name: &str) -> Result<(), StoreError> {
        let mut delete = redis::cmd("DEL");
        delete.arg(format!("{PREFIX}{name}"));
        let _removed: u64 = self.ask(&delete)?;
        Ok(())
    }

    fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, StoreError> {
        let is_kept = self.link.is_some();
        match self.ask_once(command) {
            // The server may have closed the connection since the last command.
            Err(error) if is_kept && error.is_io_error() && !error.is_timeout() => {}
            // One node of a cluster answers so for most names.
            Err(error) if !self.is_cluster && is_moved(&error) => self.is_cluster = true,
            answer => return Ok(answer?),
        }
        Ok(self.ask_once(command)?)
    }

    fn ask_once<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, RedisError> {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => self.connect()?,
        };
        let answer = match &mut link {
            Link::One(connection) => command.query(connection),
            Link::Cluster(connection) => command.query(connection),
        };
        if answer.is_ok() {
            self.link = Some(link);
        }
        answer
    }

    fn connect(&self) -> Result<Link, RedisError> {
        let servers = self.servers()?;
        if self.is_cluster {
            let mut builder = ClusterClient::builder(servers)
                .connection_timeout(CONNECT_TIMEOUT)
                .response_timeout(COMMAND_TIMEOUT)
                .retries(CLUSTER_RETRIES);
            if let Some(certificates) = &self.certificates {
                builder = builder.certs(certificates.clone());
            }
            return Ok(Link::Cluster(Box::new(builder.build()?.get_connection()?)));
        }
        self.connect_first(servers).map(|connection| Link::One(Box::new(connection)))
    }

    /// One server for each address of the name: the library has one time limit for all of them, so
    /// a first address that is silent would use it up. With TLS the library needs the name, and
    /// finds the addresses itself.
    fn servers(&self) -> Result<Vec<ConnectionInfo>, RedisError> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let addresses = (host.as_str(), *port).to_socket_addrs()?;
                Ok(addresses.take(ADDRESSES_MAX).map(|address| self.server(address)).collect())
            }
            _ => Ok(vec![self.info.clone()]),
        }
    }

    fn server(&self, address: SocketAddr) -> ConnectionInfo {
        let address = ConnectionAddr::Tcp(address.ip().to_string(), address.port());
        self.info.clone().set_addr(address)
    }

    /// The first server that answers in time.
    fn connect_first(&self, servers: Vec<ConnectionInfo>) -> Result<Connection, RedisError> {
        let mut failure = RedisError::from((redis::ErrorKind::Io, "its name has no address"));
        for server in servers {
            match self.connect_to(server) {
                Ok(connection) => return Ok(connection),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn connect_to(&self, server: ConnectionInfo) -> Result<Connection, RedisError> {
        let client = match &self.certificates {
            Some(certificates) => Client::build_with_tls(server, certificates.clone())?,
            None => Client::open(server)?,
        };
        let connection = client.get_connection_with_timeout(CONNECT_TIMEOUT)?;
        connection.set_read_timeout(Some(COMMAND_TIMEOUT))?;
        connection.set_write_timeout(Some(COMMAND_TIMEOUT))?;
        Ok(connection)
    }
}

/// Certificates as the client library takes them. It reads no other form of a file than this one.
fn as_pem(chain: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let section = |certificate| {
        let text = BASE64_STANDARD.encode(certificate);
        format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
    };
    chain.iter().map(section).collect::<String>().into_bytes()
}

fn is_moved(error: &RedisError) -> bool {
    matches!(error.kind(), redis::ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};

    use eyelet_config::{Host, HostPort};
    use socket2::{Domain, Socket, Type};

    use super::*;

    /// A listener whose queue is full: the kernel drops each further SYN.
    fn silent() -> (Socket, Vec<TcpStream>, SocketAddr) {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
        // Linux holds one connection more than it was asked for.
        let queue = std::iter::from_fn(connect).take(8).collect();
        (socket, queue, address)
    }

    /// Says OK to everything, for one connection.
    fn server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            for line in BufReader::new(&stream).lines() {
                if line.is_ok_and(|line| line.starts_with('*')) {
                    (&stream).write_all(b"+OK\r\n").unwrap();
                }
            }
        });
        address
    }

    #[test]
    fn an_address_that_is_silent_does_not_hide_the_next_one() {
        let (_socket, _queue, silent) = silent();
        let address = HostPort { host: Host::Name("redis.example".into()), port: 6379 };
        let address = RedisAddress { address, database: 1, login: None, tls: None };
        let store = RedisStore::new(&address).unwrap();
        let servers = |addresses: &[SocketAddr]| {
            addresses.iter().map(|address| store.server(*address)).collect::<Vec<_>>()
        };
        store.connect_first(servers(&[silent, server()])).unwrap();
        assert!(store.connect_first(servers(&[silent])).is_err_and(|error| error.is_timeout()));
        assert!(store.connect_first(servers(&[])).is_err());
    }
}
