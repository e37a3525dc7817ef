//! HTTP to the ACME server: one connection a request, with limits on time and size. It notes what
//! the server says of its clock and of when to come back.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use eyelet_client::{HttpServer, RequestLimits, ServerAddress, with_sources};
use eyelet_sys::time::since_boot;
use eyelet_tls::client::describe_stream;
use http::header::{CONTENT_TYPE, DATE, HOST, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;

use crate::schedule;

const LIMITS: RequestLimits = RequestLimits {
    connect: Duration::from_secs(5),
    // A server may check a challenge before it answers.
    whole: Duration::from_secs(30),
    // A chain of certificates has less than 16 KiB.
    body_bytes_max: 256 << 10,
};
/// The longest Retry-After: no server blocks a client for more than a week.
const RETRY_AFTER_SECS_MAX: u64 = 7 * 24 * 3600;
/// The port of https in a URL without a port.
const HTTPS_PORT: u16 = 443;

tokio::task_local! {
    /// The time at which the server wants this task to ask again, by its answers to it. A task
    /// keeps one name, and the server's limits differ from name to name.
    pub static RETRY_AT: Cell<Option<SystemTime>>;
}

/// A client with what its answers said. Clones share that.
#[derive(Clone)]
pub struct Client {
    tls: Arc<ClientConfig>,
    /// The lead of the server's clock over ours, in seconds.
    ahead_secs: Arc<AtomicI64>,
    /// The server's last time, and the moment when it came, by a clock that nobody sets and that
    /// runs while the machine sleeps.
    heard: Arc<Mutex<Option<(SystemTime, Duration)>>>,
}

impl Client {
    /// A client that verifies the server by these roots.
    pub fn new(tls: Arc<ClientConfig>) -> Self {
        Self { tls, ahead_secs: Arc::default(), heard: Arc::default() }
    }

    /// Returns the lead of the server's clock over ours, in seconds.
    pub fn ahead_secs(&self) -> i64 {
        self.ahead_secs.load(Relaxed)
    }

    /// Returns the time by the server's clock, as far as its answers told.
    pub fn server_time(&self) -> SystemTime {
        let heard = self.heard.lock().map(|(said, at)| (said, since_boot().saturating_sub(at)));
        schedule::server_time(SystemTime::now(), heard)
    }

    async fn ask(
        self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Result<BytesResponse, Box<dyn std::error::Error + Send + Sync>> {
        let (mut head, body) = request.into_parts();
        let (uri, method) = (head.uri.clone(), head.method.clone());
        let authority = uri.authority().ok_or("a URL of the server has no host")?;
        if uri.scheme_str() != Some("https") {
            return Err(format!("{uri} is not https://").into());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host.clone())?;
        let port = authority.port_u16().unwrap_or(HTTPS_PORT);
        let tls = Some((self.tls.clone(), name));
        let server = HttpServer { address: ServerAddress::Tcp(host, port), tls };
        head.headers.insert(HOST, HeaderValue::from_str(authority.as_str())?);
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        head.uri = path.parse::<Uri>()?;
        let request = Request::from_parts(head, body.collect().await?.to_bytes());
        let answer = eyelet_client::ask(&server, request, LIMITS).await;
        let answer = answer.map_err(|error| error.in_words(describe_stream))?;
        let (mut parts, body) = answer.into_parts();
        bound_retry_after(&mut parts, &method);
        self.note(&parts);
        let is_problem = parts.headers.get(CONTENT_TYPE).is_some_and(|kind| {
            kind.to_str().is_ok_and(|kind| kind.starts_with("application/problem+json"))
        });
        if !parts.status.is_success() && !is_problem {
            // The library would report that this is not JSON.
            return Err(format!("{uri} answers with status {}", parts.status).into());
        }
        Ok(BytesResponse::from(Response::from_parts(parts, Full::new(body))))
    }

    fn note(&self, parts: &http::response::Parts) {
        let now = SystemTime::now();
        let field = |name| parts.headers.get(name)?.to_str().ok();
        if let Some(date) = field(DATE).and_then(|date| httpdate::parse_http_date(date).ok()) {
            let ahead = match date.duration_since(now) {
                Ok(ahead) => ahead.as_secs().try_into().unwrap_or(i64::MAX),
                Err(behind) => -i64::try_from(behind.duration().as_secs()).unwrap_or(i64::MAX),
            };
            self.ahead_secs.store(ahead, Relaxed);
            *self.heard.lock() = Some((date, since_boot()));
        }
        let is_asked_to_wait = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE]
            .contains(&parts.status);
        if is_asked_to_wait && let Some(after) = field(RETRY_AFTER) {
            let retry_at = match after.trim().parse() {
                Ok(secs) => now.checked_add(Duration::from_secs(secs)),
                Err(_) => httpdate::parse_http_date(after.trim())
                    .ok()
                    .map(|at| schedule::shifted(at, -self.ahead_secs())),
            };
            let latest = now + Duration::from_secs(RETRY_AFTER_SECS_MAX);
            // A change of the account's key belongs to no name: the operator repeats it.
            let _ = RETRY_AT.try_with(|at| at.set(retry_at.map(|at| at.min(latest))));
        }
    }
}

/// Bounds the seconds of Retry-After. The library adds them to the time, and would panic. Without
/// the field it drops the window for a renewal, which is asked for by GET: then the usual time to
/// the next question is added (RFC 9773 section 4.3.2). What is polled is asked for by POST. An
/// error says itself how long to wait, or nothing.
fn bound_retry_after(parts: &mut http::response::Parts, method: &Method) {
    let is_window = *method == Method::GET && parts.status.is_success();
    if is_window && !parts.headers.contains_key(RETRY_AFTER) {
        parts.headers.insert(RETRY_AFTER, schedule::ASK_MAX.as_secs().into());
    }
    let secs = parts.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let is_number = secs.is_some_and(|secs| secs.trim().bytes().all(|byte| byte.is_ascii_digit()));
    let parsed = secs.and_then(|secs| secs.trim().parse::<u64>().ok());
    if is_number && parsed.is_none_or(|secs| secs > RETRY_AFTER_SECS_MAX) {
        parts.headers.insert(RETRY_AFTER, RETRY_AFTER_SECS_MAX.into());
    }
}

impl HttpClient for Client {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let asked = self.clone().ask(request);
        Box::pin(
            async move { asked.await.map_err(|error| Error::Other(with_sources(&*error).into())) },
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn client() -> Client {
        Client::new(Arc::new(eyelet_tls::provider::key_only().unwrap()))
    }

    fn answered(status: u16, fields: &[(&str, String)]) -> Client {
        let mut response = Response::builder().status(status);
        for (name, value) in fields {
            response = response.header(*name, value);
        }
        let mut parts = response.body(()).unwrap().into_parts().0;
        bound_retry_after(&mut parts, &Method::POST);
        let client = client();
        client.note(&parts);
        client
    }

    #[test]
    fn a_clock_that_is_wrong_by_a_day_is_noticed() {
        let day = Duration::from_hours(24);
        let said = |date| answered(200, &[("date", httpdate::fmt_http_date(date))]).ahead_secs();
        let now = SystemTime::now();
        for (date, ahead) in [(now + day, 86_400), (now - day, -86_400), (now, 0)] {
            assert!(said(date).abs_diff(ahead) < 60, "{ahead}");
        }
        assert_eq!(answered(200, &[]).ahead_secs(), 0);
        let server = answered(200, &[("date", httpdate::fmt_http_date(now - day))]).server_time();
        assert!(server < now - day / 2, "{server:?}");
    }

    /// The library has no window without a Retry-After.
    #[test]
    fn a_window_for_a_renewal_needs_no_retry_after() {
        for (method, status, said, expected) in [
            (Method::GET, 200, None, Some("43200")),
            (Method::GET, 200, Some("60"), Some("60")),
            (Method::GET, 200, Some("99999999999"), Some("604800")),
            (Method::GET, 503, None, None),
            (Method::GET, 503, Some("60"), Some("60")),
            (Method::GET, 429, None, None),
            (Method::POST, 200, None, None),
        ] {
            let mut parts = Response::builder().status(status).body(()).unwrap().into_parts().0;
            if let Some(said) = said {
                parts.headers.insert(RETRY_AFTER, HeaderValue::from_static(said));
            }
            bound_retry_after(&mut parts, &method);
            let found = parts.headers.get(RETRY_AFTER).map(|value| value.to_str().unwrap());
            assert_eq!(found, expected, "{method} {status} {said:?}");
        }
    }

    #[test]
    fn a_server_that_asks_to_wait_is_obeyed() {
        let in_secs = |status, after: &str| {
            RETRY_AT.sync_scope(Cell::default(), || {
                answered(status, &[("retry-after", after.into())]);
                let at = RETRY_AT.with(Cell::get)?;
                Some(at.duration_since(SystemTime::now()).unwrap_or_default().as_secs())
            })
        };
        assert!(in_secs(429, "120").is_some_and(|secs| secs > 60 && secs <= 120));
        let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(7200));
        assert!(in_secs(503, &date).is_some_and(|secs| secs > 3600));
        // By the server's clock, which is a day ahead or behind.
        let (day, two_hours) = (Duration::from_hours(24), Duration::from_hours(2));
        for server in [SystemTime::now() + day, SystemTime::now() - day] {
            let secs = RETRY_AT.sync_scope(Cell::default(), || {
                let [date, after] = [server, server + two_hours].map(httpdate::fmt_http_date);
                answered(503, &[("date", date), ("retry-after", after)]);
                let at = RETRY_AT.with(Cell::get).unwrap();
                at.duration_since(SystemTime::now()).unwrap().as_secs()
            });
            assert!((3600..=7200).contains(&secs), "{secs}");
        }
        // Where an order is polled this is how often.
        assert_eq!(in_secs(200, "5"), None);
        assert_eq!(in_secs(429, "soon"), None);
        for huge in [u64::MAX.to_string(), "9".repeat(30)] {
            let secs = in_secs(429, &huge).unwrap();
            assert!(secs <= RETRY_AFTER_SECS_MAX && secs > RETRY_AFTER_SECS_MAX / 2);
        }
        // Outside of a name's task.
        answered(429, &[("retry-after", "120".into())]);
    }
}
