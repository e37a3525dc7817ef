//! Maps paths to answers, and to the questions that the program is asked for them.

use std::convert::Infallible;

use bytes::Bytes;
use eyelet_telemetry::listing::{Filter, Slice};
use futures_util::stream::{self, Stream, StreamExt};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Response, StatusCode};
use serde_json::Value;
use tokio::sync::mpsc::Receiver;

use crate::metrics::{Format, Metrics};
use crate::objects::{ObjectKind, Objects, Sorted, pieces};
use crate::query::VerdictAsked;

/// Answers the questions of the server. It is called on the server's thread.
pub trait Answers: Send + Sync + 'static {
    /// Returns the reason why the process should get no new connections, if so: it drains, or could
    /// not serve them.
    fn unready(&self) -> Option<&'static str>;

    /// Writes all metrics.
    fn metrics(&self, metrics: &mut Metrics);

    /// Begins to list the connections that the filter takes, or with `ends` to end so many of them.
    /// `None`: so many lists are being made that this one must wait.
    fn connections(&self, filter: Filter, ends: Option<usize>) -> Option<Receiver<Slice>>;

    /// Gives a verdict on the question with this number. `None`: the process ends. Otherwise a line
    /// about what was decided, or why nothing was.
    fn decide(&self, question: u64, verdict: VerdictAsked) -> Option<Result<String, String>>;

    /// A document. `None`: there is nothing to show any more, the process ends.
    fn document(&self, document: Document) -> Option<Value>;

    /// A document with an object for each of many things. `None` as above. With `sorted` it has a
    /// part of them.
    fn objects(&self, of: ObjectKind, sorted: Option<Sorted>) -> Option<Objects>;
}

/// The documents that can be asked for as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Document {
    /// `/status`: version, uptime, configuration, listeners, limits.
    Status,
    /// The rules of `/events`: how many there are, and those with the most hits.
    BusiestRules,
    /// `/memory`: what the process holds, by kind.
    Memory,
    /// `/held`: the questions that connections wait on.
    Held,
    /// `/upstreams`: which are up, and what was sent to them.
    Upstreams,
}

/// The media type of documents.
const JSON: &str = "application/json";

/// The body of an answer.
pub(crate) type Content = UnsyncBoxBody<Bytes, Infallible>;

/// Answers a permitted request.
pub(crate) fn answer(
    answers: &dyn Answers,
    method: &Method,
    (path, query): (&str, &str),
    fields: &HeaderMap,
) -> Response<Content> {
    let objects = |of: ObjectKind| match of.sorted(query) {
        Ok(sorted) => in_pieces(answers.objects(of, sorted)),
        Err(why) => text(StatusCode::BAD_REQUEST, why),
    };
    let shown: &dyn Fn() -> Response<Content> = match path {
        "/healthz" => &|| text(StatusCode::OK, "ok\n"),
        "/readyz" => &|| match answers.unready() {
            None => text(StatusCode::OK, "ok\n"),
            Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        "/metrics" => &|| metrics(answers, fields),
        "/status" => &|| json(answers.document(Document::Status)),
        "/rules" => &|| objects(ObjectKind::Rule),
        "/certificates" => &|| objects(ObjectKind::Certificate),
        "/memory" => &|| json(answers.document(Document::Memory)),
        "/upstreams" => &|| json(answers.document(Document::Upstreams)),
        _ => return text(StatusCode::NOT_FOUND, "no such page\n"),
    };
    refuse_method(method).unwrap_or_else(shown)
}

pub(crate) fn json(document: Option<Value>) -> Response<Content> {
    document.map_or_else(ending, |value| whole(JSON, format!("{value:#}\n")))
}

fn in_pieces(objects: Option<Objects>) -> Response<Content> {
    let parts = |objects| stream::iter(pieces(objects).map(Bytes::from));
    objects.map_or_else(ending, |objects| of_parts(JSON, parts(objects)))
}

/// The answer where there is nothing to show any more.
fn ending() -> Response<Content> {
    text(StatusCode::SERVICE_UNAVAILABLE, "the process ends\n")
}

/// The refusal of a method that asks for more than to be shown something.
pub(crate) fn refuse_method(method: &Method) -> Option<Response<Content>> {
    if matches!(*method, Method::GET | Method::HEAD) {
        return None;
    }
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "GET or HEAD\n");
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    Some(response)
}

fn metrics(answers: &dyn Answers, fields: &HeaderMap) -> Response<Content> {
    let accepted = fields.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::accepted(accepted);
    let mut metrics = Metrics::new(format);
    answers.metrics(&mut metrics);
    whole(format.content_type(), metrics.finish())
}

/// A short answer in plain text.
pub(crate) fn text(status: StatusCode, text: impl Into<String>) -> Response<Content> {
    let mut response = whole("text/plain; charset=utf-8", text.into());
    *response.status_mut() = status;
    response
}

/// A whole answer of this media type.
pub(crate) fn whole(kind: &'static str, body: String) -> Response<Content> {
    of_body(kind, Full::new(Bytes::from(body)).boxed_unsync())
}

/// An answer whose body is sent as `parts` come.
pub(crate) fn of_parts(
    kind: &'static str,
    parts: impl Stream<Item = Bytes> + Send + 'static,
) -> Response<Content> {
    let frames = parts.map(|part| Ok(Frame::data(part)));
    of_body(kind, StreamBody::new(frames).boxed_unsync())
}

/// An answer of this media type.
pub(crate) fn of_body(kind: &'static str, body: Content) -> Response<Content> {
    let mut response = Response::new(body);
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in FIXED_FIELDS {
        fields.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Nothing is stored, and no page of another origin may read or guess at it.
const FIXED_FIELDS: [(HeaderName, &str); 3] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// An edge that has nothing to show, for tests.
#[cfg(test)]
pub(crate) mod stand_in {
    use serde_json::json;

    use super::*;

    /// It calls this each time a document is asked for.
    pub(crate) struct Edge<F>(pub(crate) F);

    impl<F: Fn() + Send + Sync + 'static> Answers for Edge<F> {
        fn unready(&self) -> Option<&'static str> {
            None
        }

        fn metrics(&self, _: &mut Metrics) {}

        fn connections(&self, _: Filter, _: Option<usize>) -> Option<Receiver<Slice>> {
            None
        }

        fn decide(&self, _: u64, _: VerdictAsked) -> Option<Result<String, String>> {
            None
        }

        fn document(&self, _: Document) -> Option<Value> {
            (self.0)();
            Some(json!({ "rules": [], "upstreams": [] }))
        }

        fn objects(&self, _: ObjectKind, _: Option<Sorted>) -> Option<Objects> {
            None
        }
    }
}
