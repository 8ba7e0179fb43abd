//! Communicators over TCP among real ranks: one is killed, until the others have
//! stopped what they held with it, and until they have summed in the next one.

use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use serde_json::Value;

use crate::agent::Agent;
use crate::arguments::Bench;
use crate::child::Child;
use crate::cluster::Cluster;
use crate::load::{key, soon};
use crate::report::{Aim, Section, spread};
use crate::samples::{median, ms};

/// How many ranks a group has.
const RANKS: [u32; 2] = [4, 16];
const TOLD_MAX: Duration = Duration::from_millis(20);
const ACQUIRE_MAX: Duration = Duration::from_micros(1);
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(20);
const PUTS: u64 = 50;

/// A record of a rank.
struct Entry {
    at: u64,
    process: u32,
    name: String,
    body: Value,
}

/// A group of ranks under one agent, and the file that they write to.
struct Group<'a> {
    bench: &'a Bench,
    name: String,
    control: PathBuf,
    file: PathBuf,
    folder: PathBuf,
    ranks: Vec<Child>,
    _agent: Agent,
}

/// The times of one kill, in milliseconds.
struct Killed {
    stopped: f64,
    stepped: f64,
}

fn now() -> anyhow::Result<u64> {
    Ok(Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?).as_nanos() as u64)
}

impl<'a> Group<'a> {
    async fn start(bench: &'a Bench, cluster: &Cluster, ranks: u32) -> anyhow::Result<Group<'a>> {
        let name = format!("ring-{ranks}");
        let folder = cluster.folder().to_owned();
        let control = folder.join(format!("{name}.sock"));
        let socket = control.to_str().context("the folder's name is text")?;
        let flags = ["--job", &name, "--run", "r1", "--lease-ttl", "60s", "--control", socket];
        let agent = Agent::start_with(bench, cluster, &name, &flags).await?;
        let file = folder.join(format!("{name}.events"));
        let ranks_of = Vec::new();
        let mut group =
            Group { bench, name, control, file, folder, ranks: ranks_of, _agent: agent };
        for process in 0..ranks {
            let rank = group.launch(process)?;
            group.ranks.push(rank);
        }
        group.all_step(0).await?;
        Ok(group)
    }

    fn launch(&self, process: u32) -> anyhow::Result<Child> {
        let name = format!("{}-rank-{process}", self.name);
        let control = format!("HOLDFAST_CONTROL={}", self.control.display());
        let program = self.bench.binaries.join("holdfast-test-member");
        let text = |path: &Path| Ok::<_, anyhow::Error>(path.to_str().context("text")?.to_owned());
        let process = process.to_string();
        let (program, file) = (text(&program)?, text(&self.file)?);
        let arguments = [&control, &program, &process, "gradients", "30000", &file];
        Child::start(&name, Path::new("/usr/bin/env"), arguments, &self.folder)
    }

    /// Until all ranks have summed in one generation, after this time.
    async fn all_step(&self, after: u64) -> anyhow::Result<()> {
        let (begun, count) = (Instant::now(), self.ranks.len());
        loop {
            let mut last = BTreeMap::new();
            for entry in entries(&self.file)?.iter().filter(|entry| entry.at > after) {
                if entry.name == "step" {
                    last.insert(entry.process, entry.body["generation"].as_u64());
                }
            }
            let first = last.values().next().copied();
            if last.len() == count && last.values().all(|one| Some(*one) == first) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                bail!("the ranks did not meet in one generation: {last:?}");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Kills a rank; then it comes back.
    async fn kill(&mut self, process: u32) -> anyhow::Result<Killed> {
        let at = now()?;
        self.ranks[process as usize].kill().await?;
        let rest = self.ranks.len() - 1;
        let begun = Instant::now();
        let killed = loop {
            if let Some(killed) = became(&entries(&self.file)?, at, process, rest) {
                break killed;
            }
            if begun.elapsed() > PATIENCE {
                bail!("the others did not go on without rank {process}");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        };
        self.ranks[process as usize] = self.launch(process)?;
        self.all_step(now()?).await?;
        Ok(killed)
    }

    /// All leave in order; how long it took to acquire what was unchanged, in
    /// nanoseconds.
    async fn leave(mut self) -> anyhow::Result<Vec<f64>> {
        for rank in &self.ranks {
            rank.signal(Signal::SIGTERM)?;
        }
        let begun = Instant::now();
        loop {
            let entries = entries(&self.file)?;
            let left = entries.iter().filter(|entry| entry.name == "left").count();
            if left == self.ranks.len() {
                self.ranks.clear();
                let acquired = entries.iter().filter(|entry| entry.name == "acquired");
                return Ok(acquired.filter_map(|one| one.body["nanoseconds"].as_f64()).collect());
            }
            if begun.elapsed() > PATIENCE {
                bail!("{left} of {} ranks have left", self.ranks.len());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

fn entries(file: &Path) -> anyhow::Result<Vec<Entry>> {
    let text = read_to_string(file).unwrap_or_default();
    let mut found = Vec::new();
    // The last line may be half written.
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let value: Value = serde_json::from_str(line)?;
        let (name, body) = match &value["event"] {
            Value::String(name) => (name.clone(), Value::Null),
            Value::Object(event) => {
                let (name, body) = event.iter().next().context("an event has a name")?;
                (name.clone(), body.clone())
            }
            _ => bail!("no event: {line}"),
        };
        let (at, process) = (value["at"].as_u64(), value["process"].as_u64());
        let at = at.context("an event has a time")?;
        found.push(Entry { at, process: process.unwrap_or(0) as u32, name, body });
    }
    found.sort_by_key(|entry| entry.at);
    Ok(found)
}

/// When the last of the others had stopped, and when all had summed again.
fn became(entries: &[Entry], at: u64, killed: u32, rest: usize) -> Option<Killed> {
    let mut stopped = BTreeMap::new();
    let mut stepped = BTreeMap::new();
    let old = entries.iter().rev().find(|entry| entry.at < at && entry.name == "active")?;
    let old = old.body["generation"].as_u64()?;
    for entry in entries.iter().filter(|entry| entry.at >= at && entry.process != killed) {
        let generation = entry.body["generation"].as_u64();
        match entry.name.as_str() {
            "stopped" if generation == Some(old) => {
                stopped.entry(entry.process).or_insert(entry.at);
            }
            "step" if generation > Some(old) => {
                stepped.entry(entry.process).or_insert(entry.at);
            }
            _ => {}
        }
    }
    if stopped.len() < rest || stepped.len() < rest {
        return None;
    }
    let last = |times: &BTreeMap<u32, u64>| {
        let last = times.values().max().copied().unwrap_or(at);
        ms(Duration::from_nanos(last - at))
    };
    Some(Killed { stopped: last(&stopped), stepped: last(&stepped) })
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let columns =
        ["ranks", "kills", "until the last has stopped, ms", "until all have summed again, ms"];
    let mut section = Section::new(title, &columns);
    let cluster = Cluster::start(bench, &[]).await?;
    let keys = cluster.keys();
    let (mut puts, mut acquired) = (Vec::new(), Vec::new());
    for ranks in RANKS {
        let mut group = Group::start(bench, &cluster, ranks).await?;
        let (mut stopped, mut stepped) = (Vec::new(), Vec::new());
        for n in 0..bench.effort.rounds * 4 {
            let killed = group.kill(n as u32 % ranks).await?;
            stopped.push(killed.stopped);
            stepped.push(killed.stepped);
        }
        for n in 0..PUTS {
            let begun = Instant::now();
            keys.put(key(n), "x", soon()).await?;
            puts.push(ms(begun.elapsed()));
        }
        section.row([
            ranks.to_string(),
            stopped.len().to_string(),
            spread(&stopped),
            spread(&stepped),
        ]);
        let worst = stopped.iter().copied().fold(0.0, f64::max);
        let what =
            format!("{ranks} ranks: SIGKILL of one, until the last of the others stopped, worst");
        let worst = Duration::from_secs_f64(worst / 1_000.0);
        section.aims.push(Aim::time_at_most(what, worst, TOLD_MAX));
        acquired.extend(group.leave().await?);
    }
    let acquire = Duration::from_nanos(median(acquired) as u64);
    section.aims.push(Aim {
        what: "acquire with the members of before, median".to_owned(),
        aim: format!("≤ {ACQUIRE_MAX:?}"),
        measured: format!("{acquire:?}"),
        met: acquire <= ACQUIRE_MAX,
    });
    section.remark(format!(
        "Ranks are programs of their own behind one agent, in the middle of sums, with a ring among them and one among the \
         first two. From the SIGKILL on: the agent sees the exit, the store revokes the generation and tells, a thread in \
         each rank stops; then they meet in a round, get an id, build the ring, meet again, and sum. For comparison, a put in \
         the same run: {} ms. Acquire with the members of before takes {acquire:?}, and asks nobody.",
        spread(&puts),
    ));
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
