//! All jobs that have anything alive, one after the other.

use std::io::{self, Write};

use holdfast_api::read::JobInfo;
use holdfast_api::{Agents, Name, Read, ReadOutcome};
use serde::Serialize;

use super::report::{BEFORE, LINES_MAX, Why};
use super::{Context, Place, Seen, exact, unexpected_answer};
use crate::exit::Failure;
use crate::output::Document;

/// Most open runs that are looked at; first those that agents report.
const LOOKED_AT_MAX: usize = 64;
/// Most jobs that are shown for people.
const SHOWN_MAX: usize = 8;
/// Most lines of each, if there are several.
const LINES_OF_ONE_MAX: usize = 12;

/// `why` without a job.
#[derive(Debug, Serialize)]
pub(super) struct Everything {
    /// Why all this may be old, in words; null while there is a majority.
    majority_lost: Option<String>,
    /// Those that have anything alive; first those in which a process ended
    /// badly or waits.
    jobs: Vec<Why>,
    jobs_known: u64,
    /// Those with an open run that were looked at.
    jobs_looked_at: u64,
    /// Those with an open run beyond that.
    jobs_left_out: u64,
}

impl Everything {
    pub(super) async fn look(
        context: &Context,
        agents: &Agents,
        majority_lost: Option<String>,
    ) -> Result<Everything, Failure> {
        let stale = majority_lost.is_some();
        let jobs = match context.read(Read::Jobs, stale).await? {
            (ReadOutcome::Jobs(jobs), _) => jobs,
            (other, _) => return Err(unexpected_answer("job list", &other)),
        };
        let open = open(&jobs, agents);
        let mut alive = Vec::new();
        for place in open.iter().take(LOOKED_AT_MAX) {
            let seen = match Seen::look(context, place, stale).await {
                Ok(seen) => seen,
                // It was deleted just now.
                Err(failure) if failure.is_not_found() => continue,
                Err(failure) => return Err(failure),
            };
            let now = seen.now(exact(context, stale).await?);
            let why = Why::of(place, seen, agents, now);
            if why.is_alive() {
                alive.push(why);
            }
        }
        alive.sort_by_key(|why| std::cmp::Reverse(why.trouble()));
        Ok(Everything {
            majority_lost,
            jobs: alive,
            jobs_known: jobs.len() as u64,
            jobs_looked_at: open.len().min(LOOKED_AT_MAX) as u64,
            jobs_left_out: open.len().saturating_sub(LOOKED_AT_MAX) as u64,
        })
    }

    fn summary(&self) -> String {
        let Everything { jobs, jobs_known, jobs_looked_at, jobs_left_out, majority_lost: _ } = self;
        let mut text = format!(
            "looked at {jobs_looked_at} of {jobs_known} jobs: those with an open run; anything alive in: {}",
            jobs.len()
        );
        if *jobs_left_out > 0 {
            text.push_str(&format!(
                "; not looked at: {jobs_left_out} more with an open run (`holdfast --job NAME why` looks at one)"
            ));
        }
        text
    }
}

/// The open runs of all jobs; first those that agents or waits report.
fn open(jobs: &[JobInfo], agents: &Agents) -> Vec<Place> {
    let is_told = |job: &Name, run: &Name| {
        agents.agents.iter().any(|one| one.report.job == *job && one.report.run == *run)
            || agents.others.iter().any(|one| one.job == *job && one.run == *run)
    };
    let with_run = jobs.iter().filter_map(|info| Some((&info.job, info.open_run.as_ref()?)));
    let mut open: Vec<(&Name, &Name)> = with_run.collect();
    open.sort_by_key(|(job, run)| !is_told(job, run));
    let place = |(job, run): (&Name, &Name)| Place {
        job: job.clone(),
        run: run.clone(),
        ended_at_ms: None,
        cause: None,
        open: true,
        present: true,
    };
    open.into_iter().map(place).collect()
}

impl Document for Everything {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        if let Some(lost) = &self.majority_lost {
            writeln!(out, "{lost}\n{BEFORE}\n")?;
        }
        let lines_max = if self.jobs.len() > 1 { LINES_OF_ONE_MAX } else { LINES_MAX };
        for why in self.jobs.iter().take(SHOWN_MAX) {
            for line in why.lines(lines_max, self.majority_lost.is_some()) {
                writeln!(out, "{line}")?;
            }
            writeln!(out)?;
        }
        if let Some(more) = self.jobs.len().checked_sub(SHOWN_MAX + 1) {
            let more = more + 1;
            writeln!(out, "… and {more} more jobs; -o json shows all")?;
        }
        writeln!(out, "{}", self.summary())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::agents::tests::agent;

    #[test]
    fn open_runs_that_agents_tell_of_are_looked_at_first() {
        let info = |job: &str, open: Option<&str>| JobInfo {
            job: job.parse().unwrap(),
            open_run: open.map(|run| run.parse().unwrap()),
            runs: 1,
            keys: 0,
            bytes: 0,
        };
        let jobs = [info("a", Some("r1")), info("b", None), info("train", Some("r1"))];
        let agents = Agents { agents: vec![agent("host", 0..1)], ..Agents::default() };
        let jobs: Vec<String> =
            open(&jobs, &agents).iter().map(|place| place.job.to_string()).collect();
        assert_eq!(jobs, ["train", "a"]);
    }
}
