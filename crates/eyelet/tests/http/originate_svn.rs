//! Subversion, which speaks WebDAV and has no TLS here, against a real mod_dav_svn behind TLS.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::pki::Kind;
use crate::support::program::{Said, output, skip};
use crate::support::upstream::vacant;
use crate::support::{Edge, Folder, Pki, SOON, Talk, need, until};

/// Debian's folder of Apache modules.
const MODULES: &str = "/usr/lib/apache2/modules";

/// Apache with a repository at /svn.
pub struct Apache {
    pub address: SocketAddr,
    server: Talk,
}

impl Apache {
    fn start(pki: &Pki) -> Self {
        pki.server("app", &["app.test"], Kind::P256);
        let folder = pki.folder.path().display().to_string();
        let tls = format!(
            "SSLEngine on\nSSLCertificateFile {folder}/app.pem\n\
             SSLCertificateKeyFile {folder}/app.key\n"
        );
        Self::start_with(pki, &format!("ServerName app.test\n{tls}"))
    }

    /// Without TLS. Its clients have TLS, by an edge.
    pub fn plain(pki: &Pki) -> Self {
        Self::start_with(pki, "ServerName https://app.test\n")
    }

    fn start_with(pki: &Pki, name: &str) -> Self {
        let [address] = vacant();
        let folder = pki.folder.path().display().to_string();
        done(Command::new("svnadmin").arg("create").arg(pki.file("repository")));
        // Apache that root has started serves as another user.
        done(Command::new("chmod").args(["-R", "a+rwX"]).arg(pki.file("repository")));
        let user = if rustix::process::geteuid().is_root() {
            "User www-data\nGroup www-data\n"
        } else {
            ""
        };
        let modules = ["mpm_event", "authz_core", "dav", "dav_svn", "ssl"];
        let modules = modules
            .map(|name| format!("LoadModule {name}_module {MODULES}/mod_{name}.so\n"))
            .concat();
        let config = format!(
            "ServerRoot {folder}\nPidFile {folder}/apache.pid\nErrorLog {folder}/apache.log\n\
             DefaultRuntimeDir {folder}\nMutex pthread\n{modules}{user}\
             Listen {address}\n{name}\
             <Location /svn>\nDAV svn\nSVNPath {folder}/repository\nRequire all granted\n\
             </Location>\n"
        );
        let config = pki.folder.write("apache.conf", config);
        let server = Talk::start(
            Command::new("/usr/sbin/apache2").arg("-f").arg(config).arg("-DFOREGROUND"),
        );
        until("Apache to listen", || TcpStream::connect(address).ok());
        Self { address, server }
    }
}

impl Drop for Apache {
    /// Its workers would outlive a process that is killed, and hold its port.
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.server.pid(), rustix::process::Signal::TERM);
        let began = Instant::now();
        while TcpStream::connect(self.address).is_ok() && began.elapsed() < SOON {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

pub fn done(command: &mut Command) -> Said {
    let said = output(command);
    assert!(said.status.success(), "{command:?}: {}", said.text);
    said
}

pub fn svn(folder: &Folder) -> Command {
    let mut svn = Command::new("svn");
    svn.arg("--non-interactive").arg("--config-dir").arg(folder.path().join("svn-settings"));
    svn
}

pub fn is_installed() -> bool {
    if !Path::new(MODULES).join("mod_dav_svn.so").exists() {
        skip("mod_dav_svn not found");
        return false;
    }
    need("svn") && need("svnadmin")
}

#[test]
fn an_unchanged_svn_works_on_a_repository_behind_tls() {
    if !is_installed() {
        return;
    }
    let pki = Pki::new();
    let apache = Apache::start(&pki);
    let config = format!(
        "[[listener]]\nkind = \"plain\"\naddress = \"127.0.0.1:0\"\n[[rule]]\n\
         action = \"originate\"\nupstream = \"https://{}\"\nupstream_name = \"app.test\"\n\
         upstream_ca = \"ca.pem\"\n",
        apache.address
    );
    let edge = Edge::start_whole(&pki.folder, &config, |_| ());
    let url = format!("http://127.0.0.1:{}/svn", edge.port());
    let tree = pki.file("tree");
    std::fs::create_dir(&tree).unwrap();
    for number in 0..20 {
        let text = format!("line of {number}\n").repeat(500 + number);
        std::fs::write(tree.join(format!("{number}.txt")), text).unwrap();
    }
    let run = |more: &[&str]| done(svn(&pki.folder).args(more)).text;
    run(&["import", "-q", "-m", "one", tree.to_str().unwrap(), &format!("{url}/trunk")]);
    let copy = pki.text("copy");
    run(&["checkout", "-q", &format!("{url}/trunk"), &copy]);
    for number in 0..20 {
        let name = format!("{number}.txt");
        let got = std::fs::read(pki.file("copy").join(&name)).unwrap();
        assert_eq!(got, std::fs::read(tree.join(&name)).unwrap(), "{name}");
    }
    // COPY and MOVE name their target by a whole URL in `Destination`.
    run(&["copy", "-q", "-m", "two", &format!("{url}/trunk"), &format!("{url}/branch")]);
    run(&["move", "-q", "-m", "three", &format!("{url}/branch"), &format!("{url}/tag")]);
    std::fs::write(pki.file("copy").join("0.txt"), "changed\n").unwrap();
    run(&["move", "-q", &format!("{copy}/1.txt"), &format!("{copy}/moved.txt")]);
    run(&["commit", "-q", "-m", "four", &copy]);
    assert_eq!(run(&["cat", &format!("{url}/trunk/0.txt")]), "changed\n");
    let listed = run(&["list", &url]);
    assert_eq!(listed, "tag/\ntrunk/\n");
    let info = run(&["info", "--show-item", "repos-root-url", &url]);
    assert_eq!(info.trim(), url, "the client sees this port's URL");
    assert_eq!(edge.count(|line| line["outcome"] == "failed"), 0, "{:#?}", edge.lines());
}
