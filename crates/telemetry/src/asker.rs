//! Who asks a proxy, as far as rules have asked for it.

use eyelet_memory::interner::Heap;
use serde::Serialize;

/// Who asks a proxy. Serialized as the access log has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Asker {
    /// The user that the client has named, with a token that was right.
    #[serde(rename = "proxy_user")]
    pub user: Option<Box<str>>,
    /// The cgroup of the process at the other end of a Unix socket.
    #[serde(rename = "peer_cgroup")]
    pub cgroup: Option<Box<str>>,
}

impl Heap for Asker {
    fn heap_bytes(&self) -> usize {
        let Self { user, cgroup } = self;
        [user, cgroup].into_iter().flatten().map(|text| text.len()).sum()
    }
}
