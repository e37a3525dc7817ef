//! The listening sockets of this machine, from /proc/net, and which of them is the application's.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Most listening sockets that one look reads of a table.
const LISTENERS_MAX: usize = 4096;
/// The state of a listening TCP socket in /proc/net/tcp (TCP_LISTEN).
const TCP_LISTEN: &str = "0A";
/// The flag of a listening Unix socket in /proc/net/unix (__SO_ACCEPTCON).
const ACCEPTS: u32 = 1 << 16;

/// The longest path in the address of a Unix socket, without its NUL (unix(7)).
const PATH_BYTES_MAX: usize = 107;

/// An endpoint at which an application listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Endpoint {
    /// An address, possibly the unspecified one.
    Tcp(SocketAddr),
    /// A Unix socket with a path.
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The choice of the application's endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// It listens nowhere.
    Nowhere,
    /// Here: it has the port.
    Certain(Endpoint),
    /// Here, unless its port comes yet: it was there in an earlier life.
    Earlier(Endpoint),
    /// Here, unless it opens more.
    Only(Endpoint),
    /// It listens at several, and none is its port.
    Several(Vec<Endpoint>),
}

/// The listening sockets of this machine by their numbers. Each table lists those that listen
/// first, so a machine with many connections costs no more.
pub fn listening() -> Vec<(u64, Endpoint)> {
    let tcp = |path, parse: fn(&str) -> Option<SocketAddr>| {
        let sockets = lines(path).map_while(move |line| tcp_socket(&line, parse));
        sockets.take(LISTENERS_MAX)
    };
    let four = tcp("/proc/net/tcp", four);
    let six = tcp("/proc/net/tcp6", six);
    let unix = lines("/proc/net/unix").filter_map(|line| unix_socket(&line));
    four.chain(six).chain(unix.take(LISTENERS_MAX)).collect()
}

/// True if a socket of this network namespace listens there. Those that are bound to the addresses
/// `own` are left out.
pub fn listens(endpoint: &Endpoint, own: &[SocketAddr]) -> bool {
    is_among(listening().iter().map(|(_, found)| found), endpoint, own)
}

fn is_among<'a>(
    mut listening: impl Iterator<Item = &'a Endpoint>,
    endpoint: &Endpoint,
    own: &[SocketAddr],
) -> bool {
    // The tables have no scope of an address.
    let is_own = |found: &SocketAddr| {
        own.iter().any(|own| (own.ip(), own.port()) == (found.ip(), found.port()))
    };
    listening.any(|found| match (found, endpoint) {
        (Endpoint::Tcp(found), Endpoint::Tcp(wanted)) => !is_own(found) && takes(*found, *wanted),
        _ => found == endpoint,
    })
}

/// True if a socket that is bound to `bound` takes connections to `wanted`. One at `[::]` may take
/// IPv4 too, and the tables do not say so: it counts.
pub fn takes(bound: SocketAddr, wanted: SocketAddr) -> bool {
    let (ip, to) = (bound.ip().to_canonical(), wanted.ip().to_canonical());
    let takes_family = ip.is_ipv6() || to.is_ipv4();
    let takes_ip = || ip == to || ip.is_unspecified() && takes_family && is_here(to);
    bound.port() == wanted.port() && takes_ip()
}

/// True if this machine has the address: nobody can bind another machine's.
fn is_here(ip: IpAddr) -> bool {
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

/// The lines of a table without its head. The path of a Unix socket may be any bytes.
fn lines(path: &str) -> impl Iterator<Item = String> + use<> {
    let lines = File::open(path).ok().map(|file| BufReader::new(file).split(b'\n'));
    let lines = lines.into_iter().flatten().map_while(Result::ok).skip(1);
    lines.map(|line| String::from_utf8_lossy(&line).into_owned())
}

/// A listening socket in a line of /proc/net/tcp or tcp6; `None` if it does not listen.
fn tcp_socket(line: &str, parse: fn(&str) -> Option<SocketAddr>) -> Option<(u64, Endpoint)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().take(10).collect();
    let &[_, address, _, TCP_LISTEN, .., number] = &*fields else { return None };
    Some((number.parse().ok()?, Endpoint::Tcp(parse(address)?)))
}

/// `0100007F:1F90`: the address's memory as words in this machine's byte order.
fn four(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes());
    Some(SocketAddr::new(ip.into(), u16::from_str_radix(port, 16).ok()?))
}

fn six(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let mut octets = [0; 16];
    if ip.len() != 2 * octets.len() {
        return None;
    }
    for (index, word) in octets.chunks_exact_mut(4).enumerate() {
        let digits = ip.get(8 * index..8 * (index + 1))?;
        word.copy_from_slice(&u32::from_str_radix(digits, 16).ok()?.to_ne_bytes());
    }
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(SocketAddr::new(Ipv6Addr::from(octets).into(), port))
}

/// A listening socket with a path in a line of /proc/net/unix. The path is as the process has bound
/// it, so it may be relative to a folder that the table does not name, and may contain blanks. The
/// kernel writes `@` before an abstract name, which is no path.
fn unix_socket(line: &str) -> Option<(u64, Endpoint)> {
    let mut rest = line;
    let mut fields = [""; 7];
    for field in &mut fields {
        (*field, rest) = rest.trim_start_matches(' ').split_once(' ')?;
    }
    let [_, _, _, flags, _, _, number] = fields;
    let accepts = u32::from_str_radix(flags, 16).ok()? & ACCEPTS != 0;
    let is_path = accepts && !rest.is_empty() && !rest.starts_with('@');
    is_path.then(|| Some((number.parse().ok()?, Endpoint::Unix(rest.into()))))?
}

/// The file of a socket with a relative path that was bound in one of these processes' folders. A
/// process may have gone to another folder since, so the file must be there. Where the path is too
/// long for an address, the link of /proc to the folder stands for it.
pub(crate) fn located(
    relative: &Path,
    mut folders: impl Iterator<Item = (u32, PathBuf)>,
) -> Option<PathBuf> {
    let is_socket =
        |path: &PathBuf| fs::metadata(path).is_ok_and(|file| file.file_type().is_socket());
    folders.find_map(|(pid, folder)| {
        // Collecting the components leaves out `.`.
        let path = Some(folder.join(relative).components().collect()).filter(is_socket)?;
        let is_short = path.as_os_str().len() <= PATH_BYTES_MAX;
        let link = || Path::new("/proc").join(pid.to_string()).join("cwd");
        Some(if is_short { path } else { link().join(relative).components().collect() })
    })
}

/// Leaves out the sockets whose files give nobody but their owner any right, if another socket is
/// left: programs are controlled by such ones, as gunicorn is.
pub(crate) fn without_control(endpoints: Vec<Endpoint>) -> Vec<Endpoint> {
    const OTHERS: u32 = 0o077;
    let is_open = |endpoint: &Endpoint| match endpoint {
        Endpoint::Tcp(_) => true,
        Endpoint::Unix(path) => {
            fs::metadata(path).is_ok_and(|file| file.permissions().mode() & OTHERS != 0)
        }
    };
    match endpoints.iter().any(is_open) {
        true => endpoints.into_iter().filter(is_open).collect(),
        false => endpoints,
    }
}

/// Chooses among the endpoints of an application that was told to listen at `port`, and had
/// `earlier` in an earlier life. A Unix socket counts only without a TCP port: tools open such
/// sockets for themselves.
pub(crate) fn choose(
    mut endpoints: Vec<Endpoint>,
    port: u16,
    earlier: Option<&Endpoint>,
) -> Choice {
    endpoints.sort();
    let port_of = |endpoint: &Endpoint| match endpoint {
        Endpoint::Tcp(address) => Some(address.port()),
        Endpoint::Unix(_) => None,
    };
    let at = |wanted: Option<u16>| {
        let of_port = endpoints.iter().filter(|endpoint| port_of(endpoint) == wanted);
        of_port.min_by_key(|endpoint| rank(endpoint)).cloned()
    };
    if let Some(endpoint) = at(Some(port)) {
        return Choice::Certain(endpoint);
    }
    if let Some(endpoint) = endpoints.iter().find(|endpoint| earlier == Some(endpoint)) {
        return Choice::Earlier(endpoint.clone());
    }
    let ports: BTreeSet<u16> = endpoints.iter().filter_map(port_of).collect();
    let found: Vec<Endpoint> = match ports.is_empty() {
        true => endpoints,
        false => ports.into_iter().filter_map(|port| at(Some(port))).collect(),
    };
    match <[Endpoint; 1]>::try_from(found) {
        Ok([endpoint]) => Choice::Only(endpoint),
        Err(found) if found.is_empty() => Choice::Nowhere,
        Err(found) => Choice::Several(found),
    }
}

/// Smaller is dialled rather: IPv4, and loopback.
fn rank(endpoint: &Endpoint) -> (bool, bool) {
    let Endpoint::Tcp(address) = endpoint else { return (true, true) };
    let ip = address.ip();
    (ip.is_ipv6(), !(ip.is_loopback() || ip.is_unspecified()))
}

/// The endpoint to dial: a socket that is bound to all addresses is dialled by loopback.
pub(crate) fn dialled(endpoint: Endpoint) -> Endpoint {
    let Endpoint::Tcp(address) = endpoint else { return endpoint };
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() && takes_ipv4(address.port()) => {
            Ipv4Addr::LOCALHOST.into()
        }
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    Endpoint::Tcp(SocketAddr::new(ip, address.port()))
}

/// True if a socket that listens on `[::]` takes IPv4 too: then nobody else can bind the port
/// there.
fn takes_ipv4(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(text: &str) -> Endpoint {
        Endpoint::Tcp(text.parse().expect(text))
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn tables_of_the_kernel() {
        let line = "   0: 0100007F:0BB8 00000000:0000 0A 00000000:00000000 00:00000000 00000000 \
            1000        0 48563 1 0000000000000000 100 0 0 10 0";
        assert_eq!(tcp_socket(line, four), Some((48563, tcp("127.0.0.1:3000"))));
        assert_eq!(tcp_socket(&line.replace(" 0A ", " 01 "), four), None, "a connection");
        let line = "   0: 00000000000000000000000001000000:0BB9 00000000000000000000000000000000:\
            0000 0A 00000000:00000000 00:00000000 00000000     0        0 22 1 0 100 0 0 10 0";
        assert_eq!(tcp_socket(line, six), Some((22, tcp("[::1]:3001"))));
        let line = "0000000000000000: 00000002 00000000 00010000 0001 01 20310 /run/a b.sock";
        assert_eq!(unix_socket(line), Some((20310, Endpoint::Unix("/run/a b.sock".into()))));
        assert_eq!(unix_socket(&line.replace("00010000", "00000000")), None, "a connection");
        for path in ["app.sock", "./a/b.sock", "../a/b.sock", "a@b", " /a"] {
            let line = line.replace("/run/a b.sock", path);
            assert_eq!(unix_socket(&line), Some((20310, Endpoint::Unix(path.into()))));
        }
        for none in ["@abstract", "@/tmp/x", ""] {
            assert_eq!(unix_socket(&line.replace("/run/a b.sock", none)), None, "{none:?}");
        }
        for bad in ["", "0:", "0: 0100007F:0BB8 0 0A", "0: zz:1 0 0A 0 0 0 0 0 7"] {
            assert_eq!(tcp_socket(bad, four), None, "{bad:?}");
            assert_eq!(unix_socket(bad), None, "{bad:?}");
        }
        assert_eq!(six("é0000000000000000000000001000000:0BB9"), None);
    }

    #[test]
    fn a_relative_path_is_looked_for_in_folders() -> std::io::Result<()> {
        let folder = tempfile::tempdir()?;
        let inner = folder.path().join("inner");
        fs::create_dir(&inner)?;
        let path = inner.join("a.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path)?;
        fs::write(folder.path().join("a.sock"), "a file")?;
        let folders = || [(1, folder.path().to_owned()), (2, inner.clone())].into_iter();
        for relative in ["a.sock", "./a.sock", "inner/./a.sock"] {
            assert_eq!(located(Path::new(relative), folders()), Some(path.clone()), "{relative}");
        }
        assert_eq!(located(Path::new("b.sock"), folders()), None);
        let deep = folder.path().join("d".repeat(PATH_BYTES_MAX));
        fs::rename(&inner, &deep)?;
        let found = located(Path::new("./a.sock"), [(7, deep)].into_iter());
        assert_eq!(found, Some("/proc/7/cwd/a.sock".into()), "no address has room for the path");
        Ok(())
    }

    #[test]
    fn a_socket_for_its_owner_alone_is_left_out_beside_another() -> std::io::Result<()> {
        let folder = tempfile::tempdir()?;
        let file = |name: &str, mode: u32| -> std::io::Result<Endpoint> {
            let path = folder.path().join(name);
            fs::write(&path, "")?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            Ok(Endpoint::Unix(path))
        };
        let [control, open] = [file("control", 0o600)?, file("open", 0o755)?];
        let both = vec![control.clone(), open.clone()];
        assert_eq!(without_control(both), [open]);
        assert_eq!(without_control(vec![control.clone()]), std::slice::from_ref(&control));
        let gone = Endpoint::Unix(folder.path().join("gone"));
        assert_eq!(without_control(vec![control, gone]).len(), 2);
        Ok(())
    }

    /// 192.0.2.1 and 2001:db8::1 are no machine's (RFC 5737, RFC 3849).
    #[test]
    fn a_socket_on_all_addresses_takes_those_of_this_machine_and_its_family() {
        for (bound, wanted, expected) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80", true),
            ("0.0.0.0:80", "127.0.0.2:80", true),
            ("0.0.0.0:80", "127.0.0.2:81", false),
            ("0.0.0.0:80", "192.0.2.1:80", false),
            ("0.0.0.0:80", "[::1]:80", false),
            ("[::]:80", "[::1]:80", true),
            ("[::]:80", "127.0.0.1:80", true),
            ("[::]:80", "[2001:db8::1]:80", false),
            ("[::]:80", "192.0.2.1:80", false),
        ] {
            let [one, other] = [bound, wanted].map(|text| text.parse().expect(text));
            assert_eq!(takes(one, other), expected, "{bound} for {wanted}");
            let found = [tcp(bound)];
            assert_eq!(is_among(found.iter(), &tcp(wanted), &[]), expected);
            assert!(!is_among(found.iter(), &tcp(wanted), &[one]), "our own");
            assert_eq!(
                is_among(found.iter(), &tcp(wanted), &[([127, 0, 0, 9], 80).into()]),
                expected
            );
        }
    }

    #[test]
    fn the_port_that_was_given_wins() {
        let unix = Endpoint::Unix("/tmp/tool.sock".into());
        let choose =
            |texts: &[&str]| choose(texts.iter().map(|text| tcp(text)).collect(), 3000, None);
        let port = Choice::Certain;
        assert_eq!(choose(&[]), Choice::Nowhere);
        assert_eq!(choose(&["[::]:3000"]), port(tcp("[::]:3000")));
        assert_eq!(choose(&["[::1]:3000", "127.0.0.1:3000"]), port(tcp("127.0.0.1:3000")));
        assert_eq!(choose(&["192.0.2.1:3000", "0.0.0.0:3000"]), port(tcp("0.0.0.0:3000")));
        assert_eq!(choose(&["127.0.0.1:9229", "[::]:3000"]), port(tcp("[::]:3000")));
        assert_eq!(choose(&["127.0.0.1:8000"]), Choice::Only(tcp("127.0.0.1:8000")));
        assert_eq!(
            choose(&["127.0.0.1:8000", "[::1]:8000"]),
            Choice::Only(tcp("127.0.0.1:8000")),
            "one port in both families"
        );
        assert_eq!(
            choose(&["127.0.0.1:9229", "127.0.0.1:8000"]),
            Choice::Several(vec![tcp("127.0.0.1:8000"), tcp("127.0.0.1:9229")])
        );
        let both = vec![unix.clone(), tcp("127.0.0.1:8000")];
        assert_eq!(super::choose(both.clone(), 3000, None), Choice::Only(tcp("127.0.0.1:8000")));
        assert_eq!(super::choose(both, 3000, Some(&unix)), Choice::Earlier(unix.clone()));
        let (debugger, port) = (tcp("127.0.0.1:9229"), tcp("127.0.0.1:3000"));
        let both = vec![debugger.clone(), port.clone()];
        assert_eq!(super::choose(both, 3000, Some(&debugger)), Choice::Certain(port));
        assert_eq!(super::choose(vec![unix.clone()], 3000, None), Choice::Only(unix));
    }

    #[test]
    fn a_socket_on_all_addresses_is_dialled_by_loopback() -> std::io::Result<()> {
        let dialled = |text: &str| dialled(tcp(text)).to_string();
        assert_eq!(dialled("0.0.0.0:3000"), "127.0.0.1:3000");
        assert_eq!(dialled("192.0.2.1:3000"), "192.0.2.1:3000");
        assert_eq!(dialled("[::1]:3000"), "[::1]:3000");
        let Ok(both) = TcpListener::bind("[::]:0") else { return Ok(()) };
        let port = both.local_addr()?.port();
        assert_eq!(dialled(&format!("[::]:{port}")), format!("127.0.0.1:{port}"));
        Ok(())
    }
}
