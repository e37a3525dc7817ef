//! The alerts that rustls does not send, or where it sends another one than the RFCs ask for.

use eyelet_record::{CONTROL_BYTES_MAX, Keys, Role, Session, Suite};
use eyelet_wire::alert::AlertDescription;
use rustls::{CertificateError, Error, InvalidMessage, PeerIncompatible, PeerMisbehaved};

use eyelet_telemetry::info::End;
use eyelet_telemetry::reason::{Detail, HandshakeFault, Reason, Stage, When};
use eyelet_tls::server::TrafficSecrets;

use super::incoming::BadRecord;

/// The moment at which a client leaves, or is cut.
pub const SHAKING: When = When::During(Stage::Handshake);

/// The reason why a handshake cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// rustls says so.
    #[error("{0}")]
    Tls(#[from] Error),
    /// A record that rustls is not given.
    #[error("{0}")]
    Record(#[from] BadRecord),
    /// The client has sent close_notify.
    #[error("closed")]
    Closed,
}

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
        Error::NoApplicationProtocol => Some(AlertDescription::NoApplicationProtocol),
        _ => Some(AlertDescription::InternalError),
    }
}

/// The end of a connection whose handshake failed.
pub fn end(failure: &HandshakeError) -> End {
    End::failed(match failure {
        // Our own verifier's fault. rustls would show how it is stored.
        HandshakeError::Tls(Error::InvalidCertificate(CertificateError::Other(why))) => {
            let text = format!("invalid peer certificate: {why}");
            Reason::Handshake(HandshakeFault::Certificate, Detail::of(text))
        }
        HandshakeError::Tls(error) => Reason::Handshake(fault(error), Detail::of(error)),
        HandshakeError::Record(bad) => Reason::Handshake(HandshakeFault::Protocol, Detail::of(bad)),
        HandshakeError::Closed => Reason::ClientClosed(Some(SHAKING)),
    })
}

/// Returns whose fault an error of rustls is. A client can cause the errors of the first four arms
/// only.
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
        | Error::DecryptError => HandshakeFault::Protocol,
        // Keys that cannot sign, and random bytes or the time that the system does not give.
        Error::General(_)
        | Error::Other(_)
        | Error::InconsistentKeys(_)
        | Error::FailedToGetCurrentTime
        | Error::FailedToGetRandomBytes
        | Error::EncryptError
        | Error::HandshakeNotComplete
        | Error::BadMaxFragmentSize => HandshakeFault::Internal,
        // Clients of rustls and lists of revoked certificates have these. We use neither here.
        Error::InvalidEncryptedClientHello(_)
        | Error::UnsupportedNameType
        | Error::InvalidCertRevocationList(_) => HandshakeFault::Internal,
        // The enum is non-exhaustive.
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

#[cfg(test)]
mod tests {
    use eyelet_telemetry::reason::Party;
    use rustls::{AlertDescription as Alert, CertificateError, InconsistentKeys, OtherError};

    use super::*;

    /// An error that a client can cause is the client's fault, and no other error is.
    #[test]
    fn each_error_blames_the_right_side() {
        let (expect_types, got_type) = (Vec::new(), rustls::ContentType::Heartbeat);
        let inappropriate = Error::InappropriateMessage { expect_types, got_type };
        let (expect_types, got_type) = (Vec::new(), rustls::HandshakeType::Finished);
        let of_client = [
            inappropriate,
            Error::InappropriateHandshakeMessage { expect_types, got_type },
            InvalidMessage::InvalidCcs.into(),
            InvalidMessage::UnknownProtocolVersion.into(),
            PeerMisbehaved::IncorrectBinder.into(),
            PeerIncompatible::NoCipherSuitesInCommon.into(),
            Error::InvalidCertificate(CertificateError::UnknownIssuer),
            Error::InvalidCertificate(CertificateError::Other(OtherError(std::sync::Arc::new(
                std::fmt::Error,
            )))),
            Error::NoCertificatesPresented,
            Error::AlertReceived(Alert::UnknownCA),
            Error::NoApplicationProtocol,
            Error::PeerSentOversizedRecord,
            Error::DecryptError,
        ];
        let of_edge = [
            Error::General("signing failed".into()),
            Error::Other(OtherError(std::sync::Arc::new(std::fmt::Error))),
            InconsistentKeys::KeyMismatch.into(),
            Error::FailedToGetCurrentTime,
            Error::FailedToGetRandomBytes,
            Error::EncryptError,
            Error::HandshakeNotComplete,
            Error::BadMaxFragmentSize,
        ];
        let whose = |failure: HandshakeError| end(&failure).reason.whose();
        for error in of_client {
            let text = error.to_string();
            assert_eq!(whose(error.into()), Party::Client, "{text}");
        }
        for error in of_edge {
            let text = error.to_string();
            assert_eq!(whose(error.into()), Party::Eyelet, "{text}");
        }
        for bad in [
            BadRecord::Type(99),
            BadRecord::Length(u16::MAX),
            BadRecord::ChangeCipherSpec,
            BadRecord::EarlyData,
            BadRecord::Undecryptable,
        ] {
            assert_eq!(whose(bad.into()), Party::Client, "{bad}");
        }
        assert_eq!(whose(HandshakeError::Closed), Party::Client);
    }
}
