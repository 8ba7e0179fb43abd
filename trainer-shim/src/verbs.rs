//! The verbs of trainers, made of rounds: live processes, the next iteration,
//! votes and atomic blocks.

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{
    Against, Among, AtDeadline, Blob, Closed, Code, Concluded, Conclusion, Dropped, Event,
    Generation, IterationInfo, Members, ProcessId, ProcessInfo, Read, ReadOutcome, Revision,
    RoundInfo, Rule, Stop, Terms, VoteRule,
};
use holdfast_client::Deadline;
use tokio::time::Instant;

use crate::error::Error;
use crate::exception::exit_payload;
use crate::process::{Call, Process};

/// Longest time that [`Process::fail`] waits for the store.
pub const FAIL_TIME_MAX: Duration = Duration::from_secs(1);

/// How long the values of a closed round may take beyond the caller's deadline.
const VALUES_TIME_MAX: Duration = Duration::from_secs(10);

/// The round of [`Process::advance`].
pub const ADVANCE_ROUND: &str = "advance";

/// The live processes at one moment inside the call: the same for all members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveProcesses {
    /// Generation of the round: one counter per job, never reused.
    pub generation: Generation,
    /// Revision of the closing.
    pub witness: Revision,
    /// Processes with their incarnations.
    pub members: Members,
}

/// An iteration that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Iteration {
    /// Its number: unique in the job, for good, one above the latest.
    pub iteration: u64,
    /// The generation that decided it.
    pub generation: Generation,
    /// Revision of the decision.
    pub witness: Revision,
    /// All its members, with and without a rank.
    pub members: Members,
    /// A rank, or none, for each member in order.
    pub ranks: holdfast_api::Ranks,
    /// The caller's rank; `None` = it does not take part.
    pub rank: Option<u32>,
    /// How many have a rank.
    pub world_size: u32,
    /// Standbys that became active.
    pub promoted: Members,
    /// Processes of the iteration before that have no rank now, and why.
    pub dropped: Vec<Dropped>,
    /// Why the job is to stop, if so.
    pub stop: Option<Stop>,
}

/// The values of a round, one per process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gathered {
    /// The processes in it.
    pub live: LiveProcesses,
    /// Value of each process, in the order of `live`.
    pub values: Vec<Blob>,
}

/// How a vote ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the vote carried.
    pub carried: bool,
    /// The value that won, if the rule elects one.
    pub value: Option<Blob>,
    /// Processes against it, and why.
    pub against: Vec<Against>,
    /// The generation of the vote itself.
    pub generation: Generation,
    /// Revision of its closing.
    pub witness: Revision,
    /// Processes in the vote.
    pub members: Members,
}

/// How an atomic block ended: the same for all that were in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockVerdict {
    /// Whether it succeeded for every process that entered it.
    pub succeeded: bool,
    /// Processes that made it fail.
    pub against: Vec<Against>,
    /// The generation of the exit.
    pub generation: Generation,
    /// Revision of its closing.
    pub witness: Revision,
    /// Processes at the exit.
    pub members: Members,
}

impl Process {
    /// The live processes: returns when every one in scope has called with this
    /// name, with the same answer for all of them.
    pub async fn live_processes(
        &self,
        name: &str,
        among: Among,
        deadline: Deadline,
    ) -> Result<LiveProcesses, Error> {
        let terms = Terms { among, ..Terms::default() };
        let closed = self.arrive(name, terms, Blob::default(), deadline).await?;
        live(&closed)
    }

    /// The next iteration of the job, with the caller in it. A process that
    /// starts early or comes late joins the open round. After `evict_after` the
    /// missing ones are declared dead, if most are there.
    pub async fn advance(
        &self,
        evict_after: Option<Duration>,
        deadline: Deadline,
    ) -> Result<Iteration, Error> {
        let evict = |after| holdfast_api::Deadline {
            after_ms: milliseconds(after).max(1),
            then: AtDeadline::Evict,
        };
        let terms = Terms {
            deadline: evict_after.map(evict),
            conclusion: Conclusion::Advance,
            ..Terms::default()
        };
        let closed = self.arrive(ADVANCE_ROUND, terms, Blob::default(), deadline).await?;
        iteration(self, &closed)
    }

    /// Meets the processes that come: closes with `max` members, or `settle`
    /// after the first `min`. A process that does not come is left out of it, and
    /// stays alive.
    pub async fn quorum(
        &self,
        name: &str,
        (min, max): (u32, u32),
        settle: Duration,
        among: Among,
        deadline: Deadline,
    ) -> Result<LiveProcesses, Error> {
        let rule = Rule::Quorum { min, max, settle_ms: milliseconds(settle) };
        let terms = Terms { rule, among, ..Terms::default() };
        let closed = self.arrive(name, terms, Blob::default(), deadline).await?;
        live(&closed)
    }

    /// Each process brings a value, and gets those of all: at most 64 KiB each.
    pub async fn gather(
        &self,
        name: &str,
        value: Blob,
        among: Among,
        deadline: Deadline,
    ) -> Result<Gathered, Error> {
        let terms = Terms { among, ..Terms::default() };
        // The values are read after the outcome, which is kept until then.
        let _hold = self.hold();
        let round = format!("gather:{name}");
        let closed = self.arrive(round.as_str(), terms, value, deadline).await?;
        let values = self.values_of(&closed, deadline).await?;
        Ok(Gathered { live: live(&closed)?, values })
    }

    /// The values of the members of a closed round, in their order.
    pub(crate) async fn values_of(
        &self,
        closed: &Arc<Closed>,
        deadline: Deadline,
    ) -> Result<Vec<Blob>, Error> {
        let scope = self.host().scope().clone();
        let read = Read::Closed { scope, generation: closed.generation, payloads: true };
        // The round has closed: at a deadline that is near the values are still had.
        let reading = match deadline.instant() {
            None => Deadline::never(),
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                Deadline::after(left.max(VALUES_TIME_MAX))
            }
        };
        let full = match self.read(read, reading).await {
            Ok(ReadOutcome::Closed(full)) => full,
            Ok(_) => return Err(crate::host::unexpected("what was gathered")),
            Err(error) => return Err(self.without_values(closed, error).await),
        };
        let values = full.payloads.unwrap_or_default();
        if values.len() != members(closed)?.len() {
            return Err(other(closed, "a value for each member"));
        }
        Ok(values)
    }

    /// The round has closed with this process in it, and its values cannot be read. They are kept
    /// until the process has them, or its incarnation is over.
    async fn without_values(&self, closed: &Closed, error: Error) -> Error {
        let asking = tokio::time::timeout(VALUES_TIME_MAX, self.goes_on());
        if error.code() == Code::GenerationUnknown
            && let Ok(Err(over)) = asking.await
        {
            return over;
        }
        Error::ValuesLost { round: closed.round.clone(), error: Box::new(error) }
    }

    /// A vote by every process in scope. Among a generation, members that have
    /// died since count against it.
    pub async fn vote(
        &self,
        tag: &str,
        rule: VoteRule,
        value: Blob,
        among: Among,
        deadline: Deadline,
    ) -> Result<Verdict, Error> {
        let terms = Terms { among, conclusion: Conclusion::Vote(rule), ..Terms::default() };
        let closed = self.arrive(format!("vote:{tag}").as_str(), terms, value, deadline).await?;
        let Concluded::Vote { carried, value, against } = closed.conclusion.clone() else {
            return Err(other(&closed, "a vote"));
        };
        let LiveProcesses { generation, witness, members } = live(&closed)?;
        Ok(Verdict { carried, value, against, generation, witness, members })
    }

    /// Enters an atomic block, together with all active processes. Its
    /// generation names the block: see [`Process::exit`].
    pub async fn enter(&self, name: &str, deadline: Deadline) -> Result<LiveProcesses, Error> {
        let terms = Terms { conclusion: Conclusion::Block, ..Terms::default() };
        let closed = self.arrive(block(name).as_str(), terms, Blob::default(), deadline).await?;
        live(&closed)
    }

    /// Leaves the atomic block that `generation` has opened, and returns whether
    /// it succeeded for every process that entered it. `ended` is whether it did
    /// here, or by which exception it failed, of which the others get the first
    /// 200 bytes.
    ///
    /// While the store cannot be asked this waits. At the deadline the call is
    /// withdrawn, which makes the block fail: after any error it counts as
    /// failed.
    pub async fn exit(
        &self,
        name: &str,
        generation: Generation,
        ended: Result<(), String>,
        deadline: Deadline,
    ) -> Result<BlockVerdict, Error> {
        let closed = self.arrive_at(Call::exit(name, generation, &ended, deadline)).await?;
        let Concluded::Block { succeeded, against } = closed.conclusion.clone() else {
            return Err(other(&closed, "the end of an atomic block"));
        };
        let LiveProcesses { generation, witness, members } = live(&closed)?;
        Ok(BlockVerdict { succeeded, against, generation, witness, members })
    }

    /// Reports that an atomic block has failed here, and by which exception,
    /// without waiting for the others: returns once the store has it, or after
    /// [`FAIL_TIME_MAX`]. Until the caller enters again, advances or ends, the
    /// report is repeated.
    pub async fn fail(&self, name: &str, generation: Generation, words: String) {
        let call = Call::exit(name, generation, &Err(words), Deadline::never());
        let accepted = self.arrive_later(call);
        // After a timeout, the others learn of it by the caller's next call.
        let _ = tokio::time::timeout(FAIL_TIME_MAX, accepted).await;
    }

    /// The job's latest iteration. Does not wait; `member` says whether the
    /// caller is in it.
    pub async fn iteration(&self, deadline: Deadline) -> Result<IterationInfo, Error> {
        let read = Read::Iteration {
            scope: self.host().scope().clone(),
            process: Some(self.id()),
            incarnation: self.incarnation(),
        };
        match self.read(read, deadline).await? {
            ReadOutcome::Iteration(iteration) => Ok(iteration),
            _ => Err(crate::host::unexpected("an iteration")),
        }
    }

    /// The open rounds of the run, and the processes missing in each.
    pub async fn rounds(&self, deadline: Deadline) -> Result<Vec<RoundInfo>, Error> {
        let scope = self.host().scope().clone();
        match self.read(Read::rounds(scope), deadline).await? {
            ReadOutcome::Rounds(rounds) => Ok(rounds),
            _ => Err(crate::host::unexpected("open rounds")),
        }
    }

    /// The processes of the run, in order, a page at a time: those after `after`,
    /// and where to go on.
    pub async fn processes(
        &self,
        after: Option<ProcessId>,
        deadline: Deadline,
    ) -> Result<(Vec<ProcessInfo>, Option<ProcessId>), Error> {
        let scope = self.host().scope().clone();
        match self.read(Read::Processes { scope, after, limit: 0 }, deadline).await? {
            ReadOutcome::Processes { processes, next } => Ok((processes, next)),
            _ => Err(crate::host::unexpected("processes")),
        }
    }

    /// Processes that wait in open rounds of a name, in any scope.
    pub async fn waiting(&self, round: &str, deadline: Deadline) -> Result<Vec<Members>, Error> {
        let scope = self.host().scope().clone();
        let read = Read::Rounds { scope, round: Some(round.into()), brief: false };
        match self.read(read, deadline).await? {
            ReadOutcome::Rounds(rounds) => {
                Ok(rounds.into_iter().map(|open| open.arrived).collect())
            }
            _ => Err(crate::host::unexpected("open rounds")),
        }
    }

    /// Events of the job after a revision, oldest first, and where to go on.
    pub async fn events(
        &self,
        after: Revision,
        deadline: Deadline,
    ) -> Result<(Vec<Event>, Revision), Error> {
        let job = self.host().scope().job.clone();
        match self.read(Read::Events { job, after, limit: 0 }, deadline).await? {
            ReadOutcome::Events { events, upto, .. } => Ok((events, upto)),
            _ => Err(crate::host::unexpected("events")),
        }
    }
}

/// The iteration that an advance has begun.
pub(crate) fn iteration(process: &Process, closed: &Arc<Closed>) -> Result<Iteration, Error> {
    let Concluded::Advance { iteration, ranks, world_size, dropped, stop } =
        closed.conclusion.clone()
    else {
        return Err(other(closed, "an advance"));
    };
    let members = members(closed)?;
    let place = members.find(process.id()).map(|(place, _)| place);
    Ok(Iteration {
        iteration,
        generation: closed.generation,
        witness: closed.witness,
        rank: place.and_then(|place| ranks.at(place)),
        ranks,
        world_size,
        promoted: closed.promoted.clone(),
        dropped,
        stop,
        members,
    })
}

/// The round of an atomic block, at its entry and at its exit.
fn block(name: &str) -> String {
    format!("atomic:{name}")
}

impl Call {
    fn exit(
        name: &str,
        generation: Generation,
        ended: &Result<(), String>,
        deadline: Deadline,
    ) -> Call {
        let among = Among::Generation(generation);
        Call {
            round: block(name).as_str().into(),
            terms: Terms { among, conclusion: Conclusion::Exit, ..Terms::default() },
            payload: exit_payload(ended),
            holds: 0,
            deadline,
            insists: true,
        }
    }
}

pub(crate) fn members(closed: &Arc<Closed>) -> Result<Members, Error> {
    closed.members.clone().ok_or_else(|| other(closed, "an outcome with its members"))
}

fn live(closed: &Arc<Closed>) -> Result<LiveProcesses, Error> {
    let Closed { generation, witness, .. } = **closed;
    Ok(LiveProcesses { generation, witness, members: members(closed)? })
}

pub(crate) fn other(closed: &Closed, expected: &'static str) -> Error {
    Error::Unexpected { round: closed.round.clone(), expected }
}

pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
