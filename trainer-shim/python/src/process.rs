//! One incarnation of a process, as Python holds it.

use std::borrow::Cow;
use std::path::PathBuf;

use holdfast_api::{Blob, Cause, Generation, Scope, VoteRule};
use holdfast_client::Deadline;
use holdfast_trainer_shim::exception::in_short;
use holdfast_trainer_shim::{Error, Fence, Gathered, Join, Process, Section};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::runtime::Handle;

use crate::arguments::{Whose, among, deadline, limit, refused, seconds};
use crate::attachment::{Held, Taken};
use crate::error;
use crate::held::NativeHolds;
use crate::joining::Joining;
use crate::keys::{NativeKeys, NativeNews, Owner};
use crate::main_thread;
use crate::runtime;
use crate::values::{BlockValue, IterationValue, LiveValue, Pairs, VerdictValue, json, pairs};

/// One incarnation, attached to the agent of its host or to a lease of its own.
#[pyclass(frozen, name = "Process", module = "_holdfast")]
pub struct NativeProcess {
    state: parking_lot::Mutex<State>,
    owner: u32,
    handle: Handle,
}

/// How far a process has got.
enum State {
    /// It is to be registered when it is ready.
    Loading(Box<(Taken, Join)>),
    /// It is being registered; it may have been left since.
    Registering {
        left: bool,
    },
    Joined(Held),
    /// It was left, or could not be registered.
    Left,
}

/// A stretch of time that ends when it is ended explicitly, or dropped.
#[pyclass(frozen, name = "Section", module = "_holdfast")]
pub struct NativeSection(parking_lot::Mutex<Option<Section>>);

#[pymethods]
impl NativeSection {
    /// It is over. Twice is as good as once.
    fn end(&self) {
        drop(self.0.lock().take());
    }
}

#[pymethods]
impl NativeProcess {
    /// Joins the agent, or takes a lease, and registers a new incarnation.
    #[staticmethod]
    fn join(py: Python<'_>, wanted: &Bound<'_, PyDict>) -> PyResult<NativeProcess> {
        let (place, join) = wanted.extract::<Joining>()?.plan(py)?;
        let handle = runtime::handle(py)?;
        let join = Join { main_thread: main_thread::watch(py, &handle), ..join };
        let taken = runtime::wait(py, &handle, place.take())?;
        let taken = taken.map_err(|error| error::of_shim(py, &error))?;
        let state = parking_lot::Mutex::new(State::Loading(Box::new((taken, join))));
        Ok(NativeProcess { state, owner: std::process::id(), handle })
    }

    /// Registers the incarnation, which rounds wait for from then on, within this
    /// many seconds. Twice is as good as once.
    fn ready(&self, py: Python<'_>, patience: f64) -> PyResult<()> {
        self.same_process(py)?;
        let patience = Deadline::after(seconds(py, patience)?);
        let loading = {
            let mut state = self.state.lock();
            match std::mem::replace(&mut *state, State::Registering { left: false }) {
                State::Loading(loading) => Some(*loading),
                other => {
                    *state = other;
                    None
                }
            }
        };
        let Some((taken, join)) = loading else { return self.held(py).map(drop) };
        let joined = runtime::wait(py, &self.handle, taken.join(join, patience));
        let joined = joined.and_then(|joined| joined.map_err(|error| error::of_shim(py, &error)));
        let left = {
            let mut state = self.state.lock();
            let left = matches!(*state, State::Registering { left: true });
            *state = match &joined {
                Ok(held) if !left => State::Joined(held.clone()),
                _ => State::Left,
            };
            left
        };
        let held = joined?;
        if left {
            runtime::wait(py, &self.handle, held.leave(Cause::Left))?;
            return Err(error::of_shim(py, &Error::Closed));
        }
        Ok(())
    }

    /// Number of the process.
    #[getter]
    fn process(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.held(py)?.process.id())
    }

    /// This incarnation of it.
    #[getter]
    fn incarnation(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.held(py)?.process.incarnation())
    }

    /// The job and the run.
    #[getter]
    fn scope(&self, py: Python<'_>) -> PyResult<(String, Option<String>)> {
        let loading = match &*self.state.lock() {
            State::Loading(loading) => loading.0.scope(),
            State::Registering { .. } | State::Joined(_) | State::Left => None,
        };
        let Scope { job, run } = match loading {
            Some(scope) => scope,
            None => self.held(py)?.process.host().scope().clone(),
        };
        Ok((job.to_string(), run.map(|run| run.to_string())))
    }

    /// Seconds for which the lease certainly holds.
    #[getter]
    fn valid_for(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        Ok(self.held(py)?.process.host().valid_for().map(|left| left.as_secs_f64()))
    }

    /// The live processes, once all in scope have called; see [`Process::live_processes`].
    fn live_processes(
        &self,
        py: Python<'_>,
        name: String,
        whose: Option<Whose>,
        timeout: Option<f64>,
    ) -> PyResult<LiveValue> {
        let (among, deadline) = (among(whose), deadline(py, timeout)?);
        let asking =
            async move |process: Process| process.live_processes(&name, among, deadline).await;
        Ok(self.ask(py, asking)?.into())
    }

    /// Exchanges a value with all processes in scope; see [`Process::gather`].
    fn gather(
        &self,
        py: Python<'_>,
        name: String,
        value: &[u8],
        whose: Option<Whose>,
        timeout: Option<f64>,
    ) -> PyResult<(LiveValue, Vec<Cow<'static, [u8]>>)> {
        let (among, deadline) = (among(whose), deadline(py, timeout)?);
        let value = Blob::from(value);
        let asking =
            async move |process: Process| process.gather(&name, value, among, deadline).await;
        let Gathered { live, values } = self.ask(py, asking)?;
        let bytes = |value: &Blob| Cow::Owned(value.as_bytes().to_vec());
        Ok((live.into(), values.iter().map(bytes).collect()))
    }

    /// Meets the processes that come; see [`Process::quorum`].
    fn quorum(
        &self,
        py: Python<'_>,
        name: String,
        sizes: (u32, u32),
        settle: f64,
        whose: Option<Whose>,
        timeout: Option<f64>,
    ) -> PyResult<LiveValue> {
        let (settle, deadline) = (seconds(py, settle)?, deadline(py, timeout)?);
        let among = among(whose);
        let asking = async move |process: Process| {
            process.quorum(&name, sizes, settle, among, deadline).await
        };
        Ok(self.ask(py, asking)?.into())
    }

    /// The job's next iteration, with the caller in it; see [`Process::advance`].
    fn advance(
        &self,
        py: Python<'_>,
        evict_after: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<IterationValue> {
        let evict_after = limit(py, evict_after)?;
        let deadline = deadline(py, timeout)?;
        let asking = async move |process: Process| process.advance(evict_after, deadline).await;
        Ok(self.ask(py, asking)?.into())
    }

    /// Votes together with every process in scope; see [`Process::vote`].
    fn vote(
        &self,
        py: Python<'_>,
        tag: String,
        rule: &str,
        value: Vec<u8>,
        whose: Option<Whose>,
        timeout: Option<f64>,
    ) -> PyResult<VerdictValue> {
        let rule = match rule {
            "and" => VoteRule::And,
            "unanimous" => VoteRule::Unanimous,
            "plurality" => VoteRule::Plurality,
            other => {
                let text = format!("{other:?} is not a rule: write and, unanimous or plurality");
                return Err(error::invalid(py, &text));
            }
        };
        let (value, among) = (Blob::from(value), among(whose));
        let deadline = deadline(py, timeout)?;
        let asking =
            async move |process: Process| process.vote(&tag, rule, value, among, deadline).await;
        Ok(self.ask(py, asking)?.into())
    }

    /// Enters an atomic block with all active processes; see [`Process::enter`].
    fn enter(&self, py: Python<'_>, name: String, timeout: Option<f64>) -> PyResult<LiveValue> {
        let deadline = deadline(py, timeout)?;
        let asking = async move |process: Process| process.enter(&name, deadline).await;
        Ok(self.ask(py, asking)?.into())
    }

    /// See [`Process::exit`]: of one that succeeded here.
    fn exit(
        &self,
        py: Python<'_>,
        name: String,
        generation: Generation,
        timeout: Option<f64>,
    ) -> PyResult<BlockValue> {
        let deadline = deadline(py, timeout)?;
        let asking =
            async move |process: Process| process.exit(&name, generation, Ok(()), deadline).await;
        Ok(self.ask(py, asking)?.into())
    }

    /// Reports that an atomic block has failed here; see [`Process::fail`].
    fn fail(
        &self,
        py: Python<'_>,
        name: String,
        generation: Generation,
        words: String,
    ) -> PyResult<()> {
        self.ask(py, async move |process: Process| {
            process.fail(&name, generation, words).await;
            Ok(())
        })
    }

    /// The job's latest iteration, and whether the caller is in it.
    fn iteration(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<(u64, bool)> {
        let deadline = deadline(py, timeout)?;
        let info = self.ask(py, async move |process: Process| process.iteration(deadline).await)?;
        Ok((info.iteration, info.member))
    }

    /// Events after a revision, each as JSON, and where to go on.
    fn events(
        &self,
        py: Python<'_>,
        after: u64,
        timeout: Option<f64>,
    ) -> PyResult<(Vec<String>, u64)> {
        let deadline = deadline(py, timeout)?;
        let asking = async move |process: Process| process.events(after, deadline).await;
        let (events, upto) = self.ask(py, asking)?;
        Ok((events.iter().map(json).collect(), upto))
    }

    /// Begins to report the job's events after a revision; see [`Process::news`].
    fn news(&self, py: Python<'_>, after: u64) -> PyResult<NativeNews> {
        let news = self.ask(py, async move |process: Process| process.news(after).await)?;
        Ok(NativeNews::new(news, self.owner()))
    }

    /// Processes that wait in open rounds of a name.
    fn waiting(&self, py: Python<'_>, name: String, timeout: Option<f64>) -> PyResult<Vec<Pairs>> {
        let deadline = deadline(py, timeout)?;
        let asking = async move |process: Process| process.waiting(&name, deadline).await;
        Ok(self.ask(py, asking)?.iter().map(pairs).collect())
    }

    /// The keys of the run.
    fn keys(&self, py: Python<'_>) -> PyResult<NativeKeys> {
        let keys = self.held(py)?.process.keys();
        Ok(NativeKeys { keys, owner: self.owner() })
    }

    /// Held rounds of the process.
    fn holds(&self, py: Python<'_>) -> PyResult<NativeHolds> {
        let process = self.held(py)?.process;
        Ok(NativeHolds { process, owner: self.owner() })
    }

    /// Processes of the run that are alive, with their incarnations and hosts.
    fn processes(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Vec<(u32, u64, String)>> {
        let deadline = deadline(py, timeout)?;
        self.ask(py, async move |process: Process| {
            let (mut alive, mut after) = (Vec::new(), None);
            loop {
                let (page, next) = process.processes(after, deadline).await?;
                let living = page.into_iter().filter(|info| info.end.is_none());
                alive.extend(living.map(|info| (info.process, info.incarnation, info.host)));
                match next {
                    Some(next) => after = Some(next),
                    None => return Ok(alive),
                }
            }
        })
    }

    /// Incarnation, generation and text of a token; see [`Process::fence`].
    fn fence(&self, py: Python<'_>, generation: u64) -> PyResult<(u64, u64, String)> {
        let fence = self.held(py)?.process.fence(generation);
        let fence = fence.map_err(|error| error::of_shim(py, &error))?;
        Ok((fence.incarnation, fence.generation, fence.to_string()))
    }

    /// Asks the cluster whether a token of any process holds; see [`Process::check`].
    fn check(&self, py: Python<'_>, token: &str, timeout: Option<f64>) -> PyResult<bool> {
        let token: Fence = token.parse().map_err(|error| refused(py, "fence", &error))?;
        let deadline = deadline(py, timeout)?;
        self.ask(py, async move |process: Process| {
            process.check(&token, deadline).await.map(|()| true)
        })
    }

    /// Renames a file to `path` while a token of this process holds; see [`Process::replace_file`].
    fn replace_file(
        &self,
        py: Python<'_>,
        written: PathBuf,
        path: PathBuf,
        generation: u64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let deadline = deadline(py, timeout)?;
        self.ask(py, async move |process: Process| {
            process.replace_file(&written, &path, generation, deadline).await.map(drop)
        })
    }

    /// Says that the program makes progress; see [`Process::ping`].
    fn ping(&self, py: Python<'_>) -> PyResult<()> {
        self.held(py)?.process.ping();
        Ok(())
    }

    /// Says how far the program has got, by a number that grows; see [`Process::progress`].
    fn progress(&self, py: Python<'_>, to: u64) -> PyResult<()> {
        self.held(py)?.process.progress(to);
        Ok(())
    }

    /// Begins a time in which the agent does not watch this process; see [`Process::paused`].
    fn paused(&self, py: Python<'_>, most: f64) -> PyResult<NativeSection> {
        let section = self.held(py)?.process.paused(seconds(py, most)?);
        Ok(NativeSection(parking_lot::Mutex::new(Some(section))))
    }

    /// Begins a time in which the agent does not end this process; see [`Process::critical`].
    fn critical(&self, py: Python<'_>, most: f64) -> PyResult<NativeSection> {
        let section = self.held(py)?.process.critical(seconds(py, most)?);
        Ok(NativeSection(parking_lot::Mutex::new(Some(section))))
    }

    /// Leaves for good, and gives the lease back: by an exception, with the
    /// program's exit code, or else because it is done. Twice is as good as once.
    fn leave(
        &self,
        py: Python<'_>,
        exception: Option<&str>,
        exit_code: Option<i32>,
    ) -> PyResult<()> {
        self.same_process(py)?;
        let state = {
            let mut state = self.state.lock();
            match &mut *state {
                // The task that registers it also ends it.
                State::Registering { left } => {
                    *left = true;
                    return Ok(());
                }
                other => std::mem::replace(other, State::Left),
            }
        };
        let cause = match (exception, exit_code) {
            (Some(exception), _) => Cause::Raised { error: in_short(exception) },
            (None, Some(code)) => Cause::Exited { code },
            (None, None) => Cause::Left,
        };
        match state {
            State::Joined(held) => runtime::wait(py, &self.handle, held.leave(cause)),
            State::Loading(loading) => {
                let (taken, _) = *loading;
                runtime::wait(py, &self.handle, taken.give_back())
            }
            State::Registering { .. } | State::Left => Ok(()),
        }
    }
}

impl NativeProcess {
    fn owner(&self) -> Owner {
        Owner { process: self.owner, handle: self.handle.clone() }
    }

    fn held(&self, py: Python<'_>) -> PyResult<Held> {
        self.same_process(py)?;
        // An error is made by Python, which may run others: without the lock.
        let held = match &*self.state.lock() {
            State::Joined(held) => Some(Some(held.clone())),
            State::Loading(_) | State::Registering { .. } => None,
            State::Left => Some(None),
        };
        match held {
            Some(Some(held)) => Ok(held),
            Some(None) => Err(error::of_shim(py, &Error::Closed)),
            None => Err(error::invalid(py, &"this process is not ready: call job.ready() first")),
        }
    }

    fn same_process(&self, py: Python<'_>) -> PyResult<()> {
        if self.owner == std::process::id() { Ok(()) } else { Err(error::forked(py)) }
    }

    fn ask<T, F>(&self, py: Python<'_>, verb: impl FnOnce(Process) -> F) -> PyResult<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let process = self.held(py)?.process;
        let done = runtime::wait(py, &self.handle, verb(process))?;
        done.map_err(|error| error::of_shim(py, &error))
    }
}

/// Leaves by itself when the last reference is dropped.
impl Drop for NativeProcess {
    fn drop(&mut self) {
        let state = std::mem::replace(self.state.get_mut(), State::Left);
        if self.owner != std::process::id() {
            // The parent's: its locks may be held by threads that are not here.
            return std::mem::forget(state);
        }
        match state {
            State::Joined(held) => drop(self.handle.spawn(held.leave(Cause::Left))),
            State::Loading(loading) => {
                let (taken, _) = *loading;
                self.handle.spawn(taken.give_back());
            }
            State::Registering { .. } | State::Left => {}
        }
    }
}
