//! Dictionaries that an originate rule has learned, after a restart: in a pair of edges, and in a
//! folder that is damaged, full or lost.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::originate_dictionaries::{application, bundle, get, near_command};
use crate::support::edge::{self, LISTENER};
use crate::support::pki::Kind;
use crate::support::{Edge, Pki, Upstream, until};

/// The near edge's own folder.
const FOLDER: &str = "[dictionary]\npath = \"learned\"\n";

/// An application, a far edge, and what near edges need.
struct Pair {
    pki: Pki,
    far: Edge,
    _app: Upstream,
}

impl Pair {
    fn new() -> Self {
        Self::with_far(|command| command)
    }

    fn with_far(of_far: impl FnOnce(Command) -> Command) -> Self {
        let pki = Pki::new();
        let app = Upstream::serve(|mut stream| application(&mut stream));
        pki.server("edge", &["app.test"], Kind::P256);
        let keys = "dictionary = [\"/app.*.js\", \"/other.*.js\", \"/third.*.js\"]";
        let rule = pki.terminate(&format!("http://{}", app.address), keys);
        let rule = format!("{LISTENER}{rule}[dictionary]\npath = \"store\"\n");
        let mut command = edge::eyelet(&pki.folder);
        command.arg("serve").arg(pki.folder.write("far.toml", rule));
        let far = Edge::spawn(of_far(command), 1);
        Self { pki, far, _app: app }
    }

    fn near(&self) -> Edge {
        Edge::spawn(near_command(&self.pki, &self.far, FOLDER), 1)
    }

    /// The files of what was learned.
    fn files(&self) -> Vec<PathBuf> {
        let Ok(folder) = std::fs::read_dir(self.folder()) else { return Vec::new() };
        let paths = folder.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|end| end == "learned")).collect()
    }

    fn folder(&self) -> PathBuf {
        self.pki.folder.path().join("learned")
    }

    /// Waits until something is on disk.
    fn wait_files(&self, count: usize) -> Vec<PathBuf> {
        until("the files", || Some(self.files()).filter(|files| files.len() == count))
    }
}

/// Gets a version, and says how it travelled.
fn travels(near: &Edge, name: &str, version: usize) -> String {
    let path = format!("/{name}.{version}.js");
    let before = near.count(|line| line["http"]["path"] == *path);
    let heard = get(near, &path);
    assert!(heard.status == 200 && heard.body == bundle(version).as_bytes(), "{path}");
    let lines = until("the request's line", || {
        let lines = near.lines();
        let of_path = lines.into_iter().filter(|line| line["http"]["path"] == *path);
        Some(of_path.collect::<Vec<_>>()).filter(|lines| lines.len() > before)
    });
    lines.last().unwrap()["why_not"].as_str().unwrap_or("not decoded").to_owned()
}

const DIFFERENCE: &str = "decoded from dcz";

/// However the near edge ends, what it has learned is there when it begins.
#[test]
fn a_near_edge_that_restarts_gets_the_next_version_as_the_difference() {
    let pair = Pair::new();
    let near = pair.near();
    assert!(!pair.folder().exists(), "nothing was learned, so there is no folder");
    assert_ne!(travels(&near, "app", 1), DIFFERENCE);
    pair.wait_files(1);
    // SIGKILL.
    drop(near);
    let mut near = pair.near();
    assert_eq!(travels(&near, "app", 2), DIFFERENCE);
    assert_ne!(travels(&near, "other", 2), DIFFERENCE);
    near.signal(Signal::TERM);
    assert!(near.wait_exit().success(), "{}", near.log());
    assert_eq!(pair.files().len(), 2, "an end waits for the files");
    let near = pair.near();
    for (name, version) in [("app", 3), ("other", 3)] {
        assert_eq!(travels(&near, name, version), DIFFERENCE, "{name}");
        let path = format!("/{name}.{version}.js");
        let sent = pair.far.line(&path, |line| line["http"]["path"] == *path);
        assert!(sent["bytes_sent"].as_u64().unwrap() < 500, "{sent}");
    }
    pair.wait_files(2);
    assert!(!near.log().contains(" WARN "), "{}", near.log());
}

/// Bytes of a file, changed in some way.
fn changed(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// None of these is named in a request, and none is left.
#[test]
fn files_that_are_damaged_or_another_ones_are_removed() {
    let pair = Pair::new();
    let mut near = pair.near();
    travels(&near, "app", 1);
    let whole = pair.wait_files(1).remove(0);
    near.kill();
    let content = std::fs::read(&whole).unwrap();
    let outside = pair.pki.folder.write("outside", "not ours");
    let damages: [(&str, &dyn Fn()); 6] = [
        ("a changed byte", &|| changed(&whole, |bytes| bytes[2000] ^= 1)),
        ("a changed head", &|| changed(&whole, |bytes| bytes[40] ^= 1)),
        ("cut short", &|| changed(&whole, |bytes| bytes.truncate(4000))),
        ("empty", &|| changed(&whole, Vec::clear)),
        ("another one's name", &|| {
            let other = whole.with_file_name(format!("{}.learned", "7".repeat(64)));
            std::fs::rename(&whole, other).unwrap();
        }),
        ("a link", &|| {
            std::fs::remove_file(&whole).unwrap();
            std::os::unix::fs::symlink(&outside, &whole).unwrap();
        }),
    ];
    for (what, damage) in damages {
        std::fs::write(&whole, &content).unwrap();
        damage();
        let mut near = pair.near();
        assert_eq!(pair.files(), Vec::<PathBuf>::new(), "{what}");
        let log = near.log();
        assert_eq!(log.matches("incomplete file; removed").count(), 1, "{what}: {log}");
        assert_ne!(travels(&near, "app", 2), DIFFERENCE, "{what}");
        pair.wait_files(1);
        near.kill();
    }
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "not ours");
}

/// A limit for files is as a full disk: a write ends in the middle.
fn on_full_disk(edge: &Command, blocks: u8) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\""));
    command.arg(edge.get_program()).args(edge.get_args());
    command.envs(edge.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

/// Not even a difference fits, so no write succeeds between two that fail.
#[test]
fn a_full_disk_of_the_far_edge_is_one_line() {
    let mut pair = Pair::with_far(|far| on_full_disk(&far, 0));
    let near = pair.near();
    for name in ["app", "other", "third"] {
        assert_ne!(travels(&near, name, 1), DIFFERENCE);
        assert_eq!(travels(&near, name, 2), DIFFERENCE, "memory has it");
    }
    pair.far.signal(Signal::TERM);
    assert!(pair.far.wait_exit().success());
    let log = pair.far.log();
    assert_eq!(log.matches("File too large").count(), 1, "one line for all: {log}");
    assert!(log.contains("new dictionaries stay in memory only"), "{log}");
}

#[test]
fn a_full_disk_keeps_nobody_waiting() {
    let pair = Pair::new();
    let near = on_full_disk(&near_command(&pair.pki, &pair.far, FOLDER), 8);
    let mut near = Edge::spawn(near, 1);
    for name in ["app", "other", "third"] {
        assert_ne!(travels(&near, name, 1), DIFFERENCE);
        assert_eq!(travels(&near, name, 2), DIFFERENCE, "memory has it");
    }
    near.signal(Signal::TERM);
    assert!(near.wait_exit().success());
    let log = near.log();
    assert_eq!(log.matches("File too large").count(), 1, "one line for all: {log}");
    let left = std::fs::read_dir(pair.folder()).unwrap().count();
    assert_eq!(left, 0, "no half of a file is left");
    let near = pair.near();
    assert_ne!(travels(&near, "app", 3), DIFFERENCE);
    pair.wait_files(1);
}

#[test]
fn a_lost_folder_costs_what_was_learned_and_nothing_else() {
    let pair = Pair::new();
    let mut near = pair.near();
    travels(&near, "app", 1);
    pair.wait_files(1);
    std::fs::remove_dir_all(pair.folder()).unwrap();
    assert_eq!(travels(&near, "app", 2), DIFFERENCE, "memory has it");
    near.wait_log("No such file or directory");
    near.kill();
    let mut near = pair.near();
    assert_ne!(travels(&near, "app", 3), DIFFERENCE);
    pair.wait_files(1);
    near.kill();
    // Others could put something there that clients then get.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(pair.folder(), mode).unwrap();
    let near = pair.near();
    near.wait_log("dictionaries stay in memory only");
    assert_ne!(travels(&near, "app", 4), DIFFERENCE);
    assert_eq!(travels(&near, "app", 5), DIFFERENCE);
}
