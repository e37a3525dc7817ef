//! Several `eyelet run` and `eyelet proxy` of one user share a port, by a process that no Ctrl-C
//! of theirs ends.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::run::program;
use crate::support::program::skip;
use crate::support::{Folder, Machine, SOON, Said, Talk, need, output, until};

/// A network of its own, where port 8443 is free, and a user's folders.
pub struct Network {
    holder: Talk,
    pub folder: Folder,
    /// The user, if it is not root.
    user: Option<&'static str>,
}

impl Network {
    /// `None`, and says so, where that cannot be had.
    pub fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip("network namespaces need root");
            return None;
        }
        let needed = ["ip", "unshare", "nsenter", "setpriv", "node", "curl", "git"];
        if !needed.into_iter().all(need) {
            return None;
        }
        let mut command = Command::new("unshare");
        let script = "ip link set lo up && echo ready && exec sleep 600";
        let mut holder = Talk::start(command.args(["--net", "sh", "-c", script]));
        holder.hear("ready");
        Some(Self { holder, folder: Folder::new(), user: None })
    }

    /// The option that leads `nsenter` there.
    pub fn path(&self) -> String {
        format!("--net=/proc/{}/ns/net", self.holder.pid().as_raw_nonzero())
    }

    pub fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(self.path());
        command.args(["setpriv", "--bounding-set=-net_bind_service"]);
        if let Some(user) = self.user {
            command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
        }
        command.arg(program).env("XDG_RUNTIME_DIR", self.folder.path());
        command.env("HOME", self.folder.path());
        command
    }

    pub fn eyelet(&self, words: &str) -> Command {
        let mut command = self.inside(env!("CARGO_BIN_EXE_eyelet"));
        let mut words = words.split(' ');
        let first = words.next().unwrap();
        command.arg(first);
        if ["run", "proxy"].contains(&first) {
            command.arg("--ca-folder").arg(self.folder.path().join("authority"));
        }
        command.args(words);
        command
    }

    /// An `eyelet run` of an application that answers with its process, in this folder.
    pub fn run(&self, options: &str, folder: &str) -> Talk {
        let folder = self.folder.path().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let words = format!("run {options}-- node {} port", program("app.js"));
        let mut talk = Talk::start(self.eyelet(&words).current_dir(folder));
        talk.hear("the command listens on");
        talk
    }

    fn list(&self) -> String {
        output(&mut self.eyelet("list")).text
    }

    pub fn get(&self, url: &str) -> Said {
        let mut curl = self.inside("curl");
        curl.args(["-sS", "--max-time", "50", "--cacert"]);
        curl.arg(self.folder.path().join("authority/ca.pem"));
        output(curl.args(["--resolve", "*:8443:127.0.0.1", url]))
    }

    /// The socket of the edge, if there is one.
    fn socket(&self) -> Option<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path().join("eyelet")).unwrap();
        let mut paths = entries.map(|entry| entry.unwrap().path());
        paths.find(|path| path.extension().is_some_and(|end| end == "sock"))
    }

    /// The process of the edge, as its greeting has it.
    fn edge(&self) -> Pid {
        let mut stream = UnixStream::connect(self.socket().unwrap()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut said = [0; 512];
        let length = stream.read(&mut said).unwrap();
        let greeting: serde_json::Value = serde_json::from_slice(&said[..length]).unwrap();
        Pid::from_raw(greeting["pid"].as_i64().unwrap().try_into().unwrap()).unwrap()
    }
}

fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// The process that a run has started.
pub fn application(run: &Talk) -> String {
    let said = run.said();
    let rest = said.split_once("(process ").unwrap().1;
    format!("pid {} ", rest.split(')').next().unwrap())
}

#[test]
fn two_projects_have_one_port_and_the_end_of_one_is_not_that_of_the_other() {
    let Some(network) = Network::new() else { return };
    let first = network.run("", "shop");
    assert!(first.said().contains("serving https://shop.localhost:8443/\n"), "{}", first.said());
    let second = network.run("--name API ", "api");
    assert!(second.said().contains("serving https://api.localhost:8443/\n"), "{}", second.said());
    let edge = network.edge();
    for (name, run) in [("shop", &first), ("api", &second), ("shop", &first)] {
        let answer = network.get(&format!("https://{name}.localhost:8443/"));
        assert!(answer.text.starts_with(&application(run)), "{name}: {}", answer.text);
    }
    // The oldest has clients without a name.
    let nameless = network.get("https://127.0.0.1:8443/");
    assert!(nameless.text.starts_with(&application(&first)), "{}", nameless.text);
    let listed = network.list();
    let shop = network.folder.path().join("shop");
    let expected = format!("  process {}  {}\n", first.pid().as_raw_nonzero(), shop.display());
    assert!(listed.starts_with("https://shop.localhost:8443/  127.0.0.1:"), "{listed}");
    assert!(listed.contains(&expected) && listed.lines().count() == 2, "{listed}");
    // Ctrl-C, as a terminal sends it to a group of processes.
    first.signal(Signal::INT);
    let said = first.finish();
    // As the application ends by it.
    assert_eq!(said.status.code(), Some(7), "{}", said.text);
    // Who wants it asks by SIGUSR1.
    assert!(!said.text.contains("memory of TLS"), "{}", said.text);
    let gone = network.get("https://shop.localhost:8443/");
    assert!(!gone.status.success() && gone.text.contains("unrecognized name"), "{}", gone.text);
    let answer = network.get("https://api.localhost:8443/");
    assert!(answer.text.starts_with(&application(&second)), "{}", answer.text);
    let nameless = network.get("https://127.0.0.1:8443/");
    assert!(nameless.text.starts_with(&application(&second)), "{}", nameless.text);
    assert_eq!(network.edge(), edge);
    second.signal(Signal::TERM);
    assert_eq!(second.finish().status.code(), Some(143));
    // Its port is free when the last command has ended.
    assert_eq!(network.socket(), None);
    let bind = "require('net').createServer().listen(8443, '127.0.0.1', () => process.exit(0))";
    assert!(output(network.inside("node").args(["-e", bind])).status.success());
    until("the end of the edge", || (!is_alive(edge)).then_some(()));
    let again = network.run("", "shop");
    assert!(again.said().contains("serving https://shop.localhost:8443/\n"), "{}", again.said());
}

/// A project that has left is reached no more, by an open connection neither.
#[test]
fn the_connections_of_a_project_end_with_it() {
    let Some(network) = Network::new() else { return };
    let mut echo = network.inside("node");
    let serves = "require('net').createServer(s => s.pipe(s)).listen(3000, '127.0.0.1', \
        () => console.log('ready'))";
    let mut echo = Talk::start(echo.args(["-e", serves]));
    echo.hear("ready");
    let mut proxy = Talk::start(&mut network.eyelet("proxy db.localhost=tcp://127.0.0.1:3000"));
    proxy.hear("://db.localhost:8443/\n");
    let other = network.run("", "shop");
    let connects = "const s = require('tls').connect({ port: 8443, host: '127.0.0.1', \
        servername: 'db.localhost', rejectUnauthorized: false }, () => s.write('a')); \
        s.on('data', data => console.log('heard ' + data)); \
        s.on('error', () => {}); s.on('close', () => { console.log('closed'); process.exit(0); });";
    let mut client = Talk::start(network.inside("node").args(["-e", connects]));
    client.hear("heard a");
    proxy.signal(Signal::TERM);
    proxy.finish();
    client.hear("closed");
    let answer = network.get("https://shop.localhost:8443/");
    assert!(answer.text.starts_with(&application(&other)), "{}", answer.text);
}

/// A failure is said where its application was started, once a second with a count.
#[test]
fn a_failed_request_is_said_in_the_terminal_of_its_project() {
    let Some(network) = Network::new() else { return };
    let (mut shop, api) = (network.run("", "shop"), network.run("--name api.localhost ", "api"));
    let answer = network.get("https://shop.localhost:8443/crash");
    assert!(!answer.text.starts_with("pid "), "{}", answer.text);
    shop.hear("eyelet: shop.localhost: GET /crash: 502: ");
    let said = shop.said();
    let line = said.lines().find(|line| line.contains("GET /crash")).unwrap();
    assert!(line.contains(": 502: upstream"), "{line}");
    // A request that its application answers is none, whatever the status.
    let answer = network.get("https://api.localhost:8443/");
    assert!(answer.text.starts_with(&application(&api)), "{}", answer.text);
    assert!(!api.said().contains("GET /"), "{}", api.said());
}

/// Those that start at the same time find the same edge.
#[test]
fn many_that_start_at_once_share_one_edge() {
    let Some(network) = Network::new() else { return };
    let start = |number| {
        let words = format!("proxy n{number}.localhost=127.0.0.1:1");
        Talk::start(&mut network.eyelet(&words))
    };
    let mut all: Vec<Talk> = (0..8).map(start).collect();
    for (number, talk) in all.iter_mut().enumerate() {
        talk.hear(&format!("serving https://n{number}.localhost:8443/\n"));
        talk.hear("nothing listens at 127.0.0.1:1");
    }
    assert_eq!(network.list().lines().count(), 8, "{}", network.list());
    // Each leaves, however it ends.
    for talk in all.drain(1..) {
        talk.signal(Signal::KILL);
    }
    until("their end", || (network.list().lines().count() == 1).then_some(()));
    assert!(network.list().starts_with("https://n0.localhost:8443/"), "{}", network.list());
}

#[test]
fn a_name_that_is_taken_says_by_whom_and_a_worktree_has_its_branch() {
    let Some(network) = Network::new() else { return };
    let script = "git init -q shop && cd shop && git -c user.name=a -c user.email=a@a.example \
        commit -q --allow-empty -m a && git worktree add -q ../one -b a/b && \
        git worktree add -q ../two -b a-b";
    let made = output(network.inside("sh").args(["-c", script]).current_dir(network.folder.path()));
    assert!(made.status.success(), "{}", made.text);
    let main = network.run("", "shop");
    assert!(main.said().contains("serving https://shop.localhost:8443/\n"), "{}", main.said());
    let branch = network.run("", "one");
    assert!(branch.said().contains("serving https://a-b.shop.localhost:8443/\n"));
    let two = network.folder.path().join("two");
    let refused = output(network.eyelet("run -- sleep 600").current_dir(two));
    let one = network.folder.path().join("one");
    let expected = format!(
        "eyelet: a-b.shop.localhost is taken by process {} in {}: choose another name (--name), or \
         end it with `eyelet stop a-b.shop.localhost`\n",
        branch.pid().as_raw_nonzero(),
        one.display()
    );
    assert_eq!((refused.text, refused.status.code()), (expected, Some(1)));
}

#[test]
fn a_proxy_in_the_background_and_a_run_end_by_stop() {
    let Some(network) = Network::new() else { return };
    let mut upstream = network.inside("node");
    let upstream = Talk::start(upstream.args([&*program("app.js"), "port"]).env("PORT", "3000"));
    let words = "proxy --background back.localhost=127.0.0.1:3000";
    let started = output(&mut network.eyelet(words));
    assert!(started.status.success(), "{}", started.text);
    assert!(started.text.contains("serving https://back.localhost:8443/\n"), "{}", started.text);
    let answer = until("its answer", || {
        let answer = network.get("https://back.localhost:8443/");
        answer.status.success().then_some(answer)
    });
    assert!(answer.text.starts_with("pid "), "{}", answer.text);
    assert!(network.list().contains("  127.0.0.1:3000  in the background  "), "{}", network.list());
    let again = output(&mut network.eyelet(words));
    assert!(again.text.contains("`eyelet stop back.localhost` ends it\n"), "{}", again.text);
    let nowhere = output(&mut network.eyelet("proxy --background late.localhost=127.0.0.1:1"));
    assert!(nowhere.status.success(), "{}", nowhere.text);
    assert!(nowhere.text.contains("eyelet: late.localhost: nothing listens at 127.0.0.1:1 ("));
    assert!(output(&mut network.eyelet("stop late")).status.success());
    let edge = network.edge();
    let run = network.run("", "shop");
    let log = network.folder.path().join("own.log");
    let mut own =
        Talk::start(&mut network.eyelet(&format!("run --log {} -- sleep 600", log.display())));
    own.hear("8443 serves your other projects; with --log this one has a port of its own: 84");
    drop(own);
    let stopped = output(&mut network.eyelet("stop shop.localhost"));
    assert!(stopped.status.success(), "{}", stopped.text);
    let said = run.finish();
    assert!(said.text.contains("eyelet: `eyelet stop` ends the command\n"), "{}", said.text);
    assert_eq!(said.status.code(), Some(143));
    let missing = output(&mut network.eyelet("stop shop.localhost"));
    assert!(missing.text.starts_with("eyelet: no project has the name shop.localhost"));
    assert_eq!(missing.status.code(), Some(1));
    assert!(output(&mut network.eyelet("stop back")).status.success());
    until("the end of the edge", || (!is_alive(edge)).then_some(()));
    let listed = network.list();
    assert_eq!(listed, "eyelet: no project of this user shares a port now\n");
    drop(upstream);
}

/// Options that an edge has for all its names are for an edge of its own.
#[test]
fn options_of_an_edge_keep_a_command_alone() {
    let Some(network) = Network::new() else { return };
    let mut alone =
        Talk::start(&mut network.eyelet("proxy --listen 127.0.0.1:0 a.test=127.0.0.1:1"));
    alone.hear("nothing listens at");
    assert!(network.list().contains("no project of this user shares a port now"));
    let refused = output(&mut network.eyelet("proxy --background --listen 127.0.0.1:0 a.test=b:1"));
    assert_eq!(refused.status.code(), Some(2), "{}", refused.text);
    drop(alone);
    // One that cannot have a socket says where.
    let file = network.folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut alone = network.eyelet("proxy a.test=127.0.0.1:1");
    let mut alone = Talk::start(alone.env("XDG_RUNTIME_DIR", &file));
    alone.hear(&format!("other projects get other ports: {}/eyelet: Not a dir", file.display()));
    drop(alone);
    // What a container begins with has nothing that goes on without it.
    let mut first = network.inside("unshare");
    first.args(["--pid", "--fork", env!("CARGO_BIN_EXE_eyelet"), "proxy", "--background"]);
    let refused = output(
        first
            .args(["--ca-folder"])
            .arg(network.folder.path().join("authority"))
            .arg("a.localhost=127.0.0.1:1"),
    );
    assert!(refused.text.contains("leave --background out"), "{}", refused.text);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.text);
}

#[test]
fn an_edge_that_is_killed_ends_its_projects_and_they_say_so() {
    let Some(network) = Network::new() else { return };
    let run = network.run("", "shop");
    let application = application(&run);
    kill_process(network.edge(), Signal::KILL).unwrap();
    let said = run.finish();
    assert!(said.text.contains("eyelet: the shared edge has ended: start this command again\n"));
    assert_eq!(said.status.code(), Some(1));
    let pid: i32 = application.trim_start_matches("pid ").trim().parse().unwrap();
    assert!(!is_alive(Pid::from_raw(pid).unwrap()));
    // Its socket is still there, and is replaced.
    assert!(network.socket().is_some());
    let again = network.run("", "shop");
    assert!(again.said().contains("serving https://shop.localhost:8443/\n"), "{}", again.said());
}

#[test]
fn an_edge_of_another_version_is_named_with_what_to_do() {
    let Some(network) = Network::new() else { return };
    let run = network.run("", "shop");
    let socket = network.socket().unwrap();
    run.signal(Signal::TERM);
    run.finish();
    let listener = UnixListener::bind(&socket).unwrap();
    let old = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"{\"protocol\":0,\"version\":\"0.1.9\",\"pid\":77}\n").unwrap();
            let _ = stream.read(&mut [0; 64]);
        }
    });
    let refused = output(&mut network.eyelet("proxy a.localhost=127.0.0.1:1"));
    let expected = "is Eyelet 0.1.9 (process 77), and this is ";
    assert!(refused.text.contains(expected), "{}", refused.text);
    assert!(refused.text.contains("`kill 77`"), "{}", refused.text);
    let listed = output(&mut network.eyelet("list"));
    assert!(listed.text.contains("process 77 is a shared edge of Eyelet 0.1.9"), "{}", listed.text);
    assert_eq!(listed.status.code(), Some(1));
    old.join().unwrap();
}

/// An edge that was stopped is named, with what to do, and nobody waits for it for long.
#[test]
fn an_edge_that_does_not_answer_is_named_with_what_to_do() {
    let Some(network) = Network::new() else { return };
    let _run = network.run("", "shop");
    let edge = network.edge();
    kill_process(edge, Signal::STOP).unwrap();
    let pid = edge.as_raw_nonzero();
    for words in ["list", "stop shop"] {
        let said = output(&mut network.eyelet(words));
        let expected = format!("the shared edge (process {pid}) has not answered for 3 s");
        assert!(said.text.contains(&expected), "{}", said.text);
        assert!(said.text.contains(&format!("`kill -CONT {pid}` has it go on")), "{}", said.text);
        assert_eq!(said.status.code(), Some(1), "{words}");
    }
    kill_process(edge, Signal::CONT).unwrap();
    assert!(network.list().contains("https://shop.localhost:8443/"), "{}", network.list());
}

/// Not even root: an edge serves one user.
#[test]
fn another_user_and_bad_messages_are_not_heard() {
    let Some(mut network) = Network::new() else { return };
    Machine::give(network.folder.path());
    network.user = Some("64999");
    let mut proxy = Talk::start(&mut network.eyelet("proxy a.localhost=127.0.0.1:1"));
    proxy.hear("nothing listens at");
    let socket = network.socket().unwrap();
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    assert_eq!(stream.read(&mut [0; 64]).unwrap(), 0, "it is closed without a greeting");
    let send = "const s = require('net').connect(process.argv[1]); let said = ''; \
        s.on('data', data => { said += data; }); s.on('error', () => {}); \
        s.on('close', () => { console.log(said); process.exit(0); }); \
        s.end(process.argv[2] + '\\n');";
    for message in ["", "List", "{\"Join\":{}}", "\"LeadTo\"", "{\"LeadTo\":\"x\\ny\"}", "[[[["] {
        let mut node = network.inside("node");
        let said = output(node.args(["-e", send]).arg(&socket).arg(message));
        assert!(said.text.starts_with("{\"protocol\":1,"), "{message}: {}", said.text);
    }
    assert!(network.list().starts_with("https://a.localhost:8443/  127.0.0.1:1  process "));
}
