//! The request's side: what its response needs of it, and how its fields change for the upstream.

use eyelet_compress::breach::{self, Breach};
use eyelet_compress::dictionary::Hash;
use eyelet_compress::dictionary::available::{AVAILABLE_DICTIONARY, DICTIONARY_ID, available};
use eyelet_compress::dictionary::offer;
use eyelet_compress::dictionary::store::Family;
use eyelet_compress::{AcceptedCodings, Coding, Effort, fields, validators};
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, COOKIE, HeaderMap, HeaderName, HeaderValue,
    ORIGIN,
};
use http::{Method, request::Parts, response, uri::PathAndQuery};

use super::compressors::Compressors;
use super::near::{Near, NearTerms};
use eyelet_config::{Compression, CompressionMode, Terminate};

/// The facts about its request that a response needs.
pub struct RequestCodings {
    pub(super) rule: u32,
    /// The part that Eyelet asks for on its own behalf, if its rule begins TLS. Few have one.
    pub(super) near: Option<Box<Near>>,
    /// `None`: compression is off by rule.
    pub(super) wanted: Option<Wanted>,
}

/// The wishes of the rule and the client.
pub(super) struct Wanted {
    pub(super) rule: u32,
    pub(super) accepted: AcceptedCodings,
    pub(super) breach: Option<Breach>,
    /// True if the client wants the response unchanged (RFC 9111 section 5.2.1.6).
    pub(super) no_transform: bool,
    pub(super) effort: Option<Effort>,
    pub(super) event_streams: bool,
    pub(super) length_hiding: usize,
    pub(super) is_head: bool,
    /// True if conditions were restored to the upstream's own tags.
    pub(super) tags_restored: bool,
    /// The part about dictionaries, if this response may depend on them. Boxed: few do.
    pub(super) dictionaries: Option<Box<WantedDictionaries>>,
}

/// The facts about a request whose response may depend on dictionaries.
pub(super) struct WantedDictionaries {
    pub(super) path: PathAndQuery,
    /// The family of dictionaries that the response belongs to, by the rule's patterns.
    pub(super) family: Option<Family>,
    /// The terms of the rule for responses of this family.
    pub(super) learning: offer::Terms,
    /// The dictionary that the client has.
    pub(super) available: Option<Hash>,
    /// The fields that decide who may use or become a dictionary, if any.
    pub(super) fields: HeaderMap,
}

/// A request to the upstream of a rule that begins TLS.
#[derive(Clone, Copy)]
pub struct NearRequest<'a> {
    /// The index of its rule.
    pub rule: u32,
    /// The authority of the request.
    pub host: &'a str,
    /// The connection to the upstream says who the client is.
    pub is_tied: bool,
    /// It may be sent again after a failure.
    pub is_harmless: bool,
}

impl Wanted {
    /// The family of dictionaries of the response.
    pub(super) fn family(&self) -> Option<&Family> {
        self.dictionaries.as_ref()?.family.as_ref()
    }
}

impl Compressors {
    /// Called with each request before it is sent upstream. Changes its fields: Accept-Encoding,
    /// If-None-Match and If-Match, Range, and those of dictionaries.
    pub fn request(
        &self,
        rule: u32,
        terminate: &Terminate,
        host: &str,
        head: &mut Parts,
    ) -> RequestCodings {
        let terms = &terminate.compression;
        match terms.mode {
            CompressionMode::On => {}
            CompressionMode::None => {
                ask_for_identity(&mut head.headers);
                return RequestCodings::off(rule);
            }
            CompressionMode::Off => return RequestCodings::off(rule),
        }
        let present = Present::of(&head.headers);
        let accepted = present.accepted.then(|| AcceptedCodings::read(&head.headers));
        let accepted = accepted.unwrap_or_default();
        let breach = match terms.breach_rule && present.credentials {
            true => breach::breach(&head.headers, host, terms.breach_allow),
            false => None,
        };
        // HEAD is treated like GET.
        let is_get = matches!(head.method, Method::GET | Method::HEAD);
        let dictionaries = if is_get { self.dictionaries(rule, terms, host, head) } else { None };
        let mut wanted = Wanted {
            rule,
            accepted,
            breach,
            no_transform: present.cache_control
                && fields::lists(&head.headers, &CACHE_CONTROL, "no-transform"),
            effort: terms.effort,
            event_streams: terms.event_streams,
            length_hiding: terms.length_hiding,
            is_head: head.method == Method::HEAD,
            tags_restored: false,
            dictionaries: dictionaries.map(Box::new),
        };
        if wanted.dictionaries.is_some() {
            // We answer these: an upstream that also answered dcz would code a second time.
            head.headers.remove(AVAILABLE_DICTIONARY);
            head.headers.remove(DICTIONARY_ID);
        }
        // Under the BREACH rule, a response that the upstream codes would be as bad as one that we
        // code. And a response that becomes a dictionary is needed uncoded.
        if terms.offload || wanted.breach.is_some() || wanted.family().is_some() {
            head.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        } else if wanted.dictionaries.is_some() {
            without_dictionaries(&mut head.headers, &wanted.accepted);
        }
        let tags = self.inner.tags.borrow();
        wanted.tags_restored = validators::restore(&mut head.headers, |tag| tags.knows(rule, tag));
        if present.accepted && wanted.accepted.choose(&CODINGS).is_some() {
            validators::whole(&mut head.headers, wanted.tags_restored);
        }
        RequestCodings { rule, near: None, wanted: Some(wanted) }
    }

    /// Prepares a request for a rule that begins TLS: Eyelet is the client that accepts codings.
    pub fn request_near(
        &self,
        NearRequest { rule, host, is_tied, is_harmless }: NearRequest<'_>,
        terminate: &Terminate,
        head: &mut Parts,
    ) -> RequestCodings {
        let terms = &terminate.compression;
        if terms.mode != CompressionMode::On {
            return self.request(rule, terminate, host, head);
        }
        let is_attackable =
            terms.breach_rule && breach::breach(&head.headers, host, terms.breach_allow).is_some();
        // A request that has succeeded is repeated only if it changes nothing. A repeat has another
        // connection, which authenticates nobody.
        let can_repeat = is_harmless && head.method.is_safe() && !is_tied;
        let terms = NearTerms { rule, host, is_attackable, can_repeat };
        let mut near = Near::ask(&self.inner, terms, head);
        near.has_credentials |= is_tied;
        RequestCodings { rule, near: Some(Box::new(near)), wanted: None }
    }

    /// The request to make once more, for what the client itself accepts.
    pub fn again(&self, asked: &mut RequestCodings, request: &Parts) -> Option<Parts> {
        Some(asked.near.as_mut()?.again(request))
    }

    /// True if the request may be made once more, for what the client itself accepts.
    pub fn can_repeat(&self, asked: &RequestCodings) -> bool {
        asked.near.as_ref().is_some_and(|near| near.can_repeat())
    }

    /// True if a response must not be changed and does not fit the client.
    pub fn is_unfit(&self, asked: &RequestCodings, head: &response::Parts) -> bool {
        asked.near.as_ref().is_some_and(|near| near.is_unfit(head))
    }

    /// True if a response is coded with another dictionary than the one that was named.
    pub fn is_of_other(
        &self,
        asked: &RequestCodings,
        head: &response::Parts,
        first: &[u8],
    ) -> bool {
        asked.near.as_ref().is_some_and(|near| near.is_of_other(head, first))
    }

    /// The part about dictionaries of a request that reads, if its response may depend on them.
    fn dictionaries(
        &self,
        rule: u32,
        terms: &Compression,
        host: &str,
        head: &Parts,
    ) -> Option<WantedDictionaries> {
        let family = self.family(rule, terms, host, head.uri.path());
        if family.is_none() && self.inner.trained(rule).is_none() {
            return None;
        }
        let path = head.uri.path_and_query().cloned();
        Some(WantedDictionaries {
            path: path.unwrap_or_else(|| PathAndQuery::from_static("/")),
            learning: offer::Terms {
                is_file: family.as_ref().is_some_and(|family| family.is_file),
                is_shared: terms.dictionary_shared,
            },
            family,
            available: available(&head.headers),
            fields: dictionary_fields(&head.headers),
        })
    }

    fn family(&self, rule: u32, terms: &Compression, host: &str, path: &str) -> Option<Family> {
        let found = terms.dictionary.iter().find_map(|files| files.of(path).zip(Some(files)));
        let (pattern, files) = found?;
        // Not everyone who may read this file may read another one with the same `match`.
        if terms.dictionary_shared && !files.is_exact(path) {
            return None;
        }
        let rule = self.inner.rule_name(rule)?;
        let origin = host.to_ascii_lowercase().into();
        Some(Family { rule, origin, pattern, is_file: files.is_per_file() })
    }
}

/// Fields that a request has. Most requests have few fields, and looking each of these up would
/// hash each.
#[derive(Default)]
struct Present {
    accepted: bool,
    cache_control: bool,
    /// Those that may be credentials.
    credentials: bool,
}

impl Present {
    fn of(headers: &HeaderMap) -> Self {
        let mut present = Self::default();
        for name in headers.keys() {
            // Names compare faster than their texts.
            present.accepted |= *name == ACCEPT_ENCODING;
            present.cache_control |= *name == CACHE_CONTROL;
            present.credentials |= *name == COOKIE || *name == AUTHORIZATION;
        }
        present
    }
}

/// Asks the upstream for a response that nobody has coded.
fn ask_for_identity(headers: &mut HeaderMap) {
    headers.remove(AVAILABLE_DICTIONARY);
    headers.remove(DICTIONARY_ID);
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

fn dictionary_fields(headers: &HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::new();
    for name in [AUTHORIZATION, ORIGIN, SEC_FETCH_SITE, SEC_FETCH_MODE] {
        for value in headers.get_all(&name) {
            kept.append(&name, value.clone());
        }
    }
    kept
}

/// Keeps only the codings that need no dictionary.
fn without_dictionaries(headers: &mut HeaderMap, accepted: &AcceptedCodings) {
    if !accepted.takes(Coding::Dcz) && !accepted.takes(Coding::Dcb) {
        return;
    }
    let lines = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|line| line.to_str().ok());
    let kept: Vec<&str> = lines
        .flat_map(|line| line.split(','))
        .map(|element| element.trim_matches([' ', '\t']))
        .filter(|element| !element.is_empty() && !names_dictionary(element))
        .collect();
    if let Ok(line) = HeaderValue::from_str(&kept.join(", ")) {
        headers.insert(ACCEPT_ENCODING, line);
    }
}

fn names_dictionary(element: &str) -> bool {
    let name = element.split(';').next().unwrap_or_default().trim_matches([' ', '\t']);
    name.eq_ignore_ascii_case("dcz") || name.eq_ignore_ascii_case("dcb")
}

const CODINGS: [Coding; 5] = [Coding::Zstd, Coding::Br, Coding::Gzip, Coding::Dcz, Coding::Dcb];
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
