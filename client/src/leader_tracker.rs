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

use std::time::Duration;

use holdfast_api::{Hello, LeaderHint, NodeId, Problem};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::connection::Route;
use crate::endpoints::{Endpoints, Next};

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

    /// See [`Endpoints::patience`].
    pub(crate) fn patience(&self, address: &str) -> u32 {
        self.endpoints.patience(address)
    }

    /// The addresses of all nodes that are known.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.endpoints.tried().into_iter().map(|(address, _)| address).collect()
    }

    /// What to do now. `owes_since`: since when the connected node has owed an
    /// answer, and been silent. Call it again after each step other than a wait.
    pub(crate) fn next(&mut self, now: Instant, wants: Wants, owes_since: Option<Instant>) -> Step {
        if wants == Wants::Nothing {
            return Step::Wait(None);
        }
        let successor_at = match self.successor_at() {
            Some((address, at)) if at <= now => {
                self.successor_tried(now);
                return self.attempt(Route::to(address), now, Why::Doubt);
            }
            next => next.map(|(_, at)| at),
        };
        let step = match &self.link {
            Some(link) if link.leads => self.next_with_leader(now, owes_since),
            Some(_) => self.next_with_follower(now, wants),
            None => self.next_without_link(now),
        };
        match step {
            Step::Wait(at) => Step::Wait([at, successor_at].into_iter().flatten().min()),
            step => step,
        }
    }

    /// The reported successor of the connected node, and when to try it; none if it is
    /// being tried.
    fn successor_at(&self) -> Option<(String, Instant)> {
        // A node that does not lead is followed by its hints.
        let follows = self.link.as_ref().is_some_and(|link| !link.leads);
        let Successor { leader, at, .. } = self.successor.as_ref().filter(|_| !follows)?;
        let under_way = self.attempts.iter().any(|a| a.route.address == leader.address);
        (!under_way).then(|| (leader.address.clone(), *at))
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

    fn next_without_link(&mut self, now: Instant) -> Step {
        let hedge_at = self.attempts.iter().map(|attempt| attempt.since + HEDGE_AFTER).max();
        match hedge_at {
            Some(at) if at > now => return Step::Wait(Some(at)),
            Some(_) if self.attempts.len() >= ATTEMPTS_MAX => return Step::Wait(None),
            _ => {}
        }
        let attempts = &self.attempts;
        match self
            .endpoints
            .next(now, |address| attempts.iter().any(|a| a.route.address == address))
        {
            Next::Now(address) => self.attempt(Route::to(address), now, Why::Search),
            Next::At(at) => Step::Wait(Some(at)),
            Next::None => Step::Wait(None),
        }
    }

    fn next_with_leader(&mut self, now: Instant, owes_since: Option<Instant>) -> Step {
        let direct = self.link.as_mut().and_then(|link| link.direct.as_mut());
        let direct_at = match direct {
            Some(direct) if direct.at <= now => {
                direct.at = now + direct.pause;
                direct.pause = (direct.pause * 2).min(DIRECT_PAUSE_MAX);
                let route = Route::to(direct.address.clone());
                return self.attempt(route, now, Why::Direct);
            }
            Some(direct) => Some(direct.at),
            None => None,
        };
        let soonest = |at: Option<Instant>| Step::Wait([at, direct_at].into_iter().flatten().min());
        let Some(since) = owes_since else {
            self.doubt_not_before = None;
            self.search.check_failed = false;
            return soonest(None);
        };
        let at = self.doubt_not_before.unwrap_or(since + self.doubt_after);
        if at > now {
            return soonest(Some(at));
        }
        let pause = DOUBT_AGAIN.max((now - since) / DOUBT_SHARE);
        self.doubt_not_before = Some(now + pause);
        // At that time: whether it can be reached, and if not, another route.
        let is_time = since + THROUGH_AFTER <= now
            && direct_at.is_none()
            && self.endpoints.has_several()
            && self.search.through_not_before.is_none_or(|at| at <= now)
            && !self.attempts.iter().any(|attempt| attempt.route.through);
        let check = self.attempts.iter().find(|attempt| attempt.why == Why::Check);
        let through = match check {
            _ if !is_time => false,
            Some(check) => check.since + HEDGE_AFTER <= now,
            None if self.search.check_failed => true,
            None => {
                let link = self.link.as_ref().map(|link| link.address.clone());
                let Some(address) = link else { return soonest(Some(now + pause)) };
                return self.attempt(Route::to(address), now, Why::Check);
            }
        };
        match self.another(now) {
            Some(address) if through => {
                self.search.through_not_before = Some(now + pause.max(THROUGH_PAUSE) * 2);
                self.attempt(Route::through(address), now, Why::Through)
            }
            Some(address) if self.attempts.len() < ATTEMPTS_MAX => {
                self.attempt(Route::to(address), now, Why::Doubt)
            }
            _ => soonest(Some(now + pause)),
        }
    }

    fn next_with_follower(&mut self, now: Instant, wants: Wants) -> Step {
        if wants < Wants::Warm {
            return Step::Wait(None);
        }
        let hop_at = self.hop_at(now);
        if let Some((address, at)) = &hop_at
            && *at <= now
        {
            let route = Route::to(address.clone());
            return self.attempt(route, now, Why::Hint);
        }
        let through = self.through_at().map(|(route, at)| (route, at.max(now)));
        if let Some((route, at)) = &through
            && *at == now
            && wants == Wants::Leader
        {
            let route = route.clone();
            self.search.through_not_before = Some(now + THROUGH_PAUSE);
            return self.attempt(route, now, Why::Through);
        }
        let through_at = through.map(|(_, at)| at).filter(|_| wants == Wants::Leader);
        let hop_at = [hop_at.map(|(_, at)| at), through_at].into_iter().flatten().min();
        if wants < Wants::Leader {
            return Step::Wait(hop_at);
        }
        // A leader that is cut off from the others notices late.
        let stuck_at = self.search.poll_open.map(|since| since + HEDGE_AFTER);
        let fruitless = self.search.polls_here >= POLLS_PER_NODE_MAX && stuck_at.is_none();
        if (fruitless || stuck_at.is_some_and(|at| at <= now))
            && self.attempts.is_empty()
            && let Some(address) = self.another(now)
        {
            self.search.polls_here = 0;
            return self.attempt(Route::to(address), now, Why::Rotation);
        }
        if let Some(at) = stuck_at {
            let stuck_at = Some(at).filter(|at| *at > now);
            return Step::Wait([stuck_at, hop_at].into_iter().flatten().min());
        }
        match self.search.poll_not_before {
            Some(at) if at > now => Step::Wait(Some(hop_at.map_or(at, |hop| hop.min(at)))),
            _ => {
                self.search.poll_open = Some(now);
                self.search.polls_here = self.search.polls_here.saturating_add(1);
                Step::Poll
            }
        }
    }

    /// The route, through the connected node, to the node that is said to lead, and
    /// when it may be tried: once the direct route has failed, or takes long.
    fn through_at(&self) -> Option<(Route, Instant)> {
        let (link, hint) = (self.link.as_ref()?, self.hint.as_ref()?);
        let under_way = self.attempts.iter().find(|attempt| attempt.route.address == hint.address);
        if link.node == hint.node || self.attempts.iter().any(|attempt| attempt.route.through) {
            return None;
        }
        let since = match (self.search.unreachable_since, under_way) {
            (Some(since), _) => since,
            (None, Some(attempt)) => attempt.since,
            (None, None) => return None,
        };
        let at = since + HEDGE_AFTER;
        let at = self.search.through_not_before.map_or(at, |pause| at.max(pause));
        Some((Route::through(link.address.clone()), at))
    }

    /// The node that is said to lead and when it may be tried; none if there is
    /// none, or it is being tried already.
    fn hop_at(&self, now: Instant) -> Option<(String, Instant)> {
        let hint = self.hint.as_ref()?;
        let here = |link: &Link| link.address == hint.address || link.node == hint.node;
        let under_way = self.attempts.iter().any(|attempt| attempt.route.address == hint.address);
        if under_way || self.attempts.len() >= ATTEMPTS_MAX || self.link.as_ref().is_some_and(here)
        {
            return None;
        }
        let ready = self.endpoints.ready_at(&hint.address, now)?;
        let at = self.search.hop_not_before.map_or(ready, |at| at.max(ready));
        Some((hint.address.clone(), at))
    }

    /// A node that may be tried now, neither the connected one nor being tried.
    fn another(&mut self, now: Instant) -> Option<String> {
        let here = self.link.as_ref().map(|link| link.address.as_str());
        let attempts = &self.attempts;
        let excluded = |address: &str| {
            Some(address) == here || attempts.iter().any(|a| a.route.address == address)
        };
        match self.endpoints.next(now, excluded) {
            Next::Now(address) => Some(address),
            Next::At(_) | Next::None => None,
        }
    }

    fn attempt(&mut self, route: Route, now: Instant, why: Why) -> Step {
        self.endpoints.asked(&route.address);
        self.attempts.push(Attempt { route: route.clone(), since: now, why });
        Step::Connect(route)
    }

    /// A connection was made.
    pub(crate) fn connected(
        &mut self,
        route: &Route,
        hello: &Hello,
        now: Instant,
        random: Random<'_>,
    ) -> Arrival {
        self.admitted = true;
        let why = self.finish_attempt(route).map_or(Why::Search, |attempt| attempt.why);
        let address = route.address.as_str();
        if let Err(why) = self.check_cluster(&hello.cluster_id) {
            self.endpoints.failed(address, why, now, random());
            return Arrival::Drop;
        }
        self.endpoints.learn(&hello.nodes);
        let leads = hello.leader.as_ref().is_some_and(|leader| leader.node == hello.node);
        if self.leads() {
            let is_same = leads && self.link.as_ref().is_some_and(|link| link.node == hello.node);
            let is_better = match why {
                Why::Doubt => self.is_succeeded_by(hello, now),
                Why::Through => is_same || self.is_succeeded_by(hello, now),
                Why::Direct => is_same,
                Why::Check => {
                    self.search.through_not_before = Some(now + BUSY_PAUSE);
                    false
                }
                Why::Search | Why::Hint | Why::Rotation => false,
            };
            if !is_better {
                return Arrival::Drop;
            }
        } else if route.through && !leads {
            return Arrival::Drop;
        }
        self.note(address, hello.node, hello.leader.as_ref());
        if self.link.is_some() && !leads && why == Why::Search {
            // Not asked for and no leader: only its answer is of use.
            if self.hint.is_none() {
                self.set_hint(hello.leader.clone());
            }
            return Arrival::Drop;
        }
        let term = hello.term;
        let direct = hello.leader.as_ref().filter(|_| route.through).map(|leader| {
            let pause = self.direct_pause(now);
            let address = leader.address.clone();
            Direct { address, at: now + pause, pause: (pause * 2).min(DIRECT_PAUSE_MAX) }
        });
        let address = address.to_owned();
        self.link = Some(Link { address, node: hello.node, leads, term, direct });
        self.doubt_not_before = None;
        self.doubt_after = DOUBT_AFTER + DOUBT_SPREAD.mul_f64(1.0 - random().clamp(0.0, 1.0));
        match leads {
            true => self.leads_in(term),
            // Its word counts from now on.
            false => self.successor = None,
        }
        self.search.polls_here = 0;
        self.search.poll_open = None;
        if leads {
            self.led();
        } else {
            self.set_hint(hello.leader.clone());
            self.pause_polls(now, random());
            if why == Why::Hint {
                self.pause_hops(now, random());
            }
        }
        Arrival::Use
    }

    /// How long another route is taken before the direct one is tried: longer each
    /// time that the direct one was found again and did not last.
    fn direct_pause(&mut self, now: Instant) -> Duration {
        let pause = match self.left_direct {
            Some((at, pause)) if now < at + DIRECT_PAUSE_MAX * 2 => {
                (pause * 2).min(DIRECT_PAUSE_MAX)
            }
            _ => DIRECT_PAUSE_MIN,
        };
        self.left_direct = Some((now, pause));
        pause
    }

    /// Whether this node leads in a later term than the connected one. If another
    /// does, that one is to be asked.
    fn is_succeeded_by(&mut self, hello: &Hello, now: Instant) -> bool {
        let (Some(link), Some(leader)) = (&mut self.link, &hello.leader) else { return false };
        if leader.node == link.node {
            link.term = link.term.max(hello.term);
            self.leads_in(hello.term);
            return false;
        }
        let is_later = hello.term > link.term;
        if is_later && leader.node != hello.node {
            self.succeeded_by(hello.term, leader.clone(), now);
            return false;
        }
        is_later
    }

    /// Whether a node belongs to the cluster that this client talks to.
    pub(crate) fn is_of_cluster(&mut self, hello: &Hello) -> bool {
        !hello.cluster_id.is_empty() && self.check_cluster(&hello.cluster_id).is_ok()
    }

    fn check_cluster(&mut self, cluster_id: &str) -> Result<(), String> {
        match &self.cluster_id {
            // A node reports no id before its cluster is founded.
            _ if cluster_id.is_empty() => Ok(()),
            Some(known) if known != cluster_id => Err(format!(
                "it belongs to cluster {cluster_id}, this client talks to cluster {known}"
            )),
            Some(_) => Ok(()),
            None => {
                self.cluster_id = Some(cluster_id.to_owned());
                Ok(())
            }
        }
    }

    fn note(&mut self, address: &str, node: NodeId, leader: Option<&LeaderHint>) {
        let said = match leader {
            Some(leader) if leader.node == node => format!("node {node} answers and leads"),
            Some(leader) => format!(
                "node {node} answers; it takes node {} at {} for the leader",
                leader.node, leader.address
            ),
            None => format!("node {node} answers, but knows no leader"),
        };
        self.endpoints.said(address, said);
    }

    /// A connection could not be made.
    pub(crate) fn attempt_failed(
        &mut self,
        route: &Route,
        why: String,
        now: Instant,
        random: Random<'_>,
    ) {
        let why_made = self.finish_attempt(route).map(|attempt| attempt.why);
        self.search.check_failed |= why_made == Some(Why::Check);
        if route.through {
            // The node itself is well.
            self.endpoints.said(&route.address, why);
            return;
        }
        self.endpoints.failed(&route.address, why, now, random());
        if self.hint.as_ref().is_some_and(|hint| hint.address == route.address) {
            self.search.unreachable_since.get_or_insert(now);
        }
    }

    /// The node said why it does not let this client in, or failed otherwise.
    /// Answers the reason once it is clear that no node will: each was tried,
    /// and those that answered said so. A client that was let in before is
    /// patient: its token may just be being replaced.
    pub(crate) fn denied(&mut self, address: &str, denial: Option<&Problem>) -> Option<Problem> {
        self.endpoints.denied(address, denial.cloned());
        if self.admitted { None } else { self.endpoints.take_denial() }
    }

    fn finish_attempt(&mut self, route: &Route) -> Option<Attempt> {
        let index = self.attempts.iter().position(|attempt| attempt.route == *route)?;
        Some(self.attempts.swap_remove(index))
    }

    /// The connection broke.
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
