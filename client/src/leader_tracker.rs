//! Decides which node to talk to: finds the leader, follows it, and keeps
//! looking while there is none. Pure: time and randomness are handed in.
//!
//! A connection to a node that does not lead is kept while the leader is
//! sought: it is asked again and again who leads (a *poll*), and a connection
//! to the node it names is attempted in parallel. So the loss of a leader costs
//! the client the election and one poll, and an address that leads nowhere
//! costs nothing at all.
//!
//! A leader that owes an answer is not left for its silence: it may be busy. Another node is asked
//! who leads, over a second connection, again and again, and only a leader of a later term ends the
//! first one. A client that alone cannot reach the leader goes through another node, and back when
//! the direct route heals.

mod connected;
mod step;

use std::time::Duration;

use holdfast_api::{LeaderHint, NodeId};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::connection::Route;
use crate::endpoints::Endpoints;

/// An attempt that takes longer than this is hedged with the next node.
const HEDGE_AFTER: Duration = Duration::from_millis(150);
/// A leader that owes an answer for this long is doubted: another node is asked who
/// leads; then again, after pauses that grow with the silence.
const DOUBT_AFTER: Duration = Duration::from_millis(150);
/// Clients that lost the same leader do not all ask at once: each waits up to this
/// much longer.
const DOUBT_SPREAD: Duration = Duration::from_millis(75);
const DOUBT_AGAIN: Duration = Duration::from_millis(50);
const DOUBT_SHARE: u32 = 4;
/// A leader that has owed an answer for this long, and has no known successor, is
/// connected to anew. If that takes longer than a hedge, it cannot be reached from here,
/// and is asked through another node: a leader that is merely busy accepts.
const THROUGH_AFTER: Duration = Duration::from_millis(200);
/// Pause after a try to reach the leader through another node.
const THROUGH_PAUSE: Duration = Duration::from_millis(150);
/// How long a leader that owes an answer is left alone once it was connected to
/// anew: it can be reached, so it is busy.
const BUSY_PAUSE: Duration = Duration::from_secs(2);
/// Pauses between tries of the direct route, while another one is taken.
const DIRECT_PAUSE_MIN: Duration = Duration::from_secs(1);
const DIRECT_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Pauses between tries of a node that was said to lead in a later term.
const SUCCESSOR_PAUSE_MIN: Duration = Duration::from_millis(20);
const SUCCESSOR_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Most attempts at a time.
pub(crate) const ATTEMPTS_MAX: usize = 3;
/// Longest pause between polls while an election may be under way.
const POLL_PAUSE_MAX: Duration = Duration::from_millis(40);
/// Polls at that pace; later ones slow down to the back-off's longest pause.
const QUICK_POLLS_MAX: u32 = 60;
/// Polls of one node that knows no reachable leader, before another is asked.
const POLLS_PER_NODE_MAX: u32 = 5;
/// Hints followed at once; two nodes that name each other slow down after.
const QUICK_HOPS_MAX: u32 = 4;

/// What the client needs of a connection, from nothing to everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wants {
    Nothing,
    /// Calls that any node answers.
    AnyNode,
    /// A connection to the leader at hand, without haste.
    Warm,
    /// Calls wait for the leader.
    Leader,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Begin a connection over this route.
    Connect(Route),
    /// Ask the connected node who leads.
    Poll,
    /// Nothing until then, or until something happens.
    Wait(Option<Instant>),
}

/// What to do with a connection that was made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is the connection from now on; the one before is to be dropped.
    Use,
    /// It is of no use.
    Drop,
}

/// Where random numbers from [0, 1) come from.
pub(crate) type Random<'a> = &'a mut dyn FnMut() -> f64;

#[derive(Debug)]
pub(crate) struct LeaderTracker {
    endpoints: Endpoints,
    backoff: Backoff,
    attempts: Vec<Attempt>,
    link: Option<Link>,
    hint: Option<LeaderHint>,
    search: Search,
    /// When a leader that owes an answer is to be doubted again; none = it does not.
    doubt_not_before: Option<Instant>,
    /// Silence of the connected leader after which it is doubted.
    doubt_after: Duration,
    /// The leader of a later term than the connected node's, as another one reported:
    /// tried until it is connected, since it may not know yet that it leads.
    successor: Option<Successor>,
    /// Id of the cluster, from the first node that reported one. It never changes.
    cluster_id: Option<String>,
    /// Whether any node ever let this client in.
    admitted: bool,
    /// When the direct route to the leader was last left for another, and the
    /// pause before it was to be tried.
    left_direct: Option<(Instant, Duration)>,
}

#[derive(Debug)]
struct Successor {
    term: u64,
    leader: LeaderHint,
    /// When it is tried next, and the pause after that.
    at: Instant,
    pause: Duration,
}

#[derive(Debug)]
struct Attempt {
    route: Route,
    since: Instant,
    why: Why,
}

impl Attempt {
    /// Whether it is at this node. One that goes through a node, to another one, may take long, and
    /// asks that node nothing.
    fn asks(&self, address: &str) -> bool {
        !self.route.through && self.route.address == address
    }
}

/// Why an attempt was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// There was no connection.
    Search,
    /// The connected node named it as the leader.
    Hint,
    /// The connected node knew no leader that can be reached.
    Rotation,
    /// The connected node leads, and owes an answer.
    Doubt,
    /// The leader is there, but cannot be reached directly.
    Through,
    /// The leader is connected through another node.
    Direct,
    /// The connected node leads, and owes an answer: whether it can be reached.
    Check,
}

#[derive(Debug)]
struct Link {
    address: String,
    node: NodeId,
    leads: bool,
    /// The latest term that it is known to have seen.
    term: u64,
    /// On the leader, reached through another node: its own address, when that is
    /// to be tried, and the pause after it.
    direct: Option<Direct>,
}

#[derive(Debug)]
struct Direct {
    address: String,
    at: Instant,
    pause: Duration,
}

/// The search for a leader, since one was last at hand.
#[derive(Debug, Default)]
struct Search {
    hops: u32,
    hop_not_before: Option<Instant>,
    polls: u32,
    polls_here: u32,
    /// When the poll was made that is not answered yet.
    poll_open: Option<Instant>,
    poll_not_before: Option<Instant>,
    /// Since when the node that is said to lead could not be connected to.
    unreachable_since: Option<Instant>,
    through_not_before: Option<Instant>,
    /// The leader that owes an answer could not be connected to anew.
    check_failed: bool,
}

impl LeaderTracker {
    pub(crate) fn new(endpoints: Vec<String>, backoff: Backoff) -> Self {
        LeaderTracker {
            endpoints: Endpoints::new(endpoints, backoff),
            backoff,
            attempts: Vec::new(),
            link: None,
            hint: None,
            search: Search::default(),
            doubt_not_before: None,
            doubt_after: DOUBT_AFTER,
            successor: None,
            cluster_id: None,
            admitted: false,
            left_direct: None,
        }
    }

    /// Whether the connected node leads, as far as is known.
    pub(crate) fn leads(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.leads)
    }

    /// The leader, as last reported.
    pub(crate) fn leader(&self) -> Option<NodeId> {
        match &self.link {
            Some(link) if link.leads => Some(link.node),
            _ => self.hint.as_ref().map(|hint| hint.node),
        }
    }

    /// Id of the cluster, once a node has reported it.
    pub(crate) fn cluster_id(&self) -> Option<&str> {
        self.cluster_id.as_deref()
    }

    /// Each node's address and its answer, or why it could not be asked.
    pub(crate) fn tried(&self) -> Vec<(String, String)> {
        self.endpoints.tried()
    }

    /// How many times the usual limit an attempt at a node may take; see [`Endpoints::patience`].
    pub(crate) fn patience(&self, address: &str) -> u32 {
        self.endpoints.patience(address)
    }

    /// The addresses of all nodes that are known.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.endpoints.tried().into_iter().map(|(address, _)| address).collect()
    }

    /// The reported successor of the connected node, and when to try it; none if it is
    /// being tried.
    fn successor_at(&self) -> Option<(String, Instant)> {
        // A node that does not lead is followed by its hints.
        let follows = self.link.as_ref().is_some_and(|link| !link.leads);
        let Successor { leader, at, .. } = self.successor.as_ref().filter(|_| !follows)?;
        (!self.is_asked(&leader.address)).then(|| (leader.address.clone(), *at))
    }

    /// Whether an attempt at this node is under way.
    fn is_asked(&self, address: &str) -> bool {
        self.attempts.iter().any(|attempt| attempt.asks(address))
    }

    fn successor_tried(&mut self, now: Instant) {
        if let Some(successor) = &mut self.successor {
            successor.at = now + successor.pause;
            successor.pause = (successor.pause * 2).min(SUCCESSOR_PAUSE_MAX);
        }
    }

    fn succeeded_by(&mut self, term: u64, leader: LeaderHint, now: Instant) {
        self.endpoints.learn_one(&leader.address);
        if self.successor.as_ref().is_none_or(|known| known.term < term) {
            let pause = SUCCESSOR_PAUSE_MIN;
            self.successor = Some(Successor { term, leader, at: now, pause });
        }
    }

    /// The connected node leads in this term: earlier ones succeed it no more.
    fn leads_in(&mut self, term: u64) {
        self.successor.take_if(|successor| successor.term <= term);
    }

    /// A node other than the connected one reports the leader of this term.
    pub(crate) fn leader_changed(&mut self, term: u64, leader: LeaderHint, now: Instant) {
        self.endpoints.learn_one(&leader.address);
        match &self.link {
            Some(link) if leader.node == link.node || term < link.term => {}
            Some(link) if !link.leads => self.set_hint(Some(leader)),
            Some(link) if term == link.term => {}
            Some(_) | None => self.succeeded_by(term, leader, now),
        }
    }

    /// A node for the lookout: neither the connected one nor being tried.
    pub(crate) fn lookout_address(&mut self, now: Instant) -> Option<String> {
        self.another(now)
    }

    /// The connected node, if it leads.
    pub(crate) fn connected_leader(&self) -> Option<NodeId> {
        self.link.as_ref().filter(|link| link.leads).map(|link| link.node)
    }

    pub(crate) fn lost(&mut self, why: String, now: Instant, random: Random<'_>) {
        let Some(link) = self.link.take() else { return };
        self.endpoints.failed(&link.address, why, now, random());
        self.search.poll_open = None;
        if link.leads {
            self.hint = None;
        }
    }

    /// The connected node answered something: it is useful.
    pub(crate) fn useful(&mut self) {
        if let Some(link) = &self.link {
            self.endpoints.useful(&link.address);
        }
    }

    /// The connected node answered as only a leader does.
    pub(crate) fn led(&mut self) {
        if let Some(link) = &mut self.link {
            link.leads = true;
            self.hint = None;
            self.attempts.clear();
            self.search = Search::default();
        }
    }

    /// The connected node said that it does not lead, and may name the leader.
    pub(crate) fn not_leader(
        &mut self,
        leader: Option<LeaderHint>,
        now: Instant,
        random: Random<'_>,
    ) {
        let Some(link) = &mut self.link else { return };
        let leader = leader.or_else(|| self.successor.take().map(|known| known.leader));
        let led = std::mem::replace(&mut link.leads, false);
        let (address, node) = (link.address.clone(), link.node);
        self.note(&address, node, leader.as_ref().filter(|leader| leader.node != node));
        self.set_hint(leader);
        // Many calls may be turned away at once; only the first one counts.
        if led || self.search.poll_open.is_some() {
            self.search.poll_open = None;
            self.pause_polls(now, random());
        }
    }

    fn set_hint(&mut self, hint: Option<LeaderHint>) {
        if let Some(hint) = &hint {
            self.endpoints.learn_one(&hint.address);
        }
        let at = |hint: &Option<LeaderHint>| hint.as_ref().map(|hint| hint.address.clone());
        if at(&hint) != at(&self.hint) {
            self.search.unreachable_since = None;
        }
        self.hint = hint;
    }

    fn pause_polls(&mut self, now: Instant, random: f64) {
        let search = &mut self.search;
        let pause = match search.polls.checked_sub(QUICK_POLLS_MAX) {
            Some(slow) => self.backoff.pause(slow, random).max(POLL_PAUSE_MAX),
            None => self.backoff.at_most(POLL_PAUSE_MAX).pause(search.polls, random),
        };
        search.polls = search.polls.saturating_add(1);
        search.poll_not_before = Some(now + pause);
    }

    /// A node that was named as the leader was not: follow hints more slowly.
    fn pause_hops(&mut self, now: Instant, random: f64) {
        let pause = match self.search.hops.checked_sub(QUICK_HOPS_MAX) {
            Some(nth) => self.backoff.pause(nth, random),
            None => Duration::ZERO,
        };
        self.search.hops = self.search.hops.saturating_add(1);
        self.search.hop_not_before = Some(now + pause);
    }
}

#[cfg(test)]
mod tests;
