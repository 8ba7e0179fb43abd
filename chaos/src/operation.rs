//! Calls of a workload's clients, and their known outcomes.

use std::fmt;

use holdfast_api::LeaseId;
use serde::{Deserialize, Serialize};

use crate::history::Moment;

/// One call of one client, from its beginning to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    /// Name of the client.
    pub client: String,
    /// Name of the workload, which selects the checkers.
    pub workload: String,
    /// The key, queue, set or lock. Keys are judged apart.
    pub key: String,
    /// Read before anything was sent.
    pub call: Moment,
    /// Read after the answer had come; none if it never came.
    pub returned: Option<Moment>,
    /// What the client asked for.
    pub action: Action,
    /// What the client knows of the outcome.
    pub outcome: Outcome,
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Reads the value of a key.
    Read,
    /// Sets a key, whatever it was before.
    Write {
        /// The value that the key gets.
        value: String,
    },
    /// Sets one of the keys below a prefix that is watched. A recording that has `Write` in
    /// its place does not say which one.
    WriteBelow {
        /// The key, with the prefix.
        key: String,
        /// The value that it gets, used once in the history.
        value: String,
    },
    /// Sets a key on one connection of a host, and reads it on another one.
    Show {
        /// The value that the key gets.
        value: String,
    },
    /// Sets a key if it has a value; an empty expectation is met by absence.
    CompareAndSet {
        /// The value that must be there.
        expected: String,
        /// The value to put in its place.
        value: String,
    },
    /// Deletes a key, if it is there.
    Delete,
    /// Asks whether a key exists.
    Check,
    /// Waits until a key exists. Refused: it was taken back before.
    Wait,
    /// Adds to a number; an absent one counts as 0.
    Add {
        /// The number to add.
        delta: i64,
    },
    /// Appends an element to a list.
    Append {
        /// Used once in the history.
        element: String,
    },
    /// Puts an element into a set.
    Insert {
        /// Used once in the history.
        element: String,
    },
    /// Reads all elements of a list or a set.
    Elements,
    /// Puts an element at the end of a queue.
    Push {
        /// Used once in the history.
        element: String,
    },
    /// Takes the element at the front of a queue.
    Pop,
    /// Begins or resumes a watch of a prefix.
    Watch {
        /// The first revision wanted.
        from: u64,
        /// Whether it is another watch than the one before it of the same client,
        /// which had ended for good.
        #[serde(default)]
        anew: bool,
    },
    /// A watch hands out all changes of one revision.
    Deliver,
    /// A watch ends, long after the last write. Refused: it ended by itself.
    Unwatch,
    /// Asks for a lease and registers processes on it.
    Grant {
        /// The TTL that is asked for, in milliseconds.
        ttl_ms: u64,
        /// Number of processes on it.
        processes: u32,
    },
    /// Renews a lease for another TTL.
    KeepAlive {
        /// Id of the lease.
        lease: LeaseId,
    },
    /// Asks how the processes of a lease are.
    Observe {
        /// Id of the lease.
        lease: LeaseId,
    },
    /// Takes a lock, from its holder if need be, with a token.
    Acquire,
    /// Writes to the guarded file with the token of the lock.
    Guard {
        /// The fencing token of the lock.
        token: u64,
    },
    /// Gives the lock back.
    Release {
        /// The fencing token of the lock.
        token: u64,
    },
    /// Sends an addition under a number of a session that may have been sent before.
    Resend {
        /// Sequence number in its session.
        sequence: u64,
    },
}

/// The known outcome of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// It was done, with an answer.
    Ok {
        /// What the store answered.
        answer: Answer,
        /// The revision that the store gave for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revision: Option<u64>,
    },
    /// It was not done and never will be.
    Refused {
        /// The error, for people.
        why: String,
    },
    /// It may have been done, or may be later.
    Unknown {
        /// The error, for people.
        why: String,
    },
}

/// The answer to an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// Success without a value.
    Done,
    /// A value; none if the key is absent, or the queue is empty.
    Value(Option<String>),
    /// Result of a compare-and-set.
    Swapped {
        /// Whether the new value was stored.
        swapped: bool,
        /// The value after it.
        value: Option<String>,
    },
    /// Whether there was anything to delete.
    Existed(bool),
    /// Whether the key exists.
    Exists(bool),
    /// The sum after an addition.
    Sum(i64),
    /// A list or a set.
    Elements(Vec<String>),
    /// All watched changes of a revision.
    Changes(Vec<Change>),
    /// A lease, with processes on it.
    Granted {
        /// Id of the lease.
        lease: LeaseId,
        /// The TTL that was granted.
        ttl_ms: u64,
    },
    /// A lease that has ended, or not.
    Alive(bool),
    /// The processes of a lease.
    Processes(Vec<ProcessSeen>),
    /// The fencing token of a lock that was taken.
    Token(u64),
    /// Whether the guarded file took the write.
    Accepted(bool),
}

/// One change that a watch handed out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The key that was changed.
    pub key: String,
    /// Its new value; none if it was deleted.
    pub value: Option<String>,
}

/// One process of a lease, as a client saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessSeen {
    /// Number of the process.
    pub process: u32,
    /// The revision of its end; none while it is alive.
    pub ended: Option<u64>,
    /// Whether the end of the lease was its end.
    pub by_expiry: bool,
}

impl Operation {
    /// The answer, if it is known.
    pub fn answer(&self) -> Option<&Answer> {
        match &self.outcome {
            Outcome::Ok { answer, .. } => Some(answer),
            Outcome::Refused { .. } | Outcome::Unknown { .. } => None,
        }
    }

    /// The revision that the store gave for it.
    pub fn revision(&self) -> Option<u64> {
        match &self.outcome {
            Outcome::Ok { revision, .. } => *revision,
            Outcome::Refused { .. } | Outcome::Unknown { .. } => None,
        }
    }

    /// Whether it was a request to the store. A watch event or the write of a guarded
    /// file is always certain, and proves nothing of the store's answers.
    pub fn is_on_store(&self) -> bool {
        !matches!(
            self.action,
            Action::Deliver | Action::Unwatch | Action::Guard { .. } | Action::Watch { .. }
        )
    }

    /// Whether it was certainly not done.
    pub fn is_refused(&self) -> bool {
        matches!(self.outcome, Outcome::Refused { .. })
    }

    /// Whether it may or may not have been done.
    pub fn is_unknown(&self) -> bool {
        matches!(self.outcome, Outcome::Unknown { .. })
    }

    /// The last moment at which it can have taken effect. An operation of unknown outcome
    /// can take effect at any time.
    pub fn end(&self) -> Moment {
        match (self.is_unknown(), self.returned) {
            (false, Some(returned)) => returned,
            _ => Moment::MAX,
        }
    }

    /// Whether it was over before another one was called.
    pub fn is_before(&self, other: &Operation) -> bool {
        self.end() < other.call
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Read => f.write_str("read"),
            Action::Write { value } => write!(f, "write {value}"),
            Action::WriteBelow { key, value } => write!(f, "write {value} to {key}"),
            Action::Show { value } => write!(f, "write {value}, and read it beside that"),
            Action::CompareAndSet { expected, value } if expected.is_empty() => {
                write!(f, "set {value} if absent")
            }
            Action::CompareAndSet { expected, value } => write!(f, "set {value} if {expected}"),
            Action::Delete => f.write_str("delete"),
            Action::Check => f.write_str("check"),
            Action::Wait => f.write_str("wait"),
            Action::Add { delta } => write!(f, "add {delta}"),
            Action::Append { element } => write!(f, "append {element}"),
            Action::Insert { element } => write!(f, "insert {element}"),
            Action::Elements => f.write_str("read all"),
            Action::Push { element } => write!(f, "push {element}"),
            Action::Pop => f.write_str("pop"),
            Action::Watch { from, .. } => write!(f, "watch from {from}"),
            Action::Deliver => f.write_str("delivery"),
            Action::Unwatch => f.write_str("end of the watch"),
            Action::Grant { ttl_ms, .. } => write!(f, "lease of {ttl_ms} ms"),
            Action::KeepAlive { lease } => write!(f, "renew lease {lease}"),
            Action::Observe { lease } => write!(f, "look at lease {lease}"),
            Action::Acquire => f.write_str("lock"),
            Action::Guard { token } => write!(f, "guarded write with token {token}"),
            Action::Release { token } => write!(f, "unlock {token}"),
            Action::Resend { sequence } => write!(f, "send number {sequence}"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Done => f.write_str("done"),
            Answer::Value(Some(value)) => f.write_str(value),
            Answer::Value(None) => f.write_str("nothing"),
            Answer::Swapped { swapped: true, .. } => f.write_str("set"),
            Answer::Swapped { value, .. } => match value {
                Some(value) => write!(f, "not set, it is {value}"),
                None => f.write_str("not set, it is absent"),
            },
            Answer::Existed(true) => f.write_str("deleted"),
            Answer::Existed(false) => f.write_str("it was absent"),
            Answer::Exists(true) => f.write_str("it exists"),
            Answer::Exists(false) => f.write_str("it is absent"),
            Answer::Sum(sum) => write!(f, "{sum}"),
            Answer::Elements(all) => match all.last() {
                Some(last) => write!(f, "{} elements, the last is {last}", all.len()),
                None => f.write_str("no elements"),
            },
            Answer::Changes(changes) => {
                for (n, Change { key, value }) in changes.iter().enumerate() {
                    let comma = if n > 0 { ", " } else { "" };
                    write!(f, "{comma}{key} = {}", value.as_deref().unwrap_or("nothing"))?;
                }
                Ok(())
            }
            Answer::Granted { lease, ttl_ms } => write!(f, "lease {lease}, {ttl_ms} ms"),
            Answer::Alive(true) => f.write_str("alive"),
            Answer::Alive(false) => f.write_str("ended"),
            Answer::Processes(all) => {
                let dead = all.iter().filter(|process| process.ended.is_some()).count();
                write!(f, "{dead} of {} ended", all.len())
            }
            Answer::Token(token) => write!(f, "token {token}"),
            Answer::Accepted(true) => f.write_str("accepted"),
            Answer::Accepted(false) => f.write_str("turned away"),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}: ", self.client, self.key, self.action)?;
        match &self.outcome {
            Outcome::Ok { answer, revision: Some(at) } => write!(f, "{answer} (revision {at})"),
            Outcome::Ok { answer, .. } => write!(f, "{answer}"),
            Outcome::Refused { .. } => f.write_str("refused"),
            Outcome::Unknown { .. } => f.write_str("unknown"),
        }
    }
}
