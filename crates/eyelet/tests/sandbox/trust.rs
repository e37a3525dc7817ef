//! Usual programs trust what a rule of a profile mints, by the variables that they are given and by
//! nothing else. None of them knows the authority of the server's own certificate.

use std::path::Path;

use crate::clients::{CLIENTS, HOSTS, server, write_programs};
use crate::ground::{Hosts, Sandbox, is_possible};
use crate::support::{Pki, Upstream, need, output};

/// A profile: two names, of which the run's authority signs one.
const PROFILE: &str = "[sandbox.p]\nallow = [\"app.test:PORT\", \"other.test:PORT\"]\n\
    [[sandbox.p.rule]]\nname = \"pins\"\nsni = \"other.test\"\naction = \"splice\"\n\
    [[sandbox.p.rule]]\naction = \"terminate\"\ncertificate = \"mint\"\nupstream_ca = \"ca.pem\"\n";

/// The variables that a run sets.
const VARIABLES: [&str; 12] = [
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "CURL_CA_BUNDLE",
    "DENO_CERT",
    "GIT_SSL_CAINFO",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "JAVA_TOOL_OPTIONS",
    "NODE_EXTRA_CA_CERTS",
    "NPM_CONFIG_CAFILE",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
];
/// A part of pip's message where it trusts nothing.
const PIP_REFUSES: &str = "CERTIFICATE_VERIFY_FAILED";

/// Prints the issuer that a client of TLS has seen, by the variables alone.
const ISSUER: &str = "openssl s_client -connect app.test:PORT -servername app.test \
    -verify_return_error </dev/null 2>&1 | grep -E '^issuer|Verif'";

/// A server, and a sandbox of the profile for it.
struct Opened {
    pki: Pki,
    app: Upstream,
}

impl Opened {
    fn new() -> Self {
        let pki = Pki::new();
        write_programs(&pki.folder);
        let app = server(&pki);
        let opened = Self { pki, app };
        opened.profile(PROFILE);
        opened
    }

    fn port(&self) -> String {
        self.app.address.port().to_string()
    }

    fn profile(&self, text: &str) {
        self.pki.folder.write("profiles.toml", text.replace("PORT", &self.port()));
    }

    fn sandbox(&self) -> Sandbox {
        self.sandbox_at(&HOSTS)
    }

    fn sandbox_at(&self, hosts: Hosts<'_>) -> Sandbox {
        let mut sandbox = Sandbox::without_list(&self.pki.folder, hosts);
        for variable in VARIABLES {
            // This machine may have its own.
            sandbox.command.env_remove(variable);
        }
        sandbox.option("--config", "profiles.toml").option("--profile", "p")
    }

    /// Returns what a script says, with `AT` for a name and the port, and `PORT` for the port.
    fn says(&self, name: &str, script: &str) -> String {
        let at = format!("{name}:{}", self.port());
        self.sandbox().script(&script.replace("AT", &at).replace("PORT", &self.port())).text
    }
}

/// The script of a client without what it was told of the server's authority.
fn without_authority(script: &str) -> String {
    let java = script.split_once("2>/dev/null; ").map_or(script, |(_, run)| run);
    [
        " --cacert ca.pem",
        "GIT_SSL_CAINFO=$PWD/ca.pem ",
        "NODE_EXTRA_CA_CERTS=ca.pem ",
        "SSL_CERT_FILE=ca.pem ",
        " --cafile ca.pem",
        " CARGO_HTTP_CAINFO=ca.pem",
        " --isolated",
        " --cert ca.pem",
        "-Djavax.net.ssl.trustStore=trust.p12 ",
        "-Djavax.net.ssl.trustStorePassword=changeit ",
    ]
    .iter()
    .fold(java.to_owned(), |script, told| script.replace(told, ""))
}

/// Checks that a client refuses a minted name and a spliced one.
fn run_client(program: &str) {
    if !is_possible() || !need(program) {
        return;
    }
    let opened = Opened::new();
    let (_, script, said) = CLIENTS.iter().find(|(name, ..)| *name == program).unwrap();
    let script = without_authority(script);
    assert!(!script.contains("ca.pem") && !script.contains("trust.p12"), "{script}");
    let ran = opened.says("app.test", &script);
    assert!(ran.contains(said) && !ran.contains(PIP_REFUSES), "{ran}");
    assert!(!ran.contains("never dialled"), "{ran}");
    let ran = opened.says("other.test", &script);
    assert!(!ran.contains(said) || ran.contains(PIP_REFUSES), "{ran}");
    assert!(!ran.contains("connections: 0"), "{ran}");
}

#[test]
fn curl_trusts_what_the_run_mints() {
    run_client("curl");
}

#[test]
fn git_trusts_what_the_run_mints() {
    run_client("git");
}

#[test]
fn node_trusts_what_the_run_mints() {
    run_client("node");
}

#[test]
fn python_trusts_what_the_run_mints() {
    run_client("python3");
}

#[test]
fn npm_trusts_what_the_run_mints() {
    run_client("npm");
}

#[test]
fn cargo_trusts_what_the_run_mints() {
    run_client("cargo");
}

#[test]
fn pip_trusts_what_the_run_mints() {
    run_client("pip");
}

#[test]
fn java_trusts_what_the_run_mints() {
    run_client("java");
}

#[test]
fn go_trusts_what_the_run_mints() {
    run_client("go");
}

#[test]
fn the_issuer_is_the_runs_own_and_differs_from_run_to_run() {
    if !is_possible() || !need("openssl") {
        return;
    }
    let opened = Opened::new();
    let [first, second] = [(), ()].map(|()| {
        let said = opened.says("app.test", ISSUER);
        assert!(
            said.contains("Verify return code: 0 (ok)") || said.contains("Verification: OK"),
            "{said}"
        );
        let issuer = said.lines().find(|line| line.starts_with("issuer")).unwrap().to_owned();
        assert!(issuer.contains("Eyelet sandbox "), "{issuer}");
        issuer
    });
    assert_ne!(first, second);
    let spliced = opened.says("other.test", &ISSUER.replace("app.test", "other.test"));
    assert!(!spliced.contains("Eyelet sandbox") && spliced.contains("Verif"), "{spliced}");
}

#[test]
fn the_authority_has_the_names_of_the_list_and_no_key_that_can_be_read() {
    if !is_possible() || !need("openssl") {
        return;
    }
    let opened = Opened::new();
    let said = opened.says(
        "app.test",
        "exec 2>&1; openssl x509 -noout -text -in /run/eyelet/authority.pem; \
         grep -rl 'PRIVATE KEY' /run /tmp /proc/self/environ /proc/self/fd 2>/dev/null; \
         ls /run/eyelet; env | grep -c /run/eyelet/; \
         cat /proc/[0-9]*/environ 2>/dev/null | grep -c 'PRIVATE'; \
         touch /run/eyelet/x; rm /run/eyelet/bundle.pem; echo x >> /run/eyelet/bundle.pem",
    );
    let constraints = said.split_once("Name Constraints").unwrap().1;
    assert!(
        constraints.contains("DNS:app.test") && !constraints.contains("DNS:other.test"),
        "{said}"
    );
    assert!(
        constraints.contains("Excluded") && constraints.contains("IP:0.0.0.0/0.0.0.0"),
        "{said}"
    );
    assert!(said.contains("authority.pem\nbundle.pem\ntrust.p12\n11\n0\n"), "{said}");
    assert_eq!(said.matches("Read-only file system").count(), 3, "{said}");
    // No process of the edge is seen inside, whose memory has it.
    let seen = opened.says("app.test", "cat /proc/[0-9]*/comm | sort | uniq -c | tr -s ' '");
    assert!(!seen.contains("unshare"), "{seen}");
}

#[test]
fn a_store_for_java_opens_in_keytool() {
    if !is_possible() || !need("keytool") {
        return;
    }
    let opened = Opened::new();
    let list = "keytool -list -keystore /run/eyelet/trust.p12 -storetype PKCS12 \
        -storepass '' 2>&1 | grep -v 'root [1-9]'";
    let said = opened.says("app.test", list);
    assert!(said.contains("root 0, ") && said.contains("trustedCertEntry"), "{said}");
}

#[test]
fn what_the_caller_has_set_is_joined() {
    if !is_possible() || !need("curl") {
        return;
    }
    let opened = Opened::new();
    let own = opened.pki.folder.path().join("ca.pem");
    let run = |variable: &str, value: &Path, name: &str| {
        let mut sandbox = opened.sandbox();
        sandbox.command.env(variable, value);
        sandbox.script(&format!("curl -sS https://{name}:{}/text", opened.port())).text
    };
    for variable in ["SSL_CERT_FILE", "CURL_CA_BUNDLE"] {
        for name in ["app.test", "other.test"] {
            let said = run(variable, &own, name);
            assert!(said.contains("served /text"), "{variable}, {name}: {said}");
            assert!(said.contains("connections: 1, names: 1"), "{said}");
        }
    }
    let said = run("SSL_CERT_FILE", Path::new("/missing.pem"), "app.test");
    assert!(said.contains("SSL_CERT_FILE is /missing.pem, which cannot be read"), "{said}");
    assert!(!said.contains("served"), "{said}");
}

#[test]
fn print_env_says_what_would_be_set() {
    let opened = Opened::new();
    let mut sandbox = opened.sandbox().flag("--print-env");
    sandbox.command.env("JAVA_TOOL_OPTIONS", "-Dname='a b'");
    let said = output(&mut sandbox.command).text;
    for line in [
        "export SSL_CERT_FILE='/run/eyelet/bundle.pem'\n",
        "export NODE_EXTRA_CA_CERTS='/run/eyelet/authority.pem'\n",
        "export JAVA_TOOL_OPTIONS='-Dname='\\''a b'\\'' -Djavax.net.ssl.trustStore=/run/eyelet/",
    ] {
        assert!(said.contains(line), "{line} in {said}");
    }
    let sandbox = Sandbox::new(&opened.pki.folder, &HOSTS, "app.test").flag("--print-env");
    let said = { sandbox }.command.output().unwrap();
    assert!(said.status.success() && said.stdout.is_empty(), "{said:?}");
}

#[test]
fn a_minted_name_does_not_lead_to_private_addresses() {
    if !is_possible() || !need("curl") {
        return;
    }
    let opened = Opened::new();
    let script = format!("curl -sS https://app.test:{}/text", opened.port());
    // Of the private addresses 127.0.0.1 is allowed.
    for address in ["127.0.0.2", "169.254.169.254", "10.0.0.1"] {
        let said = opened.sandbox_at(&[("app.test", address)]).script(&script).text;
        assert!(said.contains("app.test:") && said.contains("internal address"), "{said}");
        assert!(!said.contains("served"), "{said}");
    }
}

#[test]
fn a_list_that_bounds_nothing_is_said() {
    if !is_possible() || !need("openssl") {
        return;
    }
    let opened = Opened::new();
    opened.profile(
        "[sandbox.p]\ndry_run = true\n[[sandbox.p.rule]]\naction = \"terminate\"\n\
        certificate = \"mint\"\nupstream_ca = \"ca.pem\"\n",
    );
    let said = opened.says("app.test", "openssl x509 -noout -text -in /run/eyelet/authority.pem");
    assert!(said.contains("no list bounds the run's authority: it may sign any name"), "{said}");
    assert!(!said.contains("Name Constraints"), "{said}");
}
