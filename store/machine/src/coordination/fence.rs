//! The end of an incarnation goes before every answer that a session keeps for it.

use holdfast_api::{
    Answer, ArrivalAnswer, CallId, Command, Incarnation, LeaseId, Outcome, ProcessCommand,
    ProcessId, ProcessOutcome, Refusal, RoundCommand, RoundOutcome,
};

use crate::machine::Machine;

impl Machine {
    /// A kept answer as it is sent now: incarnations that have ended since are sent
    /// that alone.
    pub(crate) fn fence(&self, command: &Command, kept: Answer) -> Answer {
        let refused = |refusal: Option<Refusal>| refusal.map(Outcome::Refused);
        let outcome = match (command, &kept.outcome) {
            (
                Command::Process(ProcessCommand::Register { lease, .. }),
                Outcome::Process(ProcessOutcome::Registered { process, incarnation, .. }),
            ) => refused(self.ended(*lease, *process, *incarnation)),
            (
                Command::Round(
                    RoundCommand::Withdraw { lease, calls }
                    | RoundCommand::Acknowledge { lease, calls },
                ),
                Outcome::Round(RoundOutcome::Done),
            ) => refused(calls.iter().find_map(|CallId { process, incarnation, .. }| {
                self.ended(*lease, *process, *incarnation)
            })),
            (
                Command::Round(RoundCommand::Arrive { lease, arrivals, .. }),
                Outcome::Round(RoundOutcome::Arrived(answers)),
            ) => {
                let told = arrivals.iter().zip(answers).map(|(arrival, answer)| {
                    let ended = self.ended(*lease, arrival.process, arrival.incarnation);
                    ended.map_or_else(|| answer.clone(), ArrivalAnswer::Refused)
                });
                Some(Outcome::Round(RoundOutcome::Arrived(told.collect())))
            }
            _ => None,
        };
        match outcome {
            Some(outcome) if outcome != kept.outcome => {
                Answer { revision: self.revision, outcome, ..kept }
            }
            _ => kept,
        }
    }

    /// The refusal for an incarnation that has ended, with its host or alone.
    fn ended(
        &self,
        lease: LeaseId,
        process: ProcessId,
        incarnation: Incarnation,
    ) -> Option<Refusal> {
        let run = match self.leases.run(lease) {
            Ok(run) => run,
            Err(refusal) => return Some(refusal),
        };
        let coordination = &self.jobs.run(&run)?.coordination;
        coordination.living(process, incarnation).err()
    }
}
