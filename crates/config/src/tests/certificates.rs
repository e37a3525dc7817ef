//! Terminate rules with real certificate files, valid and invalid. Each test has its own folder,
//! which is removed after it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use eyelet_wire::version::Version;
use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use super::*;
use eyelet_pki::certificate::{self, CertificateError};

/// A folder that is removed when dropped.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("eyelet-config-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        // Some of the files are keys.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// `name.pem` and `name.key` for these names.
    pub(super) fn issue(&self, name: &str, names: &[&str]) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        self.issue_with(name, CertificateParams::new(names).unwrap());
    }

    pub(super) fn issue_with(&self, name: &str, params: CertificateParams) {
        self.issue_for(name, params, KeyPair::generate().unwrap());
    }

    /// A certificate with a key of another type than the others have.
    fn issue_p384(&self, name: &str, names: &[&str]) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        self.issue_for(name, CertificateParams::new(names).unwrap(), key);
    }

    fn issue_for(&self, name: &str, params: CertificateParams, key: KeyPair) {
        let certificate = params.self_signed(&key).unwrap();
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    pub(super) fn read(&self, depth: Depth, rules: &str) -> Result<Loaded, Vec<Diagnostic>> {
        let text = format!("{LISTENER}{rules}");
        parse(&self.0.join("edge.toml"), &text, depth, SystemTime::now())
    }

    /// The messages of `check`, without the folder.
    pub(super) fn said(&self, rules: &str) -> Vec<String> {
        let found = match self.read(Depth::Full, rules) {
            Ok(loaded) => said(&loaded.warnings),
            Err(diagnostics) => said(&diagnostics),
        };
        let folder = format!("{}/", self.0.display());
        found.iter().map(|line| line.replace(&folder, "")).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn terminate(sni: &str, certificate: &str, key: &str, more: &str) -> String {
    format!(
        "[[rule]]\nsni = {sni}\naction = \"terminate\"\ncertificate = {certificate}\nkey = {key}\n\
         upstream = \"http://127.0.0.1:3000\"\n{more}\n"
    )
}

#[test]
fn a_terminate_rule() {
    let folder = Folder::new();
    folder.issue("app", &["app.example", "*.app.example"]);
    folder.issue_p384("two", &["app.example", "*.app.example"]);
    let certificates = "[\"app.pem\", \"two.pem\"]";
    let sni = "[\"app.example\", \"*.app.example\", \"x.app.example\", \"\"]";
    let more = "client_ca = \"app.pem\"\ntls_version_min = \"1.3\"\nproxy_protocol = \"v2\"";
    let text = terminate(sni, certificates, "[\"app.key\", \"two.key\"]", more);
    assert_eq!(folder.said(&text), [""; 0]);
    let loaded = folder.read(Depth::Files, &text).unwrap();
    let files = |name: &str| CertificateFiles {
        certificate: folder.0.join(format!("{name}.pem")),
        key: folder.0.join(format!("{name}.key")),
    };
    let host = Host::Ip("127.0.0.1".parse().unwrap());
    let upstream = TerminateUpstream::Http(HttpUpstream {
        address: HttpAddress::Tcp(HostPort { host, port: 3000 }),
        tls: None,
        http2: UpstreamHttp2::Alpn,
        chosen: None,
    });
    let expected = Terminate {
        alpn_select: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        client_ca: Some(folder.0.join("app.pem")),
        tls_version_min: Version::Tls13,
        proxy_protocol: Some(ProxyProtocol::V2),
        ..Terminate::to(upstream)
    };
    let rule = loaded.config.rules.at(0);
    assert_eq!(*rule.action, Action::Terminate(expected));
    let shown = loaded.config.rules.certificates(rule.certificates_number);
    assert_eq!(shown.collect::<Vec<_>>(), [files("app"), files("two")]);
    assert!(loaded.config.policy.asks_hello());
}

#[test]
fn what_a_terminate_rule_negotiates() {
    let folder = Folder::new();
    folder.issue("app", &["app.example"]);
    let select = |upstream: &str, more: &str| -> Vec<String> {
        let text = terminate("\"app.example\"", "\"app.pem\"", "\"app.key\"", more);
        let text = text.replace("http://127.0.0.1:3000", upstream);
        let loaded = folder.read(Depth::Files, &text).unwrap();
        let Action::Terminate(terminate) = loaded.config.rules.at(0).action else { panic!() };
        terminate.alpn_select.iter().map(|p| String::from_utf8(p.clone()).unwrap()).collect()
    };
    let none: Vec<String> = vec![];
    assert_eq!(select("tcp://a:1", ""), none);
    assert_eq!(select("unix:/run/a.sock", ""), none);
    assert_eq!(select("http://a:1/", ""), ["h2", "http/1.1"]);
    assert_eq!(select("http://a:1", "alpn_select = []"), none);
    assert_eq!(select("http://a:1", "alpn = [\"x\", \"h2\"]"), ["x", "h2"]);
    assert_eq!(select("tcp://a:1", "alpn = [\"x\"]\nalpn_select = \"y\""), ["y"]);
}

#[test]
fn certificates_that_cannot_be_used() {
    let folder = Folder::new();
    folder.issue("app", &["app.example"]);
    folder.issue("other", &["app.example"]);
    folder.write("empty.pem", "");
    folder.write("broken.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n");
    folder.write(
        "encrypted.key",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n\
        -----END ENCRYPTED PRIVATE KEY-----\n",
    );
    folder.write("odd.key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    for (certificate, key, expected) in [
        ("no.pem", "app.key", "6:15: cannot read no.pem: No such file or directory (os error 2)"),
        ("app.pem", "no.key", "7:7: cannot read no.key: No such file or directory (os error 2)"),
        (
            "no.pem",
            "no.key",
            "6:15: cannot read no.pem: No such file or directory (os error 2)\n\
             6:15: warning: to try the rule without files, write `certificate = \"local\"` and no \
             `key`\n\
             7:7: cannot read no.key: No such file or directory (os error 2)",
        ),
        (
            "app.pem",
            "other.key",
            "7:7: the key in other.key does not fit the certificate in app.pem; expected the key \
             that it was issued for",
        ),
        (
            "app.key",
            "app.pem",
            "6:15: app.key has no certificate; expected \"-----BEGIN CERTIFICATE-----\", and it \
             holds a key: are `certificate` and `key` swapped?\n\
             7:7: app.pem has no private key; expected PKCS#8, SEC1 or PKCS#1 in PEM",
        ),
        (
            "empty.pem",
            "app.key",
            "6:15: empty.pem has no certificate; expected \"-----BEGIN CERTIFICATE-----\"",
        ),
        (
            "app.pem",
            "app.pem",
            "7:7: app.pem has no private key; expected PKCS#8, SEC1 or PKCS#1 in PEM",
        ),
        (
            "app.pem",
            "encrypted.key",
            "7:7: the key in encrypted.key is encrypted; decrypt it: openssl pkey -in \
             encrypted.key -out plain.key",
        ),
        (
            "app.pem",
            "odd.key",
            "7:7: odd.key: not a key that can sign: expected RSA of 2048 to 8192 bits, ECDSA on \
             P-256, P-384 or P-521, or Ed25519",
        ),
    ] {
        let (certificate, key) = (format!("{certificate:?}"), format!("{key:?}"));
        let text = terminate("\"app.example\"", &certificate, &key, "");
        assert_eq!(folder.said(&text).join("\n"), expected, "{certificate} {key}");
    }
    let broken = folder.said(&terminate("\"app.example\"", "\"broken.pem\"", "\"app.key\"", ""));
    assert!(broken[0].starts_with("6:15: broken.pem: broken PEM: "), "{broken:?}");
    // `serve` only checks at start that the files exist; `check` finds the mistake.
    let text = terminate("\"app.example\"", "\"app.pem\"", "\"other.key\"", "");
    assert!(folder.read(Depth::Files, &text).is_ok());
}

/// A swapped pair is one mistake: its certificate stands where the key should.
#[test]
fn a_file_without_a_key_is_not_called_a_key() {
    let folder = Folder::new();
    folder.issue("app", &["app.example"]);
    let readable = |name: &str| {
        fs::set_permissions(folder.0.join(name), fs::Permissions::from_mode(0o644)).unwrap();
    };
    let warns = |certificate: &str, key: &str| {
        let said = folder.said(&terminate("\"app.example\"", certificate, key, ""));
        said.iter().any(|line| line.contains("others may read"))
    };
    readable("app.pem");
    assert!(!warns("\"app.key\"", "\"app.pem\""));
    readable("app.key");
    assert!(warns("\"app.pem\"", "\"app.key\""));
}

#[test]
fn the_hint_at_local_comes_only_where_it_helps() {
    let folder = Folder::new();
    folder.issue("app", &["app.example"]);
    folder.write("names.txt", "app.example\n");
    // Below a file there is none, and this is another error than that there is none.
    for (sni, certificate, has_hint) in [
        ("[\"*.app.example\", \"\"]", "no.pem", true),
        ("\"app.example\"", "app.pem/no.pem", false),
        ("[\"app.example\", \"bank.com\"]", "no.pem", false),
        ("\"*.com\"", "no.pem", false),
        ("{ file = \"names.txt\" }", "no.pem", false),
    ] {
        let certificate = format!("{certificate:?}");
        let said = folder.said(&terminate(sni, &certificate, "\"no.key\"", "")).join("\n");
        assert_eq!(said.contains("to try the rule without files"), has_hint, "{sni}: {said}");
        assert!(said.contains("cannot read "), "{sni}: {said}");
    }
}

#[test]
fn the_breach_rule_is_turned_on_off_or_opened() {
    let folder = Folder::new();
    folder.issue("app", &["app.example"]);
    let with =
        |more: &str| folder.said(&terminate("\"app.example\"", "\"app.pem\"", "\"app.key\"", more));
    let none: [&str; 0] = [];
    assert_eq!(with("breach_allow = [\"same-site\", \"navigation\"]"), none);
    assert_eq!(with("dictionary = \"/a/*/{file}\"\ndictionary_shared = true"), none);
    for (more, expected) in [
        (
            "compress = \"off\"\nbreach_rule = \"on\"",
            "10:1: `breach_rule` means nothing with `compress = \"off\"`",
        ),
        (
            "compress = \"off\"\nbreach_rule = \"off\"",
            "10:1: `breach_rule` means nothing with `compress = \"off\"`",
        ),
        (
            "compress = \"off\"\nbreach_allow = \"same-site\"",
            "10:1: `breach_allow` means nothing with `compress = \"off\"`",
        ),
        (
            "breach_rule = \"off\"\nbreach_allow = \"navigation\"",
            "10:1: `breach_allow` means nothing with `breach_rule = \"off\"`",
        ),
        (
            "dictionary = [\"/a/*/{file}\", \"/b/*\"]\ndictionary_shared = true",
            "10:1: `dictionary_shared` needs a `dictionary` whose patterns have {file}",
        ),
        (
            "dictionary_shared = true",
            "9:1: `dictionary_shared` needs a `dictionary` whose patterns have {file}",
        ),
        (
            "breach_allow = \"cross-site\"",
            "9:16: \"cross-site\": expected \"navigation\" or \"same-site\"",
        ),
    ] {
        assert_eq!(with(more), [expected], "{more}");
    }
}

#[test]
fn a_certificate_and_its_key_come_together() {
    let folder = Folder::new();
    let one = |key: &str| {
        let rule = "[[rule]]\naction = \"terminate\"\nupstream = \"http://127.0.0.1:3000\"\n";
        folder.said(&format!("{rule}{key}\n"))
    };
    assert_eq!(
        one("key = \"app.key\""),
        ["3:1: a terminate rule needs a `certificate` for its `key`, such as \"app.pem\""]
    );
    folder.issue("app", &["app.example"]);
    assert_eq!(
        one("certificate = \"app.pem\""),
        ["3:1: a terminate rule needs a `key` for its `certificate`, such as \"app.key\""]
    );
}

#[test]
fn a_certificate_that_no_client_gets_is_said() {
    let folder = Folder::new();
    ["one", "two"].iter().for_each(|name| folder.issue(name, &["app.example"]));
    folder.issue_p384("other", &["app.example"]);
    let with = |names: &[&str]| {
        let list = |end: &str| {
            let files: Vec<String> = names.iter().map(|it| format!("\"{it}.{end}\"")).collect();
            format!("[{}]", files.join(", "))
        };
        folder.said(&terminate("\"app.example\"", &list("pem"), &list("key"), ""))
    };
    assert!(with(&["one", "other"]).is_empty(), "P-256 and P-384 are two types");
    let told = "warning: no client gets two.pem: the key of one.pem is of the same type, and it \
                comes first";
    assert_eq!(with(&["one", "other", "two"]), [format!("6:40: {told}")]);
    assert_eq!(with(&["one", "one"]), ["6:27: warning: one.pem is in the list twice"]);
}

/// Lists of clients and of upstreams are read by `crl_expired`.
#[test]
fn a_word_that_is_read_twice_is_wrong_once() {
    let folder = Folder::new();
    folder.issue("app", &["app.example"]);
    let lists = "client_ca = \"no.pem\"\nclient_crl = \"no.crl\"\ncrl_expired = \"ignore\"";
    assert_eq!(
        folder.said(&terminate("\"app.example\"", "\"app.pem\"", "\"app.key\"", lists)),
        [
            "9:13: cannot read no.pem: No such file or directory (os error 2)",
            "10:14: cannot read no.crl: No such file or directory (os error 2)",
            "11:15: \"ignore\" is no answer; expected \"accept\" or \"refuse\"",
        ]
    );
}

#[test]
fn keys_of_terminate_rules() {
    let folder = Folder::new();
    folder.issue("app", &["app.example"]);
    let with = |certificate: &str, key: &str, more: &str| {
        folder.said(&terminate("\"app.example\"", certificate, key, more))
    };
    assert_eq!(
        with("[\"app.pem\", \"app.pem\"]", "\"app.key\"", ""),
        ["7:7: 1 key for 2 certificates; expected one key a certificate, in the same order"]
    );
    assert_eq!(
        with("\"app.pem\"", "\"app.key\"", "client_ca = \"no.pem\"\ntls_version_min = \"1.1\""),
        [
            "9:13: cannot read no.pem: No such file or directory (os error 2)",
            "10:19: TLS 1.1 is not spoken; expected \"1.2\" or \"1.3\"",
        ]
    );
    assert_eq!(
        folder.said("[[rule]]\naction = \"terminate\"\n"),
        [
            "3:1: a terminate rule needs a certificate: \"local\" (signed here), \"acme\" \
             (ordered), \"spiffe\", or \"app.pem\" with `key = \"app.key\"`",
            "3:1: a terminate rule needs an `upstream`, such as \"http://127.0.0.1:3000\"",
        ]
    );
    for (upstream, expected) in [
        (
            "{sni}:80",
            "{sni} in the upstream of a terminate rule would let a client choose where \
            its plaintext goes; it is for splice rules",
        ),
        ("https://a", "\"https://a\" has no port; expected one as in \"https://a:443\""),
        (
            "http+unix:a",
            "\"http+unix:a\" needs an absolute path, as in \"http+unix:/run/app.sock\"",
        ),
        (
            "a:443",
            "\"a:443\" has no scheme; a terminate rule expects tcp://host:port, unix:/path, \
            http://host:port, https://host:port or http+unix:/path",
        ),
        (
            "ftp://a:1",
            "\"ftp://\" is not a scheme of an upstream; expected tcp://host:port, unix:/path, \
            http://host:port, https://host:port or http+unix:/path",
        ),
        ("http://a", "\"http://a\" has no port; expected one as in \"http://a:80\""),
        (
            "http://a:80/x",
            "\"http://a:80/x\": requests are passed on with their own path; \
            expected only http://host:port",
        ),
        ("unix:///a", "\"unix:///a\": the path follows the colon at once; expected \"unix:/a\""),
        ("unix:a", "\"unix:a\" needs an absolute path, as in \"unix:/run/app.sock\""),
        (
            "tcp://0.0.0.0:1",
            "\"0.0.0.0:1\" is not an address that can be dialled; expected one \
            as in \"127.0.0.1:1\"",
        ),
    ] {
        let text = terminate("\"app.example\"", "\"app.pem\"", "\"app.key\"", "");
        let found = folder.said(&text.replace("http://127.0.0.1:3000", upstream));
        assert_eq!(found, [format!("8:12: {expected}")], "{upstream}");
    }
}

#[test]
fn certificates_that_are_odd() {
    let folder = Folder::new();
    folder.issue("app", &["app.example", "*.app.example"]);
    let mut old = CertificateParams::new(["app.example".to_owned()]).unwrap();
    old.not_before = date_time_ymd(2001, 1, 1);
    old.not_after = date_time_ymd(2002, 2, 3);
    folder.issue_with("old", old);
    let mut early = CertificateParams::new(["app.example".to_owned()]).unwrap();
    early.not_before = date_time_ymd(2999, 1, 1);
    early.not_after = date_time_ymd(3000, 2, 3);
    folder.issue_with("early", early);
    let said = |sni: &str, name: &str| {
        folder.said(&terminate(sni, &format!("\"{name}.pem\""), &format!("\"{name}.key\""), ""))
    };
    for (name, fault) in [
        ("old", "expired on 2002-02-03T00:00:00Z"),
        ("early", "is not valid before 2999-01-01T00:00:00Z"),
    ] {
        let found = said("\"app.example\"", name);
        let warning = format!(
            "6:15: warning: the certificate in {name}.pem {fault}; this machine's clock says "
        );
        assert!(found.len() == 1 && found[0].starts_with(&warning), "{found:?}");
    }
    for (name, days, warns) in [("soon", 13, true), ("later", 15, false)] {
        let mut params = CertificateParams::new(["app.example".to_owned()]).unwrap();
        params.not_after = (SystemTime::now() + Duration::from_hours(24 * days)).into();
        folder.issue_with(name, params);
        let found = said("\"app.example\"", name);
        let warning = format!("6:15: warning: the certificate in {name}.pem expires on ");
        assert_eq!(found.iter().any(|line| line.starts_with(&warning)), warns, "{found:?}");
        assert_eq!(found.len(), usize::from(warns), "{found:?}");
    }
    assert_eq!(
        said("[\"app.example\", \"b.example\", \"x.y.app.example\", \"*.b.example\"]", "app"),
        ["6:15: warning: the certificate does not cover b.example, x.y.app.example, \
          *.b.example; it is for app.example, *.app.example"]
    );
}

#[test]
fn keys_of_every_kind_are_read() {
    let folder = Folder::new();
    for (name, algorithm) in [
        ("p256", &rcgen::PKCS_ECDSA_P256_SHA256),
        ("p384", &rcgen::PKCS_ECDSA_P384_SHA384),
        ("ed25519", &rcgen::PKCS_ED25519),
        ("rsa", &rcgen::PKCS_RSA_SHA256),
    ] {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let params = CertificateParams::new(["App.example".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        folder.write("a.pem", &certificate.pem());
        folder.write("a.key", &key.serialize_pem());
        let files =
            CertificateFiles { certificate: folder.0.join("a.pem"), key: folder.0.join("a.key") };
        let loaded = certificate::load(&files).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!(certificate::names(&loaded.certified.cert[0]), ["app.example"]);
    }
    let files =
        CertificateFiles { certificate: folder.0.join("none.pem"), key: folder.0.join("a.key") };
    assert!(matches!(certificate::load(&files), Err(CertificateError::Unreadable { .. })));
}

/// A mounted secret: a link above both files is replaced, at any moment of a reading.
#[test]
fn a_pair_that_is_replaced_while_it_is_read_is_whole() {
    const ROUNDS: usize = 200;
    let folder = Folder::new();
    let at = |name: &str| folder.0.join(name);
    for version in ["one", "two"] {
        fs::create_dir(at(version)).unwrap();
        folder.issue(&format!("{version}/app"), &["app.example"]);
    }
    symlink("one", at("data")).unwrap();
    let files = CertificateFiles { certificate: at("data/app.pem"), key: at("data/app.key") };
    let (begins, mut faults) = (Barrier::new(2), Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                let to = ["two", "one"][round % 2];
                symlink(to, at("new")).unwrap();
                begins.wait();
                // Later each round: at some of them one file was read and the other was not.
                (0..10 * round).for_each(|_| std::hint::spin_loop());
                fs::rename(at("new"), at("data")).unwrap();
                begins.wait();
            }
        });
        for _ in 0..ROUNDS {
            begins.wait();
            faults.extend(certificate::load(&files).err());
            begins.wait();
        }
    });
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
fn upstreams_with_http() {
    let folder = Folder::new();
    folder.issue("app", &["app.example"]);
    let upstream = |upstream: &str, more: &str| {
        let text = terminate("\"app.example\"", "\"app.pem\"", "\"app.key\"", more);
        folder.read(Depth::Files, &text.replace("http://127.0.0.1:3000", upstream)).map(|loaded| {
            let Action::Terminate(terminate) = loaded.config.rules.at(0).action else { panic!() };
            let TerminateUpstream::Http(http) = &terminate.upstream else { panic!() };
            (http.clone(), terminate.upstream_wait)
        })
    };
    let tls = |name: &str, ca: Option<&str>| {
        Some(UpstreamTls {
            name: name.to_owned(),
            files: UpstreamFiles { ca: ca.map(|ca| folder.0.join(ca)), ..Default::default() },
        })
    };
    for (text, more, address, expected, wait) in [
        ("http+unix:/run/a.sock", "", "unix:/run/a.sock", None, 0),
        ("http://a.internal:80", "upstream_wait = \"10s\"", "a.internal:80", None, 10),
        ("https://a.internal:443/", "", "a.internal:443", tls("a.internal", None), 0),
        (
            "https://[::1]:8443",
            "upstream_ca = \"app.pem\"\nupstream_name = \"B.internal\"",
            "[::1]:8443",
            tls("b.internal", Some("app.pem")),
            0,
        ),
    ] {
        let (http, held) = upstream(text, more).unwrap();
        assert_eq!(http.address.to_string(), address);
        assert_eq!((http.tls, held), (expected, Duration::from_secs(wait)), "{text}");
        assert_eq!(http.http2, UpstreamHttp2::Alpn, "{text}");
    }
    for (more, expected) in [
        ("upstream_http2 = \"alpn\"", UpstreamHttp2::Alpn),
        ("upstream_http2 = \"on\"", UpstreamHttp2::On),
        ("upstream_http2 = \"off\"", UpstreamHttp2::Off),
    ] {
        assert_eq!(upstream("http://a:1", more).unwrap().0.http2, expected, "{more}");
    }
    for (text, more, expected) in [
        ("http://a:1", "upstream_ca = \"app.pem\"", "this is for https:// upstreams"),
        ("tcp://a:1", "upstream_wait = \"11m\"", "out of bounds"),
        ("tcp://a:1", "upstream_http2 = \"on\"", "this is for upstreams with HTTP"),
        ("http://a:1", "upstream_http2 = \"h2\"", "expected \"alpn\", \"on\" or \"off\""),
        ("https://a:1", "upstream_name = \"-\"", "\"-\": "),
        ("https://a:1", "upstream_key = \"app.key\"", "belong together"),
        (
            "http://a:1",
            "upstream_certificate = \"app.pem\"\nupstream_key = \"app.key\"",
            "asks for none",
        ),
        ("https://a:1", "upstream_wait = \"11m\"", "out of bounds"),
    ] {
        let found = format!("{:?}", upstream(text, more).unwrap_err());
        assert!(found.contains(&expected.replace('"', "\\\"")), "{text}: {found}");
    }
}

#[test]
fn bounds_of_http() {
    let folder = Folder::new();
    let text = "[http]\nhead_timeout = \"1s\"\nbody_timeout = \"2s\"\nupstream_timeout = \"3s\"\n\
                http2_idle_timeout = \"4s\"\nhead_bytes_max = \"16KiB\"\n\
                trusted_proxies = \"10.0.0.0/8\"\n";
    let expected = HttpLimits {
        head_timeout: Duration::from_secs(1),
        body_timeout: Duration::from_secs(2),
        upstream_timeout: Duration::from_secs(3),
        http2_idle_timeout: Duration::from_secs(4),
        head_bytes_max: 16 << 10,
        headers: Vec::new(),
        trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()],
    };
    assert_eq!(folder.read(Depth::Files, text).unwrap().config.http, expected);
}

#[test]
fn http2_is_idle_for_as_long_as_others_if_nothing_else_is_said() {
    let folder = Folder::new();
    for (text, idle) in [
        ("", Limits::default().idle_timeout),
        ("[limits]\nidle_timeout = \"5s\"\n", Duration::from_secs(5)),
        (
            "[limits]\nidle_timeout = \"5s\"\n[http]\nhead_timeout = \"1s\"\n",
            Duration::from_secs(5),
        ),
        (
            "[limits]\nidle_timeout = \"5s\"\n[http]\nhttp2_idle_timeout = \"4s\"\n",
            Duration::from_secs(4),
        ),
    ] {
        let http = folder.read(Depth::Files, text).unwrap().config.http;
        assert_eq!(http.http2_idle_timeout, idle, "{text}");
    }
}

#[test]
fn a_rule_with_local_certificates() {
    let folder = Folder::new();
    let rule = |more: &str| {
        format!(
            "[[rule]]\naction = \"terminate\"\nupstream = \"tcp://a:1\"\n\
             certificate = \"local\"\n{more}\n"
        )
    };
    for (more, names) in [
        ("", LocalNames::Loopback),
        ("client = \"10.0.0.0/8\"", LocalNames::Loopback),
        ("sni = [\"app.test\", \"*.dev.localhost\", \"\"]", LocalNames::Listed),
        ("sni = \"a.corp.example.com\"\n[local]\npermit = \"example.com\"", LocalNames::Listed),
    ] {
        let loaded = folder.read(Depth::Full, &rule(more)).unwrap();
        assert!(loaded.warnings.is_empty(), "{more}: {:?}", loaded.warnings);
        let Action::Terminate(terminate) = loaded.config.rules.at(0).action else { panic!() };
        assert_eq!(terminate.certificates, CertificateSource::Local(names), "{more}");
    }
    for (more, expected) in [
        ("key = \"a.key\"", "leave `key` out"),
        ("sni = \"bank.com\"", "may not sign \"bank.com\": it is limited to localhost, test"),
        ("sni = \"*.com\"", "may not sign \"*.com\""),
        ("[local]\npermit = \"*.a.test\"", "no name and no network"),
        ("[local]\nfolders = \"x\"", "did you mean `folder`?"),
    ] {
        let said = folder.said(&rule(more)).join("\n");
        assert!(said.contains(expected), "{more}: {said}");
    }
    let listed = rule("").replace("\"local\"", "[\"local\"]\nkey = \"a.key\"");
    assert!(folder.said(&listed).join("\n").contains("stands alone"), "{:?}", folder.said(&listed));
    let loaded = folder.read(Depth::Full, &rule("[local]\nfolder = \"ca\"")).unwrap();
    assert_eq!(loaded.config.local.folder, Some(folder.0.join("ca")));
}

/// The certificate that an upstream is shown is a pair, and is checked as those for clients are.
#[test]
fn a_certificate_for_an_upstream_is_checked() {
    let folder = Folder::new();
    folder.issue("app", &["app.example"]);
    folder.issue("other", &["other.example"]);
    let read = |key: &str| {
        let more = format!("upstream_certificate = \"app.pem\"\nupstream_key = \"{key}\"");
        let text = terminate("\"app.example\"", "\"app.pem\"", "\"app.key\"", &more);
        folder.read(Depth::Full, &text.replace("http://127.0.0.1:3000", "https://a.example:443"))
    };
    let loaded = read("app.key").unwrap();
    let Action::Terminate(terminate) = loaded.config.rules.at(0).action else { panic!() };
    let files = &terminate.upstream.as_http().unwrap().tls.as_ref().unwrap().files;
    let shown = files.certificate.as_ref().unwrap();
    assert_eq!(
        (&shown.certificate, &shown.key),
        (&folder.0.join("app.pem"), &folder.0.join("app.key"))
    );
    let found = format!("{:?}", read("other.key").unwrap_err());
    assert!(found.contains("does not fit the certificate"), "{found}");
    assert!(read("missing.key").is_err());
}
