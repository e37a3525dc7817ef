//! Lists of names, networks and regular expressions. Rules name a list by its number, so that
//! several rules share one, and so that a newer version of its file can replace it meanwhile.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use ipnet::IpNet;

use crate::expressions::NameExpressions;
use crate::name_table::{Depths, NameTable};
use crate::names::{NamePattern, NamePatternFault};
use crate::nets::NetSet;

/// The number of a list among the [`Lists`] of some rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListId(pub u16);

/// Names of one file. A name costs its own bytes and 13 more.
#[derive(Clone, Debug, Default)]
pub struct NameList {
    /// Without `*.` or the dot before them.
    names: NameTable,
    /// For each name the [`Form`]s in which the file has it, as bits.
    forms: Vec<u8>,
    /// The numbers of labels of the names that stand for the names below them.
    depths: Depths,
}

/// The form of an entry of a list of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `a.example`: this name.
    Name = 1,
    /// `*.a.example`: the names below it.
    Below = 2,
    /// `.a.example`: both. Squid's form.
    NameAndBelow = 4,
}

/// An entry of a list of names. It displays as in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameEntry<'a> {
    form: Form,
    name: &'a str,
}

/// The contents of a file.
#[derive(Clone, Debug)]
pub enum List {
    /// Names.
    Names(Arc<NameList>),
    /// Networks.
    Nets(Arc<NetSet>),
    /// Regular expressions on names.
    Expressions(Arc<NameExpressions>),
}

/// One version of a list.
#[derive(Clone, Debug)]
pub struct FileList {
    /// The file, as the configuration names it. `None`: the list is in the configuration itself,
    /// and has one version.
    pub file: Option<Arc<str>>,
    /// A hash of its text. Versions with equal hashes are the same.
    pub fingerprint: u64,
    /// The contents of the list.
    pub list: List,
}

/// The lists that rules name: one version of each, so that a decision sees no other.
#[derive(Clone, Debug, Default)]
pub struct Lists(Vec<FileList>);

/// The entry that made a matcher hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedBy {
    /// The file, as the configuration names it. `None`: the configuration itself has the list.
    pub file: Option<Arc<str>>,
    /// The entry. A network is the largest that the file lists as a whole: neighbours are joined.
    pub entry: String,
}

impl NameList {
    /// Adds an entry: `a.example`, `*.a.example` or `.a.example`.
    ///
    /// # Errors
    /// If it is none of these.
    pub fn add(&mut self, text: &str) -> Result<(), NamePatternFault> {
        let squid = text.strip_prefix('.').filter(|name| !name.starts_with(['.', '*']));
        let (form, name) = match squid.filter(|name| !name.is_empty()).unwrap_or(text).parse()? {
            NamePattern::Absent => return Err(NamePatternFault::Empty),
            NamePattern::Exact(name) if squid.is_some() => (Form::NameAndBelow, name),
            NamePattern::Exact(name) => (Form::Name, name),
            NamePattern::Suffix(name) => (Form::Below, name),
        };
        if form != Form::Name {
            self.depths.add(&name);
        }
        let number = self.names.insert(&name) as usize;
        match self.forms.get_mut(number) {
            Some(forms) => *forms |= form as u8,
            None => self.forms.push(form as u8),
        }
        Ok(())
    }

    /// Gives back the memory for further entries.
    pub fn shrink(&mut self) {
        self.names.shrink();
        self.forms.shrink_to_fit();
    }

    /// The number of different names.
    pub const fn len(&self) -> usize {
        self.names.len()
    }

    /// True if it has no name. Then it matches nothing.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if an entry matches `name`, which is lower-case.
    #[inline]
    pub fn contains(&self, name: &str) -> bool {
        self.own(name).is_some() || self.above(name).next().is_some()
    }

    /// The entry that matches `name`: the name itself, else the longest name above it.
    pub fn find(&self, name: &str) -> Option<NameEntry<'_>> {
        self.own(name).or_else(|| self.above(name).last())
    }

    fn own(&self, name: &str) -> Option<NameEntry<'_>> {
        self.entry(name, [Form::Name, Form::NameAndBelow])
    }

    /// The entries for all names below one that ends `name`, the shortest first.
    fn above(&self, name: &str) -> impl Iterator<Item = NameEntry<'_>> {
        let forms = [Form::Below, Form::NameAndBelow];
        self.depths.dots(name).filter_map(move |at| self.entry(name.get(at + 1..)?, forms))
    }

    fn entry(&self, name: &str, forms: [Form; 2]) -> Option<NameEntry<'_>> {
        let number = self.names.number(name)?;
        let has = *self.forms.get(number as usize)?;
        let form = forms.into_iter().find(|form| has & *form as u8 != 0)?;
        Some(NameEntry { form, name: self.names.name(number) })
    }

    #[cfg(test)]
    fn heap_bytes(&self) -> usize {
        self.names.heap_bytes() + self.forms.capacity()
    }
}

impl fmt::Display for NameEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.form {
            Form::Name => "",
            Form::Below => "*.",
            Form::NameAndBelow => ".",
        })?;
        f.write_str(self.name)
    }
}

/// Writes the size of the list.
impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, noun) = match self {
            Self::Names(names) => (names.len(), "name"),
            Self::Nets(nets) => (nets.nets().count(), "network"),
            Self::Expressions(expressions) => (expressions.len(), "regular expression"),
        };
        write!(f, "{number} {noun}{}", if number == 1 { "" } else { "s" })
    }
}

impl Lists {
    /// Adds a list. `None`: there are [`LISTS_MAX`] already.
    pub fn add(&mut self, list: FileList) -> Option<ListId> {
        let id = u16::try_from(self.0.len()).ok().filter(|id| usize::from(*id) < LISTS_MAX)?;
        self.0.push(list);
        Some(ListId(id))
    }

    /// A list by its number.
    pub fn list(&self, id: ListId) -> Option<&FileList> {
        self.0.get(usize::from(id.0))
    }

    /// All of them, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (ListId, &FileList)> {
        (0..).map(ListId).zip(&self.0)
    }

    #[inline]
    pub(crate) fn has_name(&self, id: ListId, name: &str) -> bool {
        match self.list(id).map(|list| &list.list) {
            Some(List::Names(names)) => names.contains(name),
            Some(List::Expressions(expressions)) => expressions.contains(name),
            Some(List::Nets(_)) | None => false,
        }
    }

    pub(crate) fn has_expressions(&self, id: ListId) -> bool {
        self.list(id).is_some_and(|list| matches!(list.list, List::Expressions(_)))
    }

    #[inline]
    pub(crate) fn has_address(&self, id: ListId, address: IpAddr) -> bool {
        self.nets(id).is_some_and(|nets| nets.contains(address))
    }

    pub(crate) fn find_name(&self, id: ListId, name: &str) -> Option<ListedBy> {
        let FileList { file, list, .. } = self.list(id)?;
        let entry = match list {
            List::Names(names) => names.find(name)?.to_string(),
            List::Expressions(expressions) => expressions.find(name)?.to_owned(),
            List::Nets(_) => return None,
        };
        Some(ListedBy { file: file.clone(), entry })
    }

    pub(crate) fn find_address(&self, id: ListId, address: IpAddr) -> Option<ListedBy> {
        let address = IpNet::from(address.to_canonical());
        let entry = self.nets(id)?.nets().find(|net| net.contains(&address))?.to_string();
        Some(ListedBy { file: self.list(id)?.file.clone(), entry })
    }

    /// The file of a list, as the configuration names it.
    pub(crate) fn file(&self, id: ListId) -> Option<&str> {
        self.list(id)?.file.as_deref()
    }

    /// A list as an explanation shows it.
    pub(crate) fn text(&self, id: ListId) -> String {
        let Some(FileList { file, list, .. }) = self.list(id) else { return String::new() };
        match (file, list) {
            (Some(file), List::Expressions(_)) => format!("regex_file \"{file}\""),
            (Some(file), _) => format!("file \"{file}\""),
            (None, List::Expressions(expressions)) => format!("regex {expressions}"),
            (None, list) => list.to_string(),
        }
    }

    fn nets(&self, id: ListId) -> Option<&NetSet> {
        match &self.list(id)?.list {
            List::Nets(nets) => Some(nets),
            List::Names(_) | List::Expressions(_) => None,
        }
    }
}

/// Equal for equal texts of the files.
impl Hash for Lists {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.iter().for_each(|list| list.fingerprint.hash(state));
    }
}

/// The newest lists. Rules without lists from files have none, and do nothing for them.
#[derive(Debug)]
pub(crate) struct Newest(Option<ArcSwap<Lists>>);

/// The lists as they are during one decision.
pub(crate) struct Held(Option<Guard<Arc<Lists>>>);

impl Newest {
    pub(crate) fn new(lists: Lists) -> Self {
        Self((!lists.0.is_empty()).then(|| ArcSwap::from_pointee(lists)))
    }

    /// Waits for nobody, and no other reader notices it.
    #[inline]
    pub(crate) fn hold(&self) -> Held {
        Held(self.0.as_ref().map(ArcSwap::load))
    }

    /// Replaces one list. Decisions that are under way go on with the earlier version.
    pub(crate) fn replace(&self, id: ListId, list: &FileList) {
        let Some(newest) = &self.0 else { return };
        newest.rcu(|lists| {
            let mut lists = Lists::clone(lists);
            if let Some(known) = lists.0.get_mut(usize::from(id.0)) {
                *known = list.clone();
            }
            lists
        });
    }
}

impl Deref for Held {
    type Target = Lists;

    #[inline]
    fn deref(&self) -> &Lists {
        static NONE: Lists = Lists(Vec::new());
        self.0.as_deref().map_or(&NONE, |lists| lists)
    }
}

/// Most lists. Each list of names is searched once for a connection: 50 to 200 ns.
pub const LISTS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn list(entries: &[&str]) -> NameList {
        let mut list = NameList::default();
        entries.iter().for_each(|entry| list.add(entry).unwrap());
        list.shrink();
        list
    }

    #[test]
    fn an_entry_is_found_as_it_is_written() {
        let names = list(&["A.x", "*.b.x", ".c.x", "d.x", "*.d.x", "e.c.x", "*.c.x", "a.x", "*.x"]);
        for (name, entry) in [
            ("a.x", Some("a.x")),
            ("z.a.x", Some("*.x")),
            ("b.x", Some("*.x")),
            ("z.b.x", Some("*.b.x")),
            ("y.z.b.x", Some("*.b.x")),
            ("c.x", Some(".c.x")),
            ("z.c.x", Some("*.c.x")),
            ("d.x", Some("d.x")),
            ("z.d.x", Some("*.d.x")),
            ("e.c.x", Some("e.c.x")),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(names.find(name).map(|entry| entry.to_string()).as_deref(), entry, "{name}");
        }
        assert_eq!(names.len(), 6, "a name is stored once, whatever its forms");
        assert_eq!(list(&[]).find("a.x"), None);
    }

    #[test]
    fn each_bad_entry() {
        use NamePatternFault as Fault;
        let empty_label = Fault::Name(eyelet_wire::hello::SniFault::EmptyLabel);
        for (text, fault) in [
            ("", Fault::Empty),
            ("..a", empty_label),
            ("a..b", empty_label),
            (".*.a", Fault::WildcardInside),
            ("*..a", empty_label),
            (".a.", Fault::TrailingDot),
            (".10.0.0.1", Fault::IpLiteral),
            ("*.", Fault::WildcardOfNothing),
            ("*", Fault::WildcardAlone),
        ] {
            assert_eq!(NameList::default().add(text), Err(fault), "{text}");
        }
        assert!(NameList::default().add(".").is_err());
    }

    /// The contract is 40 bytes.
    #[test]
    fn a_name_costs_its_own_bytes_and_thirteen() {
        for names in [1, 10_000, 100_003_usize] {
            let text: Vec<String> = (0..names).map(|n| format!(".host{n}.example")).collect();
            let entries: Vec<&str> = text.iter().map(String::as_str).collect();
            let list = list(&entries);
            let own: usize = text.iter().map(|name| name.len() - 1).sum();
            assert_eq!(list.heap_bytes(), own + names * 13);
            assert!(entries.iter().all(|entry| list.contains(&entry[1..])));
        }
    }

    #[test]
    fn a_decision_holds_its_lists() {
        let version = |name: &str, fingerprint| FileList {
            file: Some("allow.txt".into()),
            fingerprint,
            list: List::Names(Arc::new(list(&[name]))),
        };
        let mut lists = Lists::default();
        let id = lists.add(version("a.x", 1)).unwrap();
        let newest = Newest::new(lists);
        let before = newest.hold();
        newest.replace(id, &version("b.x", 2));
        newest.replace(ListId(9), &version("c.x", 3));
        let has = |lists: &Held| ["a.x", "b.x", "c.x"].map(|name| lists.has_name(id, name));
        assert_eq!(has(&before), [true, false, false]);
        assert_eq!(has(&newest.hold()), [false, true, false]);
    }
}
