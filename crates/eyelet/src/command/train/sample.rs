//! Requests one response from an upstream, without credentials.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use eyelet_client::{HttpServer, RequestLimits, ServerAddress, blocking};
use eyelet_compress::dictionary::offer;
use eyelet_compress::eligible::{self, LENGTH_MIN_TRAINED, ResponseHead};
use http::Request;
use http::header::{ACCEPT_ENCODING, HOST};
use rustls_pki_types::ServerName;

use super::log::Visit;
use eyelet_config::{Config, HttpAddress, HttpUpstream, UpstreamHttp2};
use eyelet_tls::client::{ClientConfigs, Spoken};

/// The source of samples.
pub(super) struct Source(HttpServer);

impl Source {
    /// The upstream of a rule, verified as for the rule's requests.
    pub(super) fn new(config: &Config, upstream: &HttpUpstream) -> Result<Self, String> {
        if upstream.http2 == UpstreamHttp2::On {
            return Err(HTTP2_ONLY.into());
        }
        let address = match &upstream.address {
            HttpAddress::Tcp(to) => ServerAddress::Tcp(to.host.to_string(), to.port),
            HttpAddress::Unix(path) => ServerAddress::Unix(path.clone()),
            HttpAddress::Destination => return Err(STRANGERS.into()),
        };
        let Some(tls) = &upstream.tls else { return Ok(Self(HttpServer { address, tls: None })) };
        let configs =
            ClientConfigs::new(config, &Arc::default(), None).map_err(|error| error.to_string())?;
        let client = configs.of(tls, Spoken::Http1).ok_or("no TLS configuration")?;
        let name = ServerName::try_from(tls.name.clone()).map_err(|error| error.to_string())?;
        Ok(Self(HttpServer { address, tls: Some((client, name)) }))
    }

    /// The body, if any client may see it and it is worth compressing. One that breaks off is none:
    /// a body would train on half a response.
    pub(super) fn fetch(&self, visit: &Visit) -> Option<Vec<u8>> {
        let request = Request::get(&*visit.path)
            .header(HOST, &*visit.host)
            .header(ACCEPT_ENCODING, "identity")
            .header("x-forwarded-proto", "https")
            .body(Bytes::new());
        let answer = blocking::ask(&self.0, request.ok()?, LIMITS).ok()?;
        let (status, headers) = (answer.status(), answer.headers());
        let head = ResponseHead { status, headers, length: Some(answer.body().len() as u64) };
        let public = offer::may_be_sample(status, headers);
        let worth = eligible::by_head(head, LENGTH_MIN_TRAINED, false).is_ok();
        (public && worth).then(|| answer.into_body().into())
    }
}

const HTTP2_ONLY: &str = "samples are asked by HTTP/1 only; with `upstream_http2 = \"on\"` this \
    upstream may not understand that. Train with a configuration that names it without";

const STRANGERS: &str = "the upstream of this rule is each client's destination: strangers' \
    responses are no dictionaries of ours";

/// Tests share a busy machine with their upstreams.
const TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 10 });
/// A longer response than this is not small.
const LIMITS: RequestLimits =
    RequestLimits { connect: TIMEOUT, whole: TIMEOUT, body_bytes_max: 256 << 10 };
