//! A run against a cluster that is there: in a job of its own, with faults that
//! do no harm, or those that its owner's program makes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use holdfast_api::{Admin, Name, NodeId, Scope, Status};
use holdfast_client::{Client, Credentials, Deadline, Options, TlsFiles};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use super::drive::{Clients, save};
use super::live::Live;
use super::plan::Plan;
use super::signals::{Signals, exit};
use super::{Description, FaultRecord, LeftOut, NodeDescription};
use crate::clock;
use crate::cluster::containers::Breaker;
use crate::cluster::foreign::{Broken, Foreign, JOB_PREFIX, delete_job};
use crate::cluster::state::StateFile;
use crate::cluster::{hook, http, wish};
use crate::workload::client::{Shared, Site};
use crate::workload::door::{CALL_TIME_MAX, recognize};

/// Bounds of the pause between two faults, in milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 1_500..4_000;
/// How long a hook's fault lasts.
const HOLD: Duration = Duration::from_secs(3);
/// Bound on the wait for a cluster that was broken.
const RECOVERY_TIME_MAX: Duration = Duration::from_secs(60);
const HAND_OVER: &str = "hand-over";
const KILL_CLIENTS: &str = "kill-clients";
/// Faults that do no harm.
const HARMLESS_FAULTS: [&str; 2] = [HAND_OVER, KILL_CLIENTS];
/// Faults that a hook can inject.
const HOOK_FAULTS: [&str; 3] = ["kill", "pause", "cut"];

/// How a cluster is reached, and what may be done to it.
#[derive(Debug)]
pub struct Attachment {
    /// Its nodes, as they were given.
    pub list: String,
    /// The endpoints as a list.
    pub endpoints: Vec<String>,
    /// The token, if it asks for one, and how TLS is spoken, if it is.
    pub credentials: Credentials,
    /// The files from which that was read, by their absolute paths.
    pub files: TlsFiles,
    /// What injects faults into its nodes, if its owner allows that.
    pub hook: Option<Breaker>,
}

impl Attachment {
    /// The file for `heal`, before the job is made; none if all of the cluster is removed with
    /// its containers.
    fn state(&self, job: &Name) -> anyhow::Result<Option<StateFile>> {
        let hook = match &self.hook {
            Some(Breaker::Containers(_)) => return Ok(None),
            Some(Breaker::Program(program)) => Some(program.clone()),
            None => None,
        };
        let TlsFiles { ca, cert, key } = self.files.clone();
        let mut state = StateFile::create(None)?;
        state.works_on(Foreign {
            endpoints: self.endpoints.clone(),
            token_file: self.credentials.token_file.clone(),
            tls_ca: ca,
            tls_cert: cert,
            tls_key: key,
            job: Some(job.clone()),
            hook,
            folder: std::env::current_dir().ok(),
            broken: None,
        })?;
        Ok(Some(state))
    }
}

/// Runs it all, then deletes the job.
pub async fn attach(
    plan: &Plan,
    attachment: &Attachment,
    mut description: Description,
) -> anyhow::Result<Description> {
    let mut signals = Signals::listen()?;
    let Credentials { token_file, tls } = attachment.credentials.clone();
    let options = Options { token_file, tls, ..Options::new(attachment.endpoints.clone()) };
    let operator = Client::new(options);
    let recognized = signals.until_next(recognize(&operator, &attachment.list)).await;
    let status = recognized.context("ended by a signal before anything was done")??;
    if status.leader.is_none() {
        bail!("{} has no leader; see `holdfast status`, and attach again", attachment.list);
    }
    let random: u64 = rand::random();
    let job: Name = format!("{JOB_PREFIX}{random:016x}").parse()?;
    description.nodes = nodes(&status);
    let site = Site {
        scope: Scope { job: job.clone(), run: None },
        folder: plan.report.clone(),
        pause: plan.pause(),
        credentials: attachment.credentials.clone(),
        endpoints: attachment.endpoints.clone(),
        system: plan.system,
    };
    let mut addresses = reachable(&status, &site, &mut description).await;
    if addresses.is_empty() {
        // The node that answered there forwards calls.
        addresses.clone_from(&site.endpoints);
    }
    let shared = Shared::new(&plan.report, plan.operations)?;
    shared.set_addresses(addresses);
    let mut state = attachment.state(&job)?;
    let mut clients = Clients::spawn(plan, &site, &shared, &mut description)?;
    let run = Attached { plan, attachment, operator: &operator, shared: &shared, site: &site };
    let driven =
        Box::pin(run.drive(&mut clients, &mut description, &mut signals, &mut state)).await;
    clients.abort().await;
    description.calls = Some(shared.calls());
    description.ended = Some(clock::now());
    let deleted = match signals.is_second() {
        true => None,
        false => signals.until_second(Box::pin(delete_job(&operator, &job))).await,
    };
    let is_deleted = matches!(deleted, Some(Ok(())));
    let left = match deleted {
        Some(Ok(())) => None,
        Some(Err(error)) => Some(format!("{error:#}")),
        None => Some("there was a second signal".to_owned()),
    };
    if let Some(why) = left {
        let text = format!(
            "job {job} could not be deleted: {why}; `holdfast-chaos heal` tries again, or end its run and delete it with `holdfast job delete {job}`"
        );
        eprintln!("{text}");
        description.stop(&text);
    }
    save(&plan.report, &description)?;
    if let Some(state) = state.as_mut().filter(|_| is_deleted) {
        state.job_is_deleted()?;
    }
    if signals.is_second() {
        // Nothing is waited for any more: not even a judge of what was recorded so far.
        exit();
    }
    operator.close().await;
    driven.map(|()| description)
}

/// Address of each node: the one that it reports, or one of those given on the command line.
async fn reachable(status: &Status, site: &Site, description: &mut Description) -> Vec<String> {
    let mut addresses = Vec::new();
    for node in &status.nodes {
        let mut found = None;
        for address in std::iter::once(&node.address).chain(&site.endpoints) {
            let answer = http::status_with(address, site.credentials.clone()).await;
            let is_it = answer.is_some_and(|answer| {
                answer.cluster_id == status.cluster_id && answer.answered_by == node.id
            });
            if is_it {
                found = Some(address.clone());
                break;
            }
        }
        match found {
            Some(address) => addresses.push(address),
            None => description.left_out.push(LeftOut {
                name: format!("clients bound to node {}", node.id),
                why: format!(
                    "it answers here neither at {}, the address it names, nor at one given with --store",
                    node.address
                ),
            }),
        }
    }
    addresses
}

/// The parts of a run against an existing cluster.
struct Attached<'a> {
    plan: &'a Plan,
    attachment: &'a Attachment,
    operator: &'a Client,
    shared: &'a Arc<Shared>,
    site: &'a Site,
}

impl Attached<'_> {
    async fn drive(
        &self,
        clients: &mut Clients,
        description: &mut Description,
        signals: &mut Signals,
        state: &mut Option<StateFile>,
    ) -> anyhow::Result<()> {
        let Attached { plan, attachment, operator, shared, site } = *self;
        description.planned = HARMLESS_FAULTS.map(str::to_owned).to_vec();
        if attachment.hook.is_some() {
            description.nemeses = HOOK_FAULTS.map(str::to_owned).to_vec();
            description.planned.extend(HOOK_FAULTS.map(str::to_owned));
        }
        description.began = clock::now();
        save(&plan.report, description)?;
        let live = Live::start(plan, shared.clone());
        live.say(&format!("attached to {} in job {}", attachment.list, site.scope.job));
        let mut faults = Faults {
            plan,
            attachment,
            operator,
            shared,
            live: &live,
            description: &mut *description,
            state,
            broken: None,
            random: StdRng::seed_from_u64(plan.seed),
        };
        let ended = signals.until_next(Box::pin(faults.run())).await;
        // A signal ends the faults, and a second one the healing.
        signals.until_second(Box::pin(faults.heal())).await;
        let broken = faults.broken;
        if let Some(signal) = signals.first() {
            description.stop(signal);
            if broken.is_none() {
                description.stop("everything was healed");
            }
        }
        if let Some((fault, node)) = broken {
            let text = format!(
                "{fault} of node {node} was not healed: heal it by hand, or with `holdfast-chaos heal`"
            );
            live.say(&text);
            description.stop(&text);
        }
        shared.stop();
        if let Some(Err(error)) = ended {
            live.end().await;
            return Err(error);
        }
        if let Some(ended) = signals.until_second(clients.end(description)).await {
            ended?;
        }
        if description.stopped.is_none() && description.failures.is_empty() {
            live.say("final reads");
            let read = signals.until_next(Clients::final_reads(plan, site, shared, None)).await;
            if let Some(Err(error)) = read {
                match self.answers().await {
                    true => description.failures.push(format!("{error:#}")),
                    false => description.stop(&format!(
                        "the final reads reached no node at {}: {error:#}",
                        attachment.list
                    )),
                }
            }
        }
        if let Some(signal) = signals.first() {
            description.stop(signal);
        }
        live.end().await;
        Ok(())
    }

    /// Whether any node answers from here.
    async fn answers(&self) -> bool {
        self.operator.status(Deadline::after(CALL_TIME_MAX)).await.is_ok()
    }
}

fn nodes(status: &Status) -> Vec<NodeDescription> {
    let described = status.nodes.iter().map(|node| NodeDescription {
        id: node.id,
        address: node.address.clone(),
        version: node.version.clone(),
    });
    described.collect()
}

struct Faults<'a> {
    plan: &'a Plan,
    attachment: &'a Attachment,
    operator: &'a Client,
    shared: &'a Arc<Shared>,
    live: &'a Live,
    description: &'a mut Description,
    /// What is written down for `heal`; none if nothing needs to be.
    state: &'a mut Option<StateFile>,
    /// The fault that the hook has injected and not healed yet.
    broken: Option<(&'static str, NodeId)>,
    random: StdRng,
}

impl Faults<'_> {
    async fn run(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut all = HARMLESS_FAULTS.to_vec();
        if self.attachment.hook.is_some() {
            all.extend(HOOK_FAULTS);
        }
        let (mut left, mut is_first_round) = (all.clone(), true);
        loop {
            let pause = Duration::from_millis(self.random.random_range(PAUSE_MS));
            tokio::time::sleep(pause).await;
            // The hook's faults are injected once, even if that takes longer.
            let is_owed = is_first_round && left.iter().any(|name| HOOK_FAULTS.contains(name));
            let is_late = self.plan.duration.is_some_and(|most| began.elapsed() >= most);
            if self.shared.is_over() || (is_late && !is_owed) {
                return Ok(());
            }
            let name = left.swap_remove(self.random.random_range(0..left.len()));
            if left.is_empty() {
                (left, is_first_round) = (all.clone(), false);
            }
            self.live.fault(name);
            self.description.faults.push(FaultRecord {
                nemesis: name.to_owned(),
                by_name: HOOK_FAULTS.contains(&name),
                begin: clock::now(),
                ..FaultRecord::default()
            });
            save(&self.plan.report, self.description)?;
            let done = match name {
                HAND_OVER => self.hand_over().await,
                KILL_CLIENTS => self.kill_clients().await,
                hook => self.hooked(hook).await,
            };
            if let Some(record) = self.description.faults.last_mut() {
                record.end = Some(clock::now());
                match done {
                    Ok((what, evidence)) => (record.what, record.evidence) = (what, evidence),
                    Err(error) => record.error = Some(format!("{error:#}")),
                }
            }
            self.heal().await;
            self.live.fault("");
            save(&self.plan.report, self.description)?;
            if self.description.stopped.is_some() {
                return Ok(());
            }
        }
    }

    async fn status(&self) -> anyhow::Result<Status> {
        Ok(self.operator.status(Deadline::after(RECOVERY_TIME_MAX)).await?)
    }

    async fn hand_over(&mut self) -> anyhow::Result<(String, Option<String>)> {
        let before = self.status().await?;
        wish(self.operator, &Admin::TransferLeader { to: None }).await?;
        let after = self.status().await?;
        let evidence = (after.term > before.term || after.leader != before.leader)
            .then(|| format!("term {} became term {}", before.term, after.term));
        Ok(("handed leadership over".to_owned(), evidence))
    }

    async fn kill_clients(&mut self) -> anyhow::Result<(String, Option<String>)> {
        let killed = self.shared.kill_half().await;
        let evidence = (killed > 0).then(|| format!("{killed} clients lost a call"));
        Ok(("killed clients of its own".to_owned(), evidence))
    }

    async fn hooked(&mut self, fault: &'static str) -> anyhow::Result<(String, Option<String>)> {
        let nodes = self.status().await?.nodes;
        let node = nodes[self.random.random_range(0..nodes.len())].id;
        // Healed even if this is ended halfway, or if only half of it was done.
        self.broken = Some((fault, node));
        self.note_broken()?;
        self.hook("inject", fault, node).await?;
        tokio::time::sleep(HOLD).await;
        let evidence = match self.hook("verify", fault, node).await {
            Ok(()) => Some("the hook verified it".to_owned()),
            Err(_) => None,
        };
        Ok((format!("hook: {fault} node {node}"), evidence))
    }

    /// Heals what the hook has broken. If it cannot, the run ends there.
    async fn heal(&mut self) {
        let Some((fault, node)) = self.broken else { return };
        let healed = match self.hook("heal", fault, node).await {
            Ok(()) => {
                self.broken = None;
                self.note_broken()
            }
            Err(error) => Err(error.context(format!("the hook did not heal {fault}"))),
        };
        if let Err(error) = healed {
            self.description.stop(&format!("{error:#}"));
        }
    }

    /// Writes down what is broken.
    fn note_broken(&mut self) -> anyhow::Result<()> {
        let broken = self.broken.map(|(fault, node)| Broken { fault: fault.to_owned(), node });
        match self.state.as_mut() {
            Some(state) => state.breaks(broken),
            None => Ok(()),
        }
    }

    async fn hook(&mut self, verb: &str, fault: &str, node: NodeId) -> anyhow::Result<()> {
        let breaker = self.attachment.hook.as_ref().context("there is no hook")?;
        let words = format!("{verb} {fault} {node}");
        let state = self.state.as_mut();
        let started = |process| state.map_or(Ok(()), |state| state.started(process));
        hook::call(breaker.command(verb, fault, node), &words, started).await
    }
}
