//! Small commands on keys travel together: while some are under way, those that come
//! gather, and go out as one command with one place in the session. Its answer holds
//! one for each. Between client and disk a command costs the same however much is in it.
//!
//! A pipeline exists while it may be applied, and is then the same each time it is sent.
//! One that certainly was not applied is taken apart: its commands wait like others, and
//! whoever has left by then is not carried out.

use std::time::Duration;

use holdfast_api::{Answer, Command, KvOp, Outcome, PIPELINE_OPS_MAX, PipelinedOutcome, Scope};

use tokio::time::Instant;

use super::Calls;
use crate::call::{Ask, Call, CallId, Permits, Pipeline};
use crate::error::Error;

/// Small commands, alone or as pipelines, under way at a time. One is on its way while the
/// other is synced; with more of them each would hold less.
const UNDER_WAY_MAX: usize = 2;

/// Bytes after which a pipeline takes no more commands; a node that has it does not take
/// long over it.
const BYTES_MAX: usize = 128 * 1024;

/// Longest command, in bytes and in keys, that goes with others.
const SMALL_BYTES_MAX: usize = 8 * 1024;
const SMALL_STEPS_MAX: usize = 64;

/// Keys after which a pipeline takes no more commands.
const STEPS_MAX: usize = 512;

/// A cluster that was too old for pipelines may have been upgraded after so long.
const LEVEL_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// The client's own calls are numbered from here on.
const OWN_CALLS_FROM: CallId = 1 << 63;

impl Call {
    /// The scope and the command, if it is a small one on keys.
    fn small(&self) -> Option<(&Scope, &KvOp)> {
        let Ask::Propose { command: Command::Kv { scope, op }, .. } = &self.ask else {
            return None;
        };
        let is_small = self.bytes <= SMALL_BYTES_MAX && op.steps() <= SMALL_STEPS_MAX;
        is_small.then_some((scope, op))
    }

    pub(super) fn is_small(&self) -> bool {
        self.small().is_some()
    }

    /// Whether two small commands may go together: in one place, under one session, and
    /// refused for want of space alike.
    fn goes_with(&self, other: &Call) -> bool {
        match (self.small(), other.small()) {
            (Some((scope, op)), Some((other_scope, other_op))) => {
                scope == other_scope && self.bound == other.bound && op.adds() == other_op.adds()
            }
            _ => false,
        }
    }
}

impl Calls {
    /// The small command that goes out next, if one may now.
    pub(super) fn first_small(&self) -> Option<CallId> {
        let may = !self.pipelines || self.in_step.len() < UNDER_WAY_MAX;
        self.queues.small.first().copied().filter(|_| may)
    }

    /// The call that goes out in the place of this one: a pipeline, if others wait that
    /// can go with it.
    pub(super) fn with_company(&mut self, id: CallId) -> CallId {
        if !self.pipelines || !self.queues.small.contains(&id) {
            return id;
        }
        let Some(first) = self.open.get(&id) else { return id };
        let (bound, mut bytes, mut steps) = (first.bound, 0, 0);
        let mut members = Vec::new();
        for other in &self.queues.small {
            let Some(call) = self.open.get(other).filter(|call| call.goes_with(first)) else {
                continue;
            };
            bytes += call.bytes;
            steps += call.small().map_or(0, |(_, op)| op.steps());
            let is_full =
                bytes > BYTES_MAX || steps > STEPS_MAX || members.len() >= PIPELINE_OPS_MAX;
            if is_full && !members.is_empty() {
                bytes -= call.bytes;
                break;
            }
            members.push(*other);
        }
        if members.len() < 2 {
            return id;
        }
        let Some((scope, _)) = first.small() else { return id };
        let op = |id: &CallId| self.open.get(id)?.small().map(|(_, op)| op.clone());
        let ops: Vec<KvOp> = members.iter().filter_map(op).collect();
        let command = Command::Pipeline { scope: scope.clone(), ops };
        self.last_own += 1;
        let pipeline = OWN_CALLS_FROM + self.last_own;
        for member in &members {
            self.queues.small.remove(member);
            if let Some(call) = self.open.get_mut(member) {
                call.progress.pipeline = Some(pipeline);
            }
        }
        self.counters.pipelined.add(members.len() as u64);
        let members = members.into_iter().map(Some).collect();
        let ask = Ask::Pipeline(Pipeline { command, members });
        let call = Call::new(ask, None, bytes, Permits::default());
        self.open.insert(pipeline, Call { bound, ..call });
        pipeline
    }

    /// The nodes of the cluster do not all take pipelines yet: this one's commands go out
    /// by themselves, and so do all others for a while.
    pub(crate) fn not_pipelined(&mut self, id: CallId, now: Instant) {
        (self.pipelines, self.pipelines_again) = (false, Some(now + LEVEL_AGAIN_AFTER));
        self.take_off_wire(id);
        self.enqueue(id);
    }

    pub(crate) fn is_pipeline(&self, id: CallId) -> bool {
        matches!(self.open.get(&id), Some(Call { ask: Ask::Pipeline(_), .. }))
    }

    /// The calls that are to be sent again in the place of this one: the commands of a
    /// pipeline that certainly was not applied, or the call itself.
    pub(super) fn apart(&mut self, id: CallId) -> Vec<CallId> {
        let whole = match self.open.get(&id) {
            Some(Call { ask: Ask::Pipeline(_), progress, .. }) => progress.uncertain,
            _ => true,
        };
        if whole {
            return vec![id];
        }
        let Some(Call { ask: Ask::Pipeline(pipeline), progress, .. }) = self.remove(id) else {
            return Vec::new();
        };
        let members: Vec<CallId> = pipeline.members.into_iter().flatten().collect();
        for member in &members {
            if let Some(call) = self.open.get_mut(member) {
                call.progress.pipeline = None;
                call.progress.turned_away = progress.turned_away;
                call.progress.trouble.clone_from(&progress.trouble);
            }
        }
        members
    }

    /// The caller of one of its commands has left. A pipeline in which nobody is left is
    /// not sent again.
    pub(super) fn leave_pipeline(&mut self, pipeline: CallId, member: CallId) {
        let Some(Call { ask: Ask::Pipeline(found), .. }) = self.open.get_mut(&pipeline) else {
            return;
        };
        for place in &mut found.members {
            place.take_if(|id| *id == member);
        }
        if found.members.iter().all(Option::is_none) {
            self.remove(pipeline);
        }
    }

    /// Hands each command's share of the answer to its caller.
    pub(crate) fn finish_pipeline(&mut self, id: CallId, answer: Answer) {
        self.take_off_wire(id);
        let Some(Call { ask: Ask::Pipeline(pipeline), .. }) = self.remove(id) else { return };
        let Answer { outcome, replayed, .. } = answer;
        let outcomes = match outcome {
            Outcome::Pipeline(outcomes) if outcomes.len() == pipeline.members.len() => outcomes,
            _ => {
                for member in pipeline.members.into_iter().flatten() {
                    self.fail(member, Error::unexpected("a pipeline"));
                }
                return;
            }
        };
        for (member, pipelined) in pipeline.members.into_iter().zip(outcomes) {
            let Some(member) = member else { continue };
            let outcome = match pipelined.outcome {
                PipelinedOutcome::Kv(outcome) => outcome,
                PipelinedOutcome::Refused(refusal) => {
                    self.fail(member, Error::from_refusal(refusal));
                    continue;
                }
            };
            if let Some(Call { ask: Ask::Propose { reply, .. }, .. }) = self.remove(member) {
                let revision = pipelined.revision;
                let answer = Answer { revision, outcome: Outcome::Kv(outcome), replayed };
                // One that has just gone away is no longer interested.
                drop(reply.send(Ok(answer)));
            }
        }
    }
}
