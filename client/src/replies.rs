//! What a node's reply means for the call it answers. Pure, like the table it
//! works on.

use std::time::Duration;

use holdfast_api::{
    Answer, Code, Effectiveness, LeaderHint, LeaseOutcome, Outcome, Problem, ReadAnswer,
    ReadOutcome, Refusal, Reply, ReplyBody, SessionOutcome, WatchBatch, WatchProgress,
};
use tokio::time::Instant;

use crate::call::{Ask, Call, CallId};
use crate::calls::Calls;
use crate::error::Error;
use crate::events::EventsPage;
use crate::leader_tracker::Random;
use crate::session_keeper::SessionTaskKind;

/// Times that a call is sent again at once after a node turned it away.
const QUICK_RETRIES_MAX: u32 = 3;

/// Longest pause that a node can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);

/// What a reply says about the node that sent it.
#[derive(Debug, PartialEq)]
pub(crate) enum News {
    /// The reply says nothing about who leads.
    None,
    /// It does not lead; it may know which node does.
    NotLeader(Option<LeaderHint>),
}

impl Calls {
    /// Takes in one reply of the connected node.
    pub(crate) fn on_reply(&mut self, reply: Reply, now: Instant, random: Random<'_>) -> News {
        if let Some(kind) = self.session_keeper.session_task_on_wire(reply.id) {
            return self.on_session_task_reply(kind, reply.body, now, random);
        }
        if let ReplyBody::Progress(progress) = &reply.body {
            self.on_progress(progress);
            return News::None;
        }
        // A late reply to a call that ended, or to a watch that was cut.
        let Some(&id) = self.on_wire.get(&reply.id) else { return News::None };
        match reply.body {
            ReplyBody::Problem(problem) => return self.on_problem(id, problem, now, random),
            body => self.on_answer(id, body, now, random),
        }
        News::None
    }

    fn on_answer(&mut self, id: CallId, body: ReplyBody, now: Instant, random: Random<'_>) {
        let Some(call) = self.open.get_mut(&id) else { return };
        match (&mut call.ask, body) {
            (Ask::Propose { .. } | Ask::Pipeline(_), ReplyBody::Answer(answer)) => {
                self.on_outcome(id, answer, now, random);
            }
            (Ask::Wait { wait, .. }, ReplyBody::Waiting { revision }) => {
                let since = *wait.since.get_or_insert(revision);
                if let Some(began) = wait.began.take() {
                    // Whoever asked may have gone.
                    let _ = began.send(since);
                }
            }
            (Ask::Watch(_), ReplyBody::Changes(batch)) => self.on_changes(id, batch),
            (Ask::Feed(_), ReplyBody::Read(answer)) => self.on_feed(id, answer),
            (Ask::Events(_), ReplyBody::Read(answer)) => self.on_events(id, answer),
            (Ask::Pipeline(_), _) => self.fail(id, Error::unexpected("a pipeline")),
            (_, body) => self.finish(id, body),
        }
    }

    /// Hands a final answer to the caller.
    fn finish(&mut self, id: CallId, body: ReplyBody) {
        // Answered, so the node has nothing left to forget.
        self.take_off_wire(id);
        for sharer in self.take_sharers(id) {
            if let Some(call) = self.remove(sharer) {
                self.counters.reads_shared.add(1);
                self.answered_callers(1);
                give(call.ask, body.clone());
            }
        }
        if let Some(call) = self.remove(id) {
            self.answered_callers(1);
            give(call.ask, body);
        }
    }

    fn on_outcome(&mut self, id: CallId, answer: Answer, now: Instant, random: Random<'_>) {
        if answer.replayed {
            self.counters.replayed.add(1);
        }
        match &answer.outcome {
            Outcome::Refused(Refusal::SessionExpired { session }) => {
                self.came_too_late(id, *session);
            }
            Outcome::Refused(refusal @ Refusal::SessionWindowFull { .. }) => {
                let turned_away = self.open.get(&id).map_or(0, |call| call.progress.turned_away);
                self.turned_away(id, refusal.to_string());
                self.delay(id, self.backoff.pause(turned_away, random()), now);
            }
            Outcome::Refused(refusal) => {
                if let Refusal::LeaseEnded { lease } = &refusal {
                    self.session_keeper.lease_ended(*lease);
                }
                self.take_off_wire(id);
                self.fail(id, Error::from_refusal(refusal.clone()));
            }
            _ if self.is_pipeline(id) => self.finish_pipeline(id, answer),
            Outcome::Lease(LeaseOutcome::Granted { lease, .. }) => {
                self.session_keeper.holds(*lease);
                self.finish(id, ReplyBody::Answer(answer));
            }
            _ => self.finish(id, ReplyBody::Answer(answer)),
        }
    }

    fn on_changes(&mut self, id: CallId, batch: WatchBatch) {
        let Some(call) = self.open.get_mut(&id) else { return };
        let Ask::Watch(watch) = &mut call.ask else { return };
        let revision = batch.revision;
        if revision < watch.next {
            // Delivered before.
            return;
        }
        if batch.changes.is_empty() || watch.mailbox.offer(batch) {
            watch.next = revision.saturating_add(1);
            call.progress.turned_away = 0;
        } else if let Some(wire) = call.progress.wire {
            // Cut here; it goes on from `next` once the consumer has caught up.
            self.take_off_wire(id);
            self.cancel(wire);
        }
    }

    fn on_feed(&mut self, id: CallId, answer: ReadAnswer) {
        let Some(call) = self.open.get_mut(&id) else { return };
        let Ask::Feed(ask) = &mut call.ask else { return };
        let piece = match answer.outcome {
            ReadOutcome::Feed(piece) => piece,
            other => {
                let error = match other {
                    ReadOutcome::Refused(refusal) => Error::from_refusal(refusal),
                    _ => Error::unexpected("a feed"),
                };
                self.take_off_wire(id);
                return self.fail(id, error);
            }
        };
        if piece.upto <= ask.since {
            // Delivered before.
            return;
        }
        let (since, mut have) = (piece.upto, ask.have.clone());
        piece.note_rosters(&mut have);
        if ask.mailbox.offer(piece) {
            (ask.since, ask.have) = (since, have);
            call.progress.turned_away = 0;
        } else if let Some(wire) = call.progress.wire {
            // Cut here, as a watch is.
            self.take_off_wire(id);
            self.cancel(wire);
        }
    }

    fn on_events(&mut self, id: CallId, answer: ReadAnswer) {
        let Some(call) = self.open.get_mut(&id) else { return };
        let Ask::Events(ask) = &mut call.ask else { return };
        let page = match answer.outcome {
            ReadOutcome::Events { events, compacted, upto } => {
                EventsPage { events, compacted, upto }
            }
            other => {
                let error = match other {
                    ReadOutcome::Refused(refusal) => Error::from_refusal(refusal),
                    _ => Error::unexpected("events"),
                };
                self.take_off_wire(id);
                return self.fail(id, error);
            }
        };
        let upto = page.upto;
        if upto <= ask.after {
            // Delivered before.
            return;
        }
        if ask.mailbox.offer(page) {
            ask.after = upto;
            call.progress.turned_away = 0;
        } else if let Some(wire) = call.progress.wire {
            // Cut here, as a watch is.
            self.take_off_wire(id);
            self.cancel(wire);
        }
    }

    /// Watches of quiet keys resume from where they are, not from their latest
    /// change.
    fn on_progress(&mut self, progress: &WatchProgress) {
        let next = progress.revision.saturating_add(1);
        for (first, last) in progress.watches.iter().filter(|(first, last)| first <= last) {
            for id in self.on_wire.range(first..=last).map(|(_, id)| id) {
                if let Some(Call { ask: Ask::Watch(watch), .. }) = self.open.get_mut(id) {
                    watch.next = watch.next.max(next);
                }
            }
        }
    }

    fn on_problem(
        &mut self,
        id: CallId,
        problem: Problem,
        now: Instant,
        random: Random<'_>,
    ) -> News {
        let Some(call) = self.open.get_mut(&id) else { return News::None };
        let final_for_it = match &call.ask {
            // Nothing tells an earlier try of an operator's request from a new
            // one, and what prevents it is for the operator to know.
            Ask::Admin { .. } => {
                !(says_nobody_leads(&problem) || problem.code == Code::Overloaded)
                    || !problem.retryable
                    || problem.outcome != Effectiveness::None
            }
            Ask::Propose { .. } | Ask::Pipeline(_) if problem.code == Code::SessionExpired => {
                match &problem.refusal {
                    Some(Refusal::SessionExpired { session }) => self.came_too_late(id, *session),
                    _ => {
                        self.session_expired();
                        self.fail(id, Error::refused(problem));
                    }
                }
                return News::None;
            }
            // It was sent because a node had seen the level reached: this one has yet to.
            Ask::Pipeline(_) if problem.code == Code::FeatureLevel => false,
            _ => !problem.retryable,
        };
        if final_for_it {
            let outcome = match call.progress.uncertain {
                // This try had no effect; an earlier one may have had.
                true if problem.outcome == Effectiveness::None => Effectiveness::Unknown,
                _ => problem.outcome,
            };
            let error = Error::refused(Problem { outcome, ..problem });
            self.take_off_wire(id);
            for sharer in self.take_sharers(id) {
                self.fail(sharer, error.clone());
            }
            self.fail(id, error);
            return News::None;
        }
        call.progress.uncertain |= problem.outcome != Effectiveness::None && call.ask.has_effect();
        if self.fail_uncertain_orphan(id) {
            return News::None;
        }
        let Some(call) = self.open.get_mut(&id) else { return News::None };
        let nobody_leads = call.ask.needs_leader() && says_nobody_leads(&problem);
        let turned_away = call.progress.turned_away;
        let asked_for = Duration::from_millis(problem.retry_after_ms.unwrap_or(0));
        self.turned_away(id, problem.message);
        if !nobody_leads {
            self.give_number_back(id);
            let pause = self.backoff.pause(turned_away, random());
            // Clients that were turned away together do not come back together.
            let asked_for = asked_for.min(RETRY_AFTER_MAX).mul_f64(1.0 + random() / 4.0);
            self.delay(id, pause.max(asked_for), now);
            return News::None;
        }
        // A node may lead and still serve nothing, for instance with a full
        // disk. Calls that it turns away again and again are sent less often.
        match turned_away.checked_sub(QUICK_RETRIES_MAX) {
            Some(nth) => self.delay(id, self.backoff.pause(nth, random()), now),
            None => self.enqueue(id),
        }
        News::NotLeader(problem.leader)
    }

    /// A command that was certainly not done waits for its next try without its place in
    /// the session: that place would hold up all the others after some time.
    fn give_number_back(&mut self, id: CallId) {
        let call = self.open.get_mut(&id).filter(|call| !call.progress.uncertain);
        if let Some(sequence) = call.and_then(|call| call.progress.sequence.take()) {
            self.release(sequence);
        }
    }

    fn turned_away(&mut self, id: CallId, why: String) {
        self.take_off_wire(id);
        if let Some(call) = self.open.get_mut(&id) {
            call.progress.turned_away = call.progress.turned_away.saturating_add(1);
            call.progress.trouble = Some(why);
        }
    }

    fn on_session_task_reply(
        &mut self,
        kind: SessionTaskKind,
        body: ReplyBody,
        now: Instant,
        random: Random<'_>,
    ) -> News {
        let problem = match (kind, body) {
            (_, ReplyBody::Problem(problem)) => problem,
            (SessionTaskKind::Open { .. }, ReplyBody::Answer(Answer { outcome, .. })) => {
                match outcome {
                    Outcome::Session(SessionOutcome::Opened { session, ttl_ms, window }) => {
                        self.note_opened(session, window, Duration::from_millis(ttl_ms));
                        self.session_keeper.opened(
                            session,
                            window,
                            Duration::from_millis(ttl_ms),
                            now,
                        );
                        return News::None;
                    }
                    Outcome::Refused(refusal) => Problem::from(refusal),
                    _ => Problem::refused(
                        Code::Internal,
                        "the node's answer to opening a session is of another kind; do their versions fit?",
                    ),
                }
            }
            (
                SessionTaskKind::KeepAlive(_),
                ReplyBody::Answer(Answer {
                    outcome: Outcome::Refused(Refusal::SessionExpired { .. }),
                    ..
                }),
            ) => {
                self.session_expired();
                return News::None;
            }
            _ => {
                self.session_keeper.session_task_done();
                return News::None;
            }
        };
        if problem.code == Code::SessionExpired {
            self.session_expired();
            self.session_keeper.session_task_done();
        } else if !problem.retryable {
            self.session_keeper.session_task_done();
            let lease = match &problem.refusal {
                Some(Refusal::LeaseEnded { lease }) if !holdfast_api::planted!(EndedLease) => {
                    Some(*lease)
                }
                _ => None,
            };
            if let Some(lease) = lease {
                self.session_keeper.lease_ended(lease);
            }
            // Where only a lease has ended, maybe with the session before, the next
            // one opens without it; not where processes were declared dead with it.
            let goes_on = lease.is_some() && !self.session_keeper.has_borne_processes();
            if let (SessionTaskKind::Open { is_leased, .. }, false) = (kind, goes_on) {
                self.session_refused(&problem, is_leased);
            }
        } else if says_nobody_leads(&problem) {
            self.session_keeper.session_task_again(None);
            return News::NotLeader(problem.leader);
        } else {
            let pause = self.backoff.pause(0, random());
            self.session_keeper.session_task_again(Some(now + pause));
        }
        News::None
    }
}

/// Hands an answer to its caller. A caller that has just gone away is no longer
/// interested.
fn give(ask: Ask, body: ReplyBody) {
    match (ask, body) {
        (Ask::Propose { reply, .. }, ReplyBody::Answer(answer)) => drop(reply.send(Ok(answer))),
        (Ask::Read { reply, .. }, ReplyBody::Read(answer)) => drop(reply.send(Ok(answer))),
        (Ask::Wait { reply, .. }, ReplyBody::Released { revision }) => {
            drop(reply.send(Ok(revision)));
        }
        (Ask::Status { reply }, ReplyBody::Status(status)) => drop(reply.send(Ok(*status))),
        (Ask::Admin { reply, .. }, ReplyBody::Done) => drop(reply.send(Ok(()))),
        (ask, _) => ask.fail(Error::unexpected("a request")),
    }
}

/// Whether the node says that the call should go to a leader elsewhere or later.
fn says_nobody_leads(problem: &Problem) -> bool {
    matches!(problem.code, Code::NotLeader | Code::Unavailable)
}
