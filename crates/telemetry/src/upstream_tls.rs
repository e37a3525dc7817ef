//! The agreement of a TLS handshake with an upstream, as the access log shows it.

use std::borrow::Cow;

use serde::{Serialize, Serializer};

use eyelet_memory::interner::Heap;
use eyelet_wire::version;

/// The agreement of a TLS handshake with an upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct UpstreamTlsInfo {
    /// The code of the version.
    #[serde(serialize_with = "number")]
    pub version: u16,
    /// The cipher suite, by its name in the IANA registry.
    pub cipher_suite: Cow<'static, str>,
    /// The group of the key exchange, by its name there. A session of TLS 1.2 that was resumed has
    /// none.
    pub group: Option<Cow<'static, str>>,
    /// The protocol that the upstream chose by ALPN.
    pub alpn: Option<Box<str>>,
    /// True if an earlier session was resumed: the upstream has shown no certificate.
    pub resumed: bool,
}

impl Heap for UpstreamTlsInfo {
    fn heap_bytes(&self) -> usize {
        let name = |name: &Cow<'static, str>| match name {
            Cow::Borrowed(_) => 0,
            Cow::Owned(name) => name.capacity(),
        };
        name(&self.cipher_suite)
            + self.group.as_ref().map_or(0, name)
            + self.alpn.as_ref().map_or(0, |alpn| alpn.len())
    }
}

// serde passes fields by reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn number<S: Serializer>(code: &u16, to: S) -> Result<S::Ok, S::Error> {
    version::number(*code).serialize(to)
}
