//! The hellos of the browsers that opened the page, taken apart, and the log lines of their
//! decisions.

use std::collections::VecDeque;
use std::net::SocketAddr;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::identity::APP_NAME;
use eyelet_wire::hello::{Hello, Sni, is_grease};
use eyelet_wire::version;

/// Hellos that are remembered: a browser has a few connections at a time. The oldest goes first.
const HELLOS_MAX: usize = 64;

/// The newest hellos for the page.
#[derive(Debug, Default)]
pub struct Hellos(Mutex<VecDeque<SeenHello>>);

#[derive(Debug)]
struct SeenHello {
    client: SocketAddr,
    parts: Value,
    /// The log line of its decision.
    line: Option<Box<str>>,
}

impl Hellos {
    /// Remembers a hello if it asks for the page. Workers call this, so others cost a comparison.
    pub fn note(&self, client: SocketAddr, hello: &Hello<'_>) {
        if !matches!(hello.sni(), Sni::Name(name) if **name == *APP_NAME) {
            return;
        }
        let seen = SeenHello { client, parts: parts(hello), line: None };
        let mut all = self.0.lock();
        all.truncate(HELLOS_MAX - 1);
        all.push_front(seen);
    }

    /// Remembers the log line of a decision.
    pub(crate) fn note_line(&self, client: SocketAddr, line: &str) {
        if let Some(seen) = self.0.lock().iter_mut().find(|seen| seen.client == client) {
            seen.line = Some(line.into());
        }
    }

    /// The hello of this client, and the log line of its decision if that is written.
    pub(crate) fn of(&self, client: SocketAddr) -> Option<(Value, Option<Box<str>>)> {
        let all = self.0.lock();
        let seen = all.iter().find(|seen| seen.client == client)?;
        Some((seen.parts.clone(), seen.line.clone()))
    }
}

fn parts(hello: &Hello<'_>) -> Value {
    let name = match hello.sni() {
        Sni::Name(name) => name.to_string(),
        Sni::Malformed(_) | Sni::Absent => String::new(),
    };
    let versions = hello.versions().map(|code| match version::number(code) {
        _ if is_grease(code) => GREASE.to_owned(),
        Some(number) => format!("TLS {number}"),
        None => format!("{code:#06x}"),
    });
    let kinds = |codes: &mut dyn Iterator<Item = u16>| codes.filter(|c| !is_grease(*c)).count();
    json!({
        "name": name,
        "alpn": hello.alpn().map(|name| name.to_string()).collect::<Vec<_>>(),
        "versions": versions.collect::<Vec<_>>(),
        "key_shares": hello.key_share_groups().map(group).collect::<Vec<_>>(),
        "groups": hello.groups().map(group).collect::<Vec<_>>(),
        "cipher_suites": kinds(&mut hello.cipher_suites()),
        "extensions": kinds(&mut hello.extensions()),
        "grease": hello.extensions().any(is_grease),
        "ech": hello.has_ech(),
        "resumes": hello.has_psk(),
        "bytes": hello.raw_len(),
    })
}

const GREASE: &str = "GREASE";

/// The name of a group (the registry "TLS Supported Groups"), or its number.
fn group(code: u16) -> String {
    let name = match code {
        _ if is_grease(code) => GREASE,
        0x0017 => "P-256",
        0x0018 => "P-384",
        0x0019 => "P-521",
        0x001d => "X25519",
        0x001e => "X448",
        0x0100 => "ffdhe2048",
        0x0101 => "ffdhe3072",
        0x11eb => "SecP256r1MLKEM768",
        0x11ec => "X25519MLKEM768",
        _ => return format!("{code:#06x}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_names_that_people_know() {
        for (code, name) in
            [(0x1d, "X25519"), (0x11ec, "X25519MLKEM768"), (0x3a3a, "GREASE"), (0x6399, "0x6399")]
        {
            assert_eq!(group(code), name);
        }
    }
}
