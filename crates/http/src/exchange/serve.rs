//! Serves one request, for either version of HTTP: checks it, passes it to the upstream, returns
//! the response, and writes the access line.

mod held;
mod incoming;

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use eyelet_compress::fields::lists;
use http::{HeaderMap, Method, StatusCode, header, request, response};

use self::held::Waited;
use self::incoming::IncomingRequest;
use super::ask::{Answered, AskResult, NO_FIT, ResponseTerms, RestingRequest};
use super::end::ExchangeEnd;
use super::find::FoundUpstream;
use super::{Exchange, request_body, room, websocket};
use eyelet_downstream::client::exchange_error::ExchangeError;
use eyelet_downstream::client::failure::{Failure, status};
use eyelet_downstream::client::head::asks_for_websocket;
use eyelet_downstream::client::request_check::{check, may_be_sent_again};
use eyelet_downstream::client::secrets;
use eyelet_downstream::client::stream::Stream;
use eyelet_downstream::connection::date::to_client;
use eyelet_downstream::connection::log_entry::RequestLogEntry;
use eyelet_downstream::connection::originate;
use eyelet_downstream::connection::page;
use eyelet_downstream::connection::reason::request_reason;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_downstream::connection::served_connection::by_request::{RequestRuling, RequestTraits};
use eyelet_downstream::connection::served_connection::held_request::HeldRuling;
use eyelet_downstream::connection::served_connection::record::Record;
use eyelet_http1::body::Piece;
use eyelet_http1::fault::ResponseFault;
use eyelet_http1::fields;
use eyelet_http1::head::{FieldRole, FieldRoles, Length, SPARE_FIELDS_MAX, give_back};
use eyelet_http1::head_lines::ReceivedHead;
use eyelet_memory::budget::PIECE_BYTES_MIN;
use eyelet_recoding::NearRequest;
use eyelet_telemetry::held::{HeldInfo, HeldVerdict};
use eyelet_telemetry::reason::{Class, HeldEnd, Reason};
use eyelet_telemetry::request::Coded;
use eyelet_upstream::request::{BodyCodings, UpstreamRequest};

/// Runs one exchange to its end, and writes its access line. It takes the fields of the request.
/// The request stays where it is, because a move into each future would be a copy.
pub async fn exchange(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    request: &mut request::Parts,
    length: Length,
) -> ExchangeEnd {
    let traits = RequestTraits {
        is_websocket: asks_for_websocket(request),
        may_have_others: stream.roles().may_have(FieldRole::Other),
        held_by: stream.held_by(),
    };
    let ruling = served.rule_on(request, traits);
    let mut incoming = IncomingRequest { stream, request, length };
    let other = match ruling {
        RequestRuling::Own => return incoming.exchange_by(served, None).await,
        RequestRuling::Other(other) => other,
        // Boxed, as all of these: most requests are their connection's.
        RequestRuling::Held(ruling) => {
            return Box::pin(incoming.exchange_held(served, *ruling)).await;
        }
        RequestRuling::Refused(refused, reason) => {
            let why = RefusedByRule { reason, held: None, waited_ms: 0 };
            return Box::pin(incoming.refuse_by_rule(&refused, why)).await;
        }
    };
    let mut end = Box::pin(incoming.exchange_by(&other, None)).await;
    served.note_upstream_of(&other);
    end.by_rule = Some(other);
    end
}

/// The refusal of a request by a rule or a person, or the end of its wait.
struct RefusedByRule {
    reason: Reason,
    /// The decision about it, if somebody was asked.
    held: Option<HeldInfo>,
    /// Milliseconds for which it waited without one.
    waited_ms: u32,
}

impl IncomingRequest<'_, '_> {
    /// Runs its exchange by the rule of this connection. `held` says who has allowed it.
    async fn exchange_by(
        &mut self,
        served: &ServedConnection,
        held: Option<HeldInfo>,
    ) -> ExchangeEnd {
        let Self { stream, request, length } = self;
        let mut log_entry =
            RequestLogEntry::new(served, Record::new(served, request), stream.sent());
        if let Some(held) = held {
            log_entry.record.note_held(held);
        }
        let RequestLogEntry { record, written, .. } = &mut log_entry;
        // Counted before cookies are joined: joining reduces the fields but keeps their memory.
        let spare = request.headers.len() <= SPARE_FIELDS_MAX;
        let mut exchange = Exchange { served, stream, record, written };
        let end = match exchange.serve(request, *length).await {
            Ok(end) => end,
            // Boxed, as all rare branches: an exchange is as large as its largest branch.
            Err(failure) => Box::pin(exchange.fail(&request.method, failure)).await,
        };
        if spare {
            give_back(std::mem::take(&mut request.headers));
        }
        end.of(&mut log_entry)
    }

    /// Runs its exchange once somebody has allowed it.
    async fn exchange_held(
        &mut self,
        served: &ServedConnection,
        HeldRuling { by, key, given }: HeldRuling,
    ) -> ExchangeEnd {
        let ruled = by.as_deref().unwrap_or(served);
        let waited = match (check(ruled, self.request), key, given) {
            // Nobody is asked about what is refused anyway.
            (Err(_), _, _) => None,
            (Ok(_), None, _) => Some(Waited::Refused(None, Reason::Held(HeldEnd::TooLong), 0)),
            (Ok(_), Some(_), Some(given)) => Some(Waited::Decided(*given)),
            (Ok(_), Some(key), None) => Some(self.wait_for_verdict(served, ruled, key).await),
        };
        let (mut held, mut waited_ms, mut refused_by) = (None, 0, None);
        let refusal = match waited {
            None => None,
            Some(Waited::Decided(given)) => {
                let info = *held.insert(given.info());
                ruled.http.shared.holds.count(info);
                match (given.decision, info.verdict) {
                    (_, HeldVerdict::Allow) => None,
                    (Some(_), HeldVerdict::Refuse) => Some(Reason::Held(HeldEnd::Refused)),
                    (None, HeldVerdict::Refuse) => Some(Reason::Held(HeldEnd::Undecided)),
                }
            }
            Some(Waited::Rests(rest)) => {
                return ExchangeEnd { held: Some(Box::new(rest)), ..ExchangeEnd::default() };
            }
            Some(Waited::Over) => {
                self.stream.cut();
                return ExchangeEnd { client_lost: true, ..ExchangeEnd::default() };
            }
            Some(Waited::Refused(by, reason, ms)) => {
                (refused_by, waited_ms) = (by, ms);
                Some(reason)
            }
        };
        if let Some(reason) = refusal {
            let why = RefusedByRule { reason, held, waited_ms };
            return self.refuse_by_rule(refused_by.as_deref().unwrap_or(ruled), why).await;
        }
        let mut end = self.exchange_by(ruled, held).await;
        if let Some(by) = by {
            served.note_upstream_of(&by);
            end.by_rule = Some(by);
        }
        end
    }

    /// Answers it: a rule or a person refuses it, or it waits no longer.
    async fn refuse_by_rule(
        &mut self,
        served: &ServedConnection,
        RefusedByRule { reason, held, waited_ms }: RefusedByRule,
    ) -> ExchangeEnd {
        let refusal = RequestRefusal { status: status(&reason), reason };
        served.count_refused(refusal.status);
        self.drop_small_body().await;
        let mut record = Record::new(served, self.request);
        record.began_before(waited_ms);
        held.into_iter().for_each(|held| record.note_held(held));
        let method = &self.request.method;
        let is_taken = refusal.answer(served, self.stream, record, method).await;
        ExchangeEnd { client_lost: !is_taken, ..ExchangeEnd::default() }
    }

    /// Reads and drops its body, if that is small and comes at once: so the connection lives.
    /// HTTP/2's is dropped behind the answer.
    async fn drop_small_body(&mut self) {
        let Self { stream, request, length } = self;
        let is_small = !matches!(length, Length::Known(bytes) if *bytes > DROPPED_BYTES_MAX);
        // A client that waits for a 100 sends no body before the answer.
        if stream.is_multiplexed() || !is_small || request.headers.contains_key(header::EXPECT) {
            return;
        }
        stream.due_in(DROPPED_WAIT);
        let mut left = DROPPED_BYTES_MAX;
        poll_fn(|task| {
            while !stream.is_request_done() {
                match stream.poll_piece(task, PIECE_BYTES_MIN) {
                    Poll::Ready(Ok(Piece::Data(data))) if data.len() as u64 <= left => {
                        left -= data.len() as u64;
                    }
                    Poll::Ready(Ok(Piece::End(_))) => {}
                    Poll::Ready(Ok(Piece::Data(_)) | Err(_)) => break,
                    Poll::Pending => return stream.poll_late(task).map(drop),
                }
            }
            Poll::Ready(())
        })
        .await;
    }
}

/// The reason why a request is refused before any rule or upstream is asked.
pub struct RequestRefusal {
    /// The status of the answer.
    pub status: StatusCode,
    /// The reason, for the access line.
    pub reason: Reason,
}

/// Answers a request that is refused, and writes its access line. `request` is `None` if it could
/// not be read. Returns whether the client took the answer.
pub async fn refuse(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    request: Option<&request::Parts>,
    refusal: RequestRefusal,
) -> bool {
    let record = request.map_or_else(|| Record::unread(served), |head| Record::new(served, head));
    let method = request.map_or(&Method::GET, |head| &head.method);
    refusal.answer(served, stream, record, method).await
}

impl RequestRefusal {
    async fn answer(
        self,
        served: &ServedConnection,
        stream: &mut Stream<'_>,
        record: Record,
        method: &Method,
    ) -> bool {
        let mut log_entry = RequestLogEntry::new(served, record, stream.sent());
        let RequestLogEntry { record, written, .. } = &mut log_entry;
        (record.failed, record.reason) = (true, self.reason);
        let mut exchange = Exchange { served, stream, record, written };
        let is_taken = exchange.answer(self.status, method).await;
        log_entry.end();
        is_taken
    }
}

impl<'a> Exchange<'a, '_> {
    async fn serve(
        &mut self,
        request: &mut request::Parts,
        length: Length,
    ) -> Result<ExchangeEnd, Failure> {
        let served = self.served;
        let route = served.route().map_err(Failure::Answer)?;
        let host = check(served, request)?;
        let origin = served.rule.intermediary.translate(&host, request).map_err(Failure::Answer)?;
        let host = origin.as_ref().map_or(host.as_str(), |origin| origin.authority());
        let carries_secret = secrets::fill(served, route, host, request)?;
        let compressors = &served.http.compressors;
        let own = compressors.answer(route.rule, request);
        if let Some(own) = own.or_else(|| fields::ends_here(request).then(options)) {
            return Box::pin(self.answer_own(&request.method, own)).await;
        }
        let switch = self.stream.switch(request, length);
        let trailers = self.stream.roles().may_have_hop_by_hop()
            && lists(&request.headers, &header::TE, "trailers");
        let (length, decoded_from) = self.translate(request, length, switch.clone())?;
        let forwarded = &served.identify_requester(host, request);
        let Some(terminate) = route.requests() else { return Ok(ExchangeEnd::default()) };
        let needs_http1 = switch.is_some();
        let again = may_be_sent_again(request, length) && !needs_http1;
        let is_near = served.rule.intermediary.is_near_client();
        let mut wanted = match (self.stream.take_sent(), is_near) {
            (Some((sent, wanted)), _) => {
                *request = sent;
                wanted
            }
            (None, true) => {
                let is_tied = served.is_tied(&request.headers);
                let near = NearRequest { rule: route.rule, host, is_tied, is_harmless: again };
                compressors.request_near(near, terminate, request)
            }
            (None, false) => compressors.request(route.rule, terminate, host, request),
        };
        let coded = request_body::coded(served, request, length, host);
        let body = BodyCodings { coded: coded.as_deref(), decoded_from };
        let mut asked = UpstreamRequest {
            parts: request,
            body,
            host,
            forwarded,
            length,
            trailers,
            again,
            needs_http1,
            carries_secret,
        };
        let _counted = room::take_request(served, self.stream, request)?;
        let (origin, switch) = (origin.as_ref(), switch.as_ref());
        let terms = ResponseTerms::new(&wanted, origin, switch);
        let end = self.ask_and_pass(&mut asked, &terms).await?;
        if let Some(end) = end {
            return Ok(end);
        }
        let Some(parts) = compressors.again(&mut wanted, request) else { return Err(NO_FIT) };
        let mut asked = UpstreamRequest { parts: &parts, again, needs_http1, ..asked };
        let terms = ResponseTerms::new(&wanted, origin, switch);
        Box::pin(self.ask_and_pass(&mut asked, &terms)).await?.ok_or(NO_FIT)
    }

    /// Asks an upstream and passes its response on. `None`: nothing was passed on, because the
    /// response does not fit the client; the request may be made again.
    pub(super) async fn ask_and_pass(
        &mut self,
        request: &mut UpstreamRequest<'_>,
        terms: &ResponseTerms<'_>,
    ) -> Result<Option<ExchangeEnd>, Failure> {
        let mut sent = None;
        match self.ask(request, terms, &mut sent).await? {
            AskResult::Answered(head) => {
                let answered = Answered { asked: &mut sent, head };
                self.pass_answer(answered, &request.parts.headers, terms).await
            }
            AskResult::Rests(since, repeat) => {
                let asked = sent.ok_or(NO_FIT)?;
                let resting = RestingRequest { asked, since, repeat };
                self.rest_before_head(resting, terms).map(Some)
            }
        }
    }

    /// Passes a response on, as [`Exchange::ask_and_pass`] does. `fields_asked` are those of
    /// its request.
    pub(super) async fn pass_answer(
        &mut self,
        Answered { asked, mut head }: Answered<'_, 'a>,
        fields_asked: &HeaderMap,
        &ResponseTerms { wanted, origin, switch, .. }: &ResponseTerms<'_>,
    ) -> Result<Option<ExchangeEnd>, Failure> {
        let served = self.served;
        secrets::check_response(&served.http, &head)?;
        let (status, is_multiplexed) = (head.status(), self.stream.is_multiplexed());
        let is_switch = status == StatusCode::SWITCHING_PROTOCOLS;
        let (mut chosen, mut counted) = (None, None);
        // Lines pass as they came, and their connection's count includes them.
        if let ReceivedHead::Fields(response) = &mut head {
            if served.http.compressors.is_unfit(wanted, &response.parts) {
                return Ok(None);
            }
            counted = Some(room::take_response(served, &response.parts)?);
            let (head, roles) = (&mut response.parts, response.roles);
            chosen = switch.and_then(|wanted| fields::chosen(wanted, head));
            if is_switch && chosen.is_some() && is_multiplexed {
                websocket::check(fields_asked, head)?;
            }
            to_client(head, roles);
            originate::to_client(origin, &mut head.headers);
        }
        if is_switch {
            let FoundUpstream { upstream, chosen: at, .. } = asked.take().ok_or(NO_FIT)?.found;
            let end = Box::pin(self.switched(head.into_parts()?, upstream, chosen)).await?;
            return Ok(Some(end.counted_at(at)));
        }
        if is_multiplexed && switch.is_some() && status.is_success() {
            // A 2xx would tell an HTTP/2 client that the protocols were switched.
            return Err(ResponseFault::Unasked.into());
        }
        let passing = asked.as_mut().ok_or(NO_FIT)?;
        if !passing.upload.done || served.is_last() {
            self.stream.close_after();
        }
        passing.download.begin(head.length());
        let coding = self.choose_coding(passing, wanted, &mut head).await?;
        let Some(length) = coding else { return Ok(None) };
        if let (None, ReceivedHead::Fields(response)) = (&counted, &head) {
            // It came as lines, and is coded here.
            counted = Some(room::take_response(served, &response.parts)?);
        }
        self.begin(passing, (head, length)).await;
        let end = self.pass_on(asked, None).await?;
        drop(counted);
        Ok(Some(end))
    }

    pub(super) async fn fail(&mut self, method: &Method, failure: Failure) -> ExchangeEnd {
        let lost = || ExchangeEnd { client_lost: true, ..ExchangeEnd::default() };
        self.record.failed = true;
        let status = match failure {
            Failure::Answer(reason) => {
                self.record.reason = reason;
                status(&self.record.reason)
            }
            Failure::Client(ExchangeError::Request(fault)) => {
                self.record.reason = request_reason(fault);
                self.stream.close_after();
                fault.status()
            }
            Failure::Client(exchange_error) => {
                self.record.reason = exchange_error.reason();
                self.stream.cut();
                return lost();
            }
            Failure::Cut(reason) => {
                self.record.reason = reason;
                self.stream.cut();
                return lost();
            }
            Failure::Unprocessed => {
                self.record.reason = Reason::UpstreamUnread;
                if self.stream.refuse() {
                    return lost();
                }
                status(&self.record.reason)
            }
        };
        if self.record.status.is_some() {
            self.stream.cut();
            return lost();
        }
        self.record.refused_by.iter().for_each(|by| by.count_refused(status));
        // The rest of the request's body was dropped already, so it is no longer counted.
        self.stream.refuse_rest();
        let reason = &self.record.reason;
        let refused = (reason.class() == Class::Refused).then(|| reason.clone());
        let client_lost = !self.answer(status, method).await;
        ExchangeEnd { client_lost, refused, ..ExchangeEnd::default() }
    }

    /// Answers with a page of Eyelet. Returns whether the client took it.
    async fn answer(&mut self, status: StatusCode, method: &Method) -> bool {
        let served = self.record.answered_by(self.served);
        let (head, length, body) = served.page(status, method, &self.record.reason);
        let flushed = self.send_own(head, length, body).await;
        if let Err(Failure::Cut(reason)) = &flushed {
            self.record.reason = reason.clone();
        }
        if flushed.is_err() {
            self.stream.cut();
        }
        flushed.is_ok()
    }

    /// Sends an answer of Eyelet that is no page: a dictionary.
    async fn answer_own(
        &mut self,
        method: &Method,
        own: http::Response<Bytes>,
    ) -> Result<ExchangeEnd, Failure> {
        let (head, body) = own.into_parts();
        self.record.reason = Reason::Answered;
        let length = match *method {
            Method::HEAD => Length::Empty,
            _ => {
                let bytes_sent = body.len() as u64;
                self.written.note_coded(Coded { bytes_sent, ..Coded::default() });
                Length::Known(bytes_sent)
            }
        };
        self.send_own(head, length, body).await?;
        Ok(ExchangeEnd::default())
    }

    /// Sends a response that has no upstream. A body of length `Empty` is not sent.
    async fn send_own(
        &mut self,
        mut head: response::Parts,
        length: Length,
        body: Bytes,
    ) -> Result<(), Failure> {
        if !self.stream.is_request_done() {
            self.stream.close_after();
        }
        to_client(&mut head, FieldRoles::UNKNOWN);
        self.respond(head, length);
        if length != Length::Empty {
            self.stream.push(body);
            self.stream.finish(None);
        }
        self.flush().await
    }
}

/// Most bytes of the body of a refused request that are read.
const DROPPED_BYTES_MAX: u64 = 64 << 10;
/// The time that they may take. A client sends its body right behind the head.
const DROPPED_WAIT: Duration = Duration::from_secs(2);

/// The answer to `OPTIONS *`: the allowed methods.
fn options() -> http::Response<Bytes> {
    let mut response = http::Response::new(Bytes::new());
    response.headers_mut().insert(header::ALLOW, page::ALLOW);
    response.headers_mut().insert(header::CONTENT_LENGTH, 0.into());
    response
}
