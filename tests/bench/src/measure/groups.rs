//! Many process groups that are formed in the same moment: what that costs the cluster for each
//! group and host.
//!
//! A member does what PyTorch does for a group of NCCL and its store barrier: the first one sets
//! the unique id, the others wait for it and get it; then each counts itself, the last one sets a
//! key, and all wait for that.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use holdfast_api::{NodeId, Scope};
use holdfast_client::{Client, Deadline};
use tokio::task::JoinSet;

use crate::agent::{Agent, KEEPER};
use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::load;
use crate::report::{Aim, Section, number};
use crate::samples::ms;
use crate::wire::Wire;

/// Groups at once; each has a member on every host.
const GROUPS: usize = 64;
/// Hosts, each with one connection to the cluster.
const HOSTS: [usize; 3] = [16, 256, 4_096];
/// Proposals for each group and host. A member's count is a command, and so are the two SETs of a
/// group: 1 + 2 / 16 if each is sent by itself. They come faster than they are committed, and
/// those of one host are sent as one.
const PROPOSALS_MAX: f64 = 0.25;
/// Hosts of a quick run.
const QUICK_HOSTS: usize = 256;
/// Bytes of a unique id.
const ID_BYTES: usize = 128;
/// Longest that all groups may take before the measurement fails.
const FORMED_TIME_MAX: Duration = Duration::from_secs(600);
/// Reads for each group and host, whatever the number of hosts: a member reads once.
const READS_MAX: f64 = 1.05;

/// Hosts with an agent each, and the ranks of one: each is a member of every group.
const AGENTS: usize = 16;
const RANKS: usize = 8;
const MEMBERS: usize = AGENTS * RANKS;
/// For each group and host with an agent, reads and proposals of its eight members: the agent sends
/// as one what comes together.
const SHARED_READS_MAX: f64 = 2.5;
const SHARED_PROPOSALS_MAX: f64 = 1.0;
/// Waits for each group and host while all members wait: one of each member, as no wait is shared,
/// and nothing that is left of earlier ones.
const PARKED_MAX: f64 = RANKS as f64 + 0.25;

const PROPOSALS: &str = "holdfast_server_proposals_committed_total";
const READS: &str = "holdfast_server_reads_total";
const PARKED: &str = "holdfast_waits_parked";

/// Commands that are sent at once, to see whether they go together. They do not before a new
/// cluster has reached its feature level, and its client has asked for it.
const BURST: usize = 16;
const LEVEL_TIME_MAX: Duration = Duration::from_secs(60);
const LEVEL_PAUSE: Duration = Duration::from_millis(100);
/// All waits are parked when so many looks find the same number.
const SAME_LOOKS: usize = 5;
const PARKED_TIME_MAX: Duration = Duration::from_secs(60);

/// One member of one group; answers how often it waited.
async fn form(client: Client, group: usize, host: usize, hosts: usize) -> anyhow::Result<usize> {
    let keys = client.keys(Scope::default());
    let key = |what: &str| format!("{hosts}/{group}/{what}");
    let deadline = Deadline::after(FORMED_TIME_MAX);
    let mut waits = 0;
    if host == 0 {
        keys.put(key("id").as_str(), vec![b'i'; ID_BYTES], deadline).await?;
    } else {
        waits += 1;
        keys.wait(vec![key("id").as_str().into()], deadline).await?;
        let id = keys.get(key("id").as_str(), deadline).await?;
        ensure!(id.is_some(), "an id that was waited for is not there");
    }
    let come = keys.add(key("come").as_str(), 1, deadline).await?;
    if usize::try_from(come)? == hosts {
        keys.put(key("all").as_str(), b"1".to_vec(), deadline).await?;
    }
    waits += 1;
    keys.wait(vec![key("all").as_str().into()], deadline).await?;
    Ok(waits)
}

/// Of a state of the cluster, for each group and host.
struct Cost {
    took: Duration,
    reads: f64,
    waits: f64,
    /// Waits that the nodes hold while all members wait, if that was counted.
    parked: f64,
    proposals: f64,
}

impl Cost {
    fn row(&self, hosts: usize, host: &str, members: usize) -> [String; 8] {
        [
            hosts.to_string(),
            host.to_owned(),
            members.to_string(),
            number(self.reads),
            number(self.waits),
            number(self.parked),
            number(self.proposals),
            number(ms(self.took)),
        ]
    }
}

/// Connects a host, and waits until what it sends at the same time goes as one.
async fn connect(client: Client) -> anyhow::Result<()> {
    let (begun, deadline) = (Instant::now(), Deadline::after(FORMED_TIME_MAX));
    loop {
        let mut adding = JoinSet::new();
        for _ in 0..BURST {
            let keys = client.keys(Scope::default());
            adding.spawn(async move { keys.add("hosts", 1, deadline).await });
        }
        while let Some(added) = adding.join_next().await {
            added??;
        }
        if client.statistics().pipelined > 0 {
            return Ok(());
        }
        ensure!(begun.elapsed() < LEVEL_TIME_MAX, "a client sends each command by itself");
        tokio::time::sleep(LEVEL_PAUSE).await;
    }
}

/// What forming the groups costs where each host is a connection of the client library.
async fn cost(cluster: &Cluster, hosts: usize) -> anyhow::Result<Cost> {
    let leader = cluster.leader().await?;
    let clients: Vec<Client> = (0..hosts).map(|_| cluster.client()).collect();
    let mut connecting = JoinSet::new();
    for client in clients.clone() {
        connecting.spawn(connect(client));
    }
    while let Some(connected) = connecting.join_next().await {
        connected??;
    }
    let before = cluster.metric_now(leader, PROPOSALS).await?;
    let sent = |clients: &[Client]| -> u64 {
        clients.iter().map(|client| client.statistics().reads_sent).sum()
    };
    let (read_before, begun) = (sent(&clients), Instant::now());
    let mut forming = JoinSet::new();
    for (host, client) in clients.iter().enumerate() {
        for group in 0..GROUPS {
            forming.spawn(form(client.clone(), group, host, hosts));
        }
    }
    let waits = all_formed(forming).await?.into_iter().sum::<usize>() as f64;
    let took = begun.elapsed();
    let of_all = (GROUPS * hosts) as f64;
    let proposals = cluster.metric_now(leader, PROPOSALS).await? - before;
    let reads = (sent(&clients) - read_before) as f64;
    let [reads, waits, proposals] = [reads, waits, proposals].map(|count| count / of_all);
    Ok(Cost { took, reads, waits, parked: f64::NAN, proposals })
}

/// What all members answer, once the last has come to its end.
async fn all_formed<T: 'static>(mut forming: JoinSet<anyhow::Result<T>>) -> anyhow::Result<Vec<T>> {
    let formed = async {
        let mut answers = Vec::new();
        while let Some(formed) = forming.join_next().await {
            answers.push(formed??);
        }
        anyhow::Ok(answers)
    };
    let formed = tokio::time::timeout(FORMED_TIME_MAX, formed).await;
    formed.context("groups are not formed")?
}

/// A member of a group, with a connection of its own to the agent of its host.
struct Member {
    group: usize,
    /// Its number in the group.
    member: usize,
    wire: Wire,
    waits: usize,
}

impl Member {
    fn key(&self, what: &str) -> Vec<u8> {
        format!("/{}/{what}", self.group).into_bytes()
    }

    /// The same as [`form`], in the protocol of PyTorch's client.
    async fn form(mut self) -> anyhow::Result<Member> {
        let [id, come, all] = ["id", "come", "all"].map(|what| self.key(what));
        if self.member == 0 {
            self.wire.set(&id, &[b'i'; ID_BYTES]).await?;
        } else {
            self.waits += 1;
            let id = self.wire.get(&id).await?;
            ensure!(id.len() == ID_BYTES, "an id that was waited for is not there");
        }
        if usize::try_from(self.wire.add(&come, 1).await?)? == MEMBERS {
            self.wire.set(&all, b"1").await?;
        }
        self.waits += 1;
        self.wire.ask_wait(&all).await?;
        self.wire.released().await?;
        Ok(self)
    }
}

/// Connects the ranks of a host, for each group anew, once what its agent is asked at the same
/// time goes as one.
async fn connect_ranks(
    cluster: &Cluster,
    leader: NodeId,
    address: &str,
) -> anyhow::Result<Vec<Wire>> {
    let mut wires = load::wires(address, GROUPS * RANKS).await?;
    let begun = Instant::now();
    loop {
        let before = cluster.metric_now(leader, PROPOSALS).await?;
        for wire in &mut wires[..BURST] {
            wire.ask_add(b"/hosts", 1).await?;
        }
        for wire in &mut wires[..BURST] {
            load::within(wire.sum()).await?;
        }
        let proposals = cluster.metric_now(leader, PROPOSALS).await? - before;
        if proposals <= BURST as f64 / 2.0 {
            return Ok(wires);
        }
        ensure!(begun.elapsed() < LEVEL_TIME_MAX, "an agent sends each command by itself");
    }
}

/// Waits that all nodes hold.
async fn waits_parked(cluster: &Cluster) -> anyhow::Result<f64> {
    let mut parked = 0.0;
    for node in cluster.ids() {
        parked += cluster.metric_now(node, PARKED).await?;
    }
    Ok(parked)
}

/// How many waits the nodes hold while each member waits for a key of its group; in the end all are
/// released by `setter`.
async fn park(
    cluster: &Cluster,
    mut members: Vec<Member>,
    setter: &mut Wire,
) -> anyhow::Result<f64> {
    let (before, begun) = (waits_parked(cluster).await?, Instant::now());
    for member in &mut members {
        let key = member.key("later");
        member.wire.ask_wait(&key).await?;
    }
    let (mut parked, mut looks) = (before, 0);
    while looks < SAME_LOOKS || parked == before {
        let now = waits_parked(cluster).await?;
        looks = if now == parked { looks + 1 } else { 0 };
        parked = now;
        if begun.elapsed() > PARKED_TIME_MAX {
            bail!("the nodes hold {before} waits, then {parked}, and it does not stay so");
        }
    }
    for member in members.iter().filter(|member| member.member == 0) {
        setter.set(&member.key("later"), b"1").await?;
    }
    for member in &mut members {
        load::within(member.wire.released()).await?;
    }
    Ok(parked - before)
}

/// What forming the groups costs where each host has an agent, and several members of each group.
async fn cost_at_agents(bench: &Bench, cluster: &mut Cluster) -> anyhow::Result<Cost> {
    let leader = cluster.leader().await?;
    // Renewals of leases are commands, too: rare ones count little.
    let flags = ["--job", "groups", "--run", "r", "--lease-ttl", "60s", KEEPER];
    let (mut agents, mut members) = (Vec::new(), Vec::new());
    for host in 0..AGENTS {
        let agent = Agent::start_with(bench, cluster, &format!("host-{host}"), &flags).await?;
        let wires = connect_ranks(cluster, leader, &agent.address).await?;
        members.extend(wires.into_iter().enumerate().map(|(place, wire)| {
            let member = host * RANKS + place % RANKS;
            Member { group: place / RANKS, member, wire, waits: 0 }
        }));
        agents.push(agent);
    }
    cluster.begin_measuring().await?;
    let read = cluster.metric_now(leader, READS).await?;
    let proposed = cluster.metric(leader, PROPOSALS).await?;
    let (mut forming, begun) = (JoinSet::new(), Instant::now());
    for member in members {
        forming.spawn(member.form());
    }
    let members = all_formed(forming).await?;
    let took = begun.elapsed();
    let reads = cluster.metric_now(leader, READS).await? - read;
    let proposals = cluster.metric(leader, PROPOSALS).await? - proposed;
    let waits = members.iter().map(|member| member.waits).sum::<usize>() as f64;
    let mut setter = Wire::connect(&agents[0].address).await?;
    let parked = park(cluster, members, &mut setter).await?;
    drop(setter);
    for agent in agents {
        agent.end().await?;
    }
    let of_all = (GROUPS * AGENTS) as f64;
    let [reads, waits, parked, proposals] =
        [reads, waits, parked, proposals].map(|count| count / of_all);
    Ok(Cost { took, reads, waits, parked, proposals })
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let columns = [
        "hosts",
        "a host is",
        "members",
        "reads per group and host",
        "waits per group and host",
        "of them at once",
        "proposals per group and host",
        "all formed after ms",
    ];
    let mut section = Section::new(title, &columns);
    let cluster = Cluster::start(bench, &[]).await?;
    for hosts in HOSTS {
        if bench.quick && hosts > QUICK_HOSTS {
            continue;
        }
        let cost = cost(&cluster, hosts).await?;
        section.row(cost.row(hosts, "a connection", hosts * GROUPS));
        let what = |counted: &str| format!("{counted} per group and host, {hosts} hosts");
        section.aims.push(Aim::ratio_at_most(what("reads"), cost.reads, READS_MAX));
        section.aims.push(Aim::ratio_at_most(what("proposals"), cost.proposals, PROPOSALS_MAX));
    }
    cluster.remark_elections(&mut section).await?;
    drop(cluster);
    let mut cluster = Cluster::start(bench, &[]).await?;
    let cost = cost_at_agents(bench, &mut cluster).await?;
    let host = format!("an agent with {RANKS} ranks");
    section.row(cost.row(AGENTS, &host, MEMBERS * GROUPS));
    for (counted, measured, bound) in [
        ("reads", cost.reads, SHARED_READS_MAX),
        ("waits at once", cost.parked, PARKED_MAX),
        ("proposals", cost.proposals, SHARED_PROPOSALS_MAX),
    ] {
        let what = format!("{counted} per group and host, {AGENTS} agents with {RANKS} ranks each");
        section.aims.push(Aim::ratio_at_most(what, measured, bound));
    }
    section.remark(
        "A member reads once, waits twice and counts once, on any number of hosts; what its host sends at the same time is \
         one proposal. Reads above 1 for a connection are those that were sent again.",
    );
    section.remark(format!(
        "A connection is one of the client library, with one member in each of the groups. An agent is a process with its \
         keeper; each of its {RANKS} ranks is a member of each group, over a connection of its own. Those ranks share reads \
         that are asked together, and no waits: the nodes hold one for each member that waits, which was counted afterwards, \
         while all members waited for a key of their group.",
    ));
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
