//! Tests the clients of a proxy: users by HTTP and by SOCKS, and processes at a Unix socket. Both
//! ends are sockets of the tests, or programs that people use.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::client::{Offer, handshake};
use crate::support::edge::eyelet;
use crate::support::pki::Kind;
use crate::support::upstream::{dns, vacant};
use crate::support::web::get;
use crate::support::{
    Edge, End, Folder, Hello, Pki, SOON, Upstream, alert_of, ending, expect, need, output,
};
use crate::upgrade::{Scene, expect_echo};

const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";
const SUCCEEDED: &[u8] = b"\x05\x00\x00\x01\0\0\0\0\0\0";
/// In Base64: `alice:one` and `alice:two`.
const ALICE: &str = "Proxy-Authorization: Basic YWxpY2U6b25l\r\n";
const ALICE_WRONG: &str = "Proxy-Authorization: Basic YWxpY2U6dHdv\r\n";

const LISTENER: &str =
    "[[listener]]\naddress = \"127.0.0.1:0\"\nkind = \"connect\"\nusers = \"users.txt\"\n";

/// Writes the file of users by the command that people use: alice with the token `one`.
pub fn write_users(folder: &Folder, users: &[(&str, &str)]) {
    let lines = users.iter().map(|(name, token)| {
        let mut command = eyelet(folder);
        command.args(["passwd", "--stdin", name]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(format!("{token}\n").as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    });
    let path = folder.write("users.txt", lines.collect::<String>());
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(path, mode).unwrap();
}

/// A rule for users, to this upstream.
fn rule(name: &str, keys: &str, origin: &Upstream) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\n{keys}\naction = \"splice\"\nupstream = \"{}\"\n",
        origin.address
    )
}

fn head(target: &str, fields: &str) -> Vec<u8> {
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{fields}\r\n").into_bytes()
}

/// Sends, and reads to the end: the whole answer, and the access line.
fn answer(edge: &Edge, request: &[u8]) -> (String, Value) {
    let mut client = edge.connect();
    client.write_all(request).unwrap();
    let (got, end) = ending(&mut client, SOON);
    assert_eq!(end, End::Fin);
    (String::from_utf8_lossy(&got).into_owned(), edge.line_of(client.local_addr().unwrap()))
}

#[test]
fn a_user_is_asked_for_and_known() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    write_users(&folder, &[("alice", "one"), ("bob", "two")]);
    let open = rule("open", "connect = \"open.test:*\"", &origin);
    let users = rule("users", "proxy_user = [\"alice\"]\nconnect = \"*.a.test:443\"", &origin);
    let edge = Edge::start_whole(&folder, &format!("{LISTENER}{open}{users}"), |_| ());
    let challenge = "\r\nProxy-Authenticate: Basic realm=\"eyelet\", charset=\"UTF-8\"\r\n";
    for (fields, target, status, reason) in [
        ("", "x.a.test:443", 407, "the rules ask for a user"),
        (ALICE_WRONG, "x.a.test:443", 407, "wrong user or password"),
        ("Proxy-Authorization: Bearer x\r\n", "x.a.test:443", 407, "wrong user or password"),
        // A wrong user is told, even where no rule asks.
        (ALICE_WRONG, "open.test:443", 407, "wrong user or password"),
        // No rule would take these by a user.
        ("", "x.a.test:80", 403, "not in `connect` of any rule"),
        (ALICE, "other.test:443", 403, "not in `connect` of any rule"),
        // bob:two, whom no rule takes.
        ("Proxy-Authorization: Basic Ym9iOnR3bw==\r\n", "x.a.test:443", 403, "no rule for this "),
    ] {
        let (said, line) = answer(&edge, &head(target, fields));
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{fields} {target}: {said}");
        assert_eq!(said.contains(challenge), status == 407, "{said}");
        assert!(line["reason"].as_str().unwrap().starts_with(reason), "{line}");
        assert_eq!(line["outcome"], "refused", "{line}");
    }
    for (fields, target, name, user) in [
        (ALICE, "x.a.test:443", "users", Some("alice")),
        (ALICE, "open.test:443", "open", Some("alice")),
        ("", "open.test:443", "open", None),
    ] {
        let mut client = edge.connect();
        client.write_all(&head(target, fields)).unwrap();
        expect(&mut client, ESTABLISHED);
        let own = client.local_addr().unwrap();
        drop((client, origin.take()));
        let line = edge.line_of(own);
        assert_eq!(line["rule"], name, "{line}");
        assert_eq!(line["identity"]["proxy_user"], user.map_or(Value::Null, Value::from), "{line}");
    }
    assert!(!edge.log().contains("YWxpY2U6"), "no credentials in the log");
}

#[test]
fn a_user_by_socks() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    write_users(&folder, &[("alice", "one")]);
    let open = rule("open", "connect = \"open.test:*\"", &origin);
    let users = rule("users", "proxy_user = \"*\"", &origin);
    let edge = Edge::start_whole(&folder, &format!("{LISTENER}{open}{users}"), |_| ());
    let to = |name: &str| [&b"\x05\x01\x00\x03\x09"[..], name.as_bytes(), b"\x01\xbb"].concat();
    let right = b"\x01\x05alice\x03one";
    // In pieces, and all at once.
    for cut in [1, 2, 4, 9, 11] {
        let mut client = edge.connect();
        client.write_all(b"\x05\x03\x00\x01\x02").unwrap();
        expect(&mut client, b"\x05\x02");
        client.write_all(&right[..cut.min(right.len())]).unwrap();
        client.write_all(&right[cut.min(right.len())..]).unwrap();
        expect(&mut client, b"\x01\x00");
        client.write_all(&to("some.test")).unwrap();
        expect(&mut client, SUCCEEDED);
        let own = client.local_addr().unwrap();
        drop((client, origin.take()));
        let line = edge.line_of(own);
        let said = (&line["rule"], &line["identity"]["proxy_user"]);
        assert_eq!(said, (&"users".into(), &"alice".into()), "{line}");
    }
    for wrong in [&b"\x01\x05alice\x03two"[..], b"\x01\x05carol\x03one", b"\x01\x00\x00"] {
        let mut client = edge.connect();
        client.write_all(&[b"\x05\x01\x02", wrong].concat()).unwrap();
        let (got, end) = ending(&mut client, SOON);
        assert_eq!((&got[..], end), (&b"\x05\x02\x01\x01"[..], End::Fin));
        let line = edge.line_of(client.local_addr().unwrap());
        assert_eq!(line["reason"], "wrong user or password", "{line}");
    }
    // Who cannot name a user is nobody.
    for (name, reply) in [("open.test", 0), ("some.test", 2)] {
        let mut client = edge.connect();
        client.write_all(&[b"\x05\x01\x00", &to(name)[..]].concat()).unwrap();
        expect(&mut client, &[5, 0, 5, reply]);
        let line = (reply == 2).then(|| edge.line_of(client.local_addr().unwrap()));
        assert!(line.is_none_or(|line| line["reason"] == "the rules ask for a user"));
    }
}

/// A refuse rule refuses whom it does not know, and its reason asks who it is.
#[test]
fn who_is_not_known_fails_closed() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    write_users(&folder, &[("alice", "one"), ("bob", "two")]);
    let refuse = "[[rule]]\nname = \"no\"\nproxy_user = \"bob\"\naction = \"refuse\"\n";
    let rest = rule("rest", "", &origin);
    let edge = Edge::start_whole(&folder, &format!("{LISTENER}{refuse}{rest}"), |_| ());
    for (fields, status, reason) in [
        ("", 407, "the rules ask for a user"),
        ("Proxy-Authorization: Basic Ym9iOnR3bw==\r\n", 403, "refused by identity"),
    ] {
        let (said, line) = answer(&edge, &head("a.test:443", fields));
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{said}");
        assert_eq!((&line["reason"], &line["rule"]), (&reason.into(), &"no".into()), "{line}");
    }
    let mut client = edge.connect();
    client.write_all(&head("a.test:443", ALICE)).unwrap();
    expect(&mut client, ESTABLISHED);
    let _ = origin.take();
}

/// After the 200 a refusal is an alert, whoever asks.
#[test]
fn a_hello_inside_is_decided_by_who_asked() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    write_users(&folder, &[("alice", "one")]);
    let rules = [
        rule("any", "sni = \"host.test\"", &origin),
        rule("users", "sni = \"inner.test\"\nproxy_user = \"alice\"", &origin),
    ];
    let edge = Edge::start_whole(&folder, &format!("{LISTENER}{}", rules.concat()), |_| ());
    for (fields, name, passes) in
        [(ALICE, "inner.test", true), ("", "host.test", true), ("", "inner.test", false)]
    {
        let mut client = edge.connect();
        client.write_all(&head("127.0.0.1:443", fields)).unwrap();
        expect(&mut client, ESTABLISHED);
        let hello = Hello::named(name).bytes();
        client.write_all(&hello).unwrap();
        match passes {
            true => expect(&mut origin.take(), &hello),
            false => assert_eq!(alert_of(&ending(&mut client, SOON).0), Some(49), "access_denied"),
        }
    }
}

#[test]
fn a_reload_reads_the_users_anew() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    write_users(&folder, &[("alice", "two")]);
    let text = format!("{LISTENER}{}", rule("users", "proxy_user = \"*\"", &origin));
    let edge = Edge::start_whole(&folder, &text, |_| ());
    let (said, _) = answer(&edge, &head("a.test:443", ALICE));
    assert!(said.starts_with("HTTP/1.1 407 "), "{said}");
    write_users(&folder, &[("alice", "one")]);
    edge.signal(rustix::process::Signal::HUP);
    edge.wait_log("configuration 2 serves");
    let mut client = edge.connect();
    client.write_all(&head("a.test:443", ALICE)).unwrap();
    expect(&mut client, ESTABLISHED);
    let _ = origin.take();
}

/// By the process at the other end of a Unix socket.
/// The rules ask for the user again in the new process, where a request decides a connection anew.
#[test]
fn a_user_is_known_after_upgrades() {
    let mut scene = Scene::of_users("alice", |folder| write_users(folder, &[("alice", "one")]));
    let open = |scene: &Scene, target: &str| {
        let mut client = scene.edge.connect();
        client.write_all(&head(target, ALICE)).unwrap();
        expect(&mut client, ESTABLISHED);
        client
    };
    let mut spliced = open(&scene, "host.test:443");
    expect_echo(&mut spliced, &Hello::named("host.test").bytes());
    let config = Offer::new(&scene.pki).config();
    let mut http = handshake(config, open(&scene, "app.test:443"), "app.test").unwrap();
    for path in ["/before", "/after", "/again"] {
        expect_echo(&mut spliced, path.as_bytes());
        assert_eq!(get(&mut http, path).status, 200);
        let line = scene.edge.line(path, |line| line["http"]["path"] == path);
        assert_eq!(line["identity"]["proxy_user"], "alice", "{line}");
        if path != "/again" {
            scene.upgrade_whole();
        }
    }
    drop((spliced, http));
    for target in ["host.test:443", "app.test:443"] {
        let is_end = |line: &Value| line["event"] == "end" && line["connect"] == target;
        let line = scene.edge.line(target, is_end);
        assert_eq!(line["identity"]["proxy_user"], "alice", "{line}");
    }
}

#[test]
fn a_process_is_known_by_its_user_and_its_cgroup() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    let uid = rustix::process::geteuid().as_raw();
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap();
    let cgroup = cgroup.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned);
    let cgroup = cgroup.unwrap_or_else(|| "/".into());
    let other = uid.wrapping_add(1);
    let at = "listener = \"local\"\n";
    let rules = [
        rule("other", &format!("{at}peer_uid = {other}"), &origin),
        rule("own", &format!("{at}peer_uid = [{other}, {uid}]\nconnect = \"uid.test:*\""), &origin),
        rule("group", &format!("{at}peer_cgroup = \"{cgroup}\"\nconnect = \"cg.test:*\""), &origin),
        rule("none", &format!("{at}peer_cgroup = \"/no/such\""), &origin),
    ];
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nkind = \"connect\"\n[[listener]]\n\
         name = \"local\"\naddress = \"unix:proxy.sock\"\nmode = \"0660\"\nkind = \"connect\"\n{}",
        rules.concat()
    );
    let file = folder.write("edge.toml", text);
    let mut command = eyelet(&folder);
    command.arg("serve").arg(&file);
    let edge = Edge::spawn(command, 1);
    let path = folder.path().join("proxy.sock");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o660);
    for (target, rule) in [("uid.test:443", "own"), ("cg.test:443", "group")] {
        let mut client = UnixStream::connect(&path).unwrap();
        client.set_read_timeout(Some(SOON)).unwrap();
        client.write_all(&head(target, "")).unwrap();
        expect(&mut client, ESTABLISHED);
        drop((client, origin.take()));
        let line = edge.line(target, |line| line["connect"] == target);
        assert_eq!(
            (&line["rule"], &line["identity"]["peer_cgroup"]),
            (&rule.into(), &cgroup.clone().into())
        );
        assert_eq!(line["client_ip"], format!("unix:uid={uid}"), "{line}");
    }
    let mut client = UnixStream::connect(&path).unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    client.write_all(b"\x05\x01\x00\x05\x01\x00\x03\x01x\x01\xbb").unwrap();
    expect(&mut client, &[5, 0, 5, 2]);
    if need("curl") {
        let proxy = format!("socks5h://localhost{}", path.display());
        let mut curl = Command::new("curl");
        let heard =
            output(curl.args(["-sS", "--noproxy", "", "--proxy", &proxy, "http://no.test/"]));
        assert!(heard.text.contains("(2)"), "{}", heard.text);
    }
}

/// `explain` asks with an identity by a flag each, and by the line of a log.
#[test]
fn it_is_explained() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    write_users(&folder, &[("alice", "one")]);
    let text = format!(
        "{LISTENER}[[listener]]\nname = \"local\"\naddress = \"unix:proxy.sock\"\n\
         kind = \"connect\"\n{}{}",
        rule("uid", "listener = \"local\"\npeer_uid = 7\npeer_cgroup = \"/a\"", &origin),
        rule("users", "listener = \"127.0.0.1:0\"\nproxy_user = \"alice\"", &origin)
    );
    let file = folder.write("edge.toml", text);
    let line = "{\"listener\":\"127.0.0.1:0\",\"client\":\"192.0.2.1:5\",\
                \"connect\":\"a.test:443\",\"identity\":{\"proxy_user\":\"alice\"}}";
    for (flags, said) in [
        (&["--proxy-user", "alice"][..], "rule 2 \"users\""),
        (&["--proxy-user", "bob"], "proxy_user = \"alice\" does not hold for \"bob\""),
        (&[], "answer:  407, before the hello"),
        (&[], "reason:  the rules ask for a user"),
        (&["--peer-uid", "7", "--peer-cgroup", "/a/b"], "rule 1 \"uid\""),
        (&["--peer-uid", "8"], "peer_uid = \"7\" does not hold for 8"),
        (&["--peer-uid", "7"], "peer_cgroup = \"/a\" does not hold for an unknown cgroup"),
    ] {
        let mut command = eyelet(&folder);
        command.arg("explain").arg(&file).args(["--connect", "a.test:443"]).args(flags);
        let heard = output(&mut command);
        assert!(heard.text.contains(said), "{flags:?}: {}", heard.text);
    }
    let mut command = eyelet(&folder);
    let heard = output(command.arg("explain").arg(&file).args(["--log-line", line]));
    assert!(heard.text.contains("rule 2 \"users\""), "{}", heard.text);
}

#[test]
fn programs_of_the_world_name_their_user() {
    let pki = Pki::new();
    write_users(&pki.folder, &[("alice", "one")]);
    let web = Upstream::https(pki.server("web", &["web.test"], Kind::P256));
    let plain = Upstream::http();
    let server = dns(&[("web.test", &[[127, 0, 0, 1]])]);
    let edge = Edge::start_whole(
        &pki.folder,
        &format!(
            "{LISTENER}[[rule]]\nname = \"users\"\nproxy_user = \"*\"\nplain_http = true\n\
             action = \"splice\"\nupstream = \"destination\"\nupstream_allow = \"127.0.0.1\"\n\
             [dns]\nservers = \"{}\"\n",
            server.address
        ),
        |_| (),
    );
    let (ca, url) = (pki.text("ca.pem"), format!("https://web.test:{}/", web.address.port()));
    let plain_url = format!("http://web.test:{}/", plain.address.port());
    let by = |scheme: &str, user: &str| format!("{scheme}://{user}{}", edge.address());
    let http = by("http", "alice:one@");
    let git = format!("http.proxy={http}");
    let python = format!(
        "import ssl, urllib.request as r\n\
         o = r.build_opener(r.ProxyHandler({{'https': '{http}'}}), \
         r.HTTPSHandler(context=ssl.create_default_context(cafile='{ca}')))\n\
         print(o.open('{url}', timeout=20).read().decode())\n"
    );
    let curl = ["-sS", "--noproxy", "", "--cacert", &ca, "--proxy"];
    let curl = |proxy: &str, url: &str| {
        let arguments = curl.iter().copied().chain([proxy, url]);
        ("curl", arguments.map(str::to_owned).collect::<Vec<_>>())
    };
    let got = "GET / HTTP/1.1";
    let git = ["-c", &git, "-c", "http.sslVerify=false", "ls-remote", &url].map(str::to_owned);
    for ((program, arguments), said) in [
        (curl(&http, &url), got),
        (curl(&by("socks5h", "alice:one@"), &url), got),
        (curl(&http, &plain_url), got),
        (curl(&by("http", "alice:two@"), &url), "response 407"),
        (curl(&by("http", ""), &url), "response 407"),
        (curl(&by("socks5h", "alice:two@"), &url), "(97)"),
        (curl(&by("socks5h", ""), &url), "(97)"),
        (curl(&by("http", ""), &plain_url), "the rules ask for a user"),
        (("git", git.to_vec()), "not valid"),
        (("python3", vec!["-c".into(), python]), got),
    ] {
        if need(program) {
            let heard = output(Command::new(program).args(&arguments));
            assert!(heard.text.contains(said), "{program} {arguments:?}: {}", heard.text);
        }
    }
}

/// A PROXY header that names the client of a certificate, as anybody could write it.
fn forged(name: &str) -> Vec<u8> {
    let sized = |kind: u8, value: &[u8]| {
        let len = u16::try_from(value.len()).unwrap().to_be_bytes();
        [&[kind], &len[..], value].concat()
    };
    let ssl = sized(0x20, &[&[7, 0, 0, 0, 0], &sized(0x22, name.as_bytes())[..]].concat());
    let body = [&[192, 0, 2, 7, 192, 0, 2, 8, 0, 1, 0, 2], &ssl[..]].concat();
    let len = u16::try_from(body.len()).unwrap().to_be_bytes();
    [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11"[..], &len, &body].concat()
}

/// A proxy behind TLS is two listeners, and its rules know the names in clients' certificates.
#[test]
fn a_certificate_is_known_behind_tls() {
    let pki = Pki::new();
    pki.server("proxy", &["127.0.0.1"], Kind::P256);
    let (_, _) = (pki.client("build-1"), pki.client("stranger"));
    let web = Upstream::https(pki.server("web", &["web.test"], Kind::P256));
    let server = dns(&[("web.test", &[[127, 0, 0, 1]])]);
    let [inner] = vacant::<1>();
    let edge = Edge::start_whole(
        &pki.folder,
        &format!(
            "[[listener]]\nname = \"tls\"\naddress = \"127.0.0.1:0\"\n\
             [[listener]]\nname = \"proxy\"\naddress = \"{inner}\"\nkind = \"connect\"\n\
             proxy_protocol_from = \"127.0.0.1\"\n[[rule]]\nlistener = \"tls\"\n\
             action = \"terminate\"\ncertificate = \"proxy.pem\"\nkey = \"proxy.key\"\n\
             client_ca = \"ca.pem\"\nproxy_protocol = \"v2\"\nupstream = \"tcp://{inner}\"\n\
             [[rule]]\nname = \"builds\"\nlistener = \"proxy\"\nclient_cert = [\"build-1\"]\n\
             action = \"splice\"\nupstream = \"destination\"\nupstream_allow = \"127.0.0.1\"\n\
             [dns]\nservers = \"{}\"\n",
            server.address
        ),
        |_| (),
    );
    let tls = edge.addresses().iter().find(|address| **address != inner).unwrap();
    let target = format!("web.test:{}", web.address.port());
    if need("curl") {
        let (ca, proxy) = (pki.text("ca.pem"), format!("https://{tls}"));
        let curl = |client: &str| {
            let files = [format!("{client}.pem"), format!("{client}.key")];
            let [certificate, key] = files.map(|file| pki.text(&file));
            let mut curl = Command::new("curl");
            curl.args(["-sS", "--noproxy", "", "--cacert", &ca, "--proxy", &proxy]);
            curl.args(["--proxy-cacert", &ca, "--proxy-cert", &certificate, "--proxy-key", &key]);
            output(curl.arg(format!("https://{target}/"))).text
        };
        let (passed, refused) = (curl("build-1"), curl("stranger"));
        assert!(passed.contains("GET / HTTP/1.1"), "{passed}");
        assert!(refused.contains("response 403"), "{refused}");
        let by = |name: &str| edge.line(name, |line| line["identity"]["client_cert"] == name);
        assert_eq!(by("build-1")["rule"], "builds");
        assert_eq!(by("stranger")["outcome"], "refused");
    }
    // Who comes without TLS can write a name, and is nobody.
    let mut client = crate::support::edge::connect(inner);
    client.write_all(&[forged("build-1"), head(&target, "")].concat()).unwrap();
    let (got, _) = ending(&mut client, SOON);
    assert!(got.starts_with(b"HTTP/1.1 403 "), "{}", got.escape_ascii());
}
