//! One program's records, read in their order.

use holdfast_api::{Policy, ProcessId, Role};

use super::{Answer, Branch, Call, Participant, sooner};
use crate::history::{Meaning, Moment, Program, Record, What};

/// The record of one program, and what it may mean for others.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub program: Program,
    pub participants: Vec<Participant>,
    /// The run of each incarnation.
    pub runs: Vec<String>,
    /// Registrations that were tried, with their runs: each may have ended the
    /// incarnation before it, whatever answer the program got.
    pub attempts: Vec<(String, ProcessId, Moment)>,
    /// Those of them with unknown outcome.
    pub unheard: Vec<(String, ProcessId, Moment)>,
    /// The first arrival at a round that may declare others dead.
    pub evicts: Option<Moment>,
    pub nonsense: Vec<String>,
}

/// A registration in progress.
struct Joining<'r> {
    run: &'r String,
    process: ProcessId,
    role: Role,
    policy: &'r Policy,
    at: Moment,
}

impl Account {
    pub fn by(program: &Program, records: &[Record]) -> Account {
        let mut told = Account { program: program.clone(), ..Account::default() };
        let mut joining: Option<Joining<'_>> = None;
        let mut before = 0;
        for Record { at, what } in records {
            if *at < before {
                told.nonsense.push(format!("{program}: the clock goes back at {at}"));
            }
            before = *at;
            match what {
                What::Join { run, process, role, policy } => {
                    told.attempts.push((run.clone(), *process, *at));
                    told.give_up(&mut joining);
                    joining =
                        Some(Joining { run, process: *process, role: *role, policy, at: *at });
                }
                What::NotJoined { .. } => told.give_up(&mut joining),
                What::Joined { incarnation, since } => match joining.take() {
                    Some(Joining { run, process, role, policy, at: asked }) => {
                        told.runs.push(run.clone());
                        told.participants.push(Participant {
                            run: 0,
                            process,
                            incarnation: *incarnation,
                            since: *since,
                            program: program.clone(),
                            role,
                            policy: policy.clone(),
                            registered: (asked, *at),
                            calls: Vec::new(),
                            branches: Vec::new(),
                            runs: Vec::new(),
                            revoked: Vec::new(),
                            leaves: None,
                            over: None,
                            lost: None,
                            dies: None,
                            disturbed: None,
                            contested: None,
                            suspect: None,
                        });
                    }
                    None => told.nonsense.push(format!("{program}: joined unasked at {at}")),
                },
                _ => told.take(program, *at, what),
            }
        }
        told.give_up(&mut joining);
        told
    }

    fn give_up(&mut self, joining: &mut Option<Joining<'_>>) {
        if let Some(Joining { run, process, at, .. }) = joining.take() {
            self.unheard.push((run.clone(), process, at));
        }
    }

    /// Takes a record of the program's present incarnation.
    fn take(&mut self, program: &Program, at: Moment, what: &What) {
        let answer = match what {
            What::Outcome(outcome) => Answer::Outcome(outcome.clone()),
            What::Failed { meaning, .. } => Answer::Failed(*meaning),
            What::Call(arrival) => {
                self.evicts = self.evicts.or(arrival.evicts.then_some(at));
                return self.begin(program, at, what);
            }
            What::Leave
            | What::Left
            | What::Branch { .. }
            | What::Runs { .. }
            | What::Revoked { .. } => {
                return self.begin(program, at, what);
            }
            _ => return,
        };
        let call = self.participants.last_mut().and_then(|participant| {
            match answer {
                Answer::Failed(Meaning::Ended) => sooner(&mut participant.over, at),
                Answer::Failed(Meaning::Lost) => sooner(&mut participant.lost, at),
                _ => {}
            }
            participant.calls.last_mut().filter(|call| call.answer.is_none())
        });
        match call {
            Some(call) => call.answer = Some((at, answer)),
            None => self.nonsense.push(format!("{program}: an answer without a call at {at}")),
        }
    }

    fn begin(&mut self, program: &Program, at: Moment, what: &What) {
        let Some(participant) = self.participants.last_mut() else {
            return self.nonsense.push(format!("{program}: {what:?} before it joined, at {at}"));
        };
        let waits = participant.calls.last().is_some_and(|call| call.answer.is_none());
        match what {
            What::Call(_) if waits => {
                self.nonsense.push(format!("{program}: a call within a call at {at}"));
            }
            What::Branch { .. } if waits => {
                self.nonsense.push(format!("{program}: a branch within a call at {at}"));
            }
            What::Runs { .. } if waits => {
                self.nonsense.push(format!("{program}: something ran within a call at {at}"));
            }
            What::Call(arrival) => {
                let arrival = arrival.as_ref().clone();
                participant.calls.push(Call { arrival, at, answer: None });
            }
            What::Branch { block, succeeded } => {
                participant.branches.push(Branch { at, block: *block, succeeded: *succeeded });
            }
            What::Runs { generation } => participant.runs.push((*generation, at)),
            What::Revoked { generation } => participant.revoked.push((*generation, at)),
            What::Leave => participant.leaves = Some(at),
            _ => sooner(&mut participant.over, at),
        }
    }
}
