//! Opens decoders of the command line to the fuzz targets in `tests/fuzz`.

use std::fmt::Write as _;

use holdfast_api::{Blob, Compare, TransactionOp};

use crate::commands::doctor::exposition::{Histogram, value};
use crate::config::{self, Timeout};
use crate::transaction::{Transaction, compare, step};

/// Reads a transaction, and a line as each of its parts. What is read must be read again as it is
/// written.
pub fn transaction(text: &str) {
    if let Ok(read) = Transaction::of_text(text) {
        let _ = read.check();
        let again = Transaction::of_text(&written(&read));
        assert_eq!(again.as_ref(), Ok(&read), "{}", written(&read));
    }
    if let Ok(read) = compare(text) {
        assert_eq!(compare(&compare_text(&read)).as_ref(), Ok(&read));
    }
    if let Ok(read) = step(text) {
        assert_eq!(step(&step_text(&read)).as_ref(), Ok(&read));
    }
}

fn written(transaction: &Transaction) -> String {
    let mut text = String::new();
    let mut line = |line: &str| writeln!(text, "{line}").expect("a string takes all");
    transaction.compare.iter().for_each(|it| line(&compare_text(it)));
    line("");
    transaction.then.iter().for_each(|it| line(&step_text(it)));
    line("");
    transaction.or_else.iter().for_each(|it| line(&step_text(it)));
    text
}

fn quoted(blob: &Blob) -> String {
    format!("\"{}\"", blob.escaped().replace('"', "\\\""))
}

fn compare_text(compare: &Compare) -> String {
    match compare {
        Compare::Value { key, value } => format!("value({}) = {}", quoted(key), quoted(value)),
        Compare::Revision { key, revision } => format!("revision({}) = {revision}", quoted(key)),
        Compare::Exists { key, exists: true } => format!("exists({})", quoted(key)),
        Compare::Exists { key, exists: false } => format!("absent({})", quoted(key)),
    }
}

fn step_text(op: &TransactionOp) -> String {
    match op {
        TransactionOp::Get { key } => format!("get {}", quoted(key)),
        TransactionOp::Put { key, value } => format!("put {} {}", quoted(key), quoted(value)),
        TransactionOp::Add { key, delta } => format!("add {} {delta}", quoted(key)),
        TransactionOp::Append { key, value } => format!("append {} {}", quoted(key), quoted(value)),
        TransactionOp::Delete { key } => format!("delete {}", quoted(key)),
    }
}

/// Reads a configuration file.
pub fn config(text: &str) {
    if let Err(reason) = config::layer(text) {
        assert!(!reason.is_empty());
    }
}

/// Reads a timeout; as it is written, it is read again.
pub fn timeout(text: &str) {
    if let Ok(read) = text.parse::<Timeout>() {
        assert_eq!(read.to_string().parse(), Ok(read), "{read}");
    }
}

/// Reads numbers out of a node's metrics.
pub fn metrics(text: &str) {
    value(text, "a");
    if let Some(histogram) = Histogram::read(text, "a") {
        histogram.quantile(0.5);
        histogram.quantile(0.99);
    }
}
