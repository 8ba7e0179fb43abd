//! Keys, values and queues as JSON.
//!
//! | module | holds |
//! | --- | --- |
//! | [`change`] | changes of keys and queues |
//! | [`read`] | reads of them |
//! | [`park`] | waits and watches |
//!
//! Bodies and answers are flat: the job and the run are next to the key, the
//! revision is next to the result.

pub(crate) mod change;
pub(crate) mod park;
pub(crate) mod read;

use holdfast_api::{
    Answer, Code, Command, Effectiveness, Outcome, Problem, Proposal, Read, ReadAnswer,
    ReadOutcome, Revision, SessionRef,
};
use serde::{Deserialize, Serialize};

use super::App;
use super::answer::Json;
use super::problem::Failure;
use crate::principal::Principal;

/// When a change was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct Mark {
    /// Revision after the change: its own if it changed something.
    pub revision: Revision,
    /// Present and true if this is the answer of an earlier try of the same
    /// session and sequence.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
}

/// When an answer was true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct Seen {
    /// The revision at which the answer was true.
    pub revision: Revision,
    /// Present and true if a stale answer was asked for: this node's own
    /// state, however old.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
}

/// Commits a command; a refusal of the state machine is a failure here.
async fn propose(
    app: &App,
    caller: &Principal,
    session: Option<SessionRef>,
    command: Command,
) -> Result<(Outcome, Mark), Failure> {
    let result = app.node()?.acting(caller).propose(Proposal { session, command }).await;
    match &result {
        Ok(answer) => app.metrics().answered(answer),
        Err(problem) => app.metrics().proposal_failed(problem),
    }
    let Answer { revision, outcome, replayed } = result?;
    match outcome {
        Outcome::Refused(refusal) => Err(refusal.into()),
        outcome => Ok((outcome, Mark { revision, replayed })),
    }
}

/// Commits a command and picks the answer that fits it.
pub(crate) async fn commit<T>(
    app: &App,
    caller: &Principal,
    session: Option<SessionRef>,
    command: Command,
    fitting: impl FnOnce(&Outcome, Mark) -> Option<T>,
) -> Result<Json<T>, Failure> {
    let (outcome, mark) = propose(app, caller, session, command).await?;
    fitting(&outcome, mark).map(Json).ok_or_else(|| unfitting(&outcome, mark))
}

/// Puts a question to the state; a refusal of the state machine is a failure here.
pub(crate) async fn ask(
    app: &App,
    caller: &Principal,
    read: Read,
    stale: bool,
) -> Result<(ReadOutcome, Seen), Failure> {
    app.metrics().asked();
    let ReadAnswer { revision, outcome, .. } = app.node()?.acting(caller).read(read, stale).await?;
    match outcome {
        ReadOutcome::Refused(refusal) => Err(refusal.into()),
        outcome => Ok((outcome, Seen { revision, stale })),
    }
}

/// The answer does not fit this command.
fn unfitting(outcome: &Outcome, mark: Mark) -> Failure {
    if mark.replayed {
        let message = "this sequence of the session carried another command before; give each command a sequence of its own";
        return Problem::refused(Code::Conflict, message).into();
    }
    let message =
        format!("the command was applied, but its answer is of another kind: {outcome:?}");
    let outcome = Effectiveness::Applied;
    Problem { outcome, ..Problem::refused(Code::Internal, message) }.into()
}

/// The answer does not fit this question.
pub(crate) fn unfitting_read(outcome: &ReadOutcome) -> Failure {
    let message = format!("the answer is not one to this question: {outcome:?}");
    Problem::refused(Code::Internal, message).into()
}
