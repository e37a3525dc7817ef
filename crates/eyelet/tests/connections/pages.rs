//! The commands of the documentation work: each block of shell commands in README.md, `docs/` and
//! `packaging/`, and in the heads of the examples, is run on a machine of namespaces, and says what
//! its page shows.
//!
//! A page may say more about a block in comments right above it, which readers do not see:
//!
//! | comment | meaning |
//! |---|---|
//! | `file: NAME` | the block, in whatever language, is this file for all blocks of the page |
//! | `before: COMMAND` | runs first; a server runs as long as the block |
//! | `replace: A by B` | the commands have B where the page shows A |
//! | `as: root` | an ordinary user could not do it |
//! | `exit: 1` | the status of the last command; otherwise each must end with 0 |
//! | `not run: REASON` | one of [`REASONS`], and counted |
//!
//! In a `console` block lines with `$ ` are commands, and the others are what they print: `...`
//! stands for any text within a line, and alone in a line for any lines.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::crowd::many;
use crate::support::edge::eyelet;
use crate::support::pki::Kind;
use crate::support::{Folder, Machine, Pki, output};

/// The only reasons for which a block may not run here.
const REASONS: [&str; 3] =
    ["it builds for minutes", "it needs systemd", "it needs a package or a registry of packages"];
/// The number of blocks of a page that need not run, at most. All blocks of other pages run.
const NOT_RUN: &[(&str, usize)] = &[
    ("README.md", 2),
    ("certificates.md", 1),
    ("gateway.md", 1),
    ("packages.md", 3),
    ("running.md", 3),
];
/// The columns of a command and of what it prints: browsers scroll longer ones.
const COMMAND_COLUMNS_MAX: usize = 100;
/// The mark in the output before the text of the command with this number.
const MARK: &str = "\u{1}command ";

/// A fenced block of a page.
#[derive(Debug)]
struct Block {
    line: usize,
    language: String,
    /// The comments above it, as key and value.
    said: Vec<(String, String)>,
    lines: Vec<String>,
}

impl Block {
    fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        self.said.iter().filter(move |(said, _)| said == key).map(|(_, value)| value.as_str())
    }

    fn one(&self, key: &str) -> Option<&str> {
        self.all(key).next()
    }

    fn is_shell(&self) -> bool {
        matches!(self.language.as_str(), "sh" | "bash" | "console" | "shell")
    }

    /// The commands, each with what it prints where the page shows it.
    fn commands(&self) -> Vec<(String, Vec<String>)> {
        if self.language != "console" {
            return vec![(self.lines.join("\n"), Vec::new())];
        }
        let mut commands: Vec<(String, Vec<String>)> = Vec::new();
        for line in &self.lines {
            if let Some(command) = line.strip_prefix("$ ") {
                commands.push((command.to_owned(), Vec::new()));
            } else {
                commands.last_mut().expect("a command comes first").1.push(line.clone());
            }
        }
        commands
    }

    /// All of it as a script.
    fn script(&self) -> String {
        let mut script = String::new();
        for command in self.all("before") {
            script += &started(command, 1);
        }
        for (number, (command, shown)) in self.commands().iter().enumerate() {
            let _ = writeln!(script, "printf '{MARK}{number}\\n'");
            for line in command.lines() {
                script += &started(line, shown.len().max(1));
            }
            if self.language == "console" {
                // What it prints is compared, and that it refuses is often the point.
                script.truncate(script.trim_end().len());
                script += " || true\n";
            }
        }
        for (shown, run) in self.all("replace").filter_map(|change| change.split_once(" by ")) {
            assert!(script.contains(shown), "line {}: {shown:?} is not there", self.line);
            script = script.replace(shown, run);
        }
        script
    }
}

/// A line of a script. One that begins a server is left to run.
fn started(line: &str, lines: usize) -> String {
    let serves = ["serve", "run", "proxy", "demo"];
    let is_server = |rest: &str| serves.iter().any(|word| rest.starts_with(&format!("{word} ")));
    if line.strip_prefix("eyelet ").is_some_and(is_server) {
        return format!("start {lines} {line}\n");
    }
    format!("{line}\n")
}

/// The blocks of a page, in its order.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut said = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if let Some(comment) = line.strip_prefix("<!-- ").and_then(|l| l.strip_suffix(" -->")) {
            if let Some((key, value)) = comment.split_once(": ") {
                said.push((key.to_owned(), value.to_owned()));
            }
            continue;
        }
        if let Some(language) = line.strip_prefix("```") {
            let within = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
            let within = within.map(str::to_owned).collect();
            let said = std::mem::take(&mut said);
            let (line, language) = (number + 1, language.to_owned());
            blocks.push(Block { line, language, said, lines: within });
        }
        assert!(said.is_empty() || line.starts_with("```"), "line {number}: {said:?} has no block");
    }
    blocks
}

/// Whoever pastes it has no certificate and no list yet.
#[test]
fn the_first_configuration_passes_check_where_nothing_else_is() {
    let readme = fs::read_to_string(&pages()[0]).unwrap();
    let first = blocks(&readme).into_iter().find(|block| block.language == "toml").unwrap();
    let folder = Folder::new();
    // What whoever pastes it must change.
    let text = first.lines.join("\n").replace("app.example", "app.example.dev");
    folder.write("app.toml", text);
    let mut check = eyelet(&folder);
    let said = output(check.current_dir(folder.path()).args(["check", "app.toml"]));
    assert!(said.status.success(), "{}", said.text);
    assert_eq!(said.text, "app.toml: ok, 2 listeners, 1 rule\n");
}

/// README, and the pages in the folders of the documentation.
pub fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md")];
    for folder in ["docs", "packaging"] {
        let entries = fs::read_dir(root.join(folder)).unwrap();
        let entries = entries.map(|entry| entry.unwrap().path());
        pages.extend(entries.filter(|path| path.extension().is_some_and(|e| e == "md")));
    }
    pages.sort();
    pages
}

/// The commands in the heads of the examples, as one page.
fn examples() -> Vec<Block> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut blocks = Vec::new();
    for entry in fs::read_dir(root.join("examples")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let file = vec![("file".to_owned(), name.to_owned())];
        let commands = text.lines().filter_map(|line| line.strip_prefix("#   "));
        let commands: Vec<String> = commands.map(str::to_owned).collect();
        let lines = text.lines().map(str::to_owned).collect();
        blocks.push(Block { line: 1, language: "toml".to_owned(), said: file, lines });
        if !commands.is_empty() {
            let language = "sh".to_owned();
            blocks.push(Block { line: 1, language, said: Vec::new(), lines: commands });
        }
    }
    blocks
}

/// Makes the things that a reader of the pages has: certificates, lists, an application, a new
/// program.
fn furnish(pki: &Pki, page: &[Block]) {
    let folder = &pki.folder;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for name in ["etc", "home/app", "work/target/release"] {
        fs::create_dir_all(folder.path().join(name)).unwrap();
    }
    let names: Vec<&str> = HOSTS.split_whitespace().filter(|n| n.ends_with(".example")).collect();
    pki.server("far", &names, Kind::P256);
    pki.server("liar", &["liar.example"], Kind::P256);
    pki.server("app", &["app.example", "localhost", "127.0.0.1"], Kind::P256);
    pki.client("clients");
    for name in ["app.pem", "app.key", "ca.pem", "clients.pem", "clients.key"] {
        for place in ["work", "etc"] {
            fs::copy(folder.path().join(name), folder.path().join(place).join(name)).unwrap();
        }
    }
    fs::copy(root.join("examples/edge.toml"), folder.path().join("etc/edge.toml")).unwrap();
    folder.write("work/allow.txt", "packages.example\n.mirror.example\n");
    folder.write("work/allow-release.txt", "upload.example\n");
    folder.write("work/clients.txt", "10.0.0.0/8\n");
    folder.write("work/server.js", SERVER);
    for name in ["eyelet-new", "target/release/eyelet"] {
        std::os::unix::fs::symlink("/mnt/eyelet", folder.path().join("work").join(name)).unwrap();
    }
    folder.write("hosts", HOSTS);
    for block in page {
        if let Some(name) = block.one("file") {
            folder.write(&format!("work/{name}"), block.lines.join("\n") + "\n");
        }
    }
    Machine::give(&folder.path().join("work"));
    Machine::give(&folder.path().join("home"));
}

/// An application of a reader.
const SERVER: &str = "require('http').createServer((request, response) => response.end('hello\\n'))\
    .listen(process.env.PORT, '127.0.0.1');\n";
/// The names of the pages, and where they are on the machine.
const HOSTS: &str = "127.0.0.1 localhost app.localhost api.localhost app.example\n\
    ::1 localhost app.localhost api.localhost\n\
    10.0.0.7 bank.example www.bank.example\n\
    20.0.0.10 packages.example files.packages.example other.example nobody.example\n\
    20.0.0.10 a.mirror.example\n";

/// True if a line is the one of the page.
fn same_line(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split("...");
    let Some(mut rest) = printed.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// True if these lines are those of the page.
fn same(shown: &[String], printed: &[&str]) -> bool {
    let Some((first, rest)) = shown.split_first() else { return printed.is_empty() };
    if first == "..." {
        return (0..=printed.len()).any(|left_out| same(rest, &printed[left_out..]));
    }
    let Some((line, others)) = printed.split_first() else { return false };
    same_line(first, line) && same(rest, others)
}

/// Runs a block, and says what is wrong with it.
fn wrong(machine: &Machine, block: &Block) -> Option<String> {
    let wanted = block.one("exit").map_or(0, |status| status.parse().unwrap());
    let said = machine.run(block.one("as") == Some("root"), wanted == 0, &block.script());
    if said.status.code() != Some(wanted) || said.text.contains("panicked at") {
        return Some(format!("{}, not {wanted}:\n{}", said.status, said.text));
    }
    for (number, (command, shown)) in block.commands().iter().enumerate() {
        let after = said.text.split(&format!("{MARK}{number}\n")).nth(1).unwrap_or_default();
        let printed = after.split(MARK).next().unwrap_or_default();
        let printed: Vec<&str> = printed.lines().collect();
        if block.language == "console" && !same(shown, &printed) {
            return Some(format!("{command}\nprints\n{}", printed.join("\n")));
        }
    }
    None
}

/// Runs the blocks of a page. Gives how many ran, and what is wrong; nothing without a machine.
fn run_page(name: &str, page: &[Block]) -> Option<(usize, Vec<String>)> {
    let (mut ran, mut left, mut findings) = (0, 0, Vec::new());
    let pki = Pki::new();
    furnish(&pki, page);
    let machine = Machine::start(&pki.folder)?;
    for block in page.iter().filter(|block| block.is_shell()) {
        if let Some(reason) = block.one("not run") {
            left += 1;
            if !REASONS.contains(&reason) {
                findings.push(format!("{name}:{}: {reason:?} is not a reason", block.line));
            }
            continue;
        }
        ran += 1;
        if let Some(what) = wrong(&machine, block) {
            findings.push(format!("{name}:{}: {what}", block.line));
        }
    }
    let allowed = NOT_RUN.iter().find(|(page, _)| *page == name).map_or(0, |(_, count)| *count);
    if left > allowed {
        findings.push(format!("{name}: {left} blocks are not run, where {allowed} may be"));
    }
    Some((ran, findings))
}

#[test]
fn every_command_in_the_documentation_works() {
    let only = std::env::var("EYELET_PAGE").unwrap_or_default();
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, blocks(&fs::read_to_string(&path).unwrap()))
    };
    let mut all: Vec<_> = pages().into_iter().map(read).collect();
    all.push(("examples".to_owned(), examples()));
    all.retain(|(name, page)| name.contains(&only) && page.iter().any(Block::is_shell));
    // Each page has a machine of its own, and waits for servers most of its time.
    let said = many(all.len(), |nth| run_page(&all[nth].0, &all[nth].1));
    let Some(said) = said.into_iter().collect::<Option<Vec<_>>>() else { return };
    let ran: usize = said.iter().map(|(count, _)| count).sum();
    let findings: Vec<String> = said.into_iter().flat_map(|(_, wrong)| wrong).collect();
    assert!(findings.is_empty(), "{}", findings.join("\n\n"));
    // All blocks were found: the pages had 38 when this was written.
    assert!(!only.is_empty() || ran >= 38, "{ran}");
}

#[test]
fn commands_fit_beside_the_text() {
    let mut findings = Vec::new();
    for path in pages() {
        for block in blocks(&fs::read_to_string(&path).unwrap()) {
            let long = |line: &&String| line.chars().count() > COMMAND_COLUMNS_MAX;
            for line in block.lines.iter().filter(|_| block.is_shell()).filter(long) {
                findings.push(format!("{}:{}: {line}", path.display(), block.line));
            }
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn what_a_page_shows_is_compared_line_by_line() {
    let text = |lines: &[&str]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
    let printed = ["one", "port 8443 of app", "three"];
    assert!(same(&text(&printed), &printed));
    assert!(same(&text(&["one", "port ... of app", "three"]), &printed));
    assert!(same(&text(&["...", "three"]), &printed));
    assert!(same(&text(&["one", "..."]), &printed));
    for other in [&["one", "port ... of it", "three"][..], &["one"], &["one", "...", "two"], &[]] {
        assert!(!same(&text(other), &printed), "{other:?}");
    }
}

/// A stranger reads it in two minutes.
const README_LINES_MAX: usize = 190;
const README_WORDS_MAX: usize = 1_350;

#[test]
fn the_readme_is_short() {
    let readme = fs::read_to_string(&pages()[0]).unwrap();
    let (lines, words) = (readme.lines().count(), readme.split_whitespace().count());
    assert!(lines <= README_LINES_MAX && words <= README_WORDS_MAX, "{lines} lines, {words} words");
}

/// A row of README is a row of the page of figures, which names the command that measures it.
#[test]
fn the_figures_of_the_readme_are_measured() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let (readme, figures, bench) =
        (text("README.md"), text("docs/figures.md"), text("bench/README.md"));
    let scenarios: Vec<&str> =
        bench.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert!(scenarios.contains(&"idle") && scenarios.contains(&"handshakes"), "{scenarios:?}");
    let section = readme.split("\n## Many idle connections\n").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ") && !line.contains("| Eyelet"));
    let mut shown = 0;
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let [_, ours, others] = cells[..] else { panic!("what, Eyelet, others: {row}") };
        let figure = numbers(ours).next().unwrap();
        // The last number of each part: a version may come before it.
        let figures_of_others = others.split(';').map(|part| numbers(part).last().unwrap());
        let row_figures: Vec<&str> = [figure].into_iter().chain(figures_of_others).collect();
        let is_the_row =
            |line: &str| row_figures.iter().all(|f| numbers(line).any(|number| number == *f));
        let measured = figures.lines().position(|line| line.starts_with('|') && is_the_row(line));
        let Some(measured) = measured else { panic!("{row_figures:?} are in no row: {row}") };
        assert!(command_of(&figures, measured, &scenarios), "no command of {row}");
        if let Some(rate) = ours.split_once(": ").and_then(|(_, rate)| numbers(rate).next()) {
            let rate: f64 = rate.replace(',', "").parse().unwrap();
            let by_time = 1e6 / figure.parse::<f64>().unwrap();
            assert!((rate / by_time - 1.0).abs() < 0.05, "{rate} of {by_time}: {row}");
        }
        shown += row_figures.len();
    }
    assert!(shown >= 12, "{shown} figures were found");
}

/// True if the row at this line, or the text between it and the heading above, names a scenario.
fn command_of(figures: &str, row: usize, scenarios: &[&str]) -> bool {
    let above: Vec<&str> = figures.lines().take(row).collect();
    let texts = above.iter().rev().take_while(|line| !line.starts_with('#'));
    let texts = texts.filter(|line| !line.starts_with('|')).copied();
    let row = figures.lines().nth(row).unwrap();
    texts.chain([row]).flat_map(|line| line.split('`').skip(1).step_by(2)).any(|command| {
        let command = command.strip_prefix("eyelet-bench ").unwrap_or(command);
        scenarios.contains(&command.split(' ').next().unwrap())
    })
}

/// The numbers of a text, as they are written.
fn numbers(text: &str) -> impl Iterator<Item = &str> {
    let of_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',');
    let parts = text.split(move |c: char| !of_number(c)).map(|part| part.trim_matches(['.', ',']));
    parts.filter(|part| !part.is_empty())
}
