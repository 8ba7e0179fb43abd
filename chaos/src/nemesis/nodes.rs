//! Processes killed, paused, restarted and starved.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use holdfast_api::NodeId;
use nix::sys::signal::Signal;
use rand::{Rng, RngExt};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{Injected, Nemesis, Stage, Wound};
use crate::clock;
use crate::cluster::Start;
use crate::cluster::http::{self, Request};
use crate::cluster::tcpstore::{MAGIC, op};

const DOWN: Duration = Duration::from_millis(1_500);
/// A leader: it comes back before the next one is elected, or after that.
const DOWN_LEADER_MS: std::ops::Range<u64> = 50..1_000;
/// All of them: from less to more than a call of a client lasts, 5 s.
const DOWN_ALL_MS: std::ops::Range<u64> = 1_000..7_000;
/// Below the shortest election timeout of the defaults, 300 ms.
const PAUSE_BRIEF: Duration = Duration::from_millis(200);
/// Beyond the longest, 500 ms.
const PAUSE: Duration = Duration::from_secs(3);
const STARVED: Duration = Duration::from_secs(3);
/// Descriptors of a node that is to run out of them.
const DESCRIPTORS: usize = 600;
/// So many are all of them: a few come and go.
const DESCRIPTORS_TAKEN: usize = 590;
/// Connections that the fault opens to it.
const CONNECTIONS: usize = 700;
/// Bound on each of them.
const CONNECT_TIME_MAX: Duration = Duration::from_millis(50);
/// Values that take more memory than a node has: how large, how many, how long each may take.
const LARGE_BYTES: usize = 8 * 1024 * 1024;
const LARGE_PUTS_MAX: usize = 8;
const LARGE_TIME_MAX: Duration = Duration::from_secs(2);
/// The job and the key that they are put to.
const MEMORY: &str = "chaos-memory";
/// Message of a node that gets no more, among this many last lines.
const NO_MEMORY: &str = "memory allocation of";
const LAST_LINES: usize = 20;
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Connections with garbage for each port.
const GARBAGE_CONNECTIONS: usize = 8;
/// Bytes on each of them.
const GARBAGE_BYTES: usize = 4_096;

pub(super) async fn strike(nemesis: Nemesis, stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    match nemesis {
        Nemesis::KillLeader => {
            let leader = stage.leader().await?;
            let hold = Duration::from_millis(stage.random.random_range(DOWN_LEADER_MS));
            let killed = kill(stage, vec![leader]).await?;
            Ok(Injected { hold, ..killed })
        }
        Nemesis::KillFollower => {
            let follower = stage.follower().await?;
            kill(stage, vec![follower]).await
        }
        Nemesis::KillAll => {
            let hold = Duration::from_millis(stage.random.random_range(DOWN_ALL_MS));
            let killed = kill(stage, stage.cluster.ids()).await?;
            Ok(Injected { hold, ..killed })
        }
        Nemesis::PauseLeaderBriefly => {
            let leader = stage.leader().await?;
            pause(stage, leader, PAUSE_BRIEF).await
        }
        Nemesis::PauseLeader => {
            let leader = stage.leader().await?;
            pause(stage, leader, PAUSE).await
        }
        Nemesis::PauseFollower => {
            let follower = stage.follower().await?;
            pause(stage, follower, PAUSE).await
        }
        Nemesis::RollingRestart => rolling_restart(stage).await,
        Nemesis::KillClients => kill_clients(stage).await,
        Nemesis::Garbage => garbage(stage).await,
        Nemesis::Descriptors => starve(stage).await,
        Nemesis::NoMemory => take_memory(stage).await,
        other => anyhow::bail!("{} is not a fault of a process", other.as_str()),
    }
}

impl Stage<'_> {
    /// A node that runs and does not lead.
    pub(super) async fn follower(&mut self) -> anyhow::Result<NodeId> {
        let leader = match self.led {
            Some(led) => led,
            None => self.leader().await?,
        };
        let followers: Vec<NodeId> =
            self.cluster.running().into_iter().filter(|id| *id != leader).collect();
        anyhow::ensure!(!followers.is_empty(), "there is no follower");
        Ok(followers[self.random.random_range(0..followers.len())])
    }

    /// A node that runs.
    pub(super) fn any(&mut self) -> anyhow::Result<NodeId> {
        let ids = self.cluster.running();
        anyhow::ensure!(!ids.is_empty(), "no node runs");
        Ok(ids[self.random.random_range(0..ids.len())])
    }
}

async fn kill(stage: &mut Stage<'_>, ids: Vec<NodeId>) -> anyhow::Result<Injected> {
    let struck = Some(clock::now());
    let all = kill_all(stage, &ids).await?;
    let evidence = all.then(|| format!("{} ended by signal 9", ids.len()));
    let what = format!("killed {}", names(&ids));
    Ok(Injected { what, evidence, wound: Wound::Down(ids), hold: DOWN, struck })
}

/// Kills nodes at the same moment; answers whether the system reports all as killed.
pub(super) async fn kill_all(stage: &mut Stage<'_>, ids: &[NodeId]) -> anyhow::Result<bool> {
    // All of them first: the system reports their ends afterwards.
    for id in ids {
        stage.cluster.process(*id)?.signal(Signal::SIGKILL)?;
    }
    let mut all = true;
    for id in ids {
        all &= stage.cluster.kill(*id).await?.signal() == Some(9);
    }
    Ok(all)
}

async fn pause(stage: &mut Stage<'_>, id: NodeId, hold: Duration) -> anyhow::Result<Injected> {
    let struck = Some(clock::now());
    let stopped = stage.cluster.pause(id).await?;
    let evidence = stopped.then(|| "the system showed it as stopped".to_owned());
    let what = format!("paused node {id} for {} ms", hold.as_millis());
    Ok(Injected { what, evidence, wound: Wound::Paused(id), hold, struck })
}

async fn rolling_restart(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let ids = stage.cluster.ids();
    let mut clean = 0;
    for id in &ids {
        let status = stage.cluster.stop(*id).await?;
        clean += usize::from(status.success());
        stage.cluster.launch(*id)?;
        stage.settle().await?;
    }
    anyhow::ensure!(clean == ids.len(), "{clean} of {} nodes ended with exit code 0", ids.len());
    let evidence = Some(format!("{clean} nodes ended with exit code 0 and came back"));
    let what = format!("restarted {}, one after the other", names(&ids));
    Ok(Injected { what, evidence, wound: Wound::Healed, hold: Duration::ZERO, struck: None })
}

async fn kill_clients(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let killed = stage.shared.kill_half().await;
    let evidence = (killed > 0).then(|| format!("{killed} clients lost a call"));
    let what = "killed clients in the middle of their calls".to_owned();
    Ok(Injected { what, evidence, wound: Wound::Healed, hold: Duration::ZERO, struck: None })
}

async fn garbage(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    // Far enough into each protocol to reach its messages.
    let upgrade = |address: &String| {
        format!(
            "GET {} HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: {}\r\n\r\n",
            holdfast_api::routes::STREAM,
            holdfast_api::stream::UPGRADE
        )
    };
    let validate = [&[op::VALIDATE][..], &MAGIC.to_le_bytes()].concat();
    let nodes = stage.cluster.addresses().into_iter().map(|it| (upgrade(&it).into_bytes(), it));
    let agents = stage.cluster.agent_addresses().into_iter().map(|it| (validate.clone(), it));
    let doors: Vec<(Vec<u8>, String)> = nodes.chain(agents).collect();
    let (mut sent, mut ports) = (0, 0);
    for (head, address) in &doors {
        let before = sent;
        for n in 0..GARBAGE_CONNECTIONS {
            let mut bytes = vec![0_u8; GARBAGE_BYTES];
            stage.random.fill_bytes(&mut bytes);
            if n & 1 == 1 {
                bytes.splice(0..0, head.iter().copied());
            }
            if let Ok(mut stream) = TcpStream::connect(address).await
                && stream.write_all(&bytes).await.is_ok()
            {
                sent += bytes.len();
            }
        }
        ports += usize::from(sent > before);
    }
    let evidence =
        (ports == doors.len()).then(|| format!("{ports} ports took {sent} bytes in all"));
    let what = "sent random bytes to every port".to_owned();
    Ok(Injected {
        what,
        evidence,
        wound: Wound::Healed,
        hold: Duration::from_millis(500),
        struck: None,
    })
}

/// Restarts a node with few descriptors, and takes as many of them as it gives.
async fn starve(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let id = stage.any()?;
    stage.cluster.kill(id).await?;
    let start = Start { descriptors: Some(DESCRIPTORS), ..Start::default() };
    stage.cluster.launch_with(id, start)?;
    stage.cluster.wait_alive(id).await?;
    if stage.led.is_none() {
        stage.cluster.wait_healthy().await?;
    }
    let address = stage.cluster.address(id)?.to_owned();
    let pid = stage.cluster.process(id)?.identity().pid;
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        let connecting = tokio::time::timeout(CONNECT_TIME_MAX, TcpStream::connect(&address));
        if let Ok(Ok(mut stream)) = connecting.await
            && stream.write_all(b"GET /livez HTTP/1.1\r\n").await.is_ok()
        {
            held.push(stream);
        }
    }
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    let evidence = match open >= DESCRIPTORS_TAKEN {
        true => Some(format!("{open} of its {DESCRIPTORS} descriptors were taken")),
        false => (!http::is_alive(&address).await).then(|| {
            format!("{open} of its {DESCRIPTORS} descriptors were taken, and a further connection was not served")
        }),
    };
    let what = format!(
        "restarted node {id} with {DESCRIPTORS} descriptors, and held {} connections",
        held.len()
    );
    Ok(Injected { what, evidence, wound: Wound::Unusual(id, held), hold: STARVED, struck: None })
}

/// Gives a node no more memory than it has, and sends it what takes more.
async fn take_memory(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let id = stage.any()?;
    let struck = Some(clock::now());
    let address = stage.cluster.address(id)?.to_owned();
    stage.cluster.limit_memory(id)?;
    let what = format!("gave node {id} no more memory, and sent it large values");
    let body = json!({"job": MEMORY, "key": MEMORY, "value": "m".repeat(LARGE_BYTES)}).to_string();
    let mut evidence = None;
    for _ in 0..LARGE_PUTS_MAX {
        let (path, body) = ("/v1/kv/put", body.clone());
        let request = Request { method: "POST", path, body, ..Request::default() };
        // The answer does not matter: the node may end before it has one.
        let _ = http::send(&address, &request, LARGE_TIME_MAX).await;
        tokio::time::sleep(LOOK_EVERY).await;
        if let Some(end) = stage.cluster.end_of(id) {
            let log = std::fs::read_to_string(stage.cluster.log(id)).unwrap_or_default();
            let is_said = log.lines().rev().take(LAST_LINES).any(|line| line.contains(NO_MEMORY));
            evidence =
                is_said.then(|| format!("node {id} got no more memory, and ended with {end}"));
            break;
        }
    }
    Ok(Injected { what, evidence, wound: Wound::Limited(id), hold: DOWN, struck })
}

/// Names nodes for people: `node 1`, or `nodes 1, 2`.
pub(super) fn names(ids: &[NodeId]) -> String {
    let list: Vec<String> = ids.iter().map(ToString::to_string).collect();
    match ids.len() {
        1 => format!("node {}", list[0]),
        _ => format!("nodes {}", list.join(", ")),
    }
}
