//! What `run` and `proxy` serve, as the text of a configuration.

use std::fmt::Write;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::SystemTime;

use eyelet_child::Endpoint;
use eyelet_config::{Config, Depth};

use super::args::{EdgeArgs, ProxyArgs, RunArgs, Site};
use super::certificate::{Certificate, quoted};
use super::ports::{HTTPS, Ports};

/// What mistakes in the configuration are attributed to. Relative paths in it are relative to the
/// working folder.
const ORIGIN: &str = "the command line, as a configuration";
/// How long a connection has to end after the application has.
const DRAIN: &str = "1s";
/// What leads to the only site beside its name: a client that asks for an address sends none. No
/// page of another site comes so: a browser sends the name of the page.
const NAMELESS: &[&str] = &["localhost", ""];

/// A configuration whose upstream may change.
#[derive(Clone)]
pub(super) struct Plan {
    edge: EdgeArgs,
    /// The part with the listeners.
    listeners: String,
    /// Where plain requests may be redirected, until [`Plan::apply`] has tried that.
    http: Vec<IpAddr>,
    /// Where they are redirected.
    redirects: Vec<SocketAddr>,
    /// The part with the certificate.
    certificate: String,
    sites: Vec<Site>,
    /// The names that lead to a site beside its own. `None`: all do.
    others: Option<&'static [&'static str]>,
    port: u16,
    /// The table of the local authority, or nothing.
    local: String,
}

impl Plan {
    pub(super) fn of_run(
        args: &RunArgs,
        port: u16,
        ports: &Ports,
        certificate: &Certificate,
    ) -> Self {
        let upstream = format!("127.0.0.1:{port}");
        let sites = vec![Site { name: args.name.clone(), upstream }];
        // A given certificate may have other names.
        let others = certificate.local.is_some().then_some(NAMELESS);
        Self { port, others, ..Self::new(&args.edge, sites, ports, certificate) }
    }

    pub(super) fn of_proxy(args: &ProxyArgs, ports: &Ports, certificate: &Certificate) -> Self {
        let mut plan = Self::new(&args.edge, args.sites.clone(), ports, certificate);
        // Of several sites none is meant without a name.
        if let [_] = &*plan.sites {
            plan.others = Some(NAMELESS);
        }
        plan
    }

    fn new(edge: &EdgeArgs, sites: Vec<Site>, ports: &Ports, certificate: &Certificate) -> Self {
        let mut listeners = String::new();
        for address in &ports.https {
            // Writing to a String cannot fail.
            let _ = writeln!(listeners, "[[listener]]\naddress = \"{address}\"\n");
        }
        Self {
            edge: edge.clone(),
            listeners,
            http: if edge.tcp { Vec::new() } else { ports.http.clone() },
            redirects: Vec::new(),
            certificate: certificate.keys.clone(),
            sites,
            others: Some(&[]),
            port: 0,
            local: certificate.local.clone().unwrap_or_default(),
        }
    }

    /// The port that the application was told.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The URLs of the sites at an edge that listens there. The default port is not written.
    pub(super) fn urls(&self, address: SocketAddr) -> impl Iterator<Item = String> {
        let scheme = if self.edge.tcp { "tls" } else { "https" };
        let port = match address.port() {
            port if port == HTTPS[0] && !self.edge.tcp => String::new(),
            port => format!(":{port}"),
        };
        self.sites.iter().map(move |site| format!("{scheme}://{}{port}/", site.name))
    }

    /// The name of the first site.
    pub(super) fn first_name(&self) -> &str {
        self.sites.first().map_or("", |site| &site.name)
    }

    /// Leads to this endpoint from now on. Returns whether that is another one.
    pub(super) fn lead_to(&mut self, endpoint: &Endpoint) -> bool {
        let upstream = endpoint.to_string();
        let differs = |site: &Site| site.upstream != upstream;
        let changes = self.sites.iter().any(differs);
        self.sites.iter_mut().for_each(|site| site.upstream.clone_from(&upstream));
        changes
    }

    /// Whether [`Plan::apply`] may begin to redirect plain requests.
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

    /// The same as text.
    fn text(&self) -> String {
        let mut text = self.listeners.clone();
        for address in &self.redirects {
            let kind = "kind = \"http_redirect\"";
            // Writing to a String cannot fail.
            let _ = write!(text, "[[listener]]\naddress = \"{address}\"\n{kind}\n\n");
        }
        for site in &self.sites {
            // Writing to a String cannot fail.
            let _ = write!(text, "{}", self.rule(site));
        }
        let log = match &self.edge.log {
            Some(file) => quoted(file),
            None => "\"off\"".into(),
        };
        text += &self.local;
        let _ = write!(text, "[limits]\ndrain_timeout = \"{DRAIN}\"\n\n[log]\naccess = {log}\n");
        text
    }

    fn rule(&self, site: &Site) -> String {
        let mut rule = format!("[[rule]]\nname = \"{}\"\n", site.name);
        if let Some(others) = self.others {
            let others = others.iter().copied().filter(|other| *other != site.name);
            let names = std::iter::once(&*site.name).chain(others);
            let names: Vec<String> = names.map(|name| format!("\"{name}\"")).collect();
            let _ = writeln!(rule, "sni = [{}]", names.join(", "));
        }
        let upstream = upstream(&site.upstream, self.edge.tcp);
        let _ = writeln!(rule, "action = \"terminate\"\n{}", self.certificate);
        let _ = writeln!(rule, "upstream = {}", quoted(Path::new(&upstream)));
        let hold = humantime::format_duration(self.edge.hold).to_string().replace(' ', "");
        let _ = writeln!(rule, "upstream_wait = \"{hold}\"");
        if let Some(ca) = &self.edge.client_ca {
            let _ = writeln!(rule, "client_ca = {}", quoted(ca));
            if !self.edge.tcp && !upstream.starts_with("tcp:") && !upstream.starts_with("unix:") {
                rule.push_str("client_cert_header = true\n");
            }
        }
        if self.edge.proxy_protocol {
            rule.push_str("proxy_protocol = \"v2\"\n");
        }
        rule + "\n"
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
            let mut plan = Plan::of_run(&run, 3000, &ports, &certificate);
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
