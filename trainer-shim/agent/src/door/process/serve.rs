//! The door itself: the lease of this host, taken when the first program comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_api::{AgentProcess, LeaseId, Scope};
use holdfast_client::Client;
use holdfast_trainer_shim::link::Wanted;
use holdfast_trainer_shim::{Error, HostOptions, Lease};
use parking_lot::Mutex;
use tokio::io::BufReader;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::connection;
use super::peer::Peer;
use super::tenure::Tenure;

/// Programs at one time; one more is refused.
const PROGRAMS_MAX: usize = 1_024;
/// How long the connections may take to end when the agent does.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);
/// From one try to get the lease back to the next.
const KEEP_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for a lease.
const GRANT_TIME_MAX: Duration = Duration::from_secs(60);

/// How the door holds its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The name of this host.
    pub host: String,
    /// The TTL of its lease.
    pub lease_ttl: Duration,
    /// Its lease is held from the start to the end, whoever comes, and given
    /// back for good then: the last one's ends the run.
    pub holds_run: bool,
}

impl Options {
    /// How a lease is asked for.
    pub fn of_lease(&self) -> HostOptions {
        let Options { host, lease_ttl, .. } = self.clone();
        HostOptions { host, ttl: lease_ttl, patience: GRANT_TIME_MAX, open_run: false }
    }
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
    tenure: Mutex<Option<Tenure>>,
    /// Held by whoever looks after the lease: takes one, or gives it back.
    granting: tokio::sync::Mutex<()>,
    programs: Arc<Semaphore>,
    programs_ever: AtomicUsize,
    /// No program is taken any more.
    draining: AtomicBool,
    /// Connections end, and no lease is taken any more.
    stop: CancellationToken,
    connections: TaskTracker,
    tasks: TaskTracker,
}

impl Door {
    /// A door of this run, with the lease that the host has already. Without
    /// one it costs nothing until somebody comes.
    pub fn new(client: Client, scope: Scope, options: Options, lease: Option<Lease>) -> Door {
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let tenure = lease.map(|lease| Tenure::begin(lease, &stop, &tasks));
        let shared = Shared {
            client,
            scope,
            options,
            tenure: Mutex::new(tenure),
            granting: tokio::sync::Mutex::default(),
            programs: Arc::new(Semaphore::new(PROGRAMS_MAX)),
            programs_ever: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            stop,
            connections: TaskTracker::new(),
            tasks,
        };
        Door { shared: Arc::new(shared) }
    }

    /// Serves a program that asked for it with a line, until its end. `pid` is
    /// its process id, as the kernel tells it.
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
        match self.admit(wanted).await {
            Ok((tenure, _place)) => {
                self.shared.programs_ever.fetch_add(1, Ordering::Relaxed);
                connection::run(tenure, reader, writer, peer, stop).await;
            }
            Err(reason) => {
                info!("a program was refused: {reason}");
                connection::refuse(&mut writer, reason).await;
            }
        }
    }

    async fn admit(
        &self,
        wanted: &Wanted,
    ) -> Result<(Tenure, tokio::sync::OwnedSemaphorePermit), String> {
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
                "it serves {PROGRAMS_MAX} programs already, which is as many as it may; one program \
                 can hold many processes on one connection, and `holdfast --job {} agent list` \
                 shows which are here",
                scope.job
            )
        })?;
        let tenure = self.tenure().await.map_err(|error| error.to_string())?;
        Ok((tenure, place))
    }

    /// The present lease, or a new one.
    async fn tenure(&self) -> Result<Tenure, Error> {
        let Shared { client, scope, options, stop, tasks, tenure, granting, .. } =
            self.shared.as_ref();
        let _turn = granting.lock().await;
        let present = tenure.lock().clone();
        if let Some(tenure) = present {
            // After a long silence of the store it may have ended.
            let holds = stop.run_until_cancelled(tenure.lease.certainly_valid()).await;
            if holds.ok_or(Error::Closed)? {
                return Ok(tenure);
            }
        }
        let granting = Lease::grant(client.clone(), scope.clone(), options.of_lease());
        let lease = tokio::select! {
            lease = granting => lease?,
            () = stop.cancelled() => return Err(Error::Closed),
        };
        info!("took lease {} for this host, {:?} long", lease.id(), lease.ttl());
        let begun = Tenure::begin(lease, stop, tasks);
        *tenure.lock() = Some(begun.clone());
        Ok(begun)
    }

    /// The lease with which this host holds the run, if it does.
    pub async fn held(&self) -> Option<LeaseId> {
        let Shared { options, tenure, granting, .. } = self.shared.as_ref();
        let _turn = granting.lock().await;
        let tenure = tenure.lock();
        tenure.as_ref().filter(|_| options.holds_run).map(|tenure| tenure.lease.id())
    }

    /// Keeps the run for as long as it is awaited, if this host holds it: a
    /// lease that expired is taken anew while the run goes on.
    pub async fn keep(&self) {
        if !self.shared.options.holds_run {
            return;
        }
        loop {
            match self.tenure().await {
                Ok(tenure) => tenure.lease.ended().await,
                Err(error) if error.is_retryable() => tokio::time::sleep(KEEP_PAUSE).await,
                Err(error) => {
                    warn!("this host no longer holds the run: {error}");
                    return;
                }
            }
        }
    }

    /// Programs that were ever let in.
    pub fn programs_ever(&self) -> usize {
        self.shared.programs_ever.load(Ordering::Relaxed)
    }

    /// How the processes are doing.
    pub fn report(&self) -> Vec<AgentProcess> {
        let present = self.shared.tenure.lock().clone();
        present.map(|tenure| tenure.report()).unwrap_or_default()
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

    /// Ends all connections and gives the lease back: whatever is still
    /// registered ends with it.
    pub async fn close(&self) {
        let Shared { tenure, granting, stop, connections, tasks, options, .. } =
            self.shared.as_ref();
        stop.cancel();
        connections.close();
        tasks.close();
        // What a program said before is handled first: who left has left.
        let _ = tokio::time::timeout(CLOSE_TIME_MAX, connections.wait()).await;
        let turn = granting.lock().await;
        let last = tenure.lock().take();
        if let Some(tenure) = last {
            match options.holds_run {
                true => tenure.lease.leave().await,
                false => tenure.lease.close().await,
            }
        }
        drop(turn);
        tasks.wait().await;
    }
}
