//! The clauses of the protocol, each of which can be taken out.

/// A rule of rounds, processes or outcomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clause {
    /// When an incarnation ends, its arrival goes with it.
    ArrivalEndsWithItsParticipant,
    /// Every call of an incarnation that has ended is refused.
    EndedIsFenced,
    /// A call after its caller's end gets the end, and nothing that was kept for it.
    FencedBeforeKept,
    /// A new incarnation of a process ends the older one in the same entry.
    ReplacementEndsTheOlder,
    /// A repeated registration is recognized, and names the incarnation that it replaces.
    RegistrationNamesTheOlder,
    /// Rounds are looked at when a command is over, never inside it.
    EvaluatedAfterTheCommand,
    /// A closing fixes the outcome for all members.
    OutcomeIsFixedOnce,
    /// An outcome is kept until the member's next call or acknowledgement.
    KeptUntilAcknowledged,
    /// A repeated call gets the outcome that counted it.
    RepeatedCallIsKnown,
    /// A call below the acknowledged ones is refused.
    LowerCallIsRefused,
    /// A call that failed at a deadline is void for ever.
    FailedCallIsVoid,
    /// A call that was withdrawn is void for ever, even if it arrives later.
    WithdrawnCallIsVoid,
    /// A withdrawal that comes after the closing changes nothing.
    ClosingBeatsWithdrawal,
    /// A deadline is that of one generation.
    DeadlineOfItsGeneration,
    /// A generation's number is never used again.
    GenerationIsNeverReused,
    /// A round closes with at least one arrival.
    AtLeastOneArrival,
    /// The iteration is one counter of the job, not its members'.
    OneCounterOfIterations,

    /// The numbers that govern are the most frequent, not the first arrival's.
    MostFrequentGoverns,
    /// The numbers of the longest members govern.
    LongestInGovern,
    /// The numbers that arrivals differ in are the most frequent, too.
    MostFrequentAmongArrivals,

    /// While no process is in, a round waits for the declared world.
    FormationWaitsForTheWorld,
    /// That holds again when all processes have been lost.
    FormationBeginsAnew,
    /// No deadline closes or evicts below the world.
    FormationOutlastsDeadlines,
    /// Spares are not promoted before the time of the formation is over.
    SparesWaitForTheFormation,
    /// That time begins anew when the last process that was in ends.
    FormationWaitsForTheLost,
    /// Only spares that have arrived are promoted.
    OnlyArrivedSpares,
    /// Spares that wait do not count as arrived.
    SparesWaitUncounted,
    /// Spares are notified when the last member has left in order.
    Over,

    /// While a process is in, no round closes with fewer than the minimum.
    MinimumHolds,
    /// A last call waits for the lost.
    LastCallWaitsForTheLost,
    /// No round waits for processes that left in order.
    CleanLeavesAreNotWaitedFor,
    /// A newcomer that waits in an advance counts in no other round.
    NewcomersCountInTheirAdvance,
    /// A round that cannot close without a member that waits in an advance fails.
    RegroupForMembers,
    /// That holds before a process is in, too: the process that was regrouped may be the
    /// only one left.
    RegroupInFormation,
    /// A round fails if it can only meet its minimum with a process that waits in an advance.
    RegroupForTheMinimum,

    /// Only more than half of the live processes may evict the others.
    EvictionNeedsMajority,
    /// An evicted process is dead, not merely left out.
    EvictedIsDead,
    /// The minimum that governed before an eviction holds for it.
    EvictionKeepsTheMinimumBefore,
    /// The minimum that governs after an eviction holds for it.
    EvictionKeepsTheMinimumAfter,

    /// A quorum closes with its minimum at least.
    QuorumHasItsMinimum,
    /// More than half of the living members of the latest one are there.
    QuorumHasTheLatestMajority,
    /// While no process is in, a quorum waits for the declared world, too.
    QuorumWaitsForTheWorld,

    /// Dead members of a set block it if all are required.
    RequiredBlockWhenDead,
    /// An arrival at an advance ends the part in earlier generations.
    AdvanceEndsParts,
    /// For good: a withdrawal does not bring it back.
    PartsStayOver,
    /// A vote needs all processes of its scope.
    VoteNeedsItsScope,

    /// A block needs every incarnation of the generation that entered it.
    BlockNeedsAllOfItsParticipants,
    /// An exit that was withdrawn has failed.
    WithdrawnExitFails,
    /// An exit that was void at a deadline has failed.
    VoidExitFails,
    /// A process that enters again has failed to leave.
    EnteringAgainFails,
    /// A late exit gets the verdict of the block.
    LateExitHearsTheVerdict,
}
