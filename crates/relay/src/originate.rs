//! Moves bytes of a connection whose TLS is towards the upstream. It is the relay of `terminate.rs`
//! with the two sides exchanged: there the "client" is the peer with TLS.

use super::buffers::Buffers;
use super::sockets::{AnswerParked, Progress, Sockets};
use super::terminate::{self, Terminated};
use crate::ready::{CLIENT, Ready, UPSTREAM};
use eyelet_telemetry::info::{End, Outcome, Parked};
use eyelet_telemetry::reason::{Detail, Peer, Reason};

/// Moves what can be moved, both ways.
pub fn run(
    originated: &mut Terminated,
    sockets: &mut Sockets<'_>,
    info: &mut Parked,
    buffers: &mut Buffers,
    answer: AnswerParked<'_>,
) -> Progress {
    let Some(upstream) = sockets.upstream else {
        return Progress::Reset(end(Reason::Internal("originated without an upstream")));
    };
    let mut ready = exchanged(*sockets.ready);
    let client = Some(sockets.client);
    let mut others = Sockets::new(upstream, client, &mut ready);
    std::mem::swap(&mut info.bytes_to_upstream, &mut info.bytes_to_client);
    let progress = terminate::run(originated, &mut others, info, buffers, answer);
    std::mem::swap(&mut info.bytes_to_upstream, &mut info.bytes_to_client);
    *sockets.ready = exchanged(ready);
    match progress {
        Progress::Closed(ended) | Progress::Linger(ended) => {
            Progress::Closed(end(of_upstream(ended.reason)))
        }
        Progress::Reset(ended) | Progress::Cut(ended) => {
            Progress::Reset(end(of_upstream(ended.reason)))
        }
        other => other,
    }
}

/// Says of the upstream what the other relay says of a client, and the other way round.
fn of_upstream(reason: Reason) -> Reason {
    let tls = |why: &dyn std::fmt::Display| Reason::UpstreamTls(Detail::of(why));
    match reason {
        Reason::ClientClosed(_) => Reason::UpstreamClosed,
        Reason::UpstreamClosed => Reason::ClientClosed(None),
        Reason::ClientReset(_) => Reason::UpstreamReset,
        Reason::UpstreamReset => Reason::ClientReset(None),
        Reason::Io(Peer::Client, failure) => Reason::Io(Peer::Upstream, failure),
        Reason::Io(Peer::Upstream, failure) => Reason::Io(Peer::Client, failure),
        Reason::Truncated => tls(&"it ended without close_notify"),
        Reason::ClientAlert(code) => Reason::UpstreamAlert(code),
        Reason::Record(fault) => tls(&fault),
        other => other,
    }
}

fn end(reason: Reason) -> End {
    End { outcome: Outcome::Originated, reason }
}

/// This readiness with the sides exchanged.
fn exchanged(ready: Ready) -> Ready {
    /// A side that a parked connection does not have.
    const SPARE: u8 = UPSTREAM + 1;
    let mut ready = ready;
    ready.rename(CLIENT, SPARE);
    ready.rename(UPSTREAM, CLIENT);
    ready.rename(SPARE, UPSTREAM);
    ready
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyelet_record::RecordFault;
    use std::io::{Error, ErrorKind};

    /// Each side's reason is said of the other side: the relay below has the two exchanged.
    #[test]
    fn reasons_are_of_the_right_side() {
        let refused = || Error::from(ErrorKind::PermissionDenied);
        let (of_client, of_upstream_io) =
            (Reason::client_io(&refused(), None), Reason::upstream_io(&refused()));
        let tls = |text: &str| Reason::UpstreamTls(Detail::of(text));
        let fault = RecordFault::BadRecordMac;
        let expected = [
            (Reason::ClientClosed(None), Reason::UpstreamClosed),
            (Reason::UpstreamClosed, Reason::ClientClosed(None)),
            (Reason::ClientReset(None), Reason::UpstreamReset),
            (Reason::UpstreamReset, Reason::ClientReset(None)),
            (of_client.clone(), of_upstream_io.clone()),
            (of_upstream_io, of_client),
            (Reason::Truncated, tls("it ended without close_notify")),
            (Reason::ClientAlert(40), Reason::UpstreamAlert(40)),
            (Reason::Record(fault), tls(&fault.to_string())),
            (Reason::Ended, Reason::Ended),
        ];
        for (said, meant) in expected {
            assert_eq!(of_upstream(said.clone()).to_string(), meant.to_string(), "{said}");
        }
    }
}
