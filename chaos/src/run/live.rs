//! Progress of a run for people: a line that changes on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::plan::Plan;
use crate::clock;
use crate::judge::{Verdict, relaxed};
use crate::recording::Recording;
use crate::summary;
use crate::workload::client::Shared;

const EVERY_ON_A_TERMINAL: Duration = Duration::from_millis(500);
const EVERY_ELSEWHERE: Duration = Duration::from_secs(10);
/// Between two judgements of what was recorded so far: if that is only shown, and
/// if a violation ends the run.
const JUDGE_EVERY: Duration = Duration::from_secs(10);
const JUDGE_EVERY_TO_END: Duration = Duration::from_secs(2);
/// With more operations than this they are judged only at the end.
const JUDGED_MAX: u64 = 50_000;
/// Share of the time that judging may take: it reads everything again each time.
const JUDGED_SHARE: u32 = 20;
/// Configurations of one key that are searched: what takes more is judged at the
/// end.
const CONFIGURATIONS_MAX: usize = 20_000;
/// Younger operations may not be in their files yet, in nanoseconds.
const SETTLED_AFTER: u64 = 2_000_000_000;

/// The line on stderr that shows how far a run is, and what looks wrong so far.
#[derive(Debug)]
pub struct Live {
    tasks: Mutex<JoinSet<()>>,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    began: Instant,
    duration: Option<Duration>,
    operations: Option<u64>,
    until_failure: bool,
    shared: Arc<Shared>,
    faults: AtomicU64,
    fault: Mutex<String>,
    violations: AtomicU64,
    over: AtomicBool,
    is_terminal: bool,
}

impl Live {
    /// Starts to show progress.
    pub fn start(plan: &Plan, shared: Arc<Shared>) -> Live {
        let state = Arc::new(State {
            began: Instant::now(),
            duration: plan.duration,
            operations: plan.operations,
            until_failure: plan.until_failure,
            shared,
            faults: AtomicU64::new(0),
            fault: Mutex::new(String::new()),
            violations: AtomicU64::new(0),
            over: AtomicBool::new(false),
            is_terminal: std::io::stderr().is_terminal(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(show(state.clone()));
        tasks.spawn(judge(state.clone(), plan.report.clone()));
        Live { tasks: Mutex::new(tasks), state }
    }

    /// A fault begins; an empty name: it is over.
    pub fn fault(&self, name: &str) {
        if !name.is_empty() {
            self.state.faults.fetch_add(1, Ordering::Relaxed);
        }
        name.clone_into(&mut self.state.fault.lock());
    }

    /// Says something on a line of its own.
    pub fn say(&self, text: &str) {
        let clear = if self.state.is_terminal { "\r\x1b[K" } else { "" };
        eprintln!("{clear}{text}");
    }

    /// Shows the line for the last time.
    pub async fn end(self) {
        self.state.over.store(true, Ordering::SeqCst);
        let mut tasks = self.tasks.into_inner();
        tasks.abort_all();
        while tasks.join_next().await.is_some() {}
        let clear = if self.state.is_terminal { "\r\x1b[K" } else { "" };
        eprintln!("{clear}{}", self.state.line());
    }
}

impl State {
    fn line(&self) -> String {
        let shared = &self.shared;
        let count = |it: &AtomicU64| it.load(Ordering::Relaxed);
        let left = match (self.duration, self.operations) {
            (Some(duration), _) => {
                let left = duration.saturating_sub(self.began.elapsed());
                format!("{} s left", left.as_secs())
            }
            (None, Some(all)) => format!("{} left", all.saturating_sub(shared.operations())),
            (None, None) => String::new(),
        };
        let fault = self.fault.lock().clone();
        let now = if fault.is_empty() { String::new() } else { format!(" (now {fault})") };
        format!(
            "{} operations ({} ok, {} refused, {} unknown), {} faults{now}, {} violations, {left}",
            shared.operations(),
            count(&shared.ok),
            count(&shared.refused),
            count(&shared.unknown),
            count(&self.faults),
            count(&self.violations),
        )
    }
}

async fn show(state: Arc<State>) {
    let every = if state.is_terminal { EVERY_ON_A_TERMINAL } else { EVERY_ELSEWHERE };
    loop {
        tokio::time::sleep(every).await;
        match state.is_terminal {
            true => {
                eprint!("\r\x1b[K{}", state.line());
                // A closed terminal hinders nothing.
                drop(std::io::stderr().flush());
            }
            false => eprintln!("{}", state.line()),
        }
    }
}

async fn judge(state: Arc<State>, folder: PathBuf) {
    let every = if state.until_failure { JUDGE_EVERY_TO_END } else { JUDGE_EVERY };
    let mut pause = every;
    loop {
        tokio::time::sleep(pause).await;
        if state.shared.operations() > JUDGED_MAX {
            return;
        }
        let folder = folder.clone();
        let began = Instant::now();
        let mut judging = JoinSet::new();
        judging.spawn_blocking(move || violations_so_far(&folder));
        if let Some(Ok(Some(count))) = judging.join_next().await {
            state.violations.store(count, Ordering::Relaxed);
            if state.until_failure && count > 0 {
                return state.shared.stop();
            }
        }
        pause = match state.until_failure {
            true => every,
            false => every.max(began.elapsed().saturating_mul(JUDGED_SHARE)),
        };
    }
}

/// How many violations there are in what is certainly in the files.
fn violations_so_far(folder: &Path) -> Option<u64> {
    let until = clock::now().checked_sub(SETTLED_AFTER)?;
    let mut recording = Recording::read(folder).ok()?;
    recording.operations.retain(|operation| operation.call <= until);
    for operation in &mut recording.operations {
        if operation.returned.is_some_and(|returned| returned > until) {
            *operation = relaxed(operation);
        }
    }
    let judged = summary::judge(&recording.operations, CONFIGURATIONS_MAX);
    let wrong = judged.iter().filter(|(_, judgement)| judgement.verdict == Verdict::Fail);
    Some(wrong.map(|(_, judgement)| judgement.violations.len() as u64).sum())
}
