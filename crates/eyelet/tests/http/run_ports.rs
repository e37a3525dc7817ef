//! The ports that `eyelet run` and `eyelet proxy` take, in a network of their own, where all are
//! free.

use std::process::Command;

use crate::run::program;
use crate::support::program::skip;
use crate::support::{Folder, Talk, need, output};

/// An address of this machine that is no loopback one, and that a local authority may sign.
const OWN: &str = "192.168.1.5";

/// The port of https that this user may have.
#[derive(Clone, Copy)]
enum Right {
    /// 443.
    Root,
    /// 8443.
    User,
}

/// An `eyelet` with a network of its own.
struct Alone {
    talk: Talk,
    folder: Folder,
}

impl Alone {
    /// `None`, and says so, where that cannot be had. The words of `line` have no blanks.
    fn start(right: Right, line: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip("network namespaces need root");
            return None;
        }
        if !["ip", "unshare", "nsenter", "setpriv", "python3"].into_iter().all(need) {
            return None;
        }
        let folder = Folder::new();
        let mut command = Command::new("unshare");
        let network = format!("ip link set lo up && ip addr add {OWN}/32 dev lo && exec \"$@\"");
        command.args(["--net", "sh", "-c", &network, "sh"]);
        if let Right::User = right {
            command.args(["setpriv", "--bounding-set=-net_bind_service"]);
        }
        let mut words = line.split(' ');
        // Its name is that of the URL.
        std::fs::create_dir(folder.path().join("app")).unwrap();
        command.current_dir(folder.path().join("app"));
        command.arg(env!("CARGO_BIN_EXE_eyelet")).args(words.next());
        command.arg("--ca-folder").arg(folder.path().join("authority")).args(words);
        command.env("XDG_RUNTIME_DIR", folder.path());
        Some(Self { talk: Talk::start(&mut command), folder })
    }

    /// A command in the same network.
    fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let network = format!("--net=/proc/{}/ns/net", self.talk.pid().as_raw_nonzero());
        command.args([&network, program]);
        command
    }

    /// Returns the place to which a plain request to port 80 is sent, or nothing.
    fn plain(&self) -> String {
        let mut curl = self.inside("curl");
        curl.args(["-s", "--max-time", "50", "-o", "/dev/null", "-w", "%{redirect_url}"]);
        output(curl.args(["--resolve", "*:80:127.0.0.1", "http://app.localhost/a?b"])).text
    }

    /// True if an application can have this port.
    fn is_free(&self, port: u16) -> bool {
        let mut python = self.inside("python3");
        let bind = format!("import socket; socket.create_server(('127.0.0.1', {port}))");
        output(python.args(["-c", &bind])).status.success()
    }
}

/// Also one that its command line names, and one that it has by itself.
#[test]
fn an_application_gets_the_port_that_it_wants() {
    for (right, options, port, url) in [
        (Right::User, "", 8080, "https://app.localhost:8443/\n"),
        (Right::User, "--port 8080 ", 8080, "https://app.localhost:8443/\n"),
        (Right::User, "--port 8443 ", 8443, "https://app.localhost:8444/\n"),
        (Right::Root, "", 80, "https://app.localhost/\n"),
        (Right::Root, "--port 443 ", 443, "https://app.localhost:8443/\n"),
    ] {
        let line = format!("run {options}-- python3 -m http.server --bind 127.0.0.1 {port}");
        let Some(mut run) = Alone::start(right, &line) else { return };
        run.talk.hear(&format!("serving {url}"));
        run.talk.hear(&format!("the command listens on 127.0.0.1:{port} "));
        assert!(!run.talk.said().contains("it is started again in"), "{line}: {}", run.talk.said());
    }
}

#[test]
fn proxy_leaves_ports_to_applications_that_come_later() {
    for (right, port, url) in [
        (Right::User, 8080, "https://app.localhost:8443/\n"),
        (Right::User, 8443, "https://app.localhost:8444/\n"),
        (Right::Root, 80, "https://app.localhost/\n"),
    ] {
        let line = format!("proxy app.localhost=127.0.0.1:{port}");
        let Some(mut run) = Alone::start(right, &line) else { return };
        run.talk.hear(&format!("serving {url}"));
        run.talk.hear("nothing listens at");
        assert!(run.is_free(port), "{line}: {}", run.talk.said());
    }
}

/// Browsers must not be led to what does not speak HTTP.
#[test]
fn plain_requests_are_redirected_from_port_80_alone() {
    if !need("curl") {
        return;
    }
    let app = format!("python3 {}", program("echo_plain.py"));
    for (right, line, expected) in [
        (Right::Root, format!("run -- {app}"), "https://app.localhost/a?b"),
        (Right::Root, format!("run --tcp -- {app}"), ""),
        (Right::User, format!("run -- {app}"), ""),
        (Right::Root, "proxy app.localhost=127.0.0.1:1".into(), "https://app.localhost/a?b"),
        (Right::Root, "proxy --tcp app.localhost=127.0.0.1:1".into(), ""),
    ] {
        let Some(mut run) = Alone::start(right, &line) else { return };
        let served = if line.starts_with("run") { "the command listens on" } else { "at 127" };
        run.talk.hear(served);
        assert_eq!(run.plain(), expected, "{line}: {}", run.talk.said());
        if let Right::User = right {
            assert!(run.is_free(8080), "{line}");
        }
    }
}

/// The refusal of an address as a name advises `--listen`.
#[test]
fn an_address_is_served_by_listen_without_a_name() {
    if !need("curl") || !need("node") {
        return;
    }
    for line in [
        format!("run --listen {OWN}:8443 -- node {} port", program("app.js")),
        format!("proxy --listen {OWN}:8443 app.localhost=127.0.0.1:1 --hold 0s"),
    ] {
        let Some(mut run) = Alone::start(Right::User, &line) else { return };
        run.talk.hear(if line.starts_with("run") { "the command listens on" } else { "at 127" });
        let authority = run.folder.path().join("authority/ca.pem");
        let mut curl = run.inside("curl");
        curl.args(["-sS", "--max-time", "50", "--cacert"]).arg(authority);
        let said = output(curl.arg(format!("https://{OWN}:8443/")));
        let answer = if line.starts_with("run") { "pid " } else { "503" };
        assert!(said.status.success() && said.text.contains(answer), "{line}: {said:?}");
    }
}

#[test]
fn it_is_said_when_other_machines_reach_it() {
    for (name, expected) in [("app.test", true), ("app.localhost", false)] {
        let line = format!("proxy {name}=127.0.0.1:1");
        let Some(mut run) = Alone::start(Right::User, &line) else { return };
        run.talk.hear("nothing listens at");
        let said = run.talk.said();
        let is_said = said.contains("listening on all addresses: other machines reach it\n");
        assert_eq!(is_said, expected, "{said}");
    }
}
