//! The certificate that `run` and `proxy` serve: the given one, or one of the local authority.

use std::error::Error;
use std::path::{Path, PathBuf};

use eyelet_config::LocalSettings;
use eyelet_local_ca::{Authority, shell_word};

use super::args::EdgeArgs;

/// A certificate.
pub(super) struct Certificate {
    /// Its keys of a rule.
    pub(super) keys: String,
    /// The table of the local authority, if that signs it.
    pub(super) local: Option<String>,
    /// Whose it is, in one line.
    pub(super) said: String,
    /// The local authority's own, if that signs it.
    authority: Option<PathBuf>,
}

impl Certificate {
    /// What is printed about it: how to trust it, and what to do until then.
    pub(super) fn lines(&self, first_url: &str) -> Vec<String> {
        let mut lines = vec![format!("certificate: {}", self.said)];
        if let Some(file) = self.authority.as_deref().map(shell_word) {
            lines.push(match first_url.starts_with("https:") {
                true => format!("until then: curl --cacert {file} {first_url}"),
                false => format!("until then clients need its certificate: {file}"),
            });
        }
        lines
    }
}

/// The certificate of these arguments.
pub(super) fn certificate(edge: &EdgeArgs) -> Result<Certificate, Box<dyn Error>> {
    if let (Some(certificate), Some(key)) = (&edge.certificate, &edge.key) {
        let keys = format!("certificate = {}\nkey = {}", quoted(certificate), quoted(key));
        let said = certificate.display().to_string();
        return Ok(Certificate { keys, local: None, said, authority: None });
    }
    let settings = LocalSettings { folder: edge.ca_folder.clone(), ..Default::default() };
    let authority = Authority::open(&settings)?;
    let said = "by your local authority; `eyelet trust --install` has this machine trust it".into();
    let local = format!("[local]\nfolder = {}\n\n", quoted(authority.folder()));
    Ok(Certificate {
        keys: "certificate = \"local\"".into(),
        local: Some(local),
        said,
        authority: Some(authority.certificate_path()),
    })
}

/// A TOML basic string: JSON's escapes are a subset of TOML's.
pub(super) fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy()).to_string()
}
