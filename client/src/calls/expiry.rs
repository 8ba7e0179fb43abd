//! What happens to the calls of a session that is gone.

use holdfast_api::{Effectiveness, Problem, Refusal, SessionId};

use super::Calls;
use crate::call::{Call, CallId};
use crate::error::Error;

impl Calls {
    /// The session is gone. What may have been applied under it ends; what certainly
    /// was not goes out under the next one. What is bound to it goes on, too, unless
    /// it may have ended with processes: the others have gone on without them. For one
    /// of these on the wire, its own answer is awaited.
    pub(crate) fn session_expired(&mut self) {
        let Some(session) = self.session_keeper.expired() else { return };
        self.over = session;
        self.counters.sessions_over.add(1);
        let is_lost =
            self.session_keeper.has_borne_processes() || holdfast_api::planted!(AbsenceIsDeath);
        if is_lost {
            self.counters.sessions_lost.add(1);
        }
        let goes_with_it = |call: &Call| is_lost && call.bound.is_some();
        let is_affected = |call: &Call| {
            call.needs_session() && (call.progress.sequence.is_some() || goes_with_it(call))
        };
        let affected: Vec<CallId> =
            self.open.iter().filter(|(_, call)| is_affected(call)).map(|(id, _)| *id).collect();
        for id in affected {
            self.dequeue(id);
            let Some(call) = self.open.get_mut(&id) else { continue };
            let goes_on = call.bound.is_some() && !is_lost && !call.progress.uncertain;
            if goes_on && call.progress.wire.is_some() {
                call.progress.sequence = None;
                call.progress.orphan_of = Some(session);
            } else if goes_with_it(call) || call.effect() == Effectiveness::Unknown {
                self.fail(id, Error::SessionExpired { session });
            } else {
                self.take_off_wire(id);
                let Some(call) = self.open.get_mut(&id) else { continue };
                call.progress.sequence = None;
                self.enqueue(id);
            }
        }
        // Also those that have just failed: the next session uses their sequences again.
        self.unsettled.clear();
        self.unsettled_of.clear();
    }

    /// This try of a command arrived after its session was gone.
    pub(crate) fn came_too_late(&mut self, id: CallId, session: SessionId) {
        if self.session_keeper.session().is_some_and(|present| present.id() == session) {
            self.session_expired();
        }
        match self.open.get(&id).map(|call| call.progress.orphan_of) {
            Some(Some(_)) => {
                self.take_off_wire(id);
                self.enqueue(id);
            }
            Some(None) => self.fail(id, Error::SessionExpired { session }),
            None => {}
        }
    }

    /// Fails a command that may have been applied under a session that is gone.
    pub(crate) fn fail_uncertain_orphan(&mut self, id: CallId) -> bool {
        let progress = self.open.get(&id).map(|call| &call.progress);
        let orphan_of = progress.filter(|progress| progress.uncertain);
        let Some(session) = orphan_of.and_then(|progress| progress.orphan_of) else { return false };
        self.fail(id, Error::SessionExpired { session });
        true
    }

    /// Fails the commands that wait for a session that cannot be opened. Where one job has its
    /// share of sessions, these are that job's: the next session is opened for another one. One
    /// that was to be opened with a lease (`is_leased`) counts for the lease's job, whatever it is
    /// opened for.
    pub(crate) fn session_refused(&mut self, problem: &Problem, is_leased: bool) {
        let of_job = match &problem.refusal {
            Some(Refusal::ClusterFull { held: Some(_), job, .. }) if !is_leased => {
                Some(job.as_ref())
            }
            _ => None,
        };
        let fresh = self.queues.fresh.iter().copied();
        let waiting: Vec<CallId> = fresh.chain(self.queues.small.all()).collect();
        for id in waiting {
            let Some(call) = self.open.get(&id) else { continue };
            if of_job.is_none_or(|job| call.ask.job() == job) {
                self.fail(id, Error::refused(problem.clone()));
            }
        }
    }
}
