//! The terms of a round: its scope, when it closes, its conclusion.

use serde::{Deserialize, Serialize};

use crate::hold::Hold;
use crate::process::ProcessId;
use crate::round::Generation;

/// What a round is: who is waited for, when it closes, how it concludes.
///
/// Its name, `among`, `conclusion`, whether `rule` is a quorum and whether it is held
/// identify a round: an arrival that differs in one of them is in another round. The
/// rest are numbers in which callers may differ: the most frequent variant among the
/// arrivals governs, ties to the lowest process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Terms {
    /// The scope: whose round it is.
    #[serde(skip_serializing_if = "is_default")]
    pub among: Among,
    /// When the round closes.
    #[serde(skip_serializing_if = "is_default")]
    pub rule: Rule,
    /// Members of a set or a generation that are dead or have left block it,
    /// too.
    #[serde(skip_serializing_if = "is_default")]
    pub require_all: bool,
    /// When waiting ends, and how; none = never. It then closes if all that are
    /// needed are there: a deadline cuts last calls and settling short, but not
    /// the wait for the declared world.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Deadline>,
    /// The conclusion of the closed round.
    #[serde(skip_serializing_if = "is_default")]
    pub conclusion: Conclusion,
    /// Its generation is held when it has closed: of a communicator or a lock
    /// ([`Conclusion::Form`]), or of an advance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
}

/// The numbers that a process gives when it registers. The most frequent ones
/// govern among the live processes that have been members longest; before there
/// are members, among the live active processes, or else among the standbys
/// that have arrived. Ties go to the lowest process. All numbers go together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Policy {
    /// The declared world: while there are no members, a round over all active
    /// processes waits for this many; standbys are promoted up to it. 0 = not
    /// declared.
    #[serde(skip_serializing_if = "is_default")]
    pub world: u32,
    /// No round over all active processes closes with fewer members; 0 counts
    /// as 1.
    #[serde(skip_serializing_if = "is_default")]
    pub members_min: u32,
    /// How long a closing waits for the declared world, or for a lost member to
    /// come back, in milliseconds of log time, before it goes on with
    /// `members_min`. 0 = it never begins below the world, and does not wait
    /// for the lost.
    #[serde(skip_serializing_if = "is_default")]
    pub last_call_ms: u64,
    /// How an advance gives ranks, step by step; none = in order of the
    /// processes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assignment: Vec<AssignmentStep>,
    /// With fewer ranks than this no process takes part; 0 counts as 1.
    #[serde(skip_serializing_if = "is_default")]
    pub active_min: u32,
    /// Most incidents of the job before an advance says stop: an advance that
    /// lost or replaced members is one, however many there were. 0 = no limit.
    #[serde(skip_serializing_if = "is_default")]
    pub restarts_max: u32,
    /// Only incidents within this many milliseconds of log time count; 0 = all.
    #[serde(skip_serializing_if = "is_default")]
    pub restarts_window_ms: u64,
}

impl Policy {
    /// Roughly the bytes of its rank assignment.
    pub fn assignment_bytes(&self) -> usize {
        let step = |step: &AssignmentStep| match step {
            AssignmentStep::FilterGrouped { label, .. } => 32 + label.len(),
            AssignmentStep::Tree { layers } => {
                layers.iter().map(|layer| 64 + layer.label.as_ref().map_or(0, String::len)).sum()
            }
            AssignmentStep::Shift
            | AssignmentStep::FillGaps
            | AssignmentStep::MaxActive { .. }
            | AssignmentStep::DivisibleBy { .. } => 32,
        };
        self.assignment.iter().map(step).sum()
    }
}

/// The scope of a round.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Among {
    /// All active processes of the run; standbys may wait.
    #[default]
    Active,
    /// Exactly these, in growing order, whatever their roles. One that never
    /// joined is waited for; one that is dead or has left is not.
    Set(Vec<ProcessId>),
    /// The members of this generation of a round among all active processes, in
    /// these incarnations, or of a generation that is held; of an advance,
    /// those that have a rank. A member that has gone to an advance since takes
    /// no part any more.
    Generation(Generation),
}

/// When a round closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// When every live process that it is among has arrived.
    #[default]
    All,
    /// At `max` arrivals, or `settle_ms` of log time after `min`. A process
    /// that is not there is left out of this generation, and stays alive.
    Quorum {
        /// Enough to go on with.
        min: u32,
        /// As many as can take part.
        max: u32,
        /// How long to wait for more than `min`, in milliseconds.
        #[serde(default)]
        settle_ms: u64,
    },
}

/// The deadline of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Deadline {
    /// Log time after the first arrival that counts, in milliseconds, from 1.
    /// A standby does not count: it waits as long as it takes.
    pub after_ms: u64,
    /// What happens at the deadline.
    #[serde(default)]
    pub then: AtDeadline,
}

/// What happens at a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AtDeadline {
    /// All waiting calls fail, with a list of the missing.
    #[default]
    Fail,
    /// If more than half of the live active processes, and at least the
    /// minimum, are there, the others are ended and the round closes; else it
    /// fails. Only in rounds among all active processes.
    Evict,
}

/// The conclusion of a closed round: a pure function of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// The list of members: `live_processes`, a barrier.
    #[default]
    Roll,
    /// The next iteration of the job, with ranks. Only among all active
    /// processes.
    Advance,
    /// A vote over the payloads, by all in scope.
    Vote(VoteRule),
    /// The entry to an atomic block: its generation names the block. Only among
    /// all active processes.
    Block,
    /// The exit of an atomic block, among the generation of its entry, under
    /// the name of its entry. Payloads: `succeeded`, `failed`, or `failed TEXT`.
    Exit,
    /// A communicator or a lock: a round that is held, and nothing else.
    Form,
    /// All members of a held generation are ready. Only among such a one, with
    /// `require_all`; closing, it makes the generation ready.
    Ready,
    /// All members of a held generation are about to release it: once this has
    /// closed, a release revokes nothing. Only among such a one, with
    /// `require_all`.
    Close,
}

/// How votes are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum VoteRule {
    /// All in scope vote `yes`; any other payload is a no.
    And,
    /// All in scope vote the same value, which may be empty.
    Unanimous,
    /// The first byte of a payload is its priority, the rest its value: the
    /// lowest priority wins, then most votes, then the least value in byte
    /// order. An empty payload abstains; one vote is enough.
    Plurality,
}

/// One step of giving ranks, after NVRx's rank assignments. Each works on the
/// result of the one before; the first one on the ranks of the latest
/// iteration, followed by those without one in order of their processes. Gaps
/// that the last step leaves are closed: a world has the ranks 0 to its size.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AssignmentStep {
    /// All keep their order; gaps are closed.
    Shift,
    /// Gaps are filled with the highest ranks; all others keep their ranks.
    FillGaps,
    /// Leaves out whole groups of processes with one value of a label, unless
    /// their number suits. Those without the label are a group.
    FilterGrouped {
        /// Label whose values make the groups.
        label: String,
        /// Fewest of a group.
        min: u32,
        /// Most of a group; 0 = no limit.
        #[serde(default)]
        max: u32,
    },
    /// Leaves out the highest ranks above this number.
    MaxActive {
        /// Most ranks that are given.
        max: u32,
    },
    /// Leaves out the highest ranks until the number is divisible.
    DivisibleBy {
        /// The divisor, from 1.
        divisor: u32,
    },
    /// Ranks by a tree of domains with reserves. Too small domains are left
    /// out; then each rank that was lost goes to a reserve, or to the highest
    /// rank of its domain, or is closed by shifting; then every process without
    /// a rank gets one, as far as the limits allow. Must be the first step.
    Tree {
        /// From the root (all processes) to the innermost domains; at least the root.
        layers: Vec<TreeLayer>,
    },
}

/// One layer of a [`AssignmentStep::Tree`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TreeLayer {
    /// The label that names the domain within the one around it; none = all of
    /// that are one domain, as at the root. So are those without the label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// A domain with fewer processes is left out as a whole.
    #[serde(default)]
    pub ranks_min: u32,
    /// A domain with this many ranks gets no more; 0 = no limit. Only a
    /// stand-in for a rank lost elsewhere can exceed it, but not at the root.
    #[serde(default)]
    pub ranks_max: u32,
    /// Those without a rank stand in for lost ones of the domain: of the
    /// innermost first, and outwards as far as all layers say so.
    #[serde(default)]
    pub reserve: bool,
    /// Lost ranks are filled with the highest of the domain: of the outermost
    /// up to which all layers say so.
    #[serde(default)]
    pub backfill: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
