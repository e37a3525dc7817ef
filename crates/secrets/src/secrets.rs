//! All secrets of a configuration: finds their placeholders in requests, puts values in their
//! places, and finds values in responses.

use std::sync::Arc;

use aho_corasick::{AhoCorasick, BuildError, MatchKind};
use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::HeaderName;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Method, request};

use crate::basic;
use crate::marked::Marked;
use crate::refusal::{Misuse, Reflection, SecretRefusal};
use crate::terms::{Placeholder, SecretTerms};
use crate::value::{SecretFault, SecretValue, name_has};

/// Most secrets of a configuration. Each response is searched for each of them.
pub const SECRETS_MAX: usize = 64;
/// Most bytes that values add to the fields of a request.
pub const FILLED_BYTES_MAX: usize = 64 << 10;

/// The secrets of a configuration.
pub struct Secrets {
    terms: Box<[SecretTerms]>,
    placeholders: AhoCorasick,
    /// Bytes of the shortest placeholder. Most fields are shorter, and so is what they decode to.
    shortest: usize,
    /// One for each of `terms`. A source replaces them.
    values: ArcSwap<Vec<Arc<SecretValue>>>,
    /// The value that each had before, if it was replaced: a response to a request with it may show
    /// it still.
    earlier: ArcSwap<Vec<Option<Arc<SecretValue>>>>,
}

/// The server that a request goes to.
pub struct Destination<'a> {
    /// The host that the request names, without its port.
    pub host: &'a str,
    /// The names that the upstreams that may be asked must prove by their certificates. `None`:
    /// one of them has no TLS.
    pub verified: Option<Vec<&'a str>>,
}

/// The effect on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// It has no placeholder.
    Nothing,
    /// It has values now.
    Values,
}

impl Secrets {
    /// Joins terms with their values, which are as many.
    ///
    /// # Errors
    /// The library's: there are too many placeholders.
    pub fn new(
        terms: Vec<SecretTerms>,
        values: Vec<Arc<SecretValue>>,
    ) -> Result<Self, Box<BuildError>> {
        let texts = terms.iter().map(|terms| terms.placeholder.as_str());
        let mut builder = AhoCorasick::builder();
        let placeholders = builder.match_kind(MatchKind::LeftmostFirst).build(texts)?;
        let shortest = terms.iter().map(|terms| terms.placeholder.as_str().len()).min();
        let shortest = shortest.unwrap_or(usize::MAX);
        let earlier = ArcSwap::from_pointee(vec![None; values.len()]);
        let values = ArcSwap::from_pointee(values);
        Ok(Self { terms: terms.into(), placeholders, shortest, values, earlier })
    }

    /// The terms, in the order of the configuration.
    pub fn terms(&self) -> &[SecretTerms] {
        &self.terms
    }

    /// The value of a placeholder.
    pub fn value(&self, placeholder: &Placeholder) -> Option<Arc<SecretValue>> {
        let nth = self.terms.iter().position(|terms| terms.placeholder == *placeholder)?;
        self.values.load().get(nth).cloned()
    }

    /// Replaces the value of the secret with this number. The one before is still looked for in
    /// responses, until the next replacement. Returns false if it was the same.
    pub fn replace(&self, nth: usize, value: SecretValue) -> bool {
        let values = self.values.load();
        let is_new = values.get(nth).is_some_and(|known| known.bytes() != value.bytes());
        if is_new {
            let (mut values, mut earlier) = (Vec::clone(&values), Vec::clone(&self.earlier.load()));
            earlier[nth] = Some(std::mem::replace(&mut values[nth], Arc::new(value)));
            self.earlier.store(Arc::new(earlier));
            self.values.store(Arc::new(values));
        }
        is_new
    }

    /// Checks that a value has no placeholder of a configuration: it would be replaced, too.
    ///
    /// # Errors
    /// It has one.
    pub fn check(&self, value: &SecretValue) -> Result<(), SecretFault> {
        match self.placeholders.is_match(value.bytes()) {
            true => Err(SecretFault::Placeholder),
            false => Ok(()),
        }
    }

    /// Puts values in the places of placeholders. A request that is refused may have some of them
    /// already, and must not be sent.
    ///
    /// # Errors
    /// A placeholder stands where none may.
    pub fn fill<'a>(
        &self,
        request: &mut request::Parts,
        to: impl FnOnce() -> Destination<'a>,
    ) -> Result<Filled, SecretRefusal> {
        if let Some(found) = self.in_line(request) {
            return Err(self.refusal(found, Misuse::Url));
        }
        if let Some((nth, name)) = self.in_names(&request.headers) {
            return Err(self.refusal(nth, Misuse::Field(name.clone())));
        }
        if self.find_in_values(&request.headers).is_none() {
            return Ok(Filled::Nothing);
        }
        let (to, values, mut added) = (to(), self.values.load(), 0);
        // Lines of one name are one field (RFC 9110 section 5.3).
        let mut placed: Vec<(HeaderName, usize)> = Vec::new();
        for (name, value) in &mut request.headers {
            let Some(marked) = Marked::of(&self.placeholders, value.as_bytes()) else { continue };
            let mut last = 0;
            for nth in marked.secrets() {
                let place = (name.clone(), nth);
                let misuse = match &self.terms[nth] {
                    terms if !terms.headers.contains(name) => Some(Misuse::Field(name.clone())),
                    _ if placed.contains(&place) => Some(Misuse::Twice),
                    terms => to.misuse(terms, &request.method),
                };
                if let Some(misuse) = misuse {
                    return Err(self.refusal(nth, misuse));
                }
                placed.push(place);
                last = nth;
            }
            let written = marked.filled(&values);
            added += written.len().saturating_sub(value.len());
            // Its memory is wiped when the last clone of the field is dropped.
            let owned = HeaderValue::from_maybe_shared(Bytes::from_owner(written));
            match owned {
                Ok(owned) if added <= FILLED_BYTES_MAX => *value = owned,
                // A value has only bytes that a field may have.
                _ => return Err(self.refusal(last, Misuse::Length)),
            }
            value.set_sensitive(true);
        }
        Ok(Filled::Values)
    }

    /// True if a request has a placeholder in its line or its fields.
    pub fn is_in(&self, request: &request::Parts) -> bool {
        self.in_line(request).is_some() || self.find(&request.headers).is_some()
    }

    /// Finds a placeholder in fields in which no value may stand, and in their names.
    pub fn find(&self, fields: &HeaderMap) -> Option<&Placeholder> {
        let named = || Some(&self.terms.get(self.in_names(fields)?.0)?.placeholder);
        self.find_in_values(fields).or_else(named)
    }

    fn find_in_values(&self, fields: &HeaderMap) -> Option<&Placeholder> {
        let mut long = fields.values().filter(|value| value.len() >= self.shortest);
        long.find_map(|value| self.find_in(value.as_bytes()))
    }

    /// Finds a placeholder in a field's value: as it is, or in Basic credentials.
    pub fn find_in(&self, value: &[u8]) -> Option<&Placeholder> {
        let found = |text: &[u8]| Some(self.placeholders.find(text)?.pattern().as_usize());
        let nth = found(value).or_else(|| found(&basic::decode(value)?))?;
        self.terms.get(nth).map(|terms| &terms.placeholder)
    }

    /// Finds a value in the fields of a response, their names included.
    pub fn reflected(&self, fields: &HeaderMap) -> Option<Reflection> {
        self.reflected_in(fields.iter().map(|(name, value)| (name.as_str(), value.as_bytes())))
    }

    /// Finds a value in fields of a response, which come as names and values.
    pub fn reflected_in<'a>(
        &self,
        mut fields: impl Iterator<Item = (&'a str, &'a [u8])>,
    ) -> Option<Reflection> {
        let (values, earlier) = (self.values.load(), self.earlier.load());
        fields.find_map(|(name, field)| {
            let nth = |has: &dyn Fn(&SecretValue) -> bool| {
                let mut all = values.iter().zip(earlier.iter());
                let before = |value: &Option<Arc<SecretValue>>| value.as_deref().is_some_and(has);
                all.position(|(value, earlier)| has(value) || before(earlier))
            };
            let in_name = nth(&|value| value.is_in_name(name));
            let shown = in_name.or_else(|| nth(&|value| value.is_in(field)))?;
            let placeholder = self.terms.get(shown)?.placeholder.clone();
            // A name that has a value is told to nobody.
            let field = in_name.is_none().then(|| name.into());
            Some(Reflection { placeholder, field })
        })
    }

    /// The secret whose placeholder is in a field's name, in whatever case, and that name.
    fn in_names<'f>(&self, fields: &'f HeaderMap) -> Option<(usize, &'f HeaderName)> {
        // Few names are so long.
        let mut long = fields.keys().filter(|name| name.as_str().len() >= self.shortest);
        long.find_map(|name| {
            let is_in = |terms: &SecretTerms| {
                name_has(name.as_str(), terms.placeholder.as_str().as_bytes())
            };
            Some((self.terms.iter().position(is_in)?, name))
        })
    }

    /// The secret whose placeholder is in the method or the URL.
    fn in_line(&self, request: &request::Parts) -> Option<usize> {
        let uri = &request.uri;
        let parts = [
            Some(request.method.as_str()),
            uri.authority().map(Authority::as_str),
            uri.path_and_query().map(PathAndQuery::as_str),
        ];
        let mut parts = parts.into_iter().flatten().filter(|part| part.len() >= self.shortest);
        parts.find_map(|part| Some(self.placeholders.find(part)?.pattern().as_usize()))
    }

    fn refusal(&self, nth: usize, misuse: Misuse) -> SecretRefusal {
        SecretRefusal { placeholder: self.terms[nth].placeholder.clone(), misuse }
    }
}

impl Destination<'_> {
    /// Says why a secret with these terms may not go there, if it may not.
    fn misuse(&self, terms: &SecretTerms, method: &Method) -> Option<Misuse> {
        if !terms.has_method(method) {
            return Some(Misuse::Method(method.clone()));
        }
        let Some(verified) = &self.verified else { return Some(Misuse::NoTls) };
        // A server of many tenants has proved one name, and serves the host that it is asked for.
        let mut names = verified.iter().copied().chain([self.host]);
        let other = names.find(|name| !terms.has_name(name));
        other.map(|name| Misuse::Name(name.into()))
    }
}

#[cfg(test)]
mod tests;
