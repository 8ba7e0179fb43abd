//! One member's end of a communicator, for its callers.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use super::gpu::Gpu;
use super::owner;
use super::shared::Shared;
use crate::communicator::backend::{Communicator, InitOptions, State, check_root};
use crate::communicator::buffer::{Buffer, Reduction};
use crate::communicator::failure::Failure;
use crate::communicator::lifecycle::Command;
use crate::communicator::work::Work;

pub(super) struct NcclCommunicator {
    shared: Arc<Shared>,
    owner: Mutex<Option<JoinHandle<()>>>,
}

impl NcclCommunicator {
    pub(super) fn begin(gpu: Arc<Gpu>, options: InitOptions) -> Result<NcclCommunicator, Failure> {
        let name = format!("hf-nccl-{}", options.rank);
        let shared = Arc::new(Shared::new(options));
        let owned = shared.clone();
        let owner = thread::Builder::new()
            .name(name)
            .spawn(move || owner::run(owned, &gpu))
            .map_err(|error| Failure::system("starting a thread", &error))?;
        Ok(NcclCommunicator { shared, owner: Mutex::new(Some(owner)) })
    }

    /// Has it freed, and waits for that; why it could not be.
    fn free(&self) -> Result<(), Failure> {
        self.shared.release();
        // Held while it waits, so that a second caller waits as well.
        let mut owner = self.owner.lock();
        if let Some(thread) = owner.take()
            && thread.thread().id() != thread::current().id()
        {
            // A panic was reported by its hook.
            let _ = thread.join();
        }
        self.shared.not_freed().map_or(Ok(()), Err)
    }
}

impl Communicator for NcclCommunicator {
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
        if let Err(failure) = self.free() {
            panic!("a communicator of NCCL is not freed: {failure}; end this process");
        }
    }

    fn close(&self) -> Work<()> {
        let (work, done) = Work::pending();
        self.shared.submit(Command::Close(done));
        work
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        if let Err(failure) = self.free() {
            let InitOptions { group, generation, .. } = &self.shared.options;
            tracing::error!(%failure, group, generation, "a communicator of NCCL is not freed");
        }
    }
}
