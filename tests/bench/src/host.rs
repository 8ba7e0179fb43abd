//! A host as its agent has it: a connection to the cluster, a lease, and
//! processes that wait in rounds.

use std::time::Duration;

use anyhow::{Context, bail};
use holdfast_api::{
    Arrival, ArrivalAnswer, Blob, Cause, Code, Command, Feed, Incarnation, LeaseCommand, LeaseId,
    LeaseOutcome, Nonce, Outcome, ProcessCommand, ProcessEnd, ProcessId, ProcessOutcome, Role,
    RoundCommand, RoundOutcome, Scope, Terms,
};
use holdfast_client::{Client, Deadline};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::load::{OPERATION_TIME_MAX, soon};

/// Processes of one host.
pub const PROCESSES: u32 = 8;
/// Hosts that join at one time.
const JOINING_MAX: usize = 64;
/// Renewals in the time of one TTL, as of a real agent.
const RENEWALS_PER_TTL: u32 = 4;

/// A host with its lease, which is renewed until this is dropped.
#[derive(Debug)]
pub struct Host {
    client: Client,
    lease: LeaseId,
    ttl: Duration,
    processes: Vec<(ProcessId, Incarnation)>,
    call: u64,
    feeds: mpsc::UnboundedReceiver<Feed>,
    /// Bytes of all outcomes that it got, as they are encoded on the wire.
    pub told_bytes: usize,
    /// The lease is renewed, and its feed read.
    tasks: JoinSet<()>,
}

impl Host {
    /// Gets a lease, and registers its processes.
    async fn join(
        client: Client,
        scope: Scope,
        wanted: Vec<ProcessId>,
        ttl: Duration,
    ) -> anyhow::Result<Host> {
        let ttl_ms = u64::try_from(ttl.as_millis())?;
        let nonce = || Nonce(rand::random(), rand::random());
        let host = format!("host-of-{}", wanted.first().context("a host has processes")?);
        let grant =
            LeaseCommand::Grant { scope, nonce: nonce(), host, ttl_ms, store_lost_ms_max: None };
        let grant = Command::Lease(grant);
        let granted = loop {
            match client.propose(grant.clone(), Deadline::never()).await {
                Ok(answer) => break answer.outcome,
                // A newly founded cluster is not at this level yet.
                Err(error) if error.code() == Code::FeatureLevel => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(error) => return Err(error.into()),
            }
        };
        let Outcome::Lease(LeaseOutcome::Granted { lease, ttl_ms, .. }) = granted else {
            bail!("no lease, but {granted:?}");
        };
        let mut registering = JoinSet::new();
        for process in wanted {
            let register = ProcessCommand::Register {
                lease,
                process: Some(process),
                nonce: nonce(),
                replaces: 0,
                takeover: false,
                role: Role::Active,
                labels: Default::default(),
                policy: Default::default(),
            };
            let client = client.clone();
            registering.spawn(async move {
                let answer = client.propose(Command::Process(register), Deadline::never()).await?;
                match answer.outcome {
                    Outcome::Process(ProcessOutcome::Registered {
                        process, incarnation, ..
                    }) => Ok((process, incarnation)),
                    other => bail!("no registration, but {other:?}"),
                }
            });
        }
        let mut processes = Vec::new();
        while let Some(registered) = registering.join_next().await {
            processes.push(registered??);
        }
        processes.sort_unstable();
        let ttl = Duration::from_millis(ttl_ms);
        let (give, feeds) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(renew(client.clone(), lease, ttl / RENEWALS_PER_TTL));
        tasks.spawn(read_feed(client.clone(), lease, give));
        Ok(Host { client, lease, ttl, processes, call: 0, feeds, told_bytes: 0, tasks })
    }

    /// So many hosts, each over a connection of its own.
    pub async fn join_all(
        client: impl Fn() -> Client,
        scope: &Scope,
        hosts: u32,
        processes: u32,
        ttl: Duration,
    ) -> anyhow::Result<Vec<Host>> {
        let all: Vec<ProcessId> = (0..hosts * processes).collect();
        Host::join_as(client, scope, &all, processes, ttl).await
    }

    /// Hosts with these processes, this many each, in this order.
    pub async fn join_as(
        client: impl Fn() -> Client,
        scope: &Scope,
        all: &[ProcessId],
        processes: u32,
        ttl: Duration,
    ) -> anyhow::Result<Vec<Host>> {
        let (mut joining, mut joined) = (JoinSet::new(), Vec::new());
        for of_host in all.chunks(processes as usize) {
            if joining.len() == JOINING_MAX {
                joined.extend(joining.join_next().await.transpose()?.transpose()?);
            }
            joining.spawn(Host::join(client(), scope.clone(), of_host.to_vec(), ttl));
        }
        while let Some(host) = joining.join_next().await {
            joined.push(host??);
        }
        joined.sort_by_key(|host| host.processes.first().copied());
        Ok(joined)
    }

    /// Its connection to the cluster.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// How many processes are left.
    pub fn processes(&self) -> usize {
        self.processes.len()
    }

    /// The TTL that was granted.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Its processes arrive at a round, all but this many, in one command.
    pub async fn arrive(&mut self, round: &str, but: usize) -> anyhow::Result<()> {
        self.call += 1;
        let processes = self.processes[..self.processes.len() - but].to_vec();
        self.send(round, &processes).await
    }

    /// The last of its processes arrives, after [`Host::arrive`] without it.
    pub async fn last_arrives(&self, round: &str) -> anyhow::Result<()> {
        let last = *self.processes.last().context("a host has processes")?;
        self.send(round, &[last]).await
    }

    async fn send(&self, round: &str, of: &[(ProcessId, Incarnation)]) -> anyhow::Result<()> {
        let arrival = |&(process, incarnation): &(ProcessId, Incarnation)| Arrival {
            process,
            incarnation,
            call: self.call,
            ack: self.call,
            payload: Blob::default(),
            holds: 0,
        };
        let command = RoundCommand::Arrive {
            lease: self.lease,
            round: round.into(),
            terms: Box::new(Terms::default()),
            arrivals: of.iter().map(arrival).collect(),
        };
        let answer = self.client.propose(Command::Round(command), soon()).await?;
        let Outcome::Round(RoundOutcome::Arrived(answers)) = answer.outcome else {
            bail!("no arrival, but {:?}", answer.outcome);
        };
        match answers.iter().find(|one| matches!(one, ArrivalAnswer::Refused(_))) {
            Some(refused) => bail!("an arrival was refused: {refused:?}"),
            None => Ok(()),
        }
    }

    /// Waits until all of its processes have the outcome of their call.
    pub async fn told(&mut self) -> anyhow::Result<()> {
        let mut missing = self.processes.len();
        while missing > 0 {
            let feed = timeout(OPERATION_TIME_MAX, self.feeds.recv()).await?;
            let feed = feed.context("the feed of a lease has ended")?;
            self.told_bytes += rmp_serde::to_vec_named(&feed)?.len();
            missing -= feed.decisions.iter().filter(|one| one.call == self.call).count();
        }
        Ok(())
    }

    /// Reports the last of its processes killed, as an agent does that saw it end.
    pub async fn last_is_killed(&mut self) -> anyhow::Result<()> {
        let (process, incarnation) = self.processes.pop().context("a host has processes")?;
        let cause = Cause::Signaled { signal: 9 };
        let end = ProcessEnd { process, incarnation, cause, exit_seen: true };
        let command = ProcessCommand::End { lease: self.lease, ends: vec![end] };
        self.client.propose(Command::Process(command), soon()).await?;
        Ok(())
    }

    /// Renews no more: the host is lost.
    pub fn is_lost(&mut self) {
        self.tasks.abort_all();
    }
}

/// Reads the feed of its lease, as a real agent does.
async fn read_feed(client: Client, lease: LeaseId, give: mpsc::UnboundedSender<Feed>) {
    let Ok(mut reader) = client.feed(lease, 0, Vec::new()).await else { return };
    // The end of the feed shows in the next wait.
    while let Some(Ok(feed)) = reader.next().await {
        if give.send(feed).is_err() {
            return;
        }
    }
}

async fn renew(client: Client, lease: LeaseId, every: Duration) {
    // Hosts that were started together do not renew together.
    tokio::time::sleep(every.mul_f64(rand::random())).await;
    let mut ticks = tokio::time::interval(every);
    loop {
        ticks.tick().await;
        // A failed renewal shows in the feed of its host.
        let _ = client.propose(Command::Lease(LeaseCommand::KeepAlive { lease }), soon()).await;
    }
}
