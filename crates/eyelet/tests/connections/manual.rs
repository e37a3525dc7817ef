//! The documentation can be pasted: each configuration in README.md, `docs/` and `examples/` passes
//! `eyelet check`, with files of the names that it mentions beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::pages;
use crate::support::pki::Kind;
use crate::support::{Pki, output};

/// Stands before a block that shows rules without a listener. Together these know all that a
/// matcher may ask for.
const LISTENERS: &str = "[[listener]]\naddress = \"127.0.0.1:8443\"\nkind = \"redirect\"\n\
    [[listener]]\naddress = \"127.0.0.1:8080\"\nkind = \"connect\"\n";
/// Stands behind a block without a rule.
const RULE: &str = "[[rule]]\naction = \"refuse\"\n";

/// Every page of the project, and every example.
fn pages_and_examples() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let examples = fs::read_dir(root.join("examples")).unwrap();
    let mut pages = pages::pages();
    pages.extend(examples.map(|entry| entry.unwrap().path()));
    pages
}

/// The configurations of a page, in its order.
fn configurations(page: &Path) -> Vec<String> {
    match page.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => vec![fs::read_to_string(page).unwrap()],
        Some("md") => {
            let text = fs::read_to_string(page).unwrap();
            let blocks = text.split("```toml\n").skip(1);
            blocks.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
        }
        _ => Vec::new(),
    }
}

/// A configuration with what its page left out.
fn completed(block: &str) -> String {
    // Lines of an action or of a matcher, shown without their rule.
    if !block.contains('[') || block.starts_with("sni =") {
        return format!("{LISTENERS}[[rule]]\n{block}action = \"refuse\"\n");
    }
    let mut text = block.to_owned();
    if !text.contains("[[rule]]") {
        text += RULE;
    }
    // Keys of the top level stay above the first table.
    if !text.contains("[[listener]]") {
        let first = if text.starts_with('[') { 0 } else { text.find("\n[").map_or(0, |at| at + 1) };
        text.insert_str(first, LISTENERS);
    }
    text
}

/// Users as `eyelet passwd` writes them.
fn users() -> String {
    let hash = format!("$hmac-sha256${}${}", "5a".repeat(16), "a5".repeat(32));
    format!("alice:{hash}\nrelease-bot:{hash}\n")
}

/// Writes the files that a configuration names.
fn write_files(pki: &Pki, text: &str) {
    for name in text.split('"').skip(1).step_by(2) {
        let Some((stem, extension)) = name.rsplit_once('.') else { continue };
        // Absolute paths would lie outside of the test's folder.
        assert!(!name.starts_with('/') || extension != "pem", "{name} is an absolute path");
        match extension {
            "pem" | "key" if name.contains("ca") || name.contains("clients") => {
                let authority = fs::read_to_string(pki.folder.path().join("ca.pem")).unwrap();
                pki.folder.write(name, authority);
            }
            "pem" | "key" if stem == "mint" => pki.write_authority(&pki.folder, stem),
            "pem" => {
                let kind = match stem {
                    "pq" => Kind::MlDsa65,
                    stem if stem.contains("rsa") => Kind::Rsa,
                    _ => Kind::P256,
                };
                pki.server(stem, &["app.example", "svn.example"], kind);
            }
            "txt" if stem == "users" => _ = pki.folder.write(name, users()),
            "txt" => {
                let path = pki.folder.path().join(name);
                let line = if stem.contains("allow") { "a.example\n" } else { "10.0.0.0/8\n" };
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, line).unwrap();
            }
            "sock" if stem == "agent" => _ = pki.folder.write(name, ""),
            "crl" => {
                let good = Ok(std::time::Duration::from_hours(1));
                fs::write(pki.folder.path().join(name), pki.revoke(&[8], good)).unwrap();
            }
            "fields" => _ = pki.folder.write(name, "authorization: Bearer token\n"),
            "secret" | "token" => {
                pki.folder.write(name, "0123456789abcdef0123456789abcdef0123456789ab");
            }
            _ => {}
        }
    }
}

#[test]
fn every_configuration_in_the_documentation_passes_check() {
    let mut checked = 0;
    let mut refused = Vec::new();
    for page in pages_and_examples() {
        for block in configurations(&page) {
            let pki = Pki::new();
            // A public server issues nothing for names of examples, and `check` says so.
            let directory = "https://acme.test/directory";
            let text = completed(&block).replace("letsencrypt-staging", directory);
            // The socket of an agent is there where the agent runs.
            let text = text.replace("/run/spire/sockets/", "");
            // Addresses that this machine has.
            let text = text.replace(r#"["10.0.0.8", "10.0.0.9"]"#, r#"["127.0.0.8", "127.0.0.9"]"#);
            write_files(&pki, &text);
            let file = pki.folder.write("edge.toml", &text);
            let said = output(Command::new(env!("CARGO_BIN_EXE_eyelet")).arg("check").arg(file));
            checked += 1;
            if !said.status.success() || said.text.contains("warning") {
                refused.push(format!("{}:\n{text}\n{}", page.display(), said.text));
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n\n"));
    // All blocks were found: the pages had 30 when this was written.
    assert!(checked >= 30, "{checked}");
}
