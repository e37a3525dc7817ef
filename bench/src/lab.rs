//! The environment of the servers: a temporary folder with a certificate, free ports, two cores,
//! and a backend and an origin.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose,
};

use crate::accounts::Accounts;
use crate::child::{self, Child};

/// The environment of one run.
#[derive(Debug)]
pub struct Lab {
    folder: Folder,
    server_core: usize,
    client_core: usize,
    eyelet: Option<PathBuf>,
    before: Option<PathBuf>,
    accounts: bool,
    count: AtomicU16,
}

/// An authority that signs certificates of origins.
#[derive(Clone, Copy, Debug)]
pub enum LabAuthority {
    /// The authority of the certificates that origins show.
    Origins,
    /// The authority of the certificates that are made after them.
    Mint,
}

impl LabAuthority {
    /// Its certificate and its key in the folder.
    pub const fn files(self) -> [&'static str; 2] {
        match self {
            Self::Origins => [ORIGINS, "origins.key"],
            Self::Mint => ["mint.pem", "mint.key"],
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Origins => "origins of eyelet-bench",
            Self::Mint => "mint of eyelet-bench",
        }
    }
}

/// A listening server.
#[derive(Debug)]
pub struct Server {
    /// Its process. Dropping it kills the process.
    pub child: Child,
    /// Its listening address.
    pub address: SocketAddr,
    /// The address at which an edge is asked for its memory when it ends, and its row.
    pub accounts: Option<(Accounts, &'static str)>,
}

impl Lab {
    /// Makes a folder with a new ECDSA P-256 certificate for `*.bench.test` and localhost. Pins
    /// this process to the client's core, with all descriptors allowed.
    ///
    /// # Errors
    /// A folder that cannot be written to, or a core that does not exist.
    pub fn new(
        (server_core, client_core): (usize, usize),
        eyelet: Option<PathBuf>,
        before: Option<PathBuf>,
        accounts: bool,
    ) -> io::Result<Self> {
        let folder = Folder::create()?;
        let signed = rcgen::generate_simple_self_signed([WILDCARD, LOCALHOST].map(str::to_owned));
        let signed = signed.map_err(io::Error::other)?;
        let (chain, key) = (signed.cert.pem(), signed.signing_key.serialize_pem());
        fs::write(folder.0.join(CERTIFICATE), &chain)?;
        fs::write(folder.0.join(KEY), &key)?;
        fs::write(folder.0.join(BOTH), key + &chain)?;
        let count = AtomicU16::new(0);
        let lab = Self { folder, server_core, client_core, eyelet, before, accounts, count };
        child::pin(client_core)?;
        child::raise_descriptors()?;
        Ok(lab)
    }

    /// The folder of the configurations, which is the peers' working directory.
    pub fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// Both cores, as taskset reads them.
    pub fn cores(&self) -> String {
        format!("{},{}", self.server_core, self.client_core)
    }

    /// The program under test, if it was found.
    pub fn eyelet(&self) -> Option<&Path> {
        self.eyelet.as_deref()
    }

    /// An older build for comparison, if one was given.
    pub fn before(&self) -> Option<&Path> {
        self.before.as_deref()
    }

    /// Returns the address at which an edge of this name is asked for its memory, if that is
    /// wanted.
    pub fn accounts(&self, name: &str) -> Option<Accounts> {
        self.accounts.then(|| Accounts::new(self.folder(), name))
    }

    /// Starts a server under test, and waits until it listens at `address`.
    ///
    /// # Errors
    /// The reason why it ended, or that it did not listen in time.
    pub fn start_server(
        &self,
        name: &str,
        command: &[OsString],
        address: SocketAddr,
    ) -> io::Result<Server> {
        self.start(name, self.server_core, command, address)
    }

    /// Starts the plain backend on the client's core.
    pub fn start_backend(&self) -> io::Result<Server> {
        let address = self.free_address()?;
        let arguments = ["backend".to_owned(), address.to_string()];
        self.start("backend", self.client_core, &own_command(&arguments)?, address)
    }

    /// Starts the canned origin on the client's core. It answers each hello with `reply` opaque
    /// bytes. Its addresses differ in their host part, so that a proxy does not run out of source
    /// ports.
    pub fn start_origin(&self, reply: usize) -> io::Result<(Server, Vec<SocketAddr>)> {
        self.start_origin_with(reply, &[])
    }

    /// Starts the origin with a certificate for clients that are no robots.
    pub fn start_true_origin(
        &self,
        reply: usize,
        tls12: bool,
    ) -> io::Result<(Server, Vec<SocketAddr>)> {
        let mut more = vec!["--certificate".to_owned(), self.path_of(CERTIFICATE)];
        more.extend(["--key".to_owned(), self.path_of(KEY)]);
        if tls12 {
            more.push("--tls12".to_owned());
        }
        self.start_origin_with(reply, &more)
    }

    /// Starts a resolver on the client's core. Every name has these addresses.
    pub fn start_dns(&self, addresses: &[SocketAddr]) -> io::Result<Server> {
        let address = self.free_address()?;
        let mut arguments = vec!["dns".to_owned(), address.to_string()];
        arguments.extend(addresses.iter().map(|address| address.ip().to_string()));
        self.start("dns", self.client_core, &own_command(&arguments)?, address)
    }

    /// Starts a true origin at all addresses of loopback.
    pub fn start_wide_origin(&self, reply: usize) -> io::Result<Server> {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, self.free_address()?.port()));
        let (certificate, key) = (self.path_of(CERTIFICATE), self.path_of(KEY));
        let (reply, at) = (reply.to_string(), address.to_string());
        let words =
            ["origin", "--reply", &reply, "--certificate", &certificate, "--key", &key, &at];
        let command = own_command(&words.map(str::to_owned))?;
        self.start("origin", self.client_core, &command, address)
    }

    /// Starts HTTPS origins at all addresses of loopback. [`ORIGINS`] is the authority of their
    /// certificates.
    pub fn start_sites(&self) -> io::Result<Server> {
        self.write_authority(LabAuthority::Origins)?;
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, self.free_address()?.port()));
        let [certificate, key] = LabAuthority::Origins.files().map(|file| self.path_of(file));
        let words = ["sites".to_owned(), address.to_string(), certificate, key];
        self.start("sites", self.client_core, &own_command(&words)?, address)
    }

    /// Makes an authority, and writes its certificate and its key to the folder.
    pub fn write_authority(&self, authority: LabAuthority) -> io::Result<()> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, authority.name());
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params.self_signed(&key).map_err(io::Error::other)?;
        let [file, key_file] = authority.files().map(|file| self.folder.0.join(file));
        fs::write(file, certificate.pem())?;
        fs::write(&key_file, key.serialize_pem())?;
        fs::set_permissions(key_file, fs::Permissions::from_mode(OWNER_ONLY))
    }

    fn path_of(&self, file: &str) -> String {
        self.folder.0.join(file).display().to_string()
    }

    fn start_origin_with(
        &self,
        reply: usize,
        more: &[String],
    ) -> io::Result<(Server, Vec<SocketAddr>)> {
        let port = self.free_address()?.port();
        let at = |k| SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(127, 1, 0, k), port));
        let addresses: Vec<SocketAddr> = (1..=ORIGIN_ADDRESSES).map(at).collect();
        let mut arguments = vec!["origin".to_owned(), "--reply".to_owned(), reply.to_string()];
        arguments.extend_from_slice(more);
        arguments.extend(addresses.iter().map(SocketAddr::to_string));
        let command = own_command(&arguments)?;
        Ok((self.start("origin", self.client_core, &command, addresses[0])?, addresses))
    }

    /// Starts a client process of this program on the client's core.
    pub fn start_client(&self, arguments: &[String]) -> io::Result<Child> {
        Child::start(
            &self.next_name("client"),
            self.client_core,
            self.folder(),
            &own_command(arguments)?,
        )
    }

    /// A free address on loopback, below the ephemeral ports.
    pub fn free_address(&self) -> io::Result<SocketAddr> {
        for _ in 0..PORTS {
            let offset = self.count.fetch_add(1, Ordering::Relaxed);
            // The first port differs by process, so that two runs rarely meet.
            let first = u16::try_from(std::process::id() % u32::from(PORTS)).unwrap_or(0);
            let port = PORT_FIRST + (first.wrapping_mul(7).wrapping_add(offset)) % PORTS;
            let free = |ip: Ipv4Addr| TcpListener::bind((ip, port)).is_ok();
            if free(Ipv4Addr::LOCALHOST) && free(Ipv4Addr::new(127, 1, 0, 1)) {
                return Ok((Ipv4Addr::LOCALHOST, port).into());
            }
        }
        Err(io::Error::other("no free port on loopback"))
    }

    fn start(
        &self,
        name: &str,
        core: usize,
        command: &[OsString],
        address: SocketAddr,
    ) -> io::Result<Server> {
        let name = self.next_name(name);
        let mut child = Child::start(&name, core, self.folder(), command)?;
        let give_up_at = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(address).is_err() {
            if let Some(why) = child.ended() {
                return Err(io::Error::other(format!("{name} ended: {why}")));
            }
            if Instant::now() > give_up_at {
                let words = child.close_with();
                return Err(io::Error::other(format!("{name} does not listen: {words}")));
            }
            std::thread::sleep(START_POLL);
        }
        Ok(Server { child, address, accounts: None })
    }

    /// A name that no other process of this run has.
    pub fn next_name(&self, name: &str) -> String {
        format!("{name}-{}", self.count.fetch_add(1, Ordering::Relaxed))
    }
}

impl Server {
    /// Prints what it accounts for of its memory, if it is an edge and that is wanted.
    pub fn print_accounts(&self) {
        if let Some((accounts, label)) = &self.accounts {
            accounts.print(label);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended answers nobody.
        if self.child.ended().is_none() {
            self.print_accounts();
        }
    }
}

/// The command for this program's own `peer` subcommand with these arguments.
pub fn own_command(arguments: &[String]) -> io::Result<Vec<OsString>> {
    let mut command = vec![std::env::current_exe()?.into_os_string(), "peer".into()];
    command.extend(arguments.iter().map(Into::into));
    Ok(command)
}

/// The i-th server name of the load tools.
pub fn host_name(i: usize) -> String {
    format!("host-{}.bench.test", i % NAMES)
}

/// A folder that is removed with its files when dropped.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn create() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("eyelet-bench-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The certificate chain's file in the folder.
pub const CERTIFICATE: &str = "server.pem";
/// Its key.
pub const KEY: &str = "server.key";
/// The certificate of the authority of the origins that are bumped.
pub const ORIGINS: &str = "origins.pem";
/// Both in one file: some peers require that.
pub const BOTH: &str = "both.pem";
/// The name in the certificate that the load tools use.
pub const WILDCARD: &str = "*.bench.test";
/// The other name, for clients that resolve names.
pub const LOCALHOST: &str = "localhost";
/// The number of names that the robots use and the rules list.
pub const NAMES: usize = 1000;

/// 4 times 28,000 source ports outlast their TIME_WAIT at the rates that one core reaches.
const ORIGIN_ADDRESSES: u8 = 4;
const PORT_FIRST: u16 = 20_000;
const PORTS: u16 = 12_000;
/// A key that others may read is refused.
const OWNER_ONLY: u32 = 0o600;
const START_TIMEOUT: Duration = Duration::from_secs(10);
const START_POLL: Duration = Duration::from_millis(20);
