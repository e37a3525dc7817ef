//! Chooses a response's coding, by its head and by the first bytes of its body.

use std::future::poll_fn;
use std::task::{Poll, ready};
use std::time::Duration;

use eyelet_compress::eligible::Beginning;
use http::header;

use super::Exchange;
use super::passing::Passing;
use super::transfer::Download;
use eyelet_downstream::client::exchange_error::ExchangeError;
use eyelet_downstream::client::failure::Failure;
use eyelet_downstream::client::io::ClientLost;
use eyelet_downstream::connection::decoding::Decoding;
use eyelet_engine::worker::WaitError;
use eyelet_http1::boundary::Boundary;
use eyelet_http1::fault::ResponseFault;
use eyelet_http1::head::{Length, Response};
use eyelet_http1::head_lines::{HeadLines, ReceivedHead};
use eyelet_recoding::{BodyInfo, PassingHead, RequestCodings};
use eyelet_upstream::Upstream;

/// The time for which a response's head waits for the first bytes of its body.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Bytes of a body that is copied behind its head.
const WHOLE_BYTES_MAX: usize = 1 << 10;

impl Exchange<'_, '_> {
    /// Chooses the coding of a response: one with a body by its first bytes as well. Returns the
    /// length of the body as it will be sent. `None`: it cannot be decoded, and may be asked for
    /// again.
    pub(super) async fn choose_coding(
        &mut self,
        passing: &mut Passing<'_>,
        wanted: &RequestCodings,
        head: &mut ReceivedHead,
    ) -> Result<Option<Length>, Failure> {
        let compressors = &self.served.http.compressors;
        if let ReceivedHead::Fields(response) = head
            && response.length == Length::Empty
        {
            let parts = &mut response.parts;
            passing.download.through(compressors.response(wanted, parts, None, &[]));
            return Ok(Some(Length::Empty));
        }
        if let Some(length) = self.pass_whole(passing, wanted, head) {
            return Ok(Some(length));
        }
        // Not before the request's body is sent: the response's body may wait for it.
        let is_uploaded = passing.upload.done;
        let may_be_coded = || match &*head {
            ReceivedHead::Fields(response) => {
                compressors.wants_first(wanted, &response.parts, known(response.length))
            }
            ReceivedHead::Lines(lines) => {
                compressors.wants_first_of(wanted, &passing_head(lines), lines.length())
            }
        };
        self.read_first(passing, || is_uploaded && may_be_coded()).await?;
        if let ReceivedHead::Lines(lines) = head {
            let download = &mut passing.download;
            let (length, complete) = (lines.length(), download.is_first_all());
            let body = Beginning { length: Some(length), complete, first: download.first() };
            if let Some(why) = compressors.passing(wanted, &passing_head(lines), &body) {
                download.pass_as_is(why);
                return Ok(Some(Length::Known(length)));
            }
            *head = ReceivedHead::Fields(lines.read()?.into());
        }
        let ReceivedHead::Fields(response) = head else { return Ok(None) };
        let parts = &response.parts;
        if compressors.is_of_other(wanted, parts, passing.download.first()) {
            return Ok(None);
        }
        match self.code(&mut passing.download, wanted, response) {
            Err(ResponseFault::NoRoom) if compressors.can_repeat(wanted) => Ok(None),
            begun => Ok(Some(begun?)),
        }
    }

    /// Passes a small body together with its head, if all of it came with that and passes as it is.
    fn pass_whole(
        &self,
        Passing { found, download, .. }: &mut Passing<'_>,
        wanted: &RequestCodings,
        head: &mut ReceivedHead,
    ) -> Option<Length> {
        let (ReceivedHead::Lines(lines), Upstream::Http1(upstream)) = (head, &mut found.upstream)
        else {
            return None;
        };
        let (first, length) = (&upstream.received, lines.length());
        if first.len() as u64 != length || first.len() > WHOLE_BYTES_MAX {
            return None;
        }
        let body = Beginning { length: Some(length), complete: true, first };
        let why = self.served.http.compressors.passing(wanted, &passing_head(lines), &body)?;
        lines.take_body(&mut upstream.received);
        download.pass_as_is(why);
        download.has_passed(length);
        Some(Length::Known(length))
    }

    /// Reads the first bytes of a body, to choose its coding by. If none are here and it
    /// `may_wait`, this waits for them for [`FIRST_WAIT`]. A head that comes long before its body
    /// is passed on alone.
    async fn read_first(
        &mut self,
        Passing { found, download, .. }: &mut Passing<'_>,
        may_wait: impl Fn() -> bool,
    ) -> Result<(), Failure> {
        let mut wait = None;
        poll_fn(|task| {
            loop {
                if let Poll::Ready(read) = download.poll_first(task, &mut found.upstream) {
                    return Poll::Ready(read.map_err(Failure::from));
                }
                // Checked only here, as most bodies have arrived by now.
                if wait.is_none() && may_wait() {
                    let body_timeout = self.served.http.shared.config.http.body_timeout;
                    self.stream.due_in(FIRST_WAIT.min(body_timeout));
                    wait = Some(true);
                }
                if wait != Some(true) {
                    return Poll::Ready(Ok(()));
                }
                if let Poll::Ready(exchange_error) = self.stream.poll_closed(task) {
                    return Poll::Ready(Err(exchange_error.into()));
                }
                match ready!(self.stream.poll_late(task)) {
                    WaitError::Late => wait = Some(false),
                    wait_error => {
                        let lost = ExchangeError::ClientLost(ClientLost::Wait(wait_error));
                        return Poll::Ready(Err(lost.into()));
                    }
                }
            }
        })
        .await
    }

    /// Chooses the response's coding. Returns the length of the body as it will be sent.
    ///
    /// # Errors
    /// There is no memory to decode the body.
    fn code(
        &self,
        download: &mut Download<'_>,
        wanted: &RequestCodings,
        response: &mut Response,
    ) -> Result<Length, ResponseFault> {
        let Response { parts: head, length, .. } = response;
        let body = BodyInfo { length: known(*length), complete: download.is_first_all() };
        // Before they are coded here, and after they are decoded, the bytes have a boundary. A body
        // with a length ends by itself.
        let before = known(*length).is_none().then(|| Boundary::of_body(&head.headers));
        let http = &self.served.http;
        let mut coder = http.compressors.response(wanted, head, Some(body), download.first());
        let budget = &http.engine.process.budget;
        let decoding =
            |decoded_coding| Decoding::new(decoded_coding, budget, &self.served.decoders);
        let decoded_coding = coder.take_decoded().map(decoding).transpose()?;
        let (is_coded, is_undone) = (!coder.is_identity(), decoded_coding.is_some());
        download.through(coder);
        if let Some(decoding) = decoded_coding {
            download.follow(Boundary::of_body(&head.headers));
            download.decode(decoding);
        } else if let Some(before) = before {
            download.follow(before);
        }
        if !is_coded && !is_undone {
            return Ok(*length);
        }
        head.headers.remove(header::CONTENT_LENGTH);
        Ok(Length::Chunked)
    }
}

/// The parts of these lines that decide if their response passes unchanged.
fn passing_head(lines: &HeadLines) -> PassingHead<'_> {
    PassingHead { status: lines.status(), fields: lines.deciding(), etag: lines.etag() }
}

/// The body's length, if its head gives one.
fn known(length: Length) -> Option<u64> {
    match length {
        Length::Known(bytes) => Some(bytes),
        Length::Empty | Length::Chunked | Length::UntilClose => None,
    }
}
