//! Clients of this agent and what each waits for, for operators.
//!
//! A connection only notes that it is there and what it waits for; its process
//! and what is worth reporting are found out when a report is made.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::agent::{CLIENTS_MAX, REPORT_BYTES_MAX, WAIT_KEYS_MAX, WAITS_MAX};
use holdfast_api::{AgentClient, AgentReport, AgentWait, Blob, Condition, Exit, Until};
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use tracing::{debug, error, warn};

use crate::process::{self, Connection, Process};
use crate::programs::{LastCall, Program, Programs, quiet};

/// A wait is reported when it has been blocked for this long: most end within milliseconds.
const BLOCKED_MIN: Duration = Duration::from_secs(1);
/// How often the process of a connection is looked for, before it counts as
/// unknown.
const LOOKS_MAX: u32 = 3;
/// Room in a report for what is not a wait.
const WAITS_BYTES_MAX: usize = REPORT_BYTES_MAX / 2;

/// Time limit for a look at the processes of this host: the kernel makes a reader
/// of a process's variables wait for its memory.
const LOOK_TIME_MAX: Duration = Duration::from_secs(5);

/// All connections of an agent. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Roster {
    connections: Arc<Mutex<Connections>>,
    /// Held by the one look in progress.
    looking: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct Connections {
    last: u64,
    taken: BTreeMap<u64, ConnectionRecord>,
    programs: Programs,
}

#[derive(Debug)]
struct ConnectionRecord {
    connection: Connection,
    /// The name of its namespace.
    door: String,
    came: Instant,
    owner: Owner,
    waiting: Option<Waiting>,
    last: Option<LastCall>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// Looked for that often.
    Unknown(u32),
    Known(Process),
}

impl Owner {
    fn process(self) -> Option<Process> {
        match self {
            Owner::Known(process) => Some(process),
            Owner::Unknown(_) => None,
        }
    }
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    keys: Vec<Blob>,
    keys_left_out: u64,
    at_least: Option<i64>,
}

/// A connection's entry, until it is dropped.
#[derive(Debug)]
pub struct Entry {
    id: u64,
    roster: Roster,
}

/// Where a connection comes from, for a log: what is known of it then.
#[derive(Debug, Clone)]
pub struct Origin {
    id: u64,
    roster: Roster,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connections = self.roster.connections.lock();
        let Some(record) = connections.taken.get(&self.id) else {
            return f.write_str("a connection that is closed");
        };
        let peer = record.connection.peer;
        match record.owner.process() {
            Some(Process { pid, rank: Some(rank), .. }) => {
                write!(f, "process {pid} (rank {rank}) at {peer}")
            }
            Some(Process { pid, .. }) => write!(f, "process {pid} at {peer}"),
            None => write!(f, "an unknown process at {peer}"),
        }
    }
}

impl Roster {
    /// Notes a connection to the namespace of this name.
    pub fn enter(&self, connection: Connection, door: &str) -> Entry {
        let mut connections = self.connections.lock();
        connections.last += 1;
        let id = connections.last;
        let record = ConnectionRecord {
            connection,
            door: door.to_owned(),
            came: Instant::now(),
            owner: Owner::Unknown(0),
            waiting: None,
            last: None,
        };
        connections.taken.insert(id, record);
        Entry { id, roster: self.clone() }
    }

    /// Looks for the processes of connections that are new, one look at a time
    /// for all callers. Those that it has not found in time stay unknown.
    pub async fn look_for_processes(&self) {
        let roster = self.clone();
        let looking = async {
            let turn = Arc::clone(&self.looking).lock_owned().await;
            spawn_blocking(move || {
                roster.look();
                // The caller that waited for it finds little left to look for.
                drop(turn);
            })
            .await
        };
        match timeout(LOOK_TIME_MAX, looking).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                error!(%error, "looking for the processes of connections ended in a defect");
            }
            Err(_) => debug!("the processes of connections were not found in {LOOK_TIME_MAX:?}"),
        }
    }

    fn look(&self) {
        let wanted: Vec<(u64, Connection)> = {
            let connections = self.connections.lock();
            let unknown = |record: &ConnectionRecord| matches!(record.owner, Owner::Unknown(n) if n < LOOKS_MAX);
            let unknown = connections.taken.iter().filter(|(_, record)| unknown(record));
            unknown.map(|(id, record)| (*id, record.connection)).collect()
        };
        if wanted.is_empty() {
            return;
        }
        let connections: Vec<Connection> = wanted.iter().map(|(_, one)| *one).collect();
        let found = process::clients_of(&connections);
        let mut connections = self.connections.lock();
        let connections = &mut *connections;
        for ((id, _), process) in wanted.into_iter().zip(found) {
            let Some(record) = connections.taken.get_mut(&id) else { continue };
            record.owner = match (process, record.owner) {
                (Some(process), _) => {
                    let met =
                        connections.programs.meet(process, &record.door, from(&record.connection));
                    if let Some(before) = met {
                        warn!("{before}");
                    }
                    Owner::Known(process)
                }
                (None, Owner::Unknown(looks)) => Owner::Unknown(looks + 1),
                (None, known) => known,
            };
        }
    }

    /// The programs that are connected or were; `None` if some are unknown.
    pub fn programs(&self) -> Option<Vec<u32>> {
        let connections = self.connections.lock();
        let known = connections.taken.values().all(|record| record.owner.process().is_some());
        known.then(|| connections.programs.ids()).flatten()
    }

    /// At most so many programs whose end is not watched yet; from now on the caller watches them.
    pub fn unwatched(&self, most: usize) -> Vec<u32> {
        self.connections.lock().programs.unwatched(most)
    }

    /// A program that was connected has ended.
    pub fn ended(&self, pid: u32, exit: Option<Exit>) {
        self.connections.lock().programs.ended(pid, exit);
    }

    /// A command has ended, as reported by the process that started it.
    pub fn command_ended(&self, pid: u32, rank: Option<u64>, exit: Exit) {
        self.connections.lock().programs.command_ended(pid, rank, exit);
    }

    /// Fills in the clients, the waits, and programs that have ended.
    pub fn fill(&self, report: &mut AgentReport, now: Instant) {
        let connections = self.connections.lock();
        fill_clients(report, &connections, now);
        fill_waits(report, connections.taken.values(), now);
        report.ended = connections.programs.report_ended(now);
    }
}

/// The address of a client.
fn from(connection: &Connection) -> String {
    connection.peer.ip().to_canonical().to_string()
}

/// The connections of one program, or of one origin with unknown programs.
struct Together {
    connections: u64,
    waits: bool,
    came: Instant,
    last: Option<LastCall>,
}

/// Connections of one process are grouped, and those of unknown processes by
/// their origin.
fn fill_clients(report: &mut AgentReport, connections: &Connections, now: Instant) {
    let mut clients: BTreeMap<(Option<u64>, Option<u32>, String), Together> = BTreeMap::new();
    for record in connections.taken.values() {
        let process = record.owner.process();
        let rank = process.and_then(|process| process.rank);
        let pid = process.map(|process| process.pid);
        let met = pid.and_then(|pid| connections.programs.get(pid));
        let together = clients.entry((rank, pid, from(&record.connection)));
        let together = together.or_insert_with(|| Together {
            connections: 0,
            waits: false,
            came: met.map_or(record.came, |met| met.came),
            last: met.and_then(|met| met.last.clone()),
        });
        together.connections += 1;
        together.waits |= record.waiting.is_some();
        together.last = LastCall::later(together.last.take(), record.last.clone());
    }
    let connected: BTreeSet<u32> = clients.keys().filter_map(|(_, pid, _)| *pid).collect();
    // A rank that has closed its connections goes on.
    let apart =
        |(pid, program): &(u32, &Program)| program.rank.is_some() && !connected.contains(pid);
    for (pid, program) in connections.programs.iter().filter(apart) {
        let (came, last) = (program.came, program.last.clone());
        let together = Together { connections: 0, waits: false, came, last };
        clients.insert((program.rank, Some(pid), program.from.clone()), together);
    }
    report.clients_left_out = clients.len().saturating_sub(CLIENTS_MAX) as u64;
    let client = |((rank, pid, from), together): (_, Together)| {
        let Together { connections, waits, came, last } = together;
        let quiet = if waits { None } else { quiet(last.as_ref(), came, now) };
        AgentClient { pid, rank, from, connections, quiet, activity: None }
    };
    report.clients = clients.into_iter().take(CLIENTS_MAX).map(client).collect();
}

fn fill_waits<'a>(
    report: &mut AgentReport,
    connections: impl Iterator<Item = &'a ConnectionRecord>,
    now: Instant,
) {
    let blocked = |record: &'a ConnectionRecord| {
        let waiting = record.waiting.as_ref()?;
        let blocked = now.duration_since(waiting.since);
        (blocked >= BLOCKED_MIN).then_some((blocked, record.owner.process(), waiting))
    };
    let mut waits: Vec<_> = connections.filter_map(blocked).collect();
    waits.sort_by_key(|(blocked, _, _)| std::cmp::Reverse(*blocked));
    let (mut bytes, total) = (0, waits.len());
    report.waits.clear();
    for (blocked, process, waiting) in waits.into_iter().take(WAITS_MAX) {
        bytes += waiting.size();
        if bytes > WAITS_BYTES_MAX {
            break;
        }
        report.waits.push(AgentWait {
            pid: process.map(|process| process.pid),
            rank: process.and_then(|process| process.rank),
            keys: waiting.keys.clone(),
            keys_left_out: waiting.keys_left_out,
            at_least: waiting.at_least,
            blocked_ms: u64::try_from(blocked.as_millis()).unwrap_or(u64::MAX),
        });
    }
    report.waits_left_out = (total - report.waits.len()) as u64;
}

impl Waiting {
    fn new(conditions: &[Condition], since: Instant) -> Waiting {
        let at_least = conditions.iter().find_map(|condition| match condition.until {
            Until::AtLeast(least) => Some(least),
            Until::Exists => None,
        });
        let keys = conditions.iter().take(WAIT_KEYS_MAX).map(|one| one.key.clone()).collect();
        let keys_left_out = conditions.len().saturating_sub(WAIT_KEYS_MAX) as u64;
        Waiting { since, keys, keys_left_out, at_least }
    }

    /// About what it adds to a report.
    fn size(&self) -> usize {
        const OVERHEAD_BYTES: usize = 64;
        const KEY_BYTES: usize = 16;
        OVERHEAD_BYTES + self.keys.iter().map(|key| key.len() + KEY_BYTES).sum::<usize>()
    }
}

impl Entry {
    /// Where it comes from, for logs.
    pub fn origin(&self) -> Origin {
        Origin { id: self.id, roster: self.roster.clone() }
    }

    /// Its process, if that was found by now.
    pub fn process(&self) -> Option<u32> {
        let connections = self.roster.connections.lock();
        let record = connections.taken.get(&self.id)?;
        record.owner.process().map(|process| process.pid)
    }

    /// It waits for this from now on.
    pub fn waits(&self, conditions: &[Condition]) {
        self.set(Some(Waiting::new(conditions, Instant::now())));
    }

    /// Whether its process has another connection, or may have one: whose a
    /// connection is cannot always be known.
    pub fn has_company(&self) -> bool {
        let connections = self.roster.connections.lock();
        let own = connections.taken.get(&self.id).and_then(|record| record.owner.process());
        let mut others = connections.taken.iter().filter(|(id, _)| **id != self.id);
        match own {
            Some(own) => others.any(|(_, record)| {
                record.owner.process().is_none_or(|process| process.pid == own.pid)
            }),
            None => others.next().is_some(),
        }
    }

    /// It asks something of the store.
    pub fn calls(&self, op: &'static str, key: Option<&Blob>) {
        if let Some(record) = self.roster.connections.lock().taken.get_mut(&self.id) {
            record.last = Some(LastCall::now(op, key));
        }
    }

    /// The wait has ended.
    pub fn goes_on(&self) {
        self.set(None);
    }

    fn set(&self, waiting: Option<Waiting>) {
        if let Some(record) = self.roster.connections.lock().taken.get_mut(&self.id) {
            record.waiting = waiting;
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut connections = self.roster.connections.lock();
        if let Some(record) = connections.taken.remove(&self.id)
            && let Some(process) = record.owner.process()
        {
            connections.programs.closed(process.pid, record.last);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::SocketAddr;

    use super::*;

    /// Report of an agent without clients.
    pub(crate) fn report() -> AgentReport {
        AgentReport {
            id: String::new(),
            host: "node-a".to_owned(),
            pid: 1,
            version: "0".to_owned(),
            job: "j".parse().unwrap(),
            run: "r1".parse().unwrap(),
            listens: "127.0.0.1:29500".to_owned(),
            draining: false,
            clients: Vec::new(),
            clients_left_out: 0,
            waits: Vec::new(),
            waits_left_out: 0,
            processes: Vec::new(),
            ended: Vec::new(),
            tells_quiet: true,
        }
    }

    fn filled(roster: &Roster, after: Duration) -> AgentReport {
        let mut report = report();
        roster.fill(&mut report, Instant::now() + after);
        report
    }

    fn enter(roster: &Roster, port: u16) -> Entry {
        let peer = SocketAddr::from(([192, 0, 2, 7], port));
        roster.enter(Connection { peer, local: peer }, "first")
    }

    fn exist(keys: &[&str]) -> Vec<Condition> {
        keys.iter().map(|key| Condition { key: (*key).into(), until: Until::Exists }).collect()
    }

    #[test]
    fn connections_of_one_process_stand_together() {
        let roster = Roster::default();
        let entries: Vec<Entry> = (1..=5).map(|port| enter(&roster, port)).collect();
        for (entry, pid) in entries.iter().zip([71, 71, 70]) {
            let process = Process { pid, rank: Some(u64::from(pid) - 70), restarts: 0 };
            roster.connections.lock().taken.get_mut(&entry.id).unwrap().owner =
                Owner::Known(process);
        }
        let client = |pid: Option<u32>, connections| AgentClient {
            pid,
            rank: pid.map(|pid| u64::from(pid) - 70),
            from: "192.0.2.7".to_owned(),
            connections,
            quiet: None,
            activity: None,
        };
        let expected = [client(None, 2), client(Some(70), 1), client(Some(71), 2)];
        assert_eq!(filled(&roster, Duration::ZERO).clients, expected);
        drop(entries);
        assert!(filled(&roster, Duration::ZERO).clients.is_empty());
    }

    #[test]
    fn an_origin_names_the_process_once_that_is_known() {
        let roster = Roster::default();
        let entry = enter(&roster, 1);
        let origin = entry.origin();
        assert_eq!(origin.to_string(), "an unknown process at 192.0.2.7:1");
        let owner = Owner::Known(Process { pid: 71, rank: Some(3), restarts: 0 });
        roster.connections.lock().taken.get_mut(&entry.id).unwrap().owner = owner;
        assert_eq!(origin.to_string(), "process 71 (rank 3) at 192.0.2.7:1");
        drop(entry);
        assert_eq!(origin.to_string(), "a connection that is closed");
    }

    #[test]
    fn a_rank_is_quiet_while_it_asks_and_waits_for_nothing_also_without_connections() {
        let roster = Roster::default();
        let [first, second] = [1, 2].map(|port| enter(&roster, port));
        {
            let mut connections = roster.connections.lock();
            let process = Process { pid: 70, rank: Some(0), restarts: 0 };
            connections.programs.meet(process, "first", "192.0.2.7".to_owned());
            connections.taken.values_mut().for_each(|record| record.owner = Owner::Known(process));
        }
        let after = Duration::from_secs(60);
        first.calls("SET", Some(&"/k".into()));
        second.waits(&exist(&["/a"]));
        assert_eq!(filled(&roster, after).clients[0].quiet, None, "it waits");
        second.goes_on();
        assert_eq!(filled(&roster, Duration::ZERO).clients[0].quiet, None, "it has just called");
        drop((first, second));
        let told = filled(&roster, after).clients.remove(0);
        let quiet = told.quiet.expect("it has called last a minute ago");
        assert_eq!((told.rank, told.connections), (Some(0), 0));
        assert_eq!((quiet.last_call.as_str(), quiet.key), ("SET", Some("/k".into())));
        roster.ended(70, Some(Exit::Code(7)));
        let told = filled(&roster, after);
        assert!(told.clients.is_empty());
        assert_eq!((told.ended[0].rank, told.ended[0].exit), (Some(0), Some(Exit::Code(7))));
    }

    #[test]
    fn a_connection_has_company_if_another_may_be_of_its_process() {
        let roster = Roster::default();
        let [first, second, third] = [1, 2, 3].map(|port| enter(&roster, port));
        let set = |entry: &Entry, pid| {
            let owner = Owner::Known(Process { pid, rank: None, restarts: 0 });
            roster.connections.lock().taken.get_mut(&entry.id).unwrap().owner = owner;
        };
        set(&first, 71);
        set(&second, 71);
        set(&third, 72);
        assert!(first.has_company() && second.has_company());
        assert!(!third.has_company(), "another process");
        let unknown = enter(&roster, 4);
        assert!(unknown.has_company() && third.has_company(), "it may be anybody's");
        drop((first, second, third));
        assert!(!unknown.has_company(), "nobody is there");
    }

    #[test]
    fn a_wait_is_told_once_it_has_lasted_and_until_it_ends() {
        let roster = Roster::default();
        let entry = enter(&roster, 1);
        entry.waits(&exist(&["/a", "/b"]));
        assert!(filled(&roster, Duration::ZERO).waits.is_empty());
        let told = filled(&roster, Duration::from_secs(5));
        assert_eq!(told.waits[0].keys, ["/a".into(), "/b".into()]);
        assert!(told.waits[0].blocked_ms >= 5_000);
        entry.goes_on();
        assert!(filled(&roster, Duration::from_secs(9)).waits.is_empty());
        let until = Until::AtLeast(4);
        entry.waits(&[Condition { key: "/n".into(), until }]);
        assert_eq!(filled(&roster, Duration::from_secs(5)).waits[0].at_least, Some(4));
    }

    #[test]
    fn a_report_is_bounded_and_keeps_the_longest_waits() {
        let roster = Roster::default();
        let first = enter(&roster, 1);
        first.waits(&exist(&["/first"]));
        let many: Vec<Entry> = (0..WAITS_MAX + 10).map(|_| enter(&roster, 2)).collect();
        let keys: Vec<String> = (0..WAIT_KEYS_MAX + 3).map(|n| format!("/{n}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        many.iter().for_each(|entry| entry.waits(&exist(&keys)));
        let told = filled(&roster, Duration::from_secs(5));
        assert!(told.size() <= REPORT_BYTES_MAX);
        assert_eq!(told.waits.len() as u64 + told.waits_left_out, WAITS_MAX as u64 + 11);
        assert_eq!(told.waits[0].keys, ["/first".into()]);
        assert_eq!((told.waits[1].keys.len(), told.waits[1].keys_left_out), (WAIT_KEYS_MAX, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_keeps_nobody_waiting_for_ever() {
        let roster = Roster::default();
        let _entry = enter(&roster, 1);
        let _hangs = Arc::clone(&roster.looking).lock_owned().await;
        roster.look_for_processes().await;
        assert_eq!(
            roster.connections.lock().taken.values().next().unwrap().owner,
            Owner::Unknown(0)
        );
    }

    #[tokio::test]
    async fn a_process_that_cannot_be_found_is_not_looked_for_for_ever() {
        let roster = Roster::default();
        let _entry = enter(&roster, 1);
        for looks in 1..=LOOKS_MAX + 1 {
            roster.look_for_processes().await;
            let owner = roster.connections.lock().taken.values().next().unwrap().owner;
            assert_eq!(owner, Owner::Unknown(looks.min(LOOKS_MAX)));
        }
    }
}
