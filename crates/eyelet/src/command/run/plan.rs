//! The text of a configuration for `run` and `proxy`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use eyelet_child::Endpoint;
use eyelet_config::{Config, Depth};
use serde::{Deserialize, Serialize};

use super::args::{EdgeArgs, ProxyArgs, RunArgs, Site};
use super::certificate::{Certificate, LocalTable, SIGNED, quoted};
use super::ports::{HTTPS, Ports};

/// The origin to which mistakes in the configuration are attributed. Relative paths in it are
/// relative to the working folder.
const ORIGIN: &str = "the command line, as a configuration";
/// The time that a connection has to end after the application has.
const DRAIN: &str = "1s";
/// The line at the top of a shared edge's configuration: the connections of a project end with it.
/// Its rules have the names of its sites.
const ENDS_REMOVED: &str = "reload_ends_removed = true\n\n";
/// The names that lead to the only site beside its own: a client that asks for an address sends
/// none. No page of another site comes so: a browser sends the name of the page.
const NAMELESS: &[&str] = &["localhost", ""];

/// The names that lead to a site beside its own.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) enum OtherNames {
    /// None.
    Nothing,
    /// `localhost`, and no name.
    Nameless,
    /// All, because a given certificate may have other names.
    Any,
}

/// The options of a rule.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct RuleOptions {
    pub(super) tcp: bool,
    pub(super) hold: Duration,
    client_ca: Option<PathBuf>,
    proxy_protocol: bool,
    /// The file that verifies an application with TLS. `None`: the system's roots do.
    #[serde(default)]
    pub(super) upstream_ca: Option<PathBuf>,
}

impl RuleOptions {
    pub(super) fn of(args: &EdgeArgs) -> Self {
        Self {
            tcp: args.tcp,
            hold: args.hold,
            client_ca: args.client_ca.clone(),
            proxy_protocol: args.proxy_protocol,
            upstream_ca: None,
        }
    }
}

/// A site and how it is served.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct PlannedRule {
    pub(super) site: Site,
    pub(super) others: OtherNames,
    pub(super) options: RuleOptions,
}

impl PlannedRule {
    /// Makes its paths absolute, for a process in another folder.
    pub(super) fn absolute(mut self) -> std::io::Result<Self> {
        for file in [&mut self.options.client_ca, &mut self.options.upstream_ca] {
            *file = file.take().map(std::path::absolute).transpose()?;
        }
        if let Some(path) = self.site.upstream.strip_prefix("unix:") {
            self.site.upstream = format!("unix:{}", std::path::absolute(path)?.display());
        }
        Ok(self)
    }
}

/// A configuration whose upstreams may change.
#[derive(Clone)]
pub(super) struct Plan {
    /// The first part, which ends with the listeners.
    listeners: String,
    /// The addresses at which plain requests may be redirected, until [`Plan::apply`] has tried
    /// that.
    http: Vec<IpAddr>,
    /// The addresses at which they are redirected.
    redirects: Vec<SocketAddr>,
    /// The part with the certificate.
    certificate: String,
    rules: Vec<PlannedRule>,
    local: Option<LocalTable>,
    /// The file of the access log.
    log: Option<PathBuf>,
}

/// The rule of a command that listens on this port.
pub(super) fn rule_of_run(
    args: &RunArgs,
    (name, port): (&str, u16),
    certificate: &Certificate,
) -> PlannedRule {
    let site = Site { name: name.to_owned(), upstream: format!("127.0.0.1:{port}") };
    let others = match certificate.local {
        Some(_) => OtherNames::Nameless,
        None => OtherNames::Any,
    };
    PlannedRule { site, others, options: RuleOptions::of(&args.edge) }
}

/// The rules of applications that run already. Of several sites none is meant without a name.
pub(super) fn rules_of_proxy(args: &ProxyArgs) -> Vec<PlannedRule> {
    let others = match &*args.sites {
        [_] => OtherNames::Nameless,
        _ => OtherNames::Nothing,
    };
    let options = RuleOptions::of(&args.edge);
    let rule = |site: &Site| PlannedRule { site: site.clone(), others, options: options.clone() };
    args.sites.iter().map(rule).collect()
}

impl Plan {
    /// The plan of a command that has an edge of its own.
    pub(super) fn new(
        edge: &EdgeArgs,
        rules: Vec<PlannedRule>,
        ports: &Ports,
        certificate: &Certificate,
    ) -> Self {
        let mut plan = Self::listening(ports);
        if edge.tcp {
            plan.http.clear();
        }
        plan.certificate.clone_from(&certificate.keys);
        plan.local.clone_from(&certificate.local);
        plan.log.clone_from(&edge.log);
        plan.rules = rules;
        plan
    }

    /// The plan of a shared edge, without rules. The authority in this folder signs.
    pub(super) fn shared(ports: &Ports, authority: PathBuf) -> Self {
        let local = LocalTable { folder: authority, permits: BTreeSet::new() };
        let listening = Self::listening(ports);
        let listeners = ENDS_REMOVED.to_owned() + &listening.listeners;
        Self { listeners, local: Some(local), ..listening }
    }

    /// Serves these rules from now on. The authority is asked to sign these names, too.
    pub(super) fn follow(&mut self, rules: Vec<PlannedRule>, permits: BTreeSet<String>) {
        self.rules = rules;
        if let Some(local) = &mut self.local {
            local.permits = permits;
        }
    }

    fn listening(ports: &Ports) -> Self {
        let mut listeners = String::new();
        for address in &ports.https {
            // Writing to a String cannot fail.
            let _ = writeln!(listeners, "[[listener]]\naddress = \"{address}\"\n");
        }
        Self {
            listeners,
            http: ports.http.clone(),
            redirects: Vec::new(),
            certificate: SIGNED.into(),
            rules: Vec::new(),
            local: None,
            log: None,
        }
    }

    /// The rules.
    pub(super) fn rules(&self) -> &[PlannedRule] {
        &self.rules
    }

    /// Leads to this endpoint from now on. Returns whether that is another one.
    pub(super) fn lead_to(&mut self, endpoint: &Endpoint) -> bool {
        let upstream = endpoint.to_string();
        let changes = self.rules.iter().any(|rule| rule.site.upstream != upstream);
        self.rules.iter_mut().for_each(|rule| rule.site.upstream.clone_from(&upstream));
        changes
    }

    /// True if [`Plan::apply`] may begin to redirect plain requests.
    pub(super) fn may_redirect(&self) -> bool {
        !self.http.is_empty()
    }

    /// Applies this plan by `apply`, and has plain requests redirected at those addresses that
    /// `free` finds. Between the two another program may take the port: then the plan is applied
    /// without redirects. They are tried once.
    pub(super) fn apply<T, E>(
        &mut self,
        free: impl Fn(&[IpAddr]) -> Vec<SocketAddr>,
        mut apply: impl FnMut(&Self) -> Result<T, E>,
    ) -> Result<T, E> {
        if self.may_redirect() {
            self.redirects = free(&mem::take(&mut self.http));
            match apply(self) {
                Err(_) if !self.redirects.is_empty() => self.redirects.clear(),
                applied => return applied,
            }
        }
        apply(self)
    }

    /// The checked configuration.
    pub(super) fn config(&self) -> Result<Config, String> {
        let loaded =
            eyelet_config::parse(Path::new(ORIGIN), &self.text(), Depth::Files, SystemTime::now());
        let mistakes = |found: Vec<eyelet_config::Diagnostic>| {
            found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        loaded.map(|loaded| loaded.config).map_err(mistakes)
    }

    /// Returns the configuration as text.
    fn text(&self) -> String {
        let mut text = self.listeners.clone();
        for address in &self.redirects {
            let kind = "kind = \"http_redirect\"";
            // Writing to a String cannot fail.
            let _ = write!(text, "[[listener]]\naddress = \"{address}\"\n{kind}\n\n");
        }
        for rule in &self.rules {
            // Writing to a String cannot fail.
            let _ = write!(text, "{}", self.rule(rule));
        }
        let log = match &self.log {
            Some(file) => quoted(file),
            None => "\"off\"".into(),
        };
        text += &self.local.as_ref().map_or(String::new(), LocalTable::text);
        let _ = write!(text, "[limits]\ndrain_timeout = \"{DRAIN}\"\n\n[log]\naccess = {log}\n");
        text
    }

    fn rule(&self, PlannedRule { site, others, options }: &PlannedRule) -> String {
        let mut rule = format!("[[rule]]\nname = \"{}\"\n", site.name);
        let others = match others {
            OtherNames::Any => None,
            OtherNames::Nothing => Some(&[][..]),
            OtherNames::Nameless => Some(NAMELESS),
        };
        if let Some(others) = others {
            let others = others.iter().copied().filter(|other| *other != site.name);
            let names = std::iter::once(&*site.name).chain(others);
            let names: Vec<String> = names.map(|name| format!("\"{name}\"")).collect();
            let _ = writeln!(rule, "sni = [{}]", names.join(", "));
        }
        let upstream = upstream(&site.upstream, options.tcp);
        let _ = writeln!(rule, "action = \"terminate\"\n{}", self.certificate);
        let _ = writeln!(rule, "upstream = {}", quoted(Path::new(&upstream)));
        let hold = humantime::format_duration(options.hold).to_string().replace(' ', "");
        let _ = writeln!(rule, "upstream_wait = \"{hold}\"");
        if let Some(ca) = &options.client_ca {
            let _ = writeln!(rule, "client_ca = {}", quoted(ca));
            if !options.tcp && !upstream.starts_with("tcp:") && !upstream.starts_with("unix:") {
                rule.push_str("client_cert_header = true\n");
            }
        }
        if let Some(ca) = &options.upstream_ca {
            let _ = writeln!(rule, "upstream_ca = {}", quoted(ca));
        }
        if options.proxy_protocol {
            rule.push_str("proxy_protocol = \"v2\"\n");
        }
        rule + "\n"
    }
}

/// The URL of a site at an edge that listens there. The default port is not written.
pub(super) fn url(rule: &PlannedRule, address: SocketAddr) -> String {
    let (tcp, name) = (rule.options.tcp, &rule.site.name);
    let scheme = if tcp { "tls" } else { "https" };
    match address.port() {
        port if port == HTTPS[0] && !tcp => format!("{scheme}://{name}/"),
        port => format!("{scheme}://{name}:{port}/"),
    }
}

/// An upstream as the configuration writes it.
fn upstream(given: &str, tcp: bool) -> String {
    match (given.strip_prefix("unix:"), tcp) {
        (Some(path), false) => format!("http+unix:{path}"),
        (None, true) if !given.contains("://") => format!("tcp://{given}"),
        (None, false) if !given.contains("://") => format!("http://{given}"),
        _ => given.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        run: RunArgs,
    }

    /// Another program takes port 80 after it was found free.
    #[test]
    fn redirects_that_cannot_be_had_are_left_out() {
        let Typed { run } = Typed::parse_from(["run", "node"]);
        let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
        let ports = Ports { https: vec![(ip, 443).into()], http: vec![ip] };
        let certificate = Certificate::default();
        let free = |ips: &[IpAddr]| ips.iter().map(|ip| (*ip, 80).into()).collect();
        let has_redirect = |plan: &Plan| plan.text().contains("http_redirect");
        for (is_taken, expected) in [(true, &[true, false][..]), (false, &[true])] {
            let rule = rule_of_run(&run, ("app.test", 3000), &certificate);
            let mut plan = Plan::new(&run.edge, vec![rule], &ports, &certificate);
            let mut tried = Vec::new();
            let applied = plan.apply(free, |plan| {
                tried.push(has_redirect(plan));
                if is_taken && has_redirect(plan) { Err(()) } else { Ok(()) }
            });
            assert_eq!((applied, &*tried), (Ok(()), expected));
            assert!(!plan.may_redirect(), "it is tried once");
            let again = plan.apply(free, |plan| Ok::<bool, ()>(has_redirect(plan)));
            assert_eq!(again, Ok(!is_taken), "what serves goes on");
        }
    }

    #[test]
    fn a_shared_edge_ends_the_connections_of_what_has_left() -> Result<(), String> {
        let ports = Ports { https: vec![(Ipv4Addr::LOCALHOST, 443).into()], http: Vec::new() };
        let folder = std::env::temp_dir();
        let config = Plan::shared(&ports, folder).config()?;
        assert!(config.reload_ends_removed);
        Ok(())
    }

    #[test]
    fn upstreams() {
        for (given, tcp, expected) in [
            ("127.0.0.1:3000", false, "http://127.0.0.1:3000"),
            ("127.0.0.1:3000", true, "tcp://127.0.0.1:3000"),
            ("https://a.example:443", false, "https://a.example:443"),
            ("unix:/run/a.sock", false, "http+unix:/run/a.sock"),
            ("unix:/run/a.sock", true, "unix:/run/a.sock"),
        ] {
            assert_eq!(upstream(given, tcp), expected);
        }
    }
}
