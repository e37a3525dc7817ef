//! Connections that are held until somebody decides: by the terminal, the admin server's page, a
//! webhook; without an answer, with a client that leaves, across a reload and an upgrade.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::admin::{TOKEN, exchange, get, metrics};
use crate::support::client::{Offer, echo};
use crate::support::crowd::From;
use crate::support::edge::{self, LISTENER};
use crate::support::pki::Kind;
use crate::support::program::Said;
use crate::support::upstream::vacant;
use crate::support::web;
use crate::support::{
    Edge, Folder, Hello, Pki, SOON, Upstream, alert_of, ending, expect, need, output, until,
};

const ACCESS_DENIED: u8 = 49;

/// A hold rule for all names, which then go to this upstream.
fn ask(upstream: SocketAddr, more: &str) -> String {
    format!("[[rule]]\nname = \"ask\"\naction = \"hold\"\nupstream = \"{upstream}\"\n{more}\n")
}

/// A client that has sent its hello.
fn say(edge: &Edge, name: &str) -> (TcpStream, Vec<u8>) {
    let (mut client, hello) = (edge.connect(), Hello::named(name).bytes());
    client.write_all(&hello).unwrap();
    (client, hello)
}

/// `eyelet held` with these arguments.
fn held(folder: &Folder, arguments: &[&str]) -> Said {
    output(edge::eyelet(folder).arg("held").args(arguments))
}

/// Waits until so many connections wait for a name.
fn waiting(folder: &Folder, name: &str, count: usize) {
    let line = format!("{name}  {count} waiting");
    until(&line, || held(folder, &[]).text.contains(&line).then_some(()));
}

#[test]
fn a_verdict_in_the_terminal_frees_all_who_wait_for_a_name() {
    let (folder, echoes) = (Folder::new(), Upstream::echo());
    let edge = Edge::start(&folder, &ask(echoes.address, ""));
    let port = echoes.address.port();
    assert_eq!(held(&folder, &[]).text, "nothing is held\n");
    let mut free: Vec<_> = (0..3).map(|_| say(&edge, "a.test")).collect();
    let (mut refused, _) = say(&edge, "b.test");
    waiting(&folder, &format!("a.test:{port}"), 3);
    waiting(&folder, &format!("b.test:{port}"), 1);
    assert_eq!(echoes.accepted(), 0, "nothing is dialled");
    let said = held(&folder, &["allow", &format!("A.test:{port}")]);
    assert_eq!(
        (said.status.code(), said.text.contains("3 connections waited")),
        (Some(0), true),
        "{said:?}"
    );
    for (client, hello) in &mut free {
        expect(client, hello);
    }
    let own = free[0].0.local_addr().unwrap();
    drop(free);
    let line = edge.line_of(own);
    assert_eq!((&line["outcome"], &line["rule"]), (&"spliced".into(), &"ask".into()), "{line}");
    assert_eq!(
        (&line["held"]["verdict"], &line["held"]["by"]),
        (&"allow".into(), &"terminal".into())
    );
    assert!(line["held"]["ms"].as_u64().is_some_and(|ms| ms < 60_000), "{line}");
    // Once means once.
    let again = say(&edge, "a.test");
    waiting(&folder, &format!("a.test:{port}"), 1);
    assert_eq!(held(&folder, &["refuse", "b.test"]).status.code(), Some(0));
    let own = refused.local_addr().unwrap();
    assert_eq!(alert_of(&ending(&mut refused, SOON).0), Some(ACCESS_DENIED));
    let line = edge.line_of(own);
    assert_eq!(line["reason"], "held, and refused", "{line}");
    assert_eq!((&line["outcome"], &line["held"]["verdict"]), (&"refused".into(), &"refuse".into()));
    // A verdict for one who has gone, and one that was given before.
    drop(again);
    until("it has gone", || (held(&folder, &[]).text == "nothing is held\n").then_some(()));
    let gone = held(&folder, &["allow", "a.test"]);
    assert_eq!(
        (gone.status.code(), gone.text.contains("nobody waits")),
        (Some(1), true),
        "{gone:?}"
    );
    assert_eq!(held(&folder, &["allow", "a b"]).status.code(), Some(1));
    let left = edge.line("one that left", |line| {
        line["reason"] == "client closed during the wait for a verdict"
    });
    assert_eq!((&left["outcome"], &left["held"]), (&"left".into(), &Value::Null), "{left}");
}

#[test]
fn a_verdict_for_a_time_or_for_ever_holds_for_those_who_come_later() {
    let (folder, echoes) = (Folder::new(), Upstream::echo());
    let list = folder.write("names.txt", "# allowed\n");
    let rules = format!(
        "[[rule]]\nname = \"listed\"\nsni = {{ file = \"names.txt\" }}\naction = \"splice\"\n\
         upstream = \"{0}\"\n{1}",
        echoes.address,
        ask(echoes.address, "hold_file = \"names.txt\"")
    );
    let edge = Edge::start(&folder, &rules);
    let port = echoes.address.port();
    let (mut first, hello) = say(&edge, "a.test");
    waiting(&folder, &format!("a.test:{port}"), 1);
    assert_eq!(held(&folder, &["allow", "a.test", "--for", "1h"]).status.code(), Some(0));
    expect(&mut first, &hello);
    let (mut second, hello) = say(&edge, "a.test");
    expect(&mut second, &hello);
    let own = second.local_addr().unwrap();
    drop((first, second));
    assert_eq!(edge.line_of(own)["held"]["ms"], 0);
    let (mut third, hello) = say(&edge, "b.test");
    waiting(&folder, &format!("b.test:{port}"), 1);
    assert_eq!(held(&folder, &["allow", "b.test", "--always"]).status.code(), Some(0));
    expect(&mut third, &hello);
    assert_eq!(std::fs::read_to_string(list).unwrap(), "# allowed\nb.test\n");
    // Before the list is read again, and by it after that.
    until("the list is read again", || {
        let (mut later, hello) = say(&edge, "b.test");
        expect(&mut later, &hello);
        let own = later.local_addr().unwrap();
        drop(later);
        (edge.line_of(own)["rule"] == "listed").then_some(())
    });
}

#[test]
fn nobody_decides_and_a_drain_ends_who_waits() {
    let (folder, echoes) = (Folder::new(), Upstream::echo());
    let mut edge = Edge::start(&folder, &ask(echoes.address, "[hold]\ntimeout = \"1s\"\n"));
    let began = Instant::now();
    let (mut client, _) = say(&edge, "a.test");
    assert_eq!(alert_of(&ending(&mut client, SOON).0), Some(ACCESS_DENIED));
    assert!(began.elapsed() >= Duration::from_secs(1), "it was refused early");
    let line = edge.line_of(client.local_addr().unwrap());
    assert_eq!(line["reason"], "held, and nobody decided", "{line}");
    assert_eq!((&line["outcome"], &line["held"]["by"]), (&"refused".into(), &"timeout".into()));
    drop(edge);
    edge = Edge::start(&folder, &ask(echoes.address, ""));
    let (client, _) = say(&edge, "a.test");
    waiting(&folder, &format!("a.test:{}", echoes.address.port()), 1);
    let own = client.local_addr().unwrap();
    edge.signal(Signal::TERM);
    assert!(edge.wait_exit().success());
    let line = edge.line_of(own);
    assert_eq!((&line["reason"], echoes.accepted()), (&"drained".into(), 0), "{line}");
}

/// An eighth of all questions.
const HOST_QUESTIONS_MAX: usize = 125;

#[test]
fn a_client_that_asks_about_many_names_leaves_room_for_others_and_in_the_log() {
    let (folder, echoes) = (Folder::new(), Upstream::echo());
    let mut edge = Edge::start(&folder, &ask(echoes.address, ""));
    let asked: Vec<_> =
        (0..HOST_QUESTIONS_MAX).map(|n| say(&edge, &format!("n{n}.test")).0).collect();
    until("all wait", || held(&folder, &[]).text.contains("and 25 more").then_some(()));
    let (mut refused, _) = say(&edge, "more.test");
    let own = refused.local_addr().unwrap();
    assert_eq!(alert_of(&ending(&mut refused, SOON).0), Some(ACCESS_DENIED));
    let line = edge.line_of(own);
    let full = (&line["outcome"], &line["reason"]);
    assert_eq!(full, (&"refused".into(), &"too many connections are held".into()), "{line}");
    let mut other = From::loopback(9).connect(edge.address()).unwrap();
    other.write_all(&Hello::named("more.test").bytes()).unwrap();
    until("another waits", || held(&folder, &[]).text.contains("and 26 more").then_some(()));
    drop((asked, other));
    until("all have gone", || (held(&folder, &[]).text == "nothing is held\n").then_some(()));
    edge.signal(Signal::TERM);
    edge.wait_exit();
    let log = edge.log();
    let written = log.lines().filter(|line| line.contains(" held: ")).count();
    let left_out = log.lines().filter_map(|line| line.split_once(" more lines of the kind of "));
    let left_out: usize = left_out.map(|(count, _)| count.parse::<usize>().unwrap()).sum();
    assert!(written < HOST_QUESTIONS_MAX, "{log}");
    assert_eq!(written + left_out, HOST_QUESTIONS_MAX + 1, "{log}");
}

/// A CONNECT waits before its 200, and a refused client learns why.
#[test]
fn a_connect_waits_for_its_answer() {
    let (folder, echoes) = (Folder::new(), Upstream::echo());
    let rules = "[[listener]]\naddress = \"127.0.0.1:0\"\nkind = \"connect\"\n[[rule]]\n\
        name = \"ask\"\naction = \"hold\"\nupstream = \"destination\"\n\
        upstream_allow = \"127.0.0.0/8\"\n";
    let edge = Edge::start_whole(&folder, rules, |_| ());
    let target = echoes.address.to_string();
    let asked = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    let mut clients = [(); 2].map(|()| {
        let mut client = edge.connect();
        client.write_all(asked.as_bytes()).unwrap();
        client
    });
    waiting(&folder, &target, 2);
    assert_eq!(held(&folder, &["allow", &target]).status.code(), Some(0));
    for client in &mut clients {
        expect(client, b"HTTP/1.1 200 Connection established\r\n\r\n");
        client.write_all(b"any bytes").unwrap();
        expect(client, b"any bytes");
    }
    let mut refused = edge.connect();
    refused.write_all(asked.as_bytes()).unwrap();
    waiting(&folder, &target, 1);
    assert_eq!(held(&folder, &["refuse", &target]).status.code(), Some(0));
    let answer = String::from_utf8(ending(&mut refused, SOON).0).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("held"), "{answer}");
}

/// A hold rule with a certificate ends TLS once it is allowed.
#[test]
fn a_held_handshake_is_terminated_after_the_verdict() {
    let (pki, echoes) = (Pki::new(), Upstream::echo());
    pki.server("app", &["app.test"], Kind::P256);
    let more =
        format!("certificate = {:?}\nkey = {:?}\n", pki.file("app.pem"), pki.file("app.key"));
    let rule = ask(echoes.address, &more).replace("upstream = \"", "upstream = \"tcp://");
    let edge = Edge::start(&pki.folder, &rule);
    let client = Offer::new(&pki);
    thread::scope(|scope| {
        let talk = scope.spawn(|| {
            let mut tls = client.connect(edge.address(), "app.test");
            echo(&mut tls, b"after the verdict");
        });
        waiting(&pki.folder, &format!("app.test:{}", edge.port()), 1);
        assert_eq!(held(&pki.folder, &["allow", "app.test"]).status.code(), Some(0));
        talk.join().unwrap();
    });
    let line = edge.line("terminated", |line| line["outcome"] == "terminated");
    assert_eq!(line["held"]["verdict"], "allow", "{line}");
}

/// A program that answers one question after the other with these bytes, then hangs up.
fn webhook(answers: &'static [&'static str]) -> (SocketAddr, thread::JoinHandle<Vec<Value>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let serve = move || {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut request, mut piece) = (Vec::new(), [0; 4096]);
            let body = loop {
                let read = stream.read(&mut piece).unwrap();
                assert_ne!(read, 0);
                request.extend_from_slice(&piece[..read]);
                let text = String::from_utf8_lossy(&request);
                let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
                if let Some(Ok(value)) = body.map(|body| serde_json::from_str(&body)) {
                    break value;
                }
            };
            asked.push(body);
            stream.write_all(answer.as_bytes()).unwrap();
        }
        asked
    };
    (at, thread::spawn(serve))
}

#[test]
fn a_webhook_decides_and_one_that_lies_leaves_it_to_people() {
    let (folder, echoes) = (Folder::new(), Upstream::echo());
    let (at, asked) = webhook(&[
        "HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n{\"verdict\":\"allow\"}",
        "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{\"verdict\":\"refuse\"}",
        // It is not JSON, is cut, comes twice, is none of HTTP's, is too long, or no 2xx.
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nallow",
        "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"verdict\":\"allow\"}",
        "HTTP/1.1 200 OK\r\nContent-Length: 38\r\n\r\n\
         {\"verdict\":\"allow\"}{\"verdict\":\"allow\"}",
        "allow\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n{",
        "HTTP/1.1 500 No\r\nContent-Length: 19\r\n\r\n{\"verdict\":\"allow\"}",
    ]);
    let hold = format!("[hold]\nwebhook = \"http://{at}/ask\"\n");
    let edge = Edge::start(&folder, &ask(echoes.address, &hold));
    let (mut allowed, hello) = say(&edge, "good.test");
    expect(&mut allowed, &hello);
    let (mut refused, _) = say(&edge, "bad.test");
    assert_eq!(alert_of(&ending(&mut refused, SOON).0), Some(ACCESS_DENIED));
    let line = edge.line_of(refused.local_addr().unwrap());
    assert_eq!(line["held"]["by"], "webhook", "{line}");
    let names: Vec<String> = (0..6).map(|n| format!("lie{n}.test")).collect();
    let mut waits = Vec::new();
    for name in &names {
        waits.push(say(&edge, name));
        edge.wait_log(&format!("no verdict on {name}"));
    }
    let asked = asked.join().unwrap();
    assert_eq!((&asked[0]["name"], &asked[0]["rule"]), (&"good.test".into(), &"ask".into()));
    assert_eq!(asked[0]["port"], echoes.address.port(), "{}", asked[0]);
    for (name, (client, hello)) in names.iter().zip(&mut waits) {
        assert_eq!(held(&folder, &["allow", name]).status.code(), Some(0), "{name}");
        expect(client, hello);
    }
}

#[test]
fn a_webhook_that_never_answers_or_answers_twice_does_no_harm() {
    let (folder, echoes) = (Folder::new(), Upstream::echo());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let webhook = thread::spawn(move || {
        let (silent, _) = listener.accept().unwrap();
        let (mut twice, _) = listener.accept().unwrap();
        assert_ne!(twice.read(&mut [0; 4096]).unwrap(), 0);
        for body in ["{\"verdict\":\"refuse\"}", "{\"verdict\":\"allow\"}"] {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            // Who has the first may have closed.
            let _ = twice.write_all(format!("{head}{body}").as_bytes());
        }
        (silent, twice)
    });
    let hold = format!("[hold]\ntimeout = \"2s\"\nwebhook = \"http://{at}/ask\"\n");
    let edge = Edge::start(&folder, &ask(echoes.address, &hold));
    for (name, by) in [("silent.test", "timeout"), ("twice.test", "webhook")] {
        let (mut client, _) = say(&edge, name);
        assert_eq!(alert_of(&ending(&mut client, SOON).0), Some(ACCESS_DENIED), "{name}");
        let line = edge.line_of(client.local_addr().unwrap());
        assert_eq!(line["held"]["by"], by, "{line}");
        assert_eq!(line["held"]["verdict"], "refuse", "{line}");
    }
    edge.wait_log("no verdict on silent.test");
    webhook.join().unwrap();
}

/// Asks the admin server at this port, with its token.
fn admin(port: u16, method: &str, path: &str, more: &str) -> (u16, String) {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\
         Authorization: Bearer {TOKEN}\r\n{more}\r\n"
    );
    let answer = exchange(stream, &request).unwrap();
    (answer.status, answer.body)
}

#[test]
fn the_admin_server_lists_and_decides_for_its_own_page_only() {
    let (folder, echoes) = (Folder::new(), Upstream::echo());
    folder.write("token", TOKEN);
    let [port] = vacant().map(|address| address.port());
    let table = format!("[admin]\naddress = \"127.0.0.1:{port}\"\ntoken_file = \"token\"\n");
    let edge = Edge::start(&folder, &ask(echoes.address, &table));
    let (mut client, hello) = say(&edge, "a.test");
    let listed = |path: &str| -> Value {
        let (status, body) = admin(port, "GET", path, "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    };
    until("it is held", || (listed("/held")["connections"] == 1).then_some(()));
    let shown = listed("/held");
    let [one] = &shown["listed"].as_array().unwrap()[..] else { panic!("{shown}") };
    assert_eq!((&one["name"], &one["rule"]), (&"a.test".into(), &"ask".into()), "{shown}");
    assert_eq!((&one["waiting"], &one["list"]), (&1.into(), &false.into()), "{shown}");
    let connections = listed("/connections");
    assert_eq!(connections[0]["kind"], "held", "{connections}");
    assert_eq!(listed("/connections?state=held")[0]["id"], connections[0]["id"]);
    let path = format!("/held/{}?verdict=allow", one["id"]);
    for (method, path, more, expected) in [
        ("POST", &*path, "Origin: https://attacker.example\r\n", 403),
        ("POST", &path, "Sec-Fetch-Site: cross-site\r\n", 403),
        ("GET", &path, "", 405),
        ("POST", "/held/99?verdict=allow", "", 409),
        ("POST", "/held/x?verdict=allow", "", 404),
        ("POST", "/held/1?verdict=maybe", "", 400),
        ("POST", &format!("{path}&always"), "", 409),
        ("POST", "/held", "", 405),
    ] {
        assert_eq!(admin(port, method, path, more).0, expected, "{method} {path} {more}");
    }
    assert_eq!(echoes.accepted(), 0);
    let own = format!("Origin: http://localhost:{port}\r\n");
    assert_eq!(admin(port, "POST", &path, &own).0, 200);
    expect(&mut client, &hello);
    assert_eq!(admin(port, "POST", &path, &own).0, 409, "a second verdict is one for nobody");
    let counted = metrics(&admin(port, "GET", "/metrics", "").1);
    let decided = "eyelet_held_decided_total{verdict=\"allow\",by=\"page\"}";
    assert_eq!((counted[decided], counted["eyelet_held_connections"]), (1.0, 0.0));
}

#[test]
fn the_page_decides_in_chromium() {
    if !(need("chromium") && need("python3")) {
        return;
    }
    let (folder, echoes) = (Folder::new(), Upstream::echo());
    folder.write("token", TOKEN);
    let [port] = vacant().map(|address| address.port());
    let table = format!("[admin]\naddress = \"127.0.0.1:{port}\"\ntoken_file = \"token\"\n");
    let edge = Edge::start(&folder, &ask(echoes.address, &table));
    let mut clients: Vec<_> = (0..2).map(|_| say(&edge, "a.test")).collect();
    let (mut refused, _) = say(&edge, "b.test");
    waiting(&folder, &format!("b.test:{}", echoes.address.port()), 1);
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/held_page.py");
    let url = format!("http://localhost:{port}/");
    let mut command = Command::new("python3");
    command.args([program, &url]).arg(folder.path()).arg(TOKEN);
    let said = output(&mut command);
    let shown: Value = serde_json::from_str(said.text.trim()).expect(&said.text);
    assert!(shown["held"].as_str().unwrap().contains("a.test"), "{shown}");
    assert_eq!(shown["errors"], serde_json::json!([]), "{shown}");
    for (client, hello) in &mut clients {
        expect(client, hello);
    }
    assert_eq!(alert_of(&ending(&mut refused, SOON).0), Some(ACCESS_DENIED));
    let line = edge.line_of(refused.local_addr().unwrap());
    assert_eq!(line["held"]["by"], "page", "{line}");
    // Another hour without a question.
    let (mut later, hello) = say(&edge, "a.test");
    expect(&mut later, &hello);
}

/// The times are shown, and not asserted: the machine may be busy.
#[test]
fn a_verdict_frees_each_who_waits() {
    let (folder, echoes) = (Folder::new(), Upstream::echo());
    folder.write("token", TOKEN);
    let [port] = vacant().map(|address| address.port());
    let table = format!("[admin]\naddress = \"127.0.0.1:{port}\"\ntoken_file = \"token\"\n");
    let edge = Edge::start(&folder, &ask(echoes.address, &table));
    let mut times = Vec::new();
    for round in 1..=20 {
        let (mut client, hello) = say(&edge, "a.test");
        waiting(&folder, &format!("a.test:{}", echoes.address.port()), 1);
        let began = Instant::now();
        assert_eq!(admin(port, "POST", &format!("/held/{round}?verdict=allow"), "").0, 200);
        expect(&mut client, &hello);
        times.push(began.elapsed());
    }
    times.sort();
    eprintln!("from a verdict to the first byte: {:?}, at most {:?}", times[10], times[19]);
}

/// A reload keeps who waits, as long as the rule is there. Then the new rules decide.
#[test]
fn a_reload_keeps_who_waits_or_decides_anew() {
    let (folder, echoes) = (Folder::new(), Upstream::echo());
    let config = |rules: &str| edge::with_long_deadlines(&format!("{LISTENER}{rules}"));
    let file = folder.write("edge.toml", config(&ask(echoes.address, "")));
    let mut command = edge::eyelet(&folder);
    command.arg("serve").arg(&file);
    let edge = Edge::spawn(command, 1);
    let listener = format!("[[listener]]\naddress = \"{}\"\nname = \"one\"\n", edge.address());
    let (mut client, hello) = say(&edge, "a.test");
    let target = format!("a.test:{}", echoes.address.port());
    waiting(&folder, &target, 1);
    let reload = |rules: &str| {
        let text = edge::with_long_deadlines(&format!("{LISTENER}{rules}"));
        std::fs::write(&file, text).unwrap();
        let said = output(edge::eyelet(&folder).arg("reload").arg(&file));
        assert_eq!(said.status.code(), Some(0), "{said:?}");
    };
    let other = "[[rule]]\nname = \"other\"\nsni = \"other.test\"\naction = \"refuse\"\n";
    reload(&format!("{other}{}", ask(echoes.address, "")));
    waiting(&folder, &target, 1);
    let of_file = ["--config", file.to_str().unwrap(), "allow", "a.test"];
    assert_eq!(held(&folder, &of_file).status.code(), Some(0));
    expect(&mut client, &hello);
    let (mut client, hello) = say(&edge, "a.test");
    waiting(&folder, &target, 1);
    reload(&ask(echoes.address, "").replace("hold", "splice").replace("ask", "new"));
    expect(&mut client, &hello);
    let own = client.local_addr().unwrap();
    drop((client, listener));
    let line = edge.line_of(own);
    assert_eq!((&line["rule"], &line["held"]), (&"new".into(), &Value::Null), "{line}");
}

/// A verdict is about what was asked: a rule that now leads elsewhere asks again.
#[test]
fn a_verdict_is_not_for_a_target_that_a_reload_has_changed() {
    let (folder, first, second) = (Folder::new(), Upstream::echo(), Upstream::echo());
    let config = |to: &Upstream, port: u16| {
        let listener = LISTENER.replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
        edge::with_long_deadlines(&format!("{listener}{}", ask(to.address, "")))
    };
    let file = folder.write("edge.toml", config(&first, 0));
    let mut command = edge::eyelet(&folder);
    command.arg("serve").arg(&file);
    let edge = Edge::spawn(command, 1);
    let (mut client, hello) = say(&edge, "a.test");
    let targets = [&first, &second].map(|to| format!("a.test:{}", to.address.port()));
    waiting(&folder, &targets[0], 1);
    std::fs::write(&file, config(&second, 0)).unwrap();
    let said = output(edge::eyelet(&folder).arg("reload").arg(&file));
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    waiting(&folder, &targets[0], 1);
    assert_eq!(held(&folder, &["allow", "a.test"]).status.code(), Some(0));
    waiting(&folder, &targets[1], 1);
    assert_eq!((first.accepted(), second.accepted()), (0, 0), "nobody was asked about the second");
    assert_eq!(held(&folder, &["allow", "a.test"]).status.code(), Some(0));
    expect(&mut client, &hello);
    assert_eq!((first.accepted(), second.accepted()), (0, 1));
}

/// Requests for the name that was asked about are served, as long as the rule is that one.
#[test]
fn an_allowed_connection_is_for_its_own_name_and_its_own_rule() {
    let (pki, app) = (Pki::new(), Upstream::http());
    pki.server("app", &["app.test", "other.test"], Kind::P256);
    let more =
        format!("certificate = {:?}\nkey = {:?}\n", pki.file("app.pem"), pki.file("app.key"));
    let rule = ask(app.address, &more).replace("upstream = \"", "upstream = \"http://");
    let config = |rule: &str| edge::with_long_deadlines(&format!("{LISTENER}{rule}"));
    let file = pki.folder.write("edge.toml", config(&rule));
    let mut command = edge::eyelet(&pki.folder);
    command.arg("serve").arg(&file);
    let edge = Edge::spawn(command, 1);
    let reload = |rule: &str| {
        std::fs::write(&file, config(rule)).unwrap();
        let said = output(edge::eyelet(&pki.folder).arg("reload").arg(&file));
        assert_eq!(said.status.code(), Some(0), "{said:?}");
    };
    let offer = Offer::new(&pki);
    let mut client = thread::scope(|scope| {
        let client = scope.spawn(|| offer.connect(edge.address(), "app.test"));
        waiting(&pki.folder, &format!("app.test:{}", edge.port()), 1);
        assert_eq!(held(&pki.folder, &["allow", "app.test"]).status.code(), Some(0));
        client.join().unwrap()
    });
    assert_eq!(web::get(&mut client, "/one").status, 200);
    let other = "GET /two HTTP/1.1\r\nHost: other.test\r\n\r\n";
    assert_eq!(web::ask(&mut client, other).status, 421, "nobody was asked about it");
    let refuse = "[[rule]]\nsni = \"x.test\"\naction = \"refuse\"\n";
    reload(&format!("{refuse}{rule}"));
    assert_eq!(web::get(&mut client, "/three").status, 200, "the rule is the same");
    reload(&rule.replace("\"ask\"", "\"ask anew\""));
    let heard = web::get(&mut client, "/four");
    assert_eq!(heard.status, 421, "another rule would have asked: {}", heard.text());
    assert_eq!(held(&pki.folder, &[]).text, "nothing is held\n");
}

/// They wait on in the new process, which has their questions and their time.
#[test]
fn an_upgrade_keeps_who_waits() {
    let (folder, echoes) = (Folder::new(), Upstream::echo());
    let text = format!("workers = 2\n{LISTENER}{}", ask(echoes.address, ""));
    let file = folder.write("edge.toml", edge::with_long_deadlines(&text));
    let mut command = edge::eyelet(&folder);
    command.arg("serve").arg(&file);
    let mut edge = Edge::spawn(command, 1);
    let mut clients: Vec<_> = (0..4).map(|_| say(&edge, "a.test")).collect();
    let target = format!("a.test:{}", echoes.address.port());
    waiting(&folder, &target, 4);
    let said = output(edge::eyelet(&folder).arg("upgrade").arg(&file));
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    assert!(edge.wait_exit_alone().success());
    let successor = successor(&said);
    waiting(&folder, &target, 4);
    assert_eq!(echoes.accepted(), 0);
    assert_eq!(held(&folder, &["allow", "a.test"]).status.code(), Some(0));
    for (client, hello) in &mut clients {
        expect(client, hello);
    }
    rustix::process::kill_process(successor, Signal::KILL).unwrap();
}

/// The process that an upgrade says to serve.
fn successor(said: &Said) -> rustix::process::Pid {
    let pid =
        said.text.split("process ").nth(1).and_then(|rest| {
            rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
        });
    rustix::process::Pid::from_raw(pid.unwrap_or_else(|| panic!("{said:?}"))).unwrap()
}

/// The mistakes that `check` names.
#[test]
fn check_teaches_what_a_hold_rule_needs() {
    let folder = Folder::new();
    let check = |text: &str| {
        let file = folder.write("edge.toml", format!("{LISTENER}{text}"));
        output(edge::eyelet(&folder).arg("check").arg(file)).text
    };
    let up = "127.0.0.1:9".parse().unwrap();
    assert!(!check(&ask(up, "")).contains("error"));
    for (text, expected) in [
        (ask(up, "hold_file = \"nothing.txt\""), "expected a file that exists"),
        (ask(up, "plain_http = true"), "`plain_http` means nothing in a hold rule"),
        (ask(up, "alert = \"access_denied\""), "`alert` means nothing in a hold rule"),
        (ask(up, "[hold]\ntimeout = \"1ms\""), "timeout"),
        (ask(up, "[hold]\nwebhook = \"https://a.example/\""), "is not http://"),
        (ask(up, "[hold]\nwebhook = \"http://192.0.2.1/\""), "in the clear"),
        (ask(up, "").replace("hold\"", "ask\""), "\"hold\" waits until somebody decides"),
        (ask(up, "").replace("hold\"", "splice\"\nhold_file = \"a\""), "belongs to hold rules"),
    ] {
        let said = check(&text);
        assert!(said.contains(expected), "{text}: {said}");
    }
}

/// Whoever reads only the socket's document sees the same.
#[test]
fn nothing_held_is_an_empty_document() {
    let (folder, echoes) = (Folder::new(), Upstream::echo());
    let table = "[admin]\naddress = \"unix:admin.sock\"\n";
    let _edge = Edge::start(&folder, &ask(echoes.address, table));
    let shown = get(Path::new(&folder.path().join("admin.sock")), "/held").body;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let none = serde_json::json!({ "connections": 0, "bytes": 0, "questions": 0, "listed": [] });
    assert_eq!(shown, none);
}
