//! What an attempt at a node came to.

use std::time::Duration;

use holdfast_api::{Hello, LeaderHint, NodeId, Problem};
use tokio::time::Instant;

use super::{
    Arrival, Attempt, BUSY_PAUSE, DIRECT_PAUSE_MAX, DIRECT_PAUSE_MIN, DOUBT_AFTER, DOUBT_SPREAD,
    Direct, LeaderTracker, Link, Random, Why,
};
use crate::connection::Route;

impl LeaderTracker {
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

    pub(super) fn note(&mut self, address: &str, node: NodeId, leader: Option<&LeaderHint>) {
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
}
