//! Writes the configuration of the edge that serves a sandbox.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::SystemTime;

use eyelet_config::{
    Config, Depth, Diagnostic, RunAuthority, SandboxAction, SandboxProfile, SandboxRule,
};
use ipnet::IpNet;
use serde_json::Value;

use crate::list::{AllowList, AllowedEntry, PORTS_MAX};
use crate::sockets::DNS;
use crate::stand_ins::StandIns;

/// The name of the configuration in messages about its mistakes.
const ORIGIN: &str = "the sandbox, as a configuration";
/// The rule of a connection that no list has, where all pass.
pub(super) const UNLISTED: &str = "not on the list";
/// The rule of such a connection, where somebody is asked.
const ASKED: &str = "asked";
/// The port of HTTP without TLS.
pub(super) const HTTP: u16 = 80;
/// The port of HTTPS.
pub(super) const HTTPS: u16 = 443;
/// The time of a client for its whole hello, and then for its handshake. Nobody else shares the
/// edge, and a program that builds may connect long before it has its turn again.
const CLIENT_TIMEOUT: &str = "30s";
/// A network in which nobody can be dialled: a rule with an empty one guards nothing.
const NOBODY: &str = "255.255.255.255/32";
/// The name that leads to this host, if an entry says it.
const LOCALHOST: &str = "localhost";
/// The path of each request.
const ALL_PATHS: &str = "/*";
/// The shadow rule in place of one that takes each request, and so reads no path.
pub(super) const ANY_REQUEST: &str = "any request";
/// The shadow rule of requests that no rule takes.
pub(super) const NO_RULE: &str = "no rule for this request";

/// The names that a run mints certificates for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MintedNames {
    /// No rule mints.
    Nothing,
    /// These, and all below them.
    These(Vec<String>),
    /// A rule has no names, and the list does not bound it.
    Any,
}

/// A rule of the configuration.
pub(super) struct RulePart<'a> {
    pub(super) name: String,
    /// `None`: any.
    pub(super) names: Option<Vec<String>>,
    /// `None`: it refuses. No rule on requests reads HTTP without TLS.
    pub(super) action: Option<&'a SandboxAction>,
    /// The matchers on requests, methods and paths. Empty: any.
    requests: [&'a [String]; 2],
}

/// The places that the edge serves to the command.
#[derive(Clone, Copy)]
pub struct RunServing<'a> {
    /// The list of places that may be reached.
    pub list: &'a AllowList,
    /// The rules of the profile.
    pub rules: &'a [SandboxRule],
    /// True if all else may be, too.
    pub lets_all_pass: bool,
    /// True if names that are not on the list are held until somebody decides, by TLS.
    pub asks: bool,
    /// Networks of private addresses to which names may lead.
    pub private: &'a [IpNet],
    /// The path of the access log.
    pub log: &'a Path,
}

impl<'s> RunServing<'s> {
    /// The places of a profile and of its list.
    pub fn new(
        profile: &'s SandboxProfile,
        list: &'s AllowList,
        lets_all_pass: bool,
        log: &'s Path,
    ) -> Self {
        let SandboxProfile { rules, allow_private: private, .. } = profile;
        let asks = profile.ask && !lets_all_pass;
        Self { list, rules, lets_all_pass, asks, private, log }
    }

    /// The ports of the list, or the usual ones.
    pub(super) fn ports(&self) -> BTreeSet<u16> {
        let mut ports = self.list.ports();
        // What may reach nothing is refused with a reason at the usual ports.
        if self.lets_all_pass || self.asks || ports.is_empty() {
            ports.extend([HTTPS, HTTP]);
        }
        ports
    }

    /// The ports at which the sandbox has sockets, if there are not too many.
    ///
    /// # Errors
    /// The list has too many.
    pub fn checked_ports(&self) -> Result<Vec<u16>, String> {
        let ports = self.ports();
        match ports.len() > PORTS_MAX {
            true => Err(format!("the list has {} ports; at most {PORTS_MAX}", ports.len())),
            false => Ok(ports.into_iter().collect()),
        }
    }

    /// The ports at which QUIC is read: those whose names all pass untouched. At others the kernel
    /// refuses it at once, and clients go on by TCP. As many as one message has descriptors for.
    pub fn quic_ports(&self) -> Vec<u16> {
        let passes = |part: &RulePart<'_>| {
            part.action == Some(&SandboxAction::Splice) && part.requests.concat().is_empty()
        };
        let is_read = |port: &u16| {
            let parts = self.parts(*port);
            // HTTP without TLS is TCP's, and a name that people are asked about cannot wait.
            let is_served = ![HTTP, DNS].contains(port) && !self.asks;
            is_served && !parts.is_empty() && parts.iter().all(passes)
        };
        let ports = self.ports();
        let most = PORTS_MAX.saturating_sub(ports.len());
        ports.into_iter().filter(is_read).take(most).collect()
    }

    /// The checked configuration, for sockets at these addresses. Names of services that say none
    /// themselves get their stand-ins.
    ///
    /// # Errors
    /// The mistakes that the configuration has: what its caller was given is not what it checked.
    pub fn config(
        &self,
        addresses: &[SocketAddr],
        stand_ins: &mut StandIns,
        authority: Option<RunAuthority>,
    ) -> Result<Config, String> {
        let text = self.text(addresses, stand_ins);
        let loaded = eyelet_config::parse(Path::new(ORIGIN), &text, Depth::Run, SystemTime::now());
        let mistakes = |found: Vec<Diagnostic>| {
            found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        let mut config = loaded.map_err(mistakes)?.config;
        for listener in &mut config.listeners {
            listener.is_apart = true;
        }
        config.run_authority = authority;
        Ok(config)
    }

    /// Writing to a String cannot fail.
    fn text(&self, addresses: &[SocketAddr], stand_ins: &mut StandIns) -> String {
        // It terminates nothing, so it needs no keys for tickets.
        let mut text = String::from("workers = 1\n\n[tickets]\nenabled = false\n\n");
        let _ = writeln!(text, "[limits]\nhello_timeout = \"{CLIENT_TIMEOUT}\"");
        let _ = writeln!(text, "handshake_timeout = \"{CLIENT_TIMEOUT}\"\n");
        let quic_ports = self.quic_ports();
        for address in addresses {
            let is_quic = quic_ports.contains(&address.port());
            let _ = writeln!(text, "[[listener]]\naddress = \"{address}\"\nquic = {is_quic}");
            let _ = writeln!(text, "kind = \"tproxy\"\nplain_http = true\n");
        }
        for allowed in self.list.entries() {
            if let AllowedEntry::Tcp { host, port } = allowed {
                self.write_tcp(&mut text, (allowed, host, *port), stand_ins);
            }
        }
        for port in self.ports() {
            let at: Vec<String> = (addresses.iter().filter(|address| address.port() == port))
                .map(|address| format!("\"{address}\""))
                .collect();
            let at = at.join(", ");
            if self.lets_all_pass {
                self.write_shadows(&mut text, (port, &at));
            }
            for part in self.parts(port) {
                write_matchers(&mut text, &part.name, &part);
                self.write_action(&mut text, (port, &at), part.action);
            }
            // A request without TLS waits for nobody.
            if self.asks && port != HTTP {
                self.write_request_questions(&mut text, port, &at);
                self.write_question(&mut text, port, &at);
            }
        }
        if self.list.is_empty() && !self.lets_all_pass && !self.asks {
            text.push_str("[[rule]]\naction = \"refuse\"\n\n");
        }
        let _ = write!(text, "[log]\naccess = {}\n", quoted(&self.log.to_string_lossy()));
        text
    }

    /// The rule of an entry for another protocol. The one who writes an address or `localhost`
    /// means it. The one who writes a name does not know where it will lead.
    fn write_tcp(
        &self,
        text: &mut String,
        (allowed, host, port): (&AllowedEntry, &str, u16),
        stand_ins: &mut StandIns,
    ) {
        let is_meant = host == LOCALHOST || host.parse::<IpAddr>().is_ok();
        let at: Vec<String> = inside(host, stand_ins)
            .into_iter()
            .map(|ip| format!("\"{}\"", SocketAddr::new(ip, port)))
            .collect();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let _ = writeln!(text, "[[rule]]\nname = \"{allowed}\"\ntransport = \"tcp\"");
        let _ = writeln!(text, "destination = [{}]\naction = \"splice\"", at.join(", "));
        let _ = writeln!(text, "upstream = \"{host}:{port}\"");
        if !is_meant {
            let _ = writeln!(text, "upstream_allow = [{}]", self.private());
        }
        text.push('\n');
    }

    /// The rule of names that are on no list.
    fn write_question(&self, text: &mut String, port: u16, listeners: &str) {
        let _ = writeln!(text, "[[rule]]\nname = \"{ASKED} at {port}\"");
        let _ = writeln!(text, "listener = [{listeners}]\naction = \"hold\"");
        let _ = writeln!(text, "upstream = \"{{sni}}:{port}\"");
        let _ = writeln!(text, "upstream_allow = [{}]\n", self.private());
    }

    /// The rules of requests that no rule takes, for the names of rules on requests that mint.
    fn write_request_questions(&self, text: &mut String, port: u16, listeners: &str) {
        let mut asked = BTreeSet::new();
        for part in self.parts(port) {
            let (Some(names), Some(action @ SandboxAction::Mint { .. })) =
                (part.names, part.action)
            else {
                continue;
            };
            let names = names.into_iter().filter(|name| !asked.contains(name)).collect::<Vec<_>>();
            if part.requests.concat().is_empty() || names.is_empty() {
                continue;
            }
            let quotes: Vec<String> = names.iter().map(|name| quoted(name)).collect();
            let name = quoted(&format!("{ASKED} at {port}, {}", part.name));
            let _ = writeln!(text, "[[rule]]\nname = {name}\nsni = [{}]", quotes.join(", "));
            let mut rule = String::new();
            self.write_action(&mut rule, (port, listeners), Some(action));
            text.push_str(&rule.replace("action = \"terminate\"", "action = \"hold\""));
            asked.extend(names);
        }
    }

    /// The rules on requests where all requests pass: the access lines say what they would do.
    fn write_shadows(&self, text: &mut String, (port, listeners): (u16, &str)) {
        let bounded = Self { lets_all_pass: false, ..*self };
        let parts = bounded.parts(port);
        let asks = |part: &&RulePart<'_>| !part.requests.concat().is_empty();
        let names: BTreeSet<&String> =
            parts.iter().filter(asks).flat_map(|part| part.names.iter().flatten()).collect();
        if names.is_empty() {
            return;
        }
        let mints = |part: &&RulePart<'_>| matches!(part.action, Some(SandboxAction::Mint { .. }));
        for part in parts.iter().filter(mints) {
            if asks(&part) {
                write_matchers(text, &part.name, part);
            } else {
                write_matchers(text, &format!("{ANY_REQUEST}, {}", part.name), part);
                // Without it, the rule would be compared with connections.
                let _ = writeln!(text, "path = \"{ALL_PATHS}\"");
            }
            text.push_str("shadow = true\n");
            self.write_action(text, (port, listeners), part.action);
        }
        let quotes: Vec<String> = names.into_iter().map(|name| quoted(name)).collect();
        let _ = writeln!(text, "[[rule]]\nname = \"{NO_RULE}, at {port}\"\nshadow = true");
        let _ = writeln!(text, "sni = [{}]\npath = \"{ALL_PATHS}\"", quotes.join(", "));
        self.write_action(text, (port, listeners), None);
    }

    fn write_action(
        &self,
        text: &mut String,
        (port, listeners): (u16, &str),
        action: Option<&SandboxAction>,
    ) {
        let _ = writeln!(text, "listener = [{listeners}]");
        match action {
            None => {
                let _ = writeln!(text, "action = \"refuse\"\n");
                return;
            }
            Some(SandboxAction::Splice) => {
                let _ = writeln!(text, "action = \"splice\"\nplain_http = true");
                let _ = writeln!(text, "upstream = \"{{sni}}:{port}\"");
            }
            Some(SandboxAction::Mint { upstream_ca }) => {
                let _ = writeln!(text, "action = \"terminate\"\ncertificate = \"mint\"");
                let _ = writeln!(text, "upstream = \"destination\"");
                if let Some(ca) = upstream_ca {
                    let _ = writeln!(text, "upstream_ca = {}", quoted(&ca.to_string_lossy()));
                }
            }
        }
        let _ = writeln!(text, "upstream_allow = [{}]\n", self.private());
    }

    /// The rules at a port: first those of the profile, for what they share with the list. Names of
    /// rules on requests pass by those only, and not at all without TLS.
    pub(super) fn parts<'a>(&'a self, port: u16) -> Vec<RulePart<'a>> {
        let listed: Vec<String> = self.list.names_at(port).flat_map(patterns).collect();
        let (mut parts, mut taken) = (Vec::new(), TakenNames::default());
        let mut add = |name: String, names: Option<Vec<String>>, of: Option<&'a SandboxRule>| {
            let action = of.map_or(&SandboxAction::Splice, |of| &of.action);
            // Where all pass, so do all requests.
            let asks = of.filter(|of| of.asks_requests() && !self.lets_all_pass);
            let names = names.map(|names| taken.rest(names, action));
            let is_clear = port == HTTP && *action != SandboxAction::Splice;
            taken.add(names.iter().flatten(), asks.is_some() && !is_clear);
            if names.as_ref().is_none_or(|names| !names.is_empty()) {
                let requests = asks.map_or([&[][..]; 2], |of| [&of.methods, &of.paths]);
                parts.push(match is_clear {
                    true => RulePart { name, names, action: None, requests: [&[]; 2] },
                    false => RulePart { name, names, action: Some(action), requests },
                });
            }
        };
        let is_at_port = |rule: &&SandboxRule| {
            // HTTP without TLS has nothing to mint for.
            port != HTTP || rule.action == SandboxAction::Splice || rule.asks_requests()
        };
        for rule in self.rules.iter().filter(is_at_port) {
            let name = &rule.name;
            let shared = match &*rule.sni {
                [] => listed.clone(),
                sni => sni
                    .iter()
                    .flat_map(|one| listed.iter().filter_map(|of| both(one, of)))
                    .collect(),
            };
            if port == HTTP && self.lets_all_pass && rule.action != SandboxAction::Splice {
                // Rules on requests have no HTTP without TLS.
                add(format!("{UNLISTED} at {port}: {name}"), Some(shared), None);
                continue;
            }
            add(format!("allowed at {port}: {name}"), Some(shared), Some(rule));
            if self.lets_all_pass {
                let all = (!rule.sni.is_empty()).then(|| rule.sni.clone());
                let is_last = all.is_none();
                add(format!("{UNLISTED} at {port}: {name}"), all, Some(rule));
                if is_last {
                    return parts;
                }
            }
        }
        add(rest_at(port), Some(listed), None);
        if self.lets_all_pass {
            add(format!("{UNLISTED} at {port}"), None, None);
        }
        parts
    }

    /// The names that rules mint for, at any port.
    pub fn minted(&self) -> MintedNames {
        let parts: Vec<RulePart<'_>> =
            self.ports().into_iter().flat_map(|port| self.parts(port)).collect();
        let minted =
            parts.iter().filter(|part| matches!(part.action, Some(SandboxAction::Mint { .. })));
        let mut names = BTreeSet::new();
        for part in minted {
            let Some(own) = &part.names else { return MintedNames::Any };
            names.extend(own.iter().map(|name| name.trim_start_matches("*.").to_owned()));
        }
        match names.is_empty() {
            true => MintedNames::Nothing,
            false => MintedNames::These(names.into_iter().collect()),
        }
    }

    fn private(&self) -> String {
        let nets: Vec<String> = self.private.iter().map(|net| format!("\"{net}\"")).collect();
        if nets.is_empty() { format!("\"{NOBODY}\"") } else { nets.join(", ") }
    }
}

/// The begin of a rule: its name and matchers, without its listeners.
fn write_matchers(text: &mut String, name: &str, part: &RulePart<'_>) {
    let _ = writeln!(text, "[[rule]]\nname = {}", quoted(name));
    let names = part.names.as_deref().map(|names| ("sni", names));
    let requests = ["method", "path"].into_iter().zip(part.requests);
    let requests = requests.filter(|(_, values)| !values.is_empty());
    for (key, values) in names.into_iter().chain(requests) {
        let values: Vec<String> = values.iter().map(|value| quoted(value)).collect();
        let _ = writeln!(text, "{key} = [{}]", values.join(", "));
    }
}

/// The name of the rule of what no rule of the profile has.
pub(super) fn rest_at(port: u16) -> String {
    format!("allowed at {port}")
}

/// The addresses that stand for a host inside: its own, or its stand-ins.
fn inside(host: &str, stand_ins: &mut StandIns) -> Vec<IpAddr> {
    let local = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    if let Ok(ip) = host.parse() {
        return vec![ip];
    }
    let placed = stand_ins.of(host).map(|(v4, v6)| [IpAddr::V4(v4), IpAddr::V6(v6)]);
    let local = if host == LOCALHOST { &local[..] } else { &[] };
    placed.into_iter().flatten().chain(local.iter().copied()).collect()
}

/// The names of an entry as a rule writes them.
pub(super) fn patterns(name: &str) -> Vec<String> {
    match name.strip_prefix('.') {
        Some(parent) => vec![parent.to_owned(), format!("*.{parent}")],
        None => vec![name.to_owned()],
    }
}

/// The pattern of the names that both patterns have.
pub(super) fn both(one: &str, other: &str) -> Option<String> {
    let narrower = if covers(one, other) { Some(other) } else { covers(other, one).then_some(one) };
    narrower.map(str::to_owned)
}

/// True if a pattern has all names of another.
fn covers(wide: &str, narrow: &str) -> bool {
    // `*.a.example` has `.a.example` at the end, as have all names below.
    let is_below = wide.strip_prefix('*').is_some_and(|end| narrow.ends_with(end));
    wide == narrow || is_below
}

/// The names that earlier rules have.
#[derive(Default)]
struct TakenNames {
    /// The names of rules that take each request.
    whole: Vec<String>,
    /// The names of rules on requests: other rules that read requests may take others.
    by_request: Vec<String>,
}

impl TakenNames {
    /// The patterns that earlier rules leave to one with this action, each once.
    fn rest(&self, names: Vec<String>, action: &SandboxAction) -> Vec<String> {
        let by_request = match action {
            SandboxAction::Splice => &self.by_request[..],
            SandboxAction::Mint { .. } => &[],
        };
        let taken = self.whole.iter().chain(by_request);
        let is_left = |name: &String| !taken.clone().any(|taken| covers(taken, name));
        let left: BTreeSet<String> = names.into_iter().filter(is_left).collect();
        left.into_iter().collect()
    }

    fn add<'a>(&mut self, names: impl Iterator<Item = &'a String>, is_by_request: bool) {
        let taken = if is_by_request { &mut self.by_request } else { &mut self.whole };
        taken.extend(names.cloned());
    }
}

/// A TOML basic string: JSON's escapes are a subset of TOML's.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn rule(name: &str, sni: &[&str], action: SandboxAction) -> SandboxRule {
        let sni = sni.iter().map(|name| (*name).to_owned()).collect();
        let (methods, paths) = (Vec::new(), Vec::new());
        SandboxRule { name: name.into(), sni, action, methods, paths }
    }

    fn said(serving: &RunServing<'_>, port: u16) -> Vec<String> {
        let parts = serving.parts(port).into_iter().map(|part| {
            let names = part.names.map_or("any".to_owned(), |names| names.join(" "));
            let how = match part.action {
                Some(SandboxAction::Splice) => "",
                Some(SandboxAction::Mint { .. }) => " mint",
                None => " refuse",
            };
            format!("{}:{how} {names}", part.name)
        });
        parts.collect()
    }

    #[test]
    fn rules_are_for_what_the_list_has() {
        let list = AllowList::read(".a.example\nb.example\nc.example:8443").unwrap();
        let mint = SandboxAction::Mint { upstream_ca: None };
        let rules = [
            rule("pins", &["pin.a.example", "elsewhere.example"], SandboxAction::Splice),
            rule("opened", &["*.a.example", "b.example", "pin.a.example"], mint.clone()),
        ];
        let nets = [];
        let serving = |rules, lets_all_pass| RunServing {
            list: &list,
            rules,
            lets_all_pass,
            asks: false,
            private: &nets,
            log: Path::new("/dev/null"),
        };
        let listed = serving(&rules, false);
        assert_eq!(
            said(&listed, 443),
            [
                "allowed at 443: pins: pin.a.example",
                "allowed at 443: opened: mint *.a.example b.example",
                "allowed at 443: a.example"
            ]
        );
        assert_eq!(
            said(&listed, 80),
            [
                "allowed at 80: pins: pin.a.example",
                "allowed at 80: *.a.example a.example b.example"
            ]
        );
        assert_eq!(said(&listed, 8443), ["allowed at 8443: c.example"]);
        let these = |names: &[&str]| {
            MintedNames::These(names.iter().map(|name| (*name).to_owned()).collect())
        };
        assert_eq!(listed.minted(), these(&["a.example", "b.example"]));
        let learning = serving(&rules, true);
        assert_eq!(
            said(&learning, 443)[1..],
            [
                "not on the list at 443: pins: elsewhere.example",
                "allowed at 443: opened: mint *.a.example b.example",
                "allowed at 443: a.example",
                "not on the list at 443: any"
            ]
        );
        let all = [rule("all", &[], mint)];
        assert_eq!(serving(&all, false).minted(), these(&["a.example", "b.example", "c.example"]));
        assert_eq!(serving(&all, true).minted(), MintedNames::Any);
        assert_eq!(serving(&[], true).minted(), MintedNames::Nothing);
        for serving in [serving(&all, true), serving(&all, false), learning, listed] {
            let addresses = [443, 80, 8443].map(|port| SocketAddr::from(([0, 0, 0, 0], port)));
            serving.config(&addresses, &mut StandIns::default(), None).unwrap();
        }
    }
    #[test]
    fn requests_that_no_rule_takes_are_asked_about() {
        let list = AllowList::read("a.example").unwrap();
        let asking = |name: &str, method: &str| SandboxRule {
            methods: vec![method.to_owned()],
            ..rule(name, &["a.example"], SandboxAction::Mint { upstream_ca: None })
        };
        let rules = [asking("reads", "GET"), asking("posts", "POST")];
        let serving = RunServing {
            list: &list,
            rules: &rules,
            lets_all_pass: false,
            asks: true,
            private: &[],
            log: Path::new("/dev/null"),
        };
        let addresses = [443, 80].map(|port| SocketAddr::from(([0, 0, 0, 0], port)));
        let config = serving.config(&addresses, &mut StandIns::default(), None).unwrap();
        let held = config.rules.iter().filter(|rule| rule.action.hold().is_some());
        let held: Vec<&str> = held.map(|rule| rule.name).collect();
        assert_eq!(held, ["asked at 443, allowed at 443: reads", "asked at 443"]);
    }

    #[test]
    fn names_of_rules_on_requests_pass_by_those_alone() {
        let list = AllowList::read(".a.example\nb.example").unwrap();
        let mint = SandboxAction::Mint { upstream_ca: None };
        let serving = |rules, lets_all_pass| RunServing {
            list: &list,
            rules,
            lets_all_pass,
            asks: false,
            private: &[],
            log: Path::new("/dev/null"),
        };
        let asking = |name: &str, methods: &[&str]| SandboxRule {
            methods: methods.iter().map(|method| (*method).to_owned()).collect(),
            paths: vec!["/org/*".to_owned()],
            ..rule(name, &["pin.a.example"], mint.clone())
        };
        let asking = [asking("reads", &["GET"]), asking("posts", &["POST"])];
        assert_eq!(
            said(&serving(&asking, false), 443),
            [
                "allowed at 443: reads: mint pin.a.example",
                "allowed at 443: posts: mint pin.a.example",
                "allowed at 443: *.a.example a.example b.example"
            ]
        );
        assert_eq!(
            said(&serving(&asking, false), 80)[..2],
            [
                "allowed at 80: reads: refuse pin.a.example",
                "allowed at 80: *.a.example a.example b.example"
            ]
        );
        assert_eq!(
            said(&serving(&asking, true), 80)[..2],
            [
                "not on the list at 80: reads: pin.a.example",
                "allowed at 80: *.a.example a.example b.example"
            ]
        );
        assert!(
            serving(&asking, true).parts(443).iter().all(|part| part.requests.concat().is_empty())
        );
        let addresses = [443, 80].map(|port| SocketAddr::from(([0, 0, 0, 0], port)));
        let text = serving(&asking, true).text(&addresses, &mut StandIns::default());
        let shadows = text.split("[[rule]]\n").filter(|rule| rule.contains("shadow = true"));
        let shadows: Vec<_> = shadows.filter_map(|rule| rule.lines().next()).collect();
        assert_eq!(
            shadows,
            [
                "name = \"allowed at 443: reads\"",
                "name = \"allowed at 443: posts\"",
                "name = \"no rule for this request, at 443\"",
            ]
        );
        let [reads, _] = asking.clone();
        let both = [reads, rule("opened", &["*.a.example"], mint.clone())];
        let text = serving(&both, true).text(&addresses, &mut StandIns::default());
        assert!(
            text.contains("name = \"allowed at 443: reads\"\nsni = [\"pin.a.example\"]\nmethod")
        );
        let stands = "name = \"any request, allowed at 443: opened\"\nsni = [\"*.a.example\"]\n\
            path = \"/*\"\nshadow = true\n";
        assert!(text.contains(stands), "{text}");
        for serving in [serving(&asking, false), serving(&asking, true), serving(&both, true)] {
            serving.config(&addresses, &mut StandIns::default(), None).unwrap();
        }
    }
}
