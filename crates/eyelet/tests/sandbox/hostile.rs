//! A command that tries to get out: each row is a try, and each is held in a sandbox. Where what
//! holds it is missing it gets out, so that it is known to be real.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::ground::{NOBODY, Sandbox, is_possible, report, with_hosts};
use crate::support::pki::Kind;
use crate::support::program::{Said, python_with, skip};
use crate::support::{Folder, Pki, SOON, Talk, Upstream, need, output};

const HOSTILE: &str = include_str!("../programs/hostile.py");
const HOSTS: [(&str, &str); 5] = [
    ("app.test", "127.0.0.1"),
    ("other.test", "127.0.0.1"),
    ("inner.test", "127.0.0.9"),
    ("mixed.test", "127.0.0.1"),
    ("mixed.test", "127.0.0.9"),
];

/// The place where a try gets out, so that it is known to be one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// Outside, by any user.
    Outside,
    /// Outside, by root.
    ByRoot,
    /// In a network like a sandbox's, without an edge. For programs that would reach strangers, or
    /// change this host.
    Alone,
    /// In a process namespace whose first process is a shell.
    First,
    /// It is not shown, and not counted: why.
    Nowhere(&'static str),
}

/// Tries that are shown, at least.
const SHOWN_MIN: usize = 110;

/// All tries. The program has no other.
const TRIES: &[(&str, Shown)] = &[
    ("tcp_loopback", Shown::Outside),
    ("tcp_loopback_v6", Shown::Outside),
    ("tcp_host_address", Shown::Outside),
    ("tcp_mapped_address", Shown::Outside),
    ("tcp_other_loopback", Shown::Outside),
    ("tcp_unspecified", Shown::Outside),
    ("tcp_bound_to_host_address", Shown::Outside),
    ("tcp_public_other_port", Shown::Alone),
    ("tcp_gateway_metadata", Shown::Alone),
    ("udp_loopback", Shown::Outside),
    ("udp_host_address", Shown::Outside),
    ("udp_v6", Shown::Outside),
    ("udp_quic", Shown::Alone),
    ("dns_other_name", Shown::Alone),
    ("dns_other_name_v6", Shown::Alone),
    ("dns_below_listed_name", Shown::Alone),
    ("dns_text_of_listed_name", Shown::Alone),
    ("dns_https_of_listed_name", Shown::Alone),
    ("dns_any_of_other_name", Shown::Alone),
    ("dns_by_tcp", Shown::Alone),
    ("dns_by_tls", Shown::Alone),
    ("dns_hosts_file", Shown::Outside),
    ("sni_of_other_name", Shown::Outside),
    ("sni_of_other_name_at_any_address", Shown::Alone),
    ("sni_missing", Shown::Outside),
    ("sni_below_listed_name", Shown::Outside),
    ("sni_ends_as_listed_name", Shown::Outside),
    ("sni_of_private_address", Shown::Outside),
    ("sni_of_mixed_addresses", Shown::Outside),
    ("hello_in_pieces", Shown::Outside),
    ("hello_in_records", Shown::Outside),
    ("hello_with_zero_in_name", Shown::Alone),
    ("hello_with_address_as_name", Shown::Alone),
    ("hello_with_two_names", Shown::Alone),
    ("hello_with_ech", Shown::Outside),
    ("not_tls", Shown::Alone),
    ("http_host_of_other_name", Shown::Outside),
    ("http_without_host", Shown::Outside),
    ("http_two_hosts", Shown::Outside),
    ("http_url_of_other_name", Shown::Outside),
    ("http_other_port", Shown::Outside),
    ("http_private_name", Shown::Outside),
    ("http_smuggled", Shown::Outside),
    ("http_second_request", Shown::Outside),
    ("http_addresses", Shown::Outside),
    ("http_connect", Shown::Outside),
    ("http_upgrade", Shown::Outside),
    ("tcp_entry_of_private_name", Shown::Outside),
    ("address_is_added", Shown::Alone),
    ("device_ioctl", Shown::Alone),
    ("abstract_socket", Shown::Outside),
    ("path_socket_in_tmp", Shown::Outside),
    ("path_socket_elsewhere", Shown::Outside),
    ("path_socket_with_another_name", Shown::Outside),
    ("path_socket_of_a_relative_path", Shown::Outside),
    ("path_socket_of_another_network", Shown::Outside),
    ("inherited_descriptor", Shown::Outside),
    ("process_outside", Shown::Outside),
    ("process_outside_in_proc", Shown::Outside),
    ("shared_memory", Shown::Outside),
    ("shared_memory_file", Shown::Outside),
    ("message_queue", Shown::Outside),
    ("folder_run", Shown::Outside),
    ("folder_tmp", Shown::Outside),
    ("runtime_folder", Shown::Outside),
    ("list_is_read", Shown::Outside),
    ("list_is_changed", Shown::Outside),
    ("report_is_read", Shown::Outside),
    ("keys_of_ssh", Shown::Outside),
    ("keys_of_a_configuration", Shown::Outside),
    ("devices", Shown::Outside),
    ("io_uring", Shown::Outside),
    ("keys", Shown::Outside),
    ("key_is_added", Shown::Outside),
    ("crash_report", Shown::Outside),
    ("path_socket_by_another_mount", Shown::ByRoot),
    ("keys_by_another_mount", Shown::ByRoot),
    ("raw_v4", Shown::ByRoot),
    ("raw_v6", Shown::ByRoot),
    ("packet", Shown::ByRoot),
    ("other_families", Shown::ByRoot),
    ("other_devices", Shown::ByRoot),
    ("bind_to_other_device", Shown::ByRoot),
    ("crash_report_by_a_new_limit", Shown::ByRoot),
    ("unmount_in_nested_namespace", Shown::ByRoot),
    ("bind_below_covers", Shown::ByRoot),
    ("tree_below_covers", Shown::ByRoot),
    ("overlay_below_covers", Shown::ByRoot),
    ("file_by_handle", Shown::ByRoot),
    ("handle_below_covers", Shown::ByRoot),
    ("processes_mounted_again", Shown::ByRoot),
    ("system_folder_mounted_again", Shown::ByRoot),
    ("cgroups_mounted_again", Shown::ByRoot),
    ("kernel_file_systems_elsewhere", Shown::ByRoot),
    ("kernel_debugging", Shown::ByRoot),
    ("kernel_settings", Shown::ByRoot),
    ("system_folder", Shown::ByRoot),
    ("device_elsewhere", Shown::ByRoot),
    ("make_device", Shown::ByRoot),
    ("rights", Shown::ByRoot),
    ("change_root", Shown::ByRoot),
    ("host_name", Shown::ByRoot),
    ("programs_of_the_kernel", Shown::ByRoot),
    ("events_of_the_machine", Shown::ByRoot),
    ("typing", Shown::ByRoot),
    ("foreign_abi", Shown::ByRoot),
    ("x32_abi", Shown::ByRoot),
    ("unmount", Shown::ByRoot),
    ("group_of_processes_outside", Shown::First),
    ("namespace_of_first_process", Shown::First),
    ("namespaces_by_setns", Shown::First),
    ("trace_first_process", Shown::First),
    ("memory_of_first_process", Shown::First),
    ("descriptors_of_first_process", Shown::First),
    ("root_of_first_process", Shown::First),
    ("descriptor_of_first_process", Shown::First),
    ("kernel_request", Shown::Nowhere("this kernel may have none")),
    ("vsock", Shown::Nowhere("this kernel may have none")),
    ("key_is_asked_for", Shown::Nowhere("no program answers it")),
];

/// Tries that get out of a sandbox whose list counts for nothing.
const BY_THE_LIST: &[&str] = &[
    "dns_other_name",
    "dns_other_name_v6",
    "dns_below_listed_name",
    "sni_of_other_name",
    "sni_of_other_name_at_any_address",
    "sni_of_mixed_addresses",
    "hello_in_pieces",
    "hello_in_records",
    "hello_with_ech",
    "http_host_of_other_name",
    "http_url_of_other_name",
    "http_second_request",
    "http_upgrade",
];

/// Tries that get out of a sandbox whose list has an entry for them, and the entries.
const BY_AN_ENTRY: &[(&str, &str)] = &[
    ("tcp_public_other_port", "tcp 192.0.2.1:9"),
    ("tcp_gateway_metadata", "tcp 169.254.169.254:80"),
    ("dns_by_tcp", "tcp 9.9.9.9:53"),
    ("dns_by_tls", "tcp 9.9.9.9:853"),
    ("hello_with_zero_in_name", "tcp app.test:TLS"),
    ("hello_with_address_as_name", "tcp app.test:TLS"),
    ("hello_with_two_names", "tcp app.test:TLS"),
    ("not_tls", "tcp app.test:TLS"),
];

/// Between two looks at what somebody says.
const POLL: Duration = Duration::from_millis(5);
/// The user of [`NOBODY`].
const NOBODY_ID: u32 = 65534;
/// Makes the ground on which root's tries could succeed, and goes on with its arguments.
const GROUND: &str = "mount --bind /tmp /tmp && cd \"$PWD\" && \
    mkdir -p 'a place/proc' 'a place/cgroup' other && mount --bind . other && \
    mount -t proc proc 'a place/proc' && \
    mount -t cgroup2 none 'a place/cgroup' && mount -t debugfs none /sys/kernel/debug && \
    { ls /sys/kernel/debug/tracing >/dev/null 2>&1; mknod -m 666 device c 1 5; } && \
    exec \"$@\" 9<inherited";
/// The ground where that is not allowed.
const BARE_GROUND: &str = "exec \"$@\" 9<inherited";
/// Makes each address local, as it is in a sandbox.
const ALL_LOCAL: &str = "ip link set lo up && ip route add local default dev lo && \
    { ip -6 route add local default dev lo; exec \"$@\"; }";

/// A network with these addresses. There a process answers, which its first two arguments
/// start. The others are the sandbox.
const SERVED: &str = "ip link set lo up && \
    for ip in 192.0.2.1 169.254.169.254 9.9.9.9; do ip addr add $ip/32 dev lo || exit; done && \
    { \"$1\" \"$2\" settings.json --serve >served & } && \
    until grep -q ready served; do sleep 0.05; done && \
    shift 2 && { \"$@\"; status=$?; kill $!; exit $status; }";

/// A server outside, which says "OUTSIDE" to who reaches it.
struct Outside {
    folder: Folder,
    others: [Talk; 2],
    _kept: [Folder; 2],
}

impl Outside {
    /// One whose files are in this folder, with these ports of a TLS server and of a plain one.
    fn new(folder: Folder, python: &str, (tls, plain): (u16, u16)) -> Self {
        // Several tests of this program are outside at once.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = std::process::id() << 4 | COUNT.fetch_add(1, Ordering::Relaxed);
        let (v4, v6) = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        let (elsewhere, runtime) = (Folder::new(), Folder::new());
        runtime.write("bus", "outside");
        folder.write("inherited", "outside");
        folder.write("hostile.py", HOSTILE);
        std::fs::create_dir_all(folder.path().join("home/.ssh")).unwrap();
        folder.write("home/.ssh/id_test", "outside");
        let in_tmp = elsewhere.path().join("socket");
        let beside = folder.path().join("socket");
        let name = format!("eyelet-{}", folder.path().display());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        serve_unix(UnixListener::bind_addr(&abstract_name).unwrap());
        serve_unix(UnixListener::bind(&in_tmp).unwrap());
        serve_unix(UnixListener::bind(&beside).unwrap());
        let victim = Talk::start(Command::new("sleep").arg("300"));
        let place = |name: &str| folder.path().join("a place").join(name);
        let mut settings = json!({
            "host": host_address().to_string(), "tcp": serve_tcp(v4), "tcp6": serve_tcp(v6),
            "udp": serve_udp(v4), "udp6": serve_udp(v6), "tls": tls, "plain": plain,
            "abstract": name, "path_in_tmp": in_tmp, "path_elsewhere": beside,
            "file_in_tmp": elsewhere.write("file", "outside"), "runtime": runtime.path(),
            "process": victim.pid().as_raw_nonzero(), "descriptor": 9,
            "elsewhere": [place("proc"), place("cgroup")], "device": other_device(),
            "segment": 0x4000_0000 | number,
            "queue": format!("/eyelet-hostile-{number}"),
        });
        folder.write("settings.json", settings.to_string());
        let mut others = Command::new(python);
        others.args(["hostile.py", "settings.json", "--outside"]).current_dir(folder.path());
        let mut others = Talk::start(&mut others);
        others.hear("\n");
        let said = others.said();
        settings["handle"] = said.trim().strip_prefix("handle ").unwrap().into();
        folder.write("settings.json", settings.to_string());
        Self { folder, others: [victim, others], _kept: [elsewhere, runtime] }
    }

    fn settings(&self) -> Value {
        let text = std::fs::read_to_string(self.folder.path().join("settings.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Has a command have the environment that some tries look for.
    fn prepare(&self, command: &mut Command) {
        command.env("XDG_RUNTIME_DIR", self.settings()["runtime"].as_str().unwrap());
        command.env("HOME", self.folder.path().join("home"));
    }

    /// Runs the tries that are shown so, in these namespaces and after these arguments. Each must
    /// get out.
    fn show(&self, python: &str, kinds: &[Shown], (namespaces, before): (&[&str], &[&str])) {
        let names = TRIES.iter().filter(|(_, shown)| kinds.contains(shown)).map(|(name, _)| *name);
        let names: Vec<&str> = names.collect();
        let mut command = with_hosts(&self.folder, &HOSTS, namespaces);
        self.prepare(&mut command);
        command.args(before).args([python, "hostile.py", "settings.json"]);
        if kinds.contains(&Shown::Alone) {
            command.arg("--alone");
        }
        let said = output(command.args(&names));
        let held: Vec<_> = names.iter().filter(|name| !gets_out(&said, name)).collect();
        assert!(held.is_empty(), "{held:?} do not get out:\n{}", said.text);
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // What it has made in the kernel would stay for good.
        let [_, others] = &mut self.others;
        others.hang_up();
        let began = Instant::now();
        while !others.said().contains("gone") && began.elapsed() < SOON {
            thread::sleep(POLL);
        }
    }
}

/// A device of this host beside loopback.
fn other_device() -> String {
    let devices = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let mut names = devices.map(|device| device.file_name().into_string().unwrap());
    names.find(|name| name != "lo").unwrap_or_else(|| "none".into())
}

/// The Python with what the tries need. The distribution's own starts faster.
fn python() -> Option<&'static str> {
    let found = python_with("ctypes, ssl").filter(|_| is_possible())?;
    let usual = "/usr/bin/python3";
    Some(if std::path::Path::new(usual).exists() { usual } else { found })
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The arguments that make the ground.
fn ground() -> [&'static str; 4] {
    ["sh", "-c", if is_root() { GROUND } else { BARE_GROUND }, "sh"]
}

/// An address of this host that is not loopback, if it has one.
fn host_address() -> IpAddr {
    let route = UdpSocket::bind("0.0.0.0:0").unwrap();
    match route.connect("192.0.2.99:9").and_then(|()| route.local_addr()) {
        Ok(address) => address.ip(),
        Err(_) => Ipv4Addr::LOCALHOST.into(),
    }
}

fn serve_tcp(ip: IpAddr) -> u16 {
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"OUTSIDE");
        }
    });
    port
}

fn serve_udp(ip: IpAddr) -> u16 {
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(b"OUTSIDE", from);
        }
    });
    port
}

fn serve_unix(listener: UnixListener) {
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"OUTSIDE");
        }
    });
}

/// A TLS server that must see nothing but `app.test`.
fn app(pki: &Pki) -> Upstream {
    Upstream::tls(pki.server("app", &["app.test"], Kind::P256), |tls| {
        let mut request = [0; 64];
        let name = tls.conn.server_name().map(str::to_owned);
        let _ = tls.read(&mut request);
        let _ = tls.write_all(format!("served {name:?}").as_bytes());
    })
}

/// The list is what holds these: the same sandbox lets them out where it refuses no name, and where
/// names may lead to this host.
#[test]
fn tries_get_out_of_a_sandbox_without_its_list() {
    let Some(python) = python() else { return };
    let pki = Pki::new();
    let (tls, plain) = (app(&pki), Upstream::http());
    let (tls, plain) = (tls.address.port(), plain.address.port());
    let outside = Outside::new(pki.folder, python, (tls, plain));
    let list = format!("app.test:{tls}\napp.test:{plain}\n");
    let mut sandbox = Sandbox::new(&outside.folder, &HOSTS, &list).flag("--dry-run");
    sandbox = sandbox.option("--allow-private", "127.0.0.0/8");
    outside.prepare(&mut sandbox.command);
    let said = sandbox.run(&[&[python, "hostile.py", "settings.json"], BY_THE_LIST].concat());
    let held: Vec<_> = BY_THE_LIST.iter().filter(|name| !gets_out(&said, name)).collect();
    assert!(held.is_empty(), "{held:?} do not get out:\n{}", said.text);
}

/// The list is what holds these, too: by an entry of their own they reach another process outside,
/// at addresses that this host does not have.
#[test]
fn tries_get_out_of_a_sandbox_by_an_entry_of_their_own() {
    let Some(python) = python() else { return };
    if !need("ip") {
        return;
    }
    let pki = Pki::new();
    let (tls, plain) = (app(&pki), Upstream::http());
    let (tls, plain) = (tls.address.port(), plain.address.port());
    let outside = Outside::new(pki.folder, python, (tls, plain));
    for list in [true, false] {
        let entry = |(_, entry): &(_, &str)| entry.replace("TLS", &tls.to_string()) + "\n";
        let entries: String = BY_AN_ENTRY.iter().map(entry).collect();
        let entries = if list { entries } else { format!("app.test:{tls}\napp.test:{plain}\n") };
        outside.folder.write("allow.txt", entries);
        let mut command = with_hosts(&outside.folder, &HOSTS, &["--mount", "--net"]);
        command.args(["sh", "-c", SERVED, "sh", python, "hostile.py"]);
        command.args([env!("CARGO_BIN_EXE_eyelet"), "sandbox", "--allow", "allow.txt"]);
        command.args(["--allow-private", "127.0.0.0/8"]);
        outside.prepare(&mut command);
        let tries: Vec<&str> = BY_AN_ENTRY.iter().map(|(name, _)| *name).collect();
        let said =
            Sandbox { command }.run(&[&[python, "hostile.py", "settings.json"], &*tries].concat());
        let wrong: Vec<_> = tries.iter().filter(|name| gets_out(&said, name) != list).collect();
        assert!(wrong.is_empty(), "{list}: {wrong:?} differ:\n{}", said.text);
        assert_eq!(said.text.matches(": held").count(), if list { 0 } else { tries.len() });
    }
}

/// True if a try has got out.
fn gets_out(said: &Said, name: &str) -> bool {
    let out = format!("{name}: OUT");
    said.text.lines().any(|line| line.starts_with(&out))
}

/// Runs all tries in a sandbox that is started by these arguments. Each must be held.
fn is_held(before: &[&str]) {
    let Some(python) = python() else { return };
    let pki = Pki::new();
    let (tls, plain) = (app(&pki), Upstream::http());
    let (tls, plain) = (tls.address.port(), plain.address.port());
    pki.folder.write("edge.toml", "[sandbox.empty]\n[[rule]]\nkey = \"edge.key\"\n");
    let outside = Outside::new(pki.folder, python, (tls, plain));
    let port = &outside.settings()["tcp"];
    let list = format!(
        "app.test:{tls}\napp.test:{plain}\ninner.test:{tls}\ninner.test:{plain}\n\
         mixed.test:{tls}\ntcp inner.test:{port}\n"
    );
    outside.folder.write("allow.txt", list);
    if before.len() > ground().len() {
        let user = format!("{NOBODY_ID}:{NOBODY_ID}");
        let folder = outside.folder.path();
        let said = output(Command::new("chown").arg("-R").arg(user).arg(folder));
        assert!(said.status.success(), "{}", said.text);
    }
    let mut sandbox = Sandbox::with_program(&outside.folder, &HOSTS, before);
    for (option, value) in [("--allow", "allow.txt"), ("--report", "report.json")] {
        sandbox = sandbox.option(option, value);
    }
    sandbox = sandbox.option("--config", "edge.toml").option("--profile", "empty");
    outside.prepare(&mut sandbox.command);
    let said = sandbox.run(&[python, "hostile.py", "settings.json"]);
    let is_held = |name: &str| {
        let held = format!("{name}: held");
        said.text.lines().any(|line| line.starts_with(&held))
    };
    let out: Vec<_> = TRIES.iter().map(|(name, _)| *name).filter(|name| !is_held(name)).collect();
    assert!(out.is_empty(), "{out:?} are not held:\n{}", said.text);
    // Nothing that was held is a secret: it has a reason.
    let report = report(outside.folder.path());
    let refused = report["refused"].as_array().unwrap();
    for name in ["other.test", "inner.test", "mixed.test", "c2VjcmV0.app.test"] {
        assert!(
            refused.iter().any(|one| one["name"].as_str().unwrap().eq_ignore_ascii_case(name)),
            "{name}: {report}"
        );
    }
}

#[test]
fn a_hostile_command_stays_inside() {
    is_held(&ground());
}

#[test]
fn a_hostile_command_of_an_ordinary_user_stays_inside() {
    if !is_root() {
        return skip("this run is by an ordinary user, as are all of its tests");
    }
    if need("setpriv") {
        is_held(&[ground(), NOBODY].concat());
    }
}

#[test]
fn each_try_is_in_the_table() {
    // A function, or the arguments for one.
    let is_row = |line: &str| {
        let name = line.split_once("=(").and_then(|(name, _)| name.strip_prefix("    "));
        name.is_some_and(|name| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
    };
    let tried = HOSTILE.lines().filter(|line| *line == "@attempt" || is_row(line)).count();
    assert_eq!(TRIES.len(), tried, "each try has a row");
    let is_shown = |shown: &Shown| match shown {
        Shown::Nowhere(why) => why.is_empty(),
        _ => true,
    };
    let shown = TRIES.iter().filter(|(_, shown)| is_shown(shown)).count();
    assert!(shown >= SHOWN_MIN, "{shown}");
}

#[test]
fn tries_get_out_where_there_is_no_sandbox() {
    let Some(python) = python() else { return };
    let pki = Pki::new();
    let (tls, plain) = (app(&pki), Upstream::http());
    let ports = (tls.address.port(), plain.address.port());
    pki.folder.write("allow.txt", "app.test");
    let outside = Outside::new(pki.folder, python, ports);
    let shared = format!("/dev/shm/eyelet-hostile-{}", std::process::id());
    std::fs::write(&shared, "outside").unwrap();
    match is_root() {
        true => {
            let kinds = [Shown::Outside, Shown::ByRoot];
            outside.show(python, &kinds, (&["--mount", "--uts"], &ground()));
        }
        false => outside.show(python, &[Shown::Outside], (&["--mount"], &ground())),
    }
    std::fs::remove_file(shared).unwrap();
    let apart = ["--mount", "--pid", "--fork", "--mount-proc", "--kill-child"];
    outside.show(python, &[Shown::First], (&apart, &["sh", "-c", "\"$@\"; exit $?", "sh"]));
    if need("ip") {
        let apart = ["--mount", "--net"];
        outside.show(python, &[Shown::Alone], (&apart, &["sh", "-c", ALL_LOCAL, "sh"]));
    }
}
