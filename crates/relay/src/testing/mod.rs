//! Simulations and tests of the relay begin with these hellos and calls on sockets.
#![allow(clippy::expect_used, missing_docs)]

pub mod kernel;

use eyelet_wire::record::{HANDSHAKE, RecordHeader};
use eyelet_wire::version::TLS10;

/// A ClientHello (RFC 8446 section 4.1.2) in one record, with no extension but `server_name`.
pub fn client_hello(name: Option<&str>) -> Vec<u8> {
    let sized = |items: &[u8]| [&(items.len() as u16).to_be_bytes(), items].concat();
    let sni = name.map(|name| {
        let host_name = [&[0][..], &sized(name.as_bytes())].concat();
        [&[0, 0][..], &sized(&sized(&host_name))].concat()
    });
    let before = [&[3, 3][..], &[0x5a; 32], &[32], &[0x5b; 32]].concat();
    let suites = sized(&[0x13, 0x01]);
    let body = [&before[..], &suites, &[1, 0], &sized(&sni.unwrap_or_default())].concat();
    let message = [&[1, 0][..], &sized(&body)].concat();
    let len = message.len() as u16;
    let header = RecordHeader { content_type: HANDSHAKE, version: TLS10, len };
    [&header.to_bytes()[..], &message].concat()
}
