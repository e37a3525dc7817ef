//! A certificate authority of this user alone: where it is, what it may sign, the certificates that
//! it signs, and the stores of certificates that trust it. No TLS, no sockets, no rules.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

mod authority;
mod certificate_files;
mod leaf;
mod mint;
mod run;
pub mod trust;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use eyelet_config::Permitted;
use eyelet_sys::process;

pub use authority::{Authority, CERTIFICATE_FILE, KEY_FILE};
pub use certificate_files::write_files;
pub use leaf::{LEAF_LIFETIME, LeafKey, SignedLeaf, SubjectName, SubjectNameFault};
pub use mint::{KeyKind, MintAuthority};
pub use run::run_authority;

/// The reason why the authority cannot be used. It says what to do.
#[derive(Debug, thiserror::Error)]
pub enum LocalCaError {
    /// Its files are not what this crate writes.
    #[error(
        "the local certificate authority in {} is damaged: {why}. To make another one: {}",
        folder.display(), commands(folder, "--install")
    )]
    Damaged {
        folder: PathBuf,
        /// The damage.
        why: String,
    },
    /// It has expired.
    #[error(
        "the local certificate authority in {} expired on {end}. If this machine's clock is right, \
         make another one: {}",
        folder.display(), commands(folder, &format!("--install{}", options(permits)))
    )]
    Expired {
        folder: PathBuf,
        /// The extra names and networks that it may sign for.
        permits: Vec<String>,
        /// Its last second.
        end: String,
    },
    /// It may sign none of the names of an origin's certificate.
    #[error("the authority may sign none of the names of the origin's certificate")]
    NoName,
    /// A certificate in files cannot be written.
    #[error("cannot write {}: {why}; --out names a folder that is there and yours", path.display())]
    NotWritten {
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// A file of the authority cannot be used.
    #[error("{}: {why}", path.display())]
    File {
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// The folder cannot be used.
    #[error(
        "the folder of the local certificate authority, {}, cannot be used: {why}. `folder` in \
         [local], or --folder, names another one", folder.display()
    )]
    Folder {
        folder: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// The user has no folder.
    #[error(
        "there is no folder for the local certificate authority, because HOME is not set; name \
         one by `folder` in [local], or by --folder, which `eyelet run` calls --ca-folder"
    )]
    NoHome,
    /// It may not sign these names.
    #[error(
        "the local certificate authority in {} may not sign {}: it is limited to {permitted}. \
         To make another one that may: {}",
        folder.display(), names.join(", "), commands(folder, &permitting(permitted, names))
    )]
    NotPermitted {
        folder: PathBuf,
        /// The names and networks that it may sign for.
        permitted: Permitted,
        /// The names, the addresses and the networks.
        names: Vec<String>,
    },
    /// It is not valid yet.
    #[error(
        "the local certificate authority in {} is not valid before {start}: set this machine's \
         clock",
        folder.display()
    )]
    NotYet {
        folder: PathBuf,
        /// Its first second.
        start: String,
    },
    /// The library cannot make a key or sign.
    #[error("the cryptographic library cannot make a certificate: {0}")]
    Library(String),
}

/// The user's own folder of the authority.
///
/// # Errors
/// [`LocalCaError::NoHome`].
pub fn default_folder() -> Result<PathBuf, LocalCaError> {
    // `sudo` may leave the variables as they are.
    if process::user() == 0 {
        return Ok(folder_of_root(Path::new("/var/lib"), 0));
    }
    let of_variable = |name| std::env::var_os(name).map(PathBuf::from);
    // A relative path is to be ignored, says the specification of XDG.
    let data = of_variable("XDG_DATA_HOME").filter(|path| path.is_absolute());
    let home = || of_variable("HOME").filter(|path| path.is_absolute());
    let folder = data.or_else(|| Some(home()?.join(".local/share")));
    folder.map(|folder| folder.join("eyelet/local-ca")).ok_or(LocalCaError::NoHome)
}

/// Not below `eyelet`: systemd gives that folder to the service's user, with all in it. An
/// authority that is there since an earlier version counts while both folders are this user's:
/// whoever owns the outer one can replace the inner one.
fn folder_of_root(state: &Path, user: u32) -> PathBuf {
    let (new, outer) = (state.join("eyelet-local-ca"), state.join("eyelet"));
    let old = outer.join("local-ca");
    let is_own = |path: &Path| {
        let found = path.symlink_metadata();
        found.is_ok_and(|found| found.is_dir() && found.uid() == user)
    };
    if !new.exists() && is_own(&outer) && is_own(&old) { old } else { new }
}

/// The folder of these settings.
///
/// # Errors
/// [`LocalCaError::NoHome`].
pub fn folder_or_default(folder: Option<&Path>) -> Result<PathBuf, LocalCaError> {
    folder.map_or_else(default_folder, |folder| Ok(folder.to_owned()))
}

/// The options that permit what an authority may sign already, and these.
fn permitting(permitted: &Permitted, names: &[String]) -> String {
    let mut all = permitted.beyond_default();
    for name in names {
        // A name permits all names below it.
        let name = name.strip_prefix("*.").unwrap_or(name);
        if !all.iter().any(|known| known == name) {
            all.push(name.to_owned());
        }
    }
    options(&all).trim_start().to_owned()
}

/// An option for each of these, with a blank before it.
fn options(permits: &[String]) -> String {
    permits.iter().map(|permit| format!(" --permit {permit}")).collect()
}

/// The commands that make another authority in this folder.
fn commands(folder: &Path, made: &str) -> String {
    let (word, option) = (shell_word(folder), folder_option(folder));
    format!("eyelet trust --remove{option}; rm -r {word}; eyelet trust {made}{option}")
}

/// Returns the option of `eyelet trust` for this folder, with a blank before it. Nothing, for the
/// user's own.
pub fn folder_option(folder: &Path) -> String {
    match default_folder().is_ok_and(|own| own == folder) {
        true => String::new(),
        false => format!(" --folder {}", shell_word(folder)),
    }
}

/// A word that a POSIX shell takes unchanged.
pub fn shell_word(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests;
