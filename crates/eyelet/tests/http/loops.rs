//! Requests that would come back to this edge, by a name that leads to a listener of its own.
//! Knows the program only by its sockets and logs.

use crate::support::client::Offer;
use crate::support::dns::{Dns, Says};
use crate::support::edge::LISTENER;
use crate::support::two::{Two, get, run};
use crate::support::upstream::vacant;
use crate::support::web;
use crate::support::{Edge, Pki, until};

/// An edge whose only rule leads to `app.test` at `port`, which is this host.
fn edge(pki: &Pki, dns: &Dns, listeners: &str, scheme: &str, port: u16) -> Edge {
    let ca = if scheme == "https" { "upstream_ca = \"ca.pem\"" } else { "" };
    let rule = pki.terminate(&format!("{scheme}://app.test:{port}"), ca);
    let dns = format!("[dns]\nservers = \"{}\"\n", dns.address);
    let config = format!("workers = 1\n{listeners}{rule}{dns}");
    Edge::start_whole(&pki.folder, &config, |_| ())
}

fn this_host() -> Dns {
    Dns::new(&[("app.test", Says::Addresses(vec![[127, 0, 0, 1].into()], 60))])
}

fn listener(port: u16) -> String {
    LISTENER.replace(":0", &format!(":{port}"))
}

#[test]
fn a_request_to_the_listener_that_it_came_to_is_refused() {
    let (pki, dns) = (Pki::new(), this_host());
    for scheme in ["http", "https"] {
        let [address] = vacant();
        let port = address.port();
        let edge = edge(&pki, &dns, &listener(port), scheme, port);
        let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
        assert_eq!(web::get(&mut client, "/round").status, 502, "{scheme}");
        let line = edge.line("the request", |line| line["http"]["path"] == "/round");
        let reason = format!("loop: 127.0.0.1:{port} is a listener of this edge");
        assert_eq!(line["reason"], reason, "{line}");
        let requests = edge.count(|line| line["http"]["path"] == "/round");
        assert_eq!(requests, 1, "{:?}", edge.lines());
    }
}

/// One listener may lead to another, which leads no further: also where the two share a connection
/// to the upstream, on which the request would come back without a dial.
#[test]
fn a_request_goes_from_one_listener_to_another_once() {
    let (pki, dns) = (Pki::new(), this_host());
    let [address] = vacant();
    let port = address.port();
    let listeners = format!("{LISTENER}{}", listener(port));
    let edge = edge(&pki, &dns, &listeners, "https", port);
    let first = *edge.addresses().iter().find(|address| address.port() != port).unwrap();
    run(async {
        let mut client = Two::connect(&pki, first).await;
        for turn in 1..=3 {
            let (status, _) = client.ask(get("/round")).await.unwrap();
            assert_eq!(status, 502);
            let looped = |line: &serde_json::Value| {
                line["reason"].as_str().is_some_and(|reason| reason.starts_with("loop: "))
            };
            let requests = |line: &serde_json::Value| line["http"]["path"] == "/round";
            until("the lines", || (edge.count(requests) == 2 * turn).then_some(()));
            assert_eq!(edge.count(looped), turn, "{:?}", edge.lines());
        }
    });
}
