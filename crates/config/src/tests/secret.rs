//! The table [[secret]]: secrets that are good, and mistakes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::SandboxProfile;
use crate::SecretSource;
use crate::sandbox_profile;

const RULE: &str = "[[rule]]\naction = \"originate\"\nupstream = \"https://api.a.example:443\"\n";
const LISTENER: &str = "[[listener]]\naddress = \"127.0.0.1:443\"\nkind = \"plain\"\n";
const NAMES: &str = "names = \"api.a.example\"\n";

/// The mistakes of these secrets, in a folder that has files for them.
fn mistakes(folder: &Path, text: &str) -> Vec<String> {
    let path = folder.join("edge.toml");
    let text = format!("{LISTENER}{RULE}{text}");
    let found = match parse(&path, &text, Depth::Full, SystemTime::now()) {
        Ok(loaded) => loaded.warnings,
        Err(found) => found,
    };
    found.iter().map(ToString::to_string).collect()
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text, mode) in [
        ("good", "token-123\n", 0o600),
        ("open", "token-123\n", 0o640),
        ("empty", "", 0o600),
        ("lines", "token-123\nanother\n", 0o600),
        ("huge", &"a".repeat(1 << 20), 0o600),
        ("short", "abc", 0o600),
    ] {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
    }
    folder
}

fn secret(more: &str) -> String {
    format!("[[secret]]\nplaceholder = \"EYELET_SECRET_GITHUB\"\n{more}")
}

#[test]
fn a_secret_has_names_methods_and_fields() {
    let folder = folder();
    let read = |more: &str| {
        let path = folder.path().join("edge.toml");
        let text = format!("{LISTENER}{RULE}{}", secret(more));
        let loaded = parse(&path, &text, Depth::Full, SystemTime::now()).unwrap();
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
        loaded.config.secrets.into_iter().next().unwrap()
    };
    let plain = read(&format!("file = \"good\"\n{NAMES}"));
    assert_eq!(plain.source, SecretSource::File(folder.path().join("good")));
    assert!(plain.terms.has_name("api.a.example") && !plain.terms.has_name("a.example"));
    assert_eq!(plain.terms.headers, [http::header::AUTHORIZATION]);
    assert!(plain.terms.methods.is_empty());
    let all = read(
        "command = [\"pass\", \"show\", \"a b\"]\nrefresh = \"1h\"\nmethods = [\"GET\"]\n\
         names = [\"api.a.example\", \"*.b.example\"]\nheaders = \"X-Vendor-Key\"\n",
    );
    let words = ["pass", "show", "a b"].map(str::to_owned).to_vec();
    let refresh = Some(Duration::from_secs(3600));
    assert_eq!(all.source, SecretSource::Command { words, refresh });
    assert_eq!(all.terms.headers, ["x-vendor-key"]);
    assert_eq!((all.terms.methods.len(), all.terms.names.len()), (1, 2));
}

#[test]
fn mistakes_in_secrets_are_named() {
    let folder = folder();
    for (text, expected) in [
        ("file = \"open\"\n", "others may read or write the secret"),
        ("file = \"open\"\n", "chmod 600"),
        ("file = \"empty\"\n", "empty: it is empty"),
        ("file = \"lines\"\n", "more than one line"),
        ("file = \"huge\"\n", "more than 16384 bytes"),
        ("file = \"short\"\n", "fewer than 8 bytes"),
        ("file = \"absent\"\n", "cannot read"),
        ("file = \".\"\n", "cannot read"),
        ("", "a secret needs a `file`, or a `command`"),
        ("file = \"good\"\ncommand = \"pass\"\n", "not both"),
        ("file = \"good\"\nrefresh = \"1h\"\n", "`refresh` is for a `command`"),
        ("command = \"pass show a\"\n", "a command is a list of words"),
        ("command = [\"pass\", \"\"]\n", "a word of the command is empty"),
        ("command = \"pass\"\nrefresh = \"1s\"\n", "expected 10s"),
        ("file = \"good\"\nmethods = \"get\"\n", "\"get\" is no method"),
        ("file = \"good\"\nheaders = \"a b\"\n", "is not the name of a field"),
        ("file = \"good\"\nheaders = \"Host\"\n", "cannot carry a secret"),
        ("file = \"good\"\nheader = \"x-key\"\n", "did you mean `headers`?"),
    ] {
        let found = mistakes(folder.path(), &secret(&format!("{text}{NAMES}")));
        let is_named = found.iter().any(|mistake| mistake.contains(expected));
        assert!(is_named, "{text}: {found:?}");
        assert!(!found.iter().any(|mistake| mistake.contains("token-123")), "{found:?}");
    }
    for (names, expected) in [
        ("", "a secret needs `names`"),
        ("names = \"192.0.2.1\"\n", "\"192.0.2.1\": "),
        ("names = \"*\"\n", "\"*\" alone is not a pattern"),
        ("names = \"\"\n", "an empty name is no server; expected one such as \"api.a.example\""),
        ("names = \"*.example\"\n", "warning: \"*.example\" takes a whole top-level domain"),
    ] {
        let found = mistakes(folder.path(), &secret(&format!("file = \"good\"\n{names}")));
        assert!(found.iter().any(|mistake| mistake.contains(expected)), "{names}: {found:?}");
    }
}

#[test]
fn placeholders_are_told_apart() {
    let folder = folder();
    let rest = format!("file = \"good\"\n{NAMES}");
    for (placeholder, expected) in [
        ("EYELET_SECRET_GITHUB", "the secret at line 8 has this placeholder"),
        ("EYELET_SECRET_GITHUB_2", "one is a part of the other"),
        ("YELET_SECRET_GITHU", "one is a part of the other"),
        ("EYELET_SECRET", "16 to 128 bytes"),
        ("EYELET_SECRET GITHUB 2", "letters, digits"),
    ] {
        let other = format!("[[secret]]\nplaceholder = \"{placeholder}\"\n{rest}");
        let found = mistakes(folder.path(), &format!("{}{other}", secret(&rest)));
        assert!(found.iter().any(|mistake| mistake.contains(expected)), "{found:?}");
    }
    let other = format!("[[secret]]\nplaceholder = \"EYELET_SECRET_VENDOR\"\n{rest}");
    assert_eq!(mistakes(folder.path(), &format!("{}{other}", secret(&rest))), [""; 0]);
}

#[test]
fn a_secret_that_no_rule_can_use_is_a_warning() {
    let folder = folder();
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:443\"\n[[rule]]\naction = \"splice\"\n\
         upstream = \"a.example:443\"\n{}file = \"good\"\n{NAMES}",
        secret("")
    );
    let path = folder.path().join("edge.toml");
    let loaded = parse(&path, &text, Depth::Full, SystemTime::now()).unwrap();
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert!(warnings[0].contains("this secret is never used"), "{warnings:?}");
}

#[test]
fn a_profile_names_its_secrets() {
    let folder = folder();
    let read = |profile: &str| -> Result<SandboxProfile, String> {
        let file = folder.path().join("profiles.toml");
        let other = "[[secret]]\nplaceholder = \"EYELET_SECRET_VENDOR\"\nfile = \"good\"\n";
        let secrets = secret(&format!("file = \"good\"\n{NAMES}"));
        fs::write(&file, format!("{profile}{secrets}{other}{NAMES}")).unwrap();
        sandbox_profile(&file, "p").map_err(|found| found[0].to_string())
    };
    let mint = "[[sandbox.p.rule]]\naction = \"terminate\"\ncertificate = \"mint\"\n";
    let allow = "[sandbox.p]\nallow = \"api.a.example\"\n";
    let given = "secrets = [\"EYELET_SECRET_GITHUB\"]\n";
    let profile = read(&format!("{allow}{given}{mint}")).unwrap();
    let [one] = &profile.secrets[..] else { panic!("{:?}", profile.secrets) };
    assert_eq!(one.terms.placeholder.as_str(), "EYELET_SECRET_GITHUB");
    // Those of other profiles are hidden, too.
    assert_eq!(profile.secret_files, vec![folder.path().join("good"); 2]);
    assert!(read(allow).unwrap().secrets.is_empty());
    let fault = read(&format!("{allow}{given}")).unwrap_err();
    assert!(fault.contains("no rule of this profile ends TLS"), "{fault}");
    let fault = read(&format!("{allow}secrets = \"EYELET_SECRET_OTHER\"\n{mint}")).unwrap_err();
    assert!(fault.contains("has the placeholder \"EYELET_SECRET_OTHER\""), "{fault}");
}

#[test]
fn a_file_of_profiles_is_told_who_checks_it() {
    let profile = said(&read("[sandbox.build]\nallow = \"a.example\"\n").unwrap_err());
    let expected = "`eyelet check` checks them, and `eyelet sandbox --config FILE --profile build`";
    assert!(profile.len() == 1 && profile[0].contains(expected), "{profile:?}");
}
