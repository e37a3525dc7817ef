//! The client as upstreams see it: who it is said to be, and whether a connection is its own.

use std::cell::{Cell, RefCell};

use eyelet_http1::fields::{ForwardedFields, Requester};
use http::{Version, header, request};

/// Longest authority whose requester is kept for the next request: a host name and a port. A longer
/// one would outlive the count of its head.
const HOST_BYTES_KEPT: usize = 260;

/// The facts that are known of the client from its requests.
#[derive(Default)]
pub(super) struct ClientIdentity {
    /// The requester of the last request, and mostly of the next one.
    last: RefCell<Option<Requester>>,
    /// True if a request has said who the client is for the whole connection to the upstream.
    is_tied: Cell<bool>,
}

impl ClientIdentity {
    /// Tells an upstream who the client is, for a request to this authority. `new` describes a
    /// client that has not asked for it last.
    pub fn identify(
        &self,
        host: &str,
        request: &mut request::Parts,
        is_trusted: bool,
        new: impl FnOnce(Version) -> Requester,
    ) -> ForwardedFields {
        let mut last = self.last.borrow_mut();
        last.take_if(|requester| !requester.asks_for(host, request.version));
        let requester = last.get_or_insert_with(|| new(request.version));
        let forwarded = requester.identify(&mut request.headers, is_trusted);
        if host.len() > HOST_BYTES_KEPT {
            *last = None;
        }
        forwarded
    }

    /// True if a request up to this one has authenticated the whole connection to the upstream, as
    /// with NTLM and Negotiate (RFC 4559 section 6).
    pub fn is_tied(&self, headers: &http::HeaderMap) -> bool {
        let ties = |value: &http::HeaderValue| {
            let scheme = value.as_bytes().split(|byte| *byte == b' ').next().unwrap_or_default();
            [&b"ntlm"[..], b"negotiate"].iter().any(|name| scheme.eq_ignore_ascii_case(name))
        };
        let is_tied = self.is_tied.get() || headers.get_all(header::AUTHORIZATION).iter().any(ties);
        self.is_tied.set(is_tied);
        is_tied
    }
}
