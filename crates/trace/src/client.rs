//! HTTP to the collector: one connection a batch, with limits on time and size.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use eyelet_config::{SecretFields, TraceEndpoint};
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// From the name's resolution to the last byte of the answer. A batch takes milliseconds.
const POST_TIMEOUT: Duration = Duration::from_secs(10);
/// For each address of the collector: a silent one leaves time for another.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
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
}

impl CollectorClient {
    /// A client that sends these fields. `tls` is for an https:// endpoint.
    pub fn new(
        endpoint: TraceEndpoint,
        fields: SecretFields,
        tls: Option<Arc<ClientConfig>>,
    ) -> Self {
        Self { endpoint, fields, tls }
    }

    /// Sends a batch.
    pub async fn post(&self, body: Bytes) -> Sent {
        match tokio::time::timeout(POST_TIMEOUT, self.ask(body)).await {
            Ok(Ok(sent)) => sent,
            Ok(Err(fault)) => Sent::Later(with_sources(&*fault), None),
            Err(_) => Sent::Later(format!("no answer within {} s", POST_TIMEOUT.as_secs()), None),
        }
    }

    async fn ask(&self, body: Bytes) -> Result<Sent, Fault> {
        let stream = self.connect().await?;
        match &self.tls {
            None => self.exchange(TokioIo::new(stream), body).await,
            Some(tls) => {
                let host = self.host();
                let bare = host.trim_start_matches('[').trim_end_matches(']');
                let name = ServerName::try_from(bare.to_owned())?;
                let stream = TlsConnector::from(tls.clone()).connect(name, stream).await?;
                self.exchange(TokioIo::new(stream), body).await
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

    async fn exchange<T>(&self, stream: T, body: Bytes) -> Result<Sent, Fault>
    where
        T: Read + Write + Unpin + Send + 'static,
    {
        let (mut sender, connection) = http1::handshake(stream).await?;
        // It ends with the sender.
        drop(tokio::spawn(connection));
        let mut request = Request::post(&*self.endpoint.path)
            .header(HOST, &*self.endpoint.authority)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        for (name, value) in &self.fields {
            let mut value = HeaderValue::from_bytes(value)?;
            value.set_sensitive(true);
            request.headers_mut().append(name, value);
        }
        let (parts, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?.to_bytes();
        Ok(judged(parts.status, &parts.headers, &body))
    }
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
    match text.parse() {
        Ok(secs) => Some(Duration::from_secs(secs)),
        Err(_) => {
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
    use super::*;

    fn answered(status: u16, after: Option<&'static str>, body: &str) -> Sent {
        let mut headers = HeaderMap::new();
        if let Some(after) = after {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(after));
        }
        judged(StatusCode::from_u16(status).unwrap_or_default(), &headers, body.as_bytes())
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
        for (after, expected) in
            [("7", Some(7)), ("soon", None), ("Sun, 06 Nov 1994 08:49:37 GMT", Some(0))]
        {
            let sent = answered(503, Some(after), "");
            let expected = expected.map(Duration::from_secs);
            assert!(matches!(&sent, Sent::Later(_, at) if *at == expected), "{after}: {sent:?}");
        }
    }
}
