//! State shared by the callers of a communicator and its owner thread.
//!
//! Callers leave commands and wake the owner; an abort does not wait for its
//! turn among them.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

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
}

pub(super) struct Shared {
    pub(super) options: InitOptions,
    control: Mutex<Control>,
    /// A command was left, or the communicator is to be stopped or freed.
    changed: Condvar,
}

struct Control {
    lifecycle: Lifecycle,
    /// It is to be freed.
    released: bool,
    /// Why it could not be.
    not_freed: Option<Failure>,
}

impl Shared {
    pub(super) fn new(options: InitOptions) -> Shared {
        let lifecycle = Lifecycle::new(true);
        let control = Control { lifecycle, released: false, not_freed: None };
        Shared { options, control: Mutex::new(control), changed: Condvar::new() }
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
            Ok(()) => drop(self.changed.notify_all()),
            Err((command, failure)) => command.fail(failure),
        }
    }

    /// Stops everything, from any thread, at any time.
    pub(super) fn quiesce(&self) {
        let aborted = self.control.lock().lifecycle.abort();
        self.changed.notify_all();
        if let Some(ended) = aborted {
            ended.tell();
        }
    }

    /// Has it freed, once it has stopped.
    pub(super) fn release(&self) {
        self.control.lock().released = true;
        self.quiesce();
    }

    /// All members have joined.
    pub(super) fn ready(&self) -> Result<(), Stop> {
        let mut control = self.control.lock();
        if control.lifecycle.is_aborted() {
            return Err(Stop::Aborted);
        }
        let told = control.lifecycle.ready();
        drop(control);
        told.tell();
        Ok(())
    }

    /// All members have closed it, and nothing is left of it here.
    pub(super) fn closed(&self) -> Result<(), Stop> {
        let mut control = self.control.lock();
        if control.lifecycle.is_aborted() {
            return Err(Stop::Aborted);
        }
        control.lifecycle.close();
        Ok(())
    }

    /// It is of no use any more.
    pub(super) fn fail(&self, failure: Failure) {
        let ended = self.control.lock().lifecycle.fail(failure);
        ended.tell();
    }

    /// A part of it may run on.
    pub(super) fn set_not_freed(&self, failure: Failure) {
        self.control.lock().not_freed.get_or_insert(failure);
    }

    pub(super) fn not_freed(&self) -> Option<Failure> {
        self.control.lock().not_freed.clone()
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.control.lock().lifecycle.is_aborted()
    }

    pub(super) fn next_command(&self) -> Result<Command, Stop> {
        let mut control = self.control.lock();
        loop {
            if control.lifecycle.is_aborted() {
                return Err(Stop::Aborted);
            }
            if let Some(command) = control.lifecycle.next() {
                return Ok(command);
            }
            self.changed.wait(&mut control);
        }
    }

    /// Waits for so long, or until it is to be stopped.
    pub(super) fn pause(&self, time: Duration) -> Result<(), Stop> {
        let mut control = self.control.lock();
        if !control.lifecycle.is_aborted() {
            self.changed.wait_for(&mut control, time);
        }
        if control.lifecycle.is_aborted() { Err(Stop::Aborted) } else { Ok(()) }
    }

    pub(super) fn wait_for_abort(&self) {
        let mut control = self.control.lock();
        self.changed.wait_while(&mut control, |control| !control.lifecycle.is_aborted());
    }

    pub(super) fn wait_for_release(&self) {
        let mut control = self.control.lock();
        self.changed.wait_while(&mut control, |control| !control.released);
    }
}
