//! The alerts of a handshake that rustls does not send, or sends another one than the RFCs ask for.
//! It must not know the connection: errors and secrets come in, an alert goes out.

use eyelet_record::{CONTROL_BYTES_MAX, Keys, Role, Session, Suite};
use eyelet_wire::alert::AlertDescription;
use rustls::{Error, InvalidMessage, PeerIncompatible, PeerMisbehaved};

use eyelet_telemetry::info::End;
use eyelet_telemetry::reason::{Detail, HandshakeFault, Reason};
use eyelet_tls::server::TrafficSecrets;

/// Our own alert, where rustls says none (`said` is false) or not the RFC's. `lacking`: the hello
/// is without an extension that TLS 1.3 must have.
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
        // It has failed to decrypt, whatever came before it (RFC 8446 section 5.2).
        Error::PeerMisbehaved(PeerMisbehaved::RejectedEarlyDataInterleavedWithHandshakeMessage) => {
            Some(AlertDescription::BadRecordMac)
        }
        // RFC 5246 section 7.4.2, RFC 8446 section 4.4.2: a certificate has a byte at least.
        Error::InvalidMessage(InvalidMessage::IllegalEmptyValue) => {
            Some(AlertDescription::DecodeError)
        }
        // TLS 1.2 does not know certificate_required (RFC 5246 section 7.4.6).
        Error::NoCertificatesPresented if tls12 => Some(AlertDescription::HandshakeFailure),
        _ if said => None,
        Error::InvalidMessage(_) => Some(AlertDescription::DecodeError),
        Error::PeerIncompatible(_) => Some(AlertDescription::HandshakeFailure),
        Error::PeerMisbehaved(_)
        | Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. } => Some(AlertDescription::UnexpectedMessage),
        // There is nobody to tell.
        Error::AlertReceived(_) => None,
        _ => Some(AlertDescription::InternalError),
    }
}

/// The end of a connection whose handshake failed by this.
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
        // What our own reader refuses before rustls sees it, and a close_notify.
        | Error::General(_) => HandshakeFault::Protocol,
        _ => HandshakeFault::Internal,
    }
}

/// Of a second hello, which only rustls sees.
fn is_lack_of_share(why: &PeerIncompatible) -> bool {
    matches!(why, PeerIncompatible::KeyShareExtensionRequired)
}

/// Appends that alert, as the next record under our application key.
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
