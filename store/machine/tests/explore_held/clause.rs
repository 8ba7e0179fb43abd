//! The clauses of held rounds, each of which can be taken out.

/// A rule of held rounds, or of the programs that hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clause {
    /// The next generation does not close while a process holds the one before.
    DrainRule,
    /// A program stops by itself when its own deadline comes.
    SelfFencing,
    /// That deadline belongs to one lease: another lease does not move it.
    DeadlineOfOneLease,
    /// After a failed call a program goes on with what it kept only if it still holds it.
    ResumesOnlyWhatItHolds,

    /// The end of a member revokes in its very entry.
    DeathRevokes,
    /// A process whose exit was not seen holds on after its end.
    UnseenExitHolds,
    /// A process that has ended may still be released.
    EndedMayBeReleased,
    /// A process that has ended gets no outcome.
    EndedIsFenced,

    /// An arrival releases only when its round closes.
    ArrivalReleasesAtTheClosing,
    /// An arrival that does not name the held generation has stopped it, which is revoked
    /// at once for the others.
    ArrivalOfWhoStoppedRevokes,
    /// A withdrawal restores the hold.
    WithdrawalRestoresTheHold,
    /// A generation goes on only if all name it.
    AgainIfAllNameIt,
    /// A generation goes on only if none but its members arrive.
    AgainWithoutNewcomers,
    /// A generation goes on only if it was not revoked.
    AgainUnlessRevoked,
    /// A generation's number is never used again.
    GenerationIsNeverReused,

    /// A release before a revocation revokes for the others.
    ReleaseRevokes,
    /// Unless all have arrived at the close.
    CloseSparesTheRevocation,
    /// A revocation ends the rounds that are built on the generation, and none
    /// closes or opens afterwards.
    RevocationEndsWhatIsBuilt,
    /// A generation whose next one could close but for a holder is revoked.
    MembershipRevokes,
    /// But only when it could close.
    MembershipRevokesAtLast,
    /// The first deadline revokes what is held.
    FirstDeadlineRevokes,
    /// The first deadline fails no call.
    FirstDeadlineFailsNobody,
    /// The second deadline fails the calls.
    SecondDeadlineFails,
    /// A process that has not stopped in time after a revocation is declared dead.
    StopHasALimit,
    /// A generation that is not ready in time is revoked.
    FormationHasALimit,

    /// Holders whose host is lost are free when time has passed.
    LostHoldersAreFree,
    /// That time counts from the latest renewal.
    FreeFromTheLatestRenewal,
    /// It is as long as it was when the lease was granted.
    FreeByTheGrantedLimit,
    /// The next run waits for what was held in the one before.
    RunEndCarriesWhatIsHeld,
    /// Of the waiting processes, the one passed over longest goes first.
    PassedOverFirst,
}
