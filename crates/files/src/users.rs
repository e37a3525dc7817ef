//! The users of a proxy: a file with one `name:hash` a line. A hash is a MAC of the user's token,
//! keyed by a salt. It is a fast one: tokens are random and long, so nobody can try them all, and
//! each connection checks one.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use aws_lc_rs::rand::{self, SecureRandom};
use zeroize::{Zeroize, Zeroizing};

use crate::Files;
use eyelet_document::diagnostic::{FileFault, Mistakes, Severity, SourceText};
use eyelet_document::reader::Section;

/// The users of a listener, by name. Clones share them.
#[derive(Clone, PartialEq, Eq)]
pub struct Users(Arc<[User]>);

/// One user, and the hash of its token.
#[derive(PartialEq, Eq)]
pub struct User {
    name: Box<str>,
    salt: [u8; SALT_BYTES],
    tag: [u8; TAG_BYTES],
}

impl Users {
    /// The name of the user whose token this is. An unknown name takes as long as a wrong token.
    pub fn verify(&self, name: &[u8], token: &[u8]) -> Option<&str> {
        let found = self.0.binary_search_by(|user| user.name.as_bytes().cmp(name));
        let user = found.ok().and_then(|at| self.0.get(at));
        let is_right = user.unwrap_or(&NOBODY).is_token(token);
        user.filter(|_| is_right).map(|user| &*user.name)
    }

    /// True if there is a user of this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.binary_search_by(|user| (*user.name).cmp(name)).is_ok()
    }

    /// The users of a listener.
    pub fn of_listener(section: &Section<'_>, files: &mut Files) -> Option<Self> {
        let text = section.text("users")?;
        let mut users = None;
        files.check_secret(text, |path| match Self::read(path) {
            Ok(read) => {
                users = Some(read);
                Ok(())
            }
            Err(FileFault::File(message)) => Err(message),
            Err(FileFault::Text(mistakes)) => {
                text.at.report.of_other_file(mistakes);
                Ok(())
            }
        });
        users
    }

    /// Reads a file.
    fn read(path: &Path) -> Result<Self, FileFault> {
        let bytes = crate::text(path, FILE_BYTES_MAX).map(Zeroizing::new);
        let bytes = bytes.map_err(FileFault::File)?;
        let text = str::from_utf8(&bytes)
            .map_err(|_| FileFault::File(format!("{} is not UTF-8", path.display())))?;
        let mut mistakes = Mistakes::new(MISTAKES_MAX, MISTAKES_MAX);
        let users = users(text, &mut mistakes);
        if mistakes.errors == 0 {
            return Ok(Self(users.into()));
        }
        let shown = without_hashes(text);
        Err(FileFault::Text(mistakes.all(&SourceText::new(path, &shown))))
    }
}

impl User {
    /// A user with this token, hashed with a new salt. `None`: the name is none, or there is no
    /// random number.
    pub fn new(name: &str, token: &[u8]) -> Option<Self> {
        check_name(name).ok()?;
        let mut salt = [0; SALT_BYTES];
        rand::SystemRandom::new().fill(&mut salt).ok()?;
        let tag = hmac::sign(&hmac::Key::new(HMAC_SHA256, &salt), token);
        Some(Self { name: name.into(), salt, tag: tag.as_ref().try_into().ok()? })
    }

    /// Compares in constant time.
    fn is_token(&self, token: &[u8]) -> bool {
        hmac::verify(&hmac::Key::new(HMAC_SHA256, &self.salt), token, &self.tag).is_ok()
    }
}

/// Writes its line of the file.
impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{SCHEME}", self.name)?;
        self.salt.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_char('$')?;
        self.tag.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Hashes are not shown.
impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Users({})", self.0.len())
    }
}

/// A new token: 160 random bits, as hexadecimal digits. `None`: there is no random number.
pub fn new_token() -> Option<Zeroizing<String>> {
    let mut bytes = Zeroizing::new([0; TOKEN_BYTES]);
    rand::SystemRandom::new().fill(&mut bytes[..]).ok()?;
    let mut token = Zeroizing::new(String::with_capacity(2 * TOKEN_BYTES));
    // Writing into a String cannot fail.
    bytes.iter().for_each(|byte| _ = write!(token, "{byte:02x}"));
    Some(token)
}

/// Says what is wrong with the name of a user.
///
/// # Errors
/// A name that no client could send: Basic ends it at a colon (RFC 7617 section 2), and SOCKS has 8
/// bits for its length.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("the user's name is empty"),
        "*" => Err("\"*\" stands for all users in rules; expected another name"),
        _ if name.len() > NAME_BYTES_MAX => Err("a name has at most 255 bytes"),
        _ if name.contains(|c: char| c == ':' || c.is_control() || c.is_whitespace()) => {
            Err("a name has no colon, blank or control character")
        }
        _ => Ok(()),
    }
}

/// The users of a file, sorted.
fn users(text: &str, mistakes: &mut Mistakes) -> Vec<User> {
    let mut lines: HashMap<&str, usize> = HashMap::new();
    let (mut users, mut at) = (Vec::new(), 0);
    for (number, line) in (1..).zip(text.split('\n')) {
        let begins = at;
        at += line.len() + 1;
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let read = read_line(line).and_then(|user| match lines.insert(line_name(line), number) {
            Some(first) => Err(format!(
                "\"{}\" is at line {first} and at line {number}: a user has one line",
                user.name
            )),
            None => Ok(user),
        });
        match read {
            Ok(user) => users.push(user),
            Err(message) => mistakes.push(Severity::Error, begins, message),
        }
    }
    users.sort_unstable_by(|one: &User, other| one.name.cmp(&other.name));
    users
}

fn line_name(line: &str) -> &str {
    line.split_once(':').map_or(line, |(name, _)| name)
}

fn read_line(line: &str) -> Result<User, String> {
    let expected = || {
        format!(
            "expected NAME:{SCHEME}SALT$HASH, a line that `eyelet passwd NAME` writes; a password \
             in the clear is none"
        )
    };
    let (name, hash) = line.split_once(':').ok_or_else(expected)?;
    check_name(name)?;
    let (salt, tag) =
        hash.strip_prefix(SCHEME).and_then(|rest| rest.split_once('$')).ok_or_else(expected)?;
    let (salt, tag) = (hex(salt).ok_or_else(expected)?, hex(tag).ok_or_else(expected)?);
    Ok(User { name: name.into(), salt, tag })
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let (digits, rest) = text.as_bytes().as_chunks::<2>();
    if digits.len() != N || !rest.is_empty() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits) {
        let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
        *byte = u8::try_from(high? << 4 | low?).ok()?;
    }
    Some(bytes)
}

/// The text with `*` in place of what follows the names, which may be a secret.
fn without_hashes(text: &str) -> String {
    let lines = text.split('\n').map(|line| match line.split_once(':') {
        Some((name, hash)) => format!("{name}:{}", "*".repeat(hash.len())),
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

impl Drop for User {
    fn drop(&mut self) {
        self.salt.zeroize();
        self.tag.zeroize();
    }
}

/// Compared with where no user has the name, so that both take as long.
static NOBODY: std::sync::LazyLock<User> = std::sync::LazyLock::new(|| User {
    name: Box::default(),
    salt: [0; SALT_BYTES],
    tag: [0; TAG_BYTES],
});

/// The beginning of a hash: HMAC with SHA-256 (RFC 2104), keyed by the salt.
const SCHEME: &str = "$hmac-sha256$";

/// Bytes of a salt: no two users have the same one by chance.
const SALT_BYTES: usize = 16;

/// Bytes of a hash.
const TAG_BYTES: usize = 32;

/// Random bytes of a token that Eyelet makes.
const TOKEN_BYTES: usize = 20;

/// Most bytes of a name (RFC 1929 section 2).
const NAME_BYTES_MAX: usize = 255;

/// Most bytes of a file: about 100,000 users.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Most errors of a file that are reported.
const MISTAKES_MAX: usize = 20;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(text: &str) -> Result<Users, Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.txt");
        std::fs::write(&path, text).unwrap();
        Users::read(&path).map_err(|fault| match fault {
            FileFault::File(message) => vec![message],
            FileFault::Text(found) => found
                .iter()
                .map(|mistake| {
                    assert!(!mistake.source.contains("secret"), "{mistake}");
                    format!("{}:{}: {}", mistake.line, mistake.column, mistake.message)
                })
                .collect(),
        })
    }

    #[test]
    fn a_token_is_known_by_its_line() {
        let (alice, bob) = (User::new("alice", b"one").unwrap(), User::new("bob", b"two").unwrap());
        let again = User::new("alice", b"one").unwrap();
        assert_ne!(alice.to_string(), again.to_string(), "each has a salt of its own");
        let users = read(&format!("# people\n\n{bob}\r\n{alice}\n")).unwrap();
        for (name, token, known) in [
            ("alice", "one", Some("alice")),
            ("bob", "two", Some("bob")),
            ("alice", "two", None),
            ("alice", "", None),
            ("carol", "one", None),
            ("", "", None),
        ] {
            assert_eq!(users.verify(name.as_bytes(), token.as_bytes()), known, "{name} {token}");
        }
        assert!(users.has("bob") && !users.has("carol"));
        assert_eq!(format!("{users:?}"), "Users(2)");
        assert_eq!(new_token().unwrap().len(), 40);
    }

    #[test]
    fn each_mistake_has_its_line() {
        let line = User::new("a", b"x").unwrap().to_string();
        let expected = "expected NAME:$hmac-sha256$SALT$HASH, a line that `eyelet passwd NAME` \
                        writes; a password in the clear is none";
        for (text, said) in [
            (
                format!("{line}\n# other\n{line}\n"),
                "3:1: \"a\" is at line 1 and at line 3: a user has one line".to_owned(),
            ),
            ("a:secret\n".into(), format!("1:1: {expected}")),
            ("\na\n".into(), format!("2:1: {expected}")),
            (line[..line.len() - 1].into(), format!("1:1: {expected}")),
            (format!("{line}0"), format!("1:1: {expected}")),
            (line.replacen('a', "", 1), "1:1: the user's name is empty".into()),
            (line.replacen('a', "b c", 1), {
                "1:1: a name has no colon, blank or control character".into()
            }),
        ] {
            assert_eq!(read(&text).err(), Some(vec![said]), "{text}");
        }
        assert_eq!(read("").map(|users| users.0.len()), Ok(0));
    }
}
