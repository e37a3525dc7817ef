//! Reads the compression keys of a terminate rule, and [dictionary].

use std::ops::RangeInclusive;
use std::path::Path;

use eyelet_compress::Effort;
use eyelet_compress::breach::Allowed;
use eyelet_compress::dictionary::pattern::FilePattern;

use crate::model::{Compression, CompressionMode, Dictionaries};
use crate::reader::{Report, Section};
use crate::settings::bytes;

/// Reads the compression keys of a rule.
pub(super) fn rule(report: &mut Report<'_>, section: &Section<'_, '_>) -> Compression {
    let mut read = Compression::default();
    read.mode = mode(report, section).unwrap_or(read.mode);
    read.breach_rule = switch(report, section, "breach_rule").unwrap_or(read.breach_rule);
    read.breach_allow = breach_allow(report, section, read.breach_rule);
    let events = section.flag(report, "compress_event_streams");
    read.event_streams = events.unwrap_or(read.event_streams);
    read.code_requests = section.flag(report, "code_requests").unwrap_or(read.code_requests);
    let decodes = section.flag(report, "decode_requests");
    read.decode_requests = decodes.unwrap_or(read.decode_requests);
    read.offload = section.flag(report, "offload").unwrap_or(read.offload);
    let hiding = section.number(report, "length_hiding", LENGTH_HIDING);
    read.length_hiding = hiding.unwrap_or(read.length_hiding);
    if let Some(effort) = section.text(report, "compress_effort") {
        read.effort = match effort.text {
            "auto" => None,
            "fast" => Some(Effort::Fast),
            "even" => Some(Effort::Even),
            "small" => Some(Effort::Small),
            other => {
                let message =
                    format!("\"{other}\": expected \"auto\", \"fast\", \"even\" or \"small\"");
                report.error(effort.at, message);
                None
            }
        };
    }
    for text in section.texts(report, "dictionary").unwrap_or_default() {
        read.dictionary.extend(report.keep(text.at, FilePattern::new(text.text)));
    }
    read.dictionary_shared = dictionary_shared(report, section, &read.dictionary);
    if read.mode != CompressionMode::On
        && let Some(key) = RULE_KEYS[1..].iter().find(|key| section.value(key).is_some())
        && let Some(at) = section.key_at(key)
    {
        let said = if read.mode == CompressionMode::None { "none" } else { "off" };
        report.error(at, format!("`{key}` means nothing with `compress = \"{said}\"`"));
    }
    read
}

fn mode(report: &mut Report<'_>, section: &Section<'_, '_>) -> Option<CompressionMode> {
    let text = section.text(report, "compress")?;
    match text.text {
        "on" => Some(CompressionMode::On),
        "none" => Some(CompressionMode::None),
        "off" => Some(CompressionMode::Off),
        other => {
            let message = format!("\"{other}\": expected \"on\", \"none\" or \"off\"");
            report.error(text.at, message);
            None
        }
    }
}

/// A dictionary of many files tells a client who guesses the content of one that its guess is
/// right, even if the client may not read that file. So only a file of its own can be shared.
fn dictionary_shared(
    report: &mut Report<'_>,
    section: &Section<'_, '_>,
    patterns: &[FilePattern],
) -> bool {
    let is_shared = section.flag(report, "dictionary_shared").unwrap_or(false);
    if is_shared
        && !(patterns.iter().any(FilePattern::is_per_file)
            && patterns.iter().all(FilePattern::is_per_file))
        && let Some(at) = section.key_at("dictionary_shared")
    {
        report.error(at, "`dictionary_shared` needs a `dictionary` whose patterns have {file}");
    }
    is_shared
}

fn breach_allow(report: &mut Report<'_>, section: &Section<'_, '_>, rule_is_on: bool) -> Allowed {
    let mut allowed = Allowed::default();
    let Some(texts) = section.texts(report, "breach_allow") else { return allowed };
    for text in texts {
        match text.text {
            "navigation" => allowed.navigations = true,
            "same-site" => allowed.same_site = true,
            other => {
                let message = format!("\"{other}\": expected \"navigation\" or \"same-site\"");
                report.error(text.at, message);
            }
        }
    }
    if !rule_is_on && let Some(at) = section.key_at("breach_allow") {
        report.error(at, "`breach_allow` means nothing with `breach_rule = \"off\"`");
    }
    allowed
}

/// Reads [dictionary].
pub(super) fn dictionaries(
    report: &mut Report<'_>,
    document: &Section<'_, '_>,
    folder: &Path,
) -> Dictionaries {
    let default_path = Some(folder.join(FOLDER));
    let mut read = Dictionaries { path: default_path, ..Dictionaries::default() };
    let Some(section) = document.section(report, "dictionary", "[dictionary]") else {
        return read;
    };
    section.check_keys(report, &KEYS);
    if let Some(path) = section.text(report, "path") {
        read.path = match path.text {
            "off" => None,
            "" => {
                report.error(path.at, "expected the path of a folder, or \"off\"");
                None
            }
            path => Some(folder.join(path)),
        };
    }
    let bytes_max = bytes(report, &section, "bytes_max", &BYTES);
    read.bytes_max = bytes_max.unwrap_or(read.bytes_max);
    read
}

fn switch(report: &mut Report<'_>, section: &Section<'_, '_>, key: &str) -> Option<bool> {
    let text = section.text(report, key)?;
    match text.text {
        "on" => Some(true),
        "off" => Some(false),
        other => {
            report.error(text.at, format!("\"{other}\": expected \"on\" or \"off\""));
            None
        }
    }
}

/// Reports compression keys of rules without HTTP, where they would have no effect.
pub(super) fn check_unused(report: &mut Report<'_>, section: &Section<'_, '_>) {
    for key in RULE_KEYS {
        if let Some(at) = section.key_at(key) {
            let message =
                format!("`{key}` is for upstreams with HTTP: https://, http:// or http+unix:");
            report.error(at, message);
        }
    }
}

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
