//! The texts of the demo: the edge's configuration, and what the terminal shows.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::identity::{APP_NAME, CROWD_NAME, NOBODY_NAME, ORIGIN_NAME, TemporaryFolder};
use eyelet_local_ca::{Authority, shell_word};

/// The file for access lines: the terminal has the status line.
pub(crate) fn access_log(folder: &TemporaryFolder) -> PathBuf {
    folder.path().join("access.log")
}

/// The socket of the application behind the page. No other user and no browser reaches it.
pub(crate) fn app_socket(folder: &TemporaryFolder) -> PathBuf {
    folder.path().join("app.sock")
}

/// eyelet.toml. The gateway is the last listener.
pub(crate) fn configuration(
    listen: &[SocketAddr],
    origin: SocketAddr,
    authority: &Authority,
    folder: &TemporaryFolder,
) -> String {
    let mut text = String::new();
    for address in listen {
        // A port of 0 changes, a name does not.
        let name = if address.is_ipv4() { "page" } else { "page by IPv6" };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "[[listener]]\nname = \"{name}\"\naddress = \"{address}\"\n");
    }
    text + GATEWAY + &page_rules(origin, folder) + &tables(authority, folder)
}

const GATEWAY: &str = r#"[[listener]]
name = "gateway"
address = "127.0.0.1:0"
kind = "connect"                  # clients say by CONNECT where they want to go

[[rule]]
name = "lies"
listener = "gateway"
sni_verified = false              # the destination cannot prove the name in the hello
evidence = "certificate"
action = "refuse"

[[rule]]
name = "truths"
listener = "gateway"
action = "splice"
upstream = "destination"
upstream_allow = "127.0.0.0/8"    # the demo's destination is on this machine

"#;

fn page_rules(origin: SocketAddr, folder: &TemporaryFolder) -> String {
    let upstream = PathBuf::from(format!("http+unix:{}", app_socket(folder).display()));
    format!(
        r#"[[rule]]
name = "origin"
sni = "{ORIGIN_NAME}"
action = "splice"                 # untouched: the origin holds the key, the edge does not
upstream = "{origin}"

[[rule]]
name = "app"
sni = "{APP_NAME}"
action = "terminate"              # TLS ends here, the application speaks plain HTTP
certificate = "local"             # signed here for the name, by an authority of the demo's own
upstream = {upstream}
proxy_protocol = "v2"             # the page shows its own connection, so it must know which
compress_effort = "small"
dictionary = "/manual/*.txt"

[[rule]]
name = "crowd"
sni = "{CROWD_NAME}"        # the connections that the page parks
action = "terminate"
certificate = "local"
upstream = {upstream}

[[rule]]
name = "rest"
action = "refuse"                 # with the TLS alert that says why

"#,
        upstream = quoted(&upstream),
    )
}

fn tables(authority: &Authority, folder: &TemporaryFolder) -> String {
    format!(
        r#"[local]
folder = {folder}

[evidence]
ca = {ca}

[dictionary]
path = {dictionaries}

[limits]
drain_timeout = "1s"

[log]
access = {log}
decided = true
"#,
        folder = quoted(&authority.folder),
        ca = quoted(&authority.certificate_path()),
        dictionaries = quoted(&folder.path().join("dictionaries")),
        log = quoted(&access_log(folder)),
    )
}

/// A TOML basic string: JSON's escapes are a subset of TOML's.
fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy()).to_string()
}

/// Host and port of a URL.
pub(crate) fn authority_of(name: &str, port: u16) -> String {
    if port == HTTPS { name.to_owned() } else { format!("{name}:{port}") }
}

/// The port that a URL need not name.
const HTTPS: u16 = 443;

/// Returns the first text on the terminal. A line that begins with two spaces is one to open or to
/// run.
pub(crate) fn invitation(port: u16, ca: &Path, configuration: &Path) -> String {
    let ca = shell_word(ca);
    let url = |name: &str| format!("https://{}/", authority_of(name, port));
    let curl = |name: &str, path: &str| format!("  curl --cacert {ca} {}{path}\n", url(name));
    let mut text = format!(
        "Open this page in a browser on this machine:\n\n  {}\n\nThe browser warns once: the \
         certificate is by the demo's own authority, which nothing trusts.\n",
        url(APP_NAME)
    );
    for (title, command) in [
        ("Terminated at the edge; here is your hello, taken apart:", curl(APP_NAME, "api/hello")),
        ("Spliced through; the origin holds the key:", curl(ORIGIN_NAME, "")),
        ("Refused, with the alert unrecognized_name:", curl(NOBODY_NAME, "")),
    ] {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n{title}\n{command}");
    }
    let file = configuration.display();
    let _ = write!(text, "\nThe configuration is {file}. Ctrl-C ends the demo.\n\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_terminals_lines_are_short() {
        let folder = Path::new("/tmp/eyelet-demo-012345");
        let text = invitation(65535, &folder.join("ca/ca.pem"), &folder.join("eyelet.toml"));
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(100), "{longest:?} in:\n{text}");
    }

    #[test]
    fn a_url_does_not_name_the_port_of_https() {
        assert_eq!(authority_of("a.localhost", 443), "a.localhost");
        assert_eq!(authority_of("a.localhost", 8443), "a.localhost:8443");
    }
}
