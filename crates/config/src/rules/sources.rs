//! Reads `source_addresses`: the addresses of this host that a rule's upstreams are dialled from.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::{Host, HostPort, values};
use eyelet_document::reader::Section;

/// Most addresses of a rule: 7 million connections to one upstream, with the ports that Linux has
/// by default.
pub(crate) const SOURCES_MAX: usize = 256;

/// The upstreams of a rule, for the addresses that they are dialled from.
pub(crate) enum Dialled<'a> {
    /// Configured hosts and ports.
    Hosts(Vec<&'a HostPort>),
    /// Unix sockets.
    Unix,
    /// The destinations that clients ask for.
    Chosen,
}

/// The addresses, each once. Networks are written out.
pub(crate) fn read(section: &Section<'_>, dialled: &Dialled<'_>) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for text in section.texts("source_addresses").unwrap_or_default() {
        let Some(net) = text.parse(source_net) else { continue };
        for ip in net.hosts() {
            if addresses.contains(&ip) {
                text.at.error(format!("{ip} is in the list twice; that gives it no more ports"));
                break;
            }
            addresses.push(ip);
        }
    }
    let Some(at) = section.key_at("source_addresses") else { return addresses };
    if addresses.len() > SOURCES_MAX {
        at.error(format!("{} addresses; at most {SOURCES_MAX}", addresses.len()));
    }
    for (key, why) in [
        ("source", "`source = \"client\"` dials from the client's address"),
        ("upstream_allow", "with `upstream_allow` the kernel chooses the address"),
    ] {
        if section.value(key).is_some() {
            at.error(format!("{why}; leave out one of the two"));
        }
    }
    match dialled {
        Dialled::Unix => at.error(
            "a Unix socket is dialled without a source address; leave \
             `source_addresses` out",
        ),
        Dialled::Chosen => {
            let message = "an upstream that clients choose is dialled from the kernel's choice of \
                address; leave `source_addresses` out, or write the upstream's host and \
                port";
            at.error(message);
        }
        Dialled::Hosts(hosts) if !addresses.is_empty() => {
            let is_reached =
                |ip: &IpAddr| addresses.iter().any(|own| own.is_ipv4() == ip.is_ipv4());
            let lacking = hosts.iter().find_map(|to| match &to.host {
                Host::Ip(ip) if !is_reached(ip) => Some(ip),
                _ => None,
            });
            if let Some(ip) = lacking {
                at.error(format!(
                    "no source address has the family (IPv4 or IPv6) of the upstream \
                     {ip}"
                ));
            }
        }
        Dialled::Hosts(_) => {}
    }
    addresses
}

fn source_net(text: &str) -> Result<IpNet, String> {
    let net = values::net(text)?;
    let ip = net.addr();
    if ip.is_unspecified() || ip.is_multicast() {
        return Err(format!(
            "\"{text}\" is not an address to dial from; expected an address of this \
             host, such as \"10.0.0.8\", or a network of them"
        ));
    }
    let hosts = net.max_prefix_len() - net.prefix_len();
    match hosts > SOURCES_MAX.ilog2() as u8 {
        true => Err(format!("\"{text}\" has more than {SOURCES_MAX} addresses")),
        false => Ok(net),
    }
}
