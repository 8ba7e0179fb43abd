//! Process groups of PyTorch whose ranks come and go, with a subgroup among some of them:
//! if a rank is lost in a collective of either, the others go on in both.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use holdfast_api::{Read, ReadOutcome};
use holdfast_tests::cluster::job;
use holdfast_tests::python::Torch;
use holdfast_tests::{Agent, Cluster, Script, binaries, eventually, python, soon};

const JOB: &str = "train";
const WORLD: usize = 4;

/// Starts the ranks of a job with an agent.
struct Ranks<'a> {
    python: &'a Path,
    /// Path of the package, for a Python that has none.
    package: Option<&'a Path>,
    control: &'a Path,
    tcpstore: &'a str,
    backend: &'a str,
}

impl Ranks<'_> {
    fn start(&self, cluster: &mut Cluster, process: usize) -> Script {
        let mut command = binaries::without_settings(self.python);
        command.arg("-u").arg(python::script("group_ranks.py"));
        command.args([&process.to_string(), &WORLD.to_string(), self.backend]);
        command.envs(python::on_one_gpu(process));
        command.env("HOLDFAST_CONTROL", self.control).env("HOLDFAST_TCPSTORE", self.tcpstore);
        if let Some(package) = self.package {
            command.env("PYTHONPATH", package);
        }
        Script::start_command(cluster, &format!("process-{process}"), command)
    }
}

/// All ranks form a generation, and sum in it: its number. `pairs`: each rank's report of
/// its subgroup.
async fn all_form(ranks: &mut [Script], pairs: &[&str]) -> u64 {
    let mut generations = Vec::new();
    for (rank, script) in ranks.iter_mut().enumerate() {
        let line = script.says("formed ").await;
        let (generation, rest) = line.split_once(' ').expect("a generation, and more");
        let expected = format!("{rank} {} {}", pairs.len(), pairs[rank]);
        assert_eq!(rest, expected.trim_end(), "{line}");
        generations.push(generation.parse().expect("a number"));
    }
    for script in ranks.iter_mut() {
        script.says("sums").await;
    }
    assert!(generations.iter().all(|one| *one == generations[0]), "{generations:?}");
    generations[0]
}

async fn a_rank_is_lost_in_a_subgroup(
    torch: &Torch,
    package: Option<&Path>,
    (backend, how): (&str, &str),
) {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start(&mut cluster, JOB).await;
    let control = agent.control().await;
    let (python, tcpstore) = (&torch.python, agent.address());
    let start = Ranks { python, package, control: &control, tcpstore, backend };
    let mut ranks: Vec<Script> =
        (0..WORLD).map(|process| start.start(&mut cluster, process)).collect();
    for script in &mut ranks {
        assert_eq!(script.says("").await, how);
    }
    let first = all_form(&mut ranks, &["0 1", "0 1", "2 3", "2 3"]).await;

    // Rank 2 waits for rank 3 in their subgroup, which is killed. Rank 0 waits in another
    // one for rank 1, which is alive, and leaves it as soon as the generation is over.
    ranks[0].order("lose").await;
    ranks[1].says("turns").await;
    ranks[3].says("holds").await;
    ranks[3].kill();
    let without = all_form(&mut ranks[..3], &["0 1", "0 1", ""]).await;
    assert!(without > first, "{without} after {first}");

    // It comes back.
    ranks[3] = start.start(&mut cluster, 3);
    assert_eq!(ranks[3].says("").await, how);
    let with = all_form(&mut ranks, &["0 1", "0 1", "2 3", "2 3"]).await;
    assert!(with > without, "{with} after {without}");

    ranks[0].order("stop").await;
    for mut script in ranks {
        assert_eq!(script.says("ended ").await, "False", "its groups are destroyed");
        script.succeeds().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn subgroups_are_formed_anew_in_place_with_the_whole() {
    let Some(torch) = Torch::with_package() else { return };
    let how = if torch.version >= (2, 15) { "in place" } else { "made again" };
    a_rank_is_lost_in_a_subgroup(&torch, None, ("gloo", how)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_torch_makes_its_groups_again() {
    let Some(torch) = Torch::older() else { return };
    let Some(with_package) = python::with_package() else { return };
    // The package alone: beside it are others, which are not for this Python.
    let folder = tempfile::tempdir().expect("a folder");
    symlink(package_of(&with_package), folder.path().join("holdfast")).expect("a link");
    a_rank_is_lost_in_a_subgroup(&torch, Some(folder.path()), ("gloo", "made again")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn subgroups_over_nccl_share_a_gpu() {
    if !python::has_gpu() {
        return;
    }
    let Some(torch) = Torch::with_package() else { return };
    a_rank_is_lost_in_a_subgroup(&torch, None, ("nccl", "made again")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_lost_while_nccl_connects_ends_no_other() {
    if !python::has_gpu() {
        return;
    }
    let Some(torch) = Torch::with_package() else { return };
    for lost in [2, 0] {
        a_rank_is_lost_while_nccl_connects(&torch, lost).await;
    }
}

async fn a_rank_is_lost_while_nccl_connects(torch: &Torch, lost: usize) {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start(&mut cluster, JOB).await;
    let control = agent.control().await;
    let mut ranks = Vec::new();
    for process in 0..3 {
        let mut command = binaries::without_settings(&torch.python);
        command.arg("-u").arg(python::script("lost_connecting.py"));
        command.args([process, 3, lost].map(|number| number.to_string()));
        command.envs(python::on_one_gpu(process));
        command.env("HOLDFAST_CONTROL", &control).env("HOLDFAST_TCPSTORE", agent.address());
        ranks.push(Script::start_command(&mut cluster, &format!("process-{process}"), command));
    }
    ranks.remove(lost);
    for mut rank in ranks {
        let said = rank.says("sums ").await;
        assert!(said.starts_with("2 pid"), "{said}");
        rank.succeeds().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_communicator_is_over_when_nobody_knows_whether_the_next_one_has_formed() {
    let Some(torch) = Torch::with_package() else { return };
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start(&mut cluster, JOB).await;
    let control = agent.control().await;
    let mut start = |process: usize| {
        let mut command = binaries::without_settings(&torch.python);
        command.arg("-u").arg(python::script("group_outage.py"));
        command.args([process, 2].map(|number| number.to_string()));
        command.env("HOLDFAST_CONTROL", &control).env("HOLDFAST_TCPSTORE", agent.address());
        Script::start_command(&mut cluster, &format!("process-{process}"), command)
    };
    let mut ranks = [start(0), start(1)];
    for rank in &mut ranks {
        assert_eq!(rank.says("formed ").await, "1 2");
    }
    assert_eq!(ranks[0].says("void ").await, "none 1", "it holds what it held");

    // It arrives, and the store answers no more.
    ranks[0].order("10").await;
    ranks[0].says("advances").await;
    let client = cluster.client();
    eventually("its arrival", async || {
        let rounds = client.read(Read::rounds(job(JOB)), Default::default(), soon()).await;
        match rounds.expect("open rounds").outcome {
            ReadOutcome::Rounds(rounds) if !rounds.is_empty() => Some(()),
            _ => None,
        }
    })
    .await;
    cluster.kill(1);
    assert_eq!(ranks[0].says("lost ").await, "unknown 0");
    ranks[0].says("over").await;
    ranks[0].says("no total").await;

    cluster.restart(1).await;
    for rank in &mut ranks {
        rank.order("60").await;
    }
    for rank in &mut ranks {
        let line = rank.says("formed ").await;
        assert!(line.ends_with(" 2") && !line.starts_with("1 "), "{line}");
        rank.order("stop").await;
    }
    for rank in ranks {
        rank.succeeds().await;
    }
}

/// The folder of the package in a Python that has it.
fn package_of(python: &Path) -> PathBuf {
    let code = "import importlib.util, os; \
                print(os.path.dirname(importlib.util.find_spec('holdfast').origin))";
    let output = binaries::without_settings(python)
        .args(["-c", code])
        .stderr(Stdio::inherit())
        .output()
        .expect("that Python runs");
    let text = String::from_utf8(output.stdout).expect("a path in UTF-8");
    PathBuf::from(text.trim())
}

#[test]
fn who_looks_for_its_sockets_gives_up_no_lock_on_a_file() {
    let Some(python) = python::with_package() else { return };
    let mut command = binaries::without_settings(&python);
    command.arg(python::script("sockets_of_groups.py"));
    let output = command.output().expect("the script runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
