//! Use-As-Dictionary (RFC 9842 section 2.1), as a client reads it: for which paths a response is a
//! dictionary. And which responses a client that others share may keep as one.

use http::header::{
    AUTHORIZATION, CACHE_CONTROL, COOKIE, HeaderMap, PROXY_AUTHORIZATION, SET_COOKIE, VARY,
};
use http::{HeaderValue, StatusCode};

use super::offer::USE_AS_DICTIONARY;
use super::pattern::Pattern;
use crate::breach::is_for_all;
use crate::fields::{are_readable, has_directive};

/// Most bytes of the field: a pattern, and an id of 1,024 characters.
const FIELD_BYTES_MAX: usize = 4 << 10;
/// Most characters of an id (section 2.1.3).
pub(crate) const ID_CHARS_MAX: usize = 1024;
/// Most request destinations: there are some twenty in all.
pub(crate) const DESTINATIONS_MAX: usize = 32;

/// Fields of Vary that say nothing of who the client is, beside `sec-fetch-*`.
const VARY_OF_ALL: [&str; 2] = ["accept-encoding", "available-dictionary"];

/// The contents of the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UseAs {
    /// The paths that the dictionary is for.
    pub pattern: Pattern,
    /// The request destinations that it is for. Empty: all.
    pub destinations: Vec<Box<str>>,
    /// The id that the client sends back in Dictionary-ID. Empty: nothing.
    pub id: Box<str>,
}

impl UseAs {
    /// Restores what was read before. `None`: it is not what a field can say.
    pub fn of(pattern: &str, destinations: Vec<Box<str>>, id: Box<str>) -> Option<Self> {
        let pattern = Pattern::new(pattern).ok()?;
        let is_text = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        let is_bounded = destinations.len() <= DESTINATIONS_MAX && id.len() <= ID_CHARS_MAX;
        let is_read = is_bounded && is_text(&id) && destinations.iter().all(|one| is_text(one));
        is_read.then_some(Self { pattern, destinations, id })
    }

    /// Reads the field. `None`: there is none, it is malformed, or its pattern is one that we do
    /// not match (section 2.1.1 lets a client ignore it).
    pub fn read(headers: &HeaderMap) -> Option<Self> {
        let mut lines = headers.get_all(&USE_AS_DICTIONARY).iter();
        let (Some(line), None) = (lines.next(), lines.next()) else { return None };
        Self::parse(line.to_str().ok().filter(|line| line.len() <= FIELD_BYTES_MAX)?)
    }

    /// Reads a dictionary of structured fields (RFC 9651 section 3.2). A key that comes again
    /// counts as it comes last.
    fn parse(line: &str) -> Option<Self> {
        let (mut pattern, mut destinations, mut id) = (None, Vec::new(), String::new());
        let mut left = Left(line.trim_matches(' '));
        loop {
            let key = left.key()?;
            let value = match left.take('=') {
                true => left.value()?,
                false => Value::Other,
            };
            left.parameters()?;
            match (key, value) {
                ("match", Value::Text(text)) => pattern = Some(Pattern::new(&text).ok()?),
                ("match-dest", Value::List(list)) => destinations = list,
                ("id", Value::Text(text)) if text.len() <= ID_CHARS_MAX => id = text,
                ("type", Value::Token("raw")) => {}
                // Another type, or a value that is not what section 2.1 says.
                ("match" | "match-dest" | "id" | "type", _) => return None,
                _ => {}
            }
            left.blanks();
            if left.0.is_empty() {
                break;
            }
            if !left.take(',') {
                return None;
            }
            left.blanks();
        }
        Some(Self { pattern: pattern?, destinations, id: id.into() })
    }

    /// Dictionary-ID for a request (section 2.3).
    pub fn id_field(id: &str) -> Option<HeaderValue> {
        let escaped = id.replace('\\', "\\\\").replace('"', "\\\"");
        HeaderValue::from_str(&format!("\"{escaped}\"")).ok().filter(|_| !id.is_empty())
    }
}

/// True if a request says who its client is.
pub fn has_credentials(request: &HeaderMap) -> bool {
    [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION].iter().any(|name| request.contains_key(name))
}

/// True if a response may become a dictionary for requests of other clients. A response to
/// credentials is one client's, unless it says that it is everybody's.
pub fn may_learn(has_credentials: bool, status: StatusCode, response: &HeaderMap) -> bool {
    let has = |directive| has_directive(response, &CACHE_CONTROL, directive);
    status == StatusCode::OK
        && are_readable(response, &CACHE_CONTROL)
        && !response.contains_key(SET_COOKIE)
        && !["private", "no-store", "no-cache", "no-transform"].into_iter().any(has)
        && !is_of_some(response)
        && (!has_credentials || is_for_all(response))
}

/// True if Vary has a field that may tell one client from another, such as a key of an API.
fn is_of_some(response: &HeaderMap) -> bool {
    response.get_all(VARY).iter().any(|line| {
        let mut names = line.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        names.any(|name| {
            let name = name.to_ascii_lowercase();
            let is_of_all = VARY_OF_ALL.iter().any(|known| known.as_bytes() == name);
            !name.is_empty() && !is_of_all && !name.starts_with(b"sec-fetch-")
        })
    })
}

enum Value<'a> {
    Text(String),
    Token(&'a str),
    List(Vec<Box<str>>),
    Other,
}

/// The text that is left to read.
struct Left<'a>(&'a str);

impl<'a> Left<'a> {
    fn blanks(&mut self) {
        self.0 = self.0.trim_start_matches([' ', '\t']);
    }

    fn take(&mut self, wanted: char) -> bool {
        let rest = self.0.strip_prefix(wanted);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    /// The characters at the front for which this holds.
    fn run(&mut self, holds: impl Fn(char) -> bool) -> &'a str {
        let at = self.0.find(|found| !holds(found)).unwrap_or(self.0.len());
        let (run, rest) = self.0.split_at(at);
        self.0 = rest;
        run
    }

    fn key(&mut self) -> Option<&'a str> {
        let is_of_key =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-.*".contains(c);
        let key = self.run(is_of_key);
        key.starts_with(|first: char| first.is_ascii_lowercase() || first == '*').then_some(key)
    }

    fn value(&mut self) -> Option<Value<'a>> {
        if !self.take('(') {
            return self.item();
        }
        let mut list = Vec::new();
        loop {
            self.0 = self.0.trim_start_matches(' ');
            if self.take(')') {
                return Some(Value::List(list));
            }
            match self.item()? {
                Value::Text(text) if list.len() < DESTINATIONS_MAX => list.push(text.into()),
                _ => return None,
            }
            self.parameters()?;
        }
    }

    fn item(&mut self) -> Option<Value<'a>> {
        match self.0.chars().next()? {
            '"' => self.text().map(Value::Text),
            'a'..='z' | 'A'..='Z' | '*' => {
                let is_of_token =
                    |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~:/".contains(c);
                Some(Value::Token(self.run(is_of_token)))
            }
            '0'..='9' | '-' => {
                self.run(|c| c.is_ascii_digit() || c == '-' || c == '.');
                Some(Value::Other)
            }
            '?' => {
                self.take('?');
                (self.take('0') || self.take('1')).then_some(Value::Other)
            }
            ':' => {
                self.take(':');
                self.run(|c| c.is_ascii_alphanumeric() || "+/=".contains(c));
                self.take(':').then_some(Value::Other)
            }
            _ => None,
        }
    }

    /// A text in quotation marks; `\` is before another one or a quotation mark only.
    fn text(&mut self) -> Option<String> {
        let mut text = String::new();
        let mut characters = self.0.char_indices().skip(1);
        while let Some((at, found)) = characters.next() {
            match found {
                '"' => {
                    self.0 = self.0.get(at + 1..)?;
                    return Some(text);
                }
                '\\' => {
                    text.push(characters.next().map(|(_, c)| c).filter(|c| "\\\"".contains(*c))?)
                }
                ' '..='~' => text.push(found),
                _ => return None,
            }
        }
        None
    }

    fn parameters(&mut self) -> Option<()> {
        while self.take(';') {
            self.0 = self.0.trim_start_matches(' ');
            self.key()?;
            if self.take('=') {
                self.item()?;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::properties::field_is_bounded;

    #[test]
    fn fields_as_a_table() {
        for (line, read) in [
            ("match=\"/a/*\"", Some(("/a/*", &[][..], ""))),
            (
                "match=\"/a\", match-dest=(\"document\" \"frame\"), id=\"x\\\"y\"",
                Some(("/a", &["document", "frame"], "x\"y")),
            ),
            ("id=\"1\",match=\"/a\";p=1;q , type=raw", Some(("/a", &[], "1"))),
            ("match=\"/a\", ttl=9, new=?1, b=:AAAA:, c", Some(("/a", &[], ""))),
            ("match=\"/a\", match-dest=()", Some(("/a", &[], ""))),
            ("match=\"/a\", match=\"/b\"", Some(("/b", &[], ""))),
            ("match=\"/a\", type=other", None),
            ("match=\"/a\",", None),
            ("match=/a", None),
            ("match=\"a\"", None),
            ("match=\"/(a)\"", None),
            ("match=\"/a", None),
            ("match=\"/a\" id=\"1\"", None),
            ("match=\"/a\", match-dest=(document)", None),
            ("Match=\"/a\"", None),
            ("id=\"1\"", None),
            ("", None),
        ] {
            let found = UseAs::parse(line);
            let found = found.as_ref().map(|read| {
                let destinations: Vec<&str> = read.destinations.iter().map(|one| &**one).collect();
                (read.pattern.as_str(), destinations, &*read.id)
            });
            let expected = read.map(|(pattern, dest, id)| (pattern, dest.to_vec(), id));
            assert_eq!(found, expected, "{line}");
            field_is_bounded(line.as_bytes());
        }
        assert_eq!(UseAs::id_field("x\"\\y").unwrap(), "\"x\\\"\\\\y\"");
        assert_eq!(UseAs::id_field(""), None);
    }

    #[test]
    fn no_clients_own_response_is_learned() {
        let head = |fields: &[(&'static str, &str)]| -> HeaderMap {
            let fields = fields
                .iter()
                .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()));
            fields.collect()
        };
        let fresh = ("cache-control", "max-age=600");
        let public = ("cache-control", "public, max-age=600");
        for (request, status, response, may) in [
            (&[][..], 200, &[fresh][..], true),
            (&[], 200, &[fresh, ("vary", "accept-encoding, available-dictionary")], true),
            (&[], 206, &[fresh], false),
            (&[("cookie", "a=b")], 200, &[fresh], false),
            (&[("authorization", "Basic eA==")], 200, &[fresh], false),
            (&[("authorization", "Bearer x")], 200, &[fresh], false),
            (&[("cookie", "a=b")], 200, &[public], true),
            (&[("authorization", "x")], 200, &[public], true),
            (&[("cookie", "a=b")], 200, &[public, ("set-cookie", "a=c")], false),
            (&[], 200, &[fresh, ("set-cookie", "a=b")], false),
            (&[], 200, &[("cache-control", "private, max-age=9")], false),
            (&[], 200, &[("cache-control", "no-store")], false),
            (&[], 200, &[("cache-control", "no-cache, max-age=9")], false),
            (&[], 200, &[fresh, ("vary", "Cookie")], false),
            (&[], 200, &[fresh, ("vary", "*")], false),
            (&[], 200, &[fresh, ("vary", "Accept-Encoding, X-Api-Key")], false),
            (&[], 200, &[public, ("vary", "Accept-Encoding"), ("vary", "X-Api-Key")], false),
            (&[], 200, &[fresh, ("vary", "Sec-Fetch-Site,, Accept-Encoding")], true),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let has_credentials = has_credentials(&head(request));
            let found = may_learn(has_credentials, status, &head(response));
            assert_eq!(found, may, "{request:?} {response:?}");
        }
    }
}
