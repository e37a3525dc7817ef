//! Parses single values: addresses, networks, durations, sizes, upstreams. Each error says what was
//! expected.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use eyelet_policy::{AddressPattern, ConnectPattern};
use eyelet_wire::alert::AlertDescription;
use eyelet_wire::hello::HostName;
use eyelet_wire::version::{self, Version};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::model::{
    DESTINATION, Host, HostPort, HttpAddress, HttpUpstream, RefusalAlert, SpliceUpstream,
    TerminateUpstream, TlsUpstream, UpstreamFiles, UpstreamHttp2, UpstreamTls,
};
use eyelet_document::reader::nearest;

/// An address to listen on.
pub(crate) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if text.parse::<IpAddr>().is_ok() {
        return Err(format!(
            "\"{text}\" has no port; expected address:port as in \"{}\"",
            if text.contains(':') { format!("[{text}]:443") } else { format!("{text}:443") }
        ));
    }
    Err(format!(
        "\"{text}\" is not an address to listen on; expected IP:port as in \
        \"0.0.0.0:443\" or \"[::]:443\""
    ))
}

/// A network, or one address.
pub(crate) fn net(text: &str) -> Result<IpNet, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(address.into());
    }
    match text.parse::<IpNet>() {
        Ok(net) if net.addr() == net.network() => Ok(net),
        Ok(net) => Err(format!(
            "\"{text}\" has bits set beyond its prefix; did you mean \
            \"{}\" or \"{}\"?",
            net.trunc(),
            net.addr()
        )),
        Err(_) => Err(format!(
            "\"{text}\" is not a network; expected CIDR as in \
            \"10.0.0.0/8\" or \"2001:db8::/32\""
        )),
    }
}

/// An item of `destination`: a network or address, with or without a port, or `*` with a port.
pub(crate) fn address_patterns(text: &str) -> Result<Vec<AddressPattern>, String> {
    let Some(port) = text.strip_prefix("*:") else {
        return address_pattern(text).map(|pattern| vec![pattern]);
    };
    let port = Some(self::port(port)?);
    let all = [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
    Ok(all.map(|net| AddressPattern { net, port }).into())
}

/// An item of `connect`.
pub(crate) fn connect_pattern(text: &str) -> Result<ConnectPattern, String> {
    text.parse().map_err(|fault| format!("\"{text}\": {fault}"))
}

/// A network or address, with or without a port. IPv6 with a port is in brackets.
fn address_pattern(text: &str) -> Result<AddressPattern, String> {
    let expected = || {
        format!(
            "\"{text}\" is not a destination; expected an address or network, \
        perhaps with a port, as in \"10.0.0.0/8\", \"10.0.0.7:443\" or \"[2001:db8::/32]:443\""
        )
    };
    let with_port = match text.strip_prefix('[') {
        Some(rest) => Some(rest.split_once("]:").ok_or_else(expected)?),
        None if text.matches(':').count() == 1 => text.split_once(':'),
        None => None,
    };
    match with_port {
        Some((address, port)) => {
            Ok(AddressPattern { net: net(address)?, port: Some(self::port(port)?) })
        }
        None if text.contains('/') || text.parse::<IpAddr>().is_ok() => {
            Ok(AddressPattern { net: net(text)?, port: None })
        }
        None => Err(expected()),
    }
}

/// A duration with its unit.
pub(crate) fn duration(text: &str, range: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let parsed = humantime::parse_duration(text).map_err(|_| {
        format!(
            "\"{text}\" is not a duration; expected a number with its unit as in \"500ms\", \
            \"5s\" or \"1h\""
        )
    })?;
    if range.contains(&parsed) {
        return Ok(parsed);
    }
    let [low, high] = [range.start(), range.end()].map(|end| humantime::format_duration(*end));
    Err(format!("\"{text}\" is out of bounds; expected {low} to {high}"))
}

/// A number of bytes in the largest unit in which it is whole, as [`size`] reads it.
pub(crate) fn shown_size(bytes: usize) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    let (shift, unit) = whole.unwrap_or((0, "B"));
    format!("{}{unit}", bytes >> shift)
}

/// A number of bytes with its unit.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let expected = |why: &str| {
        format!(
            "\"{text}\" {why}; expected a whole number with its unit, \
        as in \"64KiB\", \"512MiB\" or \"2GiB\""
        )
    };
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text.get(digits.len()..).unwrap_or("").trim_start();
    let number: usize = digits.parse().map_err(|_| expected("is not a size"))?;
    let shift = match unit {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        "" => return Err(expected("has no unit")),
        _ => return Err(expected(&format!("has the unknown unit \"{unit}\""))),
    };
    number.checked_mul(1 << shift).ok_or_else(|| expected("is too large"))
}

/// The upstream of a splice rule.
pub(crate) fn splice_upstream(text: &str) -> Result<SpliceUpstream, String> {
    if text == "destination" {
        return Ok(SpliceUpstream::Destination);
    }
    if let Some(port) = text.strip_prefix("{sni}:") {
        return Ok(SpliceUpstream::Sni { port: self::port(port)? });
    }
    if text.contains('{') {
        return Err(format!("\"{text}\": a name is filled in only as \"{{sni}}:port\""));
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        return Err(format!(
            "a spliced connection has no scheme \"{scheme}://\": its bytes are \
            passed on as they are; expected \"{}\"",
            rest.trim_end_matches('/')
        ));
    }
    if let Some(path) = ["unix:", "http+unix:"].iter().find_map(|form| text.strip_prefix(form)) {
        return Err(format!(
            "a spliced connection goes to a host and a port, not to the Unix socket {path}; for \
             terminate rules there is unix:/path"
        ));
    }
    upstream_host_port(text).map(SpliceUpstream::HostPort)
}

/// The upstream of a terminate rule.
pub(crate) fn terminate_upstream(text: &str) -> Result<TerminateUpstream, String> {
    if text.contains("{sni}") {
        return Err("{sni} in the upstream of a terminate rule would let a client choose where \
            its plaintext goes; it is for splice rules"
            .to_owned());
    }
    if text == DESTINATION {
        // Each connection has a name of its own.
        let tls = Some(UpstreamTls { name: String::new(), files: UpstreamFiles::default() });
        return Ok(TerminateUpstream::Http(http_upstream(HttpAddress::Destination, tls)));
    }
    if let Some(path) = text.strip_prefix("unix:") {
        return unix_path("unix:", path).map(TerminateUpstream::Unix);
    }
    if let Some(path) = text.strip_prefix("http+unix:") {
        let address = unix_path("http+unix:", path).map(HttpAddress::Unix)?;
        return Ok(TerminateUpstream::Http(http_upstream(address, None)));
    }
    match text.split_once("://") {
        Some(("tcp", rest)) => upstream_host_port(rest).map(TerminateUpstream::Tcp),
        Some(("http", rest)) => {
            let address = HttpAddress::Tcp(http_host_port("http", rest)?);
            Ok(TerminateUpstream::Http(http_upstream(address, None)))
        }
        Some(("https", rest)) => {
            let host_port = http_host_port("https", rest)?;
            let tls = Some(verified_by_host(&host_port));
            Ok(TerminateUpstream::Http(http_upstream(HttpAddress::Tcp(host_port), tls)))
        }
        Some((scheme, _)) => {
            Err(format!("\"{scheme}://\" is not a scheme of an upstream; expected {UPSTREAMS}"))
        }
        None => Err(format!("\"{text}\" has no scheme; a terminate rule expects {UPSTREAMS}")),
    }
}

/// Without `upstream_name` a certificate must have the host that is dialled.
fn verified_by_host(to: &HostPort) -> UpstreamTls {
    let name = match &to.host {
        Host::Ip(ip) => ip.to_string(),
        Host::Name(name) => name.strip_suffix('.').unwrap_or(name).to_owned(),
    };
    UpstreamTls { name, files: UpstreamFiles::default() }
}

/// The upstream of an originate rule.
pub(crate) fn originate_upstream(text: &str) -> Result<TerminateUpstream, String> {
    if let Some(rest) = text.strip_prefix("tls://") {
        let address = upstream_host_port(rest)?;
        let tls = verified_by_host(&address);
        return Ok(TerminateUpstream::Tls(TlsUpstream { address, tls, alpn: Vec::new() }));
    }
    match terminate_upstream(text)? {
        upstream @ TerminateUpstream::Http(HttpUpstream {
            address: HttpAddress::Tcp(_),
            tls: Some(_),
            ..
        }) => Ok(upstream),
        _ => Err(format!(
            "\"{text}\": an originate rule sends by TLS; expected https://host:port or \
             tls://host:port"
        )),
    }
}

/// A name or an address: the host of a request, or of a certificate.
pub(crate) fn host_name(text: &str) -> Result<Box<str>, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(ip.to_string().into());
    }
    let name = HostName::new(text.as_bytes()).map_err(|fault| format!("\"{text}\": {fault}"))?;
    Ok(name.as_str().into())
}

/// Says if an upstream is spoken to in HTTP/2.
pub(crate) fn upstream_http2(text: &str) -> Result<UpstreamHttp2, String> {
    match text {
        "alpn" => Ok(UpstreamHttp2::Alpn),
        "off" => Ok(UpstreamHttp2::Off),
        "on" => Ok(UpstreamHttp2::On),
        _ => Err(format!("\"{text}\": expected \"alpn\", \"on\" or \"off\"")),
    }
}

fn http_upstream(address: HttpAddress, tls: Option<UpstreamTls>) -> HttpUpstream {
    HttpUpstream { address, tls, http2: UpstreamHttp2::Alpn, chosen: None }
}

/// `host:port` of an upstream. A dot at the end of a name makes it absolute: no search list
/// applies.
fn upstream_host_port(text: &str) -> Result<HostPort, String> {
    let Some((name, port)) = text.rsplit_once(".:") else { return host_port(text) };
    let to = host_port(&format!("{name}:{port}"))?;
    match to.host {
        Host::Name(name) => Ok(HostPort { host: Host::Name(name + "."), ..to }),
        Host::Ip(ip) => Err(format!("\"{text}\": the address {ip} has a dot at its end")),
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// `host` or `host:port`, with this port where there is none.
pub(crate) fn host_with_port(text: &str, default: u16) -> Result<HostPort, String> {
    match text.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']')) {
        true => host_port(text),
        false => host_port(&format!("{text}:{default}")),
    }
}

/// `host:port`. An IPv6 address is in brackets.
fn host_port(text: &str) -> Result<HostPort, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        let port = port(&address.port().to_string())?;
        if address.ip().is_unspecified() {
            return Err(format!(
                "\"{text}\" is not an address that can be dialled; expected one \
                as in \"127.0.0.1:{port}\""
            ));
        }
        return Ok(HostPort { host: Host::Ip(address.ip()), port });
    }
    let Some((host, port)) = text.rsplit_once(':').filter(|(host, _)| !host.contains(':')) else {
        let hint = if text.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()) {
            format!("[{text}]:443")
        } else {
            "app.internal:443".to_owned()
        };
        return Err(format!("\"{text}\" is not host:port; expected it as in \"{hint}\""));
    };
    let port = self::port(port)?;
    let name = HostName::new(host.as_bytes())
        .map_err(|fault| format!("\"{host}\" is not a host: {fault}"))?;
    Ok(HostPort { host: Host::Name(name.as_str().to_owned()), port })
}

/// A TLS version that a rule may ask for.
pub fn tls_version_code(text: &str) -> Result<u16, String> {
    version::of_number(text).ok_or_else(|| {
        format!("\"{text}\" is not a TLS version; expected \"1.0\", \"1.1\", \"1.2\" or \"1.3\"")
    })
}

/// A TLS version that we speak.
pub(crate) fn tls_version(text: &str) -> Result<Version, String> {
    match text {
        "1.2" => Ok(Version::Tls12),
        "1.3" => Ok(Version::Tls13),
        "1.0" | "1.1" => Err(format!("TLS {text} is not spoken; expected \"1.2\" or \"1.3\"")),
        _ => Err(format!("\"{text}\" is not a TLS version; expected \"1.2\" or \"1.3\"")),
    }
}

/// Stands for no alert in a file.
const SILENCE: &str = "none";

/// An alert by its RFC name, or that there is none.
pub(crate) fn alert(text: &str) -> Result<RefusalAlert, String> {
    if text == SILENCE {
        return Ok(RefusalAlert::Silence);
    }
    AlertDescription::from_name(text).map(RefusalAlert::Always).ok_or_else(|| {
        let names = AlertDescription::ALL.iter().map(|alert| alert.name());
        match nearest(text, names) {
            Some(near) => format!("\"{text}\" is not an alert; did you mean \"{near}\"?"),
            None => format!(
                "\"{text}\" is not an alert; expected its name in RFC 8446 as in \
                \"access_denied\" or \"unrecognized_name\", or \"none\""
            ),
        }
    })
}

/// A line for a refused client.
pub(crate) fn message(text: &str) -> Result<Box<str>, String> {
    if text.is_empty() || text.len() > MESSAGE_BYTES_MAX || text.contains(char::is_control) {
        return Err(format!(
            "a message is one line of 1 to {MESSAGE_BYTES_MAX} bytes without control characters"
        ));
    }
    Ok(text.into())
}

/// Bytes. A terminal shows as much in four lines, and a response with it fits one packet.
const MESSAGE_BYTES_MAX: usize = 320;

/// A protocol name as ALPN carries it.
pub(crate) fn protocol(text: &str) -> Result<Vec<u8>, String> {
    match text.len() {
        1..=255 => Ok(text.as_bytes().to_vec()),
        _ => Err("a protocol name has 1 to 255 bytes (RFC 7301), as in \"h2\"".to_owned()),
    }
}

/// A whole JA4 fingerprint.
pub(crate) fn ja4(text: &str) -> Result<Box<str>, String> {
    let parts: Vec<&str> = text.split('_').collect();
    let hex = |part: &str| {
        part.len() == 12 && part.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'))
    };
    match parts.as_slice() {
        [a, b, c] if a.len() == 10 && a.is_ascii() && hex(b) && hex(c) => Ok(text.into()),
        _ => Err(format!(
            "\"{text}\" is not a JA4 fingerprint; expected 36 characters as in \
            \"t13d1516h2_8daaf6152771_02713d6af862\""
        )),
    }
}

fn unix_path(scheme: &str, path: &str) -> Result<PathBuf, String> {
    if path.starts_with("//") {
        return Err(format!(
            "\"{scheme}{path}\": the path follows the colon at once; expected \
            \"{scheme}/{}\"",
            path.trim_start_matches('/')
        ));
    }
    if !path.starts_with('/') {
        return Err(format!(
            "\"{scheme}{path}\" needs an absolute path, as in \"{scheme}/run/app.sock\""
        ));
    }
    if path.len() > UNIX_PATH_BYTES_MAX || path.contains('\0') {
        return Err(format!("a socket's path has at most {UNIX_PATH_BYTES_MAX} bytes, no NUL"));
    }
    Ok(PathBuf::from(path))
}

fn http_host_port(scheme: &str, rest: &str) -> Result<HostPort, String> {
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains(['/', '?', '#', '@']) {
        return Err(format!(
            "\"{scheme}://{rest}\": requests are passed on with their own path; \
            expected only {scheme}://host:port"
        ));
    }
    if !authority.ends_with(|c: char| c.is_ascii_digit()) || !authority.contains(':') {
        let port = if scheme == "https" { 443 } else { 80 };
        return Err(format!(
            "\"{scheme}://{rest}\" has no port; expected one as in \
            \"{scheme}://{authority}:{port}\""
        ));
    }
    upstream_host_port(authority)
}

fn port(text: &str) -> Result<u16, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let port = text.parse::<u16>().ok().filter(|port| digits && *port != 0);
    port.ok_or_else(|| format!("\"{text}\" is not a port; expected 1 to 65535"))
}

const UPSTREAMS: &str =
    "tcp://host:port, unix:/path, http://host:port, https://host:port or http+unix:/path";

/// Bytes of `sun_path` in Linux without its NUL.
const UNIX_PATH_BYTES_MAX: usize = 107;
