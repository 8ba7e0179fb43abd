//! Parts of a launch: which command is rank 0, on which host.
//!
//! A second launch that meets the run of another one would read its keys. So each command that is
//! a part is noted in the run's keys, and a second command for that part, or of a launch of
//! another size, is refused while the first is there. On one host [`crate::control`] sees that by
//! itself.
//!
//! | key | value |
//! | --- | --- |
//! | `@launch:part:NAME` | the command that is this part: a `Record` |
//! | `@launch:world` | a command of the launch, with the launch's size |
//!
//! A record counts for as long as the lease with which its agent holds the run. It is deleted when
//! the command has ended, unless that ended with code 0: such a part is done, and does not come
//! back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_api::{
    Blob, Code, Compare, Effectiveness, LeaseId, Read, Revision, Scope, TransactionOp, lasting,
};
use holdfast_client::{Client, Consistency, Deadline, Error, Keys};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tracing::{debug, info, warn};

use crate::door::process;

/// Longest name of a part, in characters; what is longer is cut off.
pub(crate) const PART_CHARS_MAX: usize = 64;
const WORLD_KEY: &str = "@launch:world";
/// Time limit for one question to the store. A command is not refused because the store does not
/// answer.
const STORE_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest time to wait until the lease of a silent holder ends: the command waits a little
/// longer for its answer.
const SILENT_HOLDER_TIME_MAX: Duration = Duration::from_secs(40);
/// How often to ask again for a part whose holder may be gone.
const ASK_AGAIN_INTERVAL: Duration = Duration::from_millis(500);
/// How often to look whether records are noted, with the lease that this host has.
const RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// Records that are looked through for the size of a launch, and agents of them that are asked for.
const RECORDS_LOOKED_AT: u64 = 256;
const AGENTS_ASKED_MAX: usize = 4;
/// Parts that are over, and are not deleted from the run's keys yet.
const RELEASED_MAX: usize = 4_096;

/// Which part of a launch a command is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// As in "rank 0".
    pub(crate) name: String,
    /// The process id of the command's `run`.
    pub(crate) pid: Option<i32>,
    /// How many ranks the launch has, if it says so.
    pub(crate) world_size: Option<u64>,
}

impl Part {
    /// The part of this name in a launch of this size, for the command of this process.
    pub fn new(name: &str, pid: Option<i32>, world_size: Option<u64>) -> Part {
        let name = name.chars().filter(|c| !c.is_control());
        Part { name: name.take(PART_CHARS_MAX).collect(), pid, world_size }
    }

    /// Its process, behind other words.
    pub fn process(&self) -> String {
        process_in_words(self.pid)
    }
}

/// The parts that commands of this host are. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Parts(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    client: Client,
    keys: Keys,
    /// The agent, as records name it.
    agent: String,
    host: String,
    processes: process::Door,
    /// How long a holder is waited for that may be gone.
    patience: Duration,
    table: Mutex<Table>,
    released: Notify,
}

#[derive(Debug, Default)]
struct Table {
    /// Parts of this host by key, and whether their records are noted in the run.
    present: BTreeMap<Blob, (Record, bool)>,
    /// The others, with their last records.
    released: VecDeque<(Blob, Record)>,
}

/// A command that is a part of a launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Name of the part, as in "rank 0".
    part: String,
    /// Size of its launch, if it is known.
    world_size: Option<u64>,
    /// The agent of its host, and the lease with which that holds the run.
    agent: String,
    lease: Option<LeaseId>,
    /// Host and process in words, for the error of a second command.
    host: String,
    pid: Option<i32>,
    /// When it came, or was done, by the clock of its host.
    unix_ms: u64,
    /// It has ended with code 0.
    #[serde(default)]
    is_done: bool,
}

/// Result of a try to take a part.
enum Tried {
    Taken,
    /// Others have changed a record in that moment.
    Again,
    /// It is held, for this reason.
    Held(String),
}

impl Parts {
    /// The parts of commands of the agent that is called `agent`.
    pub(crate) fn new(
        client: &Client,
        scope: Scope,
        (agent, host): (String, String),
        processes: process::Door,
        lease_ttl: Duration,
    ) -> Parts {
        Parts(Arc::new(Shared {
            keys: client.keys(scope),
            client: client.clone(),
            agent,
            host,
            processes,
            patience: lease_ttl.saturating_mul(2).min(SILENT_HOLDER_TIME_MAX),
            table: Mutex::default(),
            released: Notify::new(),
        }))
    }

    /// A command of this host is this part from now on; refused, with the reason, if another host
    /// has it. A host that was lost holds its parts until its lease ends, which is waited for.
    pub async fn take(&self, part: &Part) -> Result<(), String> {
        let began = Instant::now();
        let mut held: Option<String> = None;
        loop {
            let trying = timeout(STORE_TIME_MAX, self.try_to_take(part)).await;
            match trying.unwrap_or_else(|_| Err(unanswered())) {
                Ok(Tried::Taken) => return Ok(()),
                Ok(Tried::Again) if began.elapsed() < self.0.patience => continue,
                Ok(Tried::Again) => {}
                Ok(Tried::Held(reason)) => {
                    if held.replace(reason.clone()).is_none() {
                        info!(
                            "{reason}; checking for {} s at most whether it is still there",
                            self.0.patience.as_secs()
                        );
                    }
                }
                Err(error) if held.is_some() => {
                    debug!(%error, "whether the part is still held is not known");
                }
                Err(error) => {
                    self.take_unnoted(part, &error.to_string());
                    return Ok(());
                }
            }
            if began.elapsed() >= self.0.patience {
                let Some(reason) = held else {
                    self.take_unnoted(part, "others change the records all the time");
                    return Ok(());
                };
                return Err(reason);
            }
            sleep(ASK_AGAIN_INTERVAL).await;
        }
    }

    /// The part is noted in the run later.
    fn take_unnoted(&self, part: &Part, why: &str) {
        warn!(
            error = why,
            "{} is not noted in the run yet: until then a second one on another host is not refused",
            part.name
        );
        let record = self.record(part, None);
        self.0.table.lock().present.insert(part_key(&part.name), (record, false));
    }

    /// The command of a part has ended; the part is done if that was with code 0.
    pub fn release(&self, name: &str, is_done: bool) {
        let mut table = self.0.table.lock();
        let key = part_key(name);
        let Some((record, _)) = table.present.remove(&key) else { return };
        table.release(key, Record { is_done, ..record });
        // The size of the launch is that of the commands that are there.
        let world = Blob::from(WORLD_KEY);
        if table.present.len() == 1
            && let Some((record, _)) = table.present.remove(&world)
        {
            table.release(world, record);
        }
        drop(table);
        self.0.released.notify_one();
    }

    /// Keeps the records of this host true. Never ends.
    pub async fn keep(&self) {
        let mut renewing = interval(RENEW_INTERVAL);
        renewing.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.0.released.notified() => {}
                _ = renewing.tick() => {}
            }
            // The next look tries it again.
            if let Err(error) = self.look().await {
                debug!(%error, "parts of the launch are not noted as they are");
            }
        }
    }

    async fn look(&self) -> Result<(), Error> {
        loop {
            let released = self.0.table.lock().released.front().cloned();
            let Some(released) = released else { break };
            self.note_end(&released.0, &released.1).await?;
            self.0.table.lock().released.retain(|other| *other != released);
        }
        let lease = self.0.processes.held().await;
        let is_old = |(record, is_noted): &(Record, bool)| !is_noted || record.lease != lease;
        let old: Vec<(Blob, Record)> = {
            let table = self.0.table.lock();
            let old = table.present.iter().filter(|(_, noted)| is_old(noted));
            old.map(|(key, (record, _))| (key.clone(), record.clone())).collect()
        };
        for (key, record) in old.into_iter().filter(|_| lease.is_some()) {
            self.note(&key, Record { lease, ..record }).await?;
        }
        Ok(())
    }

    async fn try_to_take(&self, part: &Part) -> Result<Tried, Error> {
        let deadline = Deadline::after(STORE_TIME_MAX);
        let (key, world_key) = (part_key(&part.name), Blob::from(WORLD_KEY));
        let found = self.0.keys.multi_get(vec![key.clone(), world_key.clone()], deadline).await?;
        let [(there, revision), (world, world_revision)] =
            [found.first(), found.get(1)].map(|entry| {
                let entry = entry.and_then(Option::as_ref);
                entry.map_or((None, 0), |entry| (read(entry.value.as_ref()), entry.modified))
            });
        if let Some(there) = &there
            && (there.agent != self.0.agent || there.is_done)
            && self.is_held(there, deadline).await?
        {
            return Ok(Tried::Held(there.in_words()));
        }
        let lease = self.0.processes.held().await;
        let record = self.record(part, lease);
        let mut noted = vec![(key.clone(), record.clone(), revision)];
        if let Some(size) = part.world_size {
            let own = world.as_ref().is_some_and(|world| world.agent == self.0.agent);
            let same = world.as_ref().is_some_and(|world| world.world_size == Some(size));
            // Commands of this host are of one size already.
            if !(own && same) {
                match &world {
                    Some(world) if !own && self.is_held(world, deadline).await? => {
                        if !same {
                            return Ok(Tried::Held(world.of_another_size(size)));
                        }
                    }
                    // The agent that had noted the size has left.
                    _ => match self.of_another_size(size, deadline).await? {
                        Some(other) => return Ok(Tried::Held(other.of_another_size(size))),
                        None => noted.push((world_key.clone(), record.clone(), world_revision)),
                    },
                }
            }
        }
        let mut compare: Vec<Compare> = noted
            .iter()
            .map(|(key, _, revision)| Compare::Revision { key: key.clone(), revision: *revision })
            .collect();
        if part.world_size.is_some() && noted.len() == 1 {
            // The agent that had noted the size may have left since it was read.
            compare.push(Compare::Revision { key: world_key, revision: world_revision });
        }
        let then = noted.iter().map(|(key, record, _)| put(key, record)).collect();
        let done = self.0.keys.transaction(compare, then, Vec::new(), deadline).await?;
        if !done.succeeded {
            return Ok(Tried::Again);
        }
        let mut table = self.0.table.lock();
        table.present.extend(noted.into_iter().map(|(key, record, _)| (key, (record, true))));
        Ok(Tried::Taken)
    }

    /// A command on another host that is part of a launch of another size. Some of the records are
    /// looked at, and the agents of a few.
    async fn of_another_size(
        &self,
        size: u64,
        deadline: Deadline,
    ) -> Result<Option<Record>, Error> {
        let page = self.0.keys.list(part_key(""), None, RECORDS_LOOKED_AT, deadline).await?;
        let records = page.entries.iter().filter_map(|entry| read(entry.value.as_ref()));
        let is_other = |record: &Record| {
            let differs = record.world_size.is_some_and(|other| other != size);
            differs && !record.is_done && record.agent != self.0.agent
        };
        let by_agent = records.filter(is_other).map(|record| (record.agent.clone(), record));
        let by_agent: BTreeMap<String, Record> = by_agent.collect();
        for record in by_agent.into_values().take(AGENTS_ASKED_MAX) {
            if self.is_held(&record, deadline).await? {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    fn record(&self, part: &Part, lease: Option<LeaseId>) -> Record {
        Record {
            part: part.name.to_owned(),
            world_size: part.world_size,
            agent: self.0.agent.clone(),
            lease,
            host: self.0.host.clone(),
            pid: part.pid,
            unix_ms: unix_ms(),
            is_done: false,
        }
    }

    /// Notes a part of this host, unless another host holds it.
    async fn note(&self, key: &Blob, record: Record) -> Result<(), Error> {
        let deadline = Deadline::after(STORE_TIME_MAX);
        let (there, revision) = self.found(key, deadline).await?;
        let is_other = there.as_ref().is_some_and(|there| there.agent != self.0.agent);
        match there {
            Some(there) if is_other && self.is_held(&there, deadline).await? => {
                if *key != Blob::from(WORLD_KEY) {
                    warn!("{}: it reads and writes the same keys as this one", there.in_words());
                }
            }
            _ => {
                let then = vec![put(key, &record)];
                self.change(key, revision, then, deadline).await?;
            }
        }
        if let Some(noted) = self.0.table.lock().present.get_mut(key) {
            *noted = (record, true);
        }
        Ok(())
    }

    /// Notes the end of a part of this host.
    async fn note_end(&self, key: &Blob, ended: &Record) -> Result<(), Error> {
        let deadline = Deadline::after(STORE_TIME_MAX);
        let (there, revision) = self.found(key, deadline).await?;
        // Another command may have the part since.
        let is_same = |there: &Record| there.agent == self.0.agent && there.pid == ended.pid;
        let Some(there) = there.filter(is_same) else { return Ok(()) };
        let then = match ended.is_done {
            true => put(key, &Record { is_done: true, unix_ms: unix_ms(), ..there }),
            false => TransactionOp::Delete { key: key.clone() },
        };
        self.change(key, revision, vec![then], deadline).await
    }

    async fn found(
        &self,
        key: &Blob,
        deadline: Deadline,
    ) -> Result<(Option<Record>, Revision), Error> {
        let entry = self.0.keys.get(key.clone(), deadline).await?;
        Ok(entry.map_or((None, 0), |entry| (read(entry.value.as_ref()), entry.modified)))
    }

    /// Changes a record that nobody else has changed since.
    async fn change(
        &self,
        key: &Blob,
        revision: Revision,
        then: Vec<TransactionOp>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let compare = vec![Compare::Revision { key: key.clone(), revision }];
        self.0.keys.transaction(compare, then, Vec::new(), deadline).await.map(drop)
    }

    /// Whether the agent of a record still holds the run.
    async fn is_held(&self, record: &Record, deadline: Deadline) -> Result<bool, Error> {
        if record.agent == self.0.agent {
            return Ok(true);
        }
        let Some(lease) = record.lease else { return Ok(false) };
        let feed = Read::Feed { lease, since: Revision::MAX, have: Vec::new() };
        match self.0.client.read(feed, Consistency::Linearizable, deadline).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Code::LeaseEnded => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Table {
    fn release(&mut self, key: Blob, record: Record) {
        if self.released.len() == RELEASED_MAX {
            self.released.pop_front();
        }
        self.released.push_back((key, record));
    }
}

impl Record {
    /// Why a second command for this part is refused.
    fn in_words(&self) -> String {
        let (part, host, since) = (&self.part, &self.host, lasting(self.age_ms()));
        match self.is_done {
            true => format!(
                "{part} has ended on host {host} already, {since} ago with code 0, and others of \
                 that launch are still there"
            ),
            false => {
                format!("{part} is running on host {host} already{}, since {since}", self.process())
            }
        }
    }

    /// Why a command of a launch of this size is refused.
    fn of_another_size(&self, size: u64) -> String {
        let own = self.world_size.unwrap_or_default();
        format!(
            "{} of a launch with WORLD_SIZE={own} is running on host {}{}, since {}, and this \
             command is of one with WORLD_SIZE={size}",
            self.part,
            self.host,
            self.process(),
            lasting(self.age_ms())
        )
    }

    fn process(&self) -> String {
        process_in_words(self.pid)
    }

    /// Clocks of two hosts may differ.
    fn age_ms(&self) -> u64 {
        unix_ms().saturating_sub(self.unix_ms)
    }
}

fn process_in_words(pid: Option<i32>) -> String {
    pid.map(|pid| format!(": process {pid}")).unwrap_or_default()
}

fn unanswered() -> Error {
    let reason = format!("the store has not answered for {STORE_TIME_MAX:?}");
    Error::Timeout { outcome: Effectiveness::Unknown, reason }
}

fn part_key(name: &str) -> Blob {
    Blob::from(format!("@launch:part:{name}").into_bytes())
}

fn read(value: Option<&Blob>) -> Option<Record> {
    serde_json::from_slice(value?.as_bytes()).ok()
}

fn put(key: &Blob, record: &Record) -> TransactionOp {
    let value = serde_json::to_vec(record).expect("names and numbers can be written");
    TransactionOp::Put { key: key.clone(), value: Blob::from(value) }
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
