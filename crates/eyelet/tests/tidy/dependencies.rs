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

/// The names in a crate's code that can be those of crates: of what is built without its tests, or
/// of all.
fn names<'a>(files: &'a [File], folder: &str, with_tests: bool) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    for file in files.iter().filter(|file| file.is_rust() && file.within(folder)) {
        // A feature has these built for other crates.
        let is_for_others = ["/testing", "/sim/"].iter().any(|part| file.path.contains(part));
        let is_shipped =
            file.within(&format!("{folder}/src")) && (!file.is_test() || is_for_others);
        let tokens = tokens(&file.code);
        match (with_tests, is_shipped) {
            (true, _) => found.extend(roots(&tokens)),
            (false, true) => found.extend(roots(&without_tests(&tokens))),
            (false, false) => {}
        }
    }
    found
}

/// Words that a path begins with: before `::`, or after `use`.
fn roots<'a>(tokens: &[(usize, &'a str)]) -> Vec<&'a str> {
    let word = |at: usize| tokens.get(at).map_or("", |(_, word)| *word);
    let is_path = |at: usize| word(at) == ":" && word(at + 1) == ":";
    let begins = |at: &usize| {
        let is_inner = *at > 1 && is_path(at - 2);
        let has_more = is_path(at + 1) && word(at + 3) != "<";
        !is_inner && (has_more || (*at > 0 && word(at - 1) == "use"))
    };
    (0..tokens.len()).filter(begins).map(word).collect()
}

#[test]
fn every_dependency_is_used() {
    let (mut findings, mut seen) = (Vec::new(), 0);
    for manifest in files().iter().filter(|file| file.path.ends_with("/Cargo.toml")) {
        let folder = manifest.folder();
        let (shipped, all) = (names(files(), folder, false), names(files(), folder, true));
        for found in dependencies(&manifest.text) {
            seen += 1;
            let own = found.name.replace('-', "_");
            let other = LIBRARIES.iter().find(|(package, _)| *package == found.name);
            let library = other.map_or(own.as_str(), |(_, library)| library);
            let is_shipped = found.section == "dependencies" && folder != "fuzz";
            let by = if is_shipped { &shipped } else { &all };
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

#[test]
fn a_name_is_a_crate_where_a_path_begins() {
    let text = "
        use a;
        use b::{c::D, e};
        fn f(g: h::I, j: k, l: m::n::O) -> p::Q<r::S> { t.u::<v>(); w!(); let x = y; }
    ";
    let file = File::of("crates/a/src/lib.rs", text);
    assert_eq!(roots(&tokens(&file.code)), ["a", "b", "c", "h", "m", "p", "r"]);
}
