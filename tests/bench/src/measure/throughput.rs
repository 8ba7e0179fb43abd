//! Operations per second through the client library.

use std::time::Duration;

use holdfast_client::Keys;

use super::LEVELS;
use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::load::{self, AddShared, Get, Load, Put, closed_loop};
use crate::machine;
use crate::report::{Section, number, spread};
use crate::samples::{median, ms};

/// Clients in the rows that show what one connection costs.
const CLIENTS: usize = 6;

/// A load with what it cost.
pub(super) struct Costed {
    load: Load,
    servers: Duration,
    clients: Duration,
}

impl Costed {
    /// The median of the latencies.
    pub(super) fn p50(&self) -> Duration {
        self.load.latencies.p50()
    }

    /// Processor time of the servers for one operation.
    pub(super) fn servers_each(&self) -> Duration {
        self.servers.div_f64(self.load.operations as f64)
    }

    /// Operations answered per second.
    pub(super) fn per_second(&self) -> f64 {
        self.load.per_second
    }
}

/// The columns of [`fn@line`].
pub(super) const COLUMNS: [&str; 8] = [
    "operation",
    "in flight",
    "connections",
    "per second",
    "p50 ms",
    "p99 ms",
    "servers' CPU s per 10k",
    "clients' CPU s per 10k",
];

/// One line of the table from the rounds of one load.
pub(super) fn line(what: &str, in_flight: usize, connections: usize, of: &[Costed]) -> [String; 8] {
    let values = |value: fn(&Costed) -> f64| of.iter().map(value).collect::<Vec<_>>();
    let per_10k = |cpu: Duration, load: &Load| cpu.as_secs_f64() * 1e4 / load.operations as f64;
    [
        what.to_owned(),
        in_flight.to_string(),
        connections.to_string(),
        spread(&values(|of| of.load.per_second)),
        number(median(values(|of| ms(of.load.latencies.p50())))),
        number(median(values(|of| ms(of.load.latencies.p99())))),
        number(median(of.iter().map(|of| per_10k(of.servers, &of.load)))),
        number(median(of.iter().map(|of| per_10k(of.clients, &of.load)))),
    ]
}

/// Runs a load and reads what it cost.
pub(super) async fn costed(
    servers: impl Fn() -> anyhow::Result<Duration>,
    load: impl Future<Output = anyhow::Result<Load>>,
) -> anyhow::Result<Costed> {
    let before = (servers()?, machine::cpu_of_this()?);
    let load = load.await?;
    let after = (servers()?, machine::cpu_of_this()?);
    Ok(Costed { load, servers: after.0 - before.0, clients: after.1 - before.1 })
}

#[derive(Clone, Copy)]
enum Operation {
    Put,
    Get,
    AddShared,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Operation::Put => "put",
            Operation::Get => "get, linearizable",
            Operation::AddShared => "add, all to one counter",
        }
    }

    async fn load(self, clients: &[Keys], in_flight: usize, bench: &Bench) -> anyhow::Result<Load> {
        let effort = &bench.effort;
        let each = clients.iter().cloned().cycle().take(in_flight);
        match self {
            Operation::Put => closed_loop(each.map(Put).collect(), effort).await,
            Operation::Get => closed_loop(each.map(Get).collect(), effort).await,
            Operation::AddShared => closed_loop(each.map(AddShared).collect(), effort).await,
        }
    }
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let cluster = Cluster::start(bench, &[]).await?;
    let clients: Vec<Keys> = (0..CLIENTS).map(|_| cluster.keys()).collect();
    load::fill(&clients[0]).await?;
    let mut plan = Vec::new();
    for operation in [Operation::Put, Operation::Get] {
        plan.extend(LEVELS.map(|level| (operation, level, 1)));
        plan.extend([64, 256].map(|level| (operation, level, CLIENTS)));
    }
    plan.push((Operation::AddShared, 64, 1));
    let mut found: Vec<Vec<Costed>> = plan.iter().map(|_| Vec::new()).collect();
    for _ in 0..bench.effort.rounds {
        for (place, (operation, in_flight, connections)) in plan.iter().enumerate() {
            let load = operation.load(&clients[..*connections], *in_flight, bench);
            found[place].push(costed(|| cluster.cpu(), load).await?);
        }
    }
    let mut section = Section::new(title, &COLUMNS);
    for ((operation, in_flight, connections), of) in plan.iter().zip(&found) {
        section.row(line(operation.name(), *in_flight, *connections, of));
    }
    section.remark(
        "Keys of 16 bytes, values of 128, 10,000 different keys, synced on a majority before the answer. \
         Clients and servers share the cores: what clients use is missing to the servers.",
    );
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
