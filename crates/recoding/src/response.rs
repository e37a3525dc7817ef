//! The response's side: whether and how it is coded, and how its fields change.

use eyelet_compress::accept::AcceptedCodings;
use eyelet_compress::breach::{self, Breach};
use eyelet_compress::dictionary::store::Step;
use eyelet_compress::dictionary::{DICTIONARY_BYTES_MAX, offer};
use eyelet_compress::eligible::{
    self, ContentKind, DecidingFields, LENGTH_MIN, LENGTH_MIN_TRAINED, ResponseHead,
};
use eyelet_compress::pool::Lent;
use eyelet_compress::{Beginning, Coding, Effort, WhyNot, validators};
use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderName, HeaderValue,
};
use http::{HeaderMap, StatusCode, response::Parts};

use super::coder::{Coder, Held, History, delta_now_bytes_max};
use super::compressors::{BodyInfo, Compressors, is_bodiless};
use super::dictionaries::jobs::Capture;
use super::near::{Near, Outcome};
use super::request::{RequestCodings, Wanted, WantedDictionaries};

/// The parts of a head that decide if its response passes unchanged.
pub struct PassingHead<'a> {
    /// The status.
    pub status: StatusCode,
    /// The fields that decide.
    pub fields: DecidingFields<'a>,
    /// The value of its ETag.
    pub etag: Option<&'a [u8]>,
}

impl RequestCodings {
    /// True if a response to the request may pass by its lines: whether it is coded depends on
    /// no more than [`PassingHead`].
    pub fn may_pass_lines(&self) -> bool {
        let depends = |wanted: &Wanted| wanted.dictionaries.is_some() || wanted.length_hiding > 0;
        self.near.is_none() && !self.wanted.as_ref().is_some_and(depends)
    }
}

impl Compressors {
    /// Called with each response's final head. `first` is the part of the body that has arrived;
    /// all of it goes through the coder again.
    pub fn response(
        &self,
        asked: &RequestCodings,
        head: &mut Parts,
        body: Option<BodyInfo>,
        first: &[u8],
    ) -> Coder {
        if let Some(near) = &asked.near {
            return self.near(asked.rule, near, head, body.is_some());
        }
        let Some(wanted) = &asked.wanted else { return Coder::as_is(self, WhyNot::Off) };
        if let Some(tag) = head.headers.get(ETAG) {
            self.inner.tags.borrow_mut().note(asked.rule, tag.as_bytes());
        }
        let coder = match body {
            Some(body) => {
                let beginning = Beginning { length: body.length, complete: body.complete, first };
                self.of_body(wanted, head, &beginning)
            }
            None => {
                let effort = wanted.effort.unwrap_or_else(|| self.inner.pace.effort());
                bodiless(wanted, effort, head);
                Coder::as_is(self, WhyNot::NoContent)
            }
        };
        hide_length(&mut head.headers, wanted.length_hiding);
        coder
    }

    /// The reason why a response passes unchanged, by the fields that decide. `None`: its head may
    /// change, so all of it must be read.
    pub fn passing(
        &self,
        asked: &RequestCodings,
        head: &PassingHead<'_>,
        body: &Beginning<'_>,
    ) -> Option<WhyNot> {
        if !asked.may_pass_lines() {
            return None;
        }
        let Some(wanted) = &asked.wanted else { return Some(WhyNot::Off) };
        if let Some(tag) = head.etag {
            self.inner.tags.borrow_mut().note(asked.rule, tag);
        }
        let judged = (head.status, body.known_length());
        let fields = &head.fields;
        let eligible = fields
            .judge(judged, self.length_min(wanted), wanted.event_streams)
            .and_then(|kind| eligible::by_first_bytes(kind, body));
        // A part of a response that may be coded has its Vary.
        let is_part = head.status == StatusCode::PARTIAL_CONTENT;
        eligible.err().filter(|_| !is_part)
    }

    /// Says the same as [`Compressors::wants_first`], by the fields that decide.
    pub fn wants_first_of(
        &self,
        asked: &RequestCodings,
        head: &PassingHead<'_>,
        length: u64,
    ) -> bool {
        let Some(wanted) = &asked.wanted else { return false };
        let judged = (head.status, Some(length));
        head.fields.judge(judged, self.length_min(wanted), wanted.event_streams).is_ok()
    }

    /// True if to wait for the first bytes of a body before its head, because it may be coded.
    pub fn wants_first(&self, asked: &RequestCodings, head: &Parts, length: Option<u64>) -> bool {
        if let Some(near) = &asked.near {
            return near.wants_first(head);
        }
        // A body without a length may be an event stream, whose head opens it.
        let (Some(wanted), Some(_)) = (&asked.wanted, length) else { return false };
        let head = ResponseHead { status: head.status, headers: &head.headers, length };
        eligible::by_head(head, self.length_min(wanted), wanted.event_streams).is_ok()
    }

    /// The coder of a response whose coding may be decoded.
    fn near(&self, rule: u32, near: &Near, head: &mut Parts, has_body: bool) -> Coder {
        let is_coded = head.headers.contains_key(CONTENT_ENCODING);
        let Outcome { decoded_coding, learning } = near.response(&self.inner, rule, head);
        let why = match &decoded_coding {
            _ if !has_body => WhyNot::NoContent,
            Some(decoded_coding) => WhyNot::Decoded(decoded_coding.coding),
            None if is_coded => WhyNot::Coded,
            None => WhyNot::Passed,
        };
        let mut coder = Coder::as_is(self, why);
        if has_body {
            coder.undoes = decoded_coding.map(Box::new);
            coder.learning = learning.map(Box::new);
        }
        coder
    }

    fn length_min(&self, wanted: &Wanted) -> u64 {
        match &wanted.dictionaries {
            None => LENGTH_MIN,
            Some(_) if self.inner.trained(wanted.rule).is_some() => LENGTH_MIN_TRAINED,
            Some(dictionaries) => dictionaries.learning.length_min(),
        }
    }

    fn of_body(&self, wanted: &Wanted, head: &mut Parts, body: &Beginning<'_>) -> Coder {
        let length = body.known_length();
        let (status, headers) = (head.status, &mut head.headers);
        let judged = ResponseHead { status, headers, length };
        let eligible = eligible::by_head(judged, self.length_min(wanted), wanted.event_streams)
            .and_then(|kind| eligible::by_first_bytes(kind, body));
        if let Err(why) = eligible {
            vary_part(wanted, status, headers);
            return Coder::as_is(self, why);
        }
        // From here on another client, or the same one with another dictionary, may get another
        // body.
        let why = attackable(wanted, headers).map(WhyNot::Breach);
        if let Some(why) = why.or(wanted.no_transform.then_some(WhyNot::NoTransform)) {
            vary(wanted, headers);
            return Coder::as_is(self, why);
        }
        // Responses that are not coded take nothing from the pool. The tick counts for them.
        self.recount();
        let capture = self.offer(wanted, status, headers, length);
        vary(wanted, headers);
        let mut coder = match self.code(wanted, headers, body) {
            Ok((coder, coding)) => {
                validators::code(headers, coding);
                coder
            }
            Err(why) => Coder::as_is(self, why),
        };
        self.recount();
        coder.capture = capture.map(Box::new);
        coder
    }

    /// Adds the fields about dictionaries. Returns the capture, if this response becomes one.
    fn offer(
        &self,
        wanted: &Wanted,
        status: StatusCode,
        headers: &mut HeaderMap,
        length: Option<u64>,
    ) -> Option<Capture> {
        if let Some(trained) = self.inner.trained(wanted.rule)
            && status == StatusCode::OK
        {
            let known = wanted.dictionaries.as_ref();
            let path = known.map_or("/", |known| known.path.path());
            let available = known.and_then(|known| known.available);
            let html = headers
                .get(CONTENT_TYPE)
                .is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
            for dictionary in trained.iter() {
                let is_known = available == Some(dictionary.hash);
                if !is_known && (html || dictionary.pattern.matches(path)) {
                    offer::link(headers, &offer::own_path(dictionary.hash));
                }
            }
        }
        let WantedDictionaries { path, family, learning, fields, .. } =
            wanted.dictionaries.as_deref()?;
        let family = family.as_ref()?;
        let offered = ResponseHead { status, headers, length };
        if !offer::may_become(*learning, fields, offered) {
            return None;
        }
        let capture = self.inner.shared.capture(&self.inner.pool, family, path.as_str(), offered);
        offer::offer(headers, &family.pattern);
        capture
    }

    fn code(
        &self,
        wanted: &Wanted,
        headers: &HeaderMap,
        body: &Beginning<'_>,
    ) -> Result<(Coder, Coding), WhyNot> {
        let length = body.known_length();
        let effort = wanted.effort.unwrap_or_else(|| self.inner.pace.effort());
        let history = self.history(wanted, headers, length);
        let [first, second, third] = preference(effort);
        let chosen = match history {
            Some(_) => wanted.accepted.choose(&[Coding::Dcz, Coding::Dcb, first, second, third]),
            None => wanted.accepted.choose(&[first, second, third]),
        };
        let chosen = chosen.ok_or(WhyNot::NotAccepted)?;
        if let Some(history) = history
            && chosen.is_of_dictionary()
            && let Some(coder) = self.with_history(history, chosen, effort, body)
        {
            return Ok((coder, chosen));
        }
        if length.is_some_and(|length| length < LENGTH_MIN) {
            return Err(WhyNot::Short);
        }
        let (lent, coding) = self.lend(&wanted.accepted, effort, length)?;
        Ok((Coder::stream(self, lent, coding, None), coding))
    }

    /// The dictionary that the client has, if it is ours, of this origin, and may be used.
    fn history(
        &self,
        wanted: &Wanted,
        headers: &HeaderMap,
        length: Option<u64>,
    ) -> Option<History> {
        let WantedDictionaries { path, family, available, fields, .. } =
            wanted.dictionaries.as_deref()?;
        let (hash, path) = ((*available)?, path.as_str());
        let coding = wanted.accepted.choose(&[Coding::Dcz, Coding::Dcb])?;
        if !offer::may_use(fields, headers) {
            return None;
        }
        let shared = &self.inner.shared;
        if let Some(trained) = self.inner.trained(wanted.rule)
            && let Some(dictionary) = trained.iter().find(|dictionary| dictionary.hash == hash)
        {
            return Some(History::Trained(dictionary.clone()));
        }
        let family = family.as_ref()?;
        let length = usize::try_from(length?).ok().filter(|len| *len <= DICTIONARY_BYTES_MAX)?;
        let version = shared.version(family, hash)?;
        // A large delta takes longer than a response may wait, so it must exist already, unless the
        // client has these very bytes. The length is that of the version last seen at this path.
        // Its hash is checked at the end.
        let ready = version.body.len() + length <= delta_now_bytes_max(coding)
            || shared.last_at(family, path).is_some_and(|last| {
                let step = Step { from: hash, to: last.hash, coding };
                last.body.len() == length
                    && (step.is_unchanged() && coding == Coding::Dcz || shared.has_delta(step))
            });
        if !ready {
            shared.ask_for_delta(family, hash, path, coding);
        }
        ready.then(|| History::Version(version, family.clone()))
    }

    fn with_history(
        &self,
        history: History,
        coding: Coding,
        effort: Effort,
        body: &Beginning<'_>,
    ) -> Option<Coder> {
        let pool = &self.inner.pool;
        let length = body.known_length().and_then(|length| usize::try_from(length).ok());
        match (history, length) {
            (History::Trained(trained), length) if length.is_none_or(|it| it > WHOLE_BYTES_MAX) => {
                let lent = pool.lend_with(coding, effort, &trained.content)?;
                Some(Coder::stream(self, lent, coding, Some(trained.hash)))
            }
            (history, Some(length)) => {
                let share = pool.share(length)?;
                Some(Coder::held(self, Held::new(history, coding, length, share)))
            }
            (_, None) => None,
        }
    }

    /// A coder within the budget: the client's choice at this effort, else at a lower one, else
    /// another coding.
    fn lend(
        &self,
        accepted: &AcceptedCodings,
        effort: Effort,
        length: Option<u64>,
    ) -> Result<(Lent, Coding), WhyNot> {
        let mut left = preference(effort).to_vec();
        while let Some(coding) = accepted.choose(&left) {
            for effort in no_harder_than(effort) {
                if let Some(lent) = self.inner.pool.lend(coding, *effort, length) {
                    return Ok((lent, coding));
                }
            }
            left.retain(|other| *other != coding);
        }
        Err(WhyNot::NoCompressorFree)
    }
}

/// The order of codings that a client accepts equally. At high effort brotli has fewer bytes than
/// zstd at the same cost. Otherwise zstd has half of gzip's cost at no more bytes, and gzip half of
/// brotli's.
const fn preference(effort: Effort) -> [Coding; 3] {
    match effort {
        Effort::Small => [Coding::Br, Coding::Zstd, Coding::Gzip],
        Effort::Even | Effort::Fast => [Coding::Zstd, Coding::Gzip, Coding::Br],
    }
}

const fn no_harder_than(effort: Effort) -> &'static [Effort] {
    match effort {
        Effort::Small => &[Effort::Small, Effort::Even, Effort::Fast],
        Effort::Even => &[Effort::Even, Effort::Fast],
        Effort::Fast => &[Effort::Fast],
    }
}

/// Returns the reason why the BREACH rule forbids compressing a response.
fn attackable(wanted: &Wanted, headers: &HeaderMap) -> Option<Breach> {
    wanted.breach.filter(|_| !breach::is_for_all(headers))
}

/// Adds to Vary what another response may depend on. A 200 and its 206 and 304 have the same (RFC
/// 9110 15.3.7 and 15.4.5).
fn vary(wanted: &Wanted, headers: &mut HeaderMap) {
    let is_coded = !wanted.no_transform && attackable(wanted, headers).is_none();
    if wanted.dictionaries.is_some() && is_coded {
        offer::vary_by_dictionary(headers);
    } else {
        validators::vary(headers, &[ACCEPT_ENCODING]);
    }
}

/// Gives a 206 the Vary of its 200 (RFC 9110 section 15.3.7).
fn vary_part(wanted: &Wanted, status: StatusCode, headers: &mut HeaderMap) {
    if eligible::is_part_of_coded(status, headers, wanted.event_streams) {
        vary(wanted, headers);
    }
}

/// Gives HEAD the fields that GET would have (RFC 9110 section 9.3.2), as far as they are known
/// without a body, and 304 those of its 200.
fn bodiless(wanted: &Wanted, effort: Effort, head: &mut Parts) {
    let (status, headers) = (head.status, &mut head.headers);
    if is_bodiless(status) {
        if status == StatusCode::NOT_MODIFIED {
            if wanted.tags_restored {
                validators::weaken(headers);
            }
            // A 304 rarely has the type of its 200, which may be one that is coded.
            let of_200 = ResponseHead { status: StatusCode::OK, headers, length: None };
            let may_be = !headers.contains_key(CONTENT_TYPE)
                || eligible::by_head(of_200, 0, wanted.event_streams).is_ok();
            if wanted.tags_restored || may_be {
                vary(wanted, headers);
            }
        }
        return;
    }
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let of_get = ResponseHead { status, headers, length };
    let kind = eligible::by_head(of_get, LENGTH_MIN, wanted.event_streams);
    if !wanted.is_head || !matches!(kind, Ok(ContentKind::Compressible | ContentKind::EventStream))
    {
        return vary_part(wanted, status, headers);
    }
    vary(wanted, headers);
    if attackable(wanted, headers).is_some() || wanted.no_transform {
        return;
    }
    let of_get = ResponseHead { status, headers, length };
    if let Some(dictionaries) = &wanted.dictionaries
        && let Some(family) = &dictionaries.family
        && offer::may_become(dictionaries.learning, &dictionaries.fields, of_get)
    {
        offer::offer(headers, &family.pattern);
    }
    if let Some(coding) = wanted.accepted.choose(&preference(effort)) {
        validators::code(headers, coding);
    }
}

/// Adds a field of random length. It covers every coding, and responses that are not coded.
fn hide_length(headers: &mut HeaderMap, bytes_max: usize) {
    if bytes_max == 0 {
        return;
    }
    let mut random = [0; 2];
    // Without randomness there would be no TLS either.
    if aws_lc_rs::rand::fill(&mut random).is_err() {
        return;
    }
    let length = usize::from(u16::from_le_bytes(random)) % (bytes_max + 1);
    // A character that HPACK does not shorten: X has exactly 8 bits.
    let value = HeaderValue::from_str(&"X".repeat(length));
    headers.insert(PADDING, value.unwrap_or(HeaderValue::from_static("")));
}

const PADDING: HeaderName = HeaderName::from_static("x-padding");

/// Most bytes of a body that is held, to be coded in one step with a prepared dictionary.
const WHOLE_BYTES_MAX: usize = 256 << 10;
