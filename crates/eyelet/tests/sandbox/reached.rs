//! The names on the list are reached, and nothing else.

use std::time::Duration;

use crate::ground::{Sandbox, is_possible, report};
use crate::support::pki::Kind;
use crate::support::program::skip;
use crate::support::{Folder, Pki, Upstream, need, output};

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
            &*format!("other.test:{port}: no entry has this name and port, 5 times"),
        ),
        (
            format!("-k https://app.test:{}/", port ^ 1),
            &*format!("app.test:{0}: no entry has port {0}, ", port ^ 1),
        ),
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

#[test]
fn places_at_ports_that_no_entry_has_are_in_the_report() {
    if !is_possible() || !need("python3") {
        return;
    }
    let folder = Folder::new();
    let script = "python3 -c 'import socket\nfor at in (\"app.test\", 22), (\"10.0.0.7\", 8080), \
        (\"app.test\", 25), (\"2001:db8::1\", 22), (\"127.0.0.1\", 9), (\"::1\", 9):\n try:\n  \
        socket.create_connection(at)\n except ConnectionRefusedError: print(\"refused\")'";
    let sandbox = Sandbox::new(&folder, &HOSTS, "app.test:443").option("--report", "report.json");
    let ran = sandbox.script(script);
    // Each at once, by every address that it has.
    assert_eq!(ran.text.matches("refused\n").count(), 6, "{}", ran.text);
    assert!(ran.text.contains("refused: app.test:22: no entry has port 22, "), "{}", ran.text);
    let report = report(folder.path());
    let refused = report["refused"].as_array().unwrap();
    let places: Vec<_> = refused.iter().map(|it| (it["name"].as_str(), &it["port"])).collect();
    for (name, port) in
        [("10.0.0.7", 8080), ("2001:db8::1", 22), ("app.test", 22), ("app.test", 25)]
    {
        assert!(places.contains(&(Some(name), &port.into())), "{name}: {report}");
    }
    assert_eq!((places.len(), &report["undialled"]), (4, &serde_json::json!([])), "{report}");
    let of_name = refused.iter().find(|it| it["port"] == 25).unwrap();
    assert_eq!(of_name["program"], "python3", "{report}");
    assert!(of_name["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{report}");
}

#[test]
fn a_command_that_scans_fills_no_memory_and_the_rest_is_counted() {
    if !is_possible() || !need("python3") {
        return;
    }
    let folder = Folder::new();
    let script = "import socket\nfor port in range(1, 1101):\n s = socket.socket()\n \
        s.connect_ex((\"192.0.2.1\", port))\n s.close()";
    let sandbox = Sandbox::new(&folder, &HOSTS, "app.test:443").option("--report", "report.json");
    let ran = sandbox.run(&["python3", "-c", script]);
    let report = report(folder.path());
    let told = report["refused"].as_array().unwrap().len();
    let left_out = report["left_out"].as_u64().unwrap();
    assert!(told <= 1024 && left_out > 0, "{told}, {left_out}: {}", ran.text);
    // At one of them it listens. Those that come faster than they are read are counted as well.
    assert_eq!(told as u64 + left_out, 1099, "{}", ran.text);
    assert!(ran.text.contains("more: --report FILE has all"), "{}", ran.text);
}

#[test]
fn a_rule_for_a_name_that_no_entry_has_is_a_mistake() {
    if !is_possible() {
        return;
    }
    let folder = Folder::new();
    let rule = "[[sandbox.p.rule]]\naction = \"terminate\"\ncertificate = \"mint\"\n";
    let eyelet = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_eyelet"));
        output(command.args(words).current_dir(folder.path()))
    };
    for (allow, sni, expected) in [
        (
            "app.test:29443",
            "sni = \"wm.test\"\nmethod = \"GET\"\n",
            "no entry of the list has wm.test",
        ),
        (".app.test", "sni = \"*.app.test\"\n", "write `sni = [\"app.test\", \"*.app.test\"]`"),
        (".app.test", "sni = [\"app.test\", \"*.app.test\"]\n", ""),
    ] {
        folder.write("p.toml", format!("[sandbox.p]\nallow = \"{allow}\"\n{rule}{sni}"));
        let sandbox = Sandbox::without_list(&folder, &HOSTS).option("--config", "p.toml");
        let ran = sandbox.option("--profile", "p").script("echo it runs");
        let checked = eyelet(&["check", "p.toml"]);
        let explained = eyelet(&["explain", "p.toml", "--profile", "p", "--sni", "app.test"]);
        let codes = [&ran, &checked, &explained].map(|said| said.status.code());
        if expected.is_empty() {
            assert_eq!(codes, [Some(0); 3], "{}{}", checked.text, explained.text);
            assert_eq!(checked.text, "p.toml: [sandbox.p]: ok, 1 entry, 1 rule\n");
            continue;
        }
        assert_eq!(codes, [Some(125), Some(2), Some(2)], "{}", ran.text);
        assert!(!ran.text.contains("it runs\n"), "{}", ran.text);
        for said in [ran, checked, explained] {
            assert!(said.text.contains(expected), "{expected}: {}", said.text);
        }
    }
    // What has no line in the file is told with its profile, and a list with its line.
    let checked = eyelet(&["check", "p.toml"]);
    assert!(checked.status.success(), "{}", checked.text);
    folder.write("p.toml", "[sandbox.p]\nallow_file = \"list.txt\"\n");
    folder.write("list.txt", "*.app.test\n");
    let checked = eyelet(&["check", "p.toml"]);
    let noted = "warning: [sandbox.p]: list.txt:1: `*.app.test` allows app.test, too";
    assert!(checked.status.success() && checked.text.contains(noted), "{}", checked.text);
    folder.write("q.toml", "[sandbox.q]\nalow = \"app.test\"\n[sandbox.r]\n");
    let checked = eyelet(&["check", "q.toml"]);
    assert_eq!(checked.status.code(), Some(2), "{}", checked.text);
    assert!(checked.text.starts_with("q.toml:2:1: error: unknown key `alow`"), "{}", checked.text);
    assert!(checked.text.contains("\n 2 | alow = ") && !checked.text.contains("[sandbox.q]: "));
    folder.write("list.txt", "app.test/path\n");
    let checked = eyelet(&["check", "p.toml"]);
    assert_eq!(checked.status.code(), Some(2), "{}", checked.text);
    assert!(checked.text.starts_with("list.txt:1: error: paths cannot"), "{}", checked.text);
}

#[test]
fn a_profile_whose_list_comes_by_an_option_is_sound() {
    if !is_possible() {
        return;
    }
    let folder = Folder::new();
    folder.write(
        "p.toml",
        "[sandbox.p]\n[[sandbox.p.rule]]\nsni = \"app.test\"\naction = \"terminate\"\n\
         certificate = \"mint\"\nmethod = \"GET\"\n",
    );
    let eyelet = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_eyelet"));
        output(command.args(words).current_dir(folder.path()))
    };
    let checked = eyelet(&["check", "p.toml"]);
    let noted = "warning: [sandbox.p]: it has no list: without `--allow FILE`";
    assert!(checked.status.success() && checked.text.contains(noted), "{}", checked.text);
    let explained = eyelet(&["explain", "p.toml", "--profile", "p", "--sni", "app.test"]);
    assert!(explained.status.success(), "{}", explained.text);
    assert!(explained.text.contains("it is not on the list"), "{}", explained.text);
    for (list, status) in [("app.test", 0), ("other.test", 125)] {
        let sandbox = Sandbox::new(&folder, &HOSTS, list).option("--config", "p.toml");
        let ran = sandbox.option("--profile", "p").script("true");
        assert_eq!(ran.status.code(), Some(status), "{list}: {}", ran.text);
    }
}
