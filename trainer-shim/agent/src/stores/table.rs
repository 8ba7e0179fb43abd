//! The stores that programs of this host use now: who is about to connect, who is
//! connected, and whose store it is.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use holdfast_api::{Blob, Name};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::connected;
use crate::door::tcpstore::presence::Presence;
use crate::namespace::{Namespace, Side};

/// Stores that one program is the master of at one time.
pub const OF_ONE_MAX: usize = 128;

/// The table. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Table(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    presence: Presence,
    open: Mutex<BTreeMap<Name, Open>>,
    /// A hold was let go.
    changed: Notify,
}

#[derive(Debug)]
struct Open {
    /// As it is logged.
    shown: String,
    /// Those that are about to connect, by side.
    owners: usize,
    others: usize,
    /// That a program of this host is its master.
    owned: Option<Owned>,
}

/// A store whose master is a program of this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owned {
    /// The program.
    pub pid: Option<i32>,
    /// Where it connects.
    pub address: SocketAddr,
    /// What says so in the cluster while it is open: keys and their values.
    pub noted: Vec<(Blob, Blob)>,
    /// Its master has gone.
    pub is_over: bool,
}

/// A store, as it is written down for an agent that follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreNote {
    name: Name,
    shown: String,
    owned: Option<Owned>,
}

/// A program that is about to connect to a store.
#[derive(Debug)]
pub struct Hold {
    table: Table,
    name: Name,
    side: Side,
}

impl Table {
    /// An empty one.
    pub fn new(presence: Presence) -> Table {
        Table(Arc::new(Shared { presence, open: Mutex::default(), changed: Notify::new() }))
    }

    /// A program is about to connect.
    pub fn hold(&self, name: &Name, side: Side, shown: &str) -> Hold {
        let mut open = self.0.open.lock();
        let shown = || Open { shown: shown.to_owned(), owners: 0, others: 0, owned: None };
        *open.entry(name.clone()).or_insert_with(shown).about_to_connect(side) += 1;
        Hold { table: self.clone(), name: name.clone(), side }
    }

    /// Somebody of this host, who holds it, is its master.
    pub fn own(&self, name: &Name, owned: Owned) {
        if let Some(open) = self.0.open.lock().get_mut(name) {
            open.owned = Some(owned);
        }
    }

    /// All stores.
    pub fn notes(&self) -> Vec<StoreNote> {
        let open = self.0.open.lock();
        let note = |(name, open): (&Name, &Open)| {
            let (name, shown, owned) = (name.clone(), open.shown.clone(), open.owned.clone());
            StoreNote { name, shown, owned }
        };
        open.iter().map(note).collect()
    }

    /// The stores of the agent before. Those who had asked it and are not connected yet
    /// are about to, for as long as this is held.
    pub fn restore(&self, notes: Vec<StoreNote>) -> Vec<Hold> {
        let mut holds = Vec::new();
        for StoreNote { name, shown, owned } in notes {
            holds.extend([Side::Owner, Side::Others].map(|side| self.hold(&name, side, &shown)));
            if let Some(owned) = owned {
                self.own(&name, owned);
            }
        }
        holds
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
        // One that has closed its connection a moment ago may open the store anew before the
        // agent has read that: what the kernel says counts.
        self.guests(name, Side::Owner) > 0 && connected::is_any(owned.address)
    }

    /// Whether a program may open one more.
    pub fn has_room_for(&self, pid: i32) -> bool {
        let open = self.0.open.lock();
        let own = |open: &&Open| {
            open.owned.as_ref().is_some_and(|owned| owned.pid == Some(pid) && !owned.is_over)
        };
        open.values().filter(own).count() < OF_ONE_MAX
    }

    /// Ready when something may have ended.
    pub async fn changed(&self) {
        tokio::select! {
            () = self.0.changed.notified() => {}
            () = self.0.presence.store_left() => {}
        }
    }

    /// Stores whose masters on this host have gone since the last call, with how
    /// they are logged.
    pub fn ended(&self) -> Vec<(Name, Owned, String)> {
        let mut open = self.0.open.lock();
        let ended = open.iter_mut().filter_map(|(name, open)| {
            let owned = open.owned.as_mut().filter(|owned| !owned.is_over)?;
            if open.owners > 0 || self.guests(name, Side::Owner) > 0 {
                return None;
            }
            owned.is_over = true;
            Some((name.clone(), owned.clone(), open.shown.clone()))
        });
        ended.collect()
    }

    /// Stores that nobody on this host uses any more; they are forgotten.
    pub fn unused(&self) -> Vec<Name> {
        let mut unused = Vec::new();
        self.0.open.lock().retain(|name, open| {
            let waited_for = open.owners + open.others;
            let used =
                waited_for + self.guests(name, Side::Owner) + self.guests(name, Side::Others);
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
    /// Of which namespace.
    pub fn namespace(&self) -> Namespace {
        Namespace::of_store(self.name.clone(), self.side)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let shared = &self.table.0;
        if let Some(open) = shared.open.lock().get_mut(&self.name) {
            let count = open.about_to_connect(self.side);
            *count = count.saturating_sub(1);
        }
        shared.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Name {
        "localhost.12355.1-00000000".parse().unwrap()
    }

    fn owned() -> Owned {
        let address = "127.0.0.1:20000".parse().unwrap();
        Owned { pid: Some(7), address, noted: Vec::new(), is_over: false }
    }

    #[test]
    fn a_store_is_over_with_its_master_and_forgotten_with_its_last_client() {
        let presence = Presence::default();
        let table = Table::new(presence.clone());
        let enter = |side| presence.enter(Namespace::of_store(name(), side)).unwrap();
        let master = table.hold(&name(), Side::Owner, "localhost:12355");
        assert!(!table.is_owned(&name()), "the cluster does not know of it yet");
        table.own(&name(), owned());
        let owner = enter(Side::Owner);
        drop(master);
        let others = enter(Side::Others);
        assert!(table.ended().is_empty() && table.unused().is_empty());
        drop(owner);
        let ended = table.ended();
        assert_eq!((ended.len(), ended[0].2.as_str()), (1, "localhost:12355"));
        assert!(!table.is_owned(&name()) && table.ended().is_empty(), "it ends once");
        assert!(table.unused().is_empty());
        drop(others);
        assert_eq!(table.unused(), [name()]);
        assert!(table.unused().is_empty());
    }

    #[test]
    fn one_program_leaves_room_for_the_others() {
        let table = Table::new(Presence::default());
        let mut held = Vec::new();
        for n in 0..OF_ONE_MAX {
            assert!(table.has_room_for(7), "{n}");
            let name: Name = format!("x.{n}").parse().unwrap();
            held.push(table.hold(&name, Side::Owner, "x"));
            table.own(&name, owned());
        }
        assert!(!table.has_room_for(7));
        assert!(table.has_room_for(8));
        drop(held.pop());
        assert_eq!(table.ended().len(), 1);
        assert!(table.has_room_for(7));
    }

    #[tokio::test]
    async fn whoever_leaves_a_store_is_noticed() {
        let presence = Presence::default();
        let table = Table::new(presence.clone());
        drop(table.hold(&name(), Side::Others, "x"));
        table.changed().await;
        drop(presence.enter(Namespace::of_store(name(), Side::Owner)).unwrap());
        table.changed().await;
    }
}
