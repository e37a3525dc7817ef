//! The authorities that verify applications of `eyelet proxy` with TLS. On this machine these are
//! also the user's own one and mkcert's: both sign for development alone.

use std::env;
use std::error::Error;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use eyelet_config::is_loopback_name;
use eyelet_local_ca::{Authority, default_folder};
use eyelet_process::control;
use eyelet_sys::file::OwnFolder;
use eyelet_tls::roots::{system_roots, usable};

use super::certificate::Certificate;
use super::plan::PlannedRule;
use super::shared::place;

/// Schemes of applications with TLS.
const SECURE: [&str; 2] = ["https://", "tls://"];
/// The file with all of them.
const FILE: &str = "roots.pem";

/// Has applications with TLS verified by the given file, and otherwise those on this machine by the
/// authorities here. `say` is called if these cannot be had.
///
/// # Errors
/// If a file is given, and no application has TLS.
pub(super) fn add(
    rules: &mut [PlannedRule],
    given: Option<&Path>,
    certificate: &Certificate,
    say: impl Fn(&str),
) -> Result<(), String> {
    let secure = |rule: &PlannedRule| {
        SECURE.iter().find_map(|scheme| rule.site.upstream.strip_prefix(scheme)).map(is_here)
    };
    if given.is_some() && !rules.iter().any(|rule| secure(rule).is_some()) {
        return Err("--upstream-ca verifies https:// applications, and none of these is one".into());
    }
    let is_wanted = |rule: &PlannedRule| secure(rule).is_some_and(|here| here || given.is_some());
    let mut wanted = rules.iter_mut().filter(|rule| is_wanted(rule)).peekable();
    if wanted.peek().is_none() {
        return Ok(());
    }
    let file = match given {
        Some(given) => given.to_owned(),
        None => match made(certificate) {
            Ok(made) => made,
            Err(error) => {
                say(&format!("the system's authorities alone verify applications: {error}"));
                return Ok(());
            }
        },
    };
    wanted.for_each(|rule| rule.options.upstream_ca = Some(file.clone()));
    Ok(())
}

/// True if this is an address, or a name, of loopback.
fn is_here(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(ip) => ip.is_loopback(),
        Err(_) => is_loopback_name(host),
    }
}

/// Makes the file with the authorities here: those of the system may have more.
fn made(certificate: &Certificate) -> Result<PathBuf, Box<dyn Error>> {
    let own = match &certificate.authority {
        Some(own) => Some(own.clone()),
        None => Authority::read(&default_folder()?)?.map(|own| own.certificate_path()),
    };
    let files = system_roots().map(Path::to_owned).into_iter().chain(own).chain(of_mkcert());
    let texts: Vec<String> = files.filter_map(|file| fs::read_to_string(file).ok()).collect();
    let text = usable(&texts);
    let path = control::own_folder();
    let path = path.join(format!("trust.{}", control::digest_name(text.as_bytes())));
    let folder = OwnFolder::open(&path).map_err(place::at(&path))?;
    let beside = format!("{FILE}.{}", std::process::id());
    folder.write_unsynced(FILE, &beside, text.as_bytes())?;
    Ok(path.join(FILE))
}

/// The certificate of mkcert's authority, where mkcert looks for it.
fn of_mkcert() -> Option<PathBuf> {
    let folder = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let folder = match (folder("CAROOT"), folder("XDG_DATA_HOME")) {
        (Some(own), _) => PathBuf::from(own),
        (None, Some(data)) => Path::new(&data).join("mkcert"),
        (None, None) => Path::new(&folder("HOME")?).join(".local/share/mkcert"),
    };
    Some(folder.join("rootCA.pem")).filter(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applications_of_this_machine() {
        for (address, expected) in [
            ("127.0.0.1:5000", true),
            ("[::1]:5000", true),
            ("localhost:5000", true),
            ("app.localhost:5000", true),
            ("localhost", true),
            ("192.168.1.5:5000", false),
            ("app.test:5000", false),
            ("localhost.example:5000", false),
        ] {
            assert_eq!(is_here(address), expected, "{address}");
        }
    }
}
