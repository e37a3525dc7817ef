//! The requests of an originate rule: Eyelet asks for codings on its own behalf, and undoes what
//! the client does not accept. A coding that the client accepts passes untouched. Responses become
//! dictionaries where the upstream says so.

use std::sync::Arc;

use eyelet_compress::decoder::{DECODER_BYTES_MAX, is_of_other};
use eyelet_compress::dictionary::available::{self, AVAILABLE_DICTIONARY, DICTIONARY_ID};
use eyelet_compress::dictionary::learned::{Learned, LearnedOrigin};
use eyelet_compress::dictionary::offer::{self, USE_AS_DICTIONARY};
use eyelet_compress::dictionary::use_as::{self, UseAs};
use eyelet_compress::{AcceptedCodings, Coding, fields, validators};
use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
    ETAG, HeaderMap, HeaderName, HeaderValue, RANGE, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::{Method, StatusCode, Uri, response};

use super::compressors::Inner;
use super::dictionaries::freshness::now;
use super::learning::{DecodedCoding, Learning};

/// The codings that Eyelet accepts, before those that the client lists besides.
const OWN: &str = "zstd, br, gzip";
/// Codings that it accepts with a dictionary.
const OWN_WITH_DICTIONARY: &str = "dcz, dcb, zstd, br, gzip";
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
/// Fields that ask for a digest of the bytes as they are sent (RFC 9530 section 4).
const WANTS_DIGEST: [HeaderName; 3] = [
    HeaderName::from_static("want-content-digest"),
    HeaderName::from_static("want-repr-digest"),
    HeaderName::from_static("want-digest"),
];
/// Types that name the coding of their own content. A server that also labels such a file with that
/// coding means the file itself, and its clients store it as it is.
const TYPES_OF_CODINGS: [(Coding, &str); 4] = [
    (Coding::Gzip, "application/gzip"),
    (Coding::Gzip, "application/x-gzip"),
    (Coding::Zstd, "application/zstd"),
    (Coding::Br, "application/brotli"),
];

/// The facts that a response needs about its request.
pub(super) struct Near {
    pub(super) accepted: AcceptedCodings,
    /// The lines of Accept-Encoding that the client sent, if Eyelet's own took their place.
    pub(super) replaced: Option<Vec<HeaderValue>>,
    /// True if conditions were restored to the upstream's own tags.
    pub(super) tags_restored: bool,
    /// The dictionary that was named.
    pub(super) dictionary: Option<Arc<Learned>>,
    /// True if the request may be made once more.
    pub(super) can_repeat: bool,
    /// The rule and the origin whose dictionaries its response may become, if any.
    pub(super) origin: Option<LearnedOrigin>,
    /// True if the upstream knows who the client is.
    pub(super) has_credentials: bool,
}

/// The fate of a response's body.
#[derive(Default)]
pub(super) struct Outcome {
    /// The coding to undo.
    pub(super) decoded_coding: Option<DecodedCoding>,
    /// The decoded body becomes a dictionary.
    pub(super) learning: Option<Learning>,
}

/// The action on a coded response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CodingAction {
    Passed,
    Decoded(Coding),
    /// It must not be transformed, so the upstream is asked for what the client itself accepts.
    Unwanted,
}

/// The terms on which a request may be asked.
pub(super) struct NearTerms<'a> {
    /// The index of its rule.
    pub rule: u32,
    /// The authority of the request.
    pub host: &'a str,
    /// The BREACH rule forbids a coding.
    pub is_attackable: bool,
    /// A second request has no effect, and has the same rights.
    pub can_repeat: bool,
}

impl Near {
    /// Asks for Eyelet's own codings, unless that could change what the response means.
    pub(super) fn ask(inner: &Inner, terms: NearTerms<'_>, head: &mut Parts) -> Self {
        let NearTerms { rule, host, is_attackable, can_repeat } = terms;
        let has_credentials = use_as::has_credentials(&head.headers);
        let headers = &mut head.headers;
        let accepted = AcceptedCodings::read(headers);
        let tags = inner.tags.borrow();
        let tags_restored = validators::restore(headers, |tag| tags.knows(rule, tag));
        if tags_restored {
            validators::whole(headers, true);
        }
        let is_kept = headers.contains_key(RANGE)
            || headers.contains_key(UPGRADE)
            || WANTS_DIGEST.iter().any(|name| headers.contains_key(name))
            || fields::lists(headers, &CACHE_CONTROL, "no-transform")
            || accepted.refuses_identity();
        // The client's own dictionaries are not for Eyelet, which keeps their offers to itself.
        headers.remove(AVAILABLE_DICTIONARY);
        headers.remove(DICTIONARY_ID);
        let (mut replaced, mut dictionary, mut origin) = (None, None, None);
        if is_attackable {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        } else if !is_kept && inner.has_room(DECODER_BYTES_MAX) {
            // Without a body it can be made again.
            let has_body = [CONTENT_LENGTH, TRANSFER_ENCODING];
            let has_body = has_body.iter().any(|name| headers.contains_key(name));
            if head.method == Method::GET && !has_body {
                let rule = inner.rule_name(rule);
                origin = rule.map(|rule| (rule, host.to_ascii_lowercase().into()));
            }
            // A response that cannot be decoded with one is asked for once more.
            let own = origin.as_ref().filter(|_| can_repeat);
            let found = own.and_then(|origin| find(inner, origin, &head.uri, headers));
            let line = own_line(headers, found.is_some());
            replaced = Some(headers.get_all(ACCEPT_ENCODING).iter().cloned().collect());
            headers.insert(ACCEPT_ENCODING, line);
            dictionary = found.filter(|found| name_dictionary(headers, found));
        }
        // Unless Eyelet replaced the list, the response is in a coding that the client accepts.
        let can_repeat = can_repeat && replaced.is_some();
        Self { accepted, replaced, tags_restored, dictionary, can_repeat, origin, has_credentials }
    }

    /// True if the request may be made once more, for what the client itself accepts.
    pub(super) fn can_repeat(&self) -> bool {
        self.can_repeat
    }

    /// True if a response must not be changed and does not fit the client. Then the upstream is
    /// asked once more, for what the client itself accepts.
    pub(super) fn is_unfit(&self, head: &response::Parts) -> bool {
        self.fate(head, false) == CodingAction::Unwanted
    }

    /// True if a response needs its first bytes before it can be passed on: they name a dictionary.
    pub(super) fn wants_first(&self, head: &response::Parts) -> bool {
        matches!(self.fate(head, false), CodingAction::Decoded(coding) if coding.is_of_dictionary())
    }

    /// True if a response is coded with another dictionary than the one that was named. That one is
    /// not named again, and the upstream may be asked once more without it.
    pub(super) fn is_of_other(&self, head: &response::Parts, first: &[u8]) -> bool {
        let Some(dictionary) = &self.dictionary else { return false };
        let is_other = self.wants_first(head)
            && coding(&head.headers)
                .is_some_and(|coding| is_of_other(coding, dictionary.hash, first));
        if is_other {
            dictionary.distrust();
        }
        is_other
    }

    /// The request to make once more, for what the client itself accepts.
    pub(super) fn again(&mut self, request: &Parts) -> Parts {
        let mut again = request.clone();
        for name in [ACCEPT_ENCODING, AVAILABLE_DICTIONARY, DICTIONARY_ID] {
            again.headers.remove(name);
        }
        for line in self.replaced.take().into_iter().flatten() {
            again.headers.append(ACCEPT_ENCODING, line);
        }
        self.dictionary = None;
        self.can_repeat = false;
        again
    }

    /// Changes a response's fields, and says what becomes of its body.
    pub(super) fn response(&self, inner: &Inner, rule: u32, head: &mut response::Parts) -> Outcome {
        let learning = self.learning(inner, head);
        head.headers.remove(USE_AS_DICTIONARY);
        if let Some(tag) = head.headers.get(ETAG) {
            inner.tags.borrow_mut().note(rule, tag.as_bytes());
        }
        if head.status == StatusCode::NOT_MODIFIED {
            if self.tags_restored {
                validators::weaken(&mut head.headers);
            }
            return Outcome::default();
        }
        match self.fate(head, learning.is_some()) {
            CodingAction::Decoded(coding) => {
                validators::decode(&mut head.headers);
                let dictionary = self.dictionary.clone().filter(|_| coding.is_of_dictionary());
                Outcome { decoded_coding: Some(DecodedCoding { coding, dictionary }), learning }
            }
            // A coding that stays is not learned.
            _ if head.headers.contains_key(CONTENT_ENCODING) => Outcome::default(),
            CodingAction::Passed | CodingAction::Unwanted => {
                Outcome { decoded_coding: None, learning }
            }
        }
    }

    fn learning(&self, inner: &Inner, head: &response::Parts) -> Option<Learning> {
        let origin = self.origin.as_ref().filter(|_| self.replaced.is_some())?;
        Learning::new(&inner.shared, origin, self.has_credentials, head)
    }

    /// `is_learned`: its decoded form is needed in any case.
    fn fate(&self, head: &response::Parts, is_learned: bool) -> CodingAction {
        let headers = &head.headers;
        let is_part = headers.contains_key(CONTENT_RANGE)
            || head.status == StatusCode::PARTIAL_CONTENT
            || head.status == StatusCode::RANGE_NOT_SATISFIABLE;
        let Some(coding) = coding(headers).filter(|_| self.replaced.is_some() && !is_part) else {
            return CodingAction::Passed;
        };
        // The client has other dictionaries, if any.
        if coding.is_of_dictionary() && self.dictionary.is_none() {
            return CodingAction::Passed;
        }
        let is_accepted =
            !is_learned && !coding.is_of_dictionary() && self.accepted.choose(&[coding]).is_some();
        if is_accepted || names_itself(headers, coding) {
            return CodingAction::Passed;
        }
        // Of two faults the smaller one: its client could not read a coding that only Eyelet asked
        // for.
        match self.can_repeat && fields::lists(headers, &CACHE_CONTROL, "no-transform") {
            true => CodingAction::Unwanted,
            false => CodingAction::Decoded(coding),
        }
    }
}

/// Eyelet's own codings, and all else that the client lists: servers know others, such as the
/// `svndiff1` of Subversion.
fn own_line(headers: &HeaderMap, has_dictionary: bool) -> HeaderValue {
    let own = if has_dictionary { OWN_WITH_DICTIONARY } else { OWN };
    let lines = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|line| line.to_str().ok());
    let elements = lines.flat_map(|line| line.split(',')).map(str::trim);
    let others = elements.filter(|element| {
        let name = element.split(';').next().unwrap_or_default().trim();
        let is_own = Coding::of_name(name).is_some() || name.eq_ignore_ascii_case("x-gzip");
        !name.is_empty() && !is_own
    });
    let all: Vec<&str> = [own].into_iter().chain(others).collect();
    HeaderValue::from_str(&all.join(", ")).unwrap_or(HeaderValue::from_static(own))
}

/// The dictionary for a request. A page must not learn another origin's response from its length
/// (RFC 9842 section 9.3.3).
fn find(
    inner: &Inner,
    origin: &LearnedOrigin,
    uri: &Uri,
    headers: &HeaderMap,
) -> Option<Arc<Learned>> {
    if !offer::may_use(headers, &HeaderMap::new()) {
        return None;
    }
    let destination = headers.get(SEC_FETCH_DEST).and_then(|value| value.to_str().ok());
    let found = inner.shared.find_learned(origin, uri.path(), destination, now())?;
    // Its decoder has a copy.
    inner.has_room(DECODER_BYTES_MAX + found.body.len()).then_some(found)
}

/// Adds the fields that name a dictionary.
fn name_dictionary(headers: &mut HeaderMap, dictionary: &Learned) -> bool {
    let Some(value) = available::field(dictionary.hash) else { return false };
    headers.insert(AVAILABLE_DICTIONARY, value);
    if let Some(id) = UseAs::id_field(&dictionary.use_as.id) {
        headers.insert(DICTIONARY_ID, id);
    }
    true
}

/// The only coding of a response, if Eyelet can undo it. `x-gzip` is the label that Apache's
/// `AddEncoding` gives to stored files; who negotiates says `gzip`.
fn coding(headers: &HeaderMap) -> Option<Coding> {
    let mut lines = headers.get_all(CONTENT_ENCODING).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return None };
    Coding::of_name(line.to_str().ok()?.trim())
}

fn names_itself(headers: &HeaderMap, coding: Coding) -> bool {
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = text.split(';').next().unwrap_or_default().trim();
    TYPES_OF_CODINGS.iter().any(|(of, name)| *of == coding && essence.eq_ignore_ascii_case(name))
}
