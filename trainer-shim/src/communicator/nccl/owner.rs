//! The thread that owns a communicator: it alone calls NCCL on it. It forms the
//! communicator, carries out one command after the other, and ends with an abort
//! or a close.

use std::sync::Arc;
use std::time::Duration;

use holdfast_nccl::{
    Communicator, DeviceError, Element, Membership, NcclError, Reduction as NcclReduction, State,
    Stream, UniqueId,
};
use parking_lot::MutexGuard;

use super::gpu::Gpu;
use super::shared::{Shared, Stop};
use super::{device_failed, failure_of, nccl_failed};
use crate::communicator::buffer::{Buffer, Reduction};
use crate::communicator::failure::Failure;
use crate::communicator::lifecycle::Command;
use crate::communicator::work::Completer;

/// First and longest pause between two looks at what NCCL and the device can
/// only be asked for.
const LOOK_FIRST: Duration = Duration::from_micros(20);
const LOOK_MAX: Duration = Duration::from_millis(1);

/// Builds the communicator and serves it until its end.
pub(super) fn run(shared: Arc<Shared>, gpu: &Gpu) {
    let ending = Ending(shared);
    let shared = &*ending.0;
    let mut owner = match Owner::begin(shared, gpu) {
        Ok(owner) => owner,
        Err(Stop::Aborted) => return,
        // Nothing was begun.
        Err(Stop::Failed(failure)) => return shared.fail(failure),
    };
    match owner.serve() {
        Ok(done) => owner.destroy(done),
        Err(Stop::Aborted) => owner.stop(),
        Err(Stop::Failed(failure)) => {
            shared.fail(failure);
            shared.wait_for_abort();
            owner.stop();
        }
    }
}

#[derive(Clone, Copy)]
enum Operation {
    AllReduce(Reduction),
    Broadcast { root: u32 },
}

struct Owner<'a> {
    shared: &'a Shared,
    gpu: &'a Gpu,
    communicator: Communicator,
    stream: Stream,
}

impl<'a> Owner<'a> {
    fn begin(shared: &'a Shared, gpu: &'a Gpu) -> Result<Owner<'a>, Stop> {
        let opened = gpu.open().map_err(Stop::Failed)?;
        let stream = opened.device.stream().map_err(of_device)?;
        let options = &shared.options;
        let id = UniqueId::from_bytes(*options.id.as_bytes());
        let (generation, ranks, rank) = (options.generation, options.nranks, options.rank);
        let membership = Membership { group: &options.group, generation, ranks, rank };
        let launching = launching(shared, gpu)?;
        let communicator =
            Communicator::begin_init(&opened.nccl, Some(&opened.device), &id, membership)
                .map_err(of_nccl)?;
        drop(launching);
        Ok(Owner { shared, gpu, communicator, stream })
    }

    /// Returns once all members have closed it.
    fn serve(&mut self) -> Result<Completer<()>, Stop> {
        self.until_ready()?;
        self.shared.ready()?;
        loop {
            match self.shared.next_command()? {
                Command::AllReduce(data, reduction, done) => {
                    let result = self.on_buffer(data, Operation::AllReduce(reduction));
                    self.answer(result, done)?;
                }
                Command::Broadcast(data, root, done) => {
                    let result = self.on_buffer(data, Operation::Broadcast { root });
                    self.answer(result, done)?;
                }
                Command::Barrier(done) => {
                    let result = self.meet();
                    self.answer(result, done)?;
                }
                Command::Close(done) => match self.finalize() {
                    Ok(()) => return Ok(done),
                    Err(stop) => self.answer(Err(stop), done)?,
                },
            }
        }
    }

    /// Sends the caller the result of a command. A failure during an abort is the
    /// abort's doing.
    fn answer<T>(&self, result: Result<T, Stop>, done: Completer<T>) -> Result<(), Stop> {
        let stop = match result {
            Ok(value) => {
                done.complete(Ok(value));
                return Ok(());
            }
            Err(_) if self.shared.is_aborted() => Stop::Aborted,
            Err(stop) => stop,
        };
        let failure = match &stop {
            Stop::Aborted => Failure::Aborted,
            Stop::Failed(failure) => {
                self.shared.fail(failure.clone());
                failure.clone()
            }
        };
        done.complete(Err(failure));
        Err(stop)
    }

    fn on_buffer(&mut self, data: Buffer, operation: Operation) -> Result<Buffer, Stop> {
        Ok(match data {
            Buffer::F32(elements) => Buffer::F32(self.on_elements(elements, operation)?),
            Buffer::F64(elements) => Buffer::F64(self.on_elements(elements, operation)?),
            Buffer::I64(elements) => Buffer::I64(self.on_elements(elements, operation)?),
        })
    }

    /// Copies elements to the device and the result back. Nothing else is on the
    /// stream, so that no copy waits for a peer.
    fn on_elements<T: Element>(
        &mut self,
        elements: Vec<T>,
        operation: Operation,
    ) -> Result<Vec<T>, Stop> {
        // There is no memory of no bytes.
        if elements.is_empty() {
            return Ok(elements);
        }
        let buffer = self.stream.buffer(&elements).map_err(of_device)?;
        let launching = launching(self.shared, self.gpu)?;
        match operation {
            Operation::AllReduce(reduction) => {
                self.communicator.all_reduce(&buffer, reduction_of(reduction))
            }
            Operation::Broadcast { root } => self.communicator.broadcast(&buffer, root),
        }
        .map_err(of_nccl)?;
        drop(launching);
        let mut looks = Looks::new(self.shared);
        while self.communicator.pending().map_err(of_nccl)? > 0 {
            looks.pause()?;
        }
        buffer.values().map_err(of_device)
    }

    /// An all-reduce of one value ends when all have begun it: none has the sum
    /// before.
    fn meet(&mut self) -> Result<(), Stop> {
        self.on_elements(vec![1_i64], Operation::AllReduce(Reduction::Sum)).map(drop)
    }

    /// Ends it in order, together with all other members.
    fn finalize(&mut self) -> Result<(), Stop> {
        self.meet()?;
        let launching = launching(self.shared, self.gpu)?;
        self.communicator.finalize().map_err(of_nccl)?;
        drop(launching);
        self.until_ready()
    }

    /// Waits until nothing goes on in NCCL.
    fn until_ready(&mut self) -> Result<(), Stop> {
        let mut looks = Looks::new(self.shared);
        loop {
            match self.communicator.state().map_err(of_nccl)? {
                State::Ready => return Ok(()),
                State::Failed(failure) => return Err(Stop::Failed(failure_of(failure))),
                State::InProgress => looks.pause()?,
            }
        }
    }

    /// Frees one that was finalised.
    fn destroy(self, done: Completer<()>) {
        let Owner { shared, communicator, .. } = self;
        if let Err(error) = communicator.destroy() {
            let failure = nccl_failed(error);
            shared.set_not_freed(failure.clone());
            shared.fail(failure.clone());
            return done.complete(Err(failure));
        }
        done.complete(shared.closed().map_err(|_| Failure::Aborted));
    }

    /// Stops what runs, and frees it.
    fn stop(mut self) {
        // A communicator that was not formed, has failed, or is of an older
        // library can only be aborted.
        if self.communicator.revoke().is_ok() {
            self.shared.wait_for_release();
        }
        if let Err(error) = self.communicator.abort() {
            self.shared.set_not_freed(nccl_failed(error));
        }
    }
}

/// Waits until no other communicator puts work on the device, or this one is to
/// be stopped.
fn launching<'a>(shared: &Shared, gpu: &'a Gpu) -> Result<MutexGuard<'a, ()>, Stop> {
    loop {
        if shared.is_aborted() {
            return Err(Stop::Aborted);
        }
        if let Some(launching) = gpu.launching.try_lock_for(LOOK_MAX) {
            return Ok(launching);
        }
    }
}

/// Growing pauses between looks.
struct Looks<'a> {
    shared: &'a Shared,
    pause: Duration,
}

impl<'a> Looks<'a> {
    fn new(shared: &'a Shared) -> Looks<'a> {
        Looks { shared, pause: LOOK_FIRST }
    }

    fn pause(&mut self) -> Result<(), Stop> {
        let pause = self.pause;
        self.pause = (pause * 2).min(LOOK_MAX);
        self.shared.pause(pause)
    }
}

fn reduction_of(reduction: Reduction) -> NcclReduction {
    match reduction {
        Reduction::Sum => NcclReduction::Sum,
        Reduction::Min => NcclReduction::Min,
        Reduction::Max => NcclReduction::Max,
    }
}

fn of_nccl(error: NcclError) -> Stop {
    Stop::Failed(nccl_failed(error))
}

fn of_device(error: DeviceError) -> Stop {
    Stop::Failed(device_failed(error))
}

struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let reason = "its owner thread panicked".to_owned();
            self.0.set_not_freed(Failure::System { call: "owning a communicator", reason });
        }
        self.0.fail(Failure::Aborted);
    }
}
