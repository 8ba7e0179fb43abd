//! `holdfast-store dev`: a whole cluster on this machine, as child processes.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::dial;

/// Longest time for a new cluster to be ready.
const READY_TIME_MAX: Duration = Duration::from_secs(60);

/// Most nodes: more teach nothing new on one machine.
const NODES_MAX: u16 = 9;

/// Flags of `holdfast-store dev`.
#[derive(Debug, Clone, Args)]
pub struct DevArgs {
    /// How many nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=i64::from(NODES_MAX)))]
    nodes: u16,
    /// Folder for the nodes' folders; kept, so that a second start finds the same cluster
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// The nodes listen on the ports behind this one
    #[arg(long, default_value_t = 21000, value_name = "PORT")]
    base_port: u16,
    /// Arguments for each node, after --
    #[arg(last = true, value_name = "SERVE-FLAGS")]
    extra: Vec<String>,
}

/// Runs the cluster until Ctrl-C or SIGTERM.
pub async fn run(args: DevArgs) -> anyhow::Result<()> {
    if args.base_port > u16::MAX - NODES_MAX {
        bail!("--base-port {} leaves no room for {} nodes", args.base_port, args.nodes);
    }
    let address = |id: u16| format!("127.0.0.1:{}", args.base_port + id);
    let nodes: Vec<String> = (1..=args.nodes).map(|id| format!("{id}={}", address(id))).collect();
    let addresses: Vec<String> = (1..=args.nodes).map(address).collect();
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut terminations = signal(SignalKind::terminate())?;

    let mut children: JoinSet<(u16, std::io::Result<std::process::ExitStatus>)> = JoinSet::new();
    let mut pids = Vec::new();
    for id in 1..=args.nodes {
        let (child, command) = start(&args, id, &address(id), &nodes.join(","))?;
        let pid = child.id().context("a child ended at once")?;
        println!("node {id}: pid {pid}, {}", address(id));
        pids.push((id, pid, command));
        let mut child = child;
        children.spawn(async move { (id, child.wait().await) });
    }
    println!("HOLDFAST_STORE={}", addresses.join(","));
    println!("export it, then try: holdfast status    (Ctrl-C here stops the cluster)");

    let mut running = pids.len();
    let mut failed = false;
    let ready = wait_ready(addresses.clone());
    let mut ready = std::pin::pin!(ready);
    let mut announced = false;
    loop {
        tokio::select! {
            is_ready = &mut ready, if !announced => {
                announced = true;
                if is_ready {
                    println!("ready");
                } else {
                    eprintln!("no leader after {READY_TIME_MAX:?}; see the messages above");
                }
            }
            Some(Ok((id, status))) = children.join_next() => {
                running -= 1;
                failed = true;
                let how = status.map_or_else(|e| e.to_string(), |status| status.to_string());
                eprintln!("node {id} ended: {how}");
                if let Some((.., command)) = pids.iter().find(|(node, ..)| *node == id) {
                    eprintln!("start it again with: {command}");
                }
                pids.retain(|(node, ..)| *node != id);
                if running == 0 {
                    bail!("all nodes have ended");
                }
            }
            _ = interrupts.recv() => break,
            _ = terminations.recv() => break,
        }
    }
    eprintln!("stopping {running} nodes");
    for (_, pid, _) in &pids {
        let pid = i32::try_from(*pid).context("a pid is an i32")?;
        // It may have received the terminal's own signal and be gone already.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    while let Some(ended) = children.join_next().await {
        let (id, status) = ended?;
        if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
            eprintln!("node {id} did not stop cleanly: {status:?}");
            failed = true;
        }
    }
    if failed {
        bail!("not every node ran until it was told to stop");
    }
    Ok(())
}

fn start(args: &DevArgs, id: u16, address: &str, initial: &str) -> anyhow::Result<(Child, String)> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let data_dir = args.data_dir.join(format!("node-{id}"));
    let mut arguments = vec![
        "serve".to_owned(),
        "--node-id".to_owned(),
        id.to_string(),
        "--data-dir".to_owned(),
        data_dir.display().to_string(),
        "--listen".to_owned(),
        address.to_owned(),
        "--initial-cluster".to_owned(),
        initial.to_owned(),
    ];
    arguments.extend(args.extra.iter().cloned());
    let child = Command::new(&program)
        .args(&arguments)
        .stdin(Stdio::null())
        // Ctrl-C is for this process; it stops the nodes in its own way.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    Ok((child, format!("{} {}", program.display(), arguments.join(" "))))
}

/// Whether any node becomes ready in time.
async fn wait_ready(addresses: Vec<String>) -> bool {
    let asking = async {
        loop {
            for address in &addresses {
                let asked = dial::request(
                    address,
                    http::Method::GET,
                    holdfast_api::routes::READYZ,
                    http::HeaderMap::new(),
                    bytes::Bytes::new(),
                    Duration::from_secs(2),
                );
                if asked.await.is_ok_and(|(status, ..)| status.is_success()) {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(READY_TIME_MAX, asking).await.is_ok()
}
