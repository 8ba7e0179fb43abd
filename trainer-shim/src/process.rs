//! One incarnation of a process, and its calls.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{
    Arrival, ArrivalAnswer, Blob, CallId, Cause, Closed, Code, Command, Effectiveness, Incarnation,
    Outcome, ProcessId, Read, ReadOutcome, Revision, RoundCommand, RoundFailure, RoundInfo,
    RoundOutcome, Terms,
};
use holdfast_client::Deadline;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::error::Error;
use crate::host::{Host, unexpected};
use crate::vitals::{Kind, Section, Vitals};

/// Where the outcome of a call comes from.
type Reply = oneshot::Receiver<Result<Arc<Closed>, Error>>;

/// How long the cluster may take, after a call's deadline, to say what became
/// of it.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(10);

/// So long before its deadline a call looks who is missing, and so long that may
/// take at most.
const LOOK_BEFORE: Duration = Duration::from_millis(100);
const WAITED_FOR_TIME_MAX: Duration = Duration::from_secs(2);

/// One incarnation. Cheap to clone: all clones count the same calls.
#[derive(Clone)]
pub struct Process {
    host: Host,
    process: ProcessId,
    incarnation: Incarnation,
    since: Revision,
    calls: Arc<Mutex<Calls>>,
    vitals: Arc<Vitals>,
}

/// The numbers of its calls. The library counts them, never the user.
#[derive(Debug)]
struct Calls {
    next: u64,
    /// Those whose outcome is still wanted.
    open: BTreeSet<u64>,
}

impl Calls {
    fn begin(&mut self) -> (u64, u64) {
        let call = self.next;
        self.next += 1;
        self.open.insert(call);
        (call, self.wanted_from())
    }

    /// The lowest call whose outcome is still wanted.
    fn wanted_from(&self) -> u64 {
        self.open.first().copied().unwrap_or(self.next)
    }
}

/// Withdraws a call whose caller has gone away.
struct Waiting {
    process: Process,
    call: u64,
    answered: bool,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process")
            .field("process", &self.process)
            .field("incarnation", &self.incarnation)
            .finish_non_exhaustive()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.process.calls.lock().open.remove(&self.call);
        let call = self.process.id_of(self.call);
        self.process.host.shared.pending.lock().remove(&call);
        if !self.answered {
            self.process.withdraw_later(call);
        }
    }
}

impl Process {
    pub(crate) fn new(host: Host, since: Revision, vitals: Arc<Vitals>) -> Process {
        let (process, incarnation) = vitals.life();
        let calls = Arc::new(Mutex::new(Calls { next: 1, open: BTreeSet::new() }));
        Process { host, process, incarnation, since, calls, vitals }
    }

    /// Its number.
    pub fn id(&self) -> ProcessId {
        self.process
    }

    /// This life of it.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Revision of its registration: this life's start.
    pub fn since(&self) -> Revision {
        self.since
    }

    /// The host whose lease it is attached to.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Arrives at a round, and waits for what the log says of it.
    ///
    /// At the deadline the call is withdrawn. If the round closed first, the
    /// answer is its outcome all the same. If the cluster cannot be asked for
    /// ten seconds more, the outcome is unknown. Dropping the future
    /// withdraws, too.
    pub async fn arrive(
        &self,
        round: impl Into<Blob>,
        terms: Terms,
        payload: Blob,
        deadline: Deadline,
    ) -> Result<Arc<Closed>, Error> {
        let round = round.into();
        let _in_call = self.vitals.call(&round);
        let (call, ack) = self.calls.lock().begin();
        let (reply, decided) = oneshot::channel();
        let mut waiting = Waiting { process: self.clone(), call, answered: false };
        let shared = &self.host.shared;
        shared.pending.lock().insert(self.id_of(call), round.clone(), reply);
        let arrival =
            Arrival { process: self.process, incarnation: self.incarnation, call, ack, payload };
        let lease = shared.lease;
        let command = RoundCommand::Arrive {
            lease,
            round: round.clone(),
            terms: Box::new(terms),
            arrivals: vec![arrival],
        };
        let mut decided = std::pin::pin!(decided);
        let arriving = self.host.propose(Command::Round(command), deadline);
        let arrived = tokio::select! {
            biased;
            // The feed may be faster than the answer, and knows more.
            decision = &mut decided => {
                waiting.answered = true;
                return decision.unwrap_or(Err(Error::Closed));
            }
            arrived = arriving => arrived,
        };
        let mut waited_for = None;
        let in_time = match accepted(arrived) {
            Ok(()) => match deadline.instant() {
                None => Some(decided.as_mut().await),
                Some(at) => {
                    // Before others give up who have waited just as long.
                    let looking = async {
                        sleep_until(at.checked_sub(LOOK_BEFORE).unwrap_or(at)).await;
                        self.waited_for(&round).await
                    };
                    tokio::select! {
                        biased;
                        decision = decided.as_mut() => Some(decision),
                        found = looking => {
                            waited_for = found;
                            timeout_at(at, decided.as_mut()).await.ok()
                        }
                    }
                }
            },
            // It may have arrived all the same, and its round may have closed.
            Err(error) if is_late(&error) => None,
            Err(error) => {
                // One that may still arrive is withdrawn.
                waiting.answered = error.outcome() != Effectiveness::Unknown;
                return Err(error);
            }
        };
        let decision = match in_time {
            Some(decision) => decision,
            None => {
                let until = deadline.instant().unwrap_or_else(Instant::now) + SETTLE_TIME_MAX;
                let settling = self.settle(self.id_of(call), &round, waited_for, decided);
                let settled = timeout_at(until, settling).await;
                settled.map_err(|_| Error::Unanswered { round: round.clone() })??
            }
        };
        waiting.answered = true;
        decision.unwrap_or(Err(Error::Closed))
    }

    /// Withdraws a call at its deadline, and hears what became of it.
    async fn settle(
        &self,
        call: CallId,
        round: &Blob,
        waited_for: Option<RoundFailure>,
        mut decided: Pin<&mut Reply>,
    ) -> Result<Result<Result<Arc<Closed>, Error>, RecvError>, Error> {
        let decision = tokio::select! {
            biased;
            // It may be known already, where nothing can be committed any more.
            decision = decided.as_mut() => decision,
            withdrawn = self.withdraw(call) => {
                withdrawn?;
                decided.await
            }
        };
        Ok(match decision {
            Ok(Err(Error::Withdrawn { .. })) => {
                let (round, waited_for) = (round.clone(), waited_for.map(Box::new));
                Ok(Err(Error::Withdrawn { round, waited_for }))
            }
            decision => decision,
        })
    }

    /// Who a round waits for; nothing if that cannot be known at once.
    async fn waited_for(&self, round: &Blob) -> Option<RoundFailure> {
        let rounds = self.rounds(Deadline::after(WAITED_FOR_TIME_MAX)).await.ok()?;
        let RoundInfo { generation, arrived, missing_count, missing, .. } =
            rounds.into_iter().find(|open| open.round == *round)?;
        let arrived = u32::try_from(arrived.len()).unwrap_or(u32::MAX);
        Some(RoundFailure { generation, arrived, missing_count, missing })
    }

    /// Says that the program gets on. From the first time on, the agent counts
    /// silence from the last one, too.
    pub fn ping(&self) {
        self.vitals.ping();
    }

    /// Says how far the program has got: a number that grows, as a step. Only
    /// growth counts, so that one which goes in circles is silent.
    pub fn progress(&self, to: u64) {
        self.vitals.progress(to);
    }

    /// A time in which the agent does not watch this process, at most so long.
    pub fn paused(&self, most: Duration) -> Section {
        self.vitals.section(Kind::Paused, most)
    }

    /// A time in which the agent does not end this process, at most so long: it
    /// waits with that until the section is over.
    pub fn critical(&self, most: Duration) -> Section {
        self.vitals.section(Kind::Critical, most)
    }

    /// Leaves for good. Rounds no longer wait for it.
    pub async fn leave(self) -> Result<(), Error> {
        self.end(Cause::Left).await
    }

    /// Ends this life with a cause that its agent has seen.
    pub async fn end(&self, cause: Cause) -> Result<(), Error> {
        self.host.end([((self.process, self.incarnation), cause)].into()).await
    }

    /// Asks the state of its run.
    pub(crate) async fn read(&self, read: Read, deadline: Deadline) -> Result<ReadOutcome, Error> {
        self.host.read(read, deadline).await
    }

    fn id_of(&self, call: u64) -> CallId {
        CallId { process: self.process, incarnation: self.incarnation, call }
    }

    async fn withdraw(&self, call: CallId) -> Result<(), Error> {
        let lease = self.host.shared.lease;
        let command = RoundCommand::Withdraw { lease, calls: vec![call] };
        self.host.propose(Command::Round(command), Deadline::never()).await?;
        Ok(())
    }

    fn withdraw_later(&self, call: CallId) {
        let process = self.clone();
        self.host.spawn(async move {
            if let Err(error) = process.withdraw(call).await {
                tracing::debug!(%error, "a call could not be withdrawn");
            }
        });
    }
}

/// Whether the deadline has passed before anybody said what became of a command.
fn is_late(error: &Error) -> bool {
    error.code() == Code::Timeout && error.outcome() == Effectiveness::Unknown
}

/// What the answer to an arrival says of the arrival.
fn accepted(arrived: Result<holdfast_api::Answer, Error>) -> Result<(), Error> {
    let Outcome::Round(RoundOutcome::Arrived(answers)) = arrived?.outcome else {
        return Err(unexpected("an arrival"));
    };
    match answers.into_iter().next() {
        Some(ArrivalAnswer::Waiting { .. } | ArrivalAnswer::Decided) => Ok(()),
        Some(ArrivalAnswer::Refused(refusal)) => Err(Error::from_refusal(refusal)),
        None => Err(unexpected("an arrival")),
    }
}
