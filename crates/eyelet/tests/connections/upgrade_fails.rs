//! Upgrades that fail: a new program that cannot serve, hangs or is killed, and one that another
//! user starts. The edge that runs must go on, and no connection may have two owners.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Pid, Signal, Uid, kill_process};
use rustix::thread::set_thread_res_uid;

use crate::support::client::{TLS13, echo};
use crate::support::program::skip;
use crate::support::web::{head, hear};
use crate::support::{Talk, Tls, Upstream, output, until};
use crate::upgrade::{Scene, expect_echo, pid_in};

/// A program that does nothing for longer than the tests run.
fn hanging(scene: &Scene) -> std::path::PathBuf {
    let script = "#!/bin/sh\necho hangs $$ >&2\nexec sleep 1000\n";
    scene.pki.folder.write_program("hangs", script)
}

/// The process that the log names behind `text`.
fn pid_behind(scene: &Scene, text: &str) -> Pid {
    until(text, || {
        let log = scene.edge.log();
        let (_, rest) = log.split_once(text)?;
        Pid::from_raw(rest.split_once([' ', '\n'])?.0.parse().ok()?)
    })
}

/// Waits until a new process has some of the connections. It may have them all by then.
fn some_moved(process: Pid) {
    let folder = format!("/proc/{}/fd", process.as_raw_nonzero());
    let count = || std::fs::read_dir(&folder).map_or(usize::MAX, Iterator::count);
    until("connections in the new process", || (count() > 150).then_some(()));
}

/// So many connections at rest.
fn hold(scene: &Scene, count: usize) -> Vec<Tls> {
    let mut held: Vec<Tls> = (0..count).map(|_| scene.tcp(TLS13)).collect();
    held.iter_mut().for_each(|tls| echo(tls, b"before"));
    held
}

/// Returns the number of connections that nobody serves any more.
fn lost(held: &mut [Tls]) -> usize {
    let is_lost = |tls: &mut Tls| {
        tls.write_all(b"after").and_then(|()| tls.flush()).is_err()
            || tls.read_exact(&mut [0; 5]).is_err()
    };
    held.iter_mut().filter_map(|tls| is_lost(tls).then_some(())).count()
}

#[test]
fn a_program_that_cannot_serve_changes_nothing() {
    let mut scene = Scene::new();
    let (mut tls, mut spliced) = (scene.tcp(TLS13), scene.spliced());
    let missing = scene.fails(&["--binary", "/nowhere/eyelet"]);
    assert!(missing.text.contains("cannot start \"/nowhere/eyelet\""), "{}", missing.text);
    let wrong = scene.fails(&["--binary", "/bin/false"]);
    let ended = "/bin/false ended before it served (is it Eyelet?); the old process serves on";
    assert!(wrong.text.contains(ended), "{}", wrong.text);
    let good = std::fs::read_to_string(&scene.file).unwrap();
    scene.pki.folder.write("edge.toml", good.replace("sni =", "snu ="));
    let mistakes = scene.fails(&[]);
    assert_eq!(mistakes.status.code(), Some(2), "{}", mistakes.text);
    assert!(mistakes.text.contains("edge.toml:") && mistakes.text.contains("snu"), "{mistakes:?}");
    // A port that is taken.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("[[listener]]\naddress = \"{}\"\n", taken.local_addr().unwrap());
    scene.write(&taken);
    let refused = scene.fails(&[]);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.text);
    assert!(refused.text.contains("cannot listen on"), "{}", refused.text);
    for failed in [missing, wrong, refused] {
        assert_eq!(failed.status.code(), Some(1), "{}", failed.text);
        assert!(failed.text.contains("the old process serves on"), "{}", failed.text);
    }
    echo(&mut tls, b"still here");
    expect_echo(&mut spliced, b"still here");
    echo(&mut scene.tcp(TLS13), b"new");
    scene.pki.folder.write("edge.toml", good);
    scene.upgrade();
    echo(&mut tls, b"moved");
}

/// A wrapper could be killed, and the process behind it would live on with connections that this
/// one takes back.
#[test]
fn a_wrapper_must_exec_the_program() {
    let mut scene = Scene::new();
    let mut tls = scene.tcp(TLS13);
    let program = env!("CARGO_BIN_EXE_eyelet");
    let wrapper = |begin: &str| {
        let script = format!("#!/bin/sh\n{begin} '{program}' \"$@\"\nexit $?\n");
        let script = scene.pki.folder.write_program("wrapper", script);
        script.to_str().unwrap().to_owned()
    };
    let path = wrapper("");
    let said = scene.fails(&["--binary", &path]);
    assert_eq!(said.status.code(), Some(1), "{}", said.text);
    assert!(said.text.contains("must be exec'ed by its wrapper"), "{}", said.text);
    assert!(said.text.contains("the old process serves on"), "{}", said.text);
    echo(&mut tls, b"still here");
    wrapper("exec");
    let said = output(scene.command("upgrade").args(["--binary", &path]));
    assert!(said.status.success(), "{}", said.text);
    scene.later.push(pid_in(&said));
    echo(&mut tls, b"moved");
}

#[test]
fn one_upgrade_runs_at_a_time_and_no_reload() {
    let mut scene = Scene::new();
    let mut tls = scene.tcp(TLS13);
    let program = hanging(&scene);
    let mut first = Talk::start(scene.command("upgrade").arg("--binary").arg(&program));
    let child = pid_behind(&scene, "hangs ");
    for command in ["reload", "upgrade"] {
        let said = output(&mut scene.command(command));
        assert_eq!(said.status.code(), Some(1), "{}", said.text);
        assert!(said.text.contains("an upgrade is under way"), "{}", said.text);
    }
    scene.edge.signal(Signal::HUP);
    scene.edge.wait_log("reload: an upgrade is under way: nothing has changed");
    echo(&mut tls, b"meanwhile");
    kill_process(child, Signal::KILL).unwrap();
    first.hang_up();
    let said = first.finish();
    assert_eq!(said.status.code(), Some(1), "{}", said.text);
    assert_eq!(output(&mut scene.command("reload")).status.code(), Some(0));
    scene.upgrade();
    echo(&mut tls, b"moved");
}

#[test]
fn a_process_that_is_stopped_ends_its_upgrade() {
    let mut scene = Scene::new();
    let program = hanging(&scene);
    let _upgrade = Talk::start(scene.command("upgrade").arg("--binary").arg(&program));
    let child = pid_behind(&scene, "hangs ");
    scene.edge.signal(Signal::TERM);
    assert!(scene.edge.wait_exit_alone().success());
    // It was killed, and is nobody's child any more.
    until("the new process to end", || kill_process(child, Signal::STOP).is_err().then_some(()));
}

/// Connections that were committed are lost with the new process. All others go on.
#[test]
fn a_process_that_is_killed_takes_only_its_own_connections_along() {
    const HELD: usize = 500;
    let scene = Scene::new();
    let mut held = hold(&scene, HELD);
    let mut upgrade = Talk::start(&mut scene.command("upgrade"));
    upgrade.hang_up();
    let child = pid_behind(&scene, "upgrade: process ");
    some_moved(child);
    kill_process(child, Signal::KILL).unwrap();
    let said = upgrade.finish();
    let lost = lost(&mut held);
    if said.status.success() {
        // All had moved by then.
        assert_eq!(lost, HELD);
        return;
    }
    assert!(said.text.contains("the old process serves on"), "{}", said.text);
    let log = scene.edge.log();
    println!("{lost} of {HELD} were lost\n{log}");
    echo(&mut scene.tcp(TLS13), b"new");
    assert!(lost < HELD, "{log}");
}

/// The new process keeps what it has received, and serves on.
#[test]
fn the_earlier_process_may_be_killed_in_the_middle() {
    const HELD: usize = 500;
    let mut scene = Scene::new();
    let mut held = hold(&scene, HELD);
    let mut upgrade = Talk::start(&mut scene.command("upgrade"));
    upgrade.hang_up();
    let child = pid_behind(&scene, "upgrade: process ");
    scene.later.push(child);
    some_moved(child);
    scene.edge.kill();
    upgrade.finish();
    let kept = HELD - lost(&mut held);
    println!("{kept} of {HELD} had moved");
    echo(&mut scene.tcp(TLS13), b"new");
    let moved = scene.upgrade();
    assert!(moved >= kept, "{moved} {kept}\n{}", scene.edge.log());
}

/// The bytes of a user that is neither root nor the process's own are not read.
#[test]
fn another_user_hands_nothing_over() {
    if rustix::process::geteuid().as_raw() != 0 {
        return skip("only root can start a program as another user");
    }
    let scene = Scene::new();
    // The kernel notes the effective user of the thread that makes the pair.
    let pair = std::thread::spawn(|| {
        let (root, other) = (Uid::ROOT, Uid::from_raw(65_534));
        set_thread_res_uid(root, other, root).unwrap();
        UnixStream::pair().unwrap()
    });
    let (ours, theirs) = pair.join().unwrap();
    let mut command = scene.command("serve");
    command.arg("--handover").stdin(OwnedFd::from(theirs));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let said = command.spawn().unwrap().wait_with_output().unwrap();
    let text = String::from_utf8(said.stderr).unwrap();
    assert_eq!(said.status.code(), Some(1), "{text}");
    assert!(text.contains("user 65534 opened the channel"), "{text}");
    drop(ours);
}

/// A client whose request has reached the upstream, and the upstream's end.
/// A request that stops in the middle of a chunk's first line. Such a one cannot move.
fn post(path: &str) -> Vec<u8> {
    let fields = "Host: app.test\r\nTransfer-Encoding: chunked";
    format!("POST {path} HTTP/1.1\r\n{fields}\r\n\r\n5").into_bytes()
}

fn begin_request(scene: &Scene) -> (Tls, TcpStream) {
    let mut client = scene.http();
    client.write_all(&post("/slow")).unwrap();
    client.flush().unwrap();
    let mut slow = scene.http.take();
    head(&mut slow);
    (client, slow)
}

/// The connections that have not moved by then are drained.
#[test]
fn a_signal_while_connections_move_drains_the_rest() {
    let more = "workers = 1\n[limits]\ndrain_timeout = \"10m\"\n";
    let mut scene = Scene::to(Upstream::by_hand(), more);
    let (mut client, mut slow) = begin_request(&scene);
    assert_eq!(scene.upgrade(), 0, "the connection is busy");
    scene.edge.signal(Signal::TERM);
    scene.edge.wait_log("SIGTERM: draining");
    slow.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nover").unwrap();
    assert_eq!(hear(&mut client, "GET").text(), "over");
    assert!(scene.edge.wait_exit_alone().success());
    echo(&mut scene.tcp(TLS13), b"new");
}

/// Upstreams are checked by the process that serves, and not by one that it has replaced.
#[test]
fn an_earlier_process_makes_no_checks_of_upstreams() {
    let (checks, answered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, answers) = (checks.clone(), answered.clone());
    let app = Upstream::serve(move |mut stream| {
        while stream.peek(&mut [0]).is_ok_and(|length| length > 0) {
            let asked = head(&mut stream);
            count.fetch_add(usize::from(asked.starts_with("GET /healthz")), Ordering::SeqCst);
            if asked.starts_with("POST /slow") {
                answers.fetch_add(1, Ordering::SeqCst);
                // Until the client ends it.
                let _ = stream.read(&mut [0]);
                return;
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let mut scene = Scene::to(app, "workers = 1\n[limits]\ndrain_timeout = \"1s\"\n");
    let text = std::fs::read_to_string(&scene.file).unwrap();
    // The last rule is that of HTTP.
    scene.pki.folder.write("edge.toml", text.clone() + "upstream_check = \"/healthz\"\n");
    let said = output(&mut scene.command("reload"));
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
    let more = |than: usize| {
        until("checks", || (checks.load(Ordering::SeqCst) >= than).then_some(()));
    };
    more(1);
    let mut client = scene.http();
    client.write_all(&post("/slow")).unwrap();
    client.flush().unwrap();
    until("the request", || (answered.load(Ordering::SeqCst) > 0).then_some(()));
    // The new process has no checks to make.
    scene.pki.folder.write("edge.toml", text);
    assert_eq!(scene.upgrade(), 0, "the connection is busy");
    until("no check for two intervals", || {
        let before = checks.load(Ordering::SeqCst);
        std::thread::sleep(2 * std::time::Duration::from_secs(2));
        (checks.load(Ordering::SeqCst) == before).then_some(())
    });
    assert!(scene.edge.is_running(), "it serves its client");
}

/// The order to drain is not forgotten when the batch on its way comes back.
#[test]
fn a_signal_before_the_new_process_dies_ends_the_earlier_one() {
    const HELD: usize = 300;
    until("a signal in the middle of an upgrade", || {
        let mut scene = Scene::with("workers = 2\n[limits]\ndrain_timeout = \"2s\"\n");
        let _held = hold(&scene, HELD);
        let _upgrade = Talk::start(&mut scene.command("upgrade"));
        let child = pid_behind(&scene, "upgrade: process ");
        kill_process(child, Signal::STOP).unwrap();
        scene.edge.signal(Signal::TERM);
        // On a machine that stands still all may have moved by then, and the earlier one has ended.
        let is_heard = until("the signal to be heard", || {
            let is_heard = scene.edge.log().contains("SIGTERM: draining");
            (is_heard || !scene.edge.is_running()).then_some(is_heard)
        });
        kill_process(child, Signal::KILL).unwrap();
        assert!(scene.edge.wait_exit_alone().success(), "{}", scene.edge.log());
        is_heard.then_some(())
    });
}
