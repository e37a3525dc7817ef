//! The names on the list are reached, and nothing else.

use std::time::Duration;

use crate::ground::{Sandbox, is_possible, report};
use crate::support::pki::Kind;
use crate::support::program::skip;
use crate::support::{Folder, Pki, Upstream, need};

const HOSTS: [(&str, &str); 2] = [("app.test", "127.0.0.1"), ("other.test", "127.0.0.1")];
/// One of several tries that are refused takes less, by curl's own clock, even where much else
/// runs. A client that waits for an answer waits for some seconds in each.
const REFUSED_WITHIN_S: f64 = 1.0;
/// The time that a program may take between its connection and its hello on a machine under load:
/// more than an edge that strangers reach gives them.
const STARVED: Duration = Duration::from_secs(6);

#[test]
fn a_listed_name_is_reached_by_tls_and_http_at_its_port() {
    if !is_possible() || !need("curl") {
        return;
    }
    let pki = Pki::new();
    let tls = Upstream::https(pki.server("app", &["app.test"], Kind::P256));
    let http = Upstream::http();
    let list = format!("app.test:{}\napp.test:{}\n", tls.address.port(), http.address.port());
    let sandbox = Sandbox::new(&pki.folder, &HOSTS, &list).option("--report", "report.json");
    let said = sandbox.script(&format!(
        "curl -sS --cacert ca.pem https://app.test:{0}/one && curl -sS http://app.test:{1}/two; \
         curl -sS --cacert ca.pem https://other.test:{0}/; echo status $?; exit 7",
        tls.address.port(),
        http.address.port()
    ));
    assert_eq!(said.status.code(), Some(7), "{}", said.text);
    for part in
        ["GET /one HTTP", "GET /two HTTP", "status 6", "refused: other.test: not on the list"]
    {
        assert!(said.text.contains(part), "{part}: {}", said.text);
    }
    let report = report(pki.folder.path());
    assert_eq!(report["status"], 7, "{report}");
    assert_eq!(report["connections"], 2, "{report}");
    assert_eq!(report["names"][0]["name"], "app.test", "{report}");
    assert_eq!(report["refused"][0]["name"], "other.test", "{report}");
}

#[test]
fn an_ordinary_user_confines_a_command_as_well() {
    if !is_possible() || !need("curl") || !need("setpriv") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip("this run is by an ordinary user, as are all of its tests");
    }
    let pki = Pki::new();
    let app = Upstream::https(pki.server("app", &["app.test"], Kind::P256));
    let port = app.address.port();
    let mut sandbox = Sandbox::as_nobody(&pki.folder, &HOSTS, &format!("app.test:{port}\n"));
    sandbox = sandbox.flag("--json");
    let said = sandbox.script(&format!(
        "curl -sS --cacert ca.pem https://app.test:{port}/one; id -u; cat allow.txt; ls /run; \
         grep -h CapEff /proc/self/status; ls /proc | grep -c '^[0-9]'",
    ));
    assert!(said.status.success(), "{}", said.text);
    for part in ["GET /one HTTP", "\n65534\n", "CapEff:\t0000000000000000"] {
        assert!(said.text.contains(part), "{part}: {}", said.text);
    }
}

#[test]
fn a_profile_of_a_file_is_a_list() {
    if !is_possible() || !need("curl") {
        return;
    }
    let (folder, app) = (Folder::new(), Upstream::http());
    let port = app.address.port();
    let text = format!(
        "[sandbox.one]\nallow = [\"app.test:{port}\"]\nallow_private = \"127.0.0.1/32\"\n\
         [sandbox.two]\nallow = \"other.test\"\n"
    );
    folder.write("edge.toml", text);
    for (profile, status) in [("one", 0), ("two", 6), ("three", 125)] {
        let sandbox = Sandbox::without_list(&folder, &HOSTS).option("--config", "edge.toml");
        let sandbox = sandbox.option("--profile", profile);
        let said =
            sandbox.script(&format!("test -s edge.toml || curl -sS http://app.test:{port}/"));
        assert_eq!(said.status.code(), Some(status), "{profile}: {}", said.text);
    }
}

#[test]
fn profiles_of_a_file_confine_two_commands_at_once() {
    if !is_possible() || !need("curl") {
        return;
    }
    let (folder, app) = (Folder::new(), Upstream::http());
    let port = app.address.port();
    let profile = |host: &str| {
        format!("[sandbox.{host}]\nallow = \"{host}.test:{port}\"\nallow_private = \"127.0.0.1\"\n")
    };
    folder.write("edge.toml", profile("app") + &profile("other"));
    let script = format!(
        "echo ready; cat; for host in app other; do \
         curl -sS -o /dev/null http://$host.test:{port}/ && echo reached $host; done"
    );
    let start = |profile: &str| {
        let sandbox = Sandbox::without_list(&folder, &HOSTS).option("--config", "edge.toml");
        sandbox.option("--profile", profile).start(&["sh", "-c", &script])
    };
    let mut both = ["app", "other"].map(start);
    both.iter_mut().for_each(|run| run.hear("ready"));
    both.iter_mut().for_each(|run| run.hang_up());
    for (run, (own, others)) in both.into_iter().zip([("app", "other"), ("other", "app")]) {
        let ran = run.finish();
        assert!(ran.text.contains(&format!("reached {own}\n")), "{}", ran.text);
        assert!(!ran.text.contains(&format!("reached {others}")), "{}", ran.text);
        let said = format!("refused: {others}.test: not on the list");
        assert!(ran.text.contains(&said), "{}", ran.text);
    }
}

#[test]
fn what_is_refused_fails_at_once_and_the_summary_says_why() {
    if !is_possible() || !need("curl") {
        return;
    }
    let (folder, app) = (Folder::new(), Upstream::http());
    let port = app.address.port();
    for (words, said) in [
        (format!("http://other.test:{port}/"), "other.test: not on the list, "),
        (
            format!("--connect-to ::app.test: http://other.test:{port}/"),
            &*format!("other.test:{port}: no rule with plain_http for this name, 5 times"),
        ),
        (format!("-k https://app.test:{}/", port ^ 1), "never dialled: 1"),
    ] {
        let script = format!(
            "for try in 1 2 3 4 5; do curl -sS -w 'took %{{time_total}} s\n' {words}; done"
        );
        let ran = Sandbox::new(&folder, &HOSTS, &format!("app.test:{port}")).script(&script);
        assert!(ran.text.contains(said), "{words}: {}", ran.text);
        let took = ran.text.lines().filter_map(|line| line.split_once("took ")?.1.split_once(" s"));
        let took: Vec<f64> = took.map(|(seconds, _)| seconds.parse().unwrap()).collect();
        assert_eq!(took.len(), 5, "{words}: {}", ran.text);
        assert!(took.iter().any(|took| *took < REFUSED_WITHIN_S), "{words}: {took:?}");
    }
}

#[test]
fn a_client_that_is_starved_before_its_hello_is_served() {
    if !is_possible() || !need("python3") {
        return;
    }
    let pki = Pki::new();
    let app = Upstream::https(pki.server("app", &["app.test"], Kind::P256));
    let port = app.address.port();
    let script = format!(
        "import http.client, socket, ssl, time\n\
         held = socket.create_connection((\"app.test\", {port}))\n\
         time.sleep({})\n\
         context = ssl.create_default_context(cafile=\"ca.pem\")\n\
         held = context.wrap_socket(held, server_hostname=\"app.test\")\n\
         held.sendall(b\"GET /late HTTP/1.0\\r\\n\\r\\n\")\n\
         answer = http.client.HTTPResponse(held)\n\
         answer.begin()\n\
         print(answer.read())",
        STARVED.as_secs()
    );
    let sandbox = Sandbox::new(&pki.folder, &HOSTS, &format!("app.test:{port}"));
    let ran = sandbox.run(&["python3", "-c", &script]);
    assert!(ran.status.success() && ran.text.contains("GET /late HTTP"), "{}", ran.text);
}

#[test]
fn a_ping_is_answered_and_leaves_nothing() {
    if !is_possible() || !need("ping") {
        return;
    }
    let folder = Folder::new();
    // Addresses for documentation, which nobody has outside.
    // The system's own may have rights in its file, which a copy has not.
    let script = "cp $(command -v ping) own; ./own -c 1 -W 5 192.0.2.1 && \
         ./own -c 1 -W 5 2001:db8::1 && ./own -c 1 -W 5 app.test";
    let ran = Sandbox::new(&folder, &HOSTS, "app.test").script(script);
    assert!(ran.status.success(), "{}", ran.text);
    assert_eq!(ran.text.matches(" 0% packet loss").count(), 3, "{}", ran.text);
}

#[test]
fn another_protocol_passes_by_an_entry_of_its_own() {
    if !is_possible() || !need("python3") {
        return;
    }
    let folder = Folder::new();
    let (app, own) = (Upstream::echo(), Upstream::echo());
    let (port, local) = (app.address.port(), own.address.port());
    let list = format!("tcp app.test:{port}\ntcp localhost:{local}\n");
    let script = format!(
        "python3 -c 'import socket\nfor at in (\"app.test\", {port}), (\"localhost\", {local}):\n \
         s = socket.create_connection(at); s.send(b\"hi\"); print(s.recv(9))'"
    );
    let sandbox = Sandbox::new(&folder, &HOSTS, &list).option("--report", "report.json");
    let said = sandbox.script(&script);
    assert_eq!(said.text.matches("b'hi'").count(), 2, "{}", said.text);
    let report = report(folder.path());
    assert_eq!(report["names"][0]["tcp"], true, "{report}");
    assert_eq!(report["bytes_sent"], 4, "{report}");
}

#[test]
fn an_entry_with_a_dot_is_the_name_and_all_below_it() {
    if !is_possible() || !need("curl") {
        return;
    }
    let hosts = [("app.test", "127.0.0.1"), ("a.b.app.test", "127.0.0.1")];
    let pki = Pki::new();
    let (plain, leaf) = (Upstream::http(), pki.server("a", &["a.b.app.test"], Kind::P256));
    let tls = Upstream::https(leaf);
    let (plain, tls) = (plain.address.port(), tls.address.port());
    let list = format!(".app.test:{plain}\n.app.test:{tls}\n");
    for (url, status) in [
        (format!("http://app.test:{plain}/"), 0),
        (format!("http://a.b.app.test:{plain}/"), 0),
        (format!("https://a.b.app.test:{tls}/"), 0),
        (format!("https://evilapp.test:{tls}/"), 6),
    ] {
        let said = Sandbox::new(&pki.folder, &hosts, &list)
            .run(&["curl", "-sS", "--cacert", "ca.pem", &url]);
        assert_eq!(said.status.code(), Some(status), "{url}: {}", said.text);
    }
}
