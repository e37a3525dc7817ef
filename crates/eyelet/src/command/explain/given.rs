//! The facts that nobody types: those of an access line, and evidence that is gathered now.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use eyelet_config::{Config, tls_version_code};
use eyelet_policy::{CertificateFacts, EvidenceKind, Refusal};
use eyelet_resolve::ask;
use eyelet_telemetry::log::read::{LINE_BYTES_MAX, LoggedLine};
use eyelet_wire::connect::{Target, TargetHost};
use eyelet_wire::hello::Transport;

use super::args::{ExplainArgs, target};

/// Takes the facts of the access line, if one is given, and the name of the CONNECT, if no other
/// is. The inner error is a line that cannot be read.
pub(super) fn complete(
    args: &mut ExplainArgs,
    out: &mut impl Write,
) -> io::Result<Result<(), String>> {
    match take_log_line(args) {
        Ok(Some(line)) => {
            let why = line.reason.as_deref().unwrap_or("decided");
            let by = line.rule.as_ref().map_or_else(String::new, |rule| format!(" by {rule}"));
            writeln!(out, "logged:  {} {}{by}: {}", line.time, line.outcome, why)?;
            match (&*line.outcome, line.rule.is_some()) {
                _ if Refusal::is_said_by(why) => {}
                ("refused" | "failed" | "left", false) => {
                    writeln!(
                        out,
                        "         before any rule; the rest is what the rules would say"
                    )?;
                }
                ("refused", true) => {
                    writeln!(out, "         after its rule; the rest is what the rules say")?;
                }
                _ => {}
            }
        }
        Ok(None) => {}
        Err(why) => return Ok(Err(why)),
    }
    if let Some(Target { host: TargetHost::Name(host), .. }) = args.connect
        && !args.no_sni
        && !args.sni_malformed
    {
        args.sni.get_or_insert_with(|| host.as_str().to_owned());
    }
    Ok(Ok(()))
}

/// The protocols as an ALPN list. `None`: one of them is none.
pub(super) fn alpn_list(protocols: &[String]) -> Option<Vec<u8>> {
    let mut list = Vec::new();
    for name in protocols {
        list.push(u8::try_from(name.len()).ok().filter(|length| *length > 0)?);
        list.extend_from_slice(name.as_bytes());
    }
    Some(list)
}

/// Takes the facts of the access line, if one is given.
fn take_log_line(args: &mut ExplainArgs) -> Result<Option<LoggedLine>, String> {
    let Some(line) = &args.log_line else { return Ok(None) };
    let mut input = String::new();
    if line == "-" {
        let mut stdin = io::stdin().lock().take(LINE_BYTES_MAX as u64 + 1);
        stdin.read_to_string(&mut input).map_err(|error| error.to_string())?;
    } else {
        input.clone_from(line);
    }
    if input.trim().is_empty() {
        let from = if line == "-" { "on standard input" } else { "in this argument" };
        return Err(format!("there is no line {from}"));
    }
    let line = LoggedLine::read(&input).map_err(|fault| match Path::new(line).is_file() {
        true => format!(
            "{line} is a file: `tail -n 1 {line} | eyelet explain {} --log-line -` asks about its \
             newest line",
            args.file.display()
        ),
        // The name of a file that is not there, or of a pipe.
        false if line != "-" && !line.contains(['{', ' ']) => format!(
            "expected a line of an access log in JSON, or \"-\" to read one from standard input; \
             {line} is neither"
        ),
        false => fault.to_string(),
    })?;
    args.listener = Some(line.listener.clone());
    args.client = line.client.map(|client| client.ip()).or(args.client);
    if line.transport.as_deref() == Some("quic") {
        args.transport = Transport::Quic;
    }
    args.destination = line.destination;
    let identity = line.identity.clone().unwrap_or_default();
    // A connection that came from an older program has lost it, and a flag may say it.
    args.proxy_user = identity.proxy_user.or(args.proxy_user.take());
    args.client_cert = identity.client_cert.or(args.client_cert.take());
    args.peer_cgroup = identity.peer_cgroup.or(args.peer_cgroup.take());
    args.connect = line.connect.as_deref().map(target).transpose()?;
    // Without a hello the name is the CONNECT's.
    args.no_sni = line.sni.is_none() && line.tls_version.is_some();
    args.sni.clone_from(&line.sni);
    args.alpn = line.alpn.clone().unwrap_or_default();
    if let Some(offered) = &line.tls_version {
        args.tls_version_max = tls_version_code(offered)?;
    }
    args.tls_compression = matches!(line.tls_compression.as_deref(), Some("offered" | "chosen"));
    args.ja4.clone_from(&line.ja4);
    let evidence = line.evidence.clone().unwrap_or_default();
    // What a flag says of the name counts more: it is newer.
    if let Some(agrees) = evidence.dns_agrees
        && args.evidence.dns().is_none()
    {
        args.evidence.note(EvidenceKind::Dns, agrees);
    }
    if let Some(certificate) = evidence.certificate
        && args.evidence.certificate(None).is_none()
    {
        args.evidence.note(EvidenceKind::Certificate, certificate.valid);
        args.evidence.certificate_names = certificate.names;
        args.evidence.certificate_issuer = Some(certificate.issuer);
    }
    Ok(Some(line))
}

/// The names that were looked up now, with their addresses.
#[derive(Default)]
pub(super) struct LookedUp(BTreeMap<String, Vec<IpAddr>>);

impl LookedUp {
    /// True if it was looked up.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The addresses of a name. It is looked up once; none if it has none.
    pub(super) fn addresses(
        &mut self,
        config: &Config,
        name: &str,
        out: &mut impl Write,
    ) -> io::Result<&[IpAddr]> {
        if !self.has(name) {
            let found = ask::now(ask::addresses(config, name))?;
            match &found {
                Ok(found) => {
                    let found: Vec<String> = found.iter().map(IpAddr::to_string).collect();
                    writeln!(out, "found:   {name} has {}", found.join(", "))?;
                }
                Err(why) => writeln!(out, "found:   no address of {name}: {why}")?,
            }
            self.0.insert(name.to_owned(), found.unwrap_or_default());
        }
        Ok(self.0.get(name).map_or(&[], Vec::as_slice))
    }
}

/// Gathers the evidence that rules may ask for and that no flag gives. Returns the certificate, and
/// the addresses that were found.
pub(super) fn gather(
    args: &mut ExplainArgs,
    config: &Config,
    name: Option<&str>,
    out: &mut impl Write,
) -> io::Result<(Option<CertificateFacts>, LookedUp)> {
    let mut looked_up = LookedUp::default();
    if args.destination.is_none()
        && let Some(Target { host: TargetHost::Name(host), port }) = args.connect
    {
        let found = looked_up.addresses(config, &host, out)?;
        args.destination = found.first().map(|ip| SocketAddr::new(*ip, port));
    }
    Ok((certificate(args, config, name, out)?, looked_up))
}

/// Asks DNS about the destination, and the destination for its certificate.
fn certificate(
    args: &mut ExplainArgs,
    config: &Config,
    name: Option<&str>,
    out: &mut impl Write,
) -> io::Result<Option<CertificateFacts>> {
    let of_connect = args.connect.and_then(|target| match target.host {
        TargetHost::Ip(ip) => Some(SocketAddr::new(ip, target.port)),
        TargetHost::Name(_) => None,
    });
    let Some(to) = args.destination.or(of_connect) else { return Ok(None) };
    if let Some(name) = name
        && config.policy.asks_dns()
        && args.evidence.dns().is_none()
    {
        match ask::now(ask::dns(config, name, to.ip()))? {
            Ok(agrees) => args.evidence.note(EvidenceKind::Dns, agrees),
            Err(why) => writeln!(out, "found:   nothing by DNS: {why}")?,
        }
    }
    if !config.policy.asks_certificate() || args.evidence.certificate(name).is_some() {
        return Ok(None);
    }
    match ask::now(ask::certificate(config, to, name, args.connect.is_some()))? {
        Ok(shown) => {
            let fault = shown.logged.fault.as_deref().unwrap_or("valid for the name");
            writeln!(out, "found:   {to} shows a certificate: {fault}")?;
            Ok(Some(shown.certificate))
        }
        Err(why) => {
            writeln!(out, "found:   no certificate at {to}: {why}")?;
            Ok(None)
        }
    }
}
