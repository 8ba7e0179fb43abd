//! Feeds and subscriptions without news, parked on the leader: usually one for
//! each agent.

use std::collections::HashMap;

use holdfast_api::{LeaseId, Name, Problem, Revision};
use holdfast_machine::Machine;

use super::tenant::Tenant;

/// Called when a feed has news, or when this node can no longer tell. Called
/// while the node holds its locks: it only sends.
pub(crate) type Ended = Box<dyn FnOnce(Result<(), Problem>) + Send>;

/// Subject of a feed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    /// What a lease has to tell its holder.
    Lease(LeaseId),
    /// The event log of a job.
    Events(Name),
}

impl Topic {
    /// The tenant that it counts for.
    pub(crate) fn tenant(&self, machine: &Machine) -> Tenant {
        match self {
            Topic::Lease(lease) => Tenant::holder(machine, *lease),
            Topic::Events(job) => Tenant::Job(job.clone()),
        }
    }

    fn has_more(&self, machine: &Machine, since: Revision) -> bool {
        match self {
            Topic::Lease(lease) => machine.has_news(*lease, since),
            Topic::Events(job) => machine.recorded(job, since),
        }
    }
}

/// Identifies a parked feed.
pub(crate) type FeedId = u64;

/// Result of a registration.
pub(crate) enum Registered {
    /// There is news already; `ended` is handed back uncalled.
    Ready(Ended),
    /// Parked; `ended` will be called once.
    Parked(FeedId),
}

/// All parked feeds of a node.
#[derive(Default)]
pub(crate) struct Feeds {
    next: FeedId,
    parked: HashMap<FeedId, (Topic, Ended)>,
    by_topic: HashMap<Topic, Vec<FeedId>>,
}

impl Feeds {
    /// Parks a feed unless there is something after `since`. Call it under the
    /// machine's read lock, so that `machine` does not change.
    pub(crate) fn register(
        &mut self,
        machine: &Machine,
        topic: &Topic,
        since: Revision,
        ended: Ended,
    ) -> Registered {
        if topic.has_more(machine, since) {
            return Registered::Ready(ended);
        }
        self.next += 1;
        self.parked.insert(self.next, (topic.clone(), ended));
        self.by_topic.entry(topic.clone()).or_default().push(self.next);
        Registered::Parked(self.next)
    }

    /// Wakes the readers of these topics.
    pub(crate) fn notify(&mut self, topics: impl IntoIterator<Item = Topic>) {
        if self.parked.is_empty() {
            return;
        }
        for topic in topics {
            for id in self.by_topic.remove(&topic).into_iter().flatten() {
                if let Some((_, ended)) = self.parked.remove(&id) {
                    ended(Ok(()));
                }
            }
        }
    }

    /// Forgets a feed: its reader is gone.
    pub(crate) fn cancel(&mut self, id: FeedId) {
        let Some((topic, _)) = self.parked.remove(&id) else { return };
        if let Some(ids) = self.by_topic.get_mut(&topic) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_topic.remove(&topic);
            }
        }
    }

    /// Ends all feeds: this node has stopped leading.
    pub(crate) fn end_all(&mut self, problem: &Problem) {
        self.by_topic.clear();
        for (_, (_, ended)) in self.parked.drain() {
            ended(Err(problem.clone()));
        }
    }

    /// How many are parked for a topic.
    pub(crate) fn count(&self, topic: &Topic) -> usize {
        self.by_topic.get(topic).map_or(0, Vec::len)
    }

    /// How many are parked.
    pub(crate) fn len(&self) -> usize {
        self.parked.len()
    }
}
