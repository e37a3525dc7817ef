//! The rules, stored so that 100,000 of them are small: equal parts are stored once, and texts lie
//! one after the other.

pub(crate) mod kind;
pub mod lists;
pub(crate) mod matchers;
pub(crate) mod mint;
pub(crate) mod originate;
pub(crate) mod quic;
pub(crate) mod request_order;
mod requester;
pub(crate) mod requests;
pub(crate) mod sources;
pub(crate) mod spiffe;
pub(crate) mod upstreams;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::model::Action;
use eyelet_pki::certificate::CertificateFiles;

/// Names and actions of the rules; their matchers are in `Config::policy`. A rule costs its name
/// and 12 bytes. Its action costs nothing if another rule has the same, and so with its
/// certificates. Otherwise each of their files costs its path and 4 bytes.
#[derive(Debug)]
pub struct RuleList {
    names: Arc<RuleNames>,
    rows: Box<[Row]>,
    actions: Box<[Arc<Action>]>,
    /// A certificate, its key, the next certificate, and so on: as written, relative to `folder`.
    files: Texts,
    /// The ends of the sets of certificates in `files`.
    sets: Box<[u32]>,
    folder: PathBuf,
}

/// The names of the rules, in their order. Access lines need them after the configuration is gone.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RuleNames(Texts);

impl RuleNames {
    /// The name of a rule; empty if there is no such rule.
    pub fn get(&self, rule: u32) -> &str {
        self.0.get(rule)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.0.len()).map(|rule| self.0.get(rule))
    }
}

#[derive(Clone, Copy, Debug)]
struct Row {
    action: u32,
    certificates: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct RuleRef<'a> {
    /// The name as given, or "rule N", counted from 1.
    pub name: &'a str,
    /// The action of the rule.
    pub action: &'a Action,
    /// Equal actions have the same number, below [`RuleList::actions_len`].
    pub action_number: u32,
    /// Equal sets of certificates have the same number, for [`RuleList::certificates`]. Rules other
    /// than terminate have the empty set's.
    pub certificates_number: u32,
}

impl RuleList {
    /// The number of rules.
    pub const fn len(&self) -> usize {
        self.rows.len()
    }

    /// True if there are no rules.
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A rule by its `RuleId`.
    pub fn get(&self, index: usize) -> Option<RuleRef<'_>> {
        (index < self.len()).then(|| self.at(index as u32))
    }

    /// A rule that exists.
    ///
    /// # Panics
    /// As with any index, if there is none.
    pub fn at(&self, rule: u32) -> RuleRef<'_> {
        let row = self.rows[rule as usize];
        RuleRef {
            name: self.names.get(rule),
            action: &self.actions[row.action as usize],
            action_number: row.action,
            certificates_number: row.certificates,
        }
    }

    /// All rules, in their order.
    pub fn iter(&self) -> impl Iterator<Item = RuleRef<'_>> + '_ {
        (0..self.len() as u32).map(|rule| self.at(rule))
    }

    /// The names, for callers that outlive the list.
    pub fn shared_names(&self) -> Arc<RuleNames> {
        self.names.clone()
    }

    /// Shares the names with an earlier list if they are the same: most reloads change none.
    pub fn share_names(&mut self, earlier: &Self) {
        if self.names == earlier.names {
            self.names = earlier.names.clone();
        }
    }

    /// The action of a rule, for callers that outlive the list.
    pub fn shared_action(&self, rule: u32) -> Option<Arc<Action>> {
        let row = self.rows.get(rule as usize)?;
        self.actions.get(row.action as usize).cloned()
    }

    /// The number of distinct actions.
    pub const fn actions_len(&self) -> usize {
        self.actions.len()
    }

    /// The number of distinct sets of certificates, the empty one included.
    pub const fn certificates_len(&self) -> usize {
        self.sets.len()
    }

    /// The files of a set of certificates. If there are several, they have different key types
    /// (ECDSA and RSA).
    pub fn certificates(&self, number: u32) -> impl Iterator<Item = CertificateFiles> + '_ {
        let before = number.checked_sub(1).and_then(|before| self.sets.get(before as usize));
        let end = self.sets.get(number as usize).copied().unwrap_or(0);
        (before.copied().unwrap_or(0)..end).step_by(2).map(|file| CertificateFiles {
            certificate: self.folder.join(self.files.get(file)),
            key: self.folder.join(self.files.get(file + 1)),
        })
    }

    /// A path of this configuration as its file writes it: the same in each folder that the file
    /// is in.
    pub fn as_written<'p>(&self, path: &'p Path) -> &'p Path {
        path.strip_prefix(&self.folder).unwrap_or(path)
    }

    /// The action of a rule, to be changed before it is in use.
    ///
    /// # Panics
    /// As with any index, if there is none.
    pub fn action_mut(&mut self, rule: u32) -> &mut Action {
        Arc::make_mut(&mut self.actions[self.rows[rule as usize].action as usize])
    }

    /// Without the actions' own memory, which depends on the distinct actions only.
    #[cfg(test)]
    fn heap_bytes(&self) -> usize {
        let lists = size_of_val(&*self.rows) + size_of_val(&*self.sets);
        self.names.0.heap_bytes() + self.files.heap_bytes() + lists
    }
}

/// A list that is being built.
#[derive(Default)]
pub(crate) struct Reading<'t> {
    names: Texts,
    rows: Vec<Row>,
    actions: Vec<Arc<Action>>,
    action_numbers: HashMap<Arc<Action>, u32>,
    files: Texts,
    sets: Vec<u32>,
    set_numbers: HashMap<Vec<[&'t str; 2]>, u32>,
}

impl<'t> Reading<'t> {
    /// `certificates`: each with its key, as written.
    pub(crate) fn push(&mut self, name: &str, action: Action, certificates: Vec<[&'t str; 2]>) {
        self.names.push(name);
        let action = match self.action_numbers.get(&action) {
            Some(known) => *known,
            None => {
                let (number, action) = (self.actions.len() as u32, Arc::new(action));
                self.actions.push(action.clone());
                self.action_numbers.insert(action, number);
                number
            }
        };
        let next = self.sets.len() as u32;
        let certificates = *self.set_numbers.entry(certificates).or_insert_with_key(|pairs| {
            pairs.as_flattened().iter().for_each(|file| self.files.push(file));
            self.sets.push(self.files.len());
            next
        });
        self.rows.push(Row { action, certificates });
    }

    pub(crate) fn action(&self, rule: usize) -> Option<&Action> {
        let row = self.rows.get(rule)?;
        self.actions.get(row.action as usize).map(|action| &**action)
    }

    pub(crate) fn name(&self, rule: usize) -> Option<&str> {
        (rule < self.rows.len()).then(|| self.names.get(rule as u32))
    }

    /// The paths are relative to `folder`.
    pub(crate) fn finish(mut self, folder: &Path) -> RuleList {
        self.names.shrink();
        self.files.shrink();
        RuleList {
            names: Arc::new(RuleNames(self.names)),
            rows: self.rows.into(),
            actions: self.actions.into(),
            files: self.files,
            sets: self.sets.into(),
            folder: folder.to_owned(),
        }
    }
}

/// Texts one after the other. Their file has at most 256 MiB, so 32 bits are enough for an offset.
#[derive(Debug, Default, PartialEq, Eq)]
struct Texts {
    text: String,
    ends: Vec<u32>,
}

impl Texts {
    fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.ends.push(self.text.len() as u32);
    }

    fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    fn get(&self, number: u32) -> &str {
        let number = number as usize;
        let start = number.checked_sub(1).and_then(|before| self.ends.get(before));
        let start = start.copied().unwrap_or(0) as usize;
        let end = self.ends.get(number).copied().unwrap_or(0) as usize;
        self.text.get(start..end).unwrap_or_default()
    }

    fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    #[cfg(test)]
    fn heap_bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RefusalAlert, Refuse};
    use super::*;

    const RULES: usize = 10_000;

    #[test]
    fn a_rule_costs_its_texts_and_a_few_bytes() {
        let refuse = || Action::Refuse(Refuse { alert: RefusalAlert::ByReason, message: None });
        let (mut shared, mut own) = (Reading::default(), Reading::default());
        let names: Vec<String> = (0..RULES).map(|n| format!("rule {n}")).collect();
        let files: Vec<String> = (0..2 * RULES).map(|n| format!("certs/{n}.pem")).collect();
        for (name, pair) in names.iter().zip(files.as_chunks::<2>().0) {
            shared.push(name, refuse(), vec![["app.pem", "app.key"]]);
            own.push(name, refuse(), vec![[&pair[0], &pair[1]]]);
        }
        let length = |texts: &[String]| texts.iter().map(String::len).sum::<usize>();
        let shared = shared.finish(Path::new("/etc"));
        assert_eq!((shared.actions_len(), shared.certificates_len()), (1, 1));
        // The single pair of files: its texts, their ends, the set.
        let pair = 7 + 7 + 2 * 4 + 4;
        assert_eq!(shared.heap_bytes(), length(&names) + RULES * (4 + 8) + pair);
        let own = own.finish(Path::new("/etc"));
        assert_eq!((own.actions_len(), own.certificates_len()), (1, RULES));
        let texts = length(&names) + length(&files);
        assert_eq!(own.heap_bytes(), texts + RULES * (4 + 8 + 2 * 4 + 4));
    }

    #[test]
    fn rules_are_found_again() {
        let mut rules = Reading::default();
        let alert = RefusalAlert::Always(eyelet_wire::alert::AlertDescription::AccessDenied);
        rules.push(
            "a",
            Action::Refuse(Refuse { alert: RefusalAlert::ByReason, message: None }),
            vec![],
        );
        rules.push("", Action::Refuse(Refuse { alert, message: None }), vec![["b.pem", "b.key"]]);
        let both = vec![["c.pem", "c.key"], ["/d.pem", "b.key"]];
        rules.push(
            "long name",
            Action::Refuse(Refuse { alert: RefusalAlert::ByReason, message: None }),
            both,
        );
        rules.push("d", Action::Refuse(Refuse { alert, message: None }), vec![["b.pem", "b.key"]]);
        let rules = rules.finish(Path::new("/etc"));
        let summary = |rule: RuleRef<'_>| {
            let files = rules.certificates(rule.certificates_number);
            let files =
                files.map(|pair| [pair.certificate, pair.key].map(|f| f.display().to_string()));
            (rule.name.to_owned(), rule.action_number, files.collect::<Vec<_>>().concat().join(" "))
        };
        let expected = [
            ("a", 0, ""),
            ("", 1, "/etc/b.pem /etc/b.key"),
            ("long name", 0, "/etc/c.pem /etc/c.key /d.pem /etc/b.key"),
            ("d", 1, "/etc/b.pem /etc/b.key"),
        ];
        let expected = expected.map(|(name, action, files)| (name.into(), action, files.into()));
        assert_eq!(rules.iter().map(summary).collect::<Vec<_>>(), expected);
        assert!(rules.get(4).is_none());
    }
}
