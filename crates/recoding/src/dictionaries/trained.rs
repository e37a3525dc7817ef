//! A trained dictionary, prepared once and shared by all workers.

use bytes::Bytes;
use eyelet_compress::Effort;
use eyelet_compress::coder::zstd::Prepared;
use eyelet_compress::coder::{Br, CodingStep};
use eyelet_compress::dictionary::pattern::Pattern;
use eyelet_compress::dictionary::{Hash, offer};
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, VARY,
};
use http::{HeaderMap, Response};

use super::hash::hash;

/// A dictionary for a family of small responses.
pub struct Trained {
    pub(crate) hash: Hash,
    /// The rule that it is for, by name.
    pub(crate) rule: Box<str>,
    /// The paths that it is for.
    pub(crate) pattern: Pattern,
    /// The dictionary.
    pub content: Bytes,
    pub(crate) prepared: Prepared,
    /// The dictionary in brotli, for its download.
    br: Bytes,
}

impl Trained {
    /// `None` if the content is not a raw dictionary. Takes a second, so it must not run on a
    /// worker.
    pub(crate) fn new(rule: &str, pattern: Pattern, content: Bytes) -> Option<Self> {
        let prepared = Prepared::new(&content, Effort::Small)?;
        let mut br = Vec::new();
        let mut coder = Br::with_dictionary(DOWNLOAD_QUALITY, b"", Some(content.len() as u64));
        coder.step(&content, &mut br, CodingStep::Finish).ok()?;
        let (hash, rule) = (hash(&content), rule.into());
        Some(Self { hash, rule, pattern, content, prepared, br: br.into() })
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.content.len() + self.prepared.bytes() + self.br.len()
    }

    /// The dictionary itself, as a response.
    pub(crate) fn response(&self, is_br: bool) -> Response<Bytes> {
        let body = if is_br { self.br.clone() } else { self.content.clone() };
        let mut headers = HeaderMap::new();
        let mut set = |name, value: &'static str| {
            headers.insert(name, HeaderValue::from_static(value));
        };
        set(CONTENT_TYPE, "application/octet-stream");
        // Its name is its hash, so it never changes. It must be fresh to be used.
        set(CACHE_CONTROL, "public, max-age=2592000, immutable");
        set(VARY, "accept-encoding");
        if is_br {
            set(CONTENT_ENCODING, "br");
        }
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        offer::offer(&mut headers, &self.pattern);
        let mut response = Response::new(body);
        *response.headers_mut() = headers;
        response
    }
}

/// The best quality: it is coded only once.
const DOWNLOAD_QUALITY: u32 = 11;
