//! Usual programs, as they are: without a proxy variable, with the server's authority in the
//! variable or option of each. What is listed works, and what is not fails at once.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::ground::{Sandbox, is_possible};
use crate::support::pki::Kind;
use crate::support::{Folder, Pki, Upstream, need};

pub const HOSTS: [(&str, &str); 2] = [("app.test", "127.0.0.1"), ("other.test", "127.0.0.1")];
/// The time that a refused name may take beyond that of a name that is reached. A resolver that
/// waits for an answer, and a client that waits for a connection, take longer.
const REFUSED_WITHIN: Duration = Duration::from_secs(5);

/// A program, what it runs with `AT` for the server's host and port, and a part of what it says
/// then.
pub const CLIENTS: &[(&str, &str, &str)] = &[
    ("curl", "curl -sS --cacert ca.pem https://AT/text", "served /text"),
    ("git", "GIT_SSL_CAINFO=$PWD/ca.pem git ls-remote https://AT/repo", "refs/heads/main"),
    (
        "node",
        "NODE_EXTRA_CA_CERTS=ca.pem node -e \
         'fetch(\"https://AT/text\").then(r => r.text()).then(console.log)'",
        "served /text",
    ),
    (
        "python3",
        "SSL_CERT_FILE=ca.pem python3 -c \
         'import urllib.request as r; print(r.urlopen(\"https://AT/text\").read())'",
        "served /text",
    ),
    (
        "npm",
        "HOME=$PWD npm view thing version --cafile ca.pem --fetch-retries 0 \
         --registry https://AT/npm",
        "1.2.3",
    ),
    (
        "cargo",
        "CARGO_HOME=$PWD/cargo RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup} CARGO_HTTP_CAINFO=ca.pem \
         CARGO_NET_RETRY=0 cargo search thing --index sparse+https://AT/cargo/",
        "thing = \"1.2.3\"",
    ),
    (
        "pip",
        "HOME=$PWD pip --isolated --disable-pip-version-check --cert ca.pem download --no-deps \
         --retries 0 --index-url https://AT/simple/ thing 2>&1 | tail -n 3",
        "No matching distribution",
    ),
    (
        "java",
        "keytool -importcert -noprompt -storetype PKCS12 -storepass changeit -file ca.pem \
         -keystore trust.p12 2>/dev/null; java -Djavax.net.ssl.trustStore=trust.p12 \
         -Djavax.net.ssl.trustStorePassword=changeit Get.java https://AT/text",
        "served /text",
    ),
    ("go", "SSL_CERT_FILE=ca.pem CGO_ENABLED=0 go run get.go https://AT/text", "served /text"),
];

const JAVA: &str = "public class Get { public static void main(String[] args) throws Exception {
    System.out.write(java.net.URI.create(args[0]).toURL().openStream().readAllBytes());
    System.out.flush(); } }";
const GO: &str = "package main
import (\"io\"; \"log\"; \"net/http\"; \"os\")
func main() {
    answer, err := http.Get(os.Args[1])
    if err != nil { log.Fatal(err) }
    io.Copy(os.Stdout, answer.Body)
}";

/// A page that asks a host which is not on the list, and says what came of it.
const PAGE: &str = "<!doctype html><p id=said></p><script>
    const [began, ask] = [performance.now(), new XMLHttpRequest()];
    ask.open('GET', 'https://AT/'.replace('app', 'other'), false);
    let text = 'reached';
    try { ask.send(); } catch (error) { text = error.name; }
    const isSoon = performance.now() - began < 5000;
    said.textContent = [navigator.onLine, text, isSoon].join(' ');
</script>";

/// A server with a page for each of them.
pub fn server(pki: &Pki) -> Upstream {
    let leaf = pki.server("app", &["app.test", "other.test"], Kind::P256);
    Upstream::tls(leaf, answer)
}

/// Answers requests until the client ends.
fn answer(stream: &mut (impl Read + Write)) {
    let mut seen = Vec::new();
    let mut piece = [0; 4096];
    loop {
        while !seen.windows(4).any(|window| window == b"\r\n\r\n") {
            match stream.read(&mut piece) {
                Ok(read @ 1..) => seen.extend_from_slice(&piece[..read]),
                _ => return,
            }
        }
        let head = String::from_utf8_lossy(&seen).into_owned();
        let field = |name: &str| {
            let mut lines = head.lines().map(str::to_owned);
            lines.find_map(|line| line.to_lowercase().strip_prefix(name).map(str::to_owned))
        };
        let host = field("host: ").unwrap_or_default();
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let (status, kind, body) = page(&path, &host);
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        seen.clear();
        if stream.write_all(answer.as_bytes()).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

fn page(path: &str, host: &str) -> (&'static str, &'static str, String) {
    let (text, json) = ("text/plain", "application/json");
    match path {
        "/text" => ("200 OK", text, "served /text\n".into()),
        "/repo/info/refs?service=git-upload-pack" | "/repo/info/refs" => {
            ("200 OK", text, format!("{}\trefs/heads/main\n", "1".repeat(40)))
        }
        "/npm/thing" => {
            let version = r#"{"name":"thing","version":"1.2.3","dist":{"tarball":"x"}}"#;
            let tags = r#""dist-tags":{"latest":"1.2.3"}"#;
            let body = format!(r#"{{"name":"thing",{tags},"versions":{{"1.2.3":{version}}}}}"#);
            ("200 OK", json, body)
        }
        "/cargo/config.json" => {
            ("200 OK", json, format!(r#"{{"dl":"https://{host}/dl","api":"https://{host}"}}"#))
        }
        _ if path.starts_with("/api/v1/crates") => {
            let found = r#"{"name":"thing","max_version":"1.2.3","description":"a thing"}"#;
            ("200 OK", json, format!(r#"{{"crates":[{found}],"meta":{{"total":1}}}}"#))
        }
        "/page" => ("200 OK", "text/html", PAGE.replace("AT", host)),
        "/simple/thing/" => ("200 OK", "text/html", "<!doctype html><body></body>".into()),
        "/apt/./Packages" | "/apt/Packages" => {
            let fields = "Package: thing\nVersion: 1.2.3\nArchitecture: all\n";
            ("200 OK", text, format!("{fields}Filename: thing.deb\nSize: 1\n"))
        }
        _ => ("404 Not Found", text, String::new()),
    }
}

/// Writes the programs that [`CLIENTS`] run.
pub fn write_programs(folder: &Folder) {
    folder.write("Get.java", JAVA);
    folder.write("get.go", GO);
}

/// Runs a program of [`CLIENTS`] with a name that is listed, and with one that is not.
fn run_client(program: &str) {
    if !is_possible() || !need(program) {
        return;
    }
    let (_, script, said) = CLIENTS.iter().find(|(name, ..)| *name == program).unwrap();
    let pki = Pki::new();
    write_programs(&pki.folder);
    let app = server(&pki);
    let port = app.address.port();
    let list = format!("app.test:{port}\n");
    let run = |name: &str| {
        let script = script.replace("AT", &format!("{name}:{port}"));
        Sandbox::new(&pki.folder, &HOSTS, &list).script(&script)
    };
    let began = Instant::now();
    let ran = run("app.test");
    assert!(ran.text.contains(said), "{}", ran.text);
    assert!(!ran.text.contains("connections: 0"), "{}", ran.text);
    let reached = began.elapsed();
    let began = Instant::now();
    let ran = run("other.test");
    assert!(ran.text.contains("connections: 0, names: 0"), "{}", ran.text);
    assert!(ran.text.contains("refused: other.test: not on the list"), "{}", ran.text);
    let refused = began.elapsed();
    assert!(refused < reached + REFUSED_WITHIN, "{refused:?}, and {reached:?} if it is reached");
}

#[test]
fn curl_reaches_what_is_listed_and_nothing_else() {
    run_client("curl");
}

#[test]
fn git_reaches_what_is_listed_and_nothing_else() {
    run_client("git");
}

#[test]
fn node_reaches_what_is_listed_and_nothing_else() {
    run_client("node");
}

#[test]
fn python_reaches_what_is_listed_and_nothing_else() {
    run_client("python3");
}

#[test]
fn npm_reaches_what_is_listed_and_nothing_else() {
    run_client("npm");
}

#[test]
fn cargo_reaches_what_is_listed_and_nothing_else() {
    run_client("cargo");
}

#[test]
fn pip_reaches_what_is_listed_and_nothing_else() {
    run_client("pip");
}

#[test]
fn java_reaches_what_is_listed_and_nothing_else() {
    run_client("java");
}

#[test]
fn go_reaches_what_is_listed_and_nothing_else() {
    run_client("go");
}

#[test]
fn chromium_is_online_and_reaches_what_is_listed_and_nothing_else() {
    if !is_possible() || !need("chromium") {
        return;
    }
    let pki = Pki::new();
    let app = server(&pki);
    let at = format!("app.test:{}", app.address.port());
    let script = format!(
        "HOME=$PWD chromium --headless=new --no-sandbox --disable-gpu --no-first-run \
         --disable-background-networking --disable-component-update --user-data-dir=$PWD/profile \
         --ignore-certificate-errors --dump-dom https://{at}/page 2>&1"
    );
    let ran = Sandbox::new(&pki.folder, &HOSTS, &at).script(&script);
    assert!(ran.text.contains("<p id=\"said\">true NetworkError true</p>"), "{}", ran.text);
    assert!(ran.text.contains("refused: other.test: not on the list, "), "{}", ran.text);
}

#[test]
fn git_by_ssh_is_refused_at_once() {
    if !is_possible() || !need("git") || !need("ssh") {
        return;
    }
    let pki = Pki::new();
    let sandbox = Sandbox::new(&pki.folder, &HOSTS, "app.test");
    let ran = sandbox.script("git ls-remote ssh://git@app.test/repo");
    assert!(ran.text.contains("Connection refused"), "{}", ran.text);
}

#[test]
fn apt_fetches_by_plain_http() {
    if !is_possible() || !need("apt-get") {
        return;
    }
    let folder = Folder::new();
    let app = Upstream::serve(|mut stream| answer(&mut stream));
    let port = app.address.port();
    let source = "deb [trusted=yes allow-insecure=yes] http://app.test:PORT/apt/ ./\n";
    folder.write("sources.list", source.replace("PORT", &port.to_string()));
    let options = "-o Dir::State=$PWD/state -o Dir::State::status=$PWD/status \
        -o Dir::Cache=$PWD/cache -o Dir::Etc::sourcelist=$PWD/sources.list \
        -o Dir::Etc::sourceparts=- -o APT::Sandbox::User=root -o APT::Architecture=amd64 \
        -o Acquire::AllowInsecureRepositories=true -o Acquire::Retries=0";
    let script = format!(
        "mkdir -p state/lists/partial cache/archives/partial; touch status; \
         apt-get {options} update; apt-cache {options} policy thing"
    );
    let ran = Sandbox::new(&folder, &HOSTS, &format!("app.test:{port}")).script(&script);
    assert!(ran.text.contains("Candidate: 1.2.3"), "{}", ran.text);
    let ran = Sandbox::new(&folder, &HOSTS, "other.test").script(&script);
    assert!(ran.text.contains("refused: app.test: not on the list"), "{}", ran.text);
}
