//! Rounds: the one rendezvous primitive under every barrier, vote, roll call
//! and iteration advance.

use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::command::{LogTime, Revision};
use crate::lease::LeaseId;
use crate::members::{Members, Ranks};
use crate::name::{Name, Scope};
use crate::outcome::Refusal;
use crate::process::{Cause, Incarnation, ProcessId, Role};

/// One gathering of a round: given at its first arrival, growing within a job,
/// never reused.
pub type Generation = u64;

/// A command on rounds. Nothing here waits: an arrival is answered at once,
/// and what it came to is read from its lease's feed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RoundCommand {
    /// Processes of one host arrive at a round, each for itself.
    Arrive {
        /// The lease that all of them are attached to.
        lease: LeaseId,
        /// The round's name.
        round: Blob,
        /// What the round is; fixed by the first arrival of a generation.
        #[serde(default, skip_serializing_if = "is_default")]
        terms: Box<Terms>,
        /// Who arrives.
        arrivals: Vec<Arrival>,
    },
    /// Callers do not want to wait any longer. A call whose round has closed
    /// keeps its outcome.
    Withdraw {
        /// The lease that all of them are attached to.
        lease: LeaseId,
        /// Which calls.
        calls: Vec<CallId>,
    },
    /// Outcomes up to here were received: they need not be kept.
    Acknowledge {
        /// The lease that all of them are attached to.
        lease: LeaseId,
        /// The lowest call of each process that it still wants to hear of.
        calls: Vec<CallId>,
    },
    /// The leader's own: a time that the round waits for has come, if it still
    /// waits for that very time.
    Deadline {
        /// The run.
        scope: Scope,
        /// The round.
        round: Blob,
        /// Its generation.
        generation: Generation,
        /// The time that the leader saw.
        at: LogTime,
    },
}

/// One process at a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Arrival {
    /// The process.
    pub process: ProcessId,
    /// Its life.
    pub incarnation: Incarnation,
    /// The number of this call in that life, from 1, growing over all rounds.
    /// The client library counts, never the user.
    pub call: u64,
    /// The lowest call whose outcome it still wants; 0 = no change.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ack: u64,
    /// What it brings. Opaque to the round.
    #[serde(default, skip_serializing_if = "Blob::is_empty")]
    pub payload: Blob,
}

/// A call of one incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CallId {
    /// The process.
    pub process: ProcessId,
    /// Its life.
    pub incarnation: Incarnation,
    /// The call.
    pub call: u64,
}

/// What a round is: who is waited for, when it closes, what comes out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Terms {
    /// Whose round it is.
    #[serde(skip_serializing_if = "is_default")]
    pub among: Among,
    /// When it closes.
    #[serde(skip_serializing_if = "is_default")]
    pub rule: Rule,
    /// The world as the job declares it: the first closing of the run waits
    /// for so many, and standbys are promoted up to it. 0 = not declared.
    #[serde(skip_serializing_if = "is_default")]
    pub world: u32,
    /// It never closes with fewer members; 0 counts as 1.
    #[serde(skip_serializing_if = "is_default")]
    pub members_min: u32,
    /// After a member was lost, how long a closing waits for it to come back,
    /// in milliseconds of log time, before it goes on without, or with a
    /// standby in its place.
    #[serde(skip_serializing_if = "is_default")]
    pub last_call_ms: u64,
    /// Members of a set that are dead, or were never there, block it, too.
    #[serde(skip_serializing_if = "is_default")]
    pub require_all: bool,
    /// When patience ends, and how; none = never. With all there who are
    /// needed it closes then: a deadline cuts last calls and settling short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Deadline>,
    /// What is made of the closed round.
    #[serde(skip_serializing_if = "is_default")]
    pub conclusion: Conclusion,
}

/// Whose round it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Among {
    /// All active processes of the run; standbys may wait.
    #[default]
    Active,
    /// Exactly these, in growing order, whatever their roles.
    Set(Vec<ProcessId>),
}

/// When a round closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// When every live process that it is among has arrived.
    #[default]
    All,
    /// At `max` arrivals, or `settle_ms` of log time after `min`. Who is not
    /// there is left out of this generation, and stays alive.
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

/// The end of a round's patience.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Deadline {
    /// Log time after the first arrival that counts, in milliseconds, from 1.
    /// A standby does not count: it waits as long as it takes.
    pub after_ms: u64,
    /// What happens then.
    #[serde(default)]
    pub then: AtDeadline,
}

/// What happens at a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AtDeadline {
    /// All waiting calls fail, and are told who was missing.
    #[default]
    Fail,
    /// If more than half of the live active processes, and at least the
    /// minimum, are there, the others are ended and the round closes; else it
    /// fails. Only in rounds among all active processes.
    Evict,
}

/// What is made of a closed round: a pure function of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// Who was there: `live_processes`, a barrier.
    #[default]
    Roll,
    /// The next iteration of the job, with ranks.
    Advance {
        /// How ranks are given, step by step; none = in order of the processes.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        assignment: Vec<AssignmentStep>,
        /// With fewer ranks than this nobody takes part; 0 counts as 1.
        #[serde(default, skip_serializing_if = "is_default")]
        active_min: u32,
        /// Most advances of one run before it is told to stop; 0 = no limit.
        #[serde(default, skip_serializing_if = "is_default")]
        restarts_max: u32,
    },
    /// A vote over the payloads.
    Vote {
        /// How votes are counted.
        rule: VoteRule,
        /// Whose votes are needed: the members of this generation; none = of
        /// whoever is there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base: Option<Generation>,
    },
    /// Closes an atomic block and opens the next. Payloads: `none` (no block
    /// before), `succeeded:G` or `failed:G`, G being the generation that opened
    /// the block.
    Block,
}

/// How votes are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum VoteRule {
    /// Every member of the base votes `yes`; any other payload is a no.
    And,
    /// Every member of the base votes the same value, which may be empty.
    Unanimous,
    /// The first byte of a payload is its priority, the rest its value: the
    /// lowest priority wins, then most votes, then the least value in byte
    /// order. An empty payload abstains; one vote is enough.
    Plurality,
}

/// One step of giving ranks, after NVRx's rank assignments. Each works on the
/// result of the one before; the first one on the ranks of the latest
/// iteration, behind which those without one stand in order of their processes.
/// Gaps that the last step leaves are closed: a world has the ranks 0 to its
/// size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AssignmentStep {
    /// Everybody keeps its order; gaps are closed.
    Shift,
    /// Gaps are filled with the highest ranks; everybody else keeps its rank.
    FillGaps,
    /// Leaves out whole groups of processes with one value of a label, unless
    /// their number suits. Those without the label are a group.
    FilterGrouped {
        /// The label.
        label: String,
        /// Fewest of a group.
        min: u32,
        /// Most of a group; 0 = no limit.
        #[serde(default)]
        max: u32,
    },
    /// Leaves out the highest ranks above this number.
    MaxActive {
        /// Most ranks.
        max: u32,
    },
    /// Leaves out the highest ranks until the number is divisible.
    DivisibleBy {
        /// The divisor, from 1.
        divisor: u32,
    },
    /// Ranks by a tree of domains with reserves. Too small domains are left
    /// out; then each rank that was lost goes to a reserve, or to the highest
    /// rank of its domain, or is closed by shifting; then whoever has no rank
    /// gets one, as far as the limits allow. Must be the first step.
    Tree {
        /// From the root (everybody) to the innermost domains; at least the root.
        layers: Vec<TreeLayer>,
    },
}

/// One layer of a [`AssignmentStep::Tree`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TreeLayer {
    /// The label that tells the domain within the one around it; none = all of
    /// that are one domain, as at the root. So are those without the label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// A domain with fewer processes is left out as a whole.
    #[serde(default)]
    pub ranks_min: u32,
    /// With so many ranks a domain gets no more; 0 = no limit. Only who stands
    /// in for one that was lost elsewhere can bring it above, but not the root.
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

/// What a round command came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RoundOutcome {
    /// Arrive: one for each arrival, in order.
    Arrived(Vec<ArrivalAnswer>),
    /// Withdraw and acknowledge.
    Done,
    /// A deadline that held; what came of it is in the feeds.
    Reached,
    /// A deadline that no longer held.
    StillOpen,
}

/// What became of one arrival, at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ArrivalAnswer {
    /// It waits in this generation.
    Waiting {
        /// The generation.
        generation: Generation,
    },
    /// It is decided: read the feed.
    Decided,
    /// It was refused; others of the same command were not.
    Refused(Refusal),
}

/// What a lease has to tell its holder: everything decided after a revision,
/// as far as it is not acknowledged, in the order of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Feed {
    /// Ask from here next time.
    pub upto: Revision,
    /// Calls of its processes that were decided.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
    /// The closed rounds among them, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub closed: Vec<Closed>,
    /// Those of its processes that ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<Ended>,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Decision {
    /// The process.
    pub process: ProcessId,
    /// Its life.
    pub incarnation: Incarnation,
    /// The call.
    pub call: u64,
    /// The round.
    pub round: Blob,
    /// Revision of the decision.
    pub at: Revision,
    /// The decision.
    pub decided: Decided,
}

/// How a call was decided. Final.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Decided {
    /// The round closed with the caller in it.
    Closed {
        /// The generation: see [`Feed::closed`].
        generation: Generation,
    },
    /// The round failed at its deadline. This call is void for ever.
    Failed(RoundFailure),
    /// The caller withdrew.
    Withdrawn,
}

/// Why a round failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoundFailure {
    /// The generation that failed.
    pub generation: Generation,
    /// How many had arrived.
    pub arrived: u32,
    /// How many were missing.
    pub missing_count: u32,
    /// The first of them, in order of their processes.
    pub missing: Vec<Missing>,
}

/// Most missing processes that are listed one by one.
pub const MISSING_LISTED_MAX: usize = 64;

/// Somebody that a round waits for, or waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Missing {
    /// The process.
    pub process: ProcessId,
    /// In which state it is.
    pub state: ProcessState,
    /// Log time since when it is in that state, in milliseconds; 0 = never
    /// there.
    pub since_ms: LogTime,
    /// Its host, if it ever registered.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
}

/// The state of a process, as rounds see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// Alive, and has not arrived.
    Alive {
        /// Its life.
        incarnation: Incarnation,
        /// Active or standby.
        role: Role,
    },
    /// Its latest life ended.
    Ended {
        /// That life.
        incarnation: Incarnation,
        /// How.
        cause: Cause,
    },
    /// It never registered in this run.
    NeverJoined,
}

/// A closed round. Fixed for ever; all members get the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Closed {
    /// The run.
    pub run: Name,
    /// The round.
    pub round: Blob,
    /// The generation.
    pub generation: Generation,
    /// Revision of the closing: what checkers compare.
    pub witness: Revision,
    /// Log time of the closing, in milliseconds.
    pub closed_at_ms: LogTime,
    /// The first generation of the run that had this very membership.
    pub same_as: Generation,
    /// How many members.
    pub count: u32,
    /// The members; left out when the reader has those of `same_as`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Members>,
    /// Members of the round's set that were dead or never there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<Missing>,
    /// Who was ended so that the round could close.
    #[serde(default, skip_serializing_if = "Members::is_empty")]
    pub evicted: Members,
    /// Standbys that became active with this closing.
    #[serde(default, skip_serializing_if = "Members::is_empty")]
    pub promoted: Members,
    /// What was made of it.
    pub conclusion: Concluded,
    /// What the members brought, in their order; only on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payloads: Option<Vec<Blob>>,
}

/// What was made of a closed round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Concluded {
    /// A roll call.
    Roll,
    /// The iteration advanced.
    Advance {
        /// The iteration that began: one above the job's latest.
        iteration: u64,
        /// A rank, or none, for each member in order.
        ranks: Ranks,
        /// How many have a rank.
        world_size: u32,
        /// Members of the iteration before that are not in this one, and why.
        /// The first [`MISSING_LISTED_MAX`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        dropped: Vec<Dropped>,
        /// Why nobody should go on, if so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop: Option<Stop>,
    },
    /// A vote.
    Vote {
        /// Whether it carried.
        carried: bool,
        /// The value that won, if the rule elects one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<Blob>,
        /// Who stood against it, and why; the first [`MISSING_LISTED_MAX`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        against: Vec<Against>,
    },
    /// An atomic block was closed, and the next opened by this generation.
    Block {
        /// Whether the block before succeeded; none if nobody was in one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        succeeded: Option<bool>,
        /// Who made it fail; the first [`MISSING_LISTED_MAX`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        against: Vec<Against>,
    },
}

/// A process that an iteration goes on without.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Dropped {
    /// The process.
    pub process: ProcessId,
    /// Its life in the iteration before.
    pub incarnation: Incarnation,
    /// Why it has no rank.
    pub why: DroppedWhy,
}

/// Why a process has no rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DroppedWhy {
    /// That life ended.
    Ended(Cause),
    /// It is alive, but was not in the round.
    NotThere,
    /// A step of the assignment left it out.
    LeftOut {
        /// Which step, from 0.
        step: u32,
    },
}

/// Why nobody should go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// Fewer ranks than the minimum.
    TooFew {
        /// How many there would be.
        active: u32,
        /// How many are needed.
        active_min: u32,
    },
    /// The run has advanced as often as it may.
    BudgetSpent {
        /// The limit.
        restarts_max: u32,
    },
}

/// A vote or a block that stood against the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Against {
    /// The process.
    pub process: ProcessId,
    /// Its life in the base.
    pub incarnation: Incarnation,
    /// Why.
    pub why: AgainstWhy,
}

/// Why somebody counts against.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AgainstWhy {
    /// It said so: the first 256 bytes of its payload.
    Said(Blob),
    /// That life is not in the round: it ended, left or was superseded.
    NotThere,
}

/// The end of a process, as its agent hears of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ended {
    /// The process.
    pub process: ProcessId,
    /// The life that ended.
    pub incarnation: Incarnation,
    /// Revision of the end.
    pub at: Revision,
    /// How.
    pub cause: Cause,
}

/// An open round, as listed: the answer to "why are we waiting?".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoundInfo {
    /// The round.
    pub round: Blob,
    /// The generation that gathers.
    pub generation: Generation,
    /// Log time of its first arrival, in milliseconds; once there is one, of
    /// the first by an active process.
    pub opened_at_ms: LogTime,
    /// What it is.
    pub terms: Terms,
    /// Who has arrived.
    pub arrived: Members,
    /// How many are missing.
    pub missing_count: u32,
    /// The first of them, in order of their processes.
    pub missing: Vec<Missing>,
    /// The next log time at which it looks again by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looks_again_at_ms: Option<LogTime>,
    /// Log time of its deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at_ms: Option<LogTime>,
}

/// The state of a job's iterations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IterationInfo {
    /// The latest iteration; 0 = none yet.
    pub iteration: u64,
    /// The generation that began it, if it is of the run asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// Its members.
    #[serde(default, skip_serializing_if = "Members::is_empty")]
    pub members: Members,
    /// Their ranks.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ranks: Ranks,
    /// Whether the incarnation that asks is a member.
    pub member: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
