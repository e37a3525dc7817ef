//! Reads the fields that every response gets: `headers`, and `hsts`, which is one in a word.

use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, DATE, ETAG, HeaderName, HeaderValue,
    STRICT_TRANSPORT_SECURITY, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VARY,
};
use toml::de::DeValue;

use eyelet_document::reader::Section;

/// Fields and their values, set in a response in this order.
pub type Fields = Vec<(HeaderName, HeaderValue)>;

/// The fields of a rule or of `[http]`.
pub(crate) fn read(section: &Section<'_>) -> Fields {
    let mut fields = Fields::new();
    if let Some(table) = section.section("headers", "headers") {
        for (name, value) in table.table {
            if fields.len() == FIELDS_MAX {
                table.place(name).error(format!("more than {FIELDS_MAX} fields"));
                break;
            }
            let read = field_name(name.get_ref());
            let Some(field) = table.place(name).keep(read) else { continue };
            if fields.iter().any(|(known, _)| *known == field) {
                table.place(name).error(format!("\"{field}\" is in `headers` twice"));
                continue;
            }
            let Some(text) = table.text(name.get_ref()) else { continue };
            let Some(value) = table.place(value).keep(field_value(text.text)) else {
                continue;
            };
            fields.push((field, value));
        }
    }
    if let Some(value) = hsts(section) {
        if fields.iter().any(|(name, _)| *name == STRICT_TRANSPORT_SECURITY) {
            let at = section.key_at("hsts").unwrap_or(section.at);
            at.error("`headers` has strict-transport-security already");
        }
        fields.push((STRICT_TRANSPORT_SECURITY, value));
    }
    fields
}

/// True if a rule says `hsts = false`.
pub(crate) fn is_hsts_off(section: &Section<'_>) -> bool {
    section.value("hsts").is_some_and(|value| matches!(value.get_ref(), DeValue::Boolean(false)))
}

/// `hsts = true`, or the field's value.
fn hsts(section: &Section<'_>) -> Option<HeaderValue> {
    let value = section.value("hsts")?;
    let at = section.place(value);
    match value.get_ref() {
        DeValue::Boolean(true) => Some(HeaderValue::from_static(HSTS)),
        DeValue::Boolean(false) => None,
        DeValue::String(text) if has_max_age(text) => at.keep(field_value(text)),
        _ => {
            let message = format!(
                "`hsts` is true for \"{HSTS}\", or a value with its max-age in seconds as in \
                 \"max-age=63072000; includeSubDomains\""
            );
            at.error(message);
            None
        }
    }
}

/// RFC 6797 section 6.1.1: max-age is required, and is a number.
fn has_max_age(text: &str) -> bool {
    text.split(';').any(|directive| {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        let value = value.trim().trim_matches('"');
        name.trim().eq_ignore_ascii_case("max-age")
            && !value.is_empty()
            && value.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn field_name(text: &str) -> Result<HeaderName, String> {
    let name = HeaderName::from_bytes(text.as_bytes())
        .map_err(|_| format!("\"{text}\" is not the name of a field (RFC 9110 section 5.1)"))?;
    if OURS.contains(&name) || ["keep-alive", "proxy-connection"].contains(&name.as_str()) {
        return Err(format!("\"{name}\" belongs to the message; Eyelet writes it"));
    }
    Ok(name)
}

fn field_value(text: &str) -> Result<HeaderValue, String> {
    let is_text = text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    let value = HeaderValue::from_str(text).ok().filter(|_| {
        is_text && !text.is_empty() && text.trim() == text && text.len() <= VALUE_BYTES_MAX
    });
    value.ok_or_else(|| {
        format!(
            "a field's value has 1 to {VALUE_BYTES_MAX} bytes, all of them visible ASCII or blanks \
             between words"
        )
    })
}

/// A year, as most guides recommend. Without `includeSubDomains`: whether all subdomains have https
/// is the operator's to say.
const HSTS: &str = "max-age=31536000";

/// Fields that say where a message ends, how it is coded, or what a hop does.
const OURS: [HeaderName; 10] = [
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    DATE,
    ETAG,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    VARY,
];

/// Fields of a rule. A response with more is a mistake.
const FIELDS_MAX: usize = 32;

/// Bytes. A long Content-Security-Policy has about 2,000.
const VALUE_BYTES_MAX: usize = 4 << 10;
