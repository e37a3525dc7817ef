//! A request that begins, before the rule that serves it is known.

use eyelet_downstream::client::stream::Stream;
use eyelet_http1::head::Length;
use http::request;

/// A request that begins. Its exchange takes its fields.
pub(super) struct IncomingRequest<'a, 's> {
    /// The client's side.
    pub(super) stream: &'a mut Stream<'s>,
    pub(super) request: &'a mut request::Parts,
    /// The length of its body.
    pub(super) length: Length,
}
