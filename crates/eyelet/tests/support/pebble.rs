//! Pebble, the ACME server for tests, as a child: its log, its roots, and what it says of renewals.
//! Must not know the engine.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use super::client::{Offer, Tls};
use super::pki::Kind;
use super::program::Talk;
use super::upstream::vacant;
use super::{Dns, Pki, SOON, until};

/// A server that validates names at these ports of the addresses that a DNS server says.
pub struct Pebble {
    talk: Option<Talk>,
    pub address: SocketAddr,
    management: SocketAddr,
    config: std::path::PathBuf,
    dns: SocketAddr,
}

impl Pebble {
    /// `more`: keys of its configuration, each with a comma behind it.
    pub fn start(pki: &Pki, dns: &Dns, (tls, http): (SocketAddr, SocketAddr), more: &str) -> Self {
        let [address, management] = vacant();
        pki.server("pebble", &["127.0.0.1"], Kind::P256);
        let config = format!(
            "{{\"pebble\": {{{more} \"listenAddress\": \"{address}\", \
             \"managementListenAddress\": \"{management}\", \
             \"certificate\": \"{}\", \"privateKey\": \"{}\", \
             \"httpPort\": {}, \"tlsPort\": {}, \"ocspResponderURL\": \"\", \
             \"domainBlocklist\": [\"blocked.test\"], \
             \"retryAfter\": {{\"authz\": 1, \"order\": 1}}, \"keyAlgorithm\": \"ecdsa\"}}}}",
            pki.text("pebble.pem"),
            pki.text("pebble.key"),
            http.port(),
            tls.port(),
        );
        let config = pki.folder.write("pebble.json", config);
        let dns = dns.address;
        let mut pebble = Self { talk: None, address, management, config, dns };
        pebble.run();
        pebble
    }

    /// Starts it again, without what it knew.
    pub fn run(&mut self) {
        let mut command = Command::new("pebble");
        command.arg("-config").arg(&self.config).args(["-dnsserver", &self.dns.to_string()]);
        // Validations begin at once. Some good nonces are refused, but next to never three in a
        // row (one in 20 would be refused by default): then an order begins again after 5 s.
        command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_WFE_NONCEREJECT", "1");
        self.talk = Some(Talk::start(&mut command));
        until("Pebble", || std::net::TcpStream::connect(self.address).ok());
        until("Pebble's management", || std::net::TcpStream::connect(self.management).ok());
    }

    pub fn stop(&mut self) {
        self.talk = None;
    }

    pub fn log(&self) -> String {
        self.talk.as_ref().map(Talk::said).unwrap_or_default()
    }

    /// Waits until so many certificates are in its log, which comes by a pipe, and checks that
    /// there are no more. Their orders are in the log before them.
    #[track_caller]
    pub fn has_issued(&self, certificates: usize) {
        until("Pebble's log", || (self.issued() >= certificates).then_some(()));
        assert_eq!(self.issued(), certificates, "{}", self.log());
    }

    /// Certificates issued so far.
    pub fn issued(&self) -> usize {
        self.log().matches("Issued certificate serial").count()
    }

    /// Orders accepted so far.
    pub fn ordered(&self) -> usize {
        self.log().matches("Added order").count()
    }

    /// Returns the configuration that verifies the certificates that it issues.
    pub fn roots(&self, pki: &Pki) -> Arc<ClientConfig> {
        let root = self.manage(pki, "GET /roots/0", "");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(root.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
    }

    /// Says of this certificate that it was to be renewed long ago.
    pub fn renew(&self, pki: &Pki, certificate: &str) {
        let window = "{\"suggestedWindow\": {\"start\": \"2020-01-01T00:00:00Z\", \
            \"end\": \"2020-01-02T00:00:00Z\"}}";
        let body = serde_json::json!({ "Certificate": certificate, "ARIResponse": window });
        self.manage(pki, "POST /set-renewal-info/", &body.to_string());
    }

    fn manage(&self, pki: &Pki, line: &str, body: &str) -> String {
        let mut tls: Tls = Offer::new(pki).connect(self.management, "127.0.0.1");
        let length = body.len();
        write!(
            tls,
            "{line} HTTP/1.0\r\nHost: {}\r\nUser-Agent: eyelet-tests\r\n\
             Content-Length: {length}\r\n\r\n{body}",
            self.management
        )
        .unwrap();
        tls.flush().unwrap();
        tls.sock.set_read_timeout(Some(SOON)).unwrap();
        let mut answer = Vec::new();
        // It may close without close_notify.
        let _ = tls.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 "), "{line}: {answer}");
        body.to_owned()
    }
}
