//! What must hold of a configuration, whatever its text. It must not know keys.

use std::path::Path;
use std::time::{Duration, SystemTime};

use eyelet_config::{Depth, Diagnostic, Severity, parse};

/// Diagnostics of a text at most: 1,000 errors, 200 warnings, and how many more there are.
const DIAGNOSTICS_MAX: usize = 1201;

/// A text is checked the same each time. Either it has no error, or it has one, and each
/// diagnostic is about a place in the text, in the text's order.
///
/// # Panics
///
/// Where that does not hold.
pub fn text_is_checked(text: &str) {
    // No file that a text names is there: files are for other tests.
    let path = Path::new("/nonexistent/edge.toml");
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let check = || parse(path, text, Depth::Files, now);
    let (is_sound, diagnostics) = match check() {
        Ok(loaded) => (true, loaded.warnings),
        Err(diagnostics) => (false, diagnostics),
    };
    let has_error = diagnostics.iter().any(|found| found.severity == Severity::Error);
    assert_eq!(is_sound, !has_error, "{diagnostics:?}");
    assert!(diagnostics.len() <= DIAGNOSTICS_MAX, "{} diagnostics", diagnostics.len());
    let again = match check() {
        Ok(loaded) => loaded.warnings,
        Err(diagnostics) => diagnostics,
    };
    assert_eq!(diagnostics, again, "the same text, other diagnostics");
    let places = diagnostics.iter().filter(|found| found.line > 0);
    let places: Vec<_> = places.map(|found| (found.line, found.column)).collect();
    assert!(places.is_sorted(), "{places:?}");
    diagnostics.iter().for_each(|found| is_about(found, text, path));
}

/// The line is one of the text's, the column is in it or behind its end, and what is printed has a
/// caret below a short excerpt.
fn is_about(found: &Diagnostic, text: &str, path: &Path) {
    assert_eq!(found.file, path);
    assert!(!found.message.is_empty());
    let printed = found.to_string();
    if found.line == 0 {
        return assert!(!printed.contains('^'), "{printed}");
    }
    let mut lines = text.split('\n');
    let Some(line) = lines.nth(found.line - 1) else { panic!("{found:?} is behind the text") };
    // A thousand mistakes in one long line must not keep that line a thousand times.
    let shown: String = line.strip_suffix('\r').unwrap_or(line).chars().take(160).collect();
    assert_eq!(found.source, shown);
    let columns = 1..=line.chars().count() + 1;
    assert!(columns.contains(&found.column), "{found:?} is behind its line");
    assert!(printed.ends_with('^'), "{printed}");
}
