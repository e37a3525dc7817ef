//! Finds the name that a server wants. If it refuses the given one, tries the names in its
//! certificate, and those of this machine for its address.

use std::net::IpAddr;
use std::path::Path;

use eyelet_wire::alert::AlertDescription;
use rustls::version::{TLS12, TLS13};

use crate::certificate;
use crate::flight::{self, ServerReply, WHOLE};
use crate::hello::{ClientHello, GROUPS};
use crate::report::{Grade, ProbeReport};
use crate::session;
use crate::target::ProbeTarget;

/// Names that are tried: each is a connection or two.
const NAMES_MAX: usize = 8;
/// The names of addresses on this machine (hosts(5)).
const HOSTS: &str = "/etc/hosts";
/// Bytes of that file that are read. Lists against advertisements have megabytes.
const HOSTS_BYTES_MAX: u64 = 1 << 20;
/// The versions that servers have today.
const VERSIONS: [u16; 2] = [0x0304, 0x0303];
const ADVICE: &str = "say which with --name";

/// Returns the target with a name that the server takes. `host` is the one of `HOST:PORT`. `None`:
/// the server wants another name, and nothing says which.
pub fn choose(target: ProbeTarget, host: &str, report: &mut ProbeReport) -> Option<ProbeTarget> {
    let given = ask(&target);
    if !may_be_about_the_name(&given, target.sni()) {
        return Some(target);
    }
    let shown = certificate_names(&target);
    let known = known_names(target.address.ip());
    let of_host = (host != target.name && host.parse::<IpAddr>().is_err()).then(|| host.to_owned());
    let sources = of_host.into_iter().chain(shown).chain(known);
    let mut tried: Vec<String> = Vec::new();
    for name in sources {
        if tried.len() == NAMES_MAX || name == target.name || tried.contains(&name) {
            continue;
        }
        let other = ProbeTarget { name: name.clone(), ..target.clone() };
        if matches!(ask(&other), ServerReply::Hello(..)) {
            let seen = format!("{}; the findings below are for {name}", about(&given, &target));
            report.advise("name", Grade::Note, seen, ADVICE);
            return Some(other);
        }
        tried.push(name);
    }
    if !is_about_the_name(&given) {
        return Some(target);
    }
    let more = match tried.is_empty() {
        true => String::new(),
        false => format!("; also for {}", tried.join(", ")),
    };
    report.advise("name", Grade::Unknown, format!("{}{more}", about(&given, &target)), ADVICE);
    None
}

fn about(reply: &ServerReply, target: &ProbeTarget) -> String {
    match target.sni() {
        Some(name) => format!("{} for {name}", reply.text()),
        None => format!("{} without a name", reply.text()),
    }
}

/// The answer by the newest version that gets one.
fn ask(target: &ProbeTarget) -> ServerReply {
    let mut replies = VERSIONS.iter().map(|version| {
        let random = eyelet_sys::process::random().unwrap_or_default();
        let (name, compression) = (target.sni(), &[0][..]);
        let hello = ClientHello { version: *version, name, compression, groups: GROUPS, random };
        flight::ask(target, &hello, WHOLE, usize::MAX)
    });
    let newest = replies.next().unwrap_or(ServerReply::Silent);
    telling(newest, || replies.next())
}

/// One of the answers to two versions. One that a server without the newer version gives to any
/// name tells nothing.
fn telling(newest: ServerReply, older: impl FnOnce() -> Option<ServerReply>) -> ServerReply {
    let version = AlertDescription::ProtocolVersion.code();
    match newest {
        ServerReply::Hello(..) => newest,
        other => match (older(), &other) {
            (Some(older @ ServerReply::Hello(..)), _) => older,
            (Some(older), ServerReply::Alert(code)) if *code == version => older,
            _ => other,
        },
    }
}

fn is_about_the_name(reply: &ServerReply) -> bool {
    let codes = [AlertDescription::MissingExtension, AlertDescription::UnrecognizedName];
    matches!(reply, ServerReply::Alert(code) if codes.iter().any(|known| known.code() == *code))
}

fn may_be_about_the_name(reply: &ServerReply, name: Option<&str>) -> bool {
    let failure = AlertDescription::HandshakeFailure.code();
    let is_failure = matches!(reply, ServerReply::Alert(code) if *code == failure);
    is_about_the_name(reply) || name.is_none() && is_failure
}

/// The names of the certificate that a client without a name sees, or one with a foreign name.
fn certificate_names(target: &ProbeTarget) -> Vec<String> {
    let ip = target.address.ip().to_canonical().to_string();
    let clients = [ip, "foreign.invalid".to_owned()];
    for name in clients.into_iter().filter(|name| *name != target.name) {
        let other = ProbeTarget { name, ..target.clone() };
        for version in [&TLS13, &TLS12] {
            let config = session::config(version, false, &["h2", "http/1.1"]);
            let Ok(tls) = config.and_then(|config| session::open(&other, &config)) else {
                continue;
            };
            let leaf = tls.conn.peer_certificates().and_then(|chain| chain.first());
            return leaf.map(certificate::dns_names).unwrap_or_default();
        }
    }
    Vec::new()
}

/// The names of this machine for an address.
fn known_names(ip: IpAddr) -> Vec<String> {
    let text = eyelet_sys::file::read_regular(Path::new(HOSTS), HOSTS_BYTES_MAX);
    names_in(&String::from_utf8_lossy(&text.unwrap_or_default()), ip)
}

fn names_in(hosts: &str, ip: IpAddr) -> Vec<String> {
    let ip = ip.to_canonical();
    let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
    let of_ip = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()?.parse() == Ok(ip)).then_some(words)
    });
    of_ip.flatten().map(ToOwned::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hosts_file() {
        let hosts = "127.0.0.1 localhost a.test # b.test\n#127.0.0.1 c.test\n::1\tlocalhost\n\
                     x 1\n127.0.0.1\td.test\n";
        assert_eq!(names_in(hosts, [127, 0, 0, 1].into()), ["localhost", "a.test", "d.test"]);
        let mapped: IpAddr = "::ffff:127.0.0.1".parse().unwrap();
        assert_eq!(names_in(hosts, mapped).len(), 3);
        assert!(names_in(hosts, [127, 0, 0, 2].into()).is_empty());
    }

    #[test]
    fn a_server_without_the_newer_version_is_judged_by_the_older() {
        for (newest, older, expected) in
            [(70, Some(112), 112), (70, Some(40), 40), (112, Some(70), 112), (70, None, 70)]
        {
            let found = telling(ServerReply::Alert(newest), || older.map(ServerReply::Alert));
            assert!(matches!(found, ServerReply::Alert(code) if code == expected), "{newest}");
        }
    }

    #[test]
    fn only_some_alerts_are_about_the_name() {
        for (code, name, expected) in [
            (112, Some("a.test"), true),
            (109, None, true),
            (40, None, true),
            (40, Some("a.test"), false),
            (70, None, false),
        ] {
            let found = may_be_about_the_name(&ServerReply::Alert(code), name);
            assert_eq!(found, expected, "{code} {name:?}");
        }
        assert!(!may_be_about_the_name(&ServerReply::Closed, None));
    }
}
