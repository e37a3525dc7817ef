//! A worker's compressors: their pool, its memory limit, and dictionaries served as Eyelet's own
//! responses.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use eyelet_compress::pool::CompressorPool;
use eyelet_compress::{AcceptedCodings, Coding, WhyNot};
use http::{Method, Response, StatusCode, request::Parts};

use super::dictionaries::shared::{DictionaryRules, SharedDictionaries};
use super::dictionaries::trained::Trained;
use super::pace::Pace;
use super::tags::WeakTags;
use eyelet_config::Config;
use eyelet_memory::budget::{Account, Budget, Counted};

/// A worker's compressors. Clones share them.
#[derive(Clone)]
pub struct Compressors {
    pub(super) inner: Rc<Inner>,
}

/// All fields but the names belong to the worker under any configuration.
#[derive(Clone)]
pub(super) struct Inner {
    pub(super) pool: Rc<CompressorPool>,
    pub(super) shared: Arc<SharedDictionaries>,
    names: Arc<DictionaryRules>,
    pub(super) pace: Rc<Pace>,
    pub(super) tags: Rc<RefCell<WeakTags>>,
    budget: Arc<Budget>,
    /// The pool's bytes when they were last counted.
    counted: Rc<RefCell<Counted>>,
    /// The pool's limit, even if the budget has more left.
    bytes_max: usize,
}

/// The facts known of a body once its response's head is here.
#[derive(Clone, Copy, Debug)]
pub struct BodyInfo {
    /// Content-Length; `None`: chunked, or until the connection's end.
    pub length: Option<u64>,
    /// True if the first bytes are the whole body.
    pub complete: bool,
}

/// The facts of a response's coding for the access line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodingInfo {
    /// Content-Encoding, if Eyelet coded it.
    pub coding: Option<&'static str>,
    /// Bytes before coding; 0 if the body was neither coded nor inspected.
    pub bytes_identity: u64,
    /// The reason why the body was not coded.
    pub why_not: Option<&'static str>,
}

impl Compressors {
    /// The compressors of one worker, with its share of the memory budget.
    pub fn new(config: &Config, shared: &Arc<SharedDictionaries>, budget: &Arc<Budget>) -> Self {
        let workers = config.workers.unwrap_or_else(cores).max(1);
        let bytes_max = config.limits.memory_max / MEMORY_SHARE / workers;
        let names = shared.rule_names(config);
        Self::with_budget(bytes_max.max(POOL_BYTES_MIN), shared, names, budget)
    }

    /// These compressors for another configuration's rules.
    #[must_use]
    pub fn reloaded(&self, names: Arc<DictionaryRules>) -> Self {
        Self { inner: Rc::new(Inner { names, ..(*self.inner).clone() }) }
    }

    pub(super) fn with_budget(
        bytes_max: usize,
        shared: &Arc<SharedDictionaries>,
        names: Arc<DictionaryRules>,
        budget: &Arc<Budget>,
    ) -> Self {
        let inner = Inner {
            pool: Rc::new(CompressorPool::new(bytes_max)),
            shared: shared.clone(),
            names,
            pace: Rc::default(),
            tags: Rc::default(),
            budget: budget.clone(),
            counted: Rc::new(RefCell::new(Counted::of(budget, Account::Compression, 0))),
            bytes_max,
        };
        Self { inner: Rc::new(inner) }
    }

    /// Counts the pool's bytes, and limits it to what the budget has left.
    pub fn recount(&self) {
        let Inner { pool, budget, counted, bytes_max, .. } = &*self.inner;
        counted.borrow_mut().set(pool.bytes());
        pool.limit((pool.bytes() + budget.left()).min(*bytes_max));
        counted.borrow_mut().set(pool.bytes());
    }

    /// Returns the time for which all coders of this worker have worked.
    pub fn spent(&self) -> Duration {
        self.inner.pace.total()
    }

    /// True if some compressors have not been used since this was last called.
    pub fn is_idle(&self) -> bool {
        self.inner.pool.is_idle()
    }

    /// Frees idle compressors, after a while without use or when memory is short.
    pub fn rest(&self) {
        self.inner.pool.clear();
        self.recount();
    }

    /// The response for a trained dictionary at the path that `Link` names. `None` if the upstream
    /// has to answer.
    pub fn answer(&self, rule: u32, head: &Parts) -> Option<Response<Bytes>> {
        if ![Method::GET, Method::HEAD].contains(&head.method) {
            return None;
        }
        let hash = eyelet_compress::dictionary::offer::of_own_path(head.uri.path())?;
        let trained = self.inner.trained(rule)?;
        let dictionary = trained.iter().find(|dictionary| dictionary.hash == hash)?;
        let accepted = AcceptedCodings::read(&head.headers);
        let coding = accepted.choose(&[Coding::Br]);
        Some(dictionary.response(coding == Some(Coding::Br)))
    }
}

impl Inner {
    /// True if the memory budget has so many bytes left.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.budget.left() >= bytes
    }

    pub(super) fn rule_name(&self, rule: u32) -> Option<Box<str>> {
        self.names.get(&rule).cloned()
    }

    /// The trained dictionaries of a rule.
    pub(super) fn trained(&self, rule: u32) -> Option<Arc<[Arc<Trained>]>> {
        self.shared.trained(self.names.get(&rule)?)
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub(super) fn coding_info(coding: Option<Coding>, why_not: Option<WhyNot>) -> CodingInfo {
    CodingInfo {
        coding: coding.map(Coding::name),
        bytes_identity: 0,
        why_not: why_not.map(WhyNot::text),
    }
}

/// Statuses whose responses have no content, whatever the method.
pub(super) fn is_bodiless(status: StatusCode) -> bool {
    status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED
}

/// Compressors of all workers together may take a quarter of `limits.memory_max`.
const MEMORY_SHARE: usize = 4;
/// In bytes: a smaller pool does not fit one context for each coding.
const POOL_BYTES_MIN: usize = 4 << 20;
