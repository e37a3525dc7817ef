//! Writes ClientHellos (RFC 8446 4.1.2, RFC 5246 7.4.1.2) that no TLS library writes: old versions,
//! TLS compression, no key share, odd names, several records.

use eyelet_wire::record::{HANDSHAKE, RecordHeader};

/// `server_name` (RFC 6066 section 3).
const SERVER_NAME: u16 = 0;
/// `supported_groups` (RFC 8446 4.2.7).
const SUPPORTED_GROUPS: u16 = 10;
/// `ec_point_formats` (RFC 8422 5.1.2).
const EC_POINT_FORMATS: u16 = 11;
/// `signature_algorithms` (RFC 8446 4.2.3).
const SIGNATURE_ALGORITHMS: u16 = 13;
/// `supported_versions` (RFC 8446 4.2.1).
const SUPPORTED_VERSIONS: u16 = 43;
/// `key_share` (RFC 8446 4.2.8).
pub const KEY_SHARE: u16 = 51;
/// `renegotiation_info` (RFC 5746 3.2).
pub const RENEGOTIATION_INFO: u16 = 0xff01;

/// TLS 1.3 suites, then those of TLS 1.2 and before that servers still have.
const SUITES_13: &[u16] = &[0x1301, 0x1302, 0x1303];
const SUITES_12: &[u16] = &[
    0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0x009e, 0x009f, 0x009c, 0x009d, 0xc009, 0xc013,
    0xc00a, 0xc014, 0x0033, 0x0039, 0x002f, 0x0035, 0x000a,
];
/// ECDSA, RSA-PSS, Ed25519, RSA, and SHA-1 for servers of before 2010.
const SIGNATURES: &[u16] = &[
    0x0403, 0x0503, 0x0603, 0x0804, 0x0805, 0x0806, 0x0807, 0x0401, 0x0501, 0x0601, 0x0203, 0x0201,
];
/// X25519MLKEM768, X25519, P-256, P-384, P-521.
pub const GROUPS: &[u16] = &[0x11ec, 0x001d, 0x0017, 0x0018, 0x0019];

/// The contents of a hello.
#[derive(Clone, Debug)]
pub struct ClientHello<'a> {
    /// The highest version; no other is offered.
    pub version: u16,
    /// The name; `None` for no `server_name`.
    pub name: Option<&'a str>,
    /// Compression methods, in order. 1 is DEFLATE (RFC 3749).
    pub compression: &'a [u8],
    /// Groups of TLS 1.3; without a key share, so that the server chooses by a HelloRetryRequest.
    pub groups: &'a [u16],
    /// 32 bytes: the random and the session id.
    pub random: [u8; 32],
}

impl ClientHello<'_> {
    /// The handshake message.
    pub fn message(&self) -> Vec<u8> {
        let is_13 = self.version >= 0x0304;
        let suites = if is_13 { SUITES_13 } else { SUITES_12 };
        let mut body = self.version.min(0x0303).to_be_bytes().to_vec();
        body.extend(self.random);
        body.extend(vec8(if is_13 { &self.random } else { &[] }));
        body.extend(vec16(&numbers(suites)));
        body.extend(vec8(self.compression));
        body.extend(vec16(&self.extensions(is_13)));
        let length = (body.len() as u32).to_be_bytes();
        [&[1, length[1], length[2], length[3]], &*body].concat()
    }

    fn extensions(&self, is_13: bool) -> Vec<u8> {
        let mut extensions = Vec::new();
        if let Some(name) = self.name {
            let name = [&[0], &*vec16(name.as_bytes())].concat();
            extensions.extend(extension(SERVER_NAME, &vec16(&name)));
        }
        let groups: Vec<u16> = match is_13 {
            true => self.groups.to_vec(),
            false => self.groups.iter().copied().filter(|group| *group < 0x0100).collect(),
        };
        extensions.extend(extension(SUPPORTED_GROUPS, &vec16(&numbers(&groups))));
        extensions.extend(extension(SIGNATURE_ALGORITHMS, &vec16(&numbers(SIGNATURES))));
        if is_13 {
            extensions.extend(extension(SUPPORTED_VERSIONS, &vec8(&self.version.to_be_bytes())));
            extensions.extend(extension(KEY_SHARE, &vec16(&[])));
        } else {
            extensions.extend(extension(EC_POINT_FORMATS, &[1, 0]));
            extensions.extend(extension(RENEGOTIATION_INFO, &[0]));
        }
        extensions
    }

    /// The message in records of at most `piece` bytes.
    pub fn records(&self, piece: usize) -> Vec<u8> {
        let message = self.message();
        let record = |part: &[u8]| {
            let len = part.len() as u16;
            let header = RecordHeader { content_type: HANDSHAKE, version: 0x0301, len };
            [&header.to_bytes(), part].concat()
        };
        message.chunks(piece).flat_map(record).collect()
    }
}

fn extension(number: u16, body: &[u8]) -> Vec<u8> {
    [&number.to_be_bytes(), &*vec16(body)].concat()
}

fn numbers(values: &[u16]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_be_bytes()).collect()
}

fn vec8(bytes: &[u8]) -> Vec<u8> {
    [&[bytes.len() as u8], bytes].concat()
}

fn vec16(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes(), bytes].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyelet_wire::hello::{HelloReader, Peek};

    /// The strict reader of the edge takes each of them, however it is cut.
    #[test]
    fn our_reader_takes_them() {
        for version in [0x0301, 0x0302, 0x0303, 0x0304] {
            let hello = ClientHello {
                version,
                name: Some("www.example"),
                compression: if version < 0x0304 { &[1, 0] } else { &[0] },
                groups: GROUPS,
                random: [7; 32],
            };
            for piece in [1 << 14, 64] {
                let records = hello.records(piece);
                let mut reader = HelloReader::new(1 << 16);
                let Peek::Hello(read) = reader.feed(&records) else { panic!("{version:x}") };
                assert_eq!(read.version_max(), version);
                assert_eq!(read.offers_compression(), version < 0x0304);
            }
        }
    }
}
