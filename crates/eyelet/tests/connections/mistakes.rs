//! Mistakes of a new user on the command line: each message says what was expected, or what to do.
//! Mistakes in the configuration have their tests in `config`.

use std::net::TcpListener;

use crate::support::edge::eyelet;
use crate::support::pki::Kind;
use crate::support::{Folder, Pki, Said, output};

/// Runs this command line in a folder, whose owner it takes for the user.
fn typed(folder: &Folder, line: &str) -> Said {
    let mut command = eyelet(folder);
    command.current_dir(folder.path()).env("HOME", folder.path());
    output(command.args(line.split(' ')))
}

#[track_caller]
fn check(folder: &Folder, line: &str, status: i32, expected: &str) {
    let said = typed(folder, line);
    assert!(said.text.contains(expected), "{line}: {}", said.text);
    assert_eq!(said.status.code(), Some(status), "{line}: {}", said.text);
    assert!(!said.text.contains("panicked"), "{line}: {}", said.text);
}

const REFUSES: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\n[[rule]]\naction = \"refuse\"\n";

#[test]
fn a_command_line_with_a_mistake_says_what_was_expected() {
    let folder = Folder::new();
    folder.write("edge.toml", REFUSES);
    for (line, status, expected) in [
        ("serve absent.toml", 2, "absent.toml: error: cannot be read: No such file"),
        ("reload edge.toml", 1, "serves edge.toml: `eyelet serve edge.toml` starts one"),
        ("upgrade edge.toml", 1, "`eyelet serve edge.toml` starts one; ask another user's as"),
        ("explain edge.toml --log-line nonsense", 2, "expected a line of an access log in JSON"),
        ("explain edge.toml --log-line absent.log", 2, "\"-\" to read one from standard input"),
        ("explain edge.toml --log-line -", 2, "--log-line: there is no line on standard input"),
        ("explain edge.toml --destination 1.2.3.4", 2, "expected IP:PORT, such as 192.0.2.7:443"),
        ("explain edge.toml --connect a", 2, "expected HOST:PORT, such as app.example:443"),
        ("explain edge.toml --help", 0, "tail -n 1 access.log | eyelet explain"),
        ("explain edge.toml --log-line edge.toml", 2, "tail -n 1 edge.toml | eyelet explain"),
        ("explain edge.toml --listener x", 2, "expected one of \"127.0.0.1:0\""),
        ("run", 2, "<CMD>"),
        ("run --listen 8443 -- true", 2, "an address and a port, such as 127.0.0.1:8443"),
        ("run --listen 0.0.0.0:9 --port 9 -- true", 1, "port 9 is the command's, by --port"),
        ("run --hold 5 -- true", 2, "time unit needed, for example 5sec"),
        ("run --hold 11m -- true", 2, "expected at most 10m"),
        ("run --watch edge.toml -- true", 1, "cannot watch edge.toml: it is a file; name its"),
        ("run --name https://app.localhost -- true", 2, "a host name, such as app.localhost"),
        ("run --name 192.168.1.5 -- true", 2, "say --listen 192.168.1.5:8443 and a name"),
        ("run --name fd00::5 -- true", 2, "say --listen [fd00::5]:8443 and a name"),
        ("run --ca-folder ca --name a.example.com -- true", 1, "or give --certificate and --key"),
        ("proxy app.localhost", 2, "such as app.localhost=127.0.0.1:3000"),
        ("proxy app.localhost=:8000", 2, "such as app.localhost=127.0.0.1:8000"),
        ("proxy --share lan app=127.0.0.1:1", 2, "here say --listen with an address of this"),
        ("proxy --ca-folder ca --upstream-ca ca.pem app=127.0.0.1:1", 1, "none of these is one"),
        ("run --share 192.168.254.254 -- true", 2, "is not an address of this machine; `ip -4"),
        ("trust --folder other-ca", 0, "`eyelet run`, `eyelet proxy`, `eyelet cert`, and"),
        ("proxy app.localhost=8000", 2, "such as app.localhost=127.0.0.1:8000"),
        ("probe app.example", 2, "expected HOST:PORT, such as www.example:443 or [::1]:8443"),
        ("probe app.example:443 --get", 2, "--memory"),
        ("probe 127.0.0.1:1 --memory --svg absent/a.svg", 2, "absent/a.svg: No such file"),
        ("top edge.toml", 2, "the configuration has no [admin]: add it, or name a --socket"),
        ("cert shop --folder ca", 0, "shop.localhost.pem"),
        ("cert app.localhost --folder ca --out absent", 1, "--out names a folder that is there"),
        ("cert app.example.com --folder ca", 1, "eyelet trust --permit app.example.com --folder"),
        ("trust --folder absent", 0, "`eyelet trust --install --folder absent`"),
    ] {
        check(&folder, line, status, expected);
    }
}

/// A container from scratch has no CA certificates: `serve` would not start.
#[test]
fn check_misses_the_authorities_that_serve_needs() {
    let folder = Folder::new();
    let none = folder.write("none.pem", "");
    folder.write(
        "edge.toml",
        "[[listener]]\nkind = \"plain\"\naddress = \"127.0.0.1:0\"\n[[rule]]\n\
         action = \"originate\"\nupstream = \"https://a.example:443\"\n",
    );
    for word in ["check", "serve"] {
        let mut command = eyelet(&folder);
        command.current_dir(folder.path()).env("SSL_CERT_FILE", &none).env("SSL_CERT_DIR", "");
        let said = output(command.args([word, "edge.toml"]));
        assert!(said.text.contains("no certificate found; install ca-certificates"), "{said:?}");
        assert_eq!(said.status.code(), Some(if word == "check" { 2 } else { 1 }), "{said:?}");
    }
}

#[test]
fn a_key_a_port_or_a_program_that_does_not_fit_is_named() {
    let pki = Pki::new();
    pki.server("app", &["app.localhost"], Kind::P256);
    pki.server("other", &["app.localhost"], Kind::P256);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let given = "--certificate app.pem --key";
    for (line, status, expected) in [
        (
            format!("proxy --listen 127.0.0.1:0 {given} other.key app.localhost=127.0.0.1:1"),
            1,
            "the key in other.key does not fit the certificate in app.pem",
        ),
        (
            format!("proxy --listen {address} {given} app.key app.localhost=127.0.0.1:1"),
            1,
            "another process holds it; `ss -ltnp` shows which",
        ),
        (
            format!("run --listen 127.0.0.1:0 {given} app.key no-such-program --flag"),
            127,
            "cannot start the command: no-such-program: no such program in PATH",
        ),
    ] {
        check(&pki.folder, &line, status, expected);
    }
}

/// Clap shows the comments of arguments as they are.
#[test]
fn no_help_has_escapes_that_are_for_rustdoc() {
    fn helps(command: &mut clap::Command, found: &mut Vec<String>) {
        found.push(command.render_long_help().to_string());
        command.get_subcommands_mut().for_each(|inner| helps(inner, found));
    }
    let mut found = Vec::new();
    helps(&mut eyelet::command::cli::definition(), &mut found);
    let bad: Vec<&String> = found.iter().filter(|text| text.contains('\\')).collect();
    assert!(found.len() > 12 && bad.is_empty(), "{bad:?}");
}

/// A filter with a mistake would silently be another one.
#[test]
fn a_filter_of_messages_with_a_mistake_is_named() {
    let folder = Folder::new();
    folder.write("edge.toml", REFUSES);
    for (filter, is_fine) in [("eyelet=loud", false), ("eyelet=debug", true), ("warn", true)] {
        let mut command = eyelet(&folder);
        command.current_dir(folder.path()).args(["check", "edge.toml"]).env("EYELET_LOG", filter);
        let said = output(&mut command);
        assert!(said.status.success(), "{filter}: {}", said.text);
        let warning = "EYELET_LOG cannot be read and does not count; expected a level";
        assert_eq!(said.text.contains(warning), !is_fine, "{filter}: {}", said.text);
    }
}
