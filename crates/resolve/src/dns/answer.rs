//! Reads the DNS responses to a question: follows aliases to their end, and returns the addresses
//! there and how long they are valid.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_resolver::proto::op::{DnsResponse, Query, ResponseCode};
use hickory_resolver::proto::rr::domain::usage::{INVALID, LOCALHOST, ONION};
use hickory_resolver::proto::rr::{DNSClass, Name, RData, Record, RecordType};

/// Most seconds that an answer is valid, as in hickory's cache.
pub const TTL_SECS_MAX: u32 = 24 * 60 * 60;
/// Most seconds that "no such name" or "no address" is valid: a name that was made or mended counts
/// soon, whatever the SOA record allows.
const NEGATIVE_TTL_SECS_MAX: u32 = 5;
/// The time until DNS is asked again for a name after a query failed.
pub const FAULT_FRESH_MS: u64 = 2_000;
/// Most aliases followed from a name to its addresses. Sound names have a few. This ends loops.
const ALIASES_MAX: usize = 16;

/// The answer of DNS for a name and one address family. It may have no addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The addresses of the name at the end of the aliases.
    pub addresses: Vec<IpAddr>,
    /// The least TTL along the aliases, in milliseconds.
    pub fresh_ms: u64,
    /// No family is missing.
    pub is_whole: bool,
}

impl Answer {
    /// Addresses that are valid for `ttl_secs`.
    pub fn new(addresses: Vec<IpAddr>, ttl_secs: u32) -> Self {
        Self { addresses, fresh_ms: u64::from(ttl_secs) * 1000, is_whole: true }
    }
}

/// A question for the addresses of a name, of one family.
#[derive(Debug)]
pub struct Question {
    /// The end of the aliases so far.
    name: Name,
    v6: bool,
    /// The least TTL along the aliases.
    ttl_secs: u32,
    aliases: usize,
}

impl Question {
    /// A question without a response so far.
    pub fn new(name: Name, v6: bool) -> Self {
        Self { name, v6, ttl_secs: TTL_SECS_MAX, aliases: 0 }
    }

    /// The next query.
    ///
    /// # Errors
    /// The answer, if DNS must not be queried for this name (RFC 6761 section 6, RFC 7686).
    pub fn query(&self) -> Result<Query, Answer> {
        if LOCALHOST.zone_of(&self.name) {
            let ip: IpAddr =
                if self.v6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
            return Err(Answer::new(vec![ip], self.ttl_secs));
        }
        if INVALID.zone_of(&self.name) || ONION.zone_of(&self.name) {
            return Err(Answer::new(vec![], self.ttl_secs));
        }
        let kind = if self.v6 { RecordType::AAAA } else { RecordType::A };
        Ok(Query::query(self.name.clone(), kind))
    }

    /// The answer of a response that says that the name does not exist, or has no address.
    ///
    /// # Errors
    /// The server is lame: it neither has the zone nor asks others, so it does not know.
    fn nothing(&self, response: &DnsResponse) -> Result<Answer, String> {
        let is_referral = || {
            let has = |kind| response.authorities.iter().any(|record| record.record_type() == kind);
            has(RecordType::NS) && !has(RecordType::SOA)
        };
        let may_know = response.authoritative || response.recursion_available && !is_referral();
        if !may_know {
            return Err("lame answer: neither authority nor recursion".to_owned());
        }
        let negative_ttl_secs = response.negative_ttl().unwrap_or(0).min(NEGATIVE_TTL_SECS_MAX);
        Ok(Answer::new(vec![], self.ttl_secs.min(negative_ttl_secs)))
    }

    /// Reads the response to [`Question::query`]. `None`: the aliases lead on, and
    /// [`Question::query`] gives the next query.
    ///
    /// # Errors
    /// Why the addresses cannot be known.
    pub fn read(&mut self, response: &DnsResponse) -> Result<Option<Answer>, String> {
        if response.answers.iter().any(|record| record.dns_class != DNSClass::IN) {
            return Err("malformed answer: a record of another class".to_owned());
        }
        // The order of the records means nothing.
        let mut end = self.name.clone();
        while let Some((target, its_ttl_secs)) = alias(response, &end) {
            end = target.clone();
            self.ttl_secs = self.ttl_secs.min(its_ttl_secs);
            self.aliases += 1;
            if self.aliases > ALIASES_MAX {
                return Err(format!("more than {ALIASES_MAX} aliases"));
            }
        }
        match response.response_code {
            ResponseCode::NoError => {}
            // NXDOMAIN is about the end of the aliases (RFC 6604). That name then has no records
            // (RFC 8020), whatever else the response contains.
            ResponseCode::NXDomain => return self.nothing(response).map(Some),
            code => return Err(format!("error response: {code}")),
        }
        let found: Vec<&Record> = response.answers.iter().filter(|r| r.name == end).collect();
        let addresses: Vec<IpAddr> = found.iter().filter_map(|r| address(r, self.v6)).collect();
        if !addresses.is_empty() {
            let least = found.iter().fold(self.ttl_secs, |least, record| least.min(record.ttl));
            return Ok(Some(Answer::new(addresses, least)));
        }
        if end == self.name {
            return self.nothing(response).map(Some);
        }
        self.name = end;
        Ok(None)
    }
}

/// The target of `name`'s alias. If there are several, which is an error (RFC 2181 section 10.1),
/// the first.
fn alias<'a>(response: &'a DnsResponse, name: &Name) -> Option<(&'a Name, u32)> {
    response.answers.iter().filter(|record| record.name == *name).find_map(|record| {
        match &record.data {
            RData::CNAME(target) => Some((&target.0, record.ttl)),
            _ => None,
        }
    })
}

fn address(record: &Record, v6: bool) -> Option<IpAddr> {
    match &record.data {
        RData::A(address) if !v6 => Some(IpAddr::V4(address.0)),
        RData::AAAA(address) if v6 => Some(IpAddr::V6(address.0).to_canonical()),
        _ => None,
    }
}
