//! One request and its response, for either version of HTTP. Its steps stand in the files of this
//! folder: `serve` begins them, `find` and `ask` get a response, `pass` passes it on.

mod ask;
mod coding;
pub mod end;
mod find;
mod pass;
mod passing;
mod request_body;
pub mod rest;
pub mod resting;
mod retry;
pub mod room;
pub mod serve;
pub mod switched;
pub mod transfer;
mod websocket;

use std::future::poll_fn;
use std::task::Poll;

use eyelet_compress::Coding;
use eyelet_http1::fields;
use eyelet_http1::head::Length;
use http::{HeaderValue, request, response};

use eyelet_downstream::client::failure::Failure;
use eyelet_downstream::client::stream::Stream;
use eyelet_downstream::clock;
use eyelet_downstream::connection::log_entry::Written;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_downstream::connection::served_connection::record::Record;

/// A request of a client and its response: what all steps need.
pub struct Exchange<'a, 's> {
    /// The client's connection.
    served: &'a ServedConnection,
    /// The client's side.
    stream: &'a mut Stream<'s>,
    /// The facts for the access line.
    record: &'a mut Record,
    /// The counts of its bodies.
    written: &'a Written<'a>,
}

impl Exchange<'_, '_> {
    /// Turns the client's request into the upstream's. Returns the length of its body, and the
    /// coding that it is decoded from.
    fn translate(
        &mut self,
        request: &mut request::Parts,
        length: Length,
        switch: Option<HeaderValue>,
    ) -> Result<(Length, Option<Coding>), Failure> {
        let decoded_from = request_body::decoded(self.served, request, length)?;
        let length = if decoded_from.is_some() { Length::Chunked } else { length };
        fields::to_upstream(request, length, switch, self.stream.roles());
        self.served.pass_trace(request, self.record);
        // `Content-Length: 0` also means that there is no body.
        let has_none = length == Length::Known(0) && self.stream.is_request_done();
        Ok((if has_none { Length::Empty } else { length }, decoded_from))
    }

    /// Queues a response's head with the fields that the configuration sets, and notes its status
    /// for the access line.
    fn respond(&mut self, mut head: response::Parts, length: Length) {
        self.record.status = Some(head.status.as_u16());
        request_body::offer(self.served, &mut head, self.record.failed);
        self.served
            .rule
            .set_fields(&self.served.http.shared.config.http.headers, &mut head.headers);
        self.stream.respond(head, length);
    }

    /// Writes all queued bytes, while the client takes some of them in time.
    async fn flush(&mut self) -> Result<(), Failure> {
        let mut moved = clock::now();
        self.stream.due_in(self.served.progress_wait());
        poll_fn(|task| {
            let before = self.stream.queued();
            if let Poll::Ready(flushed) = self.stream.poll_flush(task) {
                return Poll::Ready(flushed.map_err(Failure::from));
            }
            if self.stream.queued() != before {
                moved = clock::now();
                self.stream.due_in(self.served.progress_wait());
            }
            self.poll_stalled(task, moved, None).map(Err)
        })
        .await
    }
}
