//! Properties of checking a configuration, for any text.

use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::{Depth, Diagnostic, Severity, parse};

/// Most diagnostics of a text: 1,000 errors, 200 warnings, and the count of the rest.
const DIAGNOSTICS_MAX: usize = 1201;

/// A text gives the same result each time: no error, or at least one. Each diagnostic is about a
/// place in the text, and they are in the text's order.
///
/// # Panics
///
/// If that does not hold.
pub fn text_is_checked(text: &str) {
    // No file that a text names exists: other tests check files.
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

/// The line exists, the column is in it or just after its end, and the printed form has a caret
/// below a short excerpt.
fn is_about(found: &Diagnostic, text: &str, path: &Path) {
    assert_eq!(found.file, path);
    assert!(!found.message.is_empty());
    let printed = found.to_string();
    if found.line == 0 {
        return assert!(!printed.contains('^'), "{printed}");
    }
    let mut lines = text.split('\n');
    let Some(line) = lines.nth(found.line - 1) else { panic!("{found:?} is behind the text") };
    // A thousand mistakes in one long line must not copy that line a thousand times.
    // Without a newline behind it, a carriage return at the end of the text is a part of the line.
    let end = lines.next().and_then(|_| line.strip_suffix('\r'));
    let shown: String = end.unwrap_or(line).chars().take(160).collect();
    assert_eq!(found.source, shown);
    let columns = 1..=line.chars().count() + 1;
    assert!(columns.contains(&found.column), "{found:?} is behind its line");
    assert!(printed.ends_with('^'), "{printed}");
}
