//! Room on the disk and in memory, and what is refused when it is short.
//!
//! Each node measures its own, and a leader asks the others. While a majority of
//! the voters has room the cluster works normally, under a leader that has room.
//! When too few have room, writes that add data are refused before a node fails;
//! renewals, arrivals and deletions are accepted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures::future::BoxFuture;
use holdfast_api::{NodeId, NodeRole, NodeStatus, Problem, Room, Size, Status};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Node;
use super::membership::healthy;
use crate::recurring::Troubles;

/// How often a node measures, and a leader asks the others.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How long what a voter last said counts while it says nothing and Raft hears it: its
/// threads that answer requests may be busy. Its disk fills on meanwhile, so it is some
/// looks, and reserves are made for more than the writes of some seconds.
const LAST_WORD_TIME_MAX: Duration = Duration::from_secs(5);

/// Bytes of disk that a new leader may take before the others have said what they have,
/// also where its own disk is short: no more than the default reserve of 640 MiB of disk.
const FIRST_SPARE_MIN: u64 = 64 * 1024 * 1024;

/// How long a node leads before it may hand over for lack of room.
const LED_TIME_MIN: Duration = Duration::from_secs(10);

/// Free bytes, and the total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Free {
    /// Free for this process.
    pub bytes: u64,
    /// All bytes there are, taken ones included; of a control group, its limit.
    pub of: u64,
}

/// A node's measurements; none where it cannot measure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// The disk of its data folder.
    pub(crate) disk: Option<Free>,
    /// Memory of this process.
    pub(crate) memory: Option<Free>,
}

/// Measures; takes as long as the disk needs.
pub type Gauge = Arc<dyn Fn() -> BoxFuture<'static, Measured> + Send + Sync>;

/// Bytes that are to stay free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserves {
    /// On the disk, beyond one more snapshot; none: 1 GiB, but at most a tenth of
    /// the disk.
    pub disk: Option<u64>,
    /// In memory; none: 512 MiB, but at most a twentieth of it.
    pub memory: Option<u64>,
}

const DISK_RESERVE_MAX: u64 = 1024 * 1024 * 1024;
const DISK_RESERVE_PARTS: u64 = 10;
const MEMORY_RESERVE_MAX: u64 = 512 * 1024 * 1024;
const MEMORY_RESERVE_PARTS: u64 = 20;

/// Longest time for one measurement.
const GAUGE_TIME_MAX: Duration = Duration::from_secs(1);

/// Bytes of disk for each byte of a write: in the log, in its compaction, in the
/// reserve for the next snapshot, and in the snapshot.
const DISK_BYTES_PER_BYTE: u64 = 4;

/// A node's room as last measured, and whether the cluster has enough.
pub(crate) struct NodeRoom {
    reserves: Reserves,
    present: Mutex<Present>,
    budget: Mutex<DiskBudget>,
    /// Why writes that add data are refused; none if they are not.
    shortage: ArcSwapOption<String>,
}

#[derive(Debug, Default)]
struct Present {
    disk: Option<Room>,
    memory: Option<Room>,
}

impl NodeRoom {
    /// A room that is not measured yet: nothing is short.
    pub(crate) fn new(reserves: Reserves) -> NodeRoom {
        let (present, budget) = (Mutex::default(), Mutex::new(DiskBudget::beyond(u64::MAX)));
        NodeRoom { reserves, present, budget, shortage: ArcSwapOption::empty() }
    }

    /// Disk room as last measured.
    pub(crate) fn disk(&self) -> Option<Room> {
        self.present.lock().disk
    }

    /// Memory room as last measured.
    pub(crate) fn memory(&self) -> Option<Room> {
        self.present.lock().memory
    }

    fn is_low(&self) -> bool {
        let present = self.present.lock();
        [present.disk, present.memory].into_iter().flatten().any(|room| room.low)
    }

    /// Records a measurement, with the bytes of the state.
    fn note(&self, measured: Measured, state_bytes: u64) {
        let Reserves { disk, memory } = self.reserves;
        let mut present = self.present.lock();
        present.disk = measured.disk.map(|free| {
            let reserve = disk.unwrap_or(DISK_RESERVE_MAX.min(free.of / DISK_RESERVE_PARTS));
            // The next snapshot exists beside the last for a while.
            room(present.disk, free.bytes, reserve.saturating_add(state_bytes))
        });
        present.memory = measured.memory.map(|free| {
            let reserve = memory.unwrap_or(MEMORY_RESERVE_MAX.min(free.of / MEMORY_RESERVE_PARTS));
            room(present.memory, free.bytes, reserve)
        });
    }

    /// What a new leader may write until it knows what the others have: as much as its own
    /// disk has room for.
    fn first_budget(&self) -> DiskBudget {
        let spare = self.disk().map_or(u64::MAX, |room| beyond_reserve(room).max(FIRST_SPARE_MIN));
        DiskBudget::beyond(spare)
    }

    /// Refuses commands that add while too few nodes have room.
    pub(crate) fn admit(&self, size: &Size) -> Result<(), Problem> {
        if !size.adds {
            return Ok(());
        }
        let refused = |why: &str| Problem::no_space(why);
        match &*self.shortage.load() {
            None => self.budget.lock().take(size.bytes as u64).map_err(|why| refused(&why)),
            Some(why) => Err(refused(why)),
        }
    }
}

/// What may be written until the next measurement: disks can fill in between.
#[derive(Debug)]
struct DiskBudget {
    spare: u64,
    taken: u64,
    /// Taken before the last measurement.
    taken_earlier: u64,
}

impl DiskBudget {
    /// Bytes free beyond the reserves.
    fn beyond(spare: u64) -> DiskBudget {
        DiskBudget { spare, taken: 0, taken_earlier: 0 }
    }

    /// Begins anew after a measurement.
    fn renew(&mut self, spare: u64) {
        *self = DiskBudget { spare, taken: 0, taken_earlier: self.taken_in_all() };
    }

    fn taken_in_all(&self) -> u64 {
        self.taken_earlier.saturating_add(self.taken)
    }

    /// Takes the room for a write. The first write after a measurement always gets
    /// it.
    fn take(&mut self, bytes: u64) -> Result<(), String> {
        let after = self.taken.saturating_add(bytes.saturating_mul(DISK_BYTES_PER_BYTE));
        if self.taken > 0 && after > self.spare {
            return Err(format!(
                "writes come faster than the room for them is measured: {} MiB of disk free \
                 beyond what is to stay free; retry, or free some (`holdfast status`)",
                self.spare / (1024 * 1024)
            ));
        }
        self.taken = after;
        Ok(())
    }
}

/// Bytes that a majority of the voters has on its disks beyond the reserves. A
/// node without measurements counts as having enough.
fn spare(status: &Status) -> u64 {
    let voters = status.nodes.iter().filter(|node| node.voter);
    let mut spare: Vec<u64> =
        voters.map(|node| node.disk.map_or(u64::MAX, beyond_reserve)).collect();
    spare.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
    spare.get(spare.len() / 2).copied().unwrap_or(u64::MAX)
}

fn beyond_reserve(room: Room) -> u64 {
    room.free_bytes.saturating_sub(room.reserve_bytes)
}

fn room(before: Option<Room>, free_bytes: u64, reserve_bytes: u64) -> Room {
    let was_low = before.is_some_and(|room| room.low);
    let enough = if was_low { reserve_bytes + reserve_bytes / 4 } else { reserve_bytes };
    Room { free_bytes, reserve_bytes, low: free_bytes < enough }
}

/// Why this cluster refuses writes that add data; none if it accepts them.
fn shortage(status: &Status) -> Option<String> {
    let voters = || status.nodes.iter().filter(|node| node.voter);
    let fit = voters().filter(|node| node.has_room()).count();
    let words = status.shortage_in_words()?;
    (fit <= voters().count() / 2).then_some(words)
}

/// What each node last said of itself.
#[derive(Debug, Default)]
struct LastWords(BTreeMap<NodeId, Said>);

#[derive(Debug)]
struct Said {
    at: Instant,
    /// Bytes of disk taken in all by then.
    taken: u64,
    status: NodeStatus,
}

impl Said {
    /// The node's status, with the disk that is left after what was taken since.
    fn after(&self, taken: u64) -> NodeStatus {
        let since = taken.saturating_sub(self.taken);
        let left = |room: Room| room.free_bytes.saturating_sub(since);
        let disk = self.status.disk.map(|room| Room { free_bytes: left(room), ..room });
        NodeStatus { disk, ..self.status.clone() }
    }
}

impl LastWords {
    /// The status with the last words of nodes that say nothing now, as long as they are
    /// heard. `taken`: bytes of disk in all, so that no room is granted twice.
    fn complete(
        &mut self,
        (now, taken): (Instant, u64),
        status: &Status,
        is_heard: impl Fn(NodeId) -> bool,
    ) -> Status {
        let LastWords(said) = self;
        said.retain(|id, said| now.duration_since(said.at) < LAST_WORD_TIME_MAX && is_heard(*id));
        let mut status = status.clone();
        for node in &mut status.nodes {
            if node.role != NodeRole::Unreachable {
                said.insert(node.id, Said { at: now, taken, status: node.clone() });
            } else if let Some(last) = said.get(&node.id) {
                *node = NodeStatus { voter: node.voter, ..last.after(taken) };
            }
        }
        status
    }
}

impl Node {
    /// Measures this node's room and, while it leads, checks the cluster's. Runs
    /// until it is dropped.
    pub(crate) async fn watch_room(self, gauge: Gauge) {
        let (mut led_since, mut asked, troubles) = (None, None::<Instant>, Troubles::default());
        let (mut measuring, mut last_words) = (None, LastWords::default());
        let mut leaders = self.leaders();
        loop {
            let room = &self.inner.room;
            let was_low = room.is_low();
            // The measurement may hang on the disk: until it returns, the last one counts.
            let asked_now = measuring.get_or_insert_with(|| gauge());
            if let Ok(measured) = tokio::time::timeout(GAUGE_TIME_MAX, asked_now).await {
                measuring = None;
                room.note(measured, self.machine().counts().image_bytes());
            }
            if was_low != room.is_low() {
                asked = None;
            }
            if !self.consensus().leads() {
                (led_since, asked, last_words) = (None, None, LastWords::default());
                room.shortage.store(None);
                *room.budget.lock() = room.first_budget();
            } else {
                let led_since = *led_since.get_or_insert_with(Instant::now);
                if asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY) {
                    asked = Some(Instant::now());
                    self.judge_room(led_since, &mut last_words, &troubles).await;
                }
            }
            // A new leader asks the others at once.
            let _ = tokio::time::timeout(LOOK_EVERY, leaders.changed()).await;
        }
    }

    async fn judge_room(
        &self,
        led_since: Instant,
        last_words: &mut LastWords,
        troubles: &Troubles,
    ) {
        let answers = self.status().await;
        let view = self.view();
        let room = &self.inner.room;
        let now = (Instant::now(), room.budget.lock().taken_in_all());
        let status = last_words.complete(now, &answers, |id| healthy(&view, id));
        let why = shortage(&status);
        match (&why, room.shortage.load().is_some()) {
            (Some(why), false) => tracing::warn!("{why}"),
            (None, true) => {
                tracing::info!("enough nodes have room again; writes that add data are accepted");
            }
            _ => {}
        }
        let go_on = why.is_none();
        room.budget.lock().renew(spare(&status));
        room.shortage.store(why.map(Arc::new));
        if !go_on || !room.is_low() || led_since.elapsed() < LED_TIME_MIN {
            return;
        }
        let fit = answers.nodes.iter().filter(|node| node.voter && node.has_room());
        let Some(best) = fit.max_by_key(|node| view.matched.get(&node.id).copied()) else { return };
        match self.transfer_leader(Some(best.id)).await {
            Ok(()) => tracing::warn!("too little room here; node {} leads in its place", best.id),
            Err(problem) if troubles.met("handing over", &problem) => {
                tracing::warn!(%problem, "too little room here, and no other voter took over");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Blob, Code, KvOp, TransactionOp};

    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn a_reserve_fits_its_disk_and_ends_only_well_above_it() {
        let node = NodeRoom::new(Reserves { disk: None, memory: Some(0) });
        let low = |bytes, state| {
            let disk = Some(Free { bytes, of: 1000 * MIB });
            node.note(Measured { disk, memory: None }, state);
            node.disk().unwrap().low
        };
        assert!(!low(100 * MIB, 0));
        assert!(low(100 * MIB, 1), "the next snapshot needs room");
        assert!(low(100 * MIB - 1, 0));
        assert!(low(124 * MIB, 0));
        assert!(!low(125 * MIB, 0));
        assert_eq!(node.memory(), None);
    }

    fn status(lows: [Option<bool>; 3]) -> Status {
        let node = |(id, low): (u64, Option<bool>)| NodeStatus {
            id,
            address: format!("n{id}:1"),
            role: if low.is_some() { NodeRole::Follower } else { NodeRole::Unreachable },
            voter: true,
            last_log: None,
            applied: None,
            snapshot: None,
            version: None,
            feature_level: None,
            disk: low.map(|low| Room { free_bytes: 3 * MIB, reserve_bytes: 4 * MIB, low }),
            memory: None,
        };
        Status {
            cluster_id: "c".into(),
            leader: Some(1),
            term: 1,
            revision: 1,
            feature_level: 3,
            answered_by: 1,
            nodes: (1..).zip(lows).map(node).collect(),
            limits: holdfast_api::Limits::default(),
            majority: None,
            joint: None,
        }
    }

    #[test]
    fn writes_are_refused_only_when_no_majority_has_room() {
        let (low, fit, gone) = (Some(true), Some(false), None);
        assert_eq!(shortage(&status([fit, fit, gone])), None);
        assert_eq!(shortage(&status([fit, gone, gone])), None, "nobody is short of anything");
        assert_eq!(shortage(&status([low, fit, fit])), None);
        let why = shortage(&status([low, fit, gone])).unwrap();
        assert!(why.starts_with("node 1 has 3 MiB of disk free, 4 MiB are to stay free"), "{why}");
        assert!(shortage(&status([low, low, fit])).is_some());
    }

    #[test]
    fn a_voter_that_is_busy_keeps_its_room_for_as_long_as_it_is_heard() {
        let (low, fit, gone) = (Some(true), Some(false), None);
        let (begun, mut words) = (Instant::now(), LastWords::default());
        let after = |seconds| begun + Duration::from_secs(seconds);
        let (all, busy) = (status([fit, fit, low]), status([fit, gone, low]));
        let mut why = |seconds, said: &Status, is_heard: bool| {
            shortage(&words.complete((after(seconds), 0), said, |_| is_heard))
        };
        assert!(why(0, &busy, true).is_some(), "it has said nothing yet");
        assert_eq!(why(1, &all, true), None);
        assert_eq!(why(5, &busy, true), None);
        assert!(why(6, &busy, true).is_some(), "its disk may be full by now");
        assert_eq!(why(7, &all, true), None);
        assert!(why(8, &busy, false).is_some(), "it is gone");
        assert!(why(8, &busy, true).is_some(), "and was, until it says something again");
        // What is left beyond their reserves counts on, too.
        words.complete((after(9), 0), &all, |_| true);
        let two_busy = status([fit, gone, gone]);
        assert_eq!(spare(&words.complete((after(10), 0), &two_busy, |_| true)), 0);
        assert_eq!(spare(&words.complete((after(20), 0), &two_busy, |_| true)), u64::MAX);
    }

    #[test]
    fn room_that_a_silent_voter_had_is_granted_once() {
        let (begun, mut words) = (Instant::now(), LastWords::default());
        let fit = Some(false);
        let with_room = |mut status: Status| {
            for disk in status.nodes.iter_mut().filter_map(|node| node.disk.as_mut()) {
                disk.free_bytes = 20 * MIB;
            }
            status
        };
        let (all, busy) = (with_room(status([fit; 3])), with_room(status([fit, None, None])));
        let mut budget = DiskBudget::beyond(u64::MAX);
        assert_eq!(budget.take(7 * MIB), Ok(()), "before they said anything");
        let mut look = |seconds, said: &Status, budget: &mut DiskBudget| {
            let now = (begun + Duration::from_secs(seconds), budget.taken_in_all());
            budget.renew(spare(&words.complete(now, said, |_| true)));
            budget.spare / MIB
        };
        assert_eq!(look(0, &all, &mut budget), 16);
        assert_eq!(budget.take(3 * MIB), Ok(()));
        assert_eq!(look(1, &busy, &mut budget), 4, "each byte takes four");
        assert_eq!(look(2, &busy, &mut budget), 4, "nothing was written");
        assert_eq!(budget.take(MIB), Ok(()));
        assert!(budget.take(1).is_err());
        assert_eq!(look(3, &busy, &mut budget), 0);
        assert_eq!(look(4, &all, &mut budget), 16, "they say again what they have");
    }

    #[test]
    fn a_new_leader_writes_no_more_than_its_own_disk_has_room_for() {
        let node = NodeRoom::new(Reserves { disk: Some(100 * MIB), memory: None });
        assert_eq!(node.first_budget().spare, u64::MAX, "it cannot measure");
        for (free, spare) in [(400, 300), (170, 70), (150, 64), (50, 64)] {
            let disk = Some(Free { bytes: free * MIB, of: 1000 * MIB });
            node.note(Measured { disk, memory: None }, 0);
            assert_eq!(node.first_budget().spare, spare * MIB, "{free} MiB are free");
        }
    }

    #[test]
    fn no_more_is_written_between_two_looks_than_a_majority_has_room_for() {
        let (low, fit, gone) = (Some(true), Some(false), None);
        let mut status = status([low, fit, gone]);
        assert_eq!(spare(&status), 0, "two have less than is to stay free");
        for node in &mut status.nodes {
            if let Some(disk) = &mut node.disk {
                disk.free_bytes = (4 + node.id * 8) * MIB;
            }
        }
        assert_eq!(spare(&status), 16 * MIB, "of node 2 and the one that does not say");

        let node = NodeRoom::new(Reserves { disk: None, memory: None });
        let put = |mib: u64| {
            let value = Blob::from(vec![b'v'; (mib * MIB) as usize]);
            let op = KvOp::Put { key: Blob::from("k"), value };
            node.admit(&op.size())
        };
        assert!((0..8).all(|_| put(1).is_ok()), "nothing was measured yet");
        *node.budget.lock() = DiskBudget::beyond(16 * MIB);
        assert_eq!([put(1), put(1), put(1)], [const { Ok(()) }; 3]);
        let refused = put(1).unwrap_err();
        assert_eq!((refused.code, refused.retry_after_ms), (Code::NoSpace, Some(1_000)));
        assert!(refused.message.contains("16 MiB of disk free"), "{}", refused.message);
        *node.budget.lock() = DiskBudget::beyond(0);
        assert_eq!(put(1), Ok(()), "one is taken after each look");
        assert!(put(1).is_err());
    }

    #[test]
    fn what_frees_is_taken_while_what_adds_is_refused() {
        let node = NodeRoom::new(Reserves { disk: None, memory: None });
        let key = Blob::from(b"k".to_vec());
        let put = KvOp::Put { key: key.clone(), value: key.clone() }.size();
        assert_eq!(node.admit(&put), Ok(()));
        node.shortage.store(Some(Arc::new("node 1 has no room".to_owned())));
        let refused = node.admit(&put).unwrap_err();
        assert_eq!((refused.code, refused.retry_after_ms), (Code::NoSpace, Some(1_000)));
        assert_eq!(node.admit(&KvOp::Delete { key: key.clone() }.size()), Ok(()));
        let then = vec![TransactionOp::Delete { key }];
        let transaction = KvOp::Transaction { compare: vec![], then, or_else: vec![] };
        assert_eq!(node.admit(&transaction.size()), Ok(()));
    }
}
