//! From a file to a checked configuration, or to every mistake in it. This file coordinates; the
//! parts are read in the files beside it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::time::SystemTime;

use eyelet_policy::{NamePattern, RuleId, Rules};

use crate::checked::{Config, WatchedFile};
use crate::rule;
use crate::rule::{Lead, ReadState};
use crate::rules::lists::ListReader;
use crate::rules::spiffe::check_rule;
use crate::rules::{Reading, request_order};
use crate::sections::acme;
use crate::sections::acme::AcmeRules;
use crate::sections::admin;
use crate::sections::fleet;
use crate::sections::hold;
use crate::sections::sandbox;
use crate::sections::secret;
use crate::sections::spiffe;
use crate::sections::trace;
use crate::settings;
use crate::settings::compression;
use crate::settings::listeners::Listeners;
use crate::settings::local;
use eyelet_document::diagnostic::Diagnostic;
use eyelet_document::reader::{Place, Report, Section};
use eyelet_files::{Depth, Files, UnchangedPairs, read};

/// A valid configuration, and warnings.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Only of severity `Warning`, in the order of the file.
    pub warnings: Vec<Diagnostic>,
    /// The keys in it that a reload cannot change: [`Config::keep_until_upgrade`].
    pub upgrade_keys: Vec<&'static str>,
}

/// Reads a file.
///
/// # Errors
/// Every mistake in it, warnings included, in the order of the file. At least one is an error.
pub fn load(path: &Path, depth: Depth) -> Result<Loaded, Vec<Diagnostic>> {
    load_from(path, depth, None)
}

/// Loads as [`load`] does, for a configuration that follows `served`: lists whose files have not
/// changed are shared with it, and certificates that are `unchanged` are not read again.
///
/// # Errors
/// As [`load`].
pub fn load_next(
    path: &Path,
    depth: Depth,
    served: &Config,
    unchanged: UnchangedPairs,
) -> Result<Loaded, Vec<Diagnostic>> {
    load_from(path, depth, Some((served, unchanged)))
}

fn load_from(
    path: &Path,
    depth: Depth,
    served: Option<(&Config, UnchangedPairs)>,
) -> Result<Loaded, Vec<Diagnostic>> {
    let text = read(path).map_err(|message| vec![Diagnostic::of_file(path, message)])?;
    check(path, &text, depth, SystemTime::now(), served)
}

/// Checks the text of a configuration. Relative paths in it are relative to the folder of `path`.
/// The dates of certificates are compared with `now`.
///
/// # Errors
/// As [`load`].
pub fn parse(
    path: &Path,
    text: &str,
    depth: Depth,
    now: SystemTime,
) -> Result<Loaded, Vec<Diagnostic>> {
    check(path, text, depth, now, None)
}

fn check(
    path: &Path,
    text: &str,
    depth: Depth,
    now: SystemTime,
    served: Option<(&Config, UnchangedPairs)>,
) -> Result<Loaded, Vec<Diagnostic>> {
    let report = Report::new(path, text);
    let table = report.parse();
    let folder = path.parent().unwrap_or(Path::new(""));
    let document = report.document(&table);
    document.check_keys(&settings::DOCUMENT_KEYS);
    let (served, unchanged) = served.unzip();
    let mut files = Files::new(folder, depth, now, unchanged);
    let listeners = Listeners::read(&document, &mut files);
    let served = served.map(|served| (&served.lists, served.policy.lists()));
    let mut lists = ListReader::new(folder, served);
    let local = local::read(&document, &files);
    let mut ordered = AcmeRules::default();
    let reading = (&mut files, &mut lists, &local, &mut ordered);
    let (rules, policy, first) = read_rules(&document, &listeners, reading);
    let rules = rules.finish(folder);
    let acme = acme::read(&document, &mut files, ordered, &listeners);
    let limits = settings::limits(&document);
    secret::check_rules(&document, &rules);
    let config = Config {
        listeners: listeners.list,
        rules,
        policy,
        lists: lists.finish(),
        http: settings::http(&document, limits.idle_timeout),
        limits,
        hold: hold::read(&document),
        log: settings::log(&document, folder),
        dictionaries: compression::dictionaries(&document, folder),
        dns: settings::dns(&document, &mut files),
        evidence: settings::evidence(&document, &mut files),
        local,
        run_authority: None,
        acme,
        admin: admin::read(&document, &mut files),
        trace: trace::read(&document, &mut files),
        fleet: fleet::read(&document, &mut files),
        secrets: secret::read(&document, &mut files),
        spiffe: spiffe::read(&document, folder, first),
        tickets: settings::tickets(&document),
        workers: settings::workers(&document),
        reload_ends_removed: document.flag("reload_ends_removed").unwrap_or(false),
        watch: document
            .flag("watch")
            .and_then(|watches| watches.then(|| WatchedFile::new(path, text))),
    };
    // An edge serves none of them.
    sandbox::profiles(&document, folder, &config.secrets);
    let upgrade_keys = upgrade_keys(&document);
    let (diagnostics, fatal) = report.finish();
    if fatal {
        return Err(diagnostics);
    }
    Ok(Loaded { config, warnings: diagnostics, upgrade_keys })
}

fn upgrade_keys(document: &Section<'_>) -> Vec<&'static str> {
    let limits = document.value("limits").and_then(|limits| limits.get_ref().as_table());
    let keys = [
        ("workers", document.value("workers").is_some()),
        ("limits.memory_max", limits.is_some_and(|limits| limits.get("memory_max").is_some())),
        ("dictionary", document.value("dictionary").is_some()),
    ];
    keys.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key).collect()
}

fn read_rules<'t>(
    document: &Section<'t>,
    listeners: &Listeners,
    (files, lists, local, ordered): ReadState<'_, 't>,
) -> (Reading<'t>, Rules, Option<Place<'t>>) {
    let sections = document.sections("rule", "[[rule]]");
    ordered.has_unread = sections.is_empty() && !document.lacks("rule");
    let is_of_sandboxes = document.lacks("listener") && document.value("sandbox").is_some();
    if document.lacks("rule") && !is_of_sandboxes {
        document.at.warning("no rule; every connection will be refused");
    }
    if let Some(beyond) = sections.get(eyelet_policy::RULES_MAX) {
        beyond.at.error(format!("more than {} rules", eyelet_policy::RULES_MAX));
    }
    let (mut rules, mut matchers, mut read) = (Reading::default(), Vec::new(), Vec::new());
    let (mut leads, mut asks_certificates, mut spiffe) = (Vec::new(), Vec::new(), None);
    for (index, section) in sections.iter().enumerate() {
        let name = match section.text("name") {
            Some(name) if name.text.is_empty() => {
                name.at.error("a rule's name is what log lines show; it is empty");
                continue;
            }
            Some(name) => Cow::Borrowed(name.text),
            None => Cow::Owned(format!("rule {}", index + 1)),
        };
        let reading = (&mut *files, &mut *lists, local, &mut *ordered);
        let Some(written) = rule::read(section, listeners, reading) else {
            ordered.has_unread = true;
            continue;
        };
        spiffe = spiffe.or(check_rule(section, &written.action));
        rules.push(&name, written.action, written.certificates);
        matchers.push(written.matchers);
        leads.extend(written.leads);
        asks_certificates.extend(written.asks_certificates);
        read.push(*section);
    }
    check_names(&sections);
    check_leads(&leads, listeners);
    check_certificates(&leads, &asks_certificates, listeners);
    let policy = Rules::with_lists(&matchers, lists.lists());
    check_coverage(&policy, &matchers, &rules, &read);
    check_shadows(&matchers, &read);
    request_order::check(&matchers, &rules, &read);
    request_order::check_files(&policy, &matchers, &rules, &read);
    (rules, policy, spiffe)
}

/// Warns of rules with equal names, which a log cannot distinguish.
fn check_names(sections: &[Section<'_>]) {
    let mut places: HashMap<&str, Place<'_>> = HashMap::new();
    for section in sections {
        let Some(name) = section.value("name") else { continue };
        let Some(text) = name.get_ref().as_str() else { continue };
        let at = section.place(name);
        if let Some(first) = places.insert(text, at) {
            let line = first.line();
            at.warning(format!("the rule at line {line} has the name \"{text}\" too"));
        }
    }
}

/// Warns of listeners that are each other's upstreams: a connection from one listener to another is
/// not dialled to a third.
fn check_leads(leads: &[Lead<'_>], listeners: &Listeners) {
    let led = leads.iter().filter(|lead| !lead.from.is_empty());
    let led: HashMap<usize, Place<'_>> = led.map(|lead| (lead.to, lead.at)).collect();
    for lead in leads {
        let both = lead.from.iter().find_map(|from| Some((from, led.get(from)?)));
        let Some((from, before)) = both else { continue };
        let Some(middle) = listeners.list.get(*from) else { continue };
        let message = format!(
            "the listener {} is itself an upstream, at line {}: connections that come back that \
             way are refused as a loop",
            middle.called(),
            before.line()
        );
        lead.at.warning(message);
    }
}

/// A client must not be able to write the PROXY header itself to a listener that learns
/// certificates from it.
fn check_certificates(leads: &[Lead<'_>], asked: &[usize], listeners: &Listeners) {
    for lead in leads.iter().filter(|lead| !lead.says_client && asked.contains(&lead.to)) {
        let Some(listener) = listeners.list.get(lead.to) else { continue };
        let message = format!(
            "rules of the listener {} ask for `client_cert`, and this rule lets its clients write \
             the PROXY header in which the name comes; give it `proxy_protocol = \"v2\"`",
            listener.called()
        );
        lead.at.error(message);
    }
}

/// Warns of the first shadow rule that refuses what is refused anyway: it tries nothing out.
fn check_shadows(rules: &[eyelet_policy::Rule], sections: &[Section<'_>]) {
    let last = rules.iter().rposition(|rule| !rule.shadow && !rule.refuse);
    let below = last.map_or(0, |last| last + 1);
    let mut rules = rules.iter().zip(sections).skip(below);
    if let Some((_, section)) = rules.find(|(rule, _)| rule.shadow && rule.refuse) {
        section.value_at("shadow").warning(
            "no rule below lets a connection pass, so those that this rule takes are refused \
             anyway; to log them first, end with a rule that splices to \"destination\"",
        );
    }
}

fn check_coverage(
    policy: &Rules,
    matchers: &[eyelet_policy::Rule],
    rules: &Reading<'_>,
    sections: &[Section<'_>],
) {
    let coverage = policy.coverage(matchers);
    let shown = |rule: RuleId| {
        let index = rule.0 as usize;
        let (name, place) = (rules.name(index)?, sections.get(index)?);
        Some(format!("\"{name}\" (line {})", place.at.line()))
    };
    // Without a matcher whose key is unknown a rule is wider than it should be.
    let is_misread = |rule: &RuleId| sections.get(rule.0 as usize).is_some_and(Section::is_misread);
    for covered in coverage.covered {
        if is_misread(&covered.rule) || covered.by.iter().any(is_misread) {
            continue;
        }
        let Some(section) = sections.get(covered.rule.0 as usize) else { continue };
        let earlier = covered.by.iter().take(COVERING_SHOWN).filter_map(|by| shown(*by));
        let earlier = earlier.collect::<Vec<_>>().join(", ");
        let more = covered.by.len().saturating_sub(COVERING_SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let message = format!(
            "this rule can never match: earlier rules match all that it matches: {earlier}{more}"
        );
        section.at.error(message);
    }
    for lost in coverage.lost.chunk_by(|a, b| a.rule == b.rule) {
        let Some(first) = lost.iter().find(|lost| !lost.by.iter().any(is_misread)) else {
            continue;
        };
        let Some(section) = sections.get(first.rule.0 as usize) else { continue };
        let Some(by) = first.by.first().and_then(|by| shown(*by)) else { continue };
        let more = match lost.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let message = format!(
            "this rule never gets \"{}\"{more}: {by} comes first and takes it; leave it out, or \
             put this rule above",
            first.name
        );
        name_at(section, &first.name).warning(message);
    }
    if let Some(stopped) = coverage.stopped_at
        && let Some(section) = sections.get(stopped.0 as usize)
    {
        let message = "rules from here on are not checked for earlier rules that cover them: too \
                       many rules share names, or have none";
        section.at.warning(message);
    }
}

/// The place of a name in `sni`.
fn name_at<'t>(section: &Section<'t>, name: &NamePattern) -> Place<'t> {
    let value = section.value("sni");
    let items = value.and_then(|value| value.get_ref().as_array());
    let named = items.into_iter().flat_map(|items| items.iter()).find(|item| {
        let read = item.get_ref().as_str().map(str::parse::<NamePattern>);
        read.is_some_and(|read| read.as_ref() == Ok(name))
    });
    named.map_or_else(|| section.value_at("sni"), |item| section.place(item))
}

/// Most covering rules that a message names.
const COVERING_SHOWN: usize = 3;
