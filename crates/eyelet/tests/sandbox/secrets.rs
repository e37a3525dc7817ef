//! Usual programs in a sandbox use secrets that they never have: the server gets them, and nothing
//! inside does.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use crate::clients::HOSTS;
use crate::ground::{Sandbox, is_possible, report};
use crate::support::pki::Kind;
use crate::support::{Pki, Upstream, need};

const TOKEN: &str = "ghp_0123456789abcdefghij";
const GITHUB: &str = "EYELET_SECRET_GITHUB";
/// A profile that is given a secret for one of its names.
const PROFILE: &str = "[sandbox.p]\nallow = [\"app.test:PORT\", \"other.test:PORT\"]\n\
    secrets = [\"EYELET_SECRET_GITHUB\"]\n\
    [[sandbox.p.rule]]\naction = \"terminate\"\ncertificate = \"mint\"\nupstream_ca = \"ca.pem\"\n\
    [[secret]]\nplaceholder = \"EYELET_SECRET_GITHUB\"\nnames = [\"app.test\"]\n\
    headers = [\"authorization\", \"x-vendor-key\"]\n";

/// A server that wants a token, and a folder with a profile for it.
struct Given {
    pki: Pki,
    app: Upstream,
    /// The credentials that came.
    seen: Arc<Mutex<Vec<String>>>,
}

impl Given {
    /// `source` is where the secret comes from.
    fn new(source: &str) -> Self {
        let pki = Pki::new();
        pki.folder.write("token", format!("{TOKEN}\n"));
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let leaf = pki.server("app", &["app.test", "other.test"], Kind::P256);
        let noted = seen.clone();
        let app = Upstream::tls(leaf, move |stream| answer(stream, &noted));
        let port = app.address.port().to_string();
        let profile = format!("{PROFILE}{source}").replace("PORT", &port);
        pki.folder.write("profiles.toml", profile);
        Self { pki, app, seen }
    }

    /// Runs a script, with `AT` for the host and the port of the server.
    fn says(&self, script: &str) -> String {
        let script = script.replace("AT", &format!("app.test:{}", self.app.address.port()));
        let script = script.replace("PORT", &self.app.address.port().to_string());
        let mut sandbox = Sandbox::without_list(&self.pki.folder, &HOSTS);
        sandbox.command.env_remove("JAVA_TOOL_OPTIONS").env_remove("SSL_CERT_FILE");
        sandbox = sandbox.option("--config", "profiles.toml").option("--profile", "p");
        sandbox.option("--report", "report.json").script(&script).text
    }

    /// Credentials that the server has seen.
    fn seen(&self) -> String {
        self.seen.lock().unwrap().join("\n")
    }
}

/// Answers requests until the client ends: a repository to those with a token, a challenge to
/// others.
fn answer(stream: &mut (impl Read + Write), seen: &Mutex<Vec<String>>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while let Ok(1) = stream.read(&mut byte) {
        head.push(byte[0]);
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        let text = String::from_utf8_lossy(&head).into_owned();
        head.clear();
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let given = field("authorization: ").or(field("x-vendor-key: "));
        seen.lock().unwrap().extend(given.map(str::to_owned));
        let answer = match given {
            None => "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"a\"\r\n\
                Content-Length: 0\r\n\r\n"
                .to_owned(),
            Some(_) if text.contains("/HEAD ") => {
                "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned()
            }
            Some(_) => {
                let body = format!("{}\trefs/heads/main\n", "1".repeat(40));
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length";
                format!("{head}: {}\r\n\r\n{body}", body.len())
            }
        };
        if stream.write_all(answer.as_bytes()).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

fn basic(user: &str) -> String {
    use base64::Engine;
    format!("Basic {}", base64::prelude::BASE64_STANDARD.encode(user))
}

/// Runs a program whose request gets this credential, although it does not have it.
fn run_client(program: &str, script: &str, expected: &str) {
    if !is_possible() || !need(program) {
        return;
    }
    let given = Given::new("file = \"token\"\n");
    let said = given.says(script);
    assert!(said.contains("refs/heads/main"), "{said}");
    assert_eq!(given.seen().lines().last(), Some(expected), "{said}");
    assert!(!said.contains(TOKEN), "{said}");
}

#[test]
fn git_sends_a_token_by_an_extra_header() {
    let script = "git -c \"http.extraHeader=Authorization: Bearer $EYELET_SECRET_GITHUB\" \
        ls-remote https://AT/repo";
    run_client("git", script, &format!("Bearer {TOKEN}"));
}

#[test]
fn git_sends_a_token_of_its_url() {
    let script = "git ls-remote https://me:$EYELET_SECRET_GITHUB@AT/repo";
    run_client("git", script, &basic(&format!("me:{TOKEN}")));
}

#[test]
fn curl_sends_a_vendors_field() {
    let script = "curl -sS -H \"X-Vendor-Key: $EYELET_SECRET_GITHUB\" https://AT/";
    run_client("curl", script, TOKEN);
}

#[test]
fn python_sends_a_token() {
    let script = "python3 -c 'import os, urllib.request as r
q = r.Request(\"https://AT/\", headers={\"Authorization\": \
        \"token \" + os.environ[\"EYELET_SECRET_GITHUB\"]})
print(r.urlopen(q).read())'";
    run_client("python3", script, &format!("token {TOKEN}"));
}

/// It reads its own file, which has the name of the variable.
#[test]
fn npm_sends_a_token_of_its_file() {
    if !is_possible() || !need("npm") {
        return;
    }
    let given = Given::new("file = \"token\"\n");
    let said = given.says(
        "export HOME=$PWD; echo '//AT/:_authToken=${EYELET_SECRET_GITHUB}' >.npmrc; \
        npm --fetch-retries 0 --registry https://AT/ whoami",
    );
    let seen = given.seen();
    assert!(!seen.is_empty(), "{said}");
    assert!(seen.lines().all(|one| one == format!("Bearer {TOKEN}")), "{seen}: {said}");
    assert!(!said.contains(TOKEN), "{said}");
}

#[test]
fn node_sends_a_token() {
    let script = "node -e 'fetch(\"https://AT/\", { headers: { authorization: \
        \"Bearer \" + process.env.EYELET_SECRET_GITHUB } }).then(r => r.text()).then(console.log)'";
    run_client("node", script, &format!("Bearer {TOKEN}"));
}

#[test]
fn a_command_outside_prints_the_secret() {
    if !is_possible() || !need("curl") {
        return;
    }
    let given = Given::new("command = [\"cat\", \"token\"]\n");
    let bearer = "curl -sS -H \"Authorization: Bearer $EYELET_SECRET_GITHUB\" https://AT/";
    given.says(bearer);
    assert_eq!(given.seen(), format!("Bearer {TOKEN}"));
    // One that fails: the command is not started.
    let given = Given::new("command = [\"false\"]\n");
    let said = given.says("echo started");
    assert!(said.contains("the command false has failed") && !said.contains("started"), "{said}");
}

#[test]
fn nothing_inside_has_the_secret() {
    if !is_possible() || !need("curl") {
        return;
    }
    let given = Given::new("file = \"token\"\n");
    let said = given.says(
        "cat token profiles.toml; env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; \
         grep -rs g[h]p_ . /run /tmp /dev/shm; \
         curl -sS -H \"Authorization: Bearer $EYELET_SECRET_GITHUB\" https://AT/; \
         curl -sS -H \"Authorization: Bearer $EYELET_SECRET_GITHUB\" https://other.test:PORT/; \
         curl -sS https://AT/?t=$EYELET_SECRET_GITHUB",
    );
    assert!(said.contains("EYELET_SECRET_GITHUB=EYELET_SECRET_GITHUB"), "{said}");
    assert!(said.contains("refs/heads/main"), "{said}");
    assert!(!said.contains("0123456789abcdef"), "{said}");
    assert_eq!(given.seen(), format!("Bearer {TOKEN}"), "one request had it");
    for why in ["in a request to other.test", "in a URL"] {
        let refusal = format!("secret: {GITHUB} may not stand {why}");
        assert!(said.contains(&refusal), "{refusal}: {said}");
    }
    // Each name has a rule that reads it.
    assert!(!said.contains("placeholders pass"), "{said}");
    let report = report(given.pki.folder.path()).to_string();
    assert!(report.contains("may not stand in a URL") && !report.contains("ghp_"), "{report}");
}

#[test]
fn names_that_no_rule_reads_are_told_once() {
    if !is_possible() {
        return;
    }
    let given = Given::new("file = \"token\"\n");
    let file = given.pki.folder.path().join("profiles.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    given
        .pki
        .folder
        .write("profiles.toml", text.replace("ca.pem\"", "ca.pem\"\nsni = \"app.test\""));
    let said = given.says("echo started");
    let note = "no rule reads what goes to other.test: placeholders pass as they are";
    assert_eq!((said.matches(note).count(), said.contains("started")), (1, true), "{said}");
}

#[test]
fn a_secret_whose_names_are_spliced_is_an_error() {
    if !is_possible() {
        return;
    }
    let given = Given::new("file = \"token\"\n");
    let file = given.pki.folder.path().join("profiles.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("names = [\"app.test\"]", "names = [\"elsewhere.test\"]");
    given.pki.folder.write("profiles.toml", text);
    let said = given.says("echo started");
    assert!(said.contains("no rule with `certificate = \"mint\"` has elsewhere.test"), "{said}");
    assert!(!said.contains("started"), "{said}");
}
