//! Feeds and subscriptions of a stream: news of leases for their holders, and
//! events of jobs, piece by piece.
//!
//! A piece is made when there is room for it on the connection, so that a stalled
//! reader costs only a few pieces.

use std::sync::Arc;

use holdfast_api::round::ROSTERS_MAX;
use holdfast_api::{Generation, LeaderHint, Problem, Read, ReadOutcome, ReplyBody, Revision};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::Place;
use crate::node::tenant::Tenant;
use crate::node::{Node, Topic};
use crate::principal::Principal;

/// Feeds of one connection: an agent reads one.
const FEEDS_MAX: usize = 256;

/// Pieces of all feeds of one connection that wait to be written: each may be
/// long.
const PIECES_MAX: usize = 4;

/// Events of one piece, about: those of one revision come together.
const PAGE_EVENTS_MAX: u64 = 1_000;

/// Room for the feeds of one connection.
pub(super) struct Room {
    feeds: Arc<Semaphore>,
    pieces: Arc<Semaphore>,
}

impl Default for Room {
    fn default() -> Self {
        Room {
            feeds: Arc::new(Semaphore::new(FEEDS_MAX)),
            pieces: Arc::new(Semaphore::new(PIECES_MAX)),
        }
    }
}

impl Room {
    /// Room for one more feed of this tenant, if there is some.
    pub(super) fn admit(&self, tenant: &Tenant) -> Result<Feeding, Problem> {
        match self.feeds.clone().try_acquire_owned() {
            Ok(place) => {
                let (tenant, pieces) = (tenant.clone(), self.pieces.clone());
                Ok(Feeding { _place: place, tenant, pieces })
            }
            Err(_) => {
                let message = "too many feeds on this connection";
                Err(Problem::overloaded(message))
            }
        }
    }
}

/// The place of one feed, until this is dropped.
pub(super) struct Feeding {
    _place: OwnedSemaphorePermit,
    /// Whose news they are.
    tenant: Tenant,
    pieces: Arc<Semaphore>,
}

impl Feeding {
    /// A place for a piece, once there is one.
    async fn piece(&self) -> Option<Place> {
        let place = self.pieces.clone().acquire_owned().await.ok()?;
        Some(Place { tenant: self.tenant.clone(), room: None, _kib: None, _place: place })
    }

    /// Sends each new leader for as long as the node runs. A slow reader gets only
    /// the latest leader.
    pub(super) async fn follow_leader(
        &self,
        mut leaders: watch::Receiver<Option<(u64, LeaderHint)>>,
        hand_on: impl Fn(ReplyBody, Option<Place>),
    ) {
        loop {
            let place = self.piece().await;
            let known = leaders.borrow_and_update().clone();
            if let Some((term, leader)) = known {
                hand_on(ReplyBody::LeaderChanged { term, leader }, place);
            }
            if leaders.changed().await.is_err() {
                return;
            }
        }
    }

    /// Hands on what there is of a topic after a revision, each piece as soon as
    /// there is room for it. `have`: outcomes whose members the reader of a lease's
    /// feed knows. Returns the last reply.
    pub(super) async fn follow(
        &self,
        node: &Node,
        caller: &Principal,
        topic: &Topic,
        (mut since, mut have): (Revision, Vec<Generation>),
        hand_on: impl Fn(ReplyBody, Option<Place>),
    ) -> ReplyBody {
        // The feed's reader keeps at most this many.
        have.drain(..have.len().saturating_sub(ROSTERS_MAX));
        have.shrink_to_fit();
        loop {
            let (tell, told) = oneshot::channel();
            // May be called while the node holds its locks: it only sends.
            let ended = Box::new(move |result: Result<(), Problem>| drop(tell.send(result)));
            let parked = node.acting(caller).await_feed(topic, since, ended);
            let told = told.await;
            drop(parked);
            match told {
                Ok(Ok(())) => {}
                Ok(Err(problem)) => return ReplyBody::Problem(problem),
                Err(_) => return ReplyBody::Problem(Problem::not_leader(None)),
            }
            let place = self.piece().await;
            let answer = node.read_now(&match topic {
                Topic::Lease(lease) => Read::Feed { lease: *lease, since, have: have.clone() },
                Topic::Events(job) => {
                    Read::Events { job: job.clone(), after: since, limit: PAGE_EVENTS_MAX }
                }
            });
            match &answer.outcome {
                ReadOutcome::Feed(feed) => {
                    since = feed.upto;
                    feed.note_rosters(&mut have);
                }
                ReadOutcome::Events { upto, .. } => since = *upto,
                _ => return ReplyBody::Read(answer),
            }
            hand_on(ReplyBody::Read(answer), place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_piece_counts_for_the_tenant_of_its_feed() {
        let b = Tenant::Job("b".parse().unwrap());
        let feeding = Room::default().admit(&b).expect("it is the first feed");
        let place = feeding.piece().await.expect("nothing waits to be written");
        assert_eq!(place.tenant, b);
    }
}
