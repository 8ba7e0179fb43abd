//! What the callers of a communicator and its owner thread have in common.
//!
//! Callers leave commands and wake the owner; an abort does not wait for its
//! turn among them. The owner sleeps in `poll` on its sockets and the wakeup.

use std::collections::VecDeque;
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
use crate::communicator::buffer::{Buffer, Reduction};
use crate::communicator::failure::Failure;
use crate::communicator::work::{Completer, Event, Work};

/// Most operations that wait in one communicator.
pub const OPERATIONS_WAITING_MAX: usize = 1024;

/// What the owner is asked to do.
pub(super) enum Command {
    AllReduce(Buffer, Reduction, Completer<Buffer>),
    Broadcast(Buffer, u32, Completer<Buffer>),
    Barrier(Completer<()>),
    Close(Completer<()>),
}

impl Command {
    pub(super) fn fail(self, failure: Failure) {
        match self {
            Command::AllReduce(_, _, done) | Command::Broadcast(_, _, done) => {
                done.complete(Err(failure));
            }
            Command::Barrier(done) | Command::Close(done) => done.complete(Err(failure)),
        }
    }
}

/// Why the owner cannot go on.
#[derive(Debug)]
pub(super) enum Stop {
    /// Quiesce was called.
    Aborted,
    /// It is known that this communicator is of no use.
    Failed(Failure),
    /// It is of no use, and nobody is told: only an abort ends this.
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
    state: State,
    commands: VecDeque<Command>,
    /// Close was called: nothing is taken after it.
    closing: bool,
    /// The sockets that an abort shuts down. They stay open until then, also
    /// after a failure, so that it is not passed on to the next neighbour.
    sockets: Vec<Arc<TcpStream>>,
    /// Where the rank before connects: open as long, for the same reason.
    listener: Option<Arc<TcpListener>>,
    initialised: Event,
}

impl Shared {
    pub(super) fn new(options: InitOptions, ring: RingOptions) -> io::Result<Shared> {
        let control = Control {
            state: State::InProgress,
            commands: VecDeque::new(),
            closing: false,
            sockets: Vec::new(),
            listener: None,
            initialised: Event::new(),
        };
        Ok(Shared {
            options,
            ring,
            aborted: AtomicBool::new(false),
            wakeup: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            control: Mutex::new(control),
        })
    }

    pub(super) fn state(&self) -> State {
        self.control.lock().state.clone()
    }

    pub(super) fn initialised(&self) -> Work<()> {
        self.control.lock().initialised.wait()
    }

    /// Leaves a command for the owner, or fails it.
    pub(super) fn submit(&self, command: Command) {
        let mut control = self.control.lock();
        if let Err(failure) = self.admit(&control, &command) {
            drop(control);
            return command.fail(failure);
        }
        control.closing |= matches!(command, Command::Close(_));
        control.commands.push_back(command);
        drop(control);
        self.wake();
    }

    fn admit(&self, control: &Control, command: &Command) -> Result<(), Failure> {
        let close = matches!(command, Command::Close(_));
        match &control.state {
            State::InProgress => return Err(Failure::NotReady),
            State::Closed => return Err(Failure::Closed),
            State::Ready if control.closing => return Err(Failure::Closed),
            State::Ready => {}
            State::Failed(cause) if close && self.ring.strict => {
                return Err(Failure::CloseAfterAbort { cause: Box::new(cause.clone()) });
            }
            // Waits for members that never come, as NCCL's does.
            State::Failed(_) if close && !self.is_aborted() => {}
            State::Failed(cause) => return Err(cause.clone()),
        }
        let limit = OPERATIONS_WAITING_MAX;
        if control.commands.len() >= limit { Err(Failure::Overloaded { limit }) } else { Ok(()) }
    }

    /// Stops everything, from any thread, at any time.
    pub(super) fn quiesce(&self) {
        let mut control = self.control.lock();
        if control.state == State::Closed || self.aborted.swap(true, Ordering::SeqCst) {
            return;
        }
        if !matches!(control.state, State::Failed(_)) {
            control.state = State::Failed(Failure::Aborted);
        }
        let sockets = std::mem::take(&mut control.sockets);
        control.listener = None;
        let commands = std::mem::take(&mut control.commands);
        let told = control.initialised.happen(Err(Failure::Aborted));
        drop(control);
        for socket in sockets {
            // Fails if the peer has closed it.
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.wake();
        commands.into_iter().for_each(|command| command.fail(Failure::Aborted));
        told.tell();
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    /// All members have joined: nobody else is waited for.
    pub(super) fn ready(&self) -> Result<(), Stop> {
        let mut control = self.control.lock();
        if self.is_aborted() {
            return Err(Stop::Aborted);
        }
        control.state = State::Ready;
        control.listener = None;
        let told = control.initialised.happen(Ok(()));
        drop(control);
        told.tell();
        Ok(())
    }

    /// All members have closed it.
    pub(super) fn closed(&self) -> Result<(), Stop> {
        let mut control = self.control.lock();
        if self.is_aborted() {
            return Err(Stop::Aborted);
        }
        control.state = State::Closed;
        control.sockets.clear();
        Ok(())
    }

    /// It is of no use any more. What waits fails, but a close that need not
    /// look.
    pub(super) fn fail(&self, failure: Failure) {
        let mut control = self.control.lock();
        if matches!(control.state, State::InProgress | State::Ready) {
            control.state = State::Failed(failure.clone());
        }
        let commands = std::mem::take(&mut control.commands);
        let told = control.initialised.happen(Err(failure.clone()));
        drop(control);
        commands.into_iter().for_each(|command| command.fail(failure.clone()));
        told.tell();
    }

    /// What to do if a neighbour is lost.
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

    /// The next command; waits for one.
    pub(super) fn next_command(&self) -> Result<Command, Stop> {
        loop {
            if let Some(command) = self.control.lock().commands.pop_front() {
                return Ok(command);
            }
            self.wait(&[], None)?;
        }
    }

    /// Waits for nothing but an abort.
    pub(super) fn wait_for_abort(&self) {
        while self.wait(&[], None).is_ok() {}
    }

    fn wake(&self) {
        // It can only fail because it was written to before, and wakes already.
        let _ = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes());
    }

    /// Waits until one of these is ready, and says what each is ready for; also
    /// returns when a command was left, or the time is over.
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
