//! The authority's files. The key file has the key and the certificate, so that both appear at
//! once: of several processes that start together, one makes it, by link(2).

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use eyelet_config::{LocalSettings, Permitted};
use eyelet_pki::certificate::date;
use eyelet_pki::pem::Pem;
use eyelet_sys::file::OwnFolder;
use eyelet_sys::process;
use ipnet::IpNet;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    NameConstraints, PublicKeyData,
};
use rustls_pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;
use zeroize::Zeroizing;

use crate::{LocalCaError, folder_or_default};

/// The certificate and its key, in the authority's folder. Only its owner may read it.
pub const KEY_FILE: &str = "ca.key";
/// The certificate alone, for programs that shall trust it.
pub const CERTIFICATE_FILE: &str = "ca.pem";
/// Most bytes of a file: a key and a certificate have less than 4 KiB.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// The time for which an authority is valid. Making another one means to trust another one
/// everywhere.
const LIFETIME: Duration = Duration::from_hours(10 * 365 * 24);
/// The time before they are made from which certificates are valid: clocks of clients are wrong by
/// a day.
pub(crate) const BACKDATED: Duration = Duration::from_hours(48);
/// Bytes of the key's digest in names.
const ID_BYTES: usize = 4;

/// A certificate authority, ready to sign.
pub struct Authority {
    pub folder: PathBuf,
    pub(crate) issuer: Issuer<'static, KeyPair>,
    pub certificate: CertificateDer<'static>,
    /// The certificate as PEM.
    pub pem: String,
    /// The names that it may sign. `None`: any. An authority of another program may be so.
    pub permitted: Option<Permitted>,
    /// Seconds since 1970: the first and the last.
    pub(crate) validity: (u64, u64),
}

impl Authority {
    /// Opens the authority of these settings, and makes it if there is none.
    pub fn open(settings: &LocalSettings) -> Result<Self, LocalCaError> {
        let path = folder_or_default(settings.folder.as_deref())?;
        let at = |why| LocalCaError::Folder { folder: path.clone(), why };
        let folder = OwnFolder::open_private(&path).map_err(at)?;
        let read = || folder.read_private(KEY_FILE, FILE_BYTES_MAX).map(Zeroizing::new);
        let text = match read() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = make(&settings.permitted)?;
                let beside = format!("{KEY_FILE}.{}", random_hex()?);
                folder.create(KEY_FILE, &beside, made.as_bytes()).map_err(at)?;
                // Perhaps that of another process.
                read()
            }
            read => read,
        };
        let authority = Self::parse(&path, &text.map_err(at)?)?;
        let known = folder.read(CERTIFICATE_FILE, FILE_BYTES_MAX);
        if known.ok().as_deref() != Some(authority.pem.as_bytes()) {
            let beside = format!("{CERTIFICATE_FILE}.{}", random_hex()?);
            folder.write(CERTIFICATE_FILE, &beside, authority.pem.as_bytes()).map_err(at)?;
        }
        Ok(authority)
    }

    /// Opens the authority of a folder. `None`: there is none.
    pub fn read(path: &Path) -> Result<Option<Self>, LocalCaError> {
        // Opening makes the folder.
        if !path.exists() {
            return Ok(None);
        }
        let at = |why| LocalCaError::Folder { folder: path.to_owned(), why };
        let folder = OwnFolder::open_private(path).map_err(at)?;
        match folder.read_private(KEY_FILE, FILE_BYTES_MAX).map(Zeroizing::new) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            text => Self::parse(path, &text.map_err(at)?).map(Some),
        }
    }

    fn parse(folder: &Path, text: &[u8]) -> Result<Self, LocalCaError> {
        let damaged = |why: String| LocalCaError::Damaged { folder: folder.to_owned(), why };
        let sections = Pem::new(text);
        let key = sections.key().map_err(|why| damaged(format!("the key in {KEY_FILE}: {why}")))?;
        let certificate = sections
            .certificate()
            .map_err(|why| damaged(format!("the certificate in {KEY_FILE}: {why}")))?;
        let key = KeyPair::try_from(&*key).map_err(|why| damaged(why.to_string()))?;
        let (_, parsed) =
            parse_x509_certificate(&certificate).map_err(|why| damaged(why.to_string()))?;
        if !parsed.is_ca() || parsed.public_key().subject_public_key.data != key.der_bytes() {
            return Err(damaged("its certificate is not one of an authority with this key".into()));
        }
        let secs = |time: i64| u64::try_from(time).unwrap_or(0);
        let validity = parsed.validity();
        let validity =
            (secs(validity.not_before.timestamp()), secs(validity.not_after.timestamp()));
        let constraints = parsed.name_constraints().map_err(|why| damaged(why.to_string()))?;
        let permitted = constraints.and_then(|found| found.value.permitted_subtrees.as_ref());
        let permitted = permitted.map(|trees| permitted_by(trees.iter().map(|tree| &tree.base)));
        let issuer =
            Issuer::from_ca_cert_der(&certificate, key).map_err(|why| damaged(why.to_string()))?;
        let pem = certificate_text(text).ok_or_else(|| damaged("no certificate in it".into()))?;
        Ok(Self { folder: folder.to_owned(), issuer, certificate, pem, permitted, validity })
    }

    /// The path of the certificate alone.
    pub fn certificate_path(&self) -> PathBuf {
        self.folder.join(CERTIFICATE_FILE)
    }

    /// The path of the file that it was read from.
    pub fn key_path(&self) -> PathBuf {
        self.folder.join(KEY_FILE)
    }

    /// Its last second.
    pub fn end(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.validity.1)
    }

    /// Stands for its key in names, so that those of several authorities differ.
    pub fn id(&self) -> String {
        id(self.issuer.key())
    }

    /// Checks that it is valid now.
    ///
    /// # Errors
    /// [`LocalCaError::Expired`] and [`LocalCaError::NotYet`].
    pub fn check_dates(&self, now: SystemTime) -> Result<(), LocalCaError> {
        let (start, end) = self.validity;
        let now = unix_secs(now);
        let folder = self.folder.clone();
        if now > end {
            let permits =
                self.permitted.as_ref().map(Permitted::beyond_default).unwrap_or_default();
            return Err(LocalCaError::Expired { folder, permits, end: date(end) });
        }
        if now < start {
            return Err(LocalCaError::NotYet { folder, start: date(start) });
        }
        Ok(())
    }
}

/// A key and a certificate that it signs itself, both as PEM.
fn make(permitted: &Permitted) -> Result<Zeroizing<String>, LocalCaError> {
    let key = KeyPair::generate().map_err(library)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    // Stores take two authorities with one name for one.
    let name = format!("Eyelet local CA {}", id(&key));
    params.distinguished_name.push(DnType::CommonName, name);
    let user = std::env::var("USER").unwrap_or_else(|_| format!("user {}", process::user()));
    let owner: String = format!("{user}@{}", process::host_name()).chars().take(64).collect();
    params.distinguished_name.push(DnType::OrganizationName, owner);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    // It vouches for servers, never for clients, programs or mail.
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.name_constraints = Some(constraints(permitted));
    params.serial_number = Some(serial()?);
    let now = SystemTime::now();
    params.not_before = (now - BACKDATED).into();
    params.not_after = (now + LIFETIME).into();
    let certificate = params.self_signed(&key).map_err(library)?;
    let key = Zeroizing::new(key.serialize_pem());
    Ok(Zeroizing::new([key.as_str(), &certificate.pem()].concat()))
}

pub(crate) fn id(key: &impl PublicKeyData) -> String {
    hex(digest(&SHA256, key.der_bytes()).as_ref().get(..ID_BYTES).unwrap_or_default())
}

fn constraints(permitted: &Permitted) -> NameConstraints {
    let names = permitted.names.iter().map(|name| GeneralSubtree::DnsName(name.to_string()));
    let nets = permitted.nets.iter().map(|net| {
        GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(net.network(), net.prefix_len()))
    });
    let permitted_subtrees = names.chain(nets).collect();
    NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() }
}

pub(crate) fn permitted_by<'a>(trees: impl Iterator<Item = &'a GeneralName<'a>>) -> Permitted {
    let mut permitted = Permitted { names: Vec::new(), nets: Vec::new() };
    for tree in trees {
        match tree {
            GeneralName::DNSName(name) => {
                let name = name.trim_start_matches('.').to_ascii_lowercase();
                permitted.names.push(name.into());
            }
            GeneralName::IPAddress(bytes) => permitted.nets.extend(net(bytes)),
            _ => {}
        }
    }
    permitted
}

/// An address and its mask, one behind the other (RFC 5280 section 4.2.1.10).
fn net(bytes: &[u8]) -> Option<IpNet> {
    let (address, mask): (IpAddr, IpAddr) = match bytes.len() {
        8 => {
            let (address, mask) = bytes.split_first_chunk::<4>()?;
            ((*address).into(), (*mask.first_chunk::<4>()?).into())
        }
        _ => {
            let (address, mask) = bytes.split_first_chunk::<16>()?;
            ((*address).into(), (*mask.first_chunk::<16>()?).into())
        }
    };
    IpNet::with_netmask(address, mask).ok()
}

/// A positive number of 127 random bits: no authority may use one twice.
pub(crate) fn serial() -> Result<rcgen::SerialNumber, LocalCaError> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(library)?;
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(rcgen::SerialNumber::from_slice(&bytes))
}

pub(crate) fn random_hex() -> Result<String, LocalCaError> {
    let mut bytes = [0; ID_BYTES];
    aws_lc_rs::rand::fill(&mut bytes).map_err(library)?;
    Ok(hex(&bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The certificate of a text in PEM (RFC 7468), without the key before or after it.
fn certificate_text(text: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?;
    let (_, rest) = text.split_once(BEGIN)?;
    let (inside, _) = rest.split_once(END)?;
    Some(format!("{BEGIN}{inside}{END}\n"))
}

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

pub(crate) fn library(why: impl std::fmt::Display) -> LocalCaError {
    LocalCaError::Library(why.to_string())
}

pub(crate) fn unix_secs(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}
