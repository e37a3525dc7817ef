//! What a configuration calls its listeners and rules. Access lines need it for as long as a
//! connection lives, which may be longer than the configuration. Nothing else of one is kept.

use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use eyelet_config::RuleNames;

/// The names of one configuration, shared by all connections that it has decided on one worker.
#[derive(Clone, Debug, Default)]
pub struct Labels(Option<Rc<SharedInfo>>);

#[derive(Debug)]
struct SharedInfo {
    generation: u64,
    listeners: Arc<[Box<str>]>,
    rules: Arc<RuleNames>,
}

impl Labels {
    /// Those of the configuration with this generation, which is at least 1.
    pub fn new(generation: u64, listeners: Arc<[Box<str>]>, rules: Arc<RuleNames>) -> Self {
        Self(Some(Rc::new(SharedInfo { generation, listeners, rules })))
    }

    /// Which configuration decided; 0 if none did.
    pub fn generation(&self) -> u64 {
        self.0.as_ref().map_or(0, |shared| shared.generation)
    }

    /// What a listener is called: its name, or else its address.
    pub fn listener(&self, index: u16) -> &str {
        let shared = self.0.as_ref();
        shared.and_then(|shared| shared.listeners.get(usize::from(index))).map_or("", |name| name)
    }

    /// The listener that is called so.
    pub fn listener_called(&self, name: &str) -> Option<u16> {
        let listeners = &self.0.as_ref()?.listeners;
        u16::try_from(listeners.iter().position(|known| **known == *name)?).ok()
    }

    /// What a rule is called.
    pub fn rule(&self, index: u32) -> &str {
        self.0.as_ref().map_or("", |shared| shared.rules.get(index))
    }
}

/// A generation is never used twice.
impl PartialEq for Labels {
    fn eq(&self, other: &Self) -> bool {
        self.generation() == other.generation()
    }
}

impl Eq for Labels {}

impl Hash for Labels {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.generation().hash(state);
    }
}
