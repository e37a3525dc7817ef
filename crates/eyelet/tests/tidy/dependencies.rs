//! The dependencies in manifests: each says why, and its crate names it.

use std::collections::BTreeSet;

use super::floors::FLOORS;
use super::source::{File, dependencies, files, tokens, without_tests};

/// Packages whose library has another name.
const LIBRARIES: &[(&str, &str)] = &[("rustls-webpki", "webpki")];

#[test]
fn every_dependency_says_why() {
    let mut findings = Vec::new();
    for manifest in files().iter().filter(|f| f.path.ends_with("Cargo.toml")) {
        for found in dependencies(&manifest.text) {
            let entry = &found.entry;
            let ours = entry.contains("path =") || entry.contains("workspace = true");
            let why = entry.split('#').nth(1).is_some_and(|why| why.trim().len() >= 8);
            if !ours && !why {
                let at = format!("{}:{}", manifest.path, found.line);
                findings.push(format!("{at}: {} without `# why`", found.name));
            }
        }
    }
    super::report(&findings);
}

/// rustdoc reads a whole crate to look for examples: crates without any tell cargo so.
/// The words of a crate's code: of what is built without its tests, or of all.
fn words<'a>(files: &'a [File], folder: &str, with_tests: bool) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    for file in files.iter().filter(|file| file.is_rust() && file.within(folder)) {
        // A feature has `testing` built for other crates.
        let is_shipped = file.within(&format!("{folder}/src"))
            && (!file.is_test() || file.path.contains("/testing"));
        let tokens = tokens(&file.code);
        match (with_tests, is_shipped) {
            (true, _) => found.extend(tokens.iter().map(|(_, word)| *word)),
            (false, true) => found.extend(without_tests(&tokens).iter().map(|(_, word)| *word)),
            (false, false) => {}
        }
    }
    found
}

#[test]
fn every_dependency_is_used() {
    let (mut findings, mut seen) = (Vec::new(), 0);
    let crates = |file: &&File| file.path.starts_with("crates/") || file.within("bench");
    let manifests = files().iter().filter(|file| file.path.ends_with("/Cargo.toml"));
    for manifest in manifests.filter(crates) {
        let folder = manifest.folder();
        let (shipped, all) = (words(files(), folder, false), words(files(), folder, true));
        for found in dependencies(&manifest.text) {
            seen += 1;
            let own = found.name.replace('-', "_");
            let other = LIBRARIES.iter().find(|(package, _)| *package == found.name);
            let library = other.map_or(own.as_str(), |(_, library)| library);
            let by = if found.section == "dependencies" { &shipped } else { &all };
            if !by.contains(library) {
                let at = format!("{}:{}", manifest.path, found.line);
                findings.push(format!("{at}: {} is in no code of [{}]", found.name, found.section));
            }
        }
        if let Some((_, Some(allowed))) = FLOORS.iter().find(|(name, _)| *name == folder) {
            let asked = dependencies(&manifest.text);
            let is_asked = |name: &str| asked.iter().any(|found| found.name == name);
            let stale = allowed.iter().filter(|name| !is_asked(name));
            findings.extend(stale.map(|name| format!("FLOORS: {folder} has no {name}")));
        }
    }
    assert!(seen > 300, "only {seen} dependencies are found");
    super::report(&findings);
}
