//! The agent as a component: opens the run, listens, serves.
//!
//! | module | holds |
//! | --- | --- |
//! | `handle` | what others see of it, and ask of it |
//! | `opening` | the run: opened, or joined |
//! | `serving` | the ports: taken, opened and closed |
//! | `kept` | what the agent before left with the keeper |
//! | `error` | why an agent does not start, or opens no port |

mod error;
mod handle;
mod kept;
mod opening;
mod serving;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{Name, Scope};
use holdfast_client::{Client, Unclaimed};
use holdfast_trainer_shim::{Lease, Met};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::collector::collect;
use crate::descriptors::Room;
use crate::door::process;
use crate::door::tcpstore::serve::{self, Door};
use crate::keeper::link::{HandedPort, Keeper};
use crate::keeper::state::{Notes, State};
use crate::namespace::Namespace;
use crate::outage;
use crate::parts::Parts;
use crate::ports::{Bound, Listener};
use crate::reporting::Reporter;
use crate::stores::Stores;
pub use error::{Error, Remedy};
pub use handle::Handle;
use handle::Identity;
pub(crate) use handle::Request;
pub use kept::Kept;
use kept::KeptParts;
pub use opening::Wanted;
use serving::{Ports, listen, namespace_of, take_ports, take_ports_again};

/// How often to look whether the leader changed, to log it: a number in memory.
const LEADER_INTERVAL: Duration = Duration::from_millis(100);
/// Calls that are sent again to the same leader are counted for so long before
/// they are logged.
const RESENT_INTERVAL: Duration = Duration::from_secs(1);

/// How long one that is given up waits for the store: a leader that is lost in
/// that moment is followed by another one.
const GIVEN_UP_TIME_MAX: Duration = Duration::from_secs(10);

/// Ports of one agent: each is a namespace of its run.
pub const PORTS_MAX: usize = 64;
/// The first of them may be served at both loopback addresses.
const LISTENERS_MAX: usize = PORTS_MAX + 1;
/// Ports for stores that programs of this host open for themselves.
const STORE_PORTS_MAX: usize = 1024;
/// Ports asked for and not opened yet.
const REQUESTS_MAX: usize = 16;

/// What an agent serves, and where it listens.
#[derive(Debug, Clone)]
pub struct Options {
    /// The store: endpoints and the client's timings.
    pub store: holdfast_client::Options,
    /// Name of the job.
    pub job: Name,
    /// The run to open or join.
    pub run: Wanted,
    /// Opening it may end a run that other agents hold.
    pub takeover: bool,
    /// Where to listen for TCPStore clients, each port a namespace of its own;
    /// port 0 takes a free one, and so does an empty list.
    pub tcpstore: Vec<SocketAddr>,
    /// How long to look for the store at the start.
    pub connect_deadline: Duration,
    /// How long the keys of an attempt, or of a namespace that was opened by
    /// name, stay readable once it is over.
    pub attempts_kept: Duration,
    /// Options of the door that speaks TCPStore's protocol.
    pub door: serve::Options,
    /// TTL of the lease with which the agent holds its run, for this host and its
    /// processes with the library. It is given back for good at the end: when the
    /// last host of the run does so, the run ends.
    pub lease_ttl: Duration,
}

/// An agent whose run is open and whose ports accept connections.
#[derive(Debug)]
pub struct Agent {
    client: Client,
    listeners: Vec<(Listener, Namespace)>,
    /// Ports of the agent before, with their connections.
    handed: Vec<HandedPort>,
    keeper: Option<Keeper>,
    requests: mpsc::Receiver<Request>,
    scope: Scope,
    attempts_kept: Duration,
    store_lost_deadline: Duration,
    door: Door,
    handle: Handle,
}

/// As many as a host with many ranks may open: a bound below that is said at the start.
const CONNECTIONS_OF_A_LARGE_HOST: usize = 1024;

impl Agent {
    /// Takes the ports, opens the run, and listens, in this order: an agent that cannot serve ends
    /// no run, and no client connects before the agent can answer. With a keeper it goes on where
    /// the agent before it was, if possible.
    pub async fn open(mut options: Options, kept: Option<Kept>) -> Result<Agent, Error> {
        let host = host_name();
        let limits = &mut options.door.limits;
        if let Some((max, text)) = Room::of_process().lowers(limits.connections_max, kept.is_some())
        {
            limits.connections_max = max;
            // The agent before has said it.
            if max < CONNECTIONS_OF_A_LARGE_HOST && !kept.as_ref().is_some_and(Kept::goes_on) {
                warn!("{text}");
            }
        }
        let before = kept.as_ref().and_then(|kept| kept.other.clone());
        let of_processes = process::Options { host: host.clone(), lease_ttl: options.lease_ttl };
        if let Some(state) = kept.as_ref().and_then(|kept| kept.other.as_ref()) {
            options.run = Wanted::Joined { run: state.run.clone(), lease: Some(state.lease.id) };
            options.tcpstore = state.addresses.clone();
        }
        let bound = match &kept {
            Some(Kept { same: Some(_), .. }) => Vec::new(),
            Some(Kept { other: Some(_), .. }) => take_ports_again(&options.tcpstore).await?,
            _ => take_ports(&options.tcpstore)?,
        };
        let (client, unclaimed, parts) = match kept {
            Some(kept) => {
                let (client, unclaimed, parts) = kept.client(options.store.clone());
                (client, unclaimed, Some(parts))
            }
            None => (Client::new(options.store.clone()), Unclaimed::default(), None),
        };
        let (keeper, notes, same, handed) = match parts {
            Some(KeptParts { keeper, notes, same, ports }) => (Some(keeper), notes, same, ports),
            None => (None, Notes::default(), None, Vec::new()),
        };
        let begun = match same {
            Some(state) => {
                let scope = Scope { job: options.job.clone(), run: Some(state.run.clone()) };
                let lease = Lease::resume(client.clone(), scope, host.clone(), state.lease);
                Begun { state, lease, listeners: Vec::new() }
            }
            None => {
                let begun =
                    Begun::anew(&client, &options, &of_processes, bound, keeper.as_ref()).await;
                match begun {
                    Ok(begun) => begun.after(before),
                    Err(error) => {
                        client.close().await;
                        return Err(error);
                    }
                }
            }
        };
        notes.begin(begun.state.clone());
        let Begun { state, lease, listeners } = begun;
        let met = state.met();
        let scope = Scope { job: options.job.clone(), run: Some(met.run.clone()) };
        let store_lost_deadline = options.door.store_lost_deadline;
        let known = (state.attempts.clone(), state.namespaces.clone());
        let door =
            Door::going_on(client.clone(), scope.clone(), options.door, unclaimed, notes.clone());
        door.restore_attempts(known.0, known.1);
        let processes =
            process::Door::new(client.clone(), scope.clone(), of_processes, lease, notes);
        let attempts_kept = options.attempts_kept;
        let (sender, requests) = mpsc::channel(REQUESTS_MAX);
        let State { id, addresses, stores: noted, .. } = state;
        let stores = Stores::new(
            &client,
            scope.clone(),
            (id.clone(), host.clone()),
            attempts_kept,
            processes.clone(),
            door.handle(),
            sender.clone(),
        );
        stores.restore(noted);
        let parts = Parts::new(
            &client,
            scope.clone(),
            (id.clone(), host.clone()),
            processes.clone(),
            options.lease_ttl,
        );
        let handle = Handle {
            identity: Arc::new(Identity { addresses, job: options.job, met, host, id }),
            door: door.handle(),
            processes,
            stores,
            parts,
            client: client.clone(),
            requests: sender,
            keeper: keeper.clone(),
        };
        Ok(Agent {
            client,
            listeners,
            handed,
            keeper,
            requests,
            scope,
            attempts_kept,
            store_lost_deadline,
            door,
            handle,
        })
    }

    /// As `open`, unless `given_up` comes first: then this host holds the run no
    /// longer, and no call is answered. An answer of the store that is on its way
    /// is awaited for a while: no process would give back a lease that was just
    /// granted, and it would keep the run open.
    pub async fn open_unless(
        options: Options,
        kept: Option<Kept>,
        given_up: impl Future<Output = ()>,
    ) -> Result<Option<Agent>, Error> {
        let job = options.job.clone();
        let mut opening = std::pin::pin!(Agent::open(options, kept));
        tokio::select! {
            opened = &mut opening => return opened.map(Some),
            () = given_up => {}
        }
        match tokio::time::timeout(GIVEN_UP_TIME_MAX, opening).await {
            Ok(Ok(agent)) => agent.close().await,
            Ok(Err(error)) => debug!(%error, "nothing was opened that would have to be closed"),
            Err(_) => warn!(
                "the store has not answered: if it grants this host a lease after all, the run of \
                 job {job} stays open; `holdfast --job {job} run list` shows it"
            ),
        }
        Ok(None)
    }

    /// A view of this agent.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Gives back what it has opened, without serving it.
    async fn close(self) {
        let Agent { client, handle, .. } = self;
        handle.leave().await;
        client.close().await;
    }

    /// Serves until `shutdown`, or drained to the last, then closes all
    /// connections and the session.
    pub async fn run(self, shutdown: CancellationToken) {
        let Agent {
            client,
            listeners,
            handed,
            keeper,
            mut requests,
            scope,
            attempts_kept,
            store_lost_deadline,
            door,
            handle,
        } = self;
        let outages = outage::watch(client.clone(), handle.clone(), store_lost_deadline);
        let collecting = collect(client.clone(), scope, handle.clone(), attempts_kept);
        let mut ports = Ports::new(door, shutdown.clone(), keeper.clone());
        if let Some(keeper) = &keeper {
            keeper.begins();
        }
        ports.restore(handed);
        if let Some(keeper) = &keeper {
            keeper.is_up();
        }
        for ((listener, namespace), address) in listeners.into_iter().zip(handle.addresses()) {
            ports.serve(listener, *address, namespace);
        }
        let serving = async {
            while !ports.is_empty() {
                tokio::select! {
                    () = shutdown.cancelled() => break,
                    () = ports.one_ends() => {}
                    Some(request) = requests.recv() => match request {
                        // The caller may be gone; the ports stay.
                        Request::OpenAt { addresses, answer } => {
                            let _ = answer.send(ports.add_at(&addresses, handle.addresses()));
                        }
                        Request::Open { name, answer } => {
                            let _ = answer.send(ports.add_named(name));
                        }
                        Request::Close { name, done } => {
                            ports.close(&name);
                            let _ = done.send(());
                        }
                        Request::OpenStore { namespace, answer } => {
                            let _ = answer.send(ports.add_store(&namespace));
                        }
                        Request::CloseStore { name } => ports.close_store(&name),
                        Request::Served { answer } => {
                            let _ = answer.send(ports.all());
                        }
                    }
                }
            }
            // A caller that asks from here on learns at once that no answer will come.
            requests.close();
            while requests.try_recv().is_ok() {}
            // The others end by themselves: each has the same token.
            while !ports.is_empty() {
                ports.one_ends().await;
            }
            // Drained to the last means these, too.
            let gone = handle.processes.all_gone();
            shutdown.run_until_cancelled(gone).await;
        };
        let mut reporter = Reporter::new(client.clone(), handle.clone());
        tokio::select! {
            () = serving => {}
            () = forever(collecting) => {}
            () = forever(handle.processes.keep()) => {}
            () = handle.stores.keep() => {}
            () = handle.parts.keep() => {}
            never = log_leaders(&client) => match never {},
            never = reporter.run() => match never {},
            never = outages => match never {},
        }
        reporter.last_words();
        drop(reporter);
        handle.leave().await;
        drop(handle);
        client.close().await;
    }
}

/// An agent that has its run.
struct Begun {
    state: State,
    lease: Lease,
    listeners: Vec<(Listener, Namespace)>,
}

impl Begun {
    /// Opens the run, and listens.
    async fn anew(
        client: &Client,
        options: &Options,
        of_processes: &process::Options,
        bound: Vec<Bound>,
        keeper: Option<&Keeper>,
    ) -> Result<Begun, Error> {
        let addresses: Vec<SocketAddr> = bound.iter().map(Bound::address).collect();
        let (met, lease) = opening::run(client, options, of_processes).await?;
        let listening = bound.into_iter().map(|bound| {
            let namespace = namespace_of(bound.address(), &addresses);
            Ok((listen(bound, &namespace, false, keeper)?, namespace))
        });
        let listeners = match listening.collect::<Result<Vec<_>, Error>>() {
            Ok(listeners) => listeners,
            Err(error) => {
                lease.leave().await;
                return Err(error);
            }
        };
        let Met { run, opened, ended, others } = met;
        let state = State {
            // Host names and process ids are the same in many containers.
            id: format!("{:016x}", rand::random::<u64>()),
            run,
            opened,
            ended,
            others,
            lease: lease.terms(),
            addresses,
            has_programs: false,
            stores: Default::default(),
            attempts: None,
            namespaces: Vec::new(),
        };
        Ok(Begun { state, lease, listeners })
    }

    /// The same, after an agent of this run whose connections are closed: its ranks may come again.
    fn after(mut self, before: Option<State>) -> Begun {
        if let Some(before) = before {
            (self.state.attempts, self.state.namespaces) = (before.attempts, before.namespaces);
        }
        self
    }
}

/// A task that ends early does not end the rest.
async fn forever(task: impl Future<Output = ()>) {
    task.await;
    std::future::pending().await
}

/// Logs each change of the leader, and how many calls had to be sent again.
async fn log_leaders(client: &Client) -> std::convert::Infallible {
    let (mut before, mut resent_since) = (client.statistics(), None);
    loop {
        tokio::time::sleep(LEADER_INTERVAL).await;
        let mut now = client.statistics();
        let resent = now.resent - before.resent;
        let changed = now.leader.filter(|leader| before.leader != Some(*leader));
        if resent > 0 && resent_since.is_none() {
            resent_since = Some(Instant::now());
        }
        let counted = resent_since.is_some_and(|since| since.elapsed() >= RESENT_INTERVAL);
        match changed {
            Some(leader) => {
                // Calls are sent again once there is a connection to it.
                tokio::time::sleep(LEADER_INTERVAL).await;
                now = client.statistics();
                let resent = now.resent - before.resent;
                info!("leader changed to node {leader}; {resent} calls resent");
            }
            // Until a leader is known, they may belong to its change.
            None if counted && now.leader.is_some() => {
                info!("{resent} calls resent to the same leader");
            }
            None => continue,
        }
        (before, resent_since) = (now, None);
    }
}

/// Name of this host; empty where the system does not say.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
