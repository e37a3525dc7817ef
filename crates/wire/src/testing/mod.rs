//! Builds hellos and cuts them up, for the tests of this crate and for the fuzz targets.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[cfg(not(miri))] // It asks rustls, whose C miri does not run.
pub mod differential;
pub mod properties;

use std::vec;
use std::vec::Vec;

/// A vector with a one-byte length.
pub fn vec8(items: impl AsRef<[u8]>) -> Vec<u8> {
    let items = items.as_ref();
    let mut out = vec![u8::try_from(items.len()).unwrap()];
    out.extend(items);
    out
}

/// A vector with a two-byte length.
pub fn vec16(items: impl AsRef<[u8]>) -> Vec<u8> {
    let items = items.as_ref();
    let mut out = u16::try_from(items.len()).unwrap().to_be_bytes().to_vec();
    out.extend(items);
    out
}

pub fn u16s(values: &[u16]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_be_bytes()).collect()
}

pub fn ext(extension_type: u16, body: impl AsRef<[u8]>) -> Vec<u8> {
    [extension_type.to_be_bytes().to_vec(), vec16(body)].concat()
}

/// One `host_name` item.
pub fn host_name(name: impl AsRef<[u8]>) -> Vec<u8> {
    [vec![0], vec16(name)].concat()
}

/// A `server_name` extension with this name.
pub fn sni(name: impl AsRef<[u8]>) -> Vec<u8> {
    ext(0, vec16(host_name(name)))
}

pub fn alpn(names: &[&[u8]]) -> Vec<u8> {
    ext(16, vec16(names.iter().flat_map(vec8).collect::<Vec<_>>()))
}

pub fn versions(values: &[u16]) -> Vec<u8> {
    ext(43, vec8(u16s(values)))
}

pub fn signature_algorithms(values: &[u16]) -> Vec<u8> {
    ext(13, vec16(u16s(values)))
}

pub fn key_shares(shares: &[(u16, usize)]) -> Vec<u8> {
    let shares = shares.iter().flat_map(|(group, len)| [u16s(&[*group]), vec16(vec![7; *len])]);
    ext(51, vec16(shares.flatten().collect::<Vec<_>>()))
}

/// A well-formed extension of this type, with the smallest body that it may have.
pub fn any_ext(extension_type: u16) -> Vec<u8> {
    match extension_type {
        0 => sni("a.test"),
        5 => ext(5, [1, 0, 0, 0, 0]),
        10 => ext(10, vec16(u16s(&[29]))),
        11 | 45 => ext(extension_type, [1, 0]),
        13 => signature_algorithms(&[0x0403]),
        16 => alpn(&[b"h2"]),
        19 | 20 => ext(extension_type, [1, 0]),
        27 => ext(27, vec8(u16s(&[2]))),
        41 => {
            let identity = [vec16([1]), vec![0; 4]].concat();
            ext(41, [vec16(identity), vec16(vec8([0; 32]))].concat())
        }
        43 => versions(&[0x0304]),
        44 => ext(44, vec16([1])),
        47 => ext(47, vec16(vec16([1]))),
        51 => key_shares(&[(29, 32)]),
        58 => ext(58, [1, 1]),
        0xfd00 => ext(0xfd00, vec8(u16s(&[10]))),
        0xfe0d => ext(0xfe0d, [vec![0, 0, 1, 0, 1, 7], vec16([9; 32]), vec16([8; 144])].concat()),
        0xff01 => ext(0xff01, [0]),
        other => ext(other, []),
    }
}

/// The parts of a ClientHello before its extensions.
#[derive(Clone)]
pub struct Spec {
    pub legacy_version: u16,
    pub session_id: Vec<u8>,
    pub cipher_suites: Vec<u16>,
    pub compression_methods: Vec<u8>,
    pub extensions: Vec<Vec<u8>>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            legacy_version: 0x0303,
            session_id: vec![5; 32],
            cipher_suites: vec![0x1301, 0xc02b],
            compression_methods: vec![0],
            extensions: vec![sni("host.test"), signature_algorithms(&[0x0403])],
        }
    }
}

impl Spec {
    pub fn with(extensions: &[Vec<u8>]) -> Self {
        Self { extensions: extensions.to_vec(), ..Self::default() }
    }

    pub fn body(&self) -> Vec<u8> {
        [
            u16s(&[self.legacy_version]),
            vec![0x42; 32],
            vec8(&self.session_id),
            vec16(u16s(&self.cipher_suites)),
            vec8(&self.compression_methods),
            vec16(self.extensions.concat()),
        ]
        .concat()
    }

    /// The handshake message.
    pub fn message(&self) -> Vec<u8> {
        message(1, self.body())
    }

    /// The message in one record. It must fit one.
    pub fn raw(&self) -> Vec<u8> {
        record(self.message())
    }
}

/// A hello like a browser's of 2025: GREASE everywhere, X25519MLKEM768, GREASE ECH, a protocol
/// list.
pub fn browser() -> Spec {
    Spec {
        cipher_suites: vec![
            0x5a5a, 0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013,
            0xc014, 0x009c, 0x009d, 0x002f, 0x0035,
        ],
        extensions: vec![
            ext(0x1a1a, []),
            any_ext(0xfe0d),
            alpn(&[b"h2", b"http/1.1"]),
            ext(23, []),
            key_shares(&[(0xaaaa, 1), (0x11ec, 1216), (29, 32)]),
            any_ext(0xff01),
            ext(10, vec16(u16s(&[0xaaaa, 0x11ec, 29, 23, 24]))),
            signature_algorithms(&[0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601]),
            ext(35, []),
            versions(&[0x6a6a, 0x0304, 0x0303]),
            any_ext(11),
            any_ext(45),
            sni("Www.Browser.Test"),
            any_ext(5),
            any_ext(27),
            ext(18, []),
            ext(0x2a2a, [0]),
        ],
        ..Spec::default()
    }
}

pub fn message(message_type: u8, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let len = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[message_type], &len[1..], body].concat()
}

pub fn record(payload: impl AsRef<[u8]>) -> Vec<u8> {
    typed_record(22, payload)
}

pub fn typed_record(content_type: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    [vec![content_type, 3, 1], vec16(payload)].concat()
}

/// The stream in records of these lengths; the rest follows in one or more.
pub fn records(stream: &[u8], lens: &[usize]) -> Vec<u8> {
    let mut rest = stream;
    let mut raw = Vec::new();
    let mut lens = lens.iter().copied();
    while !rest.is_empty() {
        let len = lens.next().unwrap_or(usize::MAX).clamp(1, 1 << 14).min(rest.len());
        let (front, back) = rest.split_at(len);
        raw.extend(record(front));
        rest = back;
    }
    raw
}
