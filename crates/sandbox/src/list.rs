//! Lists of places that a command may reach: a name a line, and an explicit line for each service
//! that speaks neither TLS nor HTTP.

use std::collections::BTreeSet;
use std::fmt;

use eyelet_config::HostName;

/// The ports of a name without one: HTTPS, and HTTP for programs that have not moved on, such as
/// apt.
const WEB: [u16; 2] = [443, 80];

/// Different ports: each has a socket for each version of IP, and all go by one message of at most
/// 253 descriptors (unix(7)), with two for DNS, two that tell of refused connections, and one that
/// tells who asks.
pub const PORTS_MAX: usize = 124;

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AllowedEntry {
    /// TLS or HTTP to a name, which the client says.
    Name {
        /// `a.example`: this name. `.a.example`: it, and all names below it.
        name: String,
        /// The port. `None`: 443, and 80 for HTTP.
        port: Option<u16>,
    },
    /// Bytes of any protocol to a name or an address.
    Tcp {
        /// The name or the address.
        host: String,
        /// The port.
        port: u16,
    },
}

/// A line that is no entry.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}: error: {why}")]
pub struct ListFault {
    /// The line, from 1 on.
    pub line: usize,
    /// The text that was expected.
    pub why: String,
}

/// An entry of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList {
    entries: BTreeSet<AllowedEntry>,
}

impl AllowList {
    /// Reads a list: an entry a line, and comments from `#` on.
    ///
    /// # Errors
    /// Each line that is no entry.
    pub fn read(text: &str) -> Result<Self, Vec<ListFault>> {
        let (mut entries, mut faults) = (BTreeSet::new(), Vec::new());
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.split('#').next().unwrap_or_default().trim();
            if text.is_empty() {
                continue;
            }
            match entry(text) {
                // An entry that occurs twice counts once.
                Ok(entry) => drop(entries.insert(entry)),
                Err(why) => faults.push(ListFault { line, why }),
            }
        }
        if faults.is_empty() { Ok(Self { entries }) } else { Err(faults) }
    }

    /// The lines of a list that begin as a pattern of an edge does, which has no name itself.
    pub fn starred(text: &str) -> impl Iterator<Item = (usize, &str)> {
        let entries = (1..).zip(text.lines().map(|line| line.trim().split(['#', ' ', ':']).next()));
        entries.filter_map(|(line, entry)| Some((line, entry?.strip_prefix("*.")?)))
    }

    /// True if nothing is allowed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries, in order.
    pub fn entries(&self) -> impl Iterator<Item = &AllowedEntry> {
        self.entries.iter()
    }

    /// True if a name may be looked up.
    pub fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|allowed| match allowed {
            AllowedEntry::Name { name: own, .. } => match own.strip_prefix('.') {
                Some(parent) => is_below(name, parent),
                None => name == own,
            },
            AllowedEntry::Tcp { host, .. } => name == host,
        })
    }

    /// True if a connection to this place is allowed: by an entry for any protocol, or by its name.
    pub fn allows(&self, name: &str, port: u16, is_tcp: bool) -> bool {
        let is_it = |allowed: &AllowedEntry| match allowed {
            AllowedEntry::Tcp { host, port: at } => is_tcp && host == name && *at == port,
            AllowedEntry::Name { .. } => false,
        };
        let has = |own: &str| own.strip_prefix('.').map_or(own == name, |of| is_below(name, of));
        self.entries.iter().any(is_it) || !is_tcp && self.names_at(port).any(has)
    }

    /// The ports of its entries.
    pub fn ports(&self) -> BTreeSet<u16> {
        let ports = |allowed: &AllowedEntry| match allowed {
            AllowedEntry::Name { port: None, .. } => WEB.to_vec(),
            AllowedEntry::Name { port: Some(port), .. } | AllowedEntry::Tcp { port, .. } => {
                vec![*port]
            }
        };
        self.entries.iter().flat_map(ports).collect()
    }

    /// The names that may be said at a port.
    pub fn names_at(&self, at: u16) -> impl Iterator<Item = &str> {
        self.entries.iter().filter_map(move |allowed| match allowed {
            AllowedEntry::Name { name, port } => {
                let is = port.map_or(WEB.contains(&at), |port| port == at);
                is.then_some(&**name)
            }
            AllowedEntry::Tcp { .. } => None,
        })
    }
}

/// True if a name is this one, or below it.
fn is_below(name: &str, parent: &str) -> bool {
    let before = name.strip_suffix(parent);
    before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

fn entry(text: &str) -> Result<AllowedEntry, String> {
    let mut words = text.split_whitespace();
    let (first, second, more) = (words.next().unwrap_or_default(), words.next(), words.next());
    match (first, second, more) {
        ("tcp", Some(at), None) => {
            if at.contains('/') {
                return Err(format!("`{at}` is no single place; expected a line for each address"));
            }
            let (host, port) = at.rsplit_once(':').ok_or_else(|| no_port(at))?;
            let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
            if host.parse::<std::net::IpAddr>().is_err() {
                check_name(&host)?;
            }
            Ok(AllowedEntry::Tcp { host, port: read_port(port)? })
        }
        (at, None, None) => {
            if let Some((_, behind)) = at.split_once("://") {
                let host = behind.split(['/', ':']).next().unwrap_or_default();
                return Err(format!("this is a URL; expected the name alone: `{host}`"));
            }
            if let Some((host, _)) = at.split_once('/') {
                return Err(format!("paths cannot be listed; expected the name alone: `{host}`"));
            }
            let bare = at.trim_start_matches('[').trim_end_matches(']');
            if bare.parse::<std::net::IpAddr>().is_ok() {
                let at = if bare.contains(':') { format!("[{bare}]") } else { bare.to_owned() };
                return Err(format!(
                    "clients say no name for an address; `tcp {at}:PORT` allows it"
                ));
            }
            let (name, port) = match at.rsplit_once(':') {
                Some((name, port)) => (name, Some(read_port(port)?)),
                None => (at, None),
            };
            if name.parse::<std::net::IpAddr>().is_ok() {
                return Err(format!("clients say no name for an address; `tcp {at}` allows it"));
            }
            let is_below = name.starts_with("*.");
            let name = name.get(usize::from(is_below)..).unwrap_or(name).to_ascii_lowercase();
            check_name(name.strip_prefix('.').unwrap_or(&name))?;
            Ok(AllowedEntry::Name { name, port })
        }
        _ => Err(format!(
            "expected one entry: `a.example`, `.a.example`, `a.example:8443` or `tcp \
             a.example:5432`, not `{text}`"
        )),
    }
}

fn no_port(at: &str) -> String {
    format!("`tcp` needs a port: `tcp {at}:5432`")
}

fn read_port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port != 0);
    port.ok_or_else(|| match text.contains(['-', ',']) {
        true => format!("`{text}` is several ports; expected a line for each"),
        false => format!("expected a port from 1 to 65535, not `{text}`"),
    })
}

/// Checks that the edge takes a name in its rules.
fn check_name(name: &str) -> Result<(), String> {
    if HostName::new(name.as_bytes()).is_ok() {
        return Ok(());
    }
    Err(match name.is_ascii() {
        true => format!("expected a host name, such as `a.example`, not `{name}`"),
        false => format!("expected `{name}` as DNS has it, which begins with `xn--`"),
    })
}

impl fmt::Display for AllowedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { name, port: None } => f.write_str(name),
            Self::Name { name, port: Some(port) } => write!(f, "{name}:{port}"),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp [{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp {host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_written_as_they_are_read() {
        let text = "# builds\n registry.example \n.mirror.example  # all below\nnpm.example:8443\n\
                    tcp DB.example:5432\ntcp [2001:db8::1]:22\n\nregistry.example\n";
        let list = AllowList::read(text).expect("a list");
        let written: Vec<String> = list.entries().map(AllowedEntry::to_string).collect();
        assert_eq!(
            written,
            [
                ".mirror.example",
                "npm.example:8443",
                "registry.example",
                "tcp [2001:db8::1]:22",
                "tcp db.example:5432",
            ]
        );
        assert_eq!(AllowList::read(&written.join("\n")), Ok(list.clone()));
        assert_eq!(Vec::from_iter(list.ports()), [22, 80, 443, 5432, 8443]);
        assert_eq!(Vec::from_iter(list.names_at(443)), [".mirror.example", "registry.example"]);
        assert_eq!(Vec::from_iter(list.names_at(8443)), ["npm.example"]);
        let listed = [
            ("registry.example", true),
            ("a.registry.example", false),
            ("mirror.example", true),
            ("a.b.mirror.example", true),
            ("notmirror.example", false),
            ("db.example", true),
            ("example", false),
        ];
        for (name, is) in listed {
            assert_eq!(list.has(name), is, "{name}");
        }
        for (name, port, is_tcp, is) in [
            ("registry.example", 80, false, true),
            ("registry.example", 8443, false, false),
            ("a.mirror.example", 443, false, true),
            ("npm.example", 8443, false, true),
            ("db.example", 5432, true, true),
            ("db.example", 5432, false, false),
            ("npm.example", 8443, true, false),
        ] {
            assert_eq!(list.allows(name, port, is_tcp), is, "{name}:{port}");
        }
        let starred = AllowList::starred("a.example\n *.b.example:8443 # *.c\n# *.d\n");
        assert_eq!(Vec::from_iter(starred), [(2, "b.example")]);
    }

    #[test]
    fn a_fault_says_what_to_write() {
        for (line, expected) in [
            ("https://a.example/x", "this is a URL; expected the name alone: `a.example`"),
            ("a.example/x", "paths cannot be listed; expected the name alone: `a.example`"),
            ("a.example:80-90", "`80-90` is several ports; expected a line for each"),
            ("a.example:0", "expected a port from 1 to 65535, not `0`"),
            ("tcp a.example", "`tcp` needs a port: `tcp a.example:5432`"),
            (
                "tcp 10.0.0.0/8:5432",
                "`10.0.0.0/8:5432` is no single place; expected a line for each address",
            ),
            ("192.0.2.1", "clients say no name for an address; `tcp 192.0.2.1:PORT` allows it"),
            (
                "2001:db8::1",
                "clients say no name for an address; `tcp [2001:db8::1]:PORT` allows it",
            ),
            ("*a.example", "expected a host name, such as `a.example`, not `*a.example`"),
            (
                "b\u{fc}cher.example",
                "expected `b\u{fc}cher.example` as DNS has it, which begins with `xn--`",
            ),
            ("-a.example", "expected a host name, such as `a.example`, not `-a.example`"),
            ("tcp a.1:22", "expected a host name, such as `a.example`, not `a.1`"),
            ("a..example", "expected a host name, such as `a.example`, not `a..example`"),
        ] {
            let faults = AllowList::read(&format!("# one\n{line}\n"));
            assert_eq!(faults, Err(vec![ListFault { line: 2, why: expected.into() }]), "{line}");
        }
        let faults = AllowList::read("udp a.example:53\na b c").expect_err("faults");
        assert_eq!(faults.len(), 2);
    }
}
