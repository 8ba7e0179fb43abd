//! What versions of Holdfast understand: the feature level, which is replicated and
//! gates what is logged, and the stream's minor, which says what one node takes from
//! a client.

/// Newest feature level that this build obeys. A level gates commands, and
/// changed behaviour of old ones, until every node obeys it.
pub const FEATURE_LEVEL: u32 = TOKENS_LEVEL;

/// The level of a new cluster.
pub const FIRST_LEVEL: u32 = 1;

/// From this level on the log time of a run's end is kept, ended runs can be
/// purged, jobs deleted, a job without runs does not count as one, and a quota
/// names the run to delete.
pub const RUNS_LEVEL: u32 = 2;

/// From this level on there are leases, processes and rounds.
pub const COORDINATION_LEVEL: u32 = 3;

/// From this level on several key-value commands can travel as one.
pub const PIPELINE_LEVEL: u32 = 4;

/// From this level on, ids of sessions and leases are derived from their holders'
/// nonces, so that nobody can guess another's.
pub const SECRET_IDS_LEVEL: u32 = 5;

/// From this level on, the cluster keeps which signed tokens were revoked.
pub const TOKENS_LEVEL: u32 = 6;

/// From this level on, jobs that are over are forgotten when all names are taken.
pub const NAMES_LEVEL: u32 = 6;

/// From this level on there is [`KvOp::Max`](crate::KvOp::Max).
pub const MAX_OP_LEVEL: u32 = 6;

/// From this level on there are budgets for what is kept beside keys and values: payloads of
/// rounds and answers of sessions.
pub const KEPT_BYTES_LEVEL: u32 = 6;

/// From this level on, a job holds at most as many sessions, and as many leases, as are free.
pub const SHARES_LEVEL: u32 = 6;

/// From this level on, held rounds that gather for the first time count as held ones of
/// their job.
pub const HELD_ROOM_LEVEL: u32 = 6;

/// From this level on, who has been in longest follows the order of closings, not of openings.
pub const CLOSING_ORDER_LEVEL: u32 = 6;

/// From this level on, a process whose part in a generation is over is admitted to no round
/// among it but one with `require_all`, also while it holds that generation.
pub const PARTS_LEVEL: u32 = 6;

/// From this level on, the members of a quorum are kept while they matter, and there is
/// [`quorums_per_run_max`](crate::limits::CoordinationLimits::quorums_per_run_max).
pub const KEPT_QUORUMS_LEVEL: u32 = 6;

/// From this level on, a newcomer is pushed to the holders also if it begins to count after its
/// arrival.
pub const NEWCOMERS_LEVEL: u32 = 6;

/// From this level on, nobody gets more time to stop because another holds again.
pub const STOP_TIMES_LEVEL: u32 = 6;

/// From this level on, a quorum among a generation needs most of those members of the latest one
/// whose part is not over.
pub const QUORUM_PARTS_LEVEL: u32 = 6;

/// From this level on, most of the latest quorum are there by arrivals that count.
pub const COUNTED_MAJORITY_LEVEL: u32 = 6;

/// From this level on, a process that waits in several advances is counted once, where others
/// miss it.
pub const SEVERAL_ADVANCES_LEVEL: u32 = 6;

/// From this level on, the deadline of a round starts again with an arrival that acknowledges the
/// last one that counted.
pub const DEADLINE_ANEW_LEVEL: u32 = 6;

/// From this level on, an exit that arrives after its withdrawal has failed, too.
pub const WITHDRAWN_EXITS_LEVEL: u32 = 6;

/// From this level on, an exit that reported a failure has failed with these words, also when its
/// call or its process has ended since.
pub const FAILED_EXITS_LEVEL: u32 = 6;

/// From this level on, who leaves in order and registers again is no incident.
pub const CLEAN_LEAVES_LEVEL: u32 = 6;

/// From this level on, a held round that fails at its deadline names the holders, too, that it
/// waited for.
pub const HOLDERS_NAMED_LEVEL: u32 = 6;

/// What this version understands beyond the first one, in
/// [`Hello::minor`](crate::stream::Hello::minor).
pub const MINOR: u32 = MINOR_MAX_OP;

/// From this minor version on a node takes
/// [`RequestBody::Report`](crate::stream::RequestBody::Report); an older one would take it for
/// a broken frame.
pub const MINOR_REPORTS: u32 = 1;

/// From this minor version on a node takes
/// [`RequestBody::Feed`](crate::stream::RequestBody::Feed), and commands on leases, processes
/// and rounds.
pub const MINOR_COORDINATION: u32 = 2;

/// From this minor version on a node takes
/// [`RequestBody::Events`](crate::stream::RequestBody::Events).
pub const MINOR_EVENTS: u32 = 3;

/// From this minor version on a node takes [`Command::Pipeline`](crate::Command::Pipeline), if
/// [`Hello::level`](crate::stream::Hello::level) has it.
pub const MINOR_PIPELINES: u32 = 4;

/// From this minor version on a node takes
/// [`RequestBody::WatchLeader`](crate::stream::RequestBody::WatchLeader).
pub const MINOR_LEADER: u32 = 5;

/// From this minor version on a node takes [`KvOp::Max`](crate::KvOp::Max).
pub const MINOR_MAX_OP: u32 = 6;
