//! Reads [spiffe]: where the SPIFFE Workload API is, which certificates and bundles come from.

use std::path::{Path, PathBuf};

use eyelet_document::reader::{Place, Section, Text};

/// The variable that names the socket (SPIFFE Workload Endpoint, section 4).
pub const SPIFFE_SOCKET_VARIABLE: &str = "SPIFFE_ENDPOINT_SOCKET";

/// `[spiffe]`, in a configuration that has a rule that needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpiffeSettings {
    /// The Unix socket of the Workload API.
    pub socket: PathBuf,
}

/// Reads [spiffe]. `first` is the place of the first key of a rule that needs it.
pub(crate) fn read(
    document: &Section<'_>,
    folder: &Path,
    first: Option<Place<'_>>,
) -> Option<SpiffeSettings> {
    let section = document.known("spiffe", "[spiffe]", &["socket"]);
    let text = section.as_ref().and_then(|section| section.text("socket"));
    match (text, first) {
        (Some(text), first) => {
            let socket = text.parse(|text| endpoint(text, Some(folder)))?;
            if first.is_none() {
                let message = "no rule has `certificate = \"spiffe\"` or `client_spiffe`: the \
                    Workload API is not asked";
                text.at.warning(message);
            }
            warn_of_socket(text, &socket);
            first.map(|_| SpiffeSettings { socket })
        }
        (None, None) => {
            if let Some(section) = section {
                section.at.missing("[spiffe] has no `socket`, such as \"/run/spire/agent.sock\"");
            }
            None
        }
        (None, Some(at)) => from_environment(at),
    }
}

fn from_environment(at: Place<'_>) -> Option<SpiffeSettings> {
    let named = std::env::var(SPIFFE_SOCKET_VARIABLE).unwrap_or_default();
    if named.is_empty() {
        let message = format!(
            "this needs the socket of the SPIFFE Workload API: write `socket = \
             \"/run/spire/agent.sock\"` in a table [spiffe], or set {SPIFFE_SOCKET_VARIABLE}; a \
             file of that name is \"./spiffe\""
        );
        at.missing(message);
        return None;
    }
    let read = endpoint(&named, None);
    let read = read.map_err(|why| format!("{SPIFFE_SOCKET_VARIABLE} is \"{named}\": {why}"));
    at.keep(read).map(|socket| SpiffeSettings { socket })
}

fn warn_of_socket(text: Text<'_>, socket: &Path) {
    if !socket.exists() {
        let message = format!(
            "{} is not there: until the agent has made it, handshakes of these rules are refused",
            socket.display()
        );
        text.at.warning(message);
    }
}

/// The path of a socket: `unix:///path` as the variable has it (SPIFFE Workload Endpoint, section
/// 4), or a path, in the configuration also a relative one.
fn endpoint(text: &str, folder: Option<&Path>) -> Result<PathBuf, &'static str> {
    const UNIX: &str = "expected \"unix:///run/spire/agent.sock\"";
    if text.starts_with("tcp:") {
        return Err("by TCP an agent cannot tell who asks, so Eyelet asks at a Unix socket only; \
            expected \"unix:///run/spire/agent.sock\"");
    }
    let path = match text.strip_prefix("unix:") {
        Some(rest) => {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            path.starts_with('/').then_some(path).ok_or(UNIX)?
        }
        None if text.contains("://") || text.is_empty() => return Err(UNIX),
        None => text,
    };
    match folder {
        Some(folder) => Ok(folder.join(path)),
        None if path.starts_with('/') => Ok(path.into()),
        None => Err(UNIX),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_socket_is_an_absolute_path_or_a_url_of_one() {
        let folder = Path::new("/etc/eyelet");
        for (text, path) in [
            ("unix:///run/agent.sock", Some("/run/agent.sock")),
            ("unix:/run/agent.sock", Some("/run/agent.sock")),
            ("/run/agent.sock", Some("/run/agent.sock")),
            ("unix://run/agent.sock", None),
            ("tcp://127.0.0.1:8000", None),
            ("https://a.test", None),
            ("", None),
        ] {
            for folder in [None, Some(folder)] {
                assert_eq!(endpoint(text, folder).ok().as_deref(), path.map(Path::new), "{text}");
            }
        }
        assert_eq!(endpoint("agent.sock", Some(folder)), Ok("/etc/eyelet/agent.sock".into()));
        assert!(endpoint("agent.sock", None).is_err());
    }
}
