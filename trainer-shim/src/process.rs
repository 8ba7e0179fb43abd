//! One incarnation of a process, and its calls.

mod patience;

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{
    Among, Answer, Arrival, ArrivalAnswer, Blob, CallId, Cause, Closed, Code, Command,
    Effectiveness, Generation, Incarnation, Outcome, ProcessId, Read, ReadOutcome, Revision,
    RoundCommand, RoundFailure, RoundOutcome, Rule, Terms,
};
use holdfast_client::Deadline;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::error::Error;
use crate::exception::in_short;
use crate::host::{Host, unexpected};
use crate::vitals::{Kind, Section, Vitals};
use crate::waiting::Notices;

/// Where the outcome of a call comes from.
type Reply = oneshot::Receiver<Result<Arc<Closed>, Error>>;

/// How long the cluster may take, after a call's deadline, to say what became
/// of it.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(10);

/// How long before its deadline a call looks for the missing processes, and how
/// long that may take at most.
const LOOK_BEFORE: Duration = Duration::from_millis(100);
const WAITED_FOR_TIME_MAX: Duration = Duration::from_secs(2);

/// From an error of the store to the next try of a call that insists.
const INSIST_PAUSE: Duration = Duration::from_millis(200);

/// One incarnation. Cheap to clone: all clones count the same calls.
#[derive(Clone)]
pub struct Process {
    host: Host,
    process: ProcessId,
    incarnation: Incarnation,
    since: Revision,
    members_min: u32,
    calls: Arc<Mutex<Calls>>,
    vitals: Arc<Vitals>,
    notices: Arc<Mutex<Notices>>,
}

/// A call of a process.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub round: Blob,
    pub terms: Terms,
    pub payload: Blob,
    /// At a held round: the generation that it still holds.
    pub holds: Generation,
    pub deadline: Deadline,
    /// Errors of the store that may pass do not end it: it is made again, until
    /// its deadline.
    pub insists: bool,
}

impl Call {
    pub fn new(round: &str, terms: Terms, payload: Blob, deadline: Deadline) -> Call {
        Call { round: round.into(), terms, payload, holds: 0, deadline, insists: false }
    }
}

/// The numbers of its calls. The library counts them, never the user.
#[derive(Debug)]
struct Calls {
    next: u64,
    /// Calls whose outcome is still wanted.
    open: BTreeSet<u64>,
    /// From each of these on nothing is acknowledged: their outcomes are still read.
    held: Vec<u64>,
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
        let open = self.open.first().copied();
        open.into_iter().chain(self.held.iter().copied()).min().unwrap_or(self.next)
    }
}

/// Keeps the outcomes of calls that are yet to be made.
pub(crate) struct Hold {
    calls: Arc<Mutex<Calls>>,
    from: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let held = &mut self.calls.lock().held;
        if let Some(place) = held.iter().position(|from| *from == self.from) {
            held.swap_remove(place);
        }
    }
}

/// Withdraws a call whose caller has gone away.
struct Waiting {
    process: Process,
    call: u64,
    /// The round, if it is one that is held.
    held: Option<Blob>,
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
            self.process.withdraw_later(call, self.held.take());
        }
    }
}

impl Process {
    pub(crate) fn new(
        host: Host,
        since: Revision,
        members_min: u32,
        vitals: Arc<Vitals>,
    ) -> Process {
        let (process, incarnation) = vitals.participant();
        let calls =
            Arc::new(Mutex::new(Calls { next: 1, open: BTreeSet::new(), held: Vec::new() }));
        let notices = Arc::default();
        Process { host, process, incarnation, since, members_min, calls, vitals, notices }
    }

    /// Number of the process.
    pub fn id(&self) -> ProcessId {
        self.process
    }

    /// This incarnation of it.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Revision of its registration: this incarnation's start.
    pub fn since(&self) -> Revision {
        self.since
    }

    /// The host whose lease it is attached to.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Arrives at a round, and waits for its outcome in the log.
    ///
    /// At the deadline the call is withdrawn. If the round closed first, the
    /// answer is still its outcome. If the cluster cannot be asked for ten
    /// seconds more, the outcome is unknown. Dropping the future withdraws, too.
    pub async fn arrive(
        &self,
        round: impl Into<Blob>,
        terms: Terms,
        payload: Blob,
        deadline: Deadline,
    ) -> Result<Arc<Closed>, Error> {
        let round = round.into();
        self.arrive_at(Call { round, terms, payload, holds: 0, deadline, insists: false }).await
    }

    pub(crate) async fn arrive_at(&self, call: Call) -> Result<Arc<Closed>, Error> {
        let _in_call = self.vitals.call(&call.round);
        let (accepted, _) = oneshot::channel();
        let arriving = self.arrive_quietly(&call, accepted);
        let closed = self.saying(Some((&call.round, &call.terms)), arriving).await?;
        self.with_enough_members(closed, &call.terms).await
    }

    /// Until it is dropped the store keeps the outcomes of calls from now on.
    pub(crate) fn hold(&self) -> Hold {
        let mut calls = self.calls.lock();
        let from = calls.next;
        calls.held.push(from);
        Hold { calls: self.calls.clone(), from }
    }

    /// Arrives, and waits only for the store to have it. The call goes on by
    /// itself, and its outcome is dropped.
    pub(crate) fn arrive_later(&self, call: Call) -> oneshot::Receiver<()> {
        let (accepted, told) = oneshot::channel();
        let process = self.clone();
        self.host.spawn(async move {
            if let Err(error) = process.arrive_quietly(&call, accepted).await {
                tracing::debug!(%error, "the outcome of a call that nobody waits for");
            }
        });
        told
    }

    /// A round over all active processes that closed with fewer members than
    /// this process needs is not one that it can go on with: it leaves.
    async fn with_enough_members(
        &self,
        closed: Arc<Closed>,
        terms: &Terms,
    ) -> Result<Arc<Closed>, Error> {
        let (members, members_min) = (closed.count, self.members_min);
        let is_of_all = (&terms.among, terms.rule) == (&Among::Active, Rule::All);
        if !is_of_all || members >= members_min {
            return Ok(closed);
        }
        let error = Error::TooFewMembers { round: closed.round.clone(), members, members_min };
        let leaving = self.end(Cause::Raised { error: in_short(&error.to_string()) });
        if !matches!(tokio::time::timeout(SETTLE_TIME_MAX, leaving).await, Ok(Ok(()))) {
            tracing::warn!("{error}; cannot report this to the store");
        }
        Err(error)
    }

    async fn arrive_quietly(
        &self,
        call: &Call,
        accepted_to: oneshot::Sender<()>,
    ) -> Result<Arc<Closed>, Error> {
        let Call { round, terms, payload, holds, deadline, insists } = call;
        let held = terms.hold.as_ref().map(|_| round.clone());
        let (deadline, insists, payload) = (*deadline, *insists, payload.clone());
        let (call, ack) = self.calls.lock().begin();
        let (reply, decided) = oneshot::channel();
        let mut waiting = Waiting { process: self.clone(), call, held, answered: false };
        let shared = &self.host.shared;
        shared.pending.lock().insert(self.id_of(call), round.clone(), reply);
        let arrival = Arrival {
            process: self.process,
            incarnation: self.incarnation,
            call,
            ack,
            payload,
            holds: *holds,
        };
        let lease = shared.lease;
        let command = RoundCommand::Arrive {
            lease,
            round: round.clone(),
            terms: Box::new(terms.clone()),
            arrivals: vec![arrival],
        };
        let mut decided = std::pin::pin!(decided);
        let arriving = self.arriving(Command::Round(command), deadline, insists);
        let arrived = tokio::select! {
            biased;
            // The feed may be faster than the answer, and knows more.
            decision = &mut decided => {
                waiting.answered = true;
                return decision.unwrap_or(Err(Error::Closed));
            }
            arrived = arriving => arrived,
        };
        let arrived = accepted(arrived);
        if arrived.is_ok() {
            // The caller may not wait for it.
            let _ = accepted_to.send(());
        }
        let mut waited_for = None;
        let in_time = match arrived {
            Ok(()) => match deadline.instant() {
                None => Some(decided.as_mut().await),
                Some(at) => {
                    // Before other calls with the same deadline give up.
                    let looking = async {
                        sleep_until(at.checked_sub(LOOK_BEFORE).unwrap_or(at)).await;
                        self.waited_for(round, terms).await
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
            // It may have arrived, and its round may have closed.
            Err(error) if is_late(&error) || (insists && may_pass(&error)) => None,
            Err(error) => {
                // A call that may still arrive is withdrawn.
                waiting.answered = error.outcome() != Effectiveness::Unknown;
                return Err(error);
            }
        };
        let decision = match in_time {
            Some(decision) => decision,
            None => {
                let settling = self.settle(self.id_of(call), round, waited_for, decided);
                // A call that insists gets its outcome, however long that takes.
                let until = match insists {
                    true => None,
                    false => deadline.instant().or_else(|| Some(Instant::now())),
                };
                let settled = match until {
                    Some(at) => timeout_at(at + SETTLE_TIME_MAX, settling).await,
                    None => Ok(settling.await),
                };
                match settled {
                    Ok(Err(error)) if !(insists && may_pass(&error)) => return Err(error),
                    Ok(Ok(settled)) => settled,
                    _ => return Err(Error::Unanswered { round: round.clone() }),
                }
            }
        };
        waiting.answered = true;
        decision.unwrap_or(Err(Error::Closed))
    }

    /// The answer to an arrival. A call that insists is made again, with the same
    /// number, as long as the store says that it may succeed.
    async fn arriving(
        &self,
        command: Command,
        deadline: Deadline,
        insists: bool,
    ) -> Result<Answer, Error> {
        loop {
            let error = match self.host.propose(command.clone(), deadline).await {
                Err(error) if insists && may_pass(&error) => error,
                answered => return answered,
            };
            let again = Instant::now() + INSIST_PAUSE;
            if deadline.instant().is_some_and(|at| at <= again) {
                return Err(error);
            }
            sleep_until(again).await;
        }
    }

    /// Withdraws a call at its deadline, and returns its outcome.
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

    /// Leaves by an exception that the program did not handle: a fault, of which
    /// the others get the first 200 bytes.
    pub async fn leave_by(self, exception: &str) -> Result<(), Error> {
        self.end(Cause::Raised { error: in_short(exception) }).await
    }

    /// Ends this incarnation with a cause that its agent has seen. It releases everything held:
    /// stop that first.
    pub async fn end(&self, cause: Cause) -> Result<(), Error> {
        if self.host.is_holding(self.process) {
            self.release(0, Deadline::after(SETTLE_TIME_MAX)).await?;
        }
        self.host.end([((self.process, self.incarnation), cause)].into()).await
    }

    /// Asks the state of its run.
    pub(crate) async fn read(&self, read: Read, deadline: Deadline) -> Result<ReadOutcome, Error> {
        self.saying(None, self.host.read(read, deadline)).await
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

    /// Asks whether this incarnation goes on; the error says how it ended.
    pub(crate) async fn goes_on(&self) -> Result<(), Error> {
        // Calls are counted from 1: there is none to withdraw.
        self.withdraw(self.id_of(0)).await
    }

    fn withdraw_later(&self, call: CallId, held: Option<Blob>) {
        let process = self.clone();
        let giving_back = held.map(|round| self.giving_back(round));
        self.host.spawn(async move {
            if let Err(error) = process.withdraw(call).await {
                tracing::debug!(%error, "a call could not be withdrawn");
            }
            if let Some(giving_back) = giving_back {
                process.give_back(giving_back).await;
            }
        });
    }
}

/// Whether it is an error of the store that may pass, and not a decision.
fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Client(_)) && error.is_retryable()
}

/// Whether the deadline has passed before the outcome of a command was known.
fn is_late(error: &Error) -> bool {
    error.code() == Code::Timeout && error.outcome() == Effectiveness::Unknown
}

/// Result of an arrival, from its answer.
fn accepted(arrived: Result<Answer, Error>) -> Result<(), Error> {
    let Outcome::Round(RoundOutcome::Arrived(answers)) = arrived?.outcome else {
        return Err(unexpected("an arrival"));
    };
    match answers.into_iter().next() {
        Some(ArrivalAnswer::Waiting { .. } | ArrivalAnswer::Decided) => Ok(()),
        Some(ArrivalAnswer::Refused(refusal)) => Err(Error::from_refusal(refusal)),
        None => Err(unexpected("an arrival")),
    }
}
