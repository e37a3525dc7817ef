//! The demo's TLS origin. Only it has its key, so a client that reads its line was spliced.

use std::io;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::identity::{Identity, ORIGIN_NAME};
use crate::permits::ConnectionPermits;
use eyelet_tls::provider::PROVIDER;

/// Connections served at a time, so that load on the demo ends at a limit and does not use up the
/// machine's descriptors.
const CONNECTIONS_MAX: usize = 256;

/// The acceptor of the origin.
///
/// # Errors
/// As `Other`, if rustls finds that the key does not match the certificate.
pub(crate) fn acceptor(identity: Identity) -> io::Result<TlsAcceptor> {
    let provider = PROVIDER.clone();
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(vec![identity.certificate], identity.key)
        .map_err(io::Error::other)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Accepts connections until it is dropped. `page` is the origin of the page, which may read the
/// answers.
pub(crate) async fn serve(listener: TcpListener, acceptor: TlsAcceptor, page: HeaderValue) {
    let permits = ConnectionPermits::new(CONNECTIONS_MAX);
    loop {
        let (stream, permit) = permits.accept(async || Ok(listener.accept().await?.0)).await;
        let (acceptor, page) = (acceptor.clone(), page.clone());
        tokio::spawn(async move {
            // A client that disconnects early is no error of the demo.
            let _ = answer(stream, &acceptor, &page).await;
            drop(permit);
        });
    }
}

async fn answer(stream: TcpStream, acceptor: &TlsAcceptor, page: &HeaderValue) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let stream = acceptor.accept(stream).await?;
    let (_, session) = stream.get_ref();
    let suite = session.negotiated_cipher_suite().map(|suite| suite.suite());
    let group = session.negotiated_key_exchange_group().map(|group| group.name());
    let seen = match (suite, group) {
        (Some(suite), Some(group)) => format!("{suite:?}, {group:?}"),
        (suite, _) => format!("{suite:?}"),
    };
    let service = service_fn(|request: Request<Incoming>| {
        let response = introduction(&seen, &request, page);
        async move { Ok::<_, std::convert::Infallible>(response) }
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service)
        .await
        .map_err(io::Error::other)
}

fn introduction(
    seen: &str,
    request: &Request<Incoming>,
    page: &HeaderValue,
) -> Response<Full<Bytes>> {
    let text = format!(
        "I am {ORIGIN_NAME}. You and I share a TLS session ({seen}) that the edge could not \
         read. You asked: {} {}\n",
        request.method(),
        request.uri().path(),
    );
    let mut response = Response::new(Full::new(Bytes::from(text)));
    let fields = response.headers_mut();
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    fields.insert(header::CONTENT_TYPE, kind);
    fields.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, page.clone());
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Each click is a new connection, and so a line of the log.
    fields.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
