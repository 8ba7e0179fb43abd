//! Barriers through the TCPStore door, from the last arrival to the last
//! release.

use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::task::JoinSet;

use crate::agent::Agent;
use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::load::{self, within};
use crate::peer::torch::Torch;
use crate::report::{Aim, Section, number};
use crate::samples::{Samples, ms};
use crate::wire::Wire;

const PARTIES: [usize; 2] = [64, 256];
/// The aim for barriers as PyTorch makes them, of as many as are there: at most this many
/// times as long as with PyTorch's own server.
const RATIO_MAX: f64 = 1.5;
/// All but the last have arrived by then.
const SETTLE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy)]
enum Shape {
    /// The operation BARRIER, all at once.
    Storm,
    /// The operation BARRIER; all wait, then the last arrives.
    Straggler,
    /// ADD, SET and WAIT, as PyTorch's prefix store does it, all at once.
    AddSetWait,
    /// All but one WAIT for a key, then one SETs it.
    SetWait,
}

impl Shape {
    const ALL: [Shape; 4] = [Shape::Storm, Shape::Straggler, Shape::AddSetWait, Shape::SetWait];

    fn name(self) -> &'static str {
        match self {
            Shape::Storm => "BARRIER, all arrive at once",
            Shape::Straggler => "BARRIER, one arrives when the others wait",
            Shape::AddSetWait => "ADD, SET, WAIT, all arrive at once",
            Shape::SetWait => "SET to the last of those who WAIT",
        }
    }

    async fn once(self, wires: &mut Vec<Wire>, round: usize) -> anyhow::Result<Duration> {
        let parties = wires.len();
        let key = format!("/{}-{parties}-{round}", self as usize);
        match self {
            Shape::Storm => {
                let begun = Instant::now();
                arrive(wires, &key, parties).await?;
                released(wires).await?;
                Ok(begun.elapsed())
            }
            Shape::Straggler => {
                let (last, others) = wires.split_last_mut().context("no connections")?;
                arrive(others, &key, parties).await?;
                tokio::time::sleep(SETTLE).await;
                let begun = Instant::now();
                arrive(std::slice::from_mut(last), &key, parties).await?;
                released(wires).await?;
                Ok(begun.elapsed())
            }
            Shape::AddSetWait => add_set_wait(wires, &key).await,
            Shape::SetWait => {
                let (setter, waiters) = wires.split_last_mut().context("no connections")?;
                for wire in waiters.iter_mut() {
                    wire.ask_wait(key.as_bytes()).await?;
                }
                tokio::time::sleep(SETTLE).await;
                let begun = Instant::now();
                setter.set(key.as_bytes(), b"1").await?;
                released(waiters).await?;
                Ok(begun.elapsed())
            }
        }
    }
}

async fn arrive(wires: &mut [Wire], key: &str, parties: usize) -> anyhow::Result<()> {
    for wire in wires {
        wire.ask_barrier(key.as_bytes(), parties as i64).await?;
    }
    Ok(())
}

async fn released(wires: &mut [Wire]) -> anyhow::Result<()> {
    for wire in wires {
        within(wire.released()).await?;
    }
    Ok(())
}

async fn add_set_wait(wires: &mut Vec<Wire>, key: &str) -> anyhow::Result<Duration> {
    let parties = wires.len() as i64;
    let mut arriving = JoinSet::new();
    let begun = Instant::now();
    for mut wire in wires.drain(..) {
        let (members, last) = (format!("{key}/num_members"), format!("{key}/last_member"));
        arriving.spawn(within(async move {
            if wire.add(members.as_bytes(), 1).await? == parties {
                wire.set(last.as_bytes(), b"1").await?;
            }
            wire.ask_wait(last.as_bytes()).await?;
            wire.released().await?;
            Ok(wire)
        }));
    }
    while let Some(wire) = arriving.join_next().await {
        wires.push(wire.context("a party ended abnormally")??);
    }
    Ok(begun.elapsed())
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let mut cluster = Cluster::start(bench, &[]).await?;
    let agent = Agent::start(bench, &cluster).await?;
    let torch = Torch::start(bench, cluster.folder()).await?;
    cluster.begin_measuring().await?;
    let columns = [
        "shape",
        "connections",
        "p50 ms",
        "worst ms",
        "PyTorch's server p50 ms",
        "worst ms",
        "ratio of p50",
    ];
    let mut section = Section::new(title, &columns);
    for parties in PARTIES {
        let mut ours = load::wires(&agent.address, parties).await?;
        let mut theirs = match &torch {
            Some(torch) => Some(load::wires(&torch.address, parties).await?),
            None => None,
        };
        for shape in Shape::ALL {
            let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
            for round in 0..bench.effort.barriers {
                our_times.push(shape.once(&mut ours, round).await?);
                if let Some(theirs) = &mut theirs {
                    their_times.push(shape.once(theirs, round).await?);
                }
            }
            let (ours, theirs) = (Samples::from(our_times), Samples::from(their_times));
            let of = |samples: &Samples, value: fn(&Samples) -> Duration| match samples.is_empty() {
                true => f64::NAN,
                false => ms(value(samples)),
            };
            let ratio = of(&ours, Samples::p50) / of(&theirs, Samples::p50);
            if torch.is_some() && parties == PARTIES[1] && matches!(shape, Shape::AddSetWait) {
                let what =
                    format!("barrier of {parties} as PyTorch makes it, p50 against its own server");
                section.aims.push(Aim::ratio_at_most(what, ratio, RATIO_MAX));
            }
            section.row([
                shape.name().to_owned(),
                parties.to_string(),
                number(of(&ours, Samples::p50)),
                number(of(&ours, Samples::max)),
                number(of(&theirs, Samples::p50)),
                number(of(&theirs, Samples::max)),
                number(ratio),
            ]);
        }
    }
    agent.end().await?;
    section.remark(
        "All connections belong to one process, the load; with one process each, waking them up would come on top, on \
         both sides. PyTorch's server neither syncs nor replicates.",
    );
    if torch.is_none() {
        section.remark(Torch::missing(bench));
    }
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
