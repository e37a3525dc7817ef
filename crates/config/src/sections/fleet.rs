//! Reads [fleet]: the store that the edges of a fleet share, and the secret that seals what is in
//! it.

use std::fmt;
use std::path::{Path, PathBuf};

use eyelet_sys::file::read_regular;
use zeroize::Zeroizing;

use crate::model::HostPort;
use crate::model::values;
use eyelet_document::reader::Section;
use eyelet_files::Files;

/// `[fleet]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetSettings {
    /// The store of the shared values.
    pub store: StoreAddress,
    /// The file with the secret that seals them.
    pub secret_file: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAddress {
    /// `file:DIR`: for processes of one machine.
    Folder(PathBuf),
    /// `redis://` or `rediss://`.
    Redis(RedisAddress),
}

/// A server of Redis or Valkey, perhaps of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisAddress {
    pub address: HostPort,
    /// The number of the database.
    pub database: u16,
    /// An ACL user and its password. The user may be empty.
    pub login: Option<(String, Zeroizing<String>)>,
    /// `rediss://`: TLS to it.
    pub tls: Option<RedisTls>,
}

/// The verification of a server of `rediss://`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisTls {
    /// The CA certificates. `None`: the system's.
    pub ca: Option<PathBuf>,
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "file:{}", folder.display()),
            Self::Redis(redis) => write!(f, "{redis:?}"),
        }
    }
}

/// Without the password.
impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        write!(f, "{scheme}://{}/{}", self.address, self.database)
    }
}

pub(crate) fn read(document: &Section<'_>, files: &mut Files) -> Option<FleetSettings> {
    let section = document.known("fleet", "[fleet]", &FLEET_KEYS)?;
    let secret_file = section.required("secret_file", "[fleet] has no `secret_file`");
    let secret_file = secret_file.map(|text| files.check_secret(text, fleet_secret));
    let ca = section.text("ca").map(|text| (text, files.check_authorities(text)));
    let store_at = section.required("store", "[fleet] has no `store`")?;
    let mut store = store_at.parse(|text| store(text, files))?;
    match (&mut store, ca) {
        (StoreAddress::Redis(RedisAddress { tls: Some(tls), .. }), ca) => {
            tls.ca = ca.map(|(_, path)| path);
        }
        (_, Some((ca, _))) => ca.at.error("`ca` is for a store with \"rediss://\" only"),
        (_, None) => {}
    }
    Some(FleetSettings { store, secret_file: secret_file? })
}

fn store(text: &str, files: &Files) -> Result<StoreAddress, String> {
    // The text is not repeated in messages: it may hold a password.
    let expected = "expected \"file:DIR\", \"redis://HOST:PORT/DATABASE\" or \"rediss://...\"";
    match text.split_once(':') {
        Some(("file", "")) => Err(format!("no folder; {expected}")),
        Some(("file", folder)) => Ok(StoreAddress::Folder(files.path(folder))),
        Some((scheme @ ("redis" | "rediss"), rest)) => {
            let rest = rest.strip_prefix("//").ok_or(expected)?;
            let tls = (scheme == "rediss").then_some(RedisTls { ca: None });
            redis(rest, tls).map(StoreAddress::Redis)
        }
        _ => Err(format!("not a store; {expected}")),
    }
}

/// `[[user]:password@]host[:port][/database]` (RFC 3986 section 3).
fn redis(text: &str, tls: Option<RedisTls>) -> Result<RedisAddress, String> {
    let (login, rest) = match text.rsplit_once('@') {
        Some((login, rest)) => {
            let (user, password) = login.split_once(':').ok_or(
                "a user without a password before `@`; expected \"redis://USER:PASSWORD@HOST\"",
            )?;
            (Some((decoded(user)?.to_string(), decoded(password)?)), rest)
        }
        None => (None, text),
    };
    let (address, database) = rest.split_once('/').unwrap_or((rest, ""));
    let database = match database {
        "" => 0,
        number => number.parse().map_err(|_| {
            format!("\"{number}\" is not the number of a database; expected 0 to {}", u16::MAX)
        })?,
    };
    let address = values::host_with_port(address, REDIS_PORT)?;
    Ok(RedisAddress { address, database, login, tls })
}

/// Replaces `%XX` by the byte that it stands for (RFC 3986 section 2.1).
fn decoded(text: &str) -> Result<Zeroizing<String>, String> {
    let fault = || "a `%` in the user or the password is not part of a %XX; write %25".to_owned();
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len()));
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or("").as_bytes());
    for part in parts {
        let (hex, rest) = part.split_at_checked(2).ok_or_else(fault)?;
        // `from_str_radix` alone would take a sign.
        let is_hex = hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        let byte = u8::from_str_radix(hex, 16).ok().filter(|_| is_hex);
        bytes.push(byte.ok_or_else(fault)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| "a user or password is not UTF-8")?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// The secret in a file, without the white space at its end.
///
/// # Errors
/// If the file cannot be read, or its secret is too short or too long.
pub fn fleet_secret(file: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    let shown = file.display();
    let mut secret = read_regular(file, SECRET_FILE_BYTES_MAX)
        .map(Zeroizing::new)
        .map_err(|why| format!("cannot read {shown}: {why}"))?;
    let len = secret.trim_ascii_end().len();
    secret.truncate(len);
    if len < SECRET_BYTES_MIN {
        return Err(format!(
            "the secret in {shown} has {len} bytes; expected at least {SECRET_BYTES_MIN}: \
             openssl rand -base64 32 > {shown}"
        ));
    }
    Ok(secret)
}

const FLEET_KEYS: [&str; 3] = ["ca", "secret_file", "store"];

/// Redis' own.
const REDIS_PORT: u16 = 6379;

/// 32 random bytes are out of reach of any search. Hex and base64 of them are longer.
const SECRET_BYTES_MIN: usize = 32;

/// Bytes: ample room for any text of a secret.
const SECRET_FILE_BYTES_MAX: u64 = 4 << 10;
