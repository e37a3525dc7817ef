//! An upstream connection that several resting exchanges share, in the form in which it moves to
//! another process. crates/handover/README.md describes the form.

use eyelet_h2::ParkedConnection;
use eyelet_upstream::http2::DetachedConnection;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::tls::{TlsV1, no_export};

/// The version of the form. It stands in the first byte.
const VERSION: u8 = 1;
/// Bytes of the longest name of an upstream that is read: a path of a Unix socket has 108.
pub const NAME_BYTES_MAX: usize = 512;

/// The form.
#[derive(Deserialize, Serialize)]
struct LinkV1<'a> {
    name: &'a str,
    #[serde(borrow)]
    tls: Option<TlsV1<'a>>,
    h2: &'a [u8],
}

/// The form of a connection, which holds secrets.
pub fn pack(connection: &DetachedConnection) -> Zeroizing<Vec<u8>> {
    let DetachedConnection { name, tls, h2 } = connection;
    let mut exported = no_export();
    let tls = tls.as_ref().map(|tls| TlsV1::of(tls, &mut exported));
    let form = LinkV1 { name, tls, h2: h2.as_bytes() };
    // The values are plain, so neither step can fail. An empty form would not be read.
    let len = postcard::experimental::serialized_size(&form).unwrap_or(0);
    let mut out = Zeroizing::new(vec![0; 1 + len]);
    out[0] = VERSION;
    if postcard::to_slice(&form, &mut out[1..]).is_err() {
        return Zeroizing::default();
    }
    out
}

/// Reads the form. `None`: no connection is such, or another version wrote it.
pub fn unpack(form: &[u8]) -> Option<DetachedConnection> {
    let form = form.strip_prefix(&[VERSION])?;
    let (LinkV1 { name, tls, h2 }, behind) = postcard::take_from_bytes(form).ok()?;
    let tls = match tls {
        Some(tls) => Some(tls.tls()?),
        None => None,
    };
    let is_open =
        tls.as_ref().is_none_or(|tls| !tls.session.write_closed() && !tls.session.read_closed());
    let is_whole = behind.is_empty() && name.len() <= NAME_BYTES_MAX && is_open;
    let h2 = ParkedConnection::from_bytes(h2).ok().filter(|_| is_whole)?;
    Some(DetachedConnection { name: name.into(), tls, h2 })
}
