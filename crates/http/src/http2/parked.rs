//! The state of HTTP/2 that the worker keeps of a parked connection, with the forms of its streams
//! if some are open. Fields that many connections have are stored once.

use std::rc::Rc;
use std::time::Duration;

use eyelet_h2::{H2Role, LastOfStream, OpenStream, ParkedAnswer, ParkedConnection};
use eyelet_memory::packed::{PackedBytes, SharedPieces};

use eyelet_downstream::client::resting_stream::StreamFormV1;
use eyelet_downstream::clock::now_ms;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_engine::worker::Settings;
use eyelet_resting::RestingExchange;
use eyelet_resting::end::{last_for_upstream, takes_close_frame};
use eyelet_resting::kind::{kind_of, listed};
use eyelet_resting::timeout::RestTimeout;
use eyelet_telemetry::listing::streams::{StreamCounts, StreamKind};
use eyelet_telemetry::listing::{ListedRequest, REQUESTS_SHOWN_MAX};
use eyelet_telemetry::reason::Reason;
use eyelet_wire::websocket::CLOSE_TO_CLIENT;
use zeroize::Zeroizing;

use crate::exchange::resting::{UNDECIDED_STATUS, end_rested};

/// The version of the forms of streams.
const VERSION: u8 = 1;
/// Bytes of their length, which stands behind them.
const LENGTH_BYTES: usize = 4;

/// The answer to a held request whose connection ends before anybody has decided.
const UNDECIDED: &[u8] = b"The request was held, and nobody decided.\n";

/// Answers frames of a parked connection's client that begin no stream, such as PING. `state` has
/// the numbers of the state. Returns how many bytes are answered.
pub fn answer_parked(state: &mut [u8], bytes: &[u8], out: &mut Vec<u8>) -> usize {
    match ParkedConnection::answer_on(state, bytes, now_ms(), out) {
        ParkedAnswer::NeedMore { consumed, .. }
        | ParkedAnswer::OutputFull { consumed }
        | ParkedAnswer::Wake { consumed } => consumed,
    }
}

/// Bytes for the client of a parked connection before close_notify: the answers to requests that
/// are held, the close frames of WebSockets that rest, and GOAWAY with its last stream.
pub fn last_bytes(state: &PackedBytes) -> Vec<u8> {
    let mut frames = Vec::new();
    let mut forms = each_form(forms_of(state));
    let lasts = || match forms.next() {
        Some(form) if RestingExchange::is_held(form.exchange) => {
            LastOfStream::Response { status: UNDECIDED_STATUS, text: UNDECIDED }
        }
        Some(form) if takes_close_frame(form.exchange) => LastOfStream::Data(&CLOSE_TO_CLIENT),
        _ => LastOfStream::Nothing,
    };
    ParkedConnection::end_streams(state.first(), lasts, &mut frames);
    ParkedConnection::go_away(state.first(), &mut frames);
    frames
}

/// Gives the last bytes for the upstreams of streams that rest, by the places of their sockets.
pub fn close_upstreams(state: &PackedBytes, send: &mut dyn FnMut(usize, &[u8])) {
    let has_socket = |form: &StreamFormV1<'_>| RestingExchange::has_socket(form.exchange);
    for (nth, form) in each_form(forms_of(state)).filter(has_socket).enumerate() {
        send(nth, &last_for_upstream(form.exchange));
    }
}

/// Packs a state that another process has written, of a connection with so many further sockets and
/// streams on upstream connections that others share. `None`: it is not that of a connection to a
/// client, or its streams are not those that rest.
pub fn pack_state(
    state: &[u8],
    (sockets, shared): (usize, usize),
    pieces: &Rc<SharedPieces>,
) -> Option<PackedBytes> {
    let (of_h2, forms) = split(state)?;
    let parked = ParkedConnection::from_bytes(of_h2).ok()?;
    let streams = read_forms(forms)?;
    let count = |is: fn(&[u8]) -> bool| streams.iter().filter(|form| is(form.exchange)).count();
    let is_each = count(RestingExchange::is_shared) == shared
        && count(RestingExchange::has_socket) == sockets
        && parked.streams() == streams.len();
    let is_read = streams.iter().zip(parked.open_streams()).all(|(form, open)| rests(form, open));
    let is_served = parked.role() == Some(H2Role::Server) && is_each && is_read;
    is_served.then(|| pack(&parked, forms, pieces))
}

/// True if the exchange of a form is where its stream is.
fn rests(form: &StreamFormV1<'_>, open: OpenStream) -> bool {
    RestingExchange::unpack(form.exchange).is_some_and(|RestingExchange { state, .. }| {
        state.is_answered() == open.has_begun
            && state.is_request_done() == open.has_peer_ended
            && state.has_upstream_ended() == open.has_ended
            && !state.has_switched()
    })
}

/// Reads the exchanges of the streams of a parked connection.
pub fn exchanges(state: &PackedBytes) -> Vec<RestingExchange> {
    let forms = each_form(forms_of(state));
    forms.map_while(|form| RestingExchange::unpack(form.exchange)).collect()
}

/// Packs a state: what other connections have too is stored once. `forms` are those of its streams.
pub(super) fn pack(
    parked: &ParkedConnection,
    forms: &[u8],
    pieces: &Rc<SharedPieces>,
) -> PackedBytes {
    let common = parked.common_fields();
    if forms.is_empty() {
        return PackedBytes::pack(parked.as_bytes(), &common, pieces);
    }
    let len = u32::try_from(forms.len()).unwrap_or(u32::MAX).to_be_bytes();
    let both = Zeroizing::new([parked.as_bytes(), forms, &len].concat());
    PackedBytes::pack(&both, &common, pieces)
}

/// True if a state has streams that rest.
pub fn has_streams(state: &PackedBytes) -> bool {
    ParkedConnection::streams_of(state.first()) > 0
}

/// The state of the protocol, and the forms of the streams.
pub(super) fn split(state: &[u8]) -> Option<(&[u8], &[u8])> {
    // The first byte says whether any is open.
    if ParkedConnection::streams_of(state) == 0 {
        return Some((state, &[]));
    }
    let (both, len) = state.split_last_chunk::<LENGTH_BYTES>()?;
    let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    both.split_at_checked(both.len().checked_sub(len)?)
}

/// Writes the access lines of the streams of a connection that has ended while it was parked. It
/// reads one after the other: an end takes no memory for all of them.
pub fn end_resting(served: &ServedConnection, state: &PackedBytes, reason: &Reason) {
    end_forms(served, forms_of(state), reason);
}

/// Returns how long the connection may be parked until the first of its streams is due.
pub fn rest_wait(state: &PackedBytes, settings: &Settings) -> Option<Duration> {
    let mut waits = each_form(forms_of(state)).map(|form| {
        let idle_max = RestTimeout::of(form.exchange)?.by(settings);
        Some(idle_max.saturating_sub(Duration::from_millis(form.idle_ms)))
    });
    let first = waits.next()??;
    waits.try_fold(first, |least, wait| Some(least.min(wait?)))
}

/// True if TLS goes to an upstream of a stream that rests.
pub fn has_tls(state: &PackedBytes) -> bool {
    each_form(forms_of(state)).any(|form| eyelet_resting::has_tls(form.exchange))
}

/// Counts the streams that rest on a parked connection.
pub fn resting_streams(state: &PackedBytes) -> StreamCounts {
    let mut counts = StreamCounts::default();
    for form in each_form(forms_of(state)) {
        counts.add(kind_of(form.exchange).unwrap_or(StreamKind::Response), 1);
    }
    counts
}

/// The first streams that rest on a parked connection, as a list shows them.
pub fn resting_requests(state: &PackedBytes) -> Vec<ListedRequest> {
    let shown = each_form(forms_of(state)).take(REQUESTS_SHOWN_MAX);
    shown.filter_map(|form| listed(form.exchange, form.name)).collect()
}

/// True if a resting stream shares its upstream connection with others.
pub fn has_shared(state: &PackedBytes) -> bool {
    each_form(forms_of(state)).any(|form| RestingExchange::is_shared(form.exchange))
}

/// The forms of the streams of a parked connection, which stand behind all that is shared.
fn forms_of(state: &PackedBytes) -> &[u8] {
    if !has_streams(state) {
        return &[];
    }
    let behind = state.last().split_last_chunk::<LENGTH_BYTES>();
    let forms = behind.and_then(|(both, len)| {
        let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
        both.get(both.len().checked_sub(len)?..)
    });
    forms.unwrap_or_default()
}

/// The upstream of a stream that rests.
pub struct RestingAt<'a> {
    /// Its address, if it is not that of its connection.
    pub name: Option<&'a str>,
    /// The stream has a socket for itself. Otherwise others share the connection.
    pub has_socket: bool,
}

/// Notes at how many places each stream that rests counts at its upstream: as many as `count` says.
/// A held one has no upstream yet.
pub fn count_streams(state: &mut PackedBytes, mut count: impl FnMut(RestingAt<'_>) -> u8) {
    let forms = forms_of(state);
    let mut left = forms.strip_prefix(&[VERSION]).unwrap_or_default();
    let mut counts = Vec::new();
    while let Some((form, behind)) = StreamFormV1::unpack(left) {
        let from_end = left.len() - form.count_place() + LENGTH_BYTES;
        let has_socket = RestingExchange::has_socket(form.exchange);
        let is_held = RestingExchange::is_held(form.exchange);
        let at = RestingAt { name: form.name, has_socket };
        counts.push((from_end, if is_held { 0 } else { count(at) }));
        left = behind;
    }
    let all = state.last_mut();
    for (from_end, count) in counts {
        let at = all.len().checked_sub(from_end);
        if let Some(place) = at.and_then(|at| all.get_mut(at)) {
            *place = count;
        }
    }
}

/// The forms of streams, one after the other, up to one that cannot be read.
fn each_form(forms: &[u8]) -> impl Iterator<Item = StreamFormV1<'_>> {
    let mut left = forms.strip_prefix(&[VERSION]).unwrap_or_default();
    std::iter::from_fn(move || {
        let (form, behind) = StreamFormV1::unpack(left)?;
        left = behind;
        Some(form)
    })
}

/// Writes the access lines of streams with these forms.
pub(super) fn end_forms(served: &ServedConnection, forms: &[u8], reason: &Reason) {
    for form in each_form(forms) {
        end_rested(served, form.exchange, form.name, reason.clone());
    }
}

/// Writes the forms of streams.
pub(super) fn write_forms(forms: &[StreamFormV1<'_>]) -> Zeroizing<Vec<u8>> {
    // It never grows: that would leave a copy of secrets that is not wiped.
    let len = forms.iter().map(StreamFormV1::packed_len).sum::<usize>() + 1;
    let mut out = Zeroizing::new(Vec::with_capacity(len));
    out.push(VERSION);
    forms.iter().for_each(|form| form.pack(&mut out));
    out
}

/// Reads what [`write_forms`] has written.
pub(super) fn read_forms(forms: &[u8]) -> Option<Vec<StreamFormV1<'_>>> {
    let mut read = Vec::new();
    if forms.is_empty() {
        return Some(read);
    }
    let mut left = forms.strip_prefix(&[VERSION])?;
    while !left.is_empty() {
        let (form, behind) = StreamFormV1::unpack(left)?;
        read.push(form);
        left = behind;
    }
    Some(read)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use eyelet_h2::hpack::{HeaderField, HpackEncoder};
    use eyelet_h2::{H2Connection, H2Limits, H2Received, PARKED_FIXED_BYTES, PREFACE};
    use eyelet_hold::{HoldKey, RequestKey};
    use eyelet_http1::head::Length;
    use eyelet_memory::budget::Budget;
    use eyelet_resting::hold::RestingHold;
    use eyelet_resting::{KeptConnection, RestingFacts, RestingState, RestingUpload, RestingWait};

    use super::*;

    /// Frames without flags that are not named: SETTINGS and its acknowledgement.
    const GREETING: [u8; 18] = [0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 0, 0, 0, 0];

    /// The header blocks of a client's requests (`make_browser.py`).
    fn requests(client: &str) -> Vec<Vec<u8>> {
        let lines = include_str!("../../../h2/testdata/browser.txt").lines();
        let of_client = lines.filter_map(|line| line.strip_prefix(client)?.strip_prefix(' '));
        let byte = |hex: &[u8]| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap();
        of_client.map(|hex| hex.as_bytes().chunks(2).map(byte).collect()).collect()
    }

    /// The state of a connection after these requests, each of which got the response of an nginx.
    fn served(blocks: &[Vec<u8>]) -> ParkedConnection {
        let mut out = Vec::new();
        let mut h2 = H2Connection::server(H2Limits::default(), 0, &mut out);
        let mut input = [&PREFACE[..], &GREETING].concat();
        for (stream, block) in (1_u32..).step_by(2).zip(blocks) {
            input.extend_from_slice(&(block.len() as u32).to_be_bytes()[1..]);
            input.extend_from_slice(&[1, 5]);
            input.extend_from_slice(&stream.to_be_bytes());
            input.extend_from_slice(block);
            while let Ok(H2Received::Event { consumed, .. }) = h2.receive(&input, 0, &mut out) {
                input.drain(..consumed);
            }
            input.clear();
            let fields = [
                (":status", "200"),
                ("server", "nginx"),
                ("date", "Mon, 02 Nov 2026 10:00:00 GMT"),
                ("content-type", "text/html; charset=utf-8"),
                ("cache-control", "public, max-age=31536000"),
                ("vary", "accept-encoding"),
                ("strict-transport-security", "max-age=63072000; includeSubDomains"),
                ("x-content-type-options", "nosniff"),
            ];
            let fields =
                fields.map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
            h2.respond(stream, fields, true, &mut out).unwrap();
        }
        h2.export().unwrap()
    }

    /// Bytes of a parked connection that is not alone. Before, each had all of them.
    #[test]
    fn connections_of_one_client_share_their_fields() {
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let pieces = Rc::new(SharedPieces::new(&budget));
        let bytes = [("curl", 1), ("httpx", 1), ("go", 1), ("chromium", 1), ("chromium", 20)].map(
            |(client, count)| {
                let state = served(&requests(client)[..count]);
                let packed = [pack(&state, &[], &pieces), pack(&state, &[], &pieces)];
                for packed in &packed {
                    assert_eq!(packed.whole(), state.as_bytes());
                    assert!(packed.first().len() >= PARKED_FIXED_BYTES);
                }
                (client, count, state.as_bytes().len(), packed[1].held_bytes())
            },
        );
        assert_eq!(
            bytes,
            [
                ("curl", 1, 229, 120),
                ("httpx", 1, 255, 113),
                ("go", 1, 234, 112),
                ("chromium", 1, 666, 176),
                ("chromium", 20, 828, 274),
            ]
        );
        assert!(pieces.is_empty());
    }

    /// A secret is not shared, so that no other connection keeps it.
    #[test]
    fn secrets_are_not_shared() {
        let state = served(&requests("chromium"));
        let common: Vec<u8> = (state.common_fields().into_iter())
            .flat_map(|place| state.as_bytes()[place].to_vec())
            .collect();
        // The cookie's value as the table has it, behind the name's index and its length.
        let cookie = HeaderField::new(b"cookie", b"session=7f3b2c1d9e8a4f6b8c0d2e4f6a8b0c1d");
        let mut encoder = HpackEncoder::new();
        encoder.begin(&mut Vec::new());
        let mut block = Vec::new();
        encoder.encode(cookie, &mut block);
        let cookie = &block[2..];
        assert!(state.as_bytes().windows(cookie.len()).any(|bytes| bytes == cookie));
        assert!(!common.windows(cookie.len()).any(|bytes| bytes == cookie));
    }

    /// A state of another process is packed like one's own, and is answered in place.
    #[test]
    fn a_state_of_another_process_is_packed() {
        let pieces = Rc::new(SharedPieces::new(&Arc::new(Budget::new(64 << 20, 0))));
        let state = served(&requests("curl"));
        let mut packed = pack_state(state.as_bytes(), (0, 0), &pieces).unwrap();
        assert_eq!(packed.held_bytes(), pack(&state, &[], &pieces).held_bytes());
        let (ping, mut out) = ([0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8], Vec::new());
        assert_eq!(answer_parked(packed.first_mut(), &ping, &mut out), ping.len());
        assert_eq!(out[..5], [0, 0, 8, 6, 1]);
        assert_eq!(last_bytes(&packed)[9..13], [0, 0, 0, 1]);
        assert!(packed.whole() != state.as_bytes(), "the PING is counted");
        assert!(pack_state(&packed.whole()[1..], (0, 0), &pieces).is_none());
        let open = include_bytes!("../../../../fuzz/seeds/h2_import/streams");
        let (len, open) = open.split_first_chunk().unwrap();
        let open = &open[..u16::from_be_bytes(*len).into()];
        assert_eq!(ParkedConnection::from_bytes(open).map(|parked| parked.streams()), Ok(3));
        assert!(pack_state(open, (3, 0), &pieces).is_none(), "nothing of them rests");
    }

    /// The forms of a held stream, of one with a socket, and of one on a shared connection.
    fn forms() -> Zeroizing<Vec<u8>> {
        let (parts, ()) = http::Request::get("https://a.example/b").body(()).unwrap().into_parts();
        let request = Some(Box::new(RequestKey::new("GET", "/b").unwrap()));
        let key = HoldKey { rule: "ask".into(), name: "a.example".into(), port: 443, request };
        let body = (bytes::Bytes::new(), true);
        let hold = RestingHold::new(key, &parts, Length::Empty, body, Duration::from_secs(9));
        let waits = || {
            let upload = RestingUpload::Sent;
            let wait = RestingWait { upload, codings: None, repeat: None, origin: None };
            RestingState::AwaitsHead(wait)
        };
        let exchanges = [
            (RestingState::Held(Box::new(hold)), KeptConnection::Own(None)),
            (waits(), KeptConnection::Own(None)),
            (waits(), KeptConnection::Shared(None)),
        ];
        let exchanges = exchanges.map(|(state, connection)| {
            let (mut form, facts) = (Vec::new(), RestingFacts::default());
            RestingExchange { facts, state, connection }.pack(&mut form);
            form
        });
        let form = |exchange| StreamFormV1 { name: None, idle_ms: 0, open: 7, exchange };
        write_forms(&exchanges.each_ref().map(|exchange| form(exchange)))
    }

    fn with_forms(state: &[u8], forms: &[u8]) -> PackedBytes {
        let pieces = Rc::new(SharedPieces::new(&Arc::new(Budget::new(64 << 20, 0))));
        let len = (forms.len() as u32).to_be_bytes();
        PackedBytes::pack(&[state, forms, &len].concat(), &[], &pieces)
    }

    /// A held stream counts nowhere, and takes no socket from those behind it.
    #[test]
    fn streams_count_by_their_upstreams() {
        let open = include_bytes!("../../../../fuzz/seeds/h2_import/streams");
        let (len, open) = open.split_first_chunk().unwrap();
        let mut packed = with_forms(&open[..u16::from_be_bytes(*len).into()], &forms());
        let mut asked = Vec::new();
        count_streams(&mut packed, |RestingAt { has_socket, .. }| {
            asked.push(has_socket);
            2
        });
        assert_eq!(asked, [true, false]);
        let counted: Vec<u8> = each_form(forms_of(&packed)).map(|form| form.open).collect();
        assert_eq!(counted, [0, 2, 2]);
    }

    /// The end of an idle connection's state is no form, whatever it looks like.
    #[test]
    fn nothing_is_written_into_the_state_of_an_idle_connection() {
        let mut packed = with_forms(served(&requests("curl")).as_bytes(), &forms());
        let before = packed.whole();
        count_streams(&mut packed, |_| 2);
        assert!(packed.whole() == before);
    }
}
