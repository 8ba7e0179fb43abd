//! A run from its first process to its last: a cluster, clients, faults one after
//! the other, everything healed, final reads.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use holdfast_api::{Admin, NodeId};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::live::Live;
use super::plan::Plan;
use super::signals::{Signals, exit};
use super::{ClientDescription, Description, FaultRecord, NodeDescription};
use crate::clock;
use crate::cluster::binaries::Binaries;
use crate::cluster::jobs::{DRIVER, RANK};
use crate::cluster::system::System;
use crate::cluster::{Cluster, Surroundings, backup, etcd};
use crate::nemesis::group::Group;
use crate::nemesis::{Nemesis, Stage};
use crate::recording::{self, DESCRIPTION, JOBS};
use crate::workload::Workload;
use crate::workload::client::{Shared, Site, Way, Worker};
use crate::workload::door::Door;
use crate::workload::tcpstore::Agent;

/// Before the first fault and after the last one.
const QUIET: Duration = Duration::from_secs(1);
/// Between two faults, at least and at most.
const PAUSE_MS: std::ops::Range<u64> = 600..1_800;
/// Between the ends of two faults that were there at the same time.
const BETWEEN_ENDS: Duration = Duration::from_secs(1);
/// How long a fault may still take once the time of the run is over; then it is undone.
const FAULT_ENDS_MAX: Duration = Duration::from_secs(60);
/// How long one may take that was requested by name, whatever the time of the run.
const NAMED_FAULT_TIME_MAX: Duration = Duration::from_secs(600);
/// How long clients may take to end.
const CLIENTS_END_MAX: Duration = Duration::from_secs(40);
/// Pause of a rank of a job between two calls.
const JOB_PAUSE: Duration = Duration::from_millis(200);
/// The job of a run's keys.
pub(crate) const JOB: &str = "chaos";
/// Agents of a run that takes some.
const AGENTS: usize = 2;

/// Runs it all, then removes the cluster; answers how the run was made.
pub async fn drive(plan: &Plan, mut description: Description) -> anyhow::Result<Description> {
    let has_agents = plan.workloads.iter().any(|workload| workload.is_through_agents());
    let has_jobs = plan.workloads.iter().any(|workload| workload.is_of_jobs());
    let programs = ["holdfast-store", "holdfast-agent", DRIVER, RANK];
    let taken = match (has_jobs, has_agents) {
        (true, _) => 4,
        (_, true) => 2,
        _ => 1,
    };
    let any = |is: fn(Nemesis) -> bool| plan.nemeses.iter().any(|(group, _)| group.any(is));
    let mut programs = programs[..taken].to_vec();
    if any(|it| it == Nemesis::BackupRestore) {
        programs.push(backup::PROGRAM);
    }
    let binaries = match plan.system {
        System::Holdfast => Binaries::find(plan.binaries.as_deref(), &programs)?,
        System::Etcd => Binaries::find(Some(&etcd::folder()?), &[etcd::PROGRAM])?,
    };
    let surroundings = Surroundings {
        system: plan.system,
        network: any(Nemesis::is_on_network),
        disks: any(Nemesis::is_on_disk),
        scrub: any(Nemesis::damages),
        entries: None,
    };
    #[cfg(feature = "planted")]
    let surroundings = crate::nemesis::crashes::surroundings(&plan.crash_points(), surroundings);
    let mut signals = Signals::listen()?;
    let cluster = async {
        let mut cluster = Cluster::start(binaries, plan.nodes, surroundings).await?;
        cluster.start_agents(if has_agents { AGENTS } else { 0 }).await?;
        anyhow::Ok(cluster)
    };
    let cluster = signals.until_next(Box::pin(cluster)).await;
    let mut cluster = cluster
        .context("ended by a signal before the cluster ran")?
        .context("the cluster did not start")?;
    let driven = Box::pin(on(&mut cluster, plan, &mut description, &mut signals)).await;
    note_fallen(&mut cluster, &mut description);
    note_panics(&cluster, &mut description);
    let keep = driven.is_err() || !description.failures.is_empty();
    if let Some(folder) = cluster.end_all(keep) {
        eprintln!("the nodes' folders and logs are kept in {}", folder.display());
    }
    description.ended = Some(clock::now());
    if !signals.is_second() {
        // Nobody writes records any more. Those that cannot be read are named by the judge.
        description.records = recording::records(&plan.report).ok();
    }
    save(&plan.report, &description)?;
    if signals.is_second() {
        // Nothing is waited for any more: not even a judge of what was recorded so far.
        exit();
    }
    driven.map(|()| description)
}

/// Runs it all on a cluster that is there.
async fn on(
    cluster: &mut Cluster,
    plan: &Plan,
    description: &mut Description,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    for (id, seat) in cluster.seats().await {
        let address = cluster.address(id)?.to_owned();
        description.nodes.push(NodeDescription { id, address, version: seat.version });
    }
    let site = Site {
        scope: holdfast_api::Scope { job: JOB.parse()?, run: None },
        folder: plan.report.clone(),
        pause: plan.pause(),
        credentials: Default::default(),
        endpoints: Vec::new(),
        system: plan.system,
    };
    let shared = Shared::new(&plan.report, plan.operations)?;
    shared.set_addresses(cluster.addresses());
    shared.agents.set(cluster.agent_addresses());
    let mut clients = Clients::spawn(plan, &site, &shared, description)?;
    let of_jobs: Vec<Workload> =
        plan.workloads.iter().copied().filter(|it| it.is_of_jobs()).collect();
    if !of_jobs.is_empty() {
        cluster.start_jobs(&of_jobs, &plan.report.join(JOBS), JOB_PAUSE, plan.seed)?;
    }
    description.began = clock::now();
    save(&plan.report, description)?;
    let live = Live::start(plan, shared.clone());

    let mut random = StdRng::seed_from_u64(plan.seed);
    let faults = Faults { plan, live: &live, description: &mut *description };
    let ended = Box::pin(faults.run(cluster, &shared, &mut random));
    let ended = signals.until_next(ended).await;
    if let Some(signal) = signals.first() {
        live.say(&format!("{signal}: healing everything"));
        description.stop(signal);
    }
    let wound_down = match ended {
        Some(Err(error)) => Err(error),
        _ => {
            note_fallen(cluster, description);
            let end = wind_down(cluster, plan, &site, &shared, &mut clients, description, &live);
            signals.until_next(Box::pin(end)).await.unwrap_or(Ok(()))
        }
    };
    if let Some(signal) = signals.first() {
        description.stop(signal);
    }
    shared.stop();
    clients.abort().await;
    live.end().await;
    description.failures.extend(shared.agents.take_broken());
    description.calls = Some(shared.calls());
    wound_down
}

/// Heals everything, waits for the clients, and makes the final reads.
async fn wind_down(
    cluster: &mut Cluster,
    plan: &Plan,
    site: &Site,
    shared: &Arc<Shared>,
    clients: &mut Clients,
    description: &mut Description,
    live: &Live,
) -> anyhow::Result<()> {
    // A node that ended by itself does not come back: there is nothing to wait for.
    let mended = match description.failures.is_empty() {
        true => cluster.mend().await,
        false => Ok(()),
    };
    shared.agents.are_back();
    match mended {
        Ok(()) if description.stopped.is_some() => description.stop("everything was healed"),
        Ok(()) => {}
        Err(error) => {
            description.failures.push(format!("the cluster did not recover: {error:#}"));
        }
    }
    tokio::time::sleep(QUIET).await;
    shared.stop();
    clients.end(description).await?;
    if let Err(error) = cluster.end_jobs().await {
        description.failures.push(format!("{error:#}"));
    }
    if description.failures.is_empty()
        && description.stopped.is_none()
        && let Err(error) = read_everywhere(cluster, plan, site, shared, live).await
    {
        description.failures.push(format!("{error:#}"));
    }
    Ok(())
}

/// How often leadership is handed to a node for the final reads.
const LEADS_MAX: u32 = 8;

/// Makes the final reads under each node: what it would answer as the leader must not
/// differ from what the others would.
async fn read_everywhere(
    cluster: &mut Cluster,
    plan: &Plan,
    site: &Site,
    shared: &Arc<Shared>,
    live: &Live,
) -> anyhow::Result<()> {
    if plan.system != System::Holdfast {
        live.say("final reads");
        return Clients::final_reads(plan, site, shared, None).await;
    }
    for id in cluster.ids() {
        let mut leads = false;
        // On a machine that is busy another one may succeed it at once.
        for _ in 0..LEADS_MAX {
            if cluster.leader().await?.0 != id {
                cluster.administer(Admin::TransferLeader { to: Some(id) }).await?;
            }
            if cluster.leader().await?.0 != id {
                continue;
            }
            live.say(&format!("final reads under node {id}"));
            Clients::final_reads(plan, site, shared, Some(id)).await?;
            leads = cluster.leader().await?.0 == id;
            if leads {
                break;
            }
        }
        anyhow::ensure!(
            leads,
            "node {id} did not lead during the final reads, in {LEADS_MAX} tries"
        );
    }
    Ok(())
}

/// Writes the description of a run to `run.json` in its folder.
pub fn save(folder: &Path, description: &Description) -> anyhow::Result<()> {
    let path = folder.join(DESCRIPTION);
    let text = serde_json::to_vec_pretty(description)?;
    std::fs::write(&path, text).with_context(|| path.display().to_string())
}

/// The clients of a run.
pub(super) struct Clients(JoinSet<anyhow::Result<()>>);

impl Clients {
    /// Starts the clients of all workloads but rounds, and describes each of them.
    pub(super) fn spawn(
        plan: &Plan,
        site: &Site,
        shared: &Arc<Shared>,
        description: &mut Description,
    ) -> anyhow::Result<Clients> {
        let mut clients = Clients(JoinSet::new());
        let of_clients = plan.workloads.iter().filter(|it| !it.is_of_jobs());
        for (n, workload) in of_clients.enumerate() {
            for place in 0..plan.clients {
                // Every other one is bound to one node.
                let is_bound =
                    workload.can_be_bound() && place & 1 == 1 && !shared.addresses().is_empty();
                let bound = is_bound.then_some(place / 2 + n);
                let client = match workload.is_through_agents() {
                    true => {
                        clients.add::<Agent>(*workload, place, None, site, shared, plan.seed)?
                    }
                    false => {
                        clients.add::<Door>(*workload, place, bound, site, shared, plan.seed)?
                    }
                };
                description.clients.push(client);
            }
        }
        Ok(clients)
    }

    fn add<D: Way + 'static>(
        &mut self,
        workload: Workload,
        place: usize,
        bound: Option<usize>,
        site: &Site,
        shared: &Arc<Shared>,
        seed: u64,
    ) -> anyhow::Result<ClientDescription> {
        let worker = Worker::<D>::new(workload, place, bound, site, shared, seed)?;
        let description = worker.description.clone();
        self.0.spawn(Box::pin(worker.run()));
        Ok(description)
    }

    /// Waits until all clients have ended; one that does not is a failure.
    pub(super) async fn end(&mut self, description: &mut Description) -> anyhow::Result<()> {
        match tokio::time::timeout(CLIENTS_END_MAX, self.join()).await {
            Ok(ended) => ended,
            Err(_) => {
                let text =
                    format!("clients were still waiting for answers after {CLIENTS_END_MAX:?}");
                description.failures.push(text);
                Ok(())
            }
        }
    }

    /// Ends those that are left; none calls any more.
    pub(super) async fn abort(&mut self) {
        self.0.shutdown().await;
    }

    async fn join(&mut self) -> anyhow::Result<()> {
        while let Some(ended) = self.0.join_next().await {
            ended.context("a client ended abnormally")??;
        }
        Ok(())
    }

    /// Makes the final reads of all workloads, under the leader's node if it is known.
    pub(super) async fn final_reads(
        plan: &Plan,
        site: &Site,
        shared: &Arc<Shared>,
        under: Option<NodeId>,
    ) -> anyhow::Result<()> {
        let mut readers = Clients(JoinSet::new());
        for workload in &plan.workloads {
            let needed = !matches!(
                workload,
                Workload::Watch | Workload::Wait | Workload::Lease | Workload::Fence
            );
            if workload.is_of_jobs() {
                continue;
            }
            if workload.is_through_agents() {
                let last = Worker::<Agent>::last(*workload, site, shared, under)?;
                readers.0.spawn(Box::pin(last.finish()));
            } else if needed {
                let last = Worker::<Door>::last(*workload, site, shared, under)?;
                readers.0.spawn(Box::pin(last.finish()));
            }
        }
        readers.join().await
    }
}

/// A node that ended without a request, or otherwise than requested, is a failure.
fn note_fallen(cluster: &mut Cluster, description: &mut Description) {
    description.failures.extend(cluster.take_unasked());
}

fn note_panics(cluster: &Cluster, description: &mut Description) {
    let Ok(entries) = std::fs::read_dir(cluster.folder()) else { return };
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
    for path in paths.filter(|path| path.extension().is_some_and(|ending| ending == "log")) {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        if let Some(line) = text.lines().find(|line| line.contains("panicked at")) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            description.failures.push(format!("{name} panicked: {line}"));
        }
    }
}

struct Faults<'a> {
    plan: &'a Plan,
    live: &'a Live,
    description: &'a mut Description,
}

impl Faults<'_> {
    /// One group after the other until the time is over.
    async fn run(
        mut self,
        cluster: &mut Cluster,
        shared: &Arc<Shared>,
        random: &mut StdRng,
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        let is_late = || self.plan.duration.is_some_and(|most| began.elapsed() >= most);
        tokio::time::sleep(QUIET).await;
        let mut left = self.plan.nemeses.clone();
        let mut is_first_round = true;
        while !shared.is_over() {
            if left.is_empty() {
                left.clone_from(&self.plan.nemeses);
                is_first_round = false;
            }
            // Each fault that was asked for by name is injected once, even if that takes longer.
            let is_owed = is_first_round && left.iter().any(|(_, by_name)| *by_name);
            if is_late() && !is_owed {
                break;
            }
            if left.is_empty() {
                tokio::time::sleep(QUIET / 4).await;
                note_fallen(cluster, self.description);
                if !self.description.failures.is_empty() {
                    return Ok(());
                }
                continue;
            }
            let next = random.random_range(0..left.len());
            let (group, by_name) = left.swap_remove(next);
            let led = match group.is_several() {
                true => match cluster.leader().await {
                    Ok((led, _)) => Some(led),
                    Err(error) => {
                        self.description.failures.push(format!("before {group}: {error:#}"));
                        return Ok(());
                    }
                },
                false => None,
            };
            let mut stage = Stage { cluster: &mut *cluster, shared, random: &mut *random, led };
            let end = match by_name {
                true => Some(Instant::now() + NAMED_FAULT_TIME_MAX),
                false => self.plan.duration.map(|most| began + most + FAULT_ENDS_MAX),
            };
            let bounded = self.plan.fault_time_max.map(|most| Instant::now() + most);
            let end = end.into_iter().chain(bounded).min();
            Box::pin(self.inject(&group, by_name, end, &mut stage)).await?;
            shared.set_addresses(cluster.addresses());
            cluster.tell_jobs()?;
            note_fallen(cluster, self.description);
            if !self.description.failures.is_empty() {
                return Ok(());
            }
            let drawn = Duration::from_millis(random.random_range(PAUSE_MS));
            tokio::time::sleep(self.plan.fault_pause.unwrap_or(drawn)).await;
        }
        Ok(())
    }

    /// Injects all faults of a group, and ends them in the other order, or undoes what
    /// is left of them at `end`.
    async fn inject(
        &mut self,
        group: &Group,
        by_name: bool,
        end: Option<Instant>,
        stage: &mut Stage<'_>,
    ) -> anyhow::Result<()> {
        self.live.fault(&group.to_string());
        let first = self.description.faults.len();
        let injecting = Box::pin(self.inject_and_heal(group, by_name, stage));
        let done = match end {
            Some(end) => tokio::time::timeout_at(end, injecting)
                .await
                .unwrap_or_else(|_| Err(anyhow!("it was not over in its time, and was undone"))),
            None => injecting.await,
        };
        if let Err(error) = done {
            if let Some(record) = self.description.faults.last_mut() {
                record.error.get_or_insert_with(|| format!("{error:#}"));
            }
            note_fallen(stage.cluster, self.description);
            if self.description.failures.is_empty()
                && let Err(error) = stage.cluster.mend().await
            {
                let text = format!("the cluster did not recover: {error:#}");
                self.description.failures.push(text);
            }
            stage.shared.agents.are_back();
        }
        for record in &mut self.description.faults[first..] {
            record.end.get_or_insert_with(clock::now);
        }
        self.live.fault("");
        save(&self.plan.report, self.description)
    }

    async fn inject_and_heal(
        &mut self,
        group: &Group,
        by_name: bool,
        stage: &mut Stage<'_>,
    ) -> anyhow::Result<()> {
        let (mut open, mut hold) = (Vec::new(), Duration::ZERO);
        for nemesis in group.faults() {
            let at = self.description.faults.len();
            self.description.faults.push(FaultRecord {
                nemesis: nemesis.as_str().to_owned(),
                group: group.is_several().then(|| group.to_string()),
                by_name,
                begin: clock::now(),
                ..FaultRecord::default()
            });
            // Written first, so that a killed run has recorded its next fault.
            save(&self.plan.report, self.description)?;
            let injected = nemesis.inject(stage).await?;
            let record = &mut self.description.faults[at];
            (record.what, record.evidence) = (injected.what, injected.evidence);
            record.struck = injected.struck;
            record.complete = injected.wound.is_of_several_steps().then(clock::now);
            hold = hold.max(injected.hold);
            open.push((at, injected.wound));
        }
        tokio::time::sleep(hold).await;
        while let Some((at, wound)) = open.pop() {
            let seen = wound.heal(stage).await;
            let record = &mut self.description.faults[at];
            match seen {
                Ok(seen) => record.evidence = record.evidence.take().or(seen),
                Err(error) => {
                    record.error = Some(format!("{error:#}"));
                    return Err(error);
                }
            }
            record.end = Some(clock::now());
            if !open.is_empty() {
                tokio::time::sleep(BETWEEN_ENDS).await;
            }
        }
        stage.cluster.wait_healthy().await
    }
}
