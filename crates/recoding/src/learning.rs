//! Dictionaries of an edge that is a client: which of its responses become one, and what a response
//! was coded with.

use std::sync::Arc;

use eyelet_compress::Coding;
use eyelet_compress::dictionary::learned::{Learned, LearnedOrigin, NewDictionary};
use eyelet_compress::dictionary::use_as::{UseAs, may_learn};
use eyelet_memory::budget::{Account, Budget, Counted};
use http::response;

use super::dictionaries::freshness::{fresh_seconds, now};
use super::dictionaries::hash::hash;
use super::dictionaries::shared::SharedDictionaries;
use super::dictionaries::stored::learned_file;

/// Shortest dictionary in bytes: the coding's header alone has 40.
const BODY_BYTES_MIN: usize = 128;

/// The coding of a response, which is decoded_coding.
pub struct DecodedCoding {
    pub coding: Coding,
    /// Its dictionary, if it has one.
    pub dictionary: Option<Arc<Learned>>,
}

/// A response in transit that becomes a dictionary.
pub(super) struct Learning {
    origin: LearnedOrigin,
    use_as: UseAs,
    fresh_until: u64,
    body: Vec<u8>,
    bytes_max: usize,
    budget: Arc<Budget>,
    counted: Counted,
}

impl Learning {
    /// A response that says for which paths it is a dictionary. `None`: it says nothing, or it may
    /// not be kept.
    pub(super) fn new(
        shared: &SharedDictionaries,
        origin: &LearnedOrigin,
        has_credentials: bool,
        head: &response::Parts,
    ) -> Option<Self> {
        let use_as = UseAs::read(&head.headers)?;
        if !may_learn(has_credentials, head.status, &head.headers) {
            return None;
        }
        let fresh_until = now() + fresh_seconds(&head.headers)?;
        let (origin, budget) = (origin.clone(), shared.budget().clone());
        let counted = Counted::of(&budget, Account::Compression, 0);
        let (body, bytes_max) = (Vec::new(), shared.learned_bytes_max());
        Some(Self { origin, use_as, fresh_until, body, bytes_max, budget, counted })
    }

    /// Adds a piece. Returns `false` if the body is too long, or memory is short.
    pub(super) fn take(&mut self, piece: &[u8]) -> bool {
        if self.body.len() + piece.len() > self.bytes_max || self.budget.is_filling(piece.len()) {
            return false;
        }
        self.body.extend_from_slice(piece);
        self.counted.set(self.body.capacity());
        true
    }

    /// Keeps a body that is whole.
    pub(super) fn end(self, shared: &SharedDictionaries) {
        let Self { origin, use_as, fresh_until, mut body, .. } = self;
        if body.len() >= BODY_BYTES_MIN {
            body.shrink_to_fit();
            let (file, hash) = (learned_file(&origin, &use_as), hash(&body));
            shared.learn(NewDictionary {
                origin,
                use_as,
                file,
                hash,
                body: body.into(),
                fresh_until,
            });
        }
    }
}
