//! A request by HTTP/2 that is held, at rest: its question, its head and what came of its body.
//! Once it wakes it is decided again. crates/handover/README.md describes the form.

use std::time::Duration;

use bytes::Bytes;
use eyelet_hold::{HoldKey, RequestKey};
use eyelet_http1::head::{Length, METHOD_BYTES_MAX};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Uri, Version, request};
use serde::{Deserialize, Serialize};

/// Most bytes of a head, with its body, that rest: what a person reads is shorter, and eight such
/// requests move with their connection to another process. A longer one waits in its task.
pub const HOLD_BYTES_MAX: usize = 4 << 10;

/// A held request.
#[derive(Debug, PartialEq)]
pub struct RestingHold {
    /// Its question.
    pub key: HoldKey,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    /// True if the request has a body, which may be empty.
    pub has_body: bool,
    /// True if all of it has come.
    pub is_whole: bool,
    /// All of it, or nothing.
    pub body: Bytes,
    /// The time that it may wait in all.
    pub wait: Duration,
}

/// The form. Its types never change.
#[derive(Deserialize, Serialize)]
pub struct HoldV1<'a> {
    rule: &'a str,
    name: &'a str,
    port: u16,
    method: &'a str,
    authority: &'a str,
    target: &'a str,
    /// Names, values, and whether HPACK never indexes them.
    #[serde(borrow)]
    fields: Vec<(&'a str, &'a [u8], bool)>,
    has_body: bool,
    is_whole: bool,
    body: &'a [u8],
    wait_ms: u32,
}

/// Bytes that a head takes.
fn head_bytes(uri: &Uri, headers: &HeaderMap) -> usize {
    let fields = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    let target = uri.path_and_query().map_or(0, |target| target.as_str().len());
    target + uri.authority().map_or(0, |host| host.as_str().len()) + fields.sum::<usize>()
}

/// Bytes of a body that may rest with a head. `None`: the head is too long.
pub fn body_bytes_max(request: &request::Parts) -> Option<usize> {
    HOLD_BYTES_MAX.checked_sub(head_bytes(&request.uri, &request.headers))
}

impl RestingHold {
    /// A request that waits on a question, with its body and whether that is whole.
    pub fn new(
        key: HoldKey,
        request: &request::Parts,
        length: Length,
        (body, is_whole): (Bytes, bool),
        wait: Duration,
    ) -> Self {
        Self {
            key,
            method: request.method.clone(),
            uri: request.uri.clone(),
            headers: request.headers.clone(),
            has_body: length != Length::Empty,
            is_whole,
            body,
            wait,
        }
    }

    /// The request as it came, and the end of its body.
    pub fn request(self) -> (request::Parts, Length) {
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.version = Version::HTTP_2;
        let declared = self.headers.get(header::CONTENT_LENGTH);
        let declared = declared.and_then(|value| value.to_str().ok()?.parse().ok());
        let length = match self.has_body {
            true => declared.map_or(Length::Chunked, Length::Known),
            false => Length::Empty,
        };
        (parts.method, parts.uri, parts.headers) = (self.method, self.uri, self.headers);
        (parts, length)
    }

    /// Its form.
    pub fn export(&self) -> HoldV1<'_> {
        let fields = self.headers.iter();
        HoldV1 {
            rule: &self.key.rule,
            name: &self.key.name,
            port: self.key.port,
            method: self.method.as_str(),
            authority: self.uri.authority().map_or("", Authority::as_str),
            target: self.uri.path_and_query().map_or("", PathAndQuery::as_str),
            fields: fields
                .map(|(name, value)| (name.as_str(), value.as_bytes(), value.is_sensitive()))
                .collect(),
            has_body: self.has_body,
            is_whole: self.is_whole,
            body: &self.body,
            wait_ms: u32::try_from(self.wait.as_millis()).unwrap_or(u32::MAX),
        }
    }
}

impl HoldV1<'_> {
    /// The time that it may wait in all.
    pub fn wait(&self) -> Duration {
        Duration::from_millis(self.wait_ms.into())
    }

    /// The path and the query.
    pub fn target(&self) -> &str {
        self.target
    }

    /// The held request. `None`: none rests so.
    pub fn hold(self) -> Option<RestingHold> {
        let method = Method::from_bytes(self.method.as_bytes()).ok()?;
        let uri = Uri::builder().scheme(Scheme::HTTPS).authority(self.authority);
        let uri = uri.path_and_query(self.target).build().ok()?;
        let mut headers = HeaderMap::new();
        for (name, value, is_sensitive) in self.fields {
            let mut value = HeaderValue::from_bytes(value).ok()?;
            value.set_sensitive(is_sensitive);
            headers.try_append(HeaderName::from_bytes(name.as_bytes()).ok()?, value).ok()?;
        }
        let request = Some(Box::new(RequestKey::new(method.as_str(), uri.path())?));
        let (rule, name) = (self.rule.into(), self.name.into());
        let key = HoldKey { rule, name, port: self.port, request };
        let body = Bytes::copy_from_slice(self.body);
        let wait = Duration::from_millis(self.wait_ms.into());
        let Self { has_body, is_whole, .. } = self;
        let hold = RestingHold { key, method, uri, headers, has_body, is_whole, body, wait };
        let is_body = hold.body.is_empty() || has_body && is_whole;
        let has_end = has_body || is_whole;
        (is_body && has_end && hold.is_short()).then_some(hold)
    }
}

impl RestingHold {
    fn is_short(&self) -> bool {
        let texts = [&self.key.rule, &self.key.name];
        self.method.as_str().len() <= METHOD_BYTES_MAX
            && texts.iter().all(|text| text.len() <= HOLD_BYTES_MAX)
            && head_bytes(&self.uri, &self.headers) + self.body.len() <= HOLD_BYTES_MAX
    }
}
