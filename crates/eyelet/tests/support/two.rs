//! HTTP/2 by the h2 crate: a client of the edge, and an application behind it.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};

use super::client::Offer;
use super::pki::{Leaf, Pki};
use super::upstream::server_config;
use super::{SOON, Upstream};

/// An open connection of a client: the handle for requests, and the task that drives it.
pub struct Two {
    pub send: SendRequest<Bytes>,
    pub driven: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

impl Two {
    /// To app.test at an edge.
    pub async fn connect(pki: &Pki, edge: SocketAddr) -> Self {
        Self::offering(&Offer { alpn: &["h2"], ..Offer::new(pki) }, edge).await
    }

    /// Connects with an offer of one's own.
    pub async fn offering(offer: &Offer<'_>, edge: SocketAddr) -> Self {
        Self::over(tokio::net::TcpStream::connect(edge).await.unwrap(), offer).await
    }

    /// Connects over this socket.
    pub async fn over(socket: tokio::net::TcpStream, offer: &Offer<'_>) -> Self {
        let config = offer.config();
        let name = "app.test".try_into().unwrap();
        let tls = tokio_rustls::TlsConnector::from(config).connect(name, socket).await.unwrap();
        let (send, connection) = h2::client::handshake(tls).await.unwrap();
        Self { send, driven: tokio::spawn(connection) }
    }

    /// Says a request without a body, hears the response.
    pub async fn ask(&mut self, request: Request<()>) -> Result<(u16, Bytes), h2::Error> {
        self.send = self.send.clone().ready().await?;
        let (response, _) = self.send.send_request(request, true)?;
        let response = response.await?;
        Ok((response.status().as_u16(), body(response).await?))
    }

    pub async fn get(&mut self, path: &str) -> Result<(u16, Bytes), h2::Error> {
        self.ask(get(path)).await
    }

    /// Begins a WebSocket (RFC 8441) at `/chat`.
    pub async fn chat(&mut self) -> (h2::client::ResponseFuture, SendStream<Bytes>) {
        let mut looks = 0;
        while !self.send.is_extended_connect_protocol_enabled() {
            assert!(looks < 1000, "its SETTINGS do not say so");
            looks += 1;
            tokio::time::sleep(SOON / 1000).await;
        }
        let mut ask = Request::connect("https://app.test/chat").body(()).unwrap();
        ask.extensions_mut().insert(h2::ext::Protocol::from_static("websocket"));
        self.send = self.send.clone().ready().await.unwrap();
        self.send.send_request(ask, false).unwrap()
    }

    /// So many requests at once; their answers in order.
    pub async fn all(&mut self, paths: Vec<String>) -> Vec<Result<(u16, Bytes), h2::Error>> {
        let mut waiting = Vec::new();
        for path in paths {
            self.send = self.send.clone().ready().await.unwrap();
            let (response, _) = self.send.send_request(get(&path), true).unwrap();
            waiting.push(tokio::spawn(async move {
                let response = response.await?;
                Ok((response.status().as_u16(), body(response).await?))
            }));
        }
        let mut answers = Vec::new();
        for answer in waiting {
            answers.push(answer.await.unwrap());
        }
        answers
    }
}

/// A request to app.test.
pub fn get(path: &str) -> Request<()> {
    Request::get(format!("https://app.test{path}")).body(()).unwrap()
}

/// The whole of a response's body.
pub async fn body(response: Response<RecvStream>) -> Result<Bytes, h2::Error> {
    read(&mut response.into_body()).await
}

/// The data of a stream to its end.
pub async fn read(receive: &mut RecvStream) -> Result<Bytes, h2::Error> {
    let mut body = Vec::new();
    while let Some(piece) = receive.data().await {
        let piece = piece?;
        let _ = receive.flow_control().release_capacity(piece.len());
        body.extend_from_slice(&piece);
    }
    Ok(body.into())
}

/// Sends all of it, as fast as the windows allow.
pub async fn write(send: &mut SendStream<Bytes>, mut bytes: Bytes) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        send.reserve_capacity(bytes.len());
        while send.capacity() == 0 {
            match std::future::poll_fn(|task| send.poll_capacity(task)).await {
                Some(granted) => _ = granted?,
                None => return Err(h2::Reason::CANCEL.into()),
            }
        }
        send.send_data(bytes.split_to(bytes.len().min(send.capacity())), false)?;
    }
    Ok(())
}

/// Runs a client, for [`SOON`] at most.
pub fn run(client: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(SOON, client).await.expect("in time") });
}

/// Does what blocks on a thread: the client's connection goes on meanwhile.
pub async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (give, take) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || give.send(work()).is_ok());
    take.await.unwrap()
}

/// A request with the handle for its answer.
pub type Asked = (Request<RecvStream>, SendResponse<Bytes>);
/// The application's work with it.
pub type Answer = Pin<Box<dyn Future<Output = ()>>>;

/// An application: without TLS, or with it, choosing h2 by ALPN.
pub fn app(
    streams_max: u32,
    leaf: Option<Leaf>,
    answer: impl Fn(Asked) -> Answer + Send + Sync + 'static,
) -> Upstream {
    let acceptor = leaf.map(acceptor);
    let answer = Arc::new(answer);
    Upstream::serve(move |stream| speak(stream, streams_max, acceptor.as_ref(), &*answer))
}

/// Serves a connection as such an application does.
pub fn speak(
    stream: std::net::TcpStream,
    streams_max: u32,
    acceptor: Option<&tokio_rustls::TlsAcceptor>,
    answer: &impl Fn(Asked) -> Answer,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        stream.set_nonblocking(true).unwrap();
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        match acceptor {
            None => serve(stream, streams_max, answer).await,
            Some(acceptor) => {
                let Ok(tls) = acceptor.accept(stream).await else { return };
                serve(tls, streams_max, answer).await;
            }
        }
    });
}

/// Hears a text.
pub async fn hears(receive: &mut RecvStream, text: &str) {
    let mut heard = Vec::new();
    while heard.len() < text.len() {
        let piece = receive.data().await.unwrap().unwrap();
        receive.flow_control().release_capacity(piece.len()).unwrap();
        heard.extend_from_slice(&piece);
    }
    assert_eq!(String::from_utf8_lossy(&heard), text);
}

fn acceptor(leaf: Leaf) -> tokio_rustls::TlsAcceptor {
    let mut config = server_config(leaf, rustls::ALL_VERSIONS);
    Arc::get_mut(&mut config).unwrap().alpn_protocols = vec![b"h2".to_vec()];
    config.into()
}

async fn serve<T: AsyncRead + AsyncWrite + Unpin>(
    stream: T,
    streams_max: u32,
    answer: &(impl Fn(Asked) -> Answer + ?Sized),
) {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(streams_max);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else { return };
    let alive = Rc::new(());
    while let Some(Ok(asked)) = connection.accept().await {
        let (answer, alive) = (answer(asked), alive.clone());
        tokio::task::spawn_local(async move {
            answer.await;
            drop(alive);
        });
    }
}

/// Says a head and a short text.
pub fn say(respond: &mut SendResponse<Bytes>, text: impl Into<Bytes>) {
    let text = text.into();
    let head = Response::builder().header("content-length", text.len()).body(()).unwrap();
    if let Ok(mut send) = respond.send_response(head, false) {
        let _ = send.send_data(text, true);
    }
}
