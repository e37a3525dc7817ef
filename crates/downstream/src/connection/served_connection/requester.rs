//! The client of a connection, as its upstreams are told of it.

use eyelet_http1::fields::{self, ForwardedFields, Requester};
use http::request;

use super::ServedConnection;

impl ServedConnection {
    /// The description of the client for an upstream, for requests to this authority.
    pub fn identify_requester(&self, host: &str, request: &mut request::Parts) -> ForwardedFields {
        if !self.rule.intermediary.tells_upstream() {
            // It is not told the client's address.
            return fields::via_alone(request.version);
        }
        self.identity.identify(host, request, self.trusts_client(), |version| {
            Requester::new(self.info.client.ip(), host, version, self.client_certificate())
        })
    }

    /// True if this request or one before it has said who the client is for all that follow on a
    /// connection to the upstream, as with NTLM and Negotiate (RFC 4559 section 6).
    pub fn is_tied(&self, headers: &http::HeaderMap) -> bool {
        self.identity.is_tied(headers)
    }

    /// The client's certificate in DER, if the rule tells the upstream.
    fn client_certificate(&self) -> Option<&[u8]> {
        let is_told = self.rule.requests().is_some_and(|terminate| terminate.client_cert_header);
        self.info.decided.client_certificate.as_deref().filter(|_| is_told).map(|leaf| &**leaf)
    }

    /// True if it is right to believe the client's fields on earlier hops.
    pub fn trusts_client(&self) -> bool {
        let trusted = &self.http.shared.config.http.trusted_proxies;
        trusted.iter().any(|net| net.contains(&self.info.client.ip()))
    }
}
