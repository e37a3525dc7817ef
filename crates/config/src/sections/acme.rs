//! Reads [acme], and which rules have `certificate = "acme"`: the ACME server (RFC 8555), the
//! account there, and the names that are ordered.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use eyelet_policy::NamePattern;
use zeroize::Zeroizing;

use crate::model::{Listener, ListenerKind};
use crate::rules::matchers::Matchers;
use crate::settings::listeners::{HTTP_PORT, Listeners};
use crate::settings::local::Permitted;
use eyelet_document::reader::{Place, Section, Text};
use eyelet_files::Files;

/// The value of a rule's `certificate` that orders certificates.
pub(crate) const ACME: &str = "acme";

/// `[acme]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeSettings {
    /// The URL of the server's directory.
    pub directory: String,
    /// The addresses to which the server may write: URLs, such as `mailto:`.
    pub contact: Vec<String>,
    /// The CA certificates that verify the server. `None`: the system's.
    pub ca: Option<PathBuf>,
    /// The folder of the account and the certificates. `None`: the default folder.
    pub folder: Option<PathBuf>,
    /// One of the server's profiles.
    pub profile: Option<String>,
    /// The account of the server's operator that the ACME account belongs to.
    pub external_account: Option<ExternalAccount>,
    /// A command and its arguments that makes and removes DNS records for DNS-01. Empty: none.
    pub dns_hook: Vec<String>,
    /// The names that the rules order. They are filled in after the rules.
    pub wanted: AcmeNames,
}

/// An external account (RFC 8555 section 7.3.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAccount {
    /// Its key's identifier.
    pub id: String,
    /// The file with the key, in base64url.
    pub key_file: PathBuf,
}

/// The names that rules with `certificate = "acme"` order, and the ways to validate them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcmeNames {
    /// Names that are ordered at the start, each once. Wildcards begin with `*.`.
    pub names: Vec<Box<str>>,
    /// Indices of the listeners of these rules. Empty: all.
    pub listeners: Vec<u16>,
    /// True if a listener of kind `http_redirect` can answer.
    pub has_http: bool,
    /// True if HTTP is asked first: no rule's listener has the port of https.
    pub prefers_http: bool,
}

/// The rules with `certificate = "acme"`, as they are read.
#[derive(Default)]
pub(crate) struct AcmeRules<'t> {
    names: Vec<Box<str>>,
    listeners: Vec<u16>,
    is_for_all: bool,
    /// A mistake in a rule leaves open whether it orders one.
    pub(crate) has_unread: bool,
    has_on_demand: bool,
    /// The place of the first one's value.
    first: Option<Place<'t>>,
    /// Names that the public DNS does not have.
    private: Vec<Text<'t>>,
}

/// Reads [acme].
pub(crate) fn read(
    document: &Section<'_>,
    files: &mut Files,
    rules: AcmeRules<'_>,
    listeners: &Listeners,
) -> Option<AcmeSettings> {
    let Some(section) = document.section("acme", "[acme]") else {
        if let Some(at) = rules.first
            && document.value("acme").is_none()
        {
            let message = "`certificate = \"acme\"` needs a table [acme] with the `directory` of \
                an ACME server; a file of that name is \"./acme\"";
            at.missing(message);
        }
        return None;
    };
    section.check_keys(&ACME_KEYS);
    if rules.first.is_none() && !rules.has_unread {
        section.at.warning("no rule has `certificate = \"acme\"`: nothing is ordered");
    }
    let agreed = section.flag("terms_agreed");
    if agreed == Some(false) || section.value("terms_agreed").is_none() {
        let message = "set `terms_agreed = true` once you have read and agree to the terms of \
            service that the server's directory names";
        section.missing(&["terms_agreed"], message);
    }
    let contact = section.each_parsed("contact", contact_url);
    let ca = section.text("ca").map(|text| files.check_authorities(text));
    let folder = section.text("folder").map(|text| {
        if document.value("fleet").is_some() {
            let message = "the edges of a fleet keep certificates in the store of [fleet]: leave \
                `folder` out";
            text.at.error(message);
        }
        files.path(text.text)
    });
    let profile = section.text("profile").map(|text| text.text.to_owned());
    let external_account = external_account(&section, files);
    let dns_hook = dns_hook(&section);
    let without = "[acme] has no `directory`: \"letsencrypt\", \"letsencrypt-staging\" for tries, \
        or the https:// URL of another ACME server's directory";
    let text = section.required("directory", without)?;
    let directory = text.parse(directory_url)?;
    if is_reserved(&directory) {
        let message = "this name is reserved for documentation, and no server has it; expected \
            \"letsencrypt\", \"letsencrypt-staging\", or the URL of a server that exists";
        text.at.warning(message);
    }
    rules.check_reach(&directory, !dns_hook.is_empty(), listeners);
    let wanted = rules.wanted(&listeners.list);
    Some(AcmeSettings {
        directory,
        contact,
        ca,
        folder,
        profile,
        external_account,
        dns_hook,
        wanted,
    })
}

impl AcmeSettings {
    /// The wildcards that are ordered. Only a DNS record validates them.
    pub fn wildcards(&self) -> impl Iterator<Item = &str> {
        self.wanted.names.iter().map(|name| &**name).filter(|name| name.starts_with("*."))
    }
}

impl<'t> AcmeRules<'t> {
    /// Notes a rule with `certificate = "acme"`, and reports names that cannot be ordered. Returns
    /// whether names are ordered when a client asks for them.
    pub(crate) fn add(
        &mut self,
        section: &Section<'_>,
        matchers: &Matchers<'t>,
        certificate: Text<'t>,
    ) -> bool {
        self.first.get_or_insert(certificate.at);
        if let Some(at) = section.key_at("key") {
            let message = "with `certificate = \"acme\"` keys are made here: leave `key` out";
            at.error(message);
        }
        let on_demand = section.flag("acme_on_demand").unwrap_or(false);
        self.has_on_demand |= on_demand;
        let private = Permitted::default();
        for (text, pattern) in &matchers.sni {
            let is_private = match pattern {
                NamePattern::Exact(name) => private.has_name(name) || !name.contains('.'),
                NamePattern::Suffix(name) => private.has_name(name),
                NamePattern::Absent => false,
            };
            if is_private {
                self.private.push(*text);
            }
            match pattern {
                NamePattern::Exact(name) => self.names.push(name.clone()),
                NamePattern::Suffix(_) if on_demand => {}
                NamePattern::Suffix(name) => self.names.push(format!("*.{name}").into()),
                NamePattern::Absent => text.at.error(NO_NAME),
            }
        }
        let has_lists = !matchers.sni_lists.is_empty();
        if has_lists && !on_demand {
            certificate.at.error(LIST);
        } else if section.lacks("sni") {
            certificate.at.error(NAMELESS);
        }
        match matchers.listeners.is_empty() {
            true => self.is_for_all = true,
            false => self.listeners.extend(&matchers.listeners),
        }
        on_demand
    }

    /// Warns of names that a public server cannot look up, and of listeners that no server reaches.
    fn check_reach(&self, directory: &str, has_hook: bool, all: &Listeners) {
        let Some(first) = self.first else { return };
        if is_public(directory) {
            for Text { text: name, at } in &self.private {
                let is_signed = Permitted::default().has_name(&name.to_ascii_lowercase());
                let instead = if is_signed { LOCAL_NAME } else { LABEL };
                let message = format!(
                    "a public ACME server issues nothing for \"{name}\", which the public DNS does \
                     not have; {instead}"
                );
                at.warning(message);
            }
        }
        if has_hook || self.names.iter().all(|name| name.starts_with("*.")) && !self.has_on_demand {
            return;
        }
        let listed: &[u16] = if self.is_for_all { &[] } else { &self.listeners };
        let has_https = all.of_rule(listed).any(|l| !is_http(l) && is_validated_at(l, HTTPS_PORT));
        let has_http = all.list.iter().any(|l| is_http(l) && is_validated_at(l, HTTP_PORT));
        if !has_https && !has_http && all.is_complete() {
            first.warning(UNREACHED);
        }
    }

    fn wanted(mut self, all: &[Listener]) -> AcmeNames {
        self.names.sort_unstable();
        self.names.dedup();
        self.listeners.sort_unstable();
        self.listeners.dedup();
        if self.is_for_all {
            self.listeners.clear();
        }
        let is_ours =
            |at: usize| self.listeners.is_empty() || self.listeners.contains(&(at as u16));
        let is_on_443 = all.iter().enumerate().any(|(at, listener)| {
            listener.address.inet().port() == HTTPS_PORT && !is_http(listener) && is_ours(at)
        });
        let is_on_80 = all.iter().any(|l| is_http(l) && l.address.inet().port() == HTTP_PORT);
        AcmeNames {
            names: self.names,
            listeners: self.listeners,
            has_http: all.iter().any(is_http),
            prefers_http: is_on_80 && !is_on_443,
        }
    }
}

fn is_http(listener: &Listener) -> bool {
    listener.kind == ListenerKind::HttpRedirect
}

/// True if a server that connects to this port may reach a listener: it has the port, or something
/// before it leads connections of other ports to it.
fn is_validated_at(listener: &Listener, port: u16) -> bool {
    listener.address.inet().port() == port
        || matches!(listener.kind, ListenerKind::Redirect | ListenerKind::Tproxy)
        || !listener.proxy_protocol_from.is_empty()
}

/// True if a directory is a public server's, as far as its host tells.
fn is_public(directory: &str) -> bool {
    has_domain(directory, &PUBLIC_SERVERS)
}

/// True if the host of a directory is one that no server has (RFC 2606, RFC 6761).
fn is_reserved(directory: &str) -> bool {
    has_domain(directory, &RESERVED)
}

/// True if the host of a directory is one of these domains, or below one.
fn has_domain(directory: &str, domains: &[&str]) -> bool {
    let host = directory.strip_prefix("https://").and_then(|rest| rest.split(['/', ':']).next());
    let host = host.unwrap_or_default().to_ascii_lowercase();
    domains.iter().any(|domain| {
        let above = host.strip_suffix(domain);
        above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
    })
}

/// The command for DNS-01. No shell reads it.
fn dns_hook(section: &Section<'_>) -> Vec<String> {
    let words = section.texts("dns_hook").unwrap_or_default();
    let Some(program) = words.first() else { return Vec::new() };
    // A service has another PATH and another folder than the user who tries this.
    let is_executable = |path: &Path| {
        std::fs::metadata(path)
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let path = Path::new(program.text);
    if !path.is_absolute() {
        program
            .at
            .error("expected the whole path of a program, such as \"/usr/local/bin/dns-hook\"");
    } else if !is_executable(path) {
        program.at.error("no program that can be run is there; `chmod +x` makes a file one");
    }
    words.iter().map(|word| word.text.to_owned()).collect()
}

fn external_account(section: &Section<'_>, files: &mut Files) -> Option<ExternalAccount> {
    let (id, file) = section.both("external_account_id", "external_account_key_file")?;
    let key_file = files.check_secret(file, |_| Ok(()));
    Some(ExternalAccount { id: id.text.to_owned(), key_file })
}

/// The key of an external account, as its file has it: base64url, without blanks around it.
///
/// # Errors
/// If the file cannot be read, or is no text.
pub fn external_account_key(account: &ExternalAccount) -> Result<Zeroizing<String>, String> {
    let shown = account.key_file.display();
    let key = Zeroizing::new(eyelet_files::text(&account.key_file, KEY_FILE_BYTES_MAX)?);
    let text = std::str::from_utf8(&key).map_err(|_| format!("{shown} is not base64url"))?;
    Ok(Zeroizing::new(text.trim().trim_end_matches('=').to_owned()))
}

/// The directory of the ACME server that a word or a URL names.
fn directory_url(text: &str) -> Result<String, String> {
    if let Some((_, url)) = WELL_KNOWN.iter().find(|(word, _)| *word == text) {
        return Ok((*url).to_owned());
    }
    let host = text.strip_prefix("https://").map(|rest| rest.split('/').next());
    let is_url = host.flatten().is_some_and(|host| !host.is_empty())
        && text.bytes().all(|byte| byte.is_ascii_graphic());
    let fault = || {
        "expected \"letsencrypt\", \"letsencrypt-staging\" for tries, or the https:// URL of an \
         ACME server's directory"
            .to_owned()
    };
    is_url.then(|| text.to_owned()).ok_or_else(fault)
}

fn contact_url(text: &str) -> Result<String, String> {
    if text.contains(':') {
        return Ok(text.to_owned());
    }
    Err(format!("a contact is a URL; expected \"mailto:{text}\""))
}

const LIST: &str = "the names of a list in a file are ordered when a client first asks for them: \
    set `acme_on_demand = true`, or write the names here";

const NO_NAME: &str = "a hello without a name has no certificate by ACME; give \"\" a rule of its \
    own";

const NAMELESS: &str = "this rule takes every name, and so would order a certificate for each name \
    that a stranger makes up: give it `sni`";

const LOCAL_NAME: &str = "`certificate = \"local\"` has it signed by a local authority, which \
    clients must trust";

const LABEL: &str = "give it a name below a domain that you own, or one such as `printer.lan` with \
    `certificate = \"local\"`";

const UNREACHED: &str = "an ACME server connects to port 443 or 80 of a name: no listener of these \
    rules has port 443, and none of kind \"http_redirect\" has port 80; so nothing is issued, \
    unless something in front of this edge translates ports";

/// Domains of public servers. A server that is missing costs a warning.
const PUBLIC_SERVERS: [&str; 5] =
    ["buypass.com", "letsencrypt.org", "pki.goog", "ssl.com", "zerossl.com"];

/// Domains for documentation and for names that lead nowhere.
const RESERVED: [&str; 5] = ["example", "example.com", "example.net", "example.org", "invalid"];

/// Words for the directories of the server that most people use: the real one, and the one to try
/// a configuration with, whose certificates nobody trusts.
const WELL_KNOWN: [(&str, &str); 2] = [
    ("letsencrypt", "https://acme-v02.api.letsencrypt.org/directory"),
    ("letsencrypt-staging", "https://acme-staging-v02.api.letsencrypt.org/directory"),
];

const ACME_KEYS: [&str; 9] = [
    "ca",
    "contact",
    "directory",
    "dns_hook",
    "external_account_id",
    "external_account_key_file",
    "folder",
    "profile",
    "terms_agreed",
];

/// Bytes: ample room for any MAC key.
const KEY_FILE_BYTES_MAX: u64 = 4 << 10;

/// The port to which a server of TLS-ALPN-01 connects (RFC 8737 section 3).
const HTTPS_PORT: u16 = 443;
