//! Hellos captured from clients, see `testdata/README.md`.

use super::*;

struct Client {
    raw: &'static [u8],
    name: Option<&'static str>,
    alpn: &'static [&'static str],
    version_max: u16,
    key_shares: &'static [u16],
    ja4: &'static str,
}

const CLIENTS: &[Client] = &[
    Client {
        raw: include_bytes!("../../testdata/openssl-tls13.bin"),
        name: Some("openssl.eyelet.test"),
        alpn: &["h2", "http/1.1"],
        version_max: 0x0304,
        key_shares: &[29],
        ja4: "t13d3111h2_e8f1e7e78f70_1f22a2ca17c4",
    },
    Client {
        raw: include_bytes!("../../testdata/openssl-tls12.bin"),
        name: Some("openssl.eyelet.test"),
        alpn: &[],
        version_max: 0x0303,
        key_shares: &[],
        ja4: "t12d280700_d943125447b4_e7e480e5a997",
    },
    Client {
        raw: include_bytes!("../../testdata/openssl-no-name.bin"),
        name: None,
        alpn: &[],
        version_max: 0x0304,
        key_shares: &[29],
        ja4: "t13i310900_e8f1e7e78f70_1f22a2ca17c4",
    },
    Client {
        raw: include_bytes!("../../testdata/curl.bin"),
        name: Some("curl.eyelet.test"),
        alpn: &["h2", "http/1.1"],
        version_max: 0x0304,
        key_shares: &[29],
        ja4: "t13d3112h2_e8f1e7e78f70_b26ce05bbdd6",
    },
    Client {
        raw: include_bytes!("../../testdata/go.bin"),
        name: Some("go.eyelet.test"),
        alpn: &["h2", "http/1.1"],
        version_max: 0x0304,
        key_shares: &[0x11ec, 29],
        ja4: "t13d1312h2_f57a46bbacb6_ab7e3b40a677",
    },
    Client {
        raw: include_bytes!("../../testdata/node.bin"),
        name: Some("node.eyelet.test"),
        alpn: &["http/1.1"],
        version_max: 0x0304,
        key_shares: &[29],
        ja4: "t13d5911h1_a33745022dd6_1f22a2ca17c4",
    },
    Client {
        raw: include_bytes!("../../testdata/python.bin"),
        name: Some("python.eyelet.test"),
        alpn: &["http/1.1"],
        version_max: 0x0304,
        key_shares: &[29],
        ja4: "t13d1812h1_85036bcba153_d41ae481755e",
    },
    Client {
        raw: include_bytes!("../../testdata/java.bin"),
        name: Some("java.eyelet.test"),
        alpn: &["h2", "http/1.1"],
        version_max: 0x0304,
        key_shares: &[29, 23],
        ja4: "t13d3713h2_db35923f8641_7c76daad20ec",
    },
];

pub(super) fn raws() -> impl Iterator<Item = &'static [u8]> {
    CLIENTS.iter().map(|client| client.raw)
}

fn sha256(text: &[u8]) -> [u8; 32] {
    aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text).as_ref().try_into().unwrap()
}

#[test]
fn every_client_is_read() {
    for client in CLIENTS {
        let hello = hello(client.raw);
        let name = match hello.sni() {
            Sni::Absent => None,
            Sni::Name(name) => Some(&**name),
            Sni::Malformed(fault) => panic!("{:?}: {fault}", client.name),
        };
        assert_eq!(name, client.name);
        let alpn = hello.alpn().map(|p| format!("{p}")).collect::<Vec<_>>();
        assert_eq!(alpn, client.alpn, "{name:?}");
        assert_eq!(hello.version_max(), client.version_max, "{name:?}");
        assert_eq!(hello.key_share_groups().collect::<Vec<_>>(), client.key_shares, "{name:?}");
        assert_eq!(hello.raw_len(), client.raw.len(), "{name:?}");
        assert!(!hello.has_ech() && !hello.has_psk() && !hello.offers_compression());
        assert_eq!(crate::ja4::ja4(&hello, sha256).as_str(), client.ja4, "{name:?}");
    }
}
