//! Faults that are planted in real servers: `eyelet probe` names each, and says what to do. The
//! same servers without the fault are not accused.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use serde_json::Value;

use crate::support::crowd::many;
use crate::support::upstream::vacant;
use crate::support::{Pki, Talk, need, until};

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/");

/// Probes a server with a measurement, which bounds its own time.
fn probe(address: SocketAddr, connections: &str) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_eyelet"));
    command.args(["probe", &address.to_string(), "--name", "app.test", "--json"]);
    // Node sends tickets with its first answer only: that finding waits for as long as it may.
    command.args(["--wait", "20", "--seconds", "300", "--memory", "--connections", connections]);
    let said = command.output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout);
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{said:?}"))
}

/// Starts a server of `programs`, which says its port, and probes it.
fn measured(program: &str, script: &str, how: &str, connections: &str) -> Value {
    let pki = Pki::new();
    let mut command = Command::new(program);
    command.arg(format!("{PROGRAMS}{script}"));
    command.arg(pki.file("edge.pem")).arg(pki.file("edge.key")).arg(how);
    let mut server = Talk::start(&mut command);
    server.hear(";");
    let said = server.said();
    let port = said.split(['t', ';']).nth(1).unwrap().trim().parse().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    probe(address, connections)
}

/// Returns the probe's words about a finding, and its advice.
fn said<'a>(found: &'a Value, name: &str) -> [&'a str; 3] {
    let all = found["findings"].as_array().unwrap();
    let one = all.iter().find(|one| one["name"] == name);
    let one = one.unwrap_or_else(|| panic!("no {name} in {found:#}"));
    ["grade", "seen", "advice"].map(|member| one[member].as_str().unwrap_or_default())
}

#[test]
fn a_store_of_authorities_in_each_context_is_named() {
    if !need("node") {
        return;
    }
    let found = many(2, |nth| measured("node", "contexts.js", ["each", "one"][nth], "60"));
    let [grade, _, advice] = said(&found[0], "memory");
    assert!(grade == "bad" && advice.contains("share one context"), "{:#}", found[0]);
    assert!(!said(&found[1], "memory")[2].contains("share one context"), "{:#}", found[1]);
}

#[test]
fn buffers_that_openssl_keeps_are_named() {
    if !need("python3") {
        return;
    }
    let found = many(2, |nth| measured("python3", "buffers.py", ["kept", "released"][nth], "200"));
    let [grade, _, advice] = said(&found[0], "memory");
    assert!(grade == "bad" && advice.contains("SSL_MODE_RELEASE_BUFFERS"), "{:#}", found[0]);
    assert_eq!(said(&found[1], "memory")[0], "note", "{:#}", found[1]);
    assert_eq!(said(&found[1], "creep")[0], "ok", "{:#}", found[1]);
}

/// A session of the cache is about a kilobyte. Without tickets TLS 1.3 uses the cache, too.
const NGINX: &str = r#"daemon off; master_process off; pid nginx.pid; error_log stderr error;
events { worker_connections 4000; }
http {
    access_log off; client_body_temp_path tmp; proxy_temp_path tmp; fastcgi_temp_path tmp;
    uwsgi_temp_path tmp; scgi_temp_path tmp; keepalive_timeout 1h; client_header_timeout 1h;
    ssl_certificate edge.pem; ssl_certificate_key edge.key;
    ssl_session_cache builtin; ssl_session_tickets off;
    server { listen 127.0.0.1:PORT ssl backlog=1024; location / { return 200 "a page"; } }
}
"#;

#[test]
fn a_cache_of_sessions_in_the_heap_of_nginx_is_named() {
    if !need("nginx") {
        return;
    }
    let pki = Pki::new();
    let [address] = vacant();
    let file = pki.text("nginx.conf");
    fs::write(&file, NGINX.replace("PORT", &address.port().to_string())).unwrap();
    let folder = fs::canonicalize(&file).unwrap().parent().unwrap().to_owned();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 4096; exec nginx -p \"$0/\" -c nginx.conf"]).arg(folder);
    let _server = Talk::start(&mut command);
    until("nginx", || TcpStream::connect(address).ok());
    let found = probe(address, "1200");
    let [grade, seen, advice] = said(&found, "creep");
    assert!(grade == "note" && seen.starts_with("each round leaves"), "{found:#}");
    assert!(advice.contains("ssl_session_cache shared, not builtin"), "{found:#}");
}
