//! The leader is killed, or frozen: how long until a write is acknowledged
//! again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use holdfast_api::NodeId;
use holdfast_client::{Client, Keys};
use nix::sys::signal::Signal;
use rand::RngExt as _;
use tokio::task::JoinSet;

use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::load::soon;
use crate::report::{Aim, Section, number};
use crate::samples::{Samples, ms};

/// The aim: the median outage that a client sees.
const OUTAGE_MAX: Duration = Duration::from_millis(400);
/// How often the impatient observer starts a put.
const PUT_EVERY: Duration = Duration::from_millis(10);
/// Longest outage that is waited for.
const WRITE_TIME_MAX: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(1);
/// A calm time between losses, drawn each time, so that they do not fall in step with heartbeats.
const CALM_MS: std::ops::Range<u64> = 700..1_200;

/// Acknowledged puts: begun when, acknowledged when.
#[derive(Debug, Clone, Default)]
struct Acknowledged(Arc<Mutex<Vec<(Instant, Instant)>>>);

impl Acknowledged {
    fn note(&self, begun: Instant) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((begun, Instant::now()));
    }

    /// The first acknowledgement of a put that was begun after this.
    fn first_begun_after(&self, at: Instant) -> Option<Instant> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|(begun, _)| *begun > at).map(|(_, acknowledged)| *acknowledged).min()
    }

    async fn wait_for_one_begun_after(&self, at: Instant) -> anyhow::Result<Duration> {
        loop {
            if let Some(acknowledged) = self.first_begun_after(at) {
                return Ok(acknowledged - at);
            }
            if at.elapsed() > WRITE_TIME_MAX {
                bail!("no write was acknowledged within {WRITE_TIME_MAX:?}");
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    }
}

/// Two clients that write all the time.
struct Observers {
    patient: Acknowledged,
    impatient: Acknowledged,
    patient_client: Client,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Observers {
    fn start(cluster: &Cluster) -> Observers {
        let (patient, impatient) = (Acknowledged::default(), Acknowledged::default());
        let patient_client = cluster.client();
        let mut tasks = JoinSet::new();
        let keys = patient_client.keys(Default::default());
        tasks.spawn(one_at_a_time(keys, patient.clone()));
        tasks.spawn(one_every_tick(cluster.keys(), impatient.clone()));
        Observers { patient, impatient, patient_client, tasks }
    }

    /// How long each saw no acknowledgement after the loss.
    async fn outage(&mut self, at: Instant) -> anyhow::Result<(Duration, Duration)> {
        let both = async {
            let patient = self.patient.wait_for_one_begun_after(at).await?;
            let impatient = self.impatient.wait_for_one_begun_after(at).await?;
            Ok((patient, impatient))
        };
        tokio::select! {
            both = both => both,
            Some(ended) = self.tasks.join_next() => {
                ended.context("an observer ended abnormally")??;
                bail!("an observer ended")
            }
        }
    }
}

/// Adds one at a time; the sums must come back without a gap.
async fn one_at_a_time(keys: Keys, acknowledged: Acknowledged) -> anyhow::Result<()> {
    for expected in 1.. {
        let begun = Instant::now();
        let sum = keys.add("patient", 1, soon()).await?;
        ensure!(sum == expected, "add number {expected} came to {sum}: lost or doubled");
        acknowledged.note(begun);
    }
    Ok(())
}

async fn one_every_tick(keys: Keys, acknowledged: Acknowledged) -> anyhow::Result<()> {
    let mut ticks = tokio::time::interval(PUT_EVERY);
    let mut puts: JoinSet<anyhow::Result<()>> = JoinSet::new();
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let (keys, acknowledged) = (keys.clone(), acknowledged.clone());
                puts.spawn(async move {
                    let begun = Instant::now();
                    keys.put("impatient", vec![b'v'; 128], soon()).await?;
                    acknowledged.note(begun);
                    Ok(())
                });
            }
            Some(put) = puts.join_next() => put.context("a put ended abnormally")??,
        }
    }
}

#[derive(Clone, Copy)]
enum Loss {
    Killed,
    Frozen,
}

/// Loses the leader once; the outages of both observers.
async fn lose(
    cluster: &mut Cluster,
    observers: &mut Observers,
    loss: Loss,
) -> anyhow::Result<(Duration, Duration)> {
    let calm = Duration::from_millis(rand::rng().random_range(CALM_MS));
    tokio::time::sleep(calm).await;
    let leader: NodeId = cluster.leader().await?;
    let outage = match loss {
        Loss::Killed => {
            let at = cluster.kill(leader).await?;
            let outage = observers.outage(at).await?;
            cluster.start_node(leader)?;
            outage
        }
        Loss::Frozen => {
            let at = Instant::now();
            cluster.node(leader)?.signal(Signal::SIGSTOP)?;
            let outage = observers.outage(at).await;
            cluster.node(leader)?.signal(Signal::SIGCONT)?;
            outage?
        }
    };
    let successor = cluster.leader().await?;
    let applied = cluster.applied(successor).await?;
    cluster.wait_ready(leader, applied).await?;
    Ok(outage)
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let mut cluster = Cluster::start(bench, &[]).await?;
    let mut observers = Observers::start(&cluster);
    let columns = ["loss", "observer", "times", "min ms", "median ms", "worst ms"];
    let mut section = Section::new(title, &columns);
    for (loss, name, times) in [
        (Loss::Killed, "SIGKILL", bench.effort.kills),
        (Loss::Frozen, "SIGSTOP: no socket closes", bench.effort.freezes),
    ] {
        let (mut patient, mut impatient) = (Vec::new(), Vec::new());
        for _ in 0..times {
            let outage = lose(&mut cluster, &mut observers, loss).await?;
            patient.push(outage.0);
            impatient.push(outage.1);
        }
        for (observer, outages) in [
            ("one add at a time", Samples::from(patient)),
            ("a new put every 10 ms", Samples::from(impatient)),
        ] {
            section.row([
                name.to_owned(),
                observer.to_owned(),
                times.to_string(),
                number(ms(outages.min())),
                number(ms(outages.p50())),
                number(ms(outages.max())),
            ]);
            if matches!(loss, Loss::Killed) {
                let what = format!("leader killed to first acknowledged write, median, {observer}");
                section.aims.push(Aim::time_at_most(what, outages.p50(), OUTAGE_MAX));
            }
        }
    }
    let statistics = observers.patient_client.statistics();
    section.remark(format!(
        "Default timings. Counted are writes begun after the loss. The client that adds one at a time checked every sum: \
         nothing was lost or doubled; it sent {} commands again, of which {} had been applied before.",
        statistics.resent, statistics.replayed
    ));
    section.remark(
        "When a process is killed its sockets close at once, and its port refuses; when its host is lost nothing closes, but \
         the port says nothing (measured with `HOLDFAST_LOST_HOSTS=50 cargo test --package holdfast-tests --test all lost_hosts:: \
         -- --nocapture --test-threads 1`); when it is paused its port answers, and voters keep to it for half a second (the \
         leader lease).",
    );
    Ok(section)
}
