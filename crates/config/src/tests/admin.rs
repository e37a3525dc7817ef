//! The table [admin]: addresses, modes and tokens that are good, and mistakes.

use super::*;

#[test]
fn a_socket_needs_nothing_and_a_port_needs_a_token() {
    let settings = |text: &str| read(&format!("{LISTENER}{text}")).unwrap().config.admin;
    assert_eq!(settings(""), None);
    let unix = |path: &str, mode| Some(AdminSettings::Unix { path: path.into(), mode });
    assert_eq!(
        settings("[admin]\naddress = \"unix:/run/eyelet/admin.sock\"\n"),
        unix("/run/eyelet/admin.sock", 0o600)
    );
    assert_eq!(
        settings("[admin]\naddress = \"unix:a.sock\"\nmode = \"0660\"\n"),
        unix("a.sock", 0o660)
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    for (token, said) in [
        ("0123456789abcdef0123456789abcdef\n", None),
        ("short\n", Some("has 5 bytes; expected at least 32")),
        ("0123456789abcdef 123456789abcdef\n", Some("has blanks or bytes that are not ASCII")),
    ] {
        std::fs::write(&file, token).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let shown = file.display();
        let text = format!("[admin]\naddress = \"[::1]:9443\"\ntoken_file = \"{shown}\"\n");
        match said {
            None => {
                let address = "[::1]:9443".parse().unwrap();
                let tcp = AdminSettings::Tcp { address, token_file: file.clone() };
                assert_eq!(settings(&text), Some(tcp));
            }
            Some(said) => {
                let found = said_below_listener(&text);
                assert!(found.iter().any(|found| found.contains(said)), "{found:?}");
                let secret = token.trim_end();
                assert!(!found.iter().any(|found| found.contains(secret)), "{found:?}");
            }
        }
    }
}

#[test]
fn mistakes_in_it_are_named() {
    let long = format!("[admin]\naddress = \"unix:/{}\"\n", "a".repeat(99));
    let table: [(&str, &[&str]); 8] = [
        ("[admin]\n", &["3:1: [admin] has no `address`"]),
        (
            "[admin]\naddress = \"0.0.0.0:9443\"\ntoken_file = 1\n",
            &[
                "4:11: 0.0.0.0:9443 is no loopback address; expected \"unix:PATH\" or a loopback \
                 address such as \"127.0.0.1:9443\"",
                "5:14: `token_file` is an integer; expected a string",
            ],
        ),
        (
            "[admin]\naddress = \"127.0.0.1:9443\"\nmode = \"0600\"\n",
            &[
                "3:1: [admin] has no `token_file`, and every user of this machine can connect to a \
                 port; add one, or write address = \"unix:PATH\"",
                "5:8: `mode` is for a Unix socket: address = \"unix:PATH\"",
            ],
        ),
        (
            "[admin]\naddress = \"admin.sock\"\ntoken_file = \"nowhere\"\n",
            &[
                "4:11: \"admin.sock\" is no address; expected \"unix:PATH\" or a loopback address \
                 such as \"127.0.0.1:9443\"",
                "5:14: cannot read nowhere: No such file or directory (os error 2)",
            ],
        ),
        (
            "[admin]\naddress = \"unix:\"\nmode = \"rw\"\n",
            &[
                "4:11: no file; expected \"unix:PATH\"",
                "5:8: \"rw\" is no mode; expected \"0600\" or \"0660\"",
            ],
        ),
        (
            "[admin]\naddress = \"127.0.0.1:0\"\ntoken_file = 1\n",
            &[
                "4:11: 127.0.0.1:0 has port 0, which no client could know; expected \"unix:PATH\" \
                 or a loopback address such as \"127.0.0.1:9443\"",
                "5:14: `token_file` is an integer; expected a string",
            ],
        ),
        (
            "[admin]\naddress = \"unix:a.sock\"\nmode = \"0666\"\n",
            &["5:8: warning: every user of this machine may read what the edge says, and end \
               connections; expected \"0600\" or \"0660\""],
        ),
        (&long, &["4:11: the path has 100 bytes; a Unix socket's has at most 99 here"]),
    ];
    for (text, expected) in table {
        let found = said_below_listener(text);
        assert_eq!(found[1..], *expected, "after the warning that no rule is there: {text}");
    }
}

#[test]
fn a_folder_that_is_not_there_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let shown = folder.path().display();
    let admin = |path: &str| format!("[admin]\naddress = \"unix:{path}\"\n");
    assert_eq!(said_below_listener(&admin(&format!("{shown}/admin.sock"))).len(), 1, "no rule");
    let warning = format!(
        "4:11: warning: there is no folder {shown}/none: `serve` cannot make a socket in it; with \
         systemd, RuntimeDirectory= makes one in /run"
    );
    let found = said_below_listener(&admin(&format!("{shown}/none/admin.sock")));
    assert!(found.contains(&warning), "{found:?}");
    let plain = format!("[[listener]]\nkind = \"plain\"\naddress = \"unix:{shown}/none/a.sock\"\n");
    let found = said_below_listener(&plain);
    assert!(found.contains(&warning.replace("4:11", "5:11")), "{found:?}");
}

#[test]
fn rates_of_handshakes_are_whole_and_one_source_has_no_more_than_all() {
    for (limits, expected) in [
        ("handshakes_per_second = 2_000\nsource_handshakes_per_second = 2_000\n", None),
        ("source_handshakes_per_second = 20\n", None),
        (
            "handshakes_per_second = 0\n",
            Some("6:25: `handshakes_per_second` is 0; expected 1 to 100000000"),
        ),
        (
            "source_handshakes_per_second = \"20\"\n",
            Some("6:32: `source_handshakes_per_second` is a string; expected a whole number"),
        ),
        (
            "handshakes_per_second = 10\nsource_handshakes_per_second = 20\n",
            Some(
                "7:32: one source may make more handshakes than all together: \
                 `handshakes_per_second` is 10",
            ),
        ),
    ] {
        let text = format!("[[rule]]\naction = \"refuse\"\n[limits]\n{limits}");
        assert_eq!(said_below_listener(&text), expected.as_slice(), "{limits}");
    }
}
