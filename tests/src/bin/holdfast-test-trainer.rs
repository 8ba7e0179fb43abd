//! A program that is attached to the agent of its host, driven line by line.
//!
//! ```text
//! holdfast-test-trainer PROCESS            joins; then, line by line:
//!     roll NAME    "rolled NAME MEMBERS", or "failed NAME CODE TEXT"
//!     fence        "fence GENERATION", or "fence none"
//!     ping, progress N, paused MS, critical MS, free
//!     leave        "left", and ends
//!              "silent MS" when the agent says so
//! holdfast-test-trainer PROCESS --child    joins; a child holds its socket
//! holdfast-test-trainer PROCESS --watchdog SOFT,HARD,GRACE     in milliseconds
//! ```

use std::path::{Path, PathBuf};
use std::process::Command as Program;
use std::time::Duration;

use holdfast_api::{Among, Command, Nonce, Outcome, ProcessCommand, ProcessOutcome, Role};
use holdfast_client::Deadline;
use holdfast_tests::link::{Heard, RawLink};
use holdfast_trainer_shim::{CONTROL_VARIABLE, Hook, Host, Join, Process, Wanted, Watchdog};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How long the agent may take, and a former incarnation may last.
const PATIENCE: Duration = Duration::from_secs(60);

/// Well below the limits that tests set.
const HEARTBEAT_MS: u64 = 100;

/// How long a child outlives the program that shares its socket.
const CHILD_SECONDS: &str = "120";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let process: u32 = arguments.next().and_then(|n| n.parse().ok()).expect("PROCESS");
    let control = PathBuf::from(std::env::var_os(CONTROL_VARIABLE).expect("HOLDFAST_CONTROL"));
    let mut watchdog = Watchdog::default();
    match arguments.next().as_deref() {
        Some("--child") => return with_child(&control, process),
        Some("--watchdog") => {
            let limits = arguments.next().expect("SOFT,HARD,GRACE");
            let mut limits = limits.split(',').map(|ms| ms.parse::<u64>().expect("milliseconds"));
            watchdog.heartbeat_ms = HEARTBEAT_MS;
            watchdog.soft_ms = limits.next();
            watchdog.hard_ms = limits.next();
            watchdog.grace_ms = limits.next().expect("GRACE");
        }
        _ => {}
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(obey(&control, process, watchdog));
}

async fn obey(control: &Path, process: u32, watchdog: Watchdog) {
    let host = match Host::attach(control, Wanted::default(), PATIENCE).await {
        Ok(host) => host,
        Err(error) => return println!("refused {} {error}", error.code()),
    };
    let patience = Some(Deadline::after(PATIENCE));
    let on_silence = Some(Hook::new(|silence| println!("silent {}", silence.silent_ms)));
    let process = Some(process);
    let join = Join { process, patience, watchdog, on_silence, ..Join::default() };
    let process = host.join(join).await.expect("a registration");
    println!("joined {}", process.incarnation());
    let (give, mut orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lines();
        lines.map_while(Result::ok).try_for_each(|line| give.send(line))
    });
    let (mut rolls, mut sections) = (JoinSet::new(), Vec::new());
    while let Some(order) = orders.recv().await {
        match order.split_once(' ').unwrap_or((&order, "")) {
            ("roll", name) => {
                rolls.spawn(roll(process.clone(), name.to_owned()));
            }
            ("fence", _) => match process.fence(1) {
                Ok(fence) => println!("fence {}", fence.generation),
                Err(_) => println!("fence none"),
            },
            ("ping", _) => process.ping(),
            ("progress", to) => process.progress(to.parse().expect("a number")),
            ("paused", ms) => sections.push(process.paused(milliseconds(ms))),
            ("critical", ms) => sections.push(process.critical(milliseconds(ms))),
            ("free", _) => sections.clear(),
            ("leave", _) => {
                process.leave().await.expect("an end");
                return println!("left");
            }
            _ => println!("what? {order}"),
        }
    }
}

fn milliseconds(text: &str) -> Duration {
    Duration::from_millis(text.parse().expect("milliseconds"))
}

async fn roll(process: Process, name: String) {
    match process.live_processes(&name, Among::Active, Deadline::never()).await {
        Ok(live) => {
            let members: Vec<String> = live.members.iter().map(|(p, _)| p.to_string()).collect();
            println!("rolled {name} {}", members.join(","));
        }
        Err(error) => println!("failed {name} {} {error}", error.code()),
    }
}

/// Joins by hand, and gives the socket to a child as well.
fn with_child(control: &Path, process: u32) {
    let mut link = RawLink::open(control).expect("an agent");
    let register = ProcessCommand::Register {
        lease: link.lease(),
        process: Some(process),
        nonce: Nonce(u64::from(std::process::id()), 1),
        replaces: 0,
        takeover: false,
        role: Role::Active,
        labels: Default::default(),
        policy: Default::default(),
    };
    let answer = match link.propose(1, Command::Process(register)) {
        Ok(Heard::Answer { answer, .. }) => answer,
        other => panic!("{other:?}"),
    };
    let Outcome::Process(ProcessOutcome::Registered { incarnation, .. }) = answer.outcome else {
        panic!("{answer:?}")
    };
    let socket = std::os::fd::OwnedFd::from(link.stream().expect("a socket"));
    let mut child = Program::new("sleep").arg(CHILD_SECONDS).stdin(socket).spawn().expect("sleep");
    println!("joined {incarnation} {}", child.id());
    child.wait().expect("a child");
}
