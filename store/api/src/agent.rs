//! What agents tell of themselves: who is connected to them, and who waits
//! for what. Shown to operators, decided upon by nobody, never logged.

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
/// Most waits beside those of agents that one node names.
pub const OTHER_WAITS_MAX: usize = 1_024;
/// Longest report in bytes, about; an agent leaves waits out to stay below it,
/// and a node does not keep a longer one.
pub const REPORT_BYTES_MAX: usize = 256 * 1024;

/// What an agent tells of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentReport {
    /// A random name of this process: agents in containers may have host name
    /// and process id in common. Empty if its version tells none.
    #[serde(default)]
    pub id: String,
    /// The name of its host.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// The job that it serves.
    pub job: Name,
    /// The run.
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
}

/// A process that joined with the library, as its agent sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentProcess {
    /// The process.
    pub process: ProcessId,
    /// Its life.
    pub incarnation: Incarnation,
    /// See [`AgentClient::pid`].
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
    /// How far it has got; null = it does not tell.
    #[serde(default)]
    pub progress: Option<u64>,
    /// For how long it has shown no progress.
    #[serde(default)]
    pub silent_ms: u64,
    /// What its agent makes of that.
    #[serde(default)]
    pub health: Health,
}

/// What an agent makes of a process's silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Nothing.
    #[default]
    Good,
    /// It asked not to be watched for some time.
    Paused,
    /// It asked not to be ended for some time.
    Critical,
    /// It is beyond the soft limit, and was told.
    Silent,
    /// It is beyond the hard limit, and is being ended.
    Ending,
}

/// A process that is connected to an agent; several whose process cannot be
/// known stand together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentClient {
    /// Its process id on the agent's host; null where it cannot be known.
    pub pid: Option<u32>,
    /// Its `RANK`; null where it has none or it cannot be known.
    pub rank: Option<u64>,
    /// The address that it connects from, without the port.
    pub from: String,
    /// Its open connections.
    pub connections: u64,
}

/// A wait that is blocked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentWait {
    /// Who waits: see [`AgentClient::pid`].
    pub pid: Option<u32>,
    /// See [`AgentClient::rank`].
    pub rank: Option<u64>,
    /// The keys that are missing.
    pub keys: Vec<Blob>,
    /// Keys beyond those that are named; they may exist already.
    #[serde(default)]
    pub keys_left_out: u64,
    /// The keys must be numbers of at least this; null = they must exist.
    #[serde(default)]
    pub at_least: Option<i64>,
    /// For how long.
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
    /// Waits that have been blocked for some time and are no agent's: of
    /// command lines, programs and agents of an earlier version.
    #[serde(default)]
    pub others: Vec<OtherWait>,
    /// Such waits beyond those that are named.
    #[serde(default)]
    pub others_left_out: u64,
}

/// A wait that no agent tells of: nobody knows whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OtherWait {
    /// In which job.
    pub job: Name,
    /// In which run.
    pub run: Name,
    /// The keys that are missing.
    pub keys: Vec<Blob>,
    /// Keys beyond those that are named.
    pub keys_left_out: u64,
    /// See [`AgentWait::at_least`].
    pub at_least: Option<i64>,
    /// For how long it has been parked on its node.
    pub blocked_ms: u64,
    /// The node where it is parked.
    pub node: NodeId,
}

/// One agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentStatus {
    /// What it told.
    #[serde(flatten)]
    pub report: AgentReport,
    /// The node that it is connected to.
    pub node: NodeId,
    /// How long ago it told that, or told that nothing has changed.
    pub told_ms_ago: u64,
}

impl AgentReport {
    /// The same report after this time has passed.
    pub fn aged(mut self, by_ms: u64) -> AgentReport {
        for wait in &mut self.waits {
            wait.blocked_ms = wait.blocked_ms.saturating_add(by_ms);
        }
        for process in &mut self.processes {
            process.called_ms_ago = process.called_ms_ago.saturating_add(by_ms);
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
        let process = |process: &AgentProcess| PROCESS_BYTES + process.last_call.len();
        let texts = [&self.id, &self.host, &self.version, &self.listens];
        let key = |key: &Blob| key.len() + KEY_BYTES;
        let wait = |wait: &AgentWait| WAIT_BYTES + wait.keys.iter().map(key).sum::<usize>();
        let client = |client: &AgentClient| CLIENT_BYTES + client.from.len();
        texts.into_iter().map(String::len).sum::<usize>()
            + self.job.as_str().len()
            + self.run.as_str().len()
            + self.clients.iter().map(client).sum::<usize>()
            + self.waits.iter().map(wait).sum::<usize>()
            + self.processes.iter().map(process).sum::<usize>()
    }
}
