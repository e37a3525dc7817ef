//! The load of upstreams after an upgrade: what rests counts where it did, so that new connections
//! go to the upstream with the least.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::client::SendRequest;
use http::{Request, Response};

use crate::admin::ADMIN;
use crate::balance::open_at;
use crate::support::client::{Offer, reset};
use crate::support::dns::{Dns, Says};
use crate::support::two::{self, run};
use crate::support::upstream::vacant;
use crate::support::web::head;
use crate::support::{Tls, Upstream, expect};
use crate::upgrade::Scene;

const NAME: &str = "load.app.test";
/// Streams of the client of HTTP/2.
const STREAMS: usize = 6;

/// Begins an event stream, and waits until its client has gone.
fn begins_events(mut stream: impl Read + Write) {
    head(&mut stream);
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    let _ = stream.write_all(b"5\r\nfirst\r\n");
    while matches!(stream.read(&mut [0; 64]), Ok(1..)) {}
}

/// An application at this address.
fn app(address: SocketAddr) {
    let listener = TcpListener::bind(address).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || begins_events(stream));
        }
    });
}

/// The clients of event streams: of one by HTTP/1.1, and of some on a connection of HTTP/2.
struct Clients {
    one: Tls,
    streams: Vec<RecvStream>,
    /// It keeps their connection open.
    send: SendRequest<Bytes>,
}

impl Clients {
    async fn new(scene: &Scene) -> Self {
        let mut one = Offer::new(&scene.pki).connect(scene.address(), NAME);
        one.write_all(format!("GET /events HTTP/1.1\r\nHost: {NAME}\r\n\r\n").as_bytes()).unwrap();
        assert!(head(&mut one).starts_with("HTTP/1.1 200 "));
        expect(&mut one, b"5\r\nfirst\r\n");
        let config = Offer { alpn: &["h2"], ..Offer::new(&scene.pki) }.config();
        let socket = tokio::net::TcpStream::connect(scene.address()).await.unwrap();
        let name = NAME.try_into().unwrap();
        let tls = tokio_rustls::TlsConnector::from(config).connect(name, socket).await.unwrap();
        let (mut send, connection) = h2::client::handshake(tls).await.unwrap();
        tokio::spawn(connection);
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            send = send.ready().await.unwrap();
            let ask = Request::get(format!("https://{NAME}/events")).body(()).unwrap();
            let (response, _) = send.send_request(ask, true).unwrap();
            let mut stream = response.await.unwrap().into_body();
            let first = stream.data().await.unwrap().unwrap();
            assert_eq!(first, "first");
            stream.flow_control().release_capacity(first.len()).unwrap();
            streams.push(stream);
        }
        Self { one, streams, send }
    }
}

/// The load is the same behind two upgrades, and falls with each stream that ends.
fn stays(names: &[String; 2], more: &str) {
    let [first, second] = names;
    let rule = format!(
        "[[rule]]\nname = \"load\"\nsni = \"{NAME}\"\naction = \"terminate\"\n\
         certificate = \"edge.pem\"\nkey = \"edge.key\"\nupstream = [\"{first}\", \"{second}\"]\n\
         {more}\n"
    );
    let mut scene = Scene::with(&format!("workers = 2\n{ADMIN}{rule}"));
    run(async {
        let Clients { one, mut streams, send } = Clients::new(&scene).await;
        let mut one = Some(one);
        let before = open_at(&scene, names);
        assert_eq!(before.iter().sum::<f64>(), (STREAMS + 1) as f64, "{names:?}");
        for _ in 0..2 {
            // The client answers what the edge asks by the connection's task.
            tokio::time::sleep(Duration::from_millis(200)).await;
            scene.upgrade_whole();
            assert_eq!(open_at(&scene, names), before, "{names:?}");
        }
        // Its client resets it.
        drop(streams.pop());
        for left in [STREAMS, 1, 0] {
            let mut looks = 0;
            while open_at(&scene, names).iter().sum::<f64>() > left as f64 {
                looks += 1;
                assert!(looks < 1_000, "{left} are left: {:?}", open_at(&scene, names));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(open_at(&scene, names).iter().sum::<f64>(), left as f64);
            match left {
                STREAMS => streams.clear(),
                _ => one.take().into_iter().for_each(|one| reset(one.sock)),
            }
        }
        drop(send);
    });
}

#[test]
fn streams_at_rest_count_on_at_their_upstreams() {
    let upstreams = [(); 2].map(|()| Upstream::serve(begins_events));
    let names = upstreams.each_ref().map(|upstream| format!("http://{}", upstream.address));
    stays(&names, "");
}

#[test]
fn streams_of_unix_sockets_count_on() {
    let folder = crate::support::Folder::new();
    let names = ["one", "two"].map(|name| {
        let path = folder.path().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || begins_events(stream));
            }
        });
        format!("http+unix:{}", path.display())
    });
    stays(&names, "");
}

/// Two names with one port and two addresses each: the new process has not looked them up.
#[test]
fn streams_of_names_count_on_at_the_name_that_was_dialled() {
    let [port] = vacant().map(|address| address.port());
    let ips = [[2, 3], [4, 5]].map(|of| of.map(|last| [127, 0, 0, last]));
    ips.as_flattened().iter().for_each(|ip| app(SocketAddr::from((*ip, port))));
    let [one, two] = ips.map(|of| Says::Addresses(of.map(Into::into).to_vec(), 60));
    let dns = Dns::new(&[("one.test", one), ("two.test", two)]);
    let names = ["one", "two"].map(|name| format!("http://{name}.test:{port}"));
    stays(&names, &format!("[dns]\nservers = [\"{}\"]", dns.address));
}

/// Streams of an upstream connection that others share count each.
#[test]
fn streams_on_shared_connections_count_on() {
    let upstreams = [(); 2].map(|()| {
        two::app(100, None, |(_, mut respond)| {
            Box::pin(async move {
                let mut send = respond.send_response(Response::new(()), false).unwrap();
                send.send_data("first".into(), false).unwrap();
                std::future::pending().await
            })
        })
    });
    let names = upstreams.each_ref().map(|upstream| format!("http://{}", upstream.address));
    stays(&names, "upstream_http2 = \"on\"");
}
