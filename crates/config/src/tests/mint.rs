//! Rules that mint certificates, with real files: what is right, and each mistake.

use std::os::unix::fs::PermissionsExt;

use eyelet_pki::certificate;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, date_time_ymd,
};
use zeroize::ZeroizeOnDrop;

use super::certificates::Folder;
use super::*;

const INTERCEPTING: &str = "[[listener]]\naddress = \"127.0.0.1:8443\"\nkind = \"redirect\"\n";

fn authority(folder: &Folder, name: &str, change: impl FnOnce(&mut CertificateParams)) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    change(&mut params);
    folder.issue_with(name, params);
}

fn read_at(
    folder: &Folder,
    depth: Depth,
    listener: &str,
    keys: &str,
) -> Result<Loaded, Vec<Diagnostic>> {
    let text =
        format!("{listener}[[rule]]\naction = \"terminate\"\ncertificate = \"mint\"\n{keys}\n");
    parse(&folder.0.join("edge.toml"), &text, depth, SystemTime::now())
}

const PAIR: &str = "mint_ca = \"mint.pem\"\nmint_key = \"mint.key\"\n";

#[test]
fn a_rule_that_mints() {
    let folder = Folder::new();
    authority(&folder, "mint", |_| ());
    for (listener, upstream) in [
        (INTERCEPTING, "\"destination\"\nupstream_allow = \"10.0.0.0/8\""),
        (INTERCEPTING, "\"http://127.0.0.1:8080\""),
        (INTERCEPTING, "\"http+unix:/run/inspector.sock\""),
        (LISTENER, "\"https://a.example:443\""),
    ] {
        let keys = format!("{PAIR}upstream = {upstream}");
        let loaded = read_at(&folder, Depth::Full, listener, &keys);
        let loaded = loaded.unwrap_or_else(|found| panic!("{upstream}: {:?}", said(&found)));
        assert_eq!(said(&loaded.warnings), [""; 0], "{upstream}");
        let rule = loaded.config.rules.at(0);
        let Action::Terminate(terminate) = rule.action else { panic!() };
        assert_eq!(terminate.certificates, CertificateSource::Mint);
        assert_eq!(
            terminate.compression.mode,
            CompressionMode::Off,
            "an origin's coding is its own"
        );
        assert!(loaded.config.mints());
        let pair = loaded.config.rules.certificates(rule.certificates_number).next().unwrap();
        assert_eq!(pair.key, folder.0.join("mint.key"));
        assert!(upstream.contains(&terminate.upstream.to_string()), "{upstream}");
    }
}

#[test]
fn mistakes_in_a_rule_that_mints() {
    let folder = Folder::new();
    authority(&folder, "mint", |_| ());
    authority(&folder, "other", |_| ());
    authority(&folder, "open", |_| ());
    authority(&folder, "nobody", |params| params.distinguished_name = DistinguishedName::new());
    let open = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(folder.0.join("open.key"), open).unwrap();
    folder.issue("leaf", &["a.example"]);
    let pair = |ca: &str, key: &str| {
        format!("mint_ca = \"{ca}.pem\"\nmint_key = \"{key}.key\"\nupstream = \"destination\"")
    };
    let upstream = |upstream: &str| format!("{PAIR}upstream = {upstream}");
    for (listener, keys, expected) in [
        (INTERCEPTING, "upstream = \"destination\"".to_owned(), "`mint_key` is missing"),
        (INTERCEPTING, pair("none", "mint"), "cannot read"),
        (INTERCEPTING, pair("mint", "none"), "cannot read"),
        (INTERCEPTING, pair("nobody", "nobody"), "the authority's subject is empty"),
        (INTERCEPTING, pair("open", "open"), "readable by its owner only (mode 640): chmod go="),
        (INTERCEPTING, pair("leaf", "leaf"), "not the certificate of an authority"),
        (INTERCEPTING, pair("mint", "other"), "does not fit the certificate"),
        (INTERCEPTING, pair("mint", "mint") + "\nkey = \"a.key\"", "leave `key` out"),
        (INTERCEPTING, upstream("\"tcp://a:1\""), "only HTTP passes"),
        (INTERCEPTING, upstream("[\"https://a:1\", \"https://b:1\"]"), "of one origin"),
        (INTERCEPTING, upstream("[\"destination\", \"https://b:1\"]"), "stands alone"),
        (INTERCEPTING, upstream("\"https://a:1\"\nupstream_allow = \"::1\""), "no client chooses"),
        (LISTENER, upstream("\"destination\""), "and no origin; expected https://host:port"),
        (LISTENER, upstream("\"http://127.0.0.1:1\""), "and no origin; expected"),
    ] {
        let found = read_at(&folder, Depth::Full, listener, &keys).expect_err(&keys);
        let found = said(&found).join("\n");
        assert!(found.contains(expected), "{keys}: {found}");
    }
    // `serve` reads the pair next, and a key that others may read is found before.
    let found = read_at(&folder, Depth::Files, INTERCEPTING, &pair("open", "open")).unwrap_err();
    assert!(said(&found).join("\n").contains("chmod go="), "{found:?}");
    folder.issue("app", &["a.example"]);
    let other = certificates::terminate("\"a.example\"", "\"app.pem\"", "\"app.key\"", PAIR);
    assert!(folder.said(&other).join("\n").contains("`mint_ca` is for `certificate = \"mint\"`"));
    let other = other.replace("http://127.0.0.1:3000", "destination");
    assert!(folder.said(&other).join("\n").contains("would let a client choose where"));
}

/// An authority that is not valid is a warning: other rules serve without it.
#[test]
fn dates_of_the_authority_are_warned_of() {
    let folder = Folder::new();
    authority(&folder, "old", |params| params.not_after = date_time_ymd(2020, 1, 1));
    authority(&folder, "new", |params| params.not_before = date_time_ymd(2200, 1, 1));
    authority(&folder, "soon", |params| {
        let end = SystemTime::now() + certificate::EXPIRY_WARNING / 2;
        params.not_after = end.into();
    });
    for (name, expected) in
        [("old", " expired on "), ("new", "is not valid before 2200-01-01"), ("soon", "expires on")]
    {
        let keys = PAIR.replace("mint.", &format!("{name}.")) + "upstream = \"destination\"";
        let loaded = read_at(&folder, Depth::Full, INTERCEPTING, &keys);
        let loaded = loaded.unwrap_or_else(|found| panic!("{name}: {:?}", said(&found)));
        let found = said(&loaded.warnings).join("\n");
        assert!(found.contains(expected), "{name}: {found}");
    }
}

/// The library that signs would leave out the first of two attributes of a kind.
#[test]
fn the_subject_of_an_authority_is_plain() {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::OrganizationName, "example");
    params.distinguished_name.push(DnType::OrganizationalUnitName, "corp");
    let signed = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
    let mut der = signed.der().to_vec();
    assert_eq!(certificate::check_authority(&der.clone().into()), Ok(()));
    // O and OU differ in one byte.
    for at in 0..der.len() - 3 {
        if der[at..at + 3] == [0x55, 4, 11] {
            der[at + 2] = 10;
        }
    }
    let checked = certificate::check_authority(&der.into());
    assert_eq!(checked, Err(certificate::AuthorityFault::Subject));
}

#[test]
fn the_upstream_of_one_connection() {
    let folder = Folder::new();
    authority(&folder, "mint", |_| ());
    let keys = |more: &str| {
        format!("{PAIR}upstream = \"destination\"\nupstream_allow = \"10.0.0.0/8\"\n{more}")
    };
    let to: SocketAddr = "192.0.2.1:443".parse().unwrap();
    let all = ["0.0.0.0/0", "::/0"];
    for (more, sni, is_chosen, http2, name, spoken, allow) in [
        ("", Some("a.example"), false, false, "a.example", UpstreamHttp2::Off, &all[..]),
        ("", Some("a.example"), true, true, "a.example", UpstreamHttp2::Alpn, &["10.0.0.0/8"]),
        ("", None, true, false, "192.0.2.1", UpstreamHttp2::Off, &["10.0.0.0/8"]),
        (
            "upstream_name = \"b.example\"",
            None,
            false,
            true,
            "b.example",
            UpstreamHttp2::Alpn,
            &all,
        ),
        ("upstream_http2 = \"on\"", Some("a.b"), false, false, "a.b", UpstreamHttp2::On, &all),
    ] {
        let loaded = read_at(&folder, Depth::Full, INTERCEPTING, &keys(more)).unwrap();
        let Action::Terminate(terminate) = loaded.config.rules.at(0).action else { panic!() };
        let upstream = terminate.upstream.as_http().unwrap();
        let own = upstream.of_connection((to, sni), is_chosen, http2).unwrap();
        assert_eq!(own.address.to_string(), to.to_string());
        assert_eq!((own.tls.unwrap().name.as_str(), own.http2), (name, spoken), "{more}");
        let allowed: Vec<String> = own.chosen.unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(allowed, allow, "{more}");
    }
}

/// It may be the key of an authority.
#[test]
fn a_key_that_was_read_is_wiped() {
    fn is_wiped(_: &impl ZeroizeOnDrop) {}
    let folder = Folder::new();
    authority(&folder, "mint", |_| ());
    let [certificate, key] = ["mint.pem", "mint.key"].map(|name| folder.0.join(name));
    let pair = certificate::load(&CertificateFiles { certificate, key }).unwrap();
    is_wiped(&pair.key);
}
