//! The machine: its fields, and how it applies an entry.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use holdfast_api::{
    Answer, Change, Command, Entry, LeaseId, Limits, LogTime, Name, NodeId, Outcome, Proposal,
    Refusal, Revision, SessionId, SessionRef, Subject, WatchBatch,
};

use crate::applied::{Applied, Compacted, Counts, Effect, RunKey};
use crate::cluster::Cluster;
use crate::coordination::act::Timers;
use crate::history::History;
use crate::job::Jobs;
use crate::lease::Leases;
use crate::session::{Admission, Sessions};
use crate::turns::{parts, take_turns};
use holdfast_api::version::{COORDINATION_LEVEL, FEATURE_LEVEL};

/// The replicated state. A clone is cheap and does not change with the original:
/// snapshots are made from clones.
#[derive(Clone, Default)]
pub struct Machine {
    /// Log time: the latest stamp of an entry; it never goes back.
    pub(crate) time: LogTime,
    /// Counts commands that changed keys, queues or runs.
    pub(crate) revision: Revision,
    pub(crate) cluster: Cluster,
    pub(crate) jobs: Jobs,
    pub(crate) sessions: Sessions,
    pub(crate) leases: Leases,
    pub(crate) timers: Timers,
    /// The newest revisions, up to the present one.
    pub(crate) history: History,
}

impl Machine {
    /// The state before the first entry: revision 0, log time 0, no cluster id.
    pub fn new() -> Machine {
        Machine::default()
    }

    /// Applies the next entry of the log. Never fails: a refusal is an answer.
    pub fn apply(&mut self, entry: &Entry) -> Applied {
        self.time = self.time.max(entry.time);
        self.sessions.note_use(entry, self.time);
        self.note_renewals(entry);
        let mut applied = Applied::default();
        applied.answers.reserve_exact(entry.commands.len());
        for proposal in &entry.commands {
            let answer = self.answer_once(proposal, &mut applied);
            applied.answers.push(answer);
        }
        applied
    }

    /// Applies a command unless its session has applied it before.
    fn answer_once(&mut self, proposal: &Proposal, applied: &mut Applied) -> Answer {
        let Proposal { session, command } = proposal;
        let Some(place) = session else {
            return self.carry_out(None, command, applied);
        };
        if let (0, Command::Lease(_)) = (place.sequence, command)
            && self.cluster.feature_level >= COORDINATION_LEVEL
        {
            let holder = self.sessions.by_id.contains_key(&place.id).then_some(place.id);
            return self.carry_out(holder, command, applied);
        }
        match self.sessions.admit(place, &self.cluster) {
            Admission::Fresh => {
                let answer = self.carry_out(Some(place.id), command, applied);
                self.sessions.record(place, &answer);
                answer
            }
            Admission::Replayed(answer) => self.fence(command, answer),
            Admission::Refused(refusal) => self.answer_now(Outcome::Refused(refusal)),
        }
    }

    fn carry_out(
        &mut self,
        session: Option<SessionId>,
        command: &Command,
        applied: &mut Applied,
    ) -> Answer {
        let outcome = match command {
            Command::Kv { scope, op } => self.apply_kv(scope, op, applied).map(Outcome::Kv),
            Command::Pipeline { scope, ops } => self.apply_pipeline(scope, ops, applied),
            Command::Session(command) => self.apply_session(command, applied),
            Command::Run(command) => self.apply_run(command, applied),
            Command::Cluster(command) => self.apply_cluster(command, applied),
            Command::Lease(command) => self.apply_lease(session, command, applied),
            Command::Process(command) => self.apply_process(command, applied),
            Command::Round(command) => self.apply_round(command, applied),
        };
        self.answer_now(outcome.unwrap_or_else(Outcome::Refused))
    }

    fn answer_now(&self, outcome: Outcome) -> Answer {
        Answer { revision: self.revision, outcome, replayed: false }
    }

    /// Makes the next revision.
    pub(crate) fn publish(&mut self, changes: Vec<Change>, applied: &mut Applied) {
        self.revision += 1;
        let batch = Arc::new(WatchBatch { revision: self.revision, changes });
        self.history.push(Arc::clone(&batch));
        self.history.trim(self.cluster.limits());
        applied.effects.push(Effect::Changed(batch));
    }

    /// Changes of one run under a prefix, in these revisions: whole revisions,
    /// in order, without those in which nothing of interest happened. Stops before
    /// `changes_max` changes or 256 KiB would be exceeded, but not before the first
    /// revision; ask again from the last one's successor until it returns nothing. A run
    /// deleted and opened again under its name is another run: earlier changes are
    /// not its history.
    pub fn history(
        &self,
        run: &RunKey,
        prefix: &[u8],
        revisions: RangeInclusive<Revision>,
        changes_max: usize,
    ) -> Result<Vec<WatchBatch>, Compacted> {
        let (from, to) = revisions.into_inner();
        self.history.within(run, prefix, from.max(self.opened(run))..=to, changes_max)
    }

    /// Revision of a run's opening; 0 if there is no such run.
    pub(crate) fn opened(&self, run: &RunKey) -> Revision {
        self.jobs.run(run).map_or(0, |run| run.opened)
    }

    /// The present revision; 0 before the first change.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Log time of the newest entry.
    pub fn time(&self) -> LogTime {
        self.time
    }

    /// The replicated feature level.
    pub fn feature_level(&self) -> u32 {
        self.cluster.feature_level
    }

    /// The feature level, if it is one that this build does not obey. The node must
    /// then apply nothing more and stop: it would diverge silently.
    pub fn unsupported_level(&self) -> Option<u32> {
        (self.cluster.feature_level > FEATURE_LEVEL).then_some(self.cluster.feature_level)
    }

    /// The replicated limits, as the cluster last set them.
    pub fn limits(&self) -> &Limits {
        self.cluster.limits()
    }

    /// The cluster's id, once it is founded.
    pub fn cluster_id(&self) -> Option<&str> {
        self.cluster.id.as_deref()
    }

    /// Whether a command was applied and its session keeps the answer.
    pub fn is_answered(&self, place: &SessionRef) -> bool {
        self.sessions.is_answered(place)
    }

    /// Whether a node id is retired.
    pub fn is_retired(&self, node: NodeId) -> bool {
        self.retired_at(node).is_some()
    }

    /// All retired node ids, in order.
    pub fn retired(&self) -> impl Iterator<Item = NodeId> {
        self.cluster.retired.keys().copied()
    }

    /// Log time at which a node id was retired.
    pub fn retired_at(&self, node: NodeId) -> Option<LogTime> {
        self.cluster.retired.get(&node).copied()
    }

    /// Whether a signed token was revoked.
    pub fn is_revoked(&self, token: &Name) -> bool {
        self.cluster.revoked.contains_key(token)
    }

    /// All revoked tokens in order, and the log time until which each is kept.
    pub fn revoked_tokens(&self) -> impl Iterator<Item = (&Name, LogTime)> {
        self.cluster.revoked.iter().map(|(token, until)| (token, *until))
    }

    /// The refusal to reuse a retired node id.
    pub fn refuse_retired(&self, node: NodeId) -> Option<Refusal> {
        self.retired_at(node).map(|at| Refusal::NodeRetired { node, at })
    }

    /// Up to `max` commands `Expire` and `Deadline` that hold at a log time, which is
    /// the leader's. The leader proposes them in an entry of that time.
    ///
    /// Leases, rounds and sessions have the same part of them, and what one leaves free is for
    /// the others. Of the leases, and of the rounds, jobs take turns.
    pub fn due(&self, time: LogTime, max: usize) -> Vec<Command> {
        let leases = self.leases.due(time, self.sessions.leader_since, max);
        let timers = take_turns(self.timers.due(0, time), max).into_iter();
        let rounds: Vec<Command> = timers.filter_map(|timer| self.deadline(timer)).collect();
        let sessions = self.sessions.due(time, max);
        let parts = parts(max, [leases.len(), rounds.len(), sessions.len()]);
        let due = [leases, rounds, sessions].into_iter().zip(parts);
        due.flat_map(|(kind, part)| kind.into_iter().take(part)).collect()
    }

    /// Whether anything comes due as log time passes. If so, the leader must commit a
    /// tick at intervals.
    pub fn has_pending_deadlines(&self) -> bool {
        !self.sessions.by_id.is_empty() || !self.leases.by_id.is_empty() || !self.timers.is_empty()
    }

    /// Whether any lease has a holder.
    pub fn has_leases(&self) -> bool {
        !self.leases.by_id.is_empty()
    }

    /// The rounds that gather in the run of a command: it decides all of them again if it
    /// changes the members.
    pub fn rounds_gathering(&self, command: &Command) -> usize {
        let run = match command.facts().subject {
            Subject::Lease(lease) => self.leases.run(lease),
            Subject::Run(scope) => self.jobs.readable(scope),
            _ => return 0,
        };
        let run = run.ok().and_then(|key| self.jobs.run(&key));
        run.map_or(0, |run| run.coordination.rounds.len())
    }

    /// The run of a lease, also after it ended as the last of its run.
    pub fn job_of_lease(&self, lease: LeaseId) -> Option<&Name> {
        self.leases.by_id.get(&lease).map(|lease| &lease.run.job)
    }

    /// Sizes of the state.
    pub fn counts(&self) -> Counts {
        Counts {
            jobs: self.jobs.by_name.len() as u64 - self.jobs.empty,
            runs: self.jobs.runs,
            keys: self.jobs.usage.keys,
            bytes: self.jobs.usage.bytes,
            sessions: self.sessions.by_id.len() as u64,
            session_answer_bytes: self.sessions.answer_bytes,
            payload_bytes: self.jobs.payload_bytes,
            history_changes: self.history.changes,
            history_bytes: self.history.bytes,
            history_oldest: self.history.oldest(),
            retired_nodes: self.cluster.retired.len() as u64,
            leases: self.leases.by_id.len() as u64,
            round_timers: self.timers.len() as u64,
        }
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("revision", &self.revision)
            .field("time", &self.time)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::*;

    use super::*;

    fn apply(machine: &mut Machine, time: LogTime, commands: Vec<Command>) -> Vec<Answer> {
        let commands = commands.into_iter().map(|command| Proposal { session: None, command });
        let answers = machine.apply(&Entry { time, commands: commands.collect() }).answers;
        for answer in &answers {
            assert!(!matches!(answer.outcome, Outcome::Refused(_)), "{answer:?}");
        }
        answers
    }

    fn grant(job: &str, number: u64) -> Command {
        Command::Lease(LeaseCommand::Grant {
            scope: Scope { job: job.parse().unwrap(), run: None },
            nonce: Nonce(number, 1),
            host: "h".into(),
            ttl_ms: 2_000,
            store_lost_ms_max: None,
        })
    }

    fn open(number: u64) -> Command {
        let nonce = Nonce(number, 2);
        Command::Session(SessionCommand::Open { nonce, ttl_ms: 1, lease: None, job: None })
    }

    fn register(lease: LeaseId, process: ProcessId) -> Command {
        Command::Process(ProcessCommand::Register {
            lease,
            process: Some(process),
            nonce: Nonce(process.into(), 3),
            replaces: 0,
            takeover: false,
            role: Role::Active,
            labels: Labels::new(),
            policy: Box::default(),
        })
    }

    /// Process 0 arrives at a round that waits for another one.
    fn arrive(lease: LeaseId) -> Command {
        let deadline = Some(Deadline { after_ms: 100, then: AtDeadline::Fail });
        let arrival =
            Arrival { process: 0, incarnation: 1, call: 1, ack: 1, payload: "".into(), holds: 0 };
        Command::Round(RoundCommand::Arrive {
            lease,
            round: "barrier".into(),
            terms: Box::new(Terms { deadline, ..Terms::default() }),
            arrivals: vec![arrival],
        })
    }

    #[test]
    fn what_is_due_of_one_job_keeps_no_other_waiting() {
        let mut machine = Machine::new();
        let level = ClusterCommand::SetFeatureLevel { level: FEATURE_LEVEL };
        apply(&mut machine, 1, vec![Command::Cluster(level)]);
        let many = (0..1_000).flat_map(|number| [grant("many", number), open(number)]);
        apply(&mut machine, 1, many.collect());
        let granted = apply(&mut machine, 2, vec![grant("few", 1_000)]).remove(0);
        let Outcome::Lease(LeaseOutcome::Granted { lease: of_few, .. }) = granted.outcome else {
            panic!("{granted:?}")
        };
        apply(&mut machine, 2, vec![register(of_few, 0), register(of_few, 1), arrive(of_few)]);

        let due = machine.due(1_000_000, 256);
        let (mut leases, mut rounds, mut sessions, mut expires_few) = (0, 0, 0, false);
        for command in due {
            match command {
                Command::Lease(LeaseCommand::Expire { lease, .. }) => {
                    leases += 1;
                    expires_few |= lease == of_few;
                }
                Command::Round(RoundCommand::Deadline { scope, .. }) => {
                    rounds += 1;
                    assert_eq!(scope.job.as_str(), "few");
                }
                Command::Session(SessionCommand::Expire { .. }) => sessions += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((leases, rounds, sessions), (128, 1, 127));
        assert!(expires_few, "its job has its turn");
    }
}
