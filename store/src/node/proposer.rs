//! The one proposer: packs what is waiting into log entries.
//!
//! Connections hand it commands with a callback each. It stamps the time and
//! proposes. While one entry is under way the next one gathers: an entry costs
//! every node a sync and several wake-ups, however little is in it. Tenants that
//! wait are served in turn. Of entries that take long to write and to apply one
//! is under way at a time, and small commands pass those that wait, without
//! gathering: none waits for more than one.

use std::collections::VecDeque;
use std::time::Duration;

use futures::stream::FuturesOrdered;
use futures::{FutureExt, StreamExt};
use holdfast_api::{
    Answer, ClusterCommand, Code, Command, Entry, LogTime, NodeId, Problem, Proposal, Size, Turn,
};
use holdfast_machine::Machine;
use tokio::time::{Instant, MissedTickBehavior};

use super::clock::{LogClock, TICK};
use super::tenant::Tenant;
use super::tenant::queue::{self, Refused};
use crate::raft::types::{Done as EntryDone, LogEntry};
use crate::raft::{Consensus, SharedState};
use crate::storage::offload::at_length;

/// Most commands waiting to be proposed; more are refused as `overloaded`.
pub(crate) const QUEUE_MAX: usize = 32_768;

/// Most commands in one entry.
const ENTRY_COMMANDS_MAX: usize = 1_024;

/// Bytes of keys and values after which an entry takes no more commands.
const ENTRY_BYTES_MAX: usize = 1024 * 1024;

/// Keys, processes and rounds that an entry touches after which it takes no more: to
/// apply it must not take long.
const ENTRY_STEPS_MAX: usize = 8 * 1024;

/// Parts of an entry that renewals may fill while urgent commands wait, and both while others do.
const RENEWALS_PARTS_MAX: usize = 2;
const FIRST_PARTS_MAX: usize = 3;
const PARTS: usize = 4;

/// What a renewal costs its tenant: turns come round soon.
const RENEWAL_COST: u64 = queue::CREDIT / 16;

/// What a step of a command costs its tenant, in bytes.
const STEP_COST: usize = 128;

/// Keys and processes, or bytes, from which a command counts as long.
const LONG_STEPS_MIN: usize = 1024;
const LONG_BYTES_MIN: usize = 256 * 1024;

/// Entries under way at once, if those before were full.
const PIPELINE_MAX: usize = 8;

/// While anything can expire, log time moves at least this often.
const TIME_MOVES_EVERY_MS: LogTime = 2_000;

/// While there are leases, at least this often: a quarter of the shortest TTL.
const TIME_MOVES_WITH_LEASES_EVERY_MS: LogTime = 375;

/// How far the leader's clock may run ahead of the applied time, beyond the
/// time between two commits that move it.
const AHEAD_MAX_MS: LogTime = 250;

/// While there are ended runs, log time moves at least this often: their age
/// is counted in hours.
const RUNS_AGE_EVERY_MS: LogTime = 60_000;

/// Most expiries and deadlines proposed at once. If more is due, the rest follows as soon as these
/// are applied.
const EXPIRIES_MAX: usize = 256;

/// Called once with the command's answer.
pub(crate) type Done = Box<dyn FnOnce(Result<Answer, Problem>) + Send>;

/// A command and its callback.
pub(crate) struct Ticket {
    /// The command in its session.
    pub proposal: Proposal,
    /// How large it is.
    pub size: Size,
    /// Called once, with the command's answer or why there is none.
    pub done: Done,
}

/// Queues commands for the proposer. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Proposer {
    queue: queue::Sender<Ticket>,
    /// Ends, arrivals and the like: they go before everything else.
    urgent: queue::Sender<Ticket>,
    /// Commands that take long: one at a time.
    long: queue::Sender<Ticket>,
    /// Renewals of leases have time: they go with the next proposal, at the next tick
    /// at the latest. Those that an entry has no room for do not wait for another tick.
    renewals: queue::Sender<Ticket>,
}

impl Proposer {
    /// A proposer and its task, which runs until all handles are dropped.
    pub(crate) fn new(
        id: NodeId,
        consensus: Consensus,
        state: SharedState,
        ended_runs_kept: Duration,
    ) -> (Proposer, impl Future<Output = ()> + Send) {
        let (queue, tickets) = queue::channel(QUEUE_MAX);
        let (urgent, urgent_tickets) = queue::channel(QUEUE_MAX);
        let (long, long_tickets) = queue::channel(QUEUE_MAX);
        let (renewals, renewal_tickets) = queue::channel(QUEUE_MAX);
        let task = Task {
            id,
            consensus,
            state,
            waiting: Waiting {
                tickets,
                urgent: urgent_tickets,
                renewals: renewal_tickets,
                has_renewals_left: false,
            },
            small_lane: Lane::default(),
            urgent_lane: Lane::default(),
            long: long_tickets,
            long_under_way: false,
            clock: LogClock::new(Instant::now()),
            looks: Looks::default(),
            started_term: None,
            ended_runs_kept,
        };
        (Proposer { queue, urgent, long, renewals }, task.run())
    }

    /// Queues a command of a tenant; `done` gets its outcome. Never blocks.
    pub(crate) fn submit(&self, tenant: Tenant, proposal: Proposal, size: Size, done: Done) {
        let (queue, cost) = match proposal.command.facts().turn {
            Turn::Tick => (&self.renewals, RENEWAL_COST),
            Turn::First => (&self.urgent, cost(&size)),
            // One at a time, of each tenant in turn.
            Turn::Last if takes_long(&size) => (&self.long, LONG_BYTES_MIN as u64),
            Turn::Last => (&self.queue, cost(&size)),
        };
        let sent = queue.try_send(tenant, cost, Ticket { proposal, size, done });
        let (ticket, problem) = match sent {
            Ok(()) => return,
            Err(Refused::Full(ticket)) => {
                (ticket, Problem::overloaded("too many commands are waiting"))
            }
            Err(Refused::Closed(ticket)) => {
                (ticket, Problem::retryable(Code::Unavailable, "this node is stopping"))
            }
        };
        (ticket.done)(Err(problem));
    }
}

/// The command that an entry was made for. Others may be in it, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Small,
    Urgent,
    /// One that takes long.
    Long,
}

/// Entries of one kind: while one is under way, further commands gather.
#[derive(Debug, Default)]
struct Lane {
    under_way: usize,
    /// Whether the last one had no room for more.
    was_full: bool,
}

impl Lane {
    fn may_go(&self) -> bool {
        self.under_way == 0 || self.was_full
    }

    fn went(&mut self, is_full: bool) {
        self.under_way += 1;
        self.was_full = is_full;
    }

    fn came_back(&mut self) {
        self.under_way -= 1;
    }
}

/// Commands of one entry, and their callbacks.
#[derive(Default)]
struct Packed {
    commands: Vec<Proposal>,
    dones: VecDeque<Done>,
    bytes: usize,
    steps: usize,
    kind: Kind,
}

impl Packed {
    /// Whether it fills this many parts of an entry.
    fn is_beyond(&self, parts: usize) -> bool {
        self.commands.len() >= ENTRY_COMMANDS_MAX / PARTS * parts
            || self.bytes >= ENTRY_BYTES_MAX / PARTS * parts
            || self.steps >= ENTRY_STEPS_MAX / PARTS * parts
    }
}

/// What waits, without commands that take long.
struct Waiting {
    tickets: queue::Receiver<Ticket>,
    urgent: queue::Receiver<Ticket>,
    renewals: queue::Receiver<Ticket>,
    /// Whether the last entry had no room for all renewals.
    has_renewals_left: bool,
}

impl Waiting {
    /// Takes what is waiting, after a first ticket if there is one, up to the bounds.
    /// `rounds_decided`: how many rounds a command may make its run decide again.
    fn pack(
        &mut self,
        first: Option<Ticket>,
        rounds_decided: impl Fn(&Command) -> usize,
    ) -> Packed {
        let mut packed = Packed::default();
        let mut next = first;
        while let Some(ticket) = next.take().or_else(|| self.next(&packed)) {
            packed.bytes += ticket.size.weight;
            packed.steps += ticket.size.steps + rounds_decided(&ticket.proposal.command);
            packed.commands.push(ticket.proposal);
            packed.dones.push_back(ticket.done);
            if packed.is_beyond(PARTS) {
                break;
            }
        }
        self.has_renewals_left = packed.is_beyond(PARTS) && !self.renewals.is_empty();
        packed
    }

    /// The next command for an entry: the first parts are for renewals, the next ones for
    /// urgent commands, and the rest for others, if there are any.
    fn next(&mut self, packed: &Packed) -> Option<Ticket> {
        let Waiting { tickets, urgent, renewals, .. } = self;
        let queues = if !packed.is_beyond(RENEWALS_PARTS_MAX) {
            [renewals, urgent, tickets]
        } else if !packed.is_beyond(FIRST_PARTS_MAX) {
            [urgent, renewals, tickets]
        } else {
            [tickets, urgent, renewals]
        };
        queues.into_iter().find_map(queue::Receiver::try_recv)
    }
}

/// The leader's own commands.
#[derive(Default)]
struct Own {
    commands: Vec<Proposal>,
    /// Whether more may be due than these.
    is_full: bool,
}

/// When to look at what is due: at each tick, and if that was more than one entry takes, as soon
/// as that entry is applied.
#[derive(Debug, Default)]
struct Looks {
    /// Whether it is time.
    now: bool,
    /// Entries under way that left some of it.
    full: usize,
}

impl Looks {
    fn proposed(&mut self, is_full: bool) {
        self.full += usize::from(is_full);
    }

    /// An entry was applied, or not. While another one is under way, the same would be due again.
    fn heard_back(&mut self, was_full: bool, is_applied: bool) {
        self.full -= usize::from(was_full);
        self.now |= was_full && is_applied && self.full == 0;
    }
}

/// Result of an entry.
struct Proposed {
    kind: Kind,
    /// More may be due than the leader's own commands in it.
    was_full: bool,
    is_applied: bool,
    /// The term that it announced, if the announcement got no answer.
    unheard: Option<u64>,
}

struct Task {
    id: NodeId,
    consensus: Consensus,
    state: SharedState,
    waiting: Waiting,
    small_lane: Lane,
    /// Urgent commands wait for urgent ones alone.
    urgent_lane: Lane,
    long: queue::Receiver<Ticket>,
    long_under_way: bool,
    clock: LogClock,
    looks: Looks,
    /// The term in which this node has announced itself as leader.
    started_term: Option<u64>,
    ended_runs_kept: Duration,
}

impl Task {
    async fn run(mut self) {
        let mut under_way = FuturesOrdered::new();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let has_room = under_way.len() < PIPELINE_MAX;
            // Expiries and deadlines do not wait until the queues are empty.
            if has_room && (self.looks.now || ticks.tick().now_or_never().is_some()) {
                self.looks.now = false;
                self.look_at_the_clock();
                let own = self.own_commands();
                let packed = self.pack(None);
                if !own.commands.is_empty() || !packed.commands.is_empty() {
                    under_way.push_back(self.propose(own, packed));
                    continue;
                }
            }
            let urgent_may_go = has_room && self.may_go(&self.urgent_lane);
            let small_may_go = has_room && self.may_go(&self.small_lane);
            tokio::select! {
                biased;
                Some(proposed) = under_way.next(), if !under_way.is_empty() => {
                    self.heard_back(proposed);
                }
                Some(ticket) = self.waiting.urgent.recv(), if urgent_may_go => {
                    let packed = Packed { kind: Kind::Urgent, ..self.pack(Some(ticket)) };
                    under_way.push_back(self.propose(Own::default(), packed));
                }
                Some(ticket) = self.long.recv(), if has_room && !self.long_under_way => {
                    let packed = Packed { kind: Kind::Long, ..self.pack(Some(ticket)) };
                    under_way.push_back(self.propose(Own::default(), packed));
                }
                Some(ticket) = self.waiting.renewals.recv(),
                    if has_room && self.waiting.has_renewals_left =>
                {
                    let packed = self.pack(Some(ticket));
                    under_way.push_back(self.propose(Own::default(), packed));
                }
                ticket = self.waiting.tickets.recv(), if small_may_go => {
                    let Some(ticket) = ticket else { break };
                    let packed = self.pack(Some(ticket));
                    under_way.push_back(self.propose(Own::default(), packed));
                }
                _ = ticks.tick() => {
                    self.look_at_the_clock();
                    self.looks.now = true;
                }
            }
        }
        // All handles are gone: propose what is still queued.
        loop {
            let next = self.waiting.next(&Packed::default()).or_else(|| self.long.try_recv());
            let Some(ticket) = next else { break };
            let packed = self.pack(Some(ticket));
            under_way.push_back(self.propose(Own::default(), packed));
        }
        while under_way.next().await.is_some() {}
    }

    /// Nothing gathers behind an entry that takes long: it would come behind the next one, too.
    fn may_go(&self, lane: &Lane) -> bool {
        lane.may_go() || self.long_under_way
    }

    /// An announcement without an answer has to be repeated.
    fn heard_back(&mut self, proposed: Proposed) {
        let Proposed { kind, was_full, is_applied, unheard } = proposed;
        match kind {
            Kind::Small => self.small_lane.came_back(),
            Kind::Urgent => self.urgent_lane.came_back(),
            Kind::Long => self.long_under_way = false,
        }
        self.looks.heard_back(was_full, is_applied);
        if unheard.is_some() && unheard == self.started_term {
            self.started_term = None;
        }
    }

    /// Only a leader counts time; a follower takes it from the log.
    fn look_at_the_clock(&mut self) {
        if self.consensus.leads() {
            self.stamp();
        } else {
            let applied = self.state.read().machine.time();
            self.clock.follow(Instant::now(), applied);
        }
    }

    /// Time in which nothing is committed is lost, as it is for a leader that
    /// was frozen: renewals under way carry the stamps from before.
    fn stamp(&mut self) -> LogTime {
        let state = self.state.read();
        let machine = &state.machine;
        let ahead_max = match machine.has_pending_deadlines() {
            true => time_moves_every(machine) + AHEAD_MAX_MS,
            false => LogTime::MAX,
        };
        self.clock.stamp(Instant::now(), machine.time(), ahead_max)
    }

    /// Takes what is waiting, after a first ticket if there is one, up to the bounds.
    fn pack(&mut self, first: Option<Ticket>) -> Packed {
        let Task { waiting, state, .. } = self;
        waiting.pack(first, |command| match command.may_change_members() {
            true => state.read().machine.rounds_gathering(command),
            false => 0,
        })
    }

    /// The leader's own commands: its start, expiries, the time.
    fn own_commands(&mut self) -> Own {
        let (term, leads) = self.consensus.leadership();
        if !leads {
            return Own::default();
        }
        let own = |command| Proposal { session: None, command };
        if self.started_term != Some(term) {
            let commands = Vec::from([own(Command::Cluster(ClusterCommand::Tick))]);
            return Own { commands, is_full: false };
        }
        let state = self.state.read();
        let machine = &state.machine;
        let mut commands: Vec<Proposal> =
            machine.due(self.clock.time(), EXPIRIES_MAX).into_iter().map(own).collect();
        let is_full = commands.len() == EXPIRIES_MAX;
        let kept_ms = u64::try_from(self.ended_runs_kept.as_millis()).unwrap_or(u64::MAX);
        let purges = machine.purgeable(kept_ms, EXPIRIES_MAX - commands.len());
        commands.extend(purges.into_iter().map(own));
        let behind = self.clock.time().saturating_sub(machine.time());
        let due = (behind >= time_moves_every(machine) && machine.has_pending_deadlines())
            || (behind >= RUNS_AGE_EVERY_MS && machine.has_ended_runs());
        if commands.is_empty() && due {
            commands.push(own(Command::Cluster(ClusterCommand::Tick)));
        }
        Own { commands, is_full }
    }

    /// Proposes one entry, the leader's own commands first; every callback gets the
    /// outcome.
    fn propose(
        &mut self,
        own: Own,
        packed: Packed,
    ) -> impl Future<Output = Proposed> + Send + use<> {
        let time = self.stamp();
        let (term, leads) = self.consensus.leadership();
        let Own { mut commands, is_full: was_full } = own;
        self.looks.proposed(was_full);
        // A leader's first entry announces it: idle times count anew from here (a
        // failover expires nothing).
        let announces = leads && self.started_term != Some(term);
        if announces {
            self.started_term = Some(term);
            let command = Command::Cluster(ClusterCommand::LeaderStarted { node: self.id });
            commands.insert(0, Proposal { session: None, command });
        }
        let (consensus, kind) = (self.consensus.clone(), packed.kind);
        match kind {
            Kind::Small => self.small_lane.went(packed.is_beyond(PARTS)),
            Kind::Urgent => self.urgent_lane.went(packed.is_beyond(PARTS)),
            Kind::Long => self.long_under_way = true,
        }
        let own = commands.len();
        commands.extend(packed.commands);
        let done = EntryDone::new(move |result| tell(packed.dones, result, own));
        let encode = || LogEntry::new(Entry { time, commands }, Some(done));
        let entry = if kind == Kind::Long { at_length(encode) } else { encode() };
        async move {
            let is_applied = consensus.propose(entry).await.is_ok();
            let unheard = if !is_applied && announces { Some(term) } else { None };
            Proposed { kind, was_full, is_applied, unheard }
        }
    }
}

/// What a command costs its tenant, in bytes.
fn cost(size: &Size) -> u64 {
    (size.weight + size.steps * STEP_COST) as u64
}

/// Whether writing and applying a command takes long.
fn takes_long(size: &Size) -> bool {
    size.steps >= LONG_STEPS_MIN || size.weight >= LONG_BYTES_MIN
}

/// How often log time moves while anything can expire.
fn time_moves_every(machine: &Machine) -> LogTime {
    if machine.has_leases() { TIME_MOVES_WITH_LEASES_EVERY_MS } else { TIME_MOVES_EVERY_MS }
}

/// Calls the callbacks with their answers; the first `own` answers are the
/// proposer's.
fn tell(dones: VecDeque<Done>, result: Result<Vec<Answer>, Problem>, own: usize) {
    match result {
        Ok(answers) => {
            for (done, answer) in dones.into_iter().zip(answers.into_iter().skip(own)) {
                done(Ok(answer));
            }
        }
        Err(problem) => dones.into_iter().for_each(|done| done(Err(problem.clone()))),
    }
}

/// What [`Size::weight`] counts beyond keys and values, at most, for commands that
/// the state machine still accepts.
pub(crate) const WEIGHT_SLACK: u64 = 4 * 1024 * 1024;

#[cfg(test)]
mod tests;
