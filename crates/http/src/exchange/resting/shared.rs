//! Exchanges of parked connections that rest on upstream connections which others share: how they
//! are kept, and how they move to another process, together with those upstream connections.

use std::rc::Rc;
use std::sync::Arc;

use eyelet_engine::links::{AttachedStreams, DetachedLink, DetachedLinks, Partners, StreamRef};
use eyelet_engine::table::KeptStreams;
use eyelet_engine::worker::{Handle, ParkedWaker, Worker};
use eyelet_h2::OpenStream;
use eyelet_memory::budget::Budget;
use eyelet_memory::slab::Key;
use eyelet_resting::link::{pack, unpack};
use eyelet_resting::{KeptConnection, RestingExchange, RestingState};
use eyelet_sys::memory::blocks::{LongBox, LongLived, LongVec, long_any};
use eyelet_sys::memory::long_rc::LongRc;
use eyelet_upstream::http2::{DetachedStream, Http2Connection, Http2Exchange};

/// Bits of what else is known of a stream.
const IS_FIXED: u8 = 1;
const IS_CODED: u8 = 2;
const REUSED: u8 = 4;
const ALL_BITS: u8 = 7;

/// The streams of shared upstream connections that a parked connection keeps. They lie in pages for
/// what lives long: each of them would keep a page of the burst in which its request came.
type SharedStreams = LongVec<Http2Exchange>;

/// Gives a connection that is about to be parked its streams on upstream connections that others
/// share. Whatever comes for one of them wakes it.
pub fn give_shared(handle: &Handle, streams: Vec<Http2Exchange>) {
    let Ok(count) = u32::try_from(streams.len()) else { return };
    if count == 0 {
        return;
    }
    let mut kept = LongVec::with_capacity_in(streams.len(), LongLived);
    kept.extend(streams);
    kept.iter_mut().for_each(|stream| stream.rests(handle.parked_waker()));
    handle.give_streams(count, long_any::<SharedStreams>(kept));
}

/// Takes them when it wakes.
pub fn take_shared(handle: &Handle) -> Vec<Http2Exchange> {
    let kept = handle.take_streams().and_then(|kept| kept.downcast::<SharedStreams>().ok());
    let kept = kept.map(LongBox::into_inner).into_iter().flatten();
    let mut streams: Vec<_> = kept.collect();
    streams.iter_mut().for_each(|stream| stream.goes_on());
    streams
}

/// Adds the upstream connections of these streams, and the connections of clients that have streams
/// on those. Returns false if one of them cannot move now.
pub fn find_partners(kept: &KeptStreams, found: &mut Partners) -> bool {
    let Some(streams) = kept.downcast_ref::<SharedStreams>() else { return false };
    let mut keys = Vec::new();
    streams.iter().all(|stream| {
        let connection = &stream.connection;
        let may_leave = !found.add_link(connection.number()) || connection.may_leave(&mut keys);
        keys.drain(..).for_each(|key| found.add(key));
        may_leave && !found.has_earlier()
    })
}

/// Takes the upstream connections of a group out of their worker. `None`: a socket cannot be taken.
pub fn detach_links(kept: Vec<KeptStreams>) -> Option<DetachedLinks> {
    let (mut links, mut numbers, mut streams) = (Vec::new(), Vec::new(), Vec::new());
    for kept in &kept {
        let mut refs = Vec::new();
        for exchange in kept.downcast_ref::<SharedStreams>()? {
            let (connection, stream) = (&exchange.connection, exchange.detached());
            let known = numbers.iter().position(|number| *number == connection.number());
            if known.is_none() {
                let (socket, connection) = connection.detach()?;
                links.push(DetachedLink { socket: Arc::new(socket), state: pack(&connection) });
                numbers.push(exchange.connection.number());
            }
            let link = u16::try_from(known.unwrap_or(numbers.len() - 1)).ok()?;
            refs.push(StreamRef { link, stream: stream.id, bits: bits(stream) });
        }
        streams.push(refs);
    }
    Some(DetachedLinks { links, streams })
}

fn bits(stream: DetachedStream) -> u8 {
    let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    bit(stream.is_fixed, IS_FIXED) | bit(stream.is_coded, IS_CODED) | bit(stream.reused, REUSED)
}

fn detached(&StreamRef { stream, bits, .. }: &StreamRef) -> DetachedStream {
    DetachedStream {
        id: stream,
        is_fixed: bits & IS_FIXED != 0,
        is_coded: bits & IS_CODED != 0,
        reused: bits & REUSED != 0,
    }
}

/// True if these are upstream connections, and each of their streams is that of one exchange of the
/// group, at the same step. The exchanges of each connection come with its streams.
pub fn reads_links(
    budget: &Arc<Budget>,
    links: &[DetachedLink],
    connections: &[(Vec<RestingExchange>, &[StreamRef])],
) -> bool {
    let open = links.iter().map(|link| {
        let streams = unpack(&link.state)?.streams(budget)?;
        Some(streams.into_iter().map(Some).collect::<Vec<_>>())
    });
    let Some(mut open) = open.collect::<Option<Vec<_>>>() else { return false };
    let are_read = connections.iter().all(|(exchanges, streams)| {
        let exchanges: Vec<_> = exchanges.iter().filter(|one| is_shared(one)).collect();
        exchanges.len() == streams.len()
            && exchanges.iter().zip(*streams).all(|(exchange, stream)| {
                let of_link = open.get_mut(usize::from(stream.link)).into_iter().flatten();
                let place = of_link
                    .into_iter()
                    .find(|place| place.is_some_and(|open| open.id == stream.stream));
                let open = place.and_then(Option::take);
                stream.bits & !ALL_BITS == 0
                    && open.is_some_and(|open| is_at(&exchange.state, open))
            })
    });
    are_read && open.iter().flatten().all(Option::is_none)
}

fn is_shared(exchange: &RestingExchange) -> bool {
    matches!(exchange.connection, KeptConnection::Shared(_))
}

/// True if an exchange at this step has such a stream.
fn is_at(state: &RestingState, open: OpenStream) -> bool {
    let is_answered = match state {
        RestingState::AwaitsHead(_) => false,
        RestingState::PassesDown(..) => true,
        // A connection that others share switches no protocols.
        RestingState::Held(_) | RestingState::WebSocket(_) | RestingState::Switched(_) => {
            return false;
        }
    };
    open.awaits_head != is_answered && open.has_ended == state.is_request_done()
}

/// Goes on with the upstream connections of a group. Returns the streams of each connection, by
/// whose key they wake it. `None`: one of its upstream connections cannot go on.
pub fn attach_links(
    worker: &Rc<Worker>,
    links: Vec<DetachedLink>,
    connections: &[(Key, Vec<StreamRef>)],
) -> Vec<AttachedStreams> {
    let links: Vec<_> = links.into_iter().map(|link| attach_link(worker, link)).collect();
    let kept = connections.iter().map(|(key, streams)| {
        let streams = streams.iter().map(|stream| {
            let link = links.get(usize::from(stream.link))?.as_ref()?;
            Some(Http2Connection::resume(link, detached(stream), ParkedWaker::new(worker, *key)))
        });
        let mut kept = LongVec::with_capacity_in(streams.len(), LongLived);
        for stream in streams {
            kept.push(stream?);
        }
        Some(long_any::<SharedStreams>(kept))
    });
    let kept = kept.collect();
    links.iter().flatten().for_each(|link| link.end_unclaimed());
    kept
}

fn attach_link(worker: &Rc<Worker>, link: DetachedLink) -> Option<LongRc<Http2Connection>> {
    let (socket, state) = link.into_parts().ok()?;
    Http2Connection::attach(worker, socket, unpack(&state)?).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use eyelet_h2::hpack::HeaderField;
    use eyelet_h2::{H2Connection, H2Limits, H2Received, RequestKind};
    use eyelet_resting::{RestingFacts, RestingUpload, RestingWait};
    use eyelet_upstream::http2::DetachedConnection;
    use http::Method;
    use zeroize::Zeroizing;

    use super::*;

    /// Lets the other side read what one has written.
    fn carry(to: &mut H2Connection, bytes: &[u8], out: &mut Vec<u8>) {
        let mut used = 0;
        while let H2Received::Event { consumed, .. } = to.receive(&bytes[used..], 0, out).unwrap() {
            used += consumed;
        }
    }

    /// A connection to an upstream with two requests that wait: one is whole, one sends a body.
    fn waiting() -> DetachedConnection {
        let limits = H2Limits { stream_window: 64 << 10, ..H2Limits::default() };
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        let mut client = H2Connection::client(limits, 0, &mut to_server);
        let mut server = H2Connection::server(H2Limits::default(), 0, &mut to_client);
        for _ in 0..3 {
            carry(&mut server, &std::mem::take(&mut to_server), &mut to_client);
            carry(&mut client, &std::mem::take(&mut to_client), &mut to_server);
        }
        for is_last in [true, false] {
            let fields = [(":method", "POST"), (":scheme", "http"), (":path", "/")];
            let fields = fields.map(|(name, value)| HeaderField {
                name: name.as_bytes(),
                value: value.as_bytes(),
                sensitive: false,
            });
            client.request(fields, RequestKind::Other, is_last, &mut to_server).unwrap();
        }
        let h2 = client.export().unwrap();
        DetachedConnection { name: "192.0.2.1:80".into(), tls: None, h2 }
    }

    fn wait(upload: RestingUpload) -> RestingExchange {
        let wait = RestingWait { upload, codings: None, repeat: None, origin: None };
        let facts = RestingFacts { method: Some(Method::POST), ..RestingFacts::default() };
        let (state, connection) = (RestingState::AwaitsHead(wait), KeptConnection::Shared(None));
        RestingExchange { facts, state, connection }
    }

    fn exchanges() -> Vec<RestingExchange> {
        let open = RestingUpload::Open(eyelet_http1::body::Encoder::Plain);
        vec![wait(RestingUpload::Sent), wait(open)]
    }

    const STREAMS: [StreamRef; 2] =
        [StreamRef { link: 0, stream: 1, bits: 0 }, StreamRef { link: 0, stream: 3, bits: 7 }];

    fn reads(state: &[u8], exchanges: Vec<RestingExchange>, streams: &[StreamRef]) -> bool {
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let socket = Arc::new(std::fs::File::open("/dev/null").unwrap().into());
        let link = DetachedLink { socket, state: Zeroizing::new(state.to_vec()) };
        let is_read = reads_links(&budget, &[link], &[(exchanges, streams)]);
        assert_eq!(budget.used(), 0, "nothing of it is kept");
        is_read
    }

    #[test]
    fn the_streams_of_a_link_are_those_of_its_exchanges() {
        let state = pack(&waiting());
        assert!(reads(&state, exchanges(), &STREAMS));
        let [one, two] = STREAMS;
        let streams: [(&str, &[StreamRef]); 6] = [
            ("another order", &[two, one]),
            ("one is missing", &[one]),
            ("two are one", &[one, one]),
            ("another identifier", &[one, StreamRef { stream: 5, ..two }]),
            ("another link", &[one, StreamRef { link: 1, ..two }]),
            ("an unknown bit", &[one, StreamRef { bits: 8, ..two }]),
        ];
        for (case, streams) in streams {
            assert!(!reads(&state, exchanges(), streams), "{case}");
        }
        assert!(!reads(&state, vec![wait(RestingUpload::Sent)], &STREAMS));
        let mut own = exchanges();
        own[1].connection = KeptConnection::Own(None);
        assert!(!reads(&state, own, &STREAMS), "an exchange with a socket of its own");
        let mut switched = exchanges();
        switched[0].state = RestingState::Switched(None);
        assert!(!reads(&state, switched, &STREAMS), "it has switched protocols");
    }

    #[test]
    fn what_is_no_link_is_not_read() {
        let state = pack(&waiting());
        for len in 0..state.len() {
            assert!(!reads(&state[..len], exchanges(), &STREAMS), "{len}");
        }
        assert!(!reads(&[&state[..], &[0]].concat(), exchanges(), &STREAMS));
        let connection = waiting();
        let h2 = connection.h2.as_bytes();
        let at = state.windows(h2.len()).position(|bytes| bytes == h2).unwrap();
        // The entries of the streams stand behind 92 bytes of numbers.
        let first = at + eyelet_h2::PARKED_FIXED_BYTES + 2;
        let changed = |place: usize, bytes: &[u8]| {
            let mut state = state.to_vec();
            state[place..][..bytes.len()].copy_from_slice(bytes);
            state
        };
        let cases: [(&str, Vec<u8>); 6] = [
            ("another version", changed(0, &[2])),
            ("a server", changed(at + 1, &[h2[1] & !1])),
            ("an identifier that is even", changed(first, &2_u32.to_be_bytes())),
            ("identifiers out of order", changed(first, &7_u32.to_be_bytes())),
            ("a window beyond 2^31-1", changed(first + 12, &(1_u32 << 31).to_be_bytes())),
            ("a window that nobody was told", changed(at + 2 + 9 * 4, &[0, 0, 1, 0])),
        ];
        for (case, state) in cases {
            assert!(!reads(&state, exchanges(), &STREAMS), "{case}");
        }
    }
}
