//! Many held connections and requests: what each costs, and how soon ten verdicts free a thousand.

use std::io::{Read, Write};
use std::time::Instant;

use crate::support::client::Offer;
use crate::support::crowd::{From, Manner, Multitude, each, many, permit_standing};
use crate::support::edge::eyelet;
use crate::support::memory::Memory;
use crate::support::web::hear;
use crate::support::{Edge, Folder, Hello, Pki, Upstream, output, until};

/// Connections of each of three steps, for ten names together.
const STEP: usize = 1_000;
const NAMES: usize = 10;
/// Bytes of one beside its hello, the allocator's part of that included.
const HELD_BYTES_MAX: u64 = 400;

/// Bytes of a parked connection with a held request, beside the request: a held connection's, and
/// the session of TLS.
const REQUEST_BYTES_MAX: u64 = 800;
/// Requests of each of three steps.
const REQUEST_STEP: usize = 400;

fn name(n: usize) -> String {
    format!("n{}.held.test", n % NAMES)
}

#[test]
fn a_held_connection_costs_400_bytes_and_its_hello_and_ten_verdicts_free_all() {
    let _permit = permit_standing(6 * STEP);
    let (folder, upstream) = (Folder::new(), Multitude::start(Manner::Echo));
    let rules = format!(
        "[[rule]]\nname = \"ask\"\naction = \"hold\"\nupstream = \"{}\"\n\
         [hold]\ntimeout = \"1h\"\n",
        upstream.address
    );
    let edge = Edge::start(&folder, &rules);
    let hello = |n: usize| Hello::named(name(n)).bytes();
    let hello_bytes = hello(0).len();
    let held = || output(eyelet(&folder).arg("held")).text;
    let mut clients = Vec::new();
    let mut rest = || {
        clients.extend(many(STEP, |n| {
            let from = From::loopback(1 + (n % 8) as u8);
            let mut client = from.connect(edge.address()).unwrap();
            client.write_all(&hello(n)).unwrap();
            client
        }));
        let line = format!("  {} waiting", clients.len() / NAMES);
        until(&line, || (held().matches(&line).count() == NAMES).then_some(()));
        Memory::at_rest(edge.pid()).anonymous
    };
    let [first, second, third] = std::array::from_fn(|_| rest());
    let more = second.saturating_sub(first).min(third.saturating_sub(second));
    let cost = more / STEP as u64;
    eprintln!("held: {cost} anonymous bytes each, of which {hello_bytes} are its hello");
    assert!(cost <= HELD_BYTES_MAX + hello_bytes as u64, "{cost} bytes, {hello_bytes} of a hello");
    let began = Instant::now();
    for n in 0..NAMES {
        let said = output(eyelet(&folder).args(["held", "allow", &name(n)]));
        let waited = format!("{} connections waited", 3 * STEP / NAMES);
        assert!(said.text.contains(&waited), "{}", said.text);
    }
    each(&mut clients, |client| {
        let mut heard = vec![0; hello_bytes];
        client.read_exact(&mut heard).unwrap();
    });
    eprintln!("{} are freed by ten verdicts in {:?}", 3 * STEP, began.elapsed());
    assert_eq!(held(), "nothing is held\n");
}

#[test]
fn a_held_request_costs_what_its_parked_connection_does() {
    let _permit = permit_standing(3 * 3 * REQUEST_STEP);
    let (pki, app) = (Pki::new(), Upstream::http());
    let rule = pki.terminate(&format!("http://{}", app.address), "method = \"POST\"");
    let rule = rule.replace("\"terminate\"", "\"hold\"");
    let edge = Edge::start(&pki.folder, &format!("{rule}\n[hold]\ntimeout = \"1h\"\n"));
    let request = b"POST /held HTTP/1.1\r\nHost: app.test\r\nContent-Length: 0\r\n\r\n";
    let held = || output(eyelet(&pki.folder).arg("held")).text;
    let mut clients = Vec::new();
    let mut rest = || {
        for _ in 0..REQUEST_STEP {
            let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
            client.write_all(request).unwrap();
            client.flush().unwrap();
            clients.push(client);
        }
        let line = format!("POST /held  {} waiting", clients.len());
        until(&line, || held().contains(&line).then_some(()));
        Memory::at_rest(edge.pid()).anonymous
    };
    let [first, second, third] = std::array::from_fn(|_| rest());
    let more = second.saturating_sub(first).min(third.saturating_sub(second));
    let cost = more / REQUEST_STEP as u64;
    eprintln!("held: {cost} anonymous bytes each, of which {} are its request", request.len());
    assert!(cost <= REQUEST_BYTES_MAX + request.len() as u64, "{cost} bytes");
    let began = Instant::now();
    let said = output(eyelet(&pki.folder).args(["held", "allow", "app.test"]));
    assert!(said.text.contains(&format!("{} requests waited", 3 * REQUEST_STEP)), "{said:?}");
    each(&mut clients, |client| assert_eq!(hear(client, "POST").status, 200));
    eprintln!("{} are answered in {:?}", 3 * REQUEST_STEP, began.elapsed());
}
