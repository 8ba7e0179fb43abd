//! `holdfast-store dev`: a whole cluster on this machine, as child processes.
//!
//! | module | holds |
//! | --- | --- |
//! | [`folder`] | what an earlier start left in the cluster's folder |
//! | [`lines`] | output of the nodes, each line with its node's name |
//! | [`ports`] | holders of the ports that the cluster needs |

pub mod folder;
pub mod lines;
pub mod ports;

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, FromArgMatches};
use futures::future::join_all;
use holdfast_api::NodeId;
use holdfast_api::variables::{Mistyped, mistyped};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::access::Access;
use crate::authority;
use crate::config::ServeArgs;
use crate::dial;
use crate::formation::ask_identity;
use crate::recurring::Recurring;
use crate::storage::identity;
use folder::Shape;
use lines::Printer;

/// Time after which nodes that are not ready are reported.
const EXPLAIN_AFTER: Duration = Duration::from_secs(10);

/// Pause between two readiness checks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long a node may take to answer.
const ASK_TIME_MAX: Duration = Duration::from_secs(2);

/// Most nodes: more teach nothing new on one machine.
const NODES_MAX: u16 = 9;

/// How long certificates are valid; each start makes them anew.
const CERTIFICATE_DAYS: u32 = 90;

/// Flags of `holdfast-store dev`.
#[derive(Debug, Clone, Args)]
pub struct DevArgs {
    /// Run this many nodes [default: those of the folder, or 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(NODES_MAX)))]
    nodes: Option<u16>,
    /// Keep the nodes' folders in this folder; a second start finds the same cluster there
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Listen on the ports after this one [default: that of the folder, or 21000]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(0..=i64::from(u16::MAX - NODES_MAX)))]
    base_port: Option<u16>,
    /// Speak TLS, with certificates in the folder `tls` of --data-dir, made if missing
    #[arg(long)]
    tls: bool,
    /// Pass these arguments to each node; they go after --
    #[arg(last = true, value_name = "SERVE-FLAGS")]
    extra: Vec<String>,
}

type Children = JoinSet<(u16, std::io::Result<ExitStatus>)>;

/// A node that was started.
struct Started {
    id: u16,
    pid: u32,
    command: String,
}

impl DevArgs {
    /// Checks the arguments after `--` for each node; returns the access for talking
    /// to the nodes.
    pub fn check(&self) -> Result<Access, String> {
        let shape = Shape { nodes: 1, base_port: self.base_port.unwrap_or_default() };
        let arguments = ["serve".to_owned()].into_iter().chain(self.of_node(shape, 1, false));
        let serve = ServeArgs::augment_args(clap::Command::new("serve"));
        let unfit = |error: clap::Error| error.to_string().trim_start_matches("error: ").to_owned();
        let matches = serve.try_get_matches_from(arguments).map_err(unfit)?;
        let merged = ServeArgs::from_arg_matches(&matches).map_err(unfit)?;
        merged.merge().map(|options| options.access).map_err(|error| error.to_string())
    }

    /// The flags of a node.
    fn of_node(&self, shape: Shape, id: u16, tls: bool) -> Vec<String> {
        let nodes = (1..=shape.nodes).map(|id| format!("{id}={}", shape.address(id)));
        let mut arguments = vec![
            "--node-id".to_owned(),
            id.to_string(),
            "--data-dir".to_owned(),
            folder::of_node(&self.data_dir, id).display().to_string(),
            "--listen".to_owned(),
            shape.address(id),
            "--initial-cluster".to_owned(),
            nodes.collect::<Vec<_>>().join(","),
        ];
        if tls {
            arguments
                .extend(authority::flags(&authority::of_node(&self.certificates(), id.into())));
        }
        arguments.extend(self.extra.iter().cloned());
        arguments
    }

    /// Where the certificates are.
    fn certificates(&self) -> PathBuf {
        self.data_dir.join("tls")
    }

    /// The same access, with certificates if they are wanted and exist.
    fn with_tls(&self, access: &Access) -> anyhow::Result<Access> {
        let first = authority::of_node(&self.certificates(), 1);
        if !self.tls || !first.exists() {
            return Ok(access.clone());
        }
        Ok(access.clone().with_tls(authority::paths(&first).read()?))
    }
}

/// Runs the cluster until Ctrl-C or SIGTERM.
pub async fn run(mut args: DevArgs, access: Access) -> anyhow::Result<()> {
    let held = folder::held(&args.data_dir)?;
    let asked = (args.nodes, args.base_port);
    let shape = folder::decide(&args.data_dir, held.as_ref(), asked).map_err(anyhow::Error::msg)?;
    let by_now = args.with_tls(&access)?;
    if let Some(taken) = ports::taken(shape, &by_now).await {
        let cluster_id = held.as_ref().map(|held| &*held.cluster_id);
        bail!(ports::refusal(&args.data_dir, shape, cluster_id, &taken));
    }
    if held.is_none() {
        folder::note(&args.data_dir, shape)?;
    }
    if args.tls {
        args.data_dir = std::path::absolute(&args.data_dir)?;
        let nodes = (1..=shape.nodes).map(|id| (NodeId::from(id), shape.address(id)));
        authority::make(&args.certificates(), &nodes.collect(), &[], CERTIFICATE_DAYS)?;
    }
    let access = args.with_tls(&access)?;
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut terminations = signal(SignalKind::terminate())?;

    let printer = Printer::start()?;
    let mut children = Children::new();
    let mut started = Vec::new();
    for id in 1..=shape.nodes {
        let (child, command) = start(&args, shape, id)?;
        let pid = child.id().context("a child ended at once")?;
        println!("node {id}: pid {pid}, {}", shape.address(id));
        started.push(Started { id, pid, command });
        children.spawn(watch(id, child, printer.clone()));
    }
    let addresses: Vec<String> = (1..=shape.nodes).map(|id| shape.address(id)).collect();
    println!("HOLDFAST_STORE={}", addresses.join(","));
    if args.tls {
        println!("HOLDFAST_TLS_CA={}", args.certificates().join("client/ca.crt").display());
    }
    println!("export it, then try: holdfast status    (Ctrl-C here stops the cluster)");

    let mut failed = false;
    let mut wrong = None;
    let mut ready = std::pin::pin!(wait_ready(&args.data_dir, shape, &access));
    let mut announced = false;
    loop {
        tokio::select! {
            found = &mut ready, if !announced => {
                announced = true;
                if let Err(why) = found {
                    wrong = Some(why);
                    break;
                }
                folder::note(&args.data_dir, shape)?;
                println!("ready");
            }
            Some(Ok((id, status))) = children.join_next() => {
                failed = true;
                let how = status.map_or_else(|e| e.to_string(), |status| status.to_string());
                eprintln!("node {id} ended: {how}");
                if let Some(Started { command, .. }) = started.iter().find(|node| node.id == id) {
                    eprintln!("start it again with: {command}");
                }
                started.retain(|node| node.id != id);
                if started.is_empty() {
                    printer.finish();
                    bail!("all nodes have ended");
                }
            }
            _ = interrupts.recv() => break,
            _ = terminations.recv() => break,
        }
    }
    failed |= stop(&started, children).await?;
    printer.finish();
    if let Some(wrong) = wrong {
        bail!(wrong);
    }
    if failed {
        bail!("a node ended by itself, or did not stop cleanly; see its lines above");
    }
    Ok(())
}

/// Stops the nodes; returns whether one of them failed to stop cleanly.
async fn stop(started: &[Started], mut children: Children) -> anyhow::Result<bool> {
    eprintln!("stopping {} nodes", started.len());
    for Started { pid, .. } in started {
        let pid = i32::try_from(*pid).context("a pid is an i32")?;
        // It may have received the terminal's own signal and be gone already.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    let mut failed = false;
    while let Some(ended) = children.join_next().await {
        let (id, status) = ended?;
        if !status.as_ref().is_ok_and(ExitStatus::success) {
            eprintln!("node {id} did not stop cleanly: {status:?}");
            failed = true;
        }
    }
    Ok(failed)
}

fn start(args: &DevArgs, shape: Shape, id: u16) -> anyhow::Result<(Child, String)> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let arguments = args.of_node(shape, id, args.tls);
    let mut command = Command::new(&program);
    for Mistyped { name, .. } in mistyped(std::env::vars_os()) {
        // It was reported already.
        command.env_remove(name);
    }
    let child = command
        .arg("serve")
        .args(&arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C is for this process; it stops the nodes in its own way.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    Ok((child, format!("{} serve {}", program.display(), arguments.join(" "))))
}

/// Copies a node's output until it ends.
async fn watch(id: u16, mut child: Child, printer: Printer) -> (u16, std::io::Result<ExitStatus>) {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (status, (), ()) =
        tokio::join!(child.wait(), printer.follow(id, out), printer.follow(id, err));
    (id, status)
}

/// Returns once all nodes are ready; reports at intervals which are not. Fails if
/// they can never become ready.
async fn wait_ready(dir: &Path, shape: Shape, access: &Access) -> Result<(), String> {
    let (began, mut explained) = (Instant::now(), Recurring::repeating());
    loop {
        let looks = (1..=shape.nodes).map(|id| look(dir, shape, id, access));
        let mut missing = Vec::new();
        for (id, found) in (1..).zip(join_all(looks).await) {
            match found {
                Found::Ready => {}
                Found::NotReady(why) => missing.push(format!("node {id} is not ready: {why}")),
                Found::Misplaced(why) => return Err(why),
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        if began.elapsed() > EXPLAIN_AFTER && explained.met(&missing, Instant::now()) {
            eprintln!("{}", missing.join("\n"));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Result of a readiness check.
enum Found {
    Ready,
    NotReady(String),
    Misplaced(String),
}

/// Whether the node of this folder, and no other, is ready at its address.
async fn look(dir: &Path, shape: Shape, id: u16, access: &Access) -> Found {
    let address = shape.address(id);
    let who = match ask_identity(access, &address, ASK_TIME_MAX).await {
        Ok(who) => who,
        Err(error) => return Found::NotReady(error.to_string()),
    };
    let own = match identity::read(&folder::of_node(dir, id)) {
        Ok(own) => own.map(|own| own.cluster_id),
        Err(error) => return Found::NotReady(error.to_string()),
    };
    if who.node != NodeId::from(id) || who.cluster_id != own {
        return Found::NotReady(format!("another node answers at {address}"));
    }
    if let Some(why) = folder::misplaced(dir, shape, &who.members) {
        return Found::Misplaced(why);
    }
    match not_ready(access, &address).await {
        None => Found::Ready,
        Some(why) => Found::NotReady(why),
    }
}

/// Why the node at this address is not ready; none if it is.
async fn not_ready(access: &Access, address: &str) -> Option<String> {
    let asked = dial::request(
        access.tls(),
        address,
        http::Method::GET,
        holdfast_api::routes::READYZ,
        http::HeaderMap::new(),
        bytes::Bytes::new(),
        ASK_TIME_MAX,
    );
    match asked.await {
        Ok((status, ..)) if status.is_success() => None,
        Ok((_, _, body)) => {
            let body = String::from_utf8_lossy(&body).into_owned();
            let failed = body.lines().find_map(|line| line.strip_prefix("[-]"));
            Some(failed.unwrap_or("it does not say why").to_owned())
        }
        Err(error) => Some(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(extra: &[&str]) -> DevArgs {
        let extra = extra.iter().map(|word| (*word).to_owned()).collect();
        DevArgs { tls: false, nodes: None, data_dir: "d".into(), base_port: Some(3_000), extra }
    }

    #[test]
    fn what_no_node_would_understand_is_found_before_one_is_started() {
        assert!(args(&["--heartbeat", "100ms"]).check().is_ok());
        let unknown = args(&["--heartbaet", "100ms"]).check().unwrap_err();
        assert!(unknown.contains("--heartbaet") && unknown.contains("--heartbeat"), "{unknown}");
        let wrong = args(&["--election-max", "1ms"]).check().unwrap_err();
        assert!(wrong.contains("election"), "{wrong}");
    }
}
