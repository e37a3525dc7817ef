//! HTTP to the collector: one connection for batches that follow each other at once, with limits on
//! time and size.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use eyelet_client::{
    ClientError, Connection, HttpServer, RequestLimits, ServerAddress, with_sources, within,
};
use eyelet_config::{SecretFields, TraceEndpoint};
use eyelet_tls::client::describe_stream;
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::Value;

const LIMITS: RequestLimits = RequestLimits {
    connect: Duration::from_secs(3),
    // A batch takes milliseconds.
    whole: Duration::from_secs(10),
    // A collector's answer has less than a hundred.
    body_bytes_max: 64 << 10,
};
/// Characters of the collector's words in the log.
const WORDS_CHARS_MAX: usize = 200;

/// The fate of a batch.
#[derive(Debug)]
pub enum Sent {
    /// The collector has it, but for so many spans.
    Taken {
        /// Spans that it refused.
        refused: u64,
        why: String,
    },
    /// It will never take it.
    Refused(String),
    /// It may take it later, after this time if it says so.
    Later(String, Option<Duration>),
}

type Fault = Box<dyn Error + Send + Sync>;

pub struct CollectorClient {
    endpoint: TraceEndpoint,
    fields: SecretFields,
    tls: Option<Arc<ClientConfig>>,
    kept: Option<Connection>,
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
        let asked = within(LIMITS.whole, self.ask(body)).await;
        match asked.map_err(Fault::from).flatten() {
            Ok(answer) => judged(&answer),
            Err(fault) => Sent::Later(with_sources(&*fault), None),
        }
    }

    /// Ends the connection that was kept, if there is one.
    pub async fn hang_up(&mut self) {
        if let Some(kept) = self.kept.take() {
            kept.hang_up().await;
        }
    }

    async fn ask(&mut self, body: Bytes) -> Result<Response<Bytes>, Fault> {
        let mut request = Request::post(&*self.endpoint.path)
            .header(HOST, &*self.endpoint.authority)
            .header(CONTENT_TYPE, "application/json")
            .body(body)?;
        for (name, value) in &self.fields {
            let mut value = HeaderValue::from_bytes(value)?;
            value.set_sensitive(true);
            request.headers_mut().append(name, value);
        }
        // Taken out: one that fails or is too slow is not used again.
        if let Some(kept) = self.kept.take()
            && let Ok(answer) = self.exchange(kept, request.clone()).await
        {
            return Ok(answer);
        }
        // The collector may close a connection at any time, so this says nothing about it.
        let connection = Connection::open(&self.server()?, LIMITS.connect).await;
        let connection = connection.map_err(|error| error.in_words(describe_stream))?;
        Ok(self.exchange(connection, request).await?)
    }

    fn server(&self) -> Result<HttpServer, Fault> {
        let host = self.endpoint.address.host.to_string();
        let tls = match &self.tls {
            None => None,
            Some(config) => Some((config.clone(), ServerName::try_from(host.clone())?)),
        };
        Ok(HttpServer { address: ServerAddress::Tcp(host, self.endpoint.address.port), tls })
    }

    async fn exchange(
        &mut self,
        mut on: Connection,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, ClientError> {
        let answer = on.ask(request, LIMITS.body_bytes_max).await?;
        self.kept = Some(on);
        Ok(answer)
    }
}

/// Judges an answer (OTLP/HTTP, "Response"): a 200 may refuse some spans, and these four statuses
/// ask for another try.
fn judged(answer: &Response<Bytes>) -> Sent {
    let status = answer.status();
    if status.is_success() {
        let (refused, why) = refused(answer.body());
        return Sent::Taken { refused, why };
    }
    let why = format!("it answers with status {status}");
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Sent::Later(why, retry_after(answer.headers())),
        _ => Sent::Refused(why),
    }
}

/// Returns the number of spans that were refused, and the reason. An answer that is no JSON refuses
/// none.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};

    use eyelet_config::{Host, HostPort};
    use tokio::runtime::Builder;

    use super::*;

    fn answered(status: u16, after: Option<&'static str>, body: &str) -> Sent {
        let mut answer = Response::new(body.to_owned().into());
        *answer.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
        if let Some(after) = after {
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(after));
        }
        judged(&answer)
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
