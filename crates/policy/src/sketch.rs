//! Writes a ClientHello from the facts that rules ask about, for `explain`, tests and benches. They
//! read it by the same reader as a peeked one. No handshake could use it.

use eyelet_wire::record::{HANDSHAKE, PLAINTEXT_BYTES_MAX, RecordHeader};
use eyelet_wire::version::{TLS10, TLS12, TLS13};

/// What the hello says.
#[derive(Clone, Copy, Debug)]
pub struct HelloSketch<'a> {
    /// The host_name of the SNI extension. Bytes, so that it may be malformed. `None`: no
    /// extension.
    pub sni: Option<&'a [u8]>,
    /// Protocols offered; empty: no ALPN extension.
    pub alpn: &'a [&'a [u8]],
    /// The highest version offered, as its code (0x0304 is TLS 1.3).
    pub version_max: u16,
    /// Whether there is an ECH extension.
    pub ech: bool,
    /// Whether DEFLATE compression (RFC 3749) is offered.
    pub compression: bool,
}

impl HelloSketch<'_> {
    /// A TLS 1.3 hello that asks for `name`.
    pub const fn named(name: &str) -> HelloSketch<'_> {
        HelloSketch {
            sni: Some(name.as_bytes()),
            alpn: &[],
            version_max: TLS13,
            ech: false,
            compression: false,
        }
    }

    /// The hello in TLS records, as a client would send it.
    pub fn to_records(&self) -> Vec<u8> {
        let message = [&[CLIENT_HELLO][..], &vector(3, &self.body())].concat();
        let record = |part: &[u8]| {
            let len = part.len() as u16;
            let header = RecordHeader { content_type: HANDSHAKE, version: TLS10, len };
            [&header.to_bytes(), part].concat()
        };
        message.chunks(PLAINTEXT_BYTES_MAX).flat_map(record).collect()
    }

    fn body(&self) -> Vec<u8> {
        let mut body = self.version_max.min(TLS12).to_be_bytes().to_vec();
        body.extend([0x5a; 32]); // random
        body.extend(vector(1, &[]));
        body.extend(vector(2, &[0x13, 0x01, 0xc0, 0x2b, 0xc0, 0x2f]));
        let methods: &[u8] = if self.compression { &[DEFLATE, 0] } else { &[0] };
        body.extend(vector(1, methods));
        body.extend(vector(2, &self.extensions()));
        body
    }

    fn extensions(&self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut push = |kind: u16, data: &[u8]| {
            all.extend(kind.to_be_bytes());
            all.extend(vector(2, data));
        };
        if let Some(name) = self.sni {
            let host_name = [&[0][..], &vector(2, name)].concat();
            push(SERVER_NAME, &vector(2, &host_name));
        }
        push(SUPPORTED_GROUPS, &vector(2, &X25519));
        push(SIGNATURE_ALGORITHMS, &vector(2, &[0x04, 0x03, 0x08, 0x04]));
        if !self.alpn.is_empty() {
            let names: Vec<u8> = self.alpn.iter().flat_map(|name| vector(1, name)).collect();
            push(ALPN, &vector(2, &names));
        }
        if self.version_max >= TLS13 {
            push(SUPPORTED_VERSIONS, &vector(1, &[0x03, 0x04, 0x03, 0x03]));
            let share = [&X25519[..], &vector(2, &[9; 32])].concat();
            push(KEY_SHARE, &vector(2, &share));
        }
        if self.ech {
            push(ENCRYPTED_CLIENT_HELLO, &ECH_OUTER);
        }
        all
    }
}

/// RFC 8446 section 3.4: a length of `width` bytes and then the items.
fn vector(width: usize, items: &[u8]) -> Vec<u8> {
    let len = (items.len() as u64).to_be_bytes();
    let len = len.get(len.len() - width..).unwrap_or(&[]);
    [len, items].concat()
}

/// RFC 8446 section 4.
const CLIENT_HELLO: u8 = 1;

/// RFC 3749 section 2.
const DEFLATE: u8 = 1;

/// RFC 8446 section 4.2, RFC 7301, RFC 9849.
const SERVER_NAME: u16 = 0;
const SUPPORTED_GROUPS: u16 = 10;
const SIGNATURE_ALGORITHMS: u16 = 13;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;
const KEY_SHARE: u16 = 51;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
const X25519: [u8; 2] = [0x00, 0x1d];

/// An outer ECHClientHello (RFC 9849 section 5): type 0, HKDF-SHA256 with AES-128-GCM,
/// config_id 7, an enc of one byte, a payload of one byte.
const ECH_OUTER: [u8; 12] = [0, 0, 1, 0, 1, 7, 0, 1, 0xaa, 0, 1, 0xbb];
