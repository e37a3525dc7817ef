//! A document with an object for each of many things. It is written in pieces, as fast as its
//! client reads: an edge may have 50,000 certificates.

use std::iter;

use serde_json::Value;

use crate::query::{QueryFault, repeated_key, unknown_key};

/// A piece begins no further object once it has so many bytes: about 100 certificates, which take
/// about a millisecond of the server's thread. An object has a few hundred bytes; that of a
/// certificate with many names may have as many as the largest certificate, 64 KiB.
const PIECE_BYTES: usize = 32 << 10;

/// Objects of a sorted document where the request names no limit.
const SORTED: usize = 100;
/// Certificates that can be asked for in the order of their expiry: the edge remembers so many.
pub const SOONEST_MAX: usize = 100;
/// Rules that can be asked for in an order by their hits: 1,000 are about 120 KiB.
const BUSIEST_MAX: usize = 1_000;

/// The subject of such a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// `/rules`: how often each rule decided.
    Rule,
    /// `/certificates`: names, expiry, origin.
    Certificate,
}

/// The key by which a document is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortKey {
    /// Rules with the most hits first.
    Hits,
    /// Rules that were hit last first.
    LastHit,
    /// Certificates that cannot be read, then those that expire first.
    Expiry,
}

/// A document with a part of its objects, in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sorted {
    /// The key by which they are sorted.
    pub by: SortKey,
    /// The largest number of them.
    pub limit: usize,
}

impl ObjectKind {
    /// The order that a query asks for. `None`: all objects, in their own order.
    pub(crate) fn sorted(self, query: &str) -> Result<Option<Sorted>, QueryFault> {
        let (mut sort, mut limit) = (None, None);
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*key {
                "sort" if sort.is_some() => return Err(repeated_key("sort")),
                "sort" => sort = Some(self.sort_key(&value)?),
                "limit" if limit.is_some() => return Err(repeated_key("limit")),
                "limit" => limit = Some(value.parse().map_err(|_| "limit: a number\n")?),
                other => return Err(unknown_key(other, "sort or limit")),
            }
        }
        let Some(by) = sort else {
            return if limit.is_some() {
                Err("limit: for a sorted list\n".into())
            } else {
                Ok(None)
            };
        };
        let limit = limit.unwrap_or(SORTED);
        match self {
            Self::Rule if limit > BUSIEST_MAX => Err("limit: at most 1000 rules\n".into()),
            Self::Certificate if limit > SOONEST_MAX => {
                Err("limit: at most 100 certificates\n".into())
            }
            Self::Rule | Self::Certificate => Ok(Some(Sorted { by, limit })),
        }
    }

    fn sort_key(self, value: &str) -> Result<SortKey, &'static str> {
        match (self, value) {
            (Self::Rule, "hits") => Ok(SortKey::Hits),
            (Self::Rule, "last_hit") => Ok(SortKey::LastHit),
            (Self::Rule, _) => Err("sort: hits or last_hit\n"),
            (Self::Certificate, "expiry") => Ok(SortKey::Expiry),
            (Self::Certificate, _) => Err("sort: expiry\n"),
        }
    }
}

/// The document: one member, if any, then an array with an object a line.
pub struct Objects {
    /// Stands before the array.
    pub first: Option<(&'static str, Value)>,
    /// The name of the array.
    pub name: &'static str,
    /// Each is made when its turn comes.
    pub objects: Box<dyn Iterator<Item = Value> + Send>,
}

/// The document in pieces. An object is made when its piece is asked for.
pub(crate) fn pieces(of: Objects) -> impl Iterator<Item = Vec<u8>> {
    let Objects { first, name, objects } = of;
    let first = first.map(|(name, value)| format!("\"{name}\":{value},\n")).unwrap_or_default();
    let before = iter::once("\n").chain(iter::repeat(",\n"));
    let objects = before.zip(objects).map(|(before, object)| format!("{before}{object}"));
    let begin = iter::once(format!("{{\n{first}\"{name}\":["));
    let mut texts = begin.chain(objects).chain(iter::once("\n]\n}\n".to_owned()));
    iter::from_fn(move || {
        let mut piece = Vec::new();
        while piece.len() < PIECE_BYTES
            && let Some(text) = texts.next()
        {
            piece.extend_from_slice(text.as_bytes());
        }
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use serde_json::json;

    use super::*;

    fn counted(
        count: usize,
        first: Option<(&'static str, Value)>,
    ) -> (impl Iterator<Item = Vec<u8>>, Arc<AtomicUsize>) {
        let made = Arc::new(AtomicUsize::new(0));
        let counted = made.clone();
        let objects = (0..count).map(move |number| {
            counted.fetch_add(1, Relaxed);
            json!({ "number": number, "text": "a".repeat(200) })
        });
        let of = Objects { first, name: "all", objects: Box::new(objects) };
        (pieces(of), made)
    }

    #[test]
    fn no_object_is_made_before_its_piece_is_asked_for() {
        let (mut pieces, made) = counted(50_000, Some(("generation", json!(7))));
        assert_eq!(made.load(Relaxed), 0);
        let (mut text, mut count) = (Vec::new(), 0);
        loop {
            let before = made.load(Relaxed);
            let Some(piece) = pieces.next() else { break };
            assert!(piece.len() < PIECE_BYTES + 300, "{}", piece.len());
            assert!(made.load(Relaxed) - before <= PIECE_BYTES / 200);
            (text, count) = ([text, piece].concat(), count + 1);
        }
        assert!(count > 300, "{count}");
        let whole: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(whole["generation"], 7);
        let all = whole["all"].as_array().unwrap();
        assert_eq!((all.len(), &all[49_999]["number"]), (50_000, &json!(49_999)));
    }

    #[test]
    fn a_sorted_document_has_a_limit() {
        let (rule, certificate) = (ObjectKind::Rule, ObjectKind::Certificate);
        let hits = |limit| Some(Some(Sorted { by: SortKey::Hits, limit }));
        let last = |limit| Some(Some(Sorted { by: SortKey::LastHit, limit }));
        let expiry = |limit| Some(Some(Sorted { by: SortKey::Expiry, limit }));
        for (of, query, expected) in [
            (rule, "", Some(None)),
            (rule, "sort=hits", hits(SORTED)),
            (rule, "limit=1000&sort=hits", hits(1_000)),
            (rule, "sort=last_hit&limit=1000", last(1_000)),
            (rule, "sort=hits&limit=1001", None),
            (rule, "sort=expiry", None),
            (rule, "limit=5", None),
            (rule, "sort=hits&sort=hits", None),
            (rule, "sort=hits&limit=1&limit=2", None),
            (rule, "sort=hits&limit=-1", None),
            (rule, "all", None),
            (certificate, "sort=expiry&limit=3", expiry(3)),
            (certificate, "sort=expiry&limit=101", None),
            (certificate, "sort=hits", None),
        ] {
            assert_eq!(of.sorted(query).ok(), expected, "{query}");
        }
        // An error speaks of what was asked for alone.
        for (of, query, why) in [
            (rule, "sort=expiry", "sort: hits or last_hit\n"),
            (rule, "sort=hits&limit=1001", "limit: at most 1000 rules\n"),
            (certificate, "sort=hits", "sort: expiry\n"),
            (certificate, "sort=expiry&limit=101", "limit: at most 100 certificates\n"),
            (certificate, "sorted=expiry", "\"sorted\" is not a key; expected sort or limit\n"),
            (rule, "limit=1&limit=2", "\"limit\" occurs twice\n"),
        ] {
            assert_eq!(of.sorted(query), Err(why.into()), "{query}");
        }
    }

    #[test]
    fn a_document_without_objects_is_whole() {
        let whole: Value = serde_json::from_slice(&counted(0, None).0.next().unwrap()).unwrap();
        assert_eq!(whole, json!({ "all": [] }));
    }
}
