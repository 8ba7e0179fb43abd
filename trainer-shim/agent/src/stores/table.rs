//! The stores that programs of this host use now: programs about to connect,
//! programs connected, and the master of each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use holdfast_api::{Blob, Name};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::connected;
use crate::door::tcpstore::presence::Presence;
use crate::namespace::{Namespace, Side};

/// Stores that one program is the master of at one time, and all programs together whose ids are
/// unknown; but at most this part of the ports. Each store takes two.
const OF_ONE_MAX: usize = 128;
const OF_UNKNOWN_MAX: usize = 256;
const PORTS_PART: usize = 4;
/// Ends that the cluster does not know of yet. Above it the oldest are dropped: their
/// records end with the lease of this host.
const UNREPORTED_MAX: usize = 4096;

/// The table. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Table(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    presence: Presence,
    of_one_max: usize,
    of_unknown_max: usize,
    open: Mutex<BTreeMap<Name, Open>>,
    /// Stores that are over, not reported to the cluster yet. Locked after `open`.
    unreported: Mutex<VecDeque<Owned>>,
    /// A hold was let go.
    changed: Notify,
}

#[derive(Debug)]
struct Open {
    /// As it is logged.
    shown: String,
    /// Programs about to connect, by side.
    owners: usize,
    others: usize,
    /// Attempts of restarted ranks that have come.
    restarts: BTreeSet<u32>,
    /// Set if a program of this host is its master.
    owned: Option<Owned>,
}

/// A store whose master is a program of this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owned {
    /// Pid of the program.
    pub pid: Option<i32>,
    /// Where the program connects.
    pub address: SocketAddr,
    /// Its records in the cluster while it is open: keys and their values.
    pub noted: Vec<(Blob, Blob)>,
    /// Its master has gone.
    pub is_over: bool,
}

/// The table, as it is kept for an agent that follows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreNotes {
    stores: Vec<StoreNote>,
    /// Stores that are over, not reported to the cluster yet.
    #[serde(rename = "untold")]
    unreported: VecDeque<Owned>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StoreNote {
    name: Name,
    shown: String,
    restarts: BTreeSet<u32>,
    owned: Option<Owned>,
}

/// A program that is about to connect to a store.
#[derive(Debug)]
pub struct Hold {
    table: Table,
    name: Name,
    namespace: Namespace,
}

impl Table {
    /// An empty table over these connections, of stores at so many ports.
    pub fn new(presence: Presence, ports: usize) -> Table {
        let part = (ports / PORTS_PART).max(1);
        Table(Arc::new(Shared {
            presence,
            of_one_max: OF_ONE_MAX.min(part),
            of_unknown_max: OF_UNKNOWN_MAX.min(part),
            open: Mutex::default(),
            unreported: Mutex::default(),
            changed: Notify::new(),
        }))
    }

    /// A program is about to connect to this namespace of a store.
    ///
    /// # Panics
    ///
    /// If it is no store's.
    pub fn hold(&self, namespace: &Namespace, shown: &str) -> Hold {
        let name = namespace.name().expect("a store has a name").clone();
        let (side, attempt) = (namespace.side(), namespace.attempt());
        let mut open = self.0.open.lock();
        let new = || Open {
            shown: shown.to_owned(),
            owners: 0,
            others: 0,
            restarts: BTreeSet::new(),
            owned: None,
        };
        let one = open.entry(name.clone()).or_insert_with(new);
        *one.about_to_connect(side) += 1;
        if attempt > 0 {
            one.restarts.insert(attempt);
        }
        Hold { table: self.clone(), name, namespace: namespace.clone() }
    }

    /// Open stores of this host's programs, and the record of each in the cluster.
    pub fn noted(&self) -> Vec<(Name, Vec<(Blob, Blob)>)> {
        let open = self.0.open.lock();
        let noted = open.iter().filter_map(|(name, open)| {
            let owned = open.owned.as_ref().filter(|owned| !owned.is_over)?;
            Some((name.clone(), owned.noted.clone()))
        });
        noted.collect()
    }

    /// The cluster has a new record of a store.
    pub fn note(&self, name: &Name, key: &Blob, value: Blob) {
        let mut open = self.0.open.lock();
        let owned = open.get_mut(name).and_then(|open| open.owned.as_mut());
        let noted = owned.and_then(|owned| owned.noted.iter_mut().find(|(other, _)| other == key));
        if let Some((_, noted)) = noted {
            *noted = value;
        }
    }

    /// A program of this host, which holds it, is its master.
    pub fn own(&self, name: &Name, owned: Owned) {
        if let Some(open) = self.0.open.lock().get_mut(name) {
            open.owned = Some(owned);
        }
    }

    /// The table as it is written down for the agent that follows.
    pub fn notes(&self) -> StoreNotes {
        let open = self.0.open.lock();
        let note = |(name, open): (&Name, &Open)| StoreNote {
            name: name.clone(),
            shown: open.shown.clone(),
            restarts: open.restarts.clone(),
            owned: open.owned.clone(),
        };
        StoreNotes {
            stores: open.iter().map(note).collect(),
            unreported: self.0.unreported.lock().clone(),
        }
    }

    /// The stores of the agent before. Programs that had asked it and are not connected yet are
    /// about to connect, for as long as this is held.
    pub fn restore(&self, notes: StoreNotes) -> Vec<Hold> {
        let mut holds = Vec::new();
        for StoreNote { name, shown, restarts, owned } in notes.stores {
            let sides =
                [Side::Owner, Side::Others].map(|side| Namespace::of_store(name.clone(), side));
            let restarted =
                restarts.iter().map(|attempt| Namespace::of_restart(name.clone(), *attempt));
            holds.extend(sides.into_iter().chain(restarted).map(|one| self.hold(&one, &shown)));
            if let Some(owned) = owned {
                self.own(&name, owned);
            }
        }
        *self.0.unreported.lock() = notes.unreported;
        holds
    }

    /// Whether some ends are not reported to the cluster.
    pub fn has_unreported(&self) -> bool {
        !self.0.unreported.lock().is_empty()
    }

    /// The oldest of them, and how many there are.
    pub fn first_unreported(&self) -> Option<(Owned, usize)> {
        let unreported = self.0.unreported.lock();
        Some((unreported.front()?.clone(), unreported.len()))
    }

    /// This end is reported to the cluster.
    pub fn reported(&self, owned: &Owned) {
        let mut unreported = self.0.unreported.lock();
        if unreported.front() == Some(owned) {
            unreported.pop_front();
        }
    }

    /// Whether a program of this host is its master and has it open.
    pub fn is_owned(&self, name: &Name) -> bool {
        let (owned, owners) = match self.0.open.lock().get(name) {
            Some(Open { owned: Some(owned), owners, .. }) => (owned.clone(), *owners),
            _ => return false,
        };
        if owned.is_over || owners > 0 {
            return !owned.is_over;
        }
        // A master that has closed its connection a moment ago may open the store anew before the
        // agent has read that: the kernel's state counts.
        self.guests(name, Side::Owner) > 0 && connected::is_any(owned.address)
    }

    /// How many stores a program may have, if it has so many. Those with unknown ids, as in another
    /// process namespace, count together.
    pub fn is_full_for(&self, pid: Option<i32>) -> Option<usize> {
        let known = |pid: Option<i32>| pid.filter(|pid| *pid > 0);
        let max = match known(pid) {
            Some(_) => self.0.of_one_max,
            None => self.0.of_unknown_max,
        };
        let open = self.0.open.lock();
        let own = |open: &&Open| {
            let owned = open.owned.as_ref();
            owned.is_some_and(|owned| known(owned.pid) == known(pid) && !owned.is_over)
        };
        (open.values().filter(own).count() >= max).then_some(max)
    }

    /// Ready when something may have ended.
    pub async fn changed(&self) {
        tokio::select! {
            () = self.0.changed.notified() => {}
            () = self.0.presence.store_left() => {}
        }
    }

    /// Stores whose masters on this host have gone since the last call, with the
    /// names in the log. Report them to the cluster.
    pub fn ended(&self) -> Vec<(Name, String)> {
        let mut open = self.0.open.lock();
        let mut unreported = self.0.unreported.lock();
        let ended = open.iter_mut().filter_map(|(name, open)| {
            let owned = open.owned.as_mut().filter(|owned| !owned.is_over)?;
            if open.owners > 0 || self.guests(name, Side::Owner) > 0 {
                return None;
            }
            owned.is_over = true;
            if unreported.len() == UNREPORTED_MAX {
                unreported.pop_front();
            }
            unreported.push_back(owned.clone());
            Some((name.clone(), open.shown.clone()))
        });
        ended.collect()
    }

    /// Stores that no program on this host uses any more; they are forgotten.
    pub fn unused(&self) -> Vec<Name> {
        let mut unused = Vec::new();
        self.0.open.lock().retain(|name, open| {
            let of_restart = |attempt: &u32| {
                self.0.presence.guests(&Namespace::of_restart(name.clone(), *attempt))
            };
            let restarted: usize = open.restarts.iter().map(of_restart).sum();
            let connected = self.guests(name, Side::Owner) + self.guests(name, Side::Others);
            let used = open.owners + open.others + connected + restarted;
            if used == 0 {
                unused.push(name.clone());
            }
            used > 0
        });
        unused
    }

    fn guests(&self, name: &Name, side: Side) -> usize {
        self.0.presence.guests(&Namespace::of_store(name.clone(), side))
    }
}

impl Open {
    fn about_to_connect(&mut self, side: Side) -> &mut usize {
        if side == Side::Owner { &mut self.owners } else { &mut self.others }
    }
}

impl Hold {
    /// Namespace of the store.
    pub fn namespace(&self) -> Namespace {
        self.namespace.clone()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let shared = &self.table.0;
        if let Some(open) = shared.open.lock().get_mut(&self.name) {
            let count = open.about_to_connect(self.namespace.side());
            *count = count.saturating_sub(1);
        }
        shared.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: usize = 1_024;

    fn name() -> Name {
        "localhost.12355.1-00000000".parse().unwrap()
    }

    fn of(side: Side) -> Namespace {
        Namespace::of_store(name(), side)
    }

    fn owned() -> Owned {
        let address = "127.0.0.1:20000".parse().unwrap();
        Owned { pid: Some(7), address, noted: Vec::new(), is_over: false }
    }

    #[test]
    fn a_store_is_over_with_its_master_and_forgotten_with_its_last_client() {
        let presence = Presence::default();
        let table = Table::new(presence.clone(), PORTS);
        let enter = |side| presence.enter(Namespace::of_store(name(), side)).unwrap();
        let master = table.hold(&of(Side::Owner), "localhost:12355");
        assert!(!table.is_owned(&name()), "the cluster does not know of it yet");
        table.own(&name(), owned());
        let owner = enter(Side::Owner);
        drop(master);
        let others = enter(Side::Others);
        assert!(table.ended().is_empty() && table.unused().is_empty());
        drop(owner);
        let ended = table.ended();
        assert_eq!((ended.len(), ended[0].1.as_str()), (1, "localhost:12355"));
        assert!(!table.is_owned(&name()) && table.ended().is_empty(), "it ends once");
        assert!(table.unused().is_empty());
        drop(others);
        // Restarted ranks are there, too.
        let second = Namespace::of_restart(name(), 1);
        let about_to = table.hold(&second, "localhost:12355");
        let restarted = presence.enter(second).unwrap();
        drop(about_to);
        assert!(table.unused().is_empty());
        drop(restarted);
        assert_eq!(table.unused(), [name()]);
        assert!(table.unused().is_empty());
    }

    #[test]
    fn what_the_cluster_is_told_of_a_store_changes_while_it_is_open() {
        let table = Table::new(Presence::default(), PORTS);
        let master = table.hold(&of(Side::Owner), "x");
        assert!(table.noted().is_empty());
        let noted = |value: &str| vec![(Blob::from("key"), Blob::from(value))];
        table.own(&name(), Owned { noted: noted("before"), ..owned() });
        table.note(&name(), &Blob::from("key"), Blob::from("now"));
        table.note(&name(), &Blob::from("another"), Blob::from("never"));
        assert_eq!(table.noted(), [(name(), noted("now"))]);
        drop(master);
        assert_eq!(table.ended().len(), 1);
        assert!(table.noted().is_empty());
        let (ended, count) = table.first_unreported().unwrap();
        assert_eq!((ended.noted, count), (noted("now"), 1));
    }

    #[test]
    fn an_agent_that_follows_knows_of_restarts_and_of_ends_that_are_not_told() {
        let presence = Presence::default();
        let table = Table::new(presence.clone(), PORTS);
        let master = table.hold(&of(Side::Owner), "x");
        table.own(&name(), owned());
        let _restarted = table.hold(&Namespace::of_restart(name(), 3), "x");
        drop(master);
        assert_eq!(table.ended().len(), 1);

        let written = serde_json::to_vec(&table.notes()).unwrap();
        let next = Table::new(presence.clone(), PORTS);
        let about_to = next.restore(serde_json::from_slice(&written).unwrap());
        assert!(about_to.iter().any(|hold| hold.namespace().attempt() == 3));
        let rank = presence.enter(Namespace::of_restart(name(), 3)).unwrap();
        drop(about_to);
        assert!(next.unused().is_empty(), "ports of restarted ranks stay");
        assert!(next.ended().is_empty(), "it ends once");
        let (unreported, count) = next.first_unreported().unwrap();
        assert_eq!(count, 1);
        next.reported(&unreported);
        assert!(!next.has_unreported());
        drop(rank);
        assert_eq!(next.unused(), [name()]);
    }

    #[test]
    fn one_program_leaves_room_for_the_others() {
        let table = Table::new(Presence::default(), PORTS);
        let mut held = Vec::new();
        for n in 0..OF_ONE_MAX {
            assert_eq!(table.is_full_for(Some(7)), None, "{n}");
            held.push(open(&table, Some(7), n));
        }
        assert_eq!(table.is_full_for(Some(7)), Some(128));
        assert_eq!(table.is_full_for(Some(8)), None);
        drop(held.pop());
        assert_eq!(table.ended().len(), 1);
        assert_eq!(table.is_full_for(Some(7)), None);
    }

    #[test]
    fn programs_with_unknown_ids_leave_room_for_the_others_together() {
        let table = Table::new(Presence::default(), PORTS);
        let _held: Vec<Hold> =
            (0..OF_UNKNOWN_MAX).map(|n| open(&table, Some(0).filter(|_| n > 9), n)).collect();
        for pid in [None, Some(0)] {
            assert_eq!(table.is_full_for(pid), Some(256), "{pid:?}");
        }
        assert_eq!(table.is_full_for(Some(7)), None);
        let few = Table::new(Presence::default(), 8);
        let _held = [0, 1].map(|n| open(&few, Some(7), n));
        assert_eq!(few.is_full_for(Some(7)), Some(2), "a quarter of the ports");
    }

    /// A store whose master is about to connect.
    fn open(table: &Table, pid: Option<i32>, n: usize) -> Hold {
        let name: Name = format!("x.{n}").parse().unwrap();
        let hold = table.hold(&Namespace::of_store(name.clone(), Side::Owner), "x");
        table.own(&name, Owned { pid, ..owned() });
        hold
    }

    #[tokio::test]
    async fn whoever_leaves_a_store_is_noticed() {
        let presence = Presence::default();
        let table = Table::new(presence.clone(), PORTS);
        drop(table.hold(&of(Side::Others), "x"));
        table.changed().await;
        drop(presence.enter(Namespace::of_store(name(), Side::Owner)).unwrap());
        table.changed().await;
    }
}
