//! `/held`: the connections that are held, and the request to decide about one question.

use eyelet_telemetry::held::HeldVerdict;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Response, StatusCode};

use crate::query::{KeepAsked, QueryFault, VerdictAsked, repeated_key, unknown_key};
use crate::routes::{Answers, Content, Document, json, text};

/// The prefix of all paths of this file.
pub(crate) const PATH: &str = "/held";
/// The keys that a query may have.
const KEYS: &str = "verdict, for or always";
/// Answers a permitted request. `of` is what follows [`PATH`].
pub(crate) fn answer(
    answers: &dyn Answers,
    method: &Method,
    of: &str,
    query: Option<&str>,
) -> Response<Content> {
    let id = of.strip_prefix('/').map(str::parse::<u64>);
    match (id, method) {
        (None, &Method::GET | &Method::HEAD) if of.is_empty() => {
            json(answers.document(Document::Held))
        }
        (None, _) if of.is_empty() => allowed("GET, HEAD"),
        (Some(Ok(id)), &Method::POST) => match asked(query.unwrap_or("")) {
            Ok(asked) => decided(answers.decide(id, asked)),
            Err(why) => text(StatusCode::BAD_REQUEST, why),
        },
        (Some(Ok(_)), _) => allowed("POST"),
        _ => text(StatusCode::NOT_FOUND, "no such page\n"),
    }
}

fn decided(decided: Option<Result<String, String>>) -> Response<Content> {
    match decided {
        Some(Ok(line)) => text(StatusCode::OK, format!("{line}\n")),
        Some(Err(why)) => text(StatusCode::CONFLICT, format!("{why}\n")),
        None => text(StatusCode::SERVICE_UNAVAILABLE, "the process ends\n"),
    }
}

fn allowed(methods: &'static str) -> Response<Content> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, format!("{methods}\n"));
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    response
}

/// Reads a query. Each key may occur once.
fn asked(query: &str) -> Result<VerdictAsked, QueryFault> {
    let (mut verdict, mut keep, mut seen) = (None, KeepAsked::Once, Vec::new());
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        if seen.contains(&key) {
            return Err(repeated_key(&key));
        }
        match &*key {
            "verdict" => {
                let all = HeldVerdict::ALL.iter().copied();
                verdict = all.into_iter().find(|one| one.name() == value);
            }
            "for" => keep = KeepAsked::of(&value).map_err(|why| format!("for: {why}\n"))?,
            "always" => keep = KeepAsked::Always,
            other => return Err(unknown_key(other, KEYS)),
        }
        seen.push(key);
    }
    let has = |key: &str| seen.iter().any(|known| known == key);
    if has("for") && has("always") {
        return Err("for, or always\n".into());
    }
    match verdict {
        Some(HeldVerdict::Refuse) if has("always") => {
            Err("always: a list has what is allowed\n".into())
        }
        Some(verdict) => Ok(VerdictAsked { verdict, keep }),
        None => Err("verdict: allow or refuse\n".into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_query_has_one_verdict() {
        let allow = |keep| Ok(VerdictAsked { verdict: HeldVerdict::Allow, keep });
        let hour = KeepAsked::For(Duration::from_secs(3600));
        for (query, expected) in [
            ("verdict=allow", allow(KeepAsked::Once)),
            ("verdict=allow&for=1h", allow(hour)),
            ("always&verdict=allow", allow(KeepAsked::Always)),
        ] {
            assert_eq!(asked(query), expected, "{query}");
        }
        for wrong in [
            "",
            "verdict=",
            "verdict=no",
            "verdict=allow&verdict=refuse",
            "verdict=allow&for=0s",
            "verdict=allow&for=99years",
            "verdict=allow&for=1h&always",
            "verdict=refuse&always",
            "verdict=allow&name=a",
        ] {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
    }
}
