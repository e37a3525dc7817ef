//! Reads lists of names, networks and regular expressions. Rules that name the same file share its
//! list, and so does the next configuration while the file stays the same.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use eyelet_policy::{
    EXPRESSION_LISTS_MAX, EXPRESSIONS_MAX, ExpressionFault, FileList, LISTS_MAX, List, ListId,
    Lists, NameExpressions, NameList, NetSet, Rules,
};
use ipnet::IpNet;

use crate::model::values;
use eyelet_document::diagnostic::{Diagnostic, FileFault, Mistakes, Severity, SourceText};
use eyelet_document::reader::{Place, Text};

/// The kind of what a file lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListKind {
    /// Names: `a.example`, `*.a.example`, `.a.example`.
    Names,
    /// Networks and addresses.
    Nets,
    /// Regular expressions on names.
    Expressions,
}

/// A file that rules take a list from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListFile {
    /// The path of the file.
    pub path: PathBuf,
    pub kind: ListKind,
}

/// The files of a configuration's lists, by the numbers of the lists. `None`: the configuration
/// itself has the list.
#[derive(Debug, Default)]
pub struct ListFiles(Vec<Option<ListFile>>);

/// A list that was read again.
#[derive(Debug)]
pub struct RenewedList {
    /// True if the file had changed.
    pub is_new: bool,
    /// Only of severity `Warning`.
    pub warnings: Vec<Diagnostic>,
}

/// A file's list, and warnings.
#[derive(Debug)]
pub struct ReadList {
    pub list: List,
    /// Only of severity `Warning`.
    pub warnings: Vec<Diagnostic>,
}

impl ListFiles {
    /// The files, each with the number of its list.
    pub fn iter(&self) -> impl Iterator<Item = (ListId, &ListFile)> {
        let files = (0..).map(ListId).zip(&self.0);
        files.filter_map(|(id, file)| Some((id, file.as_ref()?)))
    }

    /// Reads a list's file again, and has `rules` use it from the next decision on. A file with
    /// mistakes changes nothing. It waits for the disk, so it is not for a worker's thread.
    ///
    /// # Errors
    /// Every mistake, warnings included, up to [`MISTAKES_MAX`].
    pub fn renew(&self, id: ListId, rules: &Rules) -> Result<RenewedList, Vec<Diagnostic>> {
        let lists = rules.lists();
        let (Some(Some(file)), Some(known)) = (self.0.get(usize::from(id.0)), lists.list(id))
        else {
            return Ok(RenewedList { is_new: false, warnings: Vec::new() });
        };
        let name = known.file.as_deref().unwrap_or_default();
        match read(file, name, Some(known)) {
            Ok((list, warnings)) => {
                let is_new = list.fingerprint != known.fingerprint;
                if is_new {
                    rules.replace_list(id, &list);
                }
                Ok(RenewedList { is_new, warnings })
            }
            Err(FileFault::File(message)) => Err(vec![Diagnostic::of_file(&file.path, message)]),
            Err(FileFault::Text(mistakes)) => Err(mistakes),
        }
    }
}

/// The lists of a configuration that is being read.
#[derive(Default)]
pub(crate) struct ListReader<'e> {
    folder: PathBuf,
    /// The files and lists of the configuration that is served now.
    earlier: Option<(&'e ListFiles, Lists)>,
    lists: Lists,
    files: ListFiles,
    /// By file the number of its list, and why it cannot be used.
    known: HashMap<ListFile, (Option<ListId>, Option<String>)>,
    /// By the texts of regular expressions the number of their list.
    expressions: HashMap<Vec<String>, ListId>,
}

impl<'e> ListReader<'e> {
    pub(crate) fn new(folder: &Path, earlier: Option<(&'e ListFiles, Lists)>) -> Self {
        Self { folder: folder.to_owned(), earlier, ..Self::default() }
    }

    /// The list of a file. Each file is read once, however many rules name it.
    pub(crate) fn list(&mut self, text: Text<'_>, kind: ListKind) -> Option<ListId> {
        let file = ListFile { path: self.folder.join(text.text), kind };
        let (id, fault) = match self.known.get(&file) {
            Some(known) => known.clone(),
            None => {
                let added = self.add(&file, text);
                self.known.insert(file, added.clone());
                added
            }
        };
        if let Some(fault) = fault {
            text.at.error(fault);
        }
        id
    }

    /// The list of regular expressions that stand in the configuration.
    pub(crate) fn expressions(&mut self, texts: &[Text<'_>]) -> Option<ListId> {
        let key: Vec<String> = texts.iter().map(|text| text.text.to_owned()).collect();
        if let Some(known) = self.expressions.get(&key) {
            return Some(*known);
        }
        let at = texts.first()?.at;
        // The rule goes on with an empty list, so that it does not seem to take everything.
        let compiled = compile(at, texts).unwrap_or_default();
        let list = List::Expressions(Arc::new(compiled));
        let list = FileList { file: None, fingerprint: fingerprint(&key), list };
        let added = self.number(list, None);
        let id = at.keep(added)?;
        self.expressions.insert(key, id);
        Some(id)
    }

    /// The lists so far.
    pub(crate) fn lists(&self) -> Lists {
        self.lists.clone()
    }

    pub(crate) fn finish(self) -> ListFiles {
        self.files
    }

    fn add(&mut self, file: &ListFile, text: Text<'_>) -> (Option<ListId>, Option<String>) {
        let earlier = self.earlier.as_ref().and_then(|(files, lists)| {
            let same = files.iter().find(|(_, earlier)| *earlier == file);
            lists.list(same?.0)
        });
        let (name, report) = (text.text, text.at.report);
        let (list, fault) = match read(file, name, earlier) {
            Ok((list, warnings)) => {
                report.of_other_file(warnings);
                (list, None)
            }
            // The rule goes on with an empty list, so that it does not seem to take everything.
            Err(FileFault::File(message)) => (empty(file.kind, name), Some(message)),
            Err(FileFault::Text(mistakes)) => {
                report.of_other_file(mistakes);
                (empty(file.kind, name), None)
            }
        };
        match self.number(list, Some(file.clone())) {
            Ok(id) => (Some(id), fault),
            Err(message) => (None, Some(message)),
        }
    }

    /// Adds a list, or says which limit it is beyond.
    fn number(&mut self, list: FileList, file: Option<ListFile>) -> Result<ListId, String> {
        let has_expressions = |list: &FileList| matches!(list.list, List::Expressions(_));
        let others = self.lists.iter().filter(|(_, list)| has_expressions(list)).count();
        if has_expressions(&list) && others == EXPRESSION_LISTS_MAX {
            let max = EXPRESSION_LISTS_MAX;
            return Err(format!("more than {max} lists of regular expressions; join some of them"));
        }
        let id = self.lists.add(list).ok_or_else(|| format!("more than {LISTS_MAX} lists"))?;
        self.files.0.push(file);
        Ok(id)
    }
}

/// Compiles the regular expressions of one list in the configuration, and reports each mistake.
fn compile(at: Place<'_>, texts: &[Text<'_>]) -> Option<NameExpressions> {
    if texts.len() > EXPRESSIONS_MAX {
        at.error(ExpressionFault::TooMany.to_string());
        return None;
    }
    let mut are_sound = true;
    for text in texts {
        are_sound &= text.at.keep(NameExpressions::new([text.text])).is_some();
    }
    if !are_sound {
        return None;
    }
    at.keep(NameExpressions::new(texts.iter().map(|text| text.text)))
}

fn empty(kind: ListKind, name: &str) -> FileList {
    let list = match kind {
        ListKind::Names => List::Names(Arc::default()),
        ListKind::Nets => List::Nets(Arc::default()),
        ListKind::Expressions => List::Expressions(Arc::default()),
    };
    FileList { file: Some(name.into()), fingerprint: 0, list }
}

/// Reads a file. If it is the same as `earlier`, that list is shared, and its warnings were
/// reported before.
fn read(
    file: &ListFile,
    name: &str,
    earlier: Option<&FileList>,
) -> Result<(FileList, Vec<Diagnostic>), FileFault> {
    let path = &file.path;
    let bytes = eyelet_files::text(path, LIST_BYTES_MAX).map_err(FileFault::File)?;
    let fingerprint = fingerprint(&bytes);
    let name: Option<Arc<str>> = Some(name.into());
    if let Some(earlier) = earlier.filter(|earlier| earlier.fingerprint == fingerprint) {
        let list = earlier.list.clone();
        return Ok((FileList { file: name, fingerprint, list }, Vec::new()));
    }
    let ReadList { list, warnings } =
        parse_list(path, &bytes, file.kind).map_err(FileFault::Text)?;
    Ok((FileList { file: name, fingerprint, list }, warnings))
}

fn fingerprint(content: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

/// Reads the text of a list: one entry a line, and comments from `#` to the end of a line.
///
/// # Errors
/// Every mistake, warnings included, up to [`MISTAKES_MAX`].
pub fn parse_list(path: &Path, bytes: &[u8], kind: ListKind) -> Result<ReadList, Vec<Diagnostic>> {
    let text = match str::from_utf8(bytes) {
        Ok(text) => text,
        Err(why) => {
            let (before, _) = bytes.split_at_checked(why.valid_up_to()).unwrap_or_default();
            let before = String::from_utf8_lossy(before);
            let mut mistakes = Mistakes::new(MISTAKES_MAX, MISTAKES_MAX);
            mistakes.push(Severity::Error, before.len(), "this is not UTF-8".to_owned());
            return Err(all(mistakes, path, &before));
        }
    };
    let mut mistakes = Mistakes::new(MISTAKES_MAX, MISTAKES_MAX);
    let list = match kind {
        ListKind::Names => List::Names(Arc::new(names(text, &mut mistakes))),
        ListKind::Nets => List::Nets(Arc::new(nets(text, &mut mistakes))),
        ListKind::Expressions => List::Expressions(Arc::new(expressions(text, &mut mistakes))),
    };
    let is_empty = match &list {
        List::Expressions(expressions) => expressions.is_empty(),
        List::Names(names) => names.is_empty(),
        List::Nets(nets) => nets.is_empty(),
    };
    if is_empty && mistakes.errors == 0 {
        let message = "nothing is listed here, so no connection matches".to_owned();
        mistakes.push(Severity::Warning, 0, message);
    }
    let is_fatal = mistakes.errors > 0;
    let found = all(mistakes, path, text);
    if is_fatal { Err(found) } else { Ok(ReadList { list, warnings: found }) }
}

fn names(text: &str, mistakes: &mut Mistakes) -> NameList {
    let mut names = NameList::default();
    each_entry(text, mistakes, LIST_ENTRIES_MAX, |entry| {
        names.add(entry).map_err(|fault| format!("\"{}\": {fault}", shown(entry)))?;
        let below = entry.strip_prefix("*.").or_else(|| entry.strip_prefix('.'));
        let is_top = below.is_some_and(|name| !name.contains('.'));
        Ok(is_top.then(|| format!("\"{entry}\" takes a whole top-level domain")))
    });
    names.shrink();
    names
}

fn nets(text: &str, mistakes: &mut Mistakes) -> NetSet {
    let mut nets: Vec<IpNet> = Vec::new();
    each_entry(text, mistakes, LIST_ENTRIES_MAX, |entry| {
        nets.push(values::net(shown(entry))?);
        Ok(None)
    });
    nets.into_iter().collect()
}

fn expressions(text: &str, mistakes: &mut Mistakes) -> NameExpressions {
    let mut sound: Vec<&str> = Vec::new();
    each_entry(text, mistakes, EXPRESSIONS_MAX, |entry| {
        NameExpressions::new([entry]).map_err(|fault| fault.to_string())?;
        sound.push(entry);
        Ok(None)
    });
    if mistakes.errors > 0 {
        return NameExpressions::default();
    }
    NameExpressions::new(sound).unwrap_or_else(|fault| {
        mistakes.push(Severity::Error, 0, fault.to_string());
        NameExpressions::default()
    })
}

/// Calls `take` on each of at most `entries_max` entries. It returns a warning, or an error.
fn each_entry<'t>(
    text: &'t str,
    mistakes: &mut Mistakes,
    entries_max: usize,
    mut take: impl FnMut(&'t str) -> Result<Option<String>, String>,
) {
    let mut entries = 0;
    // Editors of some systems begin a file with a byte order mark.
    let mut at = if text.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len_utf8() } else { 0 };
    for line in text.get(at..).unwrap_or_default().split('\n') {
        let entry = line.split_once('#').map_or(line, |(entry, _)| entry);
        let from_entry = entry.trim_start_matches(BLANKS);
        let begins = at + entry.len() - from_entry.len();
        at += line.len() + 1;
        let entry = from_entry.trim_end_matches(BLANKS);
        if entry.is_empty() {
            continue;
        }
        if entries == entries_max {
            let message = format!("more than {entries_max} entries");
            return mistakes.push(Severity::Error, begins, message);
        }
        entries += 1;
        if let Some(blank) = entry.find(BLANKS) {
            let message = "a line has one entry, and nothing but a comment after it".to_owned();
            mistakes.push(Severity::Error, begins + blank, message);
            continue;
        }
        match take(entry) {
            Ok(None) => {}
            Ok(Some(warning)) => mistakes.push(Severity::Warning, begins, warning),
            Err(error) => mistakes.push(Severity::Error, begins, error),
        }
    }
}

fn all(mistakes: Mistakes, path: &Path, text: &str) -> Vec<Diagnostic> {
    // A long list without mistakes is not searched for its lines.
    if mistakes.errors + mistakes.warnings == 0 {
        return Vec::new();
    }
    mistakes.all(&SourceText::new(path, text))
}

/// The beginning of an entry, for messages. No valid entry is longer.
fn shown(entry: &str) -> &str {
    let end = entry.char_indices().nth(ENTRY_CHARS_SHOWN).map_or(entry.len(), |(end, _)| end);
    entry.get(..end).unwrap_or_default()
}

/// Most bytes of a list's file: 10 million names take about 200 MB.
pub const LIST_BYTES_MAX: u64 = 256 << 20;

/// Most entries of a list. So many names of 20 bytes take 330 MB of memory.
pub const LIST_ENTRIES_MAX: usize = 10_000_000;

/// Most errors of a list that are reported, and as many warnings: nobody reads more.
pub const MISTAKES_MAX: usize = 20;

/// Characters of an entry that a message shows. A name has at most 253, and two before it.
const ENTRY_CHARS_SHOWN: usize = 255;

/// The blanks that may stand around an entry. A carriage return is part of the line's end.
const BLANKS: [char; 3] = [' ', '\t', '\r'];

const BYTE_ORDER_MARK: char = '\u{feff}';
