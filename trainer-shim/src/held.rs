//! Rounds that are held: communicators and locks, as a program uses them.
//!
//! [`Process::form`] and [`Process::advance_held`] arrive at a held round, and
//! answer with the generation that this process holds from then on, together
//! with what all its members brought, in rank order. [`Process::hold_of`] tells
//! when that generation must not be used any more. What a program does then is
//! its own: stop, arrive again, or [`Process::release`] and leave.

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::hold::HELD_DEADLINE_MS;
use holdfast_api::{
    Among, AtDeadline, Blob, Closed, Code, Command, Conclusion, Effectiveness, Generation, Hold,
    Members, Problem, Ranks, Release, ReleaseWhy, Revision, Revocation, RoundCommand, Rule, Scope,
    Terms,
};
use holdfast_client::Deadline;
use tokio::sync::watch;

use crate::error::Error;
use crate::process::{Call, Process};
use crate::verbs::{ADVANCE_ROUND, Iteration, iteration, members, milliseconds, other};

/// How a round is held. All members should give the same.
#[derive(Debug, Clone)]
pub struct Holding {
    /// What all members must agree on: backend, sizes, versions, or a digest.
    pub spec: Blob,
    /// How long a holder may take to stop after a revocation, before it is
    /// declared dead and its agent ends it.
    pub stop_max: Duration,
    /// How long its members may take until all of them are ready; zero = it is
    /// ready at once.
    pub form_max: Duration,
    /// How long arrivals wait before the generation that is held is revoked, and
    /// again before they fail.
    pub patience: Duration,
}

impl Default for Holding {
    fn default() -> Self {
        let Hold { spec, stop_ms_max, form_ms_max } = Hold::default();
        Holding {
            spec,
            stop_max: Duration::from_millis(stop_ms_max),
            form_max: Duration::from_millis(form_ms_max),
            patience: Duration::from_millis(HELD_DEADLINE_MS),
        }
    }
}

impl Holding {
    fn hold(&self) -> Hold {
        Hold {
            spec: self.spec.clone(),
            stop_ms_max: milliseconds(self.stop_max).max(1),
            form_ms_max: milliseconds(self.form_max),
        }
    }

    fn deadline(&self, then: AtDeadline) -> holdfast_api::Deadline {
        holdfast_api::Deadline { after_ms: milliseconds(self.patience).max(1), then }
    }
}

/// What this process holds from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formed {
    /// The generation that is held: unique in the life of the job.
    pub generation: Generation,
    /// It is the one that this process held before, with the same members.
    pub again: bool,
    /// Revision of the closing.
    pub witness: Revision,
    /// Its members with a rank, in rank order.
    pub members: Vec<holdfast_api::Member>,
    /// What each of them brought, in rank order; empty if it is held again.
    pub handles: Vec<Blob>,
    /// The caller's rank; none = it is no member.
    pub rank: Option<u32>,
}

/// What is known of a generation that this process holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HoldState {
    /// It must not be used any more.
    pub revoked: Option<Revocation>,
    /// Somebody waits who is no member: the revision at which that began.
    pub newcomer: Option<Revision>,
    /// The lease that this process is attached to is over: stop at once.
    pub lease_lost: bool,
}

impl HoldState {
    /// Whether the generation must not be used any more.
    pub fn is_over(&self) -> bool {
        self.revoked.is_some() || self.lease_lost
    }
}

impl Process {
    /// Arrives at the held round `group`: returns when all of `among` have, and
    /// nobody holds another generation of it any more. `holds` is the generation
    /// that runs here, intact and ready; 0 = none does. `handle` is what the
    /// others must know of this process, at most 64 KiB.
    ///
    /// From the arrival on nothing of what is held may run, unless the outcome is
    /// that very generation.
    pub async fn form(
        &self,
        group: &str,
        holding: &Holding,
        among: Among,
        (holds, handle): (Generation, Blob),
        deadline: Deadline,
    ) -> Result<Formed, Error> {
        let terms = Terms {
            among,
            deadline: Some(holding.deadline(AtDeadline::Fail)),
            conclusion: Conclusion::Form,
            hold: Some(holding.hold()),
            ..Terms::default()
        };
        let kept = self.hold();
        let call = Call { holds, ..Call::new(group, terms, handle, deadline) };
        let closed = self.arrive_at_held(call).await?;
        let formed = self.formed(&closed, None, deadline).await;
        drop(kept);
        formed?.ok_or_else(|| other(&closed, "a generation that is held"))
    }

    /// The next iteration of the job, whose ranks hold a generation together: as
    /// [`Process::advance`] and [`Process::form`] in one round. Nothing is held if
    /// nobody should go on.
    pub async fn advance_held(
        &self,
        holding: &Holding,
        (holds, handle): (Generation, Blob),
        evicts: bool,
        deadline: Deadline,
    ) -> Result<(Iteration, Option<Formed>), Error> {
        let then = if evicts { AtDeadline::Evict } else { AtDeadline::Fail };
        let terms = Terms {
            deadline: Some(holding.deadline(then)),
            conclusion: Conclusion::Advance,
            hold: Some(holding.hold()),
            ..Terms::default()
        };
        let kept = self.hold();
        let call = Call { holds, ..Call::new(ADVANCE_ROUND, terms, handle, deadline) };
        let closed = self.arrive_at_held(call).await?;
        let iteration = iteration(self, &closed)?;
        let formed = self.formed(&closed, Some(&iteration.ranks), deadline).await?;
        drop(kept);
        Ok((iteration, formed))
    }

    /// A lock: returns when this process holds it, and nobody else does. It is
    /// given on by [`Process::release`], or by the end of this process.
    pub async fn lock(&self, name: &str, deadline: Deadline) -> Result<Formed, Error> {
        let holding = Holding { form_max: Duration::ZERO, ..Holding::default() };
        let terms = Terms {
            rule: Rule::Quorum { min: 1, max: 1, settle_ms: 0 },
            conclusion: Conclusion::Form,
            hold: Some(holding.hold()),
            ..Terms::default()
        };
        let kept = self.hold();
        let name = format!("lock:{name}");
        if self.host().holds_of(&(self.id(), Blob::from(name.as_str()))).is_some() {
            let text = format!(
                "process {} holds {name} already, or waits for it; a lock is not taken twice",
                self.id()
            );
            return Err(refused(text));
        }
        let call = Call::new(&name, terms, Blob::default(), deadline);
        let closed = self.arrive_at_held(call).await?;
        let formed = self.formed(&closed, None, deadline).await;
        drop(kept);
        formed?.ok_or_else(|| other(&closed, "a lock"))
    }

    /// Brings a value to all members of a generation that is held, and gets those
    /// of all, in the order of their processes. Fails once it is revoked.
    pub async fn share(
        &self,
        name: &str,
        generation: Generation,
        value: Blob,
        deadline: Deadline,
    ) -> Result<Vec<Blob>, Error> {
        let kept = self.hold();
        let terms = of_all(generation, Conclusion::Roll);
        let closed = self.arrive_at(Call::new(name, terms, value, deadline)).await?;
        let values = self.values_of(&closed, deadline).await;
        drop(kept);
        values
    }

    /// Says that the generation is built here; returns when it is everywhere.
    /// Fails once it is revoked.
    pub async fn ready(&self, generation: Generation, deadline: Deadline) -> Result<(), Error> {
        let terms = of_all(generation, Conclusion::Ready);
        self.arrive_at(Call::new("ready", terms, Blob::default(), deadline)).await.map(drop)
    }

    /// Says that this process is about to let go of the generation; returns when
    /// all of its members are. From then on letting go revokes nothing.
    pub async fn close_held(
        &self,
        generation: Generation,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let terms = of_all(generation, Conclusion::Close);
        self.arrive_at(Call::new("close", terms, Blob::default(), deadline)).await.map(drop)
    }

    /// Nothing of the generation runs here any more, nor will; 0 = of all that it
    /// holds.
    pub async fn release(&self, generation: Generation, deadline: Deadline) -> Result<(), Error> {
        let release = Release { process: self.id(), incarnation: self.incarnation(), generation };
        let (scope, releases, why) = (self.job(), vec![release], ReleaseWhy::Stopped);
        let command = RoundCommand::Release { scope, releases, why };
        self.host().propose(Command::Round(command), deadline).await?;
        self.host().let_go(self.id(), generation);
        Ok(())
    }

    /// The generation must not be used any more, by anybody. `reason`: at most 256
    /// bytes.
    pub async fn revoke(
        &self,
        generation: Generation,
        reason: &str,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let by = holdfast_api::Member { process: self.id(), incarnation: self.incarnation() };
        let (scope, by) = (self.job(), Some(by));
        let reason = crate::exception::in_short(reason);
        let command = RoundCommand::Revoke { scope, generation, by, reason };
        self.host().propose(Command::Round(command), deadline).await.map(drop)
    }

    /// Hears what becomes of a generation that this process holds.
    pub fn hold_of(&self, generation: Generation) -> watch::Receiver<HoldState> {
        self.host().shared.pending.lock().hold_of(generation)
    }

    /// From before the arrival on this process may hold something: whatever
    /// becomes of the call, its end lets go of it.
    async fn arrive_at_held(&self, call: Call) -> Result<Arc<Closed>, Error> {
        let whose = (self.id(), call.round.clone());
        let before = self.host().may_hold(whose.clone());
        let arrived = self.arrive_at(call).await;
        if let Err(error) = &arrived
            && error.outcome() == Effectiveness::None
        {
            self.host().hold(whose, before);
        }
        arrived
    }

    fn job(&self) -> Scope {
        Scope { job: self.host().scope().job.clone(), run: None }
    }

    /// What a held round came to; none if nobody is to go on.
    async fn formed(
        &self,
        closed: &Arc<Closed>,
        ranks: Option<&Ranks>,
        deadline: Deadline,
    ) -> Result<Option<Formed>, Error> {
        let whose = (self.id(), closed.round.clone());
        let Some(held) = closed.held else {
            self.host().hold(whose, None);
            return Ok(None);
        };
        // From the closing on, whether or not what they brought can be had.
        self.host().hold(whose.clone(), Some(held.generation));
        let all = members(closed)?;
        let values = if held.again { Vec::new() } else { self.values_of(closed, deadline).await? };
        let mut ranked = by_rank(&all, ranks);
        ranked.sort_unstable();
        let place = |(rank, place): &(u32, usize)| (*rank, *place);
        let order: Vec<(u32, usize)> = ranked.iter().map(place).collect();
        let of: Vec<(u32, u64)> = all.iter().collect();
        let member = |(_, place): &(u32, usize)| {
            let (process, incarnation) = of[*place];
            holdfast_api::Member { process, incarnation }
        };
        let handles = order.iter().filter_map(|(_, place)| values.get(*place).cloned());
        let own = all.find(self.id()).map(|(place, _)| place);
        let rank = order.iter().find(|(_, place)| Some(*place) == own).map(|(rank, _)| *rank);
        if rank.is_none() {
            self.host().hold(whose, None);
        }
        Ok(Some(Formed {
            generation: held.generation,
            again: held.again,
            witness: closed.witness,
            members: order.iter().map(member).collect(),
            handles: handles.collect(),
            rank,
        }))
    }
}

fn refused(text: String) -> Error {
    let problem = Problem::refused(Code::Conflict, text);
    Error::Client(holdfast_client::Error::Refused(Box::new(problem)))
}

/// Ranks of members, each with its place; without ranks, in order.
fn by_rank(members: &Members, ranks: Option<&Ranks>) -> Vec<(u32, usize)> {
    let places = 0..members.len();
    match ranks {
        None => places.map(|place| (place as u32, place)).collect(),
        Some(ranks) => places.filter_map(|place| Some((ranks.at(place)?, place))).collect(),
    }
}

fn of_all(generation: Generation, conclusion: Conclusion) -> Terms {
    Terms {
        among: Among::Generation(generation),
        require_all: true,
        conclusion,
        ..Terms::default()
    }
}
