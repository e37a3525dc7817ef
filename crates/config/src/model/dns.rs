//! The resolvers: in clear, by DNS over TLS and by DNS over HTTPS.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use eyelet_wire::hello::HostName;

/// The resolvers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Empty: the system's.
    pub servers: Vec<NameServer>,
    /// A PEM file of CA certificates for those over TLS. `None`: the system's.
    pub ca: Option<PathBuf>,
}

/// A resolver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameServer {
    /// The address at which it is asked.
    pub address: SocketAddr,
    /// The way in which it is asked.
    pub transport: DnsTransport,
}

/// The way in which a resolver is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsTransport {
    /// UDP, and TCP for long answers.
    Clear,
    /// DNS over TLS (RFC 7858), by a server with a certificate for this name or address.
    Tls(String),
    /// DNS over HTTPS (RFC 8484).
    Https {
        /// The name or address of its certificate.
        name: String,
        /// The path of its URL.
        path: String,
    },
}

impl Dns {
    /// True if a resolver is asked over TLS.
    pub fn is_any_secure(&self) -> bool {
        self.servers.iter().any(|server| server.transport != DnsTransport::Clear)
    }

    /// True if a resolver is asked in clear.
    pub fn is_any_clear(&self) -> bool {
        self.servers.iter().any(|server| server.transport == DnsTransport::Clear)
    }

    /// The system's files that say how names are looked up.
    pub const fn system_files(&self) -> &'static [&'static str] {
        const FILES: [&str; 2] = ["/etc/hosts", "/etc/resolv.conf"];
        if self.servers.is_empty() { &FILES } else { FILES.split_at(1).0 }
    }
}

/// Writes it as in the configuration.
impl fmt::Display for NameServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.transport {
            DnsTransport::Clear => write!(f, "{}", self.address),
            DnsTransport::Tls(name) => write!(f, "tls://{}#{name}", self.address),
            DnsTransport::Https { name, path } => {
                write!(f, "https://{}{path}#{name}", self.address)
            }
        }
    }
}

/// Parses a resolver.
pub(crate) fn name_server(text: &str) -> Result<NameServer, String> {
    let Some((scheme, rest)) = text.split_once("://") else {
        let address = address(text, CLEAR_PORT).ok_or_else(|| not_a_server(text))?;
        return Ok(NameServer { address, transport: DnsTransport::Clear });
    };
    let port = match scheme {
        "tls" => TLS_PORT,
        "https" => HTTPS_PORT,
        _ => return Err(not_a_server(text)),
    };
    let (rest, name) = match rest.split_once('#') {
        Some((rest, name)) => (rest, Some(name)),
        None => (rest, None),
    };
    let (host, path) = match rest.find('/') {
        Some(at) if scheme == "https" => rest.split_at(at),
        _ => (rest, ""),
    };
    let address = address(host, port).ok_or_else(|| match host_name(host) {
        Some(host) => no_address(scheme, host, path),
        None => not_a_server(text),
    })?;
    let name = match name {
        None => address.ip().to_string(),
        Some(name) => verified(text, name)?,
    };
    let transport = match scheme {
        "tls" => DnsTransport::Tls(name),
        _ => DnsTransport::Https { name, path: url_path(text, path)? },
    };
    Ok(NameServer { address, transport })
}

/// An address with or without a port. One of IPv6 in a URL has brackets.
fn address(text: &str, default_port: u16) -> Option<SocketAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let bare = bare.parse::<IpAddr>().map(|address| SocketAddr::new(address, default_port));
    let server = bare.ok().or_else(|| text.parse().ok());
    server.filter(|server| server.port() != 0 && !server.ip().is_unspecified())
}

/// The name in a host with or without a port.
fn host_name(text: &str) -> Option<&str> {
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    HostName::new(host.as_bytes()).ok().map(|_| host)
}

/// The name or address that a certificate must be for.
fn verified(text: &str, name: &str) -> Result<String, String> {
    if let Ok(ip) = name.parse::<IpAddr>() {
        return Ok(ip.to_string());
    }
    match HostName::new(name.as_bytes()) {
        Ok(name) => Ok(name.as_str().to_owned()),
        Err(fault) => Err(format!(
            "\"{text}\": after the # stands the name in the resolver's certificate: {fault}"
        )),
    }
}

fn url_path(text: &str, path: &str) -> Result<String, String> {
    match path {
        "" => Ok(HTTPS_PATH.to_owned()),
        _ if path.len() > PATH_BYTES_MAX
            || path.contains('?')
            || !path.bytes().all(|byte| byte.is_ascii_graphic()) =>
        {
            Err(format!(
                "\"{text}\": expected a path without a query, of at most {PATH_BYTES_MAX} visible \
                 characters, as in \"{HTTPS_PATH}\""
            ))
        }
        _ => Ok(path.to_owned()),
    }
}

fn no_address(scheme: &str, host: &str, path: &str) -> String {
    format!(
        "nobody could look up \"{host}\", because this resolver would be asked; write the \
         resolver's address, and the name in its certificate after a #: \
         \"{scheme}://192.0.2.1{path}#{host}\""
    )
}

fn not_a_server(text: &str) -> String {
    format!(
        "\"{text}\" is not a DNS server; expected an address as in \"9.9.9.9\", \
         \"127.0.0.1:5353\" or \"tls://192.0.2.1#dns.example\""
    )
}

const CLEAR_PORT: u16 = 53;
/// RFC 7858 section 3.1.
const TLS_PORT: u16 = 853;
const HTTPS_PORT: u16 = 443;
/// The path that public resolvers have.
const HTTPS_PATH: &str = "/dns-query";
/// Most bytes of a path.
const PATH_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_are_written_as_they_are_read() {
        for (text, shown) in [
            ("9.9.9.9", "9.9.9.9:53"),
            ("::1", "[::1]:53"),
            ("[::1]:5353", "[::1]:5353"),
            ("tls://192.0.2.1#DNS.example", "tls://192.0.2.1:853#dns.example"),
            ("tls://[2001:db8::1]#dns.example", "tls://[2001:db8::1]:853#dns.example"),
            ("tls://192.0.2.1:8853", "tls://192.0.2.1:8853#192.0.2.1"),
            ("https://192.0.2.1#dns.example", "https://192.0.2.1:443/dns-query#dns.example"),
            ("https://192.0.2.1:8443/q/a#dns.example", "https://192.0.2.1:8443/q/a#dns.example"),
            ("https://[2001:db8::1]/q", "https://[2001:db8::1]:443/q#2001:db8::1"),
        ] {
            let read = name_server(text).map(|server| server.to_string());
            assert_eq!(read.as_deref(), Ok(shown), "{text}");
            assert_eq!(name_server(shown).map(|server| server.to_string()), read, "{shown}");
        }
    }

    #[test]
    fn a_resolver_without_an_address_is_told_how_to_have_one() {
        for (text, advised) in [
            ("tls://dns.example", "\"tls://192.0.2.1#dns.example\""),
            ("tls://dns.example:853#other.example", "\"tls://192.0.2.1#dns.example\""),
            ("https://dns.example/dns-query", "\"https://192.0.2.1/dns-query#dns.example\""),
        ] {
            let why = name_server(text).err().unwrap_or_default();
            assert!(why.contains("nobody could look up") && why.contains(advised), "{text}: {why}");
        }
    }

    #[test]
    fn bad_resolvers_are_refused() {
        for text in [
            "",
            "dns.example",
            "0.0.0.0",
            "1.2.3.4:0",
            "quic://1.2.3.4",
            "tls://",
            "tls://1.2.3.4:0",
            "tls://1.2.3.4#",
            "tls://1.2.3.4#a b",
            "tls://1.2.3.4/path#dns.example",
            "https://1.2.3.4/a?b#dns.example",
            "https://1.2.3.4/a b",
            "https://[::1/x",
            "[::1]x",
        ] {
            assert!(name_server(text).is_err(), "{text}");
        }
        let long = format!("https://1.2.3.4/{}", "a".repeat(PATH_BYTES_MAX));
        assert!(name_server(&long).is_err());
    }
}
