//! Plain listeners at Unix sockets: who may connect, what the log says of clients, and what becomes
//! of the file at the end, at a reload and at an upgrade.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Pid, Signal};

use crate::support::pki::Kind;
use crate::support::program::output;
use crate::support::web::{Heard, hear};
use crate::support::{Edge, Pki, SOON, Upstream, edge, need, until};

/// An edge at a Unix socket, beside a listener by TCP that says when it has started.
struct Local {
    pki: Pki,
    app: Upstream,
    file: PathBuf,
    edge: Edge,
}

impl Local {
    fn new() -> Self {
        let pki = Pki::new();
        let app = Upstream::https(pki.server("app", &["app.test"], Kind::P256));
        let file = pki.folder.write("edge.toml", config(&app, "svn.sock", ""));
        let edge = Edge::spawn(serve(&pki, &file), 1);
        Self { pki, app, file, edge }
    }

    fn path(&self) -> PathBuf {
        self.pki.folder.path().join("svn.sock")
    }

    fn connect(&self) -> UnixStream {
        let client = UnixStream::connect(self.path()).unwrap();
        client.set_read_timeout(Some(SOON)).unwrap();
        client
    }

    fn inode(&self) -> u64 {
        fs::metadata(self.path()).unwrap().ino()
    }

    fn mode(&self) -> u32 {
        fs::metadata(self.path()).unwrap().permissions().mode() & 0o777
    }

    /// `eyelet reload` or `eyelet upgrade`, which must work.
    fn order(&self, what: &str) -> String {
        let mut command = edge::eyelet(&self.pki.folder);
        let said = output(command.arg(what).arg(&self.file));
        assert!(said.status.success(), "{}\n{}", said.text, self.edge.log());
        said.text
    }
}

fn config(app: &Upstream, path: &str, keys: &str) -> String {
    format!(
        "workers = 2\n[[listener]]\nname = \"tcp\"\nkind = \"plain\"\naddress = \"127.0.0.1:0\"\n\
         [[listener]]\nkind = \"plain\"\naddress = \"unix:{path}\"\n{keys}\n\
         [[rule]]\nname = \"out\"\naction = \"originate\"\nupstream = \"https://{}\"\n\
         upstream_name = \"app.test\"\nupstream_ca = \"ca.pem\"\n",
        app.address
    )
}

fn serve(pki: &Pki, file: &PathBuf) -> Command {
    let mut command = edge::eyelet(&pki.folder);
    command.arg("serve").arg(file);
    command
}

fn ask(client: &mut UnixStream, path: &str) -> Heard {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client.write_all(request.as_bytes()).unwrap();
    hear(client, "GET")
}

#[test]
fn a_client_of_a_unix_socket_is_its_user_and_its_process() {
    let mut local = Local::new();
    assert_eq!(local.mode(), 0o600, "this user alone");
    let mut client = local.connect();
    for path in ["/a", "/b"] {
        let heard = ask(&mut client, path);
        assert_eq!(heard.status, 200, "{heard:?}");
        assert!(heard.text().starts_with(&format!("GET {path} HTTP/1.1\r\n")), "{heard:?}");
    }
    let line = local.edge.line("a request", |line| line["http"]["path"] == "/b");
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(line["client"], format!("unix:uid={uid},pid={}", std::process::id()), "{line}");
    assert_eq!(line["client_ip"], format!("unix:uid={uid}"), "{line}");
    let path = local.path();
    assert_eq!(line["listener"], format!("unix:{}", path.display()), "{line}");
    if need("curl") {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--noproxy", "*", "--unix-socket"]).arg(&path);
        assert!(output(curl.arg("http://localhost/c")).text.starts_with("GET /c HTTP/1.1\r\n"));
    }
    local.edge.signal(Signal::TERM);
    assert!(local.edge.wait_exit().success());
    assert!(!path.exists(), "the file ends with its process");
}

#[test]
fn a_socket_is_replaced_only_where_nobody_listens() {
    let mut local = Local::new();
    let said = output(&mut serve(&local.pki, &local.file));
    assert!(!said.status.success());
    assert!(said.text.contains("another process listens there"), "{}", said.text);
    assert_eq!(ask(&mut local.connect(), "/").status, 200, "the first one is not disturbed");
    local.edge.kill();
    assert!(local.path().exists(), "nobody has removed it");
    local.edge = Edge::spawn(serve(&local.pki, &local.file), 1);
    assert_eq!(ask(&mut local.connect(), "/").status, 200);
    local.edge.kill();
    fs::remove_file(local.path()).unwrap();
    fs::write(local.path(), "mine").unwrap();
    let said = output(&mut serve(&local.pki, &local.file));
    assert!(said.text.contains("a file that is no socket"), "{}", said.text);
    assert_eq!(fs::read(local.path()).unwrap(), b"mine");
}

#[test]
fn a_reload_keeps_the_socket() {
    let local = Local::new();
    let inode = local.inode();
    let mut client = local.connect();
    assert_eq!(ask(&mut client, "/").status, 200);
    local.pki.folder.write("edge.toml", config(&local.app, "svn.sock", "mode = \"0660\""));
    local.order("reload");
    assert_eq!((local.inode(), local.mode()), (inode, 0o660));
    assert_eq!(ask(&mut client, "/").status, 200);
    assert_eq!(ask(&mut local.connect(), "/").status, 200);
    // Somebody has removed the file: the next reload makes another.
    fs::remove_file(local.path()).unwrap();
    local.order("reload");
    assert_eq!(ask(&mut local.connect(), "/").status, 200);
    local.pki.folder.write("edge.toml", config(&local.app, "other.sock", ""));
    local.order("reload");
    until("the old file to go", || (!local.path().exists()).then_some(()));
    assert_eq!(ask(&mut client, "/").status, 421, "its listener is gone, and with it its rule");
    let mut other = UnixStream::connect(local.pki.folder.path().join("other.sock")).unwrap();
    assert_eq!(ask(&mut other, "/").status, 200);
}

/// The process of an upgrade is no child of the test.
struct Later(Pid);

impl Later {
    /// The process that `eyelet upgrade` names.
    fn of(said: &str) -> Self {
        let (_, pid) = said.split_once(": process ").unwrap();
        Self(Pid::from_raw(pid.split(' ').next().unwrap().parse().unwrap()).unwrap())
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, Signal::KILL);
    }
}

#[test]
fn an_upgrade_hands_the_socket_over() {
    let mut local = Local::new();
    let inode = local.inode();
    let mut client = local.connect();
    assert_eq!(ask(&mut client, "/before").status, 200);
    let said = local.order("upgrade");
    let later = Later::of(&said);
    assert!(local.edge.wait_exit_alone().success());
    assert_eq!(local.inode(), inode);
    assert_eq!(ask(&mut local.connect(), "/").status, 200);
    assert_eq!(ask(&mut client, "/after").status, 200, "who was connected has moved");
    rustix::process::kill_process(later.0, Signal::TERM).unwrap();
    until("the file to go", || (!local.path().exists()).then_some(()));
}

/// The old process still has a request, and a client that connected would wait for its end.
#[test]
fn an_upgrade_without_the_socket_removes_it_at_once() {
    let mut local = Local::new();
    let mut client = local.connect();
    assert_eq!(ask(&mut client, "/").status, 200);
    client.write_all(b"GET /late HTTP/1.1\r\n").unwrap();
    let both = config(&local.app, "svn.sock", "");
    let unix = "[[listener]]\nkind = \"plain\"\naddress = \"unix:svn.sock\"\n\n";
    let without = both.replace(unix, "");
    assert_ne!(both, without);
    local.pki.folder.write("edge.toml", without);
    let _later = Later::of(&local.order("upgrade"));
    assert!(!local.path().exists());
    let left = fs::read_dir(local.pki.folder.path()).unwrap();
    let names: Vec<String> =
        left.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!names.iter().any(|name| name.starts_with("svn.sock")), "{names:?}");
    drop(client);
    assert!(local.edge.wait_exit_alone().success());
}
