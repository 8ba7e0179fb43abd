//! The time of one lease: its feed is read and handed out, and deaths are told.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_api::agent::{PROCESSES_MAX, REPORT_BYTES_MAX};
use holdfast_api::{
    AgentProcess, Answer, Arrival, Cause, Command, Ended, ProcessCommand, ProcessEnd,
};
use holdfast_client::{Deadline, Error};
use holdfast_trainer_shim::Lease;
use holdfast_trainer_shim::link::FromAgent;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::arrivals::{Arrivals, Entrance};
use super::desk::{Desk, SeatId};
use super::events::Events;
use super::ladder::Watched;
use super::outbox::Outbox;
use super::relay::Life;

/// About what a process takes in a report.
const PROCESS_BYTES: usize = 96;

/// From one try to tell deaths to the next.
const DEATHS_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);
/// Deaths that are told in one command, at most.
const DEATHS_PER_COMMAND_MAX: usize = 4_096;

/// One lease, and who hangs on it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tenure {
    pub lease: Lease,
    hall: Arc<Mutex<Hall>>,
    /// Unbounded in type only: a connection dies once, with its lives.
    deaths: mpsc::UnboundedSender<(Life, Cause)>,
    arrivals: Arrivals,
    /// What happens in the job.
    pub events: Events,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// The connections.
#[derive(Debug, Default)]
struct Hall {
    desk: Desk,
    places: BTreeMap<SeatId, Place>,
}

/// A connection, as all others see it.
#[derive(Debug, Clone)]
pub struct Place {
    /// Where its frames go.
    pub outbox: Outbox,
    /// How its processes are doing, those that live. Locked behind the hall.
    pub watched: Arc<Mutex<BTreeMap<Life, Watched>>>,
    /// The process id of its program.
    pub pid: Option<u32>,
}

impl Place {
    /// Nobody is watched for a life that has ended.
    fn forget(&self, ended: &[Ended]) {
        let over = |&(process, incarnation): &Life| {
            // Of several that ended it names the latest alone.
            ended.iter().any(|end| end.process == process && incarnation <= end.incarnation)
        };
        self.watched.lock().retain(|life, _| !over(life));
    }
}

impl Tenure {
    /// Begins; ends with the lease, or at `stop`.
    pub fn begin(lease: Lease, stop: &CancellationToken, tasks: &TaskTracker) -> Tenure {
        let (deaths, dead) = mpsc::unbounded_channel();
        let tenure = Tenure {
            lease: lease.clone(),
            hall: Arc::default(),
            deaths,
            arrivals: Arrivals::default(),
            events: Events::new(
                lease.client().clone(),
                lease.scope().job.clone(),
                stop.clone(),
                tasks.clone(),
            ),
            stop: stop.clone(),
            tasks: tasks.clone(),
        };
        let hall = tenure.hall.clone();
        tasks.spawn(stop.clone().run_until_cancelled_owned(read_feed(lease.clone(), hall)));
        tasks.spawn(stop.clone().run_until_cancelled_owned(tell_deaths(lease, dead)));
        tenure
    }

    /// A connection comes.
    pub fn sit(&self, place: Place) -> SeatId {
        let mut hall = self.hall.lock();
        let seat = hall.desk.sit();
        hall.places.insert(seat, place);
        seat
    }

    /// A connection has gone: its lives that go on are gone, too.
    pub fn leave(&self, seat: SeatId) -> Vec<Life> {
        let mut hall = self.hall.lock();
        hall.places.remove(&seat);
        hall.desk.leave(seat)
    }

    /// How the processes are doing, those that do worst first.
    pub fn report(&self) -> Vec<AgentProcess> {
        let places: Vec<Place> = self.hall.lock().places.values().cloned().collect();
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

    /// Works on who is whose.
    pub fn desk<T>(&self, work: impl FnOnce(&mut Desk) -> T) -> T {
        work(&mut self.hall.lock().desk)
    }

    /// Tells a connection something, with what must come right behind it.
    /// Nothing of the feed comes in between.
    pub fn tell(&self, seat: SeatId, frames: impl FnOnce(&mut Desk) -> Vec<FromAgent>) {
        let Hall { desk, places } = &mut *self.hall.lock();
        let frames = frames(desk);
        if let Some(Place { outbox, .. }) = places.get(&seat) {
            frames.iter().for_each(|frame| outbox.push(frame));
        }
    }

    /// Processes arrive at a round, together with those of other programs.
    pub async fn arrive(
        &self,
        entrance: Entrance,
        arrivals: Vec<Arrival>,
        deadline: Deadline,
    ) -> Result<Answer, Error> {
        let Tenure { lease, stop, tasks, .. } = self;
        let spawn = |carrying| {
            let (lease, stop) = (lease.clone(), stop.clone());
            tasks.spawn(async move {
                tokio::select! {
                    () = carrying => {}
                    () = lease.ended() => {}
                    () = stop.cancelled() => {}
                }
            });
        };
        let client = lease.client().clone();
        self.arrivals.arrive(client, lease.id(), entrance, arrivals, deadline, spawn).await
    }

    /// A task that the agent's end waits for: whoever spawns it ends it.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.tasks.spawn(task)
    }

    /// Lives have ended, and the cluster has to know.
    pub fn died(&self, lives: impl IntoIterator<Item = (Life, Cause)>) {
        for death in lives {
            // Whoever told them has ended with the lease, and they with it.
            let _ = self.deaths.send(death);
        }
    }
}

async fn read_feed(lease: Lease, hall: Arc<Mutex<Hall>>) {
    let mut feed = lease.feed();
    while let Some(piece) = feed.next().await {
        let Hall { desk, places } = &mut *hall.lock();
        for (seat, piece) in desk.hand_out(piece) {
            if let Some(place) = places.get(&seat) {
                place.forget(&piece.ended);
                place.outbox.push(&FromAgent::Feed(piece));
            }
        }
    }
}

/// Those that die while a command is under way are told together in the next.
async fn tell_deaths(lease: Lease, mut dead: mpsc::UnboundedReceiver<(Life, Cause)>) {
    let mut waiting = Vec::new();
    while dead.recv_many(&mut waiting, DEATHS_PER_COMMAND_MAX).await > 0 {
        let end = |((process, incarnation), cause)| ProcessEnd { process, incarnation, cause };
        let ends: Vec<ProcessEnd> = waiting.drain(..).map(end).collect();
        let count = ends.len();
        let command = Command::Process(ProcessCommand::End { lease: lease.id(), ends });
        let telling = async {
            loop {
                match lease.client().propose(command.clone(), Deadline::never()).await {
                    Ok(_) => return info!("told the cluster that {count} processes are gone"),
                    Err(error) => warn!(
                        %error, "the cluster was not told that {count} processes are gone; trying on"
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
