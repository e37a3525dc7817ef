//! The certificate that `run` and `proxy` serve: the given one, or one of the local authority.

use std::error::Error;
use std::path::Path;

use eyelet_config::LocalSettings;
use eyelet_local_ca::Authority;

use super::args::EdgeArgs;

/// A certificate.
pub(super) struct Certificate {
    /// Its keys of a rule.
    pub(super) keys: String,
    /// The table of the local authority, if that signs it.
    pub(super) local: Option<String>,
    /// Whose it is and how to trust it, in one line.
    pub(super) said: String,
}

/// The certificate of these arguments.
pub(super) fn certificate(edge: &EdgeArgs) -> Result<Certificate, Box<dyn Error>> {
    if let (Some(certificate), Some(key)) = (&edge.certificate, &edge.key) {
        let keys = format!("certificate = {}\nkey = {}", quoted(certificate), quoted(key));
        return Ok(Certificate { keys, local: None, said: certificate.display().to_string() });
    }
    let settings = LocalSettings { folder: edge.ca_folder.clone(), ..Default::default() };
    let authority = Authority::open(&settings)?;
    let path = authority.certificate_path();
    let said = format!(
        "by your local authority; `eyelet trust --install` has this machine trust it, or curl \
         --cacert {}",
        path.display()
    );
    let local = format!("[local]\nfolder = {}\n\n", quoted(authority.folder()));
    Ok(Certificate { keys: "certificate = \"local\"".into(), local: Some(local), said })
}

/// A TOML basic string: JSON's escapes are a subset of TOML's.
pub(super) fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy()).to_string()
}
