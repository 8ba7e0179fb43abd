//! Programs and launchers as others publish them, under `run` with a store of their own: on Holdfast
//! where their Python has the wheel; named, and what to do instead, where it has not.

use std::path::{Path, PathBuf};

use holdfast_tests::job::TORCHRUN;
use holdfast_tests::python::{script, without_wheel};
use holdfast_tests::{Agent, Cluster, Job, Script, Torch, binaries};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Every part stands in the line.
fn assert_says(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part:?} is missing in: {line}");
    }
}

/// A folder for the orders of PyTorch's tutorial of DDP.
fn orders(cluster: &Cluster) -> PathBuf {
    let folder = cluster.folder().join("orders");
    std::fs::create_dir(&folder).expect("the folder is ours");
    folder
}

/// The words of `python ddp_tutorial.py FOLDER`.
fn tutorial(torch: &Torch, folder: &Path) -> [String; 3] {
    let program = script("ddp_tutorial.py");
    [torch.python.as_path(), &program, folder].map(|word| word.display().to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn pytorchs_tutorial_of_ddp_is_on_holdfast_where_its_python_has_the_wheel() {
    let Some(torch) = Torch::with_package() else { return };
    let mut cluster = Cluster::start(3).await;
    let folder = orders(&cluster);
    let mut agent = binaries::command("holdfast-agent");
    agent.args(["run", "--store", &cluster.list(), "--job", "tutorial", "--"]);
    agent.args(tutorial(&torch, &folder));
    let mut program = Script::start_command(&mut cluster, "tutorial", agent);
    // A leader dies while the ranks look for each other, another one while they train.
    program.says("process").await;
    for _ in 0..2 {
        let leader = cluster.leader().await;
        cluster.kill(leader);
        program.says_anew("step").await;
        cluster.restart(leader).await;
    }
    let list = ["--job", "tutorial", "kv", "list", "@localhost.12355."];
    let keys = cluster.cli_ok(&list).await;
    assert!(keys.contains("#0:/default_pg/0//steps "), "{keys}");
    std::fs::write(folder.join("finish"), "").expect("the folder is ours");
    program.succeeds().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pytorchs_tutorial_of_ddp_is_named_where_its_python_has_no_wheel() {
    let mut cluster = Cluster::start(1).await;
    let words = tutorial(&Torch::newest(), &orders(&cluster));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let flags = ["--job", "tutorial"];
    let (mut agent, _) = Agent::run(&mut cluster, "tutorial", &flags, &words);
    let line = agent.says("it sets MASTER_ADDR=localhost MASTER_PORT=12355").await;
    let fixes = [
        "pip install ./trainer-shim/python",
        "remove the lines that set MASTER_ADDR and MASTER_PORT",
        "--tcpstore 127.0.0.1:12355",
    ];
    assert_says(&line, &["bypasses Holdfast", "and the agent does not listen there"]);
    assert_says(&line, &fixes);
    // It is left to itself, and its ranks would look for their store for half an hour.
    assert!(agent.end().is_none(), "{}", agent.said());
    let line = agent.says("is rank").await;
    let rank = line.split(' ').nth(1).and_then(|process| process.parse().ok());
    let rank = Pid::from_raw(rank.unwrap_or_else(|| panic!("no process: {line}")));
    kill(rank, Signal::SIGKILL).expect("it is ours");
    assert_eq!(agent.ended().await.code(), Some(1), "{}", agent.said());
}

/// It opens a store of its own, whatever it is told: the ranks are there, and not on Holdfast.
#[tokio::test(flavor = "multi_thread")]
async fn accelerate_is_named_where_its_python_has_no_wheel_and_told_of_torchrun() {
    let Some(path) = without_wheel("accelerate") else { return };
    let mut cluster = Cluster::start(1).await;
    let mut job = Job::new(&cluster, &Torch::newest(), "named");
    // Not 29500, which others may use on this machine.
    let port = format!("--main_process_port={}", cluster.port());
    let launch = ["PYTHON", "-m", "accelerate.commands.launch", "--multi_gpu"];
    let options = ["--num_processes=2", &port, "JOB", "accelerate"];
    // So long that it is said at the end that no client came.
    let flags = ["--expect-clients-within", "10m"];
    let mut command = job.command(&cluster, &flags, &[&launch[..], &options].concat());
    command.env("PYTHONPATH", path.path());
    job.start(&mut cluster, command);
    let line = cluster.logged("named-0", "it serves a TCPStore itself").await;
    assert_says(&line, &["bypasses Holdfast", "pip install ./trainer-shim/python"]);
    job.first().says("attempt 0 step").await;
    let keys = cluster.cli_ok(&["--job", "named", "kv", "list"]).await;
    assert!(!keys.contains("beat/"), "{keys}");
    job.finishes("with 2 ranks").await;
    let line = cluster.logged("named-0", "this job was not on Holdfast").await;
    let advice = ["accelerate always starts a store of its own", "as it is, with torchrun"];
    assert_says(&line, &advice);
}

#[tokio::test(flavor = "multi_thread")]
async fn torchrun_starts_a_program_of_accelerate_on_holdfast_without_the_wheel() {
    let Some(path) = without_wheel("accelerate") else { return };
    let mut cluster = Cluster::start(3).await;
    let mut job = Job::new(&cluster, &Torch::newest(), "instead");
    let command = [&TORCHRUN[..], &["--nproc-per-node=2", "JOB", "accelerate"]].concat();
    let mut command = job.command(&cluster, &[], &command);
    command.env("PYTHONPATH", path.path());
    job.start(&mut cluster, command);
    job.goes_on_without_its_leader(&mut cluster, 0).await;
    let keys = cluster.cli_ok(&["--job", "instead", "kv", "list"]).await;
    assert!(keys.contains("\n/default_pg/0//beat/1/1 "), "{keys}");
    job.finishes("with 2 ranks").await;
}
