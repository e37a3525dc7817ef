//! Says what this host lacks for the addresses that upstreams are dialled from: the addresses
//! themselves, and local ports for the connections that the configuration allows.

use std::collections::BTreeSet;
use std::net::IpAddr;

use eyelet_config::{
    Action, Balance, Config, Host, HostPort, HttpAddress, HttpUpstream, Originate, Splice,
    SpliceUpstream, Terminate, TerminateUpstream, TlsUpstream, UpstreamHttp2,
};
use eyelet_sys::interfaces::{self, local_ports};

/// A warning for the addresses of a rule that are not of this host, and one for each upstream that
/// has fewer local ports than connections are allowed.
pub fn warnings(config: &Config) -> Vec<String> {
    warnings_for(config, local_ports(), interfaces::is_local)
}

fn warnings_for(
    config: &Config,
    ports: Option<usize>,
    is_local: impl Fn(IpAddr) -> bool,
) -> Vec<String> {
    let (mut foreign, mut short) = (BTreeSet::new(), BTreeSet::new());
    for rule in config.rules.iter() {
        let Some((balance, upstreams, holders)) = dialled(rule.action) else { continue };
        foreign.extend(foreign_of(&balance.sources, &is_local));
        // Only what the file says: few hosts reach the default.
        let (Some(ports), Some(max)) = (ports, config.limits.connections_max) else { continue };
        let enough: usize = upstreams.iter().map(|to| ports * sources(balance, to)).sum();
        if let Some(first) = upstreams.first()
            && enough < max
        {
            let others = match upstreams.len() - 1 {
                0 => String::new(),
                others => format!(" and {others} more"),
            };
            short.insert(format!(
                "`connections_max` is {max}, and this host has {enough} local ports for \
                 connections to {first}{others}{holders}: add addresses to `source_addresses`, or \
                 widen net.ipv4.ip_local_port_range"
            ));
        }
    }
    foreign.into_iter().chain(short).collect()
}

/// Says which of a rule's addresses are not of this host, and what follows. `None`: all are.
fn foreign_of(sources: &[IpAddr], is_local: impl Fn(IpAddr) -> bool) -> Option<String> {
    let foreign: Vec<IpAddr> = sources.iter().copied().filter(|ip| !is_local(*ip)).collect();
    let (first, others) = foreign.split_first()?;
    let which = match others.len() {
        0 => format!("{first} is no address of this host"),
        more => format!("{first} and {more} more are no addresses of this host"),
    };
    let follows = match foreign.len() < sources.len() {
        true => "meanwhile the others serve",
        false => "so no connection to the upstream can be made",
    };
    Some(format!("`source_addresses`: {which}; {follows}"))
}

/// Number of addresses that can dial this upstream.
fn sources(balance: &Balance, to: &HostPort) -> usize {
    match (&to.host, &*balance.sources) {
        (_, []) => 1,
        (Host::Ip(ip), all) => all.iter().filter(|own| own.is_ipv4() == ip.is_ipv4()).count(),
        (Host::Name(_), all) => all.len(),
    }
}

/// The upstreams that each connection, or each of its streams, has a connection of its own to; and
/// who that is, for a sentence.
fn dialled(action: &Action) -> Option<(&Balance, Vec<&HostPort>, &'static str)> {
    match action {
        Action::Splice(Splice { upstream, others, balance, .. }) => {
            let all = [upstream].into_iter().chain(others).filter_map(|upstream| match upstream {
                SpliceUpstream::HostPort(to) => Some(to),
                SpliceUpstream::Destination | SpliceUpstream::Sni { .. } => None,
            });
            Some((balance, all.collect(), ""))
        }
        Action::Originate(Originate { requests: terminate, .. }) | Action::Terminate(terminate) => {
            let Terminate { upstream, others, balance, .. } = terminate;
            let all = [upstream].into_iter().chain(others).filter_map(|upstream| match upstream {
                TerminateUpstream::Tcp(to) => Some(to),
                TerminateUpstream::Tls(TlsUpstream { address, .. }) => Some(address),
                TerminateUpstream::Http(to) => asked_by_http1(to),
                TerminateUpstream::Unix(_) => None,
            });
            let holders = match upstream {
                TerminateUpstream::Http(_) => ", where each WebSocket and each stream holds one",
                _ => "",
            };
            Some((balance, all.collect(), holders))
        }
        Action::Refuse(_) => None,
    }
}

/// The host and port of an upstream that has a connection for each request. By HTTP/2 they share
/// one, and an upstream by TLS may choose that.
fn asked_by_http1(to: &HttpUpstream) -> Option<&HostPort> {
    let is_http1 = match to.http2 {
        UpstreamHttp2::Off => true,
        UpstreamHttp2::Alpn => to.tls.is_none(),
        UpstreamHttp2::On => false,
    };
    match &to.address {
        HttpAddress::Tcp(host_port) if is_http1 => Some(host_port),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::SystemTime;

    use eyelet_config::Depth;

    use super::*;

    fn said(limits: &str, rule: &str) -> Vec<String> {
        said_of(limits, &format!("action = \"splice\"\n{rule}"))
    }

    fn said_of(limits: &str, rule: &str) -> Vec<String> {
        let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\n";
        let text = format!("{listener}[[rule]]\n{rule}\n[limits]\n{limits}\n");
        let path = Path::new("test.toml");
        match eyelet_config::parse(path, &text, Depth::Files, SystemTime::UNIX_EPOCH) {
            Ok(loaded) => warnings_for(&loaded.config, Some(1_000), |ip| ip.is_loopback()),
            Err(mistakes) => unreachable!("{mistakes:?}"),
        }
    }

    #[test]
    fn each_connection_needs_a_port() {
        let max = |max: usize| format!("connections_max = {max}");
        let one = "upstream = \"192.0.2.7:443\"";
        let two = "upstream = [\"192.0.2.7:443\", \"192.0.2.8:443\"]";
        let from_two = "source_addresses = [\"127.0.0.8\", \"127.0.0.9\", \"::1\"]";
        for (limits, rule, enough) in [
            (max(1_000), one.to_owned(), None),
            (max(1_001), one.to_owned(), Some(1_000)),
            (String::new(), one.to_owned(), None),
            (max(2_000), two.to_owned(), None),
            (max(2_001), two.to_owned(), Some(2_000)),
            (max(2_000), format!("{one}\n{from_two}"), None),
            (max(2_001), format!("{one}\n{from_two}"), Some(2_000)),
            (max(9_000), "upstream = \"{sni}:443\"".to_owned(), None),
        ] {
            let said = said(&limits, &rule);
            assert_eq!(said.len(), usize::from(enough.is_some()), "{limits} {rule}: {said:?}");
            if let Some(enough) = enough {
                assert!(said[0].contains(&format!("has {enough} local ports")), "{said:?}");
            }
        }
    }

    #[test]
    fn each_stream_at_an_upstream_by_http1_needs_a_port() {
        let app = "upstream = \"http://192.0.2.7:3000\"";
        let two = "upstream = [\"http://192.0.2.7:3000\", \"http://192.0.2.8:3000\"]";
        let by_tls = "upstream = \"https://192.0.2.7:443\"";
        for (max, upstream, enough) in [
            (1_000, app.to_owned(), None),
            (1_001, app.to_owned(), Some("1000 local ports for connections to 192.0.2.7:3000")),
            (2_001, two.to_owned(), Some("2000 local ports")),
            (1_001, format!("{app}\nsource_addresses = [\"127.0.0.8\", \"127.0.0.9\"]"), None),
            (9_000, format!("{app}\nupstream_http2 = \"on\""), None),
            (9_000, "upstream = \"http+unix:/run/app.sock\"".to_owned(), None),
            (9_000, by_tls.to_owned(), None),
            (9_000, format!("{by_tls}\nupstream_http2 = \"off\""), Some("1000 local ports")),
        ] {
            let keys = "sni = \"a.test\"\ncertificate = \"local\"\naction = \"terminate\"";
            let said = said_of(&format!("connections_max = {max}"), &format!("{keys}\n{upstream}"));
            assert_eq!(said.len(), usize::from(enough.is_some()), "{max} {upstream}: {said:?}");
            if let Some(enough) = enough {
                assert!(said[0].contains(enough), "{said:?}");
                assert!(said[0].contains(", where each WebSocket and each stream holds one: add"));
            }
        }
    }

    #[test]
    fn addresses_of_others_are_said_once_with_what_follows() {
        let others_serve = "meanwhile the others serve";
        let none = "so no connection to the upstream can be made";
        for (list, expected) in [
            ("\"127.0.0.8\", \"127.0.0.9\"", None),
            ("\"127.0.0.8\", \"192.0.2.1\"", Some(("192.0.2.1 is no address", others_serve))),
            ("\"192.0.2.1\"", Some(("192.0.2.1 is no address of this host", none))),
            ("\"198.51.100.0/24\"", Some(("198.51.100.1 and 253 more are no addresses", none))),
            (
                "\"198.51.100.0/24\", \"127.0.0.8\"",
                Some(("198.51.100.1 and 253 more are no", others_serve)),
            ),
        ] {
            let rule = format!("upstream = \"192.0.2.7:443\"\nsource_addresses = [{list}]");
            let said = said("", &rule);
            assert_eq!(said.len(), usize::from(expected.is_some()), "{list}: {said:?}");
            if let Some((which, follows)) = expected {
                assert!(said[0].contains(which) && said[0].ends_with(follows), "{list}: {said:?}");
            }
        }
    }
}
