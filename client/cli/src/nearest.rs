//! Which word was probably meant.

/// Below this two words are unrelated; clap's bound, which accepts no short
/// words with two letters exchanged.
const LIKENESS_MIN: f64 = 0.7;

/// The one of these words that was probably meant.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |one: &str| match strsim::osa_distance(word, one) {
        1 => 1.0,
        _ => strsim::jaro(word, one),
    };
    let rated = known.into_iter().map(|one| (likeness(one), one));
    let near = rated.filter(|(likeness, _)| *likeness > LIKENESS_MIN);
    near.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, one)| one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_near_and_another_word_is_not() {
        let known = ["store", "token_file", "job", "run"];
        assert_eq!(nearest("stroe", known), Some("store"));
        assert_eq!(nearest("jbo", known), Some("job"));
        assert_eq!(nearest("tokenfile", known), Some("token_file"));
        assert_eq!(nearest("rn", known), Some("run"));
        assert_eq!(nearest("x", known), None);
        assert_eq!(nearest("", known), None);
    }
}
