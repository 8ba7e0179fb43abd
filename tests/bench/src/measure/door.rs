//! Operations per second through the TCPStore door.

use std::sync::Arc;
use std::time::Duration;

use super::throughput::{Costed, costed};
use crate::agent::Agent;
use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::load::{self, DoorAdd, DoorCheck, DoorSetGet, Load, SharedWire, closed_loop};
use crate::peer::torch::Torch;
use crate::report::{Aim, Section, number};
use crate::samples::median;
use crate::wire::Wire;

/// Connections that have an operation in flight.
const LEVELS: [usize; 4] = [1, 32, 64, 256];

/// Operations per second against those of PyTorch's own server, which are aimed at.
const AIMS: [(Operation, usize, f64); 4] = [
    (Operation::Add, 32, 0.25),
    (Operation::Add, 256, 0.5),
    (Operation::SetGet, 256, 0.4),
    (Operation::Check, 64, 0.6),
];

/// Processor time that an ADD may take at a number of connections: of agent and nodes
/// together.
const ADD_COST: (usize, Duration) = (32, Duration::from_micros(35));

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Add,
    SetGet,
    Check,
}

impl Operation {
    const ALL: [Operation; 3] = [Operation::Add, Operation::SetGet, Operation::Check];

    fn name(self) -> &'static str {
        match self {
            Operation::Add => "ADD",
            Operation::SetGet => "SET + WAIT + GET",
            Operation::Check => "CHECK",
        }
    }

    async fn load(
        self,
        wires: &[SharedWire],
        in_flight: usize,
        bench: &Bench,
    ) -> anyhow::Result<Load> {
        let wires = wires.iter().take(in_flight).cloned();
        match self {
            Operation::Add => closed_loop(wires.map(DoorAdd).collect(), &bench.effort).await,
            Operation::SetGet => closed_loop(wires.map(DoorSetGet).collect(), &bench.effort).await,
            Operation::Check => closed_loop(wires.map(DoorCheck).collect(), &bench.effort).await,
        }
    }
}

fn shared(wires: Vec<Wire>) -> Vec<SharedWire> {
    wires.into_iter().map(|wire| Arc::new(tokio::sync::Mutex::new(wire))).collect()
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let mut cluster = Cluster::start(bench, &[]).await?;
    let agent = Agent::start(bench, &cluster).await?;
    let torch = Torch::start(bench, cluster.folder()).await?;
    cluster.begin_measuring().await?;
    let plan: Vec<(Operation, usize)> = Operation::ALL
        .into_iter()
        .flat_map(|operation| LEVELS.map(|level| (operation, level)))
        .collect();
    let mut ours: Vec<Vec<Costed>> = plan.iter().map(|_| Vec::new()).collect();
    let mut theirs: Vec<Vec<Costed>> = plan.iter().map(|_| Vec::new()).collect();
    let our_wires = shared(load::wires(&agent.address, LEVELS[3]).await?);
    let their_wires = match &torch {
        Some(torch) => shared(load::wires(&torch.address, LEVELS[3]).await?),
        None => Vec::new(),
    };
    let servers = || anyhow::Ok(cluster.cpu()? + agent.child.cpu()?);
    for _ in 0..bench.effort.rounds {
        for (place, (operation, in_flight)) in plan.iter().enumerate() {
            let load = operation.load(&our_wires, *in_flight, bench);
            ours[place].push(costed(servers, load).await?);
            if let Some(torch) = &torch {
                let load = operation.load(&their_wires, *in_flight, bench);
                theirs[place].push(costed(|| torch.child.cpu(), load).await?);
            }
        }
    }
    let columns = [
        "operation",
        "connections",
        "per second",
        "p50 ms",
        "p99 ms",
        "servers' CPU s per 10k",
        "PyTorch's server per second",
        "p50 ms",
        "ratio of per second",
        "ratio of p50",
    ];
    let mut section = Section::new(title, &columns);
    for (place, (operation, connections)) in plan.iter().enumerate() {
        let [_, _, _, per_second, p50, p99, cpu, _] =
            super::throughput::line("", 0, 0, &ours[place]);
        let [_, _, _, their_per_second, their_p50, ..] =
            super::throughput::line("", 0, 0, &theirs[place]);
        let ratio = |of: fn(&Costed) -> f64| {
            let rounds = ours[place].iter().zip(&theirs[place]);
            median(rounds.map(|(ours, theirs)| of(ours) / of(theirs)))
        };
        let speed = ratio(Costed::per_second);
        let mine = |aim: &&(Operation, usize, f64)| (aim.0, aim.1) == (*operation, *connections);
        for (_, _, bound) in AIMS.iter().filter(mine).filter(|_| torch.is_some()) {
            let what = format!("{} at {connections}, per second", operation.name());
            section.aims.push(Aim::ratio_at_least(what, speed, *bound));
        }
        if (*operation, *connections) == (Operation::Add, ADD_COST.0) {
            let cost = ours[place].iter().map(|of| of.servers_each().as_secs_f64());
            let what = format!("servers' processor time for an ADD at {connections}");
            let cost = Duration::from_secs_f64(median(cost));
            section.aims.push(Aim::micros_at_most(what, cost, ADD_COST.1));
        }
        section.row([
            operation.name().to_owned(),
            connections.to_string(),
            per_second,
            p50,
            p99,
            cpu,
            their_per_second,
            their_p50,
            number(speed),
            number(ratio(|of| Duration::as_secs_f64(&of.p50()))),
        ]);
    }
    section.remark(
        "The servers are three nodes and the agent. PyTorch's server is one process that keeps its keys in memory, \
         alone: it syncs nothing, replicates nothing, and loses everything with its process.",
    );
    if torch.is_none() {
        section.remark(Torch::missing(bench));
    }
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
