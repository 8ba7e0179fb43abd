//! One member's end of a ring, for its callers.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use super::RingOptions;
use super::id::Id;
use super::owner;
use super::shared::Shared;
use crate::communicator::backend::{Communicator, InitOptions, State, check_root};
use crate::communicator::buffer::{Buffer, Reduction};
use crate::communicator::failure::Failure;
use crate::communicator::lifecycle::Command;
use crate::communicator::work::Work;

pub(super) struct RingCommunicator {
    shared: Arc<Shared>,
    owner: Mutex<Option<JoinHandle<()>>>,
}

impl RingCommunicator {
    pub(super) fn begin(
        ring: RingOptions,
        options: InitOptions,
        id: Id,
    ) -> Result<RingCommunicator, Failure> {
        let name = format!("hf-ring-{}", options.rank);
        let shared =
            Shared::new(options, ring).map_err(|error| Failure::system("eventfd", &error))?;
        let shared = Arc::new(shared);
        let owned = shared.clone();
        let owner = thread::Builder::new()
            .name(name)
            .spawn(move || owner::run(owned, &id))
            .map_err(|error| Failure::system("starting a thread", &error))?;
        Ok(RingCommunicator { shared, owner: Mutex::new(Some(owner)) })
    }
}

impl Communicator for RingCommunicator {
    fn options(&self) -> &InitOptions {
        &self.shared.options
    }

    fn state(&self) -> State {
        self.shared.state()
    }

    fn initialised(&self) -> Work<()> {
        self.shared.initialised()
    }

    fn all_reduce(&self, data: Buffer, reduction: Reduction) -> Work<Buffer> {
        let (work, done) = Work::pending();
        self.shared.submit(Command::AllReduce(data, reduction, done));
        work
    }

    fn broadcast(&self, data: Buffer, root: u32) -> Work<Buffer> {
        if let Err(failure) = check_root(root, self.shared.options.nranks) {
            return Work::ended(Err(failure));
        }
        let (work, done) = Work::pending();
        self.shared.submit(Command::Broadcast(data, root, done));
        work
    }

    fn barrier(&self) -> Work<()> {
        let (work, done) = Work::pending();
        self.shared.submit(Command::Barrier(done));
        work
    }

    fn quiesce(&self) {
        self.shared.quiesce();
    }

    fn release(&self) {
        self.shared.quiesce();
        // Held while it waits, so that a second caller waits as well.
        let mut owner = self.owner.lock();
        if let Some(thread) = owner.take()
            && thread.thread().id() != thread::current().id()
        {
            // A panic was reported by its hook.
            let _ = thread.join();
        }
    }

    fn close(&self) -> Work<()> {
        let (work, done) = Work::pending();
        self.shared.submit(Command::Close(done));
        work
    }
}

impl Drop for RingCommunicator {
    fn drop(&mut self) {
        self.release();
    }
}
