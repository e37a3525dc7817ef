//! Several connections at one socket of a client, as quinn's and quic-go's clients make them, and
//! servers' ids that a client uses later: none is taken for another's, and none keeps others away.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ConnectionError, Endpoint};
use rustls::ClientConfig;

use crate::quic_clients::{NAMES, Scene, server};
use crate::quic_flows::{ACCESS_DENIED, BYTES};
use crate::support::pki::Kind;
use crate::support::program::quic_go;
use crate::support::{Edge, Folder, Pki, Talk};

/// More than an edge keeps for one address of a client.
const CONNECTIONS: usize = 80;
const LONG_BYTES: usize = 8 << 20;

/// quinn's client at one socket.
struct Client {
    runtime: tokio::runtime::Runtime,
    endpoint: Endpoint,
}

impl Client {
    fn new(pki: &Pki) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut tls = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(pki.roots())
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"eyelet-test".to_vec()];
        let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut endpoint = {
            let _inside = runtime.enter();
            Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap()
        };
        endpoint.set_default_client_config(config);
        Self { runtime, endpoint }
    }

    /// The number of bytes that came, or the code that ended the connection.
    fn ask(&self, port: u16, name: &str, count: usize) -> Result<usize, u64> {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        self.runtime.block_on(async {
            let connection = match self.endpoint.connect(to, name).unwrap().await {
                Ok(connection) => connection,
                Err(ConnectionError::ConnectionClosed(close)) => {
                    return Err(close.error_code.into());
                }
                Err(other) => panic!("{other}"),
            };
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(count.to_string().as_bytes()).await.unwrap();
            send.finish().unwrap();
            let bytes = receive.read_to_end(count).await.unwrap();
            connection.close(0_u32.into(), b"");
            Ok(bytes.len())
        })
    }
}

/// The first flight is lost and reordered, as that of the other clients.
#[test]
fn quinn() {
    let Some(scene) = Scene::splicing() else { return };
    let said = Client::new(&scene.pki).ask(scene.relay().port, NAMES[0], BYTES);
    assert_eq!(said, Ok(BYTES));
    assert_eq!(scene.outcome(NAMES[0]), "spliced");
    let Some(scene) = Scene::refusing() else { return };
    let said = Client::new(&scene.pki).ask(scene.relay().port, NAMES[0], BYTES);
    assert_eq!(said, Err(ACCESS_DENIED));
    assert_eq!(scene.outcome(NAMES[0]), "refused");
}

/// Nobody but the server sees that a connection is closed, so an edge keeps each for a while. A new
/// one comes in its place where there are many.
#[test]
fn a_socket_with_one_connection_after_another_is_served() {
    let Some(scene) = Scene::with_idle(&[], "splice", "10m") else { return };
    let client = Client::new(&scene.pki);
    for nth in 0..CONNECTIONS {
        let said = client.ask(scene.edge.port(), NAMES[nth % 2], 1_000);
        assert_eq!(said, Ok(1_000), "{nth}");
    }
    scene.edge.line("one that has ended for another", |line| line["outcome"] == "spliced");
}

/// Two names with a server each, behind one edge. quic-go's client uses a new id of each server as
/// soon as its handshake is over.
fn two_servers() -> Option<(Edge, [Talk; 2], Pki, Folder)> {
    let program = quic_go()?;
    let pki = Pki::new();
    pki.server("origin", &NAMES, Kind::P256);
    let (one, other) = (server(program, &pki, &[]), server(program, &pki, &[]));
    let mut config = "[[listener]]\naddress = \"127.0.0.1:0\"\nquic = true\n".to_owned();
    for (name, port) in NAMES.iter().zip([&one.1, &other.1]) {
        config += &format!(
            "[[rule]]\nname = \"{name}\"\nsni = \"{name}\"\naction = \"splice\"\n\
             upstream = \"127.0.0.1:{port}\"\n"
        );
    }
    // Longer than a sender that has lost all that was under way takes to go on.
    config += "[limits]\nquic_idle_timeout = \"5s\"\n";
    let folder = Folder::new();
    let edge = Edge::start_whole(&folder, &config, |_| ());
    Some((edge, [one.0, other.0], pki, folder))
}

#[test]
fn two_connections_of_one_socket_change_their_ids() {
    let Some((edge, _servers, pki, _folder)) = two_servers() else { return };
    let mut command = Command::new(quic_go().unwrap());
    command.args(["ask", &edge.port().to_string(), &NAMES.join(",")]);
    command.args([LONG_BYTES.to_string(), pki.text("ca.pem")]);
    let said = Talk::start(&mut command).finish().text;
    let answers: Vec<serde_json::Value> =
        serde_json::from_str(said.trim()).unwrap_or_else(|_| panic!("{said}"));
    for answer in answers {
        assert_eq!(answer["bytes"], LONG_BYTES, "{answer}");
    }
    for name in NAMES {
        let line = edge.line(name, |line| line["sni"] == name);
        let passed = line["bytes_to_client"].as_u64().unwrap();
        assert!(passed > LONG_BYTES as u64, "each by its own server: {line}");
        let acknowledged = line["datagrams_to_upstream"].as_u64().unwrap();
        assert!(acknowledged > 100, "{line}");
    }
}
