//! Properties of reading a list of names, networks or regular expressions, for any bytes.

use std::net::IpAddr;
use std::path::Path;

use eyelet_policy::List;
use ipnet::IpNet;

use crate::lists::{MISTAKES_MAX, parse_list};
use crate::{Diagnostic, ListKind, Severity};

/// Bytes are a list that has each of their entries, or mistakes with places in them.
///
/// # Panics
///
/// If that does not hold.
pub fn bytes_are_a_list(bytes: &[u8]) {
    let path = Path::new("/nonexistent/allow.txt");
    for kind in [ListKind::Names, ListKind::Nets, ListKind::Expressions] {
        let (list, diagnostics) = match parse_list(path, bytes, kind) {
            Ok(read) => (Some(read.list), read.warnings),
            Err(mistakes) => (None, mistakes),
        };
        let has_error = diagnostics.iter().any(|found| found.severity == Severity::Error);
        assert_eq!(list.is_none(), has_error, "{diagnostics:?}");
        // As many errors and warnings, and the count of the rest.
        assert!(diagnostics.len() <= 2 * MISTAKES_MAX + 1, "{} diagnostics", diagnostics.len());
        diagnostics.iter().for_each(|found| is_about(found, bytes, path));
        if let (Some(list), Ok(text)) = (list, std::str::from_utf8(bytes)) {
            has_each_entry(&list, text);
        }
    }
}

fn has_each_entry(list: &List, text: &str) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for line in text.split('\n') {
        let (entry, _) = line.split_once('#').unwrap_or((line, ""));
        let entry = entry.trim_matches([' ', '\t', '\r']).to_ascii_lowercase();
        match list {
            _ if entry.is_empty() => {}
            List::Names(names) => {
                let above = entry.strip_prefix("*.").or_else(|| entry.strip_prefix('.'));
                let is_below = entry.starts_with('*');
                let name = above.unwrap_or(&entry);
                assert!(is_below || names.contains(name), "{entry}");
                assert!(above.is_none() || names.contains(&format!("a.{name}")), "{entry}");
            }
            // What one matches is the library's matter.
            List::Expressions(expressions) => assert!(!expressions.is_empty(), "{entry}"),
            List::Nets(nets) => {
                let net = entry.parse::<IpNet>();
                let net = net.or_else(|_| entry.parse::<IpAddr>().map(IpNet::from));
                let Ok(net) = net else { panic!("{entry} is no network") };
                assert!(nets.contains(net.network()) && nets.contains(net.broadcast()), "{entry}");
            }
        }
    }
}

/// The line exists, the column is in it or just after its end, and the printed form is short.
fn is_about(found: &Diagnostic, bytes: &[u8], path: &Path) {
    assert_eq!(found.file, path);
    assert!(!found.message.is_empty() && found.message.len() < 2_000, "{}", found.message.len());
    if found.line == 0 {
        return;
    }
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let Some(line) = lines.nth(found.line - 1) else { panic!("{found:?} is behind the text") };
    assert!((1..=line.len() + 1).contains(&found.column), "{found:?} is behind its line");
    assert!(found.to_string().ends_with('^'), "{found}");
}
