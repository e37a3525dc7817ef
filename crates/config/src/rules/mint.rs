//! Reads the keys of a rule with `certificate = "mint"`: the authority that signs what clients are
//! shown, and where the origin is.

use std::net::SocketAddr;

use ipnet::{Ipv4Net, Ipv6Net};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use crate::model::{
    CertificateSource, CompressionMode, Host, HostPort, HttpAddress, HttpUpstream, Listener,
    Terminate, TerminateUpstream, UpstreamHttp2, UpstreamTls,
};
use crate::rules::matchers;
use eyelet_document::reader::Section;
use eyelet_files::Files;

/// The authority of a sandbox's run, by which its rules mint. It is in memory only.
#[derive(Debug)]
pub struct RunAuthority {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// The certificate in PEM.
    pub pem: String,
    /// The key.
    pub key: Zeroizing<PrivateKeyDer<'static>>,
}

/// The value of a rule's `certificate` that has origins' certificates signed anew.
pub(crate) const MINT: &str = "mint";

/// Keys of a rule that mints, and no other.
const MINT_KEYS: [&str; 2] = ["mint_ca", "mint_key"];

/// The files of the authority of a rule that mints, as written: its certificate and its key.
pub(crate) fn check_rule<'t>(
    section: &Section<'t>,
    files: &mut Files,
    terminate: &mut Terminate,
) -> Option<[&'t str; 2]> {
    let allow = section.key_at("upstream_allow");
    let allow = allow.map(|at| (at, matchers::nets(section, "upstream_allow")));
    let mints = terminate.certificates == CertificateSource::Mint;
    match (&mut terminate.upstream, allow) {
        (TerminateUpstream::Http(http), allow)
            if mints && http.address == HttpAddress::Destination =>
        {
            http.chosen = Some(allow.map_or_else(Vec::new, |(_, nets)| nets));
        }
        (_, Some((at, _))) => {
            let message = "in a terminate rule `upstream_allow` is for `certificate = \"mint\"` \
                with `upstream = \"destination\"` only: no client chooses another upstream";
            at.error(message);
        }
        (_, None) => {}
    }
    if !mints {
        for (key, at) in section.present(&MINT_KEYS) {
            at.error(format!("`{key}` is for `certificate = \"mint\"` only"));
        }
        return None;
    }
    if let Some(at) = section.key_at("key") {
        let message = "with `certificate = \"mint\"` keys of certificates are made here: leave \
            `key` out; the authority's own key is `mint_key`";
        at.error(message);
    }
    if let Some(at) = section.key_at("decode_requests") {
        let message = "`decode_requests` is not for a rule that mints: Eyelet announces no codings \
                       for servers that are not yours; leave it out";
        at.error(message);
    }
    if let Some(at) = section.key_at("upstream_spiffe") {
        let message = "a rule that mints verifies origins by their names, not by SPIFFE ids: leave \
                       `upstream_spiffe` out";
        at.error(message);
    }
    // An origin chooses how its responses are coded, unless the rule says otherwise.
    if section.value("compress").is_none() {
        terminate.compression.mode = CompressionMode::Off;
    }
    for key in MINT_KEYS {
        if section.value(key).is_none() && !files.is_of_run() {
            let message = format!(
                "a rule that mints needs `mint_ca` and `mint_key`, the certificate and the key of \
                 an authority that its clients trust; `{key}` is missing"
            );
            section.missing(&[key], message);
        }
    }
    let (ca, key) = (section.text("mint_ca")?, section.text("mint_key")?);
    files.check_signing_pair(ca, key);
    Some([ca.text, key.text])
}

impl HttpUpstream {
    /// The upstream [`HttpAddress::Destination`] of one connection: its destination, verified by
    /// the name in its hello. With `is_chosen` the client chose it, so it may not be an internal
    /// address that `upstream_allow` does not list. With `http2` the client speaks HTTP/2.
    pub fn of_connection(
        &self,
        (to, sni): (SocketAddr, Option<&str>),
        is_chosen: bool,
        http2: bool,
    ) -> Option<Self> {
        let tls = self.tls.as_ref()?;
        let name = match (tls.name.as_str(), sni) {
            ("", Some(sni)) => sni.to_owned(),
            ("", None) => to.ip().to_string(),
            (name, _) => name.to_owned(),
        };
        let spoken = match (self.http2, http2) {
            // An origin speaks to Eyelet as it would to the client.
            (UpstreamHttp2::Alpn, false) => UpstreamHttp2::Off,
            (spoken, _) => spoken,
        };
        let allow = match is_chosen {
            true => self.chosen.clone().unwrap_or_default(),
            // An intercepted client can go there without Eyelet, too. Only a loop is refused.
            false => vec![Ipv4Net::default().into(), Ipv6Net::default().into()],
        };
        Some(Self {
            address: HttpAddress::Tcp(HostPort { host: Host::Ip(to.ip()), port: to.port() }),
            tls: Some(UpstreamTls { name, files: tls.files.clone() }),
            http2: spoken,
            chosen: Some(allow),
        })
    }
}

/// Checks that the upstream fits, for the listeners of the rule.
pub(crate) fn check_upstream<'a>(
    section: &Section<'_>,
    terminate: &Terminate,
    mut listeners: impl Iterator<Item = &'a Listener>,
) {
    let at = section.value_at("upstream");
    let is_http = |upstream: &TerminateUpstream| upstream.as_http().cloned();
    let (mints, http) =
        (terminate.certificates == CertificateSource::Mint, is_http(&terminate.upstream));
    let is_destination = http.as_ref().is_some_and(|http| http.address == HttpAddress::Destination);
    match (mints, http) {
        (false, _) if is_destination => {
            let message = "\"destination\" in a terminate rule would let a client choose where its \
                plaintext goes; it is for splice rules, and for `certificate = \"mint\"`";
            at.error(message);
        }
        (false, _) => {}
        (true, None) => {
            let message = "only HTTP passes through a rule that mints; expected \"destination\", \
                https://host:port, or an inspector at http://host:port";
            at.error(message);
        }
        (true, Some(http)) => {
            let is_origin = http.tls.is_some();
            if is_origin && !terminate.others.is_empty() {
                let message = "a certificate is made after that of one origin; expected one \
                    https:// upstream";
                at.error(message);
            }
            // Only a configured origin is known without the client's destination.
            if is_origin && !is_destination {
                return;
            }
            if let Some(listener) = listeners.find(|listener| !listener.has_destination()) {
                let message = format!(
                    "on the direct listener {} the destination is the listener itself, and no \
                     origin; expected https://host:port, or a `listener` that intercepts",
                    listener.called()
                );
                at.error(message);
            }
        }
    }
}
