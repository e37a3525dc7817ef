//! Rates of handshakes: what is over them is refused before TLS costs anything, by name.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Instant;

use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::support::client::{Offer, alert_in, alert_of, ending, handshake};
use crate::support::edge::{LISTENER, splice};
use crate::support::gate::sink;
use crate::support::{Edge, End, Hello, Pki, SOON, Upstream};

const RATE: usize = 5;
/// Clients that come at once: eight times what a second admits.
const CLIENTS: usize = 40;
/// internal_error: it may come again. access_denied would say that it may not.
const INTERNAL_ERROR: u8 = 80;

/// An edge with these limits, a rule that terminates app.test, one that splices host.test, and the
/// upstream of both.
fn edge(pki: &Pki, listener: &str, limits: &str) -> (Edge, Upstream) {
    let upstream = sink();
    let rules = pki.terminate(&format!("tcp://{}", upstream.address), "");
    let splice = splice(upstream.address, "");
    let config = format!("workers = 2\n{listener}{rules}{splice}[limits]\n{limits}\n");
    (Edge::start_whole(&pki.folder, &config, |_| ()), upstream)
}

/// A connection from this loopback address.
fn connect_from(source: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream: TcpStream = socket.into();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

fn shake(pki: &Pki, socket: TcpStream) -> Result<(), io::Error> {
    handshake(Offer::new(pki).config(), socket, "app.test").map(drop)
}

fn line_of(edge: &Edge, client: SocketAddr) -> (Value, Value) {
    let line = edge.line_of(client);
    (line["outcome"].clone(), line["reason"].clone())
}

/// So many were admitted, of those that came since: the bucket was full, and fills.
fn check_admitted(admitted: usize, began: Instant) {
    let most = RATE as f64 * (1.0 + began.elapsed().as_secs_f64()) + 1.0;
    assert!((RATE..=most as usize).contains(&admitted), "{admitted} of {most}");
    assert!(admitted < CLIENTS, "none was refused");
}

#[test]
fn a_source_over_its_rate_is_reset_and_others_are_served() {
    let pki = Pki::new();
    let (edge, _upstream) = edge(&pki, LISTENER, &format!("source_handshakes_per_second = {RATE}"));
    let began = Instant::now();
    let mut refused = Vec::new();
    for _ in 0..CLIENTS {
        let socket = connect_from([127, 0, 0, 1], edge.address());
        let own = socket.local_addr().unwrap();
        if let Err(error) = shake(&pki, socket) {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
            refused.push(own);
        }
    }
    check_admitted(CLIENTS - refused.len(), began);
    for own in refused {
        // An earlier client may have had the same port.
        let line = edge.line("a refusal", |line| {
            line["client"] == own.to_string() && line["reason"] == "source_handshakes_per_second"
        });
        assert_eq!(line["outcome"], "refused", "{line}");
    }
    shake(&pki, connect_from([127, 0, 0, 2], edge.address())).unwrap();
    is_said_once(&edge, "source_handshakes_per_second is reached by 127.0.0.1 ");
}

/// The log says that handshakes are refused, and not for each.
fn is_said_once(edge: &Edge, why: &str) {
    let said = format!("handshakes are refused: {why}");
    edge.wait_log(&said);
    assert_eq!(edge.log().matches("handshakes are refused").count(), 1, "{}", edge.log());
}

/// They were accepted while there were tokens, and have said nothing yet.
#[test]
fn a_hello_over_the_rate_gets_an_alert() {
    let pki = Pki::new();
    let (edge, _upstream) = edge(&pki, LISTENER, &format!("source_handshakes_per_second = {RATE}"));
    let open: Vec<_> = (0..CLIENTS).map(|_| connect_from([127, 0, 0, 1], edge.address())).collect();
    let began = Instant::now();
    let mut admitted = 0;
    for socket in open {
        match shake(&pki, socket) {
            Ok(()) => admitted += 1,
            Err(error) => assert_eq!(alert_in(&error), Some(INTERNAL_ERROR), "{error}"),
        }
    }
    check_admitted(admitted, began);
}

#[test]
fn the_process_has_a_rate_and_spliced_connections_take_none_of_it() {
    let pki = Pki::new();
    let (edge, _upstream) = edge(&pki, LISTENER, &format!("handshakes_per_second = {RATE}"));
    let began = Instant::now();
    let mut refused = Vec::new();
    for n in 0..CLIENTS {
        let socket = connect_from([127, 0, 0, n as u8 + 1], edge.address());
        let own = socket.local_addr().unwrap();
        if let Err(error) = shake(&pki, socket) {
            assert_eq!(alert_in(&error), Some(INTERNAL_ERROR), "{error}");
            refused.push(own);
        }
    }
    check_admitted(CLIENTS - refused.len(), began);
    for own in refused {
        let expected = ("refused".into(), "handshakes_per_second".into());
        assert_eq!(line_of(&edge, own), expected);
    }
    let spliced: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut socket = connect_from([127, 0, 0, 1], edge.address());
            socket.write_all(&Hello::named("host.test").bytes()).unwrap();
            socket
        })
        .collect();
    for socket in spliced {
        let own = socket.local_addr().unwrap();
        drop(socket);
        assert_eq!(edge.line_of(own)["outcome"], "spliced");
    }
}

/// Behind a load balancer the sources are those that PROXY headers name.
#[test]
fn a_proxy_header_says_whose_rate_it_is() {
    let pki = Pki::new();
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\nproxy_protocol_from = \"127.0.0.1\"\n";
    let (edge, _upstream) = edge(&pki, listener, "source_handshakes_per_second = 1");
    let ask = |source: Ipv4Addr| {
        let mut socket = connect_from([127, 0, 0, 1], edge.address());
        let header = format!("PROXY TCP4 {source} 192.0.2.100 1000 443\r\n");
        socket.write_all(header.as_bytes()).unwrap();
        shake(&pki, socket)
    };
    let began = Instant::now();
    let mut each = (1..=20).map(|last| ask(Ipv4Addr::new(192, 0, 2, last)));
    assert!(each.all(|shaken| shaken.is_ok()), "each source has a token");
    let same: Vec<_> = (0..CLIENTS).map(|_| ask(Ipv4Addr::new(198, 51, 100, 1))).collect();
    let admitted = same.iter().filter(|shaken| shaken.is_ok()).count();
    assert!(admitted as f64 <= 2.0 + began.elapsed().as_secs_f64(), "{admitted}");
    let refused: Vec<_> = same.iter().filter_map(|shaken| shaken.as_ref().err()).collect();
    assert!(refused.iter().all(|error| alert_in(error) == Some(INTERNAL_ERROR)), "{refused:?}");
}

/// A hello that no rule terminates costs no handshake, and is refused as ever.
#[test]
fn a_refusal_by_rule_takes_no_token() {
    let pki = Pki::new();
    let (edge, _upstream) = edge(&pki, LISTENER, "handshakes_per_second = 1");
    for _ in 0..CLIENTS {
        let mut socket = connect_from([127, 0, 0, 1], edge.address());
        socket.write_all(&Hello::named("other.test").bytes()).unwrap();
        let (got, end) = ending(&mut socket, SOON);
        assert_eq!((alert_of(&got), end), (Some(112), End::Fin), "unrecognized_name");
    }
    shake(&pki, connect_from([127, 0, 0, 1], edge.address())).unwrap();
}
