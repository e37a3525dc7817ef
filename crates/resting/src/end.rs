//! The last bytes of a WebSocket that ends where it rests, without a task: close frames (1001) for
//! peers that may get some.

use eyelet_record::{Keys, Session, alert};
use eyelet_wire::websocket::close_to_server;

use super::{EndedSide, KeptConnection, RestingExchange, RestingState, RestingWebSocket};

/// True if the client of an exchange in this form gets a close frame: it is a WebSocket, and its
/// upstream's frames are whole so far.
pub fn takes_close_frame(form: &[u8]) -> bool {
    RestingExchange::unpack(form)
        .and_then(|exchange| is_between_frames(&exchange.state))
        .is_some_and(|[_, down]| down)
}

/// The last bytes for the upstream of an exchange in this form: a WebSocket's close frame between
/// two whole frames, sealed if TLS goes there. Empty otherwise.
pub fn last_for_upstream(form: &[u8]) -> Vec<u8> {
    let Some(RestingExchange { state, connection, .. }) = RestingExchange::unpack(form) else {
        return Vec::new();
    };
    // A stream that others share a connection with is reset.
    let KeptConnection::Own(tls) = connection else { return Vec::new() };
    if is_between_frames(&state).is_none_or(|[up, _]| !up) {
        return Vec::new();
    }
    let Some(mask) = eyelet_sys::process::random() else { return Vec::new() };
    let close = close_to_server(mask);
    match tls {
        None => close.to_vec(),
        Some(mut tls) => sealed(&mut tls.session, &close),
    }
}

/// Tells if the frames of a WebSocket's client, and those of its upstream, are whole so far.
fn is_between_frames(state: &RestingState) -> Option<[bool; 2]> {
    let (frames, ended) = match state {
        RestingState::WebSocket(RestingWebSocket { frames, ended, .. }) => (frames, *ended),
        RestingState::Switched(frames) => (frames.as_ref()?, None),
        RestingState::AwaitsHead(_) | RestingState::Held(_) | RestingState::PassesDown(..) => {
            return None;
        }
    };
    let [up, down] = frames.map(|frames| frames.is_between());
    // Nothing follows an end.
    Some([up && ended != Some(EndedSide::Client), down && ended != Some(EndedSide::Upstream)])
}

/// A record of these bytes, and close_notify.
fn sealed(session: &mut Session, bytes: &[u8]) -> Vec<u8> {
    let (mut keys, prefix) = (Keys::new(), session.prefix_len());
    let mut records = vec![0; session.record_len(bytes.len())];
    records[prefix..][..bytes.len()].copy_from_slice(bytes);
    // A session that may seal no more has no record before its alert.
    let len = session.seal(&mut keys, &mut records, bytes.len()).unwrap_or(0);
    records.truncate(len);
    records.extend_from_slice(&session.alert(&mut keys, alert::CLOSE_NOTIFY));
    records
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use eyelet_record::{Role, Suite};
    use eyelet_upstream::socket::tls::RestingTls;
    use eyelet_wire::websocket::FrameReader;

    use super::*;
    use crate::RestingFacts;

    /// The form of a WebSocket. `begun` are the first bytes of each side's frames.
    fn form(begun: [&[u8]; 2], tls: Option<RestingTls>, ended: Option<EndedSide>) -> Vec<u8> {
        let frames = begun.map(|bytes| {
            let mut reader = FrameReader::default();
            reader.read(bytes);
            reader
        });
        let websocket = RestingWebSocket { frames, passed: 0, ended };
        let state = RestingState::WebSocket(websocket);
        let mut form = Vec::new();
        let (facts, connection) = (RestingFacts::default(), KeptConnection::Own(tls));
        RestingExchange { facts, state, connection }.pack(&mut form);
        form
    }

    #[test]
    fn a_side_in_the_middle_of_a_frame_gets_no_close_frame() {
        let (whole, part) = (&b""[..], &[0x81, 0x85][..]);
        for (begun, down, up) in
            [([whole; 2], true, true), ([part, whole], true, false), ([whole, part], false, true)]
        {
            let form = form(begun, None, None);
            assert_eq!(takes_close_frame(&form), down, "{begun:?}");
            let last = last_for_upstream(&form);
            assert_eq!(last.len(), if up { 8 } else { 0 }, "{begun:?}");
            assert!(!up || last[..2] == [0x88, 0x82]);
        }
        let ended = form([whole; 2], None, Some(EndedSide::Client));
        assert!(takes_close_frame(&ended) && last_for_upstream(&ended).is_empty());
        let ended = form([whole; 2], None, Some(EndedSide::Upstream));
        assert!(!takes_close_frame(&ended) && last_for_upstream(&ended).len() == 8);
        let mut response = Vec::new();
        let (facts, state) = (RestingFacts::default(), RestingState::Switched(None));
        let connection = KeptConnection::Own(None);
        RestingExchange { facts, state, connection }.pack(&mut response);
        assert!(!takes_close_frame(&response) && last_for_upstream(&response).is_empty());
    }

    #[test]
    fn the_close_frame_is_sealed_where_tls_goes_to_the_upstream() {
        let session = |role| Session::boxed_tls13(role, Suite::Aes128Gcm, &[1; 32], &[2; 32]);
        let tls = RestingTls { session: session(Role::Client).unwrap(), info: None };
        let mut records = last_for_upstream(&form([b"", b""], Some(tls), None));
        let (mut server, mut keys) = (session(Role::Server).unwrap(), Keys::new());
        let opened = server.open(&mut keys, &mut records).unwrap();
        let eyelet_record::Opened::Record { consumed, what } = opened else { panic!("a record") };
        let eyelet_record::Incoming::Data(data) = what else { panic!("data") };
        assert_eq!(records[data][..2], [0x88, 0x82]);
        server.open(&mut keys, &mut records[consumed..]).unwrap();
        assert!(server.read_closed());
    }
}
