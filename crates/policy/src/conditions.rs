//! The matchers of a rule other than its names: whether they hold for given facts, and whether one
//! rule's matchers cover another's.

use eyelet_wire::hello::{HelloFacts, Transport, protocol_names};
use eyelet_wire::version;

use crate::connect::ConnectSet;
use crate::evidence::{EvidenceKind, EvidenceMatchers};
use crate::facts::{Fact, Facts};
use crate::from_files::FromFiles;
use crate::lists::Lists;
use crate::matcher::{Matcher, Outcome, SortedList, joined, listed, missing};
use crate::nets::{AddressSet, NetSet};
use crate::requester::{OF_REQUESTER, RequesterMatchers};

/// The matchers of a rule other than `sni`. One that is empty or `None` always holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Conditions {
    /// Connections of these listeners.
    pub listeners: SortedList<u16>,
    /// Clients with these addresses.
    pub client: NetSet,
    /// Connections that this protocol carries.
    pub transport: Option<Transport>,
    /// CONNECT requests for these targets.
    pub connect: ConnectSet,
    /// Clients that are these users, or processes.
    pub requester: RequesterMatchers,
    /// Connections to these addresses.
    pub destination: AddressSet,
    /// The clients, targets and destinations in lists from files.
    pub from_files: FromFiles,
    /// Only hellos with a malformed name: none with a good name, and none without a name. No rule
    /// without this matcher takes such a hello.
    pub sni_malformed: bool,
    /// Clients whose highest version is at most this one, as its code (0x0303 is TLS 1.2).
    pub tls_version_max: Option<u16>,
    /// Hellos with the ECH extension, or those without it.
    pub ech: Option<bool>,
    /// Clients that offer one of these protocols.
    pub alpn: SortedList<Box<[u8]>>,
    /// Clients with one of these fingerprints.
    pub ja4: SortedList<Box<str>>,
    /// Only hellos that offer TLS compression.
    pub tls_compression: bool,
    /// Matchers on evidence for the name and the destination.
    pub evidence: EvidenceMatchers,
}

/// The extent to which one rule's matchers cover another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cover {
    Whole,
    /// All except this one, which is `Client` or `Destination` and may cover a part.
    AllBut(Matcher),
    No,
}

impl Conditions {
    /// True if a matcher needs the destination's certificate.
    pub fn asks_certificate(&self) -> bool {
        self.evidence.asks_certificate()
    }

    /// True if a matcher needs the addresses of the name.
    pub fn asks_dns(&self) -> bool {
        self.evidence.asks_name(EvidenceKind::Dns)
    }

    /// True if a matcher needs the target of a CONNECT, and no other evidence would do.
    pub fn asks_connect(&self) -> bool {
        let sni_verified = self.evidence.sni_verified.as_ref();
        sni_verified.is_some_and(|(_, evidence)| **evidence == [EvidenceKind::Connect])
    }

    /// True if these hold for certain destinations only, or only if one is confirmed to be the
    /// name's.
    pub fn bind_destination(&self) -> bool {
        let is_verified = self.evidence.sni_verified.as_ref().is_some_and(|(wanted, _)| *wanted);
        let is_valid = self.evidence.certificate_valid == Some(true)
            || !self.evidence.certificate_names.is_empty();
        is_verified || is_valid || self.asks(Matcher::Destination) || self.names_targets()
    }

    /// True if `connect` names a target, and not only ports of any host.
    pub(crate) fn names_targets(&self) -> bool {
        self.connect.has_hosts() || self.from_files.asks(Matcher::Connect)
    }

    /// True if it asks for names that are not verified.
    pub(crate) fn asks_untrue_name(&self) -> bool {
        self.evidence.sni_verified.as_ref().is_some_and(|(wanted, _)| !wanted)
    }

    /// True if a matcher needs a fact that depends on the client's destination.
    pub fn asks_of_destination(&self) -> bool {
        self.asks_certificate() || self.asks_dns()
    }

    /// True if a matcher is on the hello.
    pub fn ask_hello(&self) -> bool {
        let of_hello = self.sni_malformed || self.tls_version_max.is_some() || self.ech.is_some();
        let of_hello = of_hello || !self.alpn.is_empty() || !self.ja4.is_empty();
        of_hello || self.tls_compression || self.evidence != EvidenceMatchers::default()
    }

    pub(crate) fn asks(&self, matcher: Matcher) -> bool {
        match matcher {
            Matcher::Listener => !self.listeners.is_empty(),
            Matcher::Client => !self.client.is_empty() || self.from_files.asks(matcher),
            Matcher::Transport => self.transport.is_some(),
            Matcher::Connect => !self.connect.is_empty() || self.from_files.asks(matcher),
            of_requester if OF_REQUESTER.contains(&of_requester) => {
                self.requester.asks(of_requester)
            }
            Matcher::Destination => !self.destination.is_empty() || self.from_files.asks(matcher),
            Matcher::Sni => false,
            Matcher::SniMalformed => self.sni_malformed,
            Matcher::TlsVersionMax => self.tls_version_max.is_some(),
            Matcher::Ech => self.ech.is_some(),
            Matcher::Alpn => !self.alpn.is_empty(),
            Matcher::Ja4 => !self.ja4.is_empty(),
            Matcher::TlsCompression => self.tls_compression,
            // A rule has them beside these.
            Matcher::Method | Matcher::Path => false,
            of_evidence => self.evidence.asks(of_evidence),
        }
    }

    /// A copy without the matchers on the hello.
    pub(crate) fn without_hello(&self) -> Self {
        Self {
            listeners: self.listeners.clone(),
            client: self.client.clone(),
            transport: self.transport,
            connect: self.connect.clone(),
            requester: self.requester.clone(),
            destination: self.destination.clone(),
            from_files: self.from_files.clone(),
            ..Self::default()
        }
    }

    /// Checks the matchers that need no hello. `refuse`: an unknown fact counts as a match.
    pub(crate) fn check_before_hello(
        &self,
        facts: &Facts<'_>,
        lists: &Lists,
        refuse: bool,
    ) -> Outcome {
        if !self.listeners.is_empty() && !self.listeners.contains(&facts.listener) {
            return Outcome::Fails(Matcher::Listener);
        }
        if self.transport.is_some_and(|transport| transport != facts.transport) {
            return Outcome::Fails(Matcher::Transport);
        }
        let files = &self.from_files;
        if self.asks(Matcher::Client)
            && !(self.client.contains(facts.client) || files.has_client(facts.client, lists))
        {
            return Outcome::Fails(Matcher::Client);
        }
        // A connection without CONNECT has no target, and no rule for targets takes it.
        if self.asks(Matcher::Connect)
            && !facts.connect.is_some_and(|target| {
                self.connect.contains(target) || files.has_target(target, lists)
            })
        {
            return Outcome::Fails(Matcher::Connect);
        }
        match self.requester.check(facts, refuse) {
            Outcome::Holds if self.asks(Matcher::Destination) => {}
            decided => return decided,
        }
        match facts.destination {
            Some(to) if self.destination.contains(to) => Outcome::Holds,
            Some(to) if files.has_destination(to, lists) => Outcome::Holds,
            Some(_) => Outcome::Fails(Matcher::Destination),
            None => missing(facts, Fact::Destination, Matcher::Destination, refuse),
        }
    }

    /// Checks the matchers on the hello. The caller checks its name, and `sni_malformed`.
    pub(crate) fn check_hello(
        &self,
        hello: &HelloFacts<'_>,
        facts: &Facts<'_>,
        refuse: bool,
    ) -> Outcome {
        if self.tls_version_max.is_some_and(|max| hello.version_max > max) {
            return Outcome::Fails(Matcher::TlsVersionMax);
        }
        if self.ech.is_some_and(|ech| hello.ech != ech) {
            return Outcome::Fails(Matcher::Ech);
        }
        let mut offered = protocol_names(hello.alpn);
        if !self.alpn.is_empty() && !offered.any(|name| self.lists_alpn(name.as_bytes())) {
            return Outcome::Fails(Matcher::Alpn);
        }
        if self.tls_compression && !hello.compression {
            return Outcome::Fails(Matcher::TlsCompression);
        }
        let by_ja4 = match facts.ja4 {
            _ if self.ja4.is_empty() => Outcome::Holds,
            Some(ja4) if self.ja4.iter().any(|listed| **listed == *ja4) => Outcome::Holds,
            Some(_) => Outcome::Fails(Matcher::Ja4),
            None => missing(facts, Fact::Ja4, Matcher::Ja4, refuse),
        };
        match by_ja4 {
            Outcome::Holds => self.evidence.check(hello, facts, refuse),
            other => other,
        }
    }

    fn lists_alpn(&self, protocol: &[u8]) -> bool {
        self.alpn.iter().any(|listed| **listed == *protocol)
    }

    /// True if these hold whenever those of `other` do: each matcher is absent, or covers the
    /// other's.
    pub(crate) fn cover(&self, other: &Self) -> Cover {
        let (files, others) = (&self.from_files, &other.from_files);
        let client = !self.asks(Matcher::Client)
            || (other.asks(Matcher::Client)
                && files.covers(Matcher::Client, others, |_| false)
                && self.client.covers(&other.client));
        // Fast path for thousands of rules with one client each.
        let has_file = files.asks(Matcher::Client) || others.asks(Matcher::Client);
        if !client && !has_file && !other.client.is_empty() && !self.client.meets(&other.client) {
            return Cover::No;
        }
        let connect = !self.asks(Matcher::Connect)
            || (other.asks(Matcher::Connect)
                && files.covers(Matcher::Connect, others, |port| self.connect.has_any(port))
                && self.connect.covers(&other.connect));
        let rest = self.listeners.covers(&other.listeners)
            && (self.transport.is_none() || self.transport == other.transport)
            && connect
            && self.requester.covers(&other.requester)
            && self.sni_malformed == other.sni_malformed
            && self
                .tls_version_max
                .is_none_or(|max| other.tls_version_max.is_some_and(|v| v <= max))
            && (self.ech.is_none() || self.ech == other.ech)
            && self.alpn.covers(&other.alpn)
            && self.ja4.covers(&other.ja4)
            && (!self.tls_compression || other.tls_compression)
            && self.evidence.cover(&other.evidence);
        if !rest {
            return Cover::No;
        }
        let destination = !self.asks(Matcher::Destination)
            || (other.asks(Matcher::Destination)
                && files.covers(Matcher::Destination, others, |_| false)
                && self.destination.covers(&other.destination));
        match (client, destination) {
            (true, true) => Cover::Whole,
            (false, true) => Cover::AllBut(Matcher::Client),
            (true, false) => Cover::AllBut(Matcher::Destination),
            (false, false) => Cover::No,
        }
    }

    /// All clients that these can match. `None`: any, as in a file that may change.
    pub(crate) fn clients_at_most(&self) -> Option<&NetSet> {
        let has_file = self.from_files.asks(Matcher::Client);
        (!self.client.is_empty() && !has_file).then_some(&self.client)
    }

    /// Clients that these match whatever is in a file. `None`: all, or none.
    pub(crate) fn clients_at_least(&self) -> Option<&NetSet> {
        (!self.client.is_empty()).then_some(&self.client)
    }

    /// All destinations that these can match. Empty: any, also an unknown one.
    pub(crate) fn destinations_at_most(&self) -> AddressSet {
        match self.from_files.asks(Matcher::Destination) {
            true => AddressSet::default(),
            false => self.destination.clone(),
        }
    }

    /// Destinations that these match whatever is in a file. Empty: all, or none.
    pub(crate) const fn destinations_at_least(&self) -> &AddressSet {
        &self.destination
    }

    /// The values of `matcher`, as in the configuration.
    pub(crate) fn text(&self, matcher: Matcher, lists: &Lists) -> String {
        let files = || self.from_files.texts(matcher, lists);
        match matcher {
            Matcher::Listener => listed(self.listeners.iter()),
            Matcher::Client => joined(listed(self.client.nets()), files()),
            Matcher::Transport => format!("\"{}\"", self.transport.unwrap_or_default()),
            Matcher::Connect => joined(listed(self.connect.patterns()), files()),
            of_requester if OF_REQUESTER.contains(&of_requester) => {
                self.requester.text(of_requester)
            }
            Matcher::Destination => joined(listed(self.destination.patterns()), files()),
            Matcher::Sni => String::new(),
            Matcher::SniMalformed => self.sni_malformed.to_string(),
            Matcher::TlsVersionMax => version_text(self.tls_version_max.unwrap_or(0)),
            Matcher::Ech => self.ech.is_some_and(|ech| ech).to_string(),
            Matcher::Alpn => listed(self.alpn.iter().map(|p| p.escape_ascii().to_string())),
            Matcher::Ja4 => listed(self.ja4.iter()),
            Matcher::TlsCompression => "\"offered\"".to_owned(),
            Matcher::Method | Matcher::Path => String::new(),
            of_evidence => self.evidence.text(of_evidence),
        }
    }
}

fn version_text(version: u16) -> String {
    let number = version::number(version).map(|number| format!("\"{number}\""));
    number.unwrap_or_else(|| format!("{version:#06x}"))
}
