//! Calls that are withdrawn, settled and acknowledged.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_api::{
    Arrival, Blob, CallId, Conclusion, LeaseId, ProcessId, Refusal, RoundOutcome, Terms,
};

use super::{Arrived, RoundKey, Unfinished};
use crate::coordination::act::Act;
use crate::coordination::{Call, CallState};
use crate::size;

impl Act<'_> {
    pub(super) fn withdraw_all(
        &mut self,
        lease: LeaseId,
        calls: &[CallId],
    ) -> Result<RoundOutcome, Refusal> {
        self.check_number(calls)?;
        let calls_max = self.limits.coordination.calls_per_process_max;
        let mut new: BTreeMap<ProcessId, BTreeSet<u64>> = BTreeMap::new();
        for CallId { process, incarnation, call } in calls {
            let record = self.attached(lease, *process, *incarnation)?;
            if *call < record.ack || record.calls.contains_key(call) {
                continue;
            }
            let of_process = new.entry(*process).or_default();
            of_process.insert(*call);
            if (record.calls.len() + of_process.len()) as u64 > calls_max {
                return Err(self.full("calls_per_process_max", calls_max));
            }
        }
        for CallId { process, call, .. } in calls {
            self.withdraw(*process, *call);
        }
        Ok(RoundOutcome::Done)
    }

    fn check_number(&self, calls: &[CallId]) -> Result<(), Refusal> {
        let max = self.limits.coordination.calls_per_command_max;
        size::within("calls_per_command_max", calls.len() as u64, max)
    }

    /// A decided call stays as it is. One that has not arrived yet is void, too: its
    /// arrival may come later, when its caller no longer waits.
    fn withdraw(&mut self, process: ProcessId, number: u64) {
        let Some(record) = self.coordination.processes.get_mut(&process) else {
            return;
        };
        let lease = record.lease;
        match record.calls.get(&number) {
            Some(Call { state: CallState::Waiting, .. }) => {
                let withdrawn = Some(CallState::Withdrawn);
                self.settle_call(process, number, withdrawn, Some(Unfinished::Withdrawn));
            }
            None if number >= record.ack => {
                let round = RoundKey::of(&Blob::default(), &Terms::default());
                let call = Call { round, at: self.revision, state: CallState::Withdrawn };
                record.calls.insert(number, call);
                self.changed = true;
            }
            _ => return,
        }
        self.tell(lease);
    }

    /// An exit that arrives after its withdrawal has failed, as one that was there before: the
    /// others would wait for it. Once it has failed, or nobody waits for it, nothing changes.
    pub(super) fn exit_withdrawn(&mut self, key: &RoundKey, arrival: &Arrival) {
        let Arrival { process, incarnation, ref payload, .. } = *arrival;
        let generation = key.generation().filter(|_| key.conclusion == Conclusion::Exit);
        let block = generation.and_then(|generation| self.coordination.blocks.get(&generation));
        let block = block.filter(|block| block.name == key.name && block.verdict.is_none());
        let Some(base) = block.map(|block| block.base.clone()) else {
            return;
        };
        let record = self.living(process, incarnation);
        if !base.members.contains(process, incarnation)
            || !record.is_ok_and(|record| record.has_part(base.witness))
        {
            return;
        }
        match self.coordination.rounds.get(key) {
            Some(round) => {
                let arrived = round.arrivals.get(&process);
                if arrived.is_some_and(|arrived| arrived.unfinished.is_some()) {
                    return;
                }
            }
            None => {
                let round = self.gathering(Some(base));
                self.open(key, round);
            }
        }
        self.leave_unfinished(key, process, incarnation, Unfinished::Withdrawn);
        self.coordination.note_failed(key, process, payload);
    }

    /// Ends a waiting call: with this state, or without a trace. An exit of an atomic
    /// block leaves a record of how it failed.
    pub fn settle_call(
        &mut self,
        process: ProcessId,
        number: u64,
        state: Option<CallState>,
        unfinished: Option<Unfinished>,
    ) {
        self.coordination.uncount(process);
        let Some(record) = self.coordination.processes.get_mut(&process) else {
            return;
        };
        let (incarnation, lease) = (record.incarnation, record.lease);
        let newcomer = record.member_since == 0;
        let Some(call) = record.calls.remove(&number) else {
            return;
        };
        let key = call.round;
        if let Some(state) = state {
            let call = Call { round: key.clone(), at: self.revision, state };
            record.calls.insert(number, call);
            self.tell(lease);
        }
        if let Some(round) = self.coordination.rounds.get_mut(&key)
            && let Some(arrived) = round.arrivals.remove(&process)
        {
            self.coordination.payload_bytes -= arrived.payload.len() as u64;
            self.left_held(&key, &arrived);
            let Some(round) = self.coordination.rounds.get_mut(&key) else { return };
            if key.conclusion == Conclusion::Exit
                && let Some(how) = unfinished
            {
                let how = arrived.unfinished.unwrap_or(how);
                round.arrivals.insert(process, Arrived::unfinished(incarnation, how));
                round.tally.add_unfinished();
            }
        }
        self.coordination.count(process, self.time);
        self.changed = true;
        if key.is_advance() {
            self.advance_changed(newcomer);
        }
        self.dirty.insert(key);
    }

    pub(super) fn acknowledge_all(
        &mut self,
        lease: LeaseId,
        calls: &[CallId],
    ) -> Result<RoundOutcome, Refusal> {
        self.check_number(calls)?;
        for CallId { process, incarnation, .. } in calls {
            self.attached(lease, *process, *incarnation)?;
        }
        for CallId { process, call, .. } in calls {
            self.acknowledge(*process, *call);
        }
        Ok(RoundOutcome::Done)
    }

    /// Calls below `ack` are finished: their outcomes are not kept, and one that
    /// still waits is withdrawn.
    pub(super) fn acknowledge(&mut self, process: ProcessId, ack: u64) {
        let Some(record) = self.coordination.processes.get_mut(&process) else {
            return;
        };
        if ack <= record.ack {
            return;
        }
        record.ack = ack;
        let over = record.calls.range(..ack);
        let over: Vec<(u64, CallState)> =
            over.map(|(number, call)| (*number, call.state.clone())).collect();
        for (number, state) in over {
            match state {
                CallState::Waiting => {
                    self.settle_call(process, number, None, Some(Unfinished::Withdrawn));
                    continue;
                }
                CallState::Closed(generation) => self.release(generation),
                CallState::Failed(_) | CallState::Withdrawn => {}
            }
            if let Some(record) = self.coordination.processes.get_mut(&process) {
                record.calls.remove(&number);
            }
        }
    }
}
