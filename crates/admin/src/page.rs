//! The page at `/`: one document with its style and its script inside, so that one request shows
//! the first figure.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use eyelet_compress::coder::{CodingStep, Effort, Gzip};
use eyelet_compress::{AcceptedCodings, Coding};
use http_body_util::{BodyExt, Full};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use crate::routes::{Content, of_body, text, whole};

/// The path of the page.
pub(crate) const PATH: &str = "/";

const STYLE: &str = concat!("\n", include_str!("page/page.css"));
const SCRIPT: &str = concat!("\n", include_str!("page/page.js"));

/// The document in gzip, and in the clear.
static DOCUMENT: LazyLock<(Option<Bytes>, String)> = LazyLock::new(|| {
    let document = include_str!("page/index.html")
        .replace("<style></style>", &format!("<style>{STYLE}</style>"))
        .replace("<script></script>", &format!("<script>{SCRIPT}</script>"));
    (gzip(&document), document)
});

/// Nothing is loaded from elsewhere, no other page frames this one, and only what is inside runs.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| STANDARD.encode(digest(&SHA256, text.as_bytes()));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; img-src data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'",
        hash(STYLE),
        hash(SCRIPT)
    )
});

const FIXED_FIELDS: [(HeaderName, &str); 2] = [
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// Answers a request for the page.
pub(crate) fn answer(asked: &HeaderMap) -> Response<Content> {
    const KIND: &str = "text/html; charset=utf-8";
    let Ok(policy) = HeaderValue::try_from(POLICY.as_str()) else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "internal error\n");
    };
    let (gzipped, document) = &*DOCUMENT;
    let mut response = match gzipped {
        Some(bytes) if takes_gzip(asked) => of_gzip(KIND, bytes.clone()),
        _ => whole(KIND, document.clone()),
    };
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_SECURITY_POLICY, policy);
    for (name, value) in FIXED_FIELDS {
        fields.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A whole answer, in gzip if the client takes it.
pub(crate) fn coded(kind: &'static str, body: String, asked: &HeaderMap) -> Response<Content> {
    match takes_gzip(asked).then(|| gzip(&body)).flatten() {
        Some(bytes) => of_gzip(kind, bytes),
        None => whole(kind, body),
    }
}

fn takes_gzip(asked: &HeaderMap) -> bool {
    AcceptedCodings::read(asked).choose(&[Coding::Gzip]).is_some()
}

fn of_gzip(kind: &'static str, bytes: Bytes) -> Response<Content> {
    let mut response = of_body(kind, Full::new(bytes).boxed_unsync());
    let gzip = HeaderValue::from_static(Coding::Gzip.name());
    response.headers_mut().insert(header::CONTENT_ENCODING, gzip);
    response
}

/// `None` if the coder fails: then the answer is not coded.
fn gzip(text: &str) -> Option<Bytes> {
    let (mut coder, mut out) = (Gzip::new(Effort::Small), Vec::new());
    coder.step(text.as_bytes(), &mut out, CodingStep::Finish).ok()?;
    Some(out.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Bytes of the page on the wire.
    const BYTES_MAX: usize = 60_000;

    #[test]
    fn the_page_is_whole_small_and_asks_nobody_else() {
        let (gzipped, document) = &*DOCUMENT;
        assert!(document.contains(STYLE) && document.contains(SCRIPT));
        assert!(gzipped.as_ref().unwrap().len() < BYTES_MAX / 2);
        assert!(document.len() < BYTES_MAX, "{} bytes", document.len());
        assert!(!document.contains("https://") && !document.contains("style=\""));
        for (accept, is_coded) in [("gzip, br", true), ("br", false), ("gzip;q=0", false)] {
            let asked = [(header::ACCEPT_ENCODING, accept.parse().unwrap())];
            let response = answer(&asked.into_iter().collect());
            let fields = response.headers();
            assert_eq!(fields.contains_key(header::CONTENT_ENCODING), is_coded, "{accept}");
            let policy = fields[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
            assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"));
        }
    }
}
