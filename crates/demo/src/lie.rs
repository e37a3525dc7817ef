//! A client that says a false name on its way to a destination, and one that says the true one.

use std::io;
use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::client;
use crate::identity::{FALSE_NAME, ORIGIN_NAME};

/// Bytes of the answer to CONNECT.
const ANSWER_BYTES_MAX: usize = 4096;

/// Asks the gateway for the origin's address twice: with a name that is not the origin's, and with
/// the one that is.
pub(crate) async fn tell(
    gateway: SocketAddr,
    origin: SocketAddr,
    connector: &TlsConnector,
) -> Value {
    let mut rows = Vec::new();
    for name in [FALSE_NAME, ORIGIN_NAME] {
        let ended = connect(gateway, origin, name, connector).await;
        let (passed, text) = match ended {
            Ok(()) => (true, "spliced: the destination proved that the name is its own".into()),
            Err(error) => (false, reason(&error)),
        };
        rows.push(json!({ "name": name, "passed": passed, "text": text }));
    }
    json!({ "destination": origin.to_string(), "rows": rows })
}

async fn connect(
    gateway: SocketAddr,
    origin: SocketAddr,
    name: &str,
    connector: &TlsConnector,
) -> io::Result<()> {
    let mut stream = client::in_time(TcpStream::connect(gateway)).await?;
    let head = format!("CONNECT {origin} HTTP/1.1\r\nHost: {origin}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") && answer.len() < ANSWER_BYTES_MAX {
        answer.push(client::in_time(stream.read_u8()).await?);
    }
    if !answer.starts_with(b"HTTP/1.1 200 ") {
        let text = String::from_utf8_lossy(&answer);
        return Err(io::Error::other(text.lines().next().unwrap_or_default().to_owned()));
    }
    client::shake_hands(connector, name, stream).await.map(drop)
}

/// The alert, if there was one.
fn reason(error: &io::Error) -> String {
    let fault = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match fault {
        Some(rustls::Error::AlertReceived(alert)) => {
            format!("refused with the TLS alert {}", snake(&format!("{alert:?}")))
        }
        _ => format!("refused: {error}"),
    }
}

/// The RFC's spelling of an alert: `AccessDenied` is `access_denied`.
fn snake(name: &str) -> String {
    let mut text = String::new();
    for (at, letter) in name.char_indices() {
        if at > 0 && letter.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_have_their_names_of_the_rfc() {
        assert_eq!(snake("AccessDenied"), "access_denied");
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::AccessDenied);
        let text = reason(&io::Error::new(io::ErrorKind::InvalidData, alert));
        assert_eq!(text, "refused with the TLS alert access_denied");
    }
}
