//! A certificate authority of each test's own: servers with each kind of key, clients, strangers.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams,
    CrlIssuingDistributionPoint, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ML_DSA_65,
    PKCS_RSA_SHA256, RevokedCertParams, RsaKeySize,
};
use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::Folder;

/// The names that the edge's certificates cover.
pub const NAMES: [&str; 4] = ["app.test", "*.app.test", "localhost", "127.0.0.1"];

/// ca.pem, edge.pem and edge.key (P-256) in a folder; more on demand.
pub struct Pki {
    pub folder: Folder,
    ca: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
}

/// The key of all RSA certificates of a test program: to make one takes as long as a hundred
/// handshakes.
static RSA_KEY: LazyLock<String> = LazyLock::new(|| {
    let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048);
    key.unwrap().serialize_pem()
});

/// A certificate with its key.
pub struct Leaf {
    pub certificate: CertificateDer<'static>,
    pub key: PrivateKeyDer<'static>,
}

/// The kind of a certificate's key.
#[derive(Clone, Copy)]
pub enum Kind {
    P256,
    P384,
    Rsa,
    /// ML-DSA-65 (FIPS 204).
    MlDsa65,
}

impl Pki {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "Eyelet test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca = params.self_signed(&key).unwrap();
        let pki = Self { folder: Folder::new(), ca, issuer: Issuer::new(params, key) };
        pki.folder.write("ca.pem", pki.ca.pem());
        pki.server("edge", &NAMES, Kind::P256);
        pki
    }

    /// A server's certificate, also written to NAME.pem and NAME.key.
    pub fn server(&self, file: &str, names: &[&str], kind: Kind) -> Leaf {
        self.leaf(file, names, kind, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A client's certificate, also written to NAME.pem and NAME.key.
    pub fn client(&self, file: &str) -> Leaf {
        self.leaf(file, &["client.test"], Kind::P256, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// Makes a client's certificate that is good for so long from now.
    pub fn client_for(&self, file: &str, time: Duration) -> Leaf {
        self.client_with(file, |params| params.not_after = (SystemTime::now() + time).into())
    }

    /// A client's certificate with other parameters, also written to NAME.pem and NAME.key.
    pub fn client_with(&self, file: &str, change: impl FnOnce(&mut CertificateParams)) -> Leaf {
        self.leaf_with(file, &["client.test"], Kind::P256, |params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            change(params);
        })
    }

    /// A server's certificate with other parameters, also written to NAME.pem and NAME.key.
    pub fn server_with(
        &self,
        file: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Leaf {
        self.leaf_with(file, names, Kind::P256, change)
    }

    /// A client's certificate with this serial number.
    pub fn client_numbered(&self, file: &str, serial: u64) -> Leaf {
        self.client_with(file, |params| params.serial_number = Some(serial.into()))
    }

    /// A list of revoked certificates that is good for so long, or has expired so long ago.
    pub fn revoke(&self, serials: &[u64], good: Result<Duration, Duration>) -> Vec<u8> {
        self.revoke_part(serials, good, None)
    }

    /// A list for the certificates of a distribution point.
    pub fn revoke_part(
        &self,
        serials: &[u64],
        good: Result<Duration, Duration>,
        part: Option<CrlIssuingDistributionPoint>,
    ) -> Vec<u8> {
        let now = SystemTime::now();
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: now.into(),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: (now - Duration::from_hours(100)).into(),
            next_update: good.map_or_else(|ago| now - ago, |time| now + time).into(),
            crl_number: 1.into(),
            issuing_distribution_point: part,
            revoked_certs: revoked.collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().der().to_vec()
    }

    /// Writes the authority itself, with its key, to NAME.pem and NAME.key of a folder.
    pub fn write_authority(&self, folder: &Folder, name: &str) {
        folder.write(&format!("{name}.pem"), self.ca.pem());
        folder.write(&format!("{name}.key"), self.issuer.key().serialize_pem());
    }

    fn leaf(&self, file: &str, names: &[&str], kind: Kind, use_: ExtendedKeyUsagePurpose) -> Leaf {
        self.leaf_with(file, names, kind, |params| params.extended_key_usages = vec![use_])
    }

    fn leaf_with(
        &self,
        file: &str,
        names: &[&str],
        kind: Kind,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Leaf {
        let key = match kind {
            Kind::P256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
            Kind::P384 => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384),
            Kind::Rsa => KeyPair::from_pem(&RSA_KEY),
            Kind::MlDsa65 => KeyPair::generate_for(&PKCS_ML_DSA_65),
        };
        let key = key.unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, file);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        self.folder.write(&format!("{file}.pem"), certificate.pem());
        self.folder.write(&format!("{file}.key"), key.serialize_pem());
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        Leaf { certificate: certificate.der().clone(), key: key.into() }
    }

    /// The path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path as text, for command lines.
    pub fn text(&self, name: &str) -> String {
        self.file(name).to_str().unwrap().to_owned()
    }

    pub fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca.der().clone()).unwrap();
        Arc::new(roots)
    }

    /// A terminate rule for app.test with the folder's certificate.
    pub fn terminate(&self, upstream: &str, more: &str) -> String {
        format!(
            "[[rule]]\nname = \"app\"\nsni = \"app.test\"\naction = \"terminate\"\n\
             certificate = \"edge.pem\"\nkey = \"edge.key\"\nupstream = \"{upstream}\"\n{more}\n"
        )
    }
}
