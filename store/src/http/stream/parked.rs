//! Waits, watches and feeds of a connection.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_api::{Generation, Problem, ReplyBody, Revision, Scope};
use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::feeding::Feeding;
use super::{Connection, watching};
use crate::node::watches::Bell;
use crate::node::{ParkedWait, Topic};

/// Waits and watches of one connection.
const PARKED_MAX: usize = 262_144;

/// Waits and watches of a connection by request id; dropping one ends it.
pub(super) type AllParked = Arc<Mutex<HashMap<u64, Parked>>>;

/// A wait or watch of this connection.
pub(super) enum Parked {
    /// Being registered; may have ended already.
    Registering,
    Wait {
        _parked: ParkedWait,
    },
    /// Served by its own task, until this is dropped.
    Feed {
        _ended: DropGuard,
    },
    Watch {
        ended: CancellationToken,
        /// How far it is, if its progress is sent together with others'.
        together: Option<Arc<Bell>>,
    },
}

impl Drop for Parked {
    fn drop(&mut self) {
        if let Parked::Watch { ended, .. } = self {
            ended.cancel();
        }
    }
}

impl Connection {
    /// Takes a place for a wait or watch, unless the connection has too many.
    fn park(&self, id: u64) -> bool {
        let mut parked = self.parked.lock();
        if parked.len() < PARKED_MAX {
            let replaced = parked.insert(id, Parked::Registering);
            drop(parked);
            // Without the lock: that may take others.
            drop(replaced);
            return true;
        }
        drop(parked);
        let problem = Problem::overloaded("too many waits on this connection");
        self.replies.send(id, ReplyBody::Problem(problem), None);
        false
    }

    pub(super) fn wait(
        &self,
        id: u64,
        scope: &Scope,
        conditions: Vec<holdfast_api::Condition>,
        since: Option<Revision>,
    ) {
        if !self.park(id) {
            return;
        }
        let (replies, parked) = (self.replies.clone(), self.parked.clone());
        let ended = Box::new(move |result: Result<_, Problem>| {
            let body = match result {
                Ok(revision) => ReplyBody::Released { revision },
                Err(problem) => ReplyBody::Problem(problem),
            };
            // The id may be used again as soon as it is answered.
            let place = parked.lock().remove(&id);
            replies.send(id, body, None);
            drop(place);
        });
        let replies = self.replies.clone();
        let waiting = move |revision| replies.send(id, ReplyBody::Waiting { revision }, None);
        let tells = self.report.tells();
        let acting = self.node.acting(&self.caller);
        if let Some(wait) = acting.wait(scope, conditions, since, tells, waiting, ended) {
            let mut parked = self.parked.lock();
            match parked.get_mut(&id) {
                Some(place) => *place = Parked::Wait { _parked: wait },
                // It has ended during registration.
                None => drop(parked),
            }
        }
    }

    /// Parks a feed, with what ends it; none if it was refused.
    fn admit_feed(&self, id: u64) -> Option<(Feeding, CancellationToken)> {
        if !self.park(id) {
            return None;
        }
        match self.feeds.admit(&self.tenant) {
            Ok(feeding) => {
                let ended = self.closed.child_token();
                let place = Parked::Feed { _ended: ended.clone().drop_guard() };
                self.parked.lock().insert(id, place);
                Some((feeding, ended))
            }
            Err(problem) => {
                self.parked.lock().remove(&id);
                self.replies.send(id, ReplyBody::Problem(problem), None);
                None
            }
        }
    }

    pub(super) fn feed(&self, id: u64, topic: Topic, known: (Revision, Vec<Generation>)) {
        let Some((feeding, ended)) = self.admit_feed(id) else { return };
        let (node, caller) = (self.node.clone(), self.caller.clone());
        let (replies, parked) = (self.replies.clone(), self.parked.clone());
        let task = async move {
            let hand_on = |body, place| replies.send(id, body, place);
            let last = feeding.follow(&node, &caller, &topic, known, hand_on).await;
            // The id may be used again as soon as it is answered.
            let parked = parked.lock().remove(&id);
            replies.send(id, last, None);
            drop((parked, feeding));
        };
        self.tasks.spawn(ended.run_until_cancelled_owned(task));
    }

    /// Any node serves this: it tells clients the successor of a lost leader.
    pub(super) fn watch_leader(&self, id: u64) {
        let Some((feeding, ended)) = self.admit_feed(id) else { return };
        let (leaders, replies) = (self.node.leaders(), self.replies.clone());
        let task = async move {
            feeding.follow_leader(leaders, |body, place| replies.send(id, body, place)).await;
        };
        self.tasks.spawn(ended.run_until_cancelled_owned(task));
    }

    pub(super) fn watch(
        &self,
        id: u64,
        scope: &Scope,
        prefix: holdfast_api::Blob,
        from: Option<Revision>,
        together: bool,
    ) {
        if !self.park(id) {
            return;
        }
        let watcher = match self.node.acting(&self.caller).watch(scope, prefix, from) {
            Ok(watcher) => watcher,
            Err(problem) => {
                self.parked.lock().remove(&id);
                return self.replies.send(id, ReplyBody::Problem(problem), None);
            }
        };
        let ended = self.closed.child_token();
        let together = together.then(|| watcher.bell());
        let quiet = together.is_none().then_some(watching::PROGRESS_EVERY);
        self.parked.lock().insert(id, Parked::Watch { ended: ended.clone(), together });
        let (replies, parked) = (self.replies.clone(), self.parked.clone());
        let room = watching::Room::new(self.watch_kib.clone(), self.tenant.clone());
        let task = async move {
            let hand_on = |batch, place| replies.send(id, ReplyBody::Changes(batch), Some(place));
            let problem = watching::deliver(watcher, quiet, room, hand_on).await;
            replies.send(id, ReplyBody::Problem(problem), None);
            // Dropped without the lock: that may take others.
            let over = parked.lock().remove(&id);
            drop(over);
        };
        self.tasks.spawn(ended.run_until_cancelled_owned(task));
    }
}
