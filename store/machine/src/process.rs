//! Registration of processes, and their ends as agents and operators report them.

use std::sync::Arc;

use holdfast_api::{
    Cause, EventKind, Incarnation, Labels, LeaseId, Nonce, Outcome, Policy, ProcessCommand,
    ProcessEnd, ProcessId, ProcessOutcome, Refusal, Role, Scope,
};
use imbl::OrdMap;

use crate::applied::{Applied, RunKey};
use crate::coordination::act::Act;
use crate::coordination::{Coordination, Process};
use crate::machine::Machine;
use crate::outcome::assignment;
use crate::size;
use holdfast_api::version::COORDINATION_LEVEL;

/// Longest reason for an end, in bytes.
const REASON_BYTES_MAX: u64 = 1_024;
/// Longest exception by which a process leaves, in bytes: each member of a round
/// that fails by it receives it.
const EXCEPTION_BYTES_MAX: u64 = 256;

/// An agent chooses the texts of causes, and they are kept for long.
fn check_cause(cause: &Cause) -> Result<(), Refusal> {
    match cause {
        Cause::Removed { reason } => within_reason(reason.len()),
        Cause::Evicted { round, .. } | Cause::NotStopped { round, .. } => {
            within_reason(round.len())
        }
        Cause::Raised { error } => {
            size::within("exception_bytes_max", error.len() as u64, EXCEPTION_BYTES_MAX)
        }
        _ => Ok(()),
    }
}

fn within_reason(bytes: usize) -> Result<(), Refusal> {
    size::within("reason_bytes_max", bytes as u64, REASON_BYTES_MAX)
}

/// Most incidents that a window may allow: this many times are kept.
const RESTARTS_IN_WINDOW_MAX: u32 = 1_000;

/// Arguments of a registration.
struct Registration<'c> {
    lease: LeaseId,
    process: Option<ProcessId>,
    nonce: Nonce,
    replaces: Incarnation,
    takeover: bool,
    role: Role,
    labels: &'c Labels,
    policy: &'c Policy,
}

/// Values that no process could meet.
fn check_policy(policy: &Policy) -> Result<(), Refusal> {
    let invalid = |why: String| Err(Refusal::TermsInvalid { why });
    let Policy { world, members_min, assignment, restarts_max, restarts_window_ms, .. } = policy;
    if *world > 0 && members_min > world {
        return invalid(format!("members_min {members_min} is above the declared world {world}"));
    }
    if *restarts_window_ms > 0 && *restarts_max > RESTARTS_IN_WINDOW_MAX {
        return invalid(format!(
            "restarts_max {restarts_max} with a window: give at most {RESTARTS_IN_WINDOW_MAX}, \
             or leave out the window"
        ));
    }
    assignment::check(assignment).or_else(invalid)
}

impl Machine {
    pub(crate) fn apply_process(
        &mut self,
        command: &ProcessCommand,
        applied: &mut Applied,
    ) -> Result<Outcome, Refusal> {
        self.at_coordination_level()?;
        let outcome = match command {
            ProcessCommand::Register {
                lease,
                process,
                nonce,
                replaces,
                takeover,
                role,
                labels,
                policy,
            } => {
                check_policy(policy)?;
                let registration = Registration {
                    lease: *lease,
                    process: *process,
                    nonce: *nonce,
                    replaces: *replaces,
                    takeover: *takeover,
                    role: *role,
                    labels,
                    policy,
                };
                let run = self.leases.run(*lease)?;
                self.act(&run, applied, |act| act.register(&registration))?
            }
            ProcessCommand::End { lease, ends } => {
                let run = self.leases.run(*lease)?;
                self.act(&run, applied, |act| act.end_all(*lease, ends))?
            }
            ProcessCommand::Remove { scope, process, incarnation, reason } => {
                within_reason(reason.len())?;
                let run = self.live_run(scope)?;
                self.act(&run, applied, |act| {
                    act.living(*process, *incarnation)?;
                    let cause = Cause::Removed { reason: reason.clone() };
                    act.end_incarnation(*process, cause, false);
                    Ok(ProcessOutcome::Ended { ended: 1 })
                })?
            }
        };
        Ok(Outcome::Process(outcome))
    }

    pub(crate) fn at_coordination_level(&self) -> Result<(), Refusal> {
        let level = self.cluster.feature_level;
        if level >= COORDINATION_LEVEL {
            return Ok(());
        }
        Err(Refusal::FeatureLevel { level, needed: COORDINATION_LEVEL })
    }

    /// The open run of a command without a lease.
    pub(crate) fn live_run(&self, scope: &Scope) -> Result<RunKey, Refusal> {
        let target = self.jobs.writable(scope)?;
        if target.exists {
            return Ok(target.key);
        }
        Err(Refusal::JobNotFound { job: scope.job.clone() })
    }
}

impl Act<'_> {
    fn register(&mut self, wanted: &Registration<'_>) -> Result<ProcessOutcome, Refusal> {
        let limits = self.limits.clone();
        let label_bytes = wanted.labels.iter().map(|(k, v)| (k.len() + v.len()) as u64).sum();
        size::within("label_bytes_max", label_bytes, limits.coordination.label_bytes_max)?;
        if let Some(known) = self.registered(wanted)? {
            return Ok(known);
        }
        let limit = limits.coordination.processes_per_run_max;
        let full = self.coordination.processes.len() as u64 >= limit;
        let process = match wanted.process {
            None if full => return Err(self.full("processes_per_run_max", limit)),
            None => self.coordination.next_process(),
            Some(process) => process,
        };
        match self.coordination.processes.get(&process) {
            Some(current) => {
                let alive = current.is_alive();
                if wanted.replaces != current.incarnation {
                    let current = current.incarnation;
                    return Err(Refusal::Superseded { process, current, alive });
                }
                if alive && current.lease != wanted.lease && !wanted.takeover {
                    return Err(Refusal::AliveElsewhere {
                        process,
                        incarnation: current.incarnation,
                        host: current.host.as_ref().to_owned(),
                    });
                }
            }
            None if wanted.replaces != 0 => {
                return Err(Refusal::Superseded { process, current: 0, alive: false });
            }
            None if full => return Err(self.full("processes_per_run_max", limit)),
            None => {}
        }
        Ok(self.admit(process, wanted))
    }

    /// The same registration was applied before.
    fn registered(&self, wanted: &Registration<'_>) -> Result<Option<ProcessOutcome>, Refusal> {
        if !self.leases.by_id.contains_key(&wanted.lease) {
            return Err(Refusal::LeaseEnded { lease: wanted.lease });
        }
        let found = match wanted.process {
            Some(process) => {
                let known = (wanted.lease, wanted.nonce, process);
                self.coordination.registrations.contains(&known).then_some(process)
            }
            None => self.coordination.first_registered(wanted.lease, wanted.nonce),
        };
        let Some((process, record)) =
            found.and_then(|process| Some((process, self.coordination.processes.get(&process)?)))
        else {
            return Ok(None);
        };
        self.living(process, record.incarnation)?;
        let Process { incarnation, since, .. } = record;
        Ok(Some(ProcessOutcome::Registered { process, incarnation: *incarnation, since: *since }))
    }

    fn admit(&mut self, process: ProcessId, wanted: &Registration<'_>) -> ProcessOutcome {
        let incarnation = self.job.next_incarnation();
        self.end_incarnation(process, Cause::Superseded { by: incarnation }, false);
        let host = self.leases.by_id.get(&wanted.lease).map(|lease| lease.host.clone());
        let host: Arc<str> = host.unwrap_or_else(|| "".into());
        let record = Process {
            incarnation,
            nonce: wanted.nonce,
            lease: wanted.lease,
            host: host.clone(),
            role: wanted.role,
            labels: Arc::new(wanted.labels.clone()),
            policy: self.coordination.standing.shared(wanted.policy),
            since: self.revision,
            since_ms: self.time,
            member_since: 0,
            member_from: 0,
            part_over: 0,
            end: None,
            ack: 1,
            calls: OrdMap::new(),
        };
        if wanted.role == Role::Active {
            self.coordination.standing.add(process, &record);
        }
        let joined_before = self.coordination.insert_process(process, record);
        *self.coordination.live.of(wanted.role) += 1;
        self.leases.attach(wanted.lease, process, incarnation);
        for key in self.coordination.naming.get(&process).into_iter().flatten() {
            if let Some(round) = self.coordination.rounds.get_mut(key) {
                // The set already counts a process that never joined.
                round.tally.live += u32::from(joined_before);
            }
            self.dirty.insert(key.clone());
        }
        self.membership_changed = true;
        self.changed = true;
        self.record(EventKind::Registered {
            process,
            incarnation,
            role: wanted.role,
            host: host.as_ref().to_owned(),
        });
        ProcessOutcome::Registered { process, incarnation, since: self.revision }
    }

    /// All ends first, then the rounds.
    fn end_all(&mut self, lease: LeaseId, ends: &[ProcessEnd]) -> Result<ProcessOutcome, Refusal> {
        for ProcessEnd { process, incarnation, cause, .. } in ends {
            check_cause(cause)?;
            match self.attached(lease, *process, *incarnation) {
                Ok(_) | Err(Refusal::ProcessFenced { .. }) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        let mut ended = 0;
        for ProcessEnd { process, incarnation, cause, exit_seen } in ends {
            let (process, incarnation) = (*process, *incarnation);
            if self.living(process, incarnation).is_ok() {
                let cause = cause.clone();
                ended += u64::from(self.end_incarnation(process, cause, *exit_seen));
            } else if *exit_seen {
                self.has_exited(process, incarnation);
            }
        }
        Ok(ProcessOutcome::Ended { ended })
    }

    /// The record of an incarnation that goes on.
    pub fn living(
        &self,
        process: ProcessId,
        incarnation: Incarnation,
    ) -> Result<&Process, Refusal> {
        self.coordination.living(process, incarnation)
    }

    /// The record of an incarnation that goes on, for the agent that holds it.
    pub fn attached(
        &self,
        lease: LeaseId,
        process: ProcessId,
        incarnation: Incarnation,
    ) -> Result<&Process, Refusal> {
        let record = self.living(process, incarnation)?;
        if record.lease != lease {
            return Err(Refusal::NotAttached { process, lease });
        }
        Ok(record)
    }
}

impl Coordination {
    /// The record of an incarnation that goes on.
    pub fn living(
        &self,
        process: ProcessId,
        incarnation: Incarnation,
    ) -> Result<&Process, Refusal> {
        let not_found = Refusal::ProcessNotFound { process, incarnation };
        let record = self.processes.get(&process).ok_or(not_found.clone())?;
        if incarnation > record.incarnation || incarnation == 0 {
            return Err(not_found);
        }
        let fenced = |at, cause| Err(Refusal::ProcessFenced { process, incarnation, at, cause });
        if incarnation < record.incarnation {
            return fenced(record.since, Cause::Superseded { by: record.incarnation });
        }
        match &record.end {
            Some(end) => fenced(end.at, end.cause.clone()),
            None => Ok(record),
        }
    }
}
