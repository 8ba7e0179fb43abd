//! What agents report: who is connected to them, and who waits for what. Shown
//! to operators; no decision depends on it; never logged.

use serde::{Deserialize, Serialize};

use crate::Blob;
use crate::name::{Name, NodeId};
use crate::process::{Incarnation, ProcessId};

/// Most processes that one agent names.
pub const CLIENTS_MAX: usize = 1_024;
/// Most processes with the library that one agent names.
pub const PROCESSES_MAX: usize = 256;
/// Most waits that one agent names.
pub const WAITS_MAX: usize = 1_024;
/// Most keys of one wait that are named.
pub const WAIT_KEYS_MAX: usize = 512;
/// Most ended programs that one agent names.
pub const ENDED_MAX: usize = 256;
/// Most bytes of a key, or of a word, that is reported of one program.
pub const WORD_BYTES_MAX: usize = 128;
/// Longest name of a host, an agent, a version or an address of a client, in
/// bytes: what is shown in a table.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest list of the addresses where one agent listens, in bytes.
pub const LISTENS_BYTES_MAX: usize = 4 * 1024;
/// Most waits besides those of agents that one node names.
pub const OTHER_WAITS_MAX: usize = 1_024;
/// Longest report in bytes, about; an agent leaves waits out to stay below it,
/// and a node does not keep a longer one.
pub const REPORT_BYTES_MAX: usize = 256 * 1024;

/// What an agent reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentReport {
    /// A random name of this process: agents in containers may share host name
    /// and process id. Empty from a version that reports none.
    #[serde(default)]
    pub id: String,
    /// The name of its host.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// Version of the agent.
    pub version: String,
    /// The job that it serves.
    pub job: Name,
    /// Name of the run, unique within its job.
    pub run: Name,
    /// Where trainers connect to it.
    pub listens: String,
    /// It takes no new trainers and ends with the last.
    #[serde(default)]
    pub draining: bool,
    /// The processes that are connected to it.
    pub clients: Vec<AgentClient>,
    /// Clients beyond those that are named.
    #[serde(default)]
    pub clients_left_out: u64,
    /// Waits that have been blocked for some time, the longest first.
    pub waits: Vec<AgentWait>,
    /// Waits beyond those that are named.
    #[serde(default)]
    pub waits_left_out: u64,
    /// Processes that joined with the library, and how they are doing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<AgentProcess>,
    /// Programs that were connected, or were reported to it, and have ended: the
    /// latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<AgentEnded>,
    /// Whether it reports which clients are quiet; an earlier version does not.
    #[serde(default)]
    pub tells_quiet: bool,
}

/// A program that has ended, as the agent on its host saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentEnded {
    /// Its process id on the agent's host.
    pub pid: u32,
    /// Its `RANK`; null where it has none or it cannot be known.
    #[serde(default)]
    pub rank: Option<u64>,
    /// How it ended; null where only the process that started it knows.
    #[serde(default)]
    pub exit: Option<Exit>,
    /// Milliseconds since it ended.
    pub ended_ms_ago: u64,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// What a program does while it asks nothing of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Quiet {
    /// The operation of its last call; empty if it has made none. Polls do not
    /// count.
    #[serde(default)]
    pub last_call: String,
    /// The beginning of that call's key.
    #[serde(default)]
    pub key: Option<Blob>,
    /// Milliseconds since that call, or since it connected.
    pub called_ms_ago: u64,
}

/// A program's processor time over an interval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Activity {
    /// What its main thread does.
    pub main: Doing,
    /// Where in the kernel its main thread sleeps; null if the kernel does not
    /// say.
    #[serde(default)]
    pub place: Option<String>,
    /// For how long its main thread has been doing that, as far as observed.
    pub for_ms: u64,
    /// Processor time of its main thread in the latest interval.
    pub main_cpu_ms: u64,
    /// Processor time of all its threads in that interval.
    pub cpu_ms: u64,
    /// Length of that interval.
    pub over_ms: u64,
}

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    /// A signal or a debugger has stopped it.
    Stopped,
    /// It computes all the time.
    Busy,
    /// It computes now and then.
    Working,
    /// It waits for a disk or a device, and cannot be interrupted.
    Blocked,
    /// It sleeps and uses next to no processor time.
    Sleeping,
    /// A state that a later version reports.
    #[serde(other)]
    Unknown,
}

/// A process that joined with the library, as its agent sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentProcess {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// Its incarnation: growing, given at registration, never reused.
    pub incarnation: Incarnation,
    /// Its process id on the agent's host; null where it cannot be known.
    pub pid: Option<u32>,
    /// The round of its latest call; empty if it has made none.
    #[serde(default)]
    pub last_call: String,
    /// How long ago that call began.
    #[serde(default)]
    pub called_ms_ago: u64,
    /// Whether it waits in that call.
    #[serde(default)]
    pub waiting: bool,
    /// How far it has got; null = it does not report it.
    #[serde(default)]
    pub progress: Option<u64>,
    /// For how long it has shown no progress.
    #[serde(default)]
    pub silent_ms: u64,
    /// What its agent concludes from that.
    #[serde(default)]
    pub health: Health,
    /// For how long its main thread has not run what the library asks it to
    /// run, as bytecode of Python; null if it has lately, or that cannot be
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub main_thread_silent_ms: Option<u64>,
    /// Its processor time; null while it waits in a call, or where that cannot
    /// be known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<Activity>,
}

/// What an agent concludes from a process's silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// It is within its limits, or nobody watches it.
    #[default]
    Good,
    /// It asked not to be watched for some time.
    Paused,
    /// It asked not to be ended for some time.
    Critical,
    /// It is beyond the soft limit, and was notified.
    Silent,
    /// It is beyond the hard limit, and is being ended.
    Ending,
}

/// A process that is connected to an agent. Those whose process cannot be known
/// share one entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentClient {
    /// Its process id on the agent's host; null where it cannot be known.
    pub pid: Option<u32>,
    /// Its `RANK`; null where it has none or it cannot be known.
    pub rank: Option<u64>,
    /// The address that it connects from, without the port.
    pub from: String,
    /// Its open connections; 0 if it has closed them and goes on.
    pub connections: u64,
    /// Set while it has asked nothing of the store for some seconds and waits
    /// for nothing there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiet: Option<Quiet>,
    /// Its processor time; null while it is not quiet, or where that cannot be
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<Activity>,
}

/// A wait that is blocked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentWait {
    /// Who waits: see [`AgentClient::pid`].
    pub pid: Option<u32>,
    /// The waiting process's `RANK`; null where it has none or it cannot be known.
    pub rank: Option<u64>,
    /// The keys that are missing.
    pub keys: Vec<Blob>,
    /// Keys beyond those that are named; they may exist already.
    #[serde(default)]
    pub keys_left_out: u64,
    /// The keys must be numbers of at least this; null = they must exist.
    #[serde(default)]
    pub at_least: Option<i64>,
    /// For how long it has been blocked, in milliseconds.
    pub blocked_ms: u64,
}

/// The agents that are connected to the cluster.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Agents {
    /// In order of job, run, host, process and where they listen.
    pub agents: Vec<AgentStatus>,
    /// Nodes that did not answer: agents may be connected to them.
    pub unreachable: Vec<NodeId>,
    /// Nodes whose version is too old to know which agents they have.
    #[serde(default)]
    pub older: Vec<NodeId>,
    /// Reports that nodes, or the answer, had no room for.
    pub left_out: u64,
    /// Waits that have been blocked for some time and belong to no agent: of
    /// command lines, programs and agents of an earlier version.
    #[serde(default)]
    pub others: Vec<OtherWait>,
    /// Such waits beyond those that are named.
    #[serde(default)]
    pub others_left_out: u64,
    /// Ended programs that agents reported before they left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<LeftAgent>,
}

/// An agent's last report of ended programs, before it left.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeftAgent {
    /// See [`AgentReport::id`]: an agent that has moved to another node is not gone.
    #[serde(default)]
    pub id: String,
    /// The job that it served.
    pub job: Name,
    /// Name of the run, unique within its job.
    pub run: Name,
    /// The name of its host.
    pub host: String,
    /// Programs that had ended.
    pub ended: Vec<AgentEnded>,
}

/// A wait that no agent reports, so that its process is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OtherWait {
    /// Name of the job.
    pub job: Name,
    /// Name of the run, unique within its job.
    pub run: Name,
    /// The keys that are missing.
    pub keys: Vec<Blob>,
    /// Keys beyond those that are named.
    pub keys_left_out: u64,
    /// The keys must be numbers of at least this; null = they must exist.
    pub at_least: Option<i64>,
    /// For how long it has been parked on its node.
    pub blocked_ms: u64,
    /// The node where it is parked.
    pub node: NodeId,
}

/// A connected agent: what it reports, and the node that it reports to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentStatus {
    /// Its latest report, with its times as of now.
    #[serde(flatten)]
    pub report: AgentReport,
    /// The node that it is connected to.
    pub node: NodeId,
    /// Milliseconds since it reported that, or reported that nothing has changed.
    pub told_ms_ago: u64,
}

impl AgentReport {
    /// The same report after this time has passed.
    pub fn aged(mut self, by_ms: u64) -> AgentReport {
        let later = |activity: &mut Activity| {
            activity.for_ms = activity.for_ms.saturating_add(by_ms);
        };
        for wait in &mut self.waits {
            wait.blocked_ms = wait.blocked_ms.saturating_add(by_ms);
        }
        for client in &mut self.clients {
            if let Some(quiet) = &mut client.quiet {
                quiet.called_ms_ago = quiet.called_ms_ago.saturating_add(by_ms);
            }
            client.activity.iter_mut().for_each(later);
        }
        for ended in &mut self.ended {
            ended.ended_ms_ago = ended.ended_ms_ago.saturating_add(by_ms);
        }
        for process in &mut self.processes {
            process.activity.iter_mut().for_each(later);
            process.called_ms_ago = process.called_ms_ago.saturating_add(by_ms);
            if let Some(silent_ms) = &mut process.main_thread_silent_ms {
                *silent_ms = silent_ms.saturating_add(by_ms);
            }
            if matches!(process.health, Health::Silent | Health::Ending) {
                process.silent_ms = process.silent_ms.saturating_add(by_ms);
            }
        }
        self
    }

    /// About how many bytes it takes.
    pub fn size(&self) -> usize {
        const CLIENT_BYTES: usize = 64;
        const WAIT_BYTES: usize = 64;
        const KEY_BYTES: usize = 16;
        const PROCESS_BYTES: usize = 96;
        const ACTIVITY_BYTES: usize = 96;
        const QUIET_BYTES: usize = 48;
        const ENDED_BYTES: usize = 48;
        let activity = |activity: &Option<Activity>| {
            let place = |one: &Activity| one.place.as_ref().map_or(0, String::len);
            activity.as_ref().map_or(0, |one| ACTIVITY_BYTES + place(one))
        };
        let quiet = |quiet: &Quiet| {
            QUIET_BYTES + quiet.last_call.len() + quiet.key.as_ref().map_or(0, Blob::len)
        };
        let process = |process: &AgentProcess| {
            PROCESS_BYTES + process.last_call.len() + activity(&process.activity)
        };
        let texts = [&self.id, &self.host, &self.version, &self.listens];
        let key = |key: &Blob| key.len() + KEY_BYTES;
        let wait = |wait: &AgentWait| WAIT_BYTES + wait.keys.iter().map(key).sum::<usize>();
        let client = |client: &AgentClient| {
            CLIENT_BYTES
                + client.from.len()
                + client.quiet.as_ref().map_or(0, quiet)
                + activity(&client.activity)
        };
        texts.into_iter().map(String::len).sum::<usize>()
            + self.job.as_str().len()
            + self.run.as_str().len()
            + self.clients.iter().map(client).sum::<usize>()
            + self.waits.iter().map(wait).sum::<usize>()
            + self.processes.iter().map(process).sum::<usize>()
            + self.ended.len() * ENDED_BYTES
    }
}
