//! Steps of the ranks between two advances.

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{
    Against, Among, Blob, Closed, Generation, Incarnation, Members, ProcessId, Terms, VoteRule,
};
use holdfast_chaos::history::{Arrival, Meaning, Outcome, Round, Verb, VoteVerdict, What};
use holdfast_client::Deadline;
use holdfast_tests::histories::plan::Step;
use holdfast_trainer_shim::{BlockVerdict, Gathered, Iteration, LiveProcesses, verbs};

use crate::rank::{Called, Rank, Told};

/// How often a rank votes otherwise than the others, or fails in a block.
const DISSENT: f64 = 0.06;

/// A process that never joins.
const STRANGER: ProcessId = 90;

/// Every this many iterations a rank waits for it.
const STRANGER_EVERY: u64 = 8;

/// How long it waits then.
const STRANGER_PATIENCE: Duration = Duration::from_millis(60);

/// Longest time that a rank spends in a block, and on leaving it.
const BLOCK_TIME_MAX_MS: u64 = 20;

impl Rank {
    pub async fn step(
        &mut self,
        step: Step,
        begun: &Iteration,
        patience: Duration,
    ) -> anyhow::Result<Called<()>> {
        let deadline = Deadline::after(patience);
        match step {
            Step::Roll => Ok(done(self.roll(deadline).await?)),
            Step::Vote => self.vote(begun, deadline).await,
            Step::Gather => self.gather(begun.generation, deadline).await,
            Step::Halves => Ok(done(self.meet("half", self.half(), false, deadline).await?)),
            Step::Pairs => self.pairs(patience).await,
            Step::All => {
                let all = (0..self.calls.policy.world).collect();
                Ok(done(self.meet("all", all, true, deadline).await?))
            }
            Step::Stranger => self.stranger(begun).await,
            Step::Block => self.block(deadline).await,
            Step::Form => Box::pin(self.communicator(Among::Active, patience)).await,
            Step::FormHalf => {
                let half = Among::Set(self.half());
                Box::pin(self.communicator(half, patience)).await
            }
        }
    }

    /// Everybody knows by the iteration how this vote goes.
    async fn vote(&mut self, begun: &Iteration, deadline: Deadline) -> anyhow::Result<Called<()>> {
        let dissents = rand::random_bool(DISSENT);
        let own = self.process.id();
        let (rule, value) = match begun.iteration % 3 {
            0 if dissents => (VoteRule::And, "no".to_owned()),
            0 => (VoteRule::And, "yes".to_owned()),
            1 if dissents => (VoteRule::Unanimous, format!("of {own}")),
            1 => (VoteRule::Unanimous, format!("of {}", begun.iteration)),
            // A better priority than the others'.
            _ if dissents => (VoteRule::Plurality, format!("1of {own}")),
            _ => (VoteRule::Plurality, format!("2of {}", own % 2)),
        };
        let among = Among::Generation(begun.generation);
        self.ballot("go", rule, value.into(), among, deadline).await
    }

    async fn ballot(
        &mut self,
        tag: &str,
        rule: VoteRule,
        value: Blob,
        among: Among,
        deadline: Deadline,
    ) -> anyhow::Result<Called<()>> {
        let round = Round { name: tag.to_owned(), verb: Verb::Vote(rule), among: among.clone() };
        let arrival = Arrival { round, value: value.clone(), ..Arrival::default() };
        let process = self.process.clone();
        Ok(done(
            self.call(arrival, Box::pin(process.vote(tag, rule, value, among, deadline))).await?,
        ))
    }

    async fn gather(
        &mut self,
        generation: Generation,
        deadline: Deadline,
    ) -> anyhow::Result<Called<()>> {
        const NAME: &str = "state";
        self.brought += 1;
        let (process, incarnation) = (self.process.clone(), self.process.incarnation());
        let value = Blob::from(format!("value {} of {incarnation}", self.brought));
        let among = Among::Generation(generation);
        let round = Round { name: NAME.to_owned(), verb: Verb::Gather, among: among.clone() };
        let arrival = Arrival { round, value: value.clone(), ..Arrival::default() };
        Ok(done(self.call(arrival, Box::pin(process.gather(NAME, value, among, deadline))).await?))
    }

    /// The processes of its half.
    fn half(&self) -> Vec<ProcessId> {
        let half = self.process.id() % 2;
        (0..self.calls.policy.world).filter(|process| process % 2 == half).collect()
    }

    /// Both halves vote under the same name at the same time.
    async fn pairs(&mut self, patience: Duration) -> anyhow::Result<Called<()>> {
        let deadline = Deadline::after(patience);
        let half = self.half();
        let (name, size) = (format!("half {}", half[0]), half.len() as u32);
        let round = Round { name: name.clone(), verb: Verb::Quorum, among: Among::Active };
        let arrival = Arrival { round, quorum: Some((size, size)), ..Arrival::default() };
        let process = self.process.clone();
        let meeting = process.quorum(&name, (size, size), Duration::ZERO, Among::Active, deadline);
        let met = match self.call(arrival, Box::pin(meeting)).await? {
            Called::Done(met) => met,
            other => return Ok(done(other)),
        };
        // Not all at once: so both votes are open at the same time.
        if let Some(ended) = self.rest().await {
            return Ok(Called::Ended(ended));
        }
        let value = match rand::random_bool(DISSENT) {
            true => format!("of {}", process.id()),
            false => format!("of {name}"),
        };
        let among = Among::Generation(met.generation);
        let deadline = Deadline::after(patience);
        self.ballot("half", VoteRule::Unanimous, value.into(), among, deadline).await
    }

    /// A round over a set.
    async fn meet(
        &mut self,
        name: &str,
        set: Vec<ProcessId>,
        require_all: bool,
        deadline: Deadline,
    ) -> anyhow::Result<Called<Arc<Closed>>> {
        let among = Among::Set(set);
        let round = Round { name: name.to_owned(), verb: Verb::Live, among: among.clone() };
        let arrival = Arrival { round, require_all, ..Arrival::default() };
        let terms = Terms { among, require_all, ..Terms::default() };
        let process = self.process.clone();
        self.call(arrival, Box::pin(process.arrive(name, terms, Blob::default(), deadline))).await
    }

    async fn stranger(&mut self, begun: &Iteration) -> anyhow::Result<Called<()>> {
        if self.process.id() != 0 || !begun.iteration.is_multiple_of(STRANGER_EVERY) {
            return Ok(Called::Done(()));
        }
        let deadline = Deadline::after(STRANGER_PATIENCE);
        Ok(done(self.meet("stranger", vec![0, STRANGER], false, deadline).await?))
    }

    /// An atomic block: the program takes one of two branches after it.
    async fn block(&mut self, deadline: Deadline) -> anyhow::Result<Called<()>> {
        const NAME: &str = "block";
        let process = self.process.clone();
        let round = Round { name: NAME.to_owned(), verb: Verb::Enter, among: Among::Active };
        let arrival = Arrival { round, ..Arrival::default() };
        let entry = match self.call(arrival, Box::pin(process.enter(NAME, deadline))).await? {
            Called::Done(LiveProcesses { generation, .. }) => generation,
            other => return Ok(done(other)),
        };
        linger().await;
        let ended = match rand::random_bool(DISSENT) {
            true => Err("a bad day".to_owned()),
            false => Ok(()),
        };
        let said = match &ended {
            Ok(()) => "succeeded".to_owned(),
            Err(words) => format!("failed {words}"),
        };
        let among = Among::Generation(entry);
        let round = Round { name: NAME.to_owned(), verb: Verb::Exit, among };
        let arrival = Arrival { round, value: said.into(), ..Arrival::default() };
        let ended = match ended {
            // It need not wait for the others.
            Err(words) if rand::random_bool(0.5) => {
                self.recorder.record(What::Call(Box::new(arrival)))?;
                process.fail(NAME, entry, words).await;
                let why = "it does not wait for the others".to_owned();
                self.recorder.record(What::Failed { meaning: Meaning::Unknown, why })?;
                self.branch(entry, false).await?;
                return Ok(Called::Done(()));
            }
            ended => ended,
        };
        let left = self.call(arrival, Box::pin(process.exit(NAME, entry, ended, deadline))).await?;
        match &left {
            Called::Done(BlockVerdict { succeeded, .. }) => self.branch(entry, *succeeded).await?,
            // After an error it counts as failed.
            Called::Failed => self.branch(entry, false).await?,
            Called::Ended(_) => {}
        }
        Ok(done(left))
    }

    async fn branch(&mut self, block: Generation, succeeded: bool) -> anyhow::Result<()> {
        self.recorder.record(What::Branch { block, succeeded })?;
        linger().await;
        Ok(())
    }
}

async fn linger() {
    let milliseconds = rand::random_range(0..BLOCK_TIME_MAX_MS);
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

pub fn done<T>(called: Called<T>) -> Called<()> {
    match called {
        Called::Done(_) => Called::Done(()),
        Called::Failed => Called::Failed,
        Called::Ended(ended) => Called::Ended(ended),
    }
}

fn against(all: &[Against]) -> Vec<(ProcessId, Incarnation)> {
    all.iter().map(|one| (one.process, one.incarnation)).collect()
}

/// A round over a set.
impl Told for Arc<Closed> {
    fn outcome(&self) -> Outcome {
        Outcome {
            generation: self.generation,
            witness: self.witness,
            members: self.members.iter().flat_map(Members::iter).collect(),
            absent: Some(self.absent.iter().map(|missing| missing.process).collect()),
            ..Outcome::default()
        }
    }
}

impl Told for verbs::Verdict {
    fn outcome(&self) -> Outcome {
        let verbs::Verdict { carried, value, against: all, generation, witness, members } = self;
        let verdict =
            VoteVerdict { carried: *carried, value: value.clone(), against: against(all) };
        Outcome {
            generation: *generation,
            witness: *witness,
            members: members.iter().collect(),
            verdict: Some(verdict),
            ..Outcome::default()
        }
    }
}

impl Told for BlockVerdict {
    fn outcome(&self) -> Outcome {
        let BlockVerdict { succeeded, against: all, generation, witness, members } = self;
        let verdict = VoteVerdict { carried: *succeeded, value: None, against: against(all) };
        Outcome {
            generation: *generation,
            witness: *witness,
            members: members.iter().collect(),
            verdict: Some(verdict),
            ..Outcome::default()
        }
    }
}

impl Told for Gathered {
    fn outcome(&self) -> Outcome {
        Outcome { values: Some(self.values.clone()), ..self.live.outcome() }
    }
}
