//! Orders for a recording rank, as its one argument.

use std::path::PathBuf;
use std::time::Duration;

use holdfast_api::{Policy, ProcessId, Role};
use serde::{Deserialize, Serialize};

/// Exit code of a rank that could not register.
pub const EXIT_NOT_JOINED: u8 = 3;

/// Exit code of a rank that was notified that its incarnation has ended, or will.
pub const EXIT_ENDED: u8 = 4;

/// One rank: one operating-system process, one incarnation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RankPlan {
    /// Addresses of the nodes.
    pub store: Vec<String>,
    /// Name of the job.
    pub job: String,
    /// Its run, which is opened if need be.
    pub run: String,
    /// Number of the process.
    pub process: ProcessId,
    /// Whether it registers as active or as standby.
    pub role: Role,
    /// Replace a former incarnation at once, even if that is still running.
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
    /// The calls of the rank.
    pub calls: Calls,
}

/// The calls of a job's ranks, again and again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Calls {
    /// Verbs that the rank calls.
    pub verbs: Verbs,
    /// Pause between two calls, on average.
    pub pause: Duration,
    /// The numbers of the job, the same for all ranks.
    pub policy: Policy,
    /// How often a rank goes to the next advance before its steps are over, and
    /// without a reason.
    pub desertion: f64,
    /// How long an advance waits for missing processes before it declares them dead.
    pub evict_after: Option<Duration>,
}

/// Which verbs ranks call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verbs {
    /// Each rank calls `live_processes` alone.
    Live,
    /// An advance, then these steps, as long as each of them closes: newcomers wait in
    /// the advance.
    Iterations {
        /// One after the other.
        steps: Vec<Step>,
        /// After about how long one is given up.
        patience: Duration,
    },
}

/// Steps of the ranks between two advances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// A roll call among all active processes.
    Roll,
    /// A vote among the ranked members of the iteration, by a rule that changes
    /// from one iteration to the next. Some vote otherwise than the others.
    Vote,
    /// Values are gathered among the same.
    Gather,
    /// Processes with even numbers meet as a set, and so do the others, under one
    /// name.
    Halves,
    /// The same as quorums, each under a name of its own; then they vote under one name,
    /// each half among the generation of its quorum.
    Pairs,
    /// All processes meet as a set that requires all of them.
    All,
    /// Now and then process 0 waits in a set for one that never joins.
    Stranger,
    /// An atomic block. Some fail in it.
    Block,
    /// A communicator of all active processes: formed, run, formed again, run, let go of.
    Form,
    /// The same of one half of them: never while the other half holds its own, or all do.
    FormHalf,
}

impl Calls {
    /// Whether ranks hold generations: one that does not let go in time is killed by its agent.
    pub fn hold(&self) -> bool {
        let holds = |step: &Step| matches!(step, Step::Form | Step::FormHalf);
        matches!(&self.verbs, Verbs::Iterations { steps, .. } if steps.iter().any(holds))
    }
}
