//! Refuses a connection so that the client learns why: by an alert, or by a line of HTTP.

use eyelet_policy::Refusal;
use eyelet_wire::alert::AlertDescription;
use eyelet_wire::hello::{NotTls, Peek};
use eyelet_wire::version::TLS12;

use crate::path::active::Active;
use eyelet_config::{Action, RefusalAlert};
use eyelet_engine::park;
use eyelet_telemetry::info::{End, Outcome};
use eyelet_telemetry::reason::{Reason, UserLack};

/// The answer to a browser that came by http:// to a TLS port.
const BAD_REQUEST: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 36\r\n\
    Connection: close\r\n\
    \r\n\
    This port speaks TLS: use https://.\n";

/// The message that a refused client is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalMessage {
    /// A fatal alert.
    Alert(AlertDescription),
    /// A 400 response, for a client that spoke HTTP.
    BadRequest,
    /// Nothing: the client would not understand it, or is not to learn anything.
    Nothing,
}

/// Refuses by a rule, or because no rule matched. `version_max`: the highest version in the hello.
pub fn by_rule(
    action: Option<&Action>,
    refusal: Refusal,
    version_max: Option<u16>,
) -> (RefusalMessage, End) {
    // Such a client does not know missing_extension.
    let tls12_client = version_max.is_some_and(|offered| offered <= TLS12);
    let given = match action {
        Some(Action::Refuse(refuse)) => refuse.alert,
        _ => RefusalAlert::ByReason,
    };
    let message = match given {
        RefusalAlert::ByReason => RefusalMessage::Alert(refusal.alert(tls12_client)),
        RefusalAlert::Always(alert) => RefusalMessage::Alert(alert),
        RefusalAlert::Silence => RefusalMessage::Nothing,
    };
    (message, End { outcome: Outcome::Refused, reason: reason(refusal) })
}

/// Refuses a client that sent no readable hello.
pub fn unreadable(peek: &Peek<'_>) -> (RefusalMessage, End) {
    let reason = match peek {
        Peek::NotTls(not_tls) => Reason::NotTls(*not_tls),
        Peek::Malformed(malformed) => Reason::MalformedHello(*malformed),
        Peek::NeedMore { .. } | Peek::Hello(_) => Reason::Internal("refused a readable hello"),
    };
    (RefusalMessage::of(&reason), End { outcome: Outcome::Refused, reason })
}

fn reason(refusal: Refusal) -> Reason {
    match refusal {
        Refusal::MalformedName(fault) => Reason::MalformedName(fault),
        Refusal::NoUser => Reason::NoUser(UserLack::Missing),
        other => Reason::Refused(other.text()),
    }
}

impl RefusalMessage {
    /// The message to a client whose connection ends for this reason before its handshake is done.
    pub fn of(reason: &Reason) -> Self {
        match reason {
            Reason::NotTls(NotTls::Http) => Self::BadRequest,
            other => other.alert().map_or(Self::Nothing, Self::Alert),
        }
    }
}

/// Sends the message. The connection lingers so that the client can read it. The caller emits the
/// access line.
pub fn refuse(connection: &Active<'_>, answer: &RefusalMessage, end: End) -> Result<(), End> {
    match answer {
        RefusalMessage::Alert(alert) => park::close_with(connection.handle, &alert.fatal_record()),
        RefusalMessage::BadRequest => park::close_with(connection.handle, BAD_REQUEST),
        RefusalMessage::Nothing => park::close_with(connection.handle, &[]),
    }
    Err(end)
}
