//! The table [trace]: endpoints, parts and files of fields that are good, and mistakes.

use super::*;

#[test]
fn an_endpoint_is_a_url_with_a_path() {
    let settings = |text: &str| read(&format!("{LISTENER}{text}")).unwrap().config.trace;
    assert_eq!(settings(""), None);
    let all = settings("[trace]\n").unwrap();
    assert_eq!((all.endpoint, all.sample, &*all.service_name), (None, 0.01, "eyelet"));
    for (url, tls, address, authority, path) in [
        (
            "http://127.0.0.1:4318/v1/traces",
            false,
            "127.0.0.1:4318",
            "127.0.0.1:4318",
            "/v1/traces",
        ),
        (
            "https://otel.example/v1/traces?a=b",
            true,
            "otel.example:443",
            "otel.example",
            "/v1/traces?a=b",
        ),
        ("http://[::1]/x", false, "[::1]:80", "[::1]", "/x"),
    ] {
        let endpoint = settings(&format!("[trace]\nendpoint = \"{url}\"\n")).unwrap().endpoint;
        let endpoint = endpoint.unwrap();
        assert_eq!((endpoint.tls, endpoint.address.to_string()), (tls, address.to_owned()));
        assert_eq!((&*endpoint.authority, &*endpoint.path), (authority, path));
    }
    for (sample, expected) in [("0", 0.0), ("1", 1.0), ("0.25", 0.25), ("1e-3", 0.001)] {
        let read = settings(&format!("[trace]\nsample = {sample}\n")).unwrap();
        assert!((read.sample - expected).abs() < f64::EPSILON, "{sample}");
    }
}

#[test]
fn mistakes_in_a_trace_table_are_named() {
    for (text, expected) in [
        ("endpoint = \"127.0.0.1:4318\"", "4:12: \"127.0.0.1:4318\" is not http:// or https://"),
        ("endpoint = \"http://127.0.0.1:4318\"", "has no path; a collector takes traces at"),
        ("endpoint = \"http://127.0.0.1:4318/\"", "has no path"),
        ("endpoint = \"http://otel.example:0/v1\"", "4:12: "),
        ("endpoint = \"http://a:s3cr3t@otel.example/v1\"", "a URL has no login here"),
        ("endpoint = \"http://otel.example/a b\"", "has no path"),
        ("sample = 1.5", "4:10: `sample` is the part of the traces that is recorded"),
        ("sample = -1", "expected a number from 0 to 1"),
        ("sample = nan", "expected a number from 0 to 1"),
        ("sample = \"all\"", "expected a number from 0 to 1"),
        ("service_name = \"\"", "4:16: expected a name of 1 to 255 bytes"),
        ("headers_file = \"nowhere\"", "4:16: cannot read nowhere"),
        (
            "endpoint = \"http://[::1]/x\"\nca = \"nowhere\"",
            "`ca` is for an endpoint with https://",
        ),
        ("endpont = \"x\"", "did you mean `endpoint`?"),
    ] {
        let found = said_below_listener(&format!("[trace]\n{text}\n"));
        assert!(found.iter().any(|found| found.contains(expected)), "{text}: {found:?}");
        assert!(!found.iter().any(|found| found.contains("s3cr3t")), "{found:?}");
    }
}

#[test]
fn fields_are_read_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fields");
    for (text, expected) in [
        ("Authorization: Bearer s3cr3t\n\n x-tenant:a b \n", Ok(2)),
        ("Authorization Bearer s3cr3t\n", Err("line 1 of")),
        ("a: 1\nb:\n", Err("line 2 of")),
        ("a b: s3cr3t\n", Err("is no field")),
        ("a: s3cr3t\0\n", Err("is no field")),
        ("Content-Length: 1\n", Err("Eyelet writes \"content-length\" itself")),
        ("\n", Err("has no field")),
    ] {
        std::fs::write(&file, text).unwrap();
        match (trace_fields(&file), expected) {
            (Ok(fields), Ok(count)) => {
                assert_eq!(fields.len(), count);
                assert_eq!(&**fields[0].1, b"Bearer s3cr3t");
                assert_eq!(&**fields[1].1, b"a b");
            }
            (Err(why), Err(expected)) => {
                assert!(why.contains(expected) && !why.contains("s3cr3t"), "{why}");
            }
            (found, _) => panic!("{text}: {:?}", found.map(|fields| fields.len())),
        }
    }
}

/// A collector on this machine may be asked in the clear.
#[test]
fn a_token_in_the_clear_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fields");
    std::fs::write(&file, "a: b\n").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    for (url, is_warned) in [
        ("http://otel.example/v1/traces", true),
        ("http://localhost/v1/traces", false),
        ("http://127.0.0.1/v1/traces", false),
        ("https://otel.example/v1/traces", false),
    ] {
        let text =
            format!("[trace]\nendpoint = \"{url}\"\nheaders_file = \"{}\"\n", file.display());
        let loaded = read(&format!("{LISTENER}{text}")).unwrap();
        let warned = loaded.warnings.iter().any(|one| one.to_string().contains("in the clear"));
        assert_eq!(warned, is_warned, "{url}");
    }
}
