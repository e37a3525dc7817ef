//! The answer to a request that the rules refuse, or that has waited for a verdict in vain: it
//! names the rule and the reason.

use std::fmt::Write;

use bytes::Bytes;
use eyelet_http1::head::Length;
use http::header::{HeaderName, HeaderValue};
use http::{Method, StatusCode, response};

use crate::connection::page::text_page;
use crate::connection::refusal::{Id, visible};

const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

/// A request that is refused.
pub struct RefusedRequest<'a> {
    /// The rule that refuses it.
    pub rule: Option<&'a str>,
    /// The rule's `message`.
    pub message: Option<&'a str>,
    /// The reason.
    pub reason: String,
    /// The id of the connection, as in the access log.
    pub id: u64,
}

impl RefusedRequest<'_> {
    /// The answer.
    pub fn page(&self, status: StatusCode, method: &Method) -> (response::Parts, Length, Bytes) {
        let mut text = format!("{method}: {}.\n", self.reason);
        // Writing into a String cannot fail.
        let _ = writeln!(text, "Rule: {}", self.rule.unwrap_or("none"));
        let _ = writeln!(text, "Connection: {}", Id(self.id));
        if let Some(message) = self.message {
            let _ = writeln!(text, "{message}");
        }
        let (mut head, length, body) = text_page(status, method, text.into());
        let rule = self.rule.map_or_else(String::new, |rule| format!(", rule {rule}"));
        let details = visible(&format!("{}{rule}", self.reason)).replace(['"', '\\'], "'");
        // RFC 9209 sections 2.3.17 and 2.3.29: denied, or answered without a next hop.
        let error = match status {
            StatusCode::FORBIDDEN => "http_request_denied",
            _ => "proxy_internal_response",
        };
        let value = format!("eyelet; error={error}; details=\"{details}\"");
        if let Ok(value) = HeaderValue::from_str(&value) {
            head.headers.insert(PROXY_STATUS, value);
        }
        (head, length, body)
    }
}
