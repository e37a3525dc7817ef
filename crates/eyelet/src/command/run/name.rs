//! The name of a project: that of its folder, and in a worktree of git with its branch.

use std::fs;
use std::path::{Path, PathBuf};

/// The domain of this machine's own names.
pub(super) const LOCALHOST: &str = "localhost";
/// The name of a folder whose own name has no letter or digit.
const DEFAULT: &str = "app";
/// Bytes of a label (RFC 1035 section 2.3.4).
pub(super) const LABEL_BYTES_MAX: usize = 63;
/// Bytes of git's files that are read: a path or the name of a branch.
const GIT_FILE_BYTES_MAX: u64 = 8 << 10;

/// The name of a project in this folder.
pub(super) fn of_folder(folder: &Path) -> String {
    match Worktree::of(folder) {
        None => format!("{}.{LOCALHOST}", label(folder)),
        Some(Worktree { root, branch, project }) => {
            // A folder below keeps its own name, as it has in the main worktree.
            let base = if folder == root { label(&project) } else { label(folder) };
            let branch = branch.as_deref().map_or_else(|| label(&root), clean);
            format!("{branch}.{base}.{LOCALHOST}")
        }
    }
}

fn label(folder: &Path) -> String {
    clean(&folder.file_name().unwrap_or_default().to_string_lossy())
}

/// A label of a host name: other characters than letters, digits and hyphens are hyphens.
fn clean(text: &str) -> String {
    let mut label = String::new();
    for c in text.chars() {
        match c {
            c if c.is_ascii_alphanumeric() => label.push(c.to_ascii_lowercase()),
            _ if label.is_empty() || label.ends_with('-') => {}
            _ => label.push('-'),
        }
    }
    label.truncate(LABEL_BYTES_MAX);
    let label = label.trim_end_matches('-');
    if label.is_empty() { DEFAULT.into() } else { label.into() }
}

/// A worktree beside the main one, as `git worktree add` makes it.
#[derive(Debug)]
struct Worktree {
    root: PathBuf,
    /// `None`: no branch is checked out.
    branch: Option<String>,
    /// The folder of the main worktree, or of a bare repository.
    project: PathBuf,
}

impl Worktree {
    /// The one that has this folder (gitrepository-layout(5)): its `.git` is a file that names its
    /// part of the repository, and `commondir` there names the repository.
    fn of(folder: &Path) -> Option<Self> {
        let root = folder.ancestors().find(|path| path.join(".git").symlink_metadata().is_ok())?;
        let own = root.join(read(&root.join(".git"))?.strip_prefix("gitdir: ")?);
        let common = own.join(read(&own.join("commondir"))?).canonicalize().ok()?;
        let head = read(&own.join("HEAD"))?;
        let branch = head.strip_prefix("ref: refs/heads/").map(ToOwned::to_owned);
        let name = common.file_name()?.to_string_lossy().into_owned();
        let project = match name.strip_suffix(".git") {
            // A bare repository, such as `app.git`.
            Some(bare) if !bare.is_empty() => common.with_file_name(bare),
            _ if name.starts_with('.') => common.parent()?.to_owned(),
            _ => common,
        };
        Some(Self { root: root.to_owned(), branch, project })
    }
}

/// A line that git wrote. `None`: there is no such file.
fn read(path: &Path) -> Option<String> {
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let text = eyelet_sys::file::read_regular(path, GIT_FILE_BYTES_MAX).ok()?;
    Some(String::from_utf8(text).ok()?.trim_end_matches(['\n', '\r']).to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn folders_are_labels() {
        for (folder, expected) in [
            ("/srv/app", "app.localhost"),
            ("/srv/My App_2", "my-app-2.localhost"),
            ("/srv/.hidden", "hidden.localhost"),
            ("/srv/a--b-", "a-b.localhost"),
            ("/srv/\u{e9}", "app.localhost"),
            ("/", "app.localhost"),
        ] {
            assert_eq!(of_folder(Path::new(folder)), expected, "{folder}");
        }
        let long = of_folder(&Path::new("/srv").join("a".repeat(200)));
        assert_eq!(long, format!("{}.localhost", "a".repeat(63)));
    }

    #[test]
    fn a_worktree_has_its_branch_and_its_projects_name() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (head, repository, expected) in [
            ("ref: refs/heads/feature-x\n", "app/.git", "feature-x.app.localhost"),
            ("ref: refs/heads/a/b\n", "app/.git", "a-b.app.localhost"),
            ("ref: refs/heads/a-b\n", "app/.bare", "a-b.app.localhost"),
            ("ref: refs/heads/main\n", "shop.git", "main.shop.localhost"),
            ("0123456789abcdef0123456789abcdef01234567\n", "app/.git", "tree.app.localhost"),
        ] {
            let own = root.join(repository).join("worktrees/w");
            write("tree/.git", &format!("gitdir: {}\n", own.display()));
            write("tree/packages/web/package.json", "{}");
            write(&format!("{repository}/worktrees/w/commondir"), "../..\n");
            write(&format!("{repository}/worktrees/w/HEAD"), head);
            assert_eq!(of_folder(&root.join("tree")), expected, "{head} {repository}");
            let branch = expected.split('.').next().unwrap();
            let below = of_folder(&root.join("tree/packages/web"));
            assert_eq!(below, format!("{branch}.web.localhost"));
        }
        // The main worktree, a submodule, and files that are none of git's.
        fs::create_dir_all(root.join("app/.git")).unwrap();
        assert_eq!(of_folder(&root.join("app")), "app.localhost");
        for text in ["gitdir: ../app/.git/modules/tree\n", "", "gitdir:", "\u{0}"] {
            write("tree/.git", text);
            assert_eq!(of_folder(&root.join("tree")), "tree.localhost", "{text:?}");
        }
    }
}
