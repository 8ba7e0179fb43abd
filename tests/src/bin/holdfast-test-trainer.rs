//! A program that is attached to the agent of its host, driven line by line.
//!
//! ```text
//! holdfast-test-trainer PROCESS            joins; then, line by line:
//!     roll NAME    "rolled NAME MEMBERS", or "failed NAME CODE TEXT"
//!     fence        "fence GENERATION", or "fence none"
//!     leave        "left", and ends
//! holdfast-test-trainer PROCESS --child    joins; a child holds its socket
//! ```

use std::path::{Path, PathBuf};
use std::process::Command as Program;
use std::time::Duration;

use holdfast_api::{Command, Nonce, Outcome, ProcessCommand, ProcessOutcome, Role};
use holdfast_client::Deadline;
use holdfast_tests::link::{Heard, RawLink};
use holdfast_trainer_shim::{CONTROL_VARIABLE, Host, Join, Process, Wanted};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How long the agent may take, and a former life may last.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a child outlives the program whose socket it holds.
const CHILD_SECONDS: &str = "120";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let process: u32 = arguments.next().and_then(|n| n.parse().ok()).expect("PROCESS");
    let control = PathBuf::from(std::env::var_os(CONTROL_VARIABLE).expect("HOLDFAST_CONTROL"));
    if arguments.next().as_deref() == Some("--child") {
        return with_child(&control, process);
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(obey(&control, process));
}

async fn obey(control: &Path, process: u32) {
    let host = match Host::attach(control, Wanted::default(), PATIENCE).await {
        Ok(host) => host,
        Err(error) => return println!("refused {} {error}", error.code()),
    };
    let patience = Some(Deadline::after(PATIENCE));
    let join = Join { process: Some(process), patience, ..Join::default() };
    let process = host.join(join).await.expect("a registration");
    println!("joined {}", process.incarnation());
    let (give, mut orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lines();
        lines.map_while(Result::ok).try_for_each(|line| give.send(line))
    });
    let mut rolls = JoinSet::new();
    while let Some(order) = orders.recv().await {
        match order.split_once(' ').unwrap_or((&order, "")) {
            ("roll", name) => {
                rolls.spawn(roll(process.clone(), name.to_owned()));
            }
            ("fence", _) => match process.fence(1) {
                Some(fence) => println!("fence {}", fence.generation),
                None => println!("fence none"),
            },
            ("leave", _) => {
                process.leave().await.expect("an end");
                return println!("left");
            }
            _ => println!("what? {order}"),
        }
    }
}

async fn roll(process: Process, name: String) {
    match process.live_processes(&name, Deadline::never()).await {
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
