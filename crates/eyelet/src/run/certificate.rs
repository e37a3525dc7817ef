//! The certificate that `run` and `proxy` serve: the given one, or one made on the spot.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::args::EdgeArgs;
use crate::demo::certificates::TemporaryFolder;

/// A certificate.
pub(super) struct Certificate {
    /// Its keys of a rule.
    pub(super) keys: String,
    /// Whose it is and how to trust it, in one line.
    pub(super) said: String,
    /// Where it is, if it was made for this run.
    pub(super) folder: Option<Arc<TemporaryFolder>>,
}

/// The certificate for these names.
pub(super) fn certificate(edge: &EdgeArgs, names: &[&str]) -> io::Result<Certificate> {
    if let (Some(certificate), Some(key)) = (&edge.certificate, &edge.key) {
        let keys = keys(certificate, key);
        return Ok(Certificate { keys, said: certificate.display().to_string(), folder: None });
    }
    let folder = TemporaryFolder::create()?;
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let made = rcgen::generate_simple_self_signed(names).map_err(io::Error::other)?;
    let certificate = folder.write("app.pem", &made.cert.pem())?;
    let key = folder.write("app.key", &made.signing_key.serialize_pem())?;
    let said = format!("made for this run; trust {} (curl --cacert)", certificate.display());
    let keys = keys(&certificate, &key);
    Ok(Certificate { keys, said, folder: Some(Arc::new(folder)) })
}

/// The keys of a rule for certificate files.
fn keys(certificate: &Path, key: &Path) -> String {
    format!("certificate = {}\nkey = {}", quoted(certificate), quoted(key))
}

/// A TOML basic string: JSON's escapes are a subset of TOML's.
pub(super) fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy()).to_string()
}
