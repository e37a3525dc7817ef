//! Reads [[listener]] and finds listeners that would collide.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use crate::model::listen_address::{
    ListenAddress, MODE, UNIX, check_folder, file_mode, socket_path,
};
use crate::model::values;
use crate::model::{Listener, ListenerKind};
use eyelet_document::reader::{Place, Section, Text};
use eyelet_files::Files;
use eyelet_files::users::Users;

/// The listeners of a file, as rules refer to them.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    pub(crate) list: Vec<Listener>,
    /// The line of each one's table; as long as `list`.
    lines: Vec<usize>,
    /// True if one of them could not be read: an unknown name may then be its name.
    incomplete: bool,
    /// The configuration's folder: relative paths of sockets begin there.
    folder: PathBuf,
}

impl Listeners {
    pub(crate) fn read(document: &Section<'_>, files: &mut Files) -> Self {
        let sections = document.sections("listener", "[[listener]]");
        let mut listeners = Self { folder: files.path(""), ..Self::default() };
        if document.value("listener").is_none() {
            document.missing(&["listener"], no_listener(document));
        }
        if let Some(beyond) = sections.get(LISTENERS_MAX) {
            beyond.at.error(format!("more than {LISTENERS_MAX} listeners"));
        }
        for section in sections.iter().take(LISTENERS_MAX) {
            match read_one(section, files) {
                Some(listener) => listeners.add(section, listener),
                None => listeners.incomplete = true,
            }
        }
        listeners
    }

    /// True if each of them could be read.
    pub(crate) fn is_complete(&self) -> bool {
        !self.incomplete && !self.list.is_empty()
    }

    /// The index of the listener that a rule refers to by `text`: its name or its address.
    pub(crate) fn find(&self, reference: Text<'_>) -> Option<u16> {
        let address = match reference.text.strip_prefix(UNIX) {
            Some(path) => Some(ListenAddress::Unix(self.folder.join(path))),
            None => reference.text.parse().ok(),
        };
        let found = self.list.iter().position(|listener| {
            listener.name.as_deref() == Some(reference.text)
                || Some(&listener.address) == address.as_ref()
        });
        if found.is_none() && !self.incomplete {
            let known: Vec<String> =
                self.list.iter().take(KNOWN_SHOWN).map(Listener::called).collect();
            let message = format!(
                "no listener is called \"{}\"; expected the name or the address of one, such as {}",
                reference.text,
                known.join(" or ")
            );
            reference.at.error(message);
        }
        found.and_then(|index| u16::try_from(index).ok())
    }

    /// The listeners of a rule. A rule that lists none is for all.
    pub(crate) fn of_rule<'a>(&'a self, listed: &'a [u16]) -> impl Iterator<Item = &'a Listener> {
        self.numbered(listed).map(|(_, listener)| listener)
    }

    /// Reports at `at`, the place of a key, if there is one, that one of a rule's listeners is
    /// unfit. `message` gets what it is called.
    pub(crate) fn check(
        &self,
        (listed, at): (&[u16], Option<Place<'_>>),
        is_unfit: impl Fn(&Listener) -> bool,
        message: impl FnOnce(&str) -> String,
    ) {
        let Some(at) = at else { return };
        if let Some(unfit) = self.of_rule(listed).find(|listener| is_unfit(listener)) {
            at.error(message(&unfit.called()));
        }
    }

    /// The indexes of a rule's listeners, without those that use no rules.
    pub(crate) fn asked_for(&self, listed: &[u16]) -> Vec<usize> {
        let asks = |listener: &Listener| listener.kind != ListenerKind::HttpRedirect;
        let of_rule = self.numbered(listed).filter(|(_, listener)| asks(listener));
        of_rule.map(|(index, _)| index).collect()
    }

    fn numbered<'a>(&'a self, listed: &'a [u16]) -> impl Iterator<Item = (usize, &'a Listener)> {
        self.list.iter().enumerate().filter(|(index, _)| {
            listed.is_empty() || listed.iter().any(|listed| usize::from(*listed) == *index)
        })
    }

    /// The listeners that a rule with this action is for, if it lists none: an action is for TLS,
    /// or for its absence. `None`: for all.
    pub(crate) fn fitting(&self, is_for_plain: bool) -> Option<Vec<u16>> {
        let is_plain = |listener: &Listener| listener.kind == ListenerKind::Plain;
        if !is_for_plain && !self.list.iter().any(is_plain) {
            return None;
        }
        let numbered = (0..).zip(&self.list);
        let fitting = numbered.filter(|(_, listener)| is_plain(listener) == is_for_plain);
        Some(fitting.map(|(index, _)| index).collect())
    }

    /// The index of the listener that a dial certainly reaches, whatever addresses this host has.
    pub(crate) fn reached_at(&self, ip: IpAddr, port: u16) -> Option<usize> {
        let ip = ip.to_canonical();
        self.list.iter().position(|listener| {
            let address = listener.address.inet();
            let own = address.ip();
            let is_any = own.is_unspecified() && own.is_ipv4() == ip.is_ipv4();
            address.port() == port
                && (own == ip || is_any && (ip.is_loopback() || ip.is_unspecified()))
        })
    }

    fn add(&mut self, section: &Section<'_>, listener: Listener) {
        for (other, line) in self.list.iter().zip(&self.lines) {
            if collide(&listener.address, &other.address) {
                let at = section.value_at("address");
                let message = format!(
                    "{} collides with the listener on {} at line {line}: one address can be \
                     listened on once",
                    listener.address, other.address
                );
                at.error(message);
                break;
            }
            if listener.name.is_some() && listener.name == other.name {
                let at = section.value_at("name");
                at.error(format!("the listener at line {line} has this name already"));
            }
        }
        self.list.push(listener);
        self.lines.push(section.at.line());
    }
}

impl Listener {
    /// Its name or its address, in quotation marks, for messages.
    pub fn called(&self) -> String {
        match &self.name {
            Some(name) => format!("\"{name}\""),
            None => format!("\"{}\"", self.address),
        }
    }
}

/// Says that an edge needs a listener, or who uses a file that has profiles of sandboxes instead.
fn no_listener(document: &Section<'_>) -> String {
    let profiles = document.section("sandbox", "[sandbox]");
    match profiles.as_ref().and_then(|profiles| profiles.table.keys().next()) {
        Some(name) if document.value("rule").is_none() => format!(
            "this file has profiles of sandboxes and no edge, so `serve` has nothing to do; \
             `eyelet check` checks them, and `eyelet sandbox --config FILE --profile {}` uses one",
            name.get_ref()
        ),
        _ => "no listener; expected at least one [[listener]] with an `address` such as \
              \"0.0.0.0:443\""
            .to_owned(),
    }
}

fn read_one(section: &Section<'_>, files: &mut Files) -> Option<Listener> {
    section.check_keys(&KEYS);
    let kind = match section.value("kind") {
        Some(_) => section.word("kind", " is not a kind of listener;", &KINDS),
        None => Some(ListenerKind::Direct),
    };
    let proxy_protocol_from = section.each_parsed("proxy_protocol_from", values::net);
    let name = section.text("name").map(|name| name.text.to_owned());
    let reuse_port = section.flag("reuse_port").unwrap_or(false);
    let defer_accept = section.flag("defer_accept").unwrap_or(false);
    let plain_http = section.flag("plain_http").unwrap_or(false);
    if section.value("address").is_none() {
        let without = "a listener needs an `address`, such as \"0.0.0.0:443\"";
        section.missing(&["address"], without);
    }
    let text = section.text_of("address", ONE_ADDRESS)?;
    let address = text.parse(|text| match text.strip_prefix(UNIX) {
        Some(path) => socket_path(path, files).map(ListenAddress::Unix),
        None => values::listen_address(text).map(ListenAddress::Inet),
    })?;
    if let ListenAddress::Unix(path) = &address {
        check_folder(text.at, path);
    }
    let kind = kind?;
    if let Some(at) = section.key_at("plain_http").filter(|_| !INTERCEPTING.contains(&kind)) {
        at.error(
            "`plain_http` is for listeners of kind \"redirect\" and \"tproxy\"; a \"connect\" \
             listener takes http:// URLs anyway",
        );
    }
    check_quic(section, kind);
    check_port_80(section, kind, address.inet());
    let acme_upstream = acme_upstream(section, kind, address.inet());
    let mode = check_file(section, kind, &address);
    let is_proxy = kind == ListenerKind::Connect;
    let users = is_proxy.then(|| Users::of_listener(section, files)).flatten();
    if let Some(at) = section.value("users").filter(|_| !is_proxy) {
        section.place(at).error("`users` is for listeners of kind \"connect\"");
    }
    if !address.is_unix() {
        check_reach(section, kind, address.inet());
    }
    Some(Listener {
        name,
        address,
        mode,
        kind,
        users,
        proxy_protocol_from,
        reuse_port,
        acme_upstream,
        defer_accept,
        plain_http,
        quic: section.flag("quic").unwrap_or(false),
        is_apart: false,
    })
}

/// Checks what a Unix socket can have, and reads the permissions of its file.
fn check_file(section: &Section<'_>, kind: ListenerKind, address: &ListenAddress) -> u32 {
    let mode = section.text("mode");
    if !address.is_unix() {
        if let Some(mode) = mode {
            mode.at.error("`mode` is for a Unix socket: address = \"unix:PATH\"");
        }
        return MODE;
    }
    if !matches!(kind, ListenerKind::Plain | ListenerKind::Connect) {
        let message = "a Unix socket is for listeners of kind \"connect\" or \"plain\"";
        section.value_at("address").error(message);
    }
    for (key, at) in section.present(&OF_TCP) {
        let of = if key == "quic" { "TCP and UDP" } else { "TCP" };
        at.error(format!("`{key}` is about {of}, and this is a Unix socket"));
    }
    mode.and_then(|text| text.parse(file_mode)).unwrap_or(MODE)
}

/// A redirected datagram has lost its destination, and nothing but connections has a PROXY header.
fn check_quic(section: &Section<'_>, kind: ListenerKind) {
    let Some(at) = section.key_at("quic").filter(|_| section.flag("quic") == Some(true)) else {
        return;
    };
    if kind == ListenerKind::Redirect {
        at.error(
            "netfilter does not say where a redirected datagram was sent; QUIC needs `kind = \
             \"tproxy\"`, or a listener of kind \"direct\" of its own",
        );
    } else if !matches!(kind, ListenerKind::Direct | ListenerKind::Tproxy) {
        at.error("`quic` is for listeners of kind \"direct\" and \"tproxy\"");
    }
    if section.value("proxy_protocol_from").is_some() {
        at.error(
            "a datagram has no PROXY header; give QUIC a listener without `proxy_protocol_from`",
        );
    }
}

/// Warns of a listener on the port of http:// that takes TLS only, unless its `kind` says so.
fn check_port_80(section: &Section<'_>, kind: ListenerKind, address: SocketAddr) {
    let is_said = section.value("kind").is_some();
    let message = match kind {
        _ if address.port() != HTTP_PORT => return,
        ListenerKind::Direct if !is_said => {
            "clients must speak TLS at this port, which is that of http://; did you mean \
             `kind = \"http_redirect\"`, which sends them to https://?"
        }
        ListenerKind::Redirect if section.flag("plain_http") != Some(true) => {
            "netfilter must redirect connections to a \"redirect\" listener; to send clients from \
             http:// to https:// write `kind = \"http_redirect\"`"
        }
        _ => return,
    };
    section.at.warning(message);
}

/// Checks who reaches a listener: what clients of a plain one send is readable on its way. They are
/// on this machine, so no load balancer is before them.
fn check_reach(section: &Section<'_>, kind: ListenerKind, address: SocketAddr) {
    let is_allowed = section.flag("allow_remote").unwrap_or(false);
    if let Some(at) = section.key_at("allow_remote").filter(|_| kind != ListenerKind::Plain) {
        at.error("`allow_remote` is for listeners of kind \"plain\"");
    }
    if let Some(at) = section.key_at("proxy_protocol_from").filter(|_| kind == ListenerKind::Plain)
    {
        at.error("`proxy_protocol_from` is not for listeners of kind \"plain\"");
    }
    if kind == ListenerKind::Plain && !address.ip().is_loopback() && !is_allowed {
        let at = section.value_at("address");
        let message = "other machines would send to a \"plain\" listener in the clear; expected a \
            loopback address as in \"127.0.0.1:3690\", or `allow_remote = true` where the network \
            between is trusted";
        at.error(message);
    }
}

fn acme_upstream(section: &Section<'_>, kind: ListenerKind, own: SocketAddr) -> Option<SocketAddr> {
    let text = section.text("acme_upstream")?;
    if kind != ListenerKind::HttpRedirect {
        text.at.error("`acme_upstream` is for listeners of kind \"http_redirect\"");
    }
    let upstream = text.parse(values::listen_address)?;
    if upstream == own {
        text.at.error("this is the listener itself: requests would loop");
    }
    Some(upstream)
}

/// True if the second bind would fail. `[::]` is bound for IPv6 only, so it does not collide with
/// IPv4.
fn collide(a: &ListenAddress, b: &ListenAddress) -> bool {
    if a.is_unix() || b.is_unix() {
        return a == b;
    }
    let (a, b) = (a.inet(), b.inet());
    let takes =
        |wide: IpAddr, narrow: IpAddr| wide.is_unspecified() && wide.is_ipv4() == narrow.is_ipv4();
    let (one, other) = (a.ip(), b.ip());
    // Port 0 gives a new port each time.
    let same_port = a.port() == b.port() && a.port() != 0;
    same_port && (one == other || takes(one, other) || takes(other, one))
}

const KINDS: [(&str, ListenerKind); 6] = [
    ("direct", ListenerKind::Direct),
    ("redirect", ListenerKind::Redirect),
    ("tproxy", ListenerKind::Tproxy),
    ("connect", ListenerKind::Connect),
    ("http_redirect", ListenerKind::HttpRedirect),
    ("plain", ListenerKind::Plain),
];

/// Kinds whose clients have dialled another address.
const INTERCEPTING: [ListenerKind; 2] = [ListenerKind::Redirect, ListenerKind::Tproxy];

/// Keys that a Unix socket has no use for.
const OF_TCP: [&str; 5] =
    ["allow_remote", "defer_accept", "proxy_protocol_from", "quic", "reuse_port"];

const KEYS: [&str; 12] = [
    "acme_upstream",
    "address",
    "allow_remote",
    "defer_accept",
    "kind",
    "mode",
    "name",
    "plain_http",
    "proxy_protocol_from",
    "quic",
    "reuse_port",
    "users",
];

/// The port of http:// (RFC 9110 section 4.2.1), to which a server of HTTP-01 connects, too (RFC
/// 8555 section 8.3).
pub(crate) const HTTP_PORT: u16 = 80;

/// The type of `address`, for messages.
const ONE_ADDRESS: &str =
    "one address, such as \"0.0.0.0:443\"; each further one has a [[listener]] of its own";

/// Most listeners: each has a socket per worker, and rules store its index in 16 bits.
const LISTENERS_MAX: usize = 1_024;

/// Most listeners that a message names.
const KNOWN_SHOWN: usize = 3;
