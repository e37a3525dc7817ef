//! Reads the workspace's text files for tidy.rs: Rust as far as comments, literals, words and
//! braces go, manifests as far as dependencies go. Judges nothing; uses nothing but `std`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// One text file of the repository; for Rust also its three layers, line by line the same.
pub struct File {
    /// From the root of the repository, with `/`.
    pub path: String,
    pub text: String,
    pub code: String,
    pub comments: String,
}

impl File {
    /// A file of Rust with this path and text.
    pub fn of(path: &str, text: &str) -> Self {
        let (code, comments) = layers(text);
        Self { path: path.to_owned(), text: text.to_owned(), code, comments }
    }

    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    pub fn within(&self, folder: &str) -> bool {
        self.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
    }

    /// True if it is built for tests, examples or benchmarks only.
    pub fn is_test(&self) -> bool {
        const TEST_PARTS: &[&str] =
            &["benches", "examples", "properties", "sim", "testing", "tests"];
        self.path.split(['/', '.']).any(|part| TEST_PARTS.contains(&part))
    }

    pub fn stem(&self) -> &str {
        self.path.rsplit('/').next().unwrap().trim_end_matches(".rs")
    }

    pub fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All text files of the repository, read once for all tests.
pub fn files() -> &'static [File] {
    static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
        let root = root();
        let mut found = Vec::new();
        walk(&root, &root, &mut found);
        assert!(found.iter().any(File::is_rust), "no source under {}", root.display());
        found.sort_by(|a, b| a.path.cmp(&b.path));
        found
    });
    &FILES
}

fn walk(root: &Path, folder: &Path, found: &mut Vec<File>) {
    const SKIPPED: &[&str] = &[".git", "artifacts", "corpus", "coverage", "target"];
    const TEXT: &[&str] =
        &["go", "java", "js", "md", "mjs", "py", "rs", "service", "sh", "svg", "toml", "yml"];
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !SKIPPED.contains(&name.as_str()) {
                walk(root, &path, found);
            }
            continue;
        }
        let extension = path.extension().map_or("", |e| e.to_str().unwrap_or(""));
        let relative = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
        if !TEXT.contains(&extension) && relative != ".ci/run" {
            continue;
        }
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let (code, comments) =
            if extension == "rs" { layers(&text) } else { (String::new(), String::new()) };
        found.push(File { path: relative, text, code, comments });
    }
}

/// Code and comments of a Rust text, each with blanks in place of everything else. Literals are
/// in neither.
fn layers(text: &str) -> (String, String) {
    let bytes = text.as_bytes();
    let blank = |b: &u8| if *b == b'\n' { b'\n' } else { b' ' };
    let mut code: Vec<u8> = bytes.iter().map(blank).collect();
    let mut comments = code.clone();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let word_before = at > 0 && is_word(bytes[at - 1]);
        if rest.starts_with(b"//") || rest.starts_with(b"/*") {
            let len = comment_len(rest);
            comments[at..at + len].copy_from_slice(&rest[..len]);
            at += len;
        } else if let Some(len) = literal_len(rest, word_before) {
            at += len;
        } else {
            code[at] = bytes[at];
            at += 1;
        }
    }
    (String::from_utf8(code).unwrap(), String::from_utf8(comments).unwrap())
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn comment_len(rest: &[u8]) -> usize {
    if rest.starts_with(b"//") {
        return rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
    }
    let (mut at, mut depth) = (2, 1);
    while at < rest.len() && depth > 0 {
        match &rest[at..] {
            [b'/', b'*', ..] => (at, depth) = (at + 2, depth + 1),
            [b'*', b'/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
    }
    at
}

/// The length of the string or character literal that `rest` starts with.
fn literal_len(rest: &[u8], word_before: bool) -> Option<usize> {
    let prefix = if word_before { 0 } else { raw_prefix(rest).unwrap_or(0) };
    if prefix > 0 {
        let hashes = rest[..prefix].iter().filter(|b| **b == b'#').count();
        let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
        let body = &rest[prefix + 1..];
        let end = body.windows(close.len()).position(|w| w == close)?;
        return Some(prefix + 1 + end + close.len());
    }
    match rest {
        [b'"', ..] => Some(quoted_len(rest)),
        [b'\'', b'\\', ..] => Some(quoted_len(rest)),
        [b'\'', first, ..] => {
            // One character and a quote, or else a lifetime.
            let width = match first {
                0..0x80 => 1,
                0x80..0xe0 => 2,
                0xe0..0xf0 => 3,
                _ => 4,
            };
            (rest.get(1 + width) == Some(&b'\'')).then_some(2 + width)
        }
        _ => None,
    }
}

/// `r`, `br` or `cr` and the hashes before a raw string's quote.
fn raw_prefix(rest: &[u8]) -> Option<usize> {
    let letters = match rest {
        [b'r', ..] => 1,
        [b'b' | b'c', b'r', ..] => 2,
        _ => return None,
    };
    let hashes = rest[letters..].iter().take_while(|b| **b == b'#').count();
    (rest.get(letters + hashes) == Some(&b'"')).then_some(letters + hashes)
}

fn quoted_len(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != rest[0] {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// Words, and every other visible character by itself, with the line (from 1) of each.
pub fn tokens(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (line, text) in numbered(code) {
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let word = rest.bytes().take_while(|b| is_word(*b)).count();
            let len = if word > 0 { word } else { first.len_utf8() };
            found.push((line, &rest[..len]));
            rest = rest[len..].trim_start();
        }
    }
    found
}

pub fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// `tokens` without the items under `#[cfg(test)]`.
pub fn without_tests<'a>(tokens: &[(usize, &'a str)]) -> Vec<(usize, &'a str)> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let marked = tokens.len() >= at + MARK.len()
            && tokens[at..].iter().zip(MARK).all(|((_, word), mark)| *word == mark);
        if marked {
            at = item_end(tokens, at + MARK.len());
        } else {
            kept.push(tokens[at]);
            at += 1;
        }
    }
    kept
}

/// Returns the end of the item that starts at `at`: behind its `;`, or behind its closing brace.
fn item_end(tokens: &[(usize, &str)], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while at < tokens.len() {
        let word = tokens[at].1;
        at += 1;
        match word {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 && (word == ";" || word == "}") {
            break;
        }
    }
    at
}

/// Every function with a body: first line, name, number of lines.
pub fn functions(code: &str) -> Vec<(usize, String, usize)> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        let [(line, "fn"), (_, name)] = pair else { continue };
        if is_word(name.as_bytes()[0]) {
            let end = item_end(&tokens, at);
            let last = tokens[end - 1].0;
            found.push((*line, (*name).to_owned(), last - line + 1));
        }
    }
    found
}

/// The names of the fields of a struct.
pub fn fields<'a>(code: &'a str, of: &str) -> Vec<&'a str> {
    let tokens = tokens(code);
    let words: Vec<&str> = tokens.iter().map(|(_, word)| *word).collect();
    let Some(start) = words.windows(2).position(|pair| *pair == ["struct", of]) else {
        return Vec::new();
    };
    let end = item_end(&tokens, start);
    let fields = words[start..end].windows(4).filter_map(|four| match four {
        ["{" | "," | "pub" | "]", name, ":", next] if *next != ":" => Some(*name),
        _ => None,
    });
    fields.collect()
}

/// The words of a text in lower case: `ParkedPair` and `parked_pair` are both `parked`, `pair`.
pub fn words(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut before = ' ';
    for c in text.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && before.is_lowercase()) {
            found.push(String::new());
        }
        if c.is_alphanumeric() {
            found.last_mut().unwrap().extend(c.to_lowercase());
        }
        before = c;
    }
    found.retain(|word| !word.is_empty());
    found
}

/// One line of a manifest that asks for a crate.
pub struct Dependency {
    pub line: usize,
    /// `dependencies`, `dev-dependencies`, `build-dependencies` or `workspace.dependencies`.
    pub section: String,
    pub name: String,
    /// The whole entry, with its comment and the comment line above it.
    pub entry: String,
}

pub fn dependencies(manifest: &str) -> Vec<Dependency> {
    let mut found: Vec<Dependency> = Vec::new();
    let (mut section, mut above) = (String::new(), String::new());
    let mut depth = 0_i32;
    for (number, line) in numbered(manifest) {
        let bare = line.split(" #").next().unwrap().trim();
        if depth == 0 && bare.starts_with('[') {
            section = bare.trim_matches(['[', ']']).to_owned();
        } else if section.ends_with("dependencies") && !bare.is_empty() && !bare.starts_with('#') {
            if depth == 0 {
                let name = bare.split(['.', '=', ' ']).next().unwrap().trim_matches('"').to_owned();
                let section = section.rsplit("'.").next().unwrap().to_owned();
                found.push(Dependency { line: number, section, name, entry: above.clone() });
            }
            let open = bare.matches(['[', '{']).count() as i32;
            depth += open - bare.matches([']', '}']).count() as i32;
            found.last_mut().unwrap().entry.push_str(line);
        }
        above = if line.trim_start().starts_with('#') { line.to_owned() } else { String::new() };
    }
    found
}

/// The names directly under `std::`: one, or each first one of a `{...}` group.
pub fn directly_under<'a>(tokens: &[(usize, &'a str)]) -> Vec<&'a str> {
    if tokens.first().is_none_or(|(_, word)| *word != "{") {
        return tokens.first().map(|(_, word)| *word).into_iter().collect();
    }
    let mut found = Vec::new();
    let mut depth = 0;
    for pair in tokens.windows(2) {
        match pair[0].1 {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        match (depth, pair[0].1) {
            (0, _) => break,
            (1, "{" | ",") => found.push(pair[1].1),
            _ => {}
        }
    }
    found
}

#[test]
fn the_reader_of_this_file_reads_rust() {
    let text =
        "fn a() { /* } */ let s = \"}\\\"\"; let r = r#\"}\"#; let c = '}'; x::<'a>() } // fn b\n";
    let (code, comments) = layers(text);
    assert_eq!(code.len(), text.len());
    assert_eq!(functions(&code), [(1, "a".to_owned(), 1)]);
    assert!(!code.contains("fn b") && comments.contains("fn b") && comments.contains("/* } */"));
    assert_eq!(
        words("ParkedPair parked_pair re-read"),
        ["parked", "pair", "parked", "pair", "re", "read"]
    );
    let (code, _) =
        layers("use std::{fs, net::{A, B}, io};\n#[cfg(test)]\nmod t { fn x() {} }\nlet y;");
    let tokens = tokens(&code);
    assert_eq!(directly_under(&tokens[4..]), ["fs", "net", "io"]);
    assert_eq!(without_tests(&tokens).last(), Some(&(4, ";")));
    assert!(!without_tests(&tokens).contains(&(3, "mod")));
    let manifest =
        "[dependencies]\na.workspace = true\n# for b's sake\nb = { features = [\n\"x\"] }\n";
    let found = dependencies(manifest);
    assert_eq!(found.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(found[1].entry.contains("for b's sake"));
}
