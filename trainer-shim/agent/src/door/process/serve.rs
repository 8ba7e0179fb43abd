//! The door itself: the lease with which this host holds its run, from start to
//! end, with or without programs. It is given back at the end; the last lease's
//! end ends the run.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use holdfast_api::{AgentProcess, Code, LeaseId, Scope};
use holdfast_client::Client;
use holdfast_trainer_shim::link::Wanted;
use holdfast_trainer_shim::{Error, HostOptions, Lease};
use parking_lot::Mutex;
use tokio::io::BufReader;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::lease_holder::LeaseHolder;
use super::peer::Peer;
use super::room::Room;
use super::{connection, writing};
use crate::complaints::Complaints;
use crate::keeper::state::Notes;

/// Programs at one time; one more is refused.
const PROGRAMS_MAX: usize = 1_024;
/// How long the connections may take to end when the agent does.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);
const KEEP_PAUSE: Duration = Duration::from_secs(1);
const GRANT_TIME_MAX: Duration = Duration::from_secs(60);

/// How the door holds its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The name of this host.
    pub host: String,
    /// The TTL of its lease.
    pub lease_ttl: Duration,
}

impl Options {
    /// Terms of the lease that is asked for.
    pub fn of_lease(&self) -> HostOptions {
        let Options { host, lease_ttl, .. } = self.clone();
        HostOptions { host, ttl: lease_ttl, patience: GRANT_TIME_MAX, open_run: false }
    }
}

/// Whether the run can be held no longer, by any host.
fn is_over(error: &Error) -> bool {
    matches!(error.code(), Code::Fenced | Code::RunNotFound | Code::JobNotFound)
}

/// The door. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Door {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    scope: Scope,
    options: Options,
    notes: Notes,
    room: Room,
    lease_holder: Mutex<Option<LeaseHolder>>,
    /// Held while a task takes the lease or gives it back.
    granting: tokio::sync::Mutex<()>,
    /// Why the store does not answer; `None` while it does.
    outage: watch::Sender<Option<String>>,
    programs: Arc<Semaphore>,
    programs_ever: AtomicUsize,
    /// Log lines about programs that are refused.
    complaints: Mutex<Complaints>,
    /// No program is taken any more.
    draining: AtomicBool,
    /// Why this host does not hold the run any more.
    lost: OnceLock<String>,
    /// Connections end, and no lease is taken any more.
    stop: CancellationToken,
    connections: TaskTracker,
    tasks: TaskTracker,
}

impl Door {
    /// A door of this run, with the lease that the host has in it.
    pub fn new(client: Client, scope: Scope, options: Options, lease: Lease, notes: Notes) -> Door {
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let room = Room::default();
        let lease_holder = Some(LeaseHolder::begin(lease, room.clone(), &stop, &tasks));
        let shared = Shared {
            client,
            scope,
            options,
            notes,
            room,
            lease_holder: Mutex::new(lease_holder),
            granting: tokio::sync::Mutex::default(),
            outage: watch::Sender::new(None),
            programs: Arc::new(Semaphore::new(PROGRAMS_MAX)),
            programs_ever: AtomicUsize::new(0),
            complaints: Mutex::default(),
            draining: AtomicBool::new(false),
            lost: OnceLock::new(),
            stop,
            connections: TaskTracker::new(),
            tasks,
        };
        Door { shared: Arc::new(shared) }
    }

    /// Serves a program that asked for it with a line, until its end. `pid` is
    /// its process id, as the kernel reports it.
    pub async fn serve(
        &self,
        reader: BufReader<OwnedReadHalf>,
        mut writer: OwnedWriteHalf,
        pid: Option<i32>,
        wanted: &Wanted,
    ) {
        let Shared { stop, connections, .. } = self.shared.as_ref();
        let _present = connections.token();
        // Watched before anything can be registered: the number of a program
        // that has ended may be given to another one.
        let peer = Peer::of(writer.as_ref(), pid);
        let outage = wanted.hears_outages.then(|| self.shared.outage.subscribe());
        let mut admitting = std::pin::pin!(self.admit(wanted));
        let admitted = tokio::select! {
            biased;
            admitted = &mut admitting => admitted,
            never = writing::tell_why_not(&mut writer, outage.clone()) => match never {},
        };
        match admitted {
            Ok((lease_holder, _place)) => {
                self.shared.programs_ever.fetch_add(1, Ordering::Relaxed);
                self.shared.notes.has_programs();
                connection::run(lease_holder, reader, (writer, outage), peer, stop).await;
            }
            Err(reason) => {
                let may_complain = self.shared.complaints.lock().admit(Instant::now());
                if let Some(left_out) = may_complain {
                    info!(left_out, "a program was refused: {reason}");
                }
                writing::refuse(&mut writer, reason).await;
            }
        }
    }

    async fn admit(
        &self,
        wanted: &Wanted,
    ) -> Result<(LeaseHolder, tokio::sync::OwnedSemaphorePermit), String> {
        let Shared { scope, programs, draining, .. } = self.shared.as_ref();
        if draining.load(Ordering::Relaxed) {
            return Err("it drains, and takes no program any more".to_owned());
        }
        let other_job = wanted.job.as_ref().is_some_and(|job| *job != scope.job);
        if other_job || wanted.run.is_some() && wanted.run != scope.run {
            let meant = Scope {
                job: wanted.job.clone().unwrap_or_else(|| scope.job.clone()),
                run: wanted.run.clone(),
            };
            return Err(format!(
                "it serves {scope}, and the program wants {meant}; name the store, so that the \
                 program takes a lease of its own, or start it under an agent of that run"
            ));
        }
        let place = programs.clone().try_acquire_owned().map_err(|_| {
            format!(
                "it serves {PROGRAMS_MAX} programs already, which is its limit; one program \
                 can hold many processes on one connection, and `holdfast --job {} agent list` \
                 shows which are here",
                scope.job
            )
        })?;
        let lease_holder = self.lease_holder().await.map_err(|error| error.to_string())?;
        Ok((lease_holder, place))
    }

    /// The present lease, or a new one.
    async fn lease_holder(&self) -> Result<LeaseHolder, Error> {
        let Shared { client, scope, options, room, stop, tasks, lease_holder, granting, .. } =
            self.shared.as_ref();
        let _turn = granting.lock().await;
        let present = lease_holder.lock().clone();
        if let Some(lease_holder) = present {
            // After a long silence of the store it may have ended.
            let holds = stop.run_until_cancelled(lease_holder.lease.certainly_valid()).await;
            if holds.ok_or(Error::Closed)? {
                return Ok(lease_holder);
            }
        }
        let granting = Lease::grant(client.clone(), scope.clone(), options.of_lease());
        let lease = tokio::select! {
            lease = granting => lease?,
            () = stop.cancelled() => return Err(Error::Closed),
        };
        info!("took lease {} for this host, {:?} long", lease.id(), lease.ttl());
        self.shared.notes.holds(lease.terms());
        let begun = LeaseHolder::begin(lease, room.clone(), stop, tasks);
        *lease_holder.lock() = Some(begun.clone());
        Ok(begun)
    }

    /// The lease with which this host holds the run, if it does.
    pub async fn held(&self) -> Option<LeaseId> {
        let Shared { lease_holder, granting, .. } = self.shared.as_ref();
        let _turn = granting.lock().await;
        let lease_holder = lease_holder.lock();
        lease_holder.as_ref().map(|lease_holder| lease_holder.lease.id())
    }

    /// Keeps the run while it is polled: a lease that expired is taken anew while
    /// the run goes on.
    pub async fn keep(&self) {
        loop {
            match self.lease_holder().await {
                Ok(lease_holder) => lease_holder.lease.ended().await,
                Err(error) if !is_over(&error) => tokio::time::sleep(KEEP_PAUSE).await,
                Err(error) => {
                    let reason = self.shared.lost.get_or_init(|| error.to_string());
                    warn!("this host no longer holds the run: {reason}");
                    return;
                }
            }
        }
    }

    /// Sends the programs the reason why the store does not answer, or, with `None`, that it
    /// answers again.
    pub fn tell_outage(&self, cause: Option<String>) {
        self.shared.outage.send_replace(cause);
    }

    /// Why this host does not hold the run any more; `None` while it does.
    pub fn lost(&self) -> Option<&str> {
        self.shared.lost.get().map(String::as_str)
    }

    /// Where it is written what an agent that follows has to know.
    pub(crate) fn notes(&self) -> &Notes {
        &self.shared.notes
    }

    /// Programs that were ever let in.
    pub fn programs_ever(&self) -> usize {
        self.shared.programs_ever.load(Ordering::Relaxed)
    }

    /// How the processes are doing.
    pub fn report(&self) -> Vec<AgentProcess> {
        let present = self.shared.lease_holder.lock().clone();
        present.map(|lease_holder| lease_holder.report()).unwrap_or_default()
    }

    /// Takes no program from now on.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
    }

    /// Returns when no program is connected.
    pub async fn all_gone(&self) {
        let all = u32::try_from(PROGRAMS_MAX).unwrap_or(u32::MAX);
        let _all = self.shared.programs.acquire_many(all).await;
    }

    /// Ends all connections and gives the lease back: processes still registered
    /// end with it.
    pub async fn close(&self) {
        let Shared { lease_holder, granting, stop, connections, tasks, .. } = self.shared.as_ref();
        stop.cancel();
        connections.close();
        tasks.close();
        // Messages that a program sent before are handled first: a process that
        // has left stays left.
        let _ = tokio::time::timeout(CLOSE_TIME_MAX, connections.wait()).await;
        let turn = granting.lock().await;
        let last = lease_holder.lock().take();
        if let Some(lease_holder) = last {
            lease_holder.tell_last_exits(CLOSE_TIME_MAX).await;
            lease_holder.lease.leave().await;
        }
        drop(turn);
        tasks.wait().await;
    }
}
