//! The place of a listener: an address with a port, or the path of a Unix socket.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use eyelet_document::reader::Place;
use eyelet_files::Files;

/// The address to which clients connect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// By TCP.
    Inet(SocketAddr),
    /// By a Unix socket at this path.
    Unix(PathBuf),
}

/// The mark of a Unix socket's path.
pub(crate) const UNIX: &str = "unix:";

impl ListenAddress {
    /// The address of TCP. A Unix socket has one that no dial reaches and no port belongs to:
    /// `0.0.0.0:0`.
    pub fn inet(&self) -> SocketAddr {
        match self {
            Self::Inet(address) => *address,
            Self::Unix(_) => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        }
    }

    /// True if it is a Unix socket.
    pub fn is_unix(&self) -> bool {
        matches!(self, Self::Unix(_))
    }
}

/// Writes it as the configuration has it.
impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// Reads what [`fmt::Display`] writes.
impl FromStr for ListenAddress {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix(UNIX) {
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Inet),
        }
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Inet(address)
    }
}

/// The host of an `http://` URL that leads back to this machine, whatever DNS says.
pub fn is_loopback_host(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_local_name = |host: &str| {
        // RFC 6761 section 6.3: `localhost.` and the names below it are loopback.
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        host == "localhost" || host.ends_with(".localhost")
    };
    bare.parse::<IpAddr>().map_or_else(|_| is_local_name(host), |ip| ip.is_loopback())
}

/// The path of a Unix socket.
pub(crate) fn socket_path(text: &str, files: &Files) -> Result<PathBuf, String> {
    let path = files.path(text);
    let len = path.as_os_str().len();
    if text.is_empty() || text.ends_with('/') {
        return Err("no file; expected \"unix:PATH\"".into());
    }
    if path.to_str().is_none_or(|path| path.chars().any(char::is_control)) {
        return Err("a path of a socket is text without control characters".into());
    }
    if len > SOCKET_PATH_BYTES_MAX {
        return Err(format!(
            "the path has {len} bytes; a Unix socket's has at most {SOCKET_PATH_BYTES_MAX} here"
        ));
    }
    Ok(path)
}

/// Warns of a Unix socket whose folder is not there. systemd may make it at the start, so it is no
/// error.
pub(crate) fn check_folder(at: Place<'_>, path: &Path) {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    // A folder that this user may not enter may be there.
    let is_missing = match std::fs::metadata(folder) {
        Ok(found) => !found.is_dir(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    if is_missing {
        let message = format!(
            "there is no folder {}: `serve` cannot make a socket in it; with systemd, \
             RuntimeDirectory= makes one in /run",
            folder.display()
        );
        at.warning(message);
    }
}

/// Permissions as `chmod` takes them. Connecting to a socket takes the right to write.
pub(crate) fn file_mode(text: &str) -> Result<u32, String> {
    let is_octal = (3..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    let mode = is_octal.then(|| u32::from_str_radix(text, 8).ok()).flatten();
    mode.filter(|mode| *mode <= 0o777)
        .ok_or_else(|| format!("\"{text}\" is no mode; expected \"0600\" or \"0660\""))
}

/// The permissions of a socket's file where none are given: this user alone.
pub(crate) const MODE: u32 = 0o600;

/// Bytes. `sun_path` has 108 with the NUL at its end (unix(7)); the socket of `[admin]` first has
/// the process' number behind its name, which has at most seven digits and a dot.
const SOCKET_PATH_BYTES_MAX: usize = 108 - 1 - 8;
