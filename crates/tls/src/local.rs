//! Certificates of rules with `certificate = "local"`: signed by the local certificate authority at
//! the first handshake for a name, and shown until shortly before their end. All have one key,
//! which is in this process only. Signing takes half a millisecond in an unoptimized build.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use eyelet_config::{
    Action, CertificateSource, Config, LocalNames, LocalSettings, is_loopback_name,
};
use eyelet_local_ca::{
    Authority, LEAF_LIFETIME, LeafKey, LocalCaError, SubjectName, folder_option,
};
use eyelet_pki::certificate::{self, Description, Pair, signing_key};
use eyelet_sys::file::Stamp;
use quick_cache::sync::Cache;
use rustls::sign::{CertifiedKey, SigningKey};

use crate::certificates::{CertificateMaker, Certificates};
use crate::tickets::SourceId;

/// Most names whose certificates are held: with 2 KiB for each, about 2 MiB. Beyond that, names
/// that were not asked for lately are signed again.
const NAMES_MAX: usize = 1024;
/// The time before its end at which a certificate is signed anew: a client may compare it with a
/// slow clock.
const RENEWED_BEFORE: Duration = Duration::from_hours(10 * 24);
/// Most addresses of listeners in the certificate for clients that ask for no name.
const ADDRESSES_MAX: usize = 64;

/// The reason why there is no certificate for a name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LocalError {
    /// The authority cannot sign.
    #[error("{0}")]
    Authority(#[from] LocalCaError),
    /// The rule lists no names, and the name is not one of this machine.
    #[error("no rule lists this name")]
    Unlisted,
}

/// The local certificate authority, and what it signed.
pub(crate) struct LocalCertificates {
    settings: LocalSettings,
    /// The names and addresses of the certificate for clients that ask for no name.
    own_names: Vec<SubjectName>,
    key: LeafKey,
    signing: Arc<dyn SigningKey>,
    signer: Mutex<Signer>,
    /// True if the log says that the authority expires soon.
    is_warned: AtomicBool,
}

/// Replaced when the files of the authority change.
#[derive(Clone)]
struct Signer {
    authority: Arc<Authority>,
    stamp: Stamp,
    maker: Arc<CertificateMaker>,
    /// By name; the empty one is for clients that ask for none.
    signed: Arc<Cache<Box<str>, Signed>>,
}

#[derive(Clone)]
struct Signed {
    certificates: Arc<Certificates>,
    renewed_at: SystemTime,
}

impl LocalCertificates {
    /// Opens the authority, and makes it at the first use, if a rule of the configuration needs it.
    /// `earlier` goes on if nothing of it changes.
    ///
    /// # Errors
    /// If the authority cannot be used.
    pub(crate) fn new(
        config: &Config,
        earlier: Option<&Arc<Self>>,
    ) -> Result<Option<Arc<Self>>, LocalError> {
        let is_local = |action: &Action| match action {
            Action::Terminate(rule) => matches!(rule.certificates, CertificateSource::Local(_)),
            Action::Originate(_) | Action::Splice(_) | Action::Refuse(_) => false,
        };
        if !config.rules.iter().any(|rule| is_local(rule.action)) {
            return Ok(None);
        }
        let wanted = own_names(config);
        let is_same = |earlier: &&Arc<Self>| {
            earlier.settings == config.local && earlier.wanted_names() == wanted
        };
        if let Some(same) = earlier.filter(is_same) {
            return Ok(Some(same.clone()));
        }
        let key = LeafKey::generate()?;
        let failed = || LocalCaError::Library("the key that it made cannot sign".into());
        let signing = signing_key(&key.der()).ok_or_else(failed)?;
        let signer = Signer::open(&config.local)?;
        signer.authority.check_dates(SystemTime::now())?;
        let file = signer.authority.certificate_path();
        tracing::info!(
            "local certificates are signed by {}; `eyelet trust{}` says who trusts it",
            file.display(),
            folder_option(&signer.authority.folder)
        );
        let (settings, signer) = (config.local.clone(), Mutex::new(signer));
        let is_warned = AtomicBool::new(false);
        let local = Self { settings, own_names: wanted, key, signing, signer, is_warned };
        local.warn_of_end(SystemTime::now());
        Ok(Some(Arc::new(local)))
    }

    fn wanted_names(&self) -> &[SubjectName] {
        &self.own_names
    }

    /// The certificate for a name that a client asks for.
    ///
    /// # Errors
    /// If no rule lists the name, or the authority may not sign it, has expired, or fails.
    pub(crate) fn of(
        &self,
        name: Option<&str>,
        names: LocalNames,
    ) -> Result<Arc<Certificates>, LocalError> {
        let is_listed = match (names, name) {
            (LocalNames::Listed, _) | (LocalNames::Loopback, None) => true,
            (LocalNames::Loopback, Some(name)) => is_loopback_name(name),
        };
        if !is_listed {
            return Err(LocalError::Unlisted);
        }
        self.held(name, SystemTime::now())
    }

    /// The certificate for a name, signed if none is held that is good now.
    fn held(&self, name: Option<&str>, now: SystemTime) -> Result<Arc<Certificates>, LocalError> {
        let signer = self.signer.lock().clone();
        if let Some(known) = signer.signed.get(name.unwrap_or_default())
            && known.is_good(now)
        {
            return Ok(known.certificates);
        }
        let signed = self.sign(&signer, name, now)?;
        signer.signed.insert(name.unwrap_or_default().into(), signed.clone());
        Ok(signed.certificates)
    }

    fn sign(
        &self,
        signer: &Signer,
        name: Option<&str>,
        now: SystemTime,
    ) -> Result<Signed, LocalError> {
        let authority = &signer.authority;
        let names = match name {
            Some(name) => vec![SubjectName::Dns(name.into())],
            None => {
                let own = self.own_names.iter();
                own.filter(|name| authority.check_name(name).is_ok()).cloned().collect()
            }
        };
        let leaf = authority.sign(&names, &self.key, LEAF_LIFETIME, now)?;
        let certified = CertifiedKey::new(vec![leaf.certificate], self.signing.clone());
        let pair = Pair { certified, key: self.key.der(), stamps: [Stamp::default(); 2] };
        let certificates = signer.maker.make(pair, SourceId::new(SOURCE));
        // At the end of the authority's own life each handshake signs: then it has days left.
        Ok(Signed { certificates, renewed_at: leaf.end - RENEWED_BEFORE })
    }

    /// The file of the authority's certificate, and what it says. `None`: it cannot be read.
    pub(crate) fn describe(&self) -> (PathBuf, Option<Description>) {
        let authority = self.signer.lock().authority.clone();
        (authority.certificate_path(), certificate::describe(&authority.certificate))
    }

    /// The file of the authority.
    pub(crate) fn file(&self) -> PathBuf {
        self.signer.lock().authority.key_path()
    }

    /// Opens the authority again if its file has changed. `None`: it has not.
    pub(crate) fn refresh(&self) -> Option<(PathBuf, Result<bool, LocalError>)> {
        self.warn_of_end(SystemTime::now());
        let before = self.signer.lock().clone();
        let path = before.authority.key_path();
        // Taken first: a change while it is read gives another stamp at the next look.
        let stamp = Stamp::at(&path);
        if stamp.is_same(before.stamp) {
            return None;
        }
        let opened = Authority::read(&before.authority.folder).and_then(|authority| {
            let folder = before.authority.folder.clone();
            let why = std::io::Error::new(std::io::ErrorKind::NotFound, "its key is missing");
            authority.ok_or(LocalCaError::Folder { folder, why })
        });
        let replaced = opened.map(|authority| {
            let is_new = authority.certificate != before.authority.certificate;
            let mut signer = self.signer.lock();
            match is_new {
                true => {
                    *signer = Signer::new(authority, stamp);
                    self.is_warned.store(false, Relaxed);
                }
                false => signer.stamp = stamp,
            }
            is_new
        });
        Some((path, replaced.map_err(LocalError::from)))
    }

    /// Says once that the authority expires soon. Returns whether it says so now.
    fn warn_of_end(&self, now: SystemTime) -> bool {
        let authority = self.signer.lock().authority.clone();
        let left = authority.end().duration_since(now).unwrap_or_default();
        let is_soon = left < certificate::EXPIRY_WARNING;
        let is_new = is_soon && !self.is_warned.swap(true, Relaxed);
        if is_new {
            let folder = authority.folder.display();
            tracing::warn!("the local certificate authority in {folder} expires soon");
        }
        is_new
    }
}

impl Signer {
    fn open(settings: &LocalSettings) -> Result<Self, LocalError> {
        // The first look reads it again, and gets its stamp.
        Ok(Self::new(Authority::open(settings)?, Stamp::default()))
    }

    fn new(authority: Authority, stamp: Stamp) -> Self {
        let signed = Arc::new(Cache::new(NAMES_MAX));
        let maker = Arc::new(CertificateMaker::new());
        Self { authority: Arc::new(authority), stamp, maker, signed }
    }
}

impl Signed {
    /// A clock that went back far makes a certificate one of the future.
    fn is_good(&self, now: SystemTime) -> bool {
        now < self.renewed_at && now + LEAF_LIFETIME >= self.renewed_at
    }
}

/// The names of this machine, and the addresses that the listeners are bound to.
fn own_names(config: &Config) -> Vec<SubjectName> {
    let loopback = [IpAddr::from([127, 0, 0, 1]), std::net::Ipv6Addr::LOCALHOST.into()];
    let listeners = config.listeners.iter().map(|listener| listener.address.inet().ip());
    let literal = listeners.filter(|address| !address.is_unspecified());
    let mut addresses: Vec<_> = loopback.into_iter().chain(literal).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let addresses = addresses.into_iter().take(ADDRESSES_MAX).map(SubjectName::Address);
    std::iter::once(SubjectName::Dns("localhost".into())).chain(addresses).collect()
}

/// Stands for the certificates in tickets. A session is bound to its name besides.
const SOURCE: &[u8] = b"local";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use eyelet_config::{Depth, parse};
    use tempfile::TempDir;

    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    fn config(folder: &Path, listener: &str) -> Config {
        let text = format!(
            "[[listener]]\naddress = \"{listener}\"\n[[rule]]\naction = \"terminate\"\n\
             certificate = \"local\"\nupstream = \"tcp://a:1\"\n[local]\nfolder = \"ca\"\n"
        );
        let file = folder.join("edge.toml");
        parse(&file, &text, Depth::Files, SystemTime::now()).unwrap().config
    }

    fn local(listener: &str) -> (TempDir, Arc<LocalCertificates>) {
        let folder = tempfile::tempdir().unwrap();
        let local = LocalCertificates::new(&config(folder.path(), listener), None).unwrap();
        (folder, local.unwrap())
    }

    #[test]
    fn a_certificate_is_signed_once_and_anew_before_its_end() {
        let (_folder, local) = local("127.0.0.1:0");
        let now = SystemTime::now();
        let at = |days: u32| local.held(Some("a.test"), now + days * DAY).unwrap();
        let first = at(0);
        assert!(Arc::ptr_eq(&first, &at(19)));
        let second = at(21);
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&second, &at(40)));
        // The clock goes back: the certificate would be one of the future.
        assert!(!Arc::ptr_eq(&second, &at(1)));
        let late = local.held(Some("a.test"), now + 4000 * DAY).map(drop).unwrap_err();
        assert!(late.to_string().contains("expired on"), "{late}");
    }

    #[test]
    fn an_authority_that_ends_while_it_serves_is_reported_once() {
        let (_folder, local) = local("127.0.0.1:0");
        let end = local.signer.lock().authority.end();
        assert!(!local.warn_of_end(SystemTime::now()));
        assert!(local.warn_of_end(end - DAY));
        assert!(!local.warn_of_end(end));
    }

    #[test]
    fn held_certificates_have_a_limit() {
        let (_folder, local) = local("127.0.0.1:0");
        let began = std::time::Instant::now();
        let names = 2 * NAMES_MAX as u32;
        for number in 0..names {
            local.of(Some(&format!("n{number}.localhost")), LocalNames::Loopback).unwrap();
        }
        println!("{:?} for each signature", began.elapsed() / names);
        assert!(local.signer.lock().signed.len() <= NAMES_MAX);
    }

    #[test]
    fn a_rule_without_names_signs_those_of_this_machine() {
        let (_folder, local) = local("127.0.0.9:0");
        let of = |name| local.of(name, LocalNames::Loopback);
        of(None).unwrap();
        of(Some("localhost")).unwrap();
        for name in ["a.test", "localhost.test", "bank.com"] {
            assert!(matches!(of(Some(name)).map(drop), Err(LocalError::Unlisted)), "{name}");
        }
        local.of(Some("a.test"), LocalNames::Listed).unwrap();
        // A list in a file may have it, and the authority may not sign it.
        assert!(local.of(Some("bank.com"), LocalNames::Listed).is_err());
        let names: Vec<String> = local.own_names.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["localhost", "127.0.0.1", "127.0.0.9", "::1"]);
        let everywhere = config(Path::new("/"), "0.0.0.0:0");
        let names: Vec<String> = own_names(&everywhere).iter().map(ToString::to_string).collect();
        assert_eq!(names, ["localhost", "127.0.0.1", "::1"]);
    }

    #[test]
    fn a_reload_that_changes_nothing_of_it_signs_nothing_anew() {
        let (folder, local) = local("127.0.0.1:0");
        let again = |listener| {
            let next = config(folder.path(), listener);
            LocalCertificates::new(&next, Some(&local)).unwrap().unwrap()
        };
        assert!(Arc::ptr_eq(&local, &again("127.0.0.1:1")));
        assert!(!Arc::ptr_eq(&local, &again("127.0.0.2:1")));
        let mut without = config(folder.path(), "127.0.0.1:0");
        without.rules = parse(
            Path::new("/edge.toml"),
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[[rule]]\naction = \"refuse\"\n",
            Depth::Files,
            SystemTime::now(),
        )
        .unwrap()
        .config
        .rules;
        assert!(LocalCertificates::new(&without, Some(&local)).unwrap().is_none());
    }
}
