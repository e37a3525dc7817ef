//! The texts of the demo: the edge's configuration, and the commands to try.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::certificates::{APP_NAME, ORIGIN_NAME, TemporaryFolder};
use eyelet_local_ca::{Authority, shell_word};

/// Where the servers behind the edge listen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) origin: SocketAddr,
    pub(super) app: SocketAddr,
}

/// A name without a rule.
const STRANGER_NAME: &str = "nobody.demo.test";

/// The file for access lines: the terminal has the status line.
pub fn access_log(folder: &TemporaryFolder) -> PathBuf {
    folder.path().join("access.log")
}

/// eyelet.toml: an edge with three rules.
pub fn configuration(
    port: u16,
    behind: &Addresses,
    authority: &Authority,
    folder: &TemporaryFolder,
) -> String {
    format!(
        r#"[[listener]]
address = "127.0.0.1:{port}"

[[rule]]
name = "origin"
sni = "{ORIGIN_NAME}"
action = "splice"                 # untouched: the origin holds the key, the edge does not
upstream = "{origin}"

[[rule]]
name = "app"
sni = ["{APP_NAME}", "localhost"]
action = "terminate"              # TLS ends here, the application speaks plain HTTP
certificate = "local"             # signed here for the name, by an authority of the demo's own
upstream = "http://{app}"

[[rule]]
name = "rest"
action = "refuse"                 # with the TLS alert that says why

[local]
folder = {folder}

[log]
access = {log}
"#,
        origin = behind.origin,
        app = behind.app,
        folder = quoted(authority.folder()),
        log = quoted(&access_log(folder)),
    )
}

/// A TOML basic string: JSON's escapes are a subset of TOML's.
fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy()).to_string()
}

/// The commands to try. Each line of a command begins with two spaces and is one shell command.
pub fn invitation(edge: SocketAddr, ca: &Path, access_log: &Path) -> String {
    let port = edge.port();
    let ca = shell_word(ca);
    let curl = |options: &str, name: &str, path: &str| {
        format!(
            "  curl {options}--cacert {ca} --resolve {name}:{port}:127.0.0.1 \
             'https://{name}:{port}{path}'\n"
        )
    };
    let openssl = |options: &str, name: &str| {
        format!(
            "  openssl s_client -connect 127.0.0.1:{port} -servername {name} -CAfile {ca} \
             {options}</dev/null\n"
        )
    };
    let mut text = format!("The edge listens on {edge}. Access log: {}\n", access_log.display());
    let mut part = |title: &str, lines: &[String]| {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n{title}\n{}", lines.concat());
    };
    part(
        "Terminated at the edge; the application speaks plain HTTP:",
        &[
            curl("", APP_NAME, "/api/items"),
            curl("", APP_NAME, "/api/time"),
            curl("-N --max-time 5 ", APP_NAME, "/events"),
            curl("-o /dev/null ", APP_NAME, "/big?bytes=104857600"),
            openssl("-brief ", APP_NAME),
        ],
    );
    part(
        "Spliced through; the origin holds the key:",
        &[curl("", ORIGIN_NAME, "/"), openssl("-brief ", ORIGIN_NAME)],
    );
    part(
        "Refused, with the alert unrecognized_name:",
        &[curl("", STRANGER_NAME, "/"), openssl("", STRANGER_NAME)],
    );
    part(
        "In a browser, if it trusts this ca.pem (or you click past the warning):",
        &[format!("  https://localhost:{port}/\n")],
    );
    text.push_str("\nCtrl-C drains the edge, ends the demo and deletes its folder.\n\n");
    text
}
