//! quinn's client, and several connections at its socket one after another: those that are closed
//! keep no other away.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ConnectionError, Endpoint};
use rustls::ClientConfig;

use crate::quic_clients::{NAMES, Scene};
use crate::quic_flows::{ACCESS_DENIED, BYTES};
use crate::support::Pki;

/// More than an edge keeps for one address of a client.
const CONNECTIONS: usize = 80;

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
