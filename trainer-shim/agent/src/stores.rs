//! Stores that programs open for themselves, at addresses of their own.
//!
//! A program that makes a `TCPStore` on a port of its own asks the agent first,
//! through the control socket ([`crate::control`]): it then is a client of the
//! agent instead of starting a server. What it gets is a namespace of the run.
//!
//! As with a server of PyTorch, a store begins empty each time that a program opens it as its
//! master, and is over when that program has let go of it; a program that wants it earlier waits
//! for it, and two programs cannot be its master at once. All of
//! this stands in the run's keys, so that programs on other hosts find it there:
//!
//! | key | value |
//! | --- | --- |
//! | `@store:ADDRESS:newest` | how often the store at this address was opened |
//! | `@store:ADDRESS:N` | the N-th of these, while it is open: a `Record` |
//! | `@store-over:NAME` | when the keys of that namespace, which is over, are due to be deleted |
//!
//! Its owner is connected through a port of its own. When that has no connection left, the store
//! is closed; its keys are deleted some time later, by another agent of the run if its own has
//! ended.

mod address;
mod connected;
mod error;
pub(crate) mod record;
mod table;
mod upkeep;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{
    Blob, Code, Compare, Condition, Name, Read, Revision, Scope, TransactionOp, Until,
};
use holdfast_client::{Client, Consistency, Deadline, Keys};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{info, warn};

use crate::agent::{Error as AgentError, Request};
use crate::descriptors::Room;
use crate::door::process;
use crate::door::tcpstore::serve;
use crate::keeper::state::Notes;
use crate::namespace::{Namespace, Side};
use address::{HOST_BYTES_MAX, Meaning, local_network, meaning, own, readable};
pub use error::Error;
use record::{Record, holder, newest_key, record_key, told, written};
pub use table::StoreNotes;
use table::{Hold, Owned, Table};

/// Longest time for which a program waits for a store, or for its workers.
const WAIT_TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// A wait this long is logged.
const WAIT_NOTICE_AFTER: Duration = Duration::from_secs(5);
/// How long a program that opens a store may wait for a cluster without a quorum.
const OPEN_TIME_MAX: Duration = Duration::from_secs(300);
/// Opening again, when another host opened the same store in that moment.
const TRIES_MAX: u32 = 16;
/// When a holder of a record that may be gone is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// PyTorch's clients count themselves there when they connect.
const WORKERS_KEY: &str = "init/";

/// A store as a program names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The host that the program names.
    pub host: String,
    /// The port; 0 for a master is any.
    pub port: u16,
    /// It would serve the store.
    #[serde(default)]
    pub is_master: bool,
    /// It may be the master of one that it serves already.
    #[serde(default)]
    pub multi_tenant: bool,
    /// Its launcher has opened the store for the ranks that it starts.
    #[serde(default)]
    pub of_launcher: bool,
    /// The restart in place that it was started in, if its launcher passed that on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The namespace that its launcher opened for it: stores of another are others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Name>,
    /// How long it would wait for the master.
    pub timeout_ms: u64,
}

/// A store that is open for a program.
#[derive(Debug)]
pub struct Served {
    /// Where the program connects.
    pub address: SocketAddr,
    /// The port by which others name the store.
    pub port: u16,
    /// Keeps the store open until the program is connected; `None` where the
    /// agent serves that address anyway.
    hold: Option<Hold>,
}

/// All stores of an agent's programs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Stores(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    client: Client,
    keys: Keys,
    scope: Scope,
    /// The agent, as records name it.
    agent: String,
    host: String,
    local: String,
    kept: Duration,
    processes: process::Door,
    door: serve::Handle,
    ports: mpsc::Sender<Request>,
    table: Table,
    /// Holds of the agent before: programs that had asked it may be about to connect.
    restored: Mutex<Vec<Hold>>,
    notes: Notes,
    /// One program at a time becomes a master: the table names the masters.
    opening: tokio::sync::Mutex<()>,
    /// Held alone while unused ports are closed: no program gets one of them as an answer in that
    /// moment.
    closing: tokio::sync::RwLock<()>,
}

impl Served {
    /// Whether the agent serves that address anyway.
    pub fn is_agent(&self) -> bool {
        self.hold.is_none()
    }
}

impl Stores {
    /// The stores of an agent that is called `agent`.
    pub(crate) fn new(
        client: &Client,
        scope: Scope,
        (agent, host): (String, String),
        kept: Duration,
        processes: process::Door,
        door: serve::Handle,
        ports: mpsc::Sender<Request>,
    ) -> Stores {
        Stores(Arc::new(Shared {
            keys: client.keys(scope.clone()),
            client: client.clone(),
            scope,
            agent,
            host,
            local: local_network(),
            kept,
            notes: processes.notes().clone(),
            processes,
            ports,
            table: Table::new(door.presence().clone(), Room::of_process().store_ports()),
            door,
            restored: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            closing: tokio::sync::RwLock::default(),
        }))
    }

    /// The store that a process names: opened if it is the master, else waited for.
    pub async fn open(&self, wanted: &Wanted, pid: Option<i32>) -> Result<Served, Error> {
        if wanted.host.len() > HOST_BYTES_MAX {
            return Err(Error::LongHost { bytes: wanted.host.len() });
        }
        let served = self.served().await?;
        let address = match meaning(&wanted.host, wanted.port, &served, &self.0.local) {
            Meaning::Agent(address) => {
                self.tell_attempt(wanted, pid);
                return Ok(Served { address, port: wanted.port, hold: None });
            }
            Meaning::Store(address) => within(wanted, address),
        };
        if wanted.is_master {
            let _turn = self.0.opening.lock().await;
            self.open_as_master(wanted, pid, address).await
        } else {
            self.find(wanted, pid, &address).await
        }
    }

    /// At a port of the ranks it is the attempt of a process that selects its keys.
    fn tell_attempt(&self, wanted: &Wanted, pid: Option<i32>) {
        let told = wanted.namespace.as_ref().map(|_| 0).or(wanted.attempt);
        let pid = pid.and_then(|pid| u32::try_from(pid).ok());
        if let (Some(pid), Some(attempt)) = (pid, told) {
            self.0.door.told_attempt(pid, attempt);
        }
    }

    /// Waits until this many clients have come to a store.
    pub async fn workers(
        &self,
        served: &Served,
        workers: u64,
        most: Duration,
    ) -> Result<(), Error> {
        let Some(hold) = &served.hold else { return Ok(()) };
        let key = hold.namespace().to_store(Blob::from(WORKERS_KEY));
        let until = Until::AtLeast(i64::try_from(workers).unwrap_or(i64::MAX));
        let most = most.min(WAIT_TIME_MAX);
        let waiting = self.0.keys.wait_for(vec![Condition { key, until }], Deadline::never());
        match tokio::time::timeout(most, waiting).await {
            Ok(come) => Ok(come.map(drop)?),
            Err(_) => Err(Error::WorkersMissing { workers, seconds: most.as_secs() }),
        }
    }

    /// Goes on with the stores of the agent before.
    pub fn restore(&self, notes: StoreNotes) {
        *self.0.restored.lock() = self.0.table.restore(notes);
    }

    /// Writes down which there are, for an agent that follows.
    fn note(&self) {
        self.0.notes.stores(|| self.0.table.notes());
    }

    async fn open_as_master(
        &self,
        wanted: &Wanted,
        pid: Option<i32>,
        address: String,
    ) -> Result<Served, Error> {
        if let Some(max) = self.0.table.is_full_for(pid) {
            return Err(match pid.filter(|pid| *pid > 0) {
                Some(pid) => Error::TooManyOfOne { pid, max },
                None => Error::TooManyOfUnknown { max },
            });
        }
        let most = Duration::from_millis(wanted.timeout_ms).min(OPEN_TIME_MAX);
        let deadline = Deadline::after(most);
        let (mut made, mut _held) = (None, None);
        let (address, port) = match wanted.port {
            0 => {
                let name = self.name(wanted, 1);
                let namespace = Namespace::of_store(name.clone(), Side::Others);
                let (hold, at) = self.hold(namespace, &shown(&wanted.host, 0)).await?;
                _held = Some(hold);
                made = Some(name);
                (within(wanted, own(&wanted.host, at.port(), &self.0.local)), at.port())
            }
            port => (address, port),
        };
        let shown = shown(&wanted.host, port);
        for _ in 0..TRIES_MAX {
            let (newest, revision) = self.newest(&address, deadline).await?;
            if let Some(record) = self.record(&address, newest, deadline).await? {
                if let Some(same) = self.again(wanted, pid, &record).await? {
                    return Ok(Served { port, ..same });
                }
                if !follows(wanted.attempt, record.attempt)
                    && self.is_held(&record, deadline).await?
                {
                    return Err(Error::InUse { store: shown, by: holder(&record) });
                }
            }
            let number = newest.saturating_add(1);
            let name = made.clone().unwrap_or_else(|| self.name(wanted, number));
            let record = Record {
                namespace: name.clone(),
                agent: self.0.agent.clone(),
                lease: self.0.processes.held().await,
                host: self.0.host.clone(),
                pid,
                attempt: wanted.attempt,
            };
            let namespace = Namespace::of_store(name.clone(), Side::Owner);
            let (hold, at) = self.hold(namespace, &shown).await?;
            let counted = (newest_key(&address), Blob::from(number.to_string().into_bytes()));
            let noted = (record_key(&address, number), Blob::from(written(&record)));
            let compare = vec![Compare::Revision { key: counted.0.clone(), revision }];
            let both = [counted.clone(), noted.clone()];
            let then = both.map(|(key, value)| TransactionOp::Put { key, value }).into();
            let noted = match wanted.port {
                // No program refers to a freely chosen port later: its count is
                // deleted, too.
                0 => vec![noted, counted],
                _ => vec![noted],
            };
            // Before the cluster knows of it: no program finds it without its master.
            self.0.table.own(&name, Owned { pid, address: at, noted, is_over: false });
            self.note();
            let opened = self.0.keys.transaction(compare, then, Vec::new(), deadline).await?;
            if opened.succeeded {
                info!("process {} opened the store {shown}: namespace {name}", told(pid));
                return Ok(Served { address: at, port, hold: Some(hold) });
            }
        }
        Err(Error::Contended { store: shown })
    }

    /// A master of a store that it has open already, if it may be that.
    async fn again(
        &self,
        wanted: &Wanted,
        pid: Option<i32>,
        record: &Record,
    ) -> Result<Option<Served>, Error> {
        let mine = wanted.multi_tenant && pid.is_some() && record.pid == pid;
        if !mine || record.agent != self.0.agent || !self.0.table.is_owned(&record.namespace) {
            return Ok(None);
        }
        self.enter(record, Side::Owner, wanted).await.map(Some)
    }

    async fn find(
        &self,
        wanted: &Wanted,
        pid: Option<i32>,
        address: &str,
    ) -> Result<Served, Error> {
        let shown = shown(&wanted.host, wanted.port);
        let most = Duration::from_millis(wanted.timeout_ms).min(WAIT_TIME_MAX);
        let until = after(most);
        let mut noticed = false;
        let mut finding = std::pin::pin!(self.find_open(wanted, address));
        loop {
            let next = if noticed { until } else { until.min(after(WAIT_NOTICE_AFTER)) };
            match timeout_at(next, &mut finding).await {
                Ok(found) => return found,
                Err(_) if next == until => {
                    return Err(Error::NotOpened { store: shown, seconds: most.as_secs() });
                }
                Err(_) => {
                    noticed = true;
                    warn!(
                        "process {} waits for the store {shown}, which no program of this run has \
                         opened as its master (is_master=True, rank 0)",
                        told(pid)
                    );
                }
            }
        }
    }

    async fn find_open(&self, wanted: &Wanted, address: &str) -> Result<Served, Error> {
        loop {
            let deadline = Deadline::after(OPEN_TIME_MAX);
            let (newest, _) = self.newest(address, deadline).await?;
            let record = self.record(address, newest, deadline).await?;
            let mut look_again = None;
            if let Some(record) = record.filter(|record| fits(wanted.attempt, record.attempt)) {
                if self.is_held(&record, deadline).await? {
                    return self.enter(&record, Side::Others, wanted).await;
                }
                // The next one may come under the same number, if this one is not ended yet.
                look_again = Some(LOOK_AGAIN);
            }
            let key = newest_key(address);
            let until = Until::AtLeast(newest.saturating_add(1));
            let next = self.0.keys.wait_for(vec![Condition { key, until }], Deadline::never());
            tokio::select! {
                next = next => drop(next?),
                () = sleep(look_again.unwrap_or_default()), if look_again.is_some() => {}
            }
        }
    }

    async fn enter(&self, record: &Record, side: Side, wanted: &Wanted) -> Result<Served, Error> {
        let name = &record.namespace;
        let namespace = match restart(wanted, record.attempt).filter(|_| side == Side::Others) {
            Some(attempt) => Namespace::of_restart(name.clone(), attempt),
            None => Namespace::of_store(name.clone(), side),
        };
        let (hold, address) = self.hold(namespace, &shown(&wanted.host, wanted.port)).await?;
        self.note();
        Ok(Served { address, port: wanted.port, hold: Some(hold) })
    }

    /// Whether the program that opened it still has it open.
    async fn is_held(&self, record: &Record, deadline: Deadline) -> Result<bool, Error> {
        if record.agent == self.0.agent {
            return Ok(self.0.table.is_owned(&record.namespace));
        }
        let Some(lease) = record.lease else { return Ok(false) };
        let feed = Read::Feed { lease, since: Revision::MAX, have: Vec::new() };
        match self.0.client.read(feed, Consistency::Linearizable, deadline).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Code::LeaseEnded => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn newest(&self, address: &str, deadline: Deadline) -> Result<(i64, Revision), Error> {
        let entry = self.0.keys.get(newest_key(address), deadline).await?;
        let number = |value: &Blob| std::str::from_utf8(value.as_bytes()).ok()?.parse().ok();
        Ok(entry.map_or((0, 0), |entry| {
            (entry.value.as_ref().and_then(number).unwrap_or(0), entry.modified)
        }))
    }

    async fn record(
        &self,
        address: &str,
        number: i64,
        deadline: Deadline,
    ) -> Result<Option<Record>, Error> {
        let entry = self.0.keys.get(record_key(address, number), deadline).await?;
        Ok(entry.and_then(|entry| serde_json::from_slice(entry.value?.as_bytes()).ok()))
    }

    fn name(&self, wanted: &Wanted, number: i64) -> Name {
        let text = readable(&wanted.host, wanted.port);
        let name = format!("{text}.{number}-{:08x}", rand::random::<u32>());
        name.parse().expect("it is made of letters, digits, dots and dashes, and short")
    }

    /// A port for a program that is about to connect to this namespace.
    async fn hold(&self, namespace: Namespace, shown: &str) -> Result<(Hold, SocketAddr), Error> {
        let _open = self.0.closing.read().await;
        let hold = self.0.table.hold(&namespace, shown);
        let (answer, answered) = oneshot::channel();
        // A refusal to take it and a dropped answer both mean that it stops.
        let _ = self.0.ports.send(Request::OpenStore { namespace, answer }).await;
        Ok((hold, answered.await.unwrap_or(Err(AgentError::Stopping))?))
    }

    async fn served(&self) -> Result<Vec<(SocketAddr, Namespace)>, Error> {
        let (answer, answered) = oneshot::channel();
        let _ = self.0.ports.send(Request::Served { answer }).await;
        answered.await.map_err(|_| AgentError::Stopping.into())
    }
}

/// Whether a program of one attempt uses a store of the other. Launchers, and
/// programs without one, are of none.
fn fits(asks: Option<u32>, opened: Option<u32>) -> bool {
    asks.zip(opened).is_none_or(|(asks, opened)| asks == opened)
}

/// Whether the one exists because the other has ended.
fn follows(asks: Option<u32>, opened: Option<u32>) -> bool {
    asks.zip(opened).is_some_and(|(asks, opened)| asks > opened)
}

/// The attempt of a restarted rank that uses the store of its launcher, which goes on: it must not
/// read the keys of the ranks before it, which are there.
fn restart(wanted: &Wanted, opened: Option<u32>) -> Option<u32> {
    wanted.attempt.filter(|attempt| *attempt > 0 && wanted.of_launcher && opened.is_none())
}

/// The store at an address, in the namespace of the program that names it.
fn within(wanted: &Wanted, address: String) -> String {
    match &wanted.namespace {
        Some(namespace) => format!("{namespace}/{address}"),
        None => address,
    }
}

/// As it is logged: a host may hold what a terminal would obey.
fn shown(host: &str, port: u16) -> String {
    let host: String = host.escape_default().take(HOST_BYTES_MAX).collect();
    format!("{host}:{port}")
}

/// A time beyond the clock's range is far away.
fn after(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now + WAIT_TIME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_kept_apart_and_launchers_are_of_all() {
        for (asks, opened, uses, ends) in [
            (None, None, true, false),
            (Some(1), None, true, false),
            (None, Some(1), true, false),
            (Some(1), Some(1), true, false),
            (Some(2), Some(1), false, true),
            (Some(1), Some(2), false, false),
        ] {
            assert_eq!(
                (fits(asks, opened), follows(asks, opened)),
                (uses, ends),
                "{asks:?} {opened:?}"
            );
        }
    }

    #[test]
    fn restarted_ranks_have_keys_of_their_own_in_the_store_of_their_launcher() {
        for (of_launcher, asks, opened, expected) in [
            (true, Some(2), None, Some(2)),
            (true, Some(0), None, None),
            (true, None, None, None),
            (true, Some(2), Some(2), None),
            (false, Some(2), None, None),
        ] {
            let wanted = Wanted {
                host: "localhost".to_owned(),
                port: 29500,
                is_master: false,
                multi_tenant: false,
                of_launcher,
                attempt: asks,
                namespace: None,
                timeout_ms: 1,
            };
            assert_eq!(restart(&wanted, opened), expected, "{of_launcher} {asks:?} {opened:?}");
        }
    }

    #[test]
    fn a_host_cannot_speak_to_the_terminal() {
        assert_eq!(shown("\u{1b}[2J\n", 7), "\\u{1b}[2J\\n:7");
    }
}
