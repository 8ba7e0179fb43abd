//! `kv txn`: comparisons, and one of two lists of steps, at one revision.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use holdfast_api::{Code, KvOp, KvOutcome, Revision, TransactionOp, TransactionOutcome};
use serde::Serialize;

use super::{Context, kv, unexpected_outcome};
use crate::argument::INPUT_BYTES_MAX;
use crate::exit::Failure;
use crate::output::{self, Document, shortened};
use crate::transaction::Transaction;

/// Carries out a transaction given by options, or else on standard input.
pub(crate) async fn run(context: &Context, given: Transaction) -> Result<(), Failure> {
    let transaction = match given == Transaction::default() {
        true => {
            let text = read(io::stdin().lock(), io::stdin().is_terminal())?;
            Transaction::of_text(&text)
                .map_err(|error| Failure::Usage(format!("standard input, {error}")))?
        }
        false => given,
    };
    transaction.check().map_err(Failure::Usage)?;
    let Transaction { compare, then, or_else } = transaction;
    let steps = [or_else.clone(), then.clone()];
    let op = KvOp::Transaction { compare, then, or_else };
    let (succeeded, outcomes, revision) = match kv::propose(context, op).await? {
        (KvOutcome::Transaction { succeeded, outcomes }, revision) => {
            (succeeded, outcomes, revision)
        }
        (other, _) => return Err(unexpected_outcome("a transaction", &other)),
    };
    let steps = &steps[usize::from(succeeded)];
    let changed = steps.iter().any(|step| !matches!(step, TransactionOp::Get { .. }));
    context.emit(&Done { succeeded, outcomes, revision, steps })?;
    match succeeded {
        true => Ok(()),
        false => Err(not_held(changed)),
    }
}

fn not_held(changed: bool) -> Failure {
    let what = match changed {
        true => "the steps for that case were done",
        false => "nothing was changed",
    };
    Failure::no(Code::Conflict, format!("not all comparisons held; {what}"), changed)
}

/// The text of a transaction. A person ends it with the third empty line.
fn read(input: impl BufRead, person: bool) -> Result<String, Failure> {
    const ASKED: [&str; 3] = [
        "What must hold, a line each; an empty line ends it:",
        "What to do then:",
        "What to do else:",
    ];
    let unreadable = |error| Failure::Input(format!("cannot read standard input: {error}"));
    let mut input = input.take(INPUT_BYTES_MAX + 1);
    let mut text = String::new();
    if !person {
        input.read_to_string(&mut text).map_err(unreadable)?;
    }
    for asked in ASKED.iter().filter(|_| person) {
        output::talk(asked);
        loop {
            let start = text.len();
            let read = input.read_line(&mut text).map_err(unreadable)?;
            if read == 0 || text[start..].trim().is_empty() {
                break;
            }
        }
    }
    if text.len() as u64 > INPUT_BYTES_MAX {
        return Err(Failure::Input(format!(
            "standard input holds more than {INPUT_BYTES_MAX} bytes, the most that one transaction can have"
        )));
    }
    Ok(text)
}

/// The answer of `kv txn`.
#[derive(Debug, Serialize)]
struct Done<'a> {
    succeeded: bool,
    outcomes: Vec<TransactionOutcome>,
    revision: Revision,
    /// The steps that were done.
    #[serde(skip)]
    steps: &'a [TransactionOp],
}

impl Document for Done<'_> {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "{}", if self.succeeded { "then" } else { "else" })?;
        for (step, outcome) in self.steps.iter().zip(&self.outcomes) {
            let (name, key) = match step {
                TransactionOp::Get { key } => ("get", key),
                TransactionOp::Put { key, .. } => ("put", key),
                TransactionOp::Add { key, .. } => ("add", key),
                TransactionOp::Append { key, .. } => ("append", key),
                TransactionOp::Delete { key } => ("delete", key),
            };
            let result = match outcome {
                TransactionOutcome::Value { value: Some(value) } => shortened(value),
                TransactionOutcome::Value { value: None } => "(absent)".to_owned(),
                TransactionOutcome::Written => "ok".to_owned(),
                TransactionOutcome::Added { value } => value.to_string(),
                TransactionOutcome::Deleted { existed } => {
                    format!("deleted {}", u8::from(*existed))
                }
            };
            writeln!(out, "{name} {key}: {result}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::output::{Output, render};

    #[test]
    fn each_step_is_shown_with_what_came_of_it() {
        let text = "exists(k)\n\nget k\nget b\nput k v\nadd n 2\nappend l x\ndelete k";
        let steps = Transaction::of_text(text).unwrap().then;
        let done = Done {
            succeeded: true,
            outcomes: vec![
                TransactionOutcome::Value { value: Some("a\n".into()) },
                TransactionOutcome::Value { value: None },
                TransactionOutcome::Written,
                TransactionOutcome::Added { value: 5 },
                TransactionOutcome::Written,
                TransactionOutcome::Deleted { existed: true },
            ],
            revision: 7,
            steps: &steps,
        };
        let wanted = "\
then
get k: a\\x0a
get b: (absent)
put k: ok
add n: 5
append l: ok
delete k: deleted 1
";
        assert_eq!(String::from_utf8(render(&done, Output::Table).unwrap()).unwrap(), wanted);
        let json: Value = serde_json::from_slice(&render(&done, Output::Json).unwrap()).unwrap();
        assert_eq!(json["outcomes"][0], json!({"value": {"value": "a\\x0a"}}));
        assert_eq!((&json["succeeded"], &json["revision"]), (&json!(true), &json!(7)));
    }

    #[test]
    fn a_person_ends_a_block_with_an_empty_line_and_a_program_with_the_end() {
        let text = "exists(k)\n\nget k\n\n\nmore\n";
        assert_eq!(read(text.as_bytes(), true).unwrap(), "exists(k)\n\nget k\n\n\n");
        assert_eq!(read(text.as_bytes(), false).unwrap(), text);
        assert_eq!(read(&b"exists(k)"[..], true).unwrap(), "exists(k)");
        assert!(matches!(read(&b"\xff"[..], false), Err(Failure::Input(_))));
        let endless = io::BufReader::new(io::repeat(b'x'));
        assert!(matches!(read(endless, false), Err(Failure::Input(_))));
    }
}
