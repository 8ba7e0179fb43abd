//! The minter of one id: a child process, and the thread that reaps it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use holdfast_nccl::minter::Options;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};

use super::not_minted;
use crate::communicator::backend::{Minter, UniqueId};
use crate::communicator::failure::Failure;
use crate::communicator::work::{Event, Work};

const THREAD_NAME: &str = "hf-nccl-minter";

/// Keeps the child, which is not notified when all members have joined: it ends
/// only by a failure, or [`Minter::kill`].
pub(super) struct NcclMinter {
    id: UniqueId,
    child: Arc<Child>,
    thread: Option<JoinHandle<()>>,
}

impl NcclMinter {
    pub(super) fn mint(options: &Options) -> Result<NcclMinter, Failure> {
        let minter = holdfast_nccl::Minter::start(options).map_err(not_minted)?;
        let id = UniqueId::from_bytes(*minter.id().as_bytes());
        let process =
            minter.pidfd().map_err(|error| Failure::system("opening a process", &error))?;
        let child = Arc::new(Child {
            process,
            killed: AtomicBool::new(false),
            ended: Mutex::new(Event::new()),
        });
        let watched = child.clone();
        let thread = thread::Builder::new()
            .name(THREAD_NAME.to_owned())
            .spawn(move || watched.watch(minter))
            .map_err(|error| Failure::system("starting a thread", &error))?;
        Ok(NcclMinter { id, child, thread: Some(thread) })
    }
}

impl Minter for NcclMinter {
    fn id(&self) -> UniqueId {
        self.id
    }

    fn ended(&self) -> Work<()> {
        self.child.ended.lock().wait()
    }

    fn kill(&self) {
        self.child.kill();
    }
}

impl Drop for NcclMinter {
    fn drop(&mut self) {
        self.child.kill();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // A panic was reported by its hook.
            let _ = thread.join();
        }
    }
}

struct Child {
    /// Readable once it has ended; it names no other process, also afterwards.
    process: OwnedFd,
    killed: AtomicBool,
    ended: Mutex<Event>,
}

impl Child {
    /// Waits for its end, and reaps it.
    fn watch(&self, mut minter: holdfast_nccl::Minter) {
        let waited = loop {
            match poll(&mut [PollFd::new(&self.process, PollFlags::IN)], None) {
                Ok(_) => break minter.ended(),
                Err(Errno::INTR) => {}
                Err(error) => break Err(error.into()),
            }
        };
        // Kills it, if it cannot be waited for.
        drop(minter);
        let failure = if self.killed.load(Ordering::SeqCst) {
            Failure::Aborted
        } else {
            let how = match waited {
                Ok(Some(status)) => status.to_string(),
                Ok(None) => "it runs no longer".to_owned(),
                Err(error) => error.to_string(),
            };
            Failure::RootEnded { reason: format!("its minter, a child process, has ended: {how}") }
        };
        let told = self.ended.lock().happen(Err(failure));
        told.tell();
    }

    fn kill(&self) {
        self.killed.store(true, Ordering::SeqCst);
        // It fails if the process has ended.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
    }
}
