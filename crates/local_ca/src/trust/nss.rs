//! Databases of NSS, which Chromium and Firefox read. The program certutil writes them.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Authority;
use crate::trust::change::{Outcome, TrustChange, run};

/// The folder of Chromium's database, below the user's folder. The first is made where none is.
const CHROMIUM: [&str; 3] =
    [".pki/nssdb", ".local/share/pki/nssdb", "snap/chromium/current/.pki/nssdb"];
/// The folders of Firefox's profiles, each with a database.
const FIREFOX: [&str; 3] = [
    ".mozilla/firefox",
    "snap/firefox/common/.mozilla/firefox",
    ".var/app/org.mozilla.firefox/.mozilla/firefox",
];
/// The file that makes a folder a database, since NSS 3.12 of 2008.
const FILE: &str = "cert9.db";
/// Most profiles of Firefox that are looked at.
const PROFILES_MAX: usize = 64;
/// The program that writes databases.
const TOOL: &str = "certutil";

#[derive(Clone, Debug)]
pub(super) struct Database {
    reader: &'static str,
    folder: PathBuf,
}

/// True if databases can be written.
pub(super) fn has_tool() -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(TOOL).is_file())
}

/// The databases of a user.
pub(super) fn databases(home: &Path) -> Vec<Database> {
    let chromium = CHROMIUM.iter().map(|folder| database("Chromium", home.join(folder)));
    let firefox = FIREFOX.iter().flat_map(|folder| profiles(&home.join(folder)));
    chromium.chain(firefox).filter(Database::exists).collect()
}

/// Chromium's database, which may be missing.
pub(super) fn of_chromium(home: &Path) -> Database {
    let known = databases(home).into_iter().find(|database| database.reader == "Chromium");
    known.unwrap_or_else(|| database("Chromium", home.join(CHROMIUM[0])))
}

fn database(reader: &'static str, folder: PathBuf) -> Database {
    Database { reader, folder }
}

fn profiles(folder: &Path) -> Vec<Database> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten().take(PROFILES_MAX);
    found.map(|entry| database("Firefox", entry.path())).collect()
}

impl Database {
    pub(super) fn exists(&self) -> bool {
        self.folder.join(FILE).is_file()
    }

    pub(super) fn is_installed(&self, authority: &Authority) -> bool {
        let listed = self.exists().then(|| run(self.certutil("-L").args(["-n", &name(authority)])));
        listed.is_some_and(|listed| listed.is_ok())
    }

    pub(super) fn change(&self, authority: &Authority, change: TrustChange) -> Outcome {
        match self.try_change(authority, change) {
            Ok(()) => Outcome::Done,
            Err(why) => Outcome::Failed(why),
        }
    }

    fn try_change(&self, authority: &Authority, change: TrustChange) -> Result<(), String> {
        let name = name(authority);
        if change == TrustChange::Remove {
            return run(self.certutil("-D").args(["-n", &name])).map(drop);
        }
        if !self.exists() {
            fs::create_dir_all(&self.folder).map_err(|why| why.to_string())?;
            run(self.certutil("-N").arg("--empty-password"))?;
        }
        // `C`: an authority for servers, and for nothing else.
        let mut add = self.certutil("-A");
        add.args(["-t", "C,,", "-n", &name, "-i"]).arg(authority.certificate_path());
        run(&mut add).map(drop)
    }

    fn certutil(&self, action: &str) -> Command {
        let mut command = Command::new(TOOL);
        let mut folder = std::ffi::OsString::from("sql:");
        folder.push(&self.folder);
        command.arg(action).arg("-d").arg(folder);
        command
    }
}

/// The name in a database.
fn name(authority: &Authority) -> String {
    format!("Eyelet local CA {}", authority.id())
}

impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reader, self.folder.display())
    }
}
