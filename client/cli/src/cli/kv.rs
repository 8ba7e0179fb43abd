//! The commands on keys and queues.

use clap::{Args, Subcommand};
use holdfast_api::{Blob, Compare, Revision, TransactionOp};

use crate::argument::Value;
use crate::exit::Failure;
use crate::{argument, transaction};

/// Commands on keys and queues.
#[derive(Debug, Subcommand)]
pub(crate) enum KvCommand {
    /// Set a key to a value; exit code 1 if --if-revision does not hold
    Put {
        /// The key to set
        #[arg(value_parser = argument::blob())]
        key: Blob,
        /// Its new value; - reads standard input as it is
        #[arg(value_parser = argument::value(), allow_negative_numbers = true)]
        value: Value,
        /// Set it only if it was last changed at this revision; 0 = only if it is absent [default: set it
        /// in any case]
        #[arg(long, value_name = "REV")]
        if_revision: Option<Revision>,
    },
    /// Print the value of a key; exit code 1 if it is absent
    Get {
        /// The key to read
        #[arg(value_parser = argument::blob())]
        key: Blob,
        /// Let any node answer from its own state, however old
        #[arg(long)]
        stale: bool,
        /// Print exactly the bytes of the value, without a newline; --output has no effect
        #[arg(long)]
        raw: bool,
    },
    /// Add to a decimal number (absent = 0) and print the sum
    Add {
        /// The key that holds the number
        #[arg(value_parser = argument::blob())]
        key: Blob,
        /// What to add; may be negative
        #[arg(allow_negative_numbers = true, value_name = "N")]
        delta: i64,
    },
    /// Raise a decimal number to at least N (absent = N) and print what it is then
    Max {
        /// The key that holds the number
        #[arg(value_parser = argument::blob())]
        key: Blob,
        /// The least value that it gets; may be negative
        #[arg(allow_negative_numbers = true, value_name = "N")]
        number: i64,
    },
    /// Set a key if it has the expected value (an empty one matches an absent key) and print its
    /// value afterwards; exit code 1 if it was not set
    Cas {
        /// The key to compare and set
        #[arg(value_parser = argument::blob())]
        key: Blob,
        /// The value that must be there
        #[arg(value_parser = argument::blob(), allow_negative_numbers = true)]
        expected: Blob,
        /// The value to put in its place
        #[arg(value_parser = argument::blob(), allow_negative_numbers = true, value_name = "NEW")]
        desired: Blob,
    },
    /// Delete a key, or many, and print how many there were
    ///
    /// Of many keys it deletes those that are there when it begins, 500 at a time. A key that
    /// is written after that, and before its turn, is kept and reported, with exit code 1.
    #[command(visible_aliases = ["del", "rm"])]
    Delete {
        #[command(flatten)]
        what: DeletionArgs,
    },
    /// Compare and change several keys at one revision; exit code 1 if not all comparisons hold
    ///
    /// If all comparisons hold, the steps of --then are done, otherwise those of --else. Each of the
    /// three options can be repeated. Without any of them the transaction is read from standard
    /// input: comparisons, an empty line, steps, an empty line, steps else, a line each.
    ///
    /// A comparison is value(KEY) = VALUE, revision(KEY) = N (0: the key is absent), exists(KEY) or
    /// absent(KEY). A step is get KEY, put KEY VALUE, add KEY N, append KEY VALUE or delete KEY. Keys
    /// and values with spaces stand between double quotes.
    ///
    /// It prints `then` or `else`, and a line for each step that was done.
    #[command(verbatim_doc_comment)]
    Txn {
        /// Compare this; can be repeated, and all must hold
        #[arg(long = "if", value_name = "COMPARISON", value_parser = transaction::compare)]
        compare: Vec<Compare>,
        /// Do this if all comparisons hold; can be repeated
        #[arg(long, value_name = "STEP", value_parser = transaction::step)]
        then: Vec<TransactionOp>,
        /// Do this if one does not hold; can be repeated
        #[arg(long = "else", value_name = "STEP", value_parser = transaction::step)]
        or_else: Vec<TransactionOp>,
    },
    /// Append to the value of a key (absent = empty)
    Append {
        /// The key whose value grows
        #[arg(value_parser = argument::blob())]
        key: Blob,
        /// What to append; - reads standard input as it is
        #[arg(value_parser = argument::value(), allow_negative_numbers = true)]
        value: Value,
    },
    /// List keys in byte order
    #[command(visible_alias = "ls")]
    List {
        /// Only keys that start with this
        #[arg(value_parser = argument::blob())]
        prefix: Option<Blob>,
        /// Leave the values out
        #[arg(long)]
        keys_only: bool,
        /// Let any node answer from its own state, however old
        #[arg(long)]
        stale: bool,
    },
    /// Count the keys of the run, or those that start with PREFIX
    Count {
        /// Only keys that start with this
        #[arg(value_parser = argument::blob())]
        prefix: Option<Blob>,
        /// Let any node answer from its own state, however old
        #[arg(long)]
        stale: bool,
    },
    /// Print every change, one line each, until Ctrl-C; exit code 1 when the run has ended. Says on
    /// stderr that the last agent has left it, and when it ends
    Watch {
        /// Only keys that start with this
        #[arg(value_parser = argument::blob())]
        prefix: Option<Blob>,
        /// Begin with this revision [default: changes from now on]
        #[arg(long, value_name = "REV", value_parser = clap::value_parser!(u64).range(1..))]
        from: Option<Revision>,
        /// Go on with the job's next run when this one has ended, from its opening; with --from,
        /// begin with the run of that revision
        #[arg(long)]
        follow_runs: bool,
    },
    /// Wait until all keys exist (as a key, or as a queue that is not empty); --timeout bounds the
    /// whole wait, exit code 1 if it passes
    Wait {
        /// The keys or queues to wait for
        #[arg(value_parser = argument::blob(), required = true, value_name = "KEY")]
        keys: Vec<Blob>,
        /// Wait until the keys are numbers of at least this [default: until they exist]
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        at_least: Option<i64>,
    },
    /// Put a value at the end of a queue and print the queue's length
    Push {
        /// The queue that gets the value
        #[arg(value_parser = argument::blob(), value_name = "KEY")]
        queue: Blob,
        /// The value; - reads standard input as it is
        #[arg(value_parser = argument::value(), allow_negative_numbers = true)]
        value: Value,
    },
    /// Take the value at the front of a queue and print it; exit code 1 if the queue is empty
    Pop {
        /// The queue to take from
        #[arg(value_parser = argument::blob(), value_name = "KEY")]
        queue: Blob,
        /// Print exactly the bytes of the value, without a newline; --output has no effect
        #[arg(long)]
        raw: bool,
    },
    /// Print the length of a queue
    Length {
        /// The queue whose length to print
        #[arg(value_parser = argument::blob(), value_name = "KEY")]
        queue: Blob,
    },
}

/// Which keys are deleted: exactly one of these.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct DeletionArgs {
    /// The key to delete
    #[arg(value_parser = argument::blob())]
    key: Option<Blob>,
    /// Delete all keys that start with this, which is not empty [default: one key]
    #[arg(long, value_parser = argument::blob())]
    prefix: Option<Blob>,
    /// Delete all keys of the run
    #[arg(long)]
    all: bool,
}

/// Which keys are deleted.
#[derive(Debug, PartialEq)]
pub(crate) enum Deletion {
    Key(Blob),
    Prefix(Blob),
}

impl DeletionArgs {
    /// What is meant; a variable of a script that was not set does not delete
    /// all there is.
    pub(crate) fn of(self) -> Result<Deletion, Failure> {
        match self {
            DeletionArgs { key: Some(key), .. } => Ok(Deletion::Key(key)),
            DeletionArgs { prefix: Some(prefix), .. } if prefix.is_empty() => Err(Failure::Usage(
                "every key starts with an empty --prefix; to delete all keys of the run, say --all"
                    .to_owned(),
            )),
            DeletionArgs { prefix, .. } => Ok(Deletion::Prefix(prefix.unwrap_or_default())),
        }
    }
}
