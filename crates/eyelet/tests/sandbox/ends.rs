//! The begin and the end of a run: exit statuses, signals, leftovers, files that are written.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::ground::{Sandbox, is_possible, report};
use crate::support::{Folder, SOON, Upstream, need, output, until};

/// The time for which a reader is late: longer than a starved thread waits for its turn.
const LATE: Duration = Duration::from_secs(2);
const HOSTS: [(&str, &str); 1] = [("app.test", "127.0.0.1")];

#[test]
fn a_command_works_in_the_runtime_folder_which_is_empty() {
    if !is_possible() {
        return;
    }
    // It is in /tmp, which is emptied as well.
    let folder = Folder::new();
    let mut sandbox = Sandbox::new(&folder, &HOSTS, "app.test");
    sandbox.command.env("XDG_RUNTIME_DIR", folder.path());
    let said = sandbox.script("echo $(pwd) has $(ls -A | wc -l)");
    let expected = format!("{} has 0\n", folder.path().display());
    assert!(said.text.contains(&expected), "{}", said.text);
}

#[test]
fn the_exit_status_is_that_of_the_command() {
    if !is_possible() {
        return;
    }
    let folder = Folder::new();
    folder.write("not_executable", "text");
    for (command, status, said) in [
        (&["true"][..], 0, "connections: 0, names: 0"),
        (&["sh", "-c", "exit 77"], 77, ""),
        (&["sh", "-c", "kill -9 $$"], 128 + 9, ""),
        (&["no-such-command"], 127, "cannot run the command (no-such-command)"),
        (&["./not_executable"], 126, "cannot run the command (./not_executable)"),
        (&["/tmp/no/such"], 127, "/tmp is empty inside"),
    ] {
        let ran = Sandbox::new(&folder, &HOSTS, "app.test").run(command);
        assert_eq!(ran.status.code(), Some(status), "{command:?}: {}", ran.text);
        assert!(ran.text.contains(said), "{command:?}: {}", ran.text);
    }
}

/// Whoever reads standard error is late, and the command has filled its pipe.
#[test]
fn the_summary_waits_for_its_reader() {
    if !is_possible() {
        return;
    }
    let folder = Folder::new();
    let mut command = Sandbox::new(&folder, &HOSTS, "app.test").command;
    // A pipe takes 64 KiB (pipe(7)).
    let fill = "head -c 65536 /dev/zero | tr '\\0' x >&2; touch filled";
    command.args(["--", "sh", "-c", fill]).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    until("a full pipe", || folder.path().join("filled").exists().then_some(()));
    thread::sleep(LATE);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(said.contains("connections: 0, names: 0"), "{}", said.trim_start_matches('x'));
}

#[test]
fn mistakes_of_a_list_are_named_and_nothing_is_run() {
    if !is_possible() {
        return;
    }
    let folder = Folder::new();
    for (list, said) in [
        ("app.test\nhttps://app.test/x", "allow.txt:2: error: this is a URL"),
        ("app.test/path", "allow.txt:1: error: paths cannot be listed"),
        ("app.test:80-90", "allow.txt:1: error: `80-90` is several ports"),
        ("tcp app.test", "allow.txt:1: error: `tcp` needs a port"),
    ] {
        let ran = Sandbox::new(&folder, &HOSTS, list).script("echo it runs");
        assert_eq!(ran.status.code(), Some(125), "{list}: {}", ran.text);
        assert!(ran.text.contains(said), "{list}: {}", ran.text);
        assert!(!ran.text.contains("it runs"), "{}", ran.text);
    }
    let empty = Sandbox::new(&folder, &HOSTS, "# nothing\n").script("echo it runs");
    assert!(empty.status.success() && empty.text.contains("the list is empty"), "{}", empty.text);
    let missing = Sandbox::without_list(&folder, &HOSTS).option("--allow", "none.txt");
    let missing = missing.script("echo it runs");
    assert_eq!(missing.status.code(), Some(125), "{}", missing.text);
    let ports: String = (1..200).map(|port| format!("app.test:{port}\n")).collect();
    let many = Sandbox::new(&folder, &HOSTS, &ports).script("echo it runs");
    assert!(many.text.contains("the list has 199 ports; at most 124"), "{}", many.text);
}

#[test]
fn what_is_left_behind_ends_with_the_command() {
    if !is_possible() || !need("setsid") {
        return;
    }
    let folder = Folder::new();
    let script = "setsid sh -c 'trap \"\" TERM HUP; exec 9>held; flock 9; echo > ready; sleep 300' \
        >/dev/null 2>&1 & while ! test -e ready; do sleep 0.01; done";
    let ran = Sandbox::new(&folder, &HOSTS, "app.test").script(script);
    assert!(ran.status.success(), "{}", ran.text);
    let held = File::open(folder.path().join("held")).unwrap();
    assert!(held.try_lock().is_ok(), "the leftover has its lock");
}

#[test]
fn signals_reach_the_command_and_its_end_is_that_of_all() {
    if !is_possible() {
        return;
    }
    let folder = Folder::new();
    let script = "trap 'echo got it; exit 3' TERM; echo ready; while :; do sleep 0.01; done";
    let mut run = Sandbox::new(&folder, &HOSTS, "app.test").start(&["sh", "-c", script]);
    run.hear("ready");
    run.signal(Signal::TERM);
    let ran = run.finish();
    assert_eq!(ran.status.code(), Some(3), "{}", ran.text);
    assert!(ran.text.contains("got it"), "{}", ran.text);
    // Without the edge there is no command.
    let script = "exec 9>alone; flock 9; echo ready; sleep 300";
    let mut run = Sandbox::new(&folder, &HOSTS, "app.test").start(&["sh", "-c", script]);
    run.hear("ready");
    run.signal(Signal::KILL);
    let held = File::open(folder.path().join("alone")).unwrap();
    until("the command to end", || held.try_lock().ok());
}

#[test]
fn two_sandboxes_do_not_write_one_report() {
    if !is_possible() {
        return;
    }
    let folder = Folder::new();
    let sandbox = || Sandbox::new(&folder, &HOSTS, "app.test").option("--report", "report.json");
    let mut first = sandbox().start(&["sh", "-c", "echo ready; cat"]);
    first.hear("ready");
    let second = sandbox().script("echo it runs");
    assert_eq!(second.status.code(), Some(125), "{}", second.text);
    assert!(second.text.contains("another sandbox"), "{}", second.text);
    first.hang_up();
    assert!(first.finish().status.success());
    assert_eq!(report(folder.path())["status"], 0);
    let both = sandbox().option("--learn", "report.json").script("echo it runs");
    assert_eq!(both.status.code(), Some(125), "{}", both.text);
}

#[test]
fn a_list_is_learnt_and_a_dry_run_tells_what_it_would_refuse() {
    if !is_possible() || !need("curl") {
        return;
    }
    let folder = Folder::new();
    // The ports at which a command is let out when no list names others.
    let Ok(web) = TcpListener::bind("127.0.0.1:80") else {
        return crate::support::program::skip("port 80 is taken");
    };
    thread::spawn(move || {
        for mut stream in web.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        }
    });
    let learn = Sandbox::without_list(&folder, &HOSTS).option("--learn", "learnt.txt");
    let ran = learn.script("curl -sS http://app.test/");
    assert!(ran.status.success(), "{}", ran.text);
    let learnt = std::fs::read_to_string(folder.path().join("learnt.txt")).unwrap();
    assert!(learnt.starts_with("app.test "), "{learnt}");
    assert!(learnt.ends_with(", by curl\n"), "{learnt}");
    let dry = Sandbox::new(&folder, &HOSTS, "b.test").flag("--dry-run");
    let ran = dry.script("curl -sS http://app.test/");
    assert!(ran.status.success(), "{}", ran.text);
    assert!(ran.text.contains("would be refused: app.test:80, once"), "{}", ran.text);
    let listed = Sandbox::without_list(&folder, &HOSTS).option("--allow", "learnt.txt");
    let ran = listed.option("--report", "report.json").script("curl -sS http://app.test/");
    assert!(ran.status.success(), "{}", ran.text);
    let report = report(folder.path());
    assert_eq!(
        (&report["connections"], &report["names"][0]["program"]),
        (&1.into(), &"curl".into())
    );
}

/// Lines of a person stay, and so do those that were learnt before.
#[test]
fn what_stands_in_a_list_stays_when_more_is_learnt() {
    if !is_possible() || !need("curl") {
        return;
    }
    let (folder, app) = (Folder::new(), Upstream::http());
    let port = app.address.port();
    folder.write("learnt.txt", "# by hand\nkept.test # why");
    let learn = |script: &str| {
        let sandbox = Sandbox::without_list(&folder, &HOSTS).option("--learn", "learnt.txt");
        let ran = sandbox.script(script);
        (ran, std::fs::read_to_string(folder.path().join("learnt.txt")).unwrap())
    };
    let (ran, first) =
        learn(&format!("curl -sS http://app.test:{port}/; curl -s http://8.8.8.8:9/"));
    let said = format!("refused: app.test:{port}: no entry has port {port}, ");
    assert!(ran.text.contains(&said), "{}", ran.text);
    assert!(ran.text.contains("refused: 8.8.8.8:9: no entry has port 9, once"), "{}", ran.text);
    let lines: Vec<&str> = first.lines().collect();
    assert_eq!(lines[..2], ["# by hand", "kept.test # why"], "{first}");
    assert!(lines[2].starts_with(&format!("app.test:{port} ")), "{first}");
    assert!(lines[2].ends_with(", by curl") && lines.len() == 3, "{first}");
    let (ran, second) = learn(&format!("curl -sS http://app.test:{port}/again"));
    assert!(ran.text.contains("GET /again HTTP"), "{}", ran.text);
    assert_eq!(second, first);
    folder.write("learnt.txt", "no entry at all\n");
    let (ran, third) = learn("echo it runs");
    assert_eq!((ran.status.code(), &*third), (Some(125), "no entry at all\n"), "{}", ran.text);
}

/// While a list is learnt DNS has every name, also such as no program asks for by itself.
#[test]
fn names_that_a_command_makes_up_do_not_widen_its_list() {
    if !is_possible() || !need("python3") {
        return;
    }
    let folder = Folder::new();
    let script = "import socket, struct\n\
        for labels in [b'*', b'com'], [b'*'], [b'-x', b'a'], [b'a b'], [b'plain', b'test']:\n \
        name = b''.join(bytes([len(label)]) + label for label in labels)\n \
        ask = struct.pack('>6H', 7, 256, 1, 0, 0, 0) + name + struct.pack('>B2H', 0, 1, 1)\n \
        dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n \
        dns.sendto(ask, ('192.0.2.53', 53))\n \
        at = socket.inet_ntoa(dns.recv(512)[-4:])\n \
        print(at, socket.socket().connect_ex((at, 8443)))";
    let learn = || Sandbox::without_list(&folder, &HOSTS).option("--learn", "learnt.txt");
    let ran = learn().run(&["python3", "-c", script]);
    assert!(ran.text.contains("refused: *.com:8443: no entry has port 8443"), "{}", ran.text);
    let learnt = std::fs::read_to_string(folder.path().join("learnt.txt")).unwrap();
    let entries: Vec<&str> = learnt.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(entries, ["plain.test:8443"], "{learnt}");
    let again = learn().script("true");
    assert!(again.status.success(), "{}", again.text);
}

#[test]
fn a_report_whose_folder_was_moved_is_a_failure() {
    if !is_possible() {
        return;
    }
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("out")).unwrap();
    let script = "mv out aside; mkdir out; echo forged >out/report.json";
    let sandbox = Sandbox::new(&folder, &HOSTS, "app.test").option("--report", "out/report.json");
    let ran = sandbox.script(script);
    assert_eq!(ran.status.code(), Some(125), "{}", ran.text);
    assert!(ran.text.contains("/out/report.json is another file now: somebody"), "{}", ran.text);
    let own = std::fs::read_to_string(folder.path().join("aside/report.json")).unwrap();
    assert!(own.contains("\"status\": 0"), "{own}");
}

#[test]
fn options_that_allow_nothing_say_what_does() {
    let folder = Folder::new();
    folder.write("agent.toml", "[sandbox.one]\n[sandbox.two]\n");
    for (options, expected) in [
        (&[][..], "say what it may reach: `--allow FILE`, `--learn FILE`, `--ask`"),
        (
            &["--config", "agent.toml"],
            "--config needs --profile NAME, of those in agent.toml: one, two",
        ),
        (&["--profile", "one"], "--profile needs --config FILE"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_eyelet"));
        command.arg("sandbox").args(options).args(["--", "true"]).current_dir(folder.path());
        let said = output(&mut command);
        assert_eq!(said.status.code(), Some(125), "{options:?}: {}", said.text);
        assert!(said.text.contains(expected), "{options:?}: {}", said.text);
    }
}

#[test]
fn events_are_json_lines() {
    if !is_possible() || !need("curl") {
        return;
    }
    let (folder, app) = (Folder::new(), Upstream::http());
    let port = app.address.port();
    let sandbox = Sandbox::new(&folder, &HOSTS, &format!("app.test:{port}")).flag("--json");
    let ran = sandbox.script(&format!("curl -sS http://app.test:{port}/ >/dev/null; exit 4"));
    let events = ran.text.lines().map(|line| serde_json::from_str(line).unwrap());
    let events: Vec<Value> = events.collect();
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(kinds, ["started", "connection", "ended"], "{}", ran.text);
    assert_eq!((&events[1]["name"], &events[1]["port"]), (&"app.test".into(), &port.into()));
    assert_eq!(events[2]["status"], 4, "{}", ran.text);
}

#[test]
fn standard_descriptors_that_lead_out_are_replaced_or_refused() {
    if !is_possible() || !need("stat") {
        return;
    }
    let folder = Folder::new();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(SOON)).unwrap();
    let script = "read line; echo got $line; stat -Lc '%F' /dev/fd/0 /dev/fd/1";
    let mut sandbox = Sandbox::new(&folder, &HOSTS, "app.test");
    let stdin = OwnedFd::from(theirs.try_clone().unwrap());
    sandbox.command.args(["--", "sh", "-c", script]).stdin(stdin).stdout(OwnedFd::from(theirs));
    let mut child = sandbox.command.stderr(Stdio::null()).spawn().unwrap();
    drop(sandbox);
    ours.write_all(b"this\n").unwrap();
    let mut said = String::new();
    ours.read_to_string(&mut said).unwrap();
    assert_eq!(said, "got this\nfifo\nfifo\n");
    assert!(child.wait().unwrap().success());
    let mut sandbox = Sandbox::new(&folder, &HOSTS, "app.test");
    sandbox.command.args(["--", "echo", "it runs"]).stdin(File::open("/").unwrap());
    let ran = sandbox.command.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(125), "{said}");
    assert!(said.contains("a standard descriptor leads out (0)"), "{said}");
}

#[test]
fn a_list_is_made_of_access_logs() {
    let folder = Folder::new();
    let line = |name: &str, to: &str| {
        let line = serde_json::json!({
            "event": "end", "outcome": "spliced", "sni": name, "destination": to,
            "bytes_to_client": 2, "bytes_to_upstream": 1, "rule": "any",
        });
        format!("{line}\n")
    };
    let first = line("b.test", "192.0.2.1:443") + &line("a.test", "192.0.2.1:8443");
    folder.write("first.log", first + "no line\n");
    folder.write("second.log", line("b.test", "192.0.2.1:443"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_eyelet"));
    command.args(["learn", "first.log", "second.log"]).current_dir(folder.path());
    let said = command.output().unwrap();
    let (list, left_out) = (String::from_utf8(said.stdout).unwrap(), said.stderr);
    let entries: Vec<&str> = list.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(entries, ["a.test:8443", "b.test"], "{list}");
    assert!(list.contains("connections: 2, bytes received: 4"), "{list}");
    assert_eq!(
        String::from_utf8_lossy(&left_out),
        "eyelet: first.log: lines left out: 1, no lines of an access log in JSON\n"
    );
    let said = output(Command::new(env!("CARGO_BIN_EXE_eyelet")).args(["learn", "/no/such"]));
    assert_eq!(said.status.code(), Some(1), "{}", said.text);
}

#[test]
fn what_forbids_a_sandbox_is_named_and_nothing_is_run() {
    if !is_possible() || !need("unshare") {
        return;
    }
    let folder = Folder::new();
    folder.write("allow.txt", "app.test");
    let run = "exec \"$0\" sandbox --allow allow.txt -- echo it runs";
    for (forbids, said) in [
        ("echo 0 >/proc/sys/user/max_user_namespaces", "user.max_user_namespaces is 0. As root:"),
        ("mount -t tmpfs none /proc/fs", "systempaths=unconfined"),
    ] {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
        command.arg(format!("{forbids} && {run}")).arg(env!("CARGO_BIN_EXE_eyelet"));
        let ran = output(command.current_dir(folder.path()));
        assert_eq!(ran.status.code(), Some(125), "{forbids}: {}", ran.text);
        assert!(ran.text.contains(said) && !ran.text.contains("it runs"), "{}", ran.text);
    }
}

#[test]
fn a_crowd_of_connections_stops_nobody() {
    if !is_possible() || !need("python3") {
        return;
    }
    let (folder, app) = (Folder::new(), Upstream::http());
    let port = app.address.port();
    let script = format!(
        "import socket, urllib.request\n\
         held = [socket.create_connection((\"app.test\", {port})) for _ in range(600)]\n\
         print(urllib.request.urlopen(\"http://app.test:{port}/one\").read())"
    );
    let sandbox = Sandbox::new(&folder, &HOSTS, &format!("app.test:{port}"));
    let ran = sandbox.run(&["python3", "-c", &script]);
    assert!(ran.status.success() && ran.text.contains("GET /one HTTP"), "{}", ran.text);
}
