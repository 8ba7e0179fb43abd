//! The nearest known name, and what was found in place of a value.

/// Longest client text that an answer repeats, in characters.
const REPEATED_MAX: usize = 64;

/// Most names that are listed.
const LISTED_MAX: usize = 24;

/// A client's name, as an answer repeats it.
pub(crate) fn repeated(text: &str) -> String {
    let mut shown: String = text.chars().take(REPEATED_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(REPEATED_MAX).is_some() {
        shown.push('…');
    }
    shown
}

/// Text found where another value was expected.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", repeated(text))
}

/// "; did you mean `value`?" if a known name is near.
pub(crate) fn did_you_mean(name: &str, known: &[&str]) -> String {
    nearest(name, known).map_or_else(String::new, |known| format!("; did you mean `{known}`?"))
}

/// The known name that was probably meant.
fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    if name.chars().nth(REPEATED_MAX).is_some() {
        return None;
    }
    let plain = |name: &str| name.to_lowercase().replace(['_', '-'], "");
    let wanted = plain(name);
    let distance = |known: &str| strsim::damerau_levenshtein(&wanted, &plain(known));
    let close = (wanted.chars().count() / 3).max(1);
    known
        .iter()
        .map(|known| (distance(known), *known))
        .filter(|(distance, _)| *distance <= close)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// The known name that differs by a letter or two.
pub(crate) fn nearly<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    const LETTERS_WRONG_MAX: usize = 2;
    let alike = known.iter().filter(|known| known.len().abs_diff(name.len()) <= LETTERS_WRONG_MAX);
    alike
        .map(|known| (strsim::damerau_levenshtein(name, known), *known))
        .filter(|(wrong, _)| *wrong <= LETTERS_WRONG_MAX)
        .min_by_key(|(wrong, _)| *wrong)
        .map(|(_, known)| known)
}

/// The known names, up to a limit.
pub(crate) fn listed(known: &[&str]) -> String {
    let shown = known[..known.len().min(LISTED_MAX)].join(", ");
    match known.len().checked_sub(LISTED_MAX) {
        Some(more @ 1..) => format!("{shown} and {more} more (see /openapi.json)"),
        _ => shown,
    }
}

/// The first sentence of a description, in brackets.
pub(crate) fn meaning(description: &str) -> String {
    let first = description.split(['.', ';']).next().unwrap_or_default().replace('\n', " ");
    let mut letters = first.chars();
    match letters.next() {
        Some(letter) => format!(" ({}{})", letter.to_lowercase(), letters.as_str()),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_the_one_that_was_probably_meant() {
        let known = ["compare", "job", "key", "or_else", "run", "then", "value"];
        for (written, meant) in [
            ("jbo", Some("job")),
            ("vlaue", Some("value")),
            ("orElse", Some("or_else")),
            ("or-else", Some("or_else")),
            ("JOB", Some("job")),
            ("compares", Some("compare")),
            ("if", None),
            ("success", None),
            ("", None),
        ] {
            assert_eq!(nearest(written, &known), meant, "{written:?}");
        }
        assert_eq!(nearest(&"job".repeat(1_000_000), &known), None);
    }

    #[test]
    fn what_is_repeated_is_short_and_has_no_control_characters() {
        assert_eq!(quoted("a\"b\n"), r#""a\"b\n""#);
        assert_eq!(repeated(&"x".repeat(1_000)), format!("{}…", "x".repeat(REPEATED_MAX)));
    }

    #[test]
    fn long_lists_are_cut() {
        let many = vec!["x"; LISTED_MAX + 2];
        assert!(listed(&many).ends_with("x and 2 more (see /openapi.json)"));
        assert_eq!(listed(&many[..2]), "x, x");
    }
}
