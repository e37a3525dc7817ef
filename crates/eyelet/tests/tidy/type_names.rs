//! Public types of one name: a reader who meets the name must not have to ask which one is meant.
//! A test build's types do not count: nobody meets them beside the program's.

use std::collections::BTreeMap;

use super::source::{File, files, tokens};

/// Names that several public types share, each with the reason.
const SHARED_NAMES: &[(&str, &str)] =
    &[("Options", "the command line of each of the benchmark's subcommands, never imported")];

/// Public types of files, each with its files.
fn public_types(files: &[File]) -> BTreeMap<String, Vec<String>> {
    const KINDS: &[&str] = &["enum", "struct", "trait", "type", "union"];
    let mut types = BTreeMap::<String, Vec<String>>::new();
    for file in files.iter().filter(|file| file.is_rust() && !file.is_test()) {
        for triple in tokens(&file.code).windows(3) {
            let [(_, visibility), (_, kind), (_, name)] = triple else { continue };
            if *visibility == "pub" && KINDS.contains(kind) {
                types.entry((*name).to_owned()).or_default().push(file.path.clone());
            }
        }
    }
    types
}

#[test]
fn a_type_has_its_name_alone() {
    let types = public_types(files());
    assert!(types.len() > 100, "only {} public types are found", types.len());
    let is_listed = |name: &str| SHARED_NAMES.iter().any(|(listed, _)| *listed == name);
    let mut findings = Vec::new();
    for (name, paths) in &types {
        match (paths.len() > 1, is_listed(name)) {
            (true, false) => findings.push(format!("{name}: {}: rename one", paths.join(", "))),
            (false, true) => findings.push(format!("SHARED_NAMES: {name} is not shared any more")),
            _ => {}
        }
    }
    super::report(&findings);
}

#[test]
fn homonyms_are_found() {
    let one = File::of("crates/a/src/lib.rs", "pub struct Told(u8);\nstruct Place;\n");
    let two = File::of("crates/b/src/lib.rs", "pub enum Told { A }\npub struct Place;\n");
    let test = File::of("crates/b/tests/one.rs", "pub struct Place;\n");
    let types = public_types(&[one, two, test]);
    assert_eq!(types["Told"].len(), 2);
    assert_eq!(types["Place"].len(), 1);
}
