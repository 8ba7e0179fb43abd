//! The limits of every collection and queue: replicated, so that every node
//! refuses the same command.

use serde::{Deserialize, Serialize, Serializer};

/// Replicated limits. Sizes are in bytes, times in milliseconds of log time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Limits {
    /// Longest key (PyTorch's libuv server: 8 KiB).
    pub key_bytes_max: u64,
    /// Longest value, also after an append (PyTorch's libuv server: 8 MiB).
    pub value_bytes_max: u64,
    /// Most keys in one command or read (PyTorch's libuv server: 131 072).
    pub keys_per_command_max: u64,
    /// Keys and values of one command together.
    pub command_bytes_max: u64,
    /// Jobs in the cluster.
    pub jobs_max: u64,
    /// Runs of one job, ended ones included.
    pub runs_per_job_max: u64,
    /// Keys and queued values of one job.
    pub job_keys_max: u64,
    /// Bytes of keys and values of one job.
    pub job_bytes_max: u64,
    /// Sessions in the cluster. From feature level 6 on a job holds at most as many as are
    /// free, and so do all clients together that name no job.
    pub sessions_max: u64,
    /// Sequences of one session, from its `ack` on, that may be in use.
    pub session_window: u64,
    /// Bytes of unacknowledged answers of one session.
    pub session_answer_bytes_max: u64,
    /// Shortest idle time of a session; a shorter one is raised to it.
    pub session_ttl_ms_min: u64,
    /// Longest idle time of a session; a longer one is lowered to it.
    pub session_ttl_ms_max: u64,
    /// Changes kept for watches that resume.
    pub history_changes_max: u64,
    /// Bytes of those changes.
    pub history_bytes_max: u64,
    /// Most entries in one page of a list.
    pub list_page_max: u64,
    /// Limits of leases, processes and rounds.
    #[serde(skip_serializing_if = "is_default")]
    #[serde(rename = "life")]
    pub coordination: Box<CoordinationLimits>,
    /// Limits of all jobs together.
    #[serde(skip_serializing_if = "is_default")]
    pub budget: Budget,
}

/// What all jobs together may take of the nodes' memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Budget {
    /// Bytes of keys and values. From feature level 6 on a job may hold [`ALWAYS_BYTES`]
    /// whatever others hold.
    pub bytes_max: u64,
    /// Bytes of parked waits and watches: the keys that waits miss, and
    /// [`WAIT_BYTES`] for each.
    pub wait_bytes_max: u64,
    /// Bytes of the parked waits and watches of one job.
    pub job_wait_bytes_max: u64,
    /// Bytes of payloads of rounds, until their outcomes are acknowledged. A run may hold
    /// [`ALWAYS_BYTES`] whatever others hold. From feature level 6 on.
    #[serde(skip_serializing_if = "is_payload_default")]
    pub kept_payload_bytes_max: u64,
    /// Bytes of unacknowledged answers of sessions. A session may hold [`ALWAYS_BYTES`], and the
    /// answer of its oldest command, whatever others hold. From feature level 6 on.
    #[serde(skip_serializing_if = "is_answer_default")]
    pub kept_answer_bytes_max: u64,
}

/// What one job, run or session may hold of a budget that others have used up.
pub const ALWAYS_BYTES: u64 = 64 * 1024;

const PAYLOAD_BYTES_MAX: u64 = 1024 * MIB;
const ANSWER_BYTES_MAX: u64 = 1024 * MIB;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_payload_default(bytes: &u64) -> bool {
    *bytes == PAYLOAD_BYTES_MAX
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_answer_default(bytes: &u64) -> bool {
    *bytes == ANSWER_BYTES_MAX
}

impl Budget {
    /// Whether those fields have their defaults that the first budgets did not have: a node of
    /// that time reads it.
    pub(crate) fn is_of_first_fields(&self) -> bool {
        is_payload_default(&self.kept_payload_bytes_max)
            && is_answer_default(&self.kept_answer_bytes_max)
    }
}

/// Bytes that each awaited key counts beyond its own.
pub const WAIT_BYTES: u64 = 256;

/// The limits of leases, processes and rounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct CoordinationLimits {
    /// Leases in the cluster. From feature level 6 on a job holds at most as many as are free.
    pub leases_max: u64,
    /// Shortest TTL of a lease: three measured failovers, at least.
    pub lease_ttl_ms_min: u64,
    /// Longest TTL of a lease.
    pub lease_ttl_ms_max: u64,
    /// How long processes go on without contact to the store, in milliseconds: what
    /// they hold counts as stopped this long, plus a margin, after the last renewal
    /// of a lease that has ended. Fixed for a lease when it is granted: its TTL at
    /// least.
    pub store_lost_ms_max: u64,
    /// Log time from the leaving of the last agent to the end of a run.
    pub run_ending_ms: u64,
    /// Longest host name, in bytes.
    pub host_bytes_max: u64,
    /// Processes of one run, ended ones included.
    pub processes_per_run_max: u64,
    /// Bytes of the labels of one process.
    pub label_bytes_max: u64,
    /// Open rounds of one run.
    pub rounds_per_run_max: u64,
    /// Quorums of one run whose latest members are kept, by name and scope, and those that gather
    /// for the first time. Quorums that follow each other under one name are one; those whose
    /// members have all ended make room. From feature level 6 on.
    #[serde(skip_serializing_if = "is_quorums_default")]
    pub quorums_per_run_max: u64,
    /// Processes that the open rounds of one run name, in sets and bases of
    /// votes, each as often as it is named.
    pub named_per_run_max: u64,
    /// Held rounds of one job.
    pub held_per_job_max: u64,
    /// Longest name of a round.
    pub round_name_bytes_max: u64,
    /// Calls of one process that wait, or whose outcome is not acknowledged.
    pub calls_per_process_max: u64,
    /// Calls in one command that withdraws or acknowledges.
    pub calls_per_command_max: u64,
    /// Longest payload, in bytes.
    pub payload_bytes_max: u64,
    /// Bytes of payloads of one run, until their outcomes are acknowledged.
    pub run_payload_bytes_max: u64,
    /// Events kept for one job.
    pub events_per_job_max: u64,
}

const QUORUMS_MAX: u64 = 4_096;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_quorums_default(quorums: &u64) -> bool {
    *quorums == QUORUMS_MAX
}

impl CoordinationLimits {
    /// Whether those fields have their defaults that the first limits did not have: a node of
    /// that time reads it.
    pub(crate) fn is_of_first_fields(&self) -> bool {
        is_quorums_default(&self.quorums_per_run_max)
    }
}

impl Default for CoordinationLimits {
    fn default() -> Self {
        CoordinationLimits {
            leases_max: 100_000,
            lease_ttl_ms_min: 1_500,
            lease_ttl_ms_max: 3_600_000,
            store_lost_ms_max: 30_000,
            run_ending_ms: 10_000,
            host_bytes_max: 255,
            processes_per_run_max: 65_536,
            label_bytes_max: 4_096,
            rounds_per_run_max: 4_096,
            quorums_per_run_max: QUORUMS_MAX,
            named_per_run_max: 524_288,
            held_per_job_max: 1_024,
            round_name_bytes_max: 256,
            calls_per_process_max: 256,
            calls_per_command_max: 65_536,
            payload_bytes_max: 64 * 1024,
            run_payload_bytes_max: 256 * 1024 * 1024,
            events_per_job_max: 20_000,
        }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Budget {
            bytes_max: 4 * 1024 * MIB,
            wait_bytes_max: 512 * MIB,
            job_wait_bytes_max: 128 * MIB,
            kept_payload_bytes_max: PAYLOAD_BYTES_MAX,
            kept_answer_bytes_max: ANSWER_BYTES_MAX,
        }
    }
}

const MIB: u64 = 1024 * 1024;

fn is_default<T: Default + PartialEq>(limits: &T) -> bool {
    *limits == T::default()
}

impl Default for Limits {
    fn default() -> Self {
        const KIB: u64 = 1024;
        Limits {
            key_bytes_max: 8 * KIB,
            value_bytes_max: 8 * MIB,
            keys_per_command_max: 131_072,
            command_bytes_max: 16 * MIB,
            jobs_max: 10_000,
            runs_per_job_max: 1_000,
            job_keys_max: 4_000_000,
            job_bytes_max: 1024 * MIB,
            sessions_max: 100_000,
            session_window: 4_096,
            session_answer_bytes_max: 16 * MIB,
            session_ttl_ms_min: 10_000,
            session_ttl_ms_max: 24 * 3_600_000,
            history_changes_max: 200_000,
            history_bytes_max: 64 * MIB,
            list_page_max: 10_000,
            coordination: Box::default(),
            budget: Budget::default(),
        }
    }
}

/// All limits, for people. In the log those of leases, processes and rounds, and
/// those of all jobs together, are left out as long as they have their defaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Whole {
    #[serde(flatten)]
    others: Limits,
    #[serde(rename = "life")]
    coordination: WholeCoordination,
    budget: WholeBudget,
}

/// Limits of leases, processes and rounds with all of their fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct WholeCoordination {
    #[serde(flatten)]
    others: CoordinationLimits,
    quorums_per_run_max: u64,
}

impl From<CoordinationLimits> for WholeCoordination {
    fn from(limits: CoordinationLimits) -> WholeCoordination {
        let quorums_per_run_max = limits.quorums_per_run_max;
        let others = CoordinationLimits { quorums_per_run_max: QUORUMS_MAX, ..limits };
        WholeCoordination { others, quorums_per_run_max }
    }
}

/// A budget with all of its fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct WholeBudget {
    bytes_max: u64,
    wait_bytes_max: u64,
    job_wait_bytes_max: u64,
    kept_payload_bytes_max: u64,
    kept_answer_bytes_max: u64,
}

impl From<Budget> for WholeBudget {
    fn from(budget: Budget) -> WholeBudget {
        let Budget {
            bytes_max,
            wait_bytes_max,
            job_wait_bytes_max,
            kept_payload_bytes_max,
            kept_answer_bytes_max,
        } = budget;
        WholeBudget {
            bytes_max,
            wait_bytes_max,
            job_wait_bytes_max,
            kept_payload_bytes_max,
            kept_answer_bytes_max,
        }
    }
}

impl From<&Limits> for Whole {
    fn from(limits: &Limits) -> Whole {
        let Limits { coordination, budget, .. } = limits.clone();
        let (no_coordination, no_budget) = (Box::default(), Budget::default());
        let others = Limits { coordination: no_coordination, budget: no_budget, ..limits.clone() };
        Whole { others, coordination: (*coordination).into(), budget: budget.into() }
    }
}

impl Whole {
    /// Writes limits with all of their fields; for serde's `serialize_with`.
    pub fn serialize<S: Serializer>(limits: &Limits, serializer: S) -> Result<S::Ok, S::Error> {
        Serialize::serialize(&Whole::from(limits), serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The defaults are part of a log's meaning: they stand for what it leaves
    /// out. Changing one needs a feature level.
    #[test]
    fn the_defaults_stay_what_they_are() {
        let CoordinationLimits {
            leases_max,
            lease_ttl_ms_min,
            lease_ttl_ms_max,
            store_lost_ms_max,
            run_ending_ms,
            host_bytes_max,
            processes_per_run_max,
            label_bytes_max,
            rounds_per_run_max,
            quorums_per_run_max,
            named_per_run_max,
            held_per_job_max,
            round_name_bytes_max,
            calls_per_process_max,
            calls_per_command_max,
            payload_bytes_max,
            run_payload_bytes_max,
            events_per_job_max,
        } = CoordinationLimits::default();
        assert_eq!((leases_max, host_bytes_max), (100_000, 255));
        assert_eq!((lease_ttl_ms_min, lease_ttl_ms_max), (1_500, 3_600_000));
        assert_eq!((store_lost_ms_max, run_ending_ms), (30_000, 10_000));
        assert_eq!((processes_per_run_max, label_bytes_max), (65_536, 4_096));
        assert_eq!((rounds_per_run_max, round_name_bytes_max), (4_096, 256));
        assert_eq!(quorums_per_run_max, 4_096);
        assert_eq!((named_per_run_max, held_per_job_max), (524_288, 1_024));
        assert_eq!((calls_per_process_max, calls_per_command_max), (256, 65_536));
        assert_eq!((payload_bytes_max, run_payload_bytes_max), (65_536, 268_435_456));
        assert_eq!(events_per_job_max, 20_000);
        let Budget {
            bytes_max,
            wait_bytes_max,
            job_wait_bytes_max,
            kept_payload_bytes_max,
            kept_answer_bytes_max,
        } = Budget::default();
        assert_eq!(kept_payload_bytes_max, 1_073_741_824);
        assert_eq!(kept_answer_bytes_max, 1_073_741_824);
        assert_eq!((bytes_max, wait_bytes_max), (4_294_967_296, 536_870_912));
        assert_eq!(job_wait_bytes_max, 134_217_728);
        let bytes = rmp_serde::to_vec_named(&Limits::default()).unwrap();
        for newer in [&b"life"[..], b"budget"] {
            let found = bytes.windows(newer.len()).any(|window| window == newer);
            assert!(!found, "an older node reads it");
        }
        let limits = CoordinationLimits { leases_max: 1, ..CoordinationLimits::default() };
        let bytes = rmp_serde::to_vec_named(&limits).unwrap();
        assert!(!bytes.windows(7).any(|window| window == b"quorums"), "a node of level 5 reads it");
        let budget = Budget { bytes_max: 1, ..Budget::default() };
        let bytes = rmp_serde::to_vec_named(&budget).unwrap();
        for newer in [&b"payload"[..], b"answer"] {
            let found = bytes.windows(newer.len()).any(|window| window == newer);
            assert!(!found, "a node of level 5 reads it");
        }
    }
}
