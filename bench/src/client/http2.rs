//! GETs by HTTP/2, several at a time on one connection.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::SendRequest;
use rustls::ClientConfig;

use super::tls;
use crate::lab::host_name;

/// Chromium's windows in bytes.
const STREAM_WINDOW: u32 = 6 << 20;
const CONNECTION_WINDOW: u32 = 15 << 20;

/// The beginnings of streams on one connection. The connection ends with the last clone.
pub type RequestSender = SendRequest<Bytes>;

/// Connects as [`tls::open`] does. `config` must offer HTTP/2.
pub async fn open(
    config: &Arc<ClientConfig>,
    target: SocketAddr,
    i: usize,
    names: usize,
) -> io::Result<RequestSender> {
    let stream = tls::open(config, target, i, names).await?;
    let (streams, connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake(stream)
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(connection);
    Ok(streams)
}

/// Sends a GET and reads the whole response. Returns the bytes of its body.
///
/// # Errors
/// The stream or the connection has failed, or the response is not 200.
pub async fn get(streams: &mut RequestSender, path: &str) -> io::Result<usize> {
    download(streams, path, |_| ()).await
}

/// A GET that shows each part of the body as it comes.
///
/// # Errors
/// See [`get`].
pub async fn download(
    streams: &mut RequestSender,
    path: &str,
    mut see: impl FnMut(&[u8]),
) -> io::Result<usize> {
    std::future::poll_fn(|task| streams.poll_ready(task)).await.map_err(io::Error::other)?;
    let request = http::Request::get(format!("https://{}{path}", host_name(0)));
    let request = request.body(()).map_err(io::Error::other)?;
    let (response, _) = streams.send_request(request, true).map_err(io::Error::other)?;
    let (head, mut body) = response.await.map_err(io::Error::other)?.into_parts();
    if head.status != http::StatusCode::OK {
        return Err(io::Error::other(format!("answered {}", head.status)));
    }
    let mut bytes = 0;
    while let Some(data) = body.data().await {
        let data = data.map_err(io::Error::other)?;
        body.flow_control().release_capacity(data.len()).map_err(io::Error::other)?;
        see(&data);
        bytes += data.len();
    }
    Ok(bytes)
}
