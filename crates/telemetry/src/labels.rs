//! The names of a configuration's listeners and rules. Access lines need them for as long as a
//! connection lives, which may be longer than the configuration. Nothing else of one is kept.

use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use eyelet_config::RuleNames;
use eyelet_memory::interner::Heap;

/// The names of one configuration, shared by all connections that it has decided on one worker.
#[derive(Clone, Debug, Default)]
pub struct Labels(Option<Rc<SharedInfo>>);

#[derive(Debug)]
enum SharedInfo {
    /// All names of a configuration of this process.
    Own { generation: u64, listeners: Arc<[Box<str>]>, rules: Arc<RuleNames> },
    /// Those that a connection of another process needs.
    Imported(Imported),
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Imported {
    listener: (u16, Box<str>),
    rules: Box<[(u32, Box<str>)]>,
}

impl Labels {
    /// Those of the configuration with this generation, which is at least 1.
    pub fn new(generation: u64, listeners: Arc<[Box<str>]>, rules: Arc<RuleNames>) -> Self {
        Self(Some(Rc::new(SharedInfo::Own { generation, listeners, rules })))
    }

    /// A listener and the rules that a connection names, by their indexes in a configuration of
    /// the process that it comes from.
    pub fn imported(listener: (u16, Box<str>), rules: Vec<(u32, Box<str>)>) -> Self {
        let rules = rules.into_boxed_slice();
        Self(Some(Rc::new(SharedInfo::Imported(Imported { listener, rules }))))
    }

    /// Returns the number of the configuration of this process that decided; 0 if none did.
    pub fn generation(&self) -> u64 {
        match self.0.as_deref() {
            Some(SharedInfo::Own { generation, .. }) => *generation,
            Some(SharedInfo::Imported(_)) | None => 0,
        }
    }

    /// True if a configuration decided, of this process or of another.
    pub fn is_known(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the listener's name, or else its address.
    pub fn listener(&self, index: u16) -> &str {
        match self.0.as_deref() {
            Some(SharedInfo::Own { listeners, .. }) => {
                listeners.get(usize::from(index)).map_or("", |name| name)
            }
            Some(SharedInfo::Imported(Imported { listener: (known, name), .. }))
                if *known == index =>
            {
                name
            }
            Some(SharedInfo::Imported(_)) | None => "",
        }
    }

    /// The listener that is called so.
    pub fn listener_called(&self, name: &str) -> Option<u16> {
        match self.0.as_deref()? {
            SharedInfo::Own { listeners, .. } => {
                u16::try_from(listeners.iter().position(|known| **known == *name)?).ok()
            }
            SharedInfo::Imported(Imported { listener: (index, known), .. }) => {
                (**known == *name).then_some(*index)
            }
        }
    }

    /// Returns the rule's name.
    pub fn rule(&self, index: u32) -> &str {
        match self.0.as_deref() {
            Some(SharedInfo::Own { rules, .. }) => rules.get(index),
            Some(SharedInfo::Imported(Imported { rules, .. })) => {
                let found = rules.iter().find(|(known, _)| *known == index);
                found.map_or("", |(_, name)| name)
            }
            None => "",
        }
    }
}

impl Heap for Labels {
    /// The names of this process's configuration are the configuration's.
    fn heap_bytes(&self) -> usize {
        match self.0.as_deref() {
            Some(SharedInfo::Imported(Imported { listener: (_, name), rules })) => {
                let texts = rules.iter().map(|(_, name)| name.len()).sum::<usize>();
                size_of::<SharedInfo>() + name.len() + size_of_val(&rules[..]) + texts
            }
            Some(SharedInfo::Own { .. }) | None => 0,
        }
    }
}

/// A generation is never used twice, and imported names are compared as they are.
impl PartialEq for Labels {
    fn eq(&self, other: &Self) -> bool {
        match (self.0.as_deref(), other.0.as_deref()) {
            (Some(SharedInfo::Imported(own)), Some(SharedInfo::Imported(other))) => own == other,
            (Some(SharedInfo::Imported(_)), _) | (_, Some(SharedInfo::Imported(_))) => false,
            _ => self.generation() == other.generation(),
        }
    }
}

impl Eq for Labels {}

impl Hash for Labels {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.0.as_deref() {
            Some(SharedInfo::Imported(names)) => names.hash(state),
            _ => self.generation().hash(state),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An index of another process means nothing here, whatever rule has it.
    #[test]
    fn imported_names_are_never_those_of_an_own_configuration() {
        let listeners: Arc<[Box<str>]> = ["public".into()].into();
        let own = Labels::new(1, listeners, Arc::default());
        let rules = || vec![(7, "api".into()), (9, "new".into())];
        let imported = |listener: u16| Labels::imported((listener, "public".into()), rules());
        assert!(imported(1) != own && imported(1) != Labels::default());
        assert!(imported(1) == imported(1) && imported(1) != imported(2));
        assert_eq!((own.generation(), imported(1).generation()), (1, 0));
        assert!(own.is_known() && imported(1).is_known() && !Labels::default().is_known());
        let labels = imported(1);
        assert_eq!((labels.listener(1), labels.listener(0)), ("public", ""));
        assert_eq!((labels.rule(7), labels.rule(9), labels.rule(0)), ("api", "new", ""));
        assert_eq!(labels.listener_called("public"), Some(1));
        assert_eq!(labels.listener_called("private"), None);
        assert!(labels.heap_bytes() > 0 && own.heap_bytes() == 0);
    }
}
