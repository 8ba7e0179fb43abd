//! The keys of a run, and what comes piece by piece: changes of keys, and what
//! happens in the job.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{Blob, Change, ChangeKind};
use holdfast_trainer_shim::{Changes, Error, Keys, News};
use pyo3::prelude::*;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use crate::arguments::{deadline, limit};
use crate::values::json;
use crate::{error, runtime};

/// Bytes that Python gets.
type Bytes = Cow<'static, [u8]>;

/// A change: key, kind, and the value of one that was put.
type ChangeValue = (Bytes, &'static str, Option<Bytes>);

/// State that a handle needs to wait in its own process.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) process: u32,
    pub(crate) handle: Handle,
}

impl Owner {
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> PyResult<T> {
        if self.process != std::process::id() {
            return Err(error::forked(py));
        }
        runtime::wait(py, &self.handle, work)?.map_err(|error| error::of_shim(py, &error))
    }
}

/// The keys of a run.
#[pyclass(frozen, name = "Keys", module = "_holdfast")]
pub struct NativeKeys {
    pub(crate) keys: Keys,
    pub(crate) owner: Owner,
}

/// Changes of keys. One caller waits at a time.
#[pyclass(frozen, name = "Changes", module = "_holdfast")]
pub struct NativeChanges {
    changes: Arc<Mutex<Changes>>,
    owner: Owner,
}

/// Events of a job. One caller waits at a time.
#[pyclass(frozen, name = "News", module = "_holdfast")]
pub struct NativeNews {
    news: Arc<Mutex<News>>,
    owner: Owner,
}

impl NativeNews {
    pub(crate) fn new(news: News, owner: Owner) -> NativeNews {
        NativeNews { news: Arc::new(Mutex::new(news)), owner }
    }
}

/// A handle dropped in a forked child is the parent's: its locks may be held by
/// threads that are not there.
impl Drop for NativeNews {
    fn drop(&mut self) {
        if self.owner.process != std::process::id() {
            std::mem::forget(self.news.clone());
        }
    }
}

impl Drop for NativeChanges {
    fn drop(&mut self) {
        if self.owner.process != std::process::id() {
            std::mem::forget(self.changes.clone());
        }
    }
}

impl Drop for NativeKeys {
    fn drop(&mut self) {
        if self.owner.process != std::process::id() {
            std::mem::forget(self.keys.clone());
        }
    }
}

#[pymethods]
impl NativeNews {
    /// The next events, each as JSON, up to where some are no longer kept, and up
    /// to where there are no others; none if none come in time.
    fn next(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
    ) -> PyResult<Option<(Vec<String>, u64, u64)>> {
        let limit = limit(py, timeout)?;
        let news = self.news.clone();
        let next = async move { news.lock_owned().await.next().await };
        let page = self.owner.wait(py, within(limit, next))?;
        Ok(page.map(|page| (page.events.iter().map(json).collect(), page.compacted, page.upto)))
    }
}

#[pymethods]
impl NativeChanges {
    /// The next changes and their revision; none if none come in time.
    fn next(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
    ) -> PyResult<Option<(u64, Vec<ChangeValue>)>> {
        let limit = limit(py, timeout)?;
        let changes = self.changes.clone();
        let next = async move { changes.lock_owned().await.next().await };
        let batch = self.owner.wait(py, within(limit, next))?;
        Ok(batch.map(|batch| (batch.revision, batch.changes.into_iter().map(change).collect())))
    }
}

#[pymethods]
impl NativeKeys {
    /// Writes a value, and answers the revision; see [`Keys::put`].
    fn put(&self, py: Python<'_>, key: &[u8], value: &[u8], timeout: Option<f64>) -> PyResult<u64> {
        let (key, value, deadline) = (key.into(), value.into(), deadline(py, timeout)?);
        self.ask(py, async move |keys: Keys| keys.put(key, value, deadline).await)
    }

    /// The value of a key, or None if it is absent; see [`Keys::get`].
    fn get(&self, py: Python<'_>, key: &[u8], timeout: Option<f64>) -> PyResult<Option<Bytes>> {
        let (key, deadline) = (key.into(), deadline(py, timeout)?);
        Ok(self.ask(py, async move |keys: Keys| keys.get(key, deadline).await)?.map(bytes))
    }

    /// Adds to a decimal number, and answers the sum; see [`Keys::add`].
    fn add(&self, py: Python<'_>, key: &[u8], delta: i64, timeout: Option<f64>) -> PyResult<i64> {
        let (key, deadline) = (key.into(), deadline(py, timeout)?);
        self.ask(py, async move |keys: Keys| keys.add(key, delta, deadline).await)
    }

    /// Takes a key away, and answers whether it was there; see [`Keys::delete`].
    fn delete(&self, py: Python<'_>, key: &[u8], timeout: Option<f64>) -> PyResult<bool> {
        let (key, deadline) = (key.into(), deadline(py, timeout)?);
        self.ask(py, async move |keys: Keys| keys.delete(key, deadline).await)
    }

    /// Writes a value if the present one is as expected; see [`Keys::compare_and_set`].
    fn compare_and_set(
        &self,
        py: Python<'_>,
        key: &[u8],
        expected: Option<&[u8]>,
        desired: &[u8],
        timeout: Option<f64>,
    ) -> PyResult<(bool, Option<Bytes>)> {
        let (key, desired) = (Blob::from(key), Blob::from(desired));
        let (expected, deadline) = (expected.map(Blob::from), deadline(py, timeout)?);
        let asking =
            async move |keys: Keys| keys.compare_and_set(key, expected, desired, deadline).await;
        let (swapped, value) = self.ask(py, asking)?;
        Ok((swapped, value.map(bytes)))
    }

    /// Waits until all keys exist, and answers the revision; see [`Keys::wait`].
    fn wait(&self, py: Python<'_>, keys: Vec<Vec<u8>>, timeout: Option<f64>) -> PyResult<u64> {
        let wanted = keys.into_iter().map(Blob::from).collect();
        let deadline = deadline(py, timeout)?;
        self.ask(py, async move |keys: Keys| keys.wait(wanted, deadline).await)
    }

    /// Begins to report changes of the keys that start with a prefix; see [`Keys::watch`].
    fn watch(
        &self,
        py: Python<'_>,
        prefix: &[u8],
        from_revision: Option<u64>,
    ) -> PyResult<NativeChanges> {
        let prefix = prefix.into();
        let changes =
            self.ask(py, async move |keys: Keys| keys.watch(prefix, from_revision).await)?;
        Ok(NativeChanges { changes: Arc::new(Mutex::new(changes)), owner: self.owner.clone() })
    }
}

impl NativeKeys {
    fn ask<T, F>(&self, py: Python<'_>, verb: impl FnOnce(Keys) -> F) -> PyResult<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        self.owner.wait(py, verb(self.keys.clone()))
    }
}

async fn within<T>(
    limit: Option<Duration>,
    next: impl Future<Output = Result<T, Error>>,
) -> Result<Option<T>, Error> {
    match limit {
        Some(limit) => tokio::time::timeout(limit, next).await.ok().transpose(),
        None => next.await.map(Some),
    }
}

fn change(change: Change) -> ChangeValue {
    let (kind, value) = match change.kind {
        ChangeKind::Put { value, .. } => ("put", Some(bytes(value))),
        ChangeKind::Delete => ("delete", None),
        ChangeKind::Push { .. } => ("push", None),
        ChangeKind::Pop { .. } => ("pop", None),
    };
    (bytes(change.key), kind, value)
}

fn bytes(blob: Blob) -> Bytes {
    Cow::Owned(blob.as_bytes().to_vec())
}
