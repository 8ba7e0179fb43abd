//! Rounds that are held: communicators and locks, as a program uses them.
//!
//! [`Process::form`] and [`Process::advance_held`] arrive at a held round, and
//! answer with the generation that this process holds from then on, together with
//! what all its members brought, in rank order. [`Process::hold_of`] reports when
//! that generation must not be used any more. The program decides what to do
//! then: stop, arrive again, or [`Process::release`] and leave.

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::hold::HELD_DEADLINE_MS;
use holdfast_api::{
    Among, AtDeadline, Blob, Closed, Code, Command, Conclusion, Effectiveness, Generation,
    HeldInfo, Hold, Members, Problem, ProcessId, Ranks, Read, ReadOutcome, Release, ReleaseWhy,
    Revision, Revocation, RoundCommand, Rule, Scope, Terms,
};
use holdfast_client::Deadline;
use tokio::sync::{oneshot, watch};

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

/// A generation that this process holds from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formed {
    /// The generation that is held: unique in the job, for good.
    pub generation: Generation,
    /// It is the one that this process held before, with the same members.
    pub again: bool,
    /// The generation that closed: another one if it is held again.
    pub closing: Generation,
    /// Revision of the closing.
    pub witness: Revision,
    /// Its members with a rank, in rank order.
    pub members: Vec<holdfast_api::Member>,
    /// Handle of each member, in rank order; empty if it is held again.
    pub handles: Vec<Blob>,
    /// The caller's rank; `None` = it is no member.
    pub rank: Option<u32>,
}

/// State of a generation that this process holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HoldState {
    /// It must not be used any more.
    pub revoked: Option<Revocation>,
    /// A non-member waits: the revision at which that began.
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

/// The deadline of looking what became of a call that was given up; it is repeated.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// Pause before it is.
const LOOK_PAUSE: Duration = Duration::from_millis(200);

impl Process {
    /// Arrives at the held round `group`: returns when all of `among` have, and
    /// no process holds another generation of it any more. `holds` is the
    /// generation that runs here, intact and ready; 0 = none does. `handle` is
    /// what the others must know of this process, at most 64 KiB.
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
    /// [`Process::advance`] and [`Process::form`] in one round. Nothing is held if the job is to
    /// stop.
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

    /// A lock: returns when this process alone holds it. It passes on with
    /// [`Process::release`], or the end of this process.
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
        self.given_back(&(self.id(), Blob::from(name.as_str())), deadline).await?;
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
        let formed = formed?.ok_or_else(|| other(&closed, "a lock"))?;
        let holders = formed.members.len();
        if holders > 1 {
            // Another process has opened its round with other terms.
            self.release(formed.generation, deadline).await?;
            return Err(refused(format!(
                "{name} was given to {holders} processes at once: its round was opened by something that is not a lock; \
                 use another name"
            )));
        }
        Ok(formed)
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

    /// As [`Process::release`]; it goes on where the caller goes away.
    pub async fn release_to_the_end(
        &self,
        generation: Generation,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let (told, heard) = oneshot::channel();
        let process = self.clone();
        // A later arrival of this process at these rounds waits for that.
        let rounds = self.host().rounds_held(self.id(), generation);
        let giving_back: Vec<GivingBack> =
            rounds.into_iter().map(|round| self.giving_back(round)).collect();
        self.host().spawn(async move {
            let released = process.release(generation, deadline).await;
            drop(giving_back);
            // The receiver may be gone.
            let _ = told.send(released);
        });
        heard.await.unwrap_or(Err(Error::Closed))
    }

    /// Revokes the generation for all its holders. `reason`: at most 256 bytes.
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

    /// From before the arrival on this process may hold something: the end of the
    /// call lets go of it, also without an outcome.
    async fn arrive_at_held(&self, call: Call) -> Result<Arc<Closed>, Error> {
        let whose = (self.id(), call.round.clone());
        self.given_back(&whose, call.deadline).await?;
        let before = self.host().may_hold(whose.clone());
        let arrived = self.arrive_at(call).await;
        if let Err(error) = &arrived
            && error.outcome() == Effectiveness::None
        {
            self.host().restore(whose, before);
        }
        arrived
    }

    /// A call at a held round is given up before its outcome is known. Until it is known, no other
    /// call of this process at that round goes out.
    pub(crate) fn giving_back(&self, round: Blob) -> GivingBack {
        let whose = (self.id(), round);
        self.host().shared.given_up.send_if_modified(|given_up| given_up.insert(whose.clone()));
        GivingBack { process: self.clone(), whose }
    }

    /// Releases what a call that was withdrawn had come to before.
    pub(crate) async fn give_back(&self, giving_back: GivingBack) {
        let whose = giving_back.whose.clone();
        let known = self.host().holds_of(&whose).unwrap_or(0);
        let found = loop {
            let (scope, round) = (self.job(), Some(whose.1.clone()));
            let read = Read::Held { scope, round, brief: false };
            match self.host().read(read, Deadline::after(LOOK_MAX)).await {
                Ok(ReadOutcome::Held(found)) => break found,
                Err(error) if error.is_retryable() => tokio::time::sleep(LOOK_PAUSE).await,
                // This incarnation is over: its end lets go.
                Ok(_) | Err(_) => return,
            }
        };
        let own = (self.id(), self.incarnation());
        let is_own = |held: &HeldInfo| {
            held.generation > known && held.members.iter().any(|member| member == own)
        };
        for held in found.iter().filter(|held| is_own(held)) {
            if let Err(error) = self.release(held.generation, Deadline::never()).await {
                tracing::debug!(%error, "what a call that was given up came to was not released");
            }
        }
        if known == 0 {
            self.host().hold(whose, None);
        }
    }

    /// Waits until no call of this process at this round is being given up.
    async fn given_back(&self, whose: &(ProcessId, Blob), deadline: Deadline) -> Result<(), Error> {
        let mut given_up = self.host().shared.given_up.subscribe();
        let waiting = given_up.wait_for(|given_up| !given_up.contains(whose));
        let known = match deadline.instant() {
            Some(at) => tokio::time::timeout_at(at, waiting).await.is_ok(),
            None => waiting.await.is_ok(),
        };
        let round = whose.1.clone();
        known.then_some(()).ok_or_else(|| refused(format!(
            "what an earlier call of process {} at {round} came to is not known yet; call again",
            whose.0
        )))
    }

    fn job(&self) -> Scope {
        Scope { job: self.host().scope().job.clone(), run: None }
    }

    /// The result of a held round; `None` if the job is to stop.
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
        let mut taken = Taken {
            process: self.clone(),
            round: whose.1.clone(),
            generation: Some(held.generation),
        };
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
        taken.generation = None;
        Ok(Some(Formed {
            generation: held.generation,
            again: held.again,
            closing: closed.generation,
            witness: closed.witness,
            members: order.iter().map(member).collect(),
            handles: handles.collect(),
            rank,
        }))
    }
}

/// While a call at a held round is given up.
pub(crate) struct GivingBack {
    process: Process,
    whose: (ProcessId, Blob),
}

impl Drop for GivingBack {
    fn drop(&mut self) {
        let given_up = &self.process.host().shared.given_up;
        given_up.send_if_modified(|given_up| given_up.remove(&self.whose));
    }
}

/// A held generation that the caller does not know yet. Dropped, it is released; no other call at
/// its round goes out before.
struct Taken {
    process: Process,
    round: Blob,
    generation: Option<Generation>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Some(generation) = self.generation.take() else { return };
        let process = self.process.clone();
        let giving_back = process.giving_back(self.round.clone());
        self.process.host().spawn(async move {
            if let Err(error) = process.release(generation, Deadline::never()).await {
                tracing::debug!(%error, generation, "a generation of which nobody heard was not released");
            }
            drop(giving_back);
        });
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
