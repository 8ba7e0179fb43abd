//! The clauses of what is held, each of which can be taken out.

/// A rule of held rounds, or of the programs that hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clause {
    /// The next generation does not close while somebody holds the one before.
    DrainRule,
    /// A program stops by itself when its own deadline comes.
    SelfFencing,
    /// That deadline belongs to one lease: another lease does not move it.
    DeadlineOfOneLease,
    /// After a call that came to nothing a program goes on with what it kept
    /// only if it still holds it.
    ResumesOnlyWhatItHolds,

    /// The end of a member revokes in its very entry.
    DeathRevokes,
    /// Who ended without anybody having seen the exit holds on.
    UnseenExitHolds,
    /// Who has ended may still be released.
    EndedMayBeReleased,
    /// Who has ended hears of no outcome.
    EndedIsFenced,

    /// An arrival releases only when its round closes.
    ArrivalReleasesAtTheClosing,
    /// An arrival that does not name what it holds has stopped it, which is
    /// revoked at once for the others.
    ArrivalOfWhoStoppedRevokes,
    /// A withdrawal restores the hold.
    WithdrawalRestoresTheHold,
    /// A generation goes on only if all name it.
    AgainIfAllNameIt,
    /// A generation goes on only if nobody comes who is no member.
    AgainWithoutNewcomers,
    /// A generation goes on only if it was not revoked.
    AgainUnlessRevoked,
    /// A generation's number is never used again.
    GenerationIsNeverReused,

    /// A release before a revocation revokes for the others.
    ReleaseRevokes,
    /// Unless all have come to the close.
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
    /// It fails nobody: only the second one does.
    FirstDeadlineFailsNobody,
    /// The second one does.
    SecondDeadlineFails,
    /// Who has not stopped in time after a revocation is declared dead.
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
    /// Of those who wait, who was passed over longest goes first.
    PassedOverFirst,
}
