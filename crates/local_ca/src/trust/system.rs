//! The system's store: a folder for additional authorities, and a program that reads it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::trust::change::{Outcome, TrustChange, outcome, run};
use crate::{Authority, shell_word};

/// A kind of system: its name, the folder, the program, and the file that the program writes with
/// all authorities. The program and the folder tell them apart.
const SYSTEMS: [(&str, &str, &str, &str); 4] = [
    (
        "Debian, Ubuntu",
        "usr/local/share/ca-certificates",
        "usr/sbin/update-ca-certificates",
        "etc/ssl/certs/ca-certificates.crt",
    ),
    (
        "Fedora, RHEL",
        "etc/pki/ca-trust/source/anchors",
        "usr/bin/update-ca-trust",
        "etc/pki/tls/certs/ca-bundle.crt",
    ),
    (
        "Arch",
        "etc/ca-certificates/trust-source/anchors",
        "usr/bin/update-ca-trust",
        "etc/ssl/certs/ca-certificates.crt",
    ),
    (
        "openSUSE",
        "etc/pki/trust/anchors",
        "usr/sbin/update-ca-certificates",
        "etc/ssl/ca-bundle.pem",
    ),
];

#[derive(Clone, Debug)]
pub(super) struct SystemStore {
    system: &'static str,
    folder: PathBuf,
    program: PathBuf,
    bundle: PathBuf,
}

/// The store below this root.
pub(super) fn find(root: &Path) -> Option<SystemStore> {
    let stores = SYSTEMS.iter().map(|(system, folder, program, bundle)| SystemStore {
        system,
        folder: root.join(folder),
        program: root.join(program),
        bundle: root.join(bundle),
    });
    stores.into_iter().find(|store| store.folder.is_dir() && store.program.is_file())
}

impl SystemStore {
    /// The file with all authorities.
    pub(super) fn bundle(&self) -> Option<PathBuf> {
        Some(self.bundle.clone()).filter(|bundle| bundle.is_file())
    }

    pub(super) fn is_installed(&self, authority: &Authority) -> bool {
        fs::read(self.file(authority)).is_ok_and(|known| known == authority.pem.as_bytes())
    }

    pub(super) fn change(
        &self,
        authority: &Authority,
        change: TrustChange,
        is_root: bool,
    ) -> Outcome {
        let file = self.file(authority);
        if !is_root {
            return Outcome::NeedsRoot(self.commands(authority, change));
        }
        let done = match change {
            TrustChange::Install => fs::write(&file, &authority.pem),
            TrustChange::Remove => fs::remove_file(&file),
        };
        let mut program = Command::new(&self.program);
        match (outcome(done, &file), run(program.args(self.options(change)))) {
            (Outcome::Done, Err(why)) => Outcome::Failed(why),
            (outcome, _) => outcome,
        }
    }

    /// The commands by which root does that.
    pub(super) fn commands(&self, authority: &Authority, change: TrustChange) -> Vec<String> {
        let (file, program) = (shell_word(&self.file(authority)), shell_word(&self.program));
        let first = match change {
            TrustChange::Install => {
                let from = authority.certificate_path();
                format!("sudo install -m 644 {} {file}", shell_word(&from))
            }
            TrustChange::Remove => format!("sudo rm {file}"),
        };
        let options = self.options(change).map(|option| format!(" {option}")).unwrap_or_default();
        vec![first, format!("sudo {program}{options}")]
    }

    /// Without `--fresh` the links to a certificate that is gone stay in /etc/ssl/certs.
    fn options(&self, change: TrustChange) -> Option<&'static str> {
        let is_debian = self.program.ends_with("update-ca-certificates");
        (is_debian && change == TrustChange::Remove).then_some("--fresh")
    }

    /// update-ca-certificates reads `.crt` only.
    fn file(&self, authority: &Authority) -> PathBuf {
        self.folder.join(format!("eyelet-local-ca-{}.crt", authority.id()))
    }
}

impl fmt::Display for SystemStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the system ({}): {}", self.system, self.folder.display())
    }
}
