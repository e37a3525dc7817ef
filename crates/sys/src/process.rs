//! The user of this process, its standard input, and its limit of open descriptors, raised as far
//! as allowed.

use std::fs::File;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The user whose rights the process has.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Closes the standard input. /dev/null takes its place, so that no other file gets its number.
pub fn close_stdin() -> io::Result<()> {
    Ok(rustix::stdio::dup2_stdin(File::open("/dev/null")?)?)
}

/// Raises the soft limit of open descriptors to the hard limit. Returns the limit in force.
pub fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // After a failure the old soft limit is read back.
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
