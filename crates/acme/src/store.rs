//! The store of the account, the certificates and the answers to challenges: a folder of this
//! machine, or the store of the fleet. A lock lets one process order a name.

use std::cell::RefCell;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use eyelet_config::{AcmeSettings, FleetSettings};
use eyelet_fleet::Fleet;
use eyelet_sys::file::OwnFolder;
use zeroize::Zeroizing;

use crate::error::AcmeError;

/// Bytes of a stored value: a chain with its key has less than 16 KiB.
const VALUE_BYTES_MAX: u64 = 64 << 10;
/// The time that an edge of a fleet may order a name. Longer than an order may take.
pub const LOCK_LIFETIME: Duration = Duration::from_mins(5);
/// The time for which the store keeps an answer to a challenge.
const ANSWER_LIFETIME: Duration = LOCK_LIFETIME;
/// The time for which the store of a fleet keeps a certificate, which is longer than any lasts, and
/// an account that no edge has loaded meanwhile.
const KEPT: Duration = Duration::from_hours(24 * 400);
/// Bytes of a name that is also a file's name. The kernel permits 255, and `.pem` and the suffix of
/// a file that is being written need some.
const FILE_NAME_BYTES_MAX: usize = 200;

/// The kinds of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The account at the server.
    Account,
    /// The account's next key (PKCS#8), until the server knows it.
    NextKey,
    /// A chain and its key, both PEM. By name.
    Certificate,
    /// The key authorization for TLS-ALPN-01. By name.
    TlsAlpn,
    /// The key authorization for HTTP-01. By token.
    Http,
}

impl Kind {
    const fn extension(self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::NextKey => "next-key",
            Self::Certificate => "pem",
            Self::TlsAlpn => "alpn",
            Self::Http => "http",
        }
    }

    const fn lifetime(self) -> Duration {
        match self {
            Self::Account | Self::NextKey | Self::Certificate => KEPT,
            Self::TlsAlpn | Self::Http => ANSWER_LIFETIME,
        }
    }
}

/// The store as the tasks of the thread share it.
pub type SharedStore = RefCell<AcmeStore>;

/// The store of one ACME server's values.
pub struct AcmeStore {
    place: Place,
    /// Stands for the server: values of another one are not mixed with these.
    server: String,
    /// Distinguishes this process from others that take locks.
    owner: [u8; 8],
}

enum Place {
    Folder {
        path: PathBuf,
        /// Held from the first order to the end of the process: one process orders.
        lock: Option<File>,
    },
    Fleet(Box<Fleet>),
}

/// A lock that was taken. In a fleet it ends by itself.
pub struct Lock(Instant);

impl AcmeStore {
    /// Opens the store of the fleet, or the folder.
    ///
    /// # Errors
    /// If the fleet's secret cannot be read, or there is no folder.
    pub fn open(acme: &AcmeSettings, fleet: Option<&FleetSettings>) -> Result<Self, AcmeError> {
        let server = server_name(&acme.directory);
        let place = match fleet {
            Some(fleet) => {
                // For `rediss://`: the client library asks for the provider of the process.
                eyelet_tls::provider::install();
                Place::Fleet(Box::new(Fleet::open(fleet).map_err(store_error)?))
            }
            None => {
                let folder = acme.folder.clone().or_else(default_folder).ok_or_else(|| {
                    AcmeError::Store("there is no home for certificates: set `folder`".into())
                })?;
                // Made here with the mode 0700, as its parent would be opened by its path.
                let opened = OwnFolder::open(&folder);
                opened.map_err(|error| of_folder(&folder, &error))?;
                Place::Folder { path: folder.join(&server), lock: None }
            }
        };
        let owner = eyelet_sys::process::random()
            .ok_or_else(|| AcmeError::Library("the system has no randomness".into()))?;
        Ok(Self { place, server, owner })
    }

    /// True if it is the store of a fleet, which removes a value after its lifetime.
    pub fn is_shared(&self) -> bool {
        matches!(self.place, Place::Fleet(_))
    }

    /// A value, if there is one.
    ///
    /// # Errors
    /// If the store cannot be used.
    pub fn get(&mut self, kind: Kind, id: &str) -> Result<Option<Zeroizing<Vec<u8>>>, AcmeError> {
        match &mut self.place {
            Place::Fleet(fleet) => {
                fleet.get(&shared_name(&self.server, kind.extension(), id)).map_err(store_error)
            }
            Place::Folder { path, .. } => {
                let read = OwnFolder::open(path)
                    .and_then(|folder| folder.read(&file_name(kind, id), VALUE_BYTES_MAX));
                match read {
                    Ok(value) => Ok(Some(Zeroizing::new(value))),
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(of_folder(path, &error)),
                }
            }
        }
    }

    /// Stores a value, also in the place of an earlier one.
    ///
    /// # Errors
    /// If the store cannot be used.
    pub fn put(&mut self, kind: Kind, id: &str, value: &[u8]) -> Result<(), AcmeError> {
        match &mut self.place {
            Place::Fleet(fleet) => {
                let name = shared_name(&self.server, kind.extension(), id);
                fleet.put(&name, value, kind.lifetime()).map_err(store_error)
            }
            Place::Folder { path, .. } => {
                let name = file_name(kind, id);
                let beside = format!("{name}.{}.new", std::process::id());
                let written =
                    OwnFolder::open(path).and_then(|folder| folder.write(&name, &beside, value));
                written.map_err(|error| of_folder(path, &error))
            }
        }
    }

    /// Removes a value. A missing one is no error.
    ///
    /// # Errors
    /// If the store cannot be used.
    pub fn remove(&mut self, kind: Kind, id: &str) -> Result<(), AcmeError> {
        match &mut self.place {
            Place::Fleet(fleet) => {
                fleet.remove(&shared_name(&self.server, kind.extension(), id)).map_err(store_error)
            }
            Place::Folder { path, .. } => OwnFolder::open(path)
                .and_then(|folder| folder.remove(&file_name(kind, id)))
                .map_err(|error| of_folder(path, &error)),
        }
    }

    /// Takes the lock of a name. `None`: another process has it.
    ///
    /// # Errors
    /// If the store cannot be used.
    pub fn lock(&mut self, id: &str) -> Result<Option<Lock>, AcmeError> {
        let taken = Lock(Instant::now());
        match &mut self.place {
            Place::Fleet(fleet) => {
                let name = shared_name(&self.server, "lock", id);
                let holder = fleet.put_if_absent(&name, &self.owner, LOCK_LIFETIME);
                let holder = holder.map_err(store_error)?;
                Ok((**holder == self.owner).then_some(taken))
            }
            Place::Folder { path, lock } => {
                if lock.is_none() {
                    *lock = lock_folder(path).map_err(|error| of_folder(path, &error))?;
                }
                Ok(lock.is_some().then_some(taken))
            }
        }
    }

    /// Gives a lock back. One that has ended by itself may be another process's by now.
    pub fn unlock(&mut self, id: &str, Lock(taken): Lock) {
        if let Place::Fleet(fleet) = &mut self.place
            && taken.elapsed() < LOCK_LIFETIME
        {
            // It ends by itself if the store does not answer.
            let _ = fleet.remove(&shared_name(&self.server, "lock", id));
        }
    }
}

fn lock_folder(path: &Path) -> io::Result<Option<File>> {
    drop(OwnFolder::open(path)?);
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600);
    let file = file.open(path.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Returns the folder in which a process of this user keeps its state: systemd's StateDirectory=,
/// or as /var/lib/eyelet, or as the XDG base directories say.
fn default_folder() -> Option<PathBuf> {
    let variable = |name| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
        Some(PathBuf::from(value)).filter(|path| path.is_absolute())
    };
    let of_user = || {
        let state = variable("XDG_STATE_HOME");
        let state = state.or_else(|| Some(variable("HOME")?.join(".local/state")));
        Some(state?.join("eyelet"))
    };
    let is_root = eyelet_sys::process::user() == 0;
    let of_system = || is_root.then(|| PathBuf::from("/var/lib/eyelet"));
    let state = variable("STATE_DIRECTORY").or_else(of_system).or_else(of_user)?;
    Some(state.join("acme"))
}

/// A server's name for a folder: its host, which people read, and a digest of the whole URL.
fn server_name(directory: &str) -> String {
    let host = directory.strip_prefix("https://").unwrap_or(directory);
    let host: String =
        host.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '.').collect();
    let host = host.get(..host.len().min(FILE_NAME_BYTES_MAX)).unwrap_or_default();
    format!("{host}-{}", short_digest(&[directory]))
}

/// The file of a value: its name, or a digest where that cannot be a file's name.
fn file_name(kind: Kind, id: &str) -> String {
    let is_plain = id
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte));
    let is_file = is_plain && id.len() <= FILE_NAME_BYTES_MAX && !id.starts_with('.');
    match (kind, is_file) {
        (Kind::Account, _) => "account.json".into(),
        (Kind::NextKey, _) => "account.next-key".into(),
        (_, true) if !id.is_empty() => format!("{id}.{}", kind.extension()),
        _ => format!("{}.{}", short_digest(&[id]), kind.extension()),
    }
}

/// The name of a value in the store of a fleet, which has other values, too.
fn shared_name(server: &str, what: &str, id: &str) -> String {
    format!("acme-{what}-{}", short_digest(&[server, id]))
}

/// 128 bits of a digest, in hexadecimal.
fn short_digest(parts: &[&str]) -> String {
    let joined = parts.join("\0");
    let digest = digest(&SHA256, joined.as_bytes());
    digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn of_folder(path: &Path, error: &io::Error) -> AcmeError {
    AcmeError::Store(format!("certificates cannot be stored in {}: {error}", path.display()))
}

fn store_error(error: eyelet_fleet::FleetError) -> AcmeError {
    AcmeError::Store(format!("[fleet] {error}"))
}

#[cfg(test)]
pub mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Settings of a server that nobody has to ask.
    pub fn settings(folder: &Path, directory: &str) -> AcmeSettings {
        AcmeSettings {
            directory: directory.into(),
            contact: Vec::new(),
            ca: None,
            folder: Some(folder.to_owned()),
            profile: None,
            external_account: None,
            dns_hook: Vec::new(),
            wanted: eyelet_config::AcmeNames::default(),
        }
    }

    #[test]
    fn a_folder_keeps_values_by_server_for_this_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("acme");
        let open = |directory| AcmeStore::open(&settings(&home, directory), None).unwrap();
        let mut one = open("https://one.example/directory");
        let mut other = open("https://one.example/other");
        one.put(Kind::Certificate, "app.example", b"first").unwrap();
        one.put(Kind::Certificate, "app.example", b"second").unwrap();
        one.put(Kind::Http, "Tok-en_", b"answer").unwrap();
        let value = one.get(Kind::Certificate, "app.example").unwrap();
        assert_eq!(value.as_deref().map(|value| value.as_slice()), Some(&b"second"[..]));
        assert!(other.get(Kind::Certificate, "app.example").unwrap().is_none());
        one.remove(Kind::Http, "Tok-en_").unwrap();
        assert!(one.get(Kind::Http, "Tok-en_").unwrap().is_none());
        let path = home.join(server_name("https://one.example/directory"));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&home), mode(&path)), (0o700, 0o700));
        assert_eq!(mode(&path.join("app.example.pem")), 0o600);
        let files = std::fs::read_dir(&path).unwrap().count();
        assert_eq!(files, 1, "nothing is left beside");
    }

    /// A server of Redis, which ends with this value.
    struct Redis(std::process::Child);

    impl Drop for Redis {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Ports that are tried: another process may take one after it was found free.
    const PORTS_MAX: usize = 10;

    /// A server on a port that was free a moment ago. `None`: there is no such program.
    fn redis(folder: &Path) -> Option<(Redis, u16)> {
        for _ in 0..PORTS_MAX {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            // It listens here after it has its port, and ends where it cannot have it.
            let socket = folder.join(format!("redis-{port}"));
            let mut command = std::process::Command::new("redis-server");
            command.args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string()]);
            command.arg("--unixsocket").arg(&socket).arg("--dir").arg(folder);
            let server = command.stdout(std::process::Stdio::null()).spawn();
            let mut server = Redis(server.ok()?);
            let began = Instant::now();
            while server.0.try_wait().unwrap().is_none() {
                if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
                    return Some((server, port));
                }
                assert!(began.elapsed() < Duration::from_mins(1), "redis-server does not listen");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        panic!("redis-server ended on {PORTS_MAX} ports");
    }

    /// Reports a skipped test, as the end-to-end tests do: `.ci/run` counts these lines.
    fn skipped(test: &str, reason: &str) {
        use std::io::Write;
        eprintln!("skipped: {test}: {reason}");
        if let Some(log) = std::env::var_os("EYELET_SKIP_LOG") {
            let file = OpenOptions::new().create(true).append(true).open(log);
            writeln!(file.unwrap(), "{test}: {reason}").unwrap();
        }
    }

    #[test]
    fn edges_of_a_fleet_share_values_and_locks_in_redis() {
        let folder = tempfile::tempdir().unwrap();
        let Some((server, port)) = redis(folder.path()) else {
            skipped("edges_of_a_fleet_share_values_and_locks_in_redis", "no redis-server");
            return;
        };
        let secret_file = folder.path().join("secret");
        std::fs::write(&secret_file, "0123456789abcdef".repeat(4)).unwrap();
        let host = eyelet_config::Host::Ip(std::net::Ipv4Addr::LOCALHOST.into());
        let address = eyelet_config::HostPort { host, port };
        let redis = eyelet_config::RedisAddress { address, database: 0, login: None, tls: None };
        let fleet = FleetSettings { store: eyelet_config::StoreAddress::Redis(redis), secret_file };
        let settings = settings(folder.path(), "https://one.example/directory");
        let mut one = AcmeStore::open(&settings, Some(&fleet)).unwrap();
        let mut other = AcmeStore::open(&settings, Some(&fleet)).unwrap();
        assert!(one.is_shared());
        let value = |store: &mut AcmeStore, kind| {
            let value = store.get(kind, "app.example").unwrap();
            value.map(|value| String::from_utf8(value.to_vec()).unwrap())
        };
        for kind in [Kind::Account, Kind::NextKey, Kind::Certificate, Kind::TlsAlpn, Kind::Http] {
            assert_eq!(value(&mut other, kind), None, "{kind:?}");
            one.put(kind, "app.example", b"first").unwrap();
            one.put(kind, "app.example", format!("{kind:?}").as_bytes()).unwrap();
        }
        for kind in [Kind::Account, Kind::NextKey, Kind::Certificate, Kind::TlsAlpn, Kind::Http] {
            assert_eq!(value(&mut other, kind), Some(format!("{kind:?}")));
            other.remove(kind, "app.example").unwrap();
            other.remove(kind, "app.example").unwrap();
            assert_eq!(value(&mut one, kind), None, "{kind:?}");
        }
        let lock = one.lock("app.example").unwrap().unwrap();
        assert!(other.lock("app.example").unwrap().is_none());
        assert!(other.lock("other.example").unwrap().is_some());
        one.unlock("app.example", lock);
        assert!(other.lock("app.example").unwrap().is_some());
        drop(server);
        assert!(one.get(Kind::Certificate, "app.example").is_err(), "it is down");
        assert!(one.put(Kind::Certificate, "app.example", b"x").is_err());
    }

    #[test]
    fn one_process_orders_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), "https://one.example/directory");
        let mut one = AcmeStore::open(&settings, None).unwrap();
        let mut other = AcmeStore::open(&settings, None).unwrap();
        assert!(one.lock("app.example").unwrap().is_some());
        assert!(one.lock("other.example").unwrap().is_some(), "the folder is its own");
        assert!(other.lock("app.example").unwrap().is_none());
        drop(one);
        assert!(other.lock("app.example").unwrap().is_some());
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        for id in ["../x", "a/b", "", "..", "UPPER", &"n".repeat(250)] {
            let name = file_name(Kind::Certificate, id);
            assert!(name.len() == 36 && name.ends_with(".pem"), "{id:?}: {name}");
        }
        assert_eq!(file_name(Kind::Certificate, "app.example"), "app.example.pem");
    }
}
