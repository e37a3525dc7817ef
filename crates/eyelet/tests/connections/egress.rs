//! A proxy with lists of allowed names: what its refused clients, its log, `explain` and `learn`
//! say of the same connection. Clients are sockets, and curl.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::edge::eyelet;
use crate::support::upstream::{Dns, dns};
use crate::support::web::{Heard, hear};
use crate::support::{Edge, End, Folder, Hello, SOON, Upstream, ending, expect, need, output};

const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

struct Proxy {
    folder: Folder,
    edge: Edge,
    tls: Upstream,
    web: Upstream,
    _names: Dns,
}

impl Proxy {
    fn start() -> Self {
        Self::ends(
            "[[rule]]\nname = \"rest\"\naction = \"refuse\"\n\
             message = \"Ask build@corp.example.\"\n",
        )
    }

    /// A proxy whose last rules are these.
    fn ends(rest: &str) -> Self {
        let (folder, tls, web) = (Folder::new(), Upstream::echo(), Upstream::http());
        let names = dns(&[
            ("packages.test", &[[127, 0, 0, 1]]),
            ("mirror.test", &[[127, 0, 0, 1]]),
            ("other.test", &[[127, 0, 0, 1]]),
            ("inside.test", &[[10, 99, 0, 1]]),
        ]);
        folder.write("allow.txt", "packages.test\ninside.test\n");
        folder.write("http.txt", "mirror.test\ninside.test\n");
        let (tls_port, web_port) = (tls.address.port(), web.address.port());
        let config = format!(
            "[[listener]]\nname = \"proxy\"\naddress = \"127.0.0.1:0\"\nkind = \"connect\"\n\
             [[rule]]\nname = \"builds\"\nconnect = {{ file = \"allow.txt\", port = {tls_port} }}\n\
             sni = {{ file = \"allow.txt\" }}\naction = \"splice\"\n\
             upstream = \"{{sni}}:{tls_port}\"\nupstream_allow = \"127.0.0.0/8\"\n\
             [[rule]]\nname = \"mirrors\"\nconnect = {{ file = \"http.txt\", port = {web_port} }}\n\
             plain_http = true\naction = \"splice\"\nupstream = \"destination\"\n\
             upstream_allow = \"127.0.0.0/8\"\n{rest}[dns]\nservers = \"{}\"\n",
            names.address
        );
        let file = folder.write("edge.toml", config);
        let mut serve = eyelet(&folder);
        serve.arg("serve").arg(file);
        let edge = Edge::spawn(serve, 1);
        Self { folder, edge, tls, web, _names: names }
    }

    fn to_tls(&self, name: &str) -> String {
        format!("{name}:{}", self.tls.address.port())
    }

    fn to_web(&self, name: &str) -> String {
        format!("{name}:{}", self.web.address.port())
    }

    /// Asks by CONNECT for what is refused at once: the answer, and the line.
    fn refused(&self, target: &str) -> (String, Value) {
        let mut client = self.edge.connect();
        client.write_all(&head(target)).unwrap();
        let (said, end) = ending(&mut client, SOON);
        assert_eq!(end, End::Fin);
        let line = self.edge.line_of(client.local_addr().unwrap());
        (String::from_utf8(said).unwrap(), line)
    }

    /// Asks for a URL on a connection of its own: the answer, the line of the request, and that of
    /// the connection.
    fn get(&self, target: &str) -> (Heard, Value, Value) {
        let mut client = self.edge.connect();
        let request = format!("GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\n\r\n");
        client.write_all(request.as_bytes()).unwrap();
        let heard = hear(&mut client, "GET");
        let own = client.local_addr().unwrap().to_string();
        drop(client);
        let line = |event: &str| {
            self.edge.line(event, |line| line["event"] == event && line["client"] == own)
        };
        (heard, line("request"), line("end"))
    }

    fn explained(&self, args: &[&str]) -> String {
        let mut explain = eyelet(&self.folder);
        let said =
            output(explain.arg("explain").arg(self.folder.path().join("edge.toml")).args(args));
        assert!(said.status.success(), "{}", said.text);
        said.text
    }
}

fn head(target: &str) -> Vec<u8> {
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").into_bytes()
}

#[test]
fn an_internal_address_is_explained_as_it_is_refused() {
    let proxy = Proxy::start();
    let reason = "upstream: inside.test resolves to 10.99.0.1, which upstream_allow does not list";
    let target = proxy.to_tls("inside.test");
    let (said, line) = proxy.refused(&target);
    assert!(said.starts_with("HTTP/1.1 403 Forbidden (upstream: inside.test resolves "), "{said}");
    assert_eq!((&line["reason"], &line["rule"]), (&reason.into(), &"builds".into()), "{line}");
    let refused = format!(
        "rule:    rule 1 \"builds\"\naction:  refuse, instead of splice\n\
         listed:  connect by \"inside.test\" in allow.txt\n\
         listed:  sni by \"inside.test\" in allow.txt\n\
         reason:  {reason}\nanswer:  403, before the hello\n"
    );
    let asked = proxy.explained(&["--connect", &target, "--ask"]);
    assert!(asked.starts_with("found:   inside.test has 10.99.0.1\n"), "{asked}");
    assert!(asked.contains(&refused), "{asked}");
    assert_eq!(asked.matches("found:").count(), 1, "{asked}");
    // The rule of the other name is asked about the hello's.
    let listed = proxy.to_tls("packages.test");
    let hello = proxy.explained(&["--connect", &listed, "--sni", "inside.test", "--ask"]);
    assert!(hello.contains(&format!("reason:  {reason}\n")), "{hello}");
    assert!(hello.contains("alert:   access_denied (49)\n"), "after the 200: {hello}");
    let passes = proxy.explained(&["--connect", &listed, "--ask"]);
    assert!(passes.contains("action:  splice to packages.test:"), "{passes}");
    let logged = proxy.explained(&["--log-line", &line.to_string()]);
    let after = format!("{reason}\n         after its rule; the rest is what the rules say\n");
    assert!(logged.contains(&after), "{logged}");
    let again = proxy.explained(&["--log-line", &line.to_string(), "--ask"]);
    assert!(again.contains("action:  refuse, instead of splice\n"), "{again}");
    // A rule that needs no hello.
    let web = proxy.explained(&["--connect", &proxy.to_web("inside.test"), "--ask"]);
    assert!(web.contains("action:  refuse, instead of splice\n"), "{web}");
    assert!(web.contains("answer:  403, before the hello\n"), "{web}");
}

#[test]
fn a_line_that_no_rule_has_decided_says_so() {
    let proxy = Proxy::start();
    let mut client = proxy.edge.connect();
    client.write_all(&head(&proxy.to_tls("packages.test"))).unwrap();
    expect(&mut client, ESTABLISHED);
    client.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
    ending(&mut client, SOON);
    let line = proxy.edge.line_of(client.local_addr().unwrap());
    let said = proxy.explained(&["--log-line", &line.to_string()]);
    let before = " refused: SSH\n         before any rule; the rest is what the rules would say\n";
    assert!(said.contains(before), "{said}");
    // A refusal by a rule is told as that alone.
    let (_, line) = proxy.refused(&proxy.to_tls("nobody.test"));
    let said = proxy.explained(&["--log-line", &line.to_string()]);
    let by_rule = " refused by rest: not in allow.txt\nrule:    rule 3 \"rest\"\n";
    assert!(said.contains(by_rule), "{said}");
}

#[test]
fn a_refusal_names_the_lists_that_would_help() {
    let proxy = Proxy::start();
    let (tls, web) = (proxy.tls.address.port(), proxy.web.address.port());
    for (target, lists) in [
        (proxy.to_tls("nobody.test"), "not in allow.txt".to_owned()),
        (proxy.to_tls("mirror.test"), "not in allow.txt".to_owned()),
        (proxy.to_web("nobody.test"), "not in http.txt".to_owned()),
        // No list is for the port.
        ("mirror.test:9".to_owned(), format!("not in http.txt (for port {web})")),
        ("packages.test:9".to_owned(), format!("not in allow.txt (for port {tls})")),
        ("nobody.test:9".to_owned(), "not in `connect` of any rule".to_owned()),
    ] {
        let (said, line) = proxy.refused(&target);
        let status = format!("HTTP/1.1 403 Forbidden ({target} is {lists}, rule rest, connection ");
        assert!(said.starts_with(&status), "{said}");
        assert!(said.ends_with("\nAsk build@corp.example.\n"), "{said}");
        assert_eq!((&line["reason"], &line["outcome"]), (&lists.into(), &"refused".into()));
    }
}

/// The end of a connection whose requests were all refused says so, with the last one's reason.
#[test]
fn a_refused_url_is_in_the_log_as_a_connect_is() {
    let proxy = Proxy::start();
    let inside = "upstream: inside.test resolves to 10.99.0.1, which upstream_allow does not list";
    for (name, reason, rule) in
        [("nobody.test", "not in http.txt", "rest"), ("inside.test", inside, "mirrors")]
    {
        let target = proxy.to_web(name);
        let (heard, request, end) = proxy.get(&target);
        assert_eq!(heard.status, 403, "{heard:?}");
        let said = heard.text();
        assert!(said.starts_with(&format!("This proxy does not allow {target}: ")), "{said}");
        assert!(said.contains(&format!("{reason}.\n")), "{said}");
        for line in [request, end] {
            assert_eq!((&line["outcome"], &line["reason"]), (&"refused".into(), &reason.into()));
            assert_eq!((&line["rule"], &line["connect"]), (&rule.into(), &target.clone().into()));
        }
    }
    let (heard, _, end) = proxy.get(&proxy.to_web("mirror.test"));
    assert_eq!(heard.status, 200);
    assert_eq!((&end["outcome"], &end["reason"]), (&"spliced".into(), &"client closed".into()));
    if need("curl") {
        let mut curl = Command::new("curl");
        let proxy_url = format!("http://{}", proxy.edge.address());
        curl.args(["-sS", "--noproxy", "", "--proxy", &proxy_url]);
        let said = output(curl.arg(format!("http://{}/", proxy.to_web("nobody.test")))).text;
        assert!(said.ends_with("Ask build@corp.example.\n"), "{said}");
        assert!(said.contains(": it is not in http.txt.\n"), "{said}");
    }
}

#[test]
fn a_list_is_learnt_from_the_log_of_a_proxy() {
    let proxy = Proxy::start();
    let target = proxy.to_tls("packages.test");
    for _ in 0..2 {
        let mut client = proxy.edge.connect();
        client.write_all(&head(&target)).unwrap();
        expect(&mut client, ESTABLISHED);
        let hello = Hello::named("packages.test").bytes();
        client.write_all(&hello).unwrap();
        expect(&mut client, &hello);
        let own = client.local_addr().unwrap();
        drop(client);
        assert_eq!(proxy.edge.line_of(own)["outcome"], "spliced");
    }
    assert_eq!(proxy.get(&proxy.to_web("mirror.test")).0.status, 200);
    proxy.get(&proxy.to_web("nobody.test"));
    proxy.refused(&proxy.to_tls("nobody.test"));
    let lines: String = proxy.edge.lines().iter().map(|line| format!("{line}\n")).collect();
    proxy.folder.write("access.log", format!("{lines}no line\n"));
    let mut learn = eyelet(&proxy.folder);
    learn.args(["learn", "access.log"]).current_dir(proxy.folder.path());
    let said = learn.stdin(Stdio::null()).output().unwrap();
    let (list, left_out) = (String::from_utf8(said.stdout), String::from_utf8(said.stderr));
    let (list, left_out) = (list.unwrap(), left_out.unwrap());
    let entry = |line: &str| {
        let (entry, traffic) = line.split_once(" # ").unwrap();
        format!("{} {}", entry.trim(), traffic.split(',').next().unwrap())
    };
    let mut expected = [
        format!("{} connections: 1", proxy.to_web("mirror.test")),
        format!("{target} connections: 2"),
    ];
    expected.sort();
    assert_eq!(list.lines().map(entry).collect::<Vec<_>>(), expected, "{list}");
    let of = |count, why: &str| format!("eyelet: access.log: lines left out: {count}, {why}\n");
    let expected = of(1, "no lines of an access log in JSON")
        + &of(3, "refused, failed, redirected, or left by the client");
    assert_eq!(left_out, expected);
    assert!(said.status.success());
}

/// The rules of docs/from-squid.md that let all pass, and log what a list would refuse.
#[test]
fn a_list_is_watched_before_it_refuses() {
    let shadow = "[[rule]]\nname = \"would refuse\"\nshadow = true\naction = \"refuse\"\n";
    let pass = "[[rule]]\nname = \"trial\"\nclient = \"127.0.0.0/8\"\nplain_http = true\n\
                action = \"splice\"\nupstream = \"destination\"\n\
                upstream_allow = \"127.0.0.0/8\"\n";
    let proxy = Proxy::ends(&format!("{shadow}{pass}"));
    for (name, is_listed) in [("packages.test", true), ("other.test", false)] {
        let mut client = proxy.edge.connect();
        client.write_all(&head(&proxy.to_tls(name))).unwrap();
        expect(&mut client, ESTABLISHED);
        let hello = Hello::named(name).bytes();
        client.write_all(&hello).unwrap();
        expect(&mut client, &hello);
        let own = client.local_addr().unwrap();
        drop(client);
        let line = proxy.edge.line_of(own);
        assert_eq!(line["shadow"].is_null(), is_listed, "{line}");
        assert_eq!(line["outcome"], "spliced", "{line}");
    }
    let (heard, request, _) = proxy.get(&proxy.to_web("other.test"));
    assert_eq!((heard.status, &request["shadow"][0]["rule"]), (200, &"would refuse".into()));
    let (inside, line) = proxy.refused("inside.test:9");
    assert!(inside.starts_with("HTTP/1.1 403 Forbidden (upstream: inside.test resol"), "{inside}");
    assert_eq!(line["rule"], "trial", "{line}");
    let check = |rest: &str| {
        let file = proxy.folder.path().join("edge.toml");
        let text = std::fs::read_to_string(&file).unwrap().replace(pass, rest);
        output(eyelet(&proxy.folder).arg("check").arg(proxy.folder.write("other.toml", text))).text
    };
    assert!(check(pass).ends_with("ok, 1 listener, 4 rules\n"), "{}", check(pass));
    let nothing = check("");
    assert!(nothing.contains("warning: no rule below lets a connection pass, so"), "{nothing}");
}
