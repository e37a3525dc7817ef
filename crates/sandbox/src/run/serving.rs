//! Writes the configuration of the edge that serves a sandbox.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::SystemTime;

use eyelet_config::{Config, Depth, Diagnostic};
use ipnet::IpNet;
use serde_json::Value;

use crate::list::{AllowList, AllowedEntry};
use crate::placeholder::Placeholders;

/// The name of the configuration in messages about its mistakes.
const ORIGIN: &str = "the sandbox, as a configuration";
/// The rule of a connection that no list has, where all pass.
pub(super) const UNLISTED: &str = "not on the list";
/// The port of HTTP without TLS.
pub(super) const HTTP: u16 = 80;
/// The port of HTTPS.
pub(super) const HTTPS: u16 = 443;
/// A network in which nobody can be dialled: a rule with an empty one guards nothing.
const NOBODY: &str = "255.255.255.255/32";
/// The name that leads to this host, if an entry says it.
const LOCALHOST: &str = "localhost";

/// The places that the edge serves to the command.
pub struct RunServing<'a> {
    /// The list of places that may be reached.
    pub list: &'a AllowList,
    /// True if all else may be, too.
    pub lets_all_pass: bool,
    /// Networks of private addresses to which names may lead.
    pub private: &'a [IpNet],
    /// The path of the access log.
    pub log: &'a Path,
}

impl RunServing<'_> {
    /// The ports at which the sandbox has sockets.
    pub fn ports(&self) -> BTreeSet<u16> {
        let mut ports = self.list.ports();
        // What may reach nothing is refused with a reason at the usual ports.
        if self.lets_all_pass || ports.is_empty() {
            ports.extend([HTTPS, HTTP]);
        }
        ports
    }

    /// The checked configuration, for sockets at these addresses. Names of services that say none
    /// themselves get their placeholders.
    ///
    /// # Errors
    /// The mistakes that the configuration has: what its caller was given is not what it checked.
    pub fn config(
        &self,
        addresses: &[SocketAddr],
        placeholders: &mut Placeholders,
    ) -> Result<Config, String> {
        let text = self.text(addresses, placeholders);
        let loaded =
            eyelet_config::parse(Path::new(ORIGIN), &text, Depth::Files, SystemTime::now());
        let mistakes = |found: Vec<Diagnostic>| {
            found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        let mut config = loaded.map_err(mistakes)?.config;
        for listener in &mut config.listeners {
            listener.is_apart = true;
        }
        Ok(config)
    }

    /// Writing to a String cannot fail.
    fn text(&self, addresses: &[SocketAddr], placeholders: &mut Placeholders) -> String {
        // It terminates nothing, so it needs no keys for tickets.
        let mut text = String::from("workers = 1\n\n[tickets]\nenabled = false\n\n");
        for address in addresses {
            let _ = writeln!(text, "[[listener]]\naddress = \"{address}\"");
            let _ = writeln!(text, "kind = \"tproxy\"\nplain_http = true\n");
        }
        for allowed in self.list.entries() {
            if let AllowedEntry::Tcp { host, port } = allowed {
                self.write_tcp(&mut text, (allowed, host, *port), placeholders);
            }
        }
        for port in self.ports() {
            let names: Vec<String> = self.list.names_at(port).flat_map(patterns).collect();
            let at: Vec<String> = (addresses.iter().filter(|address| address.port() == port))
                .map(|address| format!("\"{address}\""))
                .collect();
            let at = at.join(", ");
            if !names.is_empty() {
                let _ = writeln!(text, "[[rule]]\nname = \"allowed at {port}\"");
                let _ = writeln!(text, "sni = [{}]", names.join(", "));
                self.write_splice(&mut text, (port, &at));
            }
            if self.lets_all_pass {
                let _ = writeln!(text, "[[rule]]\nname = \"{UNLISTED} at {port}\"");
                self.write_splice(&mut text, (port, &at));
            }
        }
        if self.list.is_empty() && !self.lets_all_pass {
            text.push_str("[[rule]]\naction = \"refuse\"\n\n");
        }
        // A TOML basic string: JSON's escapes are a subset of TOML's.
        let log = Value::from(self.log.to_string_lossy());
        let _ = write!(text, "[log]\naccess = {log}\n");
        text
    }

    /// The rule of an entry for another protocol. The one who writes an address or `localhost`
    /// means it. The one who writes a name does not know where it will lead.
    fn write_tcp(
        &self,
        text: &mut String,
        (allowed, host, port): (&AllowedEntry, &str, u16),
        placeholders: &mut Placeholders,
    ) {
        let is_meant = host == LOCALHOST || host.parse::<IpAddr>().is_ok();
        let at: Vec<String> = inside(host, placeholders)
            .into_iter()
            .map(|ip| format!("\"{}\"", SocketAddr::new(ip, port)))
            .collect();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let _ = writeln!(text, "[[rule]]\nname = \"{allowed}\"");
        let _ = writeln!(text, "destination = [{}]\naction = \"splice\"", at.join(", "));
        let _ = writeln!(text, "upstream = \"{host}:{port}\"");
        if !is_meant {
            let _ = writeln!(text, "upstream_allow = [{}]", self.private());
        }
        text.push('\n');
    }

    fn write_splice(&self, text: &mut String, (port, listeners): (u16, &str)) {
        let _ = writeln!(text, "listener = [{listeners}]\naction = \"splice\"");
        let _ = writeln!(text, "upstream = \"{{sni}}:{port}\"\nplain_http = true");
        let _ = writeln!(text, "upstream_allow = [{}]\n", self.private());
    }

    fn private(&self) -> String {
        let nets: Vec<String> = self.private.iter().map(|net| format!("\"{net}\"")).collect();
        if nets.is_empty() { format!("\"{NOBODY}\"") } else { nets.join(", ") }
    }
}

/// The addresses that stand for a host inside: its own, or its placeholders.
fn inside(host: &str, placeholders: &mut Placeholders) -> Vec<IpAddr> {
    let local = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    if let Ok(ip) = host.parse() {
        return vec![ip];
    }
    let placed = placeholders.of(host).map(|(v4, v6)| [IpAddr::V4(v4), IpAddr::V6(v6)]);
    let local = if host == LOCALHOST { &local[..] } else { &[] };
    placed.into_iter().flatten().chain(local.iter().copied()).collect()
}

/// The names of an entry as a rule writes them.
fn patterns(name: &str) -> Vec<String> {
    match name.strip_prefix('.') {
        Some(parent) => vec![format!("\"{parent}\""), format!("\"*.{parent}\"")],
        None => vec![format!("\"{name}\"")],
    }
}
