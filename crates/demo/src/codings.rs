//! One file by each coding, fetched through the edge. A page cannot choose its own codings, so the
//! demo's client does it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use eyelet_client::Connection;
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::{self, HeaderName};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::client;
use crate::identity::APP_NAME;
use crate::manual;

/// The file, by path, in its newest edition and the one before. Both match the pattern of the
/// page's rule, so the edge makes the earlier one a dictionary.
pub(crate) const NEWEST_PATH: &str = "/manual/2.txt";
pub(crate) const EARLIER_PATH: &str = "/manual/1.txt";
/// Most bytes of a body: more than the file has.
const BODY_BYTES_MAX: usize = 256 << 10;
/// A thread of the edge stores a dictionary after the response has ended: on a busy machine the
/// next request is earlier. Asked again so often, with this pause.
const STORE_TRIES_MAX: u32 = 50;
const STORE_WAIT: Duration = Duration::from_millis(100);

const AVAILABLE_DICTIONARY: HeaderName = HeaderName::from_static("available-dictionary");

/// Fetches the file by each coding. Returns the bytes of each body.
///
/// # Errors
/// A socket's or a protocol's error, or a timeout.
pub(crate) async fn measure(
    page: SocketAddr,
    connector: &TlsConnector,
    authority: &str,
) -> io::Result<Value> {
    let stream = client::in_time(TcpStream::connect(page)).await?;
    let stream = client::shake_hands(connector, APP_NAME, stream).await?;
    let mut connection = Connection::over(stream).await.map_err(io::Error::other)?;
    let mut rows = Vec::new();
    for coding in ["identity", "gzip", "br", "zstd"] {
        let got = fetch(&mut connection, authority, NEWEST_PATH, coding, None).await?;
        rows.push(json!({ "asked": coding, "coding": got.0, "bytes": got.1 }));
    }
    // The edge keeps what it serves here as a dictionary.
    fetch(&mut connection, authority, EARLIER_PATH, "br", None).await?;
    let hash = digest(&SHA256, manual::EARLIER.as_bytes());
    let has = format!(":{}:", STANDARD.encode(hash));
    let mut got = fetch(&mut connection, authority, NEWEST_PATH, "br, dcz", Some(&has)).await?;
    for _ in 0..STORE_TRIES_MAX {
        if got.0 == "dcz" {
            break;
        }
        tokio::time::sleep(STORE_WAIT).await;
        got = fetch(&mut connection, authority, NEWEST_PATH, "br, dcz", Some(&has)).await?;
    }
    rows.push(json!({ "asked": "dictionary", "coding": got.0, "bytes": got.1 }));
    Ok(json!({ "rows": rows, "changed": manual::NEWEST.len() - manual::EARLIER.len() }))
}

/// The coding that the edge chose, and the bytes of the body as they were sent.
async fn fetch(
    connection: &mut Connection,
    authority: &str,
    path: &str,
    accept: &str,
    dictionary: Option<&str>,
) -> io::Result<(String, usize)> {
    let request =
        Request::get(path).header(header::HOST, authority).header(header::ACCEPT_ENCODING, accept);
    let request = match dictionary {
        Some(has) => request.header(AVAILABLE_DICTIONARY, has),
        None => request,
    };
    let request = request.body(Bytes::new()).map_err(io::Error::other)?;
    let asked = async { connection.ask(request, BODY_BYTES_MAX).await.map_err(io::Error::other) };
    let answer = client::in_time(asked).await?;
    if !answer.status().is_success() {
        return Err(io::Error::other(format!("{path}: {}", answer.status())));
    }
    let coding = answer.headers().get(header::CONTENT_ENCODING).and_then(|text| text.to_str().ok());
    Ok((coding.unwrap_or("identity").to_owned(), answer.body().len()))
}
