//! Feeds and subscriptions without news, parked on the leader: usually one for
//! each agent.

use std::collections::{BTreeSet, HashMap};

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

/// Most feeds parked for one lease: its agent reads one, and a new connection of it may come
/// before the end of the one before is seen.
const OF_LEASE_MAX: usize = 64;

/// Identifies a parked feed.
pub(crate) type FeedId = u64;

/// Result of a registration.
pub(crate) enum Registered {
    /// There is news already; `ended` is handed back uncalled.
    Ready(Ended),
    /// Parked; `ended` will be called once.
    Parked(FeedId),
    /// The lease has too many; `ended` is handed back uncalled.
    Full(Ended),
}

/// All parked feeds of a node.
#[derive(Default)]
pub(crate) struct Feeds {
    next: FeedId,
    parked: HashMap<FeedId, (Topic, Ended)>,
    by_topic: HashMap<Topic, BTreeSet<FeedId>>,
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
        if matches!(topic, Topic::Lease(_)) && self.count(topic) >= OF_LEASE_MAX {
            return Registered::Full(ended);
        }
        self.next += 1;
        self.parked.insert(self.next, (topic.clone(), ended));
        self.by_topic.entry(topic.clone()).or_default().insert(self.next);
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
            ids.remove(&id);
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
        self.by_topic.get(topic).map_or(0, BTreeSet::len)
    }

    /// How many are parked.
    pub(crate) fn len(&self) -> usize {
        self.parked.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use holdfast_api::{
        ClusterCommand, Command, Entry, LeaseCommand, Nonce, Proposal, Scope, SecretId,
    };
    use holdfast_machine::FEATURE_LEVEL;

    use super::*;

    #[test]
    fn a_lease_has_room_for_some_readers_and_for_another_one_when_one_has_gone() {
        let (mut feeds, mut machine) = (Feeds::default(), Machine::default());
        let nonce = Nonce(1, 2);
        let grant = LeaseCommand::Grant {
            scope: Scope::default(),
            nonce,
            host: "a".to_owned(),
            ttl_ms: 60_000,
            store_lost_ms_max: None,
        };
        let level = ClusterCommand::SetFeatureLevel { level: FEATURE_LEVEL };
        let commands = [Command::Cluster(level), Command::Lease(grant)];
        let commands = commands.map(|command| Proposal { session: None, command }).into();
        let answers = machine.apply(&Entry { time: 1, commands }).answers;
        let topic = Topic::Lease(SecretId::of(nonce, 1));
        let park = |feeds: &mut Feeds| match feeds.register(
            &machine,
            &topic,
            u64::MAX,
            Box::new(|_| {}),
        ) {
            Registered::Parked(id) => Some(id),
            Registered::Full(_) => None,
            Registered::Ready(_) => panic!("the lease has no news: {answers:?}"),
        };
        let ids: Vec<FeedId> = (0..OF_LEASE_MAX).map(|_| park(&mut feeds).unwrap()).collect();
        assert_eq!(park(&mut feeds), None);
        feeds.cancel(ids[0]);
        assert!(park(&mut feeds).is_some());
        assert_eq!(park(&mut feeds), None);
    }

    #[test]
    fn a_job_has_many_readers_of_its_events_and_each_is_woken_or_forgotten_once() {
        let (mut feeds, machine) = (Feeds::default(), Machine::default());
        let woken = Arc::new(AtomicUsize::new(0));
        let topic = Topic::Events("job".parse().unwrap());
        let park = |feeds: &mut Feeds| {
            let woken = woken.clone();
            let ended = Box::new(move |_| {
                woken.fetch_add(1, Ordering::Relaxed);
            });
            match feeds.register(&machine, &topic, 0, ended) {
                Registered::Parked(id) => id,
                Registered::Ready(_) | Registered::Full(_) => panic!("it is not parked"),
            }
        };
        let ids: Vec<FeedId> = (0..3 * OF_LEASE_MAX).map(|_| park(&mut feeds)).collect();
        feeds.cancel(ids[1]);
        feeds.cancel(ids[1]);
        assert_eq!((feeds.count(&topic), feeds.len()), (ids.len() - 1, ids.len() - 1));
        feeds.notify([topic.clone()]);
        assert_eq!(woken.load(Ordering::Relaxed), ids.len() - 1);
        assert_eq!((feeds.count(&topic), feeds.len()), (0, 0));
    }
}
