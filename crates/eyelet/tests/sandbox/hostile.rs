//! A command that tries to get out: each row is a try, and each is held. Outside a sandbox those
//! that need only what this machine has do get out, so that they are known to be real.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Command;
use std::thread;

use serde_json::{Value, json};

use crate::ground::{Sandbox, is_possible, report};
use crate::support::pki::Kind;
use crate::support::program::python_with;
use crate::support::{Folder, Pki, Upstream, output};

const HOSTILE: &str = include_str!("../programs/hostile.py");
const HOSTS: [(&str, &str); 5] = [
    ("app.test", "127.0.0.1"),
    ("other.test", "127.0.0.1"),
    ("inner.test", "127.0.0.9"),
    ("mixed.test", "127.0.0.1"),
    ("mixed.test", "127.0.0.9"),
];

/// Tries that get out where there is no sandbox, by what every machine has.
const CONTROLS: &[&str] = &[
    "tcp_loopback",
    "tcp_mapped_address",
    "tcp_other_loopback",
    "tcp_unspecified",
    "udp_loopback",
    "abstract_socket",
    "path_socket_in_tmp",
    "path_socket_elsewhere",
    "process_outside",
    "process_outside_in_proc",
    "folder_run",
    "folder_tmp",
    "runtime_folder",
    "list_is_read",
    "report_is_read",
    "devices",
    "keys",
    "shared_memory_file",
];

/// All tries. The program has no other.
const TRIES: &[&str] = &[
    "tcp_loopback",
    "tcp_loopback_v6",
    "tcp_host_address",
    "tcp_mapped_address",
    "tcp_other_loopback",
    "tcp_unspecified",
    "tcp_bound_to_host_address",
    "tcp_public_other_port",
    "tcp_gateway_metadata",
    "udp_loopback",
    "udp_host_address",
    "udp_v6",
    "udp_quic",
    "udp_broadcast",
    "raw_v4",
    "raw_v6",
    "packet",
    "vsock",
    "other_families",
    "other_devices",
    "device_ioctl",
    "bind_to_other_device",
    "abstract_socket",
    "path_socket_in_tmp",
    "path_socket_elsewhere",
    "inherited_descriptor",
    "nested_network",
    "dns_other_name",
    "dns_other_name_v6",
    "dns_below_listed_name",
    "dns_text_of_listed_name",
    "dns_https_of_listed_name",
    "dns_any_of_other_name",
    "dns_by_tcp",
    "dns_by_tls",
    "dns_hosts_file",
    "sni_of_other_name",
    "sni_of_other_name_at_any_address",
    "sni_missing",
    "sni_below_listed_name",
    "sni_ends_as_listed_name",
    "sni_of_private_address",
    "sni_of_mixed_addresses",
    "hello_in_pieces",
    "hello_in_records",
    "hello_with_zero_in_name",
    "hello_with_address_as_name",
    "hello_with_two_names",
    "hello_with_ech",
    "not_tls",
    "http_host_of_other_name",
    "http_without_host",
    "http_two_hosts",
    "http_url_of_other_name",
    "http_other_port",
    "http_private_name",
    "http_smuggled",
    "http_second_request",
    "http_addresses",
    "http_connect",
    "http_upgrade",
    "tcp_entry_of_private_name",
    "process_outside",
    "group_of_processes_outside",
    "process_outside_in_proc",
    "namespace_of_first_process",
    "namespaces_by_setns",
    "trace_first_process",
    "memory_of_first_process",
    "descriptors_of_first_process",
    "root_of_first_process",
    "descriptor_of_first_process",
    "shared_memory",
    "shared_memory_file",
    "folder_run",
    "folder_tmp",
    "runtime_folder",
    "list_is_read",
    "list_is_changed",
    "report_is_read",
    "unmount",
    "unmount_in_nested_namespace",
    "bind_below_covers",
    "kernel_settings",
    "kernel_request",
    "system_folder",
    "devices",
    "make_device",
    "file_by_handle",
    "rights",
    "change_root",
    "host_name",
    "io_uring",
    "keys",
    "key_is_added",
    "key_is_asked_for",
    "programs_of_the_kernel",
    "typing",
    "foreign_abi",
    "x32_abi",
];

/// What is outside, and says "OUTSIDE" to who reaches it.
struct Outside {
    settings: Value,
    _victim: crate::support::Talk,
    _kept: (Folder, Folder, TcpListener),
}

impl Outside {
    fn new(folder: &Folder, (tls, plain): (u16, u16)) -> Self {
        let (v4, v6) = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        let (host, elsewhere) = (host_address(), Folder::new());
        let in_tmp = elsewhere.path().join("socket");
        let beside = folder.path().join("socket");
        let file = elsewhere.write("file", "outside");
        let runtime = Folder::new();
        runtime.write("bus", "outside");
        let name = format!("eyelet-{}", folder.path().display());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        serve_unix(UnixListener::bind_addr(&abstract_name).unwrap());
        serve_unix(UnixListener::bind(&in_tmp).unwrap());
        serve_unix(UnixListener::bind(&beside).unwrap());
        let victim = crate::support::Talk::start(Command::new("sleep").arg("300"));
        let inherited = TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = json!({
            "host": host.to_string(), "tcp": serve_tcp(v4), "tcp6": serve_tcp(v6),
            "udp": serve_udp(v4), "udp6": serve_udp(v6), "tls": tls, "plain": plain,
            "abstract": name, "path_in_tmp": in_tmp, "path_elsewhere": beside,
            "file_in_tmp": file, "runtime": runtime.path(),
            "process": victim.pid().as_raw_nonzero(), "descriptor": inherited.as_raw_fd(),
            "segment": 0x4559_4c54,
        });
        Self { settings, _victim: victim, _kept: (elsewhere, runtime, inherited) }
    }

    fn runtime(&self) -> &str {
        self.settings["runtime"].as_str().unwrap()
    }
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

#[test]
fn a_hostile_command_stays_inside() {
    let Some(python) = python_with("ctypes, ssl").filter(|_| is_possible()) else { return };
    // The distribution's own starts faster.
    let usual = "/usr/bin/python3";
    let python = if std::path::Path::new(usual).exists() { usual } else { python };
    let pki = Pki::new();
    let (tls, plain) = (app(&pki), Upstream::http());
    let (tls, plain) = (tls.address.port(), plain.address.port());
    let outside = Outside::new(&pki.folder, (tls, plain));
    pki.folder.write("hostile.py", HOSTILE);
    pki.folder.write("settings.json", outside.settings.to_string());
    let port = &outside.settings["tcp"];
    let list = format!(
        "app.test:{tls}\napp.test:{plain}\ninner.test:{tls}\ninner.test:{plain}\n\
         mixed.test:{tls}\ntcp inner.test:{port}\n"
    );
    let mut sandbox = Sandbox::new(&pki.folder, &HOSTS, &list).option("--report", "report.json");
    sandbox.command.env("XDG_RUNTIME_DIR", outside.runtime());
    let said = sandbox.run(&[python, "hostile.py", "settings.json"]);
    let is_held = |name: &&&str| {
        let held = format!("{name}: held");
        said.text.lines().any(|line| line.starts_with(&held))
    };
    let out: Vec<_> = TRIES.iter().filter(|name| !is_held(name)).collect();
    assert!(out.is_empty(), "{out:?} are not held:\n{}", said.text);
    let tried = HOSTILE.matches("\n@attempt\n").count();
    assert_eq!(TRIES.len(), tried, "each try has a row");
    // Nothing that was held is a secret: it has a reason.
    let report = report(pki.folder.path());
    let refused = report["refused"].as_array().unwrap();
    for name in ["other.test", "inner.test", "mixed.test", "c2VjcmV0.app.test"] {
        assert!(
            refused.iter().any(|one| one["name"].as_str().unwrap().eq_ignore_ascii_case(name)),
            "{name}: {report}"
        );
    }
}

#[test]
fn tries_get_out_where_there_is_no_sandbox() {
    let Some(python) = python_with("ctypes, ssl") else { return };
    let folder = Folder::new();
    let outside = Outside::new(&folder, (1, 1));
    std::fs::write(format!("/dev/shm/eyelet-hostile-{}", std::process::id()), "outside").unwrap();
    folder.write("hostile.py", HOSTILE);
    folder.write("settings.json", outside.settings.to_string());
    folder.write("allow.txt", "app.test");
    let mut command = Command::new(python);
    command.args(["hostile.py", "settings.json"]).args(CONTROLS).current_dir(folder.path());
    let said = output(&mut command);
    let _ = std::fs::remove_file(format!("/dev/shm/eyelet-hostile-{}", std::process::id()));
    for name in CONTROLS {
        let out = format!("{name}: OUT");
        assert!(said.text.lines().any(|line| line.starts_with(&out)), "{name}: {}", said.text);
    }
}
