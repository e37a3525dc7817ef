//! The certificate that `run` and `proxy` serve: the given one, or one of the local authority.

use std::collections::BTreeSet;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use eyelet_config::{LocalSettings, is_loopback_name};
use eyelet_local_ca::{Authority, SubjectName, folder_option, shell_word};
use eyelet_pki::certificate;

use super::args::EdgeArgs;

/// The keys of a rule whose certificate the local authority signs.
pub(super) const SIGNED: &str = "certificate = \"local\"";

#[cfg_attr(test, derive(Default))]
pub(super) struct Certificate {
    /// Its keys of a rule.
    pub(super) keys: String,
    /// The local authority, if that signs it.
    pub(super) local: Option<LocalTable>,
    /// The text about its owner, in one line.
    pub(super) said: String,
    /// The local authority's own, if that signs it.
    pub(super) authority: Option<PathBuf>,
    /// True if clients must show one, too.
    asks_client: bool,
}

/// The table `[local]`.
#[derive(Clone, Debug, Default)]
pub(super) struct LocalTable {
    /// The folder of the authority.
    pub(super) folder: PathBuf,
    /// Names that it may sign beyond what each authority may.
    pub(super) permits: BTreeSet<String>,
}

impl LocalTable {
    pub(super) fn text(&self) -> String {
        let permit = match self.permits.is_empty() {
            true => String::new(),
            false => format!("permit = {}\n", serde_json::json!(self.permits)),
        };
        format!("[local]\nfolder = {}\n{permit}\n", quoted(&self.folder))
    }
}

impl Certificate {
    /// Returns the lines about it: how to trust it, and what to do until then, for a name that is
    /// served at this address with this URL.
    pub(super) fn lines(&self, (name, url): (&str, &str), address: SocketAddr) -> Vec<String> {
        let mut lines = vec![format!("certificate: {}", self.said)];
        if let Some(file) = self.authority.as_deref().map(shell_word) {
            lines.push(match url.starts_with("https:") {
                true => {
                    let shown = if self.asks_client { " --cert FILE --key FILE" } else { "" };
                    let led = led(name, address);
                    format!("until then: curl --cacert {file}{shown}{led} {url}")
                }
                false => format!("until then clients need its certificate: {file}"),
            });
        }
        lines
    }
}

/// Returns the option by which curl finds a name that DNS may not have, or has elsewhere, with a
/// blank before it.
fn led(name: &str, address: SocketAddr) -> String {
    // A listener for IPv6 takes no IPv4.
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let is_first = ip == Ipv4Addr::LOCALHOST || ip == Ipv6Addr::LOCALHOST;
    if is_first && is_loopback_name(name) {
        return String::new();
    }
    format!(" --resolve {name}:{}:{ip}", address.port())
}

/// The certificate of these arguments for these names. `option` is the one that changes the name,
/// if there is one.
pub(super) fn certificate(
    edge: &EdgeArgs,
    names: &[&str],
    option: Option<&str>,
) -> Result<Certificate, Box<dyn Error>> {
    let asks_client = edge.client_ca.is_some();
    if let (Some(certificate), Some(key)) = (&edge.certificate, &edge.key) {
        let keys = format!("certificate = {}\nkey = {}", quoted(certificate), quoted(key));
        let said = given(certificate, names, option);
        return Ok(Certificate { keys, local: None, said, authority: None, asks_client });
    }
    let settings = LocalSettings { folder: edge.ca_folder.clone(), ..Default::default() };
    let authority = Authority::open(&settings)?;
    let subjects: Vec<_> = names.iter().map(|name| SubjectName::Dns((*name).into())).collect();
    let signs = authority.check_names(&subjects);
    signs.map_err(|error| {
        format!(
            "for a name of the internet use `eyelet serve` with `certificate = \"acme\"` \
             (docs/certificates.md), or give --certificate and --key. For this machine only: \
             {error}"
        )
    })?;
    let permitted = |name: &&&str| settings.permitted.has_name(name);
    let permits = names.iter().filter(|name| !permitted(name)).map(ToString::to_string).collect();
    let local = LocalTable { folder: authority.folder.clone(), permits };
    Ok(Certificate {
        keys: SIGNED.into(),
        local: Some(local),
        said: format!(
            "by your local authority; `eyelet trust --install{}` has this machine trust it",
            folder_option(&authority.folder)
        ),
        authority: Some(authority.certificate_path()),
        asks_client,
    })
}

/// A given certificate, and that it is for other names, if it is, with what to do about it. That it
/// cannot be read is said of the configuration.
fn given(file: &Path, names: &[&str], option: Option<&str>) -> String {
    let shown = file.display();
    let chain = certificate::chain(file).unwrap_or_default();
    let Some(described) = chain.first().and_then(certificate::describe) else {
        return shown.to_string();
    };
    let others: Vec<&str> = names.iter().copied().filter(|name| !described.covers(name)).collect();
    match others.is_empty() {
        true => shown.to_string(),
        false => {
            let own = match &*described.names {
                [] => "it has no DNS name".to_owned(),
                names => format!("it is for {}", names.join(", ")),
            };
            let better = described.names.iter().find(|name| !name.starts_with('*')).zip(option);
            let advice = better.map(|(name, option)| format!(": start with {option} {name}"));
            let advice = advice.unwrap_or_default();
            format!("{shown}; clients refuse it for {}: {own}{advice}", others.join(", "))
        }
    }
}

/// A TOML basic string: JSON's escapes are a subset of TOML's.
pub(super) fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The URL's name leads curl to 127.0.0.1 and ::1 if it is one of loopback, else nowhere.
    #[test]
    fn the_printed_curl_reaches_the_listener() {
        let v4 = " --resolve app.test:8443:127.0.0.1";
        for (name, address, expected) in [
            ("app.localhost", "127.0.0.1:8443", ""),
            ("app.localhost", "0.0.0.0:8443", ""),
            ("localhost", "[::1]:8443", ""),
            ("localhost", "[::]:8443", ""),
            ("localhost", "127.0.0.2:8443", " --resolve localhost:8443:127.0.0.2"),
            ("localhost", "192.168.1.5:443", " --resolve localhost:443:192.168.1.5"),
            ("localhost", "[fd00::5]:8443", " --resolve localhost:8443:fd00::5"),
            ("app.test", "127.0.0.1:8443", v4),
            ("app.test", "0.0.0.0:8443", v4),
            ("app.test", "[::]:8443", " --resolve app.test:8443:::1"),
            ("app.test", "192.168.1.5:8443", " --resolve app.test:8443:192.168.1.5"),
        ] {
            let parsed = address.parse().expect(address);
            assert_eq!(led(name, parsed), expected, "{name} at {address}");
        }
    }

    #[test]
    fn the_printed_curl_shows_a_certificate_if_it_must() {
        let mut certificate = Certificate {
            keys: String::new(),
            local: None,
            said: "by your local authority".into(),
            authority: Some("/a b/ca.pem".into()),
            asks_client: false,
        };
        let url = "https://localhost:8443/";
        let address = (Ipv4Addr::LOCALHOST, 8443).into();
        let lines = certificate.lines(("localhost", url), address);
        assert_eq!(lines[1], format!("until then: curl --cacert '/a b/ca.pem' {url}"));
        certificate.asks_client = true;
        let lines = certificate.lines(("localhost", url), address);
        let shown = "--cert FILE --key FILE";
        assert_eq!(lines[1], format!("until then: curl --cacert '/a b/ca.pem' {shown} {url}"));
    }
}
