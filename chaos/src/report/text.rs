//! Text that is safe within a page, whatever it holds.

/// Escapes what has a meaning in HTML and leaves out what no page may hold.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(' '),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// Text that is safe on a terminal: whatever would move its cursor, change its
/// colours or turn its direction is shown as an escape.
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_control() => safe.extend(c.escape_default()),
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                safe.extend(c.escape_unicode());
            }
            c => safe.push(c),
        }
    }
    safe
}

/// A stretch of nanoseconds as people say it.
pub fn lasting(nanoseconds: u64) -> String {
    match nanoseconds / 1_000_000 {
        0 => format!("{} µs", nanoseconds / 1_000),
        ms @ 1..1_000 => format!("{ms} ms"),
        ms => format!("{:.1} s", ms as f64 / 1_000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_becomes_a_part_of_the_page() {
        assert_eq!(escape("<b a=\"x\">&'\u{1b}\n"), "&lt;b a=&quot;x&quot;&gt;&amp;&#39;\u{fffd} ");
    }

    #[test]
    fn nothing_from_outside_commands_the_terminal() {
        assert_eq!(printable("k\u{1b}[2Jé\n\u{202e}x\u{9b}"), "k\\u{1b}[2Jé\\n\\u{202e}x\\u{9b}");
    }

    #[test]
    fn a_stretch_of_time_is_said_in_its_unit() {
        assert_eq!(
            [lasting(1_500), lasting(2_000_000), lasting(3_400_000_000)],
            ["1 µs", "2 ms", "3.4 s"]
        );
    }
}
