//! The ordered list of rules, its index, and the decision.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::iter::Peekable;

use eyelet_wire::hello::{HelloFacts, HelloName, HostName};

use crate::conditions::Conditions;
use crate::facts::{Fact, Facts};
use crate::lists::{FileList, Held, ListId, Lists, Newest};
use crate::matcher::{Matcher, Outcome};
use crate::name_table::{distinct, index_u32};
use crate::names::{Found, NameIndex, NamePattern};
use crate::refusal::Refusal;
use crate::requester::OF_REQUESTER;
use crate::requests::RequestMatchers;

/// A rule as written. An empty `sni` and `Conditions::default()` match everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// True if its action is to refuse.
    pub refuse: bool,
    /// True if it only logs its verdict: the other rules decide as if it did not exist.
    pub shadow: bool,
    /// The needs of its action in the hello.
    pub needs: Needs,
    /// The names that it takes. If `sni_lists` is empty too: any name, and none.
    pub sni: Vec<NamePattern>,
    /// Lists of further names that it takes; ascending.
    pub sni_lists: Vec<ListId>,
    /// The other matchers on the connection.
    pub conditions: Conditions,
    /// The matchers on each request of the connection.
    pub requests: RequestMatchers,
    /// True if its action reads requests, so that each is decided.
    pub serves_requests: bool,
}

/// The needs of a rule's action in the hello, whatever its matchers ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Needs {
    /// Nothing: bytes are passed on unread, or the connection is refused.
    #[default]
    Nothing,
    /// A hello: TLS ends here, or the server's choice is inspected.
    Hello,
    /// A hello with a name, because the name is dialled. Without one the verdict is a refusal.
    Name,
}

/// The position of a rule in its list, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u32);

/// The decision of the rules about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The final decision.
    Verdict(Verdict),
    /// Fetch this, or put it into `Facts::unknown`, and ask again.
    Need(Fact),
}

/// The fate of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The rule that decided; `None`: no rule matched.
    pub rule: Option<RuleId>,
    /// The reason of its refusal. `None`: the rule's action is taken.
    pub refuse: Option<Refusal>,
}

/// Rules, indexed by name and by what can be decided before the hello is read.
#[derive(Debug)]
pub struct Rules {
    pub(crate) names: NameIndex,
    /// The newest lists from files.
    lists: Newest,
    /// For each list that rules have in `sni` those rules, ascending.
    by_list: Box<[(ListId, Box<[u32]>)]>,
    /// For each rule an index into `entries`.
    rules: Box<[u32]>,
    /// The distinct rules without their names.
    entries: Box<[Entry]>,
    /// The distinct sets of matchers: 100,000 rules that list only names share one.
    conditions: Box<[Conditions]>,
    /// The distinct matchers on requests. The first are none.
    pub(crate) requests: Box<[RequestMatchers]>,
    /// Refuse rules that ask for requests, ascending, without shadow rules. They are passed over
    /// until there is a request.
    pub(crate) passed: Box<[u32]>,
    /// The rules that decide whether the hello is read. Of rules with equal matchers apart from
    /// those on the hello, only the first is here. The list ends with the first rule that has no
    /// other matcher. It contains no shadow rules, and none of `passed`.
    before_hello: Box<[u32]>,
    /// True if the first of these asks for the hello whatever other facts are known.
    hello_first: bool,
    /// Rules without `sni`, without `sni_malformed`.
    unnamed: Box<[u32]>,
    /// Rules with `sni_malformed` and without `sni`.
    malformed: Box<[u32]>,
    /// Rules with `sni` whose `connect` names targets, ascending.
    pub(crate) naming_targets: Box<[u32]>,
    /// Rules in shadow, ascending.
    shadows: Box<[u32]>,
    asks_hello: bool,
    asks_alpn: bool,
    asks_certificate: bool,
    asks_dns: bool,
    asks_names: bool,
    pub(crate) asks_users: bool,
    asks_cgroups: bool,
    /// True if any rule asks for the names in clients' certificates.
    pub asks_client_certs: bool,
    /// True if any rule asks for the addresses of clients.
    pub asks_clients: bool,
    pub(crate) asks_requests: bool,
    fingerprint: u64,
}

/// A decision that is under way. It keeps the rules that it has found for the name in the hello, so
/// it goes on from the rule that asked for a fact. It holds the lists from files: do not keep it
/// while you wait.
pub struct RuleSearch<'a> {
    rules: &'a Rules,
    lists: Held,
    /// The rules that may take the hello, if it is known.
    candidates: Option<Peekable<Found<'a>>>,
}

/// A rule without its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    /// Index into `Rules::conditions`.
    pub(crate) conditions: u32,
    /// Index into `Rules::requests`; 0: it takes any request.
    pub(crate) requests: u32,
    pub(crate) serves_requests: bool,
    pub(crate) refuse: bool,
    pub(crate) shadow: bool,
    pub(crate) named: bool,
    /// True if it has any matcher besides its names.
    has_conditions: bool,
    /// True if a matcher or its action needs the hello.
    pub(crate) asks_hello: bool,
    needs_name: bool,
}

impl Rule {
    /// True if it has the matcher `sni`.
    pub const fn is_named(&self) -> bool {
        !self.sni.is_empty() || !self.sni_lists.is_empty()
    }
}

impl Rules {
    /// Indexes a list of rules that name no list from a file.
    pub fn new(rules: &[Rule]) -> Self {
        Self::with_lists(rules, Lists::default())
    }

    /// Indexes a list of rules that name these lists. Rules beyond [`RULES_MAX`] are ignored.
    pub fn with_lists(rules: &[Rule], lists: Lists) -> Self {
        let rules = rules.get(..RULES_MAX).unwrap_or(rules);
        let (conditions, ids) = distinct(rules.iter().map(|rule| &rule.conditions));
        let none = RequestMatchers::default();
        let asked = std::iter::once(&none).chain(rules.iter().map(|rule| &rule.requests));
        let (requests, request_ids) = distinct(asked);
        let ids = ids.into_iter().zip(request_ids.into_iter().skip(1));
        let written = rules.iter().zip(ids).map(|(rule, ids)| Entry::new(rule, ids));
        let (entries, rule_entries) = distinct(written);
        let conditions: Box<[Conditions]> = conditions.into_iter().cloned().collect();
        let numbered = || rules.iter().enumerate().map(|(id, rule)| (index_u32(id), rule));
        let unnamed_with = |malformed: bool| {
            let chosen = numbered().filter(move |(_, rule)| {
                !rule.is_named() && rule.conditions.asks(Matcher::SniMalformed) == malformed
            });
            chosen.map(|(id, _)| id).collect()
        };
        let deciding = || entries.iter().filter(|entry| !entry.shadow);
        let is_deciding = |rule: &Rule| !rule.shadow && (!rule.refuse || rule.requests.is_empty());
        // A rule with `sni_malformed` cannot match a name that is listed.
        let named = numbered().filter(|(_, rule)| !rule.conditions.asks(Matcher::SniMalformed));
        Self {
            names: NameIndex::new(named.map(|(id, rule)| (id, &*rule.sni))),
            before_hello: before_hello(&rule_entries, &entries, &conditions),
            hello_first: numbered().find(|(_, rule)| is_deciding(rule)).is_some_and(
                |(_, first)| {
                    let is_any = first.conditions.without_hello() == Conditions::default();
                    is_any && Entry::new(first, (0, 0)).asks_hello
                },
            ),
            passed: numbered()
                .filter(|(_, rule)| !rule.shadow && !is_deciding(rule))
                .map(|(id, _)| id)
                .collect(),
            asks_requests: requests.len() > 1,
            unnamed: unnamed_with(false),
            malformed: unnamed_with(true),
            naming_targets: numbered()
                .filter(|(_, rule)| rule.is_named() && rule.conditions.names_targets())
                .map(|(id, _)| id)
                .collect(),
            shadows: numbered().filter(|(_, rule)| rule.shadow).map(|(id, _)| id).collect(),
            asks_hello: deciding().any(|entry| entry.asks_hello),
            asks_alpn: conditions.iter().any(|conditions| conditions.asks(Matcher::Alpn)),
            asks_certificate: conditions.iter().any(Conditions::asks_certificate),
            asks_dns: conditions.iter().any(Conditions::asks_dns),
            asks_users: conditions.iter().any(|conditions| conditions.asks(Matcher::ProxyUser)),
            asks_cgroups: conditions.iter().any(|conditions| conditions.asks(Matcher::PeerCgroup)),
            asks_client_certs: conditions.iter().any(|asked| asked.asks(Matcher::ClientCert)),
            asks_clients: conditions.iter().any(|asked| asked.asks(Matcher::Client)),
            asks_names: deciding().any(|entry| entry.named || entry.needs_name),
            fingerprint: fingerprint(rules),
            by_list: by_list(rules),
            lists: Newest::new(lists),
            rules: rule_entries.into(),
            entries: entries.into(),
            requests: requests.into_iter().cloned().collect(),
            conditions,
        }
    }

    /// The first rule whose matchers all hold, or the fact that is needed to say which it is.
    ///
    /// Rules are checked in order, and their matchers from cheap to expensive. So a fact is asked
    /// for only when all cheaper matchers of its rule hold and no earlier rule has matched. A fact
    /// that is given before it is asked for changes nothing. Shadow rules ask for nothing here;
    /// [`Rules::shadowed`] returns their verdicts.
    pub fn decide(&self, facts: &Facts<'_>) -> Decision {
        self.search().decide(facts)
    }

    /// Begins a decision that may need several facts.
    pub fn search(&self) -> RuleSearch<'_> {
        RuleSearch { rules: self, lists: self.hold_lists(), candidates: None }
    }

    #[inline]
    pub(crate) fn decide_by(&self, facts: &Facts<'_>, lists: &Lists) -> Decision {
        self.go_on(facts, lists, &mut None)
    }

    #[inline]
    fn go_on<'a>(
        &'a self,
        facts: &Facts<'_>,
        lists: &Lists,
        candidates: &mut Option<Peekable<Found<'a>>>,
    ) -> Decision {
        if !self.hello_first {
            match self.decide_before_hello(facts, lists) {
                Decision::Need(Fact::Hello) => {}
                decided => return decided,
            }
        }
        match &facts.hello {
            Some(hello) => {
                let candidates =
                    candidates.get_or_insert_with(|| self.candidates(hello.name, lists).peekable());
                self.decide_by_hello(hello, facts, lists, candidates)
            }
            None if facts.unknown.contains(Fact::Hello) => no_rule(Refusal::NoHello),
            None => Decision::Need(Fact::Hello),
        }
    }

    /// True if a connection like one that `rule` took, but with another name, would certainly have
    /// come to the same rule. `""` is no name. Of the old hello only its name is known here, so an
    /// earlier rule that asks for more of it counts as if it might match.
    pub fn would_take(&self, rule: RuleId, name: &str, facts: &Facts<'_>) -> bool {
        let lists = self.hold_lists();
        // The host of a request may be no name of a hello, and an expression sees only such names.
        let has_expressions = self.by_list.iter().any(|(list, _)| lists.has_expressions(*list));
        if has_expressions && !name.is_empty() && HostName::new(name.as_bytes()).is_err() {
            return false;
        }
        let mut found = Found::new();
        self.find_named(name, &lists, &mut found);
        found.push(&self.unnamed);
        for id in found {
            if id == rule.0 {
                return true;
            }
            let before = self.rule(id);
            let fails = before.is_none_or(|(entry, conditions)| {
                let outcome = conditions.check_before_hello(facts, &lists, entry.refuse);
                entry.shadow || matches!(outcome, Outcome::Fails(_))
            });
            if !fails {
                return false;
            }
        }
        false
    }

    /// Equal for equal rules with equal files: a verdict of one holds for the other. Others have
    /// the same one by chance only (2^-64), and nobody but the administrator writes them.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.fingerprint, &*self.hold_lists()).hash(&mut hasher);
        hasher.finish()
    }

    /// The newest lists from files.
    pub fn lists(&self) -> Lists {
        Lists::clone(&self.hold_lists())
    }

    /// Replaces a list from a file by a newer version of the file. Each search, and each call that
    /// explains, uses one version of all lists; one that began before ends with the earlier one.
    pub fn replace_list(&self, id: ListId, list: &FileList) {
        self.lists.replace(id, list);
    }

    /// True if a deciding rule needs the hello. Otherwise no byte is read before the decision.
    pub const fn asks_hello(&self) -> bool {
        self.asks_hello
    }

    /// True if any rule asks for the protocols in the hello.
    pub const fn asks_alpn(&self) -> bool {
        self.asks_alpn
    }

    /// True if any rule asks for the destination's certificate.
    pub const fn asks_certificate(&self) -> bool {
        self.asks_certificate
    }

    /// True if any rule asks for the addresses of the name.
    pub const fn asks_dns(&self) -> bool {
        self.asks_dns
    }

    /// True if any rule asks for the cgroups of clients.
    pub const fn asks_cgroups(&self) -> bool {
        self.asks_cgroups
    }

    /// True if there are shadow rules.
    pub const fn has_shadows(&self) -> bool {
        !self.shadows.is_empty()
    }

    /// The shadow rules before the deciding one, in order: the verdict of each whose matchers all
    /// hold, or the fact that is needed to say so. Empty while a fact is still needed to decide.
    pub fn shadowed<'a>(
        &'a self,
        facts: &'a Facts<'a>,
    ) -> impl Iterator<Item = (RuleId, Decision)> + 'a {
        let lists = self.hold_lists();
        let before = match self.shadows.first().map(|_| self.decide_by(facts, &lists)) {
            Some(Decision::Verdict(verdict)) => {
                let end = verdict.rule.map_or(u32::MAX, |rule| rule.0);
                self.shadows.get(..self.shadows.partition_point(|id| *id < end))
            }
            None | Some(Decision::Need(_)) => None,
        };
        // Lists without shadow rules do no work here.
        before.map(|before| self.shadowed_of(before, facts, lists)).into_iter().flatten()
    }

    /// The decision of each shadow rule whose matchers do not fail.
    fn shadowed_of<'a>(
        &'a self,
        shadows: &'a [u32],
        facts: &'a Facts<'a>,
        lists: Held,
    ) -> impl Iterator<Item = (RuleId, Decision)> + 'a {
        let candidates = facts.hello.map(|hello| self.candidates(hello.name, &lists).peekable());
        let mut candidates = candidates;
        let first_peek = self.first_peek(facts, &lists);
        shadows.iter().filter_map(move |&id| {
            let by_name = candidates.as_mut().is_none_or(|candidates| {
                while candidates.next_if(|candidate| *candidate < id).is_some() {}
                candidates.peek() == Some(&id)
            });
            let (entry, conditions) = self.rule(id)?;
            if entry.requests != 0 {
                // It decides requests, and here is none.
                return None;
            }
            let is_blind = id < first_peek && !entry.asks_hello;
            let outcome = match conditions.check_before_hello(facts, &lists, entry.refuse) {
                Outcome::Holds if is_blind => Outcome::Holds,
                _ if !by_name && !is_blind => return None,
                Outcome::Holds => match &facts.hello {
                    Some(hello) => conditions.check_hello(hello, facts, entry.refuse),
                    None if facts.unknown.contains(Fact::Hello) => return None,
                    None => Outcome::Needs(Fact::Hello),
                },
                other => other,
            };
            match outcome {
                Outcome::Holds => Some((RuleId(id), self.verdict((id, entry), facts, &lists))),
                Outcome::Needs(fact) => Some((RuleId(id), Decision::Need(fact))),
                Outcome::Fails(_) => None,
            }
        })
    }

    /// The number of rules.
    pub const fn len(&self) -> usize {
        self.rules.len()
    }

    /// True if there is no rule.
    pub const fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    fn decide_before_hello(&self, facts: &Facts<'_>, lists: &Lists) -> Decision {
        for &id in &self.before_hello {
            let Some((entry, conditions)) = self.rule(id) else { continue };
            match conditions.check_before_hello(facts, lists, entry.refuse) {
                Outcome::Fails(_) => {}
                Outcome::Needs(fact) => return Decision::Need(fact),
                Outcome::Holds if entry.asks_hello => return Decision::Need(Fact::Hello),
                Outcome::Holds => {
                    let unpeeked = Facts { hello: None, ..*facts };
                    return self.verdict((id, entry), &unpeeked, lists);
                }
            }
        }
        no_rule(Refusal::Unlisted)
    }

    /// `candidates` are left at the rule that decides, or needs a fact.
    fn decide_by_hello(
        &self,
        hello: &HelloFacts<'_>,
        facts: &Facts<'_>,
        lists: &Lists,
        candidates: &mut Peekable<Found<'_>>,
    ) -> Decision {
        while let Some(&id) = candidates.peek() {
            if let Some((entry, conditions)) = self.rule(id).filter(|(entry, _)| entry.decides()) {
                match entry.check(conditions, hello, facts, lists) {
                    Outcome::Fails(_) => {}
                    Outcome::Needs(fact) => return Decision::Need(fact),
                    Outcome::Holds => return self.verdict((id, entry), facts, lists),
                }
            }
            candidates.next();
        }
        no_rule(self.unlisted(Some(hello.name)))
    }

    /// The rules whose `sni` and `sni_malformed` hold, ascending.
    pub(crate) fn candidates(&self, name: HelloName<'_>, lists: &Lists) -> Found<'_> {
        let mut found = Found::new();
        let name = match name {
            HelloName::Absent => Some(""),
            HelloName::Name(name) => Some(name),
            HelloName::Malformed(_) => None,
        };
        if let Some(name) = name {
            self.find_named(name, lists, &mut found);
        }
        found.push(self.unnamed(name.is_none()));
        found
    }

    /// The rules whose `sni` has `name`; `""` is the absent name.
    #[inline]
    pub(crate) fn find_named<'a>(&'a self, name: &str, lists: &Lists, found: &mut Found<'a>) {
        self.names.find(name, found);
        for (list, rules) in &self.by_list {
            if lists.has_name(*list, name) {
                found.push(rules);
            }
        }
    }

    /// The lists that a decision uses from its begin to its end.
    #[inline]
    pub(crate) fn hold_lists(&self) -> Held {
        self.lists.hold()
    }

    /// The lists that `rule` has in `sni`.
    pub(crate) fn lists_of(&self, rule: u32) -> impl Iterator<Item = ListId> + '_ {
        let named = self.by_list.iter();
        named.filter(move |(_, rules)| rules.binary_search(&rule).is_ok()).map(|(list, _)| *list)
    }

    /// The rules that have a list in `sni`, ascending.
    pub(crate) fn rules_by_list(&self, list: ListId) -> &[u32] {
        let at = self.by_list.binary_search_by_key(&list, |(list, _)| *list).ok();
        at.and_then(|at| self.by_list.get(at)).map_or(&[], |(_, rules)| rules)
    }

    /// The verdict of a rule whose matchers hold.
    fn verdict(&self, (id, entry): (u32, Entry), facts: &Facts<'_>, lists: &Lists) -> Decision {
        if !entry.refuse
            && !entry.serves_requests
            && let Some(unread) = self.refuses_unread(id, facts, lists)
        {
            return unread;
        }
        let name = facts.hello.map(|hello| hello.name);
        let refuse = match name {
            _ if entry.refuse => Some(self.reason(id, entry, name)),
            Some(HelloName::Malformed(fault)) if entry.needs_name => {
                Some(Refusal::MalformedName(fault))
            }
            Some(HelloName::Absent) if entry.needs_name => Some(Refusal::NoName),
            _ => None,
        };
        Decision::Verdict(Verdict { rule: Some(RuleId(id)), refuse })
    }

    /// The reason for a refuse rule: its matcher that is least likely to be shared with connections
    /// that are served. A rule with no matcher, or only a listener, is a catch-all.
    fn reason(&self, id: u32, entry: Entry, name: Option<HelloName<'_>>) -> Refusal {
        let asks = |matcher| self.rule(id).is_some_and(|(_, asked)| asked.asks(matcher));
        let is_lie = || self.rule(id).is_some_and(|(_, asked)| asked.asks_untrue_name());
        match name {
            Some(HelloName::Malformed(fault)) => Refusal::MalformedName(fault),
            _ if entry.requests != 0 => Refusal::ByRequest,
            _ if is_lie() => Refusal::NameNotVerified,
            _ if Matcher::OF_CERTIFICATE.into_iter().any(asks) => Refusal::ByCertificate,
            _ if asks(Matcher::TlsCompression) => Refusal::ByCompression,
            _ if asks(Matcher::TlsVersionMax) => Refusal::ByVersion,
            _ if asks(Matcher::Ja4) => Refusal::ByFingerprint,
            _ if OF_REQUESTER.into_iter().any(asks) => Refusal::ByRequester,
            _ if asks(Matcher::Client) || asks(Matcher::Destination) => Refusal::ByAddress,
            _ if asks(Matcher::Connect) => Refusal::ByConnect,
            _ if asks(Matcher::Alpn) => Refusal::ByProtocol,
            _ if asks(Matcher::Ech) => Refusal::ByEch,
            Some(HelloName::Name(_)) if entry.named => Refusal::ByName,
            _ if asks(Matcher::Transport) => Refusal::ByTransport,
            _ => self.unlisted(name),
        }
    }

    /// Returns the reason why a connection without a matching rule is refused.
    fn unlisted(&self, name: Option<HelloName<'_>>) -> Refusal {
        match name {
            Some(HelloName::Malformed(fault)) => Refusal::MalformedName(fault),
            Some(HelloName::Absent) if self.asks_names => Refusal::NoName,
            Some(HelloName::Name(_)) if self.asks_names => Refusal::NoRule,
            _ => Refusal::Unlisted,
        }
    }

    /// The first rule that needs the hello. Those before it are decided whatever the hello says.
    pub(crate) fn first_peek(&self, facts: &Facts<'_>, lists: &Lists) -> u32 {
        let mut asking = self.before_hello.iter().copied().filter(|id| {
            self.rule(*id).is_some_and(|(entry, conditions)| {
                let outcome = conditions.check_before_hello(facts, lists, entry.refuse);
                entry.asks_hello && outcome == Outcome::Holds
            })
        });
        asking.next().unwrap_or(u32::MAX)
    }

    pub(crate) fn rule(&self, id: u32) -> Option<(Entry, &Conditions)> {
        let entry = *self.entries.get(*self.rules.get(id as usize)? as usize)?;
        Some((entry, self.conditions.get(entry.conditions as usize)?))
    }

    /// Rules without `sni`: those with `sni_malformed`, or the others.
    pub(crate) const fn unnamed(&self, malformed: bool) -> &[u32] {
        if malformed { &self.malformed } else { &self.unnamed }
    }
}

impl RuleSearch<'_> {
    /// Decides as [`Rules::decide`] does. From one call to the next facts may be added only: those
    /// that were there stay the same, and so does the hello.
    pub fn decide(&mut self, facts: &Facts<'_>) -> Decision {
        self.rules.go_on(facts, &self.lists, &mut self.candidates)
    }
}

impl Entry {
    fn new(rule: &Rule, (conditions, requests): (u32, u32)) -> Self {
        let named = rule.is_named();
        Self {
            conditions,
            requests,
            serves_requests: rule.serves_requests,
            refuse: rule.refuse,
            shadow: rule.shadow,
            named,
            has_conditions: rule.conditions != Conditions::default(),
            asks_hello: named || rule.needs != Needs::Nothing || rule.conditions.ask_hello(),
            needs_name: rule.needs == Needs::Name,
        }
    }

    /// True if it decides connections, and not only requests.
    const fn decides(self) -> bool {
        !self.shadow && (!self.refuse || self.requests == 0)
    }

    /// Checks all its matchers on the connection except the names.
    pub(crate) fn check(
        self,
        conditions: &Conditions,
        hello: &HelloFacts<'_>,
        facts: &Facts<'_>,
        lists: &Lists,
    ) -> Outcome {
        if !self.has_conditions {
            return Outcome::Holds;
        }
        match conditions.check_before_hello(facts, lists, self.refuse) {
            Outcome::Holds => conditions.check_hello(hello, facts, self.refuse),
            other => other,
        }
    }
}

impl fmt::Display for RuleId {
    /// Counts from 1, as operators do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {}", u64::from(self.0) + 1)
    }
}

fn fingerprint(rules: &[Rule]) -> u64 {
    let mut hasher = DefaultHasher::new();
    rules.hash(&mut hasher);
    hasher.finish()
}

fn by_list(rules: &[Rule]) -> Box<[(ListId, Box<[u32]>)]> {
    let mut by_list: BTreeMap<ListId, Vec<u32>> = BTreeMap::new();
    for (id, rule) in (0..).zip(rules) {
        // A rule with `sni_malformed` cannot match a name that is listed.
        if !rule.conditions.asks(Matcher::SniMalformed) {
            rule.sni_lists.iter().for_each(|list| by_list.entry(*list).or_default().push(id));
        }
    }
    by_list.into_iter().map(|(list, rules)| (list, rules.into())).collect()
}

fn before_hello(rules: &[u32], entries: &[Entry], conditions: &[Conditions]) -> Box<[u32]> {
    // Conditions without the matchers on the hello, numbered. Equal ones fail or hold together, so
    // of several such rules only the first can decide or ask.
    let mut cheap_ids: HashMap<Conditions, usize> = HashMap::new();
    let cheap: Vec<usize> = conditions
        .iter()
        .map(|conditions| {
            let next = cheap_ids.len();
            *cheap_ids.entry(conditions.without_hello()).or_insert(next)
        })
        .collect();
    let always = cheap_ids.get(&Conditions::default()).copied();
    // A refuse rule also holds on an unknown destination, so it counts separately.
    let mut asked = vec![[false; 2]; cheap_ids.len()];
    let mut chosen = Vec::new();
    let entries = rules.iter().filter_map(|entry| entries.get(*entry as usize));
    for (id, entry) in entries.enumerate().filter(|(_, entry)| entry.decides()) {
        let Some(cheap) = cheap.get(entry.conditions as usize).copied() else { continue };
        let seen = asked.get_mut(cheap).and_then(|by| by.get_mut(usize::from(entry.refuse)));
        if seen.map(|seen| std::mem::replace(seen, true)) != Some(true) {
            chosen.push(index_u32(id));
        }
        if Some(cheap) == always {
            break;
        }
    }
    chosen.into()
}

const fn no_rule(why: Refusal) -> Decision {
    Decision::Verdict(Verdict { rule: None, refuse: Some(why) })
}

/// Most rules in a list: an id fits 32 bits, and no file holds 16 million rules.
pub const RULES_MAX: usize = 1 << 24;
