//! A communicator of one generation, as a program uses it.

use std::sync::Arc;

use holdfast_api::{Blob, Code, Generation, Member};
use holdfast_client::Deadline;

use super::build::{self, join, ready_round_of, round_of};
use super::collective::{CallError, Collective, Why};
use super::held::HeldGeneration;
use crate::communicator::{Buffer, Communicator, Failure, Reduction, Work};

/// A communicator of one generation, or of some of its ranks. Once the generation
/// is over, every pending and later call fails with [`CallError::Revoked`].
///
/// All members call the same operations in the same order. There are no deadlines:
/// a member that ends revokes the generation, and one that hangs is what the job's
/// watchdogs are for.
pub struct GroupCommunicator {
    held: Arc<HeldGeneration>,
    /// None = this process has no part in it.
    communicator: Option<Arc<dyn Communicator>>,
}

impl GroupCommunicator {
    pub(super) fn new(
        held: Arc<HeldGeneration>,
        communicator: Option<Arc<dyn Communicator>>,
    ) -> Arc<GroupCommunicator> {
        Arc::new(GroupCommunicator { held, communicator })
    }

    pub(super) fn held(&self) -> &Arc<HeldGeneration> {
        &self.held
    }

    /// Its generation: unique in the job, for good.
    pub fn generation(&self) -> Generation {
        self.held.generation()
    }

    /// The members of the generation, in rank order.
    pub fn members(&self) -> &[Member] {
        self.held.members()
    }

    /// This process's rank; `None` = it has no part in it.
    pub fn rank(&self) -> Option<u32> {
        self.communicator.as_ref().map(|communicator| communicator.options().rank)
    }

    /// How many ranks it has; 0 = this process has no part in it.
    pub fn nranks(&self) -> u32 {
        self.communicator.as_ref().map_or(0, |communicator| communicator.options().nranks)
    }

    /// Why it must not be used any more; `None` = it may be.
    pub fn why_over(&self) -> Option<Why> {
        self.held.why()
    }

    /// Returns when it must not be used any more.
    pub async fn over(&self) -> Why {
        self.held.over().await;
        self.held.why().unwrap_or(Why::Released)
    }

    /// Combines the elements of all ranks; all get the same bytes.
    pub fn all_reduce(&self, data: Buffer, reduction: Reduction) -> Collective<Buffer> {
        self.call(|communicator| communicator.all_reduce(data, reduction))
    }

    /// Gives the elements of rank `root` to all. The others bring a buffer of the
    /// same type and length.
    pub fn broadcast(&self, data: Buffer, root: u32) -> Collective<Buffer> {
        self.call(|communicator| communicator.broadcast(data, root))
    }

    /// Completes when all ranks have called it.
    pub fn barrier(&self) -> Collective<()> {
        self.call(|communicator| communicator.barrier())
    }

    /// Revokes the generation, for all. `reason`: at most 256 bytes.
    pub async fn fail(&self, reason: &str, deadline: Deadline) -> Result<(), CallError> {
        let revoked = self.held.process().revoke(self.generation(), reason, deadline).await;
        Ok(revoked?)
    }

    /// A communicator among some ranks of this generation, which ends with it. All
    /// ranks of the generation call it with the same arguments, in the same order;
    /// those that are not in `ranks` have no part in what they get.
    pub async fn subgroup(
        &self,
        name: &str,
        ranks: &[u32],
        deadline: Deadline,
    ) -> Result<Arc<GroupCommunicator>, CallError> {
        self.check(name, ranks).map_err(CallError::Refused)?;
        let mut running = self.held.begin().map_err(CallError::Refused)?;
        let made = self.make(name, ranks, deadline).await;
        running.end();
        made
    }

    async fn make(
        &self,
        name: &str,
        ranks: &[u32],
        deadline: Deadline,
    ) -> Result<Arc<GroupCommunicator>, CallError> {
        let place = self.held.part(name, ranks);
        let joined = join(&self.held, place, &round_of(name), deadline).await;
        let joined = match joined {
            Ok(joined) => joined,
            Err(build::Error::Store(error)) => return Err(self.half_made(error)),
            Err(build::Error::Revoked | build::Error::NotStopped) => {
                return Err(self.revoked().await);
            }
            Err(build::Error::Failed(failure)) => {
                self.held.failed(failure);
                return Err(self.revoked().await);
            }
        };
        let (process, round) = (self.held.process(), ready_round_of(name));
        match process.share(&round, self.generation(), Blob::default(), deadline).await {
            Ok(_) => Ok(GroupCommunicator::new(self.held.clone(), joined)),
            Err(error) if error.code() == Code::Revoked => Err(self.revoked().await),
            Err(error) => Err(self.half_made(error)),
        }
    }

    /// The others may have gone on with it: no other call can be in order.
    fn half_made(&self, error: crate::error::Error) -> CallError {
        self.held
            .failed(Failure::System { call: "building a subgroup", reason: error.to_string() });
        error.into()
    }

    /// Ends the whole communicator in order, all members having agreed.
    pub(super) async fn close_in_order(&self, deadline: Deadline) {
        let Some(communicator) = &self.communicator else { return };
        let closed = communicator.close();
        match deadline.instant() {
            // A communicator that does not close is aborted by the stop that follows.
            Some(at) => drop(tokio::time::timeout_at(at, closed).await),
            None => drop(closed.await),
        }
    }

    fn check(&self, name: &str, ranks: &[u32]) -> Result<(), Failure> {
        let invalid = |what, reason: String| Err(Failure::Invalid { what, reason });
        let most = super::NAME_BYTES_MAX - 1;
        if !(1..=most).contains(&name.len()) {
            let reason = format!("{} bytes, where 1 to {most} are allowed", name.len());
            return invalid("name of the subgroup", reason);
        }
        let count = self.members().len();
        let mut seen = std::collections::BTreeSet::new();
        if ranks.is_empty() {
            return invalid("ranks", "there is none".to_owned());
        }
        match ranks.iter().find(|rank| **rank as usize >= count || !seen.insert(**rank)) {
            None => Ok(()),
            Some(rank) => invalid(
                "ranks",
                format!("rank {rank} is given twice, or is none of 0 to {}", count - 1),
            ),
        }
    }

    async fn revoked(&self) -> CallError {
        let why = self.over().await;
        CallError::Revoked { generation: self.generation(), why }
    }

    fn call<T>(&self, call: impl FnOnce(&dyn Communicator) -> Work<T>) -> Collective<T> {
        Collective::begin(&self.held, || match &self.communicator {
            Some(communicator) => call(communicator.as_ref()),
            None => Work::ended(Err(Failure::Invalid {
                what: "call",
                reason: "this process is none of the subgroup's ranks".to_owned(),
            })),
        })
    }
}

impl std::fmt::Debug for GroupCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupCommunicator")
            .field("group", &self.held.group())
            .field("generation", &self.generation())
            .field("rank", &self.rank())
            .finish_non_exhaustive()
    }
}
