//! The clauses of the protocol, each of which can be taken out.

/// A rule of rounds, processes or outcomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clause {
    /// When a life ends, its arrival goes with it.
    ArrivalEndsWithItsLife,
    /// A life that has ended is refused whatever it says.
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
    /// Only more than half of the live may evict the others.
    EvictionNeedsMajority,
    /// Who is evicted is dead, not merely left out.
    EvictedIsDead,
    /// Only spares that have arrived are promoted.
    OnlyArrivedSpares,
    /// Spares that wait do not count as arrived.
    SparesWaitUncounted,
    /// Spares alone take over from the lost, not from those who left.
    SparesTakeOverFromTheLost,
    /// A round closes with somebody in it.
    AtLeastOneArrival,
    /// The first closing waits for the declared world.
    FirstClosingHasTheWorld,
    /// A quorum closes with its minimum at least.
    QuorumHasItsMinimum,
    /// Members of a set that are dead block it if all are required.
    RequiredBlockWhenDead,
    /// The iteration is one counter of the job, not its members'.
    OneCounterOfIterations,
    /// A block needs every life of the generation that opened it.
    BlockNeedsAllOfItsLives,
}
