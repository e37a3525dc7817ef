//! Who the process is, and what it may use: its descriptor limit, its CPUs.
//! It must not decide what follows from that.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The user whose rights the process has.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Raises the soft limit of open descriptors to the hard one and gives what is in force.
pub fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // A failure leaves the old soft limit, which is what is then read back.
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
