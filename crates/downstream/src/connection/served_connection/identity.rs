//! The client as upstreams see it: who it is said to be, and whether a connection is its own.

use std::cell::{Cell, RefCell};

use eyelet_http1::fields::{self, Requester};
use http::{header, request};

use super::ServedConnection;
use crate::connection::route::Route;

/// Longest authority whose requester is kept for the next request: a host name and a port. A longer
/// one would outlive the count of its head.
const HOST_BYTES_KEPT: usize = 260;

/// What is known of the client from its requests.
#[derive(Default)]
pub(super) struct ClientIdentity {
    /// The requester of the last request, and mostly of the next one.
    last: RefCell<Option<Requester>>,
    /// True if a request has said who the client is for the whole connection to the upstream.
    is_tied: Cell<bool>,
}

impl ServedConnection {
    /// The description of the client for an upstream, for requests to this authority.
    pub fn identify_requester(
        &self,
        host: &str,
        request: &mut request::Parts,
    ) -> fields::ForwardedFields {
        if !self.intermediary.tells_upstream() {
            // It is not told the client's address.
            return fields::via_alone(request.version);
        }
        let mut last = self.identity.last.borrow_mut();
        let known = last.take().filter(|requester| requester.asks_for(host, request.version));
        let client = self.info.client.ip();
        let requester = known.unwrap_or_else(|| {
            Requester::new(client, host, request.version, self.client_certificate())
        });
        let forwarded = requester.identify(&mut request.headers, self.trusts_client());
        if host.len() <= HOST_BYTES_KEPT {
            *last = Some(requester);
        }
        forwarded
    }

    /// The client's certificate in DER, if the rule tells the upstream.
    fn client_certificate(&self) -> Option<&[u8]> {
        let rule = self.route.as_ref().and_then(Route::requests);
        let is_told = rule.is_some_and(|terminate| terminate.client_cert_header);
        self.info.decided.client_certificate.as_deref().filter(|_| is_told).map(|leaf| &**leaf)
    }

    /// Whether to believe the client's fields on earlier hops.
    pub fn trusts_client(&self) -> bool {
        let trusted = &self.worker.shared.config.http.trusted_proxies;
        trusted.iter().any(|net| net.contains(&self.info.client.ip()))
    }

    /// Whether this request or one before it has said who the client is for all that follow on a
    /// connection to the upstream, as with NTLM and Negotiate (RFC 4559 section 6).
    pub fn is_tied(&self, headers: &http::HeaderMap) -> bool {
        let ties = |value: &http::HeaderValue| {
            let scheme = value.as_bytes().split(|byte| *byte == b' ').next().unwrap_or_default();
            [&b"ntlm"[..], b"negotiate"].iter().any(|name| scheme.eq_ignore_ascii_case(name))
        };
        let is_tied =
            self.identity.is_tied.get() || headers.get_all(header::AUTHORIZATION).iter().any(ties);
        self.identity.is_tied.set(is_tied);
        is_tied
    }
}
