//! Short forms of rules and connections for tests, and the loop that the program runs: ask, fetch
//! the fact that is needed, ask again.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::{IpAddr, SocketAddr};

use eyelet_policy::{
    AddressPattern, CertificateFacts, Conditions, Decision, Fact, Facts, FromFiles, ListId,
    Matcher, Needs, Rule, Rules, Verdict,
};
use eyelet_wire::connect::{Target, TargetHost};
use eyelet_wire::hello::{HelloFacts, HelloName, HostName, SniFault, Transport};

/// A rule that takes everything.
pub fn rule() -> Rule {
    Rule::default()
}

/// A refuse rule that takes everything.
pub fn refuse() -> Rule {
    Rule { refuse: true, ..Rule::default() }
}

/// Builder words for a rule, named as in the configuration.
pub trait Words: Sized {
    fn sni(self, patterns: &[&str]) -> Self;
    fn client(self, nets: &[&str]) -> Self;
    fn destination(self, patterns: &[(&str, Option<u16>)]) -> Self;
    fn alpn(self, protocols: &[&str]) -> Self;
    fn ja4(self, fingerprint: &str) -> Self;
    fn needs(self, needs: Needs) -> Self;
    fn with(self, change: impl FnOnce(&mut Conditions)) -> Self;
}

impl Words for Rule {
    fn sni(mut self, patterns: &[&str]) -> Self {
        self.sni = patterns.iter().map(|pattern| pattern.parse().unwrap()).collect();
        self
    }

    fn client(self, nets: &[&str]) -> Self {
        self.with(|all| all.client = nets.iter().map(|net| net.parse().unwrap()).collect())
    }

    fn destination(self, patterns: &[(&str, Option<u16>)]) -> Self {
        let pattern =
            |(net, port): &(&str, _)| AddressPattern { net: net.parse().unwrap(), port: *port };
        let patterns = patterns.iter().map(pattern);
        self.with(|all| all.destination = patterns.collect())
    }

    fn alpn(self, protocols: &[&str]) -> Self {
        self.with(|all| all.alpn = protocols.iter().map(|name| name.as_bytes().into()).collect())
    }

    fn ja4(self, fingerprint: &str) -> Self {
        self.with(|all| all.ja4 = [fingerprint.into()].into_iter().collect())
    }

    fn needs(mut self, needs: Needs) -> Self {
        self.needs = needs;
        self
    }

    fn with(mut self, change: impl FnOnce(&mut Conditions)) -> Self {
        change(&mut self.conditions);
        self
    }
}

/// Lists from files for one matcher.
pub fn from_files(
    matcher: Matcher,
    lists: impl IntoIterator<Item = (ListId, Option<u16>)>,
) -> FromFiles {
    lists.into_iter().map(|(list, port)| (matcher, list, port)).collect()
}

/// A connection; `Given::default()` is a TLS 1.3 client without a name.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    pub listener: u16,
    pub client: &'a str,
    pub transport: Transport,
    /// `None`: unknown.
    pub destination: Option<&'a str>,
    pub sni: Option<&'a [u8]>,
    pub alpn: &'a [&'a [u8]],
    pub version_max: u16,
    pub ech: bool,
    pub compression: bool,
    /// The name in a CONNECT request.
    pub connect: Option<&'a str>,
    /// Evidence for the name. `None`: unknown.
    pub dns: Option<bool>,
    pub certificate: Option<&'a CertificateFacts>,
    /// `None`: unknown.
    pub ja4: Option<&'a str>,
}

impl Default for Given<'_> {
    fn default() -> Self {
        Self {
            listener: 0,
            client: "192.0.2.1",
            transport: Transport::Tcp,
            destination: None,
            sni: None,
            alpn: &[],
            version_max: 0x0304,
            ech: false,
            compression: false,
            connect: None,
            dns: None,
            certificate: None,
            ja4: None,
        }
    }
}

/// The texts that a [`HelloFacts`] borrows.
pub struct Spelled {
    name: Option<Result<HostName, SniFault>>,
    alpn: Vec<u8>,
}

impl<'a> Given<'a> {
    pub fn named(name: &'a str) -> Self {
        Self { sni: Some(name.as_bytes()), ..Self::default() }
    }

    /// Its name as the hello reader spells it, and its ALPN list.
    pub fn spelled(&self) -> Spelled {
        let alpn = self.alpn.iter().flat_map(|name| [&[name.len() as u8], *name].concat());
        Spelled { name: self.sni.map(HostName::new), alpn: alpn.collect() }
    }

    pub fn hello<'s>(&self, spelled: &'s Spelled) -> HelloFacts<'s> {
        let name = match &spelled.name {
            None => HelloName::Absent,
            Some(Ok(name)) => HelloName::Name(name),
            Some(Err(fault)) => HelloName::Malformed(*fault),
        };
        let Self { version_max, ech, compression, .. } = *self;
        HelloFacts { name, alpn: &spelled.alpn, version_max, ech, compression }
    }

    /// The verdict, and the facts that were asked for.
    pub fn ask(&self, rules: &Rules) -> (Verdict, Vec<Fact>) {
        self.ask_with(rules, |_| ())
    }

    /// Asks as `ask`, and calls `show` with the facts that decided it, those for shadow rules
    /// included.
    pub fn ask_with(&self, rules: &Rules, show: impl Fn(&Facts<'_>)) -> (Verdict, Vec<Fact>) {
        let spelled = self.spelled();
        let client: IpAddr = self.client.parse().unwrap();
        let host = |name: &str| TargetHost::Name(HostName::new(name.as_bytes()).unwrap());
        let target = self.connect.map(|name| Target { host: host(name), port: 443 });
        let mut facts = Facts::new(self.listener, client);
        (facts.connect, facts.transport) = (target.as_ref(), self.transport);
        let (mut asked, mut in_shadow) = (Vec::new(), Vec::new());
        let (mut decided, mut search) = (None, rules.search());
        loop {
            let decision = search.decide(&facts);
            assert_eq!(decision, rules.decide(&facts), "from the start");
            let fact = match decision {
                Decision::Verdict(verdict) => {
                    let verdict = *decided.get_or_insert(verdict);
                    assert_eq!(rules.decide(&facts), Decision::Verdict(verdict), "by shadows");
                    let next = rules.shadowed(&facts).find_map(|(_, comes_to)| match comes_to {
                        Decision::Need(fact) => Some(fact),
                        Decision::Verdict(_) => None,
                    });
                    let Some(fact) = next else {
                        show(&facts);
                        return (verdict, asked);
                    };
                    assert!(!in_shadow.contains(&fact), "{fact:?} is asked for twice");
                    in_shadow.push(fact);
                    fact
                }
                Decision::Need(fact) => {
                    assert!(decided.is_none() && !asked.contains(&fact), "{fact:?}, once more");
                    asked.push(fact);
                    fact
                }
            };
            let had = match fact {
                Fact::Destination => {
                    facts.destination = self.destination.map(|d| d.parse::<SocketAddr>().unwrap());
                    facts.destination.is_some()
                }
                Fact::Hello => facts.hello.replace(self.hello(&spelled)).is_none(),
                Fact::Ja4 => {
                    facts.ja4 = self.ja4;
                    self.ja4.is_some()
                }
                Fact::DnsEvidence => {
                    facts.dns_agrees = self.dns;
                    self.dns.is_some()
                }
                Fact::Certificate => {
                    facts.certificate = self.certificate;
                    self.certificate.is_some()
                }
                other => panic!("unknown fact {other:?}"),
            };
            if !had {
                facts.unknown = facts.unknown.with(fact);
            }
        }
    }
}
