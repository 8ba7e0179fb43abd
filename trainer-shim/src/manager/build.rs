//! From a generation that is held to a communicator that all members have.

use std::sync::Arc;

use holdfast_api::{Blob, Code};
use holdfast_client::Deadline;

use super::collective::Why;
use super::group::GroupCommunicator;
use super::held::{EXPLAINED_WITHIN, HeldGeneration, NotStopped, Opening, Place, soon};
use super::{CommunicatorManager, Group};
use crate::communicator::{
    Communicator, Failure, InitOptions, MintOptions, Minter, UNIQUE_ID_BYTES, UniqueId,
};
use crate::error;
use crate::held::Formed;

/// The round in which the id reaches the members.
const ID_ROUND: &str = "id";

/// Why nothing was built.
pub(super) enum Error {
    /// The generation was revoked.
    Revoked,
    /// Building failed here, and the generation was revoked for it.
    Failed(Failure),
    /// The store could not be asked.
    Store(error::Error),
    /// A part of it may run on here.
    NotStopped,
}

impl From<error::Error> for Error {
    fn from(error: error::Error) -> Error {
        // Before the arrival, or after it.
        match error.code() {
            Code::Revoked => Error::Revoked,
            _ => Error::Store(error),
        }
    }
}

impl CommunicatorManager {
    /// Builds the communicator of a generation that this process holds from now
    /// on. If that fails, nothing is held.
    pub(super) async fn build(
        &self,
        name: &str,
        group: &Group,
        formed: Formed,
        deadline: Deadline,
    ) -> Result<Arc<GroupCommunicator>, Error> {
        let generation = formed.generation;
        let held = match HeldGeneration::new(name, &self.process, &self.backend, formed) {
            Ok(held) => held,
            Err(error) => {
                let failure = Failure::system("starting a thread", &error);
                self.give_up(generation, &failure.to_string()).await;
                self.process.release(generation, soon()).await?;
                return Err(Error::Failed(failure));
            }
        };
        // Where this call is given up, the next one stops it.
        *group.building.lock() = Some(held.clone());
        let built = self.build_in(&held, deadline).await;
        let built = match built {
            Ok(built) => Ok(built),
            Err(error) => {
                // A peer's sockets close before the store knows of its end.
                let explained = match &error {
                    Error::Failed(_) => {
                        tokio::time::timeout(EXPLAINED_WITHIN, held.over()).await.is_ok()
                    }
                    _ => false,
                };
                if let Error::Failed(failure) = &error
                    && !explained
                {
                    self.give_up(generation, &failure.to_string()).await;
                }
                held.stop(Why::Released).await.map_err(|NotStopped| Error::NotStopped)?;
                if explained { Err(Error::Revoked) } else { Err(error) }
            }
        };
        if !matches!(built, Err(Error::NotStopped)) {
            *group.building.lock() = None;
        }
        built
    }

    async fn build_in(
        &self,
        held: &Arc<HeldGeneration>,
        deadline: Deadline,
    ) -> Result<Arc<GroupCommunicator>, Error> {
        let place = held.whole();
        let communicator = join(held, place, ID_ROUND, deadline).await?;
        self.process.ready(held.generation(), deadline).await?;
        if held.is_over() {
            return Err(Error::Revoked);
        }
        Ok(GroupCommunicator::new(held.clone(), communicator))
    }
}

/// Gets the id of a communicator among members of the generation, and joins it.
/// All members of the generation call it; one without a place does nothing else.
pub(super) async fn join(
    held: &Arc<HeldGeneration>,
    place: Place,
    round: &str,
    deadline: Deadline,
) -> Result<Option<Arc<dyn Communicator>>, Error> {
    let minter = mint(held, &place).await?;
    let value = minter
        .as_ref()
        .map_or_else(Blob::default, |minter| Blob::from(&minter.id().as_bytes()[..]));
    let values = held.process().share(round, held.generation(), value, deadline).await?;
    let Some(rank) = place.rank else { return Ok(None) };
    let id = values.get(place.minter).and_then(|value| value.as_bytes().try_into().ok());
    let Some(id): Option<[u8; UNIQUE_ID_BYTES]> = id else {
        let reason = "rank 0 published none".to_owned();
        return Err(Error::Failed(Failure::Invalid { what: "unique id", reason }));
    };
    let options = InitOptions {
        group: place.name,
        generation: held.generation(),
        incarnation: held.process().incarnation(),
        nranks: place.nranks,
        rank,
        id: UniqueId::from_bytes(id),
    };
    let communicator = held.open(options).map_err(|opening| match opening {
        Opening::Over => Error::Revoked,
        Opening::Failed(failure) => Error::Failed(failure),
    })?;
    initialised(held, communicator.as_ref(), minter.as_deref(), deadline).await?;
    Ok(Some(communicator))
}

/// Mints in a thread of its own, since a library may start a process for it. An
/// id that comes too late is dropped.
async fn mint(held: &HeldGeneration, place: &Place) -> Result<Option<Box<dyn Minter>>, Error> {
    if place.rank != Some(0) {
        return Ok(None);
    }
    let (group, generation, nranks) = (place.name.clone(), held.generation(), place.nranks);
    let backend = held.backend().clone();
    let options = MintOptions { group, generation, nranks };
    let minting = tokio::task::spawn_blocking(move || backend.mint(&options));
    let minted = tokio::select! {
        minted = minting => minted,
        () = held.over() => return Err(Error::Revoked),
    };
    match minted {
        Ok(minted) => minted.map(Some).map_err(Error::Failed),
        Err(error) => {
            let reason = error.to_string();
            Err(Error::Failed(Failure::System { call: "minting a unique id", reason }))
        }
    }
}

/// Waits until all members have joined. A minter that ends before is a failure of
/// its own: members that have checked in are not notified.
async fn initialised(
    held: &HeldGeneration,
    communicator: &dyn Communicator,
    minter: Option<&dyn Minter>,
    deadline: Deadline,
) -> Result<(), Error> {
    let mut initialised = communicator.initialised();
    let minted = async {
        match minter {
            Some(minter) => match minter.ended().await {
                Ok(()) => std::future::pending().await,
                Err(failure) => failure,
            },
            None => std::future::pending().await,
        }
    };
    let joined = tokio::select! {
        joined = &mut initialised => joined,
        failure = minted => Err(failure),
        () = held.over() => return Err(Error::Revoked),
        () = passed(deadline) => {
            let reason = "not all members had joined at the caller's deadline".to_owned();
            Err(Failure::System { call: "building", reason })
        }
    };
    match joined {
        Ok(()) if !held.is_over() => Ok(()),
        Ok(()) | Err(Failure::Aborted) => Err(Error::Revoked),
        Err(failure) => Err(Error::Failed(failure)),
    }
}

async fn passed(deadline: Deadline) {
    match deadline.instant() {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The round in which a subgroup's id reaches the members.
pub(super) fn round_of(subgroup: &str) -> String {
    format!("{ID_ROUND}:{subgroup}")
}

/// The round in which a subgroup is built everywhere.
pub(super) fn ready_round_of(subgroup: &str) -> String {
    format!("ready:{subgroup}")
}
