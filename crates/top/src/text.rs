//! Figures and names as people read them, in few columns.

/// A count with commas.
pub fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) && digit.is_ascii_digit() {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the largest unit of which there is one.
pub fn bytes(value: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = value.max(0.0);
    let mut unit = units[0];
    for larger in &units[1..] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, larger);
    }
    match unit {
        "B" => format!("{value:.0} B"),
        _ if value < 10.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}

/// A time in its two largest units.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m{:02}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h{minutes:02}m"),
        (days, hours, _) => format!("{days}d{hours:02}h"),
    }
}

/// A rate: small ones have a decimal.
pub fn rate(each_second: f64) -> String {
    if each_second > 0.0 && each_second < 10.0 {
        return format!("{each_second:.1}");
    }
    count(each_second.max(0.0))
}

/// Text of clients and files without what a terminal obeys.
pub fn printable(text: &str) -> String {
    text.chars().map(|letter| if is_plain(letter) { letter } else { '?' }).collect()
}

/// Letters that take one column. A name in another script is shown by `?`: columns stay columns.
fn is_plain(letter: char) -> bool {
    matches!(letter, ' '..='~' | '\u{a1}'..='\u{24f}') && letter != '\u{ad}'
}

/// Exactly so many columns. What does not fit ends with `~`.
pub fn fit(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return format!("{text:<columns$}");
    }
    let mut cut: String = text.chars().take(columns.saturating_sub(1)).collect();
    if columns > 0 {
        cut.push('~');
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!([count(0.0), count(999.0), count(1e6)], ["0", "999", "1,000,000"]);
        assert_eq!(count(-1234.0), "-1,234");
        assert_eq!([bytes(0.0), bytes(1023.0), bytes(1024.0)], ["0 B", "1023 B", "1.0 KiB"]);
        assert_eq!([bytes(5e8), bytes(1e20)], ["477 MiB", "90949470 TiB"]);
        assert_eq!([duration(59.9), duration(60.0), duration(3700.0)], ["59s", "1m00s", "1h01m"]);
        assert_eq!([duration(90_000.0), duration(-1.0)], ["1d01h", "0s"]);
        assert_eq!([rate(0.0), rate(0.25), rate(1234.0)], ["0", "0.2", "1,234"]);
        assert_eq!([fit("abc", 5), fit("abc", 2), fit("abc", 0)], ["abc  ", "a~", ""]);
        assert_eq!(printable("a\x1b[2Jb\u{202e}\u{9b}\u{4e00}"), "a?[2Jb???");
    }
}
