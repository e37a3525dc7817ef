//! Placeholders of secrets in any request: no secret stands where its terms do not let it, a second
//! pass changes nothing, and no response with one passes.

#![no_main]

use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use eyelet_secrets::{Destination, Filled, SecretTerms, SecretValue, Secrets};
use http::header::{AUTHORIZATION, HeaderName};
use http::{HeaderMap, HeaderValue, Method, Request, request};
use libfuzzer_sys::fuzz_target;

const PLACEHOLDERS: [&str; 2] = ["EYELET_SECRET_ONE", "another-secret-of-it"];
const VALUES: [&str; 2] = ["ghp_0123456789", "vendor-key-98765"];
const NAMES: [HeaderName; 4] =
    [AUTHORIZATION, http::header::COOKIE, http::header::HOST, http::header::REFERER];

/// Made once: a fuzzer runs many times a second.
static SECRETS: LazyLock<Option<Secrets>> = LazyLock::new(secrets);

fn secrets() -> Option<Secrets> {
    let terms = PLACEHOLDERS.iter().zip([&[AUTHORIZATION][..], &[http::header::COOKIE]]);
    let terms = terms.map(|(placeholder, headers)| {
        Some(SecretTerms {
            placeholder: placeholder.parse().ok()?,
            names: vec!["a.example".parse().ok()?],
            methods: vec![Method::GET],
            headers: headers.to_vec(),
        })
    });
    let values = VALUES.map(|value| SecretValue::new(value.as_bytes()).ok().map(Arc::new));
    let values: Option<Vec<_>> = values.into_iter().collect();
    Secrets::new(terms.collect::<Option<Vec<_>>>()?, values?).ok()
}

/// A request of lines: the first byte says which field it is, and if it is Basic credentials.
fn request(data: &[u8]) -> request::Parts {
    let (mut parts, ()) = Request::new(()).into_parts();
    for line in data.split(|byte| *byte == b'\n').take(16) {
        let Some((kind, text)) = line.split_first() else { continue };
        let text = String::from_utf8_lossy(text);
        // A short byte stands for a whole placeholder, which a fuzzer would not find.
        let text = text.replace('\u{1}', PLACEHOLDERS[0]).replace('\u{2}', PLACEHOLDERS[1]);
        let text = match kind & 4 {
            0 => text,
            _ => format!("Basic {}", BASE64_STANDARD.encode(text)),
        };
        if kind & 8 != 0 {
            parts.uri = text.parse().unwrap_or_default();
        } else if let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) {
            parts.headers.append(&NAMES[usize::from(kind & 3)], value);
        }
    }
    parts
}

/// True if any field has the value, as it is or in base64.
fn shows(secrets: &Secrets, value: &HeaderValue) -> bool {
    let fields = HeaderMap::from_iter([(http::header::ETAG, value.clone())]);
    secrets.reflected(&fields).is_some()
}

fuzz_target!(|data: &[u8]| {
    let (Some(secrets), Some((first, rest))) = (&*SECRETS, data.split_first()) else { return };
    let mut parts = request(rest);
    // The client may know a secret from elsewhere: then nothing is shown.
    if secrets.reflected(&parts.headers).is_some() {
        return;
    }
    if first & 1 != 0 {
        parts.method = Method::POST;
    }
    let names = [&["a.example"][..], &["a.example", "b.example"]][usize::from(first >> 1 & 1)];
    let to = || Destination {
        host: if first & 4 != 0 { "b.example" } else { "a.example" },
        verified: (first & 8 == 0).then(|| names.to_vec()),
    };
    let before = parts.headers.clone();
    let may = first & 15 == 0;
    match secrets.fill(&mut parts, to) {
        Ok(Filled::Nothing) => assert_eq!(before, parts.headers),
        Ok(Filled::Values) => {
            assert!(may, "a secret for another request");
            for (name, value) in &parts.headers {
                assert!(NAMES[..2].contains(name) || !shows(secrets, value));
                assert!(value.is_sensitive() || !shows(secrets, value));
            }
            let after = parts.headers.clone();
            assert!(matches!(secrets.fill(&mut parts, to), Ok(Filled::Nothing)));
            assert_eq!(after, parts.headers);
        }
        Err(refusal) => {
            let text = refusal.to_string();
            assert!(VALUES.iter().all(|value| !text.contains(value)));
        }
    }
});
