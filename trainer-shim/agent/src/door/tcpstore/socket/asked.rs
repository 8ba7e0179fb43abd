//! What a connection asks the store, and the answers.

use futures::future::BoxFuture;
use holdfast_api::{Answer, Condition, Effectiveness, Refusal, Revision};
use holdfast_client::{Client, Consistency, Deadline, Error, Mark, Settled};
use tokio::join;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::door::tcpstore::mapping::{Call, CallAnswer};
use crate::door::tcpstore::serve::Shared;
use crate::door::tcpstore::visibility::Before;

/// The store's answer, and its place in the session until that is recorded. A command that may have
/// been carried out without an answer has one, too.
pub(super) struct Answered {
    pub(super) answer: Result<CallAnswer, Error>,
    /// The revision of a command.
    pub(super) at: Option<Revision>,
    pub(super) settled: Option<Settled>,
}

impl Answered {
    pub(super) fn proposed(answer: Result<Answer, Error>, settled: Option<Settled>) -> Answered {
        let at = answer.as_ref().ok().map(|answer| answer.revision);
        let answer = answer.map(|answer| CallAnswer::Proposed(answer.outcome));
        Answered { answer, at, settled }
    }
}

pub(super) type Asked<T> = Option<BoxFuture<'static, T>>;

impl Shared {
    /// Asks the store, once it may be asked; a poll not before its time.
    pub(super) fn call(
        &self,
        client: Client,
        call: Call,
        before: Before,
        not_before: Option<Instant>,
        mark: Option<Mark>,
    ) -> BoxFuture<'static, Answered> {
        let patience = self.options.store_lost_deadline;
        Box::pin(async move {
            let deadline = Deadline::after(patience);
            if let Err(error) = in_time(before.passed(&call), deadline).await {
                return Answered { answer: Err(error), at: None, settled: None };
            }
            match call {
                Call::Propose(command) => {
                    let (answer, settled) = match mark {
                        Some(mark) => client.propose_marked(command, mark, deadline).await,
                        None => (client.propose(command, deadline).await, None),
                    };
                    Answered::proposed(answer, settled)
                }
                Call::Read(read) => {
                    let answer = match not_before {
                        Some(at) => client.read_together(read, at, deadline).await,
                        None => client.read(read, Consistency::Linearizable, deadline).await,
                    };
                    let answer = answer.map(|answer| CallAnswer::Read(answer.outcome));
                    Answered { answer, at: None, settled: None }
                }
            }
        })
    }

    /// Waits until each of these was true, from this revision on where another agent has
    /// begun to wait; `began` is told from which one.
    pub(super) fn wait(
        &self,
        conditions: Vec<Condition>,
        since: Option<Revision>,
        began: oneshot::Sender<Revision>,
    ) -> BoxFuture<'static, Result<Revision, Error>> {
        let (client, scope) = (self.client.clone(), self.scope.clone());
        Box::pin(in_pieces(conditions, since, began, move |piece, since, began| {
            let (client, scope) = (client.clone(), scope.clone());
            async move { client.wait_since(scope, piece, since, began, Deadline::never()).await }
        }))
    }
}

/// Waits for all of these with `wait`; where the store finds that too much for one wait, for one
/// half after the other. What was true since the first of them began counts.
async fn in_pieces<W: Future<Output = Result<Revision, Error>>>(
    conditions: Vec<Condition>,
    mut since: Option<Revision>,
    began: oneshot::Sender<Revision>,
    wait: impl Fn(Vec<Condition>, Option<Revision>, oneshot::Sender<Revision>) -> W,
) -> Result<Revision, Error> {
    let (mut left, mut began, mut over) = (vec![conditions], Some(began), 0);
    while let Some(mut piece) = left.pop() {
        let (tell, told) = oneshot::channel();
        let registered = async {
            let revision = told.await.ok()?;
            if let Some(began) = began.take() {
                // The connection may have given up its wait.
                let _ = began.send(revision);
            }
            Some(revision)
        };
        match join!(wait(piece.clone(), since, tell), registered) {
            (Ok(revision), registered) => {
                over = revision;
                // Not registered where all was true at once.
                since = since.or(registered).or(Some(revision));
            }
            (Err(error), _) if piece.len() > 1 && is_too_much(&error) => {
                let rest = piece.split_off(piece.len() / 2);
                left.extend([rest, piece]);
            }
            (Err(error), _) => return Err(error),
        }
    }
    Ok(over)
}

/// Whether the store takes shorter waits than the one that it has refused.
fn is_too_much(error: &Error) -> bool {
    let is_of_all = |what: &str| ["command_bytes_max", "keys_per_command_max"].contains(&what);
    match too_long(error) {
        Some(Refusal::LimitExceeded { what, .. }) => is_of_all(&what),
        _ => false,
    }
}

/// The refusal of a call for its size: there may be a shorter one.
pub(super) fn too_long(error: &Error) -> Option<Refusal> {
    let Error::Refused(problem) = error else { return None };
    problem.refusal.clone().filter(|refusal| matches!(refusal, Refusal::LimitExceeded { .. }))
}

/// The refusal of a command for its size, or for lack of room: a part of it may be accepted.
pub(super) fn too_much(error: &Error) -> Option<Refusal> {
    let Error::Refused(problem) = error else { return None };
    let is_too_much = |refusal: &Refusal| {
        matches!(
            refusal,
            Refusal::LimitExceeded { .. } | Refusal::QuotaExceeded { .. } | Refusal::NoSpace { .. }
        )
    };
    // An earlier try may have been carried out unless it says so.
    let refusal = problem.refusal.clone().filter(is_too_much);
    refusal.filter(|_| problem.outcome == Effectiveness::None)
}

/// Waits for writes over other connections; an error once the deadline has passed.
async fn in_time(passed: impl Future<Output = ()>, deadline: Deadline) -> Result<(), Error> {
    let Some(instant) = deadline.instant() else {
        passed.await;
        return Ok(());
    };
    timeout_at(instant, passed).await.map_err(|_| Error::Timeout {
        outcome: Effectiveness::None,
        reason: "what other connections of this host wrote to its keys before is not committed"
            .to_owned(),
    })
}

/// The result of what was asked; never ready if nothing was.
pub(super) async fn settled<T>(asked: &mut Asked<T>) -> T {
    match asked {
        Some(future) => {
            let result = future.await;
            *asked = None;
            result
        }
        None => std::future::pending().await,
    }
}

/// The revision at which a wait began; never ready where there is none to hear of.
pub(super) async fn told(began: &mut Option<oneshot::Receiver<Revision>>) -> Revision {
    if let Some(told) = began {
        let revision = told.await;
        *began = None;
        // Not sent: all was true at once, and the wait is over.
        if let Ok(revision) = revision {
            return revision;
        }
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::pending;
    use std::time::Duration;

    use holdfast_api::{Blob, Code, Until};

    use super::*;

    /// Conditions on keys of one letter.
    fn exist(keys: &str) -> Vec<Condition> {
        let key = |key: char| Blob::from(key.to_string());
        keys.chars().map(|letter| Condition { key: key(letter), until: Until::Exists }).collect()
    }

    /// A store that takes two keys in one wait, registers it at revision 10, and ends it at 20.
    async fn wait_of_two(
        piece: Vec<Condition>,
        since: Option<Revision>,
        began: oneshot::Sender<Revision>,
        limit: &str,
    ) -> Result<Revision, Error> {
        let size = piece.len() as u64;
        if size > 2 {
            let refusal = Refusal::LimitExceeded { what: limit.to_owned(), size, limit: 2 };
            return Err(Error::Refused(Box::new(refusal.into())));
        }
        began.send(since.unwrap_or(10)).unwrap();
        Ok(20)
    }

    #[tokio::test]
    async fn a_wait_that_is_too_much_is_cut_and_counts_from_its_beginning() {
        let asked = RefCell::new(Vec::new());
        let (began, mut told) = oneshot::channel();
        let over = in_pieces(exist("abcde"), None, began, |piece, since, began| {
            let keys: String = piece.iter().map(|condition| condition.key.escaped()).collect();
            asked.borrow_mut().push((keys, since));
            wait_of_two(piece, since, began, "command_bytes_max")
        });
        assert_eq!(over.await.unwrap(), 20);
        assert_eq!(told.try_recv(), Ok(10));
        let [first, rest]: [Option<Revision>; 2] = [None, Some(10)];
        let pieces = [("abcde", first), ("ab", first), ("cde", rest), ("c", rest), ("de", rest)];
        assert_eq!(asked.into_inner(), pieces.map(|(keys, since)| (keys.to_owned(), since)));
    }

    #[tokio::test]
    async fn a_wait_is_not_cut_where_one_key_is_too_long() {
        let asked = RefCell::new(0);
        let (began, _told) = oneshot::channel();
        let over = in_pieces(exist("abc"), None, began, |piece, since, began| {
            *asked.borrow_mut() += 1;
            wait_of_two(piece, since, began, "key_bytes_max")
        });
        assert_eq!(over.await.unwrap_err().code(), Code::LimitExceeded);
        assert_eq!(asked.into_inner(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_other_connections_waits_no_longer_than_for_the_store() {
        let deadline = Deadline::after(Duration::from_secs(300));
        let error = in_time(pending(), deadline).await.unwrap_err();
        assert_eq!((error.code(), error.outcome()), (Code::Timeout, Effectiveness::None));
        assert_eq!(Some(Instant::now()), deadline.instant());
    }
}
