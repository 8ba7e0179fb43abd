//! Commands on jobs and runs: open, end, delete. At most one run of a job is
//! open; whoever works in an ended one is fenced.

use holdfast_api::{Name, Outcome, Refusal, RunCommand, RunOutcome};

use crate::applied::{Applied, Effect, RunKey};
use crate::job::{Job, RunEnd, fence, run_not_found};
use crate::machine::Machine;

impl Machine {
    pub(crate) fn apply_run(
        &mut self,
        command: &RunCommand,
        applied: &mut Applied,
    ) -> Result<Outcome, Refusal> {
        let outcome = match command {
            RunCommand::Open { job, run } => self.open_run(job, run.as_ref(), applied)?,
            RunCommand::End { job, run } => self.end_run(job, run, applied)?,
            RunCommand::Delete { job, run } => self.delete_run(job, run, applied)?,
        };
        Ok(Outcome::Run(outcome))
    }

    fn open_run(
        &mut self,
        job_name: &Name,
        wanted: Option<&Name>,
        applied: &mut Applied,
    ) -> Result<RunOutcome, Refusal> {
        let job = self.jobs.by_name.get(job_name);
        let name = match wanted {
            Some(name) => name.clone(),
            None => job
                .map(|job| job.automatic_name())
                .unwrap_or_else(|| Job::default().automatic_name()),
        };
        if let Some(run) = job.and_then(|job| job.runs.get(&name)) {
            return match fence(job_name, &name, run) {
                Some(refusal) => Err(refusal),
                None => Ok(RunOutcome::Opened { run: name, created: false, ended: None }),
            };
        }
        let former = job.and_then(|job| job.open.clone());
        self.jobs.room_for_run(job_name, self.cluster.limits())?;
        if let Some(former) = &former {
            self.end_open(job_name, former, Some(name.clone()), applied);
        }
        let key = RunKey { job: job_name.clone(), run: name.clone() };
        self.jobs.insert_open(&key, self.revision + 1, self.time);
        self.publish(Vec::new(), applied);
        Ok(RunOutcome::Opened { run: name, created: true, ended: former })
    }

    fn end_run(
        &mut self,
        job: &Name,
        name: &Name,
        applied: &mut Applied,
    ) -> Result<RunOutcome, Refusal> {
        if self.existing(job, name)?.is_open() {
            self.end_open(job, name, None, applied);
            self.publish(Vec::new(), applied);
        }
        Ok(RunOutcome::Ended)
    }

    fn delete_run(
        &mut self,
        job: &Name,
        name: &Name,
        applied: &mut Applied,
    ) -> Result<RunOutcome, Refusal> {
        if self.existing(job, name)?.is_open() {
            return Err(Refusal::RunOpen { job: job.clone(), run: name.clone() });
        }
        let key = RunKey { job: job.clone(), run: name.clone() };
        applied.discard(self.jobs.remove(&key));
        self.publish(Vec::new(), applied);
        Ok(RunOutcome::Deleted)
    }

    fn existing(&self, job: &Name, name: &Name) -> Result<&crate::job::Run, Refusal> {
        let found = self.jobs.by_name.get(job);
        let found = found.ok_or_else(|| Refusal::JobNotFound { job: job.clone() })?;
        found.runs.get(name).map(AsRef::as_ref).ok_or_else(|| run_not_found(job, name))
    }

    /// Ends the job's open run as part of the revision that is being made.
    fn end_open(&mut self, job: &Name, name: &Name, by: Option<Name>, applied: &mut Applied) {
        let at = self.revision + 1;
        let run = RunKey { job: job.clone(), run: name.clone() };
        self.jobs.end(&run, RunEnd { at, by: by.clone() });
        let refusal = Refusal::Fenced { job: job.clone(), run: name.clone(), at, by };
        applied.effects.push(Effect::RunEnded { run, refusal });
    }
}
