//! Serves one lease: reads and hands out its feed, and reports deaths.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use holdfast_api::agent::{PROCESSES_MAX, REPORT_BYTES_MAX};
use holdfast_api::hold::RELEASES_OF_ALL_MAX;
use holdfast_api::{
    AgentProcess, Answer, Arrival, Cause, Code, Command, Ended, ProcessCommand, ProcessEnd,
    Release, ReleaseWhy, RoundCommand,
};
use holdfast_client::{Client, Deadline, Error};
use holdfast_trainer_shim::Lease;
use holdfast_trainer_shim::link::FromAgent;
use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::arrivals::{Arrivals, Entrance};
use super::begin::{Begun, begin};
use super::connection_table::{ConnectionId, ConnectionTable};
use super::events::Events;
use super::outbox::Outbox;
use super::peer::Peer;
use super::relay::{self, Participant};
use super::room::Room;
use super::watchdog::Watched;
use crate::descriptors;

/// About what a process takes in a report.
const PROCESS_BYTES: usize = 96;

const DEATHS_PAUSE: Duration = Duration::from_secs(1);
const DEATHS_PER_COMMAND_MAX: usize = 4_096;

/// How long a program whose process has ended, and which still holds something,
/// may take to exit by itself.
const EXIT_TIME_MAX: Duration = Duration::from_millis(200);

/// Programs with unknown process ids whose connections have gone, and whose exit is waited for. Of
/// all there are as many as descriptors allow.
const GONE_UNKNOWN_MAX: usize = 256;
/// Exits that are remembered until the lease is given back, and incarnations that are waited for
/// with one program.
const EXITS_MAX: usize = 4_096;
/// How long the exit of a program that has closed its connection is waited for
/// when the lease is given back.
const LAST_EXIT_TIME_MAX: Duration = Duration::from_millis(50);

/// An incarnation that has ended.
#[derive(Debug, Clone)]
pub struct Death {
    pub participant: Participant,
    pub cause: Cause,
    /// Its program was seen to exit.
    pub exit_seen: bool,
}

/// One lease, and the connections that depend on it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LeaseHolder {
    pub lease: Lease,
    connections: Arc<Mutex<Connections>>,
    /// Unbounded in type only: a connection dies once, with its incarnations.
    deaths: mpsc::UnboundedSender<Death>,
    arrivals: Arrivals,
    /// Events of the job.
    pub events: Events,
    /// The client for what lasts: it takes no room from the waits of TCPStore clients.
    pub waits: Client,
    /// What programs hold together.
    pub room: Room,
    stop: CancellationToken,
    tasks: TaskTracker,
}

#[derive(Debug, Default)]
struct Connections {
    table: ConnectionTable,
    places: BTreeMap<ConnectionId, Place>,
    /// Programs whose connections have gone, and whose exit was not seen yet.
    gone: Vec<(Arc<Peer>, Vec<Participant>)>,
    /// Incarnations whose programs were seen to exit, the latest.
    exited: VecDeque<Participant>,
    /// Incarnations that have ended while they held something: their programs are made
    /// to exit.
    ending: BTreeSet<Participant>,
}

/// A connection, as all others see it.
#[derive(Debug, Clone)]
pub struct Place {
    /// Where its frames go.
    pub outbox: Outbox,
    /// How its live processes are doing. Locked after the connections.
    pub watched: Arc<Mutex<BTreeMap<Participant, Watched>>>,
    /// The process id of its program.
    pub pid: Option<u32>,
    /// The program at the other end.
    pub peer: Arc<Peer>,
}

impl Place {
    /// Stops watching incarnations that have ended.
    fn forget(&self, ended: &[Ended]) {
        let over = |&(process, incarnation): &Participant| {
            // When several incarnations ended, it names only the latest.
            ended.iter().any(|end| end.process == process && incarnation <= end.incarnation)
        };
        self.watched.lock().retain(|participant, _| !over(participant));
    }
}

impl Connections {
    /// A program has left that may go on. One that leaves again and again is one program, and takes
    /// one descriptor. Answers whether its exit is to be waited for with this `peer`.
    fn note_gone(&mut self, peer: &Arc<Peer>, participants: Vec<Participant>) -> bool {
        if let Some((_, before)) = self.gone.iter_mut().find(|(gone, _)| gone.is_same(peer)) {
            before.extend(participants);
            let surplus = before.len().saturating_sub(EXITS_MAX);
            before.drain(..surplus);
            return false;
        }
        let unknown = self.gone.iter().filter(|(gone, _)| gone.pid().is_none());
        let has_room = self.gone.len() < descriptors::Room::of_process().departed();
        if !has_room || peer.pid().is_none() && unknown.count() >= GONE_UNKNOWN_MAX {
            return false;
        }
        self.gone.push((Arc::clone(peer), participants));
        true
    }

    /// A program that had left has exited; answers its incarnations.
    fn note_exit_of(&mut self, peer: &Arc<Peer>) -> Vec<Participant> {
        let at = self.gone.iter().position(|(gone, _)| Arc::ptr_eq(gone, peer));
        let participants = at.map(|at| self.gone.remove(at).1).unwrap_or_default();
        self.note_exits(&participants);
        participants
    }

    fn note_exits(&mut self, participants: &[Participant]) {
        self.exited.extend(participants);
        let surplus = self.exited.len().saturating_sub(EXITS_MAX);
        self.exited.drain(..surplus);
    }
}

impl LeaseHolder {
    /// Begins; ends with the lease, or at `stop`.
    pub fn begin(
        lease: Lease,
        room: Room,
        stop: &CancellationToken,
        tasks: &TaskTracker,
    ) -> LeaseHolder {
        let (deaths, dead) = mpsc::unbounded_channel();
        let waits = lease.client().with_waits_apart();
        let lease_holder = LeaseHolder {
            lease: lease.clone(),
            connections: Arc::default(),
            deaths,
            arrivals: Arrivals::default(),
            events: Events::new(
                waits.clone(),
                lease.scope().job.clone(),
                stop.clone(),
                tasks.clone(),
            ),
            waits,
            room,
            stop: stop.clone(),
            tasks: tasks.clone(),
        };
        let reading = read_feed(lease_holder.clone());
        tasks.spawn(stop.clone().run_until_cancelled_owned(reading));
        tasks.spawn(stop.clone().run_until_cancelled_owned(tell_deaths(lease, dead)));
        lease_holder
    }

    /// Adds a connection to the table, keeps its place, and answers its id.
    pub fn sit(&self, place: Place) -> ConnectionId {
        let mut connections = self.connections.lock();
        let id = connections.table.sit();
        connections.places.insert(id, place);
        id
    }

    /// A connection has gone: its incarnations that go on are gone, too. `exit_seen`: its
    /// program has exited; if not, that is reported when it has.
    pub fn leave(&self, id: ConnectionId, exit_seen: bool) -> Vec<Participant> {
        let (place, all, alive) = {
            let mut connections = self.connections.lock();
            let place = connections.places.remove(&id);
            let all = connections.table.participants(id);
            if exit_seen {
                connections.note_exits(&all);
            }
            (place, all, connections.table.leave(id))
        };
        let may_go_on =
            place.filter(|place| !exit_seen && !all.is_empty() && place.peer.is_watched());
        if let Some(Place { peer, .. }) = may_go_on {
            let is_new = self.connections.lock().note_gone(&peer, all);
            if is_new {
                let lease_holder = self.clone();
                self.spawn_until_stopped(async move {
                    peer.ended().await;
                    let exited = lease_holder.connections.lock().note_exit_of(&peer);
                    report_exits(&lease_holder.lease, &exited).await;
                });
            }
        }
        alive
    }

    /// The lease is about to be given back: reports all exits that were seen, so that no process
    /// waits for what these held.
    pub async fn tell_last_exits(&self, within: Duration) {
        let gone: Vec<(Arc<Peer>, Vec<Participant>)> = self.connections.lock().gone.clone();
        let ended = gone.into_iter().map(async |(peer, participants)| {
            if tokio::time::timeout(LAST_EXIT_TIME_MAX, peer.ended()).await.is_ok() {
                self.connections.lock().note_exits(&participants);
            }
        });
        futures::future::join_all(ended).await;
        let exited: Vec<Participant> = self.connections.lock().exited.iter().copied().collect();
        if exited.is_empty() {
            return;
        }
        let end = |(process, incarnation)| ProcessEnd {
            process,
            incarnation,
            cause: Cause::Gone,
            exit_seen: true,
        };
        let ends = exited.into_iter().map(end).collect();
        let command = Command::Process(ProcessCommand::End { lease: self.lease.id(), ends });
        if let Err(error) = self.lease.client().propose(command, Deadline::after(within)).await {
            warn!(%error, "cannot report to the cluster which processes have exited");
        }
    }

    /// A task that ends with the agent.
    fn spawn_until_stopped(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(task));
    }

    /// Processes have ended while they held something: their programs must exit,
    /// and are made to if they do not.
    fn make_exit(&self, participants: Vec<Participant>) {
        for participant in participants {
            let peer = {
                let connections = &mut *self.connections.lock();
                if !connections.ending.insert(participant) {
                    continue;
                }
                let gone = connections
                    .gone
                    .iter()
                    .find(|(_, participants)| participants.contains(&participant));
                let gone = gone.map(|(peer, _)| peer.clone());
                let owner =
                    connections.table.owner(participant).and_then(|id| connections.places.get(&id));
                gone.or_else(|| owner.map(|place| place.peer.clone()))
            };
            let (process, incarnation) = participant;
            let Some(peer) = peer else {
                let seen = {
                    let connections = &mut *self.connections.lock();
                    connections.ending.remove(&participant);
                    connections.exited.contains(&participant)
                };
                // It had ended for the cluster before its program did.
                if seen {
                    let lease = self.lease.clone();
                    self.spawn_until_stopped(
                        async move { report_exits(&lease, &[participant]).await },
                    );
                }
                continue;
            };
            if !peer.is_watched() {
                warn!(
                    process,
                    incarnation,
                    "it has ended and still holds something, and its program cannot be watched: \
                     `holdfast comm excuse` once it is gone"
                );
                continue;
            }
            let lease_holder = self.clone();
            self.spawn_until_stopped(async move {
                if tokio::time::timeout(EXIT_TIME_MAX, peer.ended()).await.is_err() {
                    warn!(
                        process,
                        incarnation,
                        pid = peer.pid(),
                        "it has ended for the cluster and still holds something: SIGKILL"
                    );
                    peer.signal(&[Signal::CONT, Signal::KILL]);
                    peer.ended().await;
                }
                report_exits(&lease_holder.lease, &[participant]).await;
                lease_holder.connections.lock().ending.remove(&participant);
            });
        }
    }

    /// How the processes are doing, those that do worst first.
    pub fn report(&self) -> Vec<AgentProcess> {
        let places: Vec<Place> = self.connections.lock().places.values().cloned().collect();
        let of_place = |place: &Place| -> Vec<AgentProcess> {
            let watched = place.watched.lock();
            watched.values().map(|one| one.report(place.pid)).collect()
        };
        let mut all: Vec<AgentProcess> = places.iter().flat_map(of_place).collect();
        all.sort_by_key(|one| (std::cmp::Reverse(one.health as u8), one.process));
        let mut bytes = 0;
        let fits = |one: &AgentProcess| {
            bytes += PROCESS_BYTES + one.last_call.len();
            bytes <= REPORT_BYTES_MAX / 8
        };
        all.into_iter().take(PROCESSES_MAX).take_while(fits).collect()
    }

    /// Runs `work` on the connection table.
    pub fn table<T>(&self, work: impl FnOnce(&mut ConnectionTable) -> T) -> T {
        work(&mut self.connections.lock().table)
    }

    /// Sends a connection frames, with no frame of the feed between them.
    pub fn tell(
        &self,
        id: ConnectionId,
        frames: impl FnOnce(&mut ConnectionTable) -> Vec<FromAgent>,
    ) {
        let Connections { table, places, .. } = &mut *self.connections.lock();
        let frames = frames(table);
        if let Some(Place { outbox, .. }) = places.get(&id) {
            frames.iter().for_each(|frame| outbox.push(frame));
        }
    }

    /// Has the store carry out a command. What waits here with arrivals of the same processes
    /// goes before it.
    pub async fn propose(&self, command: Command, deadline: Deadline) -> Result<Answer, Error> {
        self.carry_ahead(&relay::acting(&command), None);
        self.lease.client().propose(command, deadline).await
    }

    /// Processes arrive at a round, together with those of other programs.
    pub async fn arrive(
        &self,
        entrance: Entrance,
        arrivals: Vec<Arrival>,
        deadline: Deadline,
    ) -> Result<Answer, Error> {
        let participants: Vec<Participant> =
            arrivals.iter().map(|one| (one.process, one.incarnation)).collect();
        self.carry_ahead(&participants, Some(&entrance));
        let (client, lease) = (self.lease.client().clone(), self.lease.id());
        let spawn = |carrying| self.spawn_carrying(carrying);
        self.arrivals.arrive(client, lease, entrance, arrivals, deadline, spawn).await
    }

    /// Sends what waits here with arrivals of these processes, but for those at `here`.
    pub fn carry_ahead(&self, participants: &[Participant], here: Option<&Entrance>) {
        let (client, lease) = (self.lease.client(), self.lease.id());
        let ahead = self.arrivals.ahead(client, lease, participants, here);
        if let Some(carrying) = ahead
            && let Begun::UnderWay(carrying) = begin(carrying)
        {
            self.spawn_carrying(carrying);
        }
    }

    fn spawn_carrying(&self, carrying: BoxFuture<'static, ()>) {
        let (lease, stop) = (self.lease.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                () = carrying => {}
                () = lease.ended() => {}
                () = stop.cancelled() => {}
            }
        });
    }

    /// A task that the agent's end waits for: the caller must end it.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.tasks.spawn(task)
    }

    /// Incarnations have ended: reports them to the cluster.
    pub fn died(&self, participants: impl IntoIterator<Item = Death>) {
        for death in participants {
            // The receiver has ended with the lease, and the incarnations with it.
            let _ = self.deaths.send(death);
        }
    }
}

async fn read_feed(lease_holder: LeaseHolder) {
    let mut feed = lease_holder.lease.feed();
    while let Some(piece) = feed.next().await {
        let revoked = piece.held.iter().filter(|news| news.revoked.is_some());
        let holders: Vec<Participant> = revoked.flat_map(|news| news.holders.iter()).collect();
        let ended = {
            let Connections { table, places, .. } = &mut *lease_holder.connections.lock();
            for (id, piece) in table.hand_out(piece) {
                if let Some(place) = places.get(&id) {
                    place.forget(&piece.ended);
                    place.outbox.push(&FromAgent::Feed(piece));
                }
            }
            holders.into_iter().filter(|participant| table.has_ended(*participant)).collect()
        };
        lease_holder.make_exit(ended);
    }
}

/// Reports to the cluster that these processes have exited, until it acknowledges
/// that, or refuses it for good.
async fn report_exits(lease: &Lease, participants: &[Participant]) {
    for some in participants.chunks(RELEASES_OF_ALL_MAX as usize) {
        report_some_exits(lease, some).await;
    }
}

async fn report_some_exits(lease: &Lease, participants: &[Participant]) {
    let of =
        |&(process, incarnation): &Participant| Release { process, incarnation, generation: 0 };
    let (scope, releases) = (lease.scope().clone(), participants.iter().map(of).collect());
    let why = ReleaseWhy::Exited;
    let command = Command::Round(RoundCommand::Release { scope, releases, why });
    while let Err(error) = lease.client().propose(command.clone(), Deadline::never()).await {
        if !error.is_retryable() && error.code() != Code::SessionExpired {
            return warn!(%error, "the cluster refused the report of an exit");
        }
        warn!(%error, "cannot report exits to the cluster; trying again");
        tokio::time::sleep(DEATHS_PAUSE).await;
    }
}

/// Deaths during a command are reported together in the next.
async fn tell_deaths(lease: Lease, mut dead: mpsc::UnboundedReceiver<Death>) {
    let mut waiting = Vec::new();
    while dead.recv_many(&mut waiting, DEATHS_PER_COMMAND_MAX).await > 0 {
        let end = |Death { participant: (process, incarnation), cause, exit_seen }| ProcessEnd {
            process,
            incarnation,
            cause,
            exit_seen,
        };
        let ends: Vec<ProcessEnd> = waiting.drain(..).map(end).collect();
        let count = ends.len();
        let command = Command::Process(ProcessCommand::End { lease: lease.id(), ends });
        let telling = async {
            loop {
                match lease.client().propose(command.clone(), Deadline::never()).await {
                    Ok(_) => {
                        return info!("reported to the cluster that {count} processes are gone");
                    }
                    Err(error) => warn!(
                        %error, "cannot report to the cluster that {count} processes are gone; trying again"
                    ),
                }
                tokio::time::sleep(DEATHS_PAUSE).await;
            }
        };
        tokio::select! {
            () = telling => {}
            () = lease.ended() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_leaves_again_and_again_is_waited_for_once() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(child.id()).ok();
        let peer = || Arc::new(Peer::numbered(pid));
        let (mut connections, first) = (Connections::default(), peer());
        assert!(connections.note_gone(&first, vec![(0, 1)]));
        assert!(!connections.note_gone(&peer(), vec![(0, 2), (1, 3)]));
        child.kill().unwrap();
        first.ended().await;
        child.wait().unwrap();
        assert!(connections.note_gone(&peer(), vec![(0, 4)]), "another one with its number");
        let exited: [Participant; 3] = [(0, 1), (0, 2), (1, 3)];
        assert_eq!(connections.note_exit_of(&first), exited);
        assert_eq!(connections.exited, exited);
        assert_eq!(connections.gone.len(), 1);
    }

    #[tokio::test]
    async fn so_many_programs_with_unknown_ids_are_waited_for() {
        let mut connections = Connections::default();
        let unknown = || Arc::new(Peer::numbered(None));
        for _ in 0..GONE_UNKNOWN_MAX {
            assert!(connections.note_gone(&unknown(), vec![(0, 1)]));
        }
        assert!(!connections.note_gone(&unknown(), vec![(0, 1)]));
        let known = Arc::new(Peer::numbered(i32::try_from(std::process::id()).ok()));
        assert!(connections.note_gone(&known, vec![(0, 1)]));
    }
}
