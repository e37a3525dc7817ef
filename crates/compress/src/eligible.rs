//! Decides which responses are compressed, by their heads and first bytes, and why the others are
//! not.

use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};

use crate::accept::Coding;
use crate::breach::Breach;
use crate::fields::{DIGESTS, has_element};

/// The reason why a response is not compressed. [`WhyNot::text`] is its text in the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WhyNot {
    /// The rule says `compress = "off"` or `"none"`.
    Off,
    /// The client accepts none of the codings, or prefers identity.
    NotAccepted,
    /// There is no content: HEAD, 204, 304, or a length of zero.
    NoContent,
    /// The response has a Content-Encoding.
    Coded,
    /// A part of a representation: 206, or Content-Range.
    Range,
    /// Cache-Control: no-transform.
    NoTransform,
    /// A digest of the upstream's bytes.
    Digest,
    /// Server-sent events, unless the rule asks for them.
    EventStream,
    /// gRPC has a compression and a framing of its own.
    Grpc,
    /// Shorter than [`LENGTH_MIN`].
    Short,
    /// The type is a compressed format.
    TypeCompressed,
    /// The first bytes are those of a compressed format, or a trial saved nothing.
    LooksCompressed,
    /// The type is unknown, and there are too few bytes for a trial.
    TypeUnknown,
    /// The BREACH rule.
    Breach(Breach),
    /// All compressors within the budget are in use.
    NoCompressorFree,
    /// An originate rule passes responses on, and codes none.
    Passed,
    /// The upstream's coding was decoded_coding for a client that does not accept it.
    Decoded(Coding),
}

impl WhyNot {
    /// All of them.
    pub const ALL: [Self; 23] = [
        Self::Off,
        Self::NotAccepted,
        Self::NoContent,
        Self::Coded,
        Self::Range,
        Self::NoTransform,
        Self::Digest,
        Self::EventStream,
        Self::Grpc,
        Self::Short,
        Self::TypeCompressed,
        Self::LooksCompressed,
        Self::TypeUnknown,
        Self::Breach(Breach::OtherOrigin),
        Self::Breach(Breach::ForeignReferer),
        Self::Breach(Breach::UnknownOrigin),
        Self::NoCompressorFree,
        Self::Passed,
        Self::Decoded(Coding::Zstd),
        Self::Decoded(Coding::Br),
        Self::Decoded(Coding::Gzip),
        Self::Decoded(Coding::Dcz),
        Self::Decoded(Coding::Dcb),
    ];

    /// The one with this text.
    pub fn of_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|why_not| why_not.text() == text)
    }

    /// The text in the access log.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Off => "off by rule",
            Self::NotAccepted => "not accepted",
            Self::NoContent => "no content",
            Self::Coded => "already coded",
            Self::Range => "range",
            Self::NoTransform => "no-transform",
            Self::Digest => "digest",
            Self::EventStream => "event stream",
            Self::Grpc => "grpc",
            Self::Short => "short",
            Self::TypeCompressed => "type is compressed",
            Self::LooksCompressed => "looks compressed",
            Self::TypeUnknown => "unknown type",
            Self::Breach(Breach::OtherOrigin) => "breach: other origin",
            Self::Breach(Breach::ForeignReferer) => "breach: foreign referer",
            Self::Breach(Breach::UnknownOrigin) => "breach: unknown origin",
            Self::NoCompressorFree => "no compressor free",
            Self::Passed => "passed on",
            Self::Decoded(Coding::Zstd) => "decoded from zstd",
            Self::Decoded(Coding::Br) => "decoded from br",
            Self::Decoded(Coding::Gzip) => "decoded from gzip",
            Self::Decoded(Coding::Dcz) => "decoded from dcz",
            Self::Decoded(Coding::Dcb) => "decoded from dcb",
        }
    }
}

/// The facts that are known about a body before it is coded.
#[derive(Clone, Copy, Debug)]
pub struct Beginning<'a> {
    /// Its length in bytes, if known.
    pub length: Option<u64>,
    /// True if `first` is all of it.
    pub complete: bool,
    /// The bytes that have arrived.
    pub first: &'a [u8],
}

impl Beginning<'_> {
    /// Its length in bytes, if known.
    pub fn known_length(&self) -> Option<u64> {
        if self.complete { Some(self.first.len() as u64) } else { self.length }
    }
}

/// The head of a response, with the length of its body if it is known.
#[derive(Clone, Copy)]
pub struct ResponseHead<'a> {
    /// The status.
    pub status: StatusCode,
    /// The fields.
    pub headers: &'a HeaderMap,
    /// Bytes of the body.
    pub length: Option<u64>,
}

/// Decides by the head. These reasons hold for every client, and so do not go into Vary.
///
/// `length_min` is [`LENGTH_MIN`], or [`LENGTH_MIN_TRAINED`] if a dictionary may be used.
///
/// # Errors
/// The first reason against it.
pub fn by_head(
    ResponseHead { status, headers, length }: ResponseHead<'_>,
    length_min: u64,
    event_streams: bool,
) -> Result<ContentKind, WhyNot> {
    DecidingFields::of(headers).judge((status, length), length_min, event_streams)
}

/// A 206 response is a part of a 200 response. Whether that 200 response may be coded: if so, both
/// have the same Vary (RFC 9110 section 15.3.7). The part's own length does not count.
pub fn is_part_of_coded(status: StatusCode, headers: &HeaderMap, event_streams: bool) -> bool {
    if status != StatusCode::PARTIAL_CONTENT {
        return false;
    }
    let read = DecidingFields::of(headers);
    match by_fields(&read, None, 0, event_streams) {
        _ if read.is_coded => false,
        Ok(_) => true,
        // Each of several parts has its own type (RFC 9110 section 14.6).
        Err(WhyNot::TypeCompressed) => headers
            .get(CONTENT_TYPE)
            .is_some_and(|value| value.as_bytes().starts_with(b"multipart/byteranges")),
        Err(_) => false,
    }
}

/// The fields that decide, read in one pass: each look-up would hash its name.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecidingFields<'a> {
    /// It has a Content-Encoding.
    pub is_coded: bool,
    /// It has a Content-Range.
    pub is_range: bool,
    /// It has a digest of its bytes.
    pub has_digest: bool,
    /// Its Cache-Control forbids to change it.
    pub no_transform: bool,
    /// Its last Content-Type.
    pub content_type: Option<&'a [u8]>,
    /// The number of content types.
    pub content_types: usize,
}

impl<'a> DecidingFields<'a> {
    fn of(headers: &'a HeaderMap) -> Self {
        let mut read = Self::default();
        for (name, value) in headers {
            // Names compare faster than their texts.
            if *name == CONTENT_TYPE {
                read.content_type = Some(value.as_bytes());
                read.content_types += 1;
            } else if *name == CACHE_CONTROL {
                read.no_transform |= has_element(value.as_bytes(), "no-transform");
            } else {
                read.is_coded |= *name == CONTENT_ENCODING;
                read.is_range |= *name == CONTENT_RANGE;
                read.has_digest |= DIGESTS.contains(name);
            }
        }
        read
    }

    /// Decides as [`by_head`] does, for a response of this status and length.
    ///
    /// # Errors
    /// The first reason against it.
    pub fn judge(
        &self,
        (status, length): (StatusCode, Option<u64>),
        length_min: u64,
        event_streams: bool,
    ) -> Result<ContentKind, WhyNot> {
        if self.is_coded {
            return Err(WhyNot::Coded);
        }
        if self.is_range
            || status == StatusCode::PARTIAL_CONTENT
            || status == StatusCode::RANGE_NOT_SATISFIABLE
        {
            return Err(WhyNot::Range);
        }
        by_fields(self, length, length_min, event_streams)
    }

    fn kind(&self) -> ContentKind {
        match self.content_type {
            Some(value) if self.content_types == 1 => kind(value),
            _ => ContentKind::Unknown,
        }
    }
}

fn by_fields(
    read: &DecidingFields<'_>,
    length: Option<u64>,
    length_min: u64,
    event_streams: bool,
) -> Result<ContentKind, WhyNot> {
    if read.no_transform {
        return Err(WhyNot::NoTransform);
    }
    if read.has_digest {
        return Err(WhyNot::Digest);
    }
    let kind = read.kind();
    match kind {
        ContentKind::EventStream if !event_streams => return Err(WhyNot::EventStream),
        ContentKind::Grpc => return Err(WhyNot::Grpc),
        ContentKind::Compressed => return Err(WhyNot::TypeCompressed),
        _ => {}
    }
    match length {
        Some(0) => Err(WhyNot::NoContent),
        // An event stream's length is unknown, and each event is short.
        Some(length) if length < length_min => Err(WhyNot::Short),
        _ => Ok(kind),
    }
}

/// Decides by the first bytes, for a body of unknown type.
///
/// # Errors
/// The reason against it.
pub fn by_first_bytes(kind: ContentKind, body: &Beginning<'_>) -> Result<(), WhyNot> {
    if kind != ContentKind::Unknown {
        return Ok(());
    }
    let first = body.first.get(..TRIAL_BYTES).unwrap_or(body.first);
    if is_compressed_format(first) {
        return Err(WhyNot::LooksCompressed);
    }
    if (first.len() as u64) < LENGTH_MIN {
        return Err(WhyNot::TypeUnknown);
    }
    let mut coded = Vec::with_capacity(zstd_safe::compress_bound(TRIAL_BYTES));
    let saved = match zstd_safe::compress(&mut coded, first, TRIAL_LEVEL) {
        Ok(length) => length * 100 <= first.len() * TRIAL_PERCENT_MAX,
        Err(_) => false,
    };
    if saved { Ok(()) } else { Err(WhyNot::LooksCompressed) }
}

/// The compressibility of a Content-Type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContentKind {
    /// Text of some sort.
    Compressible,
    /// `text/event-stream`.
    EventStream,
    /// `application/grpc` and its relatives.
    Grpc,
    /// A compressed format.
    Compressed,
    /// No type, `application/octet-stream`, or one that is not in our lists.
    Unknown,
}

/// Returns the compressibility by a message's Content-Type.
pub(crate) fn content_kind(headers: &HeaderMap) -> ContentKind {
    DecidingFields::of(headers).kind()
}

fn kind(value: &[u8]) -> ContentKind {
    // Most types are these, and need no closer look.
    let is_events = |of: &[u8]| of.eq_ignore_ascii_case(b"text/event-stream");
    if value.starts_with(b"text/") && value.is_ascii() && !value.get(..17).is_some_and(is_events) {
        return ContentKind::Compressible;
    }
    let text = if value.is_ascii() { std::str::from_utf8(value).unwrap_or_default() } else { "" };
    // Bytes, because a search for a `char` costs more than all of a short text.
    let end = text.bytes().position(|byte| byte == b';').unwrap_or(text.len());
    let essence = text.get(..end).unwrap_or(text).trim_ascii();
    match essence.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => kind_of(&essence.to_ascii_lowercase()),
        false => kind_of(essence),
    }
}

fn kind_of(essence: &str) -> ContentKind {
    // The most common types.
    if essence.starts_with("text/") {
        return match essence {
            "text/event-stream" => ContentKind::EventStream,
            _ => ContentKind::Compressible,
        };
    }
    let Some((top, sub)) = essence.split_once('/') else { return ContentKind::Unknown };
    if essence.starts_with("application/grpc") {
        return ContentKind::Grpc;
    }
    let suffix = sub.rsplit_once('+').map(|(_, suffix)| suffix);
    let known = |list: &[&str]| list.contains(&essence);
    if suffix.is_some_and(|suffix| TEXT_SUFFIXES.contains(&suffix)) || known(COMPRESSIBLE) {
        return ContentKind::Compressible;
    }
    let compressed_suffix = suffix.is_some_and(|suffix| ["gzip", "zip", "zstd"].contains(&suffix));
    let office = COMPRESSED_PREFIXES.iter().any(|prefix| essence.starts_with(prefix));
    if ["audio", "image", "video"].contains(&top)
        || compressed_suffix
        || office
        || known(COMPRESSED)
    {
        return ContentKind::Compressed;
    }
    ContentKind::Unknown
}

fn is_compressed_format(first: &[u8]) -> bool {
    MAGICS.iter().any(|(at, magic)| first.get(*at..).is_some_and(|from| from.starts_with(magic)))
}

/// Shortest body in bytes. Below this, the fields of a coded response and its coding outweigh the
/// savings.
pub const LENGTH_MIN: u64 = 512;
/// Shortest body in bytes with a trained dictionary. Such a dictionary leaves a quarter of 300
/// bytes, and from here on it saves more than the 40 bytes of the coding's own header.
pub const LENGTH_MIN_TRAINED: u64 = 128;

/// Bytes that a trial codes: as good a predictor as the whole body in 1,201 files of 118 kinds.
pub const TRIAL_BYTES: usize = 4 << 10;
const TRIAL_LEVEL: i32 = 1;
/// Most percent of the trial's bytes that may be left. With the magic numbers, only one of 119
/// incompressible files was coded in vain.
const TRIAL_PERCENT_MAX: usize = 97;

const TEXT_SUFFIXES: [&str; 5] = ["json", "xml", "yaml", "json-seq", "text"];

const COMPRESSIBLE: &[&str] = &[
    "application/dicom",
    "application/ecmascript",
    "application/eot",
    "application/font-sfnt",
    "application/graphql",
    "application/javascript",
    "application/json",
    "application/json-seq",
    "application/jsonl",
    "application/ndjson",
    "application/opentype",
    "application/otf",
    "application/postscript",
    "application/rtf",
    "application/sql",
    "application/toml",
    "application/truetype",
    "application/ttf",
    "application/vnd.apple.mpegurl",
    "application/vnd.ms-fontobject",
    "application/wasm",
    "application/x-httpd-cgi",
    "application/x-javascript",
    "application/x-mpegurl",
    "application/x-ndjson",
    "application/x-opentype",
    "application/x-otf",
    "application/x-perl",
    "application/x-python",
    "application/x-sh",
    "application/x-ttf",
    "application/x-www-form-urlencoded",
    "application/x-yaml",
    "application/xml",
    "application/xml-dtd",
    "application/yaml",
    "audio/wav",
    "audio/x-wav",
    "font/otf",
    "font/sfnt",
    "font/ttf",
    "image/bmp",
    "image/vnd.microsoft.icon",
    "image/x-icon",
    "image/x-ms-bmp",
    "multipart/mixed",
];

const COMPRESSED_PREFIXES: &[&str] =
    &["application/vnd.oasis.opendocument", "application/vnd.openxmlformats-officedocument"];

const COMPRESSED: &[&str] = &[
    "application/brotli",
    "application/epub+zip",
    "application/font-woff",
    "application/font-woff2",
    "application/gzip",
    "application/java-archive",
    "application/pdf",
    "application/vnd.android.package-archive",
    "application/vnd.rar",
    "application/x-7z-compressed",
    "application/x-bzip",
    "application/x-bzip2",
    "application/x-gzip",
    "application/x-lzma",
    "application/x-rar-compressed",
    "application/x-xz",
    "application/x-zip-compressed",
    "application/zip",
    "application/zstd",
    "font/woff",
    "font/woff2",
    "multipart/byteranges",
];

/// Offset and bytes.
const MAGICS: &[(usize, &[u8])] = &[
    (0, b"\x1f\x8b"),           // gzip
    (0, b"\x28\xb5\x2f\xfd"),   // zstd
    (0, b"PK\x03\x04"),         // zip and its many children
    (0, b"BZh"),                // bzip2
    (0, b"\xfd7zXZ\0"),         // xz
    (0, b"7z\xbc\xaf\x27\x1c"), // 7z
    (0, b"Rar!\x1a\x07"),       // rar
    (0, b"\x04\x22\x4d\x18"),   // lz4
    (0, b"\x89PNG\r\n\x1a\n"),
    (0, b"\xff\xd8\xff"), // JPEG
    (0, b"GIF87a"),
    (0, b"GIF89a"),
    (8, b"WEBP"),
    (4, b"ftyp"),             // MP4, HEIC, AVIF
    (0, b"\x1a\x45\xdf\xa3"), // Matroska, WebM
    (0, b"OggS"),
    (0, b"fLaC"),
    (0, b"ID3"),
    (0, b"wOFF"),
    (0, b"wOF2"),
    (0, b"%PDF-"),
    (0, b"\xff\x0a"), // JPEG XL
    (0, b"\0\0\0\x0cJXL "),
];

#[cfg(test)]
mod tests;
