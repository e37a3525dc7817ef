//! `eyelet explain`: prints which rule decides a connection, and why no earlier rule does. It has
//! the rules decide as an edge does, by facts from flags. Only `--ask` sends a packet.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use clap::Parser;
use eyelet_edge::snapshot::check;
use eyelet_policy::{
    CertificateFacts, Decision, Fact, FactSource, Facts, Matcher, Miss, Refusal, RequesterFacts,
    Verdict,
};
use eyelet_process::reload::ReloadOutcome;
use eyelet_wire::connect::{self, Target};
use eyelet_wire::hello::{HelloFacts, HelloName, HostName, SniFault, Transport, protocol_names};
use eyelet_wire::local_peer::LocalPeer;
use eyelet_wire::version::{self, TLS12};

use eyelet_config::{
    self, Action, Config, Depth, Diagnostic, ListenAddress, Listener, ListenerKind, Originate,
    RefusalAlert, SpliceUpstream,
};

pub use args::ExplainArgs;
use given::LookedUp;
use guard::{DialQuestion, GuardedDial};
use profile::ProfileQuestion;

/// Prints the verdict and the reasons. Exits with 0, or with 2 if the file, a list or a flag is
/// wrong: also where the edge answers by what it read before.
/// `words` are the flags as they were typed.
pub fn explain(args: &ExplainArgs, words: &[String], out: &mut impl Write) -> ExitCode {
    if let Some(name) = &args.profile {
        return exit(explain_profile(args, name, out));
    }
    let explained = match eyelet_config::load(&args.file, Depth::Files) {
        Ok(loaded) => answer(args, &loaded.config, out),
        Err(mistakes) => print_mistakes(&mistakes, out)
            .and_then(|()| by_edge::explain(args, words, &mistakes, out))
            .map(|()| false),
    };
    exit(explained)
}

/// Explains what happens in a sandbox. Returns `false` if the profile or a flag is wrong.
fn explain_profile(args: &ExplainArgs, name: &str, out: &mut impl Write) -> io::Result<bool> {
    match profile::ask(args, name, out)? {
        Ok(ProfileQuestion::ByRules(asked)) => answer(&asked.0, &asked.1, out),
        Ok(ProfileQuestion::Answered) => Ok(true),
        Err(mistakes) => writeln!(out, "{mistakes}").map(|()| false),
    }
}

/// The exit status. A closed output is not a mistake in the file.
fn exit(explained: io::Result<bool>) -> ExitCode {
    if explained.unwrap_or(true) { ExitCode::SUCCESS } else { ExitCode::from(check::MISTAKES) }
}

/// The flags of a question, as the edge reads them.
#[derive(Parser)]
struct Question {
    #[command(flatten)]
    args: ExplainArgs,
}

/// Explains within an edge, by the configuration that it serves now. It waits for nothing.
pub fn explain_served(words: &[String], config: &Config) -> ReloadOutcome {
    let program = ["explain"].into_iter();
    let args = match Question::try_parse_from(program.chain(words.iter().map(String::as_str))) {
        Ok(question) => question.args,
        Err(error) => return ReloadOutcome::failed(error),
    };
    if args.profile.is_some() {
        return ReloadOutcome::failed("a profile is explained without an edge");
    }
    if args.ask || args.quic.is_some() || args.log_line.as_deref() == Some("-") {
        return ReloadOutcome::failed(
            "--ask, --quic and --log-line - are for lists without mistakes",
        );
    }
    let mut text = Vec::new();
    let is_answered = answer(&args, config, &mut text).unwrap_or(false);
    let text = String::from_utf8_lossy(&text).into_owned();
    ReloadOutcome { code: if is_answered { 0 } else { check::MISTAKES }, text }
}

/// Returns `false` if a flag is wrong.
fn answer(args: &ExplainArgs, config: &Config, out: &mut impl Write) -> io::Result<bool> {
    let args = &mut args.clone();
    if let Err(why) = given::complete(args, out)? {
        writeln!(out, "--log-line: {why}")?;
        return Ok(false);
    }
    if let Err(why) = quic::take(args, config, out)? {
        writeln!(out, "--quic: {why}")?;
        return Ok(false);
    }
    let Some(listener) = find_listener(args, config) else {
        let wanted = args.listener.as_deref().unwrap_or("");
        let known = config.listeners.iter().map(Listener::called);
        let known = known.collect::<Vec<_>>().join(", ");
        writeln!(out, "no listener is called \"{wanted}\"; expected one of {known}")?;
        return Ok(false);
    };
    let name = match args.sni.as_deref() {
        // As of an extension whose name is one NUL byte.
        _ if args.sni_malformed => Some(Err(SniFault::Nul)),
        Some("") | None => None,
        Some(name) => Some(HostName::new(name.as_bytes())),
    };
    let Some(alpn) = given::alpn_list(&args.alpn) else {
        writeln!(out, "--alpn: a protocol has 1 to 255 bytes")?;
        return Ok(false);
    };
    let hello = HelloFacts {
        name: match &name {
            None => HelloName::Absent,
            Some(Ok(name)) => HelloName::Name(name),
            Some(Err(fault)) => HelloName::Malformed(*fault),
        },
        alpn: &alpn,
        version_max: args.tls_version_max,
        ech: args.ech,
        compression: args.tls_compression,
    };
    let name = hello.host_name();
    let (asked_now, mut looked_up) = match args.ask {
        true => given::gather(args, config, name, out)?,
        false => (None, LookedUp::default()),
    };
    let args = &*args;
    let shown = asked_now.or_else(|| args.evidence.certificate(name));
    let facts = known(args, listener);
    let shown = shown.as_ref();
    let mut given =
        Given { args, config, hello, shown, facts, asked: Vec::new(), in_shadow: false };
    // Nothing is waited for: a fact that no flag gives is unknown.
    let Decision::Verdict(verdict) = config.policy.decide_from(&mut given) else {
        return Ok(false);
    };
    let dial = DialQuestion { args, config, facts: given.facts };
    let guarded = guard::check(&dial, verdict, &mut looked_up, out)?;
    print(&given, (verdict, guarded.as_ref()), out)?;
    if let Verdict { rule: Some(rule), refuse: None } = verdict {
        requests::print(args, (config, rule), &mut given, out)?;
    }
    given.in_shadow = true;
    config.policy.fetch_for_shadows(&mut given);
    let in_shadow = given.facts;
    evidence::print_shadows(config, &in_shadow, out)?;
    // An early refusal reads the names without a hello. The rules before it are explained by them.
    let hello = in_shadow.hello.or(config.policy.refuses_target(&in_shadow).map(|_| hello));
    print_misses(&given, &Facts { hello, ..in_shadow }, verdict, out)?;
    Ok(true)
}

/// The facts that are known with the client's request.
fn known(args: &ExplainArgs, listener: u16) -> Facts<'_> {
    let peer = args.peer_uid.map(|uid| LocalPeer { uid, pid: 0 }.address().ip());
    let destination = match args.connect {
        Some(Target { host: connect::TargetHost::Ip(ip), port }) => Some(SocketAddr::new(ip, port)),
        _ => None,
    };
    Facts {
        connect: args.connect.as_ref(),
        requester: RequesterFacts {
            user: args.proxy_user.as_deref(),
            client_cert: args.client_cert.as_deref(),
            cgroup: args.peer_cgroup.as_deref(),
        },
        transport: args.transport,
        destination,
        ..Facts::new(listener, peer.or(args.client).unwrap_or(ASSUMED_CLIENT))
    }
}

/// The facts that flags give, as a source of facts.
struct Given<'a> {
    args: &'a ExplainArgs,
    config: &'a Config,
    hello: HelloFacts<'a>,
    shown: Option<&'a CertificateFacts>,
    /// Those that were asked for.
    facts: Facts<'a>,
    asked: Vec<Fact>,
    /// Shadow rules ask. A running edge waits for no fact for them, so a missing one stays so.
    in_shadow: bool,
}

impl FactSource for Given<'_> {
    fn facts(&self) -> Facts<'_> {
        self.facts
    }

    fn fetch(&mut self, fact: Fact) -> bool {
        let Self { args, config, facts, .. } = self;
        if !matches!(fact, Fact::Hello | Fact::Ja4) {
            facts.destination = destination(args, config, facts);
        }
        let had = match fact {
            Fact::Destination => facts.destination.is_some(),
            Fact::Hello => {
                let listener = config.listeners.get(usize::from(facts.listener));
                // A client without TLS sends none.
                let is_sent = listener.is_none_or(|of| of.kind != ListenerKind::Plain);
                facts.hello = is_sent.then_some(self.hello);
                is_sent
            }
            Fact::Ja4 => {
                facts.ja4 = args.ja4.as_deref();
                args.ja4.is_some()
            }
            Fact::DnsEvidence => {
                facts.dns_agrees = args.evidence.dns();
                facts.dns_agrees.is_some()
            }
            Fact::Certificate => {
                facts.certificate = self.shown;
                self.shown.is_some()
            }
            _ => false,
        };
        if !self.in_shadow {
            self.asked.push(fact);
            if !had {
                facts.unknown = facts.unknown.with(fact);
            }
        }
        true
    }
}

/// Returns the destination that the client meant, if it is not known already.
fn destination(args: &ExplainArgs, config: &Config, facts: &Facts<'_>) -> Option<SocketAddr> {
    // A connection of a direct listener was meant for the address that accepted it.
    let listener = config.listeners.get(usize::from(facts.listener));
    let direct = listener.filter(|listener| listener.kind == ListenerKind::Direct);
    let address = direct.map(|listener| listener.address.inet());
    let single = address.filter(|address| !address.ip().is_unspecified());
    facts.destination.or(args.destination).or(single)
}

fn print(
    given: &Given<'_>,
    (verdict, guarded): (Verdict, Option<&GuardedDial>),
    out: &mut impl Write,
) -> io::Result<()> {
    let (args, config) = (given.args, given.config);
    // The action may need the destination where no rule does.
    let destination = given.facts.destination.or(args.destination);
    let facts = &Facts { destination, ..given.facts };
    match verdict.rule.and_then(|id| config.rules.get(id.0 as usize).map(|rule| (id, rule))) {
        Some((id, rule)) => {
            writeln!(out, "rule:    {}", evidence::label(id, rule.name))?;
            let is_refused = verdict.refuse.is_some() || guarded.is_some();
            writeln!(out, "action:  {}", action(rule.action, facts, is_refused))?;
            if verdict.refuse.is_none() {
                upstreams::print(rule.action, out)?;
                guard::print(rule.action, facts, config, out)?;
            }
            if let Action::Splice(splice) = rule.action
                && splice.plain_http
            {
                writeln!(out, "plain:   requests for http:// URLs pass, too")?;
            }
            for (matcher, by) in config.policy.listed_by(id, facts) {
                let file = by.file.map_or_else(String::new, |file| format!(" in {file}"));
                writeln!(out, "listed:  {matcher} by \"{}\"{file}", by.entry)?;
            }
        }
        None => {
            writeln!(out, "rule:    none matches")?;
            writeln!(out, "action:  refuse")?;
        }
    }
    let rule = verdict.rule.and_then(|id| config.rules.get(id.0 as usize));
    if let Some(why) = verdict.refuse {
        let of_client = match why {
            Refusal::NoRule if config.policy.has_name_for_others(facts) => " from this client",
            _ => "",
        };
        writeln!(out, "reason:  {why}{of_client}")?;
        print_answer(given, (rule.map(|rule| rule.action), why), out)?;
    } else if let Some(guarded) = guarded {
        print_guarded(guarded, facts, out)?;
    } else if let Some(name) = facts.hello.and_then(|hello| hello.host_name()) {
        print_doubts(name, rule.map(|rule| rule.action), facts, out)?;
    }
    let peeked =
        if facts.hello.is_some() { "the hello was read" } else { "the hello was not read" };
    writeln!(out, "asked:   {peeked}{}", unknown_facts(facts))?;
    evidence::print_asked(&given.asked, facts, out)
}

/// Prints what a refused client gets.
fn print_answer(
    given: &Given<'_>,
    (action, why): (Option<&Action>, Refusal),
    out: &mut impl Write,
) -> io::Result<()> {
    let facts = &given.facts;
    if facts.connect.is_some() && facts.hello.is_none() {
        let status = if why == Refusal::NoUser { 407 } else { 403 };
        return writeln!(out, "answer:  {status}, before the hello");
    }
    let own = match action {
        Some(Action::Refuse(refuse)) => refuse.alert,
        _ => RefusalAlert::ByReason,
    };
    let alert = match own {
        RefusalAlert::ByReason => why.alert(given.hello.version_max <= TLS12),
        RefusalAlert::Always(alert) => alert,
        RefusalAlert::Silence => return writeln!(out, "answer:  none"),
    };
    writeln!(out, "alert:   {} ({})", alert.name(), alert.code())?;
    if facts.transport == Transport::Quic {
        let code = eyelet_quic::crypto_error(alert);
        writeln!(out, "answer:  CONNECTION_CLOSE with code {code:#x}")?;
    }
    Ok(())
}

/// Prints why the name of a connection that passes may be another one.
fn print_doubts(
    name: &str,
    action: Option<&Action>,
    facts: &Facts<'_>,
    out: &mut impl Write,
) -> io::Result<()> {
    if facts.hello.is_some_and(|hello| hello.ech) {
        writeln!(out, "ech:     {name} is the outer name: another one may be hidden")?;
    }
    if let Some(Action::Splice(splice)) = action
        && splice.upstream == SpliceUpstream::Destination
        && facts.dns_agrees != Some(true)
        && !facts.certificate.is_some_and(|shown| shown.valid)
    {
        writeln!(out, "name:    {name} is the client's word: nothing here confirms it")?;
    }
    Ok(())
}

/// Prints why the edge does not dial for a client, and what the client gets.
fn print_guarded(
    GuardedDial { reason, is_early }: &GuardedDial,
    facts: &Facts<'_>,
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out, "reason:  {reason}")?;
    match reason.alert().filter(|_| facts.hello.is_some()) {
        _ if *is_early => writeln!(out, "answer:  403, before the hello"),
        Some(alert) => writeln!(out, "alert:   {} ({})", alert.name(), alert.code()),
        None => writeln!(out, "answer:  none"),
    }
}

fn print_misses(
    given: &Given<'_>,
    facts: &Facts<'_>,
    verdict: Verdict,
    out: &mut impl Write,
) -> io::Result<()> {
    let (args, config) = (given.args, given.config);
    let earlier = verdict.rule.map_or(config.rules.len(), |id| id.0 as usize);
    if earlier == 0 {
        return writeln!(out, "No rule comes before it.");
    }
    writeln!(out, "Rules before it that did not match:")?;
    let skipped = earlier.saturating_sub(MISSES_SHOWN);
    for miss in config.policy.misses(facts).take(MISSES_SHOWN) {
        let name = config.rules.get(miss.rule.0 as usize).map_or("", |rule| rule.name);
        let asked = asked_text(miss, config);
        let had = match miss.matcher {
            Matcher::Client if args.client.is_none() && args.peer_uid.is_none() => {
                format!("{ASSUMED_CLIENT}, which is assumed (--client)")
            }
            matcher => fact_text(matcher, facts, config),
        };
        let label = evidence::label(miss.rule, name);
        writeln!(out, "  {label}: {} = {asked} does not hold for {had}", miss.matcher)?;
    }
    if skipped > 0 {
        writeln!(out, "  and {skipped} more")?;
    }
    Ok(())
}

fn action(action: &Action, facts: &Facts<'_>, is_refused: bool) -> String {
    if !is_refused && action.hold().is_some() {
        return format!("hold, and once it is allowed {}", served(action, facts));
    }
    match action {
        Action::Refuse(_) => "refuse".to_owned(),
        other if is_refused => format!("refuse, instead of {}", other.name()),
        other => served(other, facts),
    }
}

/// Describes the action that is taken in the end.
fn served(action: &Action, facts: &Facts<'_>) -> String {
    match action {
        Action::Refuse(_) => "refuse".to_owned(),
        Action::Splice(splice) => match &splice.upstream {
            SpliceUpstream::HostPort(_) => {
                format!("splice to {}", upstreams::one_of(splice.others.len(), &splice.upstream))
            }
            SpliceUpstream::Sni { port } => {
                let name = facts.hello.and_then(|hello| hello.host_name());
                format!("splice to {}:{port}", name.unwrap_or("{sni}"))
            }
            SpliceUpstream::Destination => match (facts.destination, facts.connect) {
                (Some(destination), _) => format!("splice to the destination, {destination}"),
                (None, Some(target)) => format!("splice to the destination, {target}"),
                (None, None) => "splice to the destination".to_owned(),
            },
        },
        Action::Originate(Originate { requests, .. }) => {
            let one = upstreams::one_of(requests.others.len(), &requests.upstream);
            format!("originate TLS to {one}")
        }
        Action::Terminate(terminate) => {
            let one = upstreams::one_of(terminate.others.len(), &terminate.upstream);
            format!("terminate for {one}")
        }
    }
}

/// Describes the demand of the rule that did not match on this fact.
fn asked_text(miss: Miss, config: &Config) -> String {
    match miss.matcher {
        // The rules know listeners by number only.
        Matcher::Listener => {
            let listeners = config.policy.listeners_of(miss.rule);
            let listeners = listeners.iter().filter_map(|at| config.listeners.get(*at as usize));
            listeners.map(Listener::called).collect::<Vec<_>>().join(", ")
        }
        // A rule without this matcher takes no hello whose name cannot be read.
        Matcher::SniMalformed => {
            let asks = !config.policy.matcher_text(miss.rule, miss.matcher).is_empty();
            asks.to_string()
        }
        matcher => config.policy.matcher_text(miss.rule, matcher),
    }
}

/// The connection's fact for `matcher`.
fn fact_text(matcher: Matcher, facts: &Facts<'_>, config: &Config) -> String {
    let hello = facts.hello;
    match matcher {
        Matcher::Listener => config.listeners[usize::from(facts.listener)].called(),
        Matcher::Client => facts.client.to_string(),
        Matcher::Transport => format!("\"{}\"", facts.transport),
        Matcher::Connect => facts
            .connect
            .map_or_else(|| "a connection without CONNECT".to_owned(), |target| target.to_string()),
        Matcher::ClientCert => facts.requester.client_cert.map_or_else(
            || "a client that shows no certificate".to_owned(),
            |name| format!("\"{name}\""),
        ),
        Matcher::ProxyUser => facts
            .requester
            .user
            .map_or_else(|| "a client that names no user".to_owned(), |user| format!("\"{user}\"")),
        Matcher::PeerUid => LocalPeer::of(facts.client)
            .map_or_else(|| "a client with an address".to_owned(), |peer| peer.uid.to_string()),
        Matcher::PeerCgroup => facts
            .requester
            .cgroup
            .map_or_else(|| "an unknown cgroup".to_owned(), |cgroup| format!("\"{cgroup}\"")),
        Matcher::Destination => {
            facts.destination.map_or_else(|| "an unknown destination".to_owned(), |d| d.to_string())
        }
        Matcher::Sni | Matcher::SniMalformed => match hello.map(|hello| hello.name) {
            Some(HelloName::Name(name)) => format!("\"{name}\""),
            Some(HelloName::Malformed(fault)) => format!("a malformed name ({fault})"),
            Some(HelloName::Absent) | None => "a hello without a name".to_owned(),
        },
        Matcher::TlsVersionMax => {
            let number = version::number(hello.map_or(0, |hello| hello.version_max));
            format!("TLS {}", number.unwrap_or("1.3"))
        }
        Matcher::Ech => match hello.is_some_and(|hello| hello.ech) {
            true => "a hello with ECH".to_owned(),
            false => "a hello without ECH".to_owned(),
        },
        Matcher::Alpn => {
            let offered = hello.into_iter().flat_map(|hello| protocol_names(hello.alpn));
            let offered: Vec<String> = offered.map(|name| format!("\"{name}\"")).collect();
            if offered.is_empty() { "a hello without ALPN".to_owned() } else { offered.join(", ") }
        }
        Matcher::Ja4 => facts
            .ja4
            .map_or_else(|| "an unknown fingerprint".to_owned(), |ja4| format!("\"{ja4}\"")),
        Matcher::TlsCompression => "a hello without TLS compression".to_owned(),
        Matcher::SniVerified => match hello.and_then(|hello| hello.host_name()) {
            Some(name) => format!("\"{name}\""),
            None => "a hello without a name".to_owned(),
        },
        Matcher::CertificateValid | Matcher::CertificateNames | Matcher::CertificateIssuer => {
            certificate_text(matcher, facts)
        }
        other => other.to_string(),
    }
}

fn certificate_text(matcher: Matcher, facts: &Facts<'_>) -> String {
    let Some(certificate) = facts.certificate else {
        return "an unknown certificate".to_owned();
    };
    let listed = |list: &[Box<str>]| {
        let quoted: Vec<String> = list.iter().map(|text| format!("\"{text}\"")).collect();
        if quoted.is_empty() { "none".to_owned() } else { quoted.join(", ") }
    };
    match matcher {
        Matcher::CertificateNames => listed(&certificate.names),
        Matcher::CertificateIssuer => listed(&certificate.issuer),
        _ if certificate.valid => "a certificate that is valid for the name".to_owned(),
        _ => "a certificate that is not valid for the name".to_owned(),
    }
}

/// Facts that were asked for and that no flag gave. They fail closed, which may surprise.
fn unknown_facts(facts: &Facts<'_>) -> &'static str {
    let unknown = |fact| facts.unknown.contains(fact);
    match (unknown(Fact::Destination), unknown(Fact::Ja4)) {
        (false, false) => "",
        (true, false) => "; the destination is unknown (--destination): that fails closed",
        (false, true) => "; the fingerprint is unknown (--ja4): that fails closed",
        (true, true) => "; destination and fingerprint are unknown (--destination, --ja4)",
    }
}

fn find_listener(args: &ExplainArgs, config: &Config) -> Option<u16> {
    let Some(wanted) = &args.listener else {
        let asked = args.connect.is_some();
        let is_local = args.peer_uid.is_some() || args.peer_cgroup.is_some();
        let fits = |listener: &Listener| match listener.kind {
            _ if args.transport == Transport::Quic && !listener.quic => false,
            _ if is_local && !listener.address.is_unix() => false,
            _ if args.proxy_user.is_some() && listener.users.is_none() => false,
            _ if args.client_cert.is_some() && listener.proxy_protocol_from.is_empty() => false,
            ListenerKind::HttpRedirect | ListenerKind::Plain => false,
            kind => (kind == ListenerKind::Connect) == asked,
        };
        let first = config.listeners.iter().position(fits).unwrap_or(0);
        return u16::try_from(first).ok();
    };
    let address: Option<ListenAddress> = wanted.parse().ok();
    let mut listeners = config.listeners.iter();
    let index = listeners.position(|listener| {
        listener.name.as_ref() == Some(wanted) || Some(&listener.address) == address.as_ref()
    });
    index.and_then(|index| u16::try_from(index).ok())
}

fn print_mistakes(mistakes: &[Diagnostic], out: &mut impl Write) -> io::Result<()> {
    mistakes.iter().try_for_each(|mistake| writeln!(out, "{mistake}"))
}

/// The client of a question that names none.
const ASSUMED_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Most rules before the verdict that are explained; a list may have 100,000.
const MISSES_SHOWN: usize = 20;

mod args;
mod by_edge;
mod evidence;
mod given;
mod guard;
mod pcap;
mod profile;
mod quic;
mod requests;
#[cfg(test)]
mod tests;
mod upstreams;
