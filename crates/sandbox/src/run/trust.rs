//! Has the programs of a run trust its authority: files that they are shown, and variables
//! that lead to these.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use eyelet_config::RunAuthority;
use eyelet_local_ca::{LocalCaError, run_authority};
use eyelet_pki::pem::Pem;
use rustls_pki_types::CertificateDer;

use super::p12;
use super::serving::MintedNames;
use crate::message::ShownFile;
use crate::show::FOLDER;

/// Variables whose file takes the place of the system's roots: OpenSSL's, which Go, Ruby and Python
/// read too, and those of programs with roots of their own.
const REPLACING: [&str; 9] = [
    OPENSSL,
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "NPM_CONFIG_CAFILE",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
];
const OPENSSL: &str = "SSL_CERT_FILE";
/// Variables whose file is read beside the roots: Node and Bun, and Deno.
const ADDING: [&str; 2] = ["DENO_CERT", "NODE_EXTRA_CA_CERTS"];
/// The options that each Java program takes.
const JAVA: &str = "JAVA_TOOL_OPTIONS";
/// The option of Java that names its trust store.
const JAVA_STORE: &str = "-Djavax.net.ssl.trustStore";
/// The files inside: the system's roots and the authority, the authority alone, both for Java.
const BUNDLE: &str = "bundle.pem";
const ALONE: &str = "authority.pem";
const STORE: &str = "trust.p12";
/// Bytes of a file of roots: some ten times those of a system.
const ROOTS_BYTES_MAX: u64 = 4 << 20;

/// The trust of a run. Without minted names it is empty.
#[derive(Debug, Default)]
pub struct RunTrust {
    /// The authority that signs what is minted.
    pub authority: Option<RunAuthority>,
    /// Files for the command.
    pub files: Vec<ShownFile>,
    /// Variables for the command.
    pub variables: Vec<(OsString, OsString)>,
    /// Notes for the user.
    pub notes: Vec<&'static str>,
}

/// Java's options without the trust store of a run around this one: its authority is among the
/// roots, by the other variables that it has set.
fn without_outer(options: OsString) -> OsString {
    let set_by_us = |text: &str| -> Option<usize> {
        let (before, store) = text.rsplit_once(&format!("{JAVA_STORE}="))?;
        let folder = store.strip_suffix(&format!("/{STORE} {JAVA_STORE}Type=PKCS12"))?;
        let (of_user, digest) = folder.rsplit_once('/').unwrap_or_default();
        let is_ours =
            folder == FOLDER || of_user.ends_with("/eyelet") && digest.starts_with("trust.");
        is_ours.then(|| before.trim_end().len())
    };
    match options.to_str().and_then(set_by_us) {
        Some(end) => options.to_string_lossy()[..end].into(),
        None => options,
    }
}

/// A note that [`RunTrust::keep_adding`] takes back.
const NO_ROOTS: &str = "no CA certificates here: programs trust the run's authority alone";

/// An error that keeps the trust of a run from being set up.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A file that the environment names cannot be joined with the authority.
    #[error(
        "{variable} is {}, which cannot be read: {error}; programs would lose what they trust. \
         Unset it, or name a file of certificates in PEM", path.to_string_lossy()
    )]
    Variable {
        /// The variable.
        variable: &'static str,
        /// Its value.
        path: OsString,
        /// The system's error.
        error: io::Error,
    },
    /// The file of the system's roots cannot be read.
    #[error("the system's CA certificates, {path}, cannot be read: {error}")]
    System {
        /// The file.
        path: String,
        /// The system's error.
        error: io::Error,
    },
    /// There is no authority.
    #[error("{0}")]
    Authority(#[from] LocalCaError),
}

impl RunTrust {
    /// Makes an authority for these names, joins it with the roots of `system`, and with those that
    /// the caller's variables name.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn new(
        names: &MintedNames,
        system: Option<&Path>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, TrustError> {
        let names = match names {
            MintedNames::Nothing => return Ok(Self::default()),
            MintedNames::Any => None,
            MintedNames::These(names) => Some(&**names),
        };
        let authority = run_authority(names)?;
        let trust = Self::of((&authority.pem, &authority.certificate), FOLDER, system, variable)?;
        let mut trust = Self { authority: Some(authority), ..trust };
        if names.is_none() {
            trust.notes.push("no list bounds the run's authority: it may sign any name");
        }
        Ok(trust)
    }

    /// Joins an authority, as PEM and as DER, with the roots of `system`, and with those that the
    /// caller's variables name. The files will be in `folder`.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn of(
        (pem, certificate): (&str, &CertificateDer<'_>),
        folder: &str,
        system: Option<&Path>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, TrustError> {
        let mut trust = Self::default();
        // An empty value is none, for OpenSSL too.
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let roots = match (variable(OPENSSL), system) {
            (Some(path), _) => read_variable(OPENSSL, path)?,
            (None, Some(path)) => read_system(path)?,
            (None, None) => {
                trust.notes.push(NO_ROOTS);
                Vec::new()
            }
        };
        let mut bundles = Bundles { authority: pem, known: BTreeMap::new() };
        let default = bundles.add(BUNDLE, &roots, &mut trust.files);
        bundles.known.extend(variable(OPENSSL).map(|path| (path, BUNDLE.to_owned())));
        let alone = bundles.add(ALONE, &[], &mut trust.files);
        let replacing = REPLACING.iter().map(|name| (*name, &default));
        for (name, usual) in replacing.chain(ADDING.iter().map(|name| (*name, &alone))) {
            let file = match variable(name) {
                None => usual.clone(),
                Some(path) => match bundles.known.get(&path) {
                    Some(known) => known.clone(),
                    None => {
                        let own = read_variable(name, path.clone())?;
                        let file = bundles.add(&format!("{name}.pem"), &own, &mut trust.files);
                        bundles.known.insert(path, file.clone());
                        file
                    }
                },
            };
            trust.variables.push((name.into(), format!("{folder}/{file}").into()));
        }
        let java = without_outer(variable(JAVA).unwrap_or_default());
        trust.add_java(&roots, (certificate, folder), java);
        Ok(trust)
    }

    /// Adds the trust store, unless the caller has named one.
    fn add_java(
        &mut self,
        roots: &[u8],
        (certificate, folder): (&CertificateDer<'_>, &str),
        mut options: OsString,
    ) {
        if options.to_string_lossy().contains(&format!("{JAVA_STORE}=")) {
            self.notes.push(
                "JAVA_TOOL_OPTIONS names a trust store: Java programs trust that, and not the \
                 run's authority",
            );
            return;
        }
        let roots = Pem::new(roots).certificates().unwrap_or_else(|_| {
            self.notes.push(
                "a certificate among the roots cannot be read: Java programs trust the run's \
                 authority alone",
            );
            Vec::new()
        });
        let mut all = vec![certificate.clone().into_owned()];
        all.extend(roots);
        self.files.push(ShownFile { name: STORE.into(), content: p12::trust_store(&all) });
        if !options.is_empty() {
            options.push(" ");
        }
        options.push(format!("{JAVA_STORE}={folder}/{STORE} {JAVA_STORE}Type=PKCS12"));
        self.variables.push((JAVA.into(), options));
    }

    /// Keeps those variables alone whose files are read beside a program's own roots.
    pub fn keep_adding(&mut self) {
        self.notes.retain(|note| *note != NO_ROOTS);
        self.variables.retain(|(name, _)| ADDING.iter().any(|adding| name == adding));
    }

    /// The variables as lines of a shell. A value of the caller may be no text.
    pub fn lines(&self) -> Vec<u8> {
        let mut lines = Vec::new();
        for (name, value) in &self.variables {
            lines.extend([b"export ", name.as_bytes(), b"='"].concat());
            for byte in value.as_bytes() {
                match byte {
                    b'\'' => lines.extend(b"'\\''"),
                    other => lines.push(*other),
                }
            }
            lines.extend(b"'\n");
        }
        lines
    }
}

/// Files that join the authority with roots.
struct Bundles<'a> {
    authority: &'a str,
    /// The files inside, by those of the caller that they have.
    known: BTreeMap<OsString, String>,
}

impl Bundles<'_> {
    fn add(&self, name: &str, roots: &[u8], files: &mut Vec<ShownFile>) -> String {
        let mut content = self.authority.as_bytes().to_vec();
        content.extend_from_slice(roots);
        files.push(ShownFile { name: name.into(), content });
        name.to_owned()
    }
}

fn read_variable(variable: &'static str, path: OsString) -> Result<Vec<u8>, TrustError> {
    read(&path).map_err(|error| TrustError::Variable { variable, path, error })
}

fn read_system(path: &Path) -> Result<Vec<u8>, TrustError> {
    let failed = |error| TrustError::System { path: path.display().to_string(), error };
    read(path.as_os_str()).map_err(failed)
}

fn read(path: &OsStr) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    // A FIFO would wait for its writer.
    if !Path::new(path).metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    File::open(path)?.take(ROOTS_BYTES_MAX + 1).read_to_end(&mut text)?;
    match text.len() as u64 > ROOTS_BYTES_MAX {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn trust(values: &[(&str, &str)], system: Option<&Path>) -> Result<RunTrust, TrustError> {
        let value = |name: &str| values.iter().find(|(known, _)| *known == name);
        let names = MintedNames::These(vec!["a.example".into()]);
        RunTrust::new(&names, system, |name| value(name).map(|(_, value)| value.into()))
    }

    #[test]
    fn files_of_the_caller_are_joined_and_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("of {name}\n")).unwrap();
            path.into_os_string().into_string().unwrap()
        };
        let (system, own, node) = (write("system"), write("own"), write("node"));
        let system = Some(Path::new(&system));
        let given = [
            ("SSL_CERT_FILE", ""),
            ("CURL_CA_BUNDLE", &*own),
            ("PIP_CERT", &own),
            ("NODE_EXTRA_CA_CERTS", &node),
            (JAVA, "-Xmx9m"),
        ];
        let joined = trust(&given, system).unwrap();
        let pem = &joined.authority.as_ref().unwrap().pem;
        let value = |name: &str| {
            let found = joined.variables.iter().find(|(known, _)| known == name);
            found.unwrap().1.to_str().unwrap()
        };
        let content = |name: &str| {
            let file = value(name).strip_prefix("/run/eyelet/").unwrap();
            let file = joined.files.iter().find(|shown| shown.name == file).unwrap();
            String::from_utf8(file.content.clone()).unwrap()
        };
        for (name, with) in [
            ("SSL_CERT_FILE", "of system\n"),
            ("GIT_SSL_CAINFO", "of system\n"),
            ("CURL_CA_BUNDLE", "of own\n"),
            ("PIP_CERT", "of own\n"),
            ("NODE_EXTRA_CA_CERTS", "of node\n"),
            ("DENO_CERT", ""),
        ] {
            assert_eq!(content(name), format!("{pem}{with}"), "{name}");
        }
        assert!(value(JAVA).starts_with("-Xmx9m -Djavax.net.ssl.trustStore=/run/eyelet/"));
        let lines = joined.lines();
        let pip = b"export PIP_CERT='/run/eyelet/CURL_CA_BUNDLE.pem'\n";
        assert!(lines.windows(pip.len()).any(|line| line == pip));
        let of_caller = trust(&[("SSL_CERT_FILE", &own)], system).unwrap();
        assert!(of_caller.files[0].content.ends_with(b"of own\n"));
        assert_eq!(of_caller.files.len(), 3);
    }

    #[test]
    fn lines_for_a_shell_keep_each_byte() {
        let value = OsStr::from_bytes(b"-Da='\xff'").to_owned();
        let trust = RunTrust { variables: vec![(JAVA.into(), value)], ..RunTrust::default() };
        assert_eq!(trust.lines(), b"export JAVA_TOOL_OPTIONS='-Da='\\''\xff'\\'''\n");
    }

    #[test]
    fn what_cannot_be_joined_is_said() {
        let missing = trust(&[("SSL_CERT_FILE", "/missing/roots.pem")], None).unwrap_err();
        let missing = missing.to_string();
        assert!(missing.starts_with("SSL_CERT_FILE is /missing/roots.pem, which"), "{missing}");
        let folder = trust(&[("PIP_CERT", "/")], None).unwrap_err().to_string();
        assert!(folder.contains("it is no file"), "{folder}");
        let none = trust(&[], None).unwrap();
        assert_eq!(
            none.notes,
            ["no CA certificates here: programs trust the run's authority alone"]
        );
        let own = trust(&[(JAVA, "-Djavax.net.ssl.trustStore=x")], None).unwrap();
        assert!(own.notes.iter().any(|note| note.starts_with("JAVA_TOOL_OPTIONS names")));
        assert!(own.variables.iter().all(|(name, _)| name != JAVA));
        // That of a run around this one is replaced.
        for folder in [FOLDER, "/run/user/9/eyelet/trust.a49fbe4decca2893"] {
            let outer = |before: &str| {
                format!("{before}{JAVA_STORE}={folder}/trust.p12 {JAVA_STORE}Type=PKCS12")
            };
            let nested = trust(&[(JAVA, &outer("-Xmx9m "))], None).unwrap();
            assert!(!nested.notes.iter().any(|note| note.starts_with(JAVA)), "{:?}", nested.notes);
            let java = nested.variables.iter().find(|(name, _)| name == JAVA).unwrap();
            let own = format!("{JAVA_STORE}={FOLDER}/trust.p12 {JAVA_STORE}Type=PKCS12");
            assert_eq!(java.1, *format!("-Xmx9m {own}"), "{folder}");
            assert_eq!(without_outer(outer("").into()), "");
        }
        let of_user = format!("{JAVA_STORE}=/srv/me/trust.p12 {JAVA_STORE}Type=PKCS12");
        assert_eq!(without_outer((&*of_user).into()), *of_user);
        let nothing = RunTrust::new(&MintedNames::Nothing, None, |_| Some("/missing".into()));
        assert!(nothing.unwrap().variables.is_empty());
    }
}
