//! Clients of a CONNECT listener that mints send placeholders in their own ways: a service of gRPC
//! gets the secret in its metadata, and a server of Python in each request of a connection.

use std::path::PathBuf;
use std::process::Command;

use crate::secrets::{GITHUB, TOKEN, assert_hidden, bearer, echo, start};
use crate::support::pki::Kind;
use crate::support::program::python_with;
use crate::support::{Pki, need, output, until};

fn program(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(file)
}

#[test]
fn a_grpc_service_gets_the_secret_in_its_metadata() {
    let Some(python) = python_with("grpc") else { return };
    let origins = Pki::new();
    origins.server("grpc", &["app.test"], Kind::P256);
    let at = start(origins, "");
    let call = |field: &str, value: &str| {
        let mut calls = Command::new(python);
        calls.arg(program("grpc_proxied.py")).args([&at.edge.address().to_string(), "app.test"]);
        calls.args(["grpc.pem", "grpc.key", "mint.pem"].map(|file| at.origins.text(file)));
        output(calls.args([field, value])).text
    };
    let said = call("authorization", &format!("Bearer {GITHUB}"));
    assert_eq!(said.matches("Read x\n").count(), 2, "{said}");
    for method in ["Read", "Delete"] {
        let served = format!("served /test.Things/{method} Bearer {TOKEN}\n");
        assert!(said.contains(&served), "{said}");
    }
    assert!(!said.contains("EYELET"), "{said}");
    let said = call("x-other", GITHUB);
    assert_eq!(said.matches("PERMISSION_DENIED").count(), 3, "{said}");
    assert!(!said.contains("served"), "{said}");
    let lines = at.edge.lines().iter().map(ToString::to_string).collect::<String>();
    assert_hidden("the access log", &lines);
}

#[test]
fn a_python_client_sends_placeholders_on_one_connection() {
    if !need("python3") {
        return;
    }
    let origins = Pki::new();
    let origin = echo(&origins);
    let at = start(origins, "");
    let mut client = Command::new("python3");
    client.arg(program("connect_client.py"));
    client.args([at.edge.address(), origin.address].map(|at| at.to_string()));
    client.args(["app.test", &at.origins.text("mint.pem")]);
    let right = bearer().replace(": ", "=");
    let said = output(client.args([&right, &format!("X-Other={GITHUB}"), &right])).text;
    assert_eq!(said.matches("200 GET / HTTP/1.1").count(), 2, "{said}");
    assert_eq!(said.matches(&format!("Bearer {TOKEN}")).count(), 2, "{said}");
    assert!(said.contains(&format!("{GITHUB} may not stand in the field x-other")), "{said}");
    let lines = until("a line of each request", || {
        let lines = at.edge.lines().into_iter().filter(|line| line["event"] == "request");
        let lines = lines.collect::<Vec<_>>();
        (lines.len() == 3).then_some(lines)
    });
    let ids: std::collections::BTreeSet<_> =
        lines.iter().map(|line| line["id"].to_string()).collect();
    assert_eq!(ids.len(), 1, "one connection: {ids:?}");
}
