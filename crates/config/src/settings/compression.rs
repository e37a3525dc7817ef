//! Reads the compression keys of a terminate rule, and [dictionary].

use std::ops::RangeInclusive;
use std::path::Path;

use eyelet_compress::Effort;
use eyelet_compress::breach::Allowed;
use eyelet_compress::dictionary::pattern::FilePattern;

use crate::model::{Compression, CompressionMode, Dictionaries};
use crate::settings::bytes;
use eyelet_document::reader::Section;

/// Reads the compression keys of a rule.
pub(crate) fn rule(section: &Section<'_>) -> Compression {
    let mut read = Compression::default();
    read.mode = section.word("compress", ":", &MODES).unwrap_or(read.mode);
    let breach_rule = section.word("breach_rule", ":", &[("on", true), ("off", false)]);
    read.breach_rule = breach_rule.unwrap_or(read.breach_rule);
    read.breach_allow = breach_allow(section, read.breach_rule);
    let events = section.flag("compress_event_streams");
    read.event_streams = events.unwrap_or(read.event_streams);
    read.code_requests = section.flag("code_requests").unwrap_or(read.code_requests);
    let decodes = section.flag("decode_requests");
    read.decode_requests = decodes.unwrap_or(read.decode_requests);
    read.offload = section.flag("offload").unwrap_or(read.offload);
    let hiding = section.number("length_hiding", LENGTH_HIDING);
    read.length_hiding = hiding.unwrap_or(read.length_hiding);
    read.effort = section.word("compress_effort", ":", &EFFORTS).flatten();
    read.dictionary.extend(section.each_parsed("dictionary", FilePattern::new));
    read.dictionary_shared = dictionary_shared(section, &read.dictionary);
    if read.mode != CompressionMode::On
        && let Some((key, at)) = section.present(&RULE_KEYS[1..]).next()
    {
        let said = if read.mode == CompressionMode::None { "none" } else { "off" };
        at.error(format!("`{key}` means nothing with `compress = \"{said}\"`"));
    }
    read
}

/// A dictionary of many files confirms a right guess of a file's content, even to a client that may
/// not read that file. So only a file of its own can be shared.
fn dictionary_shared(section: &Section<'_>, patterns: &[FilePattern]) -> bool {
    let is_shared = section.flag("dictionary_shared").unwrap_or(false);
    if is_shared
        && !(patterns.iter().any(FilePattern::is_per_file)
            && patterns.iter().all(FilePattern::is_per_file))
        && let Some(at) = section.key_at("dictionary_shared")
    {
        at.error("`dictionary_shared` needs a `dictionary` whose patterns have {file}");
    }
    is_shared
}

fn breach_allow(section: &Section<'_>, rule_is_on: bool) -> Allowed {
    let mut allowed = Allowed::default();
    let Some(texts) = section.texts("breach_allow") else { return allowed };
    for text in texts {
        match text.text {
            "navigation" => allowed.navigations = true,
            "same-site" => allowed.same_site = true,
            other => {
                let message = format!("\"{other}\": expected \"navigation\" or \"same-site\"");
                text.at.error(message);
            }
        }
    }
    if !rule_is_on && let Some(at) = section.key_at("breach_allow") {
        at.error("`breach_allow` means nothing with `breach_rule = \"off\"`");
    }
    allowed
}

/// Reads [dictionary].
pub(crate) fn dictionaries(document: &Section<'_>, folder: &Path) -> Dictionaries {
    let default_path = Some(folder.join(FOLDER));
    let mut read = Dictionaries { path: default_path, ..Dictionaries::default() };
    let Some(section) = document.known("dictionary", "[dictionary]", &KEYS) else {
        return read;
    };
    if let Some(path) = section.text("path") {
        read.path = match path.text {
            "off" => None,
            "" => {
                path.at.error("expected the path of a folder, or \"off\"");
                None
            }
            path => Some(folder.join(path)),
        };
    }
    let bytes_max = bytes(&section, "bytes_max", &BYTES);
    read.bytes_max = bytes_max.unwrap_or(read.bytes_max);
    read
}

/// Reports compression keys of rules without HTTP, where they would have no effect.
pub(crate) fn check_unused(section: &Section<'_>) {
    for (key, at) in section.present(&RULE_KEYS) {
        at.error(format!("`{key}` is for upstreams with HTTP: https://, http:// or http+unix:"));
    }
}

const MODES: [(&str, CompressionMode); 3] =
    [("on", CompressionMode::On), ("none", CompressionMode::None), ("off", CompressionMode::Off)];

const EFFORTS: [(&str, Option<Effort>); 4] = [
    ("auto", None),
    ("fast", Some(Effort::Fast)),
    ("even", Some(Effort::Even)),
    ("small", Some(Effort::Small)),
];

/// The compression keys of a rule. All but the first have no effect unless `compress = "on"`.
const RULE_KEYS: [&str; 11] = [
    "compress",
    "breach_allow",
    "breach_rule",
    "code_requests",
    "compress_effort",
    "compress_event_streams",
    "decode_requests",
    "dictionary",
    "dictionary_shared",
    "length_hiding",
    "offload",
];

const KEYS: [&str; 2] = ["bytes_max", "path"];

/// The default folder, relative to the configuration.
const FOLDER: &str = "dictionaries";

/// Bytes. With more, an attacker only needs more requests.
const LENGTH_HIDING: RangeInclusive<usize> = 0..=1024;

/// Bytes. No bundle of today fits below 1 MiB, and nobody has more than 64 GiB of memory for this.
const BYTES: RangeInclusive<usize> = 1 << 20..=64 << 30;
