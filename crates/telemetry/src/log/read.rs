//! Reads a line of the access log back, for people who ask what it means.

use std::net::SocketAddr;

use eyelet_wire::local_peer::LocalPeer;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// Most bytes of a line that is read. The longest that Eyelet writes has about 30 KiB: a path of
/// 2,048 characters, an ALPN list, eight names of a certificate, and escapes.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// The contents of a line about its connection.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct LoggedLine {
    /// The time of its beginning.
    pub time: String,
    pub id: String,
    /// The name or the address of its listener.
    pub listener: String,
    /// The client's address, or who it is at a Unix socket in the form of one.
    #[serde(deserialize_with = "client")]
    pub client: Option<SocketAddr>,
    /// The destination that it wanted.
    pub destination: Option<SocketAddr>,
    /// The outcome.
    pub outcome: String,
    /// The rule that decided.
    pub rule: Option<String>,
    /// The reason of its end; none if it goes on.
    pub reason: Option<String>,
    /// The name in the hello.
    pub sni: Option<String>,
    /// The protocols in the hello.
    pub alpn: Option<Vec<String>>,
    /// The highest version offered.
    pub tls_version: Option<String>,
    /// The fingerprint of the hello.
    pub ja4: Option<String>,
    /// The target of its CONNECT.
    pub connect: Option<String>,
    /// `none`, `offered` or `chosen`.
    pub tls_compression: Option<String>,
    /// Evidence for the name.
    pub evidence: Option<LoggedEvidence>,
    /// The client of a proxy.
    pub identity: Option<LoggedRequester>,
    /// `tcp` or `quic`. Earlier programs do not say it.
    pub transport: Option<String>,
}

/// The client of a proxy, as a line shows it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct LoggedRequester {
    pub proxy_user: Option<String>,
    pub client_cert: Option<String>,
    pub peer_cgroup: Option<String>,
}

/// The evidence that a line shows.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct LoggedEvidence {
    /// True if the destination is an address of the name.
    pub dns_agrees: Option<bool>,
    /// The certificate that the destination showed.
    pub certificate: Option<LoggedCertificate>,
}

/// The certificate that a line shows.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct LoggedCertificate {
    /// Its first names.
    pub names: Vec<String>,
    pub issuer: String,
    /// True if it is valid for the name.
    pub valid: bool,
}

/// The reason why a line cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineFault {
    /// There is another line behind it.
    #[error("expected one line of an access log, found several")]
    Several,
    /// It is longer than any line of an access log.
    #[error("the line has more than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// It is no object, such as a line of the text format.
    #[error(
        "expected a line of an access log in JSON, such as {{\"time\":\"...\",\"listener\":\"...\",\
         \"client\":\"...\",...}}; a line of `format = \"text\"` does not say enough"
    )]
    NotJson,
    /// It is not a JSON object with these fields.
    #[error("expected a line of an access log in JSON: {0}")]
    Syntax(String),
    /// It has no listener or no client: another program's object, or an error line.
    #[error("this is no line of an access log: it has no `listener` or no `client`")]
    Foreign,
}

impl LoggedLine {
    /// Reads one line. Unknown fields are ignored: a newer version may write more.
    ///
    /// # Errors
    /// If it is no line of an access log.
    pub fn read(line: &str) -> Result<Self, LineFault> {
        let line = line.trim();
        // A whole log is too long, too: the number of its lines says more.
        if line.contains('\n') {
            return Err(LineFault::Several);
        }
        if line.len() > LINE_BYTES_MAX {
            return Err(LineFault::TooLong);
        }
        if !line.starts_with('{') {
            return Err(LineFault::NotJson);
        }
        let read: Self =
            serde_json::from_str(line).map_err(|error| LineFault::Syntax(error.to_string()))?;
        if read.listener.is_empty() || read.client.is_none() {
            return Err(LineFault::Foreign);
        }
        Ok(read)
    }
}

fn client<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
    match LocalPeer::read(&text) {
        Some(peer) => Ok(Some(peer.address())),
        None => text.parse().map(Some).map_err(D::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn bad_lines_have_a_typed_fault() {
        for text in ["", "null", "7", "[]", "nonsense", "2026-11-21T09:30:00.123Z spliced"] {
            assert_eq!(LoggedLine::read(text), Err(LineFault::NotJson), "{text}");
        }
        for text in ["{}\n{}", "{\n}", "a\nb\n"] {
            assert_eq!(LoggedLine::read(text), Err(LineFault::Several), "{text}");
        }
        for text in ["{", "{\"listener\":7}", "{\"client\":\"nobody\"}"] {
            let fault = LoggedLine::read(text).unwrap_err();
            assert!(matches!(fault, LineFault::Syntax(_)), "{text}: {fault}");
        }
        for text in ["{}", "{\"listener\":\"a\"}", "{\"listener\":\"\",\"client\":\"[::1]:1\"}"] {
            assert_eq!(LoggedLine::read(text), Err(LineFault::Foreign), "{text}");
        }
        let long = format!("{{\"listener\":\"{}\"}}", "a".repeat(LINE_BYTES_MAX));
        assert_eq!(LoggedLine::read(&long), Err(LineFault::TooLong));
        // As deep as serde_json's own limit, and no deeper: no stack overflow.
        let deep = format!("{{\"x\":{}", "[".repeat(LINE_BYTES_MAX - 8));
        assert!(matches!(LoggedLine::read(&deep), Err(LineFault::Syntax(_))));
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let line = LoggedLine::read(
            "{\"listener\":\"a\",\"client\":\"192.0.2.1:5\",\"sni\":\"x.example\",\"new\":{}}\n",
        );
        assert_eq!(line.unwrap().sni.as_deref(), Some("x.example"));
    }
}
