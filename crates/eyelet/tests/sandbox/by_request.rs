//! Rules on requests in a profile: real git fetches from one organisation of a real git server, and
//! pushes nowhere; npm installs, and publishes nothing.

use std::path::PathBuf;
use std::process::Command;

use crate::ground::{Sandbox, is_possible, report};
use crate::support::pki::Kind;
use crate::support::{Pki, Talk, need, output};

const HOSTS: [(&str, &str); 1] = [("forge.test", "127.0.0.1")];
/// The model example of the manual, and a profile that may do all. npm has a rule of its own.
const PROFILES: &str = r#"
[sandbox.reads]
allow = ["forge.test:PORT"]

[[sandbox.reads.rule]]
name = "look"
action = "terminate"
certificate = "mint"
upstream_ca = "ca.pem"
method = "GET"
path = ["/org/*", "/npm/*"]

[[sandbox.reads.rule]]
name = "fetch"
action = "terminate"
certificate = "mint"
upstream_ca = "ca.pem"
method = "POST"
path = "/org/*/git-upload-pack"

[sandbox.mixed]
allow = ["forge.test:PORT"]

[[sandbox.mixed.rule]]
sni = "forge.test"
action = "terminate"
certificate = "mint"
upstream_ca = "ca.pem"

[[sandbox.mixed.rule]]
name = "never"
action = "terminate"
certificate = "mint"
upstream_ca = "ca.pem"
path = "/never/*"

[sandbox.writes]
allow = ["forge.test:PORT"]

[[sandbox.writes.rule]]
action = "terminate"
certificate = "mint"
upstream_ca = "ca.pem"
"#;
const USER: &str = "-c user.name=a -c user.email=a@app.test";

/// A git server with a repository for each of two organisations, and the folder of its clients.
struct Forge {
    pki: Pki,
    server: Talk,
    port: u16,
}

impl Forge {
    fn new() -> Self {
        let pki = Pki::new();
        pki.server("forge", &["forge.test"], Kind::P256);
        let script = format!(
            "set -e; export HOME=$PWD; git init -q -b main work; cd work; echo text >file; \
             git add file; git {USER} commit -q -m first; \
             for at in org other; do git clone -q --bare . ../served/$at/repo; \
             git -C ../served/$at/repo config http.receivepack true; done"
        );
        let made = output(Command::new("sh").args(["-c", &script]).current_dir(pki.folder.path()));
        assert!(made.status.success(), "{}", made.text);
        let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs/forge.py");
        let mut server = Command::new("python3");
        server.arg(program).arg(pki.folder.path().join("served"));
        let server = Talk::start(server.args([pki.text("forge.pem"), pki.text("forge.key")]));
        let port = server.port();
        pki.folder.write("profiles.toml", PROFILES.replace("PORT", &port.to_string()));
        Self { pki, server, port }
    }

    /// Returns what a script says in a sandbox of a profile. `AT` is the forge.
    fn says(&self, profile: &str, script: &str) -> String {
        self.says_with(profile, script, &[])
    }

    /// Returns what a script says in a sandbox of a profile with these flags.
    fn says_with(&self, profile: &str, script: &str, flags: &[&str]) -> String {
        let at = format!("https://forge.test:{}", self.port);
        let script = format!("export HOME=$PWD; {}", script.replace("AT", &at));
        let mut sandbox = Sandbox::without_list(&self.pki.folder, &HOSTS);
        // This machine may have its own.
        for variable in ["GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "NPM_CONFIG_CAFILE"] {
            sandbox.command.env_remove(variable);
        }
        sandbox.command.args(flags);
        let sandbox = sandbox.option("--config", "profiles.toml").option("--profile", profile);
        sandbox.script(&script).text
    }

    /// Returns whether the server has had such a request.
    fn has_had(&self, request: &str) -> bool {
        self.server.said().contains(request)
    }

    /// The newest commit of a repository.
    fn head_of(&self, organisation: &str) -> String {
        let mut git = Command::new("git");
        git.arg("-C").arg(self.pki.folder.path().join("served").join(organisation).join("repo"));
        let said = output(git.args(["log", "--format=%s", "-n", "1", "main"]));
        said.text.trim().to_owned()
    }
}

#[test]
fn git_fetches_from_one_organisation_and_pushes_nowhere() {
    if !is_possible() || !need("git") || !need("python3") {
        return;
    }
    let forge = Forge::new();
    let ran = forge.says(
        "reads",
        "git clone AT/org/repo got && cat got/file && cd got && \
        git fetch -v",
    );
    assert!(ran.contains("text\n") && ran.contains("[up to date]"), "{ran}");
    assert!(forge.has_had("POST /org/repo/git-upload-pack"), "{}", forge.server.said());

    let ran = forge.says("reads", "git clone AT/other/repo theirs; ls theirs");
    assert!(ran.contains("remote: GET: no rule for this request."), "{ran}");
    assert!(ran.contains("The requested URL returned error: 403"), "{ran}");
    assert!(!forge.has_had("/other/"), "{}", forge.server.said());

    let push = format!(
        "cd got && echo more >>file && git {USER} commit -q -a -m MARK && \
        git push AT/org/repo HEAD:main"
    );
    let ran = forge.says("reads", &push.replace("MARK", "second"));
    assert!(ran.contains("error: RPC failed; HTTP 403"), "{ran}");
    let said =
        format!("refused: POST forge.test:{}/org/repo/git-receive-pack: no rule", forge.port);
    assert!(ran.contains(&said), "{ran}");
    // The announcement is a GET, and passes. What would store the commit does not.
    assert!(forge.has_had("GET /org/repo/info/refs?service=git-receive-pack"), "{ran}");
    assert!(!forge.has_had("POST /org/repo/git-receive-pack"), "{ran}");
    assert_eq!(forge.head_of("org"), "first");

    // It is the rule that refused, not the server.
    let ran = forge.says("writes", &push.replace("MARK", "third"));
    assert_eq!(forge.head_of("org"), "third", "{ran}");
}

#[test]
fn a_refused_request_is_in_the_report_and_a_dry_run_says_that_it_would_be() {
    if !is_possible() || !need("git") || !need("python3") || !need("curl") {
        return;
    }
    let forge = Forge::new();
    let script = "curl -s -o /dev/null -w '%{http_code} ' AT/org/repo/HEAD; \
        curl -s -o /dev/null -w '%{http_code} ' -X PUT 'AT/other/repo?a-secret'";
    let report = || report(forge.pki.folder.path());
    let place = format!("forge.test:{}", forge.port);

    let ran = forge.says_with("reads", script, &["--report", "report.json"]);
    assert!(ran.starts_with("200 403 "), "{ran}");
    let said = format!("refused: PUT {place}/other/repo: no rule for this request, once");
    assert!(ran.contains(&said) && !ran.contains("a-secret"), "{ran}");
    let refused = &report()["refused"][0];
    for (field, value) in [
        ("method", "PUT"),
        ("path", "/other/repo"),
        ("name", "forge.test"),
        ("program", "curl"),
        ("reason", "no rule for this request"),
    ] {
        assert_eq!(refused[field], value, "{refused}");
    }
    let time = refused["time"].as_str().unwrap();
    assert!(time.ends_with('Z') && time.contains('T'), "{refused}");

    let ran = forge.says_with("reads", script, &["--dry-run", "--report", "report.json"]);
    assert!(!ran.contains("403 "), "{ran}");
    assert!(forge.has_had("PUT /other/repo"), "{}", forge.server.said());
    assert!(ran.contains(&format!("would be {said}")), "{ran}");
    let report = report();
    assert_eq!(report["refused"].as_array().map(Vec::len), Some(0), "{report}");
    let would = report["would_be_refused"].as_array().unwrap();
    assert_eq!((would.len(), &would[0]["path"]), (1, &"/other/repo".into()), "{report}");
}

/// The rule that takes each request reads no path, so one that could be read in two ways passes.
#[test]
fn a_dry_run_says_only_what_would_be_refused_without_it() {
    if !is_possible() || !need("git") || !need("python3") || !need("curl") {
        return;
    }
    let forge = Forge::new();
    let script = "curl -s -o /dev/null -w '%{http_code} ' 'AT/@scope%2fname'; \
        curl -s -o /dev/null -w '%{http_code} ' -H 'X-Original-URL: /x' AT/org/repo/HEAD";
    let ran = forge.says("mixed", script);
    assert!(!ran.contains("403 "), "{ran}");
    let ran = forge.says_with("mixed", script, &["--dry-run", "--report", "report.json"]);
    assert!(!ran.contains("would be refused"), "{ran}");
    let report = report(forge.pki.folder.path());
    assert_eq!(report["would_be_refused"].as_array().map(Vec::len), Some(0), "{report}");
    assert_eq!(report["connections"], 2, "{report}");
}

#[test]
fn npm_installs_and_publishes_nothing() {
    if !is_possible() || !need("git") || !need("python3") || !need("npm") {
        return;
    }
    let forge = Forge::new();
    let npm = "npm --fetch-retries 0 --registry AT/npm/";
    let ran = forge.says(
        "reads",
        &format!(
            "mkdir app; cd app; {npm} install thing; \
        grep version node_modules/thing/package.json"
        ),
    );
    assert!(ran.contains("added 1 package") && ran.contains("1.2.3"), "{ran}");

    let manifest = r#"{"name":"thing","version":"1.2.4"}"#;
    let login = format!("//forge.test:{}/npm/:_authToken=x", forge.port);
    let publish = format!(
        "mkdir -p mine; cd mine; echo '{manifest}' >package.json; \
        echo '{login}' >.npmrc; {npm} publish"
    );
    let ran = forge.says("reads", &publish);
    assert!(ran.contains("E403") && ran.contains("PUT "), "{ran}");
    assert!(!forge.has_had("PUT "), "{}", forge.server.said());
    let ran = forge.says("writes", &publish);
    assert!(ran.contains("+ thing@1.2.4"), "{ran}");
    assert!(forge.has_had("PUT /npm/thing"), "{}", forge.server.said());
}
