//! The failover matrix: the cost of each fault, by the host that it hits.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use holdfast_api::{Blob, NodeId, Scope};
use holdfast_client::Keys;
use holdfast_tests::{Cluster, Disk, Host, Names, Network, binaries, soon};
use rand::RngExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::arguments::Bench;
use crate::report::{Section, number};
use crate::samples::{Samples, ms};

/// Puts are begun this often, for a while from the fault on; the worst one counts.
const PUT_EVERY: Duration = Duration::from_millis(10);
const PUTS_LAST: Duration = Duration::from_millis(1_500);
/// Ranks that are blocked in a wait when the fault comes.
const BLOCKED: usize = 8;
/// A calm time before each fault, drawn each time, so that faults do not fall in step
/// with heartbeats.
const CALM_MS: std::ops::Range<u64> = 400..700;
/// Descriptors of each node, and idle connections that take them all.
const DESCRIPTORS: usize = 600;
const CONNECTIONS: usize = 700;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Killed,
    Paused,
    Lost,
    Deaf,
    Mute,
    DiskStalled,
    DescriptorsExhausted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Leader,
    Follower,
    Link,
}

const NODE_FAULTS: [Fault; 7] = [
    Fault::Killed,
    Fault::Paused,
    Fault::Lost,
    Fault::Deaf,
    Fault::Mute,
    Fault::DiskStalled,
    Fault::DescriptorsExhausted,
];
const LINK_FAULTS: [Fault; 3] = [Fault::Lost, Fault::Deaf, Fault::Mute];

impl Fault {
    fn name(self, role: Role) -> &'static str {
        match (self, role) {
            (Fault::Killed, _) => "process killed",
            (Fault::Paused, _) => "paused",
            (Fault::Lost, Role::Link) => "cut",
            (Fault::Lost, _) => "host lost",
            (Fault::Deaf, Role::Link) => "nothing reaches the client",
            (Fault::Deaf, _) => "deaf: nothing reaches it",
            (Fault::Mute, Role::Link) => "nothing leaves the client",
            (Fault::Mute, _) => "mute: nothing leaves it",
            (Fault::DiskStalled, _) => "disk stalled",
            (Fault::DescriptorsExhausted, _) => "descriptors exhausted",
        }
    }
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Leader => "leader",
            Role::Follower => "a follower",
            Role::Link => "a client's link to the leader",
        }
    }
}

/// Three hosts with a node each, and their disks.
struct Field {
    hosts: [Host; 3],
    cluster: Cluster,
    disks: Option<Vec<Disk>>,
    /// Idle connections to the node that runs out of descriptors.
    idle: Vec<TcpStream>,
}

impl Field {
    async fn new(network: &mut Network, disks: Option<Vec<Disk>>) -> Field {
        // Hosts see what was mounted before them.
        let hosts: [Host; 3] = network.hosts(Names::Real);
        let mut cluster = Cluster::plan_on(&hosts, &[]);
        for (id, disk) in (1..).zip(disks.iter().flatten()) {
            cluster.set_data_dir(id, disk.path().join("data"));
        }
        let mut field = Field { hosts, cluster, disks, idle: Vec::new() };
        for id in field.cluster.ids() {
            field.launch(id);
        }
        field.cluster.wait_all_ready().await;
        field
    }

    fn launch(&mut self, id: NodeId) {
        let mut command = self.cluster.command(id);
        command.arg("--insecure");
        let command = binaries::with_descriptors(&command, DESCRIPTORS);
        self.cluster.launch_as(id, command);
    }

    fn host(&self, id: NodeId) -> &Host {
        &self.hosts[id as usize - 1]
    }

    /// All hosts but that of this node.
    fn others(&self, id: NodeId) -> impl Iterator<Item = &Host> {
        (1..).zip(&self.hosts).filter(move |(other, _)| *other != id).map(|(_, host)| host)
    }

    async fn inject(&mut self, network: &Network, fault: Fault, role: Role, id: NodeId) {
        let (own, address) = (Network::own_address(), self.host(id).address());
        match (fault, role) {
            (Fault::Killed, _) => self.cluster.kill(id),
            (Fault::Paused, _) => self.cluster.pause(id),
            (Fault::Lost, Role::Link) => {
                network.lose_what_goes_to(address);
                self.host(id).lose_what_goes_to(own);
            }
            (Fault::Lost, _) => self.host(id).cut_off(),
            (Fault::Deaf, Role::Link) => self.host(id).lose_what_goes_to(own),
            (Fault::Mute, Role::Link) => network.lose_what_goes_to(address),
            (Fault::Deaf, _) => {
                network.lose_what_goes_to(address);
                self.others(id).for_each(|other| other.lose_what_goes_to(address));
            }
            (Fault::Mute, _) => {
                let all: Vec<Ipv4Addr> = self.others(id).map(Host::address).chain([own]).collect();
                all.into_iter().for_each(|other| self.host(id).lose_what_goes_to(other));
            }
            (Fault::DiskStalled, _) => self.disk(id).stall(),
            (Fault::DescriptorsExhausted, _) => {
                for _ in 0..CONNECTIONS {
                    self.idle.extend(TcpStream::connect(self.cluster.address(id)).await);
                }
            }
        }
    }

    async fn heal(&mut self, network: &Network, fault: Fault, role: Role, id: NodeId) {
        let (own, address) = (Network::own_address(), self.host(id).address());
        match (fault, role) {
            (Fault::Killed, _) => self.launch(id),
            (Fault::Paused, _) => self.cluster.resume(id),
            (Fault::Lost, Role::Link) => {
                network.reach_again(address);
                self.host(id).reach_again(own);
            }
            (Fault::Lost, _) => self.host(id).plug_in(),
            (Fault::Deaf, Role::Link) => self.host(id).reach_again(own),
            (Fault::Mute, Role::Link) => network.reach_again(address),
            (Fault::Deaf, _) => {
                network.reach_again(address);
                self.others(id).for_each(|other| other.reach_again(address));
            }
            (Fault::Mute, _) => {
                let all: Vec<Ipv4Addr> = self.others(id).map(Host::address).chain([own]).collect();
                all.into_iter().for_each(|other| self.host(id).reach_again(other));
            }
            (Fault::DiskStalled, _) => self.disk(id).go_on(),
            (Fault::DescriptorsExhausted, _) => self.idle.clear(),
        }
        self.cluster.wait_all_ready().await;
    }

    fn disk(&self, id: NodeId) -> &Disk {
        &self.disks.as_ref().expect("asked for only where there are some")[id as usize - 1]
    }
}

/// How long the worst put took, and the last blocked rank until it went on.
struct Cost {
    put: Duration,
    rank: Duration,
}

/// Makes a fault once.
async fn suffer(
    network: &Network,
    field: &mut Field,
    (fault, role): (Fault, Role),
    number: usize,
) -> anyhow::Result<Cost> {
    let calm = Duration::from_millis(rand::rng().random_range(CALM_MS));
    tokio::time::sleep(calm).await;
    let (follower, leader) = field.cluster.follower_and_leader().await;
    let id = if role == Role::Follower { follower } else { leader };
    let key = format!("go-{number}");
    let keys = field.cluster.client().keys(Scope::default());
    keys.put("warm", "1", soon()).await?;
    let mut blocked = JoinSet::new();
    for _ in 0..BLOCKED {
        let (rank, key) = (field.cluster.client().keys(Scope::default()), key.clone());
        blocked.spawn(async move {
            let until = vec![Blob::from(key.into_bytes())];
            rank.wait(until, soon()).await.map(|_| Instant::now())
        });
    }
    tokio::time::sleep(calm).await;
    field.inject(network, fault, role, id).await;
    let at = Instant::now();
    let put = worst_put(&keys, &key, at).await;
    let mut rank = Duration::ZERO;
    while let Some(went_on) = blocked.join_next().await {
        let went_on = went_on.context("a rank ended abnormally")??;
        rank = rank.max(went_on - at);
    }
    field.heal(network, fault, role, id).await;
    Ok(Cost { put: put?, rank })
}

/// The worst of the puts that are begun from `at` on; the first writes the key
/// that ranks wait for.
async fn worst_put(keys: &Keys, awaited: &str, at: Instant) -> anyhow::Result<Duration> {
    let mut puts = JoinSet::new();
    let mut ticks = tokio::time::interval(PUT_EVERY);
    let mut key = awaited.to_owned();
    while at.elapsed() < PUTS_LAST {
        let (keys, own) = (keys.clone(), std::mem::replace(&mut key, "other".to_owned()));
        let begun = Instant::now();
        puts.spawn(
            async move { keys.put(own.as_str(), "v", soon()).await.map(|_| begun.elapsed()) },
        );
        ticks.tick().await;
    }
    let mut worst = Duration::ZERO;
    while let Some(took) = puts.join_next().await {
        worst = worst.max(took.context("a put ended abnormally")??);
    }
    Ok(worst)
}

type Row = (Fault, Role, Vec<Cost>);

async fn measure(
    network: &mut Network,
    times: usize,
    disks: Option<Vec<Disk>>,
) -> anyhow::Result<Vec<Row>> {
    let mut field = Field::new(network, disks).await;
    let mut rows = Vec::new();
    let cells = [Role::Leader, Role::Follower]
        .into_iter()
        .flat_map(|role| NODE_FAULTS.map(|fault| (fault, role)))
        .chain(LINK_FAULTS.map(|fault| (fault, Role::Link)));
    let mut number = 0;
    for (fault, role) in cells {
        if fault == Fault::DiskStalled && field.disks.is_none() {
            continue;
        }
        let mut costs = Vec::new();
        for _ in 0..times {
            number += 1;
            costs.push(suffer(network, &mut field, (fault, role), number).await?);
        }
        rows.push((fault, role, costs));
    }
    Ok(rows)
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let columns = [
        "fault",
        "of",
        "times",
        "worst put, median ms",
        "worst ms",
        "last blocked rank, median ms",
        "worst ms",
    ];
    let mut section = Section::new(title, &columns);
    if std::env::var("HOLDFAST_HOSTS").as_deref() != Ok("yes") {
        section.remark("**SKIPPED**: it needs network namespaces; `tests/prepare hosts` says whether there are any here.");
        return Ok(section);
    }
    let (times, folder) = (bench.effort.faults, bench.folder()?);
    let place = folder.path().to_owned();
    let measuring = move || {
        let disk = |id: u64| Disk::new(place.join(format!("disk-{id}")));
        let disks: Option<Vec<Disk>> = (1..=3).map(disk).collect();
        let mut rows = Err(anyhow!("there is no network of hosts"));
        Network::test(async |network| rows = measure(network, times, disks).await);
        rows
    };
    let rows = tokio::task::spawn_blocking(measuring).await.context("measuring the matrix")??;
    let stalls = rows.iter().any(|(fault, ..)| *fault == Fault::DiskStalled);
    for (fault, role, costs) in rows {
        let of =
            |one: fn(&Cost) -> Duration| Samples::from(costs.iter().map(one).collect::<Vec<_>>());
        let (puts, ranks) = (of(|cost| cost.put), of(|cost| cost.rank));
        section.row([
            fault.name(role).to_owned(),
            role.name().to_owned(),
            times.to_string(),
            number(ms(puts.p50())),
            number(ms(puts.max())),
            number(ms(ranks.p50())),
            number(ms(ranks.max())),
        ]);
    }
    section.remark(format!(
        "Default timings; a host for each node, in network namespaces, and one for the clients. Of puts that are begun every 10 ms in the \
         1.5 s from the fault on, the slowest; and {BLOCKED} clients that were blocked in a wait for a key that the first of these \
         puts writes. A fault of the link is between the clients' host and the leader alone. Descriptors: {CONNECTIONS} idle \
         connections to a node that may have {DESCRIPTORS}."
    ));
    if !stalls {
        section.remark("**SKIPPED**: stalled disks; this user may not mount file systems.");
    }
    Ok(section)
}
