//! Reads [local], and what a local certificate authority may sign: names and addresses that lead
//! nowhere on the internet, and what `permit` adds.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use eyelet_policy::NamePattern;
use ipnet::IpNet;

use crate::model::LocalNames;
use crate::model::values;
use eyelet_document::reader::{Section, Text};
use eyelet_files::Files;

/// The value of a rule's `certificate` that has certificates signed here.
pub(crate) const LOCAL: &str = "local";

/// `[local]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalSettings {
    /// The folder of the authority. `None`: the user's own folder.
    pub folder: Option<PathBuf>,
    /// The names that an authority may sign if it is made now.
    pub permitted: Permitted,
}

/// The names and addresses that an authority may sign: its name constraints (RFC 5280 section
/// 4.2.1.10). A name permits itself and all names below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permitted {
    /// Lower-case, without a dot in front.
    pub names: Vec<Box<str>>,
    /// Networks.
    pub nets: Vec<IpNet>,
}

impl Default for Permitted {
    fn default() -> Self {
        let names = NAMES.iter().map(|name| (*name).into()).collect();
        Self { names, nets: NETS.iter().filter_map(|net| net.parse().ok()).collect() }
    }
}

impl Permitted {
    /// Permits another name, or another network.
    ///
    /// # Errors
    /// If the text is neither, or there are too many.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        if self.names.len() + self.nets.len() >= PERMITTED_MAX {
            return Err(format!("more than {PERMITTED_MAX} names and networks are permitted"));
        }
        match (values::net(text), text.parse::<NamePattern>()) {
            (Ok(net), _) => self.nets.push(net),
            (_, Ok(NamePattern::Exact(name))) => self.names.push(name),
            _ => {
                return Err(format!(
                    "\"{text}\" is no name and no network; expected \"corp.example\", which \
                     permits all names below it too, or \"203.0.113.0/24\""
                ));
            }
        }
        Ok(())
    }

    /// The names that it has beyond what each authority may sign: [`Permitted::add`] makes it again
    /// from them.
    pub fn beyond_default(&self) -> Vec<String> {
        let default = Self::default();
        let names = self.names.iter().filter(|name| !default.has_name(name));
        let nets =
            self.nets.iter().filter(|net| !default.nets.iter().any(|own| own.contains(*net)));
        names.map(ToString::to_string).chain(nets.map(ToString::to_string)).collect()
    }

    /// True if a name may be signed. `*.suffix` is as its suffix.
    pub fn has_name(&self, name: &str) -> bool {
        let name = name.strip_prefix("*.").unwrap_or(name);
        self.names.iter().any(|permitted| {
            let above = name.strip_suffix(&**permitted);
            above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
        })
    }

    /// True if an address may be signed.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.nets.iter().any(|net| net.contains(&address))
    }
}

impl fmt::Display for Permitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nets = self.nets.iter().map(ToString::to_string);
        let all: Vec<_> = self.names.iter().map(ToString::to_string).chain(nets).collect();
        f.write_str(&all.join(", "))
    }
}

/// True if a name leads to this machine, whatever DNS says (RFC 6761 section 6.3).
pub fn is_loopback_name(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

pub(crate) fn read(document: &Section<'_>, files: &Files) -> LocalSettings {
    let mut settings = LocalSettings::default();
    let Some(section) = document.known("local", "[local]", &LOCAL_KEYS) else { return settings };
    settings.folder = section.text("folder").map(|text| files.path(text.text));
    for text in section.texts("permit").unwrap_or_default() {
        text.parse(|text| settings.permitted.add(text));
    }
    settings
}

/// Checks a rule with `certificate = "local"`, and says which names it signs.
pub(crate) fn check_rule(
    section: &Section<'_>,
    (sni, has_lists): (&[(Text<'_>, NamePattern)], bool),
    permitted: &Permitted,
) -> LocalNames {
    if let Some(at) = section.key_at("key") {
        let message = "with `certificate = \"local\"` keys are made here: leave `key` out";
        at.error(message);
    }
    for (text, pattern) in sni {
        let (NamePattern::Exact(name) | NamePattern::Suffix(name)) = pattern else { continue };
        if !permitted.has_name(name) {
            report_name(*text, permitted);
        }
    }
    match sni.is_empty() && !has_lists {
        true => LocalNames::Loopback,
        false => LocalNames::Listed,
    }
}

/// True if the authority of whoever has no [local] signs all names of such a rule. Those of lists
/// are not known.
pub(crate) fn signs_by_default(sni: &[&NamePattern], has_lists: bool) -> bool {
    let permitted = Permitted::default();
    let is_signed = |pattern: &&NamePattern| match pattern {
        NamePattern::Exact(name) | NamePattern::Suffix(name) => permitted.has_name(name),
        NamePattern::Absent => true,
    };
    !has_lists && !sni.is_empty() && sni.iter().all(is_signed)
}

fn report_name(text: Text<'_>, permitted: &Permitted) {
    let message = format!(
        "the local certificate authority may not sign \"{}\": it is limited to {permitted}; add \
         it to `permit` of [local], or give a file",
        text.text
    );
    text.at.error(message);
}

const LOCAL_KEYS: [&str; 2] = ["folder", "permit"];

/// Most names and networks together: clients compare each with each name of a certificate.
const PERMITTED_MAX: usize = 128;

/// Names that the public DNS does not have, so that a stolen key opens no site of the internet:
/// RFC 6761 (`localhost`, `test`, `example`), RFC 6762 (`local`), RFC 8375 (`home.arpa`), ICANN's
/// reservation of 2024 (`internal`), and what home routers use (`lan`).
const NAMES: [&str; 7] = ["localhost", "test", "example", "local", "home.arpa", "internal", "lan"];

/// Loopback, private, unique local and link-local addresses (RFC 1122, 1918, 3927, 4193, 4291).
const NETS: [&str; 8] = [
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_lead_nowhere_are_permitted() {
        let permitted = Permitted::default();
        for name in ["localhost", "a.b.localhost", "*.test", "app.lan", "x.home.arpa"] {
            assert!(permitted.has_name(name), "{name}");
        }
        for name in ["", "com", "bank.com", "alocalhost", "localhost.com", "arpa", "*.com"] {
            assert!(!permitted.has_name(name), "{name}");
        }
        for (address, is_permitted) in [
            ("127.1.2.3", true),
            ("::1", true),
            ("192.168.1.5", true),
            ("fd00::1", true),
            ("8.8.8.8", false),
            ("::2", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(address.parse().map(|a| permitted.has_address(a)), Ok(is_permitted));
        }
        assert_eq!(permitted.nets.len(), NETS.len());
        assert!(permitted.beyond_default().is_empty());
        let (mut wider, more) = (permitted.clone(), ["a.example.com", "8.8.8.0/24", "::2/128"]);
        for text in [&more[..], &["app.test", "10.1.0.0/16"]].concat() {
            assert_eq!(wider.add(text), Ok(()), "{text}");
        }
        assert_eq!(wider.beyond_default(), more);
        assert!(is_loopback_name("localhost") && is_loopback_name("a.localhost"));
        assert!(!is_loopback_name("alocalhost") && !is_loopback_name("localhost.test"));
    }
}
