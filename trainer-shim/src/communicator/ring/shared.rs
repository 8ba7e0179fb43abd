//! State shared by the callers of a communicator and its owner thread.
//!
//! Callers leave commands and wake the owner; an abort does not wait for its
//! turn among them. The owner sleeps in `poll` on its sockets and the wakeup.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{DeadPeer, RingOptions};
use crate::communicator::backend::{InitOptions, State};
use crate::communicator::failure::Failure;
use crate::communicator::lifecycle::{Command, Lifecycle};
use crate::communicator::work::Work;

#[derive(Debug)]
pub(super) enum Stop {
    /// The communicator was quiesced by its user.
    Aborted,
    /// It is known that this communicator is of no use.
    Failed(Failure),
    /// It is of no use, and no error is reported: only an abort ends this.
    Hang,
}

pub(super) struct Shared {
    pub(super) options: InitOptions,
    pub(super) ring: RingOptions,
    aborted: AtomicBool,
    wakeup: OwnedFd,
    control: Mutex<Control>,
}

struct Control {
    lifecycle: Lifecycle,
    /// The sockets that an abort shuts down. They stay open until then, also
    /// after a failure, so that it is not passed on to the next neighbour.
    sockets: Vec<Arc<TcpStream>>,
    /// Where the rank before connects: open as long, for the same reason.
    listener: Option<Arc<TcpListener>>,
}

impl Shared {
    pub(super) fn new(options: InitOptions, ring: RingOptions) -> io::Result<Shared> {
        let control =
            Control { lifecycle: Lifecycle::new(ring.strict), sockets: Vec::new(), listener: None };
        Ok(Shared {
            options,
            ring,
            aborted: AtomicBool::new(false),
            wakeup: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            control: Mutex::new(control),
        })
    }

    pub(super) fn state(&self) -> State {
        self.control.lock().lifecycle.state().clone()
    }

    pub(super) fn initialised(&self) -> Work<()> {
        self.control.lock().lifecycle.initialised()
    }

    pub(super) fn submit(&self, command: Command) {
        let submitted = self.control.lock().lifecycle.submit(command);
        match submitted {
            Ok(()) => self.wake(),
            Err((command, failure)) => command.fail(failure),
        }
    }

    /// Stops everything, from any thread, at any time.
    pub(super) fn quiesce(&self) {
        let mut control = self.control.lock();
        let Some(ended) = control.lifecycle.abort() else { return };
        self.aborted.store(true, Ordering::SeqCst);
        let sockets = std::mem::take(&mut control.sockets);
        control.listener = None;
        drop(control);
        for socket in sockets {
            // Fails if the peer has closed it.
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.wake();
        ended.tell();
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    /// All members have joined: no other is waited for.
    pub(super) fn ready(&self) -> Result<(), Stop> {
        let mut control = self.control.lock();
        if control.lifecycle.is_aborted() {
            return Err(Stop::Aborted);
        }
        control.listener = None;
        let told = control.lifecycle.ready();
        drop(control);
        told.tell();
        Ok(())
    }

    /// All members have closed it.
    pub(super) fn closed(&self) -> Result<(), Stop> {
        let mut control = self.control.lock();
        if control.lifecycle.is_aborted() {
            return Err(Stop::Aborted);
        }
        control.lifecycle.close();
        control.sockets.clear();
        Ok(())
    }

    /// It is of no use any more. Pending calls fail, but for a close that need
    /// not look.
    pub(super) fn fail(&self, failure: Failure) {
        let ended = self.control.lock().lifecycle.fail(failure);
        ended.tell();
    }

    pub(super) fn lost(&self, rank: u32, reason: impl ToString) -> Stop {
        match self.ring.dead_peer {
            DeadPeer::Sockets => {
                Stop::Failed(Failure::PeerLost { rank, reason: reason.to_string() })
            }
            DeadPeer::Silent => Stop::Hang,
        }
    }

    /// A socket that an abort shuts down.
    pub(super) fn adopt(&self, socket: TcpStream) -> Result<Arc<TcpStream>, Stop> {
        let mut control = self.control.lock();
        if self.is_aborted() {
            return Err(Stop::Aborted);
        }
        let socket = Arc::new(socket);
        control.sockets.push(socket.clone());
        Ok(socket)
    }

    /// Where the rank before will connect.
    pub(super) fn adopt_listener(&self, listener: TcpListener) -> Result<Arc<TcpListener>, Stop> {
        let mut control = self.control.lock();
        if self.is_aborted() {
            return Err(Stop::Aborted);
        }
        let listener = Arc::new(listener);
        control.listener = Some(listener.clone());
        Ok(listener)
    }

    /// A socket that has served its purpose.
    pub(super) fn drop_socket(&self, socket: Arc<TcpStream>) {
        self.control.lock().sockets.retain(|other| !Arc::ptr_eq(other, &socket));
    }

    /// Closes what is left at the end of the owner.
    pub(super) fn drop_sockets(&self) {
        let mut control = self.control.lock();
        control.sockets.clear();
        control.listener = None;
    }

    pub(super) fn next_command(&self) -> Result<Command, Stop> {
        loop {
            if let Some(command) = self.control.lock().lifecycle.next() {
                return Ok(command);
            }
            self.wait(&[], None)?;
        }
    }

    pub(super) fn wait_for_abort(&self) {
        while self.wait(&[], None).is_ok() {}
    }

    fn wake(&self) {
        // It can only fail because it was written to before, and wakes already.
        let _ = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes());
    }

    /// Waits until one of these is ready, and returns what each is ready for;
    /// also returns when a command was left, or the time is over.
    pub(super) fn wait(
        &self,
        interests: &[(BorrowedFd<'_>, PollFlags)],
        timeout: Option<Duration>,
    ) -> Result<Vec<PollFlags>, Stop> {
        let failed = |error: io::Error| Stop::Failed(Failure::system("poll", &error));
        let timeout = timeout
            .map(Timespec::try_from)
            .transpose()
            .map_err(|_| failed(io::ErrorKind::InvalidInput.into()))?;
        let mut fds: Vec<PollFd<'_>> =
            interests.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        fds.push(PollFd::new(&self.wakeup, PollFlags::IN));
        if self.is_aborted() {
            return Err(Stop::Aborted);
        }
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
        }
        let mut ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        if ready.pop().is_some_and(|wakeup| !wakeup.is_empty()) {
            // Fails if another reader was first, and there is none.
            let _ = rustix::io::read(self.wakeup.as_fd(), &mut [0_u8; 8]);
        }
        if self.is_aborted() { Err(Stop::Aborted) } else { Ok(ready) }
    }
}
