//! Style and floors as failing tests, read from the source text of the whole workspace.
//! Every finding is `path:line: what is wrong`; every exception has a reason and must stay in use.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/dependencies.rs"]
mod dependencies;
#[path = "tidy/floors.rs"]
mod floors;
#[path = "tidy/parameters.rs"]
mod parameters;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/type_names.rs"]
mod type_names;

use floors::FLOORS;
use source::{
    File, dependencies, directly_under, fields, files, functions, numbered, root, tokens,
    without_tests, words,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A diff of two versions stands side by side on a laptop's screen.
const LINE_COLUMNS_MAX: usize = 100;
/// The lines that a reader sees at once, without scrolling.
const FUNCTION_LINES_MAX: usize = 70;
/// The habit is 600; the rest is the room to split a file in a commit of its own.
const FILE_LINES_MAX: usize = 700;
/// Two screens.
const ARCHITECTURE_LINES_MAX: usize = 140;
/// Files beside each other in a folder of a crate's `src`, without those of its folders.
const FOLDER_FILES_MAX: usize = 16;
/// Folders with more of them that have no cut, and how many: one step up is a decision.
const FLAT: &[(&str, usize)] = &[
    ("crates/demo/src", 17),
    ("crates/h2/src", 20),     // the protocol's parts, each one file
    ("crates/policy/src", 20), // matchers, and the index of rules over them
    ("crates/probe/src", 18),
    ("crates/telemetry/src", 19), // what is known of a connection, value by value
];
/// Less than this cannot say what a file does.
const HEAD_BYTES_MIN: usize = 40;
/// Beginnings of doc comments that do not name the item.
const DOC_BEGINNINGS: &[&str] = &[
    "As", "How", "If", "Same", "The same", "What", "When", "Where", "Whether", "Which", "Who",
    "Whom", "Whose", "Why",
];

/// Functions that may be longer than [`FUNCTION_LINES_MAX`]: path, name, reason.
const LONG_FUNCTIONS: &[(&str, &str, &str)] = &[];

/// Lines that may hold a word of [`WORDS`]: path, a part of the line, reason.
const WORD_EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("crates/document/src/elsewhere.rs", "\"forward_auth\"", "typed by people, who are told ours"),
    ("crates/document/src/elsewhere.rs", "&[\"backend\"", "typed by people, who are told ours"),
    ("crates/document/src/elsewhere.rs", "&[\"allow\"", "typed by people, who are told ours"),
    ("crates/config/src/rules/kind.rs", "(&[\"passthrough\"", "typed by people, who are told ours"),
    ("crates/config/src/rules/kind.rs", "(&[\"reject\"", "typed by people, who are told ours"),
    ("crates/h2/src/hpack/static_table.rs", "max-forwards", "RFC 9110's name of a field"),
    ("crates/http1/src/fields.rs", "MAX_FORWARDS", "RFC 9110's name of a field"),
    ("crates/http1/src/framing.rs", "MAX_FORWARDS", "RFC 9110's name of a field"),
    (
        "crates/edge/src/path/handshake/alerts.rs",
        "RejectedEarlyDataInterleaved",
        "rustls' name of an error",
    ),
    ("crates/acme/src/error.rs", "rejectedIdentifier", "RFC 8555's name of an error"),
    ("crates/trace/src/client.rs", "rejectedSpans", "OTLP's name of a member"),
    ("crates/sandbox/src/filter.rs", "BackendError", "seccompiler's name of an error"),
    (
        "crates/sys/src/confine/namespace.rs",
        "\"deny\"",
        "the kernel's word for a namespace's groups",
    ),
    ("docs/conformance.md", "Max-Forwards", "RFC 9110's name of a field"),
    ("docs/gateway.md", "CONNECT tunnel failed", "curl's words"),
    ("docs/gateway.md", "Tunnel connection failed", "Python's words"),
];

/// One word an idea. A word on the left says the idea on the right by another name.
const WORDS: &[(&[&str], &str)] = &[
    (&["passthrough", "tunnel", "tunnels", "tunneled", "tunnelled", "tunneling"], "splice"),
    (&["forward", "forwards", "forwarding", "forwarder"], "splice"),
    (&["reject", "rejects", "rejected", "rejecting", "rejection"], "refuse"),
    (&["deny", "denies", "denying", "denylist", "blocklist", "blacklist"], "refuse"),
    (&["whitelist"], "allowlist"),
    (&["backend", "backends"], "upstream"),
    (&["story", "stories"], "info, of a connection"),
    (&["lot"], "connection table"),
    (&["rehearsal", "rehearse"], "warm-up"),
    (&["thirsty"], "waiting for memory"),
    (&["name_is_true"], "sni_verified"),
    (&["manner"], "options"),
    (&["trouble"], "error"),
    (&["asker"], "client, or requester"),
    (&["patience", "goodbye"], "what it is: a wait, an alert, GOAWAY"),
];

/// `deny` is also the name of a lint level, of a tool and of a switch of systemd's.
const DENY_TOOLS: &[&str] = &[
    "deny(",
    "deny_unknown_fields",
    "cargo deny",
    "cargo-deny",
    "deny.toml",
    "MemoryDenyWriteExecute",
];

/// The calls that have no place on a worker's thread or have no bound, without blanks, and what to
/// use.
const BLOCKING: &[(&str, &str)] = &[
    ("thread::sleep", "a deadline in the wheel"),
    ("mpsc::channel(", "sync_channel, with a bound"),
    ("unbounded_channel", "a channel with a bound"),
    ("spawn_blocking", "a thread with a bounded queue"),
];

/// Names that say nothing, for files and for types.
const EMPTY_NAMES: &[&str] =
    &["common", "context", "helper", "helpers", "manager", "misc", "util", "utilities", "utils"];

/// Crates whose files or folders still import each other in a circle.
const CIRCLES_LEFT: &[&str] = &[];

/// The crates without clock, randomness, files, sockets and threads: these are arguments there.
const PURE: &[&str] = &[
    "crates/wire",
    "crates/policy",
    "crates/record",
    "crates/secrets",
    "crates/compress",
    "crates/h2",
    "crates/http1",
    "crates/multiplex",
    "crates/quic",
    "crates/flows",
];
/// The modules directly under `std` (or `core`) that are not for them.
const IMPURE_STD: &[&str] = &["env", "fs", "io", "os", "process", "thread"];
/// Items of `std::io` that reach no file: slices that somebody else writes, writing to a vector.
const IO_VALUES: &[&str] = &["IoSlice", "Write"];
/// Words that give a clock, a socket, randomness or output away.
const IMPURE_WORDS: &[&str] = &[
    "SystemRandom",
    "TcpListener",
    "TcpStream",
    "UdpSocket",
    "UnixListener",
    "UnixStream",
    "eprintln",
    "println",
];
/// The runtime's crates: for `eyelet` and `bench` only (elsewhere in tests at most).
const RUNTIME: &[&str] = &["hickory_resolver", "hyper", "rustls", "tokio", "tokio_rustls"];

/// Crates below the engine whose tests have a peer that reads and writes by tokio's traits.
const TOKIO_IN_TESTS: &[&str] = &["crates/h2"];

/// The pure crate that asks rustls: for keys, which are values.
const RUSTLS_FOR_KEYS: &str = "crates/quic";

fn report(findings: &[String]) {
    assert!(findings.is_empty(), "{} findings\n{}\n", findings.len(), findings.join("\n"));
}

#[test]
fn every_source_file_says_what_it_is() {
    let mut findings = Vec::new();
    for file in files().iter().filter(|f| f.is_rust()) {
        let head: Vec<_> = file.text.lines().take_while(|l| l.starts_with("//!")).collect();
        let said: usize = head.iter().map(|l| l.trim_start_matches("//!").trim().len()).sum();
        if said < HEAD_BYTES_MIN {
            let rule = "starts with `//!`: what it does";
            findings.push(format!("{}:1: every file {rule}", file.path));
        }
    }
    report(&findings);
}

#[test]
fn doc_comments_begin_with_the_item() {
    let mut findings = Vec::new();
    for file in files().iter().filter(|f| f.is_rust()) {
        let mut is_inside = false;
        for (line, text) in numbered(&file.text) {
            let said = ["///", "//!"].iter().find_map(|mark| text.trim_start().strip_prefix(mark));
            let begins = said.map(str::trim_start).filter(|_| !is_inside);
            let is_word = |end: Option<char>| !end.is_some_and(char::is_alphanumeric);
            let starts = |word: &&&str| {
                let rest = begins.and_then(|begins| begins.strip_prefix(**word));
                rest.is_some_and(|rest| is_word(rest.chars().next()))
            };
            if let Some(word) = DOC_BEGINNINGS.iter().find(starts) {
                let rule = "begin with what the item is or does";
                findings.push(format!(
                    "{}:{line}: a doc comment begins with {word}: {rule}",
                    file.path
                ));
            }
            is_inside = said.is_some();
        }
    }
    report(&findings);
}

#[test]
fn lines_functions_and_files_are_short() {
    let mut findings = Vec::new();
    let mut unused: BTreeSet<usize> = (0..LONG_FUNCTIONS.len()).collect();
    for file in files().iter().filter(|f| f.is_rust()) {
        let path = &file.path;
        for (number, line) in numbered(&file.text) {
            let columns = line.chars().count();
            if columns > LINE_COLUMNS_MAX {
                findings.push(format!("{path}:{number}: {columns} columns of {LINE_COLUMNS_MAX}"));
            }
        }
        let lines = file.text.lines().count();
        if lines > FILE_LINES_MAX {
            findings.push(format!("{path}:{lines}: {lines} lines of {FILE_LINES_MAX}"));
        }
        for (line, name, lines) in functions(&file.code) {
            if lines <= FUNCTION_LINES_MAX {
                continue;
            }
            match LONG_FUNCTIONS.iter().position(|(p, n, _)| p == path && *n == name) {
                Some(index) => _ = unused.remove(&index),
                None => findings.push(format!(
                    "{path}:{line}: fn {name}: {lines} lines of {FUNCTION_LINES_MAX}"
                )),
            }
        }
    }
    findings.extend(unused.iter().map(|i| format!("LONG_FUNCTIONS[{i}]: not long any more")));
    report(&findings);
}

#[test]
fn folders_are_short() {
    let (mut findings, all) = (Vec::new(), files());
    let mut counts = BTreeMap::new();
    for file in all.iter().filter(|f| f.is_rust() && f.path.contains("/src/") && !f.is_test()) {
        *counts.entry(file.folder()).or_insert(0) += 1;
    }
    for (folder, count) in counts {
        let flat = FLAT.iter().find(|(flat, _)| *flat == folder).map(|(_, count)| *count);
        match flat {
            None if count > FOLDER_FILES_MAX => {
                findings.push(format!("{folder}: {count} files of {FOLDER_FILES_MAX}: cut it"));
            }
            Some(most) if count > most => {
                findings.push(format!("{folder}: {count} files of {most}: has it a cut now?"));
            }
            Some(_) if count <= FOLDER_FILES_MAX => {
                findings.push(format!("{folder}: FLAT need not name it any more"));
            }
            _ => {}
        }
    }
    report(&findings);
}

#[test]
fn text_files_are_clean() {
    let mut findings = Vec::new();
    // Put together here, so that this file does not hold what it looks for.
    let machines = ["work", "home", "root"].map(|folder| format!("/{folder}/"));
    for file in files() {
        let path = &file.path;
        if !file.text.is_empty() && !file.text.ends_with('\n') {
            findings.push(format!("{path}: ends without a newline"));
        }
        for (number, line) in numbered(&file.text) {
            if line.ends_with([' ', '\t', '\r']) {
                findings.push(format!("{path}:{number}: blank at the end of the line"));
            }
            for machine in machines.iter().filter(|machine| line.contains(machine.as_str())) {
                findings.push(format!("{path}:{number}: {machine} is a path of one machine"));
            }
        }
    }
    report(&findings);
}

#[test]
fn nothing_is_left_for_later() {
    let mut findings = Vec::new();
    for file in files().iter().filter(|f| f.is_rust()) {
        for pair in tokens(&file.code).windows(2) {
            let (line, macro_) = pair[0];
            if ["todo", "unimplemented", "dbg"].contains(&macro_) && pair[1].1 == "!" {
                findings.push(format!("{}:{line}: {macro_}!", file.path));
            }
        }
        for (number, line) in numbered(&file.comments) {
            for mark in tokens(line).iter().map(|(_, word)| *word) {
                if ["FIXME", "TODO", "XXX"].contains(&mark) {
                    findings.push(format!("{}:{number}: {mark}", file.path));
                }
            }
        }
    }
    report(&findings);
}

#[test]
fn one_word_an_idea() {
    let mut findings = Vec::new();
    let mut unused: BTreeSet<usize> = (0..WORD_EXCEPTIONS.len()).collect();
    for file in files() {
        let path = file.path.as_str();
        // bench speaks the languages of the peers that it configures.
        let source = file.within("crates") && path.contains("/src/") && !file.is_test();
        let prose = file.within("docs") || file.within("examples");
        if !(source || prose || ["README.md", "ARCHITECTURE.md", "SECURITY.md"].contains(&path)) {
            continue;
        }
        // Such a page quotes another program's words, as code.
        let text =
            if path.starts_with("docs/from-") { prose_of(&file.text) } else { file.text.clone() };
        for (number, line) in numbered(&text) {
            let said = words(line);
            for (banned, instead) in WORDS {
                let Some(word) = banned.iter().find(|b| said.iter().any(|s| s == **b)) else {
                    continue;
                };
                let tool = *word == "deny" && DENY_TOOLS.iter().any(|tool| line.contains(tool))
                    || *word == "lot" && line.contains("parking_lot");
                let excepted = WORD_EXCEPTIONS
                    .iter()
                    .position(|(p, part, _)| *p == path && line.contains(part));
                if let Some(index) = excepted {
                    unused.remove(&index);
                } else if !tool {
                    findings.push(format!("{path}:{number}: \"{word}\": say \"{instead}\""));
                }
            }
        }
    }
    findings.extend(unused.iter().map(|i| format!("WORD_EXCEPTIONS[{i}]: not in use")));
    report(&findings);
}

/// A page without its code, which is in fences and between backticks; lines keep their numbers.
fn prose_of(page: &str) -> String {
    let mut fenced = false;
    let mut prose = String::new();
    for line in page.lines() {
        let fence = line.starts_with("```");
        fenced ^= fence;
        if !fenced && !fence {
            prose.extend(line.split('`').step_by(2));
        }
        prose.push('\n');
    }
    prose
}

#[test]
fn names_say_something() {
    let mut findings = Vec::new();
    for file in files().iter().filter(|f| f.is_rust()) {
        let path = &file.path;
        if let Some(empty) =
            path.trim_end_matches(".rs").split('/').find(|part| EMPTY_NAMES.contains(part))
        {
            findings.push(format!("{path}:1: a file named {empty}: name it by what it holds"));
        }
        for pair in tokens(&file.code).windows(2) {
            let [(line, keyword), (_, name)] = pair else { continue };
            let is_type = ["enum", "mod", "struct", "trait", "type"].contains(keyword);
            if is_type && words(name).iter().any(|word| EMPTY_NAMES.contains(&word.as_str())) {
                findings.push(format!("{path}:{line}: {keyword} {name}: name it by what it holds"));
            }
            if *keyword == "fn" && name.starts_with("get_") {
                findings.push(format!("{path}:{line}: fn {name}: without `get_`"));
            }
        }
    }
    report(&findings);
}

#[test]
fn unsafe_stays_in_sys() {
    let mut findings = Vec::new();
    for file in files().iter().filter(|f| f.is_rust() && !f.within("crates/sys")) {
        for (line, _) in tokens(&file.code).iter().filter(|(_, word)| *word == "unsafe") {
            findings.push(format!("{}:{line}: unsafe outside crates/sys", file.path));
        }
    }
    for file in files().iter().filter(|f| f.path.ends_with("/Cargo.toml")) {
        let fenced = file.text.contains("[lints]\nworkspace = true");
        if !fenced && !file.within("crates/sys") && !file.within("fuzz") {
            findings.push(format!("{}: `[lints] workspace = true` is missing", file.path));
        }
    }
    report(&findings);
}

/// CI runs no release build. It checks that the program compiles without the features of tests; the
/// rest of its code is what the tests run: only optimization, checks of overflow and
/// `debug_assert!`, which is compiled in both, differ.
#[test]
fn a_release_has_no_code_of_its_own() {
    let mut findings = Vec::new();
    for file in files().iter().filter(|f| f.is_rust()) {
        for (line, _) in tokens(&file.code).iter().filter(|(_, word)| *word == "debug_assertions") {
            findings.push(format!("{}:{line}: code that a release does not have", file.path));
        }
    }
    report(&findings);
}

#[test]
fn imports_run_downwards() {
    let mut findings = Vec::new();
    let files = files();
    for manifest in files.iter().filter(|f| f.path.ends_with("/Cargo.toml")) {
        let folder = manifest.folder();
        let allowed = match FLOORS.iter().find(|(name, _)| *name == folder) {
            Some((_, allowed)) => *allowed,
            None if folder.starts_with("crates/") => {
                findings.push(format!("{}: a new crate needs a rule in FLOORS", manifest.path));
                continue;
            }
            None => None,
        };
        let Some(allowed) = allowed else { continue };
        for found in dependencies(&manifest.text) {
            let at = format!("{}:{}", manifest.path, found.line);
            if found.section == "dev-dependencies" {
                if found.name == "tokio" && !TOKIO_IN_TESTS.contains(&folder) {
                    findings.push(format!("{at}: tokio in tests below eyelet"));
                }
            } else if !allowed.contains(&found.name.as_str()) {
                findings.push(format!("{at}: {folder} may depend on {allowed:?} only"));
            }
        }
    }
    for file in files.iter().filter(|f| f.is_rust() && !f.is_test()) {
        let pure = PURE.iter().any(|floor| file.within(floor));
        if pure || file.within("crates/sys") {
            findings.extend(impure(file, pure));
        }
    }
    report(&findings);
}

/// Lists the parts of a file below `eyelet` that reach for the runtime or, where `pure`, for the
/// outside world.
fn impure(file: &File, pure: bool) -> Vec<String> {
    let mut findings = Vec::new();
    let tokens = tokens(&file.code);
    let tokens = without_tests(&tokens);
    let mut say = |line: usize, what: &str| {
        findings.push(format!("{}:{line}: {what} is not for this floor", file.path));
    };
    for (at, (line, word)) in tokens.iter().enumerate() {
        let next: Vec<_> = tokens[at + 1..].iter().take(3).map(|(_, word)| *word).collect();
        let for_keys = *word == "rustls" && file.within(RUSTLS_FOR_KEYS);
        if RUNTIME.contains(word) && next.starts_with(&[":", ":"]) && !for_keys {
            say(*line, word);
        }
        if !pure {
            continue;
        }
        if IMPURE_WORDS.contains(word) {
            say(*line, word);
        }
        if ["Instant", "SystemTime"].contains(word) && next == [":", ":", "now"] {
            say(*line, "a clock");
        }
        if *word == "std" && next.starts_with(&[":", ":"]) {
            for name in directly_under(&tokens[at + 3..]) {
                let is_value = name == "io"
                    && tokens.get(at + 6).is_some_and(|(_, of)| IO_VALUES.contains(of));
                if IMPURE_STD.contains(&name) && !is_value {
                    say(*line, &format!("std::{name}"));
                }
            }
        }
    }
    findings
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let mut findings = Vec::new();
    let files = files();
    let crates: BTreeSet<&str> =
        files.iter().filter(|f| f.path.ends_with("/Cargo.toml")).map(File::folder).collect();
    for folder in crates {
        let circles = circles::circles(files, &format!("{folder}/src"));
        match CIRCLES_LEFT.contains(&folder) {
            true if circles.is_empty() => findings.push(format!("{folder}: no circle any more")),
            true => {}
            false => findings.extend(circles.iter().map(|all| format!("{folder}: {all:?}"))),
        }
    }
    report(&findings);
}

#[test]
fn wire_is_no_std() {
    let files = files();
    let wire = files.iter().find(|f| f.path == "crates/wire/src/lib.rs").unwrap();
    assert!(wire.code.contains("no_std"), "crates/wire/src/lib.rs: #![no_std] is missing");
}

/// rustdoc reads a whole crate to look for examples: crates without any tell cargo so.
#[test]
fn crates_with_examples_have_doc_tests_and_no_others() {
    // What follows the fence: every second one ends a block.
    let fence = |line: &str| {
        let comment = line.trim_start().strip_prefix("//")?.trim_start_matches(['/', '!']);
        comment.trim_start().strip_prefix("```").map(str::to_owned)
    };
    let has_example = |file: &File| {
        let mut begun = file.text.lines().filter_map(fence).step_by(2);
        begun.any(|language| matches!(&language[..], "" | "rust"))
    };
    let (files, mut findings) = (files(), Vec::new());
    for manifest in files.iter().filter(|f| f.path.ends_with("/Cargo.toml")) {
        let source = format!("{}/src", manifest.folder());
        let mut within = files.iter().filter(|f| f.is_rust() && f.within(&source));
        let is_library = files.iter().any(|f| f.path == format!("{source}/lib.rs"));
        let has_examples = is_library && within.any(has_example);
        if is_library && has_examples == manifest.text.contains("doctest = false") {
            findings.push(format!("{}:1: not `doctest = {has_examples}`", manifest.path));
        }
    }
    report(&findings);
}

#[test]
fn every_source_file_is_reached() {
    let files = files();
    let manifests: String =
        files.iter().filter(|f| f.path.ends_with("Cargo.toml")).map(|f| f.text.as_str()).collect();
    let mut reached = BTreeSet::new();
    for file in files.iter().filter(|f| f.is_rust()) {
        let mut folders = file.folder().rsplit('/');
        let folder = folders.next().unwrap();
        // Cargo builds tests/NAME.rs and tests/NAME/main.rs.
        let parent = folders.next().filter(|_| file.stem() == "main");
        let roots = ["bin", "benches", "examples", "tests"];
        let of_cargo = (roots.contains(&folder) || parent.is_some_and(|p| roots.contains(&p)))
            && !file.folder().contains("/src/tests")
            && !file.folder().ends_with("/src/examples");
        let of_crate = folder == "src" && ["lib", "main"].contains(&file.stem());
        let named = format!("\"{folder}/{}.rs\"", file.stem());
        if of_cargo || of_crate || file.stem() == "build" || manifests.contains(&named) {
            reach(files, file, &mut reached);
        }
    }
    let findings: Vec<_> = files
        .iter()
        .filter(|f| f.is_rust() && !reached.contains(&f.path))
        .map(|f| format!("{}:1: no `mod` leads here", f.path))
        .collect();
    report(&findings);
}

fn reach(files: &[File], file: &File, reached: &mut BTreeSet<String>) {
    if !reached.insert(file.path.clone()) {
        return;
    }
    let tokens = tokens(&file.code);
    let folder = file.folder();
    // A root's and a mod.rs's modules lie beside it; another file's in the folder of its name.
    let below = format!("{folder}/{}", file.stem());
    for triple in tokens.windows(3) {
        let [(_, "mod"), (_, name), (_, ";")] = triple else { continue };
        for base in [folder, &below] {
            let candidates = [format!("{base}/{name}.rs"), format!("{base}/{name}/mod.rs")];
            for found in files.iter().filter(|f| candidates.contains(&f.path)) {
                reach(files, found, reached);
            }
        }
    }
    for line in file.text.lines().filter(|l| l.contains("#[path") || l.contains("include!(")) {
        for name in line.split('"').filter(|part| part.ends_with(".rs")) {
            let beside = Path::new(name).file_name().unwrap().to_string_lossy().into_owned();
            for found in files.iter().filter(|f| f.path.ends_with(&format!("/{beside}"))) {
                reach(files, found, reached);
            }
        }
    }
}

#[test]
fn workers_never_block() {
    let mut findings = Vec::new();
    let on_workers = [
        "crates/relay/src",
        "crates/workers/src",
        "crates/engine/src",
        "crates/edge/src",
        "crates/process/src",
        "crates/eyelet/src",
        "crates/telemetry/src",
    ];
    let is_on_worker = |file: &&File| on_workers.iter().any(|folder| file.within(folder));
    for file in files().iter().filter(|f| is_on_worker(f) && !f.is_test()) {
        for (number, line) in numbered(&file.code) {
            let dense: String = line.split_whitespace().collect();
            for (call, instead) in BLOCKING.iter().filter(|(call, _)| dense.contains(call)) {
                findings.push(format!("{}:{number}: {call}: use {instead}", file.path));
            }
        }
    }
    report(&findings);
}

#[test]
fn manuals_name_every_key_and_field() {
    let mut findings = Vec::new();
    let files = files();
    let text = |path: &str| files.iter().find(|f| f.path == path).map_or("", |f| &f.text);
    let fields: Vec<_> = files
        .iter()
        .filter(|f| f.path == "crates/telemetry/src/log/line/tests.rs")
        .flat_map(|f| fields(&f.code, "Serial"))
        .collect();
    assert!(!fields.is_empty(), "crates/telemetry/src/log/line/tests.rs: no struct Serial");
    for field in fields {
        if !text("docs/access-log.md").contains(&format!("`{field}`")) {
            findings.push(format!("docs/access-log.md: nothing about `{field}`"));
        }
    }
    let mut keys = 0;
    for file in files.iter().filter(|f| f.within("crates/config/src")) {
        for list in file.text.split("KEYS: [").skip(1).filter_map(|rest| rest.split("];").next()) {
            for key in list.split('"').skip(1).step_by(2) {
                keys += 1;
                let spellings = [format!("`{key}`"), format!("[{key}]")];
                if !spellings.iter().any(|s| text("docs/configuration.md").contains(s)) {
                    findings.push(format!("docs/configuration.md: nothing about `{key}`"));
                }
            }
        }
    }
    assert!(keys > 0, "crates/config/src: no list of keys is called ...KEYS");
    report(&findings);
}

#[test]
fn documents_lead_somewhere() {
    let mut findings = Vec::new();
    let files = files();
    for file in files.iter().filter(|f| f.path.ends_with(".md")) {
        for (number, line) in numbered(&file.text) {
            for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let target = link.split('#').next().unwrap();
                let local = !target.is_empty() && !target.contains(':');
                if local && !root().join(file.folder()).join(target).exists() {
                    findings.push(format!("{}:{number}: {target} is not there", file.path));
                }
            }
        }
    }
    let page = files.iter().find(|f| f.path == "ARCHITECTURE.md").unwrap();
    if page.text.lines().count() > ARCHITECTURE_LINES_MAX {
        findings.push(format!("ARCHITECTURE.md: more than {ARCHITECTURE_LINES_MAX} lines"));
    }
    for (number, line) in numbered(&page.text) {
        for name in line.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs")) {
            let suffix = format!("/{name}");
            let shipped = |path: &str| path.contains("/src/") && path.ends_with(&suffix);
            let tidy = name == "tidy.rs";
            if !tidy && !files.iter().any(|f| f.path == name || shipped(&f.path)) {
                findings.push(format!("ARCHITECTURE.md:{number}: no file {name}"));
            }
        }
    }
    report(&findings);
}
