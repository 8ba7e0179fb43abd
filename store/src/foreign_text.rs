//! Text from outside, as it may be logged or kept: short, and on one line.
//!
//! Whoever sends it chooses it. A line break in it would begin a line of the log that
//! no node wrote.

use std::fmt::{self, Display, Write};

/// Most characters of it.
const CHARS_MAX: usize = 200;

/// The beginning of this text, with an ellipsis if it goes on, and escapes in place of what
/// is not printed.
pub(crate) fn shown(text: &impl Display) -> String {
    let mut beginning = Beginning { shown: String::new(), left: CHARS_MAX };
    // It ends with an error where there is no room for more.
    if write!(beginning, "{text}").is_err() {
        beginning.shown.push('…');
    }
    beginning.shown
}

struct Beginning {
    shown: String,
    /// Characters that there is room for.
    left: usize,
}

impl Write for Beginning {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            match character {
                '"' | '\'' | '\\' => self.shown.push(character),
                other => self.shown.extend(other.escape_debug()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_stays_as_it_is() {
        let long = "x".repeat(CHARS_MAX);
        for text in ["", "it's \"plain\" C:\\text, naïve: 東京", long.as_str()] {
            assert_eq!(shown(&text), text);
        }
        assert_eq!(shown(&7), "7");
    }

    #[test]
    fn no_text_begins_a_line_or_turns_it_around() {
        let forged = "no\nERROR this node stops\r\u{1b}[2J\u{2028}\u{202e}\0";
        assert_eq!(shown(&forged), "no\\nERROR this node stops\\r\\u{1b}[2J\\u{2028}\\u{202e}\\0");
    }

    #[test]
    fn a_long_text_is_cut() {
        let cut = format!("{}…", "é".repeat(CHARS_MAX));
        assert_eq!(shown(&"é".repeat(CHARS_MAX + 1)), cut);
        assert_eq!(shown(&"é".repeat(1 << 20)), cut);
    }
}
