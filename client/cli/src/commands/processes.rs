//! `processes`: the processes of a run.

use std::io;

use holdfast_api::{
    AgentProcess, ProcessId, ProcessInfo, Read, ReadOutcome, Revision, Role, Scope,
};
use serde::Serialize;

use super::heartbeats::{self, Heartbeats};
use super::{Context, agents, known, talk_of_time, unexpected_answer};
use crate::exit::Failure;
use crate::log_time::{LogNow, span};
use crate::output::{Document, cell, shortened, write_rows};

/// Most processes asked for at once.
const PAGE_PROCESSES_MAX: u64 = 2_000;
/// Most rounds that one cell names.
const ROUNDS_SHOWN_MAX: usize = 3;

pub(crate) async fn run(context: &Context) -> Result<(), Failure> {
    let scope = context.scope();
    let (processes, revision) = all(context, &scope, false).await?;
    if processes.is_empty() {
        known::check(context, false).await?;
    }
    let now = match context.log_now().await? {
        Some(now) => now,
        None => LogNow::newest(moments(&processes)),
    };
    // A cluster that cannot list agents can still list processes.
    let agents = agents::ask(context).await.unwrap_or_default();
    let heartbeats = Heartbeats::of(&agents, &scope);
    let watched = processes.iter().map(|one| heartbeats.get(one.process, one.incarnation).cloned());
    let watched = watched.collect();
    context.emit(&Processes { processes, watched, now, revision })?;
    talk_of_time(context, now);
    Ok(())
}

/// All processes of a run, page by page. The revision is the last page's.
pub(super) async fn all(
    context: &Context,
    scope: &Scope,
    stale: bool,
) -> Result<(Vec<ProcessInfo>, Revision), Failure> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let (page, next, revision) = page(context, scope, after, PAGE_PROCESSES_MAX, stale).await?;
        all.extend(page);
        match next {
            Some(next) => after = Some(next),
            None => return Ok((all, revision)),
        }
    }
}

/// One page of processes, and after which one there are more.
pub(super) async fn page(
    context: &Context,
    scope: &Scope,
    after: Option<ProcessId>,
    limit: u64,
    stale: bool,
) -> Result<(Vec<ProcessInfo>, Option<ProcessId>, Revision), Failure> {
    let read = Read::Processes { scope: scope.clone(), after, limit };
    match context.read(read, stale).await? {
        (ReadOutcome::Processes { processes, next }, revision) => Ok((processes, next, revision)),
        (other, _) => Err(unexpected_answer("processes", &other)),
    }
}

/// Log times that have passed.
pub(super) fn moments(processes: &[ProcessInfo]) -> impl Iterator<Item = u64> + '_ {
    processes.iter().flat_map(|one| {
        let ended = one.end.as_ref().map(|end| end.at_ms);
        [Some(one.since_ms), ended].into_iter().flatten()
    })
}

/// The answer of `processes`.
#[derive(Debug, Serialize)]
struct Processes {
    processes: Vec<ProcessInfo>,
    /// What its agent reports of each, if it joined through one.
    watched: Vec<Option<AgentProcess>>,
    #[serde(flatten)]
    now: LogNow,
    revision: Revision,
}

impl Processes {
    fn row(&self, process: &ProcessInfo, watched: Option<&AgentProcess>) -> [String; 11] {
        let (state, since) = match &process.end {
            None => ("alive".to_owned(), process.since_ms),
            Some(end) => (end.cause.to_string(), end.at_ms),
        };
        let mut waits: Vec<String> =
            process.waits_in.iter().take(ROUNDS_SHOWN_MAX).map(shortened).collect();
        if let Some(more) = process.waits_in.len().checked_sub(ROUNDS_SHOWN_MAX + 1) {
            waits.push(format!("and {} more", more + 1));
        }
        [
            process.process.to_string(),
            process.incarnation.to_string(),
            role(process.role).to_owned(),
            state,
            process.host.clone(),
            cell(process.rank),
            span(self.now.since(since)),
            cell(Some(waits.join(" ")).filter(|waits| !waits.is_empty())),
            cell(watched.map(|one| &one.last_call).filter(|call| !call.is_empty())),
            cell(watched.and_then(|one| one.progress)),
            cell(watched.and_then(|one| one.main_thread_silent_ms).map(heartbeats::main_thread)),
        ]
    }
}

impl Document for Processes {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let header = [
            "PROCESS",
            "INCARNATION",
            "ROLE",
            "STATE",
            "HOST",
            "RANK",
            "SINCE",
            "WAITS-IN",
            "LAST-CALL",
            "PROGRESS",
            "MAIN-THREAD",
        ];
        let all = self.processes.iter().zip(&self.watched);
        let rows = all.map(|(process, watched)| self.row(process, watched.as_ref()));
        write_rows(out, Some(header), rows)
    }
}

/// The word for a role.
pub(super) fn role(role: Role) -> &'static str {
    match role {
        Role::Active => "active",
        Role::Standby => "standby",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use holdfast_api::{Cause, EndInfo};

    use super::*;
    use crate::output::{Output, render};

    /// A process that is alive on the host since 1 s of log time.
    pub(crate) fn process(process: ProcessId, host: &str) -> ProcessInfo {
        ProcessInfo {
            process,
            incarnation: u64::from(process) + 1,
            role: Role::Active,
            host: host.to_owned(),
            lease: 1.into(),
            since: 3,
            since_ms: 1_000,
            end: None,
            member_since: None,
            policy: Default::default(),
            rank: None,
            waits_in: Vec::new(),
            labels: Default::default(),
        }
    }

    #[test]
    fn each_process_is_a_line_that_a_terminal_survives() {
        let waiting = ProcessInfo {
            rank: Some(0),
            waits_in: (0..5).map(|n| format!("r{n}\n").as_str().into()).collect(),
            ..process(0, "a\u{1b}[2J")
        };
        let end = EndInfo { at: 9, at_ms: 61_000, cause: Cause::Signaled { signal: 9 } };
        let dead = ProcessInfo { end: Some(end), role: Role::Standby, ..process(1, "b") };
        let now = LogNow::newest([63_500]);
        let watched = AgentProcess {
            process: 0,
            incarnation: 1,
            pid: None,
            last_call: "step".to_owned(),
            called_ms_ago: 9,
            waiting: false,
            progress: Some(7),
            silent_ms: 0,
            health: Default::default(),
            main_thread_silent_ms: Some(42_000),
            activity: None,
        };
        let watched = vec![Some(watched), None];
        let table = Processes { processes: vec![waiting, dead], watched, now, revision: 9 };
        let text = String::from_utf8(render(&table, Output::Table).unwrap()).unwrap();
        let wanted = r"PROCESS  INCARNATION  ROLE     STATE               HOST      RANK  SINCE  WAITS-IN                         LAST-CALL  PROGRESS  MAIN-THREAD
0        1            active   alive               a\x1b[2J  0     1m 2s  r0\x0a r1\x0a r2\x0a and 2 more  step       7         has not run Python for 42s
1        2            standby  killed by signal 9  b         -     2s     -                                -          -         -
";
        assert_eq!(text, wanted);
        let json: serde_json::Value =
            serde_json::from_slice(&render(&table, Output::Json).unwrap()).unwrap();
        assert_eq!(json["processes"][1]["end"]["cause"]["signaled"]["signal"], 9);
        assert_eq!((&json["log_time_ms"], &json["revision"]), (&63_500.into(), &9.into()));
    }
}
