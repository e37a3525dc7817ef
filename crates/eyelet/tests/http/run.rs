//! `eyelet run` and `eyelet proxy` with real applications: node, python and sh as children, curl as
//! the client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::thread;

use rustix::process::{Pid, Signal};

use crate::support::client::{Offer, echo};
use crate::support::pki::Kind;
use crate::support::upstream::vacant;
use crate::support::{A_WHILE, Folder, Pki, Said, Talk, edge, need, output, until};

/// The program in `tests/programs`.
pub fn program(name: &str) -> String {
    format!("{}/tests/programs/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A running `eyelet run` or `eyelet proxy`.
pub struct Run {
    pub talk: Talk,
    pub pki: Pki,
    pub port: u16,
}

fn command(pki: &Pki, word: &str, options: &[&str]) -> Command {
    let mut command = edge::eyelet(&pki.folder);
    command.arg(word).args(["--listen", "127.0.0.1:0"]);
    command.args(["--certificate", &pki.text("edge.pem"), "--key", &pki.text("edge.key")]);
    command.args(options);
    command
}

impl Run {
    pub fn start(options: &[&str], child: &[&str]) -> Self {
        let pki = Pki::new();
        let mut command = command(&pki, "run", &["--name", "app.test"]);
        command.args(options).arg("--").args(child);
        Self::of(pki, Talk::start(&mut command))
    }

    /// `eyelet proxy` with these options and sites.
    pub fn proxy(options: &[&str]) -> Self {
        let pki = Pki::new();
        let mut command = command(&pki, "proxy", options);
        Self::of(pki, Talk::start(&mut command))
    }

    /// The application of `app.js`.
    fn app(options: &[&str], mode: &str, file: &str) -> Self {
        Self::start(options, &["node", &program("app.js"), mode, file])
    }

    fn of(pki: Pki, mut talk: Talk) -> Self {
        talk.hear("certificate: ");
        let said = talk.said();
        let url = said.lines().find_map(|line| line.strip_prefix("eyelet: serving ")).unwrap();
        let port = url.trim_end_matches('/').rsplit_once(':').unwrap().1.parse().unwrap();
        Self { talk, pki, port }
    }

    /// Waits until it listens, as often.
    pub fn listens(&self, times: usize) {
        until("the application", || {
            (self.talk.said().matches("the command listens on").count() >= times).then_some(())
        });
    }

    /// Eyelet and the application.
    pub fn pids(&self) -> [Pid; 2] {
        let said = self.talk.said();
        let app = said.split_once("(process ").unwrap().1.split(')').next().unwrap();
        [self.talk.pid(), Pid::from_raw(app.parse().unwrap()).unwrap()]
    }

    /// Waits until it has started as often, and no more often. It says so by itself, so this may
    /// come behind its first answer.
    fn starts(&self, times: usize) {
        let starts = || self.talk.said().matches("app: started").count();
        until("the starts", || (starts() >= times).then_some(()));
        assert_eq!(starts(), times, "{}", self.talk.said());
    }

    /// Returns curl's answers for these paths on one connection: each body and status.
    pub fn curl(&self, host: &str, paths: &[&str]) -> String {
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "50", "--cacert", &self.pki.text("ca.pem")]);
        command.args(["--resolve", &format!("{host}:{}:127.0.0.1", self.port)]);
        for path in paths {
            command.args(["-w", " %{http_code}\n"]);
            command.arg(format!("https://{host}:{}{path}", self.port));
        }
        output(&mut command).text
    }

    fn get(&self, path: &str) -> String {
        self.curl("app.test", &[path])
    }

    fn end(self, signal: Signal) -> Said {
        self.talk.signal(signal);
        self.talk.finish()
    }
}

/// The process that answered.
fn pid(answer: &str) -> i32 {
    let rest = answer.strip_prefix("pid ").unwrap_or_else(|| panic!("no pid in {answer:?}"));
    rest.split(' ').next().unwrap().parse().unwrap()
}

/// Waits for the end of a process. Nobody may be there to reap an orphan.
fn until_gone(pid: i32) {
    until("the end of the application", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
}

#[test]
fn an_application_of_node_is_served_and_ends_with_us() {
    if !need("node") || !need("curl") {
        return;
    }
    let run = Run::app(&[], "port", "");
    let answer = run.get("/");
    assert!(answer.contains("127.0.0.1") && answer.ends_with("200\n"), "{answer:?}");
    let mut client = Offer::new(&run.pki).connect(([127, 0, 0, 1], run.port).into(), "app.test");
    client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n").unwrap();
    client.write_all(b"Connection: upgrade\r\nUpgrade: echo\r\n\r\n").unwrap();
    let mut lines = BufReader::new(&mut client);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(lines.read_line(&mut head).unwrap(), 0, "{head}");
    }
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    drop(lines);
    echo(&mut client, b"across");
    run.talk.signal(Signal::USR1);
    until("the memory", || run.talk.said().contains("parked with").then_some(()));
    let said = run.end(Signal::TERM);
    assert_eq!(said.status.code(), Some(143), "{}", said.text);
    assert_eq!(said.text.matches("memory of TLS: ").count(), 1, "{}", said.text);
    until_gone(pid(&answer));
}

#[test]
fn a_child_of_a_killed_eyelet_ends_too() {
    if !need("node") || !need("curl") {
        return;
    }
    let run = Run::app(&[], "port", "");
    let answer = run.get("/");
    run.end(Signal::KILL);
    until_gone(pid(&answer));
}

#[test]
fn a_request_that_ends_the_application_is_not_repeated() {
    if !need("node") || !need("curl") {
        return;
    }
    let run = Run::app(&[], "port", "");
    run.listens(1);
    let first = run.get("/crash");
    assert!(first.contains("502"), "{first}");
    let before = pid(&run.get("/"));
    run.starts(2);
    // On a connection that has carried a request before.
    let answers = run.curl("app.test", &["/", "/crash", "/"]);
    let lines: Vec<&str> = answers.lines().collect();
    assert!(lines[0].starts_with(&format!("pid {before} ")), "{answers}");
    assert!(answers.contains(" 502\n"), "{answers}");
    assert_ne!(pid(lines.last().unwrap()), before);
    run.starts(3);
}

#[test]
fn requests_are_held_while_the_application_restarts() {
    if !need("node") || !need("curl") {
        return;
    }
    for mode in ["gate", "moving"] {
        let folder = Folder::new();
        let file = folder.path().join("open");
        let run = Run::app(&[], mode, file.to_str().unwrap());
        run.listens(1);
        assert!(run.get("/crash").contains("502"));
        run.starts(2);
        thread::scope(|scope| {
            let held: Vec<_> = (0..8).map(|_| scope.spawn(|| run.get("/"))).collect();
            thread::sleep(A_WHILE);
            assert!(held.iter().all(|held| !held.is_finished()), "{mode}: held");
            std::fs::write(&file, "").unwrap();
            for held in held {
                let answer = held.join().unwrap();
                assert!(answer.ends_with("200\n"), "{mode}: {answer}");
            }
        });
        run.starts(2);
    }
}

#[test]
fn requests_are_held_no_longer_than_asked() {
    if !need("node") || !need("curl") {
        return;
    }
    let run = Run::app(&["--hold", "100ms"], "nowhere", "");
    assert!(run.get("/").contains("503"));
    // It is said once, after 30 seconds.
    until("the text", || run.talk.said().contains("listens nowhere after 30 s").then_some(()));
    assert_eq!(run.end(Signal::INT).status.code(), Some(7));
}

#[test]
fn a_change_of_a_file_starts_the_application_again() {
    if !need("node") || !need("curl") {
        return;
    }
    let folder = Folder::new();
    let file = folder.write("version", "one");
    let watch = folder.path().to_str().unwrap();
    let run = Run::app(&["--watch", watch], "version", file.to_str().unwrap());
    run.listens(1);
    let before = run.get("/");
    assert!(before.contains("one"), "{before}");
    folder.write("version", "two");
    run.listens(2);
    let after = run.get("/");
    assert!(after.contains("two"), "{after}");
    assert_ne!(pid(&before), pid(&after));
    run.starts(2);
}

#[test]
fn signals_are_passed_on_and_the_exit_status_is_the_applications() {
    if !need("node") {
        return;
    }
    let mut run = Run::app(&[], "port", "");
    run.listens(1);
    for (signal, name) in
        [(Signal::HUP, "SIGHUP"), (Signal::QUIT, "SIGQUIT"), (Signal::USR2, "SIGUSR2")]
    {
        run.talk.signal(signal);
        run.talk.hear(&format!("app: {name}"));
    }
    let said = run.end(Signal::INT);
    assert!(said.text.contains("app: SIGINT"), "{}", said.text);
    assert_eq!(said.status.code(), Some(7), "{}", said.text);
    assert!(!said.text.contains("panicked"), "{}", said.text);
}

#[test]
fn a_hangup_that_ends_the_application_ends_eyelet_and_is_said() {
    for (signal, name, status) in [(Signal::HUP, "SIGHUP", 129), (Signal::QUIT, "SIGQUIT", 131)] {
        let run = Run::start(&[], &["sleep", "600"]);
        let said = run.end(signal);
        let ended = format!("so does Eyelet, after {name}");
        assert!(said.text.contains(&ended), "{}", said.text);
        assert_eq!(said.status.code(), Some(status), "{}", said.text);
    }
}

#[test]
fn where_the_application_listens_is_found_and_said() {
    if !need("node") || !need("curl") {
        return;
    }
    let folder = Folder::new();
    let socket = folder.path().join("app.sock");
    let socket = socket.to_str().unwrap();
    for (mode, expected) in [
        ("random", "the command listens on 127.0.0.1:"),
        ("six", ", by IPv6 alone"),
        ("all", "other machines reach it too, without TLS"),
        ("unix", "the command listens on unix:"),
        ("control", "app.sock.open ("),
        ("debugger", "the command listens on 127.0.0.1:"),
    ] {
        if mode == "six" && TcpListener::bind("[::1]:0").is_err() {
            continue;
        }
        let socket = if mode == "control" { format!("{socket}.open") } else { socket.to_owned() };
        let mut run = Run::app(&[], mode, &socket);
        run.listens(1);
        run.talk.hear(expected);
        let answer = run.get("/");
        assert!(answer.ends_with("200\n"), "{mode}: {answer}");
    }
}

/// The kernel's table has the path as it was bound, and not the folder.
#[test]
fn a_unix_socket_with_a_relative_path_is_served() {
    if !need("node") || !need("curl") {
        return;
    }
    let folder = Folder::new();
    let root = std::fs::canonicalize(folder.path()).unwrap();
    std::fs::create_dir(root.join("sub")).unwrap();
    let script = "cd \"$0\" && exec node \"$1\" unix \"$2\"";
    let start = |path: &'static str| {
        let app = ["sh", "-c", script, root.to_str().unwrap(), &program("app.js"), path];
        (Run::start(&[], &app), path.trim_start_matches("./"))
    };
    for (mut run, path) in ["app.sock", "./other.sock", "sub/app.sock"].map(start) {
        run.talk.hear(&format!("the command listens on unix:{} (", root.join(path).display()));
        let answer = run.get("/");
        assert!(answer.ends_with("200\n"), "{path}: {answer}");
    }
}

/// The address of a Unix socket has room for 107 bytes, and a relative path needs few of them.
#[test]
fn a_unix_socket_in_a_deep_folder_is_served() {
    if !need("node") || !need("curl") {
        return;
    }
    let folder = Folder::new();
    let deep = folder.path().join("d".repeat(120));
    std::fs::create_dir(&deep).unwrap();
    let script = "cd \"$0\" && exec node \"$1\" unix app.sock";
    let app = ["sh", "-c", script, deep.to_str().unwrap(), &program("app.js")];
    let mut run = Run::start(&[], &app);
    run.talk.hear("the command listens on unix:/proc/");
    let answer = run.get("/");
    assert!(answer.ends_with("200\n"), "{answer}");
}

/// The configuration takes no path that begins like this.
#[test]
fn an_endpoint_that_cannot_be_served_ends_nothing() {
    if !need("node") {
        return;
    }
    let folder = Folder::new();
    let path = format!("/{}", folder.path().join("app.sock").display());
    let mut run = Run::app(&[], "unix", &path);
    run.talk.hear("; requests cannot be sent there: ");
    let said = run.end(Signal::INT);
    assert_eq!(said.status.code(), Some(7), "the application's own: {}", said.text);
}

#[test]
fn two_ports_are_not_guessed() {
    if !need("node") {
        return;
    }
    let run = Run::app(&[], "two", "");
    let said = run.talk.finish();
    assert_eq!(said.status.code(), Some(1), "{}", said.text);
    assert!(said.text.contains("say which port is meant with --port"), "{}", said.text);
}

#[test]
fn what_goes_into_the_background_is_said_and_ended() {
    if !need("node") {
        return;
    }
    let app = program("app.js");
    for shell in ["node \"$0\" port & sleep 0.5", "setsid node \"$0\" port & sleep 0.5"] {
        let run = Run::start(&[], &["sh", "-c", shell, &app]);
        let said = run.talk.finish();
        assert_eq!(said.status.code(), Some(1), "{shell}: {}", said.text);
        let text = "left processes in the background (";
        let (_, rest) = said.text.split_once(text).unwrap_or_else(|| panic!("{}", said.text));
        until_gone(rest.split([',', ')']).next().unwrap().parse().unwrap());
    }
    let run = Run::start(&[], &["true"]);
    let said = run.talk.finish();
    assert_eq!(said.status.code(), Some(1), "{}", said.text);
    assert!(said.text.contains("has listened nowhere"), "{}", said.text);
}

#[test]
fn what_cannot_be_started_is_said() {
    let pki = Pki::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (plain, script) = (pki.text("ca.pem"), pki.text("app.py"));
    pki.folder.write("app.py", "");
    let in_path = pki.folder.path().join("in-path");
    std::fs::create_dir_all(in_path.join("a-folder")).unwrap();
    std::fs::write(in_path.join("found.py"), "").unwrap();
    let found = in_path.join("found.py").display().to_string();
    for (options, child, status, text) in [
        (&[][..], "./no-such-program", 127, "cannot start the command"),
        (&[], &plain, 126, &format!("{plain}: not executable: chmod +x {plain}\n")),
        (&[], &script, 126, &format!("chmod +x {script}, or is it `python3 {script}`?")),
        (&[], "/", 126, "/: it is a folder"),
        (&[], "found.py", 126, &format!("chmod +x {found}, or is it `python3 {found}`?")),
        (&[], "a-folder", 126, "in-path/a-folder is a folder"),
        (&[], "app.py", 127, "app.py: no such program in PATH; is it `python3 app.py`?"),
        (&["--port", &port], "true", 1, &format!("the command's port {port} is taken; `ss -l")),
        (&["--watch", "/no/such/folder"], "true", 1, "cannot watch /no/such/folder"),
        (&["--client-ca", "/no/such/file"], "true", 1, "/no/such/file"),
    ] {
        let mut command = command(&pki, "run", options);
        let path = format!("{}:{}", std::env::var("PATH").unwrap(), in_path.display());
        command.current_dir(pki.folder.path()).env("PATH", path);
        let said = output(command.args(["--", child]));
        assert_eq!(said.status.code(), Some(status), "{child} {options:?}: {}", said.text);
        assert!(said.text.contains(text), "{}", said.text);
        assert!(!said.text.contains("serving"), "{}", said.text);
        assert!(!said.text.contains("panicked"), "{}", said.text);
    }
    // The port of the edge itself. The command is not started.
    let mut command = edge::eyelet(&pki.folder);
    command.args(["run", "--listen", &format!("127.0.0.1:{port}"), "--name", "app.test"]);
    command.args(["--certificate", &pki.text("edge.pem"), "--key", &pki.text("edge.key")]);
    let said = output(command.args(["--", "echo", "started"]));
    assert_eq!(said.status.code(), Some(1), "{}", said.text);
    assert!(said.text.contains("another process holds it; `ss -ltnp` shows which"), "{said:?}");
    assert!(!said.text.contains("started"), "{said:?}");
}

/// Eyelet raises its own limit of descriptors, and a program of the shell keeps the shell's.
#[test]
fn the_application_has_the_shells_limit_of_descriptors() {
    let pki = Pki::new();
    let mut inner = command(&pki, "run", &["--name", "app.test"]);
    inner.args(["--", "sh", "-c", "echo left $(ulimit -Sn); exec sleep 600"]);
    let mut command = Command::new("sh");
    command.env("XDG_RUNTIME_DIR", pki.folder.path());
    command.args(["-c", "ulimit -Sn 321; exec \"$@\"", "sh"]);
    command.arg(inner.get_program()).args(inner.get_args());
    let run = Run::of(pki, Talk::start(&mut command));
    assert_eq!(left(&run), 321);
    let limits = format!("/proc/{}/limits", run.talk.pid().as_raw_nonzero());
    let limits = std::fs::read_to_string(limits).unwrap();
    let own = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert!(!own.contains(" 321 "), "it has raised its own: {own}");
    assert_eq!(run.end(Signal::TERM).status.code(), Some(143));
}

/// A compiler replaces the program while it is started again.
#[test]
fn what_cannot_be_started_again_is_tried_again() {
    let folder = Folder::new();
    let text = "#!/bin/sh\nmv \"$0\" \"$0.gone\"\nexit 3\n";
    let app = folder.write_program("app", text);
    let mut run = Run::start(&[], &[app.to_str().unwrap()]);
    run.talk.hear("cannot start the command: ");
    std::fs::rename(folder.path().join("app.gone"), &app).unwrap();
    until("another start", || {
        (run.talk.said().matches("exit status: 3").count() == 2).then_some(())
    });
    let said = run.end(Signal::TERM);
    assert!(said.text.contains("; next try in "), "{}", said.text);
    assert_eq!(said.status.code(), Some(3), "{}", said.text);
}

#[test]
fn a_hangup_ends_eyelet_when_the_command_cannot_be_started_again() {
    let folder = Folder::new();
    let app = folder.write_program("app", "#!/bin/sh\nmv \"$0\" \"$0.gone\"\nexit 3\n");
    let mut run = Run::start(&[], &[app.to_str().unwrap()]);
    run.talk.hear("cannot start the command: ");
    let said = run.end(Signal::HUP);
    let last = said.text.rsplit_once("cannot start the command: ").unwrap().1;
    assert!(last.contains("; Eyelet ends, after SIGHUP"), "{}", said.text);
}

/// The process that a script has said it leaves.
fn left(run: &Run) -> i32 {
    until("the process", || {
        let said = run.talk.said();
        let (_, rest) = said.split_once("left ")?;
        rest.split_once('\n')?.0.parse().ok()
    })
}

#[test]
fn an_orphan_is_reaped_while_the_application_lives() {
    let script = "sh -c 'sleep 0.1 & echo left $!'; exec sleep 600";
    let run = Run::start(&[], &["sh", "-c", script]);
    let orphan = format!("/proc/{}", left(&run));
    until("its end", || (!std::path::Path::new(&orphan).exists()).then_some(()));
    assert_eq!(run.end(Signal::TERM).status.code(), Some(143));
}

/// Each authority has an edge of its own.
#[test]
fn a_taken_port_is_followed_by_a_free_one() {
    let folder = Folder::new();
    let start = |authority| {
        let mut command = edge::eyelet(&folder);
        command.arg("run").arg("--ca-folder").arg(folder.path().join(authority));
        let mut talk = Talk::start(command.args(["--", "sleep", "600"]));
        talk.hear("certificate: ");
        talk
    };
    let (first, second) = (start("one"), start("two"));
    let url =
        |talk: &Talk| talk.said().lines().find(|line| line.contains("https://")).map(String::from);
    assert_ne!(url(&first), url(&second));
    assert!(second.said().contains(" is taken; listening on "), "{}", second.said());
    first.signal(Signal::TERM);
    assert_eq!(first.finish().status.code(), Some(143));
}

#[test]
fn without_files_the_local_authority_signs() {
    if !need("curl") || !need("node") {
        return;
    }
    let folder = Folder::new();
    let authority = folder.path().join("authority");
    let mut command = edge::eyelet(&folder);
    command.args(["run", "--listen", "127.0.0.1:0", "--ca-folder"]).arg(&authority);
    command.args(["--name", "app.localhost", "--", "node", &program("app.js"), "port", ""]);
    let mut talk = Talk::start(&mut command);
    talk.hear("the command listens on");
    let said = talk.said();
    let trust = format!("`eyelet trust --install --folder {}`", authority.display());
    assert!(said.contains(&trust), "{said}");
    let url = said.lines().find_map(|line| line.strip_prefix("eyelet: serving ")).unwrap();
    let port = url.trim_end_matches('/').rsplit_once(':').unwrap().1;
    // The printed command.
    let (_, command) = said.split_once("eyelet: until then: ").unwrap();
    let command = command.lines().next().unwrap();
    let answer = output(Command::new("sh").args(["-c", command]));
    assert!(answer.status.success() && answer.text.contains("pid "), "{command}: {}", answer.text);
    for name in ["app.localhost", "localhost", "127.0.0.1"] {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "50", "--cacert"]).arg(authority.join("ca.pem"));
        let resolve = format!("{name}:{port}:127.0.0.1");
        let answer = output(curl.args(["--resolve", &resolve, &format!("https://{name}:{port}/")]));
        assert!(answer.status.success(), "{name}: {}", answer.text);
    }
    talk.signal(Signal::TERM);
    talk.finish();
}

#[test]
fn an_application_that_is_not_http_gets_bytes_and_the_clients_address() {
    if !need("python3") {
        return;
    }
    let app = program("echo.py");
    let run = Run::start(&["--tcp", "--proxy-protocol"], &["python3", &app]);
    run.listens(1);
    let connect = || Offer::new(&run.pki).connect(([127, 0, 0, 1], run.port).into(), "app.test");
    let mut client = connect();
    let mut said = [0; 17];
    client.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"client 127.0.0.1\n");
    echo(&mut client, b"bytes");
    // A connection that comes while it restarts is held.
    let [_, app] = run.pids();
    rustix::process::kill_process(app, Signal::KILL).unwrap();
    until("its end", || run.talk.said().contains("signal: 9").then_some(()));
    let mut client = connect();
    client.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"client 127.0.0.1\n");
}

#[test]
fn a_server_of_pythons_standard_library_is_served() {
    if !need("python3") || !need("curl") {
        return;
    }
    let port = vacant_port();
    let serve = ["python3", "-m", "http.server", "--bind", "127.0.0.1", &port];
    let run = Run::start(&["--port", &port], &serve);
    run.listens(1);
    assert!(run.get("/").ends_with("200\n"));
}

/// A port that nobody gets who does not name it.
pub fn vacant_port() -> String {
    let [address] = vacant();
    address.port().to_string()
}

#[test]
fn proxy_leads_names_to_applications_that_run_already() {
    if !need("node") || !need("curl") {
        return;
    }
    let folder = Folder::new();
    let socket = folder.path().join("api.sock");
    let port = vacant_port();
    let app = |mode: &str| {
        let mut command = Command::new("node");
        command.arg(program("app.js")).arg(mode).arg(&socket).env("PORT", &port);
        Talk::start(&mut command)
    };
    let (_one, _two) = (app("port"), app("unix"));
    let sites =
        [format!("app.test=127.0.0.1:{port}"), format!("a.app.test=unix:{}", socket.display())];
    let run = Run::proxy(&[&sites[0], &sites[1]]);
    let (one, two) = (run.get("/"), run.curl("a.app.test", &["/"]));
    assert!(one.ends_with("200\n") && two.ends_with("200\n"), "{one}{two}");
    assert_ne!(pid(&one), pid(&two));
    assert_eq!(run.end(Signal::INT).status.code(), Some(0));
}

/// The command line has no `permit`.
#[test]
fn an_authority_that_may_sign_more_signs_more() {
    if !need("curl") || !need("node") {
        return;
    }
    let folder = Folder::new();
    let authority = folder.path().join("authority");
    let made = output(
        edge::eyelet(&folder)
            .args(["trust", "--permit", "corp.example.com", "--folder"])
            .arg(&authority)
            .env("HOME", folder.path()),
    );
    assert!(authority.join("ca.pem").exists(), "{}", made.text);
    let mut command = edge::eyelet(&folder);
    command.args(["run", "--listen", "127.0.0.1:0", "--name", "app.corp.example.com"]);
    command.arg("--ca-folder").arg(&authority);
    let mut talk = Talk::start(command.args(["--", "node", &program("app.js"), "port", ""]));
    talk.hear("the command listens on");
    let said = talk.said();
    assert!(!said.contains("other machines reach it"), "{said}");
    // The printed command leads curl to the name.
    let (_, printed) = said.split_once("eyelet: until then: ").unwrap();
    let printed = printed.lines().next().unwrap();
    let answer = output(Command::new("sh").args(["-c", printed]));
    assert!(answer.text.contains("pid "), "{printed}: {}", answer.text);
}

#[test]
fn a_certificate_for_another_name_is_said() {
    let pki = Pki::new();
    let mut talk = Talk::start(&mut command(&pki, "proxy", &["other.test=127.0.0.1:1"]));
    talk.hear("edge.pem; clients refuse it for other.test: it is for ");
    assert!(!talk.said().contains("start with"), "{}", talk.said());
    let options = ["--name", "other.localhost", "--", "sleep", "600"];
    let mut talk = Talk::start(&mut command(&pki, "run", &options));
    talk.hear("edge.pem; clients refuse it for other.localhost: it is for ");
    talk.hear(": start with --name app.test");
    pki.server("edge", &[], Kind::P256);
    let mut talk = Talk::start(&mut command(&pki, "proxy", &["other.test=127.0.0.1:1"]));
    talk.hear("edge.pem; clients refuse it for other.test: it has no DNS name");
}

/// A socket of Eyelet's own is no application. What the name leads to is not known before.
#[test]
fn proxy_does_not_take_itself_for_an_application() {
    let pki = Pki::new();
    let [address] = vacant();
    let mut command = edge::eyelet(&pki.folder);
    let upstream = format!("localhost:{}", address.port());
    command.args(["proxy", "--listen", &address.to_string(), &format!("app.test={upstream}")]);
    command.args(["--certificate", &pki.text("edge.pem"), "--key", &pki.text("edge.key")]);
    let mut talk = Talk::start(&mut command);
    talk.hear(&format!("app.test: Eyelet itself listens at {upstream}; requests fail"));
}

/// A mistyped port would look like a slow page: requests wait.
#[test]
fn proxy_says_which_application_is_not_there_and_when_it_is() {
    if !need("node") || !need("curl") {
        return;
    }
    let folder = Folder::new();
    let socket = folder.path().join("api.sock");
    let port = vacant_port();
    let sites =
        [format!("app.test=127.0.0.1:{port}"), format!("a.app.test=unix:{}", socket.display())];
    let mut run = Run::proxy(&[&sites[0], &sites[1]]);
    run.talk.hear(&format!("app.test: nothing listens at 127.0.0.1:{port} (Connection refused"));
    run.talk.hear(&format!("a.app.test: nothing listens at unix:{}", socket.display()));
    let app = |mode: &str| {
        let mut command = Command::new("node");
        command.arg(program("app.js")).arg(mode).arg(&socket).env("PORT", &port);
        Talk::start(&mut command)
    };
    let (one, _two) = (app("port"), app("unix"));
    run.talk.hear(&format!("app.test: 127.0.0.1:{port} listens now"));
    run.talk.hear(&format!("unix:{} listens now", socket.display()));
    assert!(run.get("/").ends_with("200\n"));
    drop(one);
    until("the end of one", || {
        (run.talk.said().matches("nothing listens").count() == 3).then_some(())
    });
    run.end(Signal::TERM);
}
