//! What others see of an agent, and ask of it.

use std::net::SocketAddr;
use std::sync::Arc;

use holdfast_api::{AgentReport, Exit, Name};
use holdfast_client::Client;
use holdfast_trainer_shim::{LEAVE_TIME_MAX, Met};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Error;
use crate::door::process;
use crate::door::tcpstore::presence::Presence;
use crate::door::tcpstore::serve;
use crate::keeper::link::Keeper;
use crate::namespace::Namespace;
use crate::outage;
use crate::parts::Parts;
use crate::roster::Roster;
use crate::stores::Stores;

/// A view of an agent; cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    pub(super) identity: Arc<Identity>,
    pub(super) door: serve::Handle,
    pub(super) processes: process::Door,
    pub(super) stores: Stores,
    pub(super) parts: Parts,
    pub(super) client: Client,
    pub(super) requests: mpsc::Sender<Request>,
    pub(super) keeper: Option<Keeper>,
}

#[derive(Debug)]
pub(super) struct Identity {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) job: Name,
    pub(super) met: Met,
    pub(super) host: String,
    /// Distinguishes this process from all others.
    pub(super) id: String,
}

/// Requests to a running agent.
#[derive(Debug)]
pub(crate) enum Request {
    /// Ports at these addresses.
    OpenAt { addresses: Vec<SocketAddr>, answer: oneshot::Sender<Result<(), Error>> },
    /// A port under this name.
    Open { name: Name, answer: oneshot::Sender<Result<SocketAddr, Error>> },
    /// The namespace of this name is over.
    Close { name: Name, done: oneshot::Sender<()> },
    /// A port for one side of a program's store.
    OpenStore { namespace: Namespace, answer: oneshot::Sender<Result<SocketAddr, Error>> },
    /// No client uses the program's store of this name any more.
    CloseStore { name: Name },
    /// Ports served, with their namespaces.
    Served { answer: oneshot::Sender<Vec<(SocketAddr, Namespace)>> },
}

impl Handle {
    /// Where TCPStore clients connect: the first port, whose keys are the
    /// run's.
    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses()[0]
    }

    /// All ports that were there from the start; at least one.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.identity.addresses
    }

    /// Job that the agent serves.
    pub fn job(&self) -> &Name {
        &self.identity.job
    }

    /// The run that was opened or joined.
    pub fn run(&self) -> &Name {
        &self.identity.met.run
    }

    /// Whether the run was opened or joined at the start.
    pub(crate) fn met(&self) -> &Met {
        &self.identity.met
    }

    /// TCPStore connections open now.
    pub fn connections(&self) -> usize {
        self.door.connections()
    }

    /// TCPStore clients that ever came.
    pub(crate) fn clients_ever(&self) -> usize {
        self.door.clients_ever() + self.processes.programs_ever()
    }

    /// Processes that are TCPStore clients or were; `None` if some are unknown.
    pub(crate) async fn programs(&self) -> Option<Vec<u32>> {
        if self.processes.programs_ever() > 0 {
            return None;
        }
        self.roster().look_for_processes().await;
        self.roster().programs()
    }

    /// Takes no new trainers from now on and ends when the last has gone; a
    /// process that is connected may connect again, at any port.
    pub fn drain(&self) {
        self.processes.drain();
        self.door.drain();
    }

    /// Why nothing is served any more, if the run has ended.
    pub(crate) fn fenced(&self) -> Option<&str> {
        self.door.fenced().or_else(|| self.processes.lost())
    }

    pub(crate) fn roster(&self) -> &Roster {
        self.door.roster()
    }

    /// Records the end of a command that this agent served, as reported by the
    /// process that started it.
    pub(crate) fn command_ended(&self, pid: u32, rank: Option<u64>, exit: Exit) {
        self.roster().command_ended(pid, rank, exit);
    }

    /// The agent's report about itself, without its connections.
    pub(crate) fn introduction(&self) -> AgentReport {
        AgentReport {
            id: self.identity.id.clone(),
            host: self.identity.host.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            job: self.identity.job.clone(),
            run: self.run().clone(),
            listens: self.address().to_string(),
            draining: self.door.is_draining(),
            clients: Vec::new(),
            clients_left_out: 0,
            waits: Vec::new(),
            waits_left_out: 0,
            processes: Vec::new(),
            ended: Vec::new(),
            tells_quiet: true,
        }
    }

    /// The keeper, if there is one: then connections outlive this process.
    pub(crate) fn keeper(&self) -> Option<&Keeper> {
        self.keeper.as_ref()
    }

    /// Opens those of these ports that are not open yet, each under the
    /// namespace of its number: all, or none of them.
    pub(crate) async fn open_at(&self, addresses: Vec<SocketAddr>) -> Result<(), Error> {
        self.ask(|answer| Request::OpenAt { addresses, answer }).await
    }

    /// Opens any free loopback port under a name of its own, or answers the one
    /// that serves that already.
    pub(crate) async fn open(&self, name: Name) -> Result<SocketAddr, Error> {
        self.ask(|answer| Request::Open { name, answer }).await
    }

    /// All ports that are open now.
    pub(crate) async fn ports(&self) -> Vec<u16> {
        let (answer, answered) = oneshot::channel();
        // A stopping agent serves none.
        let _ = self.requests.send(Request::Served { answer }).await;
        let served = answered.await.unwrap_or_default();
        served.into_iter().map(|(address, _)| address.port()).collect()
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Request,
    ) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        // A refusal to take it and a dropped answer both mean that it stops.
        let _ = self.requests.send(request(answer)).await;
        answered.await.unwrap_or(Err(Error::Stopping))
    }

    /// Closes the port that was opened by this name, if there is one.
    pub(crate) async fn close(&self, name: Name) {
        let (done, closed) = oneshot::channel();
        // An agent that stops closes them all.
        let _ = self.requests.send(Request::Close { name, done }).await;
        let _ = closed.await;
    }

    /// Leaves the run for good; gives up if the store does not answer.
    pub(super) async fn leave(&self) {
        let began = Instant::now();
        let (job, run) = (self.job(), self.run());
        let meanwhile = || {
            let left = LEAVE_TIME_MAX.saturating_sub(began.elapsed()).as_secs();
            format!(
                "waiting up to {left} s to tell it that this host leaves run {run} of job {job}"
            )
        };
        outage::during(&self.client, meanwhile, self.processes.close()).await;
    }

    /// Stores that programs open for themselves.
    pub(crate) fn stores(&self) -> &Stores {
        &self.stores
    }

    /// Parts of the launch that commands of this host are.
    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// The door for programs with the library.
    pub(crate) fn processes(&self) -> &process::Door {
        &self.processes
    }

    pub(crate) fn presence(&self) -> &Presence {
        self.door.presence()
    }
}
