//! Reads [sandbox.NAME]: what a command may reach that `eyelet sandbox --profile NAME` runs.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use eyelet_policy::NamePattern;
use ipnet::IpNet;
use toml::de::{DeTable, DeValue};

use crate::model::dns::Dns;
use crate::rules::matchers;
use crate::rules::mint::MINT;
use crate::rules::requests;
use crate::sections::hold::{self, HoldSettings};
use crate::sections::secret::{self, SecretSettings, SecretSource};
use crate::settings;
use eyelet_document::diagnostic::Diagnostic;
use eyelet_document::reader::{Report, Section};
use eyelet_files::{Depth, Files, read};

/// A profile of a file: the places that a command may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxProfile {
    /// Entries, as a list has them.
    pub allow: Vec<String>,
    /// Files of lists.
    pub allow_files: Vec<PathBuf>,
    /// Networks of private addresses to which names may lead.
    pub allow_private: Vec<IpNet>,
    /// Rules for what is on the lists, in their order.
    pub rules: Vec<SandboxRule>,
    /// True if somebody is asked about what is not allowed.
    pub ask: bool,
    /// True if no name is refused.
    pub dry_run: bool,
    /// The time for which a question waits, and the program that is asked.
    pub hold: HoldSettings,
    /// The servers that resolve names.
    pub dns: Dns,
    /// Secrets that its command uses by their placeholders, and never has.
    pub secrets: Vec<SecretSettings>,
    /// Files and folders of keys and secrets that the file names anywhere.
    pub secret_files: Vec<PathBuf>,
}

/// A rule of a profile: how the names are served that it has and the lists have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxRule {
    /// The name of the rule.
    pub name: String,
    /// Names, and `*.` before those whose names below are meant. Empty: all on the lists.
    pub sni: Vec<String>,
    /// Its action.
    pub action: SandboxAction,
    /// The methods of the requests that it takes, and globs of their paths, as an edge's rule has
    /// them. Empty: any.
    pub methods: Vec<String>,
    pub paths: Vec<String>,
}

impl SandboxRule {
    /// True if it decides requests.
    pub fn asks_requests(&self) -> bool {
        !(self.methods.is_empty() && self.paths.is_empty())
    }
}

/// The action for TLS to a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxAction {
    /// Its bytes pass untouched.
    Splice,
    /// It ends here, by a certificate that the run's own authority signs.
    Mint {
        /// The authorities that may sign the origin's certificate, in place of the system's roots.
        upstream_ca: Option<PathBuf>,
    },
}

const TITLE: &str = "[sandbox.NAME]";
const PROFILE_KEYS: [&str; 7] =
    ["allow", "allow_file", "allow_private", "ask", "dry_run", "rule", "secrets"];
const RULE_TITLE: &str = "[[sandbox.NAME.rule]]";
const RULE_KEYS: [&str; 8] =
    ["action", "certificate", "http_only_reads", "method", "name", "path", "sni", "upstream_ca"];
/// Keys of the whole configuration whose values are files of keys or secrets, or folders of them.
const SECRETS: [&str; 9] = [
    "external_account_key_file",
    "folder",
    "headers_file",
    "key",
    "mint_key",
    "secret_file",
    "token_file",
    "upstream_key",
    "users",
];

/// Reads a profile of a file. The file may be that of an edge, whose other parts mean nothing here,
/// but for its resolvers and `[hold]`.
///
/// # Errors
/// Every mistake in its profiles, or that it has no such profile.
pub fn sandbox_profile(path: &Path, name: &str) -> Result<SandboxProfile, Vec<Diagnostic>> {
    let text = read(path).map_err(|message| vec![Diagnostic::of_file(path, message)])?;
    let report = Report::new(path, &text);
    let table = report.parse();
    let folder = path.parent().unwrap_or(Path::new(""));
    let document = report.document(&table);
    let mut files = Files::new(folder, Depth::Run, SystemTime::now(), None);
    document.check_keys(&settings::DOCUMENT_KEYS);
    let known = secret::read(&document, &mut files);
    let (mut found, mut names) = (None, Vec::new());
    for (called, profile) in profiles(&document, folder, &known) {
        if called == name {
            found = Some(profile);
        }
        names.push(called);
    }
    if found.is_none() {
        let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        document.at.error(format!("no profile [sandbox.{name}] here; the file has: {has}"));
    }
    let (dns, mut secret_files) = (settings::dns(&document, &mut files), Vec::new());
    note_secrets(document.table, folder, &mut secret_files);
    secret_files.extend(known.into_iter().filter_map(|secret| match secret.source {
        SecretSource::File(path) | SecretSource::FileOnce(path) => Some(path),
        SecretSource::Command { .. } => None,
    }));
    let hold = hold::read(&document);
    let (diagnostics, is_fatal) = report.finish();
    match found {
        Some(profile) if !is_fatal => Ok(SandboxProfile { dns, hold, secret_files, ..profile }),
        _ => Err(diagnostics),
    }
}

/// The names of the profiles of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxNames {
    pub names: Vec<String>,
    /// True if the file has nothing of an edge.
    pub are_alone: bool,
}

/// Finds the names of the profiles of a file: none if it cannot be read.
pub fn sandbox_names(path: &Path) -> SandboxNames {
    let Ok(text) = read(path) else { return SandboxNames::default() };
    let report = Report::new(path, &text);
    let table = report.parse();
    let document = report.document(&table);
    let profiles = document.section("sandbox", "[sandbox]");
    let keys = profiles.iter().flat_map(|profiles| profiles.table.keys());
    let names: Vec<String> = keys.map(|name| name.get_ref().to_string()).collect();
    let are_alone = !names.is_empty() && document.lacks("listener") && document.lacks("rule");
    SandboxNames { names, are_alone }
}

/// Notes the files and folders of secrets that a table names, and the tables in it.
fn note_secrets(table: &DeTable<'_>, folder: &Path, secrets: &mut Vec<PathBuf>) {
    for (key, value) in table {
        let is_secret = SECRETS.contains(&key.get_ref().as_ref());
        let items = match value.get_ref() {
            DeValue::Array(items) => items,
            _ => std::slice::from_ref(value),
        };
        for item in items {
            match item.get_ref() {
                DeValue::Table(table) => note_secrets(table, folder, secrets),
                DeValue::String(file) if is_secret => secrets.push(folder.join(&**file)),
                _ => {}
            }
        }
    }
}

/// The profiles of a file, with their names.
pub(crate) fn profiles<'t>(
    document: &Section<'t>,
    folder: &Path,
    known: &[SecretSettings],
) -> Vec<(&'t str, SandboxProfile)> {
    let Some(all) = document.section("sandbox", "[sandbox]") else { return Vec::new() };
    let mut found = Vec::new();
    for (key, value) in all.table {
        let name: &str = key.get_ref();
        let DeValue::Table(table) = value.get_ref() else {
            let message = format!("`{name}` is no table; a profile begins with {TITLE}");
            all.place(key).error(message);
            continue;
        };
        let section = Section { title: TITLE, table, at: all.place(key) };
        section.check_keys(&PROFILE_KEYS);
        let texts = |key| section.texts(key).unwrap_or_default().into_iter();
        let rules = rules(&section, folder);
        let secrets = secrets(&section, known, &rules);
        let profile = SandboxProfile {
            allow: texts("allow").map(|entry| entry.text.to_owned()).collect(),
            allow_files: texts("allow_file").map(|file| folder.join(file.text)).collect(),
            allow_private: matchers::nets(&section, "allow_private"),
            rules,
            secrets,
            ask: section.flag("ask").unwrap_or(false),
            dry_run: section.flag("dry_run").unwrap_or(false),
            hold: HoldSettings::default(),
            dns: Dns::default(),
            secret_files: Vec::new(),
        };
        found.push((name, profile));
    }
    found
}

/// The secrets that a profile names by their placeholders.
fn secrets(
    profile: &Section<'_>,
    known: &[SecretSettings],
    rules: &[SandboxRule],
) -> Vec<SecretSettings> {
    let Some(texts) = profile.texts("secrets") else { return Vec::new() };
    if rules.iter().all(|rule| rule.action == SandboxAction::Splice) {
        let message = "no rule of this profile ends TLS, so no secret would be used: add a rule \
            with `certificate = \"mint\"` for its names";
        profile.value_at("secrets").error(message);
    }
    let found = texts.iter().filter_map(|text| {
        let is_it = |secret: &&SecretSettings| secret.terms.placeholder.as_str() == text.text;
        let found = known.iter().find(is_it);
        if found.is_none() {
            let message = format!("no [[secret]] here has the placeholder \"{}\"", text.text);
            text.at.error(message);
        }
        found.cloned()
    });
    found.collect()
}

fn rules(profile: &Section<'_>, folder: &Path) -> Vec<SandboxRule> {
    let sections = profile.sections("rule", RULE_TITLE);
    let mut earlier: Vec<SandboxRule> = Vec::new();
    for (number, section) in (1..).zip(&sections) {
        section.check_keys(&RULE_KEYS);
        let name = match section.text("name") {
            Some(name) => name.text.to_owned(),
            None => format!("rule {number}"),
        };
        let sni = section.texts("sni").unwrap_or_default().into_iter();
        let sni = sni.filter_map(|name| name.parse(pattern)).collect();
        let (methods, paths) = requests::written(section);
        let Some(action) = rule_action(section, folder) else { continue };
        if action == SandboxAction::Splice {
            requests::check_splice(section);
        }
        let rule = SandboxRule { name, sni, action, methods, paths };
        check_earlier(section, &rule, &earlier);
        earlier.push(rule);
    }
    earlier
}

/// Reports a rule that never gets a name, because an earlier one takes all that comes to it. It is
/// about rules that mint: at port 80 those take nothing.
fn check_earlier(section: &Section<'_>, rule: &SandboxRule, earlier: &[SandboxRule]) {
    if rule.action == SandboxAction::Splice {
        return;
    }
    let takes = |by: &SandboxRule, name: &str| {
        by.sni.is_empty() || by.sni.iter().any(|own| own == name || is_below(name, own))
    };
    for by in earlier.iter().filter(|by| !by.asks_requests()) {
        let name = match &*rule.sni {
            [] => by.sni.is_empty().then_some("any name"),
            sni => sni.iter().find(|name| takes(by, name)).map(|name| &**name),
        };
        if let Some(name) = name {
            let message = format!(
                "this rule never gets {name}: \"{}\" is above it, and takes all requests to that; \
                 put this rule first",
                by.name
            );
            return section.at.error(message);
        }
    }
}

/// True if a pattern is of names below those of `above`, as `a.b` and `*.a.b` are for `*.b`.
fn is_below(pattern: &str, above: &str) -> bool {
    let Some(suffix) = above.strip_prefix('*') else { return false };
    pattern.ends_with(suffix)
}

/// A name, or names below one, as a rule writes them.
fn pattern(text: &str) -> Result<String, String> {
    match text.parse::<NamePattern>() {
        Ok(NamePattern::Absent) | Err(_) => {
            Err(format!("\"{text}\" is no name; expected \"a.example\" or \"*.a.example\""))
        }
        Ok(pattern) => Ok(pattern.to_string()),
    }
}

fn rule_action(section: &Section<'_>, folder: &Path) -> Option<SandboxAction> {
    section.required("action", "a rule needs an `action`: \"splice\" or \"terminate\"")?;
    let words = [("splice", false), ("terminate", true)];
    if section.word("action", " is no action of a sandbox's rule;", &words)? {
        let without = "a sandbox ends TLS by its own authority; expected `certificate = \"mint\"`";
        let certificate = section.required("certificate", without)?;
        if certificate.text != MINT {
            certificate.at.error(without);
        }
        let upstream_ca = section.text("upstream_ca").map(|file| folder.join(file.text));
        return Some(SandboxAction::Mint { upstream_ca });
    }
    for (key, at) in section.present(&["certificate", "upstream_ca"]) {
        at.error(format!("`{key}` is for `action = \"terminate\"` only"));
    }
    Some(SandboxAction::Splice)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_profile_is_found_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("edge.toml");
        let text = "[dns]\nservers = [\"192.0.2.53\"]\n[sandbox.build]\nallow = [\"a.example\"]\n\
            allow_file = \"more.txt\"\nallow_private = \"10.0.0.0/8\"\n[sandbox.test]\n\
            ask = true\ndry_run = true\n[hold]\ntimeout = \"2s\"\n[[rule]]\n\
            key = [\"a.key\", \"/b.key\"]\nsni = \"key\"\n\
            [acme]\nfolder = \"acme\"\n";
        std::fs::write(&file, text).unwrap();
        let build = sandbox_profile(&file, "build").unwrap();
        assert_eq!(build.allow, ["a.example"]);
        assert_eq!(build.allow_files, [folder.path().join("more.txt")]);
        assert_eq!(build.allow_private, ["10.0.0.0/8".parse().unwrap()]);
        assert_eq!(build.dns.servers.len(), 1);
        let secrets = [folder.path().join("a.key"), "/b.key".into(), folder.path().join("acme")];
        assert_eq!(build.secret_files.iter().collect::<BTreeSet<_>>(), secrets.iter().collect());
        let test = sandbox_profile(&file, "test").unwrap();
        assert!(test.dry_run && test.ask);
        assert_eq!(test.hold.timeout.as_secs(), 2);
        let missing = sandbox_profile(&file, "other").unwrap_err()[0].to_string();
        assert!(missing.contains("no profile [sandbox.other] here; the file has: build, test"));
        let rules = "[sandbox.build]\nallow = \".a.example\"\n[[sandbox.build.rule]]\n\
            sni = [\"b.A.example\", \"*.c.a.example\"]\naction = \"splice\"\n\
            [[sandbox.build.rule]]\nname = \"opened\"\naction = \"terminate\"\n\
            certificate = \"mint\"\n\
            upstream_ca = \"ca.pem\"\n";
        std::fs::write(&file, rules).unwrap();
        let [first, second] =
            <[_; 2]>::try_from(sandbox_profile(&file, "build").unwrap().rules).unwrap();
        assert_eq!(first.sni, ["b.a.example", "*.c.a.example"]);
        assert_eq!((&*first.name, first.action), ("rule 1", SandboxAction::Splice));
        let upstream_ca = Some(folder.path().join("ca.pem"));
        assert_eq!(second.action, SandboxAction::Mint { upstream_ca });
        for (rule, expected) in [
            ("action = \"refuse\"", "expected \"splice\" or \"terminate\""),
            ("action = \"terminate\"", "expected `certificate = \"mint\"`"),
            (
                "action = \"terminate\"\ncertificate = \"a.pem\"",
                "expected `certificate = \"mint\"`",
            ),
            ("action = \"splice\"\npath = \"/a\"", "a splice rule passes bytes on unread"),
            ("action = \"splice\"\ncertificate = \"mint\"", "is for `action = \"terminate\"` only"),
            ("action = \"splice\"\nsni = \".a.example\"", "is no name; expected"),
            ("sni = \"a.example\"", "a rule needs an `action`"),
        ] {
            let text = format!("[sandbox.build]\n[[sandbox.build.rule]]\n{rule}\n");
            std::fs::write(&file, text).unwrap();
            let mistake = sandbox_profile(&file, "build").unwrap_err()[0].to_string();
            assert!(mistake.contains(expected), "{rule}: {mistake}");
        }
        std::fs::write(&file, "[sandbox.build]\nalow = \"a.example\"\n").unwrap();
        let mistake = sandbox_profile(&file, "build").unwrap_err()[0].to_string();
        assert!(mistake.contains("did you mean `allow`?"), "{mistake}");
    }

    #[test]
    fn a_rule_that_never_gets_a_name_is_a_mistake() {
        const OPEN: &str = "action = \"terminate\"\ncertificate = \"mint\"\n";
        const SPLICE: &str = "action = \"splice\"\n";
        let look = |sni: &str| format!("{sni}\nmethod = \"GET\"\n{OPEN}");
        let named = |sni: &str| format!("sni = \"{sni}\"");
        let all = "# no `sni`";
        let (forge, below) = (named("forge.example"), named("*.forge.example"));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("edge.toml");
        for (first, second, name) in [
            (OPEN.to_owned(), look(&forge), "forge.example"),
            (OPEN.to_owned(), look(all), "any name"),
            (format!("{forge}\n{OPEN}"), look(&forge), "forge.example"),
            (format!("{below}\n{OPEN}"), look(&named("a.forge.example")), "a.forge.example"),
            (format!("{below}\n{SPLICE}"), look(&named("*.a.forge.example")), "*.a.forge.example"),
            (format!("{forge}\n{SPLICE}"), format!("{forge}\n{OPEN}"), "forge.example"),
            (format!("{below}\n{SPLICE}"), look(&forge), ""),
            (format!("{forge}\n{SPLICE}"), look(&below), ""),
            (format!("{forge}\n{SPLICE}"), look(all), ""),
            (look(&forge), OPEN.to_owned(), ""),
            (look(&forge), look(&forge), ""),
            // What does not speak TLS comes to the second.
            (format!("{forge}\n{OPEN}"), format!("{forge}\n{SPLICE}"), ""),
        ] {
            let [first, second] =
                [first, second].map(|rule| format!("[[sandbox.build.rule]]\n{rule}\n"));
            std::fs::write(&file, format!("[sandbox.build]\n{first}{second}")).unwrap();
            match (sandbox_profile(&file, "build"), name) {
                (Ok(_), "") => {}
                (Err(found), name) if !name.is_empty() => {
                    let expected = format!("this rule never gets {name}: \"rule 1\" is above it");
                    assert!(found[0].to_string().contains(&expected), "{}", found[0]);
                }
                (found, _) => panic!("{first}{second}: {:?}", found.err()),
            }
        }
    }
}
