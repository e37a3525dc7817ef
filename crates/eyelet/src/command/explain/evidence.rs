//! The evidence flags of `eyelet explain`, and the questions that an edge would ask. It asks no
//! server: evidence that no flag gives is unknown.

use std::io::{self, Write};

use clap::Args;
use eyelet_policy::{CertificateFacts, Decision, EvidenceKind, Fact, Facts, RuleId, Verdict};

use eyelet_config::Config;

/// The flags for evidence.
#[derive(Args, Clone, Debug)]
pub struct EvidenceArgs {
    /// Evidence that confirms the name: dns, certificate
    #[arg(long, value_name = "EVIDENCE", value_delimiter = ',', value_parser = evidence)]
    pub true_by: Vec<EvidenceKind>,
    /// Evidence that contradicts the name: dns, certificate
    #[arg(long, value_name = "EVIDENCE", value_delimiter = ',', value_parser = evidence)]
    pub false_by: Vec<EvidenceKind>,
    /// The names in the destination's certificate, which has a valid chain
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub certificate_names: Vec<String>,
    /// The name of its issuer
    #[arg(long, value_name = "NAME")]
    pub certificate_issuer: Option<String>,
}

impl EvidenceArgs {
    /// Adds what a piece of evidence says.
    pub fn note(&mut self, evidence: EvidenceKind, speaks_for: bool) {
        if speaks_for { &mut self.true_by } else { &mut self.false_by }.push(evidence);
    }

    /// Returns the answer of DNS about the name.
    pub fn dns(&self) -> Option<bool> {
        self.says(EvidenceKind::Dns)
    }

    /// Returns the facts of the destination's certificate, if a flag says anything about it.
    pub fn certificate(&self, name: Option<&str>) -> Option<CertificateFacts> {
        let valid = self.says(EvidenceKind::Certificate);
        let (names, issuer) = (&self.certificate_names, &self.certificate_issuer);
        if valid.is_none() && names.is_empty() && issuer.is_none() {
            return None;
        }
        let valid = valid.unwrap_or_else(|| {
            name.is_some_and(|name| names.iter().any(|listed| listed.eq_ignore_ascii_case(name)))
        });
        let lower = |name: &String| name.to_ascii_lowercase().into();
        let names = match names.is_empty() && valid {
            true => name.into_iter().map(Box::from).collect(),
            false => names.iter().map(lower).collect(),
        };
        let issuer = issuer.iter().map(|name| name.as_str().into()).collect();
        Some(CertificateFacts { names, issuer, trusted: true, valid })
    }

    fn says(&self, evidence: EvidenceKind) -> Option<bool> {
        let is_true = self.true_by.contains(&evidence);
        (is_true || self.false_by.contains(&evidence)).then_some(is_true)
    }
}

/// Prints a line for each question that an edge would have asked.
pub fn print_asked(asked: &[Fact], facts: &Facts<'_>, out: &mut impl Write) -> io::Result<()> {
    let name = facts.hello.and_then(|hello| hello.host_name()).unwrap_or("no name");
    for fact in asked {
        let (question, flags) = match (fact, facts.destination) {
            (Fact::DnsEvidence, Some(to)) => {
                (format!("DNS whether {} is an address of {name}", to.ip()), "dns")
            }
            (Fact::DnsEvidence, None) => (format!("DNS for the addresses of {name}"), "dns"),
            (Fact::Certificate, Some(to)) => {
                (format!("{to} for its certificate for {name}, by a handshake"), "certificate")
            }
            (Fact::Certificate, None) => {
                (format!("the destination for its certificate for {name}"), "certificate")
            }
            _ => continue,
        };
        let known = match fact {
            Fact::DnsEvidence => facts.dns_agrees,
            _ => facts.certificate.map(|certificate| certificate.valid),
        };
        match known {
            Some(true) => writeln!(out, "asks:    {question}: it speaks for the name")?,
            Some(false) => writeln!(out, "asks:    {question}: it speaks against the name")?,
            None => writeln!(
                out,
                "asks:    {question}: not known here (--true-by {flags} or --false-by {flags}); \
                 that fails closed"
            )?,
        }
    }
    Ok(())
}

/// Prints a line for each shadow rule that would have decided, or that lacks a fact here.
pub fn print_shadows(config: &Config, facts: &Facts<'_>, out: &mut impl Write) -> io::Result<()> {
    for (id, comes_to) in config.policy.shadowed(facts) {
        let Some(rule) = config.rules.get(id.0 as usize) else { continue };
        let label = label(id, rule.name);
        let missing = match comes_to {
            Decision::Verdict(Verdict { refuse, .. }) => {
                let would = match rule.action {
                    _ if refuse.is_some() => "refuse",
                    action => action.name(),
                };
                writeln!(out, "shadow:  {label} would {would}")?;
                continue;
            }
            Decision::Need(Fact::DnsEvidence) => "what DNS says (--true-by dns or --false-by dns)",
            Decision::Need(Fact::Certificate) => {
                "the certificate (--true-by certificate or --false-by certificate)"
            }
            Decision::Need(Fact::Ja4) => "the fingerprint (--ja4)",
            Decision::Need(_) => "the destination (--destination)",
        };
        writeln!(out, "shadow:  {label} asks for {missing}; it waits for nothing")?;
    }
    Ok(())
}

fn evidence(text: &str) -> Result<EvidenceKind, &'static str> {
    match text {
        "dns" => Ok(EvidenceKind::Dns),
        "certificate" => Ok(EvidenceKind::Certificate),
        "connect" => Err("what CONNECT asks for is said by --connect"),
        _ => Err("expected dns or certificate"),
    }
}

/// A rule's number, and its name if it has one.
pub(super) fn label(id: RuleId, name: &str) -> String {
    let number = id.to_string();
    if number == name { number } else { format!("{number} \"{name}\"") }
}
