//! `eyelet trust` and `eyelet cert`: the commands for the local certificate authority.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use eyelet_config::LocalSettings;
use eyelet_local_ca::trust::{self, Places, TrustChange};
use eyelet_local_ca::{
    Authority, LocalCaError, SubjectName, folder_option, folder_or_default, write_files,
};

/// Arguments of `eyelet trust`.
#[derive(Args, Clone, Debug)]
pub struct TrustArgs {
    /// Make the authority if there is none, and have every store of certificates trust it
    #[arg(long, conflicts_with = "remove")]
    pub install: bool,
    /// Remove it from every store
    #[arg(long)]
    pub remove: bool,
    /// Leave the system's store alone: Chromium and Firefox of this user only
    #[arg(long)]
    pub user: bool,
    /// The folder of the authority, as `[local] folder`; by default the user's own
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Make an authority that may also sign this name and all below it, or this network
    #[arg(long, value_name = "NAME")]
    pub permit: Vec<String>,
}

/// Arguments of `eyelet cert`.
#[derive(Args, Clone, Debug)]
pub struct CertArgs {
    /// Names and addresses: app.localhost, *.app.test, 127.0.0.1
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<SubjectName>,
    /// Write the files here
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
    /// Days until it expires
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=397))]
    pub days: u32,
    /// The folder of the authority, as `[local] folder`; by default the user's own
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

/// Runs `eyelet trust`. Exits with 0, or with 1 if something is left to be done.
pub fn trust(args: &TrustArgs) -> ExitCode {
    finish(try_trust(args))
}

/// Runs `eyelet cert`. Exits with 0, or with 1 if there are no files.
pub fn cert(args: &CertArgs) -> ExitCode {
    finish(try_cert(args).map_err(|error| error.to_string()))
}

fn try_trust(args: &TrustArgs) -> Result<(String, bool), String> {
    let folder = folder_or_default(args.folder.as_deref()).map_err(|error| error.to_string())?;
    let mut places = Places::here();
    places.root = places.root.filter(|_| !args.user);
    let makes = args.install || !args.permit.is_empty();
    let authority = match makes {
        true => Some(open(&folder, &args.permit)?),
        false => Authority::read(&folder).map_err(|error| error.to_string())?,
    };
    let Some(authority) = authority else {
        let (option, folder) = (folder_option(&folder), folder.display());
        let text = format!(
            "There is no local certificate authority in {folder} yet. `eyelet run`, \
             `eyelet proxy`, `eyelet cert`, and `eyelet serve` with `certificate = \"local\"` \
             make it.\n`eyelet trust --install{option}` makes it, too, and has these trust it:\n"
        );
        return Ok((text + &trust::stores_there(&places), true));
    };
    let report = match (args.install, args.remove) {
        (true, _) => trust::change(&authority, &places, TrustChange::Install),
        (_, true) => trust::change(&authority, &places, TrustChange::Remove),
        (false, false) => trust::show(&authority, &places),
    };
    Ok((report.text, report.is_complete))
}

/// Opens the authority. One that is there must permit the names, too.
fn open(folder: &Path, permit: &[String]) -> Result<Authority, String> {
    let mut settings = LocalSettings { folder: Some(folder.into()), ..Default::default() };
    permit.iter().try_for_each(|text| settings.permitted.add(text))?;
    let authority = Authority::open(&settings).map_err(|error| error.to_string())?;
    authority.check_permits(&settings.permitted).map_err(|error| error.to_string())?;
    Ok(authority)
}

fn try_cert(args: &CertArgs) -> Result<(String, bool), LocalCaError> {
    let settings = LocalSettings { folder: args.folder.clone(), ..Default::default() };
    let authority = Authority::open(&settings)?;
    let names: Vec<SubjectName> = args.names.iter().map(|name| meant(name, &authority)).collect();
    let lifetime = Duration::from_hours(24 * u64::from(args.days));
    let [certificate, key] = write_files(&authority, &names, lifetime, &args.out)?;
    let (certificate, key) = (certificate.display(), key.display());
    let (ca, option) = (authority.certificate_path(), folder_option(&authority.folder));
    let ca = ca.display();
    let text =
        format!("{certificate}\n{key}\nsigned by {ca}; eyelet trust{option} says who trusts it\n");
    Ok((text, true))
}

/// A name without a dot is below `localhost`, unless the authority may sign it.
fn meant(name: &SubjectName, authority: &Authority) -> SubjectName {
    match name {
        SubjectName::Dns(label) if !label.contains('.') && authority.check_name(name).is_err() => {
            SubjectName::Dns(format!("{label}.localhost").into())
        }
        name => name.clone(),
    }
}

fn finish(done: Result<(String, bool), String>) -> ExitCode {
    // If a stream is closed, the exit status still gives the result.
    match done {
        Ok((text, is_complete)) => {
            let _ = io::stdout().write_all(text.as_bytes());
            if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "eyelet: {error}");
            ExitCode::FAILURE
        }
    }
}
