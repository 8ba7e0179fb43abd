//! What agents report of processes that joined through them.

use std::collections::BTreeMap;

use holdfast_api::{AgentProcess, Agents, Health, Incarnation, ProcessId, Scope};
use serde::Serialize;

use crate::log_time::span;
use crate::output::printable;

/// The processes of one run, by their incarnations.
#[derive(Debug, Default)]
pub(super) struct Heartbeats<'a>(BTreeMap<(ProcessId, Incarnation), &'a AgentProcess>);

/// What processes of one group have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct HealthGroup {
    /// The round of their latest call; empty if they have made none.
    last_call: String,
    progress: Option<u64>,
    /// In growing order of what the agent concludes from their silence.
    #[serde(skip)]
    trouble: u8,
    health: &'static str,
    /// Whether their main threads have not run Python for some time.
    main_thread_silent: bool,
}

/// How long ago things were, of the first of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(super) struct Ago {
    called_ms_ago: u64,
    silent_ms: u64,
    main_thread_silent_ms: u64,
}

impl<'a> Heartbeats<'a> {
    /// What the agents of a run report.
    pub(super) fn of(agents: &'a Agents, scope: &Scope) -> Heartbeats<'a> {
        let reports = agents.agents.iter().map(|agent| &agent.report);
        let of_run = reports.filter(|report| {
            report.job == scope.job && scope.run.as_ref().is_none_or(|run| *run == report.run)
        });
        let processes = of_run.flat_map(|report| &report.processes);
        Heartbeats(processes.map(|one| ((one.process, one.incarnation), one)).collect())
    }

    /// The heartbeats of one incarnation.
    pub(super) fn get(
        &self,
        process: ProcessId,
        incarnation: Incarnation,
    ) -> Option<&'a AgentProcess> {
        self.0.get(&(process, incarnation)).copied()
    }
}

impl HealthGroup {
    pub(super) fn of(one: &AgentProcess) -> (HealthGroup, Ago) {
        let (trouble, health) = match one.health {
            Health::Good => (0, "good"),
            Health::Paused => (1, "paused"),
            Health::Critical => (2, "critical"),
            Health::Silent => (3, "silent"),
            Health::Ending => (4, "ending"),
        };
        let AgentProcess { last_call, progress, called_ms_ago, silent_ms, .. } = one;
        let (last_call, progress) = (last_call.clone(), *progress);
        let main_thread_silent = one.main_thread_silent_ms.is_some();
        let main_thread_silent_ms = one.main_thread_silent_ms.unwrap_or_default();
        let (called_ms_ago, silent_ms) = (*called_ms_ago, *silent_ms);
        let ago = Ago { called_ms_ago, silent_ms, main_thread_silent_ms };
        (HealthGroup { last_call, progress, trouble, health, main_thread_silent }, ago)
    }

    /// `; last call step 3s ago, progress 117`.
    pub(super) fn words(&self, ago: Ago) -> String {
        let call = match self.last_call.as_str() {
            "" => "no call yet".to_owned(),
            call => format!("last call {} {} ago", printable(call), span(ago.called_ms_ago)),
        };
        let progress = self.progress.map(|to| format!(", progress {to}")).unwrap_or_default();
        let silent = span(ago.silent_ms);
        let health = match self.health {
            "silent" => format!(", silent for {silent}"),
            "ending" if self.main_thread_silent => ", being ended".to_owned(),
            "ending" => format!(", silent for {silent} and being ended"),
            "paused" => ", not watched: it asked for a pause".to_owned(),
            "critical" => ", in a critical section".to_owned(),
            _ => String::new(),
        };
        let main_thread = match self.main_thread_silent {
            true => format!(", main thread {}", main_thread(ago.main_thread_silent_ms)),
            false => String::new(),
        };
        format!("; {call}{progress}{health}{main_thread}")
    }

    /// Whether their main threads have not run Python for some time.
    pub(super) fn main_thread_silent(&self) -> bool {
        self.main_thread_silent
    }
}

/// What a silent main thread does.
pub(super) fn main_thread(silent_ms: u64) -> String {
    format!("has not run Python for {}", span(silent_ms))
}

impl Ago {
    pub(super) fn or_longer(self, other: Ago) -> Ago {
        Ago {
            called_ms_ago: self.called_ms_ago.max(other.called_ms_ago),
            silent_ms: self.silent_ms.max(other.silent_ms),
            main_thread_silent_ms: self.main_thread_silent_ms.max(other.main_thread_silent_ms),
        }
    }
}
