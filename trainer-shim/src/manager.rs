//! Communicators that end with any of their members.
//!
//! [`CommunicatorManager::acquire`] gives a group's communicator of the current generation: the
//! store decides the members, a [`Backend`] builds it, and no member gets it before all have built
//! it. When a member ends, or a failure is reported, the generation is revoked; a thread of
//! each process then stops the communicator, frees it and reports that to the store, wherever the
//! program is at that time, and every pending and later call answers [`CallError::Revoked`]. The
//! next [`CommunicatorManager::acquire`] gives the next generation.
//!
//! ```no_run
//! use std::sync::Arc;
//! use holdfast_trainer_shim::communicator::{Reduction, ring::Ring};
//! use holdfast_trainer_shim::manager::{CallError, CommunicatorManager, Spec};
//!
//! # async fn train(process: holdfast_trainer_shim::Process) -> Result<(), Box<dyn std::error::Error>> {
//! let manager = CommunicatorManager::new(process, Arc::new(Ring::default()));
//! loop {
//!     let group = manager.acquire("gradients", &Spec::default(), holdfast_client::Deadline::never()).await?;
//!     match group.all_reduce(vec![1.0_f32, 2.0].into(), Reduction::Sum).await {
//!         Ok(sum) => println!("generation {}: {sum:?}", group.generation()),
//!         Err(CallError::Revoked { why, .. }) => println!("{why}"),   // acquire gives the next one
//!         Err(error) => return Err(error.into()),
//!     }
//! }
//! # }
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `build` | from a generation that is held to a communicator that all members have |
//! | `held` | one generation: its communicators, and the thread that stops them |
//! | `group` | the communicator as a program uses it |
//! | `collective` | a call in progress |
//!
//! # Architecture invariants
//!
//! * An id is minted for one generation, by its rank 0, and its members alone
//!   read it, in a round among the generation. Its minter ends when that is
//!   formed, or is over.
//! * Staleness is looked for before building, after building, and after each
//!   call: no result of a revoked generation is handed out.
//! * An arrival says that nothing of the communicator runs: a group with
//!   collectives in progress is not acquired.
//! * A communicator is closed in order only after all members have agreed to in
//!   a round; in all other cases it is aborted.

mod build;
mod collective;
mod group;
mod held;

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_api::{Among, Code, Effectiveness, Generation};
use holdfast_client::Deadline;
use parking_lot::Mutex;

pub use self::collective::{CallError, Collective, Why};
pub use self::group::GroupCommunicator;
use self::held::HeldGeneration;
use crate::communicator::{Backend, Failure};
use crate::error::Error;
use crate::held::{Formed, Holding};
use crate::process::Process;

/// How often building may fail in this process, in generations that no other
/// process revoked, before [`CommunicatorManager::acquire`] gives up.
pub const BUILDS_MAX: u32 = 3;

/// Longest name of a group, in bytes; the rest of what a library takes is for
/// subgroups.
pub const NAME_BYTES_MAX: usize = 128;

/// What a communicator should be. All members pass the same.
#[derive(Debug, Clone, Default)]
pub struct Spec {
    /// Which processes are its members.
    pub among: Among,
    /// Terms that all must agree on, and the limits.
    pub holding: Holding,
}

/// Why there is no communicator.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// The store refused, or could not be asked in time.
    #[error(transparent)]
    Store(#[from] Error),
    /// The communicator could not be built, [`BUILDS_MAX`] times.
    #[error(
        "no communicator of group {group:?} could be built, in {builds} generations: {failure}"
    )]
    Build {
        /// Name of the group.
        group: String,
        /// How many generations were tried.
        builds: u32,
        /// Why the last one failed.
        failure: Failure,
    },
    /// Collectives of the communicator that this process has are in progress.
    #[error(
        "{running} calls on group {group:?} are in progress here: wait for them before it is acquired again, or closed"
    )]
    Running {
        /// Name of the group.
        group: String,
        /// How many calls are in progress.
        running: u32,
    },
    /// The library failed in freeing a communicator. The agent will end this process.
    #[error(
        "a communicator of group {group:?} could not be freed: nothing may follow it; end this process"
    )]
    NotStopped {
        /// Name of the group.
        group: String,
    },
    /// The group's name is out of bounds.
    #[error("the name of a group has 1 to {NAME_BYTES_MAX} bytes, not {0}")]
    Name(usize),
}

impl AcquireError {
    /// Stable code of the error.
    pub fn code(&self) -> Code {
        match self {
            AcquireError::Store(error) => error.code(),
            AcquireError::Build { failure, .. } => failure.code(),
            AcquireError::Running { .. } => Code::Conflict,
            AcquireError::NotStopped { .. } => Code::Fenced,
            AcquireError::Name(_) => Code::InvalidRequest,
        }
    }

    /// Whether the same call can succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            AcquireError::Store(error) => error.is_retryable(),
            AcquireError::Build { .. } | AcquireError::Running { .. } => true,
            AcquireError::NotStopped { .. } | AcquireError::Name(_) => false,
        }
    }
}

/// Gives communicators to one process. Cheap to clone.
#[derive(Clone)]
pub struct CommunicatorManager {
    process: Process,
    backend: Arc<dyn Backend>,
    groups: Arc<Mutex<BTreeMap<String, Arc<Group>>>>,
}

/// This process's state of a group.
#[derive(Default)]
struct Group {
    /// Held while the next generation is formed: one call at a time.
    forming: tokio::sync::Mutex<()>,
    current: Mutex<Option<Arc<GroupCommunicator>>>,
    /// The generation that is being built, or was when a call was given up.
    building: Mutex<Option<Arc<HeldGeneration>>>,
}

impl CommunicatorManager {
    /// Communicators of this process, built by this library. All members of a
    /// group use the same one.
    pub fn new(process: Process, backend: Arc<dyn Backend>) -> CommunicatorManager {
        CommunicatorManager { process, backend, groups: Arc::default() }
    }

    /// The group's communicator of the current generation. With the same members,
    /// no newcomer waiting, and nothing revoked, it is the one that this process
    /// has, without asking the store; otherwise this waits until all members call
    /// it. Nothing of the group's communicator may run during the call.
    ///
    /// Call it in a tokio runtime with threads of its own, which must go on as long
    /// as the communicator is in use.
    pub async fn acquire(
        &self,
        name: &str,
        spec: &Spec,
        deadline: Deadline,
    ) -> Result<Arc<GroupCommunicator>, AcquireError> {
        let group = self.group(name)?;
        if let Some(current) = self.current(&group) {
            return Ok(current);
        }
        let _one_at_a_time = group.forming.lock().await;
        let mut failures = 0;
        loop {
            let formed = self.form(name, &group, spec, deadline).await?;
            let held = match formed {
                Outcome::Again(current) => return Ok(current),
                Outcome::Formed(formed) => formed,
            };
            match self.build(name, &group, held, deadline).await {
                Ok(built) => {
                    *group.current.lock() = Some(built.clone());
                    return Ok(built);
                }
                Err(build::Error::Store(error)) => return Err(error.into()),
                Err(build::Error::Revoked) => {}
                Err(build::Error::NotStopped) => return Err(not_stopped(name)),
                Err(build::Error::Failed(failure)) => {
                    failures += 1;
                    if failures >= BUILDS_MAX {
                        let (group, builds) = (name.to_owned(), failures);
                        return Err(AcquireError::Build { group, builds, failure });
                    }
                }
            }
        }
    }

    /// Ends the group's communicator in order: returns when all members have called
    /// it. Without one, nothing happens.
    pub async fn close(&self, name: &str, deadline: Deadline) -> Result<(), AcquireError> {
        let group = self.group(name)?;
        let _one_at_a_time = group.forming.lock().await;
        let Some(current) = group.current.lock().clone() else { return Ok(()) };
        let held = current.held();
        held.arrive().map_err(|running| running_in(name, running))?;
        let agreed = self.process.close_held(held.generation(), deadline).await;
        if agreed.is_ok() {
            current.close_in_order(deadline).await;
        }
        stop(&current, name).await?;
        *group.current.lock() = None;
        Ok(agreed?)
    }

    fn group(&self, name: &str) -> Result<Arc<Group>, AcquireError> {
        if let Some(group) = self.groups.lock().get(name) {
            return Ok(group.clone());
        }
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
            return Err(AcquireError::Name(name.len()));
        }
        Ok(self.groups.lock().entry(name.to_owned()).or_default().clone())
    }

    /// The present communicator, if it may be used without asking the store.
    fn current(&self, group: &Group) -> Option<Arc<GroupCommunicator>> {
        let current = group.current.lock();
        let current = current.as_ref()?;
        let valid = current.held().is_current() && self.process.host().valid_for().is_some();
        valid.then(|| current.clone())
    }

    /// Arrives at the group's round, with the generation that is intact here.
    async fn form(
        &self,
        name: &str,
        group: &Group,
        spec: &Spec,
        deadline: Deadline,
    ) -> Result<Outcome, AcquireError> {
        let left = group.building.lock().clone();
        if let Some(left) = left {
            left.stop(Why::Released).await.map_err(|_| not_stopped(name))?;
            *group.building.lock() = None;
        }
        let kept = group.current.lock().clone();
        let mut holds = 0;
        if let Some(kept) = &kept {
            if kept.held().is_intact() {
                kept.held().arrive().map_err(|running| running_in(name, running))?;
                holds = kept.held().generation();
            } else {
                stop(kept, name).await?;
            }
        }
        let mut holding = spec.holding.clone();
        let library = self.backend.capabilities().name;
        holding.spec = [library.as_bytes(), b" ", holding.spec.as_bytes()].concat().into();
        let (among, handle) = (spec.among.clone(), (holds, holdfast_api::Blob::default()));
        let formed = match self.process.form(name, &holding, among, handle, deadline).await {
            Ok(formed) => formed,
            Err(error) => {
                // The named generation is held on where it is certain that no round closed.
                if let Some(kept) = &kept
                    && error.outcome() == Effectiveness::None
                {
                    kept.held().go_on(None);
                }
                return Err(error.into());
            }
        };
        if formed.again
            && let Some(kept) = kept
        {
            kept.held().go_on(Some(formed.witness));
            if kept.held().is_intact() {
                return Ok(Outcome::Again(kept));
            }
            // It was stopped during the build: the others must not use it either.
            self.give_up(formed.generation, "it was stopped here").await;
            return Box::pin(self.form(name, group, spec, deadline)).await;
        }
        if let Some(kept) = kept {
            stop(&kept, name).await?;
        }
        *group.current.lock() = None;
        Ok(Outcome::Formed(formed))
    }

    /// Says that a generation is of no use.
    async fn give_up(&self, generation: Generation, reason: &str) {
        let told = self.process.revoke(generation, reason, held::soon()).await;
        if let Err(error) = told {
            tracing::warn!(%error, generation, "cannot report to the store that a communicator is unusable");
        }
    }
}

/// Stops what this process has of a group.
async fn stop(kept: &GroupCommunicator, group: &str) -> Result<(), AcquireError> {
    kept.held().stop(Why::Released).await.map_err(|_| not_stopped(group))
}

/// No report to the store then: the agent ends this process.
fn not_stopped(group: &str) -> AcquireError {
    AcquireError::NotStopped { group: group.to_owned() }
}

fn running_in(group: &str, running: u32) -> AcquireError {
    AcquireError::Running { group: group.to_owned(), running }
}

/// The result of the group's round.
enum Outcome {
    /// The same communicator as before.
    Again(Arc<GroupCommunicator>),
    /// A generation to build.
    Formed(Formed),
}

impl std::fmt::Debug for CommunicatorManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommunicatorManager")
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}
