//! Variables that have the application trust the local authority, so that projects can call each
//! other, and the files that these name.

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use eyelet_pki::pem::Pem;
use eyelet_sandbox::RunTrust;
use eyelet_sys::file::OwnFolder;
use eyelet_tls::roots::system_roots;

use super::certificate::Certificate;
use super::shared::place;
use eyelet_process::control;

/// The variables for an application behind this certificate. `say` is called if there are none,
/// which ends nothing, and for programs that they do not reach.
pub(super) fn variables(
    certificate: &Certificate,
    say: impl Fn(&str),
) -> Vec<(OsString, OsString)> {
    let Some(authority) = &certificate.authority else { return Vec::new() };
    made(authority, &say).unwrap_or_else(|error| {
        say(&format!("the command does not trust the local authority by itself: {error}"));
        Vec::new()
    })
}

fn made(authority: &Path, say: impl Fn(&str)) -> Result<Vec<(OsString, OsString)>, Box<dyn Error>> {
    let pem = fs::read_to_string(authority)?;
    let certificate = Pem::new(pem.as_bytes()).certificate().map_err(|why| why.to_string())?;
    let system = system_roots();
    let trust =
        |folder: &str| RunTrust::of((&pem, &certificate), folder, system, |name| env::var_os(name));
    // Commands with the same files share their folder. Those of other roots have another one.
    let contents: Vec<u8> = trust("")?.files.into_iter().flat_map(|file| file.content).collect();
    let name = format!("trust.{}", control::digest_name(&contents));
    let path = control::own_folder().join(name);
    let path = path.to_str().ok_or("the runtime folder is no text")?;
    let mut trust = trust(path)?;
    let folder = OwnFolder::open(Path::new(path)).map_err(place::at(Path::new(path)))?;
    for file in &trust.files {
        let beside = format!("{}.{}", file.name, std::process::id());
        folder.write_unsynced(&file.name, &beside, &file.content)?;
    }
    // Otherwise programs would trust nothing else.
    if system.is_none() && env::var_os("SSL_CERT_FILE").is_none() {
        trust.keep_adding();
    }
    // A run around this one has said them.
    if env::var_os("EYELET_URL").is_none() {
        trust.notes.iter().for_each(|note| say(note));
    }
    Ok(trust.variables)
}
