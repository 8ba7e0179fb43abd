//! Restores the state in another cluster, from a backup of a lost one.
//!
//! The backup lacks what the lost cluster answered after it: numbers given then
//! must not be given again, and no client may go on as if nothing had happened.
//! So numbers jump, sessions are gone, runs with agents have ended.

use std::sync::Arc;

use holdfast_api::Name;

use crate::applied::{Applied, RunKey};
use crate::coordination::JobCoordination;
use crate::forgotten::Floor;
use crate::history::History;
use crate::machine::Machine;
use crate::session::Sessions;

/// How far revisions, generations and incarnations jump with each epoch: farther
/// than any cluster gets between a backup and its loss, and 8 000 jumps fit
/// JSON's numbers. So the upper bits of a revision tell its epoch.
pub const EPOCH_NUMBERS: u64 = 1 << 40;

/// How far iterations and the numbers of runs jump with each epoch.
pub const EPOCH_ITERATIONS: u64 = 1_000_000;

/// Summary of a restore.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// Runs that were ended because they had agents: their trainers are fenced.
    pub ended: Vec<RunKey>,
    /// Runs that stay open.
    pub open: u64,
    /// Sessions that were dropped.
    pub sessions: u64,
}

impl Machine {
    /// Longest time that a process may go on without contact to the store, in
    /// milliseconds.
    pub fn store_lost_ms_max(&self) -> u64 {
        let known = self.leases.by_id.values().map(|lease| lease.store_lost_ms_max);
        known.fold(self.cluster.limits.coordination.store_lost_ms_max, u64::max)
    }

    /// The greatest of all numbers that only grow, and that nobody but the machine gives.
    pub fn greatest_number(&self) -> u64 {
        let jobs = self.jobs.by_name.values().flat_map(|job| {
            let JobCoordination { incarnation, generation, iteration, .. } = &job.coordination;
            [*incarnation, *generation, *iteration]
        });
        let Floor { next_number: _, incarnation, generation, iteration } = self.jobs.floor;
        let own = [self.revision, self.sessions.next, self.leases.next];
        let forgotten = [incarnation, generation, iteration];
        jobs.chain(own).chain(forgotten).max().unwrap_or(0)
    }

    /// The greatest number of a run that may be the next of its job. Whoever names a run `r7`
    /// raises it, to half of all numbers at most.
    pub fn greatest_run_number(&self) -> u64 {
        let jobs = self.jobs.by_name.values().map(|job| job.next_number);
        jobs.fold(self.jobs.floor.next_number, u64::max)
    }

    /// Continues in another cluster, this many epochs later: numbers given by
    /// clusters of the epochs between are not given again. None may have got that
    /// far.
    pub fn restore(&mut self, cluster_id: &str, epochs: u64) -> Restored {
        // A file may hold any numbers.
        let (numbers, iterations) =
            (EPOCH_NUMBERS.saturating_mul(epochs), EPOCH_ITERATIONS.saturating_mul(epochs));
        self.revision = self.revision.saturating_add(numbers);
        self.history = History::new(self.revision);
        self.cluster.id = Some(cluster_id.into());
        self.cluster.retired = Default::default();
        let sessions = self.sessions.by_id.len() as u64;
        let next = self.sessions.next.saturating_add(numbers);
        self.sessions = Sessions::new(next, self.sessions.leader_since);
        self.leases.next = self.leases.next.saturating_add(numbers);
        let jump = |number: &mut u64, by| *number = number.saturating_add(by);
        let floor = &mut self.jobs.floor;
        if *floor != Floor::default() {
            jump(&mut floor.next_number, iterations);
            jump(&mut floor.incarnation, numbers);
            jump(&mut floor.generation, numbers);
            jump(&mut floor.iteration, iterations);
        }
        let names: Vec<Name> = self.jobs.by_name.keys().cloned().collect();
        let mut restored = Restored { sessions, ..Restored::default() };
        for name in names {
            let Some(job) = self.jobs.by_name.get_mut(&name) else { continue };
            let job = Arc::make_mut(job);
            jump(&mut job.next_number, iterations);
            jump(&mut job.coordination.incarnation, numbers);
            jump(&mut job.coordination.generation, numbers);
            jump(&mut job.coordination.iteration, iterations);
            let Some(open) = job.open.clone() else { continue };
            let run = RunKey { job: name, run: open };
            let lost = self.jobs.run(&run).is_some_and(|run| run.lost_at.is_some());
            if lost || self.leases.of_run(&run).next().is_some() {
                self.end_for_restore(run.clone());
                restored.ended.push(run);
            } else {
                restored.open += 1;
            }
        }
        restored
    }

    fn end_for_restore(&mut self, run: RunKey) {
        let mut applied = Applied::default();
        let leases: Vec<_> = self.leases.of_run(&run).collect();
        for lease in leases {
            // It may have been renewed until the loss.
            self.leases.touch(lease, self.time, self.sessions.leader_since);
        }
        self.end_restored(&run, &mut applied);
        self.publish(Vec::new(), &mut applied);
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::*;

    use super::*;

    fn lost() -> Machine {
        let mut machine = Machine::new();
        let scope = |job: &str| Scope { job: job.parse().unwrap(), run: None };
        let put = |job: &str| {
            let op = KvOp::Put { key: "k".into(), value: "v".into() };
            Command::Kv { scope: scope(job), op }
        };
        let join = LeaseCommand::Join {
            job: "train".parse().unwrap(),
            run: RunChoice::New,
            takeover: false,
            nonce: Nonce(7, 7),
            host: "h".into(),
            ttl_ms: 10_000,
            store_lost_ms_max: None,
        };
        let commands = [
            Command::Cluster(ClusterCommand::SetFeatureLevel { level: crate::FEATURE_LEVEL }),
            Command::Cluster(ClusterCommand::Found { cluster_id: "old".into() }),
            Command::Cluster(ClusterCommand::RetireNode { node: 9 }),
            Command::Session(SessionCommand::Open {
                nonce: Nonce(1, 2),
                ttl_ms: 1,
                lease: None,
                job: None,
            }),
            put("notes"),
            Command::Lease(join),
            put("train"),
        ];
        for command in commands {
            let entry = Entry { time: 5, commands: vec![Proposal { session: None, command }] };
            let answer = machine.apply(&entry).answers.remove(0);
            assert!(!matches!(answer.outcome, Outcome::Refused(_)), "{answer:?}");
        }
        machine
    }

    #[test]
    fn numbers_jump_sessions_go_and_runs_with_agents_end() {
        let before = lost();
        let mut after = before.clone();
        let restored = after.restore("new", 1);
        let train = RunKey { job: "train".parse().unwrap(), run: "r1".parse().unwrap() };
        assert_eq!(restored, Restored { ended: vec![train.clone()], open: 1, sessions: 1 });
        assert!(after.revision() > before.revision() + EPOCH_NUMBERS);
        assert_eq!(after.cluster_id(), Some("new"));
        assert!(after.sessions.by_id.is_empty() && after.leases.by_id.is_empty());
        let job = &after.jobs.by_name[&train.job];
        assert!(job.open.is_none() && job.coordination.iteration == EPOCH_ITERATIONS);
        assert_eq!(job.automatic_name().as_str(), "r1000002");
        let get = |job: &str| {
            let scope = Scope { job: job.parse().unwrap(), run: None };
            after.read(&Read::Get { scope, key: "k".into() }).outcome
        };
        assert!(matches!(get("notes"), ReadOutcome::Entry(Some(_))));
        let mut image = Vec::new();
        after.encode(&mut image).unwrap();
        let again = Machine::decode(&mut &image[..]).unwrap();
        assert_eq!(again.digest(), after.digest());
    }

    #[test]
    fn a_restored_cluster_can_be_lost_and_restored_again() {
        let mut machine = lost();
        for n in 0..1_000 {
            machine.restore(&format!("c{n}"), 1);
        }
        assert!(machine.revision() < 1 << 53, "numbers of JSON hold it");
    }

    #[test]
    fn a_run_named_after_a_great_number_makes_no_other_number_great() {
        let mut machine = lost();
        let before = machine.greatest_number();
        let named = Name::try_from(format!("r{}", u64::MAX / 2)).unwrap();
        let scope = Scope { job: "named".parse().unwrap(), run: Some(named) };
        let op = KvOp::Put { key: "k".into(), value: "v".into() };
        let command = Command::Kv { scope, op };
        machine.apply(&Entry { time: 9, commands: vec![Proposal { session: None, command }] });
        assert_eq!(machine.greatest_run_number(), u64::MAX / 2 + 1);
        assert!(machine.greatest_number() <= before + 2, "{}", machine.greatest_number());
        machine.restore("new", 1_000);
        let job = &machine.jobs.by_name[&"named".parse().unwrap()];
        assert_eq!(job.next_number, u64::MAX / 2 + 1 + 1_000 * EPOCH_ITERATIONS);
    }

    #[test]
    fn jobs_that_are_newer_than_the_backup_begin_in_the_new_epoch() {
        let begin = |machine: &mut Machine| {
            let scope = Scope { job: "young".parse().unwrap(), run: None };
            let op = KvOp::Put { key: "k".into(), value: "v".into() };
            let command = Command::Kv { scope, op };
            machine.apply(&Entry { time: 9, commands: vec![Proposal { session: None, command }] });
            let job = &machine.jobs.by_name[&"young".parse().unwrap()];
            let JobCoordination { incarnation, generation, iteration, .. } = job.coordination;
            [incarnation, generation, iteration, job.next_number]
        };
        assert_eq!(begin(&mut lost()), [0, 0, 0, 1]);
        let restored = |epochs| {
            let mut machine = lost();
            machine.restore("new", epochs);
            begin(&mut machine)
        };
        let of = |epochs| {
            let (numbers, iterations) = (EPOCH_NUMBERS * epochs, EPOCH_ITERATIONS * epochs);
            [numbers, numbers, iterations, iterations + 1]
        };
        assert_eq!(restored(1), of(1));
        assert_eq!(restored(2), of(2), "another attempt is another epoch");
    }
}
