//! A server's ways with hellos of our own: versions, TLS compression, renegotiation, groups, cut
//! hellos, names.

use std::cell::Cell;

use eyelet_wire::alert::AlertDescription;

use crate::flight::{self, ServerReply, WHOLE};
use crate::hello::{ClientHello, GROUPS, KEY_SHARE, RENEGOTIATION_INFO};
use crate::report::{Grade, ProbeReport};
use crate::target::ProbeTarget;

/// Bytes of a record, or of a segment, of a hello that is cut: several of each, so that one cut is
/// inside the name.
const PIECE: usize = 40;

/// The findings of the scan that later steps need.
#[derive(Clone, Copy, Debug, Default)]
pub struct Versions {
    /// TLS 1.2 is spoken.
    pub tls12: bool,
    /// TLS 1.3 is spoken.
    pub tls13: bool,
}

/// Runs the scan.
///
/// # Errors
/// The answer to the first hello, if no TLS server gave it.
pub fn scan(target: &ProbeTarget, report: &mut ProbeReport) -> Result<Versions, ServerReply> {
    let scan = Scan { target, count: Cell::new(0) };
    let newest = scan.ask(0x0304, target.sni(), &[0], WHOLE, usize::MAX);
    if !newest.is_tls() {
        // A server of before 2008 may close on a version that it does not know.
        let older = scan.ask(0x0303, target.sni(), &[0], WHOLE, usize::MAX);
        if !older.is_tls() {
            return Err(newest);
        }
    }
    let old = scan.ask(0x0303, target.sni(), &[0], WHOLE, usize::MAX);
    let versions = Versions { tls12: chose(&old, 0x0303), tls13: chose(&newest, 0x0304) };
    scan.versions(report, &newest, &old);
    groups(report, &newest);
    compression(report, &scan.ask(0x0303, target.sni(), &[1, 0], WHOLE, usize::MAX));
    renegotiation(report, &old);
    let (version, whole) = if versions.tls13 { (0x0304, &newest) } else { (0x0303, &old) };
    scan.cuts(report, version, whole);
    scan.names(report, version);
    Ok(versions)
}

struct Scan<'a> {
    target: &'a ProbeTarget,
    /// Hellos sent; each has its own random.
    count: Cell<u8>,
}

impl Scan<'_> {
    fn ask(
        &self,
        version: u16,
        name: Option<&str>,
        compression: &[u8],
        piece: usize,
        segment: usize,
    ) -> ServerReply {
        self.count.set(self.count.get().wrapping_add(1));
        let random = eyelet_sys::process::random().unwrap_or([self.count.get(); 32]);
        let hello = ClientHello { version, name, compression, groups: GROUPS, random };
        flight::ask(self.target, &hello, piece, segment)
    }

    fn versions(&self, report: &mut ProbeReport, newest: &ServerReply, old: &ServerReply) {
        let is_nameless = self.target.sni().is_none()
            && ![newest, old].iter().any(|answer| matches!(answer, ServerReply::Hello(..)));
        let named = [("tls-1.3", 0x0304, Some(newest)), ("tls-1.2", 0x0303, Some(old))];
        for (name, version, answer) in named.into_iter().chain([OLD_11, OLD_10]) {
            let asked;
            let answer = match answer {
                Some(answer) => answer,
                None => {
                    asked = self.ask(version, self.target.sni(), &[0], WHOLE, usize::MAX);
                    &asked
                }
            };
            if is_nameless && may_want_name(answer) {
                report.advise(name, Grade::Unknown, answer.text(), ADVICE_WANTS_NAME);
                continue;
            }
            let Some(spoken) = spoken(answer, version) else {
                match is_about_the_name(answer) {
                    true => report.advise(name, Grade::Unknown, answer.text(), ADVICE_ASK_NAME),
                    false => report.unknown(name, answer.text()),
                }
                continue;
            };
            let suite = match answer {
                ServerReply::Hello(hello, _) if spoken => suite(hello.cipher_suite),
                other => format!("no: {}", other.text()),
            };
            match (version, spoken) {
                (0x0304, false) => report.advise(name, Grade::Bad, suite, ADVICE_13),
                (0x0303, true) if !is_ephemeral(answer) => {
                    report.advise(name, Grade::Bad, suite, ADVICE_SUITE);
                }
                (0x0303, false) => report.advise(name, Grade::Note, suite, ADVICE_12),
                (..0x0303, true) => report.advise(name, Grade::Bad, suite, ADVICE_OLD),
                _ => report.add(name, Grade::Good, suite),
            }
        }
    }

    fn cuts(&self, report: &mut ProbeReport, version: u16, whole: &ServerReply) {
        let ask = |piece, segment| self.ask(version, self.target.sni(), &[0], piece, segment);
        for (name, answer) in
            [("cut-records", ask(PIECE, usize::MAX)), ("cut-segments", ask(WHOLE, PIECE))]
        {
            match answer {
                ServerReply::Hello(..) => report.add(name, Grade::Good, "a cut hello is read"),
                _ if !matches!(whole, ServerReply::Hello(..)) => {
                    report.unknown(name, format!("to a whole hello, too: {}", whole.text()));
                }
                other => report.advise(name, Grade::Bad, other.text(), ADVICE_CUT),
            }
        }
    }

    fn names(&self, report: &mut ProbeReport, version: u16) {
        for (name, sni) in [("foreign-name", Some("foreign.invalid")), ("no-name", None)] {
            let answer = self.ask(version, sni, &[0], WHOLE, usize::MAX);
            match answer {
                ServerReply::Hello(..) => {
                    report.add(name, Grade::Note, "it goes on, with its default certificate");
                }
                ServerReply::Alert(_) => report.add(name, Grade::Good, answer.text()),
                other => report.advise(name, Grade::Note, other.text(), ADVICE_NAME),
            }
        }
    }
}

fn groups(report: &mut ProbeReport, newest: &ServerReply) {
    // The hello had no key share, so a TLS 1.3 server names its choice (RFC 8446 4.1.4).
    let ServerReply::Hello(hello, extensions) = newest else { return };
    let share = extensions.iter().find(|(number, _)| *number == KEY_SHARE);
    let group = match share.map(|(_, value)| &**value) {
        Some([a, b]) if hello.is_hello_retry_request() => u16::from_be_bytes([*a, *b]),
        _ => return,
    };
    let name = match group {
        0x11ec => "X25519MLKEM768",
        0x001d => "X25519",
        0x0017 => "P-256",
        0x0018 => "P-384",
        0x0019 => "P-521",
        _ => "another group",
    };
    let seen = format!("of five groups it chooses {name}, by a HelloRetryRequest");
    match group {
        0x11ec => report.add("groups", Grade::Good, seen),
        _ => report.advise("groups", Grade::Note, seen, ADVICE_GROUP),
    }
}

fn compression(report: &mut ProbeReport, answer: &ServerReply) {
    match answer {
        ServerReply::Hello(hello, _) if hello.compression_method != 0 => {
            report.advise("tls-compression", Grade::Bad, "chosen when offered", ADVICE_CRIME);
        }
        ServerReply::Hello(..) => {
            report.add("tls-compression", Grade::Good, "offered by TLS 1.2, not chosen");
        }
        other => report.unknown("tls-compression", other.text()),
    }
}

fn renegotiation(report: &mut ProbeReport, answer: &ServerReply) {
    let ServerReply::Hello(_, extensions) = answer else { return };
    match extensions.iter().any(|(number, _)| *number == RENEGOTIATION_INFO) {
        true => report.add("renegotiation", Grade::Good, "secure (RFC 5746)"),
        false => report.advise("renegotiation", Grade::Bad, "no RFC 5746", ADVICE_RENEGOTIATION),
    }
}

fn chose(answer: &ServerReply, version: u16) -> bool {
    matches!(answer, ServerReply::Hello(hello, _) if hello.version == version)
}

/// Says if an answer to a hello of this version says that it is spoken; `None` if it does not say.
fn spoken(answer: &ServerReply, version: u16) -> Option<bool> {
    match answer {
        ServerReply::Hello(..) => Some(chose(answer, version)),
        // A server of before 2008 may close on a version that it does not know.
        ServerReply::Closed => Some(false),
        ServerReply::Alert(code) => match AlertDescription::from_code(*code)? {
            AlertDescription::ProtocolVersion
            | AlertDescription::HandshakeFailure
            | AlertDescription::InsufficientSecurity => Some(false),
            _ => None,
        },
        _ => None,
    }
}

fn is_about_the_name(answer: &ServerReply) -> bool {
    let unrecognized = AlertDescription::UnrecognizedName.code();
    matches!(answer, ServerReply::Alert(code) if *code == unrecognized)
}

/// True if a server may answer so to a hello without a name because it wants one.
fn may_want_name(answer: &ServerReply) -> bool {
    let codes = [AlertDescription::MissingExtension, AlertDescription::HandshakeFailure]
        .map(AlertDescription::code);
    matches!(answer, ServerReply::Alert(code) if codes.contains(code))
}

/// All suites of [`crate::hello`] are ephemeral but those that exchange keys by RSA.
fn is_ephemeral(answer: &ServerReply) -> bool {
    let static_rsa = [0x009c, 0x009d, 0x002f, 0x0035, 0x000a];
    !matches!(answer, ServerReply::Hello(hello, _) if static_rsa.contains(&hello.cipher_suite))
}

fn suite(code: u16) -> String {
    let name = format!("{:?}", rustls::CipherSuite::from(code));
    format!("yes, {}", name.replace("TLS13_", "TLS_"))
}

type Asked<'a> = (&'static str, u16, Option<&'a ServerReply>);
const OLD_11: Asked<'static> = ("tls-1.1", 0x0302, None);
const OLD_10: Asked<'static> = ("tls-1.0", 0x0301, None);

const ADVICE_ASK_NAME: &str = "probe with --name, and a name that the server has";
const ADVICE_WANTS_NAME: &str = "the server may want a name: try --name, and a name that it has";
const ADVICE_13: &str = "enable TLS 1.3: one round trip less, and encrypted certificates";
const ADVICE_12: &str = "right if you know all clients; others may have TLS 1.2 only";
const ADVICE_OLD: &str = "disable it (RFC 8996); nginx: ssl_protocols TLSv1.2 TLSv1.3";
const ADVICE_SUITE: &str =
    "prefer ECDHE suites: with this one, a stolen key decrypts old recordings";
const ADVICE_CUT: &str = "clients and middleboxes may cut a hello anywhere (RFC 8446 5.1)";
const ADVICE_NAME: &str = "an alert would say why: unrecognized_name (RFC 6066 section 3)";
const ADVICE_GROUP: &str =
    "prefer X25519MLKEM768 against recording now and decrypting later; OpenSSL 3.5 has it";
const ADVICE_CRIME: &str =
    "switch it off (CRIME), and save its memory; OpenSSL: SSL_OP_NO_COMPRESSION";
const ADVICE_RENEGOTIATION: &str = "update the TLS library: renegotiation can be hijacked";

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn only_some_answers_say_that_a_version_is_not_spoken() {
        for (answer, says) in [
            (ServerReply::Alert(70), Some(false)),
            (ServerReply::Alert(40), Some(false)),
            (ServerReply::Alert(71), Some(false)),
            (ServerReply::Closed, Some(false)),
            (ServerReply::Alert(112), None),
            (ServerReply::Alert(80), None),
            (ServerReply::Alert(255), None),
            (ServerReply::Silent, None),
            (ServerReply::Failed(ErrorKind::ConnectionRefused), None),
            (ServerReply::NotTls(Vec::new()), None),
            (ServerReply::Malformed(String::new()), None),
        ] {
            assert_eq!(spoken(&answer, 0x0304), says, "{answer:?}");
        }
        assert!(is_about_the_name(&ServerReply::Alert(112)));
        for (code, wants) in [(40, true), (109, true), (112, false), (70, false), (80, false)] {
            assert_eq!(may_want_name(&ServerReply::Alert(code)), wants, "{code}");
        }
    }
}
