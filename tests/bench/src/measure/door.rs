//! Operations per second through the TCPStore door.

use std::sync::Arc;
use std::time::Duration;

use super::throughput::{Costed, costed, line};
use crate::agent::Agent;
use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::load::{self, DoorAdd, DoorCheck, DoorSetGet, Load, SharedWire, closed_loop};
use crate::peer::torch::Torch;
use crate::report::{Aim, Section, number};
use crate::samples::median;

/// Connections that have an operation in flight.
const LEVELS: [usize; 4] = [1, 32, 64, 256];

/// Operations per second against those of PyTorch's own server, which are aimed at.
const AIMS: [(Operation, usize, f64); 4] = [
    (Operation::Add, 32, 0.25),
    (Operation::Add, 256, 0.5),
    (Operation::SetGet, 256, 0.4),
    (Operation::Check, 64, 0.6),
];

/// Shapes that are also measured with an agent that has no keeper.
const ALONE: [(Operation, usize); 3] =
    [(Operation::Add, 32), (Operation::Add, 256), (Operation::Check, 64)];

/// Processor time that an ADD may take at a number of connections: of keeper, agent and
/// nodes together.
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

/// A server of the protocol, and the connections that load it.
struct Door {
    agent: Agent,
    wires: Vec<SharedWire>,
}

impl Door {
    async fn open(agent: Agent) -> anyhow::Result<Door> {
        let wires = wires(&agent.address).await?;
        Ok(Door { agent, wires })
    }

    async fn close(self) -> anyhow::Result<()> {
        drop(self.wires);
        self.agent.end().await
    }
}

/// Opens the connections to a server, which has all keys then.
async fn wires(address: &str) -> anyhow::Result<Vec<SharedWire>> {
    let mut wires = load::wires(address, LEVELS[3]).await?;
    load::fill_door(&mut wires[0]).await?;
    Ok(wires.into_iter().map(|wire| Arc::new(tokio::sync::Mutex::new(wire))).collect())
}

/// An operation over a number of connections, and its rounds.
struct Shape {
    operation: Operation,
    connections: usize,
    /// Through an agent with a keeper, as `holdfast-agent run` has one.
    kept: Vec<Costed>,
    /// Through one without.
    alone: Vec<Costed>,
    /// With PyTorch's own server.
    theirs: Vec<Costed>,
}

impl Shape {
    fn all() -> Vec<Shape> {
        let shape = |operation, connections| Shape {
            operation,
            connections,
            kept: Vec::new(),
            alone: Vec::new(),
            theirs: Vec::new(),
        };
        let of = |operation| LEVELS.map(|connections| shape(operation, connections));
        Operation::ALL.into_iter().flat_map(of).collect()
    }

    fn is(&self, operation: Operation, connections: usize) -> bool {
        (self.operation, self.connections) == (operation, connections)
    }

    fn is_also_alone(&self) -> bool {
        ALONE.iter().any(|(operation, connections)| self.is(*operation, *connections))
    }

    async fn load(&self, wires: &[SharedWire], bench: &Bench) -> anyhow::Result<Load> {
        self.operation.load(wires, self.connections, bench).await
    }

    /// A row of the table; `what` is added to the operation's name.
    fn row(&self, what: &str, ours: &[Costed]) -> [String; 10] {
        let [_, _, _, per_second, p50, p99, cpu, _] = line("", 0, 0, ours);
        let [_, _, _, their_per_second, their_p50, ..] = line("", 0, 0, &self.theirs);
        [
            format!("{}{what}", self.operation.name()),
            self.connections.to_string(),
            per_second,
            p50,
            p99,
            cpu,
            their_per_second,
            their_p50,
            number(ratio(ours, &self.theirs, Costed::per_second)),
            number(ratio(ours, &self.theirs, |of| of.p50().as_secs_f64())),
        ]
    }

    /// The aims for it, of the agent with a keeper.
    fn aims(&self) -> Vec<Aim> {
        let (name, connections) = (self.operation.name(), self.connections);
        let mut aims = Vec::new();
        let mine = |aim: &&(Operation, usize, f64)| self.is(aim.0, aim.1);
        for (_, _, bound) in AIMS.iter().filter(mine).filter(|_| !self.theirs.is_empty()) {
            let speed = ratio(&self.kept, &self.theirs, Costed::per_second);
            let what = format!("{name} at {connections}, per second");
            aims.push(Aim::ratio_at_least(what, speed, *bound));
        }
        if self.is(Operation::Add, ADD_COST.0) {
            let cost = Duration::from_secs_f64(median(self.kept.iter().map(cost)));
            let what = format!("servers' processor time for an ADD at {connections}");
            aims.push(Aim::micros_at_most(what, cost, ADD_COST.1));
        }
        aims
    }
}

/// Seconds of the servers' processors for one operation.
fn cost(of: &Costed) -> f64 {
    of.servers_each().as_secs_f64()
}

/// The median ratio of rounds that ran side by side.
fn ratio(ours: &[Costed], theirs: &[Costed], of: fn(&Costed) -> f64) -> f64 {
    median(ours.iter().zip(theirs).map(|(ours, theirs)| of(ours) / of(theirs)))
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let mut cluster = Cluster::start(bench, &[]).await?;
    let kept = Door::open(Agent::start(bench, &cluster).await?).await?;
    let alone = Door::open(Agent::start_alone(bench, &cluster).await?).await?;
    let torch = Torch::start(bench, cluster.folder()).await?;
    let their_wires = match &torch {
        Some(torch) => wires(&torch.address).await?,
        None => Vec::new(),
    };
    cluster.begin_measuring().await?;
    let mut shapes = Shape::all();
    for round in 0..bench.effort.rounds {
        for shape in &mut shapes {
            // Neither agent is always the first.
            for has_keeper in [round % 2 == 0, round % 2 == 1] {
                if !has_keeper && !shape.is_also_alone() {
                    continue;
                }
                let door = if has_keeper { &kept } else { &alone };
                let servers = || anyhow::Ok(cluster.cpu()? + door.agent.cpu()?);
                let costed = costed(servers, shape.load(&door.wires, bench)).await?;
                let found = if has_keeper { &mut shape.kept } else { &mut shape.alone };
                found.push(costed);
            }
            if let Some(torch) = &torch {
                let load = shape.load(&their_wires, bench);
                let costed = costed(|| torch.child.cpu(), load).await?;
                shape.theirs.push(costed);
            }
        }
    }
    kept.close().await?;
    alone.close().await?;
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
    for shape in &shapes {
        section.aims.extend(shape.aims());
        section.row(shape.row("", &shape.kept));
        if shape.is_also_alone() {
            section.row(shape.row(", agent without a keeper", &shape.alone));
        }
    }
    for shape in shapes.iter().filter(|shape| shape.is_also_alone()) {
        section.remark(format!(
            "{} at {}, without a keeper against with one: {}× as many per second, {}× the servers' processor time.",
            shape.operation.name(),
            shape.connections,
            number(ratio(&shape.alone, &shape.kept, Costed::per_second)),
            number(ratio(&shape.alone, &shape.kept, cost)),
        ));
    }
    section.remark(
        "The servers are three nodes, the agent and its keeper, which `holdfast-agent run` gives each agent. PyTorch's server \
         is one process that keeps its keys in memory, alone: it syncs nothing, replicates nothing, and loses everything with \
         its process.",
    );
    if torch.is_none() {
        section.remark(Torch::missing(bench));
    }
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
