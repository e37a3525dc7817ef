//! The alerts that rustls does not send, or where it sends another one than the RFCs ask for.

use eyelet_record::{CONTROL_BYTES_MAX, Keys, Role, Session, Suite};
use eyelet_wire::alert::AlertDescription;
use rustls::{Error, InvalidMessage, PeerIncompatible, PeerMisbehaved};

use eyelet_telemetry::info::End;
use eyelet_telemetry::reason::{Detail, HandshakeFault, Reason};
use eyelet_tls::server::TrafficSecrets;

/// Our own alert if rustls sends none (`said` is false) or not the RFC's. `lacking`: the hello
/// lacks an extension that TLS 1.3 requires.
pub fn ours(error: &Error, tls12: bool, lacking: bool, said: bool) -> Option<AlertDescription> {
    match error {
        // RFC 8446 section 5 and 5.4.
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType
            | InvalidMessage::InvalidEmptyPayload
            | InvalidMessage::MissingData("AlertLevel"),
        ) => Some(AlertDescription::UnexpectedMessage),
        // RFC 8446 section 9.2.
        Error::PeerIncompatible(why) if lacking || is_lack_of_share(why) => {
            Some(AlertDescription::MissingExtension)
        }
        // It failed to decrypt, whatever came before (RFC 8446 section 5.2).
        Error::PeerMisbehaved(PeerMisbehaved::RejectedEarlyDataInterleavedWithHandshakeMessage) => {
            Some(AlertDescription::BadRecordMac)
        }
        // RFC 5246 section 7.4.2, RFC 8446 section 4.4.2: a certificate has at least one byte.
        Error::InvalidMessage(InvalidMessage::IllegalEmptyValue) => {
            Some(AlertDescription::DecodeError)
        }
        // TLS 1.2 has no certificate_required (RFC 5246 section 7.4.6).
        Error::NoCertificatesPresented if tls12 => Some(AlertDescription::HandshakeFailure),
        _ if said => None,
        Error::InvalidMessage(_) => Some(AlertDescription::DecodeError),
        Error::PeerIncompatible(_) => Some(AlertDescription::HandshakeFailure),
        Error::PeerMisbehaved(_)
        | Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. } => Some(AlertDescription::UnexpectedMessage),
        // The client sent an alert itself, so it gets none.
        Error::AlertReceived(_) => None,
        _ => Some(AlertDescription::InternalError),
    }
}

/// The end of a connection whose handshake failed with this error.
pub fn end(error: &Error) -> End {
    End::failed(Reason::Handshake(fault(error), Detail::of(error)))
}

fn fault(error: &Error) -> HandshakeFault {
    match error {
        Error::AlertReceived(alert) => HandshakeFault::Alert(u8::from(*alert)),
        Error::InvalidCertificate(_) | Error::NoCertificatesPresented => {
            HandshakeFault::Certificate
        }
        Error::PeerIncompatible(_) | Error::NoApplicationProtocol => HandshakeFault::Incompatible,
        Error::InvalidMessage(_)
        | Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. }
        | Error::PeerMisbehaved(_)
        | Error::PeerSentOversizedRecord
        | Error::DecryptError
        // Errors that our own reader finds before rustls reads the record, and a close_notify.
        | Error::General(_) => HandshakeFault::Protocol,
        _ => HandshakeFault::Internal,
    }
}

/// An error about the second hello, which only rustls reads.
fn is_lack_of_share(why: &PeerIncompatible) -> bool {
    matches!(why, PeerIncompatible::KeyShareExtensionRequired)
}

/// Appends this alert as the next record under our application key.
pub fn append_sealed(
    suite: Suite,
    secrets: &TrafficSecrets,
    alert: AlertDescription,
    tx_seq: u64,
    outgoing: &mut Vec<u8>,
) {
    let mut record = [0; CONTROL_BYTES_MAX];
    let sealed = Session::tls13(Role::Server, suite, &secrets.client, &secrets.server, 0, tx_seq)
        .and_then(|mut session| session.seal_alert(&mut Keys::new(), alert.code(), &mut record));
    outgoing.extend_from_slice(&record[..sealed.unwrap_or(0)]);
}
