//! Finds files of one crate that import each other in a circle, from the paths in their code.
//! A path belongs to the file that defines what it names, also where another one re-exports it.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{File, tokens, without_tests};

/// Segments of a path from the root of its crate: of a module, or of an item in one.
type Path<'a> = Vec<&'a str>;

/// The files of a crate.
struct Crate<'a> {
    modules: BTreeMap<Path<'a>, Vec<&'a str>>,
    /// The re-exports of a module: by its own path, the path that it stands for.
    reexports: BTreeMap<Path<'a>, Path<'a>>,
}

/// Re-exports of re-exports that are followed.
const REEXPORTS_MAX: usize = 8;

/// Depth of the folders below `src` that are looked at.
const FOLDER_DEPTH_MAX: usize = 3;

/// Each group of files under `folder` that import each other in a circle, as module paths. A folder
/// counts as one file, too: two folders, or a folder and a file beside it, must not import each
/// other.
pub fn circles(files: &[File], folder: &str) -> Vec<BTreeSet<String>> {
    let all = Crate::read(files, folder);
    let imports: BTreeMap<Path<'_>, BTreeSet<Path<'_>>> =
        all.modules.keys().map(|at| (at.clone(), all.imported(at))).collect();
    let mut found = circles_of(&imports);
    for depth in 1..=FOLDER_DEPTH_MAX {
        for circle in circles_of(&folders(&imports, depth)) {
            // A circle of files is one of their folders, too.
            if !found.iter().any(|known| circle.is_subset(known)) {
                found.push(circle);
            }
        }
    }
    found
}

/// The imports of folders at a depth: what lies deeper is a part of its folder. A file that only
/// leads to the folder of its name is a part of that folder.
fn folders<'a>(
    imports: &BTreeMap<Path<'a>, BTreeSet<Path<'a>>>,
    depth: usize,
) -> BTreeMap<Path<'a>, BTreeSet<Path<'a>>> {
    let cut = |path: &Path<'a>| path[..path.len().min(depth)].to_vec();
    let mut all: BTreeMap<Path<'a>, BTreeSet<Path<'a>>> = BTreeMap::new();
    for (at, imported) in imports {
        let (at, imported) = (cut(at), imported.iter().map(cut));
        // A parent and its child are looked at as files.
        let other = imported.filter(|of| !of.starts_with(&at) && !at.starts_with(of));
        all.entry(at.clone()).or_default().extend(other.collect::<Vec<_>>());
    }
    let names: Vec<_> = all.keys().cloned().collect();
    all.values_mut().for_each(|of| of.retain(|of| names.contains(of)));
    all
}

fn circles_of(imports: &BTreeMap<Path<'_>, BTreeSet<Path<'_>>>) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<_, _> = imports.keys().map(|at| (at, reached(imports, at))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (at, _) in reached.iter().filter(|(at, reached)| reached.contains(**at)) {
        let circle = reached[at].iter().filter(|other| reached[other].contains(*at));
        let circle: BTreeSet<String> = circle.map(|module| module.join("::")).collect();
        if !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

fn reached<'a>(
    imports: &BTreeMap<Path<'a>, BTreeSet<Path<'a>>>,
    from: &Path<'a>,
) -> BTreeSet<Path<'a>> {
    let mut seen = BTreeSet::new();
    let mut next: Vec<&Path<'a>> = imports[from].iter().collect();
    while let Some(at) = next.pop() {
        if seen.insert(at.clone()) {
            next.extend(&imports[at]);
        }
    }
    seen
}

impl<'a> Crate<'a> {
    fn read(files: &'a [File], folder: &str) -> Self {
        let shipped =
            files.iter().filter(|file| file.is_rust() && file.within(folder) && !file.is_test());
        let words = |file: &'a File| {
            let tokens = tokens(&file.code);
            without_tests(&tokens).into_iter().map(|(_, word)| word).collect()
        };
        let modules: BTreeMap<Path<'a>, Vec<&'a str>> =
            shipped.map(|file| (module(&file.path[folder.len() + 1..]), words(file))).collect();
        let mut all = Self { modules, reexports: BTreeMap::new() };
        for (at, words) in &all.modules {
            let mut found = Vec::new();
            for (index, _) in words.iter().enumerate().filter(|(_, word)| **word == "use") {
                // `pub use`, and `pub(crate) use`.
                let is_public = index > 0 && ["pub", ")"].contains(&words[index - 1]);
                if is_public && let Some(base) = all.base(at, words, index + 1) {
                    paths(base, &words[index + 4..], &mut found);
                }
            }
            let named = |path: Path<'a>| Some(([at, &[*path.last()?][..]].concat(), path));
            all.reexports.extend(found.into_iter().filter_map(named));
        }
        all
    }

    /// Returns the base of the path that begins with the word at `index`; `None` where none does.
    fn base(&self, at: &[&'a str], words: &[&'a str], index: usize) -> Option<Path<'a>> {
        let word = *words.get(index)?;
        if words.get(index + 1..index + 3) != Some(&[":", ":"]) {
            return None;
        }
        match word {
            "crate" => Some(Vec::new()),
            "super" => Some(at.split_last()?.1.to_vec()),
            "self" => Some(at.to_vec()),
            // `mod` makes its children known without a prefix.
            child => {
                let below = [at, &[child]].concat();
                self.modules.contains_key(&below).then_some(below)
            }
        }
    }

    /// The files that a file imports.
    fn imported(&self, at: &Path<'a>) -> BTreeSet<Path<'a>> {
        let words = &self.modules[at];
        let mut found = Vec::new();
        // The root of a crate says what its modules are, and imports none of them.
        for index in (0..words.len()).filter(|_| !at.is_empty()) {
            let continues = index >= 2 && words[index - 2..index] == [":", ":"];
            if !continues && let Some(base) = self.base(at, words, index) {
                paths(base, &words[index + 3..], &mut found);
            }
        }
        // That a file re-exports what lies below it makes no import of it.
        let is_own = |path: &Path<'a>| self.reexports.values().any(|own| own == path);
        let below = |path: &Path<'a>| path.len() > at.len() && path.starts_with(at);
        found.retain(|path| !(below(path) && is_own(path)));
        found.into_iter().filter_map(|path| self.file_of(path)).filter(|file| file != at).collect()
    }

    fn file_of(&self, mut path: Path<'a>) -> Option<Path<'a>> {
        for _ in 0..REEXPORTS_MAX {
            let longest = (1..=path.len()).rev().find(|n| self.modules.contains_key(&path[..*n]));
            let module = longest.unwrap_or(0);
            let item = path.get(..module + 1);
            match item.and_then(|item| self.reexports.get(item)) {
                Some(stands_for) if *stands_for != path[..module + 1] => {
                    path = [stands_for, &path[module + 1..]].concat();
                }
                _ => {
                    path.truncate(module);
                    return (!path.is_empty()).then_some(path);
                }
            }
        }
        None
    }
}

fn module(path: &str) -> Path<'_> {
    let mut parts: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
    if parts.last().is_some_and(|last| ["lib", "main", "mod"].contains(last)) {
        parts.pop();
    }
    parts
}

/// Notes a path, or every path of a `{...}` group; gives how many words it took.
fn paths<'a>(base: Path<'a>, words: &[&'a str], found: &mut Vec<Path<'a>>) -> usize {
    match words {
        ["{", ..] => {
            let mut used = 1;
            while words.get(used).is_some_and(|word| *word != "}") {
                used += match words[used] {
                    "," => 1,
                    _ => paths(base.clone(), &words[used..], found).max(1),
                };
            }
            used + 1
        }
        ["super", ":", ":", rest @ ..] => {
            let above = base[..base.len().saturating_sub(1)].to_vec();
            3 + paths(above, rest, found)
        }
        [name, ":", ":", rest @ ..] => 3 + paths([base, vec![*name]].concat(), rest, found),
        [name, ..] => {
            found.push(if *name == "self" { base } else { [base, vec![*name]].concat() });
            // `name as other` is one import.
            if words.get(1) == Some(&"as") { 3 } else { 1 }
        }
        [] => 0,
    }
}

#[test]
fn a_circle_is_found_through_groups_parents_children_and_reexports() {
    let file = |path: &str, code: &str| File::of(path, code);
    let mut files = vec![
        file("k/src/lib.rs", "mod a; mod b; mod c; mod d; pub use d::D;"),
        file("k/src/a.rs", "use crate::{b::{self, B}, c};"),
        file("k/src/b/mod.rs", "mod inner; fn f() { inner::g() }"),
        file("k/src/b/inner.rs", "use super::super::c::C as D;"),
        file("k/src/c.rs", "#[cfg(test)] mod tests { use crate::d::D; } fn f() { crate::a::g() }"),
        file("k/src/d.rs", "use crate::a::A;"),
    ];
    let circle = |modules: &[&str]| modules.iter().map(|m| String::from(*m)).collect();
    assert_eq!(circles(&files, "k/src"), [circle(&["a", "b", "b::inner", "c"])]);
    files[4] = file("k/src/c.rs", "use super::D;");
    assert_eq!(circles(&files, "k/src"), [circle(&["a", "b", "b::inner", "c", "d"])]);
    files[5] = file("k/src/d.rs", "");
    assert_eq!(circles(&files, "k/src"), [] as [BTreeSet<String>; 0]);
    let rooms = [
        file("k/src/lib.rs", "mod a; mod b;"),
        file("k/src/a/mod.rs", "mod x; mod y;"),
        file("k/src/a/x.rs", "use crate::b::y::Y;"),
        file("k/src/a/y.rs", ""),
        file("k/src/b/mod.rs", "mod y;"),
        file("k/src/b/y.rs", "use crate::a::y::Y;"),
    ];
    assert_eq!(circles(&rooms, "k/src"), [circle(&["a", "b"])]);
    let parent = [
        file("k/src/p.rs", "mod child; pub use child::C; pub struct P;"),
        file("k/src/p/child.rs", "use super::P;"),
    ];
    assert_eq!(circles(&parent, "k/src"), [] as [BTreeSet<String>; 0]);
}
