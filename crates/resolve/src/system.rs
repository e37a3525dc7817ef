//! The version of the system's hosts and resolvers that is in use. Resolvers that were made from
//! another one are made anew.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use eyelet_config::Dns;
use eyelet_sys::file::read_regular;

/// Most bytes of a file: hosts files that block advertisements have some megabytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A digest of the files.
pub struct SystemDns(AtomicU64);

impl Clone for SystemDns {
    fn clone(&self) -> Self {
        Self(AtomicU64::new(self.version()))
    }
}

impl SystemDns {
    /// Reads the files that `dns` uses.
    pub fn new(dns: &Dns) -> Self {
        Self(AtomicU64::new(digest(dns)))
    }

    /// Reads the files again, which is not for a worker. Returns whether they have changed.
    pub fn renew(&self, dns: &Dns) -> bool {
        let digest = digest(dns);
        self.0.swap(digest, Relaxed) != digest
    }

    /// Stands for the contents of the files.
    pub fn version(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

fn digest(dns: &Dns) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in dns.system_files() {
        // One that is missing has a digest, too.
        read_regular(Path::new(file), FILE_BYTES_MAX).ok().hash(&mut hasher);
    }
    hasher.finish()
}
