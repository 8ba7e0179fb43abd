//! The clauses of the protocol, each of which can be taken out.

/// A rule of rounds, processes or outcomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clause {
    /// When an incarnation ends, its arrival goes with it.
    ArrivalEndsWithItsParticipant,
    /// An incarnation that has ended is refused whatever it says.
    EndedIsFenced,
    /// Who asks after its end hears of the end, and of nothing kept for it.
    FencedBeforeKept,
    /// A new life of a process ends the older one in the same entry.
    ReplacementEndsTheOlder,
    /// A registration is known again, and says which life it replaces.
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
    /// A round closes with somebody in it.
    AtLeastOneArrival,
    /// The iteration is one counter of the job, not its members'.
    OneCounterOfIterations,

    /// The numbers that govern are the most frequent, not the first comer's.
    MostFrequentGoverns,
    /// The numbers of those who have been in longest govern.
    LongestInGovern,
    /// The numbers that arrivals differ in are the most frequent, too.
    MostFrequentAmongArrivals,

    /// While nobody is in, a round waits for the declared world.
    FormationWaitsForTheWorld,
    /// That holds again when everybody has been lost.
    FormationBeginsAnew,
    /// No deadline closes or evicts below the world.
    FormationOutlastsDeadlines,
    /// Spares are not promoted before the time of the formation is over.
    SparesWaitForTheFormation,
    /// That time begins anew with the end of the last that was in.
    FormationWaitsForTheLost,
    /// Only spares that have arrived are promoted.
    OnlyArrivedSpares,
    /// Spares that wait do not count as arrived.
    SparesWaitUncounted,
    /// Spares hear of it when the last has left in order.
    Over,

    /// While somebody is in, no round closes with fewer than the minimum.
    MinimumHolds,
    /// A last call waits for the lost.
    LastCallWaitsForTheLost,
    /// Nobody waits for those who left in order.
    CleanLeavesAreNotWaitedFor,
    /// A newcomer that waits in an advance counts in no other round.
    NewcomersCountInTheirAdvance,
    /// A round without whose missing member, who waits in an advance, it
    /// cannot close, fails.
    RegroupForMembers,
    /// That holds before anybody is in, too: whoever was regrouped may be the
    /// only one that is left.
    RegroupInFormation,
    /// A round whose minimum can only be met by who waits in an advance fails.
    RegroupForTheMinimum,

    /// Only more than half of the live may evict the others.
    EvictionNeedsMajority,
    /// Who is evicted is dead, not merely left out.
    EvictedIsDead,
    /// The minimum that governed before an eviction holds for it.
    EvictionKeepsTheMinimumBefore,
    /// The minimum that governs after an eviction holds for it.
    EvictionKeepsTheMinimumAfter,

    /// A quorum closes with its minimum at least.
    QuorumHasItsMinimum,
    /// More than half of the living members of the latest one are there.
    QuorumHasTheLatestMajority,
    /// While nobody is in, a quorum waits for the declared world, too.
    QuorumWaitsForTheWorld,

    /// Members of a set that are dead block it if all are required.
    RequiredBlockWhenDead,
    /// An arrival at an advance ends the part in earlier generations.
    AdvanceEndsParts,
    /// For good: a withdrawal does not bring it back.
    PartsStayOver,
    /// A vote needs everybody of its scope.
    VoteNeedsItsScope,

    /// A block needs every incarnation of the generation that entered it.
    BlockNeedsAllOfItsParticipants,
    /// An exit that was withdrawn has failed.
    WithdrawnExitFails,
    /// An exit that was void at a deadline has failed.
    VoidExitFails,
    /// Whoever enters again has failed to leave.
    EnteringAgainFails,
    /// A late exit gets the verdict that there is.
    LateExitHearsTheVerdict,
}
