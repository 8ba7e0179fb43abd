//! Small commands on keys are sent together: while one is under way, further ones
//! gather, and go out as one command with one place in the session. Its answer holds one
//! for each. Between client and disk a command costs the same however much is in it. So the
//! callers that were just answered get a moment to submit their next commands, which then go
//! with those that have gathered.
//!
//! A pipeline exists while it may be applied, and is then the same each time it is sent.
//! One that certainly was not applied is taken apart: its commands wait like others, and
//! those whose caller has left are dropped.

use std::sync::Arc;

use holdfast_api::version::{MINOR_PIPELINES, PIPELINE_LEVEL};
use holdfast_api::{Answer, Command, KvOp, Outcome, PIPELINE_OPS_MAX, PipelinedOutcome, Scope};

use super::Calls;
use super::queues::Group;
use crate::call::{Ask, Call, CallId, Permits, Pipeline, Progress};
use crate::error::Error;

/// Most small commands of a group, alone or as pipelines, under way at a time; one more if the
/// last one was full. With more of them each would hold less.
pub(super) const UNDER_WAY_MAX: usize = 1;

/// Bytes after which a pipeline takes no more commands, so that a node applies it
/// quickly.
const BYTES_MAX: usize = 128 * 1024;

/// Longest command, in bytes and in keys, that goes with others.
const SMALL_BYTES_MAX: usize = 8 * 1024;
const SMALL_STEPS_MAX: usize = 64;

/// Keys after which a pipeline takes no more commands.
const STEPS_MAX: usize = 512;

/// The client's own calls are numbered from here on.
const OWN_CALLS_FROM: CallId = 1 << 63;

impl Call {
    /// The scope and the command, if it is a small one on keys.
    fn small(&self) -> Option<(&Scope, &KvOp)> {
        let Ask::Propose { command: Command::Kv { scope, op }, .. } = &self.ask else {
            return None;
        };
        let is_small = self.bytes <= SMALL_BYTES_MAX && op.steps() <= SMALL_STEPS_MAX;
        (is_small && !op.answers_a_value()).then_some((scope, op))
    }

    /// Whether it is a small one that has no place in the session yet.
    fn is_new_small(&self) -> bool {
        self.progress.sequence.is_none() && self.small().is_some()
    }

    /// The group of small calls that it may go out with, if it is one on keys.
    pub(super) fn group_of_small(&self) -> Option<Arc<Group>> {
        let (scope, op) = self.small()?;
        Some(Arc::new(Group { scope: scope.clone(), bound: self.bound, adds: op.size().adds }))
    }
}

impl Calls {
    /// Small commands go together from now on if the node knows pipelines and the cluster
    /// takes them, and each by itself if not. Answers whether the cluster is yet to reach the level
    /// from which it does.
    pub(crate) fn level_known(&mut self, level: u32) -> bool {
        let known = self.minor >= MINOR_PIPELINES;
        self.pipelines = known && level >= PIPELINE_LEVEL;
        self.queues.small.bound(if self.pipelines { UNDER_WAY_MAX } else { usize::MAX });
        known && !self.pipelines
    }

    /// The call that goes out in the place of this one, within this many bytes:
    /// a pipeline, if others wait that can go with it.
    pub(super) fn with_company(&mut self, id: CallId, room: usize) -> CallId {
        let Some(first) = self.open.get(&id).filter(|call| call.is_new_small()) else {
            return id;
        };
        let Some(group) = first.group.clone().filter(|_| self.pipelines) else { return id };
        let (mut bytes, mut steps) = (0, 0);
        let (mut members, mut ops) = (Vec::new(), Vec::new());
        let mut progress = Progress::default();
        let mut is_full = false;
        for id in self.queues.small.of(&group) {
            let Some(call) = self.open.get(&id) else { continue };
            let Some((_, op)) = call.small() else { continue };
            bytes += call.bytes;
            steps += op.steps();
            is_full = bytes > BYTES_MAX.min(room)
                || steps > STEPS_MAX
                || members.len() >= PIPELINE_OPS_MAX;
            if is_full {
                bytes -= call.bytes;
                break;
            }
            members.push(id);
            ops.push(op.clone());
            progress.turned_away = progress.turned_away.max(call.progress.turned_away);
            progress.trouble = progress.trouble.or_else(|| call.progress.trouble.clone());
        }
        self.queues.small.filled(&group, is_full);
        if members.len() < 2 {
            return id;
        }
        self.last_own += 1;
        let pipeline = OWN_CALLS_FROM + self.last_own;
        for member in &members {
            self.queues.small.remove(&group, *member);
            if let Some(call) = self.open.get_mut(member) {
                call.progress.pipeline = Some(pipeline);
            }
        }
        self.counters.pipelined.add(members.len() as u64);
        let members = members.into_iter().map(Some).collect();
        let command = Command::Pipeline { scope: group.scope.clone(), ops };
        let ask = Ask::Pipeline(Pipeline { command, members });
        let call = Call::new(ask, None, bytes, Permits::default());
        let (bound, group) = (group.bound, Some(group));
        self.open.insert(pipeline, Call { bound, group, progress, ..call });
        pipeline
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
        // No caller waits for an answer under that sequence.
        let sequence = self.open.get_mut(&id).and_then(|call| call.progress.sequence.take());
        if let Some(sequence) = sequence {
            self.release(sequence);
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

    /// The caller of one of its commands has left. A pipeline without callers is not
    /// sent again.
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
        self.answered_callers(pipeline.members.len());
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
                // A caller that has just gone away is no longer interested.
                drop(reply.send(Ok(answer)));
            }
        }
    }
}
