//! A lock with fencing tokens. A client that finds it taken for too long takes it away
//! from its holder, which may not know: that is what the tokens are for.

use std::time::Duration;

use holdfast_api::{Compare, TransactionOp, TransactionOutcome};
use holdfast_client::Deadline;
use rand::RngExt;

use super::client::Worker;
use super::data::settled;
use super::door::{CALL_TIME_MAX, Door, text};
use crate::operation::{Action, Answer, Outcome};

const LOCK: &str = "lock/holder";
const TOKENS: &str = "lock/tokens";
/// The name under which it is judged.
const KEY: &str = "lock";
/// Guarded writes of one holder.
const WRITES: u32 = 3;

impl Worker {
    /// Takes the lock, writes with its token, and gives it back, mostly.
    pub(super) async fn lock(&mut self) -> anyhow::Result<()> {
        let Door::Library { keys, .. } = self.door.clone() else { return Ok(()) };
        let own = format!("{} {}", self.description.name, self.shared.element());
        let Ok(found) = keys.get(LOCK, Deadline::after(CALL_TIME_MAX)).await else {
            return Ok(());
        };
        let holder = found.and_then(|entry| entry.value).map(|value| text(&value));
        // Now and then it is taken from its holder.
        if holder.is_some() && self.random.random_range(0..4_u32) > 0 {
            return Ok(());
        }
        let compare = match &holder {
            Some(holder) => Compare::Value { key: LOCK.into(), value: holder.as_str().into() },
            None => Compare::Exists { key: LOCK.into(), exists: false },
        };
        let then = vec![
            TransactionOp::Add { key: TOKENS.into(), delta: 1 },
            TransactionOp::Put { key: LOCK.into(), value: own.as_str().into() },
        ];
        let taking = async {
            let deadline = Deadline::after(CALL_TIME_MAX);
            let done = keys.transaction(vec![compare], then, vec![], deadline).await;
            match done {
                Ok(done) if !done.succeeded => {
                    Outcome::Refused { why: "somebody else was faster".to_owned() }
                }
                done => settled(done, |done| match done.outcomes.first()? {
                    TransactionOutcome::Added { value } => {
                        Some(Answer::Token(u64::try_from(*value).ok()?))
                    }
                    _ => None,
                }),
            }
        };
        let taken = self.call(KEY, Action::Acquire, taking).await?;
        let Outcome::Ok { answer: Answer::Token(token), .. } = taken else { return Ok(()) };
        for _ in 0..WRITES {
            tokio::time::sleep(Duration::from_millis(self.random.random_range(1..60))).await;
            let shared = self.shared.clone();
            let writing = async {
                match shared.guarded_write(token, &own) {
                    Ok(accepted) => {
                        Outcome::Ok { answer: Answer::Accepted(accepted), revision: None }
                    }
                    Err(error) => Outcome::Unknown { why: error.to_string() },
                }
            };
            self.call(KEY, Action::Guard { token }, writing).await?;
        }
        if self.random.random_range(0..4_u32) > 0 {
            let compare = vec![Compare::Value { key: LOCK.into(), value: own.as_str().into() }];
            let then = vec![TransactionOp::Delete { key: LOCK.into() }];
            let giving = async {
                let deadline = Deadline::after(CALL_TIME_MAX);
                let done = keys.transaction(compare, then, vec![], deadline).await;
                settled(done, |done| Some(Answer::Existed(done.succeeded)))
            };
            self.call(KEY, Action::Release { token }, giving).await?;
        }
        Ok(())
    }
}
