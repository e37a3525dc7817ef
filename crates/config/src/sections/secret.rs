//! Reads [[secret]]: secrets that clients never have, and the requests in which they may stand.

use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use eyelet_policy::NamePattern;
use eyelet_secrets::{
    Placeholder, SECRET_BYTES_MAX, SECRETS_MAX, SecretFault, SecretTerms, SecretValue,
};
use eyelet_sys::file::{read_regular, regular_mode};
use http::Method;
use http::header::{self, HeaderName};
use zeroize::Zeroizing;

use crate::model::Action;
use crate::rules::RuleList;
use crate::settings::duration;
use eyelet_document::reader::{Section, Text};
use eyelet_files::Files;

/// A secret of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretSettings {
    /// Its placeholder, and the requests in which it may stand.
    pub terms: SecretTerms,
    /// Its source.
    pub source: SecretSource,
}

/// The source of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// A file, which is read again when it changes.
    File(PathBuf),
    /// A file, which is read once: no configuration says so, but in a sandbox it is.
    FileOnce(PathBuf),
    /// A command that prints it.
    Command {
        /// The program and its arguments.
        words: Vec<String>,
        /// The time after which it is run again. `None`: only at a reload.
        refresh: Option<Duration>,
    },
}

/// The title of a secret's table.
const TITLE: &str = "[[secret]]";
const KEYS: [&str; 7] =
    ["command", "file", "headers", "methods", "names", "placeholder", "refresh"];
/// The time between two runs of a command. A shorter one would be a load on who keeps the secret.
const REFRESH: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_hours(24 * 7);
/// Bytes that a file or an output may have: a value, and the end of its line.
pub const SECRET_READ_BYTES_MAX: usize = SECRET_BYTES_MAX + 2;
/// Mode bits of all users but the owner.
const ALL_BUT_OWNER: u32 = 0o077;
/// Fields that frame the message, or are not meant for the server that has proved its name.
const OTHERS: [HeaderName; 8] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::HOST,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Reads all secrets.
pub(crate) fn read(document: &Section<'_>, files: &mut Files) -> Vec<SecretSettings> {
    let sections = document.sections("secret", TITLE);
    if let Some(beyond) = sections.get(SECRETS_MAX) {
        beyond.at.error(format!("more than {SECRETS_MAX} secrets"));
    }
    let mut placeholders: Vec<Text<'_>> = Vec::new();
    let mut secrets = Vec::new();
    for section in &sections {
        section.check_keys(&KEYS);
        let without = "a secret needs a `placeholder`, such as \"EYELET_SECRET_GITHUB\"";
        let text = section.required("placeholder", without);
        if let Some(text) = text {
            check_others(text, &placeholders);
            placeholders.push(text);
        }
        let placeholder = text.and_then(|text| text.parse(str::parse::<Placeholder>));
        let (source, names) = (source(section, files), names(section));
        let methods = section.each_parsed("methods", method);
        let headers = match section.value("headers") {
            Some(_) => section.each_parsed("headers", field),
            None => vec![header::AUTHORIZATION],
        };
        let (Some(placeholder), Some(source)) = (placeholder, source) else { continue };
        let terms = SecretTerms { placeholder, names, methods, headers };
        secrets.push(SecretSettings { terms, source });
    }
    secrets
}

/// Warns of secrets that no rule can use: values are for upstreams that a rule verifies.
pub(crate) fn check_rules(document: &Section<'_>, rules: &RuleList) {
    let has_tls = |action: &Action| {
        let http = action.requests().and_then(|requests| requests.upstream.as_http());
        http.is_some_and(|http| http.tls.is_some())
    };
    // Those of profiles are for sandboxes.
    let is_for_sandboxes = document.value("sandbox").is_some();
    if is_for_sandboxes || rules.iter().any(|rule| has_tls(rule.action)) {
        return;
    }
    for section in document.sections("secret", TITLE) {
        let message = "no rule sends requests to an upstream with TLS, so this secret is never \
            used; spliced connections are not looked into";
        section.at.warning(message);
    }
}

/// Reports a placeholder that is a part of another one: a text would have both.
fn check_others(text: Text<'_>, others: &[Text<'_>]) {
    for other in others {
        let (one, another) = (text.text, other.text);
        if one == another {
            text.at.error(format!("the secret at line {} has this placeholder", other.at.line()));
        } else if one.contains(another) || another.contains(one) {
            let line = other.at.line();
            let message =
                format!("\"{one}\" and \"{another}\" (line {line}): one is a part of the other");
            text.at.error(message);
        }
    }
}

fn source(section: &Section<'_>, files: &mut Files) -> Option<SecretSource> {
    let (file, command) = (section.key_at("file"), section.key_at("command"));
    match (file, command) {
        (Some(_), Some(at)) => {
            at.error("a secret is in a `file`, or a `command` prints it: not both");
            None
        }
        (None, None) => {
            let message = "a secret needs a `file`, or a `command` that prints it";
            section.missing(&["file", "command"], message);
            None
        }
        (Some(_), None) => {
            if let Some(at) = section.key_at("refresh") {
                at.error("`refresh` is for a `command`; a file is read when it changes");
            }
            let text = section.text("file")?;
            let path = files.path(text.text);
            text.at.keep(secret_of_file(&path));
            Some(SecretSource::File(path))
        }
        (None, Some(at)) => {
            let words = section.texts("command")?;
            if words.iter().any(|word| word.text.is_empty()) {
                at.error("a word of the command is empty");
            }
            if let [alone] = &*words
                && alone.text.contains(' ')
            {
                let message = "a command is a list of words, such as [\"pass\", \"show\", \"a\"]; \
                    no shell reads it";
                alone.at.error(message);
            }
            let words = words.iter().map(|word| word.text.to_owned()).collect();
            let refresh = duration(section, "refresh", &REFRESH);
            Some(SecretSource::Command { words, refresh })
        }
    }
}

fn names(section: &Section<'_>) -> Vec<NamePattern> {
    if section.value("names").is_none() {
        let message =
            "a secret needs `names`: the servers that may get it, as in \"api.a.example\"";
        section.missing(&["names"], message);
    }
    let texts = section.texts("names").unwrap_or_default();
    let names = texts.iter().filter_map(|text| {
        let pattern = text.parse(|text| match text.parse::<NamePattern>() {
            Ok(NamePattern::Absent) => Err("an empty name is no server; expected one such as \
                \"api.a.example\""
                .to_owned()),
            read => read.map_err(|fault| format!("\"{text}\": {fault}")),
        })?;
        if let NamePattern::Suffix(suffix) = &pattern
            && !suffix.contains('.')
        {
            text.at.warning(format!("\"{pattern}\" takes a whole top-level domain"));
        }
        Some(pattern)
    });
    names.collect()
}

fn method(text: &str) -> Result<Method, String> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase());
    let method = Method::from_bytes(text.as_bytes()).ok().filter(|_| is_plain);
    method.ok_or_else(|| format!("\"{text}\" is no method; expected one such as \"GET\""))
}

fn field(text: &str) -> Result<HeaderName, String> {
    let name = HeaderName::from_bytes(text.as_bytes())
        .map_err(|_| format!("\"{text}\" is not the name of a field (RFC 9110 section 5.1)"))?;
    match OTHERS.contains(&name) {
        true => Err(format!(
            "\"{name}\" cannot carry a secret: it frames the message, or others \
             than the server read it"
        )),
        false => Ok(name),
    }
}

/// Reads the secret in a file.
///
/// # Errors
/// The file cannot be read, others may read it, or it is no secret. The error shows nothing of it.
pub fn secret_of_file(path: &Path) -> Result<SecretValue, String> {
    let shown = path.display();
    let unreadable = |why: std::io::Error| match why.kind() {
        ErrorKind::FileTooLarge => format!("{shown}: {}", SecretFault::Long),
        _ => format!("cannot read {shown}: {why}"),
    };
    let mode = regular_mode(path).map_err(unreadable)? & 0o777;
    if mode & ALL_BUT_OWNER != 0 {
        return Err(format!(
            "others may read or write the secret in {shown} (mode {mode:o}): chmod 600 {shown}"
        ));
    }
    let read = read_regular(path, SECRET_READ_BYTES_MAX as u64).map_err(unreadable)?;
    SecretValue::new(&Zeroizing::new(read)).map_err(|fault| format!("{shown}: {fault}"))
}
