//! Communicators of a rank. What runs in one is only a record of that.

use std::time::Duration;

use holdfast_api::{Among, Blob, Conclusion, Generation, Terms};
use holdfast_chaos::history::{Arrival, Meaning, Outcome, Round, Verb, What};
use holdfast_client::Deadline;
use holdfast_trainer_shim::{Error, Formed, Holding};
use tokio::time::{Instant, sleep};

use crate::rank::{Called, Ended, Rank, Told, meaning};
use crate::steps::done;

/// The name of all communicators: of all ranks, and of each half.
const GROUP: &str = "group";

/// After a revocation a rank that holds on longer is declared dead, and its agent kills it.
const STOP_MAX: Duration = Duration::from_secs(2);

/// How often a rank revokes what it holds, where it would close it.
const REVOKES: f64 = 0.25;

/// Longest time that something runs, and to stop it.
const RUN_TIME_MAX_MS: u64 = 60;
const STOP_TIME_MAX_MS: u64 = 120;

/// Between two records of what runs.
const RECORD_EVERY: Duration = Duration::from_millis(10);

impl Rank {
    /// Holds a communicator, and lets go of it.
    pub async fn communicator(
        &mut self,
        among: Among,
        patience: Duration,
    ) -> anyhow::Result<Called<()>> {
        let formed = match self.form(&among, None, patience).await? {
            Called::Done(formed) => formed,
            other => return Ok(done(other)),
        };
        let mut held = formed.generation;
        let mut called = self.ready_and_run(held, patience).await?;
        if matches!(called, Called::Done(())) {
            called = match self.form(&among, Some(held), patience).await? {
                Called::Done(formed) => {
                    held = formed.generation;
                    match formed.again {
                        true => self.run(held).await?,
                        false => self.ready_and_run(held, patience).await?,
                    }
                }
                other => done(other),
            };
        }
        if matches!(called, Called::Done(())) {
            called = match rand::random_bool(REVOKES) {
                true => self.revoke(held).await?,
                false => self.agree("close", Conclusion::Close, held, patience).await?,
            };
        }
        if matches!(called, Called::Failed)
            && let Called::Ended(ended) = self.run(held).await?
        {
            return Ok(Called::Ended(ended));
        }
        if let Called::Ended(ended) = called {
            return Ok(Called::Ended(ended));
        }
        match self.release(held).await? {
            Called::Done(()) => Ok(called),
            other => Ok(other),
        }
    }

    /// Arrives with the generation that it still holds.
    async fn form(
        &mut self,
        among: &Among,
        holds: Option<Generation>,
        patience: Duration,
    ) -> anyhow::Result<Called<Formed>> {
        self.brought += 1;
        let (process, incarnation) = (self.process.clone(), self.process.incarnation());
        let handle = Blob::from(format!("handle {} of {incarnation}", self.brought));
        let round = Round { name: GROUP.to_owned(), verb: Verb::Form, among: among.clone() };
        let arrival = Arrival { round, value: handle.clone(), holds, ..Arrival::default() };
        let holding = Holding { stop_max: STOP_MAX, ..Holding::default() };
        let (kept, deadline) = ((holds.unwrap_or(0), handle), Deadline::after(patience));
        let forming = process.form(GROUP, &holding, among.clone(), kept, deadline);
        self.call(arrival, Box::pin(forming)).await
    }

    /// All members of what it holds come to a round among them.
    async fn agree(
        &mut self,
        name: &str,
        conclusion: Conclusion,
        held: Generation,
        patience: Duration,
    ) -> anyhow::Result<Called<()>> {
        let among = Among::Generation(held);
        let round = Round { name: name.to_owned(), verb: Verb::Live, among: among.clone() };
        let arrival = Arrival { round, require_all: true, ..Arrival::default() };
        let terms = Terms { among, require_all: true, conclusion, ..Terms::default() };
        let (process, deadline) = (self.process.clone(), Deadline::after(patience));
        let arriving = process.arrive(name, terms, Blob::default(), deadline);
        Ok(done(self.call(arrival, Box::pin(arriving)).await?))
    }

    async fn ready_and_run(
        &mut self,
        held: Generation,
        patience: Duration,
    ) -> anyhow::Result<Called<()>> {
        match self.agree("ready", Conclusion::Ready, held, patience).await? {
            Called::Done(()) => self.run(held).await,
            other => Ok(other),
        }
    }

    /// It runs for a while, or until it is over; it takes a moment to stop.
    async fn run(&mut self, held: Generation) -> anyhow::Result<Called<()>> {
        let state = self.process.hold_of(held);
        let mut until = after_at_most(RUN_TIME_MAX_MS);
        let mut is_over = false;
        loop {
            self.recorder.record(What::Runs { generation: held })?;
            if !is_over && state.borrow().is_over() {
                is_over = true;
                until = after_at_most(STOP_TIME_MAX_MS);
            }
            if Instant::now() >= until {
                break;
            }
            tokio::select! {
                () = sleep(RECORD_EVERY) => {}
                _ = self.asked_to_leave.recv() => {
                    return Ok(Called::Ended(Ended::AskedToLeave));
                }
            }
        }
        Ok(if is_over { Called::Failed } else { Called::Done(()) })
    }

    /// It fails for all.
    async fn revoke(&mut self, held: Generation) -> anyhow::Result<Called<()>> {
        let process = self.process.clone();
        let revoking = process.revoke(held, "a bad day", Deadline::never());
        let called = self.confirmed(held, Box::pin(revoking)).await?;
        // The others go to the next advance.
        Ok(if matches!(called, Called::Done(())) { Called::Failed } else { called })
    }

    async fn release(&mut self, held: Generation) -> anyhow::Result<Called<()>> {
        let process = self.process.clone();
        let releasing = process.release(held, Deadline::never());
        self.confirmed(held, Box::pin(releasing)).await
    }

    /// Records that the store has confirmed the end of what it holds.
    async fn confirmed(
        &mut self,
        held: Generation,
        ending: impl Future<Output = Result<(), Error>>,
    ) -> anyhow::Result<Called<()>> {
        let ended = tokio::select! {
            ended = ending => ended,
            _ = self.asked_to_leave.recv() => {
                return Ok(Called::Ended(Ended::AskedToLeave));
            }
        };
        match ended {
            Ok(()) => {
                self.recorder.record(What::Revoked { generation: held })?;
                Ok(Called::Done(()))
            }
            Err(error) => Ok(match meaning(&error) {
                Meaning::Ended | Meaning::Lost => Called::Ended(Ended::Fenced),
                Meaning::Void | Meaning::Unknown => Called::Failed,
            }),
        }
    }
}

impl Told for Formed {
    fn outcome(&self) -> Outcome {
        let members = self.members.iter().map(|member| (member.process, member.incarnation));
        Outcome {
            generation: self.closing,
            witness: self.witness,
            members: members.collect(),
            values: (!self.again).then(|| self.handles.clone()),
            held: Some(self.generation),
            ..Outcome::default()
        }
    }
}

fn after_at_most(milliseconds: u64) -> Instant {
    Instant::now() + Duration::from_millis(rand::random_range(0..=milliseconds))
}
