//! The agents and their connections.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::time::Duration;

use holdfast_api::{Agents, Code, Name, Problem, routes};
use holdfast_client::{Error, fetch};

use super::{Context, heartbeats, known};
use crate::config::{Source, Sourced, Timeout};
use crate::exit::Failure;
use crate::output::{Document, cell, counted, printable, write_rows};

/// How long one node may take before the next is asked.
const NODE_TIME_MAX: Duration = Duration::from_secs(5);

pub(crate) async fn list(context: &Context) -> Result<(), Failure> {
    let agents = ask(context).await?;
    if agents.agents.is_empty() {
        known::check(context, false).await?;
    }
    context.emit(&agents)?;
    talk(context, &agents);
    Ok(())
}

/// Prints what the list does not show.
pub(crate) fn talk(context: &Context, agents: &Agents) {
    if !agents.unreachable.is_empty() {
        let nodes: Vec<String> = agents.unreachable.iter().map(u64::to_string).collect();
        context.talk(format!(
            "agents that are connected to these nodes are not shown, for the nodes do not answer: {}; see `holdfast status`",
            nodes.join(", ")
        ));
    }
    if !agents.older.is_empty() {
        let nodes: Vec<String> = agents.older.iter().map(u64::to_string).collect();
        context.talk(format!(
            "agents that are connected to these nodes are not shown, for the nodes are of an older version that does not know them: {}; upgrade the nodes",
            nodes.join(", ")
        ));
    }
    if agents.left_out > 0 {
        let left_out = counted(agents.left_out, "agent");
        context.talk(format!("not shown: {left_out}, more than a node keeps"));
    }
    if agents.others_left_out > 0 {
        let waits = counted(agents.others_left_out, "wait");
        context.talk(format!("not shown: {waits} of programs without an agent"));
    }
}

/// The agents of the job and run that were named, or all of them.
pub(crate) async fn ask(context: &Context) -> Result<Agents, Failure> {
    let settings = &context.settings;
    let job = Some(&settings.job).filter(|job| job.source != Source::Default);
    let mut query = Vec::new();
    let pair = |name: &str, value: &Name| format!("{name}={value}");
    query.extend(job.map(|Sourced { value, .. }| pair("job", value)));
    query.extend(settings.run.value.as_ref().map(|run| pair("run", run)));
    from_any_node(context, &format!("{}?{}", routes::AGENTS, query.join("&"))).await
}

/// The agents of all jobs, for a document that can do without; none if no node
/// can list them.
pub(crate) async fn ask_all(context: &Context) -> Option<Agents> {
    ask_everywhere(context).await.ok()
}

/// The agents of all jobs.
pub(crate) async fn ask_everywhere(context: &Context) -> Result<Agents, Failure> {
    from_any_node(context, routes::AGENTS).await
}

async fn from_any_node(context: &Context, path: &str) -> Result<Agents, Failure> {
    let patience = match context.settings.timeout.value {
        Timeout::After(duration) => duration.min(NODE_TIME_MAX),
        Timeout::Never => NODE_TIME_MAX,
    };
    let credentials = context.client.credentials();
    let mut tried = Vec::new();
    for address in &context.settings.store.value.0 {
        let why = match fetch(address, path, credentials, patience).await {
            Ok(answer) if answer.status.is_success() => {
                match serde_json::from_slice(&answer.body) {
                    Ok(agents) => return Ok(agents),
                    Err(error) => format!("its answer cannot be read: {error}"),
                }
            }
            Ok(answer) if answer.status.as_u16() == 404 => {
                let message = format!(
                    "{address} runs a version that cannot list agents; `holdfast node list` shows the versions, \
                     upgrade the node or name another with --store"
                );
                return Err(Failure::refused(Problem::refused(Code::InvalidRequest, message)));
            }
            Ok(answer) => match serde_json::from_slice::<Problem>(&answer.body) {
                Ok(problem) if problem.code() == Code::Unauthorized => {
                    return Err(Failure::refused(problem));
                }
                Ok(problem) => problem.message,
                Err(_) => format!("it answered {}", answer.status),
            },
            Err(error) => error.to_string(),
        };
        tried.push((address.clone(), why));
    }
    Err(Failure::Client(Error::Unreachable { tried }))
}

impl Document for Agents {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let header = [
            "JOB",
            "RUN",
            "HOST",
            "PID",
            "LISTENS",
            "PROCESSES",
            "CONNECTIONS",
            "RANKS",
            "WAITS",
            "NODE",
            "VERSION",
        ];
        let rows = self.agents.iter().map(|agent| {
            let report = &agent.report;
            // A program may have both: connections, and processes of the library.
            let connected = report.clients.iter().filter_map(|one| one.pid);
            let connected: BTreeSet<u32> = connected.collect();
            // One whose process id is not known counts as a program.
            let attached = report.processes.iter().map(|one| one.pid.ok_or(one.process));
            let is_new =
                |program: &Result<u32, u32>| program.map_or(true, |pid| !connected.contains(&pid));
            let attached: BTreeSet<Result<u32, u32>> = attached.filter(is_new).collect();
            let numbers = report.processes.iter().map(|one| u64::from(one.process));
            let ranks = report.clients.iter().filter_map(|one| one.rank).chain(numbers);
            let ranks: Vec<u64> = ranks.collect::<BTreeSet<u64>>().into_iter().collect();
            let connections = report.clients.iter().map(|client| client.connections);
            let connections = connections.fold(0, u64::saturating_add);
            let waits = report.waits_left_out.saturating_add(report.waits.len() as u64);
            let clients = report.clients_left_out.saturating_add(report.clients.len() as u64);
            let processes = clients.saturating_add(attached.len() as u64);
            [
                report.job.to_string(),
                report.run.to_string(),
                report.host.clone(),
                report.pid.to_string(),
                report.listens.clone() + if report.draining { " (draining)" } else { "" },
                processes.to_string(),
                connections.to_string(),
                cell(Some(crate::pytorch::ranges(&ranks)).filter(|ranks| !ranks.is_empty())),
                waits.to_string(),
                agent.node.to_string(),
                report.version.clone(),
            ]
        });
        write_rows(out, Some(header), rows)?;
        for report in self.agents.iter().map(|agent| &agent.report) {
            for one in &report.processes {
                let Some(silent_ms) = one.main_thread_silent_ms else { continue };
                let pid = one.pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
                let (host, what) = (printable(&report.host), heartbeats::main_thread(silent_ms));
                writeln!(
                    out,
                    "job {}, run {}: the main thread of process {} (host {host}{pid}) {what}",
                    report.job, report.run, one.process
                )?;
            }
        }
        if self.agents.is_empty() {
            writeln!(out, "no agent is connected")?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use holdfast_api::{AgentClient, AgentProcess, AgentReport, AgentStatus};

    use super::*;
    use crate::output::{Output, render};

    /// An agent whose ranks have one process with two connections each.
    pub(crate) fn agent(host: &str, ranks: std::ops::Range<u64>) -> AgentStatus {
        let client = |rank: u64| AgentClient {
            pid: Some(100 + rank as u32),
            rank: Some(rank),
            from: "127.0.0.1".to_owned(),
            connections: 2,
            quiet: None,
            activity: None,
        };
        let report = AgentReport {
            id: String::new(),
            host: host.to_owned(),
            pid: 7,
            version: "0.1.0".to_owned(),
            job: "train".parse().unwrap(),
            run: "r1".parse().unwrap(),
            listens: "127.0.0.1:29500".to_owned(),
            draining: false,
            clients: ranks.map(client).collect(),
            clients_left_out: 0,
            waits: Vec::new(),
            waits_left_out: 0,
            processes: Vec::new(),
            ended: Vec::new(),
            tells_quiet: true,
        };
        AgentStatus { report, node: 2, told_ms_ago: 5 }
    }

    #[test]
    fn the_table_has_a_line_for_each_agent() {
        let agents =
            Agents { agents: vec![agent("a", 0..4), agent("b", 4..5)], ..Agents::default() };
        let table = String::from_utf8(render(&agents, Output::Table).unwrap()).unwrap();
        let wanted = "\
JOB    RUN  HOST  PID  LISTENS          PROCESSES  CONNECTIONS  RANKS  WAITS  NODE  VERSION
train  r1   a     7    127.0.0.1:29500  4          8            0-3    0      2     0.1.0
train  r1   b     7    127.0.0.1:29500  1          2            4      0      2     0.1.0
";
        assert_eq!(table, wanted);
    }

    #[test]
    fn a_main_thread_that_does_not_run_has_a_line_below() {
        let mut one = agent("a\u{1b}", 0..0);
        let joined = |process, main_thread_silent_ms| AgentProcess {
            process,
            incarnation: 1,
            pid: Some(100 + process),
            last_call: String::new(),
            called_ms_ago: 0,
            waiting: false,
            progress: None,
            silent_ms: 0,
            health: Default::default(),
            main_thread_silent_ms,
            activity: None,
        };
        one.report.processes = vec![joined(3, Some(62_000)), joined(4, None)];
        let agents = Agents { agents: vec![one], ..Agents::default() };
        let table = String::from_utf8(render(&agents, Output::Table).unwrap()).unwrap();
        let below: Vec<&str> = table.lines().skip(2).collect();
        let wanted = r"job train, run r1: the main thread of process 3 (host a\x1b, pid 103) has not run Python for 1m 2s";
        assert_eq!(below, [wanted]);
    }

    #[test]
    fn json_is_the_document_of_the_api() {
        let agents =
            Agents { agents: vec![agent("a", 0..1)], unreachable: vec![3], ..Agents::default() };
        let printed: serde_json::Value =
            serde_json::from_slice(&render(&agents, Output::Json).unwrap()).unwrap();
        assert_eq!(printed, serde_json::to_value(&agents).unwrap());
        assert_eq!(printed["agents"][0]["clients"][0]["rank"], 0);
    }
}
