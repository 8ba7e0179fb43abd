//! Joining: one incarnation is registered on a host.

use std::sync::Arc;

use futures::FutureExt as _;
use holdfast_api::{
    Answer, Cause, Code, Command, Effectiveness, Incarnation, Labels, Outcome, Policy,
    ProcessCommand, ProcessId, ProcessInfo, ProcessOutcome, Read, ReadOutcome, Refusal, Role,
};
use holdfast_client::Deadline;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{FORMER_INCARNATION_POLL, Host, REGISTER_PAUSE, unexpected};
use crate::error::Error;
use crate::lease::nonce;
use crate::outage::{saying, soon};
use crate::process::Process;
use crate::vitals::{Hook, MainThread, Vitals, Watchdog};
use crate::waiting;
use crate::waiting::{FIRST_NOTICE, Pauses};

/// How a process joins.
#[derive(Debug, Clone, Default)]
pub struct Join {
    /// Its number; `None` = the next above all that the run ever used.
    pub process: Option<ProcessId>,
    /// Whether it counts in rounds (active) or waits to be promoted.
    pub role: Role,
    /// Labels that it reports of itself.
    pub labels: Labels,
    /// The numbers that it gives to rounds over all active processes.
    pub policy: Policy,
    /// Replace a live incarnation on another host.
    pub takeover: bool,
    /// Until when an incarnation of this process that goes on elsewhere may end, so
    /// that this one takes its place: after a kill it lasts as long as its
    /// lease. None = it is refused at once.
    pub patience: Option<Deadline>,
    /// What the agent does when the process falls silent. Without an agent there
    /// is no watchdog.
    pub watchdog: Watchdog,
    /// Called when the agent reports that it is silent.
    pub on_silence: Option<Hook>,
    /// Reports how the program's main thread is doing.
    pub main_thread: Option<MainThread>,
}

/// Whether a deadline passes before it could be looked again.
fn passes(deadline: Deadline) -> bool {
    deadline.instant().is_some_and(|at| at <= Instant::now() + FORMER_INCARNATION_POLL)
}

pub(super) fn refusal(error: &Error) -> Option<&Refusal> {
    let Error::Client(holdfast_client::Error::Refused(problem)) = error else { return None };
    problem.refusal.as_ref()
}

impl Host {
    /// Registers a new incarnation. An earlier incarnation of the process is replaced: it must
    /// have ended, or, where programs share the lease of an agent, be this one's own, unless
    /// `takeover` is set.
    pub async fn join(&self, join: Join) -> Result<Process, Error> {
        let Join { process, role, labels, policy, takeover, patience, .. } = join;
        let nonce = nonce();
        let mut replaces: Incarnation = 0;
        let deadline = patience.unwrap_or(Deadline::never());
        let mut notices = Pauses::begin(Instant::now() + FIRST_NOTICE);
        // Another one may register in between; each refusal names the latest.
        loop {
            let command = ProcessCommand::Register {
                lease: self.shared.lease,
                process,
                nonce,
                replaces,
                takeover,
                role,
                labels: labels.clone(),
                policy: Box::new(policy.clone()),
            };
            let error = match self.register(command, deadline).await {
                Ok(Answer { outcome, .. }) => {
                    let Outcome::Process(ProcessOutcome::Registered {
                        process,
                        incarnation,
                        since,
                    }) = outcome
                    else {
                        return Err(unexpected("a registration"));
                    };
                    let changed = self.shared.changed.clone();
                    let participant = (process, incarnation);
                    let Join { watchdog, on_silence, main_thread, .. } = join;
                    let vitals =
                        Vitals::new(participant, watchdog, on_silence, main_thread, changed);
                    self.watch(vitals.clone());
                    return Ok(Process::new(self.clone(), since, policy.members_min, vitals));
                }
                Err(error) => error,
            };
            match (refusal(&error), patience) {
                (Some(Refusal::Superseded { current, .. }), _) if *current != replaces => {
                    replaces = *current;
                }
                (Some(held @ Refusal::AliveElsewhere { .. }), Some(patience)) => {
                    if !self.ended_by(held, patience, &mut notices).await? {
                        return Err(error);
                    }
                    // The agent receives the end a moment later.
                    tokio::time::sleep(REGISTER_PAUSE).await;
                }
                _ => return Err(error),
            }
        }
    }

    /// Registers an incarnation, and ends it if its caller is gone when it begins: rounds would
    /// wait for it for ever.
    pub(super) async fn register(
        &self,
        command: ProcessCommand,
        deadline: Deadline,
    ) -> Result<Answer, Error> {
        let (tell, told) = oneshot::channel();
        let (host, command) = (self.clone(), Command::Process(command));
        self.spawn(async move {
            let answer = host.propose(command.clone(), deadline).await;
            let unknown = answer.as_ref().is_err_and(|e| e.outcome() == Effectiveness::Unknown);
            let unheard = match tell.send(answer) {
                Err(Ok(unheard)) => Ok(unheard),
                // Asked again it is the same incarnation.
                _ if unknown => host.propose(command, Deadline::never()).await,
                _ => return,
            };
            if let Ok(Answer { outcome, .. }) = unheard
                && let Outcome::Process(ProcessOutcome::Registered { process, incarnation, .. }) =
                    outcome
                && let Err(error) = host.end([((process, incarnation), Cause::Left)].into()).await
            {
                tracing::debug!(%error, "could not end an incarnation that nobody waited for");
            }
        });
        // Only the end of the host ends it silently.
        let scope = self.shared.scope.clone();
        let what = format!("registering in {}", waiting::place(&scope));
        let host = self.clone();
        let asking = move || {
            let (host, scope) = (host.clone(), scope.clone());
            async move {
                host.look(Read::Iteration { scope, process: None, incarnation: 0 }, soon())
                    .await
                    .map(drop)
            }
            .boxed()
        };
        saying(&what, self.outage(), asking, told).await.unwrap_or(Err(Error::Closed))
    }

    /// Sends heartbeats of this incarnation from now on: the first before any other message of it.
    pub(super) fn watch(&self, vitals: Arc<Vitals>) {
        {
            let mut watched = self.shared.watched.lock();
            // Earlier ones without a handle are dropped.
            watched.retain(|known| Arc::strong_count(known) > 1);
            watched.push(vitals);
        }
        self.give_heartbeat();
        self.shared.changed.notify_one();
    }

    /// Waits for the end of the incarnation that holds a number; false if it goes on at
    /// the deadline. Asks without writing: it can take a whole TTL.
    async fn ended_by(
        &self,
        held: &Refusal,
        deadline: Deadline,
        notices: &mut Pauses,
    ) -> Result<bool, Error> {
        let Refusal::AliveElsewhere { process, incarnation, .. } = held else { return Ok(true) };
        loop {
            let (scope, after) = (self.shared.scope.clone(), process.checked_sub(1));
            let what = format!("registering in {}", waiting::place(&scope));
            let looking = self.look(Read::Processes { scope, after, limit: 1 }, deadline);
            let answer =
                match saying(&what, self.outage(), || async { Ok(()) }.boxed(), looking).await {
                    Ok(answer) => answer,
                    Err(error) if error.code() == Code::Timeout => return Ok(false),
                    Err(error) => return Err(error),
                };
            let ReadOutcome::Processes { processes, .. } = answer.outcome else {
                return Err(unexpected("processes"));
            };
            let participants = |info: &&ProcessInfo| {
                info.process == *process && info.incarnation == *incarnation && info.end.is_none()
            };
            let Some(participant) = processes.iter().find(participants) else { return Ok(true) };
            let now = Instant::now();
            if notices.is_due(now) {
                let left = deadline.instant().map(|at| at.saturating_duration_since(now));
                tracing::warn!(
                    "{}",
                    waiting::held(participant, answer.time_ms, &self.shared.scope, left)
                );
            }
            if passes(deadline) {
                return Ok(false);
            }
            tokio::time::sleep(FORMER_INCARNATION_POLL).await;
        }
    }
}
