//! What agents tell of themselves: who is connected to them, and who waits
//! for what. Shown to operators, decided upon by nobody, never logged.

use serde::{Deserialize, Serialize};

use crate::Blob;
use crate::name::{Name, NodeId};

/// Most processes that one agent names.
pub const CLIENTS_MAX: usize = 1_024;
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
        self
    }

    /// About how many bytes it takes.
    pub fn size(&self) -> usize {
        const CLIENT_BYTES: usize = 64;
        const WAIT_BYTES: usize = 64;
        const KEY_BYTES: usize = 16;
        let texts = [&self.id, &self.host, &self.version, &self.listens];
        let key = |key: &Blob| key.len() + KEY_BYTES;
        let wait = |wait: &AgentWait| WAIT_BYTES + wait.keys.iter().map(key).sum::<usize>();
        let client = |client: &AgentClient| CLIENT_BYTES + client.from.len();
        texts.into_iter().map(String::len).sum::<usize>()
            + self.job.as_str().len()
            + self.run.as_str().len()
            + self.clients.iter().map(client).sum::<usize>()
            + self.waits.iter().map(wait).sum::<usize>()
    }
}
