//! The application of `eyelet run` trusts the local authority, `eyelet doctor` says what does not,
//! and `eyelet probe` finds nothing bad at what they serve.

use std::process::Command;

use crate::run_shared::Network;
use crate::support::{Said, Talk, need, output};

/// The clients, and the command by which each asks the project that has `localhost`, without any
/// option.
const CLIENTS: &[(&str, &str)] = &[
    ("curl", "curl -sS --max-time 50 https://localhost:8443/"),
    ("node", "node -e \"fetch('https://localhost:8443/').then(r => r.text()).then(console.log)\""),
    (
        "python3",
        "python3 -c \"import urllib.request as u; \
         print(u.urlopen('https://localhost:8443/', timeout=50).read().decode())\"",
    ),
];

#[test]
fn projects_call_each_other_without_options() {
    let Some(network) = Network::new() else { return };
    let shop = network.run("", "shop");
    let script = network.folder.path().join("call.sh");
    let mut text = "echo \"url $EYELET_URL\"\n".to_owned();
    for (client, command) in CLIENTS.iter().filter(|(client, _)| need(client)) {
        text += &format!("echo \"{client}: $({command} 2>&1)\"\n");
    }
    std::fs::write(&script, text + "echo called\nexec sleep 600\n").unwrap();
    let words = format!("run --name caller.localhost -- sh {}", script.display());
    let mut caller = Talk::start(&mut network.eyelet(&words));
    caller.hear("called\n");
    let said = caller.said();
    assert!(said.contains("url https://caller.localhost:8443/\n"), "{said}");
    for (client, _) in CLIENTS {
        let answer = format!("{client}: {}", crate::run_shared::application(&shop));
        assert!(said.contains(&answer), "{client}: {said}");
    }
}

/// One that the user's own variable names is joined, and one that cannot be read is said.
#[test]
fn variables_of_the_user_are_joined() {
    let Some(network) = Network::new() else { return };
    let own = network.folder.path().join("own.pem");
    std::fs::write(&own, "# of the user\n").unwrap();
    let shown = "grep -c 'of the user' \"$SSL_CERT_FILE\"; grep -c BEGIN \"$SSL_CERT_FILE\"; \
        echo shown; exec sleep 600";
    let script = network.folder.path().join("show.sh");
    std::fs::write(&script, shown).unwrap();
    let words = format!("run -- sh {}", script.display());
    let mut run = Talk::start(network.eyelet(&words).env("SSL_CERT_FILE", &own));
    run.hear("1\n1\nshown\n");
    drop(run);
    let mut run = Talk::start(network.eyelet(&words).env("SSL_CERT_FILE", "/missing/own.pem"));
    run.hear("the command does not trust the local authority by itself: SSL_CERT_FILE is /missing");
    run.hear("shown\n");
}

#[test]
fn doctor_names_what_is_wrong_and_the_command_that_mends_it() {
    let Some(network) = Network::new() else { return };
    let folder = network.folder.path().join("authority");
    let doctor = |before: &str, name: &str| -> Said {
        let line = format!(
            "{before}\nexec {} doctor --folder {} {name}",
            env!("CARGO_BIN_EXE_eyelet"),
            folder.display()
        );
        output(network.inside("sh").args(["-c", &line]))
    };
    let said = doctor("", "localhost");
    let missing = format!("bad   authority  there is none in {} yet\n", folder.display());
    assert!(said.text.contains(&missing), "{}", said.text);
    let mend = format!("-> eyelet trust --install --folder {}\n", folder.display());
    assert!(said.text.contains(&mend), "{}", said.text);
    assert!(said.text.contains("ok    names      Node finds localhost on this"), "{}", said.text);
    assert!(said.text.contains("ok    port       8443 is free\n"), "{}", said.text);
    assert_eq!(said.status.code(), Some(1));
    // The project makes the authority.
    let project = network.run("", "shop");
    let said = doctor("", "nowhere.home.arpa");
    assert!(said.text.contains("ok    port       8443 is Eyelet's, for your projects\n"));
    for who in ["Node", "Python"] {
        let line =
            format!("note  names      {who} does not find nowhere.home.arpa on this machine\n");
        assert!(said.text.contains(&line), "{}", said.text);
    }
    assert!(said.text.contains("-> echo '127.0.0.1 nowhere.home.arpa' | sudo tee -a /etc/hosts\n"));
    let node = "note  Node       does not trust it outside of `eyelet run`\n";
    let (_, mend) = said.text.split_once(node).unwrap_or_else(|| panic!("{}", said.text));
    let mend = mend.lines().next().unwrap().trim_start().strip_prefix("-> ").unwrap();
    // The printed command.
    let mended = doctor(mend, "localhost");
    assert!(mended.text.contains("ok    Node       trusts it\n"), "{mend}: {}", mended.text);
    drop(project);
    for (name, line) in [
        ("myapp.com", "bad   names      the local authority may not sign myapp.com\n"),
        ("myapp.com", " -> use myapp.test\n"),
        ("shop", "finds shop.localhost on this machine\n"),
    ] {
        let said = doctor("", name).text.replace("does not find", "finds");
        assert!(said.contains(line), "{name}: {said}");
    }
    // It would be a part of a command that is printed.
    let refused = doctor("", "'a b'");
    assert_eq!(refused.status.code(), Some(2), "{}", refused.text);
    assert!(refused.text.contains("expected a host name"), "{}", refused.text);
}

/// Its own probe finds nothing bad in the configuration that nobody has changed, and goes on by the
/// certificate's name where the given one is refused.
#[test]
fn nothing_is_bad_at_a_project_by_eyelets_own_probe() {
    let Some(network) = Network::new() else { return };
    let server = "const html = '<p>hello '.repeat(200); \
        const type = { 'content-type': 'text/html' }; \
        const answer = (q, s) => { s.writeHead(200, type); s.end(html + q.url); }; \
        require('http').createServer(answer).listen(process.env.PORT)";
    let file = network.folder.path().join("server.js");
    std::fs::write(&file, server).unwrap();
    let words = format!("run --name shop.localhost -- node {}", file.display());
    let mut run = Talk::start(&mut network.eyelet(&words));
    run.hear("the command listens on");
    let probe = |options: &[&str]| {
        let mut command: Command = network.inside(env!("CARGO_BIN_EXE_eyelet"));
        output(command.args(["probe", "127.0.0.1:8443", "--wait", "60"]).args(options))
    };
    for options in [&[][..], &["--name", "shop.localhost"], &["--name", "other.localhost"]] {
        let said = probe(options);
        assert!(said.status.success(), "{}", said.text);
        let is_bad = |line: &&str| line.starts_with("bad ") || line.starts_with("unknown ");
        let bad: Vec<&str> = said.text.lines().filter(is_bad).collect();
        assert!(bad.is_empty(), "{options:?}: {bad:?}\n{}", said.text);
        assert!(said.text.contains("note    breach           compressed with the query; no cook"));
        let went_on = "note    name             alert unrecognized_name for other.localhost; the \
            findings below are for localhost\n";
        assert_eq!(said.text.contains(went_on), options.last() == Some(&"other.localhost"));
    }
    // Several names, and none without one.
    let words = "proxy --listen 127.0.0.1:9443 a.test=127.0.0.1:1 b.test=127.0.0.1:1";
    let mut strict = Talk::start(&mut network.eyelet(words));
    strict.hear("nothing listens at");
    let mut command = network.inside(env!("CARGO_BIN_EXE_eyelet"));
    let said = output(command.args(["probe", "127.0.0.1:9443", "--wait", "60"]));
    let line = "unknown name             alert missing_extension without a name; also for ";
    assert!(said.text.starts_with(line), "{}", said.text);
    assert_eq!(said.text.lines().count(), 2, "{}", said.text);
}
