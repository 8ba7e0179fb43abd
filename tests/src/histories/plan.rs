//! What a recording rank is told to do, as its one argument.

use std::path::PathBuf;
use std::time::Duration;

use holdfast_api::{ProcessId, Role};
use serde::{Deserialize, Serialize};

/// Exit code of a rank that could not register.
pub const EXIT_NOT_JOINED: u8 = 3;

/// Exit code of a rank that was told that its life has ended, or will.
pub const EXIT_ENDED: u8 = 4;

/// One rank: one operating-system process, one life.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RankPlan {
    /// Nodes of the cluster.
    pub store: Vec<String>,
    /// The job.
    pub job: String,
    /// The process.
    pub process: ProcessId,
    /// Active or standby.
    pub role: Role,
    /// Take the place of a former life at once, even if that goes on.
    pub takeover: bool,
    /// Control socket of the agent that it joins; none = it holds a lease for
    /// itself.
    pub agent: Option<PathBuf>,
    /// TTL of that lease.
    pub ttl: Duration,
    /// Its name in the history.
    pub program: String,
    /// Folder of the history.
    pub folder: PathBuf,
    /// What it calls.
    pub calls: Calls,
}

/// What the ranks of a job call, again and again.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Calls {
    /// Which verbs.
    pub verbs: Verbs,
    /// Pause between two calls, on average.
    pub pause: Duration,
    /// The declared world of the job.
    pub world: u32,
    /// Fewest members of an iteration.
    pub members_min: u32,
    /// How long an advance waits for whoever is missing before it declares them
    /// dead.
    pub evict_after: Option<Duration>,
    /// How long an advance waits for members that were lost.
    pub last_call: Duration,
}

/// Which verbs ranks call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verbs {
    /// `live_processes` alone.
    Live,
    /// `advance` alone.
    Advance,
    /// An advance, then some roll calls, each given up after a while: whoever
    /// is new waits in the advance.
    Mixed {
        /// How many roll calls.
        steps: u32,
        /// When one is given up.
        patience: Duration,
    },
}
