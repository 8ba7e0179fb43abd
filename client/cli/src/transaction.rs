//! Transactions as text: comparisons, steps if they hold, and steps if not.
//!
//! ```text
//! value("k") = "v"      revision(k) = 7      exists(k)      absent(k)
//! get k      put k v      add k 1      append k v      delete k
//! ```
//!
//! Keys and values are words, or stand between double quotes, with the escape
//! of [`Blob::from_escaped`] and `\"`.

use holdfast_api::{Blob, Compare, TransactionOp};

use crate::output::repeated;

/// What may stand in a comparison.
const COMPARES: &str = "value(KEY) = VALUE, revision(KEY) = N, exists(KEY) or absent(KEY)";
/// What may be done.
const STEPS: &str = "get KEY, put KEY VALUE, add KEY N, append KEY VALUE or delete KEY";

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Transaction {
    pub(crate) compare: Vec<Compare>,
    pub(crate) then: Vec<TransactionOp>,
    pub(crate) or_else: Vec<TransactionOp>,
}

impl Transaction {
    /// What is wrong with it as a whole.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Transaction { compare, then, or_else } = self;
        if compare.is_empty() && then.is_empty() && or_else.is_empty() {
            return Err(
                "the transaction is empty: `holdfast kv txn --help` shows how to write one"
                    .to_owned(),
            );
        }
        if compare.is_empty() && !or_else.is_empty() {
            return Err(
                "what is to be done else would never be done, for nothing is compared: add --if"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Reads three blocks of lines with an empty line between them: comparisons, steps if they
    /// hold, and steps if not. Missing blocks are empty.
    pub(crate) fn of_text(text: &str) -> Result<Transaction, String> {
        let mut transaction = Transaction::default();
        let mut block = 0;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            let placed = |error| format!("line {}: {error}", index + 1);
            match (line, block) {
                ("", _) => block += 1,
                (line, 0) => transaction.compare.push(compare(line).map_err(placed)?),
                (line, 1) => transaction.then.push(step(line).map_err(placed)?),
                (line, 2) => transaction.or_else.push(step(line).map_err(placed)?),
                _ => {
                    return Err(placed(
                        "a transaction has three blocks: what must hold, what to do then, what else"
                            .to_owned(),
                    ));
                }
            }
        }
        Ok(transaction)
    }
}

pub(crate) fn compare(text: &str) -> Result<Compare, String> {
    let wrong = |what: String| format!("{what}; write {COMPARES}");
    let (what, rest) = text.trim().split_once('(').ok_or_else(|| match text.trim() {
        "" => wrong("it compares nothing".to_owned()),
        text => wrong(format!("`{}` is not a comparison", repeated(text))),
    })?;
    let (key, rest) = word(rest, &[')']).map_err(wrong)?;
    let rest = rest.trim_start().strip_prefix(')');
    let rest = rest.ok_or_else(|| wrong("there is no ) after the key".to_owned()))?.trim();
    let what = what.trim();
    if let "exists" | "absent" = what {
        return match rest {
            "" => Ok(Compare::Exists { key, exists: what == "exists" }),
            _ => Err(wrong(format!("`{}` stands after {what}(…)", repeated(rest)))),
        };
    }
    if !["value", "revision"].contains(&what) {
        return Err(wrong(format!("`{}` cannot be compared", repeated(what))));
    }
    let operand = rest.strip_prefix('=').filter(|rest| !rest.starts_with('='));
    let operand = operand.ok_or_else(|| wrong(format!("there is no = after {what}(…)")))?;
    let (operand, rest) = word(operand, &[]).map_err(wrong)?;
    if !rest.trim().is_empty() {
        return Err(wrong(format!("`{}` stands after the comparison", repeated(rest.trim()))));
    }
    if what == "value" {
        return Ok(Compare::Value { key, value: operand });
    }
    Ok(Compare::Revision { key, revision: number(&operand)? })
}

pub(crate) fn step(text: &str) -> Result<TransactionOp, String> {
    let wrong = |what: String| format!("{what}; write {STEPS}");
    let (name, mut rest) = match text.trim().split_once(char::is_whitespace) {
        Some((name, rest)) => (name, rest),
        None if text.trim().is_empty() => return Err(wrong("it does nothing".to_owned())),
        None => (text.trim(), ""),
    };
    let mut words = Vec::new();
    while !rest.trim().is_empty() {
        let (next, behind) = word(rest, &[]).map_err(wrong)?;
        words.push(next);
        rest = behind;
    }
    let count = words.len();
    let mut words = words.into_iter();
    let key = words.next();
    match (name, key, words.next(), count) {
        ("get", Some(key), None, 1) => Ok(TransactionOp::Get { key }),
        ("delete", Some(key), None, 1) => Ok(TransactionOp::Delete { key }),
        ("put", Some(key), Some(value), 2) => Ok(TransactionOp::Put { key, value }),
        ("append", Some(key), Some(value), 2) => Ok(TransactionOp::Append { key, value }),
        ("add", Some(key), Some(delta), 2) => {
            Ok(TransactionOp::Add { key, delta: number(&delta)? })
        }
        ("get" | "delete" | "put" | "append" | "add", ..) => Err(wrong(format!(
            "`{name}` has {count} words after it; one with spaces goes between double quotes"
        ))),
        _ => Err(wrong(format!("`{}` is not a step", repeated(name)))),
    }
}

fn number<N: std::str::FromStr>(text: &Blob) -> Result<N, String> {
    let number = text.as_text().and_then(|text| text.parse().ok());
    number.ok_or_else(|| format!("`{}` is not a number in range", repeated(&text.to_string())))
}

/// The next word, which ends at white space or one of these, or is quoted; and
/// what follows it.
fn word<'t>(text: &'t str, ends: &[char]) -> Result<(Blob, &'t str), String> {
    let text = text.trim_start();
    if let Some(quoted) = text.strip_prefix('"') {
        return quoted_word(quoted);
    }
    let is_end = |c: char| c.is_whitespace() || ends.contains(&c);
    let (word, rest) = text.split_at(text.find(is_end).unwrap_or(text.len()));
    match word {
        "" => Err(r#"a key or a value is missing; an empty one is """#.to_owned()),
        "-" => Err(r#"- is not read from standard input here; a dash is "-""#.to_owned()),
        word if word.contains('"') => {
            Err(format!("`{}` has a quote in its middle", repeated(word)))
        }
        word => Ok((Blob::from_escaped(word), rest)),
    }
}

fn quoted_word(text: &str) -> Result<(Blob, &str), String> {
    let mut word = String::new();
    let mut characters = text.char_indices();
    while let Some((index, c)) = characters.next() {
        match c {
            '"' => {
                let rest = &text[index + 1..];
                let ends = rest.chars().next().is_none_or(|c| c.is_whitespace() || c == ')');
                return match ends {
                    true => Ok((Blob::from_escaped(&word), rest)),
                    false => Err(format!("something stands right after \"{}\"", repeated(&word))),
                };
            }
            '\\' => match characters.next() {
                Some((_, '"')) => word.push('"'),
                Some((_, next)) => word.extend(['\\', next]),
                None => break,
            },
            c => word.push(c),
        }
    }
    Err("a double quote is not closed".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(key: &str, value: &str) -> Compare {
        Compare::Value { key: key.into(), value: value.into() }
    }

    #[test]
    fn an_error_repeats_no_more_than_it_is_recognised_by() {
        let long = "x".repeat(100_000);
        let quoted = format!("\"{long}\"");
        let compares = [
            long.clone(),
            format!("exists(k) {long}"),
            format!("{long}(k) = v"),
            format!("value(k) = v {long}"),
            format!("value(a{long}\"b) = v"),
            format!("value({quoted}x) = v"),
            format!("revision(k) = {long}"),
        ];
        let steps = [long.clone(), format!("add k {long}"), format!("get {long}\"")];
        let compares = compares.iter().map(|text| compare(text).map(drop));
        let steps = steps.iter().map(|text| step(text).map(drop));
        for said in compares.chain(steps).map(Result::unwrap_err) {
            assert!(said.len() < 300 && said.contains("xxx…"), "{said}");
        }
    }

    #[test]
    fn comparisons_are_read() {
        for (text, wanted) in [
            ("value(k) = v", value("k", "v")),
            (r#"value("k") = "v""#, value("k", "v")),
            (r#" value( "a b" )="c \"d\" \\ e" "#, value("a b", r#"c "d" \ e"#)),
            (r#"value(k) = """#, value("k", "")),
            (r"value(\x41) = a/b=c", value("A", "a/b=c")),
            ("revision(k) = 0", Compare::Revision { key: "k".into(), revision: 0 }),
            (r#"revision("k)") = "7""#, Compare::Revision { key: "k)".into(), revision: 7 }),
            ("exists(k)", Compare::Exists { key: "k".into(), exists: true }),
            (r#"absent("")"#, Compare::Exists { key: "".into(), exists: false }),
        ] {
            assert_eq!(compare(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn a_wrong_comparison_says_what_is_wrong_and_how_to_write_it() {
        for (text, wanted) in [
            ("", "it compares nothing"),
            ("  ", "it compares nothing"),
            ("k", "`k` is not a comparison"),
            ("k = v", "is not a comparison"),
            ("value(k)", "there is no ="),
            ("value(k) == v", "there is no ="),
            ("value(k) > v", "there is no ="),
            ("value(k) =", "a key or a value is missing"),
            ("value() = v", "a key or a value is missing"),
            ("value(k = v", "there is no )"),
            ("value(k) = v w", "`w` stands after"),
            ("value(k) = -", "standard input"),
            (r#"value(k) = "v"#, "not closed"),
            (r#"value(k) = "v"w"#, "right after"),
            (r#"value(k) = v"w"#, "quote in its middle"),
            ("mod(k) = 1", "`mod` cannot be compared"),
            ("vlaue(k) = v", "`vlaue` cannot be compared"),
            ("exists(k) = 1", "stands after exists"),
        ] {
            let said = compare(text).expect_err(text);
            assert!(said.contains(wanted) && said.contains(COMPARES), "{text}: {said}");
        }
        for text in ["revision(k) = x", "revision(k) = -1", "revision(k) = 99999999999999999999"] {
            assert!(compare(text).expect_err(text).contains("is not a number"));
        }
    }

    #[test]
    fn steps_are_read() {
        let key = || Blob::from("k");
        for (text, wanted) in [
            ("get k", TransactionOp::Get { key: key() }),
            ("  put   k  v ", TransactionOp::Put { key: key(), value: "v".into() }),
            (r#"put k "a  b""#, TransactionOp::Put { key: key(), value: "a  b".into() }),
            (r#"put k """#, TransactionOp::Put { key: key(), value: "".into() }),
            ("put k -7", TransactionOp::Put { key: key(), value: "-7".into() }),
            ("add k -7", TransactionOp::Add { key: key(), delta: -7 }),
            ("append k (v)", TransactionOp::Append { key: key(), value: "(v)".into() }),
            ("delete k", TransactionOp::Delete { key: key() }),
        ] {
            assert_eq!(step(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn a_wrong_step_says_what_is_wrong_and_how_to_write_it() {
        for (text, wanted) in [
            ("", "does nothing"),
            ("del k", "`del` is not a step"),
            ("put k", "`put` has 1 words"),
            ("put k a b", "`put` has 3 words"),
            ("get", "`get` has 0 words"),
            ("put k -", "standard input"),
            (r#"put k "a"#, "not closed"),
        ] {
            let said = step(text).expect_err(text);
            assert!(said.contains(wanted) && said.contains(STEPS), "{text}: {said}");
        }
        assert!(step("add k x").unwrap_err().contains("`x` is not a number"));
    }

    #[test]
    fn three_blocks_are_a_transaction() {
        let text = "value(k) = v\n\nput k w\nget k\n\nget k\n";
        let Transaction { compare, then, or_else } = Transaction::of_text(text).unwrap();
        assert_eq!((compare.len(), then.len(), or_else.len()), (1, 2, 1));
        let unconditional = Transaction::of_text("\nput k w").unwrap();
        assert_eq!((unconditional.compare.len(), unconditional.then.len()), (0, 1));
        let wrong = Transaction::of_text("value(k) = v\n\nptu k w").unwrap_err();
        assert!(wrong.starts_with("line 3: `ptu` is not a step"), "{wrong}");
        let fourth = Transaction::of_text("\n\n\nget k").unwrap_err();
        assert!(fourth.contains("line 4") && fourth.contains("three blocks"), "{fourth}");
    }

    #[test]
    fn a_transaction_that_can_do_nothing_is_refused() {
        let check = |text: &str| Transaction::of_text(text).unwrap().check();
        assert!(check("").unwrap_err().contains("empty"));
        assert!(check("\n\nget k").is_err(), "an else without an if");
        assert_eq!(check("exists(k)"), Ok(()));
        assert_eq!(check("\nput k v"), Ok(()));
    }

    proptest! {
        #[test]
        fn whatever_is_printed_can_be_typed(bytes: Vec<u8>) {
            let blob = Blob::from(bytes);
            let quoted = blob.escaped().replace('"', "\\\"");
            let read = compare(&format!("value(\"{quoted}\") = \"{quoted}\""));
            prop_assert_eq!(read, Ok(Compare::Value { key: blob.clone(), value: blob }));
        }

        #[test]
        fn no_text_is_too_strange(text: String) {
            let _ = (compare(&text), step(&text), Transaction::of_text(&text));
        }
    }
}
