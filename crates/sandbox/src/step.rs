//! The steps of confining a command, and why one failed: which setting forbids it, and what to do.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Folders that are empty inside: sockets of services (D-Bus, Docker, name caches) are there, and
/// what programs of one user leave for each other.
pub(crate) const EMPTY: [&str; 3] = ["/run", "/var/run", "/tmp"];

/// A step. A command is started only after all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConfineStep {
    /// The process inside is started.
    Start,
    /// Its standard descriptors lead nowhere else.
    Descriptors,
    /// It moves into namespaces of its own.
    Namespaces,
    /// Its users are mapped.
    Users,
    /// Its loopback device takes every address.
    Network,
    /// Its sockets are made.
    Sockets,
    /// Everything else that leads out is hidden.
    Files,
    /// It sees its own processes only.
    Processes,
    /// Rights are dropped, and system calls filtered.
    Rights,
    /// The command is executed.
    Command,
}

impl ConfineStep {
    /// The failure, in words.
    fn text(self) -> &'static str {
        match self {
            Self::Start => "the process inside does not start",
            Self::Descriptors => "a standard descriptor leads out",
            Self::Namespaces => "no user namespace can be made",
            Self::Users => "the namespace's users cannot be mapped",
            Self::Network => "the namespace's loopback device cannot be set up",
            Self::Sockets => "the namespace's sockets cannot be made",
            Self::Files => "files that lead out cannot be hidden",
            Self::Processes => "/proc cannot be mounted anew",
            Self::Rights => "rights cannot be dropped",
            Self::Command => "cannot run the command",
        }
    }
}

/// The reason why a command was not started. Nothing of it ran.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}{}: {error}{}",
    step.text(),
    in_brackets(.about.as_deref()),
    advice(*step, .about.as_deref(), error)
)]
pub struct SandboxError {
    /// The step that failed.
    pub step: ConfineStep,
    /// The file or the port that it was about.
    pub about: Option<String>,
    /// The reason.
    pub error: io::Error,
}

impl SandboxError {
    /// A step that has failed.
    pub fn at(step: ConfineStep) -> impl Fn(io::Error) -> Self {
        move |error| Self { step, about: None, error }
    }

    /// A step that has failed at something.
    pub fn about(step: ConfineStep, about: impl ToString) -> impl FnOnce(io::Error) -> Self {
        move |error| Self { step, about: Some(about.to_string()), error }
    }
}

fn in_brackets(about: Option<&str>) -> String {
    about.map_or(String::new(), |about| format!(" ({about})"))
}

/// The number that a setting of the kernel has, if it has this one.
fn setting(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Says which setting forbids the step, and what to do about it.
fn advice(step: ConfineStep, about: Option<&str>, error: &io::Error) -> String {
    let is_forbidden = matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::StorageFull);
    match step {
        ConfineStep::Namespaces | ConfineStep::Users | ConfineStep::Network if is_forbidden => {
            forbidden().into()
        }
        ConfineStep::Processes if is_forbidden => {
            "\nThis looks like a container, whose /proc is covered in parts. Start the container \
             with `--security-opt systempaths=unconfined` (Docker, Podman), or with \
             `procMount: Unmasked` (Kubernetes)."
                .into()
        }
        ConfineStep::Command if error.kind() == ErrorKind::NotFound => {
            let program = Path::new(about.unwrap_or_default());
            let emptied = EMPTY.iter().find(|folder| program.starts_with(folder));
            emptied.map_or(String::new(), |folder| {
                format!(
                    "\n{folder} is empty inside, but for the folder in which this is started. \
                     Start it in the folder of the program, or keep the program elsewhere."
                )
            })
        }
        _ => String::new(),
    }
}

/// Says which setting forbids user namespaces on this machine.
fn forbidden() -> &'static str {
    if setting("/proc/sys/user/max_user_namespaces") == Some(0) {
        "\nuser.max_user_namespaces is 0. As root: `sysctl user.max_user_namespaces=10000`."
    } else if setting("/proc/sys/kernel/unprivileged_userns_clone") == Some(0) {
        "\nkernel.unprivileged_userns_clone is 0. As root: `sysctl \
         kernel.unprivileged_userns_clone=1`."
    } else if setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1) {
        "\nkernel.apparmor_restrict_unprivileged_userns is 1: AppArmor lets only programs with a \
         profile make user namespaces. As root: `sysctl \
         kernel.apparmor_restrict_unprivileged_userns=0`, or give this program a profile with \
         `userns,`."
    } else {
        "\nThis looks like a container whose seccomp profile forbids user namespaces. Start the \
         container with `--security-opt seccomp=unconfined` (Docker, Podman), or run this command \
         outside."
    }
}
