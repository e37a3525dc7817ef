//! With `--ask` a name that is not on the list waits for a person, and the command cannot be that.

use crate::ground::{Sandbox, is_possible};
use crate::support::edge::eyelet;
use crate::support::pki::Kind;
use crate::support::{Folder, Pki, Upstream, need, output, until};
use serde_json::Value;

const HOSTS: [(&str, &str); 2] = [("app.test", "127.0.0.1"), ("other.test", "127.0.0.1")];

#[test]
fn a_name_that_is_not_listed_waits_for_a_person() {
    if !is_possible() || !need("curl") {
        return;
    }
    let pki = Pki::new();
    let tls = Upstream::https(pki.server("app", &["app.test", "other.test"], Kind::P256));
    let port = tls.address.port();
    let folder = &pki.folder;
    // It is in the folder in which the command works, which stays: only its own cover hides it.
    let runtime = folder.path().join("runtime");
    std::fs::create_dir(&runtime).unwrap();
    let mut sandbox = Sandbox::new(folder, &HOSTS, &format!("app.test:{port}\n")).flag("--ask");
    sandbox.command.env("XDG_RUNTIME_DIR", &runtime);
    // The command is of the same user, and tries to allow itself what it asks for.
    let program = env!("CARGO_BIN_EXE_eyelet");
    let talk = sandbox.start(&[
        "sh",
        "-c",
        &format!(
            "curl -sS --cacert ca.pem https://other.test:{port}/asked & \
             until grep -qs go step; do sleep 0.1; done; \
             {program} held allow other.test; echo own $? of $(ls -A runtime/eyelet | wc -l); \
             wait; \
             curl -sS --cacert ca.pem https://app.test:{port}/listed"
        ),
    ]);
    let target = format!("other.test:{port}");
    let held = |arguments: &[&str]| {
        output(eyelet(folder).env("XDG_RUNTIME_DIR", &runtime).arg("held").args(arguments))
    };
    until("it asks", || held(&[]).text.contains(&target).then_some(()));
    folder.write("step", "go");
    until("the command has tried", || talk.said().contains("own ").then_some(()));
    assert!(held(&[]).text.contains(&target), "{}", talk.said());
    assert_eq!(tls.accepted(), 0, "{}", talk.said());
    let listed = held(&[]).text;
    let line = listed.lines().find(|line| line.starts_with(&target)).unwrap();
    assert!(line.contains(", sandbox \"sh\", process "), "{listed}");
    let said = held(&["allow", &target, "--always"]);
    assert!(!said.status.success(), "{}", said.text);
    assert!(said.text.contains("a sandbox does not change its list: allow"), "{}", said.text);
    let said = held(&["allow", "never.test", "--always"]);
    assert!(said.text.contains("nobody waits for this\n"), "{}", said.text);
    let said = held(&["allow", &target]);
    assert!(said.status.success(), "{}", said.text);
    let said = talk.finish();
    for part in ["own 1 of 0\n", "GET /asked HTTP", "GET /listed HTTP", "`eyelet held` decides"] {
        assert!(said.text.contains(part), "{part}: {}", said.text);
    }
}

#[test]
fn a_question_is_an_event_and_waits_as_long_as_the_profile_says() {
    if !is_possible() || !need("curl") {
        return;
    }
    let folder = Folder::new();
    let runtime = folder.path().join("runtime");
    std::fs::create_dir(&runtime).unwrap();
    let profile = "[hold]\ntimeout = \"1s\"\n[sandbox.agent]\nask = true\n";
    folder.write("agent.toml", profile);
    let mut sandbox = Sandbox::without_list(&folder, &HOSTS).flag("--json");
    sandbox = sandbox.option("--config", "agent.toml").option("--profile", "agent");
    sandbox.command.env("XDG_RUNTIME_DIR", &runtime);
    let ran =
        sandbox.script("curl -sk -m 30 https://other.test/ || echo '{\"event\":\"its own\"}'");
    let events: Vec<Value> =
        ran.text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let of = |kind: &str| events.iter().find(|event| event["event"] == kind);
    let waiting = of("waiting").expect(&ran.text);
    assert_eq!((&waiting["name"], &waiting["port"]), (&"other.test".into(), &443.into()));
    assert_eq!(of("connection").expect(&ran.text)["reason"], "held, and nobody decided");
    assert!(of("its own").is_some(), "{}", ran.text);
    assert!(of("ended").expect(&ran.text)["duration_ms"].as_u64() < Some(20_000), "{}", ran.text);
}
