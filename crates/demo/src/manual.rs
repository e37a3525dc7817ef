//! The file that is coded: a page of the manual in two editions.

use std::sync::LazyLock;

/// The newest edition.
pub(crate) const NEWEST: &str = include_str!("../../../docs/configuration.md");

/// The edition before: it has no section on lists from files.
pub(crate) static EARLIER: LazyLock<String> = LazyLock::new(|| {
    let mut is_left_out = false;
    let kept = NEWEST.split_inclusive('\n').filter(|line| {
        if line.starts_with('#') {
            is_left_out = *line == "### Lists from files\n";
        }
        !is_left_out
    });
    kept.collect()
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_editions_differ_by_a_section() {
        let less = NEWEST.len() - EARLIER.len();
        assert!((500..5_000).contains(&less), "{less}");
    }
}
