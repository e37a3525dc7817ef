//! `eyelet explain`: prints which rule decides a connection, and why no earlier rule does. It
//! writes a hello, reads it and asks `decide`, as an edge does. Only `--ask` sends a packet.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use crate::snapshot::check;
use eyelet_policy::sketch::HelloSketch;
use eyelet_policy::{
    CertificateFacts, Decision, Fact, FactSet, Facts, Matcher, Miss, Refusal, Verdict,
};
use eyelet_wire::connect::{self, Target};
use eyelet_wire::hello::{Hello, HelloReader, Peek, Sni};
use eyelet_wire::version::{self, TLS12};

use eyelet_config::{
    self, Action, Config, Depth, Diagnostic, ListenAddress, Listener, ListenerKind, Originate,
    SpliceUpstream,
};

pub use args::ExplainArgs;

/// Prints the verdict and the reasons. Exits with 0, or with 2 if the file or a flag is wrong.
pub fn explain(args: &ExplainArgs, out: &mut impl Write) -> ExitCode {
    let explained = match eyelet_config::load(&args.file, Depth::Files) {
        Ok(loaded) => answer(args, &loaded.config, out),
        Err(mistakes) => print_mistakes(&mistakes, out).map(|()| false),
    };
    // A closed output is not a mistake in the file.
    if explained.unwrap_or(true) { ExitCode::SUCCESS } else { ExitCode::from(check::MISTAKES) }
}

/// Returns `false` if a flag is wrong.
fn answer(args: &ExplainArgs, config: &Config, out: &mut impl Write) -> io::Result<bool> {
    let args = &mut args.clone();
    if let Err(why) = given::complete(args, out)? {
        writeln!(out, "--log-line: {why}")?;
        return Ok(false);
    }
    let Some(listener) = find_listener(args, config) else {
        let wanted = args.listener.as_deref().unwrap_or("");
        let known = config.listeners.iter().map(|listener| listener_text(Some(listener)));
        let known = known.collect::<Vec<_>>().join(", ");
        writeln!(out, "no listener is called \"{wanted}\"; expected one of {known}")?;
        return Ok(false);
    };
    let alpn: Vec<&[u8]> = args.alpn.iter().map(String::as_bytes).collect();
    let sni = match args.sni.as_deref() {
        _ if args.sni_malformed => Some(&b"\0"[..]),
        Some("") | None => None,
        Some(name) => Some(name.as_bytes()),
    };
    let version_max = args.tls_version_max;
    let (ech, compression) = (args.ech, args.tls_compression);
    let raw = HelloSketch { sni, alpn: &alpn, version_max, ech, compression }.to_records();
    let mut reader = HelloReader::new(config.limits.hello_bytes_max);
    let hello = match reader.feed(&raw) {
        Peek::Hello(hello) => hello,
        Peek::Malformed(why) => {
            writeln!(out, "these flags make no hello: {why}")?;
            return Ok(false);
        }
        Peek::NeedMore { .. } | Peek::NotTls(_) => {
            writeln!(out, "these flags make no hello that `hello_bytes_max` would let in")?;
            return Ok(false);
        }
    };
    let name = match hello.sni() {
        Sni::Name(name) => Some(&**name),
        _ => None,
    };
    let asked_now = if args.ask { given::gather(args, config, name, out)? } else { None };
    let args = &*args;
    let shown = asked_now.or_else(|| args.evidence.certificate(name));
    let mut facts = Facts::new(listener, args.client);
    facts.connect = args.connect.as_ref();
    if let Some(Target { host: connect::TargetHost::Ip(ip), port }) = args.connect {
        facts.destination = Some(SocketAddr::new(ip, port));
    }
    let (verdict, asked) = decide(args, config, &hello, shown.as_ref(), &mut facts);
    let in_shadow = decide_shadows(args, config, &hello, shown.as_ref(), facts);
    // The action may need it where no rule does.
    facts.destination = facts.destination.or(args.destination);
    print(config, &facts, &asked, &hello, verdict, out)?;
    evidence::print_shadows(config, &in_shadow, out)?;
    // An early refusal reads the names without a hello. The rules before it are explained by them.
    let hello = in_shadow.hello.or(config.policy.refuses_target(&in_shadow).map(|_| &hello));
    print_misses(config, &Facts { hello, ..in_shadow }, verdict, out)?;
    Ok(true)
}

/// The loop of an edge: ask the rules, fetch the fact that they need, ask again.
fn decide<'a>(
    args: &'a ExplainArgs,
    config: &Config,
    hello: &'a Hello<'a>,
    shown: Option<&'a CertificateFacts>,
    facts: &mut Facts<'a>,
) -> (Verdict, Vec<Fact>) {
    let mut asked = Vec::new();
    let mut search = config.policy.search();
    loop {
        let fact = match search.decide(facts) {
            Decision::Verdict(verdict) => return (verdict, asked),
            Decision::Need(fact) => fact,
        };
        if fact == Fact::Hello
            && let Some(verdict) = config.policy.refuses_target(facts)
        {
            return (verdict, asked);
        }
        asked.push(fact);
        if !given(fact, args, config, hello, shown, facts) {
            facts.unknown = facts.unknown.with(fact);
        }
    }
}

/// Adds the fact if a flag gives it.
fn given<'a>(
    fact: Fact,
    args: &'a ExplainArgs,
    config: &Config,
    hello: &'a Hello<'a>,
    shown: Option<&'a CertificateFacts>,
    facts: &mut Facts<'a>,
) -> bool {
    match fact {
        Fact::Destination => {
            facts.destination = destination(args, config, facts);
            facts.destination.is_some()
        }
        Fact::Hello => {
            let listener = config.listeners.get(usize::from(facts.listener));
            // A client without TLS sends none.
            let is_sent = listener.is_none_or(|listener| listener.kind != ListenerKind::Plain);
            facts.hello = is_sent.then_some(hello);
            is_sent
        }
        Fact::Ja4 => {
            facts.ja4 = args.ja4.as_deref();
            args.ja4.is_some()
        }
        Fact::DnsEvidence => {
            facts.destination = destination(args, config, facts);
            facts.dns_agrees = args.evidence.dns();
            facts.dns_agrees.is_some()
        }
        Fact::Certificate => {
            facts.destination = destination(args, config, facts);
            facts.certificate = shown;
            shown.is_some()
        }
        _ => false,
    }
}

/// Adds the verdicts of shadow rules. A running edge waits for no fact for them, and they decide
/// nothing.
fn decide_shadows<'a>(
    args: &'a ExplainArgs,
    config: &Config,
    hello: &'a Hello<'a>,
    shown: Option<&'a CertificateFacts>,
    mut facts: Facts<'a>,
) -> Facts<'a> {
    let mut missing = FactSet::EMPTY;
    loop {
        let wish = config.policy.shadowed(&facts).find_map(|(_, comes_to)| match comes_to {
            Decision::Need(fact) if !missing.contains(fact) => Some(fact),
            _ => None,
        });
        let Some(fact) = wish else { return facts };
        if !given(fact, args, config, hello, shown, &mut facts) {
            missing = missing.with(fact);
        }
    }
}

/// Where the client meant to go, if it is not known already.
fn destination(args: &ExplainArgs, config: &Config, facts: &Facts<'_>) -> Option<SocketAddr> {
    // A connection of a direct listener was meant for the address that accepted it.
    let listener = config.listeners.get(usize::from(facts.listener));
    let direct = listener.filter(|listener| listener.kind == ListenerKind::Direct);
    let address = direct.map(|listener| listener.address.inet());
    let single = address.filter(|address| !address.ip().is_unspecified());
    facts.destination.or(args.destination).or(single)
}

fn print(
    config: &Config,
    facts: &Facts<'_>,
    asked: &[Fact],
    hello: &Hello<'_>,
    verdict: Verdict,
    out: &mut impl Write,
) -> io::Result<()> {
    match verdict.rule.and_then(|id| config.rules.get(id.0 as usize).map(|rule| (id, rule))) {
        Some((id, rule)) => {
            writeln!(out, "rule:    {}", evidence::label(id, rule.name))?;
            writeln!(out, "action:  {}", action(rule.action, facts, verdict.refuse))?;
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
        let own = match rule.map(|rule| rule.action) {
            Some(Action::Refuse(refuse)) => refuse.alert,
            _ => None,
        };
        let alert = own.unwrap_or_else(|| why.alert(hello.version_max() <= TLS12));
        writeln!(out, "reason:  {why}")?;
        match facts.connect {
            Some(_) if facts.hello.is_none() => writeln!(out, "answer:  403, before the hello")?,
            _ => writeln!(out, "alert:   {} ({})", alert.name(), alert.code())?,
        }
    } else if let (Some(Action::Splice(splice)), Some(Sni::Name(name))) =
        (rule.map(|rule| rule.action), facts.hello.map(Hello::sni))
        && splice.upstream == SpliceUpstream::Destination
        && facts.dns_agrees != Some(true)
        && !facts.certificate.is_some_and(|shown| shown.valid)
    {
        writeln!(out, "name:    {name} is the client's word: nothing here confirms it")?;
    }
    let peeked =
        if facts.hello.is_some() { "the hello was read" } else { "the hello was not read" };
    writeln!(out, "asked:   {peeked}{}", unknown_facts(facts))?;
    evidence::print_asked(asked, facts, out)
}

fn print_misses(
    config: &Config,
    facts: &Facts<'_>,
    verdict: Verdict,
    out: &mut impl Write,
) -> io::Result<()> {
    let earlier = verdict.rule.map_or(config.rules.len(), |id| id.0 as usize);
    if earlier == 0 {
        return writeln!(out, "No rule comes before it.");
    }
    writeln!(out, "Rules before it that did not match:")?;
    let skipped = earlier.saturating_sub(MISSES_SHOWN);
    for miss in config.policy.misses(facts).take(MISSES_SHOWN) {
        let name = config.rules.get(miss.rule.0 as usize).map_or("", |rule| rule.name);
        let asked = asked_text(miss, config);
        let had = fact_text(miss.matcher, facts, config);
        let label = evidence::label(miss.rule, name);
        writeln!(out, "  {label}: {} = {asked} does not hold for {had}", miss.matcher)?;
    }
    if skipped > 0 {
        writeln!(out, "  and {skipped} more")?;
    }
    Ok(())
}

fn action(action: &Action, facts: &Facts<'_>, refused: Option<Refusal>) -> String {
    match action {
        Action::Refuse(_) => "refuse".to_owned(),
        Action::Originate(_) if refused.is_some() => "refuse, instead of originate".to_owned(),
        Action::Splice(_) if refused.is_some() => "refuse, instead of splice".to_owned(),
        Action::Terminate(_) if refused.is_some() => "refuse, instead of terminate".to_owned(),
        Action::Splice(splice) => match &splice.upstream {
            SpliceUpstream::HostPort(_) => {
                format!("splice to {}", upstreams::one_of(splice.others.len(), &splice.upstream))
            }
            SpliceUpstream::Sni { port } => match facts.hello.map(Hello::sni) {
                Some(Sni::Name(name)) => format!("splice to {name}:{port}"),
                _ => format!("splice to {{sni}}:{port}"),
            },
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

/// What the rule that did not match asks of this fact.
fn asked_text(miss: Miss, config: &Config) -> String {
    match miss.matcher {
        // The rules know listeners by number only.
        Matcher::Listener => {
            let listeners = config.policy.listeners_of(miss.rule);
            let names =
                listeners.iter().map(|at| listener_text(config.listeners.get(*at as usize)));
            names.collect::<Vec<_>>().join(", ")
        }
        // A rule without this matcher takes no hello whose name cannot be read.
        Matcher::SniMalformed => {
            let asks = !config.policy.matcher_text(miss.rule, miss.matcher).is_empty();
            asks.to_string()
        }
        matcher => config.policy.matcher_text(miss.rule, matcher),
    }
}

fn listener_text(listener: Option<&Listener>) -> String {
    listener.map_or_else(String::new, |listener| match &listener.name {
        Some(name) => format!("\"{name}\""),
        None => format!("\"{}\"", listener.address),
    })
}

/// The connection's fact for `matcher`.
fn fact_text(matcher: Matcher, facts: &Facts<'_>, config: &Config) -> String {
    let hello = facts.hello;
    match matcher {
        Matcher::Listener => listener_text(config.listeners.get(usize::from(facts.listener))),
        Matcher::Client => facts.client.to_string(),
        Matcher::Connect => facts
            .connect
            .map_or_else(|| "a connection without CONNECT".to_owned(), |target| target.to_string()),
        Matcher::Destination => {
            facts.destination.map_or_else(|| "an unknown destination".to_owned(), |d| d.to_string())
        }
        Matcher::Sni | Matcher::SniMalformed => match hello.map(Hello::sni) {
            Some(Sni::Name(name)) => format!("\"{name}\""),
            Some(Sni::Malformed(fault)) => format!("a malformed name ({fault})"),
            Some(Sni::Absent) | None => "a hello without a name".to_owned(),
        },
        Matcher::TlsVersionMax => {
            let number = version::number(hello.map_or(0, Hello::version_max));
            format!("TLS {}", number.unwrap_or("1.3"))
        }
        Matcher::Ech => match hello.is_some_and(Hello::has_ech) {
            true => "a hello with ECH".to_owned(),
            false => "a hello without ECH".to_owned(),
        },
        Matcher::Alpn => {
            let offered = hello.into_iter().flat_map(|hello| hello.alpn());
            let offered: Vec<String> = offered.map(|name| format!("\"{name}\"")).collect();
            if offered.is_empty() { "a hello without ALPN".to_owned() } else { offered.join(", ") }
        }
        Matcher::Ja4 => facts
            .ja4
            .map_or_else(|| "an unknown fingerprint".to_owned(), |ja4| format!("\"{ja4}\"")),
        Matcher::TlsCompression => "a hello without TLS compression".to_owned(),
        Matcher::SniVerified => match hello.map(Hello::sni) {
            Some(Sni::Name(name)) => format!("\"{name}\""),
            _ => "a hello without a name".to_owned(),
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
        let fits = |listener: &Listener| match listener.kind {
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

/// Most rules before the verdict that are explained; a list may have 100,000.
const MISSES_SHOWN: usize = 20;

mod args;
mod evidence;
mod given;
mod guard;
#[cfg(test)]
mod tests;
mod upstreams;
