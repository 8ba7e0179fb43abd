//! Faults for the ranks of one job, by chance, from a seed.

use std::ops::Range;
use std::time::Duration;

use holdfast_api::{AssignmentStep, Policy, Role};
use holdfast_chaos::Recorder;
use holdfast_chaos::history::What;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep};

use super::host::AgentHost;
use super::plan::{Calls, Step, Verbs};
use super::slot::{JobPlan, Running, Slot, record};
use crate::patience::PATIENCE;

/// Ranks of a job.
pub const WORLD: u32 = 4;

/// The shortest TTL that the cluster grants.
pub const TTL: Duration = Duration::from_millis(1_500);

/// Longest time from the notice of its end to the exit of a paused rank.
const GOING_TIME_MAX: Duration = Duration::from_secs(3);

/// How long jobs with several runs wait for the declared world.
const LAST_CALL_MS: u64 = 400;

/// How often a rank leaves its steps for the next advance.
const DESERTION: f64 = 0.02;

/// Pause between two looks at it.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The style of a job: the calls of its ranks, and the faults that hit them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Ranks that die are noticed when their lease expires, or are replaced
    /// before that.
    Leases,
    /// The same with roll calls alone: no rank gives up a call.
    RollCalls,
    /// A late rank is declared dead.
    Evictions,
    /// A spare waits; a rank that dies comes back as the next spare.
    Spares,
    /// Two hosts with an agent each, which reports deaths at once.
    Agents,
    /// The same, with votes and gathers among the iteration, in which one of the
    /// members has no rank.
    Votes,
    /// The same, with rounds over sets, and quorums with votes among each of them.
    /// Ranks also leave.
    Sets,
    /// The same, with atomic blocks.
    Blocks,
    /// The same, with communicators. A rank that sleeps for long and holds something is killed
    /// by its agent.
    Holds,
    /// One run after the other, and all ranks at once within a run. A run begins
    /// with fewer ranks if the others do not come.
    Runs,
}

impl Style {
    /// All, in the order in which a lap gives them to its jobs.
    pub const ALL: [Style; 14] = [
        Style::Leases,
        Style::Agents,
        Style::Votes,
        Style::Runs,
        Style::Evictions,
        Style::Sets,
        Style::Blocks,
        Style::Spares,
        Style::Holds,
        Style::RollCalls,
        Style::Evictions,
        Style::Agents,
        Style::Spares,
        Style::Evictions,
    ];

    /// The calls of the ranks of such a job.
    pub fn calls(self, pause: Duration) -> Calls {
        let after = |steps: &[Step], patience_ms| {
            let (steps, patience) = (steps.to_vec(), Duration::from_millis(patience_ms));
            Verbs::Iterations { steps, patience }
        };
        let verbs = match self {
            Style::RollCalls => Verbs::Live,
            Style::Agents | Style::Evictions => after(&[], 0),
            Style::Leases | Style::Spares => after(&[Step::Roll; 3], 400),
            Style::Votes => after(&[Step::Vote, Step::Gather, Step::Vote], 800),
            Style::Sets => after(&[Step::Pairs, Step::Halves, Step::All, Step::Stranger], 1_200),
            Style::Blocks => after(&[Step::Block; 3], 800),
            Style::Holds => after(&[Step::Form, Step::FormHalf, Step::FormHalf], 800),
            Style::Runs => after(&[Step::Roll, Step::Vote], 400),
        };
        let evict_after = (self == Style::Evictions).then_some(Duration::from_millis(400));
        Calls { verbs, pause, policy: self.policy(), desertion: DESERTION, evict_after }
    }

    fn policy(self) -> Policy {
        let policy = Policy { world: WORLD, members_min: 1, ..Policy::default() };
        match self {
            Style::Evictions => Policy { members_min: 2, ..policy },
            Style::Votes => {
                let all_but_one = AssignmentStep::MaxActive { max: WORLD - 1 };
                Policy { assignment: vec![all_but_one], ..policy }
            }
            Style::Runs => Policy { members_min: 2, last_call_ms: LAST_CALL_MS, ..policy },
            _ => policy,
        }
    }

    fn spares(self) -> u32 {
        u32::from(self == Style::Spares)
    }

    fn hosts(self) -> usize {
        match self {
            Style::Agents | Style::Votes | Style::Sets | Style::Blocks | Style::Holds => 2,
            _ => 0,
        }
    }

    /// Milliseconds between two faults. Halves that hold something come to wait for each other
    /// only while both are complete.
    fn calm(self) -> Range<u64> {
        match self {
            Style::Holds => 600..1_800,
            _ => 50..400,
        }
    }

    /// How often it is an agent that is killed or paused. Nobody reports the exits of what held
    /// something under a killed one: the next generation waits half a minute for them.
    fn agent_faults(self) -> f64 {
        match self {
            Style::Holds => 0.03,
            _ => 0.1,
        }
    }
}

/// One job: its processes and what is done to them.
pub struct Faults {
    style: Style,
    job: JobPlan,
    slots: Vec<Slot>,
    /// Slot n is on host n modulo their number; none = no agents.
    hosts: Vec<AgentHost>,
    harness: Recorder,
    random: StdRng,
    /// Runs that were opened.
    runs: u32,
}

impl Faults {
    /// A job without running ranks.
    pub fn new(style: Style, job: JobPlan, seed: u64) -> Faults {
        let harness = Recorder::open(&job.folder, "harness").expect("a history's folder is new");
        let slots = (0..WORLD + style.spares()).map(Slot::new).collect();
        let random = StdRng::seed_from_u64(seed);
        Faults { style, job, slots, hosts: Vec::new(), harness, random, runs: 1 }
    }

    /// Starts the job, breaks it until it is over, and stops it.
    pub async fn run(mut self, is_over: impl Fn() -> bool) {
        for host in 0..self.style.hosts() {
            self.hosts.push(AgentHost::start(&self.job, host).await);
        }
        for n in 0..self.slots.len() {
            let role = if n < WORLD as usize { Role::Active } else { Role::Standby };
            self.start_as(n, role, false);
        }
        let actives: Vec<usize> = (0..WORLD as usize).collect();
        self.settled_or(&actives, &is_over).await;
        while !is_over() {
            self.sleep(self.style.calm()).await;
            self.fault(&is_over).await;
        }
        for slot in &mut self.slots {
            slot.stop(&mut self.harness).await;
        }
        for host in self.hosts {
            host.stop().await;
        }
    }

    async fn sleep(&mut self, milliseconds: Range<u64>) {
        sleep(Duration::from_millis(self.random.random_range(milliseconds))).await;
    }

    /// Something happens to one rank or two, and they come back.
    async fn fault(&mut self, is_over: &impl Fn() -> bool) {
        let all: Vec<usize> = (0..self.slots.len()).collect();
        // Some may have been declared dead for being slow.
        let gone = |n: &usize| self.slots[*n].has_ended(&mut self.harness);
        let gone: Vec<usize> = all.iter().copied().filter(gone).collect();
        self.start(&gone, false);
        self.settled_or(&gone, is_over).await;
        if !self.hosts.is_empty() && self.random.random_bool(self.style.agent_faults()) {
            return self.agent_fault().await;
        }
        if self.style == Style::Runs && self.random.random_bool(0.5) {
            return self.all_anew().await;
        }
        let number = match self.random.random_range(0..20) {
            0 if self.style != Style::Spares => self.slots.len(),
            1..4 => 2,
            _ => 1,
        };
        let victims: Vec<usize> = all.sample(&mut self.random, number).copied().collect();
        let pause = match self.style {
            Style::Spares | Style::Runs | Style::Holds => 0.2,
            Style::Evictions => 0.6,
            Style::Leases | Style::RollCalls | Style::Blocks => 0.3,
            Style::Agents | Style::Votes | Style::Sets => 0.1,
        };
        let leave = if self.style == Style::Sets { 0.3 } else { 0.0 };
        match (self.random.random_bool(leave), self.random.random_bool(pause)) {
            (true, _) => self.leave(&victims).await,
            (_, true) => self.pause(&victims).await,
            (_, false) => self.kill(&victims).await,
        }
        self.settled_or(&victims, is_over).await;
    }

    /// Ranks leave, and come back later.
    async fn leave(&mut self, victims: &[usize]) {
        for victim in victims {
            self.slots[*victim].stop(&mut self.harness).await;
        }
        self.sleep(200..800).await;
        self.start(victims, false);
    }

    /// Restarts all ranks, some later than the others: in the same run, or in a new one
    /// that the former ranks may still see.
    async fn all_anew(&mut self) {
        let all: Vec<usize> = (0..self.slots.len()).collect();
        let new_run = self.random.random_bool(0.5);
        let mut former: Vec<Running> = Vec::new();
        match new_run && self.random.random_bool(0.6) {
            true => former.extend(self.slots.iter_mut().filter_map(Slot::set_aside)),
            false => self.slots.iter_mut().for_each(|slot| slot.kill(&mut self.harness)),
        }
        if new_run {
            self.runs += 1;
            self.job.run = format!("r{}", self.runs);
            record(&mut self.harness, What::Opens { run: self.job.run.clone() });
        }
        // In a new run the former ranks do not conflict with them.
        let takeover = !new_run && self.random.random_bool(0.5);
        let (first, later) = all.split_at(self.random.random_range(1..=all.len()));
        self.start(first, takeover);
        if !later.is_empty() {
            self.sleep(0..3 * LAST_CALL_MS).await;
            self.start(later, takeover);
        }
        self.settled(&all).await;
        for former in former {
            former.put_down(&mut self.harness).await;
        }
    }

    /// Kills ranks and starts them again: at once, as a replacement of the former
    /// incarnation, or after that has ended. Where deaths are reported at once, the
    /// others mostly come to wait for them first.
    async fn kill(&mut self, victims: &[usize]) {
        if !self.hosts.is_empty() && self.random.random_bool(0.8) {
            for victim in victims {
                self.slots[*victim].pause(&mut self.harness);
            }
            self.sleep(300..600).await;
        }
        for victim in victims {
            self.slots[*victim].kill(&mut self.harness);
        }
        let takeover = self.random.random_bool(match self.style {
            Style::Spares => 0.7,
            Style::Leases | Style::RollCalls | Style::Runs | Style::Holds => 0.3,
            Style::Evictions | Style::Agents | Style::Votes | Style::Sets | Style::Blocks => 0.1,
        });
        if !takeover {
            self.sleep(0..800).await;
        }
        self.start(victims, takeover);
    }

    /// Pauses ranks, shorter or longer than it takes to be declared dead. The dead ones
    /// are started again; or a successor was started before they woke up.
    async fn pause(&mut self, victims: &[usize]) {
        for victim in victims {
            self.slots[*victim].pause(&mut self.harness);
        }
        match (self.style, self.random.random_bool(0.7)) {
            (Style::Evictions, true) => self.sleep(800..1_200).await,
            // The others give up, and it has not stopped in time.
            (Style::Holds, true) => self.sleep(2_500..4_500).await,
            (_, true) => self.sleep(1_900..2_500).await,
            (_, false) => self.sleep(20..300).await,
        }
        if self.random.random_bool(0.2) {
            let old: Vec<_> = victims.iter().map(|n| self.slots[*n].set_aside()).collect();
            self.start(victims, true);
            self.settled(victims).await;
            for old in old.into_iter().flatten() {
                old.put_down(&mut self.harness).await;
            }
            return;
        }
        for victim in victims {
            self.slots[*victim].mark();
            self.slots[*victim].resume();
        }
        self.bring_back(victims).await;
    }

    /// Kills or pauses an agent; its ranks that are notified of it are started again.
    async fn agent_fault(&mut self) {
        let host = self.random.random_range(0..self.hosts.len());
        let ranks: Vec<usize> = (host..self.slots.len()).step_by(self.hosts.len()).collect();
        let slots: Vec<&Slot> = ranks.iter().map(|rank| &self.slots[*rank]).collect();
        if self.random.random_bool(0.5) {
            let agent = self.hosts.remove(host);
            agent.kill(&slots, &mut self.harness);
            self.sleep(0..1_000).await;
            self.hosts.insert(host, AgentHost::start(&self.job, host).await);
        } else {
            self.hosts[host].pause(&slots, &mut self.harness);
            match self.random.random_bool(0.5) {
                true => self.sleep(1_900..2_500).await,
                false => self.sleep(20..700).await,
            }
            ranks.iter().for_each(|rank| self.slots[*rank].mark());
            self.hosts[host].resume();
        }
        self.bring_back(&ranks).await;
        self.settled(&ranks).await;
    }

    /// Starts those again that have ended; it takes a while until they know.
    async fn bring_back(&mut self, victims: &[usize]) {
        let gone_by = Instant::now() + GOING_TIME_MAX;
        let mut gone = Vec::new();
        for victim in victims {
            let slot = &mut self.slots[*victim];
            while !slot.has_ended(&mut self.harness) && !slot.heard() && Instant::now() < gone_by {
                sleep(LOOK_EVERY).await;
            }
            if !slot.runs() {
                gone.push(*victim);
            }
        }
        self.start(&gone, false);
    }

    fn start(&mut self, victims: &[usize], takeover: bool) {
        for slot in &mut self.slots {
            slot.mark();
        }
        let role = if self.style == Style::Spares { Role::Standby } else { Role::Active };
        for victim in victims {
            self.start_as(*victim, role, takeover);
        }
    }

    fn start_as(&mut self, n: usize, role: Role, takeover: bool) {
        let host = n.checked_rem(self.hosts.len());
        let agent = host.map(|host| self.hosts[host].control());
        self.slots[n].start(&self.job, agent, role, takeover);
    }

    /// Waits until the job goes on: with these ranks, or, where they come back as spares,
    /// with any.
    async fn settled(&mut self, ranks: &[usize]) {
        self.settled_or(ranks, &|| false).await;
    }

    /// The same, unless all is over: without anybody that was in, spares wait for a minute.
    async fn settled_or(&mut self, ranks: &[usize], is_over: &impl Fn() -> bool) {
        let by = Instant::now() + PATIENCE;
        while !self.goes_on(ranks) && !is_over() {
            let job = &self.job.job;
            assert!(Instant::now() < by, "waited {PATIENCE:?} in vain: {job} with {ranks:?}");
            sleep(LOOK_EVERY).await;
        }
    }

    fn goes_on(&mut self, ranks: &[usize]) -> bool {
        let harness = &mut self.harness;
        let mut ended = |slot: &mut Slot| slot.has_ended(harness);
        match self.style {
            Style::Spares => self.slots.iter_mut().any(|slot| ended(slot) || slot.heard()),
            // A rank that has ended is started again by the next fault: without it the
            // others may be too few to go on.
            _ => {
                self.slots.iter_mut().any(ended)
                    || ranks.iter().all(|rank| self.slots[*rank].heard())
            }
        }
    }
}
