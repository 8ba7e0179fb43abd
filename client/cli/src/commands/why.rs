//! `why`: who is missing, since when, where, in which state, and what happens
//! at which deadline.

mod cycles;
mod deadlock;
mod ended;
mod everything;
mod fit;
mod follow;
mod groups;
mod held;
mod keys;
mod outside;
mod report;
mod waiting;

use holdfast_api::{
    Agents, HeldInfo, IterationInfo, Name, ProcessInfo, Read, ReadOutcome, Revision, RoundInfo,
    RunInfo, RunOverCause, Scope,
};

use self::everything::Everything;
use self::report::Why;
use super::{Context, agents, comm, known, processes, rounds, talk_of_time, unexpected_answer};
use crate::config::Source;
use crate::exit::Failure;
use crate::log_time::LogNow;
use crate::majority;

/// Most tries to read rounds and processes at one revision.
const LOOKS_MAX: usize = 3;

/// Says why jobs wait: the one that was named, or all that have anything alive.
pub(crate) async fn run(context: &Context, follow: bool) -> Result<(), Failure> {
    let settings = &context.settings;
    let named = settings.job.source != Source::Default || settings.run.value.is_some();
    match named {
        true if follow => follow::run(context, &settings.job.value).await,
        true => One::look(context, &settings.job.value).await?.say(context),
        false if follow => Err(Failure::Usage(
            "--follow is for one job: holdfast --job NAME why --follow".to_owned(),
        )),
        false => everything(context, majority::ask(&context.client).await).await,
    }
}

/// The report on one run.
struct One {
    why: Why,
    agents: Agents,
    now: LogNow,
}

impl One {
    async fn look(context: &Context, job: &Name) -> Result<One, Failure> {
        let lost = majority::ask(&context.client).await;
        let stale = lost.is_some();
        let runs = known::runs(context, job, stale).await?;
        let open = runs.iter().find(|run| run.open).or(runs.last());
        let meant = match &context.settings.run.value {
            Some(run) => runs.iter().find(|info| info.run == *run),
            None => open,
        };
        let run = meant.expect("there is one run at least, and the named one if one was named");
        let present = open.is_some_and(|open| open.run == run.run);
        let place = Place::of(job, run, present);
        let agents = agents_or_none(context, agents::ask(context).await);
        let seen = Seen::look(context, &place, stale).await?;
        let now = seen.now(exact(context, stale).await?);
        let mut why = Why::of(&place, seen, &agents, now);
        why.majority_lost = lost;
        Ok(One { why, agents, now })
    }

    fn say(&self, context: &Context) -> Result<(), Failure> {
        context.emit(&self.why)?;
        if self.why.tells_durations() {
            talk_of_time(context, self.now);
        }
        agents::talk(context, &self.agents);
        Ok(())
    }
}

/// The present log time; not known without a majority.
async fn exact(context: &Context, stale: bool) -> Result<Option<LogNow>, Failure> {
    if stale { Ok(None) } else { context.log_now().await }
}

async fn everything(context: &Context, lost: Option<String>) -> Result<(), Failure> {
    let agents = agents_or_none(context, agents::ask_everywhere(context).await);
    let everything = Everything::look(context, &agents, lost).await?;
    context.emit(&everything)?;
    agents::talk(context, &agents);
    Ok(())
}

/// Goes on without agents: a cluster that cannot list them can still list rounds.
fn agents_or_none(context: &Context, asked: Result<Agents, Failure>) -> Agents {
    asked.unwrap_or_else(|failure| {
        let why = failure.message(Some(&context.settings));
        context.talk(format!("what agents tell is not shown: {why}"));
        Agents::default()
    })
}

/// The run that is looked at.
#[derive(Debug, Clone)]
struct Place {
    job: Name,
    run: Name,
    /// When it ended, in log time, if it has.
    ended_at_ms: Option<u64>,
    /// How it ended, if it has and that is known.
    cause: Option<RunOverCause>,
    open: bool,
    /// Whether it is the job's present run: what the job holds is reported there.
    present: bool,
}

impl Place {
    fn of(job: &Name, run: &RunInfo, present: bool) -> Place {
        Place {
            job: job.clone(),
            run: run.run.clone(),
            ended_at_ms: run.ended_at_ms,
            cause: run.cause.clone(),
            open: run.open,
            present,
        }
    }

    fn scope(&self) -> Scope {
        Scope { job: self.job.clone(), run: Some(self.run.clone()) }
    }
}

/// What the cluster knows of a run.
struct Seen {
    rounds: Vec<RoundInfo>,
    processes: Vec<ProcessInfo>,
    /// What the job holds, if it goes on in this run.
    held: Vec<HeldInfo>,
    iteration: IterationInfo,
    revision: Revision,
}

impl Seen {
    /// Rounds and processes at one revision, if nothing changes between; `stale`: as any
    /// node knows them.
    async fn look(context: &Context, place: &Place, stale: bool) -> Result<Seen, Failure> {
        let scope = &place.scope();
        let read = Read::Iteration { scope: scope.clone(), process: None, incarnation: 0 };
        let iteration = match context.read(read, stale).await? {
            (ReadOutcome::Iteration(iteration), _) => iteration,
            (other, _) => return Err(unexpected_answer("iterations", &other)),
        };
        let mut looks = 0;
        loop {
            let (rounds, revision) = rounds::all(context, scope, stale).await?;
            let held = match place.present {
                true => comm::all(context, scope, None, false, stale).await?.0,
                false => Vec::new(),
            };
            let (processes, after) = processes::all(context, scope, stale).await?;
            looks += 1;
            if revision == after || looks == LOOKS_MAX {
                return Ok(Seen { rounds, processes, held, iteration, revision });
            }
        }
    }

    fn now(&self, exact: Option<LogNow>) -> LogNow {
        let of_rounds = rounds::moments(&self.rounds).chain(comm::moments(&self.held));
        exact.unwrap_or_default().seen(of_rounds.chain(processes::moments(&self.processes)))
    }
}

#[cfg(test)]
mod tests;
