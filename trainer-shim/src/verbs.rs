//! What trainers say, made of rounds: who is alive, the next iteration, votes
//! and atomic blocks.

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{
    Against, AssignmentStep, AtDeadline, Blob, Closed, Concluded, Conclusion, Dropped, Event,
    Generation, IterationInfo, Members, ProcessId, ProcessInfo, Read, ReadOutcome, Revision,
    RoundInfo, Rule, Stop, Terms, VoteRule,
};
use holdfast_client::Deadline;

use crate::error::Error;
use crate::process::Process;

/// The round of [`Process::advance`].
pub const ADVANCE_ROUND: &str = "advance";

/// Who was alive, at one moment inside the call: the same for all members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveProcesses {
    /// The generation.
    pub generation: Generation,
    /// Revision of the closing.
    pub witness: Revision,
    /// Processes with their incarnations.
    pub members: Members,
}

/// How the next iteration begins.
#[derive(Debug, Clone, Default)]
pub struct Advance {
    /// The declared world: the first iteration of a run waits for so many.
    pub world: u32,
    /// Fewest members of any iteration; 0 counts as 1.
    pub members_min: u32,
    /// After a loss, how long to wait for who was lost to come back.
    pub last_call: Duration,
    /// How ranks are given; none = in order of the processes.
    pub assignment: Vec<AssignmentStep>,
    /// With fewer ranks than this nobody takes part; 0 counts as 1.
    pub active_min: u32,
    /// Most restarts of one run; 0 = no limit.
    pub restarts_max: u32,
    /// After this time, whoever is missing is declared dead, if most are there.
    pub evict_after: Option<Duration>,
}

impl Advance {
    fn terms(self) -> Terms {
        let Advance {
            world,
            members_min,
            last_call,
            assignment,
            active_min,
            restarts_max,
            evict_after,
        } = self;
        let deadline = evict_after.map(|after| holdfast_api::Deadline {
            after_ms: milliseconds(after).max(1),
            then: AtDeadline::Evict,
        });
        Terms {
            world,
            members_min,
            last_call_ms: milliseconds(last_call),
            deadline,
            conclusion: Conclusion::Advance { assignment, active_min, restarts_max },
            ..Terms::default()
        }
    }
}

/// An iteration that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Iteration {
    /// Its number: unique for the life of the job, one above the latest.
    pub iteration: u64,
    /// The generation that decided it.
    pub generation: Generation,
    /// Revision of the decision.
    pub witness: Revision,
    /// Who is in it.
    pub members: Members,
    /// A rank, or none, for each member in order.
    pub ranks: holdfast_api::Ranks,
    /// The caller's rank; none = it does not take part.
    pub rank: Option<u32>,
    /// How many have a rank.
    pub world_size: u32,
    /// Standbys that became active.
    pub promoted: Members,
    /// Who of the iteration before has no rank now, and why.
    pub dropped: Vec<Dropped>,
    /// Why nobody should go on, if so.
    pub stop: Option<Stop>,
}

/// How a vote ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it carried.
    pub carried: bool,
    /// The value that won, if the rule elects one.
    pub value: Option<Blob>,
    /// Who stood against it, and why.
    pub against: Vec<Against>,
    /// The generation of the vote itself.
    pub generation: Generation,
}

/// A boundary between atomic blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Atomic {
    /// Whether the block before succeeded for everybody; none if nobody was in
    /// one.
    pub succeeded: Option<bool>,
    /// Who made it fail.
    pub against: Vec<Against>,
    /// Who is in the block that begins.
    pub live: LiveProcesses,
}

impl Process {
    /// Who is alive: returns when every live active process has called with
    /// this name, with the same answer for all of them.
    pub async fn live_processes(
        &self,
        name: &str,
        deadline: Deadline,
    ) -> Result<LiveProcesses, Error> {
        let closed = self.arrive(name, Terms::default(), Blob::default(), deadline).await?;
        live(&closed)
    }

    /// The next iteration of the job, with the caller in it. Whoever starts
    /// early or comes late joins the open round.
    pub async fn advance(&self, advance: Advance, deadline: Deadline) -> Result<Iteration, Error> {
        let closed = self.arrive(ADVANCE_ROUND, advance.terms(), Blob::default(), deadline).await?;
        let Concluded::Advance { iteration, ranks, world_size, dropped, stop } =
            closed.conclusion.clone()
        else {
            return Err(other(&closed, "an advance"));
        };
        let members = members(&closed)?;
        let place = members.find(self.id()).map(|(place, _)| place);
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

    /// Meets whoever is there: closes with `max` members, or `settle` after the
    /// first `min`. Who is not there is left out of it, and stays alive.
    pub async fn quorum(
        &self,
        name: &str,
        (min, max): (u32, u32),
        settle: Duration,
        deadline: Deadline,
    ) -> Result<LiveProcesses, Error> {
        let rule = Rule::Quorum { min, max, settle_ms: milliseconds(settle) };
        let terms = Terms { rule, ..Terms::default() };
        let closed = self.arrive(name, terms, Blob::default(), deadline).await?;
        live(&closed)
    }

    /// A vote by all live active processes, or by the members of the generation
    /// `base` alone: then whoever of them has died since stands against it.
    pub async fn vote(
        &self,
        tag: &str,
        rule: VoteRule,
        value: Blob,
        base: Option<Generation>,
        deadline: Deadline,
    ) -> Result<Verdict, Error> {
        let terms = Terms { conclusion: Conclusion::Vote { rule, base }, ..Terms::default() };
        let closed = self.arrive(format!("vote:{tag}").as_str(), terms, value, deadline).await?;
        let Concluded::Vote { carried, value, against } = closed.conclusion.clone() else {
            return Err(other(&closed, "a vote"));
        };
        Ok(Verdict { carried, value, against, generation: closed.generation })
    }

    /// Closes the atomic block `before` and opens the next: one call. `before`
    /// is the generation that opened it and whether it succeeded here.
    pub async fn atomic(
        &self,
        name: &str,
        before: Option<(Generation, bool)>,
        deadline: Deadline,
    ) -> Result<Atomic, Error> {
        let payload = match before {
            None => "none".to_owned(),
            Some((generation, true)) => format!("succeeded:{generation}"),
            Some((generation, false)) => format!("failed:{generation}"),
        };
        let terms = Terms { conclusion: Conclusion::Block, ..Terms::default() };
        let round = format!("atomic:{name}");
        let closed = self.arrive(round.as_str(), terms, payload.as_str().into(), deadline).await?;
        let Concluded::Block { succeeded, against } = closed.conclusion.clone() else {
            return Err(other(&closed, "an atomic block"));
        };
        Ok(Atomic { succeeded, against, live: live(&closed)? })
    }

    /// The job's latest iteration. Waits for nobody; `member` says whether the
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

    /// The open rounds of the run, and who is missing in each.
    pub async fn rounds(&self, deadline: Deadline) -> Result<Vec<RoundInfo>, Error> {
        let scope = self.host().scope().clone();
        match self.read(Read::Rounds { scope }, deadline).await? {
            ReadOutcome::Rounds(rounds) => Ok(rounds),
            _ => Err(crate::host::unexpected("open rounds")),
        }
    }

    /// The processes of the run, in order, a page at a time: those behind
    /// `after`, and where to go on.
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

    /// Events of the job behind a revision, oldest first, and where to go on.
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

fn members(closed: &Arc<Closed>) -> Result<Members, Error> {
    closed.members.clone().ok_or_else(|| other(closed, "an outcome with its members"))
}

fn live(closed: &Arc<Closed>) -> Result<LiveProcesses, Error> {
    let Closed { generation, witness, .. } = **closed;
    Ok(LiveProcesses { generation, witness, members: members(closed)? })
}

fn other(closed: &Closed, expected: &'static str) -> Error {
    Error::Unexpected { round: closed.round.clone(), expected }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
