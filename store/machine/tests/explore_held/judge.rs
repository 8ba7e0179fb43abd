//! What must never happen, judged by what programs run, and by the answers they got.

use crate::case::{Case, PARTICIPANTS, PROCESSES, Participant, Participants};
use crate::server::{Event, Server};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// Two programs use different generations at the same time.
    TwoGenerations,
    /// A program uses a generation that no longer counts it as a holder.
    RunsWhatItDoesNotHold,
    /// Two members of a generation got different member lists.
    MembersDiffer,
    /// A generation's number was used again.
    GenerationReused,
    /// A revoked generation goes on, or is ready.
    RevokedGoesOn,
    /// A program is told to go on with a generation that it does not have.
    AgainWithoutIt,
    /// A member has ended, and the others are to go on.
    DeadMemberGoesOn,
    /// A process that has ended got an outcome.
    ToldAfterItsEnd,
    /// A complete set of holders had to build it anew.
    RebuiltInVain,
    /// A generation that could have gone on, or parted, was revoked.
    RevokedInVain,
    /// Calls failed before holders were asked to stop.
    FailsTooEarly,
    /// Calls wait though their patience has ended twice.
    WaitsPastItsDeadline,
    /// Others go first again and again.
    PassedOver,
    /// No path leads back to a state where all is well.
    Stuck,
}

/// What the judge has seen so far.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ghost {
    /// The latest generation, and its members.
    generation: u8,
    members: Participants,
    /// How often each waiting process was passed over.
    passed: [u8; PARTICIPANTS],
}

impl Ghost {
    pub fn judge(&mut self, case: &Case, events: &[Event], server: &Server) -> Option<Violation> {
        let mut found = None;
        for event in events {
            found = found.or(match *event {
                Event::Formed { generation, members, again, left, former } => {
                    let of = |participant: Participant| match left.has(participant) {
                        true => self.passed[participant] + 1,
                        false => 0,
                    };
                    self.passed = std::array::from_fn(of);
                    let was_revoked = again && former.is_some_and(|held| held.revoked);
                    self.formed(case, generation, members, again, was_revoked)
                }
                Event::AllReady { was_revoked: true } => Some(Violation::RevokedGoesOn),
                Event::RevokedInVain => Some(Violation::RevokedInVain),
                Event::Failed { early: true } => Some(Violation::FailsTooEarly),
                Event::AllReady { .. }
                | Event::Failed { .. }
                | Event::Revoked
                | Event::Freed
                | Event::Verdict => None,
            });
        }
        let waits = server.arrived();
        for (participant, passed) in self.passed.iter_mut().enumerate() {
            *passed = if waits.has(participant) && case.most() == 1 { *passed } else { 0 };
        }
        found
    }

    fn formed(
        &mut self,
        case: &Case,
        generation: u8,
        members: Participants,
        again: bool,
        was_revoked: bool,
    ) -> Option<Violation> {
        let latest = std::mem::replace(&mut self.generation, generation);
        self.members = members;
        let most = PROCESSES as u8 - 1;
        match () {
            () if was_revoked => Some(Violation::RevokedGoesOn),
            () if !again && generation <= latest => Some(Violation::GenerationReused),
            () if case.most() == 1 && self.passed.iter().any(|passed| *passed > most) => {
                Some(Violation::PassedOver)
            }
            () => None,
        }
    }

    /// A member of a generation hears who its members are.
    pub fn hears(
        &self,
        participant: Participant,
        generation: u8,
        members: Participants,
    ) -> Option<Violation> {
        let differs = generation == self.generation && members != self.members;
        (differs || !members.has(participant)).then_some(Violation::MembersDiffer)
    }
}
