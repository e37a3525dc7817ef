//! The material to compress: bundles and records from the npm registry, and a source tree.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use aws_lc_rs::digest::SHA256;
use serde_json::Value;

use crate::child::of;

/// Bodies by path.
pub type ServedFiles = BTreeMap<String, Vec<u8>>;

/// Two versions of each of some bundles.
pub struct Bundles {
    pub names: Vec<&'static str>,
    /// Each at `/bundles/NAME.N`, and at `/plain/NAME.N`, for which there is no dictionary.
    pub served: ServedFiles,
}

pub fn bundles(folder: &Path) -> io::Result<Bundles> {
    let mut served = ServedFiles::new();
    for (name, package, versions, path) in BUNDLES {
        for (n, version) in versions.iter().enumerate() {
            let body = fs::read(fetch(folder, package, version)?.join(path))?;
            served.insert(format!("/plain/{name}.{}", n + 1), body.clone());
            served.insert(format!("/bundles/{name}.{}", n + 1), body);
        }
    }
    Ok(Bundles { names: BUNDLES.iter().map(|bundle| bundle.0).collect(), served })
}

/// Records of a real data set, one a response: `2 * count` at `/api/N`, in another order than the
/// data's.
pub fn answers(folder: &Path, count: usize) -> io::Result<ServedFiles> {
    let file = fetch(folder, RECORDS.0, RECORDS.1)?.join("data.json");
    let data: Value = serde_json::from_slice(&fs::read(file)?)?;
    let mut records = Vec::new();
    collect(&data, &mut Vec::new(), &mut records);
    if records.len() < 2 * count {
        return Err(io::Error::other(format!("{} records only", records.len())));
    }
    // A step coprime to the number of records visits each of them once.
    let step = (1..).map(|k| 7_919 + k).find(|step| gcd(*step, records.len()) == 1).unwrap_or(1);
    let all = records.len();
    let pick = |n: usize| std::mem::take(&mut records[n * step % all]);
    Ok((0..2 * count).map(pick).enumerate().map(|(n, r)| (format!("/api/{n}"), r)).collect())
}

fn collect(value: &Value, path: &mut Vec<String>, records: &mut Vec<Vec<u8>>) {
    let Value::Object(fields) = value else { return };
    if let Some(data) = fields.get("__compat") {
        let record = serde_json::json!({ "feature": path.join("."), "data": data });
        records.push(record.to_string().into_bytes());
    }
    for (name, inner) in fields.iter().filter(|(name, _)| *name != "__compat") {
        path.push(name.clone());
        collect(inner, path, records);
        path.pop();
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The pages of a folder, in another order than that of their names.
pub fn pages(folder: &Path) -> io::Result<ServedFiles> {
    let mut pages: Vec<Vec<u8>> = Vec::new();
    for path in files_in(folder)? {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        if name.is_some_and(|name| name.contains(".html")) {
            pages.push(fs::read(path)?);
        }
    }
    // Empty pages and redirects are left out.
    pages.retain(|page| page.len() >= PAGE_BYTES_MIN);
    pages.sort_by_cached_key(|page| aws_lc_rs::digest::digest(&SHA256, page).as_ref().to_vec());
    Ok((0..).zip(pages).map(|(n, page)| (format!("/pages/{n}"), page)).collect())
}

/// The files of a tree, without empty ones.
pub fn tree(root: &Path) -> io::Result<ServedFiles> {
    let mut files = ServedFiles::new();
    for path in files_in(root)? {
        let body = fs::read(path)?;
        if !body.is_empty() {
            files.insert(format!("/tree/{}", files.len()), body);
        }
    }
    Ok(files)
}

/// Regular files below a folder, sorted by name.
pub fn files_in(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(of(&folder))? {
            let path = entry?.path();
            let kind = fs::symlink_metadata(&path)?.file_type();
            if kind.is_dir() && path.file_name().is_some_and(|name| name != ".git") {
                folders.push(path);
            } else if kind.is_file() {
                files.push(path);
            }
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// A generated tree if none is given: sources in folders, about 8 MB. They repeat themselves as
/// sources do, but are artificial, so their figures only compare rows.
pub fn made_up(folder: &Path) -> io::Result<PathBuf> {
    let root = folder.join("made-up");
    let mut n: u32 = 1;
    let mut next = |below: u32| {
        n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (n >> 16) % below
    };
    for module in 0..MADE_UP_MODULES {
        let place = root.join(format!("module{module}"));
        fs::create_dir_all(&place)?;
        for file in 0..MADE_UP_FILES {
            let mut text = format!("/* module{module}/file{file}.c: made up */\n\n");
            for _ in 0..20 + next(120) {
                let (name, other) = (WORDS[next(24) as usize], WORDS[next(24) as usize]);
                text += &format!(
                    "static int\n{name}_{other}_{}(struct {name} *{name}, int {other})\n{{\n  \
                     if ({other} > {})\n    return {name}->{other} + {};\n  return {}({name});\n\
                     }}\n\n",
                    next(9_999),
                    next(200),
                    next(70),
                    WORDS[next(24) as usize],
                );
            }
            fs::write(place.join(format!("file{file}.c")), text)?;
        }
    }
    Ok(root)
}

/// Fetches a package by the npm client, and unpacks it.
pub fn fetch(folder: &Path, package: &str, version: &str) -> io::Result<PathBuf> {
    let into = folder.join(format!("{}-{version}", package.replace(['/', '@'], "-")));
    if into.is_dir() {
        return Ok(into.join("package"));
    }
    fs::create_dir(&into)?;
    let packed = Command::new("npm")
        .args(["pack", "--silent", "--pack-destination", "."])
        .arg(format!("{package}@{version}"))
        .current_dir(&into)
        .output()
        .map_err(of("npm"))?;
    let name = String::from_utf8_lossy(&packed.stdout).trim().to_owned();
    if !packed.status.success() || name.is_empty() {
        let said = String::from_utf8_lossy(&packed.stderr).trim().to_owned();
        return Err(io::Error::other(format!("npm pack {package}@{version}: {said}")));
    }
    let unpacked = Command::new("tar").args(["xzf", &name]).current_dir(&into).status()?;
    if !unpacked.success() {
        return Err(io::Error::other(format!("tar xzf {name}: {unpacked}")));
    }
    Ok(into.join("package"))
}

type Bundle = (&'static str, &'static str, [&'static str; 2], &'static str);

const BUNDLES: [Bundle; 3] = [
    ("react-dom", "react-dom", ["18.2.0", "18.3.1"], "umd/react-dom.production.min.js"),
    ("three", "three", ["0.169.0", "0.170.0"], "build/three.module.min.js"),
    ("plotly", "plotly.js-dist-min", ["2.34.0", "2.35.0"], "plotly.min.js"),
];

/// In bytes: a shorter page has no content.
const PAGE_BYTES_MIN: usize = 1_000;
const MADE_UP_MODULES: usize = 24;
const MADE_UP_FILES: usize = 25;
const WORDS: [&str; 24] = [
    "access", "buffer", "cache", "delta", "entry", "field", "group", "handle", "index", "journal",
    "key", "lock", "merge", "node", "offset", "pool", "queue", "record", "stream", "table",
    "update", "value", "window", "zone",
];

const RECORDS: (&str, &str) = ("@mdn/browser-compat-data", "8.1.9");

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_folder_that_is_missing_is_named() {
        let error = files_in(Path::new("/missing/tree")).unwrap_err();
        assert!(error.to_string().contains("/missing/tree"), "{error}");
    }
}
