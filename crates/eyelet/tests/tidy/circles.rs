//! Finds files of one crate that import each other in a circle, from the paths in their code.
//! A path belongs to the file of the longest module that it names.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{File, tokens, without_tests};

/// The modules of a crate: for each module path the file that holds it, and the files it imports.
type Modules<'a> = BTreeMap<Vec<&'a str>, &'a File>;
type Imports<'a> = BTreeMap<Vec<&'a str>, BTreeSet<Vec<&'a str>>>;

/// Each group of files under `folder` that import each other in a circle, as module paths.
pub fn circles(files: &[File], folder: &str) -> Vec<BTreeSet<String>> {
    let modules: Modules<'_> = files
        .iter()
        .filter(|file| file.is_rust() && file.within(folder) && !file.is_test())
        .map(|file| (module(&file.path[folder.len() + 1..]), file))
        .collect();
    let mut imports = Imports::new();
    for (at, file) in &modules {
        // A crate's root names its modules and is imported by none of them by name.
        if !at.is_empty() {
            imports.insert(at.clone(), imported(&modules, at, file));
        }
    }
    let reached = |from: &Vec<&str>| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&Vec<&str>> = imports[from].iter().collect();
        while let Some(at) = next.pop() {
            if seen.insert(at.clone()) {
                next.extend(&imports[at]);
            }
        }
        seen
    };
    let all: BTreeMap<_, _> = imports.keys().map(|at| (at, reached(at))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (at, _) in all.iter().filter(|(at, reached)| reached.contains(**at)) {
        let circle = all[at].iter().filter(|other| all[other].contains(*at));
        let circle: BTreeSet<String> = circle.map(|module| module.join("::")).collect();
        if !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

fn module(path: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
    if parts.last().is_some_and(|last| ["lib", "main", "mod"].contains(last)) {
        parts.pop();
    }
    parts
}

fn imported<'a>(modules: &Modules<'a>, at: &[&'a str], file: &'a File) -> BTreeSet<Vec<&'a str>> {
    let tokens = tokens(&file.code);
    let words: Vec<&str> = without_tests(&tokens).into_iter().map(|(_, word)| word).collect();
    let mut found = BTreeSet::new();
    for (index, word) in words.iter().enumerate() {
        let continues = index >= 2 && words[index - 2..index] == [":", ":"];
        if continues || words.get(index + 1..index + 3) != Some(&[":", ":"]) {
            continue;
        }
        let base = match *word {
            "crate" => Vec::new(),
            "super" => at[..at.len() - 1].to_vec(),
            "self" => at.to_vec(),
            // `mod` makes its children known without a prefix.
            child if modules.contains_key(&[at, &[child]].concat()) => [at, &[*word]].concat(),
            _ => continue,
        };
        follow(modules, at, base, &words[index + 3..], &mut found);
    }
    found
}

/// Follows a path, or every path of a `{...}` group, to the files that it names; gives how many
/// words it took.
fn follow<'a>(
    modules: &Modules<'a>,
    at: &[&'a str],
    base: Vec<&'a str>,
    words: &[&'a str],
    found: &mut BTreeSet<Vec<&'a str>>,
) -> usize {
    match words {
        ["{", ..] => {
            let mut used = 1;
            while words.get(used).is_some_and(|word| *word != "}") {
                used += match words[used] {
                    "," => 1,
                    _ => follow(modules, at, base.clone(), &words[used..], found).max(1),
                };
            }
            used + 1
        }
        ["super", ":", ":", rest @ ..] => {
            let above = base[..base.len().saturating_sub(1)].to_vec();
            3 + follow(modules, at, above, rest, found)
        }
        [name, ":", ":", rest @ ..] => {
            3 + follow(modules, at, [base, vec![*name]].concat(), rest, found)
        }
        [name, ..] => {
            let mut path = if *name == "self" { base } else { [base, vec![*name]].concat() };
            while !path.is_empty() && !modules.contains_key(&path) {
                path.pop();
            }
            if !path.is_empty() && path != at {
                found.insert(path);
            }
            // `name as other` is one import.
            if words.get(1) == Some(&"as") { 3 } else { 1 }
        }
        [] => 0,
    }
}

#[test]
fn a_circle_is_found_through_groups_parents_and_children() {
    let file = |path: &str, code: &str| File::of(path, code);
    let files = [
        file("k/src/lib.rs", "mod a; mod b; mod c; mod d;"),
        file("k/src/a.rs", "use crate::{b::{self, B}, c};"),
        file("k/src/b/mod.rs", "mod inner; fn f() { inner::g() }"),
        file("k/src/b/inner.rs", "use super::super::c::C as D;"),
        file("k/src/c.rs", "#[cfg(test)] mod tests { use crate::d::D; } fn f() { crate::a::g() }"),
        file("k/src/d.rs", "use crate::a::A;"),
    ];
    let one: BTreeSet<String> = ["a", "b", "b::inner", "c"].map(String::from).into();
    assert_eq!(circles(&files, "k/src"), [one]);
}
