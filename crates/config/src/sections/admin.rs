//! Reads [admin]: where the edge answers questions about itself, and who may ask.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::model::listen_address::{MODE, UNIX, check_folder, file_mode, socket_path};
use crate::sections::fleet::fleet_secret;
use eyelet_document::reader::Section;
use eyelet_files::Files;

/// `[admin]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminSettings {
    /// A Unix socket. Who may open its file may ask.
    Unix {
        path: PathBuf,
        /// The permissions of its file.
        mode: u32,
    },
    /// A loopback address. Who has the token may ask.
    Tcp { address: SocketAddr, token_file: PathBuf },
}

/// The address as the configuration has it.
impl fmt::Display for AdminSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { path, .. } => write!(f, "unix:{}", path.display()),
            Self::Tcp { address, .. } => address.fmt(f),
        }
    }
}

pub(crate) fn read(document: &Section<'_>, files: &mut Files) -> Option<AdminSettings> {
    let section = document.known("admin", "[admin]", &ADMIN_KEYS)?;
    let token_file = section.text("token_file");
    let token_file = token_file.map(|text| (text, files.check_secret(text, admin_token)));
    let mode = section.text("mode");
    let address = section.required("address", "[admin] has no `address`")?;
    match address.text.strip_prefix(UNIX) {
        Some(path) => {
            if let Some((token_file, _)) = token_file {
                let message = "`token_file` is for an address with a port; the mode of a Unix \
                    socket says who may open it";
                token_file.at.error(message);
            }
            let mode = mode.and_then(|text| {
                let mode = text.parse(file_mode)?;
                if mode & WRITE_OTHERS != 0 {
                    let message = "every user of this machine may read what the edge says, and end \
                        connections; expected \"0600\" or \"0660\"";
                    text.at.warning(message);
                }
                Some(mode)
            });
            let path = address.at.keep(socket_path(path, files))?;
            check_folder(address.at, &path);
            Some(AdminSettings::Unix { path, mode: mode.unwrap_or(MODE) })
        }
        None => {
            if let Some(mode) = mode {
                mode.at.error("`mode` is for a Unix socket: address = \"unix:PATH\"");
            }
            let loopback = address.parse(loopback);
            if token_file.is_none() && section.value("token_file").is_none() {
                let message = "[admin] has no `token_file`, and every user of this machine can \
                    connect to a port; add one, or write address = \"unix:PATH\"";
                section.missing(&["token_file"], message);
            }
            let (_, token_file) = token_file?;
            Some(AdminSettings::Tcp { address: loopback?, token_file })
        }
    }
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let expected = "expected \"unix:PATH\" or a loopback address such as \"127.0.0.1:9443\"";
    let address: SocketAddr =
        text.parse().map_err(|_| format!("\"{text}\" is no address; {expected}"))?;
    if !address.ip().is_loopback() {
        return Err(format!("{address} is no loopback address; {expected}"));
    }
    if address.port() == 0 {
        return Err(format!("{address} has port 0, which no client could know; {expected}"));
    }
    Ok(address)
}

/// The token in a file, without the white space at its end.
///
/// # Errors
/// If the file cannot be read, or what is in it cannot be sent as a bearer token.
pub fn admin_token(file: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    let token = fleet_secret(file)?;
    if !token.iter().all(u8::is_ascii_graphic) {
        return Err(format!(
            "the token in {} has blanks or bytes that are not ASCII, which a header field cannot \
             carry",
            file.display()
        ));
    }
    Ok(token)
}

const ADMIN_KEYS: [&str; 3] = ["address", "mode", "token_file"];

/// The right of users outside of the group to write, which connecting takes.
const WRITE_OTHERS: u32 = 0o002;
