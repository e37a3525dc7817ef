//! HTTP to the collector: one connection for batches that follow each other at once, with limits on
//! time and size.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use eyelet_config::{SecretFields, TraceEndpoint};
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// From the name's resolution to the last byte of the answer. A batch takes milliseconds.
const POST_TIMEOUT: Duration = Duration::from_secs(10);
/// For each address of the collector: a silent one leaves time for another.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// For the end of a connection, which takes one write.
const HANG_UP_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of an answer. A collector's has less than a hundred.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Characters of the collector's words in the log.
const WORDS_CHARS_MAX: usize = 200;

/// What became of a batch.
#[derive(Debug)]
pub enum Sent {
    /// The collector has it, but for so many spans.
    Taken {
        /// Spans that it refused.
        refused: u64,
        /// Why.
        why: String,
    },
    /// It will never take it.
    Refused(String),
    /// It may take it later, after this time if it says so.
    Later(String, Option<Duration>),
}

type Fault = Box<dyn Error + Send + Sync>;

/// A client of one collector.
pub struct CollectorClient {
    endpoint: TraceEndpoint,
    fields: SecretFields,
    tls: Option<Arc<ClientConfig>>,
    kept: Option<Connection>,
}

/// An open connection, and the task that drives it, which ends with it.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    task: JoinSet<()>,
}

impl CollectorClient {
    /// A client that sends these fields. `tls` is for an https:// endpoint.
    pub fn new(
        endpoint: TraceEndpoint,
        fields: SecretFields,
        tls: Option<Arc<ClientConfig>>,
    ) -> Self {
        Self { endpoint, fields, tls, kept: None }
    }

    /// Sends a batch. The connection stays open for the next one.
    pub async fn post(&mut self, body: Bytes) -> Sent {
        match tokio::time::timeout(POST_TIMEOUT, self.ask(body)).await {
            Ok(Ok(sent)) => sent,
            Ok(Err(fault)) => Sent::Later(with_sources(&*fault), None),
            Err(_) => Sent::Later(format!("no answer within {} s", POST_TIMEOUT.as_secs()), None),
        }
    }

    /// Ends the connection that was kept, if there is one.
    pub async fn hang_up(&mut self) {
        let Some(Connection { sender, mut task }) = self.kept.take() else { return };
        // Then the task closes it.
        drop(sender);
        let _ = tokio::time::timeout(HANG_UP_TIMEOUT, task.join_next()).await;
    }

    async fn ask(&mut self, body: Bytes) -> Result<Sent, Fault> {
        // Taken out: one that fails or is too slow is not used again.
        if let Some(mut kept) = self.kept.take()
            && kept.sender.ready().await.is_ok()
            && let Ok(sent) = self.exchange(kept, body.clone()).await
        {
            return Ok(sent);
        }
        // The collector may close a connection at any time, so this says nothing about it.
        let connection = self.open().await?;
        self.exchange(connection, body).await
    }

    async fn open(&self) -> Result<Connection, Fault> {
        let stream = self.connect().await?;
        match &self.tls {
            None => begin(TokioIo::new(stream)).await,
            Some(tls) => {
                let host = self.host();
                let bare = host.trim_start_matches('[').trim_end_matches(']');
                let name = ServerName::try_from(bare.to_owned())?;
                let stream = TlsConnector::from(tls.clone()).connect(name, stream).await?;
                begin(TokioIo::new(stream)).await
            }
        }
    }

    /// The host as `lookup_host` takes it.
    fn host(&self) -> String {
        let address = self.endpoint.address.to_string();
        address.rsplit_once(':').map_or("", |(host, _)| host).to_owned()
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let mut failure = io::Error::new(ErrorKind::NotFound, "its name has no address");
        for address in tokio::net::lookup_host(self.endpoint.address.to_string()).await? {
            let connected = TcpStream::connect(address);
            let connected = tokio::time::timeout(CONNECT_TIMEOUT, connected).await;
            match connected.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())) {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = io::Error::new(error.kind(), format!("{address}: {error}")),
            }
        }
        Err(failure)
    }

    async fn exchange(&mut self, mut on: Connection, body: Bytes) -> Result<Sent, Fault> {
        let mut request = Request::post(&*self.endpoint.path)
            .header(HOST, &*self.endpoint.authority)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        for (name, value) in &self.fields {
            let mut value = HeaderValue::from_bytes(value)?;
            value.set_sensitive(true);
            request.headers_mut().append(name, value);
        }
        let (parts, body) = on.sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?.to_bytes();
        self.kept = Some(on);
        Ok(judged(parts.status, &parts.headers, &body))
    }
}

/// A connection over a stream.
async fn begin<T>(stream: T) -> Result<Connection, Fault>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(stream).await?;
    // The request fails with the same error, so this one is dropped.
    let mut task = JoinSet::new();
    task.spawn(async { drop(connection.await) });
    Ok(Connection { sender, task })
}

/// What an answer says (OTLP/HTTP, "Response"): a 200 may refuse some spans, and these four
/// statuses ask for another try.
fn judged(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Sent {
    if status.is_success() {
        let (refused, why) = refused(body);
        return Sent::Taken { refused, why };
    }
    let why = format!("it answers with status {status}");
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Sent::Later(why, retry_after(headers)),
        _ => Sent::Refused(why),
    }
}

/// How many spans were refused, and why. An answer that is no JSON refuses none.
fn refused(body: &[u8]) -> (u64, String) {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let partial = &answer["partialSuccess"];
    // The JSON mapping of Protobuf writes 64-bit numbers as texts, and takes both.
    let refused = match &partial["rejectedSpans"] {
        Value::String(text) => text.parse().unwrap_or(0),
        number => number.as_u64().unwrap_or(0),
    };
    let words = partial["errorMessage"].as_str().unwrap_or("no reason given");
    let words: String =
        words.chars().filter(|word| !word.is_control()).take(WORDS_CHARS_MAX).collect();
    (refused, format!("it refuses spans: {words}"))
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match is_number {
        // One that does not fit is no shorter wait.
        true => Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX))),
        false => {
            let date = httpdate::parse_http_date(text).ok()?;
            Some(date.duration_since(SystemTime::now()).unwrap_or_default())
        }
    }
}

/// An error and what it comes from, in one line.
fn with_sources(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};

    use eyelet_config::{Host, HostPort};
    use tokio::runtime::Builder;

    use super::*;

    fn answered(status: u16, after: Option<&'static str>, body: &str) -> Sent {
        let mut headers = HeaderMap::new();
        if let Some(after) = after {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(after));
        }
        judged(StatusCode::from_u16(status).unwrap_or_default(), &headers, body.as_bytes())
    }

    /// A collector that takes so many batches on a connection, and then waits for its end or closes
    /// it. Returns how many each connection had until its end.
    fn collector(listener: TcpListener, closes_after: usize) -> Vec<usize> {
        let mut taken = Vec::new();
        while taken.iter().sum::<usize>() < 4 {
            let (stream, _) = listener.accept().unwrap();
            let (mut reader, mut count) = (BufReader::new(stream), 0);
            while count < closes_after && takes_batch(&mut reader) {
                count += 1;
                reader
                    .get_mut()
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    .unwrap();
            }
            taken.push(count);
        }
        taken
    }

    /// Reads a request, whose body is one byte. Returns whether there was one.
    fn takes_batch(reader: &mut BufReader<TcpStream>) -> bool {
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap() > 0 {
            if line.ends_with("\r\n\r\n") {
                reader.read_exact(&mut [0]).unwrap();
                return true;
            }
        }
        assert_eq!(line, "");
        false
    }

    #[test]
    fn batches_that_follow_each_other_share_a_connection() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        for (closes_after, expected) in [(usize::MAX, vec![3, 1]), (2, vec![2, 1, 1])] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let endpoint = TraceEndpoint {
                tls: false,
                address: HostPort { host: Host::Ip(address.ip()), port: address.port() },
                authority: "collector.example".into(),
                path: "/".into(),
            };
            let mut client = CollectorClient::new(endpoint, SecretFields::new(), None);
            let taken = std::thread::spawn(move || collector(listener, closes_after));
            for batch in 0..4 {
                let sent = runtime.block_on(client.post(Bytes::from_static(b"x")));
                assert!(matches!(sent, Sent::Taken { refused: 0, .. }), "{sent:?}");
                if batch == 2 {
                    runtime.block_on(client.hang_up());
                    // Its end needs no further look.
                    assert!(client.kept.is_none());
                }
            }
            runtime.block_on(client.hang_up());
            assert_eq!(taken.join().unwrap(), expected);
        }
    }

    #[test]
    fn a_collector_says_what_it_has_refused() {
        for (body, expected) in [
            ("", 0),
            ("{}", 0),
            ("garbage", 0),
            ("[1]", 0),
            (r#"{"partialSuccess":{}}"#, 0),
            (r#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"a\nb"}}"#, 3),
            (r#"{"partialSuccess":{"rejectedSpans":4}}"#, 4),
            (r#"{"partialSuccess":{"rejectedSpans":-4}}"#, 0),
        ] {
            let sent = answered(200, None, body);
            let is_so = matches!(&sent, Sent::Taken { refused, why }
                if *refused == expected && !why.contains('\n'));
            assert!(is_so, "{body}: {sent:?}");
        }
    }

    #[test]
    fn only_four_statuses_ask_for_another_try() {
        for status in [429, 502, 503, 504] {
            let sent = answered(status, None, "");
            assert!(matches!(sent, Sent::Later(_, None)), "{status}: {sent:?}");
        }
        for status in [301, 400, 401, 404, 413, 500, 501] {
            let sent = answered(status, Some("5"), "");
            assert!(matches!(sent, Sent::Refused(_)), "{status}: {sent:?}");
        }
        for (after, expected) in [
            ("7", Some(7)),
            ("99999999999999999999", Some(u64::MAX)),
            ("+7", None),
            ("soon", None),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
        ] {
            let sent = answered(503, Some(after), "");
            let expected = expected.map(Duration::from_secs);
            assert!(matches!(&sent, Sent::Later(_, at) if *at == expected), "{after}: {sent:?}");
        }
    }
}
